//! The messages of a maildrop in the order in which a client sees them: files matched with the lines
//! of `dovecot-uidlist`.
//!
//! | step | what it needs |
//! |---|---|
//! | files are matched with lines by their names without flags | one hash table of the files |
//! | sizes that neither name nor line tell are found by reading the files | each file once, ever |
//! | new messages get UIDs, found sizes are recorded | the lock on `dovecot-uidlist` |
//!
//! Without new messages and unknown sizes nothing is locked and nothing written. Messages are ordered
//! by POP3 order (O), then by UID.
//!
//! If the lock cannot be had in time, or nothing can be written, the session sees the messages that
//! have UIDs; the others come next time. Without a valid list there are none, and then it is an error:
//! an empty maildrop would make clients forget what they have.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};

use super::dotlock::DotLockError;
use super::file_list::{FileList, MailFile, delivery_order};
use super::mail_folder::{MailFolder, cannot_write, is_regular};
use super::message_size::measure;
use super::uidlist::{UidList, UidListHeader, write_new};
use super::uidlist_file::{UidListContent, UidListFile, UidListLock};

/// Lines of deleted messages are removed when there are so many of them, and a quarter of all.
const GONE_LINES_MIN: usize = 100;

/// The messages of a maildrop.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) files: FileList,
    pub(super) messages: Vec<ListedMessage>,
    /// Unique-ids and GUIDs that lines tell.
    values: Vec<u8>,
    pub(super) uid_validity: u32,
    /// What the operator should know.
    pub(super) warnings: Vec<Box<str>>,
}

/// A message. Its size is in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedMessage {
    /// The index of its file.
    file: u32,
    /// 0 until it has one.
    pub(super) uid: u32,
    uidl: Option<ValuePlace>,
    guid: Option<ValuePlace>,
}

#[derive(Clone, Copy, Debug)]
struct ValuePlace {
    start: u32,
    octets: u8,
}

/// How a file and the lines belong together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileMatch {
    /// Another file with the same name without flags stands for the message.
    Duplicate,
    New,
    /// The index of its line.
    Known(usize),
}

impl Listing {
    /// Reads the maildrop, and gives UIDs to its new messages.
    ///
    /// # Errors
    ///
    /// A directory cannot be read, or there are no UIDs and none can be given.
    pub(super) fn open(folder: &Arc<MailFolder>, lock_timeout: Duration, now: SystemTime) -> io::Result<Listing> {
        let mut listing = Listing { files: FileList::read(folder)?, ..Listing::default() };
        let mut read = UidListFile::read(folder)?;
        listing.match_files(read.list());
        listing.measure_sizes(folder);
        if listing.is_recorded() {
            return Ok(listing);
        }
        match UidListLock::acquire(folder, lock_timeout) {
            Ok(lock) => {
                if !lock.is_current(&read)? {
                    read = UidListFile::read(folder)?;
                    listing.match_files(read.list());
                    listing.drop_unmeasured();
                }
                listing.record(folder, &lock, read, now)?;
            }
            Err(DotLockError::Held) => {
                listing.drop_new(&read, io::Error::new(io::ErrorKind::TimedOut, "dovecot-uidlist is locked"))?;
            }
            Err(DotLockError::Io(error)) => listing.drop_new(&read, error.into())?,
        }
        Ok(listing)
    }

    /// The unique-id that the line of a message tells; empty if it is the name without flags.
    pub(super) fn recorded_uidl(&self, message: &ListedMessage) -> Option<&[u8]> {
        message.uidl.map(|place| self.value(place))
    }

    /// The GUID of a message: the name without flags, unless its line tells another.
    pub(super) fn guid(&self, message: &ListedMessage) -> &[u8] {
        message.guid.map_or_else(|| self.base(message), |place| self.value(place))
    }

    /// The name of its file without flags.
    pub(super) fn base(&self, message: &ListedMessage) -> &[u8] {
        self.files.base(self.file(message))
    }

    pub(super) fn file(&self, message: &ListedMessage) -> &MailFile {
        &self.files.files[message.file as usize]
    }

    fn value(&self, place: ValuePlace) -> &[u8] {
        &self.values[place.start as usize..][..usize::from(place.octets)]
    }

    /// Finds the messages anew. Sizes that are known stay.
    fn match_files(&mut self, list: Option<&UidList>) {
        let (matches, mut known) = match_records(&self.files, list);
        known.retain(|&(record, file)| matches[file] == FileMatch::Known(record));
        self.messages.clear();
        self.values.clear();
        self.uid_validity = list.map_or(0, |list| list.header.uid_validity);
        if let Some(list) = list {
            self.add_known(list, &known);
        }
        self.add_new(&matches);
    }

