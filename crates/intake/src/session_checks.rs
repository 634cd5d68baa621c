//! The checks of a session, and what they are told of it. Without checks, nothing is evaluated or
//! allocated.

use std::net::SocketAddr;

use filter::{Origin, Refusal, SessionChecks, SessionInfo, Submitter};
use mail::{Reply, TlsInfo};
use net::StopReceiver;
use protocol::smtp::server::SmtpSession;

use crate::{ClientState, IntakeContext};

/// The checks of a session; None if there are none.
pub(crate) type OptionalChecks = Option<Box<SessionChecks>>;

impl IntakeContext {
    /// Connect: starts the checks of a session, and checks the client. None: the server is stopping
    /// and no longer waits for tables and DNS lists.
    pub(crate) async fn check_client(
        &self,
        client: SocketAddr,
        listener: SocketAddr,
        must_log_in: bool,
        is_early_talker: bool,
        stop: &StopReceiver,
    ) -> Option<Result<OptionalChecks, Refusal>> {
        let Some(mut checks) = self.checks.start(Origin::Client) else { return Some(Ok(None)) };
        let mut stop = stop.clone();
        // Boxed, to keep sessions without checks small.
        let result = async move {
            let (address, client_port) = (Some(client.ip()), client.port());
            let (listener, is_user) = (Some(listener), must_log_in);
            let info = SessionInfo {
                client: address,
                client_port,
                listener,
                is_user,
                is_early_talker,
                ..SessionInfo::default()
            };
            let checked = tokio::select! {
                checked = checks.connect(&info) => checked,
                () = stop.wait_for_stop() => return None,
            };
            Some(checked.map(|()| Some(checks)))
        };
        Box::pin(result).await
    }
}

/// The reply to the client. The name of the rule is kept for the log.
pub(crate) fn record_refusal<T>(checked: Result<T, Refusal>, denied_by: &mut Option<Box<str>>) -> Result<T, Reply> {
    checked.map_err(|Refusal { by, reply }| {
        *denied_by = Some(by);
        reply
    })
}

/// What checks are told of the session, without its transaction.
pub(crate) fn session_info<'a>(
    session: &'a SmtpSession,
    client: &ClientState,
    security: Option<TlsInfo>,
) -> SessionInfo<'a> {
    let helo = Some(session.helo()).filter(|helo| !helo.is_empty());
    let submitter = match session.user() {
        Some(user) => Submitter::User(user),
        None if client.trusted => Submitter::RelayNetwork,
        None => Submitter::Stranger,
    };
    SessionInfo {
        client: session.peer().address,
        client_port: client.port,
        listener: Some(client.listener),
        local_address: client.local_address,
        security,
        protocol: session.protocol_name(),
        login_mechanism: client.login_mechanism,
        is_user: client.must_log_in || session.user().is_some(),
        submitter,
        helo,
        is_early_talker: client.is_early_talker,
        ..SessionInfo::default()
    }
}
