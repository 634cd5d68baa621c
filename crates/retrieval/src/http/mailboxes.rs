//! The mailbox of the user who has logged in, as pages and files. Nothing in it is changed, except that
//! new messages get UIDs in `dovecot-uidlist`, as POP3 gives them.
//!
//! | path | mailbox | resource |
//! |---|---|---|
//! | `/` | the heads of one page of messages are read | a page |
//! | `/UID.eml` | the file of the message | its octets, as files are served |
//! | `/UID/`, `/UID/N/NAME` | the message is read into memory, if it is not too large | a page, a decoded part |
//!
//! Whatever comes from a message is hostile to the browser that shows it: pages escape it and allow
//! no scripts, and parts leave as attachments in a sandbox. It may be hostile to this server too:
//! what is read of a message is limited, and so are the messages in memory of all sessions.
//!
//! `mail_parser` reads header fields and decodes; the structure of messages is found here, since its own
//! reader of structures can panic on hostile ones.

mod attachment_name;
mod mail_path;
mod message_head;
mod pages;
mod parts;
mod user_mailbox;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;
use mailbox::maildrop::{MaildropView, MessageFile};
use net::run_on_disk_thread;
use protocol::http::server::{Content, ErrorStatus, HttpRequest, HttpResponse, Resource};
use rustix::fs::fstat;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::file_version::{self, DiskWait, FileVersion};
use super::{ContentResponse, OpenFile, RequestTime, ResponseSource};
use crate::RetrievalContext;

pub(super) use user_mailbox::UserMailbox;

use mail_path::MailPath;
use message_head::MessageHead;
use pages::MessagePage;
use parts::MessageParts;

/// Messages on one page of a mailbox.
pub const PAGE_MESSAGES_MAX: usize = 100;
/// Pages load nothing, and no other page can show them in a frame or load them.
const PAGE_FIELDS: &str = "Content-Security-Policy: default-src 'none'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'\r\nCross-Origin-Resource-Policy: same-origin\r\nCache-Control: private, no-cache\r\n";
/// A part that is shown in spite of being an attachment runs no scripts, and has no origin.
const PART_POLICY: &str = "sandbox; default-src 'none'";

/// How mailboxes are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailboxSettings {
    /// How long to wait while another program has `dovecot-uidlist` locked, if there are new messages.
    pub lock_timeout: Duration,
    /// All limits.
    pub limits: MailboxLimits,
}

/// Limits on what is read of mailboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxLimits {
    /// Octets of a message whose parts are listed and decoded. Larger ones are only served whole (413).
    pub message_octets_max: u32,
    /// Octets of messages in memory, of all sessions of the listener (503).
    pub memory_octets_max: usize,
    /// Parts of a message that are listed; the page says so if there are more.
    pub parts_max: usize,
    /// Octets of the head of a message that are read to show its fields. What is behind is not shown.
    pub head_octets_max: usize,
    /// How long a connection uses its listing of a mailbox without listing it again.
    pub listing_time: Duration,
}

impl Default for MailboxSettings {
    fn default() -> Self {
        MailboxSettings { lock_timeout: Duration::from_secs(2), limits: MailboxLimits::default() }
    }
}

impl Default for MailboxLimits {
    fn default() -> Self {
        MailboxLimits {
            message_octets_max: 16 << 20,
            memory_octets_max: 256 << 20,
            parts_max: 1000,
            head_octets_max: 32 << 10,
            listing_time: Duration::from_secs(1),
        }
    }
}

/// Serves the mailboxes of a listener.
pub(super) struct MailboxStore {
    settings: MailboxSettings,
    /// A permit for each octet of messages that may be in memory.
    memory: Arc<Semaphore>,
}

/// A message that was read into memory.
struct LoadedMessage {
    bytes: Vec<u8>,
    version: FileVersion,
    memory: OwnedSemaphorePermit,
}

impl MailboxStore {
    pub(super) fn new(settings: MailboxSettings) -> MailboxStore {
        let octets = settings.limits.memory_octets_max.min(Semaphore::MAX_PERMITS);
        MailboxStore { settings, memory: Arc::new(Semaphore::new(octets)) }
    }

    /// Answers a request of the user of this mailbox.
    pub(super) async fn respond(
        self: &Arc<Self>,
        mailbox: &mut UserMailbox,
        request: &HttpRequest,
        now: RequestTime,
        context: &RetrievalContext,
    ) -> ContentResponse {
        let Some(path) = MailPath::parse(&request.path, request.query.as_deref()) else {
            return HttpResponse::Error(ErrorStatus::NotFound).into();
        };
        let view = match mailbox.view(&self.settings, now.steady, context).await {
            Ok(view) => view,
            Err(status) => return HttpResponse::Error(status).into(),
        };
        let (store, user) = (Arc::clone(self), mailbox.user().to_owned());
        let answered = run_on_disk_thread(move || store.answer(&view, &user, path, now.wall)).await;
        answered.flatten().unwrap_or_else(|error| {
            let status = match error.kind() {
                // Another program has just deleted the message.
                io::ErrorKind::NotFound => ErrorStatus::NotFound,
                _ => {
                    let (path, user) = (request.path.escape_ascii(), mailbox.user());
                    context.operator_log.log_line(format_args!("cannot serve {path} of user {user:?}: {error}"));
                    ErrorStatus::Unavailable
                }
            };
            HttpResponse::Error(status).into()
        })
    }

    /// Blocks on the disk.
    fn answer(&self, view: &MaildropView, user: &str, path: MailPath, wall: Timestamp) -> io::Result<ContentResponse> {
        match path {
            MailPath::Messages { page } => self.list(view, user, page),
            MailPath::Message { uid } => serve_message(open(view, uid)?, uid, wall),
            MailPath::PartsWithoutSlash { uid } => {
                open(view, uid)?;
                Ok(HttpResponse::Moved(format!("/{uid}/")).into())
            }
            MailPath::Parts { uid } => self.list_parts(&open(view, uid)?, uid),
            MailPath::Part { uid, number } => self.serve_part(&open(view, uid)?, number, wall),
        }
    }

