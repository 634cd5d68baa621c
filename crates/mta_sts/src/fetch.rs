//! Fetches a policy by HTTPS from `https://mta-sts.DOMAIN/.well-known/mta-sts.txt` (RFC 8461
//! section 3.3).
//!
//! The certificate must be valid for the host, redirects are not followed, and only the reply 200
//! with text/plain counts. Time, header and body are limited.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dns::{AddressFamilies, DnsAnswer, Resolver};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use mail::TlsFailure;
use net::{TrustedRoots, TrustedRootsError};
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::policy::{Policy, PolicyError};
use crate::turns::{FetchTurn, FetchTurns};

/// The time for everything, from the lookup of the host to the last byte (RFC 8461 section 3.3: a
/// minute).
pub const FETCH_TIME_MAX: Duration = Duration::from_secs(60);
/// The size of a policy (RFC 8461 section 3.3: 64 kilobytes).
pub const POLICY_OCTETS_MAX: usize = 64 * 1024;
/// The size of the header of the reply, and the number of its fields.
const HEAD_OCTETS_MAX: usize = 32 * 1024;
const HEAD_FIELDS_MAX: usize = 100;
/// Addresses of a policy host that are tried.
const ADDRESSES_TRIED_MAX: usize = 4;
/// How long a fetch waits for its turn by default.
const TURN_TIME_MAX: Duration = Duration::from_secs(10);
/// The time to connect to one address.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
const PATH: &str = "/.well-known/mta-sts.txt";

/// How policies are fetched.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// The authorities that vouch for policy hosts.
    pub roots: TrustedRoots,
    /// The port of policy hosts.
    pub port: u16,
    /// The time for everything.
    pub time_max: Duration,
    /// How much of it may be spent on waiting for other fetches.
    pub turn_time_max: Duration,
}

impl Default for FetchConfig {
    fn default() -> Self {
        FetchConfig {
            roots: TrustedRoots::of_system(),
            port: 443,
            time_max: FETCH_TIME_MAX,
            turn_time_max: TURN_TIME_MAX,
        }
    }
}

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Our own CA certificates cannot be used.
    #[error(transparent)]
    Roots(#[from] TrustedRootsError),
    /// The host has no address.
    #[error("{0} has no address in the DNS")]
    NoAddress(String),
    /// No address accepts a connection.
    #[error("cannot connect to {host}: {why}")]
    Unreachable {
        /// The policy host.
        host: String,
        /// The last error.
        why: String,
    },
    /// The TLS handshake failed.
    #[error("TLS with {host}: {why}")]
    Tls {
        /// The policy host.
        host: String,
        /// The error of the TLS library.
        why: String,
    },
    /// Its certificate is not valid.
    #[error("TLS with {host}: {why}")]
    Certificate {
        /// The policy host.
        host: String,
        /// The error of the TLS library.
        why: String,
    },
    /// The reply is not HTTP, or was cut off.
    #[error("HTTP: {0}")]
    Http(String),
    /// Any status but 200.
    #[error("the policy host replied with status {0}")]
    Status(u16),
    /// Any media type but text/plain.
    #[error("the policy is not of type text/plain")]
    MediaType,
    /// More than [`POLICY_OCTETS_MAX`].
    #[error("the policy is larger than {POLICY_OCTETS_MAX} bytes")]
    TooLarge,
    /// Others are being fetched; it may be fetched soon.
    #[error("too many policies are being fetched")]
    NoTurn,
    /// Not within the time.
    #[error("the policy host took too long")]
    TimedOut,
    /// Not a policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl FetchError {
    /// What the owner of the policy may want to know (RFC 8460 section 4.3.2.2). None: this host is the cause.
    pub(crate) fn reported(&self) -> Option<TlsFailure> {
        match self {
            FetchError::Roots(_) | FetchError::NoTurn => None,
            FetchError::Certificate { .. } => Some(TlsFailure::StsPolicyCertificate),
            FetchError::Policy(_) => Some(TlsFailure::StsPolicyInvalid),
            FetchError::NoAddress(_)
            | FetchError::Unreachable { .. }
            | FetchError::Tls { .. }
            | FetchError::Http(_)
            | FetchError::Status(_)
            | FetchError::MediaType
            | FetchError::TooLarge
            | FetchError::TimedOut => Some(TlsFailure::StsPolicyFetch),
        }
    }
}

/// Fetches policies.
pub struct PolicyFetcher {
    config: FetchConfig,
    connector: OnceLock<TlsConnector>,
    turns: FetchTurns,
}

