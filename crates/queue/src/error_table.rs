//! The last errors of recipients: a bounded table of texts, and two bytes per recipient.
//!
//! A text is kept while recipients refer to it. When the table is full, new errors share one text.

use std::collections::BTreeMap;
use std::sync::Arc;

use mail::Reply;

use crate::pages::Slab;

/// The maximum number of different texts.
const ERRORS_MAX: usize = 10_000;
/// The maximum length of a text in bytes.
const TEXT_BYTES_MAX: usize = 200;
const OVERFLOW_TEXT: &str = "(too many different errors to record this one)";

/// The index of a text in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorNumber(u16);

impl ErrorNumber {
    /// There was no error yet.
    pub(crate) const NONE: ErrorNumber = ErrorNumber(u16::MAX);
    const OTHER: ErrorNumber = ErrorNumber(u16::MAX - 1);
}

/// The texts in use.
pub(crate) struct ErrorTable {
    texts: Slab<ErrorText>,
    numbers: BTreeMap<Arc<str>, ErrorNumber>,
    overflow_text: Arc<str>,
}

struct ErrorText {
    text: Arc<str>,
    recipients: u32,
}

impl ErrorTable {
    pub(crate) fn new() -> Self {
        ErrorTable { texts: Slab::new(), numbers: BTreeMap::new(), overflow_text: OVERFLOW_TEXT.into() }
    }

    /// Adds one recipient with this error.
    pub(crate) fn add(&mut self, reply: &Reply) -> ErrorNumber {
        let mut text = reply.to_string();
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        if let Some(&known) = self.numbers.get(&*text) {
            self.texts[u32::from(known.0)].recipients += 1;
            return known;
        }
        if self.texts.len() >= ERRORS_MAX {
            return ErrorNumber::OTHER;
        }
        let text: Arc<str> = text.into();
        let index = self.texts.insert(ErrorText { text: Arc::clone(&text), recipients: 1 });
        let number = ErrorNumber(u16::try_from(index).expect("the table has fewer than 2^16 entries"));
        self.numbers.insert(text, number);
        number
    }

    /// Removes one recipient from the error.
    pub(crate) fn release(&mut self, number: ErrorNumber) {
        if matches!(number, ErrorNumber::NONE | ErrorNumber::OTHER) {
            return;
        }
        let index = u32::from(number.0);
        self.texts[index].recipients -= 1;
        if self.texts[index].recipients == 0 {
            let text = self.texts.remove(index);
            self.numbers.remove(&text.text);
        }
    }

    pub(crate) fn text(&self, number: ErrorNumber) -> Option<Arc<str>> {
        match number {
            ErrorNumber::NONE => None,
            ErrorNumber::OTHER => Some(Arc::clone(&self.overflow_text)),
            ErrorNumber(index) => Some(Arc::clone(&self.texts[u32::from(index)].text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_stored_once_while_recipients_refer_to_it() {
        let mut errors = ErrorTable::new();
        let (busy, full) = (Reply::without_enhanced_code(451, "busy"), Reply::without_enhanced_code(452, "full"));
        let first = errors.add(&busy);
        assert_eq!(errors.add(&busy), first);
        let other = errors.add(&full);
        errors.release(first);
        assert_eq!(errors.text(first).as_deref(), Some("451 busy"));
        errors.release(first);
        assert_eq!((errors.texts.len(), errors.numbers.len()), (1, 1));
        assert_eq!(errors.text(other).as_deref(), Some("452 full"));
        assert_eq!(errors.text(ErrorNumber::NONE), None);
    }

    #[test]
    fn too_many_texts_share_one_and_long_ones_are_cut_between_characters() {
        let mut errors = ErrorTable::new();
        let numbers: Vec<_> =
            (0..=ERRORS_MAX).map(|n| errors.add(&Reply::without_enhanced_code(451, n.to_string()))).collect();
        assert_eq!(errors.text(numbers[ERRORS_MAX]).as_deref(), Some(OVERFLOW_TEXT));
        numbers.into_iter().for_each(|number| errors.release(number));
        let long = errors.add(&Reply::without_enhanced_code(451, "ä".repeat(1000)));
        assert_eq!(errors.text(long).unwrap().len(), TEXT_BYTES_MAX);
    }
}
