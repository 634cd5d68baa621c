//! Runs the checks of a session in their order, and keeps what they said.
//!
//! | said at | holds for |
//! |---|---|
//! | connect | the session, until another client is named (XCLIENT) |
//! | HELO | the session, until the next HELO that is not refused |
//! | MAIL, DATA, message | the transaction |
//! | RCPT | the transaction, if the recipient is added |
//!
//! A refusal ends the stage: checks after it are not asked. A check that accepted is not asked
//! again for as long as its answer holds. If an earlier check of the stage has named a deferral for that case, a
//! refusal for good becomes that deferral, as with Postfix's DEFER_IF_REJECT.

use std::sync::Arc;

use mail::Reply;

use crate::access::ACCESS_METHOD;
use crate::check::{
    Check, CheckFactory, CheckOrder, CheckedMessage, Decision, Finding, Origin, Refusal, SessionInfo, Verdict,
};
use crate::edit::Edit;
use crate::stage::{Stage, Stages};

/// All checks of a configuration.
#[derive(Default)]
pub struct CheckChain {
    factories: Vec<Arc<dyn CheckFactory>>,
}

/// The checks of one session.
pub struct SessionChecks {
    running: Vec<RunningCheck>,
    connection: Effects,
    helo: Effects,
    transaction: Effects,
}

/// What happens to a message that is not refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disposition {
    /// Its recipients are held.
    pub held: bool,
    /// It is dropped, by the rule or check of this name.
    pub discarded_by: Option<Box<str>>,
}

/// Why a complete message is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageCheckError {
    /// A check refused it.
    Refused(Refusal),
    /// An edit could not be made, for this reason.
    NotEdited(Reply),
}

/// What the checks said of a recipient. Counts once it is added.
#[must_use]
#[derive(Debug, Default)]
pub struct RecipientEffects(Effects);

struct RunningCheck {
    check: Box<dyn Check>,
    order: CheckOrder,
    stages: Stages,
    hears_unknown_commands: bool,
    /// The stage, connect or HELO, at which it accepted.
    accepted_session: Option<Stage>,
    accepted_transaction: bool,
}

/// What checks said, apart from refusals.
#[derive(Debug, Default)]
struct Effects {
    disposition: Disposition,
    edits: Vec<Edit>,
    findings: Vec<Finding>,
    /// What a refusal for good becomes, until the stage ends. The first one counts.
    deferral: Option<Refusal>,
}

impl CheckChain {
    /// Takes the checks in any order. Checks of the same [`CheckOrder`](crate::CheckOrder) keep
    /// theirs.
    pub fn new(mut factories: Vec<Arc<dyn CheckFactory>>) -> CheckChain {
        factories.sort_by_key(|factory| factory.order());
        CheckChain { factories }
    }

    /// The checks of a new session, or of one message of a local program. None: no check takes part.
    pub fn start(&self, origin: Origin) -> Option<Box<SessionChecks>> {
        let staged = self.factories.iter().map(|factory| (factory, factory.stages(origin)));
        let running: Vec<RunningCheck> = staged
            .filter(|(_, stages)| !stages.is_empty())
            .map(|(factory, stages)| RunningCheck::new(factory, stages))
            .collect();
        let unsaid = Effects::default;
        (!running.is_empty())
            .then(|| Box::new(SessionChecks { running, connection: unsaid(), helo: unsaid(), transaction: unsaid() }))
    }
}

impl SessionChecks {
    /// Whether a check takes part in a stage.
    pub fn take_part_in(&self, stage: Stage) -> bool {
        self.running.iter().any(|running| running.stages.contains(stage))
    }

    /// Connect, and XCLIENT: whatever was said of another client is void.
    ///
    /// # Errors
    ///
    /// A check refuses the client.
    pub async fn connect(&mut self, session: &SessionInfo<'_>) -> Result<(), Refusal> {
        (self.connection, self.helo) = (Effects::default(), Effects::default());
        self.running.iter_mut().for_each(|running| running.accepted_session = None);
        self.connection = self.run(Stage::Connect, session).await?;
        Ok(())
    }

    /// HELO: replaces what was said of the last one, which stays the greeting if this one is refused.
    ///
    /// # Errors
    ///
    /// A check refuses the name.
    pub async fn helo(&mut self, session: &SessionInfo<'_>) -> Result<(), Refusal> {
        let last = std::mem::take(&mut self.helo);
        let of_helo = self.running.iter_mut().filter(|running| running.accepted_session == Some(Stage::Helo));
        of_helo.for_each(|running| running.accepted_session = None);
        let said = self.run(Stage::Helo, session).await;
        let (effects, result) = said.map_or_else(|refusal| (last, Err(refusal)), |effects| (effects, Ok(())));
        self.helo = effects;
        result
    }

    /// Whether [`SessionChecks::unknown_command`] asks any check.
    pub fn hear_unknown_commands(&self) -> bool {
        self.running.iter().any(|running| running.hears_unknown_commands)
    }