impl PolicyFetcher {
    /// Fetches nothing yet.
    pub fn new(config: FetchConfig) -> Self {
        PolicyFetcher { config, connector: OnceLock::new(), turns: FetchTurns::new() }
    }

    /// Fetches the policy of a domain, which is in lower case and has A-labels.
    pub async fn fetch(&self, dns: &Resolver, domain: &str) -> Result<Policy, FetchError> {
        timeout(self.config.time_max, self.fetch_untimed(dns, domain)).await.unwrap_or(Err(FetchError::TimedOut))
    }

    async fn fetch_untimed(&self, dns: &Resolver, domain: &str) -> Result<Policy, FetchError> {
        let host = format!("mta-sts.{domain}");
        let connector = self.connector().await?;
        let addresses = match dns.addresses(&host, AddressFamilies::Both).await.answer {
            DnsAnswer::Addresses(addresses) if !addresses.is_empty() => addresses,
            _ => return Err(FetchError::NoAddress(host)),
        };
        let (stream, _turn) = self.connect(&addresses, &host).await?;
        let tls_error = |why: String| FetchError::Tls { host: host.clone(), why };
        let name = ServerName::try_from(host.clone()).map_err(|error| tls_error(error.to_string()))?;
        let secured = connector.connect(name, stream).await;
        let stream = secured.map_err(|error| match is_about_certificate(&error) {
            true => FetchError::Certificate { host: host.clone(), why: error.to_string() },
            false => tls_error(error.to_string()),
        })?;
        Ok(Policy::parse(&request_policy(stream, &host).await?)?)
    }

    /// Connects to the first of the addresses that accepts, when it is the turn of that address.
    async fn connect(&self, addresses: &[IpAddr], host: &str) -> Result<(TcpStream, FetchTurn), FetchError> {
        let turn_end = Instant::now() + self.config.turn_time_max;
        let mut why = String::new();
        for address in addresses.iter().take(ADDRESSES_TRIED_MAX) {
            let Ok(Ok(turn)) = timeout_at(turn_end, self.turns.wait_for(*address)).await else {
                return Err(FetchError::NoTurn);
            };
            let address = SocketAddr::new(*address, self.config.port);
            match timeout(CONNECT_TIME_MAX, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok((stream, turn)),
                Ok(Err(error)) => why = error.to_string(),
                Err(_) => why = "no answer in time".to_owned(),
            }
        }
        Err(FetchError::Unreachable { host: host.to_owned(), why })
    }

    /// Reads the CA certificates at the first call.
    async fn connector(&self) -> Result<&TlsConnector, TrustedRootsError> {
        if let Some(connector) = self.connector.get() {
            return Ok(connector);
        }
        let roots = self.config.roots.loaded().await?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(self.connector.get_or_init(|| TlsConnector::from(Arc::new(config))))
    }
}

/// Whether a handshake failed because of the certificate of the server.
fn is_about_certificate(error: &io::Error) -> bool {
    let of_rustls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(of_rustls, Some(rustls::Error::InvalidCertificate(_)))
}

/// Sends the request, and returns the body of the reply.
async fn request_policy(stream: TlsStream<TcpStream>, host: &str) -> Result<Bytes, FetchError> {
    let http = |error: hyper::Error| FetchError::Http(error.to_string());
    let (mut sender, connection) = http1::Builder::new()
        .max_headers(HEAD_FIELDS_MAX)
        .max_buf_size(HEAD_OCTETS_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(http)?;
    let request = Request::get(PATH).header(HOST, host).header(USER_AGENT, "mailrace").body(Empty::<Bytes>::new());
    let request = request.map_err(|error| FetchError::Http(error.to_string()))?;
    let mut exchange = pin!(async { read_body(sender.send_request(request).await.map_err(http)?).await });
    // The connection moves the bytes; it may end before the exchange has read them all.
    tokio::select! {
        biased;
        result = &mut exchange => return result,
        _ = connection => {}
    }
    exchange.await
}

async fn read_body(response: Response<Incoming>) -> Result<Bytes, FetchError> {
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status(response.status().as_u16()));
    }
    let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("text/plain") {
        return Err(FetchError::MediaType);
    }
    if response.body().size_hint().lower() > POLICY_OCTETS_MAX as u64 {
        return Err(FetchError::TooLarge);
    }
    match Limited::new(response.into_body(), POLICY_OCTETS_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(FetchError::TooLarge),
        Err(error) => Err(FetchError::Http(error.to_string())),
    }
}
