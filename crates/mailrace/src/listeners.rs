//! The listeners of a configuration: their sockets, which are opened before privileges are dropped,
//! and the services behind them.

use std::sync::Arc;

use anyhow::Context;
use config::{Config, ListenerProtocol, ListenerSettings};
use control::api::{Api, ApiListener};
use intake::{CommitNotifier, IntakeContext, ListenerContext};
use net::{BoundListener, InheritedSockets, ListenerOpener, ListenerSocket, TlsServer};
use protocol::TlsMode;
use protocol::smtp::server as smtp;

use crate::certificates::RunningCertificates;
use crate::from_config;
use crate::logins::ServerSecret;
use crate::retrieval_parts::{self, RetrievalListeners, RetrievalParts};
use crate::stderr::print_stderr;

/// Opens the sockets of a configuration, in its order: each an open one of `previous`, an inherited
/// one, or a newly bound one.
///
/// # Errors
///
/// An address cannot be bound, or an inherited socket belongs to no listener.
pub fn open_sockets(
    config: &Config,
    previous: &[BoundListener],
    inherited: InheritedSockets,
    workers: usize,
) -> anyhow::Result<Vec<Arc<ListenerSocket>>> {
    let previous = previous.iter().map(|listener| listener.socket().clone()).collect();
    // A node of a cluster may wait for its NATS servers: clients are to try the next host meanwhile.
    let refuses_until_served = config.cluster.as_ref().is_some_and(|cluster| cluster.requires_copies);
    let mut opener = ListenerOpener { previous, inherited, workers, refuses_until_served };
    let open = |listener: &ListenerSettings| {
        let socket = opener.open(listener.address, config.limits.backlog);
        socket.with_context(|| format!("listening on {}", listener.address))
    };
    let sockets = config.listeners.iter().map(open).collect::<anyhow::Result<_>>()?;
    opener.finish()?;
    Ok(sockets)
}

/// What the sessions of all listeners share.
pub struct SessionParts<'a> {
    /// The directory, the spool and the other parts that sessions use.
    pub intake: &'a Arc<IntakeContext>,
    /// What sessions of retrieval use.
    pub retrieval: &'a RetrievalParts,
    /// What the listeners of the API share.
    pub api: &'a Api,
    /// The TLS acceptor, if any listener uses TLS, and the answers to certificate authorities.
    pub certificates: &'a RunningCertificates,
    /// For logins; it can be read only after privileges are dropped.
    pub secret: Option<ServerSecret>,
    /// For each worker, what passes commit results to its thread.
    pub commit_notifiers: &'a [CommitNotifier],
}

impl SessionParts<'_> {
    /// The listeners of a configuration, whose sockets are in its order.
    pub fn listeners(&self, config: &Config, sockets: Vec<Arc<ListenerSocket>>) -> Vec<BoundListener> {
        let acceptor = self.acceptor();
        let retrieval = RetrievalListeners {
            config,
            parts: self.retrieval,
            context: retrieval_parts::context(self.intake, self.retrieval, &self.certificates.challenges),
            acceptor: acceptor.as_ref(),
            secret: self.secret,
            workers: self.commit_notifiers.len(),
        };
        let listener = |(index, (listener, socket)): (usize, (&ListenerSettings, Arc<ListenerSocket>))| {
            if listener.api {
                return self.api_listener(config, listener, socket);
            }
            let bound = retrieval.listener(index, &socket);
            bound.unwrap_or_else(|| self.mail_listener(config, listener, socket))
        };
        config.listeners.iter().zip(sockets).enumerate().map(listener).collect()
    }

    fn acceptor(&self) -> Option<Arc<TlsServer>> {
        self.certificates.watch.current().acceptor
    }

    fn api_listener(&self, config: &Config, listener: &ListenerSettings, socket: Arc<ListenerSocket>) -> BoundListener {
        let settings = from_config::api_settings(config);
        let has_implicit_tls = listener.tls == TlsMode::Implicit;
        let service = ApiListener::new(self.api, settings, self.acceptor(), has_implicit_tls, listener.proxies.clone());
        let services = self.commit_notifiers.iter().map(|_| service.clone());
        BoundListener::new(socket, listener.protocol.name(), services)
    }

    fn mail_listener(
        &self,
        config: &Config,
        listener: &ListenerSettings,
        socket: Arc<ListenerSocket>,
    ) -> BoundListener {
        let flavor = match listener.protocol {
            ListenerProtocol::Lmtp => smtp::MailProtocol::Lmtp,
            _ => smtp::MailProtocol::Smtp,
        };
        let smtp_config = Arc::new(smtp::SmtpServerConfig {
            hostname: config.hostname.clone(),
            flavor,
            tls: listener.tls,
            auth: self.secret.and_then(|secret| from_config::session_auth(config, listener, secret)),
            tolerance: from_config::session_tolerance(config),
            limits: config.limits.session.clone(),
        });
        let acceptor = self.acceptor();
        let counters = self.intake.listeners.of_listener(listener.protocol.name(), listener.address);
        let service = |commit_notifier: &CommitNotifier| ListenerContext {
            intake: self.intake.clone(),
            address: listener.address,
            counters: counters.clone(),
            smtp_config: smtp_config.clone(),
            commit_notifier: commit_notifier.clone(),
            acceptor: acceptor.clone(),
            // The clients are users and not servers.
            adds_missing_headers: listener.protocol == ListenerProtocol::Submission,
            is_from_content_filter: listener.from_content_filter,
            greeting: listener.greeting.clone(),
            proxy_protocol_networks: listener.proxies.clone(),
        };
        BoundListener::new(socket, listener.protocol.name(), self.commit_notifiers.iter().map(service))
    }
}

/// Prints to standard error that a listener is open.
pub fn announce(listener: &BoundListener) {
    let (protocol, address) = (listener.protocol(), listener.socket().address());
    print_stderr(format_args!("mailrace: listening protocol={protocol} address={address}"));
}
