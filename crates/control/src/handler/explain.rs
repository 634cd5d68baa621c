//! Explanations: where mail for an address would go, and what a message waits for. They ask the directory, the
//! tables and the DNS by the functions that sessions and deliveries use, on the handler's own thread.

use std::net::IpAddr;

use filter::SessionInfo;
use filter::access::UntaggedAddresses;
use lookup::directory::AddressResolution;
use mail::{Address, QueueId};

use super::{ControlError, ControlHandler, ControlResult, now};
use crate::explain::{AddressTrace, MessageState, access};
use crate::explanation::{AccessExplanation, AddressExplanation, AddressVerification, MessageExplanation};
use crate::wait::unless_stopping;

impl ControlHandler {
    /// How mail for an address would be routed; and, if a client with its HELO name is given, what the access
    /// rules say about it.
    pub(crate) fn explain_address(
        &self,
        address: &Address,
        sender: Option<Address>,
        client: Option<(IpAddr, Option<&str>)>,
    ) -> ControlResult<AddressExplanation> {
        let access = client.map(|(client, helo)| self.explain_access(client, helo, sender.as_ref(), address));
        let access = access.transpose()?;
        let (normalized, trace) = self.trace_address(address, sender.as_ref())?;
        let recipients = trace.recipients.clone();
        let queue_states = self.with_queues(move |queues| {
            recipients.iter().map(|recipient| recipient.queue_state(queues, now())).collect::<Vec<_>>()
        })?;
        Ok(self.parts.explainer.explanation([address, &normalized], access, trace, queue_states))
    }

    fn explain_access(
        &self,
        client: IpAddr,
        helo: Option<&str>,
        sender: Option<&Address>,
        recipient: &Address,
    ) -> ControlResult<AccessExplanation> {
        let intake = &self.parts.intake;
        let explanation = async {
            let recipient = intake.normalize_address(recipient, None).await;
            let client = client.to_canonical();
            let session = SessionInfo {
                client: Some(client),
                helo,
                sender: Some(sender),
                recipient: Some(&recipient),
                ..SessionInfo::default()
            };
            let tags = UntaggedAddresses::of_session(&session, &intake.directory).await;
            let rules = self.parts.access_rules.as_deref();
            let stages = access::explain_stages(rules, &tags.add_to_session_info(&session)).await;
            let is_remote = matches!(intake.resolve_recipient(&recipient).await, AddressResolution::Remote(_));
            let is_in_networks = intake.relay_networks.contains(client);
            let relaying =
                is_remote.then(|| access::explain_relaying(client, is_in_networks, intake.relaying_is_deferred));
            AccessExplanation { stages, relaying }
        };
        unless_stopping(&self.shared.stopping, explanation)?.ok_or(ControlError::Stopping)
    }

    /// The route of mail for an address, by the functions that sessions use.
    fn trace_address(&self, address: &Address, sender: Option<&Address>) -> ControlResult<(Address, AddressTrace)> {
        let trace = async {
            let normalized = self.parts.intake.normalize_address(address, None).await.into_owned();
            let resolution = self.parts.intake.resolve_recipient(&normalized).await;
            let redirects = self.shared.redirects.redirects().current();
            let trace = self.parts.explainer.trace(resolution, sender, &redirects).await;
            (normalized, trace)
        };
        unless_stopping(&self.shared.stopping, trace)?.ok_or(ControlError::Stopping)
    }

    /// Whether mail for an address would be delivered.
    pub(crate) fn verify(&self, address: &Address) -> ControlResult<AddressVerification> {
        Ok(self.trace_address(address, None)?.1.verification())
    }

    /// What a message waits for.
    pub(crate) fn explain_message(&self, id: QueueId) -> ControlResult<MessageExplanation> {
        let message_state = self.with_queues(move |queues| MessageState::of(queues, id, now()))?;
        Ok(message_state.explanation(&self.stored(id)?, now()))
    }
}
