//! The messages of a source: synthetic ones with a body of any length, or real ones. Each has a
//! stamp, and the body of a synthetic one also has its number, so that all messages differ.
//!
//! A message consists of a head, a range of a shared text, and a tail, which are sent without
//! copying.

use std::ops::Range;
use std::sync::Arc;

use mail::Address;
use protocol::smtp::client::{ContentSize, DotStuffing};

use super::corpus::Corpus;
use super::size::BodySizeDistribution;
use crate::stamp::{MessageStamp, RunId};

/// Bytes in a line of synthetic text, with its CR LF.
const LINE_OCTETS: usize = 78;
/// The characters of synthetic lines; no line begins with a dot, "From ", or "--".
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/";

/// Generates messages.
#[derive(Debug)]
pub(super) struct MessageGenerator {
    run: RunId,
    text: MessageText,
}

#[derive(Debug)]
enum MessageText {
    Synthetic { filler: Arc<[u8]>, sizes: BodySizeDistribution },
    Real(Corpus),
}

/// A message to send.
#[derive(Debug)]
pub(super) struct OutgoingMessage {
    head: Vec<u8>,
    plain: SharedRange,
    stuffed: SharedRange,
    tail: &'static [u8],
    dot_lines: u64,
    /// Whether it has bytes above 127.
    pub(super) eight_bit: bool,
}

/// A range of a shared text.
#[derive(Clone, Debug)]
struct SharedRange(Arc<[u8]>, Range<usize>);

impl SharedRange {
    fn octets(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

impl MessageGenerator {
    /// Messages with synthetic text from `seed`.
    pub(super) fn synthetic(run: RunId, sizes: BodySizeDistribution, seed: u64) -> MessageGenerator {
        let mut random = fastrand::Rng::with_seed(seed);
        let octets = usize::try_from(sizes.max()).unwrap_or(usize::MAX);
        let filler = (0..octets).map(|place| match place % LINE_OCTETS {
            76 => b'\r',
            77 => b'\n',
            _ => ALPHABET[random.usize(..ALPHABET.len())],
        });
        MessageGenerator { run, text: MessageText::Synthetic { filler: filler.collect(), sizes } }
    }

    /// Real messages, in turn.
    pub(super) fn real(run: RunId, corpus: Corpus) -> MessageGenerator {
        MessageGenerator { run, text: MessageText::Real(corpus) }
    }

    /// The message with this number.
    pub(super) fn generate(
        &self,
        sequence: u64,
        sender: Option<&Address>,
        recipient: &Address,
        random: &mut fastrand::Rng,
    ) -> OutgoingMessage {
        match &self.text {
            MessageText::Synthetic { filler, sizes } => {
                let octets = usize::try_from(sizes.draw(random)).unwrap_or(usize::MAX);
                self.generate_synthetic(sequence, sender, recipient, filler, octets)
            }
            MessageText::Real(corpus) => {
                let message = corpus.message(sequence);
                let mut head = Vec::with_capacity(128);
                MessageStamp::new(self.run, sequence, [message.body()]).append_header(&mut head);
                OutgoingMessage {
                    head,
                    plain: SharedRange(message.plain.clone(), 0..message.plain.len()),
                    stuffed: SharedRange(message.stuffed.clone(), 0..message.stuffed.len()),
                    tail: b"",
                    dot_lines: message.dot_lines,
                    eight_bit: message.eight_bit,
                }
            }
        }
    }

    /// A message with a body of `octets` bytes: its number if there is space, text, and a line end.
    fn generate_synthetic(
        &self,
        sequence: u64,
        sender: Option<&Address>,
        recipient: &Address,
        filler: &Arc<[u8]>,
        octets: usize,
    ) -> OutgoingMessage {
        let name = format!("{} {sequence:020}\r\n", self.run);
        let name = if octets >= name.len() + 2 { name.as_str() } else { "" };
        let (text, tail) = text_and_tail(octets - name.len());
        let mut head = Vec::with_capacity(512);
        MessageStamp::new(self.run, sequence, [name.as_bytes(), &filler[..text], tail]).append_header(&mut head);
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
        let piece = SharedRange(filler.clone(), 0..text);
        OutgoingMessage { head, plain: piece.clone(), stuffed: piece, tail, dot_lines: 0, eight_bit: false }
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

impl OutgoingMessage {
    /// What the SMTP client has to know about the message.
    pub(super) fn content(&self) -> ContentSize {
        let octets = self.head.len() + self.plain.1.len() + self.tail.len();
        let ends_in_crlf =
            !self.tail.is_empty() || self.plain.octets().is_empty() || self.plain.octets().ends_with(b"\r\n");
        ContentSize { octets: octets as u64, dot_lines: self.dot_lines, ends_in_crlf }
    }

    /// The bytes of a range in this form.
    pub(super) fn pieces(&self, form: DotStuffing, range: Range<u64>) -> [&[u8]; 3] {
        let text = if form == DotStuffing::Plain { &self.plain } else { &self.stuffed };
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
    use crate::stamp::check_stamp;

    fn generator(size: &str) -> MessageGenerator {
        MessageGenerator::synthetic(RunId(7), size.parse().unwrap(), 1)
    }

    fn generate(generator: &MessageGenerator, sequence: u64) -> OutgoingMessage {
        let address: Address = "a@x.test".parse().unwrap();
        generator.generate(sequence, None, &address, &mut fastrand::Rng::with_seed(1))
    }

    #[test]
    fn a_body_has_the_length_that_was_asked_for_and_sound_lines() {
        for octets in (0..400).filter(|&octets| octets != 1).chain([6000]) {
            let outgoing = generate(&generator(&octets.to_string()), 5);
            let message = outgoing.pieces(DotStuffing::Plain, 0..outgoing.content().octets).concat();
            let body = memchr::memmem::find(&message, b"\r\n\r\n").unwrap() + 4;
            assert_eq!(message.len() - body, octets);
            assert_eq!(message.len() as u64, outgoing.content().octets);
            assert_eq!(ContentSize::from_message(&message), outgoing.content());
            assert_eq!(crate::stamp::with_crlf(&message), &message[..], "a bare LF with {octets}");
            assert_eq!(memchr::memchr_iter(b'\r', &message).count(), memchr::memchr_iter(b'\n', &message).count());
            let seen = check_stamp(&message).unwrap();
            assert!(seen.sound && seen.stamp.sequence == 5, "{octets}");
        }
    }

    #[test]
    fn bodies_of_two_messages_differ_although_they_share_text() {
        let generator = generator("100");
        let body = |sequence| {
            let outgoing = generate(&generator, sequence);
            let message = outgoing.pieces(DotStuffing::Plain, 0..outgoing.content().octets).concat();
            message[message.len() - 100..].to_vec()
        };
        assert_ne!(body(1), body(2));
    }

    #[test]
    fn pieces_start_after_the_sent_bytes() {
        let outgoing = generate(&generator("200"), 1);
        let whole = outgoing.pieces(DotStuffing::Plain, 0..outgoing.content().octets).concat();
        for sent in 0..=whole.len() {
            assert_eq!(outgoing.pieces(DotStuffing::Plain, sent as u64..whole.len() as u64).concat(), whole[sent..]);
        }
    }
}
