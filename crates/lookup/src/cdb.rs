//! Constant databases in D. J. Bernstein's format (<https://cr.yp.to/cdb/cdb.txt>), built from text
//! tables.
//!
//! An open [`Cdb`] is held in memory: lookups never wait for the disk, and the table stays the same
//! if its file is replaced or overwritten. Compared with a text table it opens without parsing and
//! has no memory overhead per entry.
//!
//! [`build`] replaces a file atomically: readers see the old file or the new one, even after a
//! power failure. [`Cdb::open`] refuses a damaged file; damage found later makes the answer
//! Unavailable. Lookups never panic and probe each slot at most once.
//!
//! | offset | contents                                                                                         |
//! |--------|--------------------------------------------------------------------------------------------------|
//! | 0      | 256 pointers to hash tables: (offset, number of slots)                                           |
//! | 2048   | records: (key length, data length), key, data                                                    |
//! | then   | hash tables; a slot is (hash, record offset), or (0, 0) if free                                  |
//!
//! Numbers are 32 bits, little-endian. A key with hash `h` is in table `h % 256`, probed from slot
//! `h / 256 % slots`. The data of a record has the format of values in a text table. A key with
//! several records has the values of all of them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::text::{self, TextTableError};
use crate::{LookupAnswer, LookupFuture, Table, ready_answers};

const HEADER_OCTETS: usize = 2048;
const TABLES: usize = 256;
/// Offsets are 32-bit numbers.
const FILE_OCTETS_MAX: u64 = u32::MAX as u64;
/// More records for a key mean damage, such as slots that all point to one record.
const RECORDS_PER_KEY_MAX: usize = 1000;
/// More data in a record means damage.
const DATA_OCTETS_MAX: u32 = 1024 * 1024;

/// An open database, held in memory.
pub struct Cdb {
    name: String,
    bytes: Vec<u8>,
}

/// Why a database cannot be opened or built.
#[derive(Debug, thiserror::Error)]
pub enum CdbError {
    /// An I/O error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Not a cdb file, or an incomplete one.
    #[error("{}: {damage}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        damage: CdbDamage,
    },
    /// The text table has an error.
    #[error(transparent)]
    Text(#[from] TextTableError),
    /// The result would exceed 4 GiB, the limit of the format.
    #[error("{}: table too large: a cdb file is limited to 4 GiB", path.display())]
    TooLarge {
        /// The file that was not written.
        path: PathBuf,
    },
}

/// What is wrong with the contents of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CdbDamage {
    /// The file is too short or too long.
    #[error("not a cdb file: {0} bytes")]
    Length(u64),
    /// A pointer past the end of the file.
    #[error("not a cdb file, or truncated: pointer to byte {0} is past the end")]
    Pointer(u64),
    /// Too many records for one key, or too much data in one record.
    #[error("a key has too many records or too much data")]
    TooLarge,
    /// The data of a record is not a list of values.
    #[error("the data of a key is not a comma-separated list of values")]
    Values,
}

impl Cdb {
    /// Opens the file at `path` as the table `name`.
    pub fn open(name: &str, path: &Path) -> Result<Self, CdbError> {
        let failed = |source| CdbError::Io { path: path.into(), source };
        let damaged = |damage| CdbError::Damaged { path: path.into(), damage };
        let octets = fs::metadata(path).map_err(failed)?.len();
        if octets > FILE_OCTETS_MAX {
            return Err(damaged(CdbDamage::Length(octets)));
        }
        Cdb::from_bytes(name, fs::read(path).map_err(failed)?).map_err(damaged)
    }

