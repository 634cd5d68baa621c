//! Which messages are signed, for the checks that prepare and sign them.
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

use filter::{Decision, Origin, Refusal, Stage, Stages, Submitter, Verdict};
use mail::{Address, EnhancedCode, OperatorLog, Reply};

use super::signer::{MessageToSign, Signer};
use crate::message_header::MessageHeader;

/// The name in refusals.
const NAME: &str = "signing";
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

/// Who signs, and for whom.
pub struct SigningPolicy {
    /// Signs.
    pub signer: Arc<Signer>,
    /// Whose mail.
    pub submitters: SignedSubmitters,
    /// Which addresses users may use; None: any.
    pub rights: Option<Arc<dyn AuthorRights>>,
    /// Where failures are logged.
    pub log: Arc<dyn OperatorLog>,
}

/// Why a message that is to be signed is deferred, for the log.
pub(super) struct Deferral(pub(super) String);

impl From<io::Error> for Deferral {
    fn from(error: io::Error) -> Deferral {
        Deferral(format!("unable to read it: {error}"))
    }
}

impl SigningPolicy {
    /// The stages of the checks.
    pub(super) fn stages(&self, origin: Origin) -> Stages {
        let is_used = match origin {
            Origin::Client => self.submitters.users || self.submitters.relay_networks,
            Origin::LocalProgram => self.submitters.local_programs,
        };
        is_used.then_some(Stage::Message).into_iter().collect()
    }

    /// Whether mail of this client can be signed.
    pub(super) fn includes(&self, submitter: Submitter<'_>) -> bool {
        self.submitters.include(submitter)
    }

    /// What is needed to sign a message with this header; None: it is not signed.
    pub(super) async fn begin<'h>(
        &self,
        submitter: Submitter<'_>,
        header: &'h MessageHeader,
    ) -> Result<Option<MessageToSign<'h>>, Deferral> {
        let to_sign = self.signer.begin(header).await.map_err(|error| Deferral(error.to_string()))?;
        let Some(to_sign) = to_sign else { return Ok(None) };
        let is_allowed = match (&self.rights, submitter) {
            (Some(rights), Submitter::User(user)) => rights.may_use(user, to_sign.author()).await.map_err(Deferral)?,
            _ => true,
        };
        Ok(is_allowed.then_some(to_sign))
    }

    /// The verdict on a message that cannot be signed now.
    pub(super) fn defer(&self, why: &Deferral) -> Verdict {
        self.signer.counters().deferred.fetch_add(1, Relaxed);
        self.log.log_line(format_args!("cannot sign a message: {}", why.0));
        Decision::Refuse(Refusal { by: NAME.into(), reply: NOT_SIGNED }).into()
    }
}
