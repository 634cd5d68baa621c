//! The messages of a session: opens them, and gives their bytes to the machine. Nothing here waits
//! for the disk on the session's thread.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use mailbox::maildrop::{DotLines, FileLineEnds, MessageFile};
use net::FileRange;
use protocol::pop3::server::{Content, Pop3Server};

use super::Pop3Settings;
use super::maildrop::OpenMaildrop;

/// Messages up to this size are read at once: one copy costs less than the calls that a file range
/// needs.
pub const SMALL_MESSAGE_OCTETS_MAX: u64 = 64 << 10;
/// How much of other messages is read at a time.
const CHUNK_OCTETS: u64 = SMALL_MESSAGE_OCTETS_MAX;
/// A file with more lines that begin with a dot than one in this many octets is copied: short ranges
/// cost more than a copy.
const OCTETS_PER_DOT_LINE_MIN: u64 = 8 << 10;

thread_local! {
    /// For all sessions of a thread, one at a time.
    static MESSAGE: RefCell<Vec<u8>> = RefCell::new(vec![0; SMALL_MESSAGE_OCTETS_MAX as usize]);
}

/// The message that is being sent.
pub(super) struct OpenMessage {
    pub(super) file: File,
    octets: u64,
    /// What was given to the machine in chunks.
    given: u64,
}

/// A message that was opened on another thread.
enum FetchedMessage {
    Small(Vec<u8>),
    Large(MessageFile),
}

/// How a large message is sent.
enum LargeForm {
    Ranges(DotLines),
    Chunks,
}

/// Gives a message to the machine. Returns the file if more of it is needed, or the error.
pub(super) async fn retrieve(
    server: &mut Pop3Server,
    maildrop: &Arc<OpenMaildrop>,
    settings: &Arc<Pop3Settings>,
    message: usize,
    is_top: bool,
) -> io::Result<Option<Box<OpenMessage>>> {
    let file = match maildrop.0.open_message(message, true) {
        Ok(file) if file.octets <= SMALL_MESSAGE_OCTETS_MAX => {
            if give_cached(server, &file)? {
                return Ok(None);
            }
            None
        }
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => return Err(error),
    };
    // Boxed: most sessions are idle, and most messages are small and in memory.
    let file = match file {
        Some(file) => file,
        None => match Box::pin(fetch(maildrop, message)).await? {
            FetchedMessage::Small(bytes) => {
                server.handle_content(net::steady_now(), Content::Whole(&bytes));
                return Ok(None);
            }
            FetchedMessage::Large(file) => file,
        },
    };
    let may_send_ranges = settings.sendfile && !is_top && file.line_ends == FileLineEnds::Crlf;
    let (file, form) = Box::pin(choose_form(settings, file, may_send_ranges)).await?;
    let octets = file.octets;
    let content = match form {
        LargeForm::Ranges(DotLines { offsets, ends_with_newline }) => {
            Content::File { octets, dot_lines: offsets, ends_with_newline }
        }
        LargeForm::Chunks => Content::Copied { octets: maildrop.0.octets(message) },
    };
    server.handle_content(net::steady_now(), content);
    Ok(Some(Box::new(OpenMessage { file: file.file, octets, given: 0 })))
}

/// Gives a small message to the machine if it is in memory; returns whether it is.
fn give_cached(server: &mut Pop3Server, file: &MessageFile) -> io::Result<bool> {
    MESSAGE.with_borrow_mut(|buffer| {
        let bytes = &mut buffer[..file.octets as usize];
        let range = FileRange { file: &file.file, offset: 0, octets: file.octets };
        let is_cached = range.read_if_cached(bytes)?;
        if is_cached {
            server.handle_content(net::steady_now(), Content::Whole(bytes));
        }
        Ok(is_cached)
    })
}

/// Opens a message, and reads it if it is small, on another thread.
async fn fetch(maildrop: &Arc<OpenMaildrop>, message: usize) -> io::Result<FetchedMessage> {
    let maildrop = Arc::clone(maildrop);
    let fetch = move || {
        let file = maildrop.0.open_message(message, false)?;
        if file.octets > SMALL_MESSAGE_OCTETS_MAX {
            return Ok(FetchedMessage::Large(file));
        }
        let mut bytes = vec![0; file.octets as usize];
        file.file.read_exact_at(&mut bytes, 0)?;
        Ok(FetchedMessage::Small(bytes))
    };
    net::run_on_disk_thread(fetch).await?
}

/// Finds the lines that begin with a dot, if the file may be sent in ranges.
async fn choose_form(
    settings: &Arc<Pop3Settings>,
    file: MessageFile,
    may_send_ranges: bool,
) -> io::Result<(MessageFile, LargeForm)> {
    if !may_send_ranges {
        return Ok((file, LargeForm::Chunks));
    }
    let (file, lines) = match settings.dot_lines.find(&file) {
        Some(lines) => (file, Ok(lines)),
        None => {
            let settings = Arc::clone(settings);
            let scan = move || {
                let lines = settings.dot_lines.scan(&file);
                (file, lines)
            };
            net::run_on_disk_thread(scan).await?
        }
    };
    let form = match lines {
        Ok(lines) if lines.offsets.len() as u64 > file.octets / OCTETS_PER_DOT_LINE_MIN => LargeForm::Chunks,
        Ok(lines) => LargeForm::Ranges(lines),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => LargeForm::Chunks,
        Err(error) => return Err(error),
    };
    Ok((file, form))
}

impl OpenMessage {
    /// Gives the next chunk to the machine.
    pub(super) async fn give_chunk(&mut self, server: &mut Pop3Server) -> io::Result<()> {
        let octets = CHUNK_OCTETS.min(self.octets - self.given);
        let range = FileRange { file: &self.file, offset: self.given, octets };
        self.given += octets;
        let is_last = self.given == self.octets;
        let is_cached = MESSAGE.with_borrow_mut(|buffer| {
            let bytes = &mut buffer[..octets as usize];
            let is_cached = range.read_if_cached(bytes)?;
            if is_cached {
                server.handle_chunk(net::steady_now(), bytes, is_last);
            }
            Ok::<_, io::Error>(is_cached)
        })?;
        if !is_cached {
            let bytes = Box::pin(range.read()).await?;
            server.handle_chunk(net::steady_now(), &bytes, is_last);
        }
        Ok(())
    }
}
