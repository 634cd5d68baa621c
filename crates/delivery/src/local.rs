//! Final delivery to Maildirs, by the turn: many tasks go round together and share their syncs (see
//! [`mailbox::Maildirs`]). An outcome that this room reports is durable in the mailbox.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use mail::{Address, Body, Damaged, Enhanced, Envelope, Outcome, QueueId, Reply};
use mailbox::{Config, DeliverError, Letter, Maildirs};

use crate::Ending;

/// A message for some recipients of one transport.
#[derive(Debug)]
pub struct Task<T> {
    /// The caller's, given back with the result.
    pub ticket: T,
    /// The message.
    pub id: QueueId,
    /// Its envelope.
    pub envelope: Arc<Envelope>,
    /// Ordinals of the recipients that this is about, each with the folder of the mailbox.
    pub recipients: Vec<(u32, PathBuf)>,
    /// Its bytes.
    pub body: Body,
    /// The message was there before a restart: it may have been delivered before.
    pub recovered: bool,
}

/// A task that is over.
#[derive(Debug)]
pub struct Ended<T> {
    /// The caller's.
    pub ticket: T,
    /// From the task.
    pub envelope: Arc<Envelope>,
    /// What became of it.
    pub ending: Ending,
}

/// The wheel of one Maildir transport.
pub struct Local<T> {
    wheel: Maildirs<Place>,
    under_way: HashMap<u64, UnderWay<T>>,
    next: u64,
}

/// Which recipient of which task a letter is for.
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
    /// A wheel that stands still.
    pub fn new(config: Config) -> Self {
        Local { wheel: Maildirs::new(config), under_way: HashMap::new(), next: 0 }
    }

    /// Whether no task is under way, so that no turn is needed.
    pub fn is_idle(&self) -> bool {
        self.wheel.is_idle()
    }

    /// One turn: takes up `tasks` and gives back those that are over, most of them from the turn before.
    pub fn turn(&mut self, tasks: Vec<Task<T>>) -> Vec<Ended<T>> {
        let letters = tasks.into_iter().flat_map(|task| self.take_up(task)).collect();
        let results = self.wheel.turn(letters);
        results.into_iter().filter_map(|(place, result)| self.settle(place, result)).collect()
    }

    fn take_up(&mut self, task: Task<T>) -> Vec<Letter<Place>> {
        let Task { ticket, id, envelope, recipients, body, recovered } = task;
        let number = self.next;
        self.next += 1;
        let letter = |(index, (ordinal, folder)): (usize, (u32, PathBuf))| {
            let recipient = &envelope.recipients[ordinal as usize].address;
            Letter {
                ticket: Place { task: number, index },
                folder,
                id,
                ordinal,
                accepted_at: envelope.accepted_at,
                header: trace(envelope.sender.as_ref(), recipient),
                body: body.clone(),
                recovered,
            }
        };
        let letters: Vec<_> = recipients.into_iter().enumerate().map(letter).collect();
        let (outcomes, open) = (vec![None; letters.len()], letters.len());
        self.under_way.insert(number, UnderWay { ticket, envelope, outcomes, damaged: None, open });
        letters
    }

    fn settle(&mut self, place: Place, result: Result<(), DeliverError>) -> Option<Ended<T>> {
        let task = self.under_way.get_mut(&place.task).expect("a letter's task is under way until its last letter");
        task.open -= 1;
        match result {
            // The device may give the bytes at another time.
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

/// What final delivery puts before the message: the reverse-path (RFC 5321 section 4.4) and the mailbox.
fn trace(sender: Option<&Address>, recipient: &Address) -> Vec<u8> {
    let sender = sender.map_or("", Address::as_str);
    format!("Return-Path: <{sender}>\r\nDelivered-To: {recipient}\r\n").into_bytes()
}

fn outcome(error: &DeliverError) -> Outcome {
    let reply = |code, enhanced| Reply::new(code, enhanced, error.to_string());
    match error {
        DeliverError::Full(_) => Outcome::Deferred(reply(452, Enhanced(4, 2, 2))),
        DeliverError::Refused(_) => Outcome::Failed(reply(550, Enhanced(5, 2, 0))),
        DeliverError::Unavailable(_) | DeliverError::Unsynced(_) | DeliverError::Damaged(_) => {
            Outcome::Deferred(reply(451, Enhanced(4, 2, 0)))
        }
    }
}
