//! Records what was submitted to a spool and what was acknowledged, and checks what may and must be
//! found after a crash. Independent of how the spool works.
//!
//! | a message was | then it is found |
//! |---|---|
//! | never submitted | never |
//! | submitted, not acknowledged | complete, or not at all |
//! | acknowledged | complete, unless every recipient may be final |
//!
//! | a recipient's outcome was | then its state is |
//! |---|---|
//! | submitted, not acknowledged | this one or the one before |
//! | acknowledged | this one, and a final one forever |
//!
//! A bounce and the outcome that causes it come together: the outcome is never found without the
//! bounce.

use std::collections::BTreeMap;

use mail::{BodyFlags, Envelope, QueueId};
use spool::RecipientState;

/// What a spool returned: every live message with its bytes.
pub(crate) type RecoveredMessages = BTreeMap<QueueId, TestMessage>;

/// A message as it was submitted, or as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestMessage {
    pub(crate) envelope: Envelope,
    pub(crate) states: Vec<RecipientState>,
    pub(crate) flags: BodyFlags,
    /// Prefix and body.
    pub(crate) bytes: Vec<u8>,
    pub(crate) prefix_len: usize,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PromiseLog {
    messages: BTreeMap<QueueId, MessagePromise>,
}

#[derive(Clone, Debug)]
struct MessagePromise {
    message: TestMessage,
    promised: bool,
    recipients: Vec<RecipientPromise>,
}

#[derive(Clone, Debug)]
struct RecipientPromise {
    certain: RecipientState,
    possible: Vec<RecipientState>,
    /// The bounces submitted with its failure, one for each try; one of them must be found if it
    /// failed.
    bounces: Vec<QueueId>,
}

/// The content of one submission.
#[derive(Clone, Debug, Default)]
pub(crate) struct SubmittedChanges {
    pub(crate) messages: Vec<QueueId>,
    pub(crate) outcomes: Vec<(QueueId, u32, RecipientState)>,
}

impl PromiseLog {
    /// Records a message that is about to be submitted.
    pub(crate) fn propose(&mut self, id: QueueId, message: TestMessage) {
        let recipient = RecipientPromise { certain: RecipientState::NEW, possible: Vec::new(), bounces: Vec::new() };
        let recipients = vec![recipient; message.envelope.recipients.len()];
        self.messages.insert(id, MessagePromise { message, promised: false, recipients });
    }

    /// Records an outcome that is about to be submitted.
    pub(crate) fn propose_outcome(
        &mut self,
        id: QueueId,
        ordinal: u32,
        state: RecipientState,
        bounce: Option<QueueId>,
    ) {
        let recipient = self.recipient(id, ordinal);
        recipient.possible.push(state);
        recipient.bounces.extend(bounce);
    }

    /// Records that a submission was acknowledged.
    pub(crate) fn promise(&mut self, proposal: &SubmittedChanges) {
        for id in &proposal.messages {
            self.messages.get_mut(id).expect("the message was proposed").promised = true;
        }
        for (id, ordinal, state) in &proposal.outcomes {
            let recipient = self.recipient(*id, *ordinal);
            if !recipient.certain.is_final() {
                recipient.certain = *state;
            }
            // An earlier final outcome that was not acknowledged may still be on the disk.
            recipient.possible.retain(|possible| possible.is_final() && possible != state);
        }
    }

    /// The message that was proposed with this id.
    pub(crate) fn message(&self, id: QueueId) -> &TestMessage {
        &self.messages[&id].message
    }

    /// Compares what was found with what was acknowledged; Err describes the first difference.
    pub(crate) fn check(&self, found: &RecoveredMessages) -> Result<(), String> {
        if let Some(id) = found.keys().find(|id| !self.messages.contains_key(id)) {
            return Err(format!("{id} was never submitted, or is known to be gone"));
        }
        for (id, page) in &self.messages {
            match found.get(id) {
                Some(message) => page.check_recovered(message).map_err(|what| format!("{id}: {what}"))?,
                None if !page.promised || page.may_be_dead() => {}
                None => return Err(format!("{id} was acknowledged but is missing")),
            }
            self.check_bounces(*id, page, found)?;
        }
        Ok(())
    }

    /// Takes what was found as the new truth; everything else is gone.
    pub(crate) fn accept_recovered(&mut self, found: &RecoveredMessages) {
        self.messages.retain(|id, _| found.contains_key(id));
        for (id, page) in &mut self.messages {
            page.promised = true;
            for (recipient, state) in page.recipients.iter_mut().zip(&found[id].states) {
                *recipient = RecipientPromise { certain: *state, possible: Vec::new(), bounces: Vec::new() };
            }
        }
    }

