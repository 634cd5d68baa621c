//! LIST and UIDL (RFC 1939 sections 5 and 7), made in portions while they are sent: the list of a
//! large maildrop is never in memory as a whole.

use super::maildrop::OpenMaildrop;
use super::{OUTPUT_WAITING_MAX, Pop3Server, Step};

/// What a list says about each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListingKind {
    Sizes,
    Uids,
}

/// A list that is being made.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListingCursor {
    pub(super) kind: ListingKind,
    /// The first message that may not be listed yet.
    pub(super) next: usize,
}

impl ListingKind {
    /// Appends the number and the property of a message, without a line end.
    pub(super) fn write(self, maildrop: &OpenMaildrop, message: usize, out: &mut Vec<u8>) {
        push_number(out, message as u64 + 1);
        out.push(b' ');
        match self {
            ListingKind::Sizes => push_number(out, maildrop.listing().octets(message)),
            ListingKind::Uids => maildrop.listing().write_uid(message, out),
        }
    }
}

impl Pop3Server {
    /// Appends lines of the list until it is complete or enough output waits.
    pub(super) fn continue_listing(&mut self, mut cursor: ListingCursor) {
        self.step = Step::Command;
        let Some(maildrop) = &self.maildrop else { return };
        while let Some(message) = maildrop.next_kept(cursor.next) {
            if self.output.len() - self.output_sent >= OUTPUT_WAITING_MAX {
                self.step = Step::Listing(cursor);
                return;
            }
            cursor.kind.write(maildrop, message, &mut self.output);
            self.output.extend_from_slice(b"\r\n");
            cursor.next = message + 1;
        }
        self.send_line(".");
    }
}

/// Appends a number in decimal digits.
pub(super) fn push_number(out: &mut Vec<u8>, mut number: u64) {
    /// Of the largest number.
    const DIGITS_MAX: usize = 20;
    let mut digits = [0; DIGITS_MAX];
    let mut first = DIGITS_MAX;
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[first..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal() {
        for number in [0, 9, 10, 100_001, u64::MAX] {
            let mut out = b"x".to_vec();
            push_number(&mut out, number);
            assert_eq!(out, format!("x{number}").into_bytes());
        }
    }
}