    /// The page with this number; 404 behind the last one.
    fn list(&self, view: &MaildropView, user: &str, page: usize) -> io::Result<ContentResponse> {
        let newer = (page - 1).saturating_mul(PAGE_MESSAGES_MAX);
        if newer > 0 && newer >= view.len() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let listed = (0..view.len()).rev().skip(newer).take(PAGE_MESSAGES_MAX);
        let row = |message| {
            let head = self.read_head(view, message).transpose()?;
            Some((view.uid(message), view.octets(message), head.unwrap_or_default()))
        };
        let rows: Vec<_> = listed.filter_map(row).collect();
        Ok(page_response(pages::messages(user, page, view.len(), &rows)))
    }

    /// The head of a message; None if the message was deleted.
    fn read_head(&self, view: &MaildropView, message: usize) -> io::Result<Option<MessageHead>> {
        match view.open_message(message, false) {
            Ok(opened) => {
                let bytes = read(&opened.file, opened.octets.min(self.settings.limits.head_octets_max as u64))?;
                Ok(Some(MessageHead::parse(&bytes)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list_parts(&self, opened: &MessageFile, uid: u32) -> io::Result<ContentResponse> {
        let limits = &self.settings.limits;
        let head_octets = opened.octets.min(limits.head_octets_max as u64);
        let mut page = MessagePage { uid, octets: opened.octets, head: MessageHead::default(), parts: None };
        if opened.octets > limits.message_octets_max.into() {
            page.head = MessageHead::parse(&read(&opened.file, head_octets)?);
        } else {
            let Some(message) = self.load(opened)? else { return Ok(unavailable()) };
            page.head = MessageHead::parse(&message.bytes[..message.bytes.len().min(head_octets as usize)]);
            page.parts = Some(MessageParts::find(&message.bytes, limits.head_octets_max, limits.parts_max));
        }
        Ok(page_response(page.to_html()))
    }

    fn serve_part(&self, opened: &MessageFile, number: usize, wall: Timestamp) -> io::Result<ContentResponse> {
        let limits = &self.settings.limits;
        if opened.octets > limits.message_octets_max.into() {
            return Ok(HttpResponse::Error(ErrorStatus::ContentTooLarge).into());
        }
        let Some(LoadedMessage { bytes, version, memory }) = self.load(opened)? else { return Ok(unavailable()) };
        let parts = MessageParts::find(&bytes, limits.head_octets_max, limits.parts_max);
        let part = number.checked_sub(1).and_then(|index| parts.parts.get(index)).ok_or(io::ErrorKind::NotFound)?;
        let content = Content::Bytes(part.decode(&bytes).into());
        let resource = as_attachment(version.resource(content, wall, part.content_type.clone()), &part.name);
        let source = ResponseSource { _memory: Some(memory), ..ResponseSource::default() };
        Ok(ContentResponse { response: HttpResponse::Resource(Arc::new(resource)), source })
    }

    /// Reads a message of permitted size; None if too much is in memory already. The permit is also
    /// for a part of it that is decoded, which is hardly larger.
    fn load(&self, opened: &MessageFile) -> io::Result<Option<LoadedMessage>> {
        let version = FileVersion::new(&fstat(&opened.file)?);
        let octets = u32::try_from(opened.octets).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let Ok(memory) = Arc::clone(&self.memory).try_acquire_many_owned(octets) else { return Ok(None) };
        Ok(Some(LoadedMessage { bytes: read(&opened.file, octets.into())?, version, memory }))
    }
}

/// The file of the message with this UID.
fn open(view: &MaildropView, uid: u32) -> io::Result<MessageFile> {
    view.open_message(view.find_uid(uid).ok_or(io::ErrorKind::NotFound)?, false)
}

/// Reads so many octets, or fewer if the file has become shorter.
fn read(file: &File, octets: u64) -> io::Result<Vec<u8>> {
    let octets = usize::try_from(octets).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let (mut bytes, mut filled) = (vec![0; octets], 0);
    while filled < octets {
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// The message as it is stored; a large one is sent from its file.
fn serve_message(opened: MessageFile, uid: u32, wall: Timestamp) -> io::Result<ContentResponse> {
    let version = FileVersion::new(&fstat(&opened.file)?);
    let (version, content) = file_version::load(&opened.file, version, DiskWait::Allowed)?;
    let is_large = matches!(content, Content::File { .. });
    let resource = as_attachment(version.resource(content, wall, "message/rfc822"), &format!("{uid}.eml"));
    let file = is_large.then(|| OpenFile { file: opened.file, path: format!("/{uid}.eml").into() });
    let source = ResponseSource { file, ..ResponseSource::default() };
    Ok(ContentResponse { response: HttpResponse::Resource(Arc::new(resource)), source })
}

/// Adds what keeps a browser from showing the content as part of this site, or giving it to others.
fn as_attachment(resource: Resource, name: &str) -> Resource {
    resource
        .with_field("Content-Disposition", &attachment_name::disposition(name))
        .with_field("Content-Security-Policy", PART_POLICY)
        .with_field("Cross-Origin-Resource-Policy", "same-origin")
        .with_field("Cache-Control", "private, no-cache")
}

fn page_response(html: String) -> ContentResponse {
    HttpResponse::Page { html: html.into_bytes().into(), fields: PAGE_FIELDS }.into()
}

fn unavailable() -> ContentResponse {
    HttpResponse::Error(ErrorStatus::Unavailable).into()
}
