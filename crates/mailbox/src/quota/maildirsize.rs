//! The format of `maildirsize`: a line with the limits of the quota, then lines of bytes and
//! messages added or removed; their sum is the usage. Pure functions; an invalid file gives None,
//! and the Maildir is recounted.
//!
//! ```text
//! 1073741824S,100000C
//! 52811 40
//! 1310 1
//! -1310 -1
//! ```

use std::fmt;
use std::str::FromStr;

use mail::units;

/// The limits of a mailbox; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files.
    pub messages: u64,
}

/// The usage of a mailbox, or a change to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Total size of all files in bytes.
    pub bytes: u64,
    /// Number of files.
    pub messages: u64,
}

/// The text is not a valid quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid quota {0:?}: expected for example \"1GiB\" or \"1073741824S,100000C\"")]
pub struct InvalidQuotaLimits(Box<str>);

impl QuotaLimits {
    /// Whether there is no limit at all.
    pub fn is_unlimited(self) -> bool {
        self == QuotaLimits::default()
    }

    /// Whether a mailbox may have this usage.
    pub fn allows_usage(self, usage: Usage) -> bool {
        (self.bytes == 0 || usage.bytes <= self.bytes) && (self.messages == 0 || usage.messages <= self.messages)
    }
}

impl Usage {
    /// One message of `bytes` bytes.
    pub fn of_message(bytes: u64) -> Self {
        Usage { bytes, messages: 1 }
    }
}

impl std::ops::Add for Usage {
    type Output = Usage;

    fn add(self, more: Usage) -> Usage {
        Usage { bytes: self.bytes.saturating_add(more.bytes), messages: self.messages.saturating_add(more.messages) }
    }
}

/// The form of the header of `maildirsize`; an unlimited value is left out, but never both.
impl fmt::Display for QuotaLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            QuotaLimits { bytes, messages: 0 } => write!(f, "{bytes}S"),
            QuotaLimits { bytes: 0, messages } => write!(f, "{messages}C"),
            QuotaLimits { bytes, messages } => write!(f, "{bytes}S,{messages}C"),
        }
    }
}

/// Accepts the header of `maildirsize`; bytes may also be a plain number or have a unit.
impl FromStr for QuotaLimits {
    type Err = InvalidQuotaLimits;

    fn from_str(text: &str) -> Result<Self, InvalidQuotaLimits> {
        parse(text, |part| number(part.strip_suffix('S').unwrap_or(part)).or_else(|| units::parse_size(part)))
            .ok_or_else(|| InvalidQuotaLimits(text.into()))
    }
}

/// Parses limits, each at most once; `bytes` parses a part that is not a number of messages.
fn parse(text: &str, bytes: impl Fn(&str) -> Option<u64>) -> Option<QuotaLimits> {
    let mut limits = (None, None);
    for part in text.split(',').map(str::trim_ascii) {
        let earlier = match part.strip_suffix('C') {
            Some(messages) => limits.1.replace(number(messages)?),
            None => limits.0.replace(bytes(part)?),
        };
        if earlier.is_some() {
            return None;
        }
    }
    Some(QuotaLimits { bytes: limits.0.unwrap_or(0), messages: limits.1.unwrap_or(0) })
}

/// Digits only: `parse` alone would also accept a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The content of a valid `maildirsize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MaildirSize {
    pub(super) limits: QuotaLimits,
    /// The sum of its lines.
    pub(super) usage: Usage,
    /// Lines after the header; the first one comes from a recount.
    pub(super) lines: usize,
}

impl MaildirSize {
    /// Parses the file. Bytes after the last line feed are still being written, and are ignored.
    pub(super) fn parse(bytes: &[u8]) -> Option<MaildirSize> {
        let whole = memchr::memrchr(b'\n', bytes)?;
        let text = str::from_utf8(&bytes[..whole]).ok()?;
        let mut lines = text.split('\n');
        let limits = parse(lines.next()?, |part| number(part.strip_suffix('S')?))?;
        let (mut bytes, mut messages, mut count) = (0i64, 0i64, 0);
        for line in lines {
            let mut numbers = line.split_ascii_whitespace().map(|number| number.parse::<i64>().ok());
            let (Some(more_bytes), Some(more_messages), None) = (numbers.next()?, numbers.next()?, numbers.next())
            else {
                return None;
            };
            bytes = bytes.checked_add(more_bytes)?;
            messages = messages.checked_add(more_messages)?;
            count += 1;
        }
        let usage = Usage { bytes: bytes.try_into().ok()?, messages: messages.try_into().ok()? };
        (count > 0).then_some(MaildirSize { limits, usage, lines: count })
    }

