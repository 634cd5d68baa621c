//! Signing as a check of messages, the last one before they are stored.
//!
//! | the message comes from | signed |
//! |---|---|
//! | a user who has logged in, and may use the address in From | yes |
//! | a user who may not use it | no |
//! | a relay network, a local program | yes |
//! | anyone else, also if an alias leads outside | no |
//!
//! Only if the From field has one author, in a domain with keys. A message that should be signed and
//! cannot be signed now is deferred (451): without its signature others may refuse it for good.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use aws_lc_rs::digest::Digest;
use filter::{
    Check, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, Decision, Edit, Field, Origin, Refusal, SessionInfo,
    Stage, Stages, Submitter, Verdict, header,
};
use mail::{Address, EnhancedCode, OperatorLog, Reply};

use super::signer::{BodyHasher, HASHED_BYTES_MAX, Signer};

/// The name in refusals.
const NAME: &str = "signing";
/// A message with a longer header is not signed.
const HEADER_BYTES_MAX: usize = 1 << 20;
const NOT_SIGNED: Reply = Reply::constant(451, EnhancedCode(4, 3, 0), "Cannot sign the message now, try again later");

/// The answer of [`AuthorRights`].
pub type RightsFuture<'a> = Pin<Box<dyn Future<Output = Result<bool, String>> + Send + 'a>>;

/// Which addresses users may write as.
pub trait AuthorRights: Send + Sync {
    /// Whether the user may use the address; the error is the reason why that is unknown.
    fn may_use<'a>(&'a self, user: &'a str, address: &'a Address) -> RightsFuture<'a>;
}

/// Whose mail is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedSubmitters {
    /// Users who have logged in.
    pub users: bool,
    /// Relay networks.
    pub relay_networks: bool,
    /// Programs on this machine.
    pub local_programs: bool,
}

impl Default for SignedSubmitters {
    fn default() -> Self {
        SignedSubmitters { users: true, relay_networks: true, local_programs: true }
    }
}

/// Makes the checks that sign.
pub struct SigningCheck {
    /// Signs.
    pub signer: Arc<Signer>,
    /// Whose mail.
    pub submitters: SignedSubmitters,
    /// Which addresses users may use; None: any.
    pub rights: Option<Arc<dyn AuthorRights>>,
    /// Where failures are logged.
    pub log: Arc<dyn OperatorLog>,
}

impl CheckFactory for SigningCheck {
    fn order(&self) -> CheckOrder {
        CheckOrder::Signing
    }

    fn stages(&self, origin: Origin) -> Stages {
        let is_used = match origin {
            Origin::Client => self.submitters.users || self.submitters.relay_networks,
            Origin::LocalProgram => self.submitters.local_programs,
        };
        is_used.then_some(Stage::Message).into_iter().collect()
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(self)
    }
}

impl Check for Arc<SigningCheck> {
    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        Box::pin(async move {
            if !self.submitters.include(session.submitter) {
                return Verdict::default();
            }
            match self.sign(session.submitter, message).await {
                Ok(fields) => {
                    Verdict { edits: fields.into_iter().map(Edit::PrependField).collect(), ..Verdict::default() }
                }
                Err(why) => self.defer(&why),
            }
        })
    }
}

impl SignedSubmitters {
    fn include(self, submitter: Submitter<'_>) -> bool {
        match submitter {
            Submitter::User(_) => self.users,
            Submitter::RelayNetwork => self.relay_networks,
            Submitter::LocalProgram => self.local_programs,
            Submitter::Stranger => false,
        }
    }
}

impl SigningCheck {
    /// The fields of the signatures; none if the message is not to be signed.
    async fn sign(&self, submitter: Submitter<'_>, message: &mut dyn CheckedMessage) -> Result<Vec<Field>, String> {
        let Some((header, body_start)) = read_header(message).await.map_err(unreadable)? else { return Ok(Vec::new()) };
        let to_sign = self.signer.begin(&header).await.map_err(|error| error.to_string())?;
        let Some(to_sign) = to_sign else { return Ok(Vec::new()) };
        if !self.may_author(submitter, to_sign.author()).await? {
            return Ok(Vec::new());
        }
        let body_hash = hash_body(message, body_start).await.map_err(unreadable)?;
        let signed = self.signer.sign(&to_sign, &body_hash, SystemTime::now().into()).await;
        signed.map_err(|error| error.to_string())
    }

    /// Whether the client may write as the author.
    async fn may_author(&self, submitter: Submitter<'_>, author: &Address) -> Result<bool, String> {
        let (Some(rights), Submitter::User(user)) = (&self.rights, submitter) else { return Ok(true) };
        rights.may_use(user, author).await
    }

    fn defer(&self, why: &str) -> Verdict {
        self.signer.counters().deferred.fetch_add(1, Relaxed);
        self.log.log_line(format_args!("cannot sign a message: {why}"));
        Decision::Refuse(Refusal { by: NAME.into(), reply: NOT_SIGNED }).into()
    }
}

fn unreadable(error: io::Error) -> String {
    format!("unable to read it: {error}")
}

/// The header of the whole message, with what was put before the content, and the position of the body
/// in the content. None: the header is too long.
async fn read_header(message: &mut dyn CheckedMessage) -> io::Result<Option<(Vec<u8>, u64)>> {
    let mut bytes = Vec::new();
    loop {
        let chunk = message.read_content(bytes.len() as u64).await?;
        let is_whole = chunk.is_empty();
        // The content may be in memory as a whole.
        bytes.extend_from_slice(&chunk[..chunk.len().min(HASHED_BYTES_MAX)]);
        if let Some(len) = header::header_len(&bytes, is_whole) {
            let has_empty_line = bytes[len..].starts_with(b"\r\n");
            bytes.truncate(len);
            bytes.splice(..0, message.prefix().iter().copied());
            return Ok(Some((bytes, len as u64 + if has_empty_line { 2 } else { 0 })));
        }
        if bytes.len() > HEADER_BYTES_MAX {
            return Ok(None);
        }
    }
}

/// Other sessions of the thread go on between two pieces.
async fn hash_body(message: &mut dyn CheckedMessage, start: u64) -> io::Result<Digest> {
    let (mut hasher, mut position) = (BodyHasher::default(), start);
    loop {
        let chunk = message.read_content(position).await?;
        if chunk.is_empty() {
            return Ok(hasher.finish());
        }
        let piece = &chunk[..chunk.len().min(HASHED_BYTES_MAX)];
        let has_more = piece.len() < chunk.len();
        hasher.update(piece);
        position += piece.len() as u64;
        if has_more {
            tokio::task::yield_now().await;
        }
    }
}
