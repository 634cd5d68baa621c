//! The IMAP proxy as a protocol of listeners.

use std::sync::Arc;

use mail::Timestamp;
use net::{AdmissionRefusal, AdmittedClient, ConnectionHandler};
use protocol::backend_login::{BackendAcceptance, BackendProtocol};
use protocol::imap::server::{ImapAction, ImapLoginSession, ImapOpenRefusal, ImapQuestion, ImapServerConfig};
use protocol::sasl::{Nonce, PasswordVerdict, ScramKeysAnswer};

use super::login_machine::{LoginAction, LoginMachine, LoginQuestion, ProxyRefusal};
use super::session::ProxySession;
use super::settings::ProxySettings;
use crate::{RetrievalListener, RetrievalProtocol};

/// Passes IMAP clients on to the hosts of their mailboxes.
#[derive(Clone)]
pub struct ImapProxyProtocol {
    config: Arc<ImapServerConfig>,
    settings: Arc<ProxySettings>,
}

impl ImapProxyProtocol {
    /// Offers those of the configured mechanisms that the proxy can use: SCRAM only with a master
    /// user.
    pub fn new(mut config: ImapServerConfig, settings: ProxySettings) -> ImapProxyProtocol {
        config.auth.mechanisms = settings.usable_mechanisms(&config.auth.mechanisms);
        ImapProxyProtocol { config: Arc::new(config), settings: Arc::new(settings) }
    }
}

impl RetrievalProtocol for ImapProxyProtocol {
    fn refusal_reply(&self, reason: AdmissionRefusal) -> Vec<u8> {
        format!("* BYE [UNAVAILABLE] {reason}\r\n").into_bytes()
    }

    fn open(listener: RetrievalListener<Self>, client: AdmittedClient) -> impl ConnectionHandler + Send {
        let RetrievalListener { context, protocol: ImapProxyProtocol { config, settings }, tls_server, .. } = listener;
        let machine = ImapLoginSession::new(config, net::steady_now());
        ProxySession::new(context, settings, tls_server, client, machine)
    }
}

impl LoginMachine for ImapLoginSession {
    const PROTOCOL: BackendProtocol = BackendProtocol::Imap;

    fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        self.handle_input(now, input);
    }

    fn handle_disconnect(&mut self) {
        self.handle_disconnect();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.handle_timeout(now);
    }

    fn handle_shutdown(&mut self, now: Timestamp) {
        self.handle_shutdown(now);
    }

    fn handle_tls_established(&mut self, now: Timestamp) {
        self.handle_tls_established(now);
    }

    fn poll_action(&mut self) -> Option<LoginAction> {
        Some(match self.poll_action()? {
            ImapAction::Ask(ImapQuestion::Password { user, password }) => {
                LoginAction::Ask(LoginQuestion::Password { user, password })
            }
            ImapAction::Ask(ImapQuestion::ScramKeys { user }) => LoginAction::Ask(LoginQuestion::ScramKeys { user }),
            ImapAction::Ask(ImapQuestion::Open { user }) => LoginAction::Ask(LoginQuestion::Open { user }),
            ImapAction::Login { mechanism, user, outcome } => LoginAction::Login { mechanism, user, outcome },
            ImapAction::Refused { stage, reply } => LoginAction::Refused { stage, reply },
        })
    }

    fn output(&self) -> &[u8] {
        self.output()
    }

    fn handle_sent(&mut self, _now: Timestamp, count: usize) {
        self.handle_sent(count);
    }

    fn can_continue(&self) -> bool {
        false
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        self.poll_deadline()
    }

    fn wants_handshake(&self) -> bool {
        self.wants_handshake()
    }

    fn wants_close(&self) -> bool {
        self.wants_close()
    }

    fn handle_password_verdict(&mut self, now: Timestamp, verdict: PasswordVerdict) {
        self.handle_password_verdict(now, verdict);
    }

    fn handle_scram_keys(&mut self, now: Timestamp, keys: ScramKeysAnswer, nonce: &Nonce) {
        self.handle_scram_keys(now, keys, nonce);
    }

    fn handle_open_refused(&mut self, now: Timestamp, refusal: ProxyRefusal) {
        let refusal = match refusal {
            ProxyRefusal::Unavailable => ImapOpenRefusal::Unavailable,
            ProxyRefusal::NoMailbox => ImapOpenRefusal::NoMailbox,
            ProxyRefusal::NotServed => ImapOpenRefusal::Backend("[CANNOT] IMAP is not available for this user".into()),
            ProxyRefusal::Backend(text) => ImapOpenRefusal::Backend(text),
        };
        self.handle_open_refused(now, &refusal);
    }

    fn hand_over(&mut self, acceptance: &BackendAcceptance, _reply: &mut Vec<u8>) -> Option<Vec<u8>> {
        self.hand_over(acceptance)
    }
}