    /// Makes the table `name` from the contents of a file.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, CdbDamage> {
        let octets = bytes.len() as u64;
        if bytes.len() < HEADER_OCTETS || octets > FILE_OCTETS_MAX {
            return Err(CdbDamage::Length(octets));
        }
        let cdb = Cdb { name: name.to_owned(), bytes };
        for table in 0..TABLES as u64 {
            let (place, slots) = cdb.pair(table * 8)?;
            let end = u64::from(place) + u64::from(slots) * 8;
            if end > octets {
                return Err(CdbDamage::Pointer(end));
            }
        }
        Ok(cdb)
    }

    /// The values of a folded key from all its records, or None.
    fn find(&self, key: &str) -> Result<Option<Vec<String>>, CdbDamage> {
        let mut values = None;
        for (records, place) in self.candidates(key.as_bytes()).enumerate() {
            if records == RECORDS_PER_KEY_MAX {
                return Err(CdbDamage::TooLarge);
            }
            if let Some(data) = self.data_of(key.as_bytes(), place?)? {
                let text = str::from_utf8(data).map_err(|_| CdbDamage::Values)?;
                values.get_or_insert_with(Vec::new).extend(text::parse_values(text).map_err(|_| CdbDamage::Values)?);
            }
        }
        Ok(values)
    }

    /// The offsets of all records whose key has the same hash.
    fn candidates(&self, key: &[u8]) -> impl Iterator<Item = Result<u64, CdbDamage>> {
        let hash = hash(key);
        let (table, slots) = self.pair(u64::from(hash % TABLES as u32) * 8).unwrap_or_default();
        let first = hash / TABLES as u32;
        (0..slots)
            .map(move |step| (u64::from(first) + u64::from(step)) % u64::from(slots))
            .map(move |slot| self.pair(u64::from(table) + slot * 8))
            .take_while(|slot| !matches!(slot, Ok((_, 0))))
            .filter(move |slot| slot.is_err() || slot.is_ok_and(|(of_slot, _)| of_slot == hash))
            .map(|slot| slot.map(|(_, record)| u64::from(record)))
    }

    /// The data of the record at `place`, if its key matches.
    fn data_of(&self, key: &[u8], place: u64) -> Result<Option<&[u8]>, CdbDamage> {
        let (key_octets, data_octets) = self.pair(place)?;
        let found = self.slice(place + 8, key_octets)?;
        if found != key {
            return Ok(None);
        }
        if data_octets > DATA_OCTETS_MAX {
            return Err(CdbDamage::TooLarge);
        }
        self.slice(place + 8 + u64::from(key_octets), data_octets).map(Some)
    }

    fn pair(&self, place: u64) -> Result<(u32, u32), CdbDamage> {
        let bytes = self.slice(place, 8)?;
        let (first, second) = bytes.split_first_chunk().ok_or(CdbDamage::Pointer(place))?;
        let second = second.first_chunk().ok_or(CdbDamage::Pointer(place))?;
        Ok((u32::from_le_bytes(*first), u32::from_le_bytes(*second)))
    }

    fn slice(&self, place: u64, octets: u32) -> Result<&[u8], CdbDamage> {
        let end = place + u64::from(octets);
        // The file's length fits in usize, so an offset that does not is past its end.
        let range = usize::try_from(place).ok().zip(usize::try_from(end).ok());
        range.and_then(|(start, end)| self.bytes.get(start..end)).ok_or(CdbDamage::Pointer(end))
    }
}

impl Table for Cdb {
    fn name(&self) -> &str {
        &self.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        ready_answers(keys, |key| match self.find(key) {
            Ok(Some(values)) => LookupAnswer::Found(values),
            Ok(None) => LookupAnswer::NotFound,
            Err(damage) => LookupAnswer::Unavailable(format!("table '{}': {damage}", self.name)),
        })
    }
}

/// Builds a database from a text table, replacing the file at `cdb_path`. Returns the number of
/// keys.
pub fn build(text_path: &Path, cdb_path: &Path) -> Result<usize, CdbError> {
    let entries = text::read(text_path)?;
    let records = entries.iter().map(|entry| (entry.key.as_bytes(), entry.values.join(", ")));
    let bytes = encode(records).ok_or_else(|| CdbError::TooLarge { path: cdb_path.into() })?;
    let failed = |source| CdbError::Io { path: cdb_path.into(), source };
    // Keep the permissions: the text table may be private.
    let permissions = fs::metadata(text_path).map_err(failed)?.permissions();
    replace(cdb_path, &bytes, permissions).map_err(failed)?;
    Ok(entries.len())
}

