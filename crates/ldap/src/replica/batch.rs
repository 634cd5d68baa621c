//! Changes to be written to the copy together, in packed form: half a million take about 30 MB.
//!
//! A packed text is its length (7 bits per octet, low bits first, top bit set if more follow) and
//! its octets. The file uses the same form.

/// The permanent identity of an entry: its entryUUID (RFC 4530).
pub(super) type EntryUuid = [u8; 16];

/// In place of packed values that a copy cannot hold.
pub(super) const NOT_COPYABLE: &[u8] = &[0xff];

/// Changes in order.
#[derive(Debug, Default)]
pub(super) struct ChangeBatch {
    octets: Vec<u8>,
    starts: Vec<usize>,
}

/// A change of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryChange<'a> {
    /// Adds or replaces an entry, with packed keys and values.
    Put { uuid: EntryUuid, keys: &'a [u8], values: &'a [u8] },
    /// Removes an entry.
    Remove { uuid: EntryUuid },
}

impl EntryChange<'_> {
    pub(super) fn uuid(&self) -> EntryUuid {
        match self {
            EntryChange::Put { uuid, .. } | EntryChange::Remove { uuid } => *uuid,
        }
    }
}

impl ChangeBatch {
    /// Adds or replaces an entry with these distinct keys. `values` is None if only the LDAP server
    /// can give them.
    pub(super) fn put(&mut self, uuid: EntryUuid, keys: &[String], values: Option<&[String]>) {
        self.begin(uuid, 1);
        let place = self.octets.len();
        self.octets.extend_from_slice(&[0; 4]);
        keys.iter().for_each(|key| pack(&mut self.octets, key));
        let octets = self.octets.len() - place - 4;
        self.octets[place..place + 4].copy_from_slice(&(octets as u32).to_le_bytes());
        match values {
            Some(values) => values.iter().for_each(|value| pack(&mut self.octets, value)),
            None => self.octets.extend_from_slice(NOT_COPYABLE),
        }
    }

    pub(super) fn remove(&mut self, uuid: EntryUuid) {
        self.begin(uuid, 0);
    }

    fn begin(&mut self, uuid: EntryUuid, put: u8) {
        self.starts.push(self.octets.len());
        self.octets.extend_from_slice(&uuid);
        self.octets.push(put);
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Memory in octets.
    pub(super) fn octets(&self) -> usize {
        self.octets.len() + self.starts.len() * size_of::<usize>()
    }

    /// Removes all changes and frees the memory.
    pub(super) fn clear(&mut self) {
        *self = ChangeBatch::default();
    }

    /// The change at this index.
    pub(super) fn change(&self, index: usize) -> EntryChange<'_> {
        let end = self.starts.get(index + 1).copied().unwrap_or(self.octets.len());
        let record = &self.octets[self.starts[index]..end];
        let (uuid, record) = record.split_first_chunk().expect("every change begins with a UUID");
        match record {
            [1, a, b, c, d, texts @ ..] => {
                let (keys, values) = texts.split_at(u32::from_le_bytes([*a, *b, *c, *d]) as usize);
                EntryChange::Put { uuid: *uuid, keys, values }
            }
            _ => EntryChange::Remove { uuid: *uuid },
        }
    }

    /// The indexes of the changes sorted by UUID, only the last one of each entry.
    pub(super) fn sorted(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        // The sort is stable, so later changes stay last.
        order.sort_by_key(|&index| self.change(index as usize).uuid());
        let mut last: Vec<u32> = Vec::with_capacity(order.len());
        for index in order {
            match last.last_mut() {
                Some(before) if self.change(*before as usize).uuid() == self.change(index as usize).uuid() => {
                    *before = index;
                }
                _ => last.push(index),
            }
        }
        last
    }
}

/// Packs a text.
pub(super) fn pack(octets: &mut Vec<u8>, text: &str) {
    pack_octets(octets, text.as_bytes());
}

/// Packs octets: their length, then themselves.
pub(super) fn pack_octets(octets: &mut Vec<u8>, packed: &[u8]) {
    let mut length = packed.len();
    while length >= 0x80 {
        octets.push(length as u8 | 0x80);
        length >>= 7;
    }
    octets.push(length as u8);
    octets.extend_from_slice(packed);
}

/// Unpacks texts. Ends early at invalid data.
pub(super) fn unpack(mut octets: &[u8]) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (text, rest) = unpack_octets(octets)?;
        octets = rest;
        str::from_utf8(text).ok()
    })
}

/// Unpacks the first octets and returns the rest.
pub(super) fn unpack_octets(mut octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut length, mut shift) = (0usize, 0);
    loop {
        let (&octet, rest) = octets.split_first()?;
        octets = rest;
        length |= usize::from(octet & 0x7f) << shift;
        shift += 7;
        match octet {
            0..0x80 => return octets.split_at_checked(length),
            _ if shift > 28 => return None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_packed_comes_out_again() {
        let mut octets = Vec::new();
        let texts = [String::new(), "a".into(), "ü".repeat(63), "x".repeat(127), "y".repeat(128), "z".repeat(40_000)];
        texts.iter().for_each(|text| pack(&mut octets, text));
        assert!(unpack(&octets).eq(texts.iter().map(String::as_str)));
        for cut in 0..octets.len() {
            assert!(unpack(&octets[..cut]).count() < texts.len());
        }
        assert_eq!(unpack(&[0xff; 12]).count(), 0);
    }

    #[test]
    fn changes_are_sorted_and_the_last_of_an_entry_counts() {
        let mut batch = ChangeBatch::default();
        batch.put([2; 16], &["b".into()], Some(&[]));
        batch.put([1; 16], &["a".into()], Some(&["v".into(), "w".into()]));
        batch.remove([2; 16]);
        let sorted = batch.sorted();
        assert_eq!(sorted, [1, 2]);
        assert_eq!(batch.change(1), EntryChange::Put { uuid: [1; 16], keys: b"\x01a", values: b"\x01v\x01w" });
        assert_eq!(batch.change(2), EntryChange::Remove { uuid: [2; 16] });
    }
}
