//! The access rules as a check of sessions.

use std::sync::Arc;

use lookup::directory::RecipientDirectory;
use mail::OperatorLog;

use super::{AccessDecision, AccessRules, UntaggedAddresses};
use crate::check::{Check, CheckFactory, CheckFuture, CheckOrder, Decision, Origin, Refusal, SessionInfo, Verdict};
use crate::stage::{Stage, Stages};

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
        let is_used = |stage: &Stage| origin == Origin::Client && self.rules.has_rules_at(*stage);
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
}

impl AccessCheck {
    async fn evaluate(&self, stage: Stage, session: &SessionInfo<'_>) -> Verdict {
        let untagged = UntaggedAddresses::of_session(session, &self.directory).await;
        let session = untagged.add_to_session_info(session);
        let result = self.rules.evaluate(stage, &session, &*self.log).await;
        let decision = match result.decision {
            None => Decision::Continue,
            Some(AccessDecision::Accept) => Decision::Accept,
            Some(AccessDecision::Refuse { rule, reply }) => Decision::Refuse(Refusal { by: rule, reply }),
        };
        Verdict { held: result.held, ..decision.into() }
    }
}
