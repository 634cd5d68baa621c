//! The session of one client: answers the questions of the machine.
//!
//! An idle session has no buffer and no open message. A session that ends gives its maildrop to the
//! threads for disk work, which unlock it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use credentials::PendingLogin;
use mail::{MailEvent, Timestamp, TlsInfo};
use mailbox::maildrop::MaildropError;
use net::{AdmittedClient, ConnectionHandler, FileRange, OutputPiece, TlsServer};
use protocol::pop3::server::{Content, MaildropListing, OpenRefusal, Pop3Action, Pop3Output, Pop3Question, Pop3Server};
use protocol::sasl::{Mechanism, Nonce, PasswordVerdict, SaslOutcome, ScramKeysAnswer, Secret};

use super::Pop3Protocol;
use super::maildrop::OpenMaildrop;
use super::message::{self, OpenMessage};
use crate::{MailboxHome, RetrievalListener};

/// How often the lock of an open maildrop is refreshed. Other programs take it for abandoned after
/// five minutes.
const LOCK_REFRESH_INTERVAL: Duration = Duration::from_secs(2 * 60);

/// A POP3 session.
pub(super) struct Pop3Session {
    listener: RetrievalListener<Pop3Protocol>,
    server: Pop3Server,
    client: AdmittedClient,
    /// A SCRAM proof in progress, and where to report its result. Boxed: few clients log in this
    /// way.
    proof: Option<Box<PendingLogin>>,
    maildrop: Option<Arc<OpenMaildrop>>,
    lock_refreshed_at: Timestamp,
    /// The message that is being sent.
    message: Option<Box<OpenMessage>>,
}

impl Pop3Session {
    pub(super) fn new(listener: RetrievalListener<Pop3Protocol>, client: AdmittedClient) -> Pop3Session {
        let now = net::steady_now();
        let server = Pop3Server::new(Arc::clone(&listener.protocol.config), now);
        let (proof, maildrop, message) = (None, None, None);
        Pop3Session { listener, server, client, proof, maildrop, lock_refreshed_at: now, message }
    }

    /// What is rare is boxed: a session reserves room for the largest future all the time, and is
    /// idle most of it.
    async fn answer(&mut self, question: Pop3Question) {
        match question {
            Pop3Question::Retrieve { message, lines } => self.retrieve(message, lines.is_some()).await,
            Pop3Question::More => self.give_chunk().await,
            Pop3Question::Password { user, password } => Box::pin(self.verify_password(&user, &password)).await,
            Pop3Question::ScramKeys { user } => Box::pin(self.find_scram_keys(&user)).await,
            Pop3Question::Open { user } => {
                let opened = Box::pin(self.open_maildrop(&user)).await;
                self.server.handle_opened(net::steady_now(), opened);
            }
            Pop3Question::Update { deleted } => {
                let all_removed = Box::pin(self.update(deleted)).await;
                self.server.handle_updated(net::steady_now(), all_removed);
            }
        }
    }

    async fn verify_password(&mut self, user: &str, password: &Secret) {
        // The result of an earlier proof would have been reported by now.
        self.proof = None;
        let context = &self.listener.context;
        let verdict = match &context.credentials {
            Some(credentials) => {
                let client = Some(self.client.address);
                credentials.answer_password(user, password, client, &*context.operator_log).await
            }
            None => PasswordVerdict::Unavailable,
        };
        self.server.handle_password_verdict(net::steady_now(), verdict);
    }

    async fn find_scram_keys(&mut self, user: &str) {
        self.proof = None;
        let context = &self.listener.context;
        let Some(credentials) = &context.credentials else {
            // Such an answer needs no nonce.
            let nonce = Nonce::from_random([0; Nonce::OCTETS]);
            return self.server.handle_scram_keys(net::steady_now(), ScramKeysAnswer::Unavailable, &nonce);
        };
        let client = Some(self.client.address);
        let challenge = credentials.answer_scram_keys(user, client, &*context.operator_log).await;
        self.proof = challenge.pending.map(Box::new);
        self.server.handle_scram_keys(net::steady_now(), challenge.keys, &challenge.nonce);
    }