    /// The content of a new file after a recount.
    pub(super) fn new_file(limits: QuotaLimits, usage: Usage) -> String {
        format!("{limits}\n{}", line(usage))
    }
}

/// A line for an addition.
pub(super) fn line(added: Usage) -> String {
    format!("{} {}\n", added.bytes, added.messages)
}

/// A line for removed messages.
pub(super) fn removed_line(removed: Usage) -> String {
    format!("-{} -{}\n", removed.bytes, removed.messages)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(bytes: u64, messages: u64) -> QuotaLimits {
        QuotaLimits { bytes, messages }
    }

    #[test]
    fn limits_are_read_in_each_form() {
        for (text, expected) in [
            ("1073741824S,100000C", limits(1 << 30, 100_000)),
            ("100000C,1073741824S", limits(1 << 30, 100_000)),
            ("10C", limits(0, 10)),
            ("10S", limits(10, 0)),
            ("1GiB", limits(1 << 30, 0)),
            ("10 MB", limits(10_000_000, 0)),
            ("4096", limits(4096, 0)),
            ("0", limits(0, 0)),
            ("0S,0C", limits(0, 0)),
            ("1GiB, 10C", limits(1 << 30, 10)),
            ("100,10C", limits(100, 10)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in
            ["", "S", "-1S", "+1S", "1X", "1S,,1C", "1S;1C", "1S,2S", "1,1KiB", "1GS", "many", "99999999999999999999S"]
        {
            assert!(text.parse::<QuotaLimits>().is_err(), "{text}");
        }
    }

    #[test]
    fn unlimited_values_are_allowed() {
        let used = |bytes, messages| Usage { bytes, messages };
        assert!(limits(0, 0).allows_usage(used(u64::MAX, u64::MAX)));
        assert!(limits(10, 0).allows_usage(used(10, u64::MAX)));
        assert!(!limits(10, 0).allows_usage(used(11, 0)));
        assert!(limits(0, 2).allows_usage(used(u64::MAX, 2)));
        assert!(!limits(0, 2).allows_usage(used(0, 3)));
    }

    #[test]
    fn lines_are_added_up() {
        let record = MaildirSize::parse(b"100S,5C\n40 4\n10 1\n-20 -2\n7").unwrap();
        assert_eq!(record, MaildirSize { limits: limits(100, 5), usage: Usage { bytes: 30, messages: 3 }, lines: 3 });
        // Courier pads its numbers.
        let aligned = MaildirSize::parse(b"100S\n          40            4\n").unwrap();
        assert_eq!(aligned.usage, Usage { bytes: 40, messages: 4 });
    }

    #[test]
    fn broken_files_are_not_parsed() {
        for text in [
            "",
            "\n",
            "100S",
            "100S\n",
            "100S\n1\n",
            "100S\n1 1 1\n",
            "100S\nx 1\n",
            "100S\n-1 0\n",
            "1 1\n1 1\n",
            "100S\n\0\0\0 1\n",
            "100S\n9223372036854775807 1\n1 1\n",
            "100S\n1 1\n\n",
            "\n1 1\n",
        ] {
            assert_eq!(MaildirSize::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            MaildirSize::parse(&bytes);
        }

        #[test]
        fn what_is_written_is_parsed(
            (bytes, messages) in (0u64..1 << 40, 0u64..1 << 30),
            added in prop::collection::vec((0u64..1 << 40, 0u64..1 << 20), 0..20),
        ) {
            let added: Vec<_> = added.into_iter().map(|(bytes, messages)| Usage { bytes, messages }).collect();
            let limits = limits(bytes, messages);
            let first = Usage { bytes: 7, messages: 1 };
            let text = added.iter().fold(MaildirSize::new_file(limits, first), |text, more| text + &line(*more));
            let usage = added.iter().fold(first, |sum, more| sum + *more);
            prop_assert_eq!(MaildirSize::parse(text.as_bytes()), Some(MaildirSize { limits, usage, lines: added.len() + 1 }));
            prop_assert_eq!(limits.to_string().parse(), Ok(limits));
        }
    }
}
