//! Real messages from an mbox file, a Maildir, or a folder of .eml files, read once and kept in
//! memory.
//!
//! They are sent with CR LF line ends; a bare CR becomes a line end, since servers may not accept
//! it. Nothing else is changed; the stamp goes before the header. A message without a header gets
//! an empty line after the stamp, unless it begins with one: a server would add it and change the
//! body. A corpus larger than [`CORPUS_OCTETS_MAX`] is refused before it is read.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memchr::memmem;
use protocol::smtp::client::{ContentSize, stuff_dots};

use crate::BenchError;
use crate::stamp::with_crlf;

/// Bytes of all messages. Messages with lines that begin with a dot are kept twice, plain and
/// dot-stuffed; an mbox is also in memory while it is read.
pub(super) const CORPUS_OCTETS_MAX: u64 = 4 << 30;

/// The messages.
#[derive(Debug)]
pub(super) struct Corpus(Vec<CorpusMessage>);

/// A message.
#[derive(Debug)]
pub(super) struct CorpusMessage {
    /// With CR LF line ends.
    pub(super) plain: Arc<[u8]>,
    /// Dot-stuffed for DATA; the same bytes if no line begins with a dot.
    pub(super) stuffed: Arc<[u8]>,
    pub(super) dot_lines: u64,
    pub(super) eight_bit: bool,
    body: usize,
}

impl Corpus {
    /// Reads the messages at `path`. A file is an mbox if it begins with "From ", else one message.
    /// A folder is a Maildir if it has `new` or `cur`, else a folder of .eml files.
    pub(super) fn read(path: &Path) -> Result<Corpus, BenchError> {
        Corpus::read_at_most(CORPUS_OCTETS_MAX, path)
    }

    fn read_at_most(octets_max: u64, path: &Path) -> Result<Corpus, BenchError> {
        let mut messages = Vec::new();
        let mut octets_left = octets_max;
        for file in files(path)? {
            let text = read_limited(&file, octets_left).map_err(BenchError::system(file.display()))?;
            let text =
                text.ok_or_else(|| BenchError::Usage(format!("{}: more than {octets_max} bytes", path.display())))?;
            octets_left -= text.len() as u64;
            match text.starts_with(b"From ") {
                true => mbox(&text, |message| messages.push(CorpusMessage::new(message))),
                false => messages.push(CorpusMessage::new(&text)),
            }
        }
        if messages.is_empty() {
            return Err(BenchError::Data(format!("{}: no messages", path.display())));
        }
        Ok(Corpus(messages))
    }

    /// Messages are used in turn.
    pub(super) fn message(&self, number: u64) -> &CorpusMessage {
        &self.0[(number % self.0.len() as u64) as usize]
    }
}

fn files(path: &Path) -> Result<Vec<PathBuf>, BenchError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let parts = ["new", "cur"].map(|part| path.join(part));
    let maildir = parts.iter().any(|part| part.is_dir());
    let folders: Vec<PathBuf> =
        if maildir { parts.into_iter().filter(|part| part.is_dir()).collect() } else { vec![path.to_owned()] };
    let mut found = Vec::new();
    for folder in folders {
        let reading = || BenchError::system(format!("reading {}", folder.display()));
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

/// The content of a file, or None if it has more than `room` bytes. The size is checked first;
/// pipes and growing files are limited while reading.
fn read_limited(file: &Path, octets_left: u64) -> io::Result<Option<Vec<u8>>> {
    let file = File::open(file)?;
    let octets = file.metadata()?.len();
    if octets > octets_left {
        return Ok(None);
    }
    let mut text = Vec::with_capacity(octets as usize);
    file.take(octets_left + 1).read_to_end(&mut text)?;
    Ok(Some(text).filter(|text| text.len() as u64 <= octets_left))
}

/// Calls `take` with each message of an mbox (RFC 4155). A message begins at a line that begins
/// with "From " and follows an empty line; ">From " at the start of a line is unquoted (mboxrd).
fn mbox(text: &[u8], mut take: impl FnMut(&[u8])) {
    let mut message: Option<Vec<u8>> = None;
    let mut after_empty = true;
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        let is_separator = after_empty && line.starts_with(b"From ");
        after_empty = line == b"\n" || line == b"\r\n";
        if is_separator {
            message.replace(Vec::new()).iter().for_each(|message| take(message));
            continue;
        }
        let quotes = line.iter().take_while(|&&byte| byte == b'>').count();
        let quoted = quotes > 0 && line[quotes..].starts_with(b"From ");
        if let Some(message) = &mut message {
            message.extend_from_slice(&line[usize::from(quoted)..]);
        }
    }
    message.iter().for_each(|message| take(message));
}

impl CorpusMessage {
    fn new(text: &[u8]) -> CorpusMessage {
        let plain: Arc<[u8]> = with_separator(with_crlf_only(text)).into();
        let dot_lines = ContentSize::from_message(&plain).dot_lines;
        let stuffed = if dot_lines == 0 { plain.clone() } else { stuff_dots(&plain).into() };
        // The stamp is already a header, so an empty first line ends it.
        let body = match plain.starts_with(b"\r\n") {
            true => 2,
            false => memmem::find(&plain, b"\r\n\r\n").map_or(plain.len(), |end| end + 4),
        };
        let eight_bit = !plain.is_ascii();
        CorpusMessage { plain, stuffed, dot_lines, eight_bit, body }
    }

