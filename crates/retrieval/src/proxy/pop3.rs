//! The POP3 proxy as a protocol of listeners. The machine is that of the POP3 server, whose maildrop
//! is never opened.

use std::sync::Arc;

use mail::Timestamp;
use net::{AdmissionRefusal, AdmittedClient, ConnectionHandler};
use protocol::backend_login::{BackendAcceptance, BackendProtocol};
use protocol::pop3::server::{OpenRefusal, Pop3Action, Pop3Output, Pop3Question, Pop3Server, Pop3ServerConfig};
use protocol::sasl::{Nonce, PasswordVerdict, ScramKeysAnswer};

use super::login_machine::{LoginAction, LoginMachine, LoginQuestion, ProxyRefusal};
use super::session::ProxySession;
use super::settings::ProxySettings;
use crate::{RetrievalListener, RetrievalProtocol};

/// Passes POP3 clients on to the hosts of their mailboxes.
#[derive(Clone)]
pub struct Pop3ProxyProtocol {
    config: Arc<Pop3ServerConfig>,
    settings: Arc<ProxySettings>,
}

impl Pop3ProxyProtocol {
    /// Offers those of the configured mechanisms that the proxy can use: SCRAM only with a master
    /// user.
    pub fn new(mut config: Pop3ServerConfig, settings: ProxySettings) -> Pop3ProxyProtocol {
        config.auth.mechanisms = settings.usable_mechanisms(&config.auth.mechanisms);
        Pop3ProxyProtocol { config: Arc::new(config), settings: Arc::new(settings) }
    }
}

impl RetrievalProtocol for Pop3ProxyProtocol {
    fn refusal_reply(&self, reason: AdmissionRefusal) -> Vec<u8> {
        format!("-ERR [SYS/TEMP] {reason}\r\n").into_bytes()
    }

    fn open(listener: RetrievalListener<Self>, client: AdmittedClient) -> impl ConnectionHandler + Send {
        let RetrievalListener { context, protocol: Pop3ProxyProtocol { config, settings }, tls_server, .. } = listener;
        let machine = Pop3Server::new(config, net::steady_now());
        ProxySession::new(context, settings, tls_server, client, machine)
    }
}

impl LoginMachine for Pop3Server {
    const PROTOCOL: BackendProtocol = BackendProtocol::Pop3;

    fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        self.handle_input(now, input);
    }

    fn handle_disconnect(&mut self) {
        self.handle_disconnect();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.handle_timeout(now);
    }

    fn handle_shutdown(&mut self, _now: Timestamp) {
        self.handle_shutdown();
    }

    fn handle_tls_established(&mut self, now: Timestamp) {
        self.handle_tls_established(now);
    }

    fn poll_action(&mut self) -> Option<LoginAction> {
        Some(match self.poll_action()? {
            Pop3Action::Ask(Pop3Question::Password { user, password }) => {
                LoginAction::Ask(LoginQuestion::Password { user, password })
            }
            Pop3Action::Ask(Pop3Question::ScramKeys { user }) => LoginAction::Ask(LoginQuestion::ScramKeys { user }),
            Pop3Action::Ask(Pop3Question::Open { user }) => LoginAction::Ask(LoginQuestion::Open { user }),
            // These are asked about an open maildrop.
            Pop3Action::Ask(Pop3Question::Retrieve { .. } | Pop3Question::More | Pop3Question::Update { .. }) => {
                return None;
            }
            Pop3Action::Login { mechanism, user, outcome } => LoginAction::Login { mechanism, user, outcome },
            Pop3Action::Refused { stage, reply } => LoginAction::Refused { stage, reply: reply.into() },
        })
    }

    fn output(&self) -> &[u8] {
        match self.output() {
            Pop3Output::Bytes(bytes) | Pop3Output::Head(bytes) => bytes,
            // Without a maildrop there are no files.
            Pop3Output::File { .. } => &[],
        }
    }

    fn handle_sent(&mut self, now: Timestamp, count: usize) {
        self.handle_sent(now, count);
    }

    fn can_continue(&self) -> bool {
        self.can_continue()
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
            ProxyRefusal::Backend(text) if text.to_ascii_uppercase().starts_with("[IN-USE]") => OpenRefusal::InUse,
            ProxyRefusal::Unavailable | ProxyRefusal::Backend(_) => OpenRefusal::Unavailable,
            ProxyRefusal::NoMailbox | ProxyRefusal::NotServed => OpenRefusal::NoMailbox,
        };
        self.handle_opened(now, Err(refusal));
    }

    fn hand_over(&mut self, acceptance: &BackendAcceptance, reply: &mut Vec<u8>) -> Option<Vec<u8>> {
        let pipelined = self.take_pipelined_input()?;
        reply.extend([b"+OK ", acceptance.text.as_bytes(), b"\r\n"].concat());
        Some(pipelined)
    }
}
