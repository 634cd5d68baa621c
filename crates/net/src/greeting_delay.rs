//! A delay before the greeting: a client that talks before the server has (RFC 5321 section 3.1) is
//! no mail server. Waiting clients take no thread, and nothing of what they send is read: it stays in
//! the kernel.
//!
//! The number of clients that wait is limited. Others are greeted at once, so that a flood cannot fill
//! the server with sessions that do nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::StopReceiver;

/// The clients that wait, of all listeners, over reloads.
#[derive(Debug)]
pub struct GreetingDelays {
    waiting_max: usize,
    counters: Arc<DelayCounters>,
}

#[derive(Debug, Default)]
struct DelayCounters {
    waiting: AtomicUsize,
    early_talkers: AtomicU64,
}

/// The delay of one client; it counts as waiting until this is dropped.
#[derive(Debug)]
pub struct GreetingDelay {
    wait: Duration,
    counters: Arc<DelayCounters>,
}

/// What a client did during the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DelayOutcome {
    /// It waited.
    Silent,
    /// It talked.
    Early,
    /// It is gone, or the server is stopping.
    Ended,
}

impl GreetingDelays {
    /// At most so many clients wait at the same time.
    pub fn new(waiting_max: usize) -> GreetingDelays {
        GreetingDelays { waiting_max, counters: Arc::default() }
    }

    /// The same clients with another limit.
    pub fn with_limit(&self, waiting_max: usize) -> GreetingDelays {
        GreetingDelays { waiting_max, counters: self.counters.clone() }
    }

    /// The delay of another client. None: too many wait.
    pub fn start(&self, wait: Duration) -> Option<GreetingDelay> {
        let one_more = |waiting| (waiting < self.waiting_max).then_some(waiting + 1);
        self.counters.waiting.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(GreetingDelay { wait, counters: self.counters.clone() })
    }

    /// How many clients wait.
    pub fn waiting(&self) -> usize {
        self.counters.waiting.load(Relaxed)
    }

    /// How many clients talked before the greeting.
    pub fn early_talkers(&self) -> u64 {
        self.counters.early_talkers.load(Relaxed)
    }
}

impl GreetingDelay {
    /// Waits until the delay has passed or the client talks. A stop interrupts it.
    pub(crate) async fn wait_for(self, stream: &TcpStream, mut stop: StopReceiver) -> DelayOutcome {
        let mut first = [0];
        let outcome = tokio::select! {
            peeked = stream.peek(&mut first) => match peeked {
                Ok(1..) => DelayOutcome::Early,
                Ok(0) | Err(_) => DelayOutcome::Ended,
            },
            () = tokio::time::sleep(self.wait) => DelayOutcome::Silent,
            () = stop.wait_for_stop() => DelayOutcome::Ended,
        };
        if outcome == DelayOutcome::Early {
            self.counters.early_talkers.fetch_add(1, Relaxed);
        }
        outcome
    }
}

impl Drop for GreetingDelay {
    fn drop(&mut self) {
        self.counters.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::StopSender;

    /// Both ends of a connection.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_client_waits_talks_or_goes() {
        let (delays, (_stopper, stop)) = (GreetingDelays::new(10), StopSender::new());
        let delay = |millis| delays.start(Duration::from_millis(millis)).unwrap();
        let (_silent, server) = connection().await;
        assert_eq!(delay(20).wait_for(&server, stop.clone()).await, DelayOutcome::Silent);
        let (mut early, server) = connection().await;
        early.write_all(b"EHLO bot\r\n").await.unwrap();
        assert_eq!(delay(60_000).wait_for(&server, stop.clone()).await, DelayOutcome::Early);
        let mut first = [0; 4];
        assert_eq!(server.peek(&mut first).await.unwrap(), 4, "what it said was read");
        let (gone, server) = connection().await;
        drop(gone);
        assert_eq!(delay(60_000).wait_for(&server, stop.clone()).await, DelayOutcome::Ended);
        assert_eq!((delays.waiting(), delays.early_talkers()), (0, 1));
    }

    #[test]
    fn only_so_many_wait_over_reloads() {
        let delays = GreetingDelays::new(2);
        let wait = Duration::from_secs(1);
        let both = [delays.start(wait), delays.start(wait)];
        assert!(both.iter().all(Option::is_some) && delays.start(wait).is_none());
        let wider = delays.with_limit(3);
        assert!(wider.start(wait).is_some());
        drop(both);
        assert_eq!((delays.waiting(), wider.waiting()), (0, 0));
    }
}
