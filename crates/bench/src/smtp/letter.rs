//! The messages of a source: synthetic ones with a body of any length, or real ones. Each has a
//! stamp, and the body of a synthetic one also has its number, so that all messages differ.
//!
//! A message consists of a head, a range of a shared text, and a tail, which are sent without
//! copying.

use std::ops::Range;
use std::sync::Arc;

use mail::Address;
use protocol::smtp::client::{Content, Form};

use super::corpus::Corpus;
use super::size::Sizes;
use crate::stamp::{RunId, Stamp};

/// Bytes in a line of synthetic text, with its CR LF.
const LINE_OCTETS: usize = 78;
/// The characters of synthetic lines; no line begins with a dot, "From ", or "--".
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/";

/// Generates messages.
#[derive(Debug)]
pub(super) struct Letters {
    run: RunId,
    text: Text,
}

#[derive(Debug)]
enum Text {
    MadeUp { filler: Arc<[u8]>, sizes: Sizes },
    Real(Corpus),
}

/// A message to send.
#[derive(Debug)]
pub(super) struct Letter {
    head: Vec<u8>,
    plain: Piece,
    stuffed: Piece,
    tail: &'static [u8],
    dot_lines: u64,
    /// Whether it has bytes above 127.
    pub(super) eight_bit: bool,
}

/// A range of a shared text.
#[derive(Clone, Debug)]
struct Piece(Arc<[u8]>, Range<usize>);

