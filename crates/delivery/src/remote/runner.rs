//! Runs one connection: a task, the next task, and the idle time between them ([`super`] lists its
//! states).
//!
//! Before the end of its task is reported, a connection is idle in the pool or closed. So a task
//! started on that report finds the connection there, or opens one in its place; and a message
//! whose lease is returned is no longer being sent.

use std::rc::Rc;

use mail::{Damaged, Outcome};
use protocol::smtp::client::{Closed, Event, Recipient, Stage, Transaction, Verdict, Word};
use tokio::time::Instant;

use super::content::Content;
use super::dialogue::{Dialogue, Heard, Vigil};
use super::opening::open;
use super::pool::{Pool, Slot};
use super::rotation::Rotation;
use super::verdict::{self, ours};
use super::{Config, Contact, Ended, Peer, Report, Task};
use crate::{Ending, verp};

/// Runs a task on an idle connection or on a new one.
pub(super) fn start<T: 'static>(pool: &Rc<Pool<T>>, task: Task<T>) {
    if let Some(task) = pool.hand_over(Box::new(task)) {
        tokio::task::spawn_local(run(pool.clone(), task));
    }
}

async fn run<T>(pool: Rc<Pool<T>>, mut task: Box<Task<T>>) {
    let _life = pool.life();
    let slot = Slot::new(task.next_hop.edition);
    let mut used = None;
    loop {
        let tell_slow = || pool.report(Report::Slow { next_hop: task.next_hop.clone() });
        let (end, kept) = Errand::new(&task, &pool.rotation, &tell_slow).run(used).await;
        let hop = task.next_hop.clone();
        let Config { messages_per_connection_max, idle_connections_max, idle_time_max, .. } = *hop.config;
        let kept = match kept {
            Some(kept)
                if kept.may_go_on(messages_per_connection_max) && pool.park(&hop, &slot, idle_connections_max) =>
            {
                Some(kept)
            }
            Some(left) => {
                left.quit().await;
                None
            }
            None => None,
        };
        pool.report(Report::Ended(end.of(*task)));
        let Some(mut kept) = kept else { return };
        let until = Instant::now() + idle_time_max;
        match slot.wait(|context| kept.poll_idle_end(until, context)).await {
            Some(next) => (task, used) = (next, Some(kept)),
            None => {
                pool.withdraw(&hop, &slot);
                return kept.quit().await;
            }
        }
    }
}

/// The result of a task.
struct End {
    ending: Ending,
    contact: Contact,
    peer: Option<Peer>,
}

impl End {
    /// Releases the lease on the body.
    fn of<T>(self, task: Task<T>) -> Ended<T> {
        let End { ending, contact, peer } = self;
        Ended { ticket: task.ticket, envelope: task.envelope, ending, contact, peer }
    }
}

/// A running task.
struct Errand<'a, T> {
    task: &'a Task<T>,
    rotation: &'a Rotation,
    content: Content,
    vigil: Vigil<'a>,
    /// The outcomes of the first recipients of the task.
    outcomes: Vec<Outcome>,
}

/// The result of one transaction.
enum Turn {
    /// The session is ready for another transaction.
    Ready,
    /// The server had closed the connection before it saw the message.
    Stale,
    /// The session is over, and with it the task.
    Over(Contact),
    /// The message cannot be read or sent; the session is unchanged, or in the middle of it.
    Unsent(Ending, Contact),
}

impl<'a, T> Errand<'a, T> {
    fn new(task: &'a Task<T>, rotation: &'a Rotation, tell_slow: &'a dyn Fn()) -> Self {
        Errand {
            task,
            rotation,
            content: Content::new(task.body.clone()),
            vigil: Vigil::new(task.next_hop.config.slower_than, tell_slow),
            outcomes: Vec::with_capacity(task.recipients.len()),
        }
    }

