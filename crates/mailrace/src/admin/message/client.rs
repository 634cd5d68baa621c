//! The client side of `mailrace queue show`. A header or a whole message is printed chunk by chunk,
//! byte for byte; on a terminal it is printed by lines, with control characters escaped.

use std::io::{self, BufWriter, IsTerminal, Write};

use serde::Deserialize;
use serde_json::Value;

use super::super::client::{ask, ask_octets, print};
use super::super::question::Question;
use super::super::text::Text;
use super::text;
use crate::cli::QueueShow;
use crate::config::Config;
use crate::exit::{self, Exit};
use crate::output::output;
use crate::terminal::printable;
use mail::QueueId;

/// `mailrace queue show`.
///
/// # Errors
///
/// The message does not exist, it was finished while it was read, or the server does not answer.
pub fn show(config: &Config, how: &QueueShow) -> anyhow::Result<()> {
    let pieces = Pieces { config, id: how.id, from: 0 };
    if how.message {
        return copy(pieces);
    }
    if how.header {
        return copy(Header::new(pieces));
    }
    let answer = ask(&config.admin.socket, &Question::Show { id: Text(how.id) })?;
    let mut rows = answer.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?.into_iter();
    let message = rows.next().unwrap_or_default();
    let header = Header::new(pieces).collect::<anyhow::Result<Vec<_>>>()?.concat();
    let header = String::from_utf8_lossy(&header);
    match how.json {
        true => print([text::json(message, rows.collect(), &header).to_string()]),
        false => print(text::lines(&message, rows.as_slice(), &header, &config.log.to)),
    }
}

/// Prints bytes unchanged, or escaped by lines on a terminal.
fn copy(pieces: impl Iterator<Item = anyhow::Result<Vec<u8>>>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(output());
    let mut screen = io::stdout().is_terminal().then(Screen::default);
    for piece in pieces {
        match &mut screen {
            Some(screen) => screen.write(&piece?, &mut out)?,
            None => out.write_all(&piece?)?,
        }
    }
    if let Some(screen) = screen {
        screen.finish(&mut out)?;
    }
    Ok(out.flush()?)
}

/// Splits the bytes of a message into lines for a terminal.
#[derive(Default)]
struct Screen {
    /// The start of an incomplete line.
    line: Vec<u8>,
}

impl Screen {
    fn write(&mut self, piece: &[u8], out: &mut impl Write) -> io::Result<()> {
        for part in piece.split_inclusive(|octet| *octet == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.end(out)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, out: &mut impl Write) -> io::Result<()> {
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
        // A tab is harmless: it only moves the cursor.
        let cells: Vec<_> = line.split('\t').map(printable).collect();
        writeln!(out, "{}", cells.join("\t"))?;
        self.line.clear();
        Ok(())
    }

    fn finish(mut self, out: &mut impl Write) -> io::Result<()> {
        if self.line.is_empty() { Ok(()) } else { self.end(out) }
    }
}

/// Precedes the bytes of a chunk.
#[derive(Deserialize)]
struct Head {
    octets: usize,
    size: u64,
}

/// The bytes of a message, while it exists.
struct Pieces<'a> {
    config: &'a Config,
    id: QueueId,
    from: u64,
}

impl Iterator for Pieces<'_> {
    type Item = anyhow::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.piece().transpose()
    }
}

impl Pieces<'_> {
    /// None at the end.
    fn piece(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let asked = Question::Content { id: Text(self.id), from: self.from };
        let answer = ask_octets(&self.config.admin.socket, &asked);
        let (head, piece) = parted(answer?)?;
        self.from += piece.len() as u64;
        if piece.is_empty() && self.from < head.size {
            return Err(cut().into());
        }
        Ok((!piece.is_empty()).then_some(piece))
    }
}

/// Splits an answer into its head and its bytes.
fn parted(mut answer: Vec<u8>) -> anyhow::Result<(Head, Vec<u8>)> {
    let end = answer.iter().position(|octet| *octet == b'\n').ok_or_else(cut)?;
    let head: Head = serde_json::from_slice(&answer[..end])?;
    answer.drain(..=end);
    // The message may contain a line `done`, so the end of the answer alone proves nothing.
    match answer.pop() {
        Some(b'\n') if answer.len() == head.octets => Ok((head, answer)),
        _ => Err(cut().into()),
    }
}

fn cut() -> Exit {
    Exit { code: exit::IO, text: "the server's answer is truncated".into() }
}

/// The header of a message, with the empty line after it if present (RFC 5322 section 2.1).
struct Header<I> {
    pieces: I,
    /// The last bytes: the empty line may span two chunks.
    tail: Vec<u8>,
    ended: bool,
}

impl<I> Header<I> {
    fn new(pieces: I) -> Self {
        // The message may have no header at all.
        Header { pieces, tail: b"\r\n".into(), ended: false }
    }
}

impl<I: Iterator<Item = anyhow::Result<Vec<u8>>>> Iterator for Header<I> {
    type Item = anyhow::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        const END: &[u8] = b"\r\n\r\n";
        if self.ended {
            return None;
        }
        let mut piece = match self.pieces.next()? {
            Ok(piece) => piece,
            Err(error) => return Some(Err(error)),
        };
        let before = self.tail.len();
        self.tail.extend_from_slice(&piece);
        if let Some(at) = self.tail.windows(END.len()).position(|four| four == END) {
            piece.truncate(at + END.len() - before);
            self.ended = true;
        }
        self.tail.drain(..self.tail.len().saturating_sub(END.len() - 1));
        Some(Ok(piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a message that comes in chunks of this size.
    fn header(message: &str, size: usize) -> String {
        let pieces = message.as_bytes().chunks(size).map(|piece| Ok(piece.to_vec()));
        let header = Header::new(pieces).collect::<anyhow::Result<Vec<_>>>().unwrap().concat();
        String::from_utf8(header).unwrap()
    }

    #[test]
    fn a_header_ends_at_the_first_empty_line_wherever_it_is_cut() {
        for (message, expected) in [
            ("A: b\r\nC: d\r\n\r\nbody\r\n\r\nmore", "A: b\r\nC: d\r\n\r\n"),
            ("\r\nbody\r\n\r\n", "\r\n"),
            ("A: b\r\n", "A: b\r\n"),
            ("", ""),
        ] {
            for size in 1..12 {
                assert_eq!(header(message, size), expected, "{message:?} by {size}");
            }
        }
    }

    #[test]
    fn an_answer_whose_bytes_were_cut_short_is_none() {
        let octets = |answer: &[u8]| parted(answer.to_vec()).map(|(_, piece)| piece).ok();
        assert_eq!(octets(b"{\"octets\":5,\"size\":9}\na\nb\n\n\n").as_deref(), Some(&b"a\nb\n\n"[..]));
        for cut in [&b""[..], b"{\"octets\":5,\"size\":9}\n", b"{\"octets\":5,\"size\":9}\na\nb\n", b"x\n\n"] {
            assert_eq!(octets(cut), None, "{cut:?}");
        }
    }

    #[test]
    fn a_terminal_gets_lines_that_do_it_no_harm() {
        let mut out = Vec::new();
        let mut screen = Screen::default();
        for piece in ["Subject: \u{1b}[2Jx\r", "\nA:\tb\n\u{202e}", "end"] {
            screen.write(piece.as_bytes(), &mut out).unwrap();
        }
        screen.finish(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "Subject: \\u001b[2Jx\nA:\tb\n\\u202eend\n");
    }
}