/// The contents of a database, or None if it would be too large.
fn encode<'a>(records: impl Iterator<Item = (&'a [u8], String)>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEADER_OCTETS];
    let mut tables = vec![Vec::new(); TABLES];
    for (key, data) in records {
        let hash = hash(key);
        tables[hash as usize % TABLES].push((hash, place_at_end(&bytes)?));
        push_pair(&mut bytes, (u32::try_from(key.len()).ok()?, u32::try_from(data.len()).ok()?));
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(data.as_bytes());
    }
    let mut header = Vec::with_capacity(HEADER_OCTETS);
    for table in tables {
        let slots = hash_slots(&table);
        push_pair(&mut header, (place_at_end(&bytes)?, u32::try_from(slots.len()).ok()?));
        slots.into_iter().for_each(|slot| push_pair(&mut bytes, slot));
    }
    bytes[..HEADER_OCTETS].copy_from_slice(&header);
    place_at_end(&bytes).map(|_| bytes)
}

/// A hash table with two slots per record, so that probing soon reaches a free one.
fn hash_slots(records: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut slots = vec![(0, 0); records.len() * 2];
    for &(hash, place) in records {
        let mut slot = (hash as usize / TABLES) % slots.len();
        while slots[slot].1 != 0 {
            slot = (slot + 1) % slots.len();
        }
        slots[slot] = (hash, place);
    }
    slots
}

fn place_at_end(bytes: &[u8]) -> Option<u32> {
    u32::try_from(bytes.len()).ok()
}

fn push_pair(bytes: &mut Vec<u8>, (first, second): (u32, u32)) {
    bytes.extend_from_slice(&first.to_le_bytes());
    bytes.extend_from_slice(&second.to_le_bytes());
}

fn hash(key: &[u8]) -> u32 {
    key.iter().fold(5381, |hash: u32, &byte| hash.wrapping_mul(33) ^ u32::from(byte))
}

