//! What a batch holds that may be refused while its stream is nearly full: new mail. Outcomes, and the
//! bounces that belong to them, have happened, and go on.

use std::collections::HashSet;

use mail::QueueId;
use spool::{DraftBody, EntryDraft};

/// What an entry takes beside its body, approximately.
const ENTRY_BYTES: u64 = 512;

/// Whether the batch has messages that are no bounces of its outcomes.
pub(crate) fn has_new_mail(entries: &[EntryDraft]) -> bool {
    !new_mail(entries).is_empty()
}

/// The bytes of the batch, approximately.
pub(super) fn bytes_of(entries: &[EntryDraft]) -> u64 {
    entries.iter().map(|entry| ENTRY_BYTES + body_bytes(entry)).sum()
}

/// The batch without new mail, and without the outcomes of new mail.
pub(super) fn without_new_mail(mut entries: Vec<EntryDraft>) -> Vec<EntryDraft> {
    let refused = new_mail(&entries);
    entries.retain(|entry| match entry {
        EntryDraft::Message { id, .. } | EntryDraft::Outcome { id, .. } => !refused.contains(id),
    });
    entries
}

fn new_mail(entries: &[EntryDraft]) -> HashSet<QueueId> {
    let mut found: HashSet<QueueId> = entries.iter().filter_map(message_id).collect();
    for entry in entries {
        if let EntryDraft::Outcome { bounce: Some(bounce), .. } = entry {
            found.remove(bounce);
        }
    }
    found
}

fn message_id(entry: &EntryDraft) -> Option<QueueId> {
    match entry {
        EntryDraft::Message { id, .. } => Some(*id),
        EntryDraft::Outcome { .. } => None,
    }
}

fn body_bytes(entry: &EntryDraft) -> u64 {
    match entry {
        EntryDraft::Message { content: DraftBody::Memory { prefix, body }, .. } => (prefix.len() + body.len()) as u64,
        EntryDraft::Message { content: DraftBody::Spilled { content, .. }, .. } => content.len(),
        EntryDraft::Outcome { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mail::{BodyFlags, BodyType, ClientInfo, Envelope, SpoolId, Timestamp};
    use spool::RecipientState;

    use super::*;

    fn id(sequence: u64) -> QueueId {
        QueueId::new(SpoolId::new(1), 0, sequence)
    }

    fn message(sequence: u64) -> EntryDraft {
        let envelope = Envelope {
            sender: None,
            recipients: Vec::new(),
            accepted_at: Timestamp(0),
            client: ClientInfo { address: None, helo: "client".into(), trusted: false },
            body_type: BodyType::SevenBit,
            smtputf8: false,
            ret: None,
            envid: None,
            content_filter: false,
        };
        let content = DraftBody::Memory { prefix: Arc::new(vec![0; 10]), body: Arc::new(vec![0; 100]) };
        EntryDraft::Message { id: id(sequence), envelope, content, flags: BodyFlags::default(), digest: 0 }
    }

    fn outcome(sequence: u64, bounce: Option<u64>) -> EntryDraft {
        let recipients = vec![(0, RecipientState::Failed)];
        EntryDraft::Outcome { id: id(sequence), recipients, bounce: bounce.map(id) }
    }

    #[test]
    fn only_new_mail_is_refused_with_what_belongs_to_it() {
        let batch = || vec![message(1), outcome(2, Some(3)), message(3), outcome(1, None), outcome(4, None)];
        assert!(has_new_mail(&batch()));
        assert_eq!(bytes_of(&batch()), 5 * ENTRY_BYTES + 220);
        let rest = without_new_mail(batch());
        let ids: Vec<u64> = rest
            .iter()
            .map(|entry| match entry {
                EntryDraft::Message { id, .. } | EntryDraft::Outcome { id, .. } => id.sequence(),
            })
            .collect();
        assert_eq!(ids, [2, 3, 4]);
        assert!(!has_new_mail(&rest));
    }
}
