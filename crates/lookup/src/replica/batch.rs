//! Changes that wait to be written to the copy together, packed: half a million of them fit in some 30 MB.
//!
//! Texts are packed as a length (7 bits an octet, low bits first, the top bit says that more follow) and their octets,
//! one behind the other. The same form is used in the file.

/// What names an entry as long as it lives: its entryUUID (RFC 4530).
pub(super) type Uuid = [u8; 16];

/// In place of packed values: they are not such as could be in a copy.
pub(super) const NO_TEXT: &[u8] = &[0xff];

/// Changes in the order in which they are to take effect.
#[derive(Debug, Default)]
pub(super) struct Batch {
    octets: Vec<u8>,
    starts: Vec<usize>,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    /// The entry is there, with these keys and values (packed), and replaces what was there of it.
    Put { uuid: Uuid, keys: &'a [u8], values: &'a [u8] },
    /// The entry is gone.
    Remove { uuid: Uuid },
}

impl Change<'_> {
    pub(super) fn uuid(&self) -> Uuid {
        match self {
            Change::Put { uuid, .. } | Change::Remove { uuid } => *uuid,
        }
    }
}

impl Batch {
    /// An entry with these keys, each once; values of None: such as only the directory can tell.
    pub(super) fn put(&mut self, uuid: Uuid, keys: &[String], values: Option<&[String]>) {
        self.begin(uuid, 1);
        let place = self.octets.len();
        self.octets.extend_from_slice(&[0; 4]);
        keys.iter().for_each(|key| pack(&mut self.octets, key));
        let octets = self.octets.len() - place - 4;
        self.octets[place..place + 4].copy_from_slice(&(octets as u32).to_le_bytes());
        match values {
            Some(values) => values.iter().for_each(|value| pack(&mut self.octets, value)),
            None => self.octets.extend_from_slice(NO_TEXT),
        }
    }

    pub(super) fn remove(&mut self, uuid: Uuid) {
        self.begin(uuid, 0);
    }

    fn begin(&mut self, uuid: Uuid, put: u8) {
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

    /// Octets in memory.
    pub(super) fn octets(&self) -> usize {
        self.octets.len() + self.starts.len() * size_of::<usize>()
    }

    /// Forgets all changes, and gives memory back where there was much of it.
    pub(super) fn clear(&mut self) {
        *self = Batch::default();
    }

    /// The change that came `index`th.
    pub(super) fn change(&self, index: usize) -> Change<'_> {
        let end = self.starts.get(index + 1).copied().unwrap_or(self.octets.len());
        let record = &self.octets[self.starts[index]..end];
        let (uuid, record) = record.split_first_chunk().expect("every change begins with a UUID");
        match record {
            [1, a, b, c, d, texts @ ..] => {
                let (keys, values) = texts.split_at(u32::from_le_bytes([*a, *b, *c, *d]) as usize);
                Change::Put { uuid: *uuid, keys, values }
            }
            _ => Change::Remove { uuid: *uuid },
        }
    }

    /// The changes by their UUIDs, the last of each alone.
    pub(super) fn sorted(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        // Stable: what came later stays behind what came before.
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

/// Adds a text to packed ones.
pub(super) fn pack(octets: &mut Vec<u8>, text: &str) {
    pack_octets(octets, text.as_bytes());
}

/// Adds the length of these octets, and them.
pub(super) fn pack_octets(octets: &mut Vec<u8>, packed: &[u8]) {
    let mut length = packed.len();
    while length >= 0x80 {
        octets.push(length as u8 | 0x80);
        length >>= 7;
    }
    octets.push(length as u8);
    octets.extend_from_slice(packed);
}

/// Packed texts one by one; ends early where the octets are not what [`pack`] made.
pub(super) fn unpack(mut octets: &[u8]) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (text, rest) = unpack_octets(octets)?;
        octets = rest;
        str::from_utf8(text).ok()
    })
}

/// The octets that were packed first, and what is behind them.
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
        let mut batch = Batch::default();
        batch.put([2; 16], &["b".into()], Some(&[]));
        batch.put([1; 16], &["a".into()], Some(&["v".into(), "w".into()]));
        batch.remove([2; 16]);
        let sorted = batch.sorted();
        assert_eq!(sorted, [1, 2]);
        assert_eq!(batch.change(1), Change::Put { uuid: [1; 16], keys: b"\x01a", values: b"\x01v\x01w" });
        assert_eq!(batch.change(2), Change::Remove { uuid: [2; 16] });
    }
}