    /// A command that the server does not know. Checks that have accepted the session are not asked.
    ///
    /// # Errors
    ///
    /// A check has another reply than the server.
    pub async fn unknown_command(&mut self, session: &SessionInfo<'_>, line: &[u8]) -> Result<(), Refusal> {
        let is_asked =
            |running: &&mut RunningCheck| running.hears_unknown_commands && running.accepted_session.is_none();
        for running in self.running.iter_mut().filter(is_asked) {
            let verdict = running.check.unknown_command(session, line).await;
            if let Decision::Refuse(refusal) = verdict.decision {
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// MAIL: a new transaction begins.
    ///
    /// # Errors
    ///
    /// A check refuses the sender.
    pub async fn mail(&mut self, session: &SessionInfo<'_>) -> Result<(), Refusal> {
        self.transaction = Effects::default();
        self.running.iter_mut().for_each(|running| running.accepted_transaction = false);
        self.transaction = self.run(Stage::Mail, session).await?;
        Ok(())
    }

    /// RCPT, before the recipient is admitted: the checks before [`CheckOrder::Greylist`]. Pass
    /// the result to [`SessionChecks::add_recipient`] once the recipient is added.
    ///
    /// # Errors
    ///
    /// A check refuses the recipient.
    pub async fn rcpt(&mut self, session: &SessionInfo<'_>) -> Result<RecipientEffects, Refusal> {
        let is_run = |order: CheckOrder| !order.is_after_admission();
        self.run_where(Stage::Rcpt, session, is_run, None).await.map(RecipientEffects)
    }

    /// RCPT, once nothing else refuses the recipient: the other checks, which programs outside must not
    /// take for recipients that do not exist. `before`: the effects of [`SessionChecks::rcpt`]. Otherwise as
    /// there.
    ///
    /// # Errors
    ///
    /// A check refuses the recipient.
    pub async fn rcpt_admitted(
        &mut self,
        session: &SessionInfo<'_>,
        before: &RecipientEffects,
    ) -> Result<RecipientEffects, Refusal> {
        let deferral = before.0.deferral.clone();
        self.run_where(Stage::Rcpt, session, CheckOrder::is_after_admission, deferral).await.map(RecipientEffects)
    }

    /// RCPT was refused before [`SessionChecks::rcpt_admitted`].
    pub async fn recipient_refused(&mut self, session: &SessionInfo<'_>, reply: &Reply) {
        let asked = self.running.iter_mut().filter(|running| running.order.is_after_admission());
        for running in asked.filter(|running| running.takes_part_in(Stage::Rcpt)) {
            running.check.recipient_refused(session, reply).await;
        }
    }

    /// The recipient is added: what was said of it holds for the message.
    pub fn add_recipient(&mut self, effects: RecipientEffects) {
        self.transaction.absorb(effects.0);
    }

    /// DATA, before the message is sent.
    ///
    /// # Errors
    ///
    /// A check refuses the message.
    pub async fn data(&mut self, session: &SessionInfo<'_>) -> Result<(), Refusal> {
        let effects = self.run(Stage::Data, session).await?;
        self.transaction.absorb(effects);
        Ok(())
    }

    /// Whether [`SessionChecks::message`] has anything to do.
    pub fn concern_message(&self) -> bool {
        let said = [&self.connection, &self.helo, &self.transaction];
        self.take_part_in(Stage::Message) || said.iter().any(|effects| !effects.edits.is_empty())
    }

    /// The complete message: makes the edits of earlier stages, then runs the checks, and makes the
    /// edits of each before the next one runs.
    ///
    /// # Errors
    ///
    /// A check refuses the message, or an edit cannot be made.
    pub async fn message(
        &mut self,
        session: &SessionInfo<'_>,
        message: &mut dyn CheckedMessage,
    ) -> Result<(), MessageCheckError> {
        let (mut findings, mut deferral) = (self.findings(), None);
        let said = [&self.connection.edits, &self.helo.edits, &self.transaction.edits];
        make_edits(said.into_iter().flatten().cloned(), message).await?;
        for running in self.running.iter_mut().filter(|running| running.takes_part_in(Stage::Message)) {
            let session = SessionInfo { findings: &findings, ..*session };
            let verdict = running.check.message(&session, message).await;
            let taken = running.take_verdict(Stage::Message, verdict);
            let mut effects = taken.map_err(|refusal| MessageCheckError::Refused(deferred(refusal, &deferral)))?;
            deferral = deferral.or(effects.deferral.take());
            make_edits(std::mem::take(&mut effects.edits), message).await?;
            findings.extend_from_slice(&effects.findings);
            let is_discarded = effects.disposition.discarded_by.is_some();
            self.transaction.absorb(effects);
            if is_discarded {
                break;
            }
        }
        Ok(())
    }

    /// What happens to the message, by all that was said so far. One that edits have left without
    /// recipients is discarded.
    pub fn disposition(&self, has_recipients: bool) -> Disposition {
        let said = [&self.connection, &self.helo, &self.transaction];
        let sum = said.iter().fold(Disposition::default(), |sum, effects| sum.or(effects.disposition.clone()));
        let without_recipients = (!has_recipients).then(|| "all recipients removed".into());
        Disposition { discarded_by: sum.discarded_by.or(without_recipients), ..sum }
    }

    /// What was found so far about the sender, each once: `spf=pass dkim=none`. None: nothing.
    pub fn findings_text(&self) -> Option<Box<str>> {
        let said = [&self.connection, &self.helo, &self.transaction];
        let findings = said.into_iter().flat_map(|effects| &effects.findings);
        let mut words: Vec<String> = findings
            .filter(|finding| finding.method != ACCESS_METHOD)
            .map(|finding| format!("{}={}", finding.method, finding.result))
            .collect();
        words.dedup();
        (!words.is_empty()).then(|| words.join(" ").into())
    }

    async fn run(&mut self, stage: Stage, session: &SessionInfo<'_>) -> Result<Effects, Refusal> {
        self.run_where(stage, session, |_| true, None).await
    }

    async fn run_where(
        &mut self,
        stage: Stage,
        session: &SessionInfo<'_>,
        is_run: fn(CheckOrder) -> bool,
        deferral: Option<Refusal>,
    ) -> Result<Effects, Refusal> {
        let (mut findings, mut sum) = (self.findings(), Effects { deferral, ..Effects::default() });
        let running = self.running.iter_mut().filter(|running| is_run(running.order));
        for running in running.filter(|running| running.takes_part_in(stage)) {
            let session = SessionInfo { findings: &findings, ..*session };
            let verdict = running.ask(stage, &session).await;
            let effects = running.take_verdict(stage, verdict);
            let effects = effects.map_err(|refusal| deferred(refusal, &sum.deferral))?;
            findings.extend_from_slice(&effects.findings);
            sum.absorb(effects);
        }
        Ok(sum)
    }

    fn findings(&self) -> Vec<Finding> {
        [&self.connection, &self.helo, &self.transaction].map(|effects| effects.findings.as_slice()).concat()
    }
}

/// The refusal, or the deferral that it becomes.
fn deferred(refusal: Refusal, deferral: &Option<Refusal>) -> Refusal {
    deferral.clone().filter(|_| refusal.reply.is_permanent()).unwrap_or(refusal)
}

async fn make_edits(
    edits: impl IntoIterator<Item = Edit>,
    message: &mut dyn CheckedMessage,
) -> Result<(), MessageCheckError> {
    for edit in edits {
        message.edit(edit).await.map_err(MessageCheckError::NotEdited)?;
    }
    Ok(())
}

impl RecipientEffects {
    /// The reply to a recipient that the server itself refuses with `reply`, or the deferral that it becomes.
    pub fn refusal_reply(&self, reply: Reply) -> Reply {
        let deferral = self.0.deferral.as_ref().filter(|_| reply.is_permanent());
        deferral.map_or(reply, |deferral| deferral.reply.clone())
    }
}

impl RunningCheck {
    fn new(factory: &Arc<dyn CheckFactory>, stages: Stages) -> RunningCheck {
        let (check, order) = (factory.clone().start(), factory.order());
        let hears_unknown_commands = factory.hears_unknown_commands();
        RunningCheck {
            check,
            order,
            stages,
            hears_unknown_commands,
            accepted_session: None,
            accepted_transaction: false,
        }
    }

    fn takes_part_in(&self, stage: Stage) -> bool {
        let is_done = self.accepted_session.is_some() || self.accepted_transaction && stage >= Stage::Mail;
        self.stages.contains(stage) && !is_done
    }

    /// Calls the method of a stage before the message.
    async fn ask(&mut self, stage: Stage, session: &SessionInfo<'_>) -> Verdict {
        match stage {
            Stage::Connect => self.check.connect(session).await,
            Stage::Helo => self.check.helo(session).await,
            Stage::Mail => self.check.mail(session).await,
            Stage::Rcpt => self.check.rcpt(session).await,
            Stage::Data | Stage::Message => self.check.data(session).await,
        }
    }

    fn take_verdict(&mut self, stage: Stage, verdict: Verdict) -> Result<Effects, Refusal> {
        let Verdict { decision, deferral, held, edits, findings } = verdict;
        let mut disposition = Disposition { held, discarded_by: None };
        match decision {
            Decision::Continue => {}
            Decision::Accept => match stage {
                Stage::Connect | Stage::Helo => self.accepted_session = Some(stage),
                Stage::Mail | Stage::Data | Stage::Message => self.accepted_transaction = true,
                Stage::Rcpt => {}
            },
            Decision::Refuse(refusal) => return Err(refusal),
            Decision::Discard { by } => disposition.discarded_by = Some(by),
        }
        Ok(Effects { disposition, edits, findings, deferral })
    }
}

impl Effects {
    fn absorb(&mut self, other: Effects) {
        self.disposition = std::mem::take(&mut self.disposition).or(other.disposition);
        self.edits.extend(other.edits);
        self.findings.extend(other.findings);
        self.deferral = self.deferral.take().or(other.deferral);
    }
}

impl Disposition {
    fn or(self, other: Disposition) -> Disposition {
        Disposition { held: self.held || other.held, discarded_by: self.discarded_by.or(other.discarded_by) }
    }
}
