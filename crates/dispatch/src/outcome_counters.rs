//! Counts outcomes, and what is delivered together, for the metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mail::{Histogram, HistogramRecorder, TlsProof};
use parking_lot::Mutex;
use queue::RecipientVerdict;

/// Counts the durable outcomes of recipients.
#[derive(Debug, Default)]
pub struct OutcomeCounters {
    delivered: AtomicU64,
    relayed: AtomicU64,
    deferred: AtomicU64,
    failed: AtomicU64,
    /// Relayed recipients, in the order of [`TlsProof::ALL`].
    relayed_by_proof: [AtomicU64; TlsProof::ALL.len()],
    notices_dropped: AtomicU64,
    maildir_batches: HistogramRecorder,
    /// By the name of the transport. Only the thread that logs outcomes counts here, so it does not wait.
    transports: Mutex<BTreeMap<Box<str>, TransportCounts>>,
}

/// What became of the attempts of one transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportCounts {
    /// Attempts, each with one or more recipients of a message.
    pub attempts: u64,
    /// Recipients that were delivered to, or relayed.
    pub delivered: u64,
    /// Recipients that were deferred.
    pub deferred: u64,
    /// Recipients that failed for good.
    pub failed: u64,
}

impl TransportCounts {
    fn count(&mut self, verdict: &RecipientVerdict) {
        match verdict {
            RecipientVerdict::Delivered | RecipientVerdict::Relayed { .. } => self.delivered += 1,
            RecipientVerdict::Deferred { .. } => self.deferred += 1,
            RecipientVerdict::Failed { .. } => self.failed += 1,
            RecipientVerdict::Held | RecipientVerdict::Removed => {}
        }
    }
}

impl OutcomeCounters {
    /// Counts one recipient's outcome. Operator actions are not outcomes.
    pub fn count_outcome(&self, verdict: &RecipientVerdict) {
        let counter = match verdict {
            RecipientVerdict::Delivered => &self.delivered,
            RecipientVerdict::Relayed { .. } => &self.relayed,
            RecipientVerdict::Deferred { .. } => &self.deferred,
            RecipientVerdict::Failed { .. } => &self.failed,
            RecipientVerdict::Held | RecipientVerdict::Removed => return,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts an attempt of a transport, unless its next hop was known to be dead, and the outcomes of the
    /// recipients. Transports are those of the configurations since the start.
    pub(crate) fn count_for_transport(&self, transport: &str, is_attempt: bool, verdicts: &[RecipientVerdict]) {
        let mut transports = self.transports.lock();
        let counts = match transports.get_mut(transport) {
            Some(counts) => counts,
            None => transports.entry(transport.into()).or_default(),
        };
        counts.attempts += u64::from(is_attempt);
        verdicts.iter().for_each(|verdict| counts.count(verdict));
    }

    /// The counts of each transport that was used since the start, by name.
    pub fn by_transport(&self) -> Vec<(Box<str>, TransportCounts)> {
        self.transports.lock().iter().map(|(transport, counts)| (transport.clone(), *counts)).collect()
    }

    /// Counts recipients that were relayed over a connection with this protection.
    pub(crate) fn count_relayed(&self, proof: TlsProof, recipients: usize) {
        let place = TlsProof::ALL.iter().position(|other| *other == proof);
        if let Some(counter) = place.and_then(|place| self.relayed_by_proof.get(place)) {
            counter.fetch_add(recipients as u64, Relaxed);
        }
    }

    /// How many recipients were relayed, by how the connection was protected.
    pub fn relayed_by_proof(&self) -> [(TlsProof, u64); TlsProof::ALL.len()] {
        let mut counts = TlsProof::ALL.map(|proof| (proof, 0));
        for ((_, count), counter) in counts.iter_mut().zip(&self.relayed_by_proof) {
            *count = counter.load(Relaxed);
        }
        counts
    }

    /// Counts a notice that is not sent because its possibly forged sender has had too many.
    pub fn count_dropped_notice(&self) {
        self.notices_dropped.fetch_add(1, Relaxed);
    }

    /// How many notices were not sent.
    pub fn notices_dropped(&self) -> u64 {
        self.notices_dropped.load(Relaxed)
    }

    /// Counts recipients that are delivered to Maildirs together.
    pub(crate) fn count_maildir_batch(&self, recipients: usize) {
        self.maildir_batches.record(recipients as u64);
    }

    /// How many recipients were delivered together.
    pub fn maildir_batches(&self) -> Histogram {
        self.maildir_batches.read()
    }

    /// The count of each outcome.
    pub fn by_outcome(&self) -> [(&'static str, u64); 4] {
        [
            ("delivered", self.delivered.load(Relaxed)),
            ("relayed", self.relayed.load(Relaxed)),
            ("deferred", self.deferred.load(Relaxed)),
            ("failed", self.failed.load(Relaxed)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use mail::{Reply, Timestamp};

    use super::*;

    #[test]
    fn outcomes_are_counted_and_operator_actions_are_not() {
        let (attempts, reason) = (OutcomeCounters::default(), Reply::without_enhanced_code(450, "x"));
        let deferred = RecipientVerdict::Deferred { reason: reason.clone(), until: Timestamp(1) };
        let relayed = RecipientVerdict::Relayed { reply: reason.clone(), dsn: false };
        let verdicts =
            [RecipientVerdict::Delivered, deferred.clone(), deferred, relayed, RecipientVerdict::Failed { reason }];
        verdicts
            .iter()
            .chain(&[RecipientVerdict::Held, RecipientVerdict::Removed])
            .for_each(|verdict| attempts.count_outcome(verdict));
        attempts.count_for_transport("smtp", true, &verdicts);
        attempts.count_for_transport("smtp", false, &verdicts[1..2]);
        attempts.count_for_transport("local", true, &verdicts[..1]);
        attempts.count_relayed(TlsProof::Dane, 2);
        let by_proof = attempts.relayed_by_proof().map(|(proof, count)| (proof.as_str(), count));
        assert_eq!(by_proof, [("clear", 0), ("encrypted", 0), ("verified", 0), ("mta-sts", 0), ("dane", 2)]);
        let smtp = TransportCounts { attempts: 1, delivered: 2, deferred: 3, failed: 1 };
        let local = TransportCounts { attempts: 1, delivered: 1, ..TransportCounts::default() };
        assert_eq!(attempts.by_transport(), [("local".into(), local), ("smtp".into(), smtp)]);
        assert_eq!(attempts.by_outcome(), [("delivered", 1), ("relayed", 1), ("deferred", 2), ("failed", 1)]);
    }
}
