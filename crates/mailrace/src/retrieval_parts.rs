//! What retrieval is made of: the folders that HTTP serves, the hosts behind the proxies, and the
//! protocols of its listeners. Building is the part that can fail. A reload keeps what has not
//! changed: open folders with their caches, and which hosts are down.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context;
use config::{BackendAccountSettings, BackendTlsMode, Config, ListenerProtocol, ListenerSettings};
use dns::{AddressFamilies, DnsAnswer, Resolver};
use futures_util::future::BoxFuture;
use intake::IntakeContext;
use mail::OperatorLog;
use mailbox::maildrop::DotLineCache;
use net::{BoundListener, ChallengeStore, ConnectionLimiter, ConnectionLimits, ListenerSocket, TlsClient, TlsServer};
use protocol::TlsMode;
use protocol::backend_login::BackendLoginMethod;
use protocol::imap::server::{ImapAuthConfig, ImapLimits, ImapServerConfig};
use protocol::pop3::server::{Pop3AuthConfig, Pop3ServerConfig};
use protocol::sasl::{Mechanism, SaslConfig, Secret};
use retrieval::http::HttpProtocol;
use retrieval::pop3::{Pop3Protocol, Pop3Settings};
use retrieval::proxy::{
    BackendAccount, BackendAddress, BackendHosts, BackendResolver, BackendTls, ImapProxyProtocol, MasterUser,
    Pop3ProxyProtocol, ProxySettings,
};
use retrieval::{
    MailboxLocator, RetrievalContext, RetrievalCounters, RetrievalListener, RetrievalMonitor, RetrievalProtocol,
};

use crate::logins::ServerSecret;
use crate::tables;

/// The parts that depend on the configuration.
pub struct RetrievalParts {
    mailboxes: Arc<dyn MailboxLocator>,
    /// The limits on sessions.
    limits: ConnectionLimits,
    limiter: Arc<ConnectionLimiter>,
    counters: Arc<RetrievalCounters>,
    /// Where the lines of large messages begin with a dot.
    dot_lines: Arc<DotLineCache>,
    /// For each listener, what it serves by HTTP, if that is its protocol.
    http: Vec<Option<HttpProtocol>>,
    /// None without a proxy.
    proxy: Option<ProxyParts>,
}

/// The hosts behind the proxies, and who logs in there.
struct ProxyParts {
    hosts: Arc<BackendHosts>,
    account: BackendAccount,
}

impl RetrievalParts {
    /// Opens the folders of HTTP, and reads the password of the master user. `before` has the parts
    /// in force and their configuration.
    ///
    /// # Errors
    ///
    /// A folder or the password cannot be read, or the name servers are unusable.
    pub fn build(
        config: &Config,
        mailboxes: Arc<dyn MailboxLocator>,
        sessions_max: usize,
        before: Option<(&Config, &RetrievalParts)>,
        log: impl FnOnce() -> Arc<dyn OperatorLog>,
    ) -> anyhow::Result<RetrievalParts> {
        let http =
            config.listeners.iter().map(|listener| open_http(listener, before)).collect::<anyhow::Result<_>>()?;
        let is_proxy = |listener: &ListenerSettings| {
            matches!(listener.protocol, ListenerProtocol::Pop3Proxy | ListenerProtocol::ImapProxy)
        };
        let proxy = config.listeners.iter().any(is_proxy).then(|| ProxyParts::build(config, before, log));
        let limits = ConnectionLimits { sessions_max, ..config.limits.connections.clone() };
        Ok(RetrievalParts {
            mailboxes,
            limiter: ConnectionLimiter::new(limits.clone()),
            limits,
            counters: Arc::default(),
            dot_lines: before.map_or_else(Arc::default, |(_, before)| before.dot_lines.clone()),
            http,
            proxy: proxy.transpose()?,
        })
    }

    /// Continues the counters of the parts in force, whose sessions from now on count for the limits
    /// of these.
    pub fn continue_from(&mut self, before: &RetrievalParts) {
        self.limiter = before.limiter.with_limits(self.limits.clone());
        self.counters = before.counters.clone();
    }