    fn check_bounces(&self, id: QueueId, page: &MessagePromise, found: &RecoveredMessages) -> Result<(), String> {
        let known_dead = page.promised && !found.contains_key(&id);
        for (ordinal, recipient) in page.recipients.iter().enumerate() {
            let seen_failed = found.get(&id).is_some_and(|message| message.states[ordinal] == RecipientState::Failed);
            let there = |bounce: &QueueId| found.contains_key(bounce) || self.messages[bounce].may_be_dead();
            let bounces = &recipient.bounces;
            if (known_dead || seen_failed) && !bounces.is_empty() && !bounces.iter().any(there) {
                return Err(format!("recipient {ordinal} of {id} has failed without a bounce of {bounces:?}"));
            }
        }
        Ok(())
    }

    fn recipient(&mut self, id: QueueId, ordinal: u32) -> &mut RecipientPromise {
        &mut self.messages.get_mut(&id).expect("the message was proposed").recipients[ordinal as usize]
    }
}

impl MessagePromise {
    fn may_be_dead(&self) -> bool {
        self.recipients.iter().all(RecipientPromise::may_be_final)
    }

    fn check_recovered(&self, recovered: &TestMessage) -> Result<(), String> {
        let given = &self.message;
        if recovered.bytes != given.bytes {
            let same = recovered.bytes.iter().zip(&given.bytes).take_while(|(a, b)| a == b).count();
            let (found, given) = (recovered.bytes.len(), given.bytes.len());
            return Err(format!("found {found} bytes instead of {given}; the first {same} are right"));
        }
        let facts = |message: &TestMessage| (message.envelope.clone(), message.flags, message.prefix_len);
        if facts(recovered) != facts(given) {
            return Err(format!("the envelope, the flags or the prefix changed: {recovered:?}"));
        }
        if recovered.states.len() != self.recipients.len() || recovered.states.iter().all(|state| state.is_final()) {
            return Err(format!("a message without pending recipients was found: {:?}", recovered.states));
        }
        for (ordinal, (state, recipient)) in recovered.states.iter().zip(&self.recipients).enumerate() {
            if *state != recipient.certain && !recipient.possible.contains(state) {
                return Err(format!("recipient {ordinal} is {state:?}, but should be as in {recipient:?}"));
            }
        }
        Ok(())
    }
}

impl RecipientPromise {
    fn may_be_final(&self) -> bool {
        self.certain.is_final() || self.possible.iter().any(|state| state.is_final())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{envelope, flags_of};
    use mail::SpoolId;

    fn id(sequence: u64) -> QueueId {
        QueueId::new(SpoolId::new(1), 0, sequence)
    }

    fn test_message() -> TestMessage {
        let bytes = b"bytes\r\n".to_vec();
        TestMessage {
            envelope: envelope(2),
            states: vec![RecipientState::NEW; 2],
            flags: flags_of(&bytes),
            bytes,
            prefix_len: 0,
        }
    }

    #[test]
    fn the_promise_log_notices_every_broken_promise() {
        let mut promises = PromiseLog::default();
        promises.propose(id(1), test_message());
        assert!(promises.check(&RecoveredMessages::new()).is_ok());
        promises.promise(&SubmittedChanges { messages: vec![id(1)], outcomes: Vec::new() });
        assert!(promises.check(&RecoveredMessages::new()).is_err(), "lost");
        assert!(promises.check(&RecoveredMessages::from([(id(1), test_message())])).is_ok());
        assert!(
            promises.check(&RecoveredMessages::from([(id(1), test_message()), (id(2), test_message())])).is_err(),
            "made up"
        );
        let cut = TestMessage { bytes: b"byt".to_vec(), ..test_message() };
        assert!(promises.check(&RecoveredMessages::from([(id(1), cut)])).is_err(), "cut short");

        promises.propose_outcome(id(1), 0, RecipientState::Delivered, None);
        assert!(promises.check(&RecoveredMessages::from([(id(1), test_message())])).is_ok(), "not acknowledged yet");
        promises
            .promise(&SubmittedChanges { messages: Vec::new(), outcomes: vec![(id(1), 0, RecipientState::Delivered)] });
        assert!(promises.check(&RecoveredMessages::from([(id(1), test_message())])).is_err(), "attempted again");
        assert!(promises.check(&RecoveredMessages::new()).is_err(), "the other recipient is still pending");

        promises.propose(id(2), test_message());
        promises.propose_outcome(id(1), 1, RecipientState::Failed, Some(id(2)));
        assert!(promises.check(&RecoveredMessages::new()).is_err(), "failed without its bounce");
        assert!(promises.check(&RecoveredMessages::from([(id(2), test_message())])).is_ok());
    }
}
