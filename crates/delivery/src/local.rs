//! Final delivery to Maildirs in batches: the tasks of a batch share their syncs (see
//! [`mailbox::Maildirs`]). When this module reports a delivery, the message is durable in the
//! mailbox.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use mail::{Address, Body, Damaged, Enhanced, Envelope, Outcome, QueueId, Reply};
use mailbox::{Config, DeliverError, Letter, Maildirs, Quota};

use crate::Ending;

/// A message for some recipients of one transport.
#[derive(Debug)]
pub struct Task<T> {
    /// Opaque to this module; returned with the result.
    pub ticket: T,
    /// The queue ID of the message.
    pub id: QueueId,
    /// The envelope of the message.
    pub envelope: Arc<Envelope>,
    /// The recipients to deliver to.
    pub recipients: Vec<Addressee>,
    /// The content of the message.
    pub body: Body,
    /// The message was queued before a restart, so it may have been delivered already.
    pub recovered: bool,
}

/// A recipient of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addressee {
    /// The index of the recipient in the envelope.
    pub ordinal: u32,
    /// The Maildir.
    pub folder: PathBuf,
    /// How the quota of the mailbox applies to the message.
    pub quota: Quota,
}

/// What happens to mail for a mailbox that is over its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is deferred until there is room or the message expires.
    #[default]
    Defer,
    /// It fails immediately.
    Refuse,
}

/// A finished task.
#[derive(Debug)]
pub struct Ended<T> {
    /// The ticket of the task.
    pub ticket: T,
    /// The envelope of the task.
    pub envelope: Arc<Envelope>,
    /// The result.
    pub ending: Ending,
}

/// Delivers to the mailboxes of one Maildir transport.
pub struct Local<T> {
    wheel: Maildirs<Place>,
    when_full: WhenFull,
    under_way: HashMap<u64, UnderWay<T>>,
    next: u64,
}

/// Identifies a recipient of a pending task.
#[derive(Clone, Copy, Debug)]
struct Place {
    task: u64,
    index: usize,
}

struct UnderWay<T> {
    ticket: T,
    envelope: Arc<Envelope>,
    outcomes: Vec<Option<Outcome>>,
    damaged: Option<String>,
    open: usize,
}

impl<T> Local<T> {
    /// Creates one without tasks.
    pub fn new(config: Config, when_full: WhenFull) -> Self {
        Local { wheel: Maildirs::new(config), when_full, under_way: HashMap::new(), next: 0 }
    }

    /// Whether no task is pending, so that [`turn`](Self::turn) need not be called.
    pub fn is_idle(&self) -> bool {
        self.wheel.is_idle()
    }

    /// Runs one batch: starts `tasks` and returns the finished ones, most of which come from the
    /// batch before.
    pub fn turn(&mut self, tasks: Vec<Task<T>>) -> Vec<Ended<T>> {
        let letters = tasks.into_iter().flat_map(|task| self.take_up(task)).collect();
        let results = self.wheel.turn(letters);
        results.into_iter().filter_map(|(place, result)| self.settle(place, result)).collect()
    }

    fn take_up(&mut self, task: Task<T>) -> Vec<Letter<Place>> {
        let Task { ticket, id, envelope, recipients, body, recovered } = task;
        let number = self.next;
        self.next += 1;
        let letter = |(index, Addressee { ordinal, folder, quota }): (usize, Addressee)| Letter {
            ticket: Place { task: number, index },
            folder,
            id,
            ordinal,
            accepted_at: envelope.accepted_at,
            header: trace(&envelope, ordinal),
            body: body.clone(),
            recovered,
            quota,
        };
        let letters: Vec<_> = recipients.into_iter().enumerate().map(letter).collect();
        let (outcomes, open) = (vec![None; letters.len()], letters.len());
        self.under_way.insert(number, UnderWay { ticket, envelope, outcomes, damaged: None, open });
        letters
    }

    fn settle(&mut self, place: Place, result: Result<(), DeliverError>) -> Option<Ended<T>> {
        let when_full = self.when_full;
        let outcome = |error: &DeliverError| outcome(error, when_full);
        let task = self.under_way.get_mut(&place.task).expect("a task stays pending until its last recipient is done");
        task.open -= 1;
        match result {
            // The device may be able to read the bytes later.
            Err(error @ DeliverError::Damaged(Damaged::Unreadable(_))) => {
                task.outcomes[place.index] = Some(outcome(&error));
            }
            Err(DeliverError::Damaged(damage)) => task.damaged = Some(damage.to_string()),
            Err(error) => task.outcomes[place.index] = Some(outcome(&error)),
            Ok(()) => task.outcomes[place.index] = Some(Outcome::Delivered),
        }
        if task.open > 0 {
            return None;
        }
        let UnderWay { ticket, envelope, outcomes, damaged, .. } = self.under_way.remove(&place.task)?;
        let ending = match damaged {
            Some(what) => Ending::damaged(what, outcomes),
            None => Ending::Outcomes(outcomes.into_iter().flatten().collect()),
        };
        Some(Ended { ticket, envelope, ending })
    }
}

/// The size of the message in the mailbox of this recipient, with CRLF line ends.
pub fn octets(envelope: &Envelope, ordinal: u32, body: &Body) -> u64 {
    trace(envelope, ordinal).len() as u64 + body.len()
}

/// The header fields added at final delivery: the reverse-path (RFC 5321 section 4.4) and the
/// mailbox.
fn trace(envelope: &Envelope, ordinal: u32) -> Vec<u8> {
    let sender = envelope.sender.as_ref().map_or("", Address::as_str);
    let recipient = &envelope.recipients[ordinal as usize].address;
    format!("Return-Path: <{sender}>\r\nDelivered-To: {recipient}\r\n").into_bytes()
}

fn outcome(error: &DeliverError, when_full: WhenFull) -> Outcome {
    let reply = |code, enhanced| Reply::new(code, enhanced, error.to_string());
    match error {
        DeliverError::OverQuota if when_full == WhenFull::Refuse => Outcome::Failed(reply(552, Enhanced(5, 2, 2))),
        DeliverError::Full(_) | DeliverError::OverQuota => Outcome::Deferred(reply(452, Enhanced(4, 2, 2))),
        DeliverError::Refused(_) => Outcome::Failed(reply(550, Enhanced(5, 2, 0))),
        DeliverError::Unavailable(_) | DeliverError::Unsynced(_) | DeliverError::Damaged(_) => {
            Outcome::Deferred(reply(451, Enhanced(4, 2, 0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_mail_for_a_full_mailbox_waits_is_the_quotas_to_say() {
        let code = |when_full| match outcome(&DeliverError::OverQuota, when_full) {
            Outcome::Deferred(reply) | Outcome::Failed(reply) => (reply.code, reply.enhanced),
            outcome => panic!("{outcome:?}"),
        };
        assert_eq!(code(WhenFull::Defer), (452, Some(Enhanced(4, 2, 2))));
        assert_eq!(code(WhenFull::Refuse), (552, Some(Enhanced(5, 2, 2))));
    }
}
