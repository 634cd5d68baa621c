//! Deliveries: one attempt at one next hop, and the text of bounces. This room never sees the spool; it gets a
//! message by its envelope and a leased body, and says what became of each recipient.

pub mod bounce;
pub mod local;
pub mod remote;
pub mod verp;

use mail::{Enhanced, Outcome, Reply};

/// What became of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// An outcome for each recipient, in the order of the task.
    Outcomes(Vec<Outcome>),
    /// The bytes of the message are not those that were accepted; in words. No recipient's fate is settled.
    Damaged(String),
}

impl Ending {
    /// Of a damaged message, of whose recipients some may have an outcome. What is settled has to be kept, or a message
    /// that is repaired goes to them again: then the rest is deferred, and the next attempt, without them, tells of the
    /// damage.
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
