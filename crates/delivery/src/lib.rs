//! Delivery: one attempt at one next hop, and the text of bounces. This crate never sees the spool:
//! it gets a message as its envelope and a leased body, and returns an outcome for each recipient.

pub mod bounce;
pub mod local;
pub mod remote;
pub mod verp;

use mail::{Enhanced, Outcome, Reply};

/// The result of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// One outcome for each recipient, in the order of the task.
    Outcomes(Vec<Outcome>),
    /// The stored message differs from the one accepted; the text says how. No recipient has a
    /// final outcome.
    Damaged(String),
}

impl Ending {
    /// The result for a damaged message when some recipients already have an outcome. Final
    /// outcomes must be recorded, or the message would be delivered again once it is repaired: the
    /// other recipients are deferred then, and the next attempt, without the final ones, reports
    /// the damage.
    pub(crate) fn damaged(what: String, outcomes: Vec<Option<Outcome>>) -> Ending {
        if outcomes.iter().flatten().all(|outcome| matches!(outcome, Outcome::Deferred(_))) {
            return Ending::Damaged(what);
        }
        let later = Outcome::Deferred(Reply::new(451, Enhanced(4, 3, 0), what));
        Ending::Outcomes(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| later.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_forgets_nobody_who_is_settled() {
        let damaged = |outcomes: &[Option<Outcome>]| Ending::damaged("holes".into(), outcomes.to_vec());
        let deferred = Outcome::Deferred(Reply::new(452, Enhanced(4, 2, 2), "full"));
        assert_eq!(damaged(&[None, Some(deferred)]), Ending::Damaged("holes".into()));
        let later = Outcome::Deferred(Reply::new(451, Enhanced(4, 3, 0), "holes"));
        let expected = Ending::Outcomes(vec![later, Outcome::Delivered]);
        assert_eq!(damaged(&[None, Some(Outcome::Delivered)]), expected);
    }
}
