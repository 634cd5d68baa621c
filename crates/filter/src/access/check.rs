//! The access rules as checks of sessions: those that need no verdicts, and, after verification, those
//! about verdicts. A rule that accepts ends the evaluation of both.

use std::sync::Arc;

use lookup::directory::RecipientDirectory;
use mail::OperatorLog;

use super::{AccessDecision, AccessRules, AccessStageResult, UntaggedAddresses};
use crate::check::{
    Check, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, Decision, Finding, Origin, Refusal, SessionInfo,
    Verdict,
};
use crate::stage::{Stage, Stages};

/// The method of the finding that a rule has accepted: not about the sender.
pub(crate) const ACCESS_METHOD: &str = "access";
const ACCEPTED: Finding = Finding { method: ACCESS_METHOD, result: "accept", domain: None };

/// Makes the [`Check`]s of the access rules, which keep nothing of their sessions.
pub struct AccessCheck {
    /// The rules.
    pub rules: Arc<AccessRules>,
    /// Recognises address tags.
    pub directory: Arc<RecipientDirectory>,
    /// Where unavailable tables and DNS lists are logged.
    pub log: Arc<dyn OperatorLog>,
}

impl CheckFactory for AccessCheck {
    fn order(&self) -> CheckOrder {
        CheckOrder::AccessRules
    }

    /// Programs on this machine need no leave.
    fn stages(&self, origin: Origin) -> Stages {
        let is_used =
            |stage: &Stage| origin == Origin::Client && *stage != Stage::Message && self.rules.has_rules_at(*stage);
        Stage::ALL.into_iter().filter(is_used).collect()
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(self)
    }
}

impl Check for Arc<AccessCheck> {
    fn connect<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.evaluate(Stage::Connect, session))
    }

    fn helo<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.evaluate(Stage::Helo, session))
    }

    fn mail<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.evaluate(Stage::Mail, session))
    }

    fn rcpt<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.evaluate(Stage::Rcpt, session))
    }

    fn data<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(self.evaluate(Stage::Data, session))
    }
}

impl AccessCheck {
    async fn evaluate(&self, stage: Stage, session: &SessionInfo<'_>) -> Verdict {
        let untagged = UntaggedAddresses::of_session(session, &self.directory).await;
        let session = untagged.add_to_session_info(session);
        verdict(stage, self.rules.evaluate(stage, &session, &*self.log).await)
    }

    /// The verdict of the rules of a class.
    pub(crate) async fn evaluate_class(&self, class: &str, stage: Stage, session: &SessionInfo<'_>) -> Verdict {
        let untagged = UntaggedAddresses::of_session(session, &self.directory).await;
        let session = untagged.add_to_session_info(session);
        let result = self.rules.evaluate_class(class, stage, &session, &*self.log).await;
        // What a class accepts says nothing about the rules outside.
        Verdict { findings: Vec::new(), ..verdict(stage, result) }
    }
}

fn verdict(stage: Stage, result: AccessStageResult) -> Verdict {
    let decision = match result.decision {
        None => Decision::Continue,
        Some(AccessDecision::Accept) => Decision::Accept,
        Some(AccessDecision::Refuse { rule, reply }) => Decision::Refuse(Refusal { by: rule, reply }),
    };
    // Accepting one recipient does not accept the message.
    let accepts_message = decision == Decision::Accept && stage != Stage::Rcpt;
    let findings = if accepts_message { vec![ACCEPTED] } else { Vec::new() };
    let decision = match (decision, result.discarded_by) {
        (Decision::Continue | Decision::Accept, Some(by)) => Decision::Discard { by },
        (decision, _) => decision,
    };
    let deferral = result.deferral.map(|(by, reply)| Refusal { by, reply });
    Verdict { deferral, held: result.held, edits: result.edits, findings, ..decision.into() }
}

/// Makes the [`Check`]s of the rules about verdicts.
pub struct VerdictRules(pub Arc<AccessCheck>);

impl CheckFactory for VerdictRules {
    fn order(&self) -> CheckOrder {
        CheckOrder::VerdictRules
    }

    fn stages(&self, origin: Origin) -> Stages {
        let is_used = origin == Origin::Client && self.0.rules.has_rules_at(Stage::Message);
        is_used.then_some(Stage::Message).into_iter().collect()
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(self)
    }
}

impl Check for Arc<VerdictRules> {
    fn message<'a>(
        &'a mut self,
        session: &'a SessionInfo<'a>,
        _message: &'a mut dyn CheckedMessage,
    ) -> CheckFuture<'a> {
        match session.findings.contains(&ACCEPTED) {
            true => Box::pin(std::future::ready(Verdict::default())),
            false => Box::pin(self.0.evaluate(Stage::Message, session)),
        }
    }
}
