//! The entries of the simulated mail: new messages, their outcomes and their copies.

use std::sync::Arc;

use cluster::codec::CopiedEntry;
use cluster::lane::retention::RetainedEntry;
use mail::{BodyFlags, BodyType, ClientInfo, DsnNotify, Envelope, QueueId, Recipient, SpoolId, Timestamp};
use spool::{DraftBody, RecipientState};

use crate::ledger::LedgerEntry;
use crate::node::Context;

/// A new message with this number.
pub(crate) fn new_content(number: u64, context: &mut Context<'_>) -> (QueueId, Vec<u8>) {
    let id = QueueId::new(SpoolId::new(7), 0, number);
    let mut content = vec![0; context.random.below(400) as usize];
    context.random.fill(&mut content);
    let entry = LedgerEntry { content: content.clone(), ..LedgerEntry::default() };
    context.ledger.messages.insert(id, entry);
    (id, content)
}

pub(crate) fn retained(entry: &CopiedEntry) -> RetainedEntry {
    match entry {
        CopiedEntry::Message { id, states, .. } => {
            RetainedEntry::Message { id: *id, recipients: 1, states: states.clone() }
        }
        CopiedEntry::Outcome { id, recipients, .. } => {
            RetainedEntry::Outcome { id: *id, recipients: recipients.clone() }
        }
    }
}

/// The states of a message on the disk.
pub(crate) fn states_after(attempts: u16) -> Vec<(u32, RecipientState)> {
    let waiting = RecipientState::Waiting { attempts, until: Timestamp(0) };
    (attempts > 0).then_some((0, waiting)).into_iter().collect()
}

pub(crate) fn outcome(id: QueueId, state: RecipientState, bounce: Option<QueueId>) -> CopiedEntry {
    CopiedEntry::Outcome { id, recipients: vec![(0, state)], bounce }
}

pub(crate) fn message(id: QueueId, content: Vec<u8>, states: Vec<(u32, RecipientState)>) -> CopiedEntry {
    let recipient = Recipient {
        address: "b@example.org".parse().unwrap(),
        original: None,
        notify: DsnNotify::UNSET,
        orcpt: None,
        is_forwarded: false,
    };
    CopiedEntry::Message {
        id,
        envelope: Envelope {
            sender: None,
            recipients: vec![recipient],
            accepted_at: Timestamp(0),
            client: ClientInfo { address: None, helo: "client".into(), trusted: false },
            body_type: BodyType::SevenBit,
            smtputf8: false,
            ret: None,
            envid: None,
            content_filter: false,
        },
        states,
        digest: crc32c::crc32c(&content),
        content: DraftBody::Memory { prefix: Arc::new(Vec::new()), body: Arc::new(content) },
        flags: BodyFlags::default(),
    }
}
