//! Stands in for a policy service in measurements: it says DUNNO to every question of Postfix's policy
//! delegation protocol. One thread serves all connections, so that many answers cost few wake-ups.
//!
//! `policy_stub ADDRESS` listens until it is killed.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Larger than any question that a mail server asks.
const INPUT_OCTETS: usize = 64 << 10;
const END: &[u8] = b"\n\n";
const ANSWER: &[u8] = b"action=DUNNO\n\n";

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address] = &arguments[..] else { panic!("usage: policy_stub ADDRESS") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("ready");
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            tokio::spawn(serve(socket));
        }
    })
}

/// Serves a mail server until it leaves. It waits for each answer, so a question ends what has arrived.
async fn serve(mut socket: TcpStream) -> io::Result<()> {
    let (mut input, mut filled) = (vec![0; INPUT_OCTETS], 0);
    loop {
        let count = socket.read(&mut input[filled..]).await?;
        if count == 0 {
            return Ok(());
        }
        filled += count;
        if input[..filled].ends_with(END) {
            filled = 0;
            socket.write_all(ANSWER).await?;
        }
    }
}
