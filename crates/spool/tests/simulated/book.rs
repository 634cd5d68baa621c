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
use spool::State;

/// What a spool returned: every live message with its bytes.
pub(crate) type Found = BTreeMap<QueueId, Letter>;

/// A message as it was submitted, or as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) envelope: Envelope,
    pub(crate) states: Vec<State>,
    pub(crate) flags: BodyFlags,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Book {
    pages: BTreeMap<QueueId, Page>,
}

#[derive(Clone, Debug)]
struct Page {
    letter: Letter,
    promised: bool,
    recipients: Vec<Recipient>,
}

#[derive(Clone, Debug)]
struct Recipient {
    certain: State,
    possible: Vec<State>,
    /// The bounces submitted with its failure, one for each try; one of them must be found if it
    /// failed.
    bounces: Vec<QueueId>,
}

/// The content of one submission.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proposal {
    pub(crate) messages: Vec<QueueId>,
    pub(crate) outcomes: Vec<(QueueId, u32, State)>,
}

impl Book {
    /// Records a message that is about to be submitted.
    pub(crate) fn propose(&mut self, id: QueueId, letter: Letter) {
        let recipient = Recipient { certain: State::NEW, possible: Vec::new(), bounces: Vec::new() };
        let recipients = vec![recipient; letter.envelope.recipients.len()];
        self.pages.insert(id, Page { letter, promised: false, recipients });
    }

    /// Records an outcome that is about to be submitted.
    pub(crate) fn propose_outcome(&mut self, id: QueueId, ordinal: u32, state: State, bounce: Option<QueueId>) {
        let recipient = self.recipient(id, ordinal);
        recipient.possible.push(state);
        recipient.bounces.extend(bounce);
    }

    /// Records that a submission was acknowledged.
    pub(crate) fn promise(&mut self, proposal: &Proposal) {
        for id in &proposal.messages {
            self.pages.get_mut(id).expect("the message was proposed").promised = true;
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
    pub(crate) fn letter(&self, id: QueueId) -> &Letter {
        &self.pages[&id].letter
    }

    /// Compares what was found with what was acknowledged; Err describes the first difference.
    pub(crate) fn check(&self, found: &Found) -> Result<(), String> {
        if let Some(id) = found.keys().find(|id| !self.pages.contains_key(id)) {
            return Err(format!("{id} was never submitted, or is known to be gone"));
        }
        for (id, page) in &self.pages {
            match found.get(id) {
                Some(letter) => page.check_found(letter).map_err(|what| format!("{id}: {what}"))?,
                None if !page.promised || page.may_be_dead() => {}
                None => return Err(format!("{id} was acknowledged but is missing")),
            }
            self.check_bounces(*id, page, found)?;
        }
        Ok(())
    }

    /// Takes what was found as the new truth; everything else is gone.
    pub(crate) fn settle_on(&mut self, found: &Found) {
        self.pages.retain(|id, _| found.contains_key(id));
        for (id, page) in &mut self.pages {
            page.promised = true;
            for (recipient, state) in page.recipients.iter_mut().zip(&found[id].states) {
                *recipient = Recipient { certain: *state, possible: Vec::new(), bounces: Vec::new() };
            }
        }
    }

    fn check_bounces(&self, id: QueueId, page: &Page, found: &Found) -> Result<(), String> {
        let known_dead = page.promised && !found.contains_key(&id);
        for (ordinal, recipient) in page.recipients.iter().enumerate() {
            let seen_failed = found.get(&id).is_some_and(|letter| letter.states[ordinal] == State::Failed);
            let there = |bounce: &QueueId| found.contains_key(bounce) || self.pages[bounce].may_be_dead();
            let bounces = &recipient.bounces;
            if (known_dead || seen_failed) && !bounces.is_empty() && !bounces.iter().any(there) {
                return Err(format!("recipient {ordinal} of {id} has failed without a bounce of {bounces:?}"));
            }
        }
        Ok(())
    }

    fn recipient(&mut self, id: QueueId, ordinal: u32) -> &mut Recipient {
        &mut self.pages.get_mut(&id).expect("the message was proposed").recipients[ordinal as usize]
    }
}

impl Page {
    fn may_be_dead(&self) -> bool {
        self.recipients.iter().all(Recipient::may_be_final)
    }

    fn check_found(&self, letter: &Letter) -> Result<(), String> {
        let given = &self.letter;
        if letter.bytes != given.bytes {
            let same = letter.bytes.iter().zip(&given.bytes).take_while(|(a, b)| a == b).count();
            let (found, given) = (letter.bytes.len(), given.bytes.len());
            return Err(format!("found {found} bytes instead of {given}; the first {same} are right"));
        }
        if letter.envelope != given.envelope || letter.flags != given.flags {
            return Err(format!("the envelope or the flags changed: {letter:?}"));
        }
        if letter.states.len() != self.recipients.len() || letter.states.iter().all(|state| state.is_final()) {
            return Err(format!("a message without pending recipients was found: {:?}", letter.states));
        }
        for (ordinal, (state, recipient)) in letter.states.iter().zip(&self.recipients).enumerate() {
            if *state != recipient.certain && !recipient.possible.contains(state) {
                return Err(format!("recipient {ordinal} is {state:?}, but should be as in {recipient:?}"));
            }
        }
        Ok(())
    }
}

impl Recipient {
    fn may_be_final(&self) -> bool {
        self.certain.is_final() || self.possible.iter().any(|state| state.is_final())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{envelope, flags_of};
    use mail::SpoolId;

    fn id(sequence: u64) -> QueueId {
        QueueId::new(SpoolId::new(1), 0, sequence)
    }

    fn letter() -> Letter {
        let bytes = b"bytes\r\n".to_vec();
        Letter { envelope: envelope(2), states: vec![State::NEW; 2], flags: flags_of(&bytes), bytes }
    }

    #[test]
    fn the_book_notices_every_broken_promise() {
        let mut book = Book::default();
        book.propose(id(1), letter());
        assert!(book.check(&Found::new()).is_ok());
        book.promise(&Proposal { messages: vec![id(1)], outcomes: Vec::new() });
        assert!(book.check(&Found::new()).is_err(), "lost");
        assert!(book.check(&Found::from([(id(1), letter())])).is_ok());
        assert!(book.check(&Found::from([(id(1), letter()), (id(2), letter())])).is_err(), "made up");
        let cut = Letter { bytes: b"byt".to_vec(), ..letter() };
        assert!(book.check(&Found::from([(id(1), cut)])).is_err(), "cut short");

        book.propose_outcome(id(1), 0, State::Delivered, None);
        assert!(book.check(&Found::from([(id(1), letter())])).is_ok(), "not acknowledged yet");
        book.promise(&Proposal { messages: Vec::new(), outcomes: vec![(id(1), 0, State::Delivered)] });
        assert!(book.check(&Found::from([(id(1), letter())])).is_err(), "attempted again");
        assert!(book.check(&Found::new()).is_err(), "the other recipient is still pending");

        book.propose(id(2), letter());
        book.propose_outcome(id(1), 1, State::Failed, Some(id(2)));
        assert!(book.check(&Found::new()).is_err(), "failed without its bounce");
        assert!(book.check(&Found::from([(id(2), letter())])).is_ok());
    }
}