    /// What the operator sees.
    pub fn monitor(&self) -> RetrievalMonitor {
        RetrievalMonitor {
            connection_limiter: self.limiter.clone(),
            counters: self.counters.clone(),
            backends: self.proxy.as_ref().map(|proxy| proxy.hosts.clone()),
        }
    }
}

/// Opens what a listener serves by HTTP, or keeps it open.
fn open_http(
    listener: &ListenerSettings,
    before: Option<(&Config, &RetrievalParts)>,
) -> anyhow::Result<Option<HttpProtocol>> {
    let Some(settings) = listener.http.as_deref() else { return Ok(None) };
    let same = before.and_then(|(config, parts)| {
        let is_same = |other: &ListenerSettings| other.http.as_deref() == Some(settings);
        parts.http.get(config.listeners.iter().position(is_same)?)?.clone()
    });
    let open = || HttpProtocol::new(settings.clone()).with_context(|| format!("the listener {}", listener.address));
    same.map_or_else(open, Ok).map(Some)
}

impl ProxyParts {
    fn build(
        config: &Config,
        before: Option<(&Config, &RetrievalParts)>,
        log: impl FnOnce() -> Arc<dyn OperatorLog>,
    ) -> anyhow::Result<ProxyParts> {
        let is_same = |old: &Config| old.dns == config.dns && old.proxy.backends == config.proxy.backends;
        let same = before.filter(|(old, _)| is_same(old)).and_then(|(_, parts)| parts.proxy.as_ref());
        let hosts = match same {
            Some(same) => same.hosts.clone(),
            None => {
                let resolver = HostResolver(Resolver::new(&config.dns).context("[dns]")?);
                BackendHosts::new(Arc::new(resolver), config.proxy.backends.clone(), log())
            }
        };
        let account = match &config.proxy.account {
            BackendAccountSettings::User => BackendAccount::User,
            BackendAccountSettings::UserUnchecked => BackendAccount::UserUnchecked,
            BackendAccountSettings::Master { user, password_file, form } => {
                let password = Secret::new(tables::read_password(password_file)?.into());
                BackendAccount::Master(MasterUser { user: user.clone(), password, form: *form })
            }
        };
        Ok(ProxyParts { hosts, account })
    }

    fn settings(&self, config: &Config, port: u16, on_this_host: Option<BackendAddress>) -> ProxySettings {
        ProxySettings {
            hosts: self.hosts.clone(),
            port,
            tls: match config.proxy.tls {
                BackendTlsMode::Never => BackendTls::Never,
                BackendTlsMode::StartTls => BackendTls::StartTls(TlsClient::unverified()),
                BackendTlsMode::Implicit => BackendTls::Implicit(TlsClient::unverified()),
            },
            account: self.account.clone(),
            method: BackendLoginMethod::default(),
            on_this_host,
            tells_client_address: config.proxy.tells_client_address,
            idle_time_max: config.proxy.idle_time_max,
        }
    }
}

/// The addresses of hosts, from the DNS.
struct HostResolver(Resolver);

impl BackendResolver for HostResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        Box::pin(async move {
            match self.0.addresses(host, AddressFamilies::Both).await.answer {
                DnsAnswer::Addresses(addresses) => Ok(addresses.to_vec()),
                DnsAnswer::Unanswered(why) => Err(why.to_string()),
                _ => Ok(Vec::new()),
            }
        })
    }
}

/// The listeners of retrieval, for the sessions of a configuration in force.
pub struct RetrievalListeners<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Its parts.
    pub parts: &'a RetrievalParts,
    /// What all sessions share.
    pub context: Arc<RetrievalContext>,
    /// The TLS acceptor, if any listener uses TLS.
    pub acceptor: Option<&'a Arc<TlsServer>>,
    /// For logins.
    pub secret: Option<ServerSecret>,
    /// Threads that run sessions.
    pub workers: usize,
}

