//! The client side of `mailrace queue show`. A header or a whole message is printed chunk by chunk,
//! byte for byte; on a terminal it is printed by lines, with control characters escaped.

use std::io::{self, BufWriter, IsTerminal, Write};

use serde::Deserialize;
use serde_json::Value;

use control::message_text;
use control::request::ControlRequest;
use control::text::SerdeAsText;

use super::{print, request_bytes, request_text, rows};
use crate::cli::QueueShowArgs;
use crate::exit::{self, ExitError};
use crate::output::output;
use config::Config;
use mail::QueueId;
use mail::printable;
use server_log::LogTarget;

/// `mailrace queue show`.
///
/// # Errors
///
/// The message does not exist, it was finished while it was read, or the server does not answer.
pub fn print_message(config: &Config, how: &QueueShowArgs) -> anyhow::Result<()> {
    let chunks = MessageChunks { config, id: how.id, from: 0 };
    if how.message {
        return print_chunks(chunks);
    }
    if how.header {
        return print_chunks(HeaderChunks::new(chunks));
    }
    let answer = request_text(&config.admin.socket, &ControlRequest::Show { id: SerdeAsText(how.id) })?;
    let mut rows = rows::<Value>(&answer)?.into_iter();
    let message = rows.next().unwrap_or_default();
    let header = HeaderChunks::new(chunks).collect::<anyhow::Result<Vec<_>>>()?.concat();
    let header = String::from_utf8_lossy(&header);
    let log_file = match &config.log.to {
        LogTarget::File(path) => Some(path.as_path()),
        LogTarget::Stderr => None,
    };
    match how.json {
        true => print([message_text::json(message, rows.collect(), &header).to_string()]),
        false => print(message_text::lines(&message, rows.as_slice(), &header, log_file)),
    }
}

/// Prints bytes unchanged, or escaped by lines on a terminal.
fn print_chunks(chunks: impl Iterator<Item = anyhow::Result<Vec<u8>>>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(output());
    let mut terminal = io::stdout().is_terminal().then(TerminalWriter::default);
    for chunk in chunks {
        match &mut terminal {
            Some(terminal) => terminal.write(&chunk?, &mut out)?,
            None => out.write_all(&chunk?)?,
        }
    }
    if let Some(terminal) = terminal {
        terminal.finish(&mut out)?;
    }
    Ok(out.flush()?)
}

/// Splits the bytes of a message into lines for a terminal.
#[derive(Default)]
struct TerminalWriter {
    /// The start of an incomplete line.
    line: Vec<u8>,
}

impl TerminalWriter {
    fn write(&mut self, chunk: &[u8], out: &mut impl Write) -> io::Result<()> {
        for part in chunk.split_inclusive(|octet| *octet == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.end_line(out)?;
            }
        }
        Ok(())
    }

    fn end_line(&mut self, out: &mut impl Write) -> io::Result<()> {
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
        // A tab is harmless: it only moves the cursor.
        let cells: Vec<_> = line.split('\t').map(printable).collect();
        writeln!(out, "{}", cells.join("\t"))?;
        self.line.clear();
        Ok(())
    }

    fn finish(mut self, out: &mut impl Write) -> io::Result<()> {
        if self.line.is_empty() { Ok(()) } else { self.end_line(out) }
    }
}

/// Precedes the bytes of a chunk.
#[derive(Deserialize)]
struct ChunkHead {
    octets: usize,
    size: u64,
}

/// The bytes of a message, while it exists.
struct MessageChunks<'a> {
    config: &'a Config,
    id: QueueId,
    from: u64,
}

impl Iterator for MessageChunks<'_> {
    type Item = anyhow::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_chunk().transpose()
    }
}

impl MessageChunks<'_> {
    /// None at the end.
    fn next_chunk(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let request = ControlRequest::Content { id: SerdeAsText(self.id), from: self.from };
        let answer = request_bytes(&self.config.admin.socket, &request);
        let (head, chunk) = split_answer(answer?)?;
        self.from += chunk.len() as u64;
        if chunk.is_empty() && self.from < head.size {
            return Err(cut_short().into());
        }
        Ok((!chunk.is_empty()).then_some(chunk))
    }
}

/// Splits an answer into its head and its bytes.
fn split_answer(mut answer: Vec<u8>) -> anyhow::Result<(ChunkHead, Vec<u8>)> {
    let end = answer.iter().position(|octet| *octet == b'\n').ok_or_else(cut_short)?;
    let head: ChunkHead = serde_json::from_slice(&answer[..end])?;
    answer.drain(..=end);
    // The message may contain a line `done`, so the end of the answer alone proves nothing.
    match answer.pop() {
        Some(b'\n') if answer.len() == head.octets => Ok((head, answer)),
        _ => Err(cut_short().into()),
    }
}

fn cut_short() -> ExitError {
    ExitError { code: exit::IO, text: "the server's answer is truncated".into() }
}

/// The header of a message, with the empty line after it if present (RFC 5322 section 2.1).
struct HeaderChunks<I> {
    chunks: I,
    /// The last bytes: the empty line may span two chunks.
    tail: Vec<u8>,
    ended: bool,
}

impl<I> HeaderChunks<I> {
    fn new(chunks: I) -> Self {
        // The message may have no header at all.
        HeaderChunks { chunks, tail: b"\r\n".into(), ended: false }
    }
}

impl<I: Iterator<Item = anyhow::Result<Vec<u8>>>> Iterator for HeaderChunks<I> {
    type Item = anyhow::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        const END: &[u8] = b"\r\n\r\n";
        if self.ended {
            return None;
        }
        let mut chunk = match self.chunks.next()? {
            Ok(chunk) => chunk,
            Err(error) => return Some(Err(error)),
        };
        let before = self.tail.len();
        self.tail.extend_from_slice(&chunk);
        if let Some(at) = self.tail.windows(END.len()).position(|four| four == END) {
            chunk.truncate(at + END.len() - before);
            self.ended = true;
        }
        self.tail.drain(..self.tail.len().saturating_sub(END.len() - 1));
        Some(Ok(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a message that comes in chunks of this size.
    fn header(message: &str, size: usize) -> String {
        let chunks = message.as_bytes().chunks(size).map(|chunk| Ok(chunk.to_vec()));
        let header = HeaderChunks::new(chunks).collect::<anyhow::Result<Vec<_>>>().unwrap().concat();
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
    fn truncated_bytes_are_an_error() {
        let octets = |answer: &[u8]| split_answer(answer.to_vec()).map(|(_, chunk)| chunk).ok();
        assert_eq!(octets(b"{\"octets\":5,\"size\":9}\na\nb\n\n\n").as_deref(), Some(&b"a\nb\n\n"[..]));
        for cut in [&b""[..], b"{\"octets\":5,\"size\":9}\n", b"{\"octets\":5,\"size\":9}\na\nb\n", b"x\n\n"] {
            assert_eq!(octets(cut), None, "{cut:?}");
        }
    }

    #[test]
    fn terminal_output_is_escaped() {
        let mut out = Vec::new();
        let mut terminal = TerminalWriter::default();
        for chunk in ["Subject: \u{1b}[2Jx\r", "\nA:\tb\n\u{202e}", "end"] {
            terminal.write(chunk.as_bytes(), &mut out).unwrap();
        }
        terminal.finish(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "Subject: \\u001b[2Jx\nA:\tb\n\\u202eend\n");
    }
}
