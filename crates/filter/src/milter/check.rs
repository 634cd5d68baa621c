//! The check of one session by one milter.
//!
//! | transaction | after | then the milter is told of |
//! |---|---|---|
//! | None | connect, HELO | HELO, MAIL |
//! | Open | MAIL | all stages; an abort if another MAIL or HELO comes first |
//! | Decided | the milter accepted or refused the message, or its end came | MAIL |
//! | Discarded | the milter discarded the message, which holds even if its recipient is refused | MAIL |
//! | Failed | the milter failed | MAIL, on a new connection |

use std::future::{Future, ready};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use mail::{Address, EnhancedCode, Reply};
use protocol::milter::{MilterAnswer, MilterCommand};

use super::Milter;
use super::connection::MilterConnection;
use super::content::{own_received, send};
use super::edits::into_edits;
use super::failure::MilterFailure;
use super::macro_values::SessionMacros;
use super::parameters::{mail_parameters, rcpt_parameters};
use crate::access::ReverseName;
use crate::check::{Check, CheckFuture, CheckedMessage, Decision, Refusal, SessionInfo, Verdict};
use crate::client_names::{LOCALHOST, UNKNOWN, client_name};
use crate::stage::Stage;

const REJECTED: Reply = Reply::constant(550, EnhancedCode(5, 7, 1), "Command rejected");
const REJECTED_AT_CONNECT: Reply = Reply::constant(554, EnhancedCode(5, 7, 1), "Command rejected");
const DEFERRED: Reply = Reply::constant(451, EnhancedCode(4, 7, 1), "Service unavailable, try again later");
const SHUTDOWN: Reply = Reply::constant(421, EnhancedCode(4, 7, 0), "Closing the connection");

pub(super) struct MilterCheck {
    milter: Arc<Milter>,
    connection: Option<MilterConnection>,
    transaction: TransactionState,
    /// None until it is looked up.
    client_name: Option<ReverseName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransactionState {
    None,
    Open,
    Decided,
    Discarded,
    Failed,
}

type Answered = Result<MilterAnswer, MilterFailure>;

impl MilterCheck {
    pub(super) fn new(milter: Arc<Milter>) -> MilterCheck {
        MilterCheck { milter, connection: None, transaction: TransactionState::None, client_name: None }
    }

    async fn check_client(&mut self, session: &SessionInfo<'_>) -> Verdict {
        (self.connection, self.transaction, self.client_name) = (None, TransactionState::None, None);
        if !self.milter.settings.scope.includes_session(session) {
            return Decision::Accept.into();
        }
        let answered = self.begin_session(session).await;
        self.session_verdict(Stage::Connect, answered)
    }

    async fn check_helo(&mut self, session: &SessionInfo<'_>) -> Verdict {
        self.end_transaction();
        // Without a connection, MAIL tries again.
        let answered = match self.connection {
            Some(_) => self.greet(session).await,
            None => Ok(MilterAnswer::Continue),
        };
        self.session_verdict(Stage::Helo, answered)
    }

    async fn check_sender(&mut self, session: &SessionInfo<'_>) -> Verdict {
        self.end_transaction();
        if !self.milter.settings.scope.includes_message(session) {
            return Decision::Accept.into();
        }
        let answered = self.begin_transaction(session).await;
        self.verdict(Stage::Mail, answered)
    }

    async fn check_recipient(&mut self, session: &SessionInfo<'_>) -> Verdict {
        let answered = match self.transaction {
            TransactionState::Open => self.name_recipient(session, None).await,
            TransactionState::Failed => return self.failure_verdict(Stage::Rcpt),
            TransactionState::Discarded => return Decision::Discard { by: self.by() }.into(),
            TransactionState::None | TransactionState::Decided => return Verdict::default(),
        };
        self.verdict(Stage::Rcpt, answered)
    }

