//! The listeners of all retrieval protocols as a [`Service`]: what `net` asks before a session
//! begins.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use load::AllowedClients;
use mail::{MailEvent, Networks, TlsInfo};
use net::{AdmissionRefusal, AdmittedClient, ConnectionHandler, ConnectionLimiter, Service, StopReceiver, TlsServer};

use crate::RetrievalContext;

/// A protocol behind a listener, with its settings. Each connection has a clone of its own, so it
/// consists of references.
pub trait RetrievalProtocol: Clone + Send + Sync + Sized + 'static {
    /// The reply to a client that is not admitted, before the connection is closed.
    fn refusal_reply(&self, reason: AdmissionRefusal) -> Vec<u8>;
    /// The session of an admitted client begins.
    fn open(listener: RetrievalListener<Self>, client: AdmittedClient) -> impl ConnectionHandler + Send;
}

/// What the sessions of one listener share.
#[derive(Clone)]
pub struct RetrievalListener<P> {
    /// What all sessions share.
    pub context: Arc<RetrievalContext>,
    /// The protocol and its settings.
    pub protocol: P,
    /// Performs TLS handshakes.
    pub tls_server: Option<Arc<TlsServer>>,
    /// Connections use TLS from the first byte.
    pub has_implicit_tls: bool,
    /// Clients that must send a PROXY header before anything else.
    pub proxy_networks: Networks,
}

impl<P: RetrievalProtocol> Service for RetrievalListener<P> {
    type Checked = ();

    fn proxy_networks(&self) -> &Networks {
        &self.proxy_networks
    }

    fn connection_limiter(&self) -> &Arc<ConnectionLimiter> {
        &self.context.connection_limiter
    }

    fn is_trusted(&self, client: IpAddr) -> bool {
        self.context.trusted_networks.contains(client)
    }

    fn tls_server(&self) -> Option<Arc<TlsServer>> {
        self.tls_server.clone()
    }

    fn has_implicit_tls(&self) -> bool {
        self.has_implicit_tls
    }

    fn is_overloaded_for(&self, client: IpAddr) -> bool {
        match self.context.load.restrictions().intake {
            AllowedClients::Open => false,
            AllowedClients::ReservedOnly => !self.context.reserved_networks.contains(client),
            AllowedClients::None => true,
        }
    }

    async fn check_client(
        &self,
        _client: IpAddr,
        _is_early_talker: bool,
        _stop: &StopReceiver,
    ) -> Option<Result<(), Vec<u8>>> {
        Some(Ok(()))
    }

    fn open(self, client: AdmittedClient, _checked: ()) -> impl ConnectionHandler + Send {
        P::open(self, client)
    }

    fn refusal_reply(&self, reason: AdmissionRefusal) -> Vec<u8> {
        self.protocol.refusal_reply(reason)
    }

    fn handle_refused(&self, client: IpAddr, reason: AdmissionRefusal) {
        self.context.operator_log.log_line(format_args!("refused a connection from {client}: {reason}"));
    }

    fn handle_proxy_error(&self, proxy: IpAddr, error: &io::Error) {
        self.context.operator_log.log_line(format_args!("closed a connection from {proxy}: {error}"));
    }

    fn handle_tls_established(&self, security: TlsInfo) {
        self.context.tls_handshakes.count_made(security);
    }

    fn handle_handshake_failed(&self, client: IpAddr, error: &io::Error) {
        self.context.tls_handshakes.count_failed();
        let (client, helo, reason) = (Some(client), "".into(), error.to_string().into());
        self.context.event_log.write(MailEvent::TlsFailed { client, helo, reason });
    }
}