/// What the sessions of retrieval share with those that receive mail, and where mailboxes are.
pub fn context(
    intake: &IntakeContext,
    parts: &RetrievalParts,
    challenges: &Arc<ChallengeStore>,
) -> Arc<RetrievalContext> {
    Arc::new(RetrievalContext {
        hostname: intake.hostname.clone(),
        credentials: intake.logins.as_ref().map(|logins| logins.credentials.clone()),
        mailboxes: parts.mailboxes.clone(),
        load: intake.load.clone(),
        connection_limiter: parts.limiter.clone(),
        counters: parts.counters.clone(),
        tls_handshakes: intake.tls_handshakes.clone(),
        challenges: challenges.clone(),
        reserved_networks: intake.reserved_networks.clone(),
        trusted_networks: intake.relay_networks.clone(),
        event_log: intake.event_log.clone(),
        operator_log: intake.operator_log.clone(),
    })
}

impl RetrievalListeners<'_> {
    /// The listener with this index in the configuration; None if it receives mail.
    pub fn listener(&self, index: usize, socket: &Arc<ListenerSocket>) -> Option<BoundListener> {
        let Config { pop3, proxy, listeners, .. } = self.config;
        let listener = &listeners[index];
        match listener.protocol {
            ListenerProtocol::Smtp | ListenerProtocol::Lmtp | ListenerProtocol::Submission => None,
            ListenerProtocol::Pop3 => {
                let settings = Pop3Settings {
                    maildrop: pop3.maildrop.clone(),
                    sendfile: listener.sendfile,
                    dot_lines: self.parts.dot_lines.clone(),
                };
                Some(self.bind(listener, socket, Pop3Protocol::new(self.pop3_config(listener)?, settings)))
            }
            ListenerProtocol::Http => Some(self.bind(listener, socket, self.parts.http[index].clone()?)),
            ListenerProtocol::Pop3Proxy => {
                let settings =
                    self.parts.proxy.as_ref()?.settings(self.config, proxy.pop3_port, proxy.local_pop3.clone());
                Some(self.bind(listener, socket, Pop3ProxyProtocol::new(self.pop3_config(listener)?, settings)))
            }
            ListenerProtocol::ImapProxy => {
                let settings =
                    self.parts.proxy.as_ref()?.settings(self.config, proxy.imap_port, proxy.local_imap.clone());
                Some(self.bind(listener, socket, ImapProxyProtocol::new(self.imap_config(listener)?, settings)))
            }
        }
    }

    fn bind(
        &self,
        listener: &ListenerSettings,
        socket: &Arc<ListenerSocket>,
        protocol: impl RetrievalProtocol,
    ) -> BoundListener {
        let service = RetrievalListener {
            context: self.context.clone(),
            protocol,
            tls_server: self.acceptor.cloned(),
            has_implicit_tls: listener.tls == TlsMode::Implicit,
            proxy_networks: listener.proxies.clone(),
        };
        BoundListener::new(socket.clone(), listener.protocol.name(), (0..self.workers).map(|_| service.clone()))
    }

    fn pop3_config(&self, listener: &ListenerSettings) -> Option<Pop3ServerConfig> {
        let (mechanisms, clear_text, sasl) = self.logins()?;
        Some(Pop3ServerConfig {
            hostname: self.config.hostname.clone(),
            tls: listener.tls,
            auth: Pop3AuthConfig { mechanisms, clear_text, sasl },
            limits: self.config.pop3.limits.clone(),
        })
    }

    fn imap_config(&self, listener: &ListenerSettings) -> Option<ImapServerConfig> {
        let (mechanisms, clear_text, sasl) = self.logins()?;
        Some(ImapServerConfig {
            hostname: self.config.hostname.clone(),
            tls: listener.tls,
            auth: ImapAuthConfig { mechanisms, clear_text, sasl },
            limits: ImapLimits::default(),
        })
    }

    /// How users log in. Every configuration with a listener for users has it.
    fn logins(&self) -> Option<(Box<[Mechanism]>, bool, SaslConfig)> {
        let (auth, secret) = self.config.auth.as_ref().zip(self.secret)?;
        Some((auth.mechanisms.as_slice().into(), auth.clear_text, SaslConfig { secret }))
    }
}
