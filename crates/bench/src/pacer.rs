//! Distributes tickets. In a closed loop a ticket is due when a connection is free. In an open loop
//! each ticket has a scheduled time that the server cannot delay; latency counts from that time.
//!
//! Tickets end by a count, by a time, or by a stop request. Never more tickets are given out than
//! requested.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use net::StopReceiver;
use tokio::time::{Instant, sleep_until};

/// The resolution of the runtime's timers. A delay below it is not counted against the server.
const TIMER_RESOLUTION: Duration = Duration::from_millis(2);

/// Permission to send one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// From 0.
    pub(crate) number: u64,
    /// When its latency starts.
    pub(crate) due: Instant,
}

/// Gives tickets to all connections of a run.
#[derive(Debug)]
pub(crate) struct Pacer {
    begun: Instant,
    /// None in a closed loop.
    interval_secs: Option<f64>,
    count_max: u64,
    end: Option<Instant>,
    next: AtomicU64,
}

impl Pacer {
    /// Starts now: `rate` a second, or as fast as tickets are taken; at most `count` tickets within
    /// `duration`.
    pub(crate) fn begin(rate: Option<f64>, count: Option<u64>, duration: Option<Duration>) -> Pacer {
        let begun = Instant::now();
        Pacer {
            begun,
            interval_secs: rate.map(f64::recip),
            count_max: count.unwrap_or(u64::MAX),
            end: duration.map(|duration| begun + duration),
            next: AtomicU64::new(0),
        }
    }

    /// When the run began.
    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// Waits for the next ticket; None when there are no more.
    pub(crate) async fn next(&self, stop: &mut StopReceiver) -> Option<Ticket> {
        let now = Instant::now();
        if stop.is_requested() || self.end.is_some_and(|end| now >= end) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.count_max {
            return None;
        }
        let Some(interval) = self.interval_secs else { return Some(Ticket { number, due: now }) };
        let due = self.begun + Duration::from_secs_f64(interval * number as f64);
        if self.end.is_some_and(|end| due >= end) {
            return None;
        }
        if due <= now {
            return Some(Ticket { number, due });
        }
        tokio::select! {
            () = sleep_until(due) => {}
            () = stop.wait_for_stop() => return None,
        }
        let woken = Instant::now();
        Some(Ticket { number, due: if woken < due + TIMER_RESOLUTION { woken } else { due } })
    }
}

/// Tickets of an open loop that were due but not given out, because no connection was free before
/// the end.
#[derive(Clone, Debug)]
pub(crate) struct MissedTickets {
    numbers: std::ops::Range<u64>,
    begun: Instant,
    interval_secs: f64,
    until: Instant,
}

impl MissedTickets {
    /// How long each ticket had waited at the end.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Duration> {
        let due = |number| self.begun + Duration::from_secs_f64(self.interval_secs * number as f64);
        self.numbers.clone().map(move |number| self.until.saturating_duration_since(due(number)))
    }
}

impl Pacer {
    /// The tickets that were due before the end of the run: its time limit, or `stopped` if that is
    /// earlier.
    pub(crate) fn missed_tickets(&self, stopped: Instant) -> MissedTickets {
        let until = self.end.map_or(stopped, |end| end.min(stopped));
        let interval = self.interval_secs.unwrap_or(f64::INFINITY);
        let due = ((until - self.begun).as_secs_f64() / interval).ceil() as u64;
        let given = self.next.load(Ordering::Relaxed);
        MissedTickets {
            numbers: given..due.min(self.count_max).max(given),
            begun: self.begun,
            interval_secs: interval,
            until,
        }
    }
}

#[cfg(test)]
mod tests {
    use net::StopSender;

    use super::*;

    async fn all_tickets(pace: &Pacer, stop: &mut StopReceiver) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        while let Some(ticket) = pace.next(stop).await {
            tickets.push(ticket);
        }
        tickets
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_loop_gives_all_its_tickets_without_waiting() {
        let (_stopper, mut stop) = StopSender::new();
        let tickets = all_tickets(&Pacer::begin(None, Some(1000), None), &mut stop).await;
        assert_eq!(tickets.iter().map(|ticket| ticket.number).collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_loop_gives_rate_times_duration() {
        let (_stopper, mut stop) = StopSender::new();
        let begun = Instant::now();
        let tickets = all_tickets(&Pacer::begin(Some(500.0), None, Some(Duration::from_secs(60))), &mut stop).await;
        assert_eq!(tickets.len(), 30_000);
        assert!(tickets[29_999].due - begun < Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_ticket_keeps_its_scheduled_time() {
        let (_stopper, mut stop) = StopSender::new();
        let pace = Pacer::begin(Some(10.0), None, None);
        let first = pace.next(&mut stop).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = pace.next(&mut stop).await.unwrap();
        assert_eq!(second.due - first.due, Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn tickets_that_were_due_and_never_given_are_missed_with_their_waiting_time() {
        let (_stopper, mut stop) = StopSender::new();
        let pace = Pacer::begin(Some(10.0), None, Some(Duration::from_secs(10)));
        for _ in 0..50 {
            pace.next(&mut stop).await.unwrap();
        }
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(pace.next(&mut stop).await, None);
        let waits: Vec<_> = pace.missed_tickets(Instant::now()).waits().collect();
        assert_eq!(waits.len(), 50);
        assert_eq!(waits[0], Duration::from_secs(5));
        assert_eq!(waits[49], Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_that_keeps_up_misses_nothing() {
        let (_stopper, mut stop) = StopSender::new();
        let pace = Pacer::begin(Some(500.0), None, Some(Duration::from_secs(3)));
        assert_eq!(all_tickets(&pace, &mut stop).await.len(), 1500);
        assert_eq!(pace.missed_tickets(Instant::now()).waits().count(), 0);
        let closed = Pacer::begin(None, Some(7), None);
        assert_eq!(closed.missed_tickets(Instant::now()).waits().count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_request_ends_the_waiting() {
        let (stopper, mut stop) = StopSender::new();
        let pace = Pacer::begin(Some(0.001), None, None);
        assert!(pace.next(&mut stop).await.is_some());
        let (ticket, ()) = tokio::join!(pace.next(&mut stop), async { stopper.stop() });
        assert_eq!(ticket, None);
    }
}
