//! A bare publisher, for measurements: how many bytes a second the NATS servers store for somebody who
//! does nothing else. It publishes messages of one size to a new stream, and has a fixed number of them
//! on their way.
//!
//! `nats_publisher ADDRESS REPLICAS COUNT BYTES IN_FLIGHT` prints the seconds that it took.

#![expect(clippy::unwrap_used, reason = "a program for measurements: it ends at the first surprise")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const STREAM: &str = "bare";
const INBOX: &str = "_INBOX.bare";
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, numbers @ ..] = &arguments[..] else { panic!("the address is missing") };
    let numbers: Vec<usize> = numbers.iter().map(|number| number.parse().unwrap()).collect();
    let [replicas, count, bytes, in_flight] = numbers[..] else {
        panic!("usage: nats_publisher ADDRESS REPLICAS COUNT BYTES IN_FLIGHT")
    };
    let mut publisher = Publisher::connect(address);
    publisher.make_stream(replicas);
    let begin = Instant::now();
    publisher.publish(count, bytes, in_flight);
    println!("{:.3}", begin.elapsed().as_secs_f64());
}

struct Publisher {
    socket: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Publisher {
    fn connect(address: &str) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(ANSWER_TIME_MAX)).unwrap();
        let options = json!({"verbose": false, "pedantic": false, "headers": true, "no_responders": true,
            "lang": "rust", "version": "0", "protocol": 1, "echo": false});
        socket.write_all(format!("CONNECT {options}\r\nSUB {INBOX} 1\r\n").as_bytes()).unwrap();
        let reader = BufReader::new(socket.try_clone().unwrap());
        Publisher { socket, reader }
    }

    fn make_stream(&mut self, replicas: usize) {
        let config = json!({"name": STREAM, "subjects": [STREAM], "retention": "limits", "storage": "file",
            "discard": "new", "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0,
            "num_replicas": replicas});
        self.send(&format!("$JS.API.STREAM.CREATE.{STREAM}"), config.to_string().as_bytes());
        self.await_answer();
    }

    fn publish(&mut self, count: usize, bytes: usize, in_flight: usize) {
        let payload = vec![b'x'; bytes];
        for number in 0..count {
            if number >= in_flight {
                self.await_answer();
            }
            self.send(STREAM, &payload);
        }
        (0..in_flight.min(count)).for_each(|_| self.await_answer());
    }

    fn send(&mut self, subject: &str, payload: &[u8]) {
        let mut message = format!("PUB {subject} {INBOX} {}\r\n", payload.len()).into_bytes();
        message.extend_from_slice(payload);
        message.extend_from_slice(b"\r\n");
        self.socket.write_all(&message).unwrap();
    }

    /// Waits for the next answer, which must be a good one.
    fn await_answer(&mut self) {
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["PING"] => self.socket.write_all(b"PONG\r\n").unwrap(),
                ["INFO", ..] | ["PONG"] => {}
                ["MSG", .., length] => return self.check_answer(length.parse().unwrap()),
                _ => panic!("unexpected: {line}"),
            }
        }
    }

    fn check_answer(&mut self, length: usize) {
        let mut payload = vec![0; length + 2];
        self.reader.read_exact(&mut payload).unwrap();
        let answer: Value = serde_json::from_slice(&payload).unwrap();
        assert!(answer["error"].is_null(), "{answer}");
    }
}
