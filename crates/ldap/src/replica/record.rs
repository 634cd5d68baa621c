//! An entry in the file: its number (u32, big-endian), then its keys, then its values.
//!
//! The keys are packed, and packed again as a whole with their length; the rest is the packed
//! values.

use super::batch::{pack_octets, unpack_octets};

/// A parsed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryRecord<'a> {
    pub(super) number: u32,
    /// The packed keys.
    pub(super) keys: &'a [u8],
    /// The packed values, or [`NOT_COPYABLE`](super::batch::NOT_COPYABLE); empty if there are no
    /// keys.
    pub(super) values: &'a [u8],
}

impl<'a> EntryRecord<'a> {
    pub(super) fn new(number: u32, keys: &'a [u8], values: &'a [u8]) -> Self {
        EntryRecord { number, keys, values: if keys.is_empty() { &[] } else { values } }
    }

    /// Parses an entry; None if it is invalid.
    pub(super) fn parse(octets: &'a [u8]) -> Option<Self> {
        let (number, octets) = octets.split_first_chunk()?;
        let (keys, values) = unpack_octets(octets)?;
        Some(EntryRecord { number: u32::from_be_bytes(*number), keys, values })
    }

    pub(super) fn octets(&self) -> Vec<u8> {
        let mut octets = Vec::with_capacity(4 + 5 + self.keys.len() + self.values.len());
        octets.extend_from_slice(&self.number.to_be_bytes());
        pack_octets(&mut octets, self.keys);
        octets.extend_from_slice(self.values);
        octets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_is_cut_in_its_keys_is_not() {
        let long = [7; 200];
        for (keys, values) in [(&b"\x01a"[..], &b"\x01v"[..]), (&long, &long), (b"\x01a", b""), (b"", b"")] {
            let record = EntryRecord::new(0x0102_0304, keys, values);
            let octets = record.octets();
            assert_eq!(EntryRecord::parse(&octets), Some(record));
            for cut in 0..octets.len() - values.len() {
                assert_eq!(EntryRecord::parse(&octets[..cut]), None);
            }
        }
        assert_eq!(EntryRecord::new(1, b"", b"\x01v").values, b"");
    }
}
