//! A listener of the API as a [`Service`]: what `net` asks before a session begins. The load of the
//! machine refuses nobody here, since the operator has to see an overloaded server.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mail::{MailEvent, Networks, TlsInfo};
use net::{AdmissionRefusal, AdmittedClient, ConnectionHandler, ConnectionLimiter, Service, StopReceiver, TlsServer};
use protocol::http::server::NOT_ADMITTED;

use super::ApiListener;
use super::session::ApiSession;

impl ApiListener {
    fn log_line(&self, line: std::fmt::Arguments<'_>) {
        self.api.handler.current().parts.intake.operator_log.log_line(line);
    }
}

impl Service for ApiListener {
    type Checked = ();

    fn proxy_networks(&self) -> &Networks {
        &self.proxy_networks
    }

    fn connection_limiter(&self) -> &Arc<ConnectionLimiter> {
        &self.connections
    }

    fn is_trusted(&self, _client: IpAddr) -> bool {
        false
    }

    fn tls_server(&self) -> Option<Arc<TlsServer>> {
        self.tls_server.clone()
    }

    fn has_implicit_tls(&self) -> bool {
        self.has_implicit_tls
    }

    fn is_overloaded_for(&self, _client: IpAddr) -> bool {
        false
    }

    async fn check_client(
        &self,
        _client: SocketAddr,
        _is_early_talker: bool,
        _stop: &StopReceiver,
    ) -> Option<Result<(), Vec<u8>>> {
        Some(Ok(()))
    }

    fn open(self, client: AdmittedClient, _checked: ()) -> impl ConnectionHandler + Send {
        ApiSession::new(self, client)
    }

    fn refusal_reply(&self, _reason: AdmissionRefusal) -> Vec<u8> {
        NOT_ADMITTED.to_vec()
    }

    fn handle_refused(&self, client: IpAddr, reason: AdmissionRefusal) {
        self.log_line(format_args!("refused a connection from {client} to the API: {reason}"));
    }

    fn handle_proxy_error(&self, proxy: IpAddr, error: &io::Error) {
        self.log_line(format_args!("closed a connection from {proxy} to the API: {error}"));
    }

    fn handle_tls_established(&self, security: TlsInfo) {
        self.api.handler.current().parts.intake.tls_handshakes.count_made(security);
    }

    fn handle_handshake_failed(&self, client: IpAddr, error: &io::Error) {
        let handler = self.api.handler.current();
        handler.parts.intake.tls_handshakes.count_failed();
        let (client, helo, reason) = (Some(client), "".into(), error.to_string().into());
        handler.parts.intake.event_log.write(MailEvent::TlsFailed { client, helo, reason });
    }
}
