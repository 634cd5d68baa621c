//! Signing as a check of messages, the last one before they are stored.

use std::sync::Arc;
use std::time::SystemTime;

use filter::{
    Check, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, Edit, Field, Origin, SessionInfo, Stages, Submitter,
    Verdict,
};

use super::content::{read_content, read_header};
use super::policy::{Deferral, SigningPolicy};
use super::signer::RelaxedBodyHasher;

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
        Box::new(MessageSigning(self))
    }
}

/// The check of one session, which keeps nothing of it.
struct MessageSigning(Arc<SigningCheck>);

impl Check for MessageSigning {
    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        Box::pin(async move {
            if !self.0.policy.includes(session.submitter) {
                return Verdict::default();
            }
            match self.0.sign(session.submitter, message).await {
                Ok(fields) => {
                    Verdict { edits: fields.into_iter().map(Edit::PrependField).collect(), ..Verdict::default() }
                }
                Err(why) => self.0.policy.defer(&why),
            }
        })
    }
}

impl SigningCheck {
    /// The fields of the signatures; none if the message is not to be signed.
    async fn sign(&self, submitter: Submitter<'_>, message: &mut dyn CheckedMessage) -> Result<Vec<Field>, Deferral> {
        let Some((header, body_start)) = read_header(message).await? else { return Ok(Vec::new()) };
        let Some(to_sign) = self.policy.begin(submitter, &header).await? else { return Ok(Vec::new()) };
        let mut hasher = RelaxedBodyHasher::default();
        read_content(message, body_start, |bytes| hasher.update(bytes)).await?;
        let signed = self.policy.signer.sign(&to_sign, &hasher.finish(), SystemTime::now().into()).await;
        signed.map_err(|error| Deferral(error.to_string()))
    }
}
