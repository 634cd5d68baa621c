//! SMTP, LMTP and submission as a [`Service`]: what `net` asks before a session begins. They differ
//! only in the settings of their listener.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use filter::Refusal;
use load::AllowedClients;
use mail::{MailEvent, Networks, Reply, TlsInfo};
use net::{
    AdmissionRefusal, AdmittedClient, ConnectionHandler, ConnectionLimiter, GreetingDelay, Service, SessionPermit,
    StopReceiver, TlsServer,
};
use protocol::TlsMode;
use protocol::smtp::server::SmtpPeer;

use crate::session::IntakeSession;
use crate::session_checks::OptionalChecks;
use crate::{ClientState, IntakeContext, ListenerContext, ResourceRefusal, replies};

/// The name of the check before the greeting, for the log.
const EARLY_TALKER: &str = "early talker";

/// A client that no check refuses.
pub struct CheckedClient {
    checks: OptionalChecks,
    is_early_talker: bool,
}

impl Service for ListenerContext {
    type Checked = CheckedClient;

    fn proxy_networks(&self) -> &Networks {
        &self.proxy_protocol_networks
    }

    fn connection_limiter(&self) -> &Arc<ConnectionLimiter> {
        &self.intake.connection_limiter
    }

    fn is_trusted(&self, client: IpAddr) -> bool {
        self.intake.relay_networks.contains(client)
    }

    fn tls_server(&self) -> Option<Arc<TlsServer>> {
        self.acceptor.clone()
    }

    fn has_implicit_tls(&self) -> bool {
        self.smtp_config.tls == TlsMode::Implicit
    }

    fn is_overloaded_for(&self, client: IpAddr) -> bool {
        self.intake.is_overloaded_for(client)
    }

    fn greeting_delay(&self, client: IpAddr) -> Option<GreetingDelay> {
        let wait = self.greeting.delay?;
        let is_exempt = self.is_trusted(client) || self.greeting.exempt.contains(client);
        if is_exempt { None } else { self.intake.greeting_delays.start(wait) }
    }

    /// A refusal closes the connection: a client that stays to get 503 until QUIT (RFC 5321 section 3.1) would occupy a session others wait for.
    async fn check_client(
        &self,
        client: SocketAddr,
        is_early_talker: bool,
        stop: &StopReceiver,
    ) -> Option<Result<CheckedClient, Vec<u8>>> {
        let address = client.ip();
        if self.is_content_filter(address) {
            return Some(Ok(CheckedClient { checks: None, is_early_talker }));
        }
        let result = match is_early_talker && self.greeting.refuses_early_talkers {
            true => Err(Refusal { by: EARLY_TALKER.into(), reply: replies::TALKED_EARLY }),
            false => {
                let must_log_in = self.must_log_in();
                self.intake.check_client(client, self.address, must_log_in, is_early_talker, stop).await?
            }
        };
        let result = result.map(|checks| CheckedClient { checks, is_early_talker });
        Some(result.map_err(|denied| {
            let wire = to_wire(&denied.reply);
            self.intake.log_refused(address, Some(denied.by), denied.reply);
            wire
        }))
    }

    fn open(self, client: AdmittedClient, checked: CheckedClient) -> impl ConnectionHandler + Send {
        let AdmittedClient { address, port, local_address, trusted, permit, security } = client;
        let normalise_bare_newlines = self.intake.normalized_networks.contains(address);
        let peer = SmtpPeer { address: Some(address), normalise_bare_newlines, may_relay: trusted };
        let client_state = ClientState {
            permit,
            counted: self.counters.open_session(),
            trusted,
            must_log_in: self.must_log_in(),
            is_content_filter: self.is_content_filter(address),
            is_early_talker: checked.is_early_talker,
            port,
            listener: self.address,
            local_address,
            login_mechanism: None,
        };
        IntakeSession::new(self, peer, client_state, checked.checks, security)
    }

    fn refusal_reply(&self, reason: AdmissionRefusal) -> Vec<u8> {
        to_wire(&self.intake.connection_refusal(reason).reply())
    }

    fn handle_refused(&self, client: IpAddr, reason: AdmissionRefusal) {
        let refusal = self.intake.connection_refusal(reason);
        if self.intake.refusals.count(refusal, Instant::now()) {
            self.intake.log_refused(client, None, refusal.reply());
        }
    }

    fn handle_proxy_error(&self, proxy: IpAddr, error: &io::Error) {
        self.intake.operator_log.log_line(format_args!("closed a connection from {proxy}: {error}"));
    }

    fn handle_tls_established(&self, security: TlsInfo) {
        self.intake.tls_handshakes.count_made(security);
    }

    fn handle_handshake_failed(&self, client: IpAddr, error: &io::Error) {
        self.intake.log_tls_failure(Some(client), "", error);
    }
}

impl ListenerContext {
    /// Anybody else who reaches the listener is a client like others.
    fn is_content_filter(&self, client: IpAddr) -> bool {
        self.is_from_content_filter && self.intake.relay_networks.contains(client)
    }

    fn must_log_in(&self) -> bool {
        self.smtp_config.auth.as_ref().is_some_and(|auth| auth.required)
    }
}

impl IntakeContext {
    fn connection_refusal(&self, reason: AdmissionRefusal) -> ResourceRefusal {
        match reason {
            AdmissionRefusal::Overload => self.overload_refusal(),
            AdmissionRefusal::Limit(refused) => refused.into(),
        }
    }

    /// Why clients are refused whatever they do.
    fn overload_refusal(&self) -> ResourceRefusal {
        match self.load.restrictions().intake {
            AllowedClients::None => ResourceRefusal::Stopping,
            AllowedClients::Open | AllowedClients::ReservedOnly => ResourceRefusal::Load,
        }
    }

    /// XCLIENT: admits the client that a proxy names, in place of the client of the permit.
    pub(crate) fn transfer_permit(
        &self,
        permit: &mut SessionPermit,
        client: IpAddr,
        trusted: bool,
    ) -> Result<(), ResourceRefusal> {
        if self.is_overloaded_for(client) {
            return Err(self.overload_refusal());
        }
        Ok(permit.transfer_to_client(client, trusted, Instant::now())?)
    }

    /// Costs two atomic reads.
    fn is_overloaded_for(&self, client: IpAddr) -> bool {
        match self.load.restrictions().intake {
            AllowedClients::Open => false,
            AllowedClients::ReservedOnly => !self.reserved_networks.contains(client),
            AllowedClients::None => true,
        }
    }

    fn log_refused(&self, client: IpAddr, rule: Option<Box<str>>, reply: Reply) {
        let client = Some(client);
        self.event_log.write(MailEvent::Refused {
            client,
            helo: "".into(),
            stage: "connect",
            address: None,
            rule,
            reply,
        });
    }
}

fn to_wire(reply: &Reply) -> Vec<u8> {
    let mut wire = Vec::new();
    reply.write_wire(&mut wire);
    wire
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what a function with four arguments returns.
    fn size_of_result<A, B, C, D, R>(_function: impl FnOnce(A, B, C, D) -> R) -> usize {
        size_of::<R>()
    }

    #[test]
    fn an_idle_session_is_small() {
        let octets = size_of_result(net::serve_connection::<ListenerContext>);
        assert!(octets <= 2048, "{octets} octets; a server has thousands of sessions");
    }
}
