//! Counts outcomes, and what is delivered together, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mail::{Histogram, HistogramRecorder};
use queue::RecipientVerdict;

/// Counts the durable outcomes of recipients.
#[derive(Debug, Default)]
pub struct OutcomeCounters {
    delivered: AtomicU64,
    relayed: AtomicU64,
    deferred: AtomicU64,
    failed: AtomicU64,
    notices_dropped: AtomicU64,
    maildir_batches: HistogramRecorder,
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
        assert_eq!(attempts.by_outcome(), [("delivered", 1), ("relayed", 1), ("deferred", 2), ("failed", 1)]);
    }
}
