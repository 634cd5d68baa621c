//! The results of the access rules of a stage, and their evaluation. Without rules, nothing is
//! evaluated or allocated.

use std::net::{IpAddr, Ipv4Addr};

use mail::{Address, Reply};
use net::StopReceiver;

use crate::IntakeContext;
use crate::access::{AccessDecision, AccessRules, AccessStage, SessionInfo};

/// The address under which all clients are counted whose address the proxy does not know. No host
/// has it.
pub(crate) const UNKNOWN_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The lasting result of the rules of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessState {
    /// No later rules are evaluated.
    pub(crate) accepted: bool,
    /// The mail is held.
    pub(crate) held: bool,
}

/// A rule refused or deferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessDenied {
    /// The name of the rule.
    pub(crate) rule: Box<str>,
    /// The reply to the client.
    pub(crate) reply: Reply,
}

/// The sender and recipient without their address tags, if they have some.
pub struct UntaggedAddresses {
    sender: Option<Address>,
    recipient: Option<Address>,
}

impl UntaggedAddresses {
    /// The same session, with these addresses filled in.
    pub fn add_to_session_info<'a>(&'a self, info: &SessionInfo<'a>) -> SessionInfo<'a> {
        SessionInfo { sender_untagged: self.sender.as_ref(), recipient_untagged: self.recipient.as_ref(), ..*info }
    }
}

impl AccessDenied {
    /// The reply to the client. The rule is kept for the log.
    pub(crate) fn into_reply(self, denied_by: &mut Option<Box<str>>) -> Reply {
        *denied_by = Some(self.rule);
        self.reply
    }
}

impl IntakeContext {
    /// Removes the address tags, which only the directory can recognise. While it is unavailable,
    /// no tags are removed.
    pub async fn untagged_addresses(&self, info: &SessionInfo<'_>) -> UntaggedAddresses {
        UntaggedAddresses {
            sender: self.untagged(info.sender.flatten()).await,
            recipient: self.untagged(info.recipient).await,
        }
    }

    async fn untagged(&self, address: Option<&Address>) -> Option<Address> {
        self.directory.strip_tag(address?).await
    }

    /// Connect: evaluates the rules for a client. None: the server is stopping and no longer waits
    /// for tables and DNS lists.
    pub(crate) async fn check_client(
        &self,
        client: IpAddr,
        must_log_in: bool,
        stop: &StopReceiver,
    ) -> Option<Result<AccessState, AccessDenied>> {
        let Some(access) = self.rules_at(AccessStage::Connect) else { return Some(Ok(AccessState::default())) };
        let info = SessionInfo { client: Some(client), is_user: must_log_in, ..SessionInfo::default() };
        let mut stop = stop.clone();
        // Boxed, to keep sessions without rules small.
        let result = async move {
            tokio::select! {
                judged = self.evaluate_rules(access, AccessStage::Connect, &info) => Some(judged),
                () = stop.wait_for_stop() => None,
            }
        };
        Box::pin(result).await
    }

    /// Evaluates the rules of a stage; a refusal is the error.
    pub(crate) async fn check_access(
        &self,
        stage: AccessStage,
        info: &SessionInfo<'_>,
    ) -> Result<AccessState, AccessDenied> {
        let Some(access) = self.rules_at(stage) else { return Ok(AccessState::default()) };
        // Boxed, to keep sessions without rules small.
        Box::pin(self.evaluate_rules(access, stage, info)).await
    }

    fn rules_at(&self, stage: AccessStage) -> Option<&AccessRules> {
        self.access_rules.as_ref().filter(|access| access.has_rules_at(stage))
    }

    async fn evaluate_rules(
        &self,
        access: &AccessRules,
        stage: AccessStage,
        info: &SessionInfo<'_>,
    ) -> Result<AccessState, AccessDenied> {
        let untagged = self.untagged_addresses(info).await;
        let verdict = access.evaluate(stage, &untagged.add_to_session_info(info), &self.operator_log).await;
        match verdict.decision {
            Some(AccessDecision::Refuse { rule, reply }) => Err(AccessDenied { rule, reply }),
            decision => Ok(AccessState { accepted: decision.is_some(), held: verdict.held }),
        }
    }
}
