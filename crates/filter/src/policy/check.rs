//! The check of one session by one policy service.
//!
//! | answer | what happens |
//! |---|---|
//! | DUNNO, INFO, WARN | the session goes on |
//! | DEFER_IF_REJECT | the same, and a 5xx of a later check at this stage becomes the deferral |
//! | OK | the service is not asked again about the session, the message or the recipient |
//! | REJECT, DEFER, DEFER_IF_PERMIT, 4xx, 5xx | the client gets the reply |
//! | names of restrictions, and of classes of access rules that have rules at the stage | the first one that decides counts, as one of the above; a class decides as its rules do |
//! | HOLD, DISCARD, PREPEND, BCC, REDIRECT, FILTER | it happens to the message, or to all messages after connect and HELO |
//!
//! At RCPT they are asked about recipients that have been admitted. Only later filters can refuse then, so
//! a deferral "if permitted" is one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::policy::{PolicyAction, PolicyRestriction};

use super::PolicyService;
use super::attributes::{Question, request};
use super::exchange::{PolicyFailure, ask};
use super::restrictions::decide;
use crate::access::ReverseName;
use crate::action_edit::action_edit;
use crate::check::{Check, CheckFuture, CheckedMessage, Decision, Refusal, SessionInfo, Verdict};
use crate::client_names::client_name;
use crate::stage::Stage;

pub(super) struct PolicyCheck {
    service: Arc<PolicyService>,
    /// None until it is looked up.
    client_name: Option<ReverseName>,
    session: u64,
    /// Counts the messages of the session; connect and HELO belong to the first one.
    message: u32,
    has_begun_message: bool,
}

impl PolicyCheck {
    pub(super) fn new(service: Arc<PolicyService>) -> PolicyCheck {
        let session = service.sessions.fetch_add(1, Ordering::Relaxed);
        PolicyCheck { service, client_name: None, session, message: 0, has_begun_message: false }
    }

    async fn check_client(&mut self, session: &SessionInfo<'_>) -> Verdict {
        self.client_name = None;
        match self.service.settings.scope.includes_session(session) {
            true => self.check(Stage::Connect, session, None).await,
            false => Decision::Accept.into(),
        }
    }

    async fn check_sender(&mut self, session: &SessionInfo<'_>) -> Verdict {
        self.message += u32::from(self.has_begun_message);
        self.has_begun_message = true;
        match self.service.settings.scope.includes_message(session) {
            true => self.check(Stage::Mail, session, None).await,
            false => Decision::Accept.into(),
        }
    }

    async fn check_message(&mut self, session: &SessionInfo<'_>, message: &mut dyn CheckedMessage) -> Verdict {
        self.check(Stage::Message, session, Some(message.content_len())).await
    }

    /// Asks the service, if it is to be asked at this stage.
    async fn check(&mut self, stage: Stage, session: &SessionInfo<'_>, message_octets: Option<u64>) -> Verdict {
        if !self.service.settings.stages.contains(&stage) {
            return Verdict::default();
        }
        let client_name = self.find_client_name(session).await;
        let instance = format!("{:x}.{:x}.{:x}", self.service.started_micros, self.session, self.message);
        let question = Question { stage, client_name: &client_name, instance: &instance, message_octets };
        let request = request(&self.service, session, &question);
        let decided = match ask(&self.service, &request).await {
            Ok(answer) => self.decide(stage, session, &answer, &client_name).await,
            Err(failure) => Err(failure),
        };
        decided.unwrap_or_else(|failure| {
            let on_failure = self.service.settings.on_failure;
            self.service.log(format_args!("{failure}; on_failure: {}", on_failure.name()));
            on_failure.verdict(stage, &self.name())
        })
    }

    /// The name in refusals.
    fn name(&self) -> Box<str> {
        format!("policy service {}", self.service.settings.name).into()
    }

    async fn decide(
        &self,
        stage: Stage,
        session: &SessionInfo<'_>,
        answer: &str,
        client_name: &ReverseName,
    ) -> Result<Verdict, PolicyFailure> {
        let access = self.service.access.as_ref();
        let is_class = |name: &str| access.is_some_and(|access| access.rules.has_class(name, stage));
        match PolicyAction::parse(answer, &is_class)? {
            PolicyAction::Restrictions(list) => self.evaluate(stage, session, &list, client_name).await,
            action => self.verdict(stage, session, action),
        }
    }

    async fn find_client_name(&mut self, session: &SessionInfo<'_>) -> ReverseName {
        if let Some(name) = &self.client_name {
            return name.clone();
        }
        let name = client_name(&*self.service.names, session).await;
        self.client_name.insert(name).clone()
    }

    /// What a list of restrictions comes to: the first one that decides counts.
    async fn evaluate(
        &self,
        stage: Stage,
        session: &SessionInfo<'_>,
        restrictions: &[PolicyRestriction],
        client_name: &ReverseName,
    ) -> Result<Verdict, PolicyFailure> {
        let (mut sum, mut warns) = (Verdict::default(), false);
        for restriction in restrictions {
            let is_warning = std::mem::replace(&mut warns, *restriction == PolicyRestriction::WarnIfReject);
            let said = match (restriction, &self.service.access) {
                (PolicyRestriction::Class(class), Some(access)) => access.evaluate_class(class, stage, session).await,
                _ => self.verdict(stage, session, decide(restriction, session, client_name))?,
            };
            if is_warning && matches!(said.decision, Decision::Refuse(_)) {
                self.service.log(format_args!("{restriction:?} would refuse (at {})", stage.name()));
                continue;
            }
            sum = sum.followed_by(said);
            if sum.decision != Decision::Continue {
                break;
            }
        }
        Ok(sum)
    }

    fn verdict(&self, stage: Stage, session: &SessionInfo<'_>, action: PolicyAction) -> Result<Verdict, PolicyFailure> {
        let edits: Vec<_> = action_edit(&action)?.into_iter().collect();
        let by = self.name();
        Ok(match action {
            // Lists of restrictions have come to other actions.
            PolicyAction::Dunno | PolicyAction::Restrictions(_) => Verdict::default(),
            PolicyAction::DeferIfReject(reply) => {
                Verdict { deferral: Some(Refusal { by, reply }), ..Verdict::default() }
            }
            PolicyAction::Prepend(_) | PolicyAction::Bcc(_) | PolicyAction::Filter(_) | PolicyAction::Redirect(_) => {
                Verdict { edits, ..Verdict::default() }
            }
            PolicyAction::Log(text) => {
                let helo = session.helo.unwrap_or_default();
                self.service.log(format_args!("{text} (at {}, helo {helo:?})", stage.name()));
                Verdict::default()
            }
            PolicyAction::Ok => Decision::Accept.into(),
            PolicyAction::Refuse(reply) | PolicyAction::DeferIfPermit(reply) => {
                Decision::Refuse(Refusal { by, reply }).into()
            }
            PolicyAction::Hold => Verdict { held: true, ..Verdict::default() },
            PolicyAction::Discard => Decision::Discard { by }.into(),
        })
    }
}

impl Check for PolicyCheck {
    fn connect<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.check_client(session))
    }

    fn helo<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.check(Stage::Helo, session, None))
    }

    fn mail<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.check_sender(session))
    }

    fn rcpt<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.check(Stage::Rcpt, session, None))
    }

    fn data<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.check(Stage::Data, session, None))
    }

    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        Box::pin(self.check_message(session, message))
    }
}