    /// The part that the digest covers.
    pub(super) fn body(&self) -> &[u8] {
        &self.plain[self.body..]
    }
}

/// Normalizes all line ends to CR LF, also the last one.
fn with_crlf_only(text: &[u8]) -> Vec<u8> {
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

/// Adds an empty line at the start of a text without a header.
fn with_separator(text: Vec<u8>) -> Vec<u8> {
    match text.is_empty() || text.starts_with(b"\r\n") || begins_with_field(&text) {
        true => text,
        false => [b"\r\n", &text[..]].concat(),
    }
}

/// RFC 5322 section 2.2: printable characters and a colon; section 4.5 allows white space before
/// it.
fn begins_with_field(text: &[u8]) -> bool {
    let name = text.iter().take_while(|&&byte| byte.is_ascii_graphic() && byte != b':').count();
    let gap = text[name..].iter().take_while(|&&byte| byte == b' ' || byte == b'\t').count();
    name > 0 && text[name + gap..].starts_with(b":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::{MessageStamp, RunId, check_stamp};

    const MBOX: &[u8] = b"From a@x Mon Jan  1 00:00:00 2024\nSubject: 1\n\nHello.\nFrom here on.\n>From afar.\n\n\
                          From b@x Mon Jan  1 00:00:00 2024\nSubject: 2\n\n.dot\n";

    fn texts(corpus: &Corpus) -> Vec<&[u8]> {
        corpus.0.iter().map(|message| &message.plain[..]).collect()
    }

    #[test]
    fn an_mbox_is_split_at_its_separators_and_nowhere_else() {
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
    fn a_corpus_without_messages_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Corpus::read(folder.path()), Err(BenchError::Data(_))));
        assert!(matches!(Corpus::read(&folder.path().join("none")), Err(BenchError::System { .. })));
    }

    #[test]
    fn a_corpus_that_is_too_large_is_refused_and_messages_without_dot_lines_are_kept_once() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.eml", "b.eml"] {
            fs::write(folder.path().join(name), "A: b\r\n\r\nHello.\r\n").unwrap();
        }
        let corpus = Corpus::read_at_most(32, folder.path()).unwrap();
        assert!(Arc::ptr_eq(&corpus.0[0].plain, &corpus.0[0].stuffed));
        assert!(matches!(Corpus::read_at_most(31, folder.path()), Err(BenchError::Usage(_))));
        let sparse = folder.path().join("b.eml");
        File::options().write(true).open(&sparse).unwrap().set_len(CORPUS_OCTETS_MAX + 1).unwrap();
        assert!(matches!(Corpus::read(&sparse), Err(BenchError::Usage(_))), "a file over the limit must be refused");
    }

    /// The body of a message without a header used to begin one line too late, so that sound copies
    /// seemed damaged.
    #[test]
    fn a_stamped_message_of_any_form_is_recognized_and_sound() {
        let folder = tempfile::tempdir().unwrap();
        for part in ["new", "cur"] {
            fs::create_dir_all(folder.path().join("maildir").join(part)).unwrap();
            fs::write(folder.path().join("maildir").join(part).join("1"), "A: b\n\nIn a Maildir.\n").unwrap();
        }
        fs::write(folder.path().join("mbox"), MBOX).unwrap();
        let forms: [(&str, &[u8], &[u8]); 12] = [
            ("whole", b"A: b\n\nHello.\n", b"Hello.\r\n"),
            ("without a header", b"\nHello.\n\nA: b\n", b"Hello.\r\n\r\nA: b\r\n"),
            ("without a header, and two empty lines", b"\r\n\r\nHello.\r\n", b"\r\nHello.\r\n"),
            ("text alone", b"Hello, this is: text.\n\nMore.\n", b"Hello, this is: text.\r\n\r\nMore.\r\n"),
            ("a continued line alone", b" b\n", b" b\r\n"),
            ("without a body", b"A: b\n", b""),
            ("with an empty body", b"A : b\n\n", b""),
            ("an empty line alone", b"\n", b""),
            ("nothing", b"", b""),
            ("dots", b"A: b\n\n.\n..x\n", b".\r\n..x\r\n"),
            ("8-bit", b"A: \xff\n\n\xc3\xa4\0\n", b"\xc3\xa4\0\r\n"),
            ("bare CR and no end", b"A: b\n\none\rtwo\r\nthree", b"one\r\ntwo\r\nthree\r\n"),
        ];
        for (form, text, body) in forms {
            let path = folder.path().join("one.eml");
            fs::write(&path, text).unwrap();
            let corpus = Corpus::read(&path).unwrap();
            assert_eq!(corpus.message(0).body(), body, "{form}");
            are_sound(&corpus, form);
        }
        for form in ["mbox", "maildir", ""] {
            are_sound(&Corpus::read(&folder.path().join(form)).unwrap(), form);
        }
    }

    /// As sent, and as stored with LF line ends.
    fn are_sound(corpus: &Corpus, form: &str) {
        for message in &corpus.0 {
            let mut sent = Vec::new();
            MessageStamp::new(RunId(7), 42, [message.body()]).append_header(&mut sent);
            sent.extend_from_slice(&message.plain);
            let mut kept = sent.clone();
            kept.retain(|&byte| byte != b'\r');
            for copy in [&sent, &kept] {
                assert!(check_stamp(copy).is_some_and(|seen| seen.sound), "{form}: {}", copy.escape_ascii());
            }
            assert_eq!(stuff_dots(&message.plain), &message.stuffed[..], "{form}");
        }
    }
}
