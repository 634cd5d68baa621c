//! A record of the greylist file: a line of text, with a checksum.
//!
//! | line | says |
//! |---|---|
//! | `w TRIPLET CLIENT FIRST_SEEN SUM` | the triplet waits |
//! | `p TRIPLET LAST_SEEN SUM` | it has passed |
//! | `c CLIENT PASSES LAST_SEEN SUM` | so many triplets of the client have passed |
//!
//! Triplets and clients are digests in hexadecimal, times are seconds since 1970. A later line replaces
//! an earlier one. A line that a crash has cut, or that holds anything else, has a wrong sum.

use std::fmt::Write;

use crate::key_digest::KeyDigest;

/// The longest line, with its end.
pub(super) const LINE_OCTETS_MAX: usize = 128;

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Waiting { triplet: KeyDigest, client: KeyDigest, since: u64 },
    Passed { triplet: KeyDigest, seen: u64 },
    Client { client: KeyDigest, passes: u32, seen: u64 },
}

impl Record {
    /// Appends the line.
    pub(super) fn write(self, lines: &mut String) {
        let start = lines.len();
        // Writing to a string never fails.
        let _ = match self {
            Record::Waiting { triplet, client, since } => write!(lines, "w {} {} {since} ", hex(triplet), hex(client)),
            Record::Passed { triplet, seen } => write!(lines, "p {} {seen} ", hex(triplet)),
            Record::Client { client, passes, seen } => write!(lines, "c {} {passes} {seen} ", hex(client)),
        };
        let sum = sum(&lines[start..]);
        let _ = writeln!(lines, "{sum}");
    }

    /// Parses a line without its end. None: it is damaged.
    pub(super) fn parse(line: &[u8]) -> Option<Record> {
        let line = std::str::from_utf8(line).ok()?;
        let (content, said) = line.split_at(line.rfind(' ')? + 1);
        if said != sum(content) {
            return None;
        }
        let fields: Vec<&str> = content.trim_end().split(' ').collect();
        Some(match fields[..] {
            ["w", triplet, client, since] => {
                Record::Waiting { triplet: digest(triplet)?, client: digest(client)?, since: since.parse().ok()? }
            }
            ["p", triplet, seen] => Record::Passed { triplet: digest(triplet)?, seen: seen.parse().ok()? },
            ["c", client, passes, seen] => {
                Record::Client { client: digest(client)?, passes: passes.parse().ok()?, seen: seen.parse().ok()? }
            }
            _ => return None,
        })
    }
}

fn hex(key: KeyDigest) -> String {
    format!("{:032x}", u128::from_be_bytes(key.0))
}

fn digest(text: &str) -> Option<KeyDigest> {
    let is_hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
    Some(KeyDigest(number.to_be_bytes()))
}

/// The first digits of the digest of a line: against damage, not against forgery.
fn sum(content: &str) -> String {
    hex(KeyDigest::of(&[content]))[..8].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_in_no_shorter_form() {
        let (triplet, client) = (KeyDigest::of(&["t"]), KeyDigest::of(&["c"]));
        for record in [
            Record::Waiting { triplet, client, since: 1_700_000_000 },
            Record::Passed { triplet, seen: 0 },
            Record::Client { client, passes: u32::MAX, seen: u64::MAX },
        ] {
            let mut line = String::new();
            record.write(&mut line);
            assert!(line.len() <= LINE_OCTETS_MAX && line.ends_with('\n'), "{line}");
            let line = line.trim_end().as_bytes();
            assert_eq!(Record::parse(line), Some(record));
            assert!((0..line.len()).all(|cut| Record::parse(&line[..cut]).is_none()));
            for place in 0..line.len() {
                let mut damaged = line.to_vec();
                damaged[place] ^= 1;
                assert_eq!(Record::parse(&damaged), None, "{}", String::from_utf8_lossy(&damaged));
            }
        }
        for line in [&b""[..], b" ", b"w", b"\0\0\0 \xff", b"x 1 2"] {
            assert_eq!(Record::parse(line), None);
        }
    }
}
