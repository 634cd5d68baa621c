//! A peer that does not read: how long a connection waits for it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::Ipv4Addr;
use std::time::Duration;

use mail::Timestamp;
use net::{ConnectionHandler, OutputPiece, StopReceiver, StopSender};
use tokio::net::{TcpListener, TcpStream};

/// Longer than any step of these tests, and shorter than any wait that would be a failure.
const PATIENCE: Duration = Duration::from_secs(20);

/// Has more output than a socket accepts.
struct LongOutput {
    output: Vec<u8>,
    deadline: Option<Timestamp>,
    stopped: bool,
    ended: bool,
}

impl ConnectionHandler for LongOutput {
    fn handle_input(&mut self, _now: Timestamp, _input: &[u8]) {}

    fn handle_disconnect(&mut self, _now: Timestamp) {
        self.ended = true;
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.deadline = self.deadline.filter(|deadline| now < *deadline);
    }

    fn handle_stop(&mut self, _now: Timestamp) {
        (self.stopped, self.deadline) = (true, None);
    }

    async fn work(&mut self) {}

    fn output(&self) -> OutputPiece<'_> {
        OutputPiece::Bytes(&self.output)
    }

    fn handle_sent(&mut self, count: usize) {
        self.output.drain(..count);
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.deadline
    }

    fn wants_close(&self) -> bool {
        self.deadline.is_none()
    }
}

/// Drives a conversation with a deadline after `time`, to a peer that never reads.
async fn drive_stalled(time: Duration, stop: StopReceiver) -> LongOutput {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let deadline = Some(net::steady_now() + time);
    let mut talk = LongOutput { output: vec![b'x'; 64 << 20], deadline, stopped: false, ended: false };
    tokio::time::timeout(PATIENCE, net::drive_connection(stream.into(), stop, &mut talk)).await.unwrap();
    talk
}

#[tokio::test]
async fn it_has_until_the_deadline() {
    let (_stopper, stop) = StopSender::new();
    let talk = drive_stalled(Duration::from_millis(50), stop).await;
    assert!(talk.ended && !talk.output.is_empty());
}

#[tokio::test]
async fn it_has_a_moment_after_the_stop() {
    let (stopper, stop) = StopSender::new();
    stopper.stop();
    let talk = drive_stalled(Duration::from_secs(3600), stop).await;
    assert!(talk.stopped && talk.ended && !talk.output.is_empty());
}