    /// Adds the messages that have lines; `known` has the indexes of lines and files.
    fn add_known(&mut self, list: &UidList, known: &[(usize, usize)]) {
        let mut orders = Vec::new();
        self.messages.reserve(known.len());
        for &(record, file) in known {
            let record = &list.records[record];
            let fields = list.fields(record);
            let size = &mut self.files.files[file].octets;
            *size = size.or(fields.octets);
            let (uidl, guid) = (self.keep(fields.uidl), self.keep(fields.guid));
            self.messages.push(ListedMessage { file: file as u32, uid: record.uid, uidl, guid });
            if fields.order.is_some() && orders.is_empty() {
                orders.resize(self.messages.len() - 1, None);
            }
            if fields.order.is_some() || !orders.is_empty() {
                orders.push(fields.order);
            }
        }
        if !orders.is_empty() {
            let mut ordered: Vec<_> = orders.into_iter().zip(self.messages.drain(..)).collect();
            ordered.sort_by_key(|(order, _)| order.filter(|&order| order > 0).unwrap_or(u32::MAX));
            self.messages.extend(ordered.into_iter().map(|(_, message)| message));
        }
    }

    fn keep(&mut self, value: Option<&[u8]>) -> Option<ValuePlace> {
        let value = value?;
        let start = u32::try_from(self.values.len()).ok()?;
        self.values.extend_from_slice(value);
        Some(ValuePlace { start, octets: u8::try_from(value.len()).ok()? })
    }

    fn add_new(&mut self, matches: &[FileMatch]) {
        let is_new = |&index: &usize| matches[index] == FileMatch::New;
        let mut new: Vec<usize> = (0..matches.len()).filter(is_new).collect();
        new.sort_by_cached_key(|&index| delivery_order(self.files.base(&self.files.files[index])));
        let message = |file| ListedMessage { file: file as u32, uid: 0, uidl: None, guid: None };
        self.messages.extend(new.into_iter().map(message));
    }

    /// Reads the files whose sizes are unknown. What cannot be read is no message of this session.
    fn measure_sizes(&mut self, folder: &MailFolder) {
        let mut unreadable = None;
        for message in &self.messages {
            let file = self.files.files[message.file as usize];
            if file.octets.is_some() {
                continue;
            }
            match read_size(folder, &self.files.path(&file)) {
                Ok(octets) => {
                    let file = &mut self.files.files[message.file as usize];
                    (file.octets, file.is_measured) = (Some(octets), true);
                }
                // Moved or deleted by another program, or no file at all.
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {}
                Err(error) => unreadable = Some((file, error)),
            }
        }
        if let Some((file, error)) = unreadable {
            let name = String::from_utf8_lossy(self.files.name(&file));
            self.warnings.push(format!("unable to read the message {name}, and maybe others: {error}").into());
        }
        self.drop_unmeasured();
    }

    fn drop_unmeasured(&mut self) {
        let files = &self.files.files;
        self.messages.retain(|message| files[message.file as usize].octets.is_some());
    }

    /// Whether all messages have UIDs, and all sizes are where they are found next time.
    fn is_recorded(&self) -> bool {
        let is_measured = |message: &ListedMessage| self.file(message).is_measured;
        self.messages.iter().all(|message| message.uid != 0 && !is_measured(message))
    }

    /// Goes on with the messages that have UIDs.
    fn drop_new(&mut self, read: &UidListFile, why: io::Error) -> io::Result<()> {
        let is_expected = why.kind() == io::ErrorKind::TimedOut || cannot_write(&why);
        if read.list().is_none() || !is_expected {
            return Err(why);
        }
        let before = self.messages.len();
        self.messages.retain(|message| message.uid != 0);
        let dropped = before - self.messages.len();
        if dropped > 0 {
            self.warnings.push(format!("{dropped} new messages are not shown: {why}").into());
        }
        Ok(())
    }

    /// Gives UIDs to new messages, and records them with the sizes that were found.
    fn record(
        &mut self,
        folder: &MailFolder,
        lock: &UidListLock,
        mut read: UidListFile,
        now: SystemTime,
    ) -> io::Result<()> {
        let mut header = self.header(lock, &mut read, now)?;
        let first_new = header.next_uid;
        for message in self.messages.iter_mut().filter(|message| message.uid == 0) {
            message.uid = header.next_uid;
            header.next_uid += 1;
        }
        self.uid_validity = header.uid_validity;
        let written = match read.list().filter(|list| list.is_appendable && !self.must_rewrite(list, first_new)) {
            Some(_) => lock.append(&read, &self.new_lines(first_new)),
            None => self.rewritten(folder, read.list(), header, first_new).and_then(|text| lock.replace(&text)),
        };
        written.or_else(|error| {
            for message in self.messages.iter_mut().filter(|message| message.uid >= first_new) {
                message.uid = 0;
            }
            self.drop_new(&read, error)
        })
    }