    /// A login has ended. Settles a pending SCRAM proof, which counts like a password check, and
    /// logs the login.
    fn finish_login(&mut self, mechanism: Mechanism, user: Box<str>, outcome: &SaslOutcome) {
        credentials::finish_proof(self.proof.take().map(|pending| *pending), mechanism, outcome);
        let event = credentials::login_event(Some(self.client.address), "", mechanism, user, outcome);
        self.listener.context.event_log.write(event);
    }

    async fn open_maildrop(&mut self, user: &str) -> Result<Arc<dyn MaildropListing>, OpenRefusal> {
        let folder = match self.listener.context.mailboxes.locate(user).await {
            MailboxHome::Here(folder) => folder,
            MailboxHome::OtherHost(_) => return Err(OpenRefusal::OtherHost),
            MailboxHome::Unknown => return Err(OpenRefusal::NoMailbox),
            MailboxHome::Unavailable(why) => {
                self.report(format_args!("cannot look up the mailbox of user {user:?}: {why}"));
                return Err(OpenRefusal::Unavailable);
            }
        };
        let settings = self.listener.protocol.settings.maildrop.clone();
        match OpenMaildrop::open(folder, settings).await {
            Ok(maildrop) => {
                for warning in maildrop.0.warnings() {
                    self.report(format_args!("mailbox of user {user:?}: {warning}"));
                }
                self.maildrop = Some(Arc::clone(&maildrop));
                self.lock_refreshed_at = net::steady_now();
                Ok(maildrop)
            }
            Err(MaildropError::InUse) => Err(OpenRefusal::InUse),
            Err(MaildropError::Unavailable(error)) => {
                self.report(format_args!("cannot open the mailbox of user {user:?}: {error}"));
                Err(OpenRefusal::Unavailable)
            }
        }
    }

    async fn retrieve(&mut self, message: usize, is_top: bool) {
        let Some(maildrop) = &self.maildrop else {
            return self.server.handle_content(net::steady_now(), Content::Unavailable);
        };
        let settings = &self.listener.protocol.settings;
        match message::retrieve(&mut self.server, maildrop, settings, message, is_top).await {
            Ok(message) => {
                self.message = message;
                self.listener.context.counters.count_message();
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.server.handle_content(net::steady_now(), Content::Gone);
            }
            Err(error) => {
                self.report_unreadable(message, &error);
                self.server.handle_content(net::steady_now(), Content::Unavailable);
            }
        }
    }

    async fn give_chunk(&mut self) {
        let Some(message) = &mut self.message else { return self.server.handle_content_failed() };
        if let Err(error) = message.give_chunk(&mut self.server).await {
            self.report_broken_off(&error);
            self.server.handle_content_failed();
        }
    }

    /// Removes messages, and unlocks the maildrop.
    async fn update(&mut self, deleted: Vec<usize>) -> bool {
        self.message = None;
        let Some(maildrop) = self.maildrop.take() else { return deleted.is_empty() };
        match maildrop.update(deleted).await {
            Ok(0) => true,
            Ok(left) => {
                self.report(format_args!("{left} messages of {} cannot be removed", self.user()));
                false
            }
            Err(error) => {
                self.report(format_args!("cannot update the mailbox of {}: {error}", self.user()));
                false
            }
        }
    }

    /// Refreshes the lock of a long session, on another thread.
    fn refresh_lock_if_due(&mut self, now: Timestamp) {
        if let Some(maildrop) = &self.maildrop
            && now >= self.lock_refreshed_at + LOCK_REFRESH_INTERVAL
        {
            self.lock_refreshed_at = now;
            maildrop.refresh_lock();
        }
    }

    fn report_unreadable(&self, message: usize, error: &io::Error) {
        let name = self.maildrop.as_ref().map(|maildrop| maildrop.0.file_name(message).escape_ascii().to_string());
        let name = name.unwrap_or_default();
        self.report(format_args!("cannot read the message {name} of {}: {error}", self.user()));
    }