impl Piece {
    fn octets(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

impl Letters {
    /// Messages with synthetic text from `seed`.
    pub(super) fn made_up(run: RunId, sizes: Sizes, seed: u64) -> Letters {
        let mut random = fastrand::Rng::with_seed(seed);
        let octets = usize::try_from(sizes.max()).unwrap_or(usize::MAX);
        let filler = (0..octets).map(|place| match place % LINE_OCTETS {
            76 => b'\r',
            77 => b'\n',
            _ => LETTERS[random.usize(..LETTERS.len())],
        });
        Letters { run, text: Text::MadeUp { filler: filler.collect(), sizes } }
    }

    /// Real messages, in turn.
    pub(super) fn real(run: RunId, corpus: Corpus) -> Letters {
        Letters { run, text: Text::Real(corpus) }
    }

    /// The message with this number.
    pub(super) fn letter(
        &self,
        sequence: u64,
        sender: Option<&Address>,
        recipient: &Address,
        random: &mut fastrand::Rng,
    ) -> Letter {
        match &self.text {
            Text::MadeUp { filler, sizes } => {
                let octets = usize::try_from(sizes.draw(random)).unwrap_or(usize::MAX);
                self.made(sequence, sender, recipient, filler, octets)
            }
            Text::Real(corpus) => {
                let message = corpus.message(sequence);
                let mut head = Vec::with_capacity(128);
                Stamp::new(self.run, sequence, [message.body()]).write(&mut head);
                Letter {
                    head,
                    plain: Piece(message.plain.clone(), 0..message.plain.len()),
                    stuffed: Piece(message.stuffed.clone(), 0..message.stuffed.len()),
                    tail: b"",
                    dot_lines: message.dot_lines,
                    eight_bit: message.eight_bit,
                }
            }
        }
    }

    /// A message with a body of `octets` bytes: its number if there is space, text, and a line end.
    fn made(
        &self,
        sequence: u64,
        sender: Option<&Address>,
        recipient: &Address,
        filler: &Arc<[u8]>,
        octets: usize,
    ) -> Letter {
        let name = format!("{} {sequence:020}\r\n", self.run);
        let name = if octets >= name.len() + 2 { name.as_str() } else { "" };
        let (text, tail) = text_and_tail(octets - name.len());
        let mut head = Vec::with_capacity(512);
        Stamp::new(self.run, sequence, [name.as_bytes(), &filler[..text], tail]).write(&mut head);
        let sender = sender.map_or("", Address::as_str);
        let id = format!("{}.{sequence}", self.run);
        for text in [
            "From: <",
            sender,
            ">\r\nTo: <",
            recipient.as_str(),
            ">\r\nSubject: message ",
            &id,
            "\r\nMessage-ID: <",
            &id,
            "@bench.invalid>\r\n\r\n",
            name,
        ] {
            head.extend_from_slice(text.as_bytes());
        }
        let piece = Piece(filler.clone(), 0..text);
        Letter { head, plain: piece.clone(), stuffed: piece, tail, dot_lines: 0, eight_bit: false }
    }
}

/// The length of the text and the tail that make `octets` bytes without splitting a CR LF.
fn text_and_tail(octets: usize) -> (usize, &'static [u8]) {
    match octets {
        0 => (0, b""),
        _ if (octets - 2) % LINE_OCTETS == LINE_OCTETS - 1 => (octets - 3, b"x\r\n"),
        _ => (octets - 2, b"\r\n"),
    }
}

impl Letter {
    /// What the SMTP client has to know about the message.
    pub(super) fn content(&self) -> Content {
        let octets = self.head.len() + self.plain.1.len() + self.tail.len();
        let ends_in_crlf =
            !self.tail.is_empty() || self.plain.octets().is_empty() || self.plain.octets().ends_with(b"\r\n");
        Content { octets: octets as u64, dot_lines: self.dot_lines, ends_in_crlf }
    }

    /// The bytes of a range in this form.
    pub(super) fn pieces(&self, form: Form, range: Range<u64>) -> [&[u8]; 3] {
        let text = if form == Form::Plain { &self.plain } else { &self.stuffed };
        let mut skip = usize::try_from(range.start).unwrap_or(usize::MAX);
        [&self.head[..], text.octets(), self.tail].map(|piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            &piece[skipped..]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::examine;

    fn letters(size: &str) -> Letters {
        Letters::made_up(RunId(7), size.parse().unwrap(), 1)
    }

    fn letter_of(letters: &Letters, sequence: u64) -> Letter {
        let address: Address = "a@x.test".parse().unwrap();
        letters.letter(sequence, None, &address, &mut fastrand::Rng::with_seed(1))
    }

    #[test]
    fn a_body_has_the_length_that_was_asked_for_and_sound_lines() {
        for octets in (0..400).filter(|&octets| octets != 1).chain([6000]) {
            let letter = letter_of(&letters(&octets.to_string()), 5);
            let message = letter.pieces(Form::Plain, 0..letter.content().octets).concat();
            let body = memchr::memmem::find(&message, b"\r\n\r\n").unwrap() + 4;
            assert_eq!(message.len() - body, octets);
            assert_eq!(message.len() as u64, letter.content().octets);
            assert_eq!(Content::of(&message), letter.content());
            assert_eq!(crate::stamp::with_crlf(&message), &message[..], "a bare LF with {octets}");
            assert_eq!(memchr::memchr_iter(b'\r', &message).count(), memchr::memchr_iter(b'\n', &message).count());
            let seen = examine(&message).unwrap();
            assert!(seen.sound && seen.stamp.sequence == 5, "{octets}");
        }
    }

    #[test]
    fn bodies_of_two_letters_differ_although_their_text_is_shared() {
        let letters = letters("100");
        let body = |sequence| {
            let letter = letter_of(&letters, sequence);
            let message = letter.pieces(Form::Plain, 0..letter.content().octets).concat();
            message[message.len() - 100..].to_vec()
        };
        assert_ne!(body(1), body(2));
    }

    #[test]
    fn what_was_sent_is_not_sent_again() {
        let letter = letter_of(&letters("200"), 1);
        let whole = letter.pieces(Form::Plain, 0..letter.content().octets).concat();
        for sent in 0..=whole.len() {
            assert_eq!(letter.pieces(Form::Plain, sent as u64..whole.len() as u64).concat(), whole[sent..]);
        }
    }
}
