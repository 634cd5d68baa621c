//! Reads mbox files: each message starts with a `From ` line, at the start of the file or after an
//! empty line. Lines of a message that start this way were quoted with `>`, which is removed
//! (mboxrd).

use std::io::{self, BufRead};

/// Reads one message at a time.
pub(super) struct MboxReader<R> {
    input: R,
    /// The last line that was read started a message.
    has_started: bool,
    octets_max: u64,
}

/// A message in the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MboxEntry {
    /// The complete message.
    Message(Vec<u8>),
    /// It is too large; the next one can be read.
    TooLarge,
}

impl<R: BufRead> MboxReader<R> {
    /// Messages may have at most `octets_max` bytes.
    pub(super) fn new(input: R, octets_max: u64) -> Self {
        MboxReader { input, has_started: false, octets_max }
    }

    /// The next message, and the number of bytes that it takes in the file; None at the end.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not an mbox file.
    pub(super) fn next(&mut self) -> io::Result<Option<(MboxEntry, u64)>> {
        let (mut message, mut read, mut too_large, mut after_empty) = (Vec::new(), 0, false, true);
        let mut line = Vec::new();
        loop {
            line.clear();
            let count = self.input.read_until(b'\n', &mut line)?;
            read += count as u64;
            let is_start = count > 0 && after_empty && line.starts_with(b"From ");
            if count == 0 || is_start {
                let was_begun = std::mem::replace(&mut self.has_started, is_start);
                if !was_begun && is_start {
                    continue;
                }
                return Ok(was_begun.then(|| (finish_message(message, too_large), read)));
            }
            after_empty = matches!(&*line, b"\n" | b"\r\n");
            if !self.has_started {
                match after_empty {
                    true => continue,
                    false => return Err(io::Error::other("not an mbox file: it does not start with a line \"From \"")),
                }
            }
            too_large |= (message.len() + line.len()) as u64 > self.octets_max;
            if !too_large {
                message.extend_from_slice(unquote(&line));
            }
        }
    }
}

/// The empty line at the end belongs to the file.
fn finish_message(mut message: Vec<u8>, too_large: bool) -> MboxEntry {
    if too_large {
        return MboxEntry::TooLarge;
    }
    for end in [&b"\r\n\r\n"[..], b"\n\n"] {
        if message.ends_with(end) {
            message.truncate(message.len() - end.len() / 2);
            break;
        }
    }
    MboxEntry::Message(message)
}

fn unquote(line: &[u8]) -> &[u8] {
    let quotes = line.iter().take_while(|byte| **byte == b'>').count();
    if quotes > 0 && line[quotes..].starts_with(b"From ") { &line[1..] } else { line }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages(file: &str) -> Vec<String> {
        let mut mbox = MboxReader::new(file.as_bytes(), 100);
        let mut found = Vec::new();
        while let Some((piece, _)) = mbox.next().unwrap() {
            found.push(match piece {
                MboxEntry::Message(message) => String::from_utf8(message).unwrap(),
                MboxEntry::TooLarge => "too large".into(),
            });
        }
        found
    }

    #[test]
    fn a_message_ends_where_the_next_one_begins() {
        let file = "From a@b Mon\nSubject: 1\n\nx\n>From y\n>>From z\n> From\nFrom inside\n\nFrom c@d Tue\n\nlast\n\n";
        assert_eq!(messages(file), ["Subject: 1\n\nx\nFrom y\n>From z\n> From\nFrom inside\n", "\nlast\n"]);
        assert_eq!(messages("From a\r\nA: b\r\n\r\nx\r\n\r\nFrom b\r\n"), ["A: b\r\n\r\nx\r\n", ""]);
        assert_eq!(messages("\n\nFrom a\nx"), ["x"]);
        assert_eq!(messages(""), [] as [&str; 0]);
    }

    #[test]
    fn one_that_is_too_large_does_not_hide_the_next() {
        let file = format!("From a\n{}\n\nFrom b\nsmall\n", "x".repeat(101));
        assert_eq!(messages(&file), ["too large", "small\n"]);
    }

    #[test]
    fn what_is_no_mailbox_is_told() {
        assert!(MboxReader::new(&b"Subject: x\n"[..], 100).next().is_err());
    }

    proptest! {
        #[test]
        fn what_was_quoted_comes_back(bodies in proptest::collection::vec("((>{0,2}From )?[a-z ]{0,6}\n){0,6}", 1..4)) {
            let quote = |line: &str| if line.trim_start_matches('>').starts_with("From ") { format!(">{line}") } else { line.into() };
            let letter = |body: &String| format!("From x\nA: b\n\n{}\n", body.split_inclusive('\n').map(quote).collect::<String>());
            let file: String = bodies.iter().map(letter).collect();
            prop_assert_eq!(messages(&file), bodies.iter().map(|body| format!("A: b\n\n{body}")).collect::<Vec<_>>());
        }

        #[test]
        fn no_bytes_are_too_much(file in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'F'), any::<u8>()], 0..100)) {
            let mut mbox = MboxReader::new(&*file, 20);
            while let Ok(Some(_)) = mbox.next() {}
        }
    }
}
