//! The counters of a running load: phases, results, errors.
//!
//! Each thread has its own counters behind a lock without contention; they are added for display.
//! Times are kept in HDR histograms of fixed size (three digits), in microseconds.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

/// Longer times count as this.
const SPAN_MAX: Duration = Duration::from_secs(3600);
/// Distinct errors; the rest is counted together.
const ERRORS_MAX: usize = 1000;

/// The counters of one thread, or the sum of all.
#[derive(Clone, Debug)]
pub(crate) struct LoadTally {
    /// One for each phase of the load.
    pub(crate) phases: Vec<Histogram<u64>>,
    /// From the scheduled time of a ticket to its end.
    pub(crate) latency: Histogram<u64>,
    pub(crate) counts: LoadCounts,
    /// Counts by the text of the server or our own.
    pub(crate) errors: BTreeMap<String, u64>,
    /// When the last ticket ended.
    pub(crate) last: Option<Instant>,
}

/// Plain counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoadCounts {
    /// Tickets taken.
    pub(crate) begun: u64,
    /// Tickets that succeeded: messages accepted, sessions or requests completed.
    pub(crate) done: u64,
    /// Tickets that failed.
    pub(crate) failed: u64,
    /// Tickets of an open loop that were due and never taken.
    pub(crate) missed: u64,
    /// Parts that succeeded: recipients accepted, messages read.
    pub(crate) parts: u64,
    /// Bytes of content, without the protocol.
    pub(crate) octets: u64,
    /// Errors of any kind; a ticket may have several.
    pub(crate) errors: u64,
    pub(crate) connections: u64,
    pub(crate) tls_connections: u64,
}

impl LoadTally {
    /// Empty counters for this number of phases.
    pub(crate) fn new(phases: usize) -> LoadTally {
        LoadTally {
            phases: vec![empty_histogram(); phases],
            latency: empty_histogram(),
            counts: LoadCounts::default(),
            errors: BTreeMap::new(),
            last: None,
        }
    }

    /// Records the time of a phase.
    pub(crate) fn record_phase(&mut self, phase: usize, took: Duration) {
        record_time(&mut self.phases[phase], took);
    }

    /// Counts a ticket that succeeded.
    pub(crate) fn record_done(&mut self, due: Instant, now: Instant) {
        self.counts.done += 1;
        self.last = self.last.max(Some(now));
        record_time(&mut self.latency, now - due);
    }

    /// Counts a ticket that failed.
    pub(crate) fn record_failed(&mut self, now: Instant) {
        self.counts.failed += 1;
        self.last = self.last.max(Some(now));
    }

    /// Counts a ticket that was due and never taken, with its waiting time.
    pub(crate) fn record_missed(&mut self, waited: Duration) {
        self.counts.missed += 1;
        record_time(&mut self.latency, waited);
    }

    /// Counts an error.
    pub(crate) fn record_error(&mut self, text: String) {
        self.counts.errors += 1;
        self.count_error(text, 1);
    }

    fn count_error(&mut self, text: String, count: u64) {
        let known = self.errors.len() < ERRORS_MAX || self.errors.contains_key(&text);
        *self.errors.entry(if known { text } else { "other errors".to_owned() }).or_default() += count;
    }

    /// Adds other counters.
    pub(crate) fn add(&mut self, other: &LoadTally) {
        for (ours, theirs) in self.phases.iter_mut().zip(&other.phases) {
            *ours += theirs;
        }
        self.latency += &other.latency;
        self.counts.add(&other.counts);
        other.errors.iter().for_each(|(text, count)| self.count_error(text.clone(), *count));
        self.last = self.last.max(other.last);
    }
}

impl LoadCounts {
    /// Adds other counts.
    pub(crate) fn add(&mut self, other: &LoadCounts) {
        self.begun += other.begun;
        self.done += other.done;
        self.failed += other.failed;
        self.missed += other.missed;
        self.parts += other.parts;
        self.octets += other.octets;
        self.errors += other.errors;
        self.connections += other.connections;
        self.tls_connections += other.tls_connections;
    }

    /// Tickets in progress.
    pub(crate) fn in_flight(&self) -> u64 {
        self.begun - self.done - self.failed
    }
}

fn empty_histogram() -> Histogram<u64> {
    let microseconds_max = SPAN_MAX.as_micros() as u64;
    Histogram::new_with_bounds(1, microseconds_max, 3).expect("the bounds are in order and the digits at most five")
}

fn record_time(histogram: &mut Histogram<u64>, took: Duration) {
    histogram.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
}

/// Normalizes a reply so that equal errors are counted together: text in angle brackets and words
/// with three or more digits after the codes are replaced by `*`.
pub(crate) fn normalize_reply(reply: &str) -> String {
    let words = reply.split(' ').enumerate().map(|(place, word)| match (word.find('<'), word.rfind('>')) {
        (Some(open), Some(close)) if open < close => format!("{}*{}", &word[..=open], &word[close..]),
        _ if place < 2 && is_code(word) => word.to_owned(),
        _ if word.bytes().filter(u8::is_ascii_digit).count() >= 3 => "*".to_owned(),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn is_code(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_differ_by_address_or_queue_id_are_one_error() {
        assert_eq!(
            normalize_reply("550 5.1.1 <user42@virt.test>: Recipient address rejected"),
            "550 5.1.1 <*>: Recipient address rejected"
        );
        assert_eq!(normalize_reply("451 4.3.0 4Xy1234: queue file write error"), "451 4.3.0 * queue file write error");
        assert_eq!(normalize_reply("550 <user42@virt.test> unknown"), "550 <*> unknown");
        assert_eq!(normalize_reply("421"), "421");
    }

    #[test]
    fn sums_of_threads_add_up() {
        let now = Instant::now();
        let mut one = LoadTally::new(1);
        one.record_phase(0, Duration::from_millis(5));
        one.counts.begun = 3;
        one.record_done(now, now + Duration::from_millis(7));
        one.record_failed(now);
        one.record_error("451".into());
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!((sum.counts.done, sum.counts.failed, sum.counts.in_flight()), (2, 2, 2));
        assert_eq!((sum.phases[0].len(), sum.errors["451"]), (2, 2));
        assert_eq!(sum.latency.max() / 100, 70);
        assert_eq!(sum.last, Some(now + Duration::from_millis(7)));
    }

    #[test]
    fn a_hostile_server_cannot_fill_the_memory_with_errors() {
        let mut tally = LoadTally::new(0);
        (0..ERRORS_MAX + 10).for_each(|number| tally.record_error(format!("error {number}")));
        assert_eq!(tally.errors.len(), ERRORS_MAX + 1);
        assert_eq!(tally.errors["other errors"], 10);
    }
}
