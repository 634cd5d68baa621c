//! The open maildrop of a session: its listing, and which messages the client has marked as deleted
//! (RFC 1939 section 5). Marked messages keep their numbers.

use std::fmt;
use std::sync::Arc;

use super::MaildropListing;

const WORD_BITS: usize = u64::BITS as usize;

/// A listing, and the marks of the session.
pub(super) struct OpenMaildrop {
    listing: Arc<dyn MaildropListing>,
    /// A bit for each message that is marked; nothing before the first is.
    deleted: Vec<u64>,
    messages_left: usize,
    octets_left: u64,
    octets_total: u64,
}

impl OpenMaildrop {
    pub(super) fn new(listing: Arc<dyn MaildropListing>) -> OpenMaildrop {
        let messages = listing.message_count();
        let octets = (0..messages).map(|message| listing.octets(message)).fold(0, u64::saturating_add);
        OpenMaildrop {
            listing,
            deleted: Vec::new(),
            messages_left: messages,
            octets_left: octets,
            octets_total: octets,
        }
    }

    pub(super) fn listing(&self) -> &dyn MaildropListing {
        &*self.listing
    }

    /// The number of messages that are not marked.
    pub(super) fn messages_left(&self) -> usize {
        self.messages_left
    }

    /// Their size.
    pub(super) fn octets_left(&self) -> u64 {
        self.octets_left
    }

    pub(super) fn is_deleted(&self, message: usize) -> bool {
        self.deleted.get(message / WORD_BITS).is_some_and(|word| word & (1 << (message % WORD_BITS)) != 0)
    }

    /// Marks a message that is not marked yet.
    pub(super) fn mark_deleted(&mut self, message: usize) {
        if self.deleted.is_empty() {
            self.deleted = vec![0; self.listing.message_count().div_ceil(WORD_BITS)];
        }
        if let Some(word) = self.deleted.get_mut(message / WORD_BITS) {
            *word |= 1 << (message % WORD_BITS);
            self.messages_left = self.messages_left.saturating_sub(1);
            self.octets_left = self.octets_left.saturating_sub(self.listing.octets(message));
        }
    }

    /// Removes all marks.
    pub(super) fn reset(&mut self) {
        self.deleted = Vec::new();
        self.messages_left = self.listing.message_count();
        self.octets_left = self.octets_total;
    }

    /// The first message from this one on that is not marked. Costs little even if most are.
    pub(super) fn next_kept(&self, from: usize) -> Option<usize> {
        let count = self.listing.message_count();
        let mut message = from;
        while message < count {
            let Some(word) = self.deleted.get(message / WORD_BITS) else { return Some(message) };
            // Bits before `message` count as marked.
            let kept = !word >> (message % WORD_BITS);
            if kept != 0 {
                return Some(message + kept.trailing_zeros() as usize).filter(|&found| found < count);
            }
            message = (message / WORD_BITS + 1) * WORD_BITS;
        }
        None
    }

    /// The marked messages, in ascending order.
    pub(super) fn deleted(&self) -> Vec<usize> {
        if self.deleted.is_empty() {
            return Vec::new();
        }
        (0..self.listing.message_count()).filter(|&message| self.is_deleted(message)).collect()
    }
}

impl fmt::Debug for OpenMaildrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenMaildrop").field("messages_left", &self.messages_left).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of 1, 2, 3... octets.
    struct Numbered(usize);

    impl MaildropListing for Numbered {
        fn message_count(&self) -> usize {
            self.0
        }

        fn octets(&self, message: usize) -> u64 {
            message as u64 + 1
        }

        fn write_uid(&self, _message: usize, _out: &mut Vec<u8>) {}
    }

    #[test]
    fn marks_change_what_is_left_until_they_are_removed() {
        let mut maildrop = OpenMaildrop::new(Arc::new(Numbered(200)));
        let kept = |maildrop: &OpenMaildrop| {
            std::iter::successors(maildrop.next_kept(0), |&last| maildrop.next_kept(last + 1)).collect::<Vec<_>>()
        };
        assert_eq!((maildrop.messages_left(), maildrop.octets_left()), (200, 20_100));
        assert_eq!(kept(&maildrop), (0..200).collect::<Vec<_>>());
        let marked: Vec<usize> = [0, 63].into_iter().chain(64..130).chain([199]).collect();
        marked.iter().for_each(|&message| maildrop.mark_deleted(message));
        assert_eq!(maildrop.deleted(), marked);
        assert_eq!(maildrop.messages_left(), 200 - marked.len());
        let octets: usize = marked.iter().map(|message| message + 1).sum();
        assert_eq!(maildrop.octets_left(), 20_100 - octets as u64);
        assert_eq!(kept(&maildrop), (0..200).filter(|message| !marked.contains(message)).collect::<Vec<_>>());
        maildrop.reset();
        assert_eq!((maildrop.messages_left(), maildrop.octets_left(), maildrop.deleted()), (200, 20_100, vec![]));
        assert_eq!(OpenMaildrop::new(Arc::new(Numbered(0))).next_kept(0), None);
    }
}
