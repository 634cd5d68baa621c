//! A listener of the API as a [`Service`]: what `net` asks before a session begins. The load of the
//! machine refuses nobody here, since the operator has to see an overloaded server.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use mail::{MailEvent, Networks, TlsInfo};
use net::{
    AdmissionRefusal, AdmittedClient, ConnectionHandler, ConnectionLimiter, ConnectionLimits, Service, StopReceiver,
    TlsServer,
};
use protocol::http::server::HttpServerConfig;

use super::session::ApiSession;
use super::{Api, ApiSettings};

/// What a client gets that is not admitted, before it has sent a request.
const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 60\r\n\
    Connection: close\r\n\r\n";
/// What clients log in to.
const REALM: &str = "mailrace";
/// What all responses say: they are not kept, shown in no frame, and no page is made of them.
const RESPONSE_FIELDS: &str = "Cache-Control: no-store\r\nContent-Security-Policy: default-src 'none'; \
    frame-ancestors 'none'\r\nX-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n";

/// What the sessions of one listener share.
#[derive(Clone)]
pub struct ApiListener {
    pub(super) api: Api,
    pub(super) settings: Arc<ApiSettings>,
    pub(super) server_config: Arc<HttpServerConfig>,
    connections: Arc<ConnectionLimiter>,
    tls_server: Option<Arc<TlsServer>>,
    has_implicit_tls: bool,
    proxy_networks: Networks,
}

impl ApiListener {
    /// A listener with these settings. With `tls_server`, connections use TLS from the first byte if
    /// `has_implicit_tls`. Clients in `proxy_networks` must send a PROXY header.
    pub fn new(
        api: &Api,
        settings: ApiSettings,
        tls_server: Option<Arc<TlsServer>>,
        has_implicit_tls: bool,
        proxy_networks: Networks,
    ) -> ApiListener {
        let server_config = HttpServerConfig {
            realm: REALM.into(),
            takes_content: true,
            response_fields: RESPONSE_FIELDS,
            limits: settings.limits,
        };
        // Connections of before a reload count too.
        let connections = api.connections.with_limits(ConnectionLimits {
            sessions_max: settings.connections_max,
            sessions_per_client_max: settings.connections_max,
            ..ConnectionLimits::default()
        });
        let (settings, server_config) = (Arc::new(settings), Arc::new(server_config));
        ApiListener {
            api: api.clone(),
            settings,
            server_config,
            connections,
            tls_server,
            has_implicit_tls,
            proxy_networks,
        }
    }

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

    async fn check_client(&self, _client: IpAddr, _stop: &StopReceiver) -> Option<Result<(), Vec<u8>>> {
        Some(Ok(()))
    }

    fn open(self, client: AdmittedClient, _checked: ()) -> impl ConnectionHandler + Send {
        ApiSession::new(self, client)
    }

    fn refusal_reply(&self, _reason: AdmissionRefusal) -> Vec<u8> {
        REFUSAL.to_vec()
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