    /// Returns the connection if it can be reused.
    async fn run(mut self, mut used: Option<Box<Dialogue>>) -> (End, Option<Box<Dialogue>>) {
        loop {
            let is_used = used.is_some();
            let mut dialogue = match used.take() {
                Some(dialogue) => dialogue,
                None => match Box::pin(open(&self.task.next_hop, self.rotation, &mut self.vigil)).await {
                    Ok(dialogue) => dialogue,
                    Err(unopened) => {
                        let ending = self.end_with(unopened.outcome);
                        return (End { ending, contact: unopened.contact, peer: unopened.peer }, None);
                    }
                },
            };
            let peer = Some(dialogue.peer().clone());
            match self.carry(&mut dialogue, is_used).await {
                Turn::Ready if self.is_done() => {
                    let contact = Contact::Answered { slowest: dialogue.take_slowest() };
                    return (End { ending: Ending::Outcomes(self.outcomes), contact, peer }, Some(dialogue));
                }
                Turn::Ready => dialogue.quit().await,
                Turn::Stale => {}
                Turn::Over(contact) => {
                    dialogue.hang_up().await;
                    return (End { ending: Ending::Outcomes(self.outcomes), contact, peer }, None);
                }
                Turn::Unsent(ending, contact) => {
                    let kept = Some(dialogue).filter(|dialogue| dialogue.client().is_ready());
                    return (End { ending, contact, peer }, kept);
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.outcomes.len() >= self.task.recipients.len()
    }

    /// Sets the same outcome for all recipients without one.
    fn end_with(&mut self, outcome: Outcome) -> Ending {
        self.outcomes.resize(self.task.recipients.len(), outcome);
        Ending::Outcomes(std::mem::take(&mut self.outcomes))
    }

    /// Runs as many transactions as the task needs and the connection allows.
    async fn carry(&mut self, dialogue: &mut Dialogue, is_used: bool) -> Turn {
        let transactions_max = self.task.next_hop.config.messages_per_connection_max;
        let mut is_fresh = !is_used;
        dialogue.take_slowest();
        loop {
            match self.transact(dialogue, is_fresh).await {
                Turn::Ready if !self.is_done() && dialogue.may_go_on(transactions_max) => is_fresh = true,
                turn => return turn,
            }
        }
    }

    async fn transact(&mut self, dialogue: &mut Dialogue, is_fresh: bool) -> Turn {
        let transaction = match self.transaction(dialogue).await {
            Ok(transaction) => transaction,
            Err(error) => {
                return Turn::Unsent(self.end_with(Outcome::Deferred(ours(error.to_string()))), Contact::None);
            }
        };
        let begun = dialogue.begin(&transaction, &mut self.content, self.task.next_hop.config.sendfile_above);
        if let Err(unsendable) = begun {
            return Turn::Unsent(self.end_with(verdict::unsendable(unsendable)), Contact::None);
        }
        let dsn = dialogue.client().extensions().dsn;
        let mut verdicts = Vec::new();
        loop {
            match dialogue.hear(Some(&mut self.content), &mut self.vigil).await {
                Heard::Event(Event::Finished(found)) => verdicts = found,
                Heard::Event(Event::Ready) => {
                    let peer = dialogue.peer();
                    let outcomes = verdicts.into_iter().map(|verdict| verdict::outcome(verdict, dsn, None, peer));
                    self.outcomes.extend(outcomes);
                    return Turn::Ready;
                }
                Heard::Event(Event::Closed(closed)) if !is_fresh && is_stale(&closed, &verdicts) => return Turn::Stale,
                Heard::Event(Event::Closed(closed)) => return self.settle(dialogue, verdicts, dsn, &closed),
                Heard::Event(Event::Replied { .. } | Event::StartTls) => {}
                Heard::Damaged(damaged) => return self.give_up(damaged),
            }
        }
    }

    /// The session ended; outcomes known before that are kept.
    fn settle(&mut self, dialogue: &mut Dialogue, verdicts: Vec<Verdict>, dsn: bool, closed: &Closed) -> Turn {
        let slowest = dialogue.take_slowest();
        let peer = dialogue.peer();
        let contact = verdict::contact(closed, &verdicts, slowest, peer);
        let outcomes = verdicts.into_iter().map(|verdict| verdict::outcome(verdict, dsn, Some(closed), peer));
        self.outcomes.extend(outcomes);
        // Recipients left for a further transaction.
        let rest = verdict::outcome(Verdict::NotSent, dsn, Some(closed), peer);
        self.outcomes.resize(self.task.recipients.len(), rest);
        Turn::Over(contact)
    }

    /// The server waits for bytes that will not come: the connection cannot be reused, and the
    /// server is not at fault.
    fn give_up(&mut self, damaged: Damaged) -> Turn {
        let ending = match damaged {
            // The device may be able to read the bytes later.
            Damaged::Unreadable(error) => self.end_with(Outcome::Deferred(ours(error.to_string()))),
            damaged => {
                let mut outcomes: Vec<_> = std::mem::take(&mut self.outcomes).into_iter().map(Some).collect();
                outcomes.resize(self.task.recipients.len(), None);
                Ending::damaged(damaged.to_string(), outcomes)
            }
        };
        Turn::Unsent(ending, Contact::None)
    }

    /// The next transaction, with as many of the remaining recipients as this server accepts at
    /// once.
    async fn transaction(&self, dialogue: &Dialogue) -> std::io::Result<Transaction> {
        let (task, extensions) = (self.task, dialogue.client().extensions());
        let envelope = &*task.envelope;
        let left = task.recipients[self.outcomes.len()..].iter().map(|ordinal| &envelope.recipients[*ordinal as usize]);
        let count = extensions.recipients_that_fit(left.clone().map(|recipient| &recipient.address));
        let recipients: Vec<Recipient> = left.take(count).map(recipient).collect();
        let first = recipients.first().filter(|_| task.verp);
        let named =
            envelope.sender.as_ref().zip(first).and_then(|(sender, first)| verp::address(sender, &first.address));
        let sender = named.or_else(|| envelope.sender.clone());
        let eight_bit = task.body.flags().eight_bit;
        let addresses = recipients.iter().map(|recipient| &recipient.address).chain(&sender);
        let is_ascii = addresses.into_iter().all(mail::Address::is_ascii);
        Ok(Transaction {
            content: self.content.describe(dialogue.form()).await?,
            // A message without 8-bit bytes needs neither extension, whatever its sender asked for.
            // A notice that cannot be sent is lost without any report, so it is sent as it is even
            // if the server lacks 8BITMIME.
            body_type: if eight_bit && (sender.is_some() || extensions.eight_bit_mime) {
                mail::BodyType::EightBitMime
            } else {
                mail::BodyType::SevenBit
            },
            smtputf8: !is_ascii || envelope.smtputf8 && eight_bit,
            ret: envelope.ret,
            envid: envelope.envid.as_deref().and_then(|envid| Word::new(envid).ok()),
            sender,
            recipients,
        })
    }
}

/// The server closed an idle connection before the message arrived: it answered nothing, or only
/// that it is closing.
fn is_stale(closed: &Closed, verdicts: &[Verdict]) -> bool {
    match closed {
        Closed::Ended(Stage::Mail | Stage::Idle) => true,
        Closed::Shutdown(_) => {
            verdicts.iter().all(|verdict| matches!(verdict, Verdict::Refused { stage: Stage::Mail, .. }))
        }
        _ => false,
    }
}

fn recipient(recipient: &mail::Recipient) -> Recipient {
    Recipient {
        address: recipient.address.clone(),
        notify: recipient.notify,
        orcpt: recipient.orcpt.as_deref().and_then(|orcpt| Word::new(orcpt).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of a connection beside its socket, timer and slot; it is mostly idle.
    #[test]
    fn a_connection_is_small() {
        let octets = future_octets(run::<u64>);
        assert!(octets <= 2048, "{octets} octets");
    }

    fn future_octets<A, B, F>(_: fn(A, B) -> F) -> usize {
        size_of::<F>()
    }
}
