//! Delivery: one attempt at one next hop, and the text of bounces. This crate never sees the spool:
//! it gets a message as its envelope and a leased body, and returns an outcome for each recipient.

pub mod bounce;
pub mod local;
pub mod pipe;
pub mod remote;
pub mod verp;

use mail::{EnhancedCode, Outcome, QueueId, Reply};

/// The result of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    /// One outcome for each recipient, in the order of the task.
    Outcomes(Vec<Outcome>),
    /// The stored message differs from the one accepted; the text says how. No recipient has a
    /// final outcome.
    Damaged(String),
    /// Nothing was sent: the message may not be delivered from here now, so it was no attempt.
    Withheld,
}

/// Whether a message may be delivered from here now. It is asked again directly before it is sent, because
/// a connection can take long to open; it must not wait.
pub type MessageFence = Box<dyn Fn(QueueId) -> bool + Send>;

impl DeliveryResult {
    /// The result for a damaged message when some recipients already have an outcome. Final
    /// outcomes must be recorded, or the message would be delivered again once it is repaired: the
    /// other recipients are deferred then, and the next attempt, without the final ones, reports
    /// the damage.
    pub(crate) fn damaged_with_outcomes(what: String, outcomes: Vec<Option<Outcome>>) -> DeliveryResult {
        if outcomes.iter().flatten().all(|outcome| matches!(outcome, Outcome::Deferred(_))) {
            return DeliveryResult::Damaged(what);
        }
        let later = Outcome::Deferred(Reply::new(451, EnhancedCode(4, 3, 0), what));
        DeliveryResult::Outcomes(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| later.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_forgets_nobody_who_is_settled() {
        let damaged =
            |outcomes: &[Option<Outcome>]| DeliveryResult::damaged_with_outcomes("holes".into(), outcomes.to_vec());
        let deferred = Outcome::Deferred(Reply::new(452, EnhancedCode(4, 2, 2), "full"));
        assert_eq!(damaged(&[None, Some(deferred)]), DeliveryResult::Damaged("holes".into()));
        let later = Outcome::Deferred(Reply::new(451, EnhancedCode(4, 3, 0), "holes"));
        let expected = DeliveryResult::Outcomes(vec![later, Outcome::Delivered]);
        assert_eq!(damaged(&[None, Some(Outcome::Delivered)]), expected);
    }
}
