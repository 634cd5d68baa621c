//! Signing as a check of messages, the last one before they are stored.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest::Digest;
use filter::{
    Check, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, Edit, Field, Origin, SessionInfo, Stages, Submitter,
    Verdict,
};

use super::policy::{Deferral, SigningPolicy, read_header};
use super::signer::{BodyHasher, HASHED_BYTES_MAX};

/// Makes the checks that sign.
pub struct SigningCheck {
    /// Which messages.
    pub policy: Arc<SigningPolicy>,
}

impl CheckFactory for SigningCheck {
    fn order(&self) -> CheckOrder {
        CheckOrder::Signing
    }

    fn stages(&self, origin: Origin) -> Stages {
        self.policy.stages(origin)
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(self)
    }
}

impl Check for Arc<SigningCheck> {
    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        Box::pin(async move {
            if !self.policy.includes(session.submitter) {
                return Verdict::default();
            }
            match self.sign(session.submitter, message).await {
                Ok(fields) => {
                    Verdict { edits: fields.into_iter().map(Edit::PrependField).collect(), ..Verdict::default() }
                }
                Err(why) => self.policy.defer(&why),
            }
        })
    }
}

impl SigningCheck {
    /// The fields of the signatures; none if the message is not to be signed.
    async fn sign(&self, submitter: Submitter<'_>, message: &mut dyn CheckedMessage) -> Result<Vec<Field>, Deferral> {
        let Some((header, body_start)) = read_header(message).await? else { return Ok(Vec::new()) };
        let Some(to_sign) = self.policy.begin(submitter, &header).await? else { return Ok(Vec::new()) };
        let body_hash = hash_body(message, body_start).await?;
        let signed = self.policy.signer.sign(&to_sign, &body_hash, SystemTime::now().into()).await;
        signed.map_err(|error| Deferral(error.to_string()))
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