    /// The header before the new messages. Without a valid file, no message has a UID any more.
    fn header(&mut self, lock: &UidListLock, read: &mut UidListFile, now: SystemTime) -> io::Result<UidListHeader> {
        let mut uid_validity_min = 1;
        match &read.content {
            UidListContent::Valid(list) => {
                let new = self.messages.iter().filter(|message| message.uid == 0).count();
                // UIDs stay below the highest number.
                if u64::from(list.header.next_uid) + (new as u64) < u64::from(u32::MAX) {
                    let guid = list.header.guid.map_or_else(random_guid, Ok)?;
                    return Ok(UidListHeader { guid: Some(guid), ..list.header.clone() });
                }
                uid_validity_min = list.header.uid_validity.checked_add(1).unwrap_or(1);
                self.warnings.push("dovecot-uidlist has used all UIDs: all messages get new ones".into());
            }
            UidListContent::Damaged(why) => {
                self.warnings.push(
                    format!("dovecot-uidlist is damaged ({why}) and was set aside: all messages get new UIDs").into(),
                );
                lock.set_aside()?;
            }
            UidListContent::Missing => {}
        }
        read.content = UidListContent::Missing;
        self.match_files(None);
        self.drop_unmeasured();
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let uid_validity = u32::try_from(seconds).unwrap_or(u32::MAX).max(uid_validity_min);
        Ok(UidListHeader { uid_validity, next_uid: 1, guid: Some(random_guid()?), others: Vec::new() })
    }

    /// Whether lines of the file must be changed or removed.
    fn must_rewrite(&self, list: &UidList, first_new: u32) -> bool {
        let is_changed = |message: &ListedMessage| message.uid < first_new && self.file(message).is_measured;
        self.has_many_gone(list, first_new) || self.messages.iter().any(is_changed)
    }

    fn has_many_gone(&self, list: &UidList, first_new: u32) -> bool {
        let known = self.messages.iter().filter(|message| message.uid < first_new).count();
        let gone = list.records.len().saturating_sub(known);
        gone >= GONE_LINES_MIN && gone * 4 >= list.records.len()
    }

    fn new_lines(&self, first_new: u32) -> Vec<u8> {
        let mut lines = Vec::new();
        for message in self.messages.iter().filter(|message| message.uid >= first_new) {
            let file = self.file(message);
            write_new(message.uid, file.octets.filter(|_| file.is_measured), self.files.base(file), &mut lines);
        }
        lines
    }

    /// The whole file. Lines of deleted messages are left out if they are many.
    fn rewritten(
        &self,
        folder: &MailFolder,
        list: Option<&UidList>,
        header: UidListHeader,
        first_new: u32,
    ) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        header.write(&mut text);
        if let Some(list) = list {
            // Dovecot renames files only under the lock that is held now, so a file that this listing
            // does not have was not just being renamed.
            let many_gone = self.has_many_gone(list, first_new);
            let present = if many_gone { Some(FileList::read(folder)?) } else { None };
            self.write_known(list, present.as_ref(), &mut text);
        }
        text.append(&mut self.new_lines(first_new));
        Ok(text)
    }

    /// Writes the lines of the file; if `present` is given, only those whose files exist.
    fn write_known(&self, list: &UidList, present: Option<&FileList>, text: &mut Vec<u8>) {
        let mut uids = vec![0; self.files.files.len()];
        self.messages.iter().for_each(|message| uids[message.file as usize] = message.uid);
        let (files, present) = (self.files.by_base(), present.map(FileList::by_base));
        for record in &list.records {
            let name = list.name(record);
            let Some(&index) = files.get(name) else {
                if present.as_ref().is_none_or(|present| present.contains_key(name)) {
                    list.write_record(record, None, text);
                }
                continue;
            };
            // A second line for the same name has the UID that counts.
            if [0, record.uid].contains(&uids[index]) {
                let file = &self.files.files[index];
                list.write_record(record, file.octets.filter(|_| file.is_measured), text);
            }
        }
    }
}

/// How each file is matched, and the indexes of lines and files that belong together, by line. If two
/// lines have one name, the later one counts, as in Dovecot.
fn match_records(files: &FileList, list: Option<&UidList>) -> (Vec<FileMatch>, Vec<(usize, usize)>) {
    let mut matches = vec![FileMatch::Duplicate; files.files.len()];
    let by_base = files.by_base();
    by_base.values().for_each(|&file| matches[file] = FileMatch::New);
    let mut known = Vec::with_capacity(if list.is_some() { by_base.len() } else { 0 });
    let names = list.into_iter().flat_map(|list| list.records.iter().map(move |record| list.name(record)));
    for (index, name) in names.enumerate() {
        if let Some(&file) = by_base.get(name) {
            matches[file] = FileMatch::Known(index);
            known.push((index, file));
        }
    }
    (matches, known)
}

fn read_size(folder: &MailFolder, path: &[u8]) -> io::Result<u64> {
    let file = File::from(folder.open_message(path, false)?);
    if !is_regular(&rustix::fs::fstat(&file)?) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    measure(file)
}

/// A GUID in hexadecimal digits.
fn random_guid() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    let digits = b"0123456789abcdef";
    Ok(std::array::from_fn(|index| {
        let byte = bytes[index / 2];
        digits[usize::from(if index % 2 == 0 { byte >> 4 } else { byte & 15 })]
    }))
}