    async fn tell_refused(&mut self, session: &SessionInfo<'_>, reply: &Reply) {
        let client = self.connection.as_mut().and_then(MilterConnection::client);
        if self.transaction == TransactionState::Open && client.is_some_and(|client| client.wants_refused_recipients())
        {
            // The recipient is refused already, whatever the milter says.
            if let Err(failure) = self.name_recipient(session, Some(reply)).await {
                self.fail(&failure);
            }
        }
    }

    /// The answer is taken as one to RCPT: a refusal concerns the command alone, and the milter may accept or
    /// discard the message that is under way. A failure decides about that message, not about the command.
    async fn check_unknown_command(&mut self, session: &SessionInfo<'_>, line: &[u8]) -> Verdict {
        let is_settled = matches!(self.transaction, TransactionState::Discarded | TransactionState::Failed);
        if is_settled || self.connection.is_none() || !self.milter.settings.scope.includes_message(session) {
            return Verdict::default();
        }
        match (self.ask(session, None, &MilterCommand::Unknown(line)).await, self.transaction) {
            (Ok(answer), _) => self.decide(Stage::Rcpt, answer),
            (Err(failure), TransactionState::Open) => {
                self.fail(&failure);
                Verdict::default()
            }
            (failed, _) => self.session_verdict(Stage::Helo, failed),
        }
    }

    async fn check_data(&mut self, session: &SessionInfo<'_>) -> Verdict {
        let answered = match self.transaction {
            TransactionState::Open => self.ask(session, None, &MilterCommand::Data).await,
            TransactionState::Failed => return self.failure_verdict(Stage::Data),
            TransactionState::Discarded => return Decision::Discard { by: self.by() }.into(),
            TransactionState::None | TransactionState::Decided => return Verdict::default(),
        };
        self.verdict(Stage::Data, answered)
    }

    async fn check_message(&mut self, session: &SessionInfo<'_>, message: &mut dyn CheckedMessage) -> Verdict {
        let answered = match self.transaction {
            // Only mail of local programs has passed no stage before.
            TransactionState::None => {
                let recipients = message.recipients().into_iter().cloned().collect();
                self.pass_earlier_stages(session, recipients).await
            }
            TransactionState::Open => Ok(MilterAnswer::Continue),
            TransactionState::Failed => return self.failure_verdict(Stage::Message),
            TransactionState::Discarded => return Decision::Discard { by: self.by() }.into(),
            TransactionState::Decided => return Verdict::default(),
        };
        let answered = match answered {
            Ok(MilterAnswer::Continue) => self.send_message(session, message).await,
            other => other,
        };
        let edits = match &answered {
            Ok(MilterAnswer::Continue | MilterAnswer::Accept) => self.take_edits(message),
            _ => Ok(Verdict::default()),
        };
        match edits {
            Ok(Verdict { held, edits, .. }) => {
                let verdict = self.verdict(Stage::Message, answered);
                Verdict { held: held || verdict.held, edits, ..verdict }
            }
            Err(failure) => self.verdict(Stage::Message, Err(failure)),
        }
    }

    fn take_edits(&mut self, message: &dyn CheckedMessage) -> Result<Verdict, MilterFailure> {
        let Some(client) = self.connection.as_mut().and_then(MilterConnection::client) else {
            return Ok(Verdict::default());
        };
        let edits = client.take_edits();
        if let Some(reason) = &edits.quarantine {
            self.milter.log(format_args!("holds a message: {reason}"));
        }
        let held = edits.quarantine.is_some();
        let edits = into_edits(edits, own_received(message.prefix()).is_some(), &self.milter.hostname)?;
        Ok(Verdict { held, edits, ..Verdict::default() })
    }

    /// Connects, and tells the milter of the client.
    async fn begin_session(&mut self, session: &SessionInfo<'_>) -> Answered {
        if self.client_name.is_none() {
            self.client_name = Some(client_name(&*self.milter.names, session).await);
        }
        self.connection = Some(MilterConnection::open(&self.milter).await?);
        let name: Box<str> = self.client_name.as_ref().map_or(UNKNOWN, ReverseName::confirmed_or_unknown).into();
        let address = client_address(session).map(|address| SocketAddr::new(address, session.client_port));
        self.ask(session, None, &MilterCommand::Connect { name: &name, address }).await
    }