    /// A part of the message was sent.
    fn report_broken_off(&self, error: &io::Error) {
        self.report(format_args!("cannot read a message of {}: {error}", self.user()));
    }

    fn user(&self) -> String {
        self.server.user().map_or_else(String::new, |user| format!("user {user:?}"))
    }

    fn report(&self, line: std::fmt::Arguments<'_>) {
        self.listener.context.operator_log.log_line(line);
    }

    fn log_refusal(&self, stage: &str, reply: &str) {
        let user = self.server.user().map(|user| format!(", user {user:?}")).unwrap_or_default();
        self.report(format_args!("POP3 session of {}{user}: {stage}: {reply}", self.client.address));
    }
}

/// Unlocking may wait for the disk.
impl Drop for Pop3Session {
    fn drop(&mut self) {
        // The machine has the maildrop as its listing.
        self.server.handle_disconnect();
        if let Some(maildrop) = self.maildrop.take() {
            maildrop.close();
        }
    }
}

impl ConnectionHandler for Pop3Session {
    fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        self.server.handle_input(now, input);
    }

    fn handle_disconnect(&mut self, _now: Timestamp) {
        self.server.handle_disconnect();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.refresh_lock_if_due(now);
        self.server.handle_timeout(now);
    }

    fn handle_stop(&mut self, _now: Timestamp) {
        self.server.handle_shutdown();
    }

    async fn work(&mut self) {
        while let Some(action) = self.server.poll_action() {
            match action {
                Pop3Action::Ask(question) => self.answer(question).await,
                Pop3Action::Login { mechanism, user, outcome } => self.finish_login(mechanism, user, &outcome),
                Pop3Action::Refused { stage, reply } => self.log_refusal(stage, reply),
            }
        }
        if !self.server.is_sending_content() {
            self.message = None;
        }
    }

    fn output(&self) -> OutputPiece<'_> {
        match self.server.output() {
            Pop3Output::Bytes(bytes) => OutputPiece::Bytes(bytes),
            Pop3Output::Head(bytes) => OutputPiece::Head(bytes),
            Pop3Output::File { offset, octets } => {
                let message = self.message.as_ref().expect("a message is open while ranges of it are sent");
                OutputPiece::File(FileRange { file: &message.file, offset, octets })
            }
        }
    }

    fn handle_sent(&mut self, count: usize) {
        self.server.handle_sent(net::steady_now(), count);
        if self.message.is_some() && !self.server.is_sending_content() {
            self.message = None;
        }
    }

    fn handle_file_failed(&mut self, error: &io::Error) {
        self.report_broken_off(error);
    }

    /// Also when to refresh the lock.
    fn deadline(&self) -> Option<Timestamp> {
        let deadline = self.server.poll_deadline()?;
        let refresh = self.maildrop.as_ref().map(|_| self.lock_refreshed_at + LOCK_REFRESH_INTERVAL);
        Some(refresh.map_or(deadline, |refresh| refresh.min(deadline)))
    }

    fn wants_close(&self) -> bool {
        self.server.wants_close()
    }

    fn has_work(&self) -> bool {
        self.server.can_continue()
    }

    fn wants_handshake(&self) -> Option<Arc<TlsServer>> {
        self.listener.tls_server.as_ref().filter(|_| self.server.wants_handshake()).cloned()
    }

    fn handle_tls_established(&mut self, now: Timestamp, security: TlsInfo) {
        self.listener.context.tls_handshakes.count_made(security);
        self.server.handle_tls_established(now);
    }

    fn handle_handshake_failed(&mut self, _now: Timestamp, error: &io::Error) {
        self.listener.context.tls_handshakes.count_failed();
        let (client, helo, reason) = (Some(self.client.address), "".into(), error.to_string().into());
        self.listener.context.event_log.write(MailEvent::TlsFailed { client, helo, reason });
    }
}