/// Replaces a file atomically and durably: after a power failure either the old or the new file is
/// complete.
fn replace(path: &Path, bytes: &[u8], permissions: fs::Permissions) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = write_durably(&temporary, bytes, permissions).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn write_durably(path: &Path, bytes: &[u8], permissions: fs::Permissions) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.set_permissions(permissions)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn database(entries: &BTreeMap<String, Vec<String>>) -> Vec<u8> {
        encode(entries.iter().map(|(key, values)| (key.as_bytes(), values.join(", ")))).unwrap()
    }

    fn two_keys() -> Vec<u8> {
        encode([(&b"one"[..], "1, uno".to_owned()), (b"two", "2".to_owned())].into_iter()).unwrap()
    }

    #[test]
    fn the_hash_is_bernsteins() {
        assert_eq!(hash(b""), 5381);
        assert_eq!(hash(b"a"), (5381 * 33) ^ 97);
    }

    #[test]
    fn a_key_with_several_records_has_the_values_of_all() {
        let records = [(&b"k"[..], "1, 2".to_owned()), (b"x", String::new()), (b"k", "3".to_owned())];
        let cdb = Cdb::from_bytes("t", encode(records.into_iter()).unwrap()).unwrap();
        assert_eq!(cdb.find("k"), Ok(Some(vec!["1".into(), "2".into(), "3".into()])));
        assert_eq!(cdb.find("x"), Ok(Some(Vec::new())));
        assert_eq!(cdb.find("y"), Ok(None));
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        assert_eq!(hash(b"aaa2"), hash(b"aacp"));
        let one = [(&b"aaa2"[..], "1".to_owned())];
        let cdb = Cdb::from_bytes("t", encode(one.clone().into_iter()).unwrap()).unwrap();
        assert_eq!(cdb.find("aacp"), Ok(None));
        let both = one.into_iter().chain([(&b"aacp"[..], "2".to_owned())]);
        let cdb = Cdb::from_bytes("t", encode(both).unwrap()).unwrap();
        assert_eq!(cdb.find("aaa2"), Ok(Some(vec!["1".into()])));
        assert_eq!(cdb.find("aacp"), Ok(Some(vec!["2".into()])));
    }

    #[test]
    fn a_search_ends_at_a_free_slot() {
        let mut bytes = encode([(&b"k"[..], "1".to_owned())].into_iter()).unwrap();
        let slots = bytes.len() - 16;
        bytes[slots..].rotate_left(8);
        assert_eq!(Cdb::from_bytes("t", bytes).unwrap().find("k"), Ok(None));
    }

    #[test]
    fn a_table_is_half_empty() {
        let records: Vec<_> = (1..100).map(|place| (place * 77, place)).collect();
        let slots = hash_slots(&records);
        assert_eq!(slots.len(), 198);
        assert_eq!(slots.iter().filter(|slot| slot.1 == 0).count(), 99);
    }

    #[test]
    fn a_file_that_was_cut_short_is_refused_at_any_length() {
        let bytes = two_keys();
        for octets in 0..bytes.len() {
            let refused = Cdb::from_bytes("t", bytes[..octets].to_vec()).err();
            assert!(matches!(refused, Some(CdbDamage::Length(_) | CdbDamage::Pointer(_))), "{octets}: {refused:?}");
        }
    }

    #[test]
    fn damage_behind_the_pointers_answers_unavailable() {
        let mut bytes = two_keys();
        bytes[HEADER_OCTETS + 4..HEADER_OCTETS + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        let cdb = Cdb::from_bytes("t", bytes.clone()).unwrap();
        assert_eq!(cdb.find("one"), Err(CdbDamage::TooLarge));
        assert_eq!(cdb.find("two"), Ok(Some(vec!["2".into()])));
        bytes[HEADER_OCTETS..HEADER_OCTETS + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let cdb = Cdb::from_bytes("t", bytes).unwrap();
        assert!(matches!(cdb.find("one"), Err(CdbDamage::Pointer(_))));
    }

    #[test]
    fn a_table_whose_slots_all_hold_one_record_does_not_loop() {
        let mut bytes = encode([(&b"k"[..], "1".to_owned())].into_iter()).unwrap();
        let table = bytes.len();
        for _ in 0..5000 {
            push_pair(&mut bytes, (hash(b"k"), HEADER_OCTETS as u32));
        }
        let pointer = hash(b"k") as usize % TABLES * 8;
        bytes[pointer..pointer + 4].copy_from_slice(&(table as u32).to_le_bytes());
        bytes[pointer + 4..pointer + 8].copy_from_slice(&5000u32.to_le_bytes());
        let cdb = Cdb::from_bytes("t", bytes).unwrap();
        assert_eq!(cdb.find("k"), Err(CdbDamage::TooLarge));
    }

    proptest! {
        #[test]
        fn what_was_put_in_is_found_and_nothing_else(
            entries in proptest::collection::btree_map("[a-c]{0,4}", proptest::collection::vec("[a-z@]{1,5}", 0..3), 0..60),
            other in "[a-c]{0,4}",
        ) {
            let cdb = Cdb::from_bytes("t", database(&entries)).unwrap();
            for (key, values) in &entries {
                prop_assert_eq!(cdb.find(key), Ok(Some(values.clone())));
            }
            prop_assert_eq!(cdb.find(&other), Ok(entries.get(&other).cloned()));
        }

        #[test]
        fn no_bytes_make_a_lookup_panic(
            entries in proptest::collection::btree_map("[a-c]{0,2}", Just(vec!["v".to_owned()]), 1..20),
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..40),
            key in "[a-c]{0,2}",
        ) {
            let mut bytes = database(&entries);
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if let Ok(cdb) = Cdb::from_bytes("t", bytes) {
                let _ = cdb.find(&key);
            }
        }
    }
}
