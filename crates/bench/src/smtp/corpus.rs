//! Real messages: an mbox file, a Maildir, or a folder of .eml files, read once and kept in memory.
//!
//! They are sent as they are, with CR LF line ends; a CR that stands alone becomes a line end, since no server may take
//! it. Nothing of them is rewritten, and a stamp is put before their header.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memchr::memmem;
use protocol::smtp::client::{Content, stuff_dots};

use crate::Fault;
use crate::stamp::with_crlf;

/// Bytes of all messages together.
pub(super) const CORPUS_OCTETS_MAX: u64 = 4 << 30;

/// Messages to choose from.
#[derive(Debug)]
pub(super) struct Corpus(Vec<Message>);

/// One of them.
#[derive(Debug)]
pub(super) struct Message {
    /// With CR LF line ends.
    pub(super) plain: Arc<[u8]>,
    /// As DATA sends it.
    pub(super) stuffed: Arc<[u8]>,
    pub(super) dot_lines: u64,
    pub(super) eight_bit: bool,
    body: usize,
}

impl Corpus {
    /// Reads what is at `path`: a file is an mbox, or a message if it does not begin with "From "; a folder is a Maildir
    /// if it has new/ or cur/, else a folder of .eml files.
    pub(super) fn read(path: &Path) -> Result<Corpus, Fault> {
        let mut messages = Vec::new();
        let mut octets = 0;
        for file in files(path)? {
            let text = fs::read(&file).map_err(Fault::system(file.display()))?;
            octets += text.len() as u64;
            if octets > CORPUS_OCTETS_MAX {
                return Err(Fault::Usage(format!("{}: more than {CORPUS_OCTETS_MAX} bytes", path.display())));
            }
            match text.starts_with(b"From ") {
                true => messages.extend(mbox(&text).iter().map(|message| Message::new(message))),
                false => messages.push(Message::new(&text)),
            }
        }
        if messages.is_empty() {
            return Err(Fault::Data(format!("{}: no messages", path.display())));
        }
        Ok(Corpus(messages))
    }

    /// They take turns.
    pub(super) fn message(&self, number: u64) -> &Message {
        &self.0[(number % self.0.len() as u64) as usize]
    }
}

fn files(path: &Path) -> Result<Vec<PathBuf>, Fault> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let parts = ["new", "cur"].map(|part| path.join(part));
    let maildir = parts.iter().any(|part| part.is_dir());
    let folders: Vec<PathBuf> =
        if maildir { parts.into_iter().filter(|part| part.is_dir()).collect() } else { vec![path.to_owned()] };
    let mut found = Vec::new();
    for folder in folders {
        let reading = || Fault::system(format!("reading {}", folder.display()));
        for entry in fs::read_dir(&folder).map_err(reading())? {
            let file = entry.map_err(reading())?.path();
            if file.is_file() && (maildir || file.extension().is_some_and(|ending| ending == "eml")) {
                found.push(file);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The messages of an mbox (RFC 4155): each begins after a line that begins with "From " and follows an empty one;
/// ">From " at the begin of a line is undone (mboxrd).
fn mbox(text: &[u8]) -> Vec<Vec<u8>> {
    let mut messages: Vec<Vec<u8>> = Vec::new();
    let mut after_empty = true;
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        let is_separator = after_empty && line.starts_with(b"From ");
        after_empty = line == b"\n" || line == b"\r\n";
        if is_separator {
            messages.push(Vec::new());
            continue;
        }
        let quotes = line.iter().take_while(|&&byte| byte == b'>').count();
        let quoted = quotes > 0 && line[quotes..].starts_with(b"From ");
        if let Some(message) = messages.last_mut() {
            message.extend_from_slice(&line[usize::from(quoted)..]);
        }
    }
    messages
}

impl Message {
    fn new(text: &[u8]) -> Message {
        let plain = mended(text);
        let stuffed = stuff_dots(&plain);
        let dot_lines = Content::of(&plain).dot_lines;
        let stuffed: Arc<[u8]> = stuffed.as_ref().into();
        let body = memmem::find(&plain, b"\r\n\r\n").map_or(plain.len(), |end| end + 4);
        let eight_bit = !plain.is_ascii();
        Message { plain: plain.into(), stuffed, dot_lines, eight_bit, body }
    }

    /// What the digest covers.
    pub(super) fn body(&self) -> &[u8] {
        &self.plain[self.body..]
    }
}

/// With CR LF at each line's end, the last one included, and no other CR.
fn mended(text: &[u8]) -> Vec<u8> {
    let text = with_crlf(text);
    let mut mended = Vec::with_capacity(text.len() + 2);
    for (place, &byte) in text.iter().enumerate() {
        mended.push(byte);
        if byte == b'\r' && text.get(place + 1) != Some(&b'\n') {
            mended.push(b'\n');
        }
    }
    if !mended.is_empty() && !mended.ends_with(b"\r\n") {
        mended.extend_from_slice(b"\r\n");
    }
    mended
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBOX: &[u8] = b"From a@x Mon Jan  1 00:00:00 2024\nSubject: 1\n\nHello.\nFrom here on.\n>From afar.\n\n\
                          From b@x Mon Jan  1 00:00:00 2024\nSubject: 2\n\n.dot\n";

    fn texts(corpus: &Corpus) -> Vec<&[u8]> {
        corpus.0.iter().map(|message| &message.plain[..]).collect()
    }

    #[test]
    fn an_mbox_is_parted_at_its_separators_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mbox");
        fs::write(&path, MBOX).unwrap();
        let corpus = Corpus::read(&path).unwrap();
        let first = b"Subject: 1\r\n\r\nHello.\r\nFrom here on.\r\nFrom afar.\r\n\r\n";
        assert_eq!(texts(&corpus), [&first[..], b"Subject: 2\r\n\r\n.dot\r\n"]);
        assert_eq!(&corpus.message(3).stuffed[..], b"Subject: 2\r\n\r\n..dot\r\n");
        assert_eq!(corpus.message(0).body(), b"Hello.\r\nFrom here on.\r\nFrom afar.\r\n\r\n");
    }

    #[test]
    fn folders_are_maildirs_or_hold_eml_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.eml"), "A: b\n\nbare\rcr").unwrap();
        fs::write(folder.path().join("notes.txt"), "no message").unwrap();
        assert_eq!(texts(&Corpus::read(folder.path()).unwrap()), [b"A: b\r\n\r\nbare\r\ncr\r\n"]);
        for part in ["new", "cur"] {
            fs::create_dir(folder.path().join(part)).unwrap();
            fs::write(folder.path().join(part).join(part), format!("A: {part}\n\n")).unwrap();
        }
        assert_eq!(texts(&Corpus::read(folder.path()).unwrap()), [b"A: cur\r\n\r\n", b"A: new\r\n\r\n"]);
    }

    #[test]
    fn where_there_are_no_messages_it_says_so() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Corpus::read(folder.path()), Err(Fault::Data(_))));
        assert!(matches!(Corpus::read(&folder.path().join("none")), Err(Fault::System { .. })));
    }
}