    async fn greet(&mut self, session: &SessionInfo<'_>) -> Answered {
        let name = if session.listener.is_none() { Some(LOCALHOST) } else { session.helo };
        match name {
            Some(name) => self.ask(session, None, &MilterCommand::Helo(name)).await,
            None => Ok(MilterAnswer::Continue),
        }
    }

    /// MAIL, on a new connection if there is none.
    async fn begin_transaction(&mut self, session: &SessionInfo<'_>) -> Answered {
        if self.connection.is_none() {
            let answer = match self.begin_session(session).await? {
                MilterAnswer::Continue => self.greet(session).await?,
                answer => answer,
            };
            if answer != MilterAnswer::Continue {
                self.connection = None;
                return Ok(answer);
            }
        }
        self.transaction = TransactionState::Open;
        let path = path(session.sender.flatten());
        let parameters = session.mail.map(mail_parameters).unwrap_or_default();
        self.ask(session, None, &MilterCommand::Mail { path: &path, parameters: &parameters }).await
    }

    async fn name_recipient(&mut self, session: &SessionInfo<'_>, refusal: Option<&Reply>) -> Answered {
        let path = path(session.recipient);
        let parameters = session.rcpt.map(rcpt_parameters).unwrap_or_default();
        self.ask(session, refusal, &MilterCommand::Rcpt { path: &path, parameters: &parameters }).await
    }

    /// The stages before the message, of mail that is complete.
    async fn pass_earlier_stages(&mut self, session: &SessionInfo<'_>, recipients: Vec<Address>) -> Answered {
        let answer = self.begin_transaction(session).await?;
        if answer != MilterAnswer::Continue {
            return Ok(answer);
        }
        for recipient in &recipients {
            let session = SessionInfo { recipient: Some(recipient), ..*session };
            let answer = self.name_recipient(&session, None).await?;
            if answer != MilterAnswer::Continue {
                return Ok(answer);
            }
        }
        self.ask(session, None, &MilterCommand::Data).await
    }

    async fn send_message(&mut self, session: &SessionInfo<'_>, message: &mut dyn CheckedMessage) -> Answered {
        let MilterCheck { milter, connection, client_name, .. } = self;
        let Some(open) = connection else { return Err(MilterFailure::Closed) };
        let answered = send(open, message, &macros(milter, session, client_name.as_ref(), None)).await;
        // An answer to a part that others had followed ended it.
        if open.client().is_none_or(|client| client.is_closed()) {
            *connection = None;
        }
        answered
    }

    async fn ask(
        &mut self,
        session: &SessionInfo<'_>,
        refusal: Option<&Reply>,
        command: &MilterCommand<'_>,
    ) -> Answered {
        let MilterCheck { milter, connection, client_name, .. } = self;
        let Some(connection) = connection else { return Err(MilterFailure::Closed) };
        connection.ask(command, &macros(milter, session, client_name.as_ref(), refusal)).await
    }

    /// The milter forgets a transaction that ends without a message.
    fn end_transaction(&mut self) {
        let client = self.connection.as_mut().and_then(MilterConnection::client);
        if let (TransactionState::Open, Some(client)) = (self.transaction, client) {
            client.abort();
        }
        self.transaction = TransactionState::None;
    }

    /// A failure before MAIL counts there, when it is known whose message it is.
    fn session_verdict(&mut self, stage: Stage, answered: Answered) -> Verdict {
        match answered {
            Ok(MilterAnswer::Accept) => {
                self.connection = None;
                Decision::Accept.into()
            }
            Ok(answer) => self.decide(stage, answer),
            Err(failure) => {
                self.connection = None;
                self.milter.log(format_args!("{failure}; tried again at MAIL"));
                Verdict::default()
            }
        }
    }

