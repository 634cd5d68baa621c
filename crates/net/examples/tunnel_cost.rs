//! What it costs to carry bytes from socket to socket: by a tunnel, which moves them through pipes in
//! the kernel, and by reads and writes of 64 KiB. Prints the CPU time of the thread that carries.
//!
//! ```sh
//! cargo run --release -p net --example tunnel_cost -- GIGABYTES [OCTETS-OF-A-WRITE]
//! ```

#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on fails")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener as StdListener, TcpStream as StdStream};
use std::time::{Duration, Instant};

use mail::Timestamp;
use net::{ConnectionHandler, OutboundConnection, OutputPiece, StopSender, Tunnel, TunnelEnd, session_runtime};
use tokio::net::{TcpListener, TcpStream};

/// Hands its client over at once.
struct Handover(Option<Box<Tunnel>>);

impl ConnectionHandler for Handover {
    fn handle_input(&mut self, _now: Timestamp, _input: &[u8]) {}
    fn handle_disconnect(&mut self, _now: Timestamp) {}
    fn handle_timeout(&mut self, _now: Timestamp) {}
    fn handle_stop(&mut self, _now: Timestamp) {}
    async fn work(&mut self) {}
    fn output(&self) -> OutputPiece<'_> {
        OutputPiece::Bytes(&[])
    }
    fn handle_sent(&mut self, _count: usize) {}
    fn deadline(&self) -> Option<Timestamp> {
        None
    }
    fn wants_close(&self) -> bool {
        false
    }
    fn take_tunnel(&mut self) -> Option<Box<Tunnel>> {
        self.0.take()
    }
    fn handle_tunnel_ended(&mut self, _now: Timestamp, end: TunnelEnd) {
        assert!(end.octets_to_backend > 0, "{end:?}");
    }
}

async fn carry_by_tunnel(client: TcpStream, sink: std::net::SocketAddr) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    let backend = OutboundConnection::connect(sink, None, deadline).await.unwrap();
    let idle_time_max = Duration::from_secs(60);
    let mut handler = Handover(Some(Box::new(Tunnel { backend, first_to_backend: Vec::new(), idle_time_max })));
    let (_stopper, stop) = StopSender::new();
    net::drive_connection(client.into(), stop, &mut handler).await;
}

async fn carry_by_copies(mut client: TcpStream, sink: std::net::SocketAddr) {
    let mut backend = TcpStream::connect(sink).await.unwrap();
    backend.set_nodelay(true).unwrap();
    let size = 64 << 10;
    let _ = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut backend, size, size).await;
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().unwrap());
    let octets = arguments.next().unwrap_or(4) * 1_000_000_000;
    let write = arguments.next().unwrap_or(64 << 10) as usize;
    for is_tunnel in [true, false, true, false] {
        measure(octets, write, is_tunnel);
    }
}

fn measure(octets: u64, write: usize, is_tunnel: bool) {
    let sink = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let sink_address = sink.local_addr().unwrap();
    let reader = std::thread::spawn(move || {
        let (mut stream, mut buffer) = (sink.accept().unwrap().0, vec![0; 256 << 10]);
        let mut total = 0;
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => return total,
                count => total += count as u64,
            }
        }
    });
    let runtime = session_runtime().unwrap();
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let writer = std::thread::spawn(move || {
        let mut stream = StdStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let piece = vec![b'x'; write];
        (0..octets / write as u64).for_each(|_| stream.write_all(&piece).unwrap());
    });
    let (before, started) = (thread_seconds(), Instant::now());
    runtime.block_on(async {
        let client = listener.accept().await.unwrap().0;
        if is_tunnel {
            carry_by_tunnel(client, sink_address).await
        } else {
            carry_by_copies(client, sink_address).await
        }
    });
    let (spent, elapsed) = (thread_seconds() - before, started.elapsed().as_secs_f64());
    writer.join().unwrap();
    let gigabytes = reader.join().unwrap() as f64 / 1e9;
    let name = if is_tunnel { "tunnel" } else { "copies" };
    println!("{name}: {:.3} CPU s/GB, {:.2} GB/s, writes of {write}", spent / gigabytes, gigabytes / elapsed);
}

/// The CPU time of this thread, in seconds.
fn thread_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
    nanoseconds / 1e9
}
