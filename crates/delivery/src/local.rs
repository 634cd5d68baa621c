//! Final delivery to Maildirs in batches: the tasks of a batch share their syncs (see
//! [`mailbox::MaildirWriter`]). When this module reports a delivery, the message is durable in the
//! mailbox.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use mail::{Address, Body, BodyError, EnhancedCode, Envelope, Outcome, QueueId, Reply};
use mailbox::quota::OverQuotaAction;
use mailbox::{DeliverError, MaildirMessage, MaildirWriter, MaildirWriterConfig, QuotaState};

use crate::DeliveryResult;

/// A message for some recipients of one transport.
#[derive(Debug)]
pub struct LocalTask<T> {
    /// Opaque to this module; returned with the result.
    pub ticket: T,
    /// The queue ID of the message.
    pub id: QueueId,
    /// The envelope of the message.
    pub envelope: Arc<Envelope>,
    /// The recipients to deliver to.
    pub recipients: Vec<LocalRecipient>,
    /// The content of the message.
    pub body: Body,
    /// The message was queued before a restart, so it may have been delivered already.
    pub recovered: bool,
}

/// A recipient of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalRecipient {
    /// The index of the recipient in the envelope.
    pub ordinal: u32,
    /// The Maildir.
    pub folder: PathBuf,
    /// How the quota of the mailbox applies to the message.
    pub quota: QuotaState,
}

/// A finished task.
#[derive(Debug)]
pub struct LocalTaskResult<T> {
    /// The ticket of the task.
    pub ticket: T,
    /// The envelope of the task.
    pub envelope: Arc<Envelope>,
    /// The result.
    pub result: DeliveryResult,
}

/// Delivers to the mailboxes of one Maildir transport.
pub struct MaildirDelivery<T> {
    writer: MaildirWriter<RecipientRef>,
    over_quota: OverQuotaAction,
    pending: HashMap<u64, PendingTask<T>>,
    next_task: u64,
}

/// Identifies a recipient of a pending task.
#[derive(Clone, Copy, Debug)]
struct RecipientRef {
    task: u64,
    index: usize,
}

struct PendingTask<T> {
    ticket: T,
    envelope: Arc<Envelope>,
    outcomes: Vec<Option<Outcome>>,
    damaged: Option<String>,
    remaining: usize,
}

impl<T> MaildirDelivery<T> {
    /// Creates one without tasks.
    pub fn new(config: MaildirWriterConfig, over_quota: OverQuotaAction) -> Self {
        MaildirDelivery { writer: MaildirWriter::new(config), over_quota, pending: HashMap::new(), next_task: 0 }
    }

    /// Whether no task is pending, so that [`run_batch`](Self::run_batch) need not be called.
    pub fn is_idle(&self) -> bool {
        self.writer.is_idle()
    }

    /// Runs one batch: starts `tasks` and returns the finished ones, most of which come from the
    /// batch before.
    pub fn run_batch(&mut self, tasks: Vec<LocalTask<T>>) -> Vec<LocalTaskResult<T>> {
        let messages = tasks.into_iter().flat_map(|task| self.accept(task)).collect();
        let results = self.writer.deliver_batch(messages);
        results.into_iter().filter_map(|(recipient, result)| self.record_result(recipient, result)).collect()
    }

    fn accept(&mut self, task: LocalTask<T>) -> Vec<MaildirMessage<RecipientRef>> {
        let LocalTask { ticket, id, envelope, recipients, body, recovered } = task;
        let number = self.next_task;
        self.next_task += 1;
        let message = |(index, LocalRecipient { ordinal, folder, quota }): (usize, LocalRecipient)| MaildirMessage {
            ticket: RecipientRef { task: number, index },
            folder,
            id,
            ordinal,
            accepted_at: envelope.accepted_at,
            header: delivery_headers(&envelope, ordinal),
            body: body.clone(),
            recovered,
            quota,
        };
        let messages: Vec<_> = recipients.into_iter().enumerate().map(message).collect();
        let (outcomes, remaining) = (vec![None; messages.len()], messages.len());
        self.pending.insert(number, PendingTask { ticket, envelope, outcomes, damaged: None, remaining });
        messages
    }

    fn record_result(
        &mut self,
        recipient: RecipientRef,
        result: Result<(), DeliverError>,
    ) -> Option<LocalTaskResult<T>> {
        let over_quota = self.over_quota;
        let outcome = |error: &DeliverError| outcome_of_error(error, over_quota);
        let task =
            self.pending.get_mut(&recipient.task).expect("a task stays pending until its last recipient is done");
        task.remaining -= 1;
        match result {
            // The device may be able to read the bytes later.
            Err(error @ DeliverError::Damaged(BodyError::Unreadable(_))) => {
                task.outcomes[recipient.index] = Some(outcome(&error));
            }
            Err(DeliverError::Damaged(damage)) => task.damaged = Some(damage.to_string()),
            Err(error) => task.outcomes[recipient.index] = Some(outcome(&error)),
            Ok(()) => task.outcomes[recipient.index] = Some(Outcome::Delivered),
        }
        if task.remaining > 0 {
            return None;
        }
        let PendingTask { ticket, envelope, outcomes, damaged, .. } = self.pending.remove(&recipient.task)?;
        let result = match damaged {
            Some(what) => DeliveryResult::damaged_with_outcomes(what, outcomes),
            None => DeliveryResult::Outcomes(outcomes.into_iter().flatten().collect()),
        };
        Some(LocalTaskResult { ticket, envelope, result })
    }
}

/// The size of the message in the mailbox of this recipient, with CRLF line ends.
pub fn stored_size(envelope: &Envelope, ordinal: u32, body: &Body) -> u64 {
    delivery_headers(envelope, ordinal).len() as u64 + body.len()
}

/// The header fields added at final delivery: the reverse-path (RFC 5321 section 4.4) and the
/// mailbox.
fn delivery_headers(envelope: &Envelope, ordinal: u32) -> Vec<u8> {
    let sender = envelope.sender.as_ref().map_or("", Address::as_str);
    let recipient = &envelope.recipients[ordinal as usize].address;
    format!("Return-Path: <{sender}>\r\nDelivered-To: {recipient}\r\n").into_bytes()
}

fn outcome_of_error(error: &DeliverError, over_quota: OverQuotaAction) -> Outcome {
    let reply = |code, enhanced| Reply::new(code, enhanced, error.to_string());
    match error {
        DeliverError::OverQuota if over_quota == OverQuotaAction::Refuse => {
            Outcome::Failed(reply(552, EnhancedCode(5, 2, 2)))
        }
        DeliverError::Full(_) | DeliverError::OverQuota => Outcome::Deferred(reply(452, EnhancedCode(4, 2, 2))),
        DeliverError::Refused(_) => Outcome::Failed(reply(550, EnhancedCode(5, 2, 0))),
        DeliverError::Unavailable(_) | DeliverError::Unsynced(_) | DeliverError::Damaged(_) => {
            Outcome::Deferred(reply(451, EnhancedCode(4, 2, 0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_mail_for_a_full_mailbox_waits_is_the_quotas_to_say() {
        let code = |over_quota| match outcome_of_error(&DeliverError::OverQuota, over_quota) {
            Outcome::Deferred(reply) | Outcome::Failed(reply) => (reply.code, reply.enhanced),
            outcome => panic!("{outcome:?}"),
        };
        assert_eq!(code(OverQuotaAction::Defer), (452, Some(EnhancedCode(4, 2, 2))));
        assert_eq!(code(OverQuotaAction::Refuse), (552, Some(EnhancedCode(5, 2, 2))));
    }
}
