//! The session of one client: its login here, the login at the backend, and the tunnel.

use std::io;
use std::sync::Arc;

use credentials::{PendingLogin, RemoteLoginAdmission};
use mail::{MailEvent, Timestamp, TlsInfo};
use net::{AdmittedClient, ConnectionHandler, OutputPiece, TlsServer, Tunnel};
use protocol::backend_login::{BackendLoginRequest, BackendRefusal};
use protocol::sasl::{Mechanism, Nonce, PasswordVerdict, SaslOutcome, ScramKeysAnswer, Secret};

use super::BackendAddress;
use super::backend_hosts::BackendTarget;
use super::backend_login::{BackendLoginFailure, LoggedIn, log_in};
use super::login_machine::{LoginAction, LoginMachine, LoginQuestion, ProxyRefusal};
use super::settings::{BackendAccount, BackendTls, MasterUser, MasterUserForm, ProxySettings};
use crate::counters::BackendLoginResult;
use crate::{MailboxHome, RetrievalContext};

/// A session.
pub(super) struct ProxySession<M> {
    context: Arc<RetrievalContext>,
    settings: Arc<ProxySettings>,
    tls_server: Option<Arc<TlsServer>>,
    client: AdmittedClient,
    machine: M,
    /// A SCRAM proof in progress, and where to report its result.
    proof: Option<Box<PendingLogin>>,
    /// The password that was right here, until the backend has it.
    password: Option<Secret>,
    /// The login that has verified the password.
    logged_in: Option<Box<LoggedIn>>,
    /// What the client gets of the backend before the tunnel carries the rest.
    reply: Vec<u8>,
    reply_sent: usize,
    tunnel: Option<Box<Tunnel>>,
}

/// Why there is no login at the backend.
enum OpenFailure {
    /// The backend does not accept name and password.
    Credentials,
    Refused(ProxyRefusal),
}

impl<M: LoginMachine> ProxySession<M> {
    pub(super) fn new(
        context: Arc<RetrievalContext>,
        settings: Arc<ProxySettings>,
        tls_server: Option<Arc<TlsServer>>,
        client: AdmittedClient,
        machine: M,
    ) -> Self {
        let (proof, password, logged_in, tunnel) = (None, None, None, None);
        let (reply, reply_sent) = (Vec::new(), 0);
        ProxySession {
            context,
            settings,
            tls_server,
            client,
            machine,
            proof,
            password,
            logged_in,
            reply,
            reply_sent,
            tunnel,
        }
    }

    async fn answer(&mut self, question: LoginQuestion) {
        match question {
            LoginQuestion::Password { user, password } => {
                let verdict = match self.settings.account {
                    BackendAccount::UserUnchecked => self.verify_at_backend(&user, password).await,
                    BackendAccount::User | BackendAccount::Master(_) => self.verify(&user, password).await,
                };
                self.machine.handle_password_verdict(net::steady_now(), verdict);
            }
            LoginQuestion::ScramKeys { user } => self.answer_scram_keys(&user).await,
            LoginQuestion::Open { user } => {
                let opened = match self.logged_in.take() {
                    Some(logged_in) => Ok(*logged_in),
                    None => self.open(&user).await,
                };
                match opened {
                    Ok(logged_in) => self.hand_over(logged_in),
                    Err(refusal) => self.machine.handle_open_refused(net::steady_now(), refusal),
                }
            }
        }
    }

    /// Checks a password, which the backend gets too if there is no master user.
    async fn verify(&mut self, user: &str, password: Secret) -> PasswordVerdict {
        // The result of an earlier proof would have been reported by now.
        self.proof = None;
        let context = &self.context;
        let Some(credentials) = &context.credentials else { return PasswordVerdict::Unavailable };
        let client = Some(self.client.address);
        let verdict = credentials.answer_password(user, &password, client, &*context.operator_log).await;
        let is_needed =
            matches!((&verdict, &self.settings.account), (PasswordVerdict::Accepted { .. }, BackendAccount::User));
        self.password = is_needed.then_some(password);
        verdict
    }