    fn verdict(&mut self, stage: Stage, answered: Answered) -> Verdict {
        match answered {
            Ok(answer) => self.decide(stage, answer),
            Err(failure) => {
                self.fail(&failure);
                self.failure_verdict(stage)
            }
        }
    }

    /// An answer to RCPT may be about the recipient alone.
    fn decide(&mut self, stage: Stage, answer: MilterAnswer) -> Verdict {
        let by = self.by();
        let decision = match answer {
            MilterAnswer::Continue => Decision::Continue,
            MilterAnswer::Accept => Decision::Accept,
            MilterAnswer::Discard => Decision::Discard { by },
            MilterAnswer::Reject if stage == Stage::Connect => refuse(by, REJECTED_AT_CONNECT),
            MilterAnswer::Reject => refuse(by, REJECTED),
            MilterAnswer::Defer => refuse(by, DEFERRED),
            MilterAnswer::Reply(reply) => refuse(by, reply),
            MilterAnswer::Shutdown => refuse(by, SHUTDOWN),
            MilterAnswer::Failed => return self.failure_verdict(stage),
        };
        let goes_on = match decision {
            Decision::Continue => stage != Stage::Message,
            Decision::Refuse(_) => stage == Stage::Rcpt,
            Decision::Accept | Decision::Discard { .. } => false,
        };
        if !goes_on && stage >= Stage::Mail {
            self.decide_transaction(stage, &decision);
        }
        decision.into()
    }

    fn decide_transaction(&mut self, stage: Stage, decision: &Decision) {
        let is_over = stage == Stage::Message && matches!(decision, Decision::Continue | Decision::Accept);
        if !is_over {
            self.end_transaction();
        }
        self.transaction = match decision {
            Decision::Discard { .. } => TransactionState::Discarded,
            _ => TransactionState::Decided,
        };
    }

    fn fail(&mut self, failure: &MilterFailure) {
        self.connection = None;
        self.transaction = TransactionState::Failed;
        self.milter.log(format_args!("{failure}; on_failure: {}", self.milter.settings.on_failure.name()));
    }

    fn failure_verdict(&self, stage: Stage) -> Verdict {
        self.milter.settings.on_failure.verdict(stage, &self.by())
    }

    fn by(&self) -> Box<str> {
        format!("milter {}", self.milter.settings.name).into()
    }
}

/// The values of macros at this stage.
fn macros<'a>(
    milter: &'a Milter,
    session: &'a SessionInfo<'a>,
    client_name: Option<&'a ReverseName>,
    refusal: Option<&'a Reply>,
) -> SessionMacros<'a> {
    SessionMacros {
        milter,
        session,
        client_name: client_name.unwrap_or(&ReverseName::Unanswered),
        client_address: client_address(session),
        refusal,
    }
}

fn client_address(session: &SessionInfo<'_>) -> Option<IpAddr> {
    match session.listener {
        Some(_) => session.client,
        None => Some(Ipv4Addr::LOCALHOST.into()),
    }
}

fn path(address: Option<&Address>) -> String {
    format!("<{}>", address.map_or("", Address::as_str))
}

fn refuse(by: Box<str>, reply: Reply) -> Decision {
    Decision::Refuse(Refusal { by, reply })
}

impl Check for MilterCheck {
    fn connect<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.check_client(session))
    }

    fn helo<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.check_helo(session))
    }

    fn mail<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.check_sender(session))
    }

    fn rcpt<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.check_recipient(session))
    }

    fn recipient_refused<'a>(
        &'a mut self,
        session: &'a SessionInfo<'a>,
        reply: &'a Reply,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        match self.transaction {
            TransactionState::Open => Box::pin(self.tell_refused(session, reply)),
            _ => Box::pin(ready(())),
        }
    }

    fn unknown_command<'a>(&'a mut self, session: &'a SessionInfo<'a>, line: &'a [u8]) -> CheckFuture<'a> {
        Box::pin(self.check_unknown_command(session, line))
    }

    fn data<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.check_data(session))
    }

    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        Box::pin(self.check_message(session, message))
    }
}
