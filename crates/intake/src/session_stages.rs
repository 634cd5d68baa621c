//! The stages of a session at which only checks decide: HELO, unknown commands, the sender, DATA, the end of data, and
//! another client.
//!
//! What checks are told is boxed while they run, to keep sessions small.

use std::net::IpAddr;

use filter::{Disposition, MessageCheckError, Refusal, SessionInfo};
use mail::{BodyFlags, Networks, QueueId, Reply};
use protocol::smtp::server::{MailRequest, XclientIdentity};

use crate::ResourceRefusal;
use crate::message_check::{MessageContent, MessageInCheck};
use crate::session::IntakeSession;
use crate::session_checks::{record_refusal, session_info};
use crate::transaction::Transaction;

impl IntakeSession {
    /// HELO: checks the client's name.
    pub(crate) async fn check_helo(&mut self, name: &str) -> Result<(), Reply> {
        let Some(checks) = &mut self.checks else { return Ok(()) };
        let known = session_info(&self.session, &self.client, self.security.as_deref().copied());
        let info = Box::new(SessionInfo { helo: Some(name), ..known });
        let checked = Box::pin(checks.helo(&info)).await;
        record_refusal(checked, &mut self.denied_by)
    }

    /// A command that the session does not know: the checks may have another reply.
    pub(crate) async fn check_unknown_command(&mut self, line: &[u8]) -> Result<(), Reply> {
        let Some(checks) = &mut self.checks else { return Ok(()) };
        let known = session_info(&self.session, &self.client, self.security.as_deref().copied());
        let info = Box::new(match &self.incoming {
            Some(incoming) => incoming.transaction.describe(known),
            None => known,
        });
        let checked = Box::pin(checks.unknown_command(&info, line)).await;
        record_refusal(checked, &mut self.denied_by)
    }

    /// MAIL: checks the sender.
    pub(crate) async fn check_sender_rules(&mut self, id: QueueId, mail: &MailRequest) -> Result<(), Reply> {
        let Some(checks) = &mut self.checks else { return Ok(()) };
        let known = session_info(&self.session, &self.client, self.security.as_deref().copied());
        let info =
            Box::new(SessionInfo { id: Some(id), sender: Some(mail.sender.as_ref()), mail: Some(mail), ..known });
        let checked = Box::pin(checks.mail(&info)).await;
        record_refusal(checked, &mut self.denied_by)
    }

    /// DATA: checks the transaction.
    pub(crate) async fn check_data(&mut self) -> Result<(), Reply> {
        let Some(checks) = &mut self.checks else { return Ok(()) };
        let Some(incoming) = &self.incoming else { return Ok(()) };
        let known = session_info(&self.session, &self.client, self.security.as_deref().copied());
        let recipients = incoming.transaction.named_recipients().len();
        let info = Box::new(SessionInfo { recipients, ..incoming.transaction.describe(known) });
        let checked = Box::pin(checks.data(&info)).await;
        record_refusal(checked, &mut self.denied_by)
    }

    /// End of data: runs the checks of the message.
    pub(crate) async fn check_message(
        &mut self,
        transaction: &mut Transaction,
        prefix: &mut Vec<u8>,
        flags: &mut BodyFlags,
        content: MessageContent<'_>,
    ) -> Result<Disposition, Reply> {
        let Some(checks) = &mut self.checks else { return Ok(Disposition::default()) };
        if checks.concern_message() {
            let (context, denied_by) = (&self.context, &mut self.denied_by);
            // Boxed, to keep sessions small.
            let judgement = async {
                let known = session_info(&self.session, &self.client, self.security.as_deref().copied());
                let (id, mail, recipients) =
                    (transaction.id, transaction.mail.clone(), transaction.named_recipients().len());
                let sender = Some(mail.sender.as_ref());
                let session = SessionInfo { id: Some(id), sender, mail: Some(&mail), recipients, ..known };
                let mut message = MessageInCheck { context, transaction, prefix, flags, content };
                checks.message(&session, &mut message).await
            };
            Box::pin(judgement).await.map_err(|error| match error {
                MessageCheckError::NotEdited(reply) => reply,
                MessageCheckError::Refused(Refusal { by, reply }) => {
                    *denied_by = Some(by);
                    reply
                }
            })?;
        }
        Ok(checks.disposition(transaction.recipients().next().is_some()))
    }

    /// XCLIENT: treats the client named by the peer as if it had connected itself.
    pub(crate) async fn switch_client(&mut self, identity: &XclientIdentity) -> Result<(), Reply> {
        let client: Option<IpAddr> = identity.address.unwrap_or(self.session.peer().address);
        let is_of = |networks: &Networks| client.is_some_and(|client| networks.contains(client));
        let trusted = is_of(&self.context.relay_networks);
        let counted = client.unwrap_or(credentials::UNKNOWN_CLIENT);
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
        // Without a port of its own, a new address has an unknown one.
        let known_port = if identity.address.is_some() { 0 } else { self.client.port };
        self.client.port = identity.port.unwrap_or(known_port);
        self.client.local_address = identity.own_address.unwrap_or(self.client.local_address);
        let Some(checks) = &mut self.checks else { return Ok(()) };
        // A login belongs to the previous client.
        let (listener, is_user) = (Some(self.client.listener), self.client.must_log_in);
        self.client.login_mechanism = None;
        let client_port = self.client.port;
        let info = Box::new(SessionInfo { client, client_port, listener, is_user, ..SessionInfo::default() });
        let checked = Box::pin(checks.connect(&info)).await;
        record_refusal(checked, &mut self.denied_by)
    }
}