    /// Lets the backend check a password; failures count here. A user without a mailbox looks like
    /// one with a wrong password.
    async fn verify_at_backend(&mut self, user: &str, password: Secret) -> PasswordVerdict {
        let (user, pending) = match &self.context.credentials {
            Some(credentials) => match credentials.admit_remote_login(user, self.client.address) {
                RemoteLoginAdmission::Admitted { user, pending } => (user, Some(pending)),
                RemoteLoginAdmission::Refused => return PasswordVerdict::Refused,
                RemoteLoginAdmission::Throttled => return PasswordVerdict::Throttled,
            },
            None => (user.to_lowercase().into(), None),
        };
        let opened = match self.locate(&user).await {
            Ok(address) => self.log_in(address, &user, user.clone(), password, None).await,
            Err(refusal) => Err(OpenFailure::Refused(refusal)),
        };
        let (verdict, settle): (_, fn(PendingLogin)) = match opened {
            Ok(logged_in) => {
                self.logged_in = Some(Box::new(logged_in));
                (PasswordVerdict::Accepted { user }, PendingLogin::record_success)
            }
            Err(OpenFailure::Credentials | OpenFailure::Refused(ProxyRefusal::NoMailbox)) => {
                (PasswordVerdict::Refused, PendingLogin::record_failure)
            }
            Err(OpenFailure::Refused(_)) => (PasswordVerdict::Unavailable, PendingLogin::record_unavailable),
        };
        pending.into_iter().for_each(settle);
        verdict
    }

    async fn answer_scram_keys(&mut self, user: &str) {
        let (keys, nonce) = match &self.context.credentials {
            Some(credentials) => {
                let (client, log) = (Some(self.client.address), &*self.context.operator_log);
                let challenge = credentials.answer_scram_keys(user, client, log).await;
                self.proof = challenge.pending.map(Box::new);
                (challenge.keys, challenge.nonce)
            }
            // No exchange follows in which the nonce is used.
            None => (ScramKeysAnswer::Unavailable, Nonce::from_random([0; Nonce::OCTETS])),
        };
        self.machine.handle_scram_keys(net::steady_now(), keys, &nonce);
    }

    /// Logs in at the backend of a user who has logged in here.
    async fn open(&mut self, user: &str) -> Result<LoggedIn, ProxyRefusal> {
        let address = self.locate(user).await?;
        let (name, password, authzid) = match &self.settings.account {
            BackendAccount::Master(MasterUser { user: master, password, form }) => match form {
                MasterUserForm::Authzid => (master.clone(), password.clone(), Some(user.into())),
                MasterUserForm::Separator(separator) => {
                    (format!("{user}{separator}{master}").into(), password.clone(), None)
                }
            },
            BackendAccount::User | BackendAccount::UserUnchecked => {
                let password = self.password.take().ok_or(ProxyRefusal::Unavailable)?;
                (user.into(), password, None)
            }
        };
        self.log_in(address, user, name, password, authzid).await.map_err(|failure| match failure {
            OpenFailure::Credentials => {
                self.log_failure(user, "the backend refuses a login that is right here");
                ProxyRefusal::Unavailable
            }
            OpenFailure::Refused(refusal) => refusal,
        })
    }

    /// The backend of a user.
    async fn locate(&self, user: &str) -> Result<BackendAddress, ProxyRefusal> {
        match self.context.mailboxes.locate(user).await {
            MailboxHome::Here(_) => self.settings.on_this_host.clone().ok_or(ProxyRefusal::NotServed),
            MailboxHome::OtherHost(host) => BackendAddress::parse(&host, self.settings.port).map_err(|error| {
                self.log_failure(user, &format!("invalid backend {host:?}: {error}"));
                ProxyRefusal::Unavailable
            }),
            MailboxHome::Unknown => Err(ProxyRefusal::NoMailbox),
            MailboxHome::Unavailable(why) => {
                self.log_failure(user, &why);
                Err(ProxyRefusal::Unavailable)
            }
        }
    }

    /// Logs in at the backend, with this name and password.
    async fn log_in(
        &self,
        address: BackendAddress,
        user: &str,
        name: Box<str>,
        password: Secret,
        authzid: Option<Box<str>>,
    ) -> Result<LoggedIn, OpenFailure> {
        let settings = &self.settings;
        let target = BackendTarget { address, protocol: M::PROTOCOL, tls: settings.tls.clone() };
        let request = BackendLoginRequest {
            protocol: M::PROTOCOL,
            starts_tls: matches!(settings.tls, BackendTls::StartTls(_)),
            method: settings.method,
            authzid,
            user: name,
            password,
            client: settings.tells_client_address.then_some(self.client.address),
        };
        let unavailable = Err(OpenFailure::Refused(ProxyRefusal::Unavailable));
        let logged_in = log_in(&settings.hosts, &target, request).await;
        self.context.counters.count_backend_login(match &logged_in {
            Ok(_) => BackendLoginResult::Accepted,
            Err(BackendLoginFailure::Refused(_)) => BackendLoginResult::Refused,
            Err(BackendLoginFailure::Busy | BackendLoginFailure::Failed(_)) => BackendLoginResult::Unavailable,
        });
        match logged_in {
            Ok(logged_in) => Ok(logged_in),
            Err(BackendLoginFailure::Busy) => unavailable,
            Err(BackendLoginFailure::Failed(why)) => {
                self.log_failure(user, &format!("backend {}: {why}", target.address));
                unavailable
            }
            Err(BackendLoginFailure::Refused(BackendRefusal { is_about_credentials: true, .. })) => {
                Err(OpenFailure::Credentials)
            }
            Err(BackendLoginFailure::Refused(BackendRefusal { text, .. })) if text.starts_with('[') => {
                Err(OpenFailure::Refused(ProxyRefusal::Backend(text)))
            }
            Err(BackendLoginFailure::Refused(BackendRefusal { text, .. })) => {
                self.log_failure(user, &format!("backend {}: {text}", target.address));
                unavailable
            }
        }
    }

