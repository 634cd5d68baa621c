//! The results of the access rules in a session, and their evaluation. Without rules, nothing is
//! evaluated or allocated.

use std::net::{IpAddr, Ipv4Addr};

use mail::{Address, Networks, Reply};
use net::StopReceiver;
use protocol::smtp::server::{MailRequest, XclientIdentity};

use crate::access::{AccessDecision, AccessRules, AccessStage, SessionInfo};
use crate::session::IntakeSession;
use crate::{IntakeContext, ResourceRefusal};

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

impl IntakeSession {
    /// HELO: checks the client's name.
    pub(crate) async fn check_helo(&mut self, name: &str) -> Result<(), Reply> {
        let result = match self.client.connect_access.accepted {
            true => Ok(AccessState::default()),
            false => {
                self.context
                    .check_access(AccessStage::Helo, &SessionInfo { helo: Some(name), ..self.session_info() })
                    .await
            }
        };
        self.client.helo_access = self.record_denial(result)?;
        Ok(())
    }

    /// MAIL: checks the sender.
    pub(crate) async fn check_sender_access(&mut self, mail: &MailRequest) -> Result<AccessState, Reply> {
        if self.is_accepted() {
            return Ok(AccessState { accepted: true, held: false });
        }
        let result = self
            .context
            .check_access(AccessStage::Mail, &SessionInfo { sender: Some(mail.sender.as_ref()), ..self.session_info() })
            .await;
        self.record_denial(result)
    }

    /// RCPT: checks a recipient, after normalisation, of mail from this sender.
    pub(crate) async fn check_recipient_rules(
        &self,
        sender: Option<&Address>,
        recipient: &Address,
    ) -> Result<AccessState, AccessDenied> {
        let info = SessionInfo { sender: Some(sender), recipient: Some(recipient), ..self.session_info() };
        self.context.check_access(AccessStage::Rcpt, &info).await
    }

    /// XCLIENT: treats the client named by the peer as if it had connected itself.
    pub(crate) async fn switch_client(&mut self, identity: &XclientIdentity) -> Result<(), Reply> {
        let client: Option<IpAddr> = identity.address.unwrap_or(self.session.peer().address);
        let is_of = |networks: &Networks| client.is_some_and(|client| networks.contains(client));
        let trusted = is_of(&self.context.relay_networks);
        let counted = client.unwrap_or(UNKNOWN_CLIENT);
        self.context.transfer_permit(&mut self.client.permit, counted, trusted).map_err(ResourceRefusal::reply)?;
        if is_of(&self.context.proxy_networks) {
            self.session.allow_client_xclient();
        }
        if is_of(&self.context.normalized_networks) {
            self.session.normalise_client_newlines();
        }
        if trusted {
            self.session.allow_client_relay();
        }
        self.client.trusted = trusted;
        self.client.local_address = identity.own_address.unwrap_or(self.client.local_address);
        self.client.helo_access = AccessState::default();
        // A login belongs to the previous client.
        let info = SessionInfo { client, is_user: self.client.must_log_in, ..SessionInfo::default() };
        let result = self.context.check_access(AccessStage::Connect, &info).await;
        self.client.connect_access = self.record_denial(result)?;
        Ok(())
    }

    fn record_denial(&mut self, result: Result<AccessState, AccessDenied>) -> Result<AccessState, Reply> {
        result.map_err(|denied| denied.into_reply(&mut self.denied_by))
    }

    /// Whether a rule has accepted the client.
    fn is_accepted(&self) -> bool {
        self.client.connect_access.accepted || self.client.helo_access.accepted
    }

    /// Whether all mail of the session is held.
    pub(crate) fn is_held(&self) -> bool {
        self.client.connect_access.held || self.client.helo_access.held
    }

    fn session_info(&self) -> SessionInfo<'_> {
        let helo = Some(self.session.helo()).filter(|helo| !helo.is_empty());
        let is_user = self.client.must_log_in || self.session.user().is_some();
        SessionInfo { client: self.session.peer().address, is_user, helo, ..SessionInfo::default() }
    }
}
