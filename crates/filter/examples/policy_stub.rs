//! Stands in for a policy service in measurements: it says DUNNO to every question of Postfix's policy
//! delegation protocol. It uses no other crate, so `rustc -O` compiles it within a second.
//!
//! `policy_stub ADDRESS` listens until it is killed.

#![expect(clippy::unwrap_used, reason = "a program for measurements: it ends at the first surprise")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Larger than any question that a mail server asks.
const INPUT_OCTETS: usize = 64 << 10;
const END: &[u8] = b"\n\n";
const ANSWER: &[u8] = b"action=DUNNO\n\n";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address] = &arguments[..] else { panic!("usage: policy_stub ADDRESS") };
    let listener = TcpListener::bind(address).unwrap();
    println!("ready");
    for socket in listener.incoming() {
        let socket = socket.unwrap();
        socket.set_nodelay(true).unwrap();
        std::thread::spawn(move || serve(socket));
    }
}

/// Serves a mail server until it leaves. It waits for each answer, so a question ends what has arrived.
fn serve(mut socket: TcpStream) {
    let (mut input, mut filled) = (vec![0; INPUT_OCTETS], 0);
    loop {
        match socket.read(&mut input[filled..]) {
            Ok(0) | Err(_) => return,
            Ok(count) => filled += count,
        }
        if !input[..filled].ends_with(END) {
            continue;
        }
        filled = 0;
        if socket.write_all(ANSWER).is_err() {
            return;
        }
    }
}
