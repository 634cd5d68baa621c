//! The access rules in a session: what each stage checks, and what its result means for the session.

use std::net::IpAddr;

use mail::{Address, Networks, Reply};
use protocol::smtp::server::{MailRequest, XclientIdentity};

use crate::ResourceRefusal;
use crate::access::{AccessStage, SessionInfo};
use crate::access_state::{AccessDenied, AccessState, UNKNOWN_CLIENT};
use crate::session::IntakeSession;

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
