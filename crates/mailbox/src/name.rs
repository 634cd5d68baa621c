//! File names in a Maildir: `{seconds}.{QueueId}_{ordinal}.{host},S={bytes},W={crlf bytes}`,
//! followed by `:2,{flags}` in `cur/`.
//!
//! The part before the first comma is the *base*. It consists of properties of a message that never
//! change, so that a second attempt produces the same name; in `tmp/` it is the whole name. `S` is
//! the size of the file and `W` its size with CRLF line ends, as Dovecot and Courier write them, so
//! that listing needs no stat.

use mail::{QueueId, Timestamp};

/// Leaves space for all other parts and for a reader's flags in a file name of at most 255 bytes.
const HOST_OCTETS_MAX: usize = 120;

/// Makes file names for one host.
pub(crate) struct FileNames {
    host: Box<str>,
}

/// The sizes of a written message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// The size of the file in bytes.
    pub(crate) file: u64,
    /// The size with CRLF line ends.
    pub(crate) crlf: u64,
}

impl FileNames {
    pub(crate) fn new(host: &str) -> Self {
        let mut octets = 0;
        let host = host.chars().map(sanitize).take_while(|c| {
            octets += c.len_utf8();
            octets <= HOST_OCTETS_MAX
        });
        FileNames { host: host.collect::<String>().into() }
    }

    pub(crate) fn base(&self, accepted_at: Timestamp, id: QueueId, ordinal: u32) -> String {
        format!("{}.{id}_{ordinal}.{}", accepted_at.seconds(), self.host)
    }
}

/// The file name in `new/`.
pub(crate) fn with_sizes(base: &str, sizes: Sizes) -> String {
    format!("{base},S={},W={}", sizes.file, sizes.crlf)
}

/// The part of a name that never changes: everything before sizes and flags.
pub(crate) fn base_of(name: &[u8]) -> &[u8] {
    let end = memchr::memchr2(b',', b':', name).unwrap_or(name.len());
    &name[..end]
}

/// The value of a numeric field such as `S`, if the name has it.
pub(crate) fn field(name: &[u8], key: u8) -> Option<u64> {
    let unflagged = name.split(|&byte| byte == b':').next()?;
    let value = unflagged.split(|&byte| byte == b',').skip(1).find_map(|field| field.strip_prefix(&[key, b'=']))?;
    str::from_utf8(value).ok()?.parse().ok()
}

/// Replaces characters that would end the name or a field, or make a hidden file or a path.
fn sanitize(c: char) -> char {
    if matches!(c, '/' | ':' | ',') || c.is_control() { '_' } else { c }
}

#[cfg(test)]
mod tests {
    use mail::SpoolId;

    use super::*;

    #[test]
    fn a_name_is_made_of_time_id_ordinal_host_and_sizes() {
        let id = QueueId::new(SpoolId::new(33), 2, 5);
        let base = FileNames::new("mx.example.org").base(Timestamp(1_763_000_000_999), id, 7);
        assert_eq!(base, "1763000000.11-2-5_7.mx.example.org");
        let name = with_sizes(&base, Sizes { file: 10, crlf: 12 });
        assert_eq!(name, "1763000000.11-2-5_7.mx.example.org,S=10,W=12");
        assert_eq!(base_of(name.as_bytes()), base.as_bytes());
        assert_eq!(field(name.as_bytes(), b'S'), Some(10));
        assert_eq!(field(name.as_bytes(), b'W'), Some(12));
    }

    #[test]
    fn flags_and_foreign_fields_are_not_taken_for_sizes() {
        assert_eq!(field(b"1.M2P3.host,U=4,S=5:2,S", b'S'), Some(5));
        assert_eq!(field(b"1.M2P3.host:2,S=5", b'S'), None);
        assert_eq!(field(b"1.M2P3.host,S=,W=x", b'S'), None);
        assert_eq!(field(b"S=5", b'S'), None);
        assert_eq!(base_of(b"1.M2P3.host:2,S"), b"1.M2P3.host");
    }

    #[test]
    fn a_host_cannot_break_a_name_or_make_it_too_long() {
        let id = QueueId::new(SpoolId::new(u64::MAX), u16::MAX, u64::MAX);
        let base = FileNames::new(&format!("a/b:c,d\n{}", "é".repeat(200))).base(Timestamp(u64::MAX), id, u32::MAX);
        assert!(base.contains(".a_b_c_d_é"));
        let name = with_sizes(&base, Sizes { file: u64::MAX, crlf: u64::MAX });
        assert!(name.len() <= 255 - ":2,DFPRST".len(), "{} bytes", name.len());
    }
}
