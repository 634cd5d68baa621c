//! What the proxy needs of a protocol machine before the login, the same for all protocols.

use mail::Timestamp;
use protocol::backend_login::{BackendAcceptance, BackendProtocol};
use protocol::sasl::{Mechanism, Nonce, PasswordVerdict, SaslOutcome, ScramKeysAnswer, Secret};

/// A protocol machine up to the login. Its methods have the meaning of those of
/// [`net::ConnectionHandler`] and of the machines.
pub(super) trait LoginMachine: Send + Sync {
    /// The protocol of the backends.
    const PROTOCOL: BackendProtocol;

    fn handle_input(&mut self, now: Timestamp, input: &[u8]);
    fn handle_disconnect(&mut self);
    fn handle_timeout(&mut self, now: Timestamp);
    fn handle_shutdown(&mut self, now: Timestamp);
    fn handle_tls_established(&mut self, now: Timestamp);
    fn poll_action(&mut self) -> Option<LoginAction>;
    fn output(&self) -> &[u8];
    fn handle_sent(&mut self, now: Timestamp, count: usize);
    /// Whether there is more to do once the output is sent.
    fn can_continue(&self) -> bool;
    fn poll_deadline(&self) -> Option<Timestamp>;
    fn wants_handshake(&self) -> bool;
    fn wants_close(&self) -> bool;

    fn handle_password_verdict(&mut self, now: Timestamp, verdict: PasswordVerdict);
    fn handle_scram_keys(&mut self, now: Timestamp, keys: ScramKeysAnswer, nonce: &Nonce);
    fn handle_open_refused(&mut self, now: Timestamp, refusal: ProxyRefusal);
    /// The session belongs to the backend, with what the client has sent after its login, which is
    /// returned. What the machine does not send itself of the backend's reply is appended to `reply`.
    /// None: the machine has not asked for it.
    fn hand_over(&mut self, acceptance: &BackendAcceptance, reply: &mut Vec<u8>) -> Option<Vec<u8>>;
}

/// What the proxy must do.
pub(super) enum LoginAction {
    Ask(LoginQuestion),
    Login { mechanism: Mechanism, user: Box<str>, outcome: SaslOutcome },
    Refused { stage: &'static str, reply: Box<str> },
}

/// What the machine must know.
pub(super) enum LoginQuestion {
    Password { user: Box<str>, password: Secret },
    ScramKeys { user: Box<str> },
    Open { user: Box<str> },
}

/// Why a user is not passed on.
#[derive(Debug)]
pub(super) enum ProxyRefusal {
    /// Not at present; the operator's log has the reason.
    Unavailable,
    /// There is no mailbox.
    NoMailbox,
    /// The mailbox is on this host, which does not serve it by this protocol.
    NotServed,
    /// The backend's words, with a response code.
    Backend(Box<str>),
}
