//! The HTTP API: a [`net::Service`] that answers from the functions of the control socket. The table of
//! its paths is in `routes.rs`; the OpenAPI document is made from it.
//!
//! | check, in this order | the client gets |
//! |---|---|
//! | Host names this server, an IP address, or nothing: no page of another name reaches it by the DNS | 421 |
//! | the path, then the method, of which `Allow` names those of the path | 404, 405 |
//! | a token, unless the path needs none | 401, 429 after too many wrong ones, 503 |
//! | the role of the token | 403 |
//! | the content of POST is `application/json`, which pages of others cannot send unasked | 415 |
//! | query and content are what the path takes | 400 |
//! | what they name exists, and the request makes sense | 404, 422 |
//!
//! Errors are problem documents (RFC 9457). Limits: [`ApiSettings`]; the rest are those of the protocol
//! ([`HttpServerLimits`]). At most [`REQUESTS_MAX`] requests are answered at a time, and beside them
//! [`METRICS_REQUESTS_MAX`] for metrics; others wait for [`PERMIT_WAIT_MAX`], then get 503. What is answered
//! without waiting, such as `/healthz`, has no limit but that of connections. Nothing here is fatal.

mod answer;
mod listener;
mod openapi;
mod page_file;
mod query;
mod routes;
mod session;
mod types;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use mail::Networks;
use net::{ConnectionLimiter, ConnectionLimits, TlsServer};
use protocol::http::Method;
use protocol::http::server::{HttpServerConfig, HttpServerLimits};
use tokio::sync::Semaphore;

use self::routes::RequestGroup;
use crate::current_handler::CurrentHandler;
use crate::tokens::{TokenChecker, TokenFile};

/// What clients log in to.
const REALM: &str = "mailrace";
/// What all responses say: they are not kept, and shown in no frame. A page, which can only be the
/// dashboard, loads nothing but from this server.
const RESPONSE_FIELDS: &str = "Cache-Control: no-store\r\nContent-Security-Policy: default-src 'none'; \
    script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'\r\nX-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n";
/// Requests that are answered at a time.
const REQUESTS_MAX: usize = 4;
/// Requests for metrics that are answered at a time.
const METRICS_REQUESTS_MAX: usize = 2;
/// How long a request waits until fewer are answered.
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(10);

/// The settings of all listeners of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiSettings {
    /// The names by which clients may call this server, beside `localhost` and IP addresses.
    pub hosts: BTreeSet<Box<str>>,
    /// Concurrent connections of all clients.
    pub connections_max: usize,
    /// The most entries of a page.
    pub page_entries_max: usize,
    /// What a client may send, and how long it may take.
    pub limits: HttpServerLimits,
}

/// What the listeners share, whatever the configuration.
#[derive(Clone)]
pub struct Api {
    handler: CurrentHandler,
    tokens: Arc<TokenChecker>,
    connections: Arc<ConnectionLimiter>,
    metrics_permits: Arc<Semaphore>,
    permits: Arc<Semaphore>,
}

impl Api {
    /// Answers from the handler in force; the tokens are in this file.
    pub fn new(handler: CurrentHandler, tokens: TokenFile) -> Api {
        Api {
            handler,
            tokens: Arc::new(TokenChecker::new(tokens)),
            connections: ConnectionLimiter::new(ConnectionLimits::default()),
            metrics_permits: Arc::new(Semaphore::new(METRICS_REQUESTS_MAX)),
            permits: Arc::new(Semaphore::new(REQUESTS_MAX)),
        }
    }

    /// What a request needs one of while it is answered; None: nothing.
    fn permits(&self, group: RequestGroup) -> Option<Arc<Semaphore>> {
        match group {
            RequestGroup::Immediate => None,
            RequestGroup::Metrics => Some(self.metrics_permits.clone()),
            RequestGroup::Others => Some(self.permits.clone()),
        }
    }
}

/// What the sessions of one listener share.
#[derive(Clone)]
pub struct ApiListener {
    api: Api,
    settings: Arc<ApiSettings>,
    server_config: Arc<HttpServerConfig>,
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
            allowed_methods: Some(routes::allow_field),
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
}

/// For fuzzing: whether a request that was let in has content of any type that an act takes. Its path and
/// query are read too.
#[doc(hidden)]
pub fn reads_request(path: &[u8], query: &[u8], content: &[u8]) -> bool {
    for method in [Method::Get, Method::Post] {
        // What is found is no matter.
        let _ = routes::find(method, path);
    }
    query::read_as_each_type(query);
    answer::is_content_of_any_act(content)
}

impl ApiSettings {
    /// Whether the server answers for this host. A browser sends the name of the page, which may be one
    /// that its owner lets point to this server; it always sends one.
    fn answers_for(&self, host: Option<&str>) -> bool {
        let Some(host) = host else { return true };
        let name = without_port(host).to_ascii_lowercase();
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        name == "localhost" || address.parse::<IpAddr>().is_ok() || self.hosts.contains(&*name)
    }
}

/// A host without its port; an IPv6 address is in brackets.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|octet| octet.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_answers_for_its_own_names_only() {
        let hosts = BTreeSet::from(["mx.example.org".into()]);
        let limits = HttpServerLimits::default();
        let settings = ApiSettings { hosts, connections_max: 1, page_entries_max: 1, limits };
        let own =
            ["localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:80", "[::1]:8080", "[::1]", "MX.example.org:1"];
        for host in own {
            assert!(settings.answers_for(Some(host)), "{host}");
        }
        assert!(settings.answers_for(None));
        for host in
            ["", "evil.example", "evil.example:8080", "localhost.evil.example", "mx.example.org.", "127.0.0.1.x"]
        {
            assert!(!settings.answers_for(Some(host)), "{host}");
        }
    }
}