    /// The backend has the client from now on.
    fn hand_over(&mut self, logged_in: LoggedIn) {
        let LoggedIn { connection, acceptance, rest } = logged_in;
        let mut reply = Vec::new();
        if let Some(first_to_backend) = self.machine.hand_over(&acceptance, &mut reply) {
            reply.extend(rest);
            self.reply = reply;
            let idle_time_max = self.settings.idle_time_max;
            self.tunnel = Some(Box::new(Tunnel { backend: connection, first_to_backend, idle_time_max }));
        }
    }

    fn finish_login(&mut self, mechanism: Mechanism, user: Box<str>, outcome: &SaslOutcome) {
        credentials::finish_proof(self.proof.take().map(|pending| *pending), mechanism, outcome);
        let client = Some(self.client.address);
        self.context.event_log.write(credentials::login_event(client, "", mechanism, user, outcome));
    }

    fn log_refusal(&self, stage: &str, reply: &str) {
        let (protocol, client) = (M::PROTOCOL, self.client.address);
        self.context.operator_log.log_line(format_args!("{protocol} session of {client}: {stage}: {reply}"));
    }

    fn log_failure(&self, user: &str, why: &str) {
        self.context.operator_log.log_line(format_args!("cannot open the mailbox of user {user:?}: {why}"));
    }
}

impl<M: LoginMachine> ConnectionHandler for ProxySession<M> {
    fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        self.machine.handle_input(now, input);
    }

    fn handle_disconnect(&mut self, _now: Timestamp) {
        self.machine.handle_disconnect();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.machine.handle_timeout(now);
    }

    fn handle_stop(&mut self, now: Timestamp) {
        // A tunnel sees the stop itself.
        if self.tunnel.is_none() {
            self.machine.handle_shutdown(now);
        }
    }

    async fn work(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            match action {
                // Boxed: a session is idle most of the time.
                LoginAction::Ask(question) => Box::pin(self.answer(question)).await,
                LoginAction::Login { mechanism, user, outcome } => self.finish_login(mechanism, user, &outcome),
                LoginAction::Refused { stage, reply } => self.log_refusal(stage, &reply),
            }
        }
    }

    fn output(&self) -> OutputPiece<'_> {
        let output = self.machine.output();
        OutputPiece::Bytes(if output.is_empty() { &self.reply[self.reply_sent..] } else { output })
    }

    fn handle_sent(&mut self, count: usize) {
        if self.machine.output().is_empty() {
            self.reply_sent += count;
        } else {
            self.machine.handle_sent(net::steady_now(), count);
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.machine.poll_deadline()
    }

    fn wants_close(&self) -> bool {
        self.tunnel.is_none() && self.machine.wants_close()
    }

    fn has_work(&self) -> bool {
        self.machine.can_continue()
    }

    fn wants_handshake(&self) -> Option<Arc<TlsServer>> {
        self.tls_server.as_ref().filter(|_| self.machine.wants_handshake()).cloned()
    }

    fn handle_tls_established(&mut self, now: Timestamp, security: TlsInfo) {
        self.context.tls_handshakes.count_made(security);
        self.machine.handle_tls_established(now);
    }

    fn handle_handshake_failed(&mut self, _now: Timestamp, error: &io::Error) {
        self.context.tls_handshakes.count_failed();
        let (client, helo, reason) = (Some(self.client.address), "".into(), error.to_string().into());
        self.context.event_log.write(MailEvent::TlsFailed { client, helo, reason });
    }

    fn take_tunnel(&mut self) -> Option<Box<Tunnel>> {
        let tunnel = self.tunnel.take();
        if tunnel.is_some() {
            (self.reply, self.reply_sent) = (Vec::new(), 0);
        }
        tunnel
    }
}
