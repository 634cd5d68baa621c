//! Logins at next hops: which credentials a task uses, and what the connection must be like before
//! they are sent. Connections that are logged in carry only mail with the same login. A host that the
//! address of a recipient chose gets no login: its certificate only proves a name that the recipient
//! chose.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use mail::Address;
use protocol::sasl::client::{ScramProof, ScramWork};
use protocol::smtp::client::{SmtpClientConfig, SmtpCredentials};
use tokio::sync::Semaphore;

use super::{NextHop, RemoteDeliveryConfig};

/// The logins of a transport.
#[derive(Clone, Debug)]
pub struct RelayLogins {
    /// Where the credentials come from.
    pub source: Arc<dyn LoginSource>,
    /// What the connection must be like.
    pub security: LoginSecurity,
}

/// Where the credentials of a transport come from.
pub trait LoginSource: fmt::Debug + Send + Sync {
    /// The login for mail of this sender; None: without a login. The error, which contains no
    /// secrets, defers the mail.
    fn find<'a>(&'a self, sender: Option<&'a Address>) -> LoginFuture<'a>;

    /// Whether senders have logins of their own. If so, the failure of one says nothing about the
    /// others.
    fn depends_on_sender(&self) -> bool;
}

/// Resolves to a login.
pub type LoginFuture<'a> = Pin<Box<dyn Future<Output = Result<Option<SmtpCredentials>, String>> + Send + 'a>>;

/// What a connection must be like before a login is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoginSecurity {
    /// TLS, and the host has proved its name.
    #[default]
    Verified,
    /// TLS with any certificate, which an active attacker can present too.
    Encrypted,
    /// Anything, even clear text.
    ClearText,
}

/// The same next hop, with the login for mail of this sender. Err: the mail waits.
pub(super) async fn logged_in(
    next_hop: &Arc<NextHop>,
    logins: &RelayLogins,
    sender: Option<&Address>,
) -> Result<Arc<NextHop>, String> {
    let Some(credentials) = logins.source.find(sender).await? else { return Ok(next_hop.clone()) };
    if !next_hop.is_configured {
        let user = credentials.user();
        return Err(format!(
            "login as {user:?}: no login is sent to hosts that the recipient's address leads to; set `next_hop`"
        ));
    }
    let client = SmtpClientConfig { credentials: Some(credentials), ..(*next_hop.config.client).clone() };
    let config = RemoteDeliveryConfig { client: Arc::new(client), ..(*next_hop.config).clone() };
    Ok(Arc::new(NextHop { config: Arc::new(config), ..(**next_hop).clone() }))
}

/// Computes a proof of SCRAM on a blocking thread, of which all connections have few. Err: the runtime
/// is stopping.
pub(super) async fn compute_proof(work: Box<ScramWork>) -> Result<ScramProof, String> {
    static THREADS: Semaphore = Semaphore::const_new(PROOF_THREADS_MAX);
    let _thread = THREADS.acquire().await;
    let computed = tokio::task::spawn_blocking(move || work.compute()).await;
    computed.map_err(|_| "this server is stopping".to_owned())
}

/// The most proofs that are computed at the same time.
const PROOF_THREADS_MAX: usize = 2;

impl NextHop {
    /// The login of tasks for this next hop.
    pub(super) fn login(&self) -> Option<&SmtpCredentials> {
        self.config.client.credentials.as_ref()
    }
}
