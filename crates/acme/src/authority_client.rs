//! Requests to the authority by HTTPS: the client that `instant_acme` sends its requests with.
//!
//! Each request has a connection of its own; there are about ten for a certificate. The certificate of
//! the authority's server must be valid. Time and size are limited, redirects are not followed, and a
//! reply that is an error without a problem document (RFC 8555 section 6.7) is one by its status. The
//! last Retry-After of an error is kept for the next attempt.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use net::TrustedRoots;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::schedule::RETRY_AFTER_MAX;

/// The time for a request, from the lookup of the host to the last byte.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);
/// The size of a reply; a chain of certificates is a few thousand bytes.
const REPLY_OCTETS_MAX: usize = 256 * 1024;
/// The size of the header of a reply, and the number of its fields.
const HEAD_OCTETS_MAX: usize = 32 * 1024;
const HEAD_FIELDS_MAX: usize = 100;
/// The type of a problem document.
const PROBLEM: &str = "application/problem+json";

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    /// The authority names such an address.
    #[error("not a URL with https: {0}")]
    NotHttps(Uri),
    #[error("unable to connect to {host}: {error}")]
    Connect { host: String, error: std::io::Error },
    #[error("TLS with {host}: {error}")]
    Tls { host: String, error: std::io::Error },
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    #[error("{host} replied with status {status}")]
    Status { host: String, status: u16 },
    #[error("the reply is larger than {REPLY_OCTETS_MAX} bytes")]
    TooLarge,
    #[error("the reply was cut off: {0}")]
    CutOff(String),
    #[error("{host} took longer than {} s to reply", REQUEST_TIME_MAX.as_secs())]
    TimedOut { host: String },
}

/// Sends requests. Clones share what was asked for.
#[derive(Clone)]
pub(crate) struct AuthorityClient {
    connector: TlsConnector,
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl AuthorityClient {
    /// Blocks on disk I/O.
    pub(crate) fn new(roots: &TrustedRoots) -> Result<AuthorityClient, net::TrustedRootsError> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports TLS 1.2 and 1.3")
            .with_root_certificates(roots.load()?)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(AuthorityClient { connector: TlsConnector::from(Arc::new(config)), retry_after: Arc::default() })
    }

    /// How long the authority wants to be left alone, if it has said so.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        *self.retry_after.lock()
    }

    async fn exchange(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, RequestError> {
        let url = request.uri().clone();
        let (Some("https"), Some(host), Some(authority)) = (url.scheme_str(), url.host(), url.authority()) else {
            return Err(RequestError::NotHttps(url));
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().unwrap_or(443);
        let no_tls = |error| RequestError::Tls { host: host.to_owned(), error };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| no_tls(std::io::Error::other(error)))?;
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(|error| RequestError::Connect { host: host.to_owned(), error })?;
        let stream = self.connector.connect(name, stream).await.map_err(no_tls)?;
        let (mut sender, connection) = http1::Builder::new()
            .max_headers(HEAD_FIELDS_MAX)
            .max_buf_size(HEAD_OCTETS_MAX)
            .handshake(TokioIo::new(stream))
            .await?;
        let request = to_origin_form(request, &url);
        let mut exchange = pin!(async { read_reply(sender.send_request(request).await?).await });
        // The connection moves the bytes; it may end before the exchange has read them all.
        let reply = tokio::select! {
            biased;
            reply = &mut exchange => reply,
            _ = connection => exchange.await,
        }?;
        self.check(reply, host)
    }

    /// An error that explains itself is left to the caller.
    fn check(&self, mut reply: Response<Bytes>, host: &str) -> Result<BytesResponse, RequestError> {
        let status = reply.status();
        if status.is_client_error() || status.is_server_error() {
            if let Some(wait) = reply.headers().get(RETRY_AFTER).and_then(seconds) {
                *self.retry_after.lock() = Some(wait);
            }
            let is_problem = reply.headers().get(CONTENT_TYPE).is_some_and(|value| is_of_type(value, PROBLEM));
            if !is_problem {
                return Err(RequestError::Status { host: host.to_owned(), status: status.as_u16() });
            }
        }
        // The caller adds it to the time, whatever it is.
        if reply.headers().get(RETRY_AFTER).and_then(seconds).is_some_and(|wait| wait > RETRY_AFTER_MAX) {
            reply.headers_mut().remove(RETRY_AFTER);
        }
        let (parts, body) = reply.into_parts();
        Ok(BytesResponse { parts, body: Box::new(body) })
    }
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let host = request.uri().host().unwrap_or_default().to_owned();
        let exchange = self.clone().exchange(request);
        Box::pin(async move {
            let reply = timeout(REQUEST_TIME_MAX, exchange).await;
            let reply = reply.unwrap_or(Err(RequestError::TimedOut { host }));
            reply.map_err(|error| Error::Other(Box::new(error)))
        })
    }
}

/// A request as a server gets it that is no proxy (RFC 9112 section 3.2.1).
fn to_origin_form<B: Body<Error = Infallible>>(mut request: Request<B>, url: &Uri) -> Request<B> {
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    // A part of a valid URL is valid.
    *request.uri_mut() = path.parse().unwrap_or_default();
    let authority = url.authority().map_or("", |authority| authority.as_str());
    if let Ok(host) = HeaderValue::from_str(authority) {
        request.headers_mut().insert(HOST, host);
    }
    request
}

async fn read_reply(reply: Response<Incoming>) -> Result<Response<Bytes>, RequestError> {
    let (parts, body) = reply.into_parts();
    match Limited::new(body, REPLY_OCTETS_MAX).collect().await {
        Ok(body) => Ok(Response::from_parts(parts, body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Err(RequestError::TooLarge),
        Err(error) => Err(RequestError::CutOff(error.to_string())),
    }
}

fn is_of_type(value: &HeaderValue, wanted: &str) -> bool {
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case(wanted)
}

/// Retry-After in seconds; dates are not believed, since clocks differ.
fn seconds(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    fn reply(status: u16, fields: &[(HeaderName, &str)]) -> Response<Bytes> {
        let reply = fields
            .iter()
            .fold(Response::builder().status(status), |reply, (name, value)| reply.header(name.clone(), *value));
        reply.body(Bytes::from_static(b"{}")).unwrap()
    }

    fn client(folder: &tempfile::TempDir) -> AuthorityClient {
        let ca = folder.path().join("ca.pem");
        let key = rcgen::KeyPair::generate().unwrap();
        let made = rcgen::CertificateParams::new(vec!["ca.example".into()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(&ca, made.pem()).unwrap();
        AuthorityClient::new(&TrustedRoots::in_file(&ca)).unwrap()
    }

    #[test]
    fn an_error_without_a_problem_document_is_told_by_its_status() {
        let client = client(&tempfile::tempdir().unwrap());
        let problem = [(CONTENT_TYPE, "Application/problem+json; charset=utf-8")];
        assert!(client.check(reply(403, &problem), "ca.example").is_ok());
        assert!(client.check(reply(200, &[]), "ca.example").is_ok());
        let error = client.check(reply(502, &[(CONTENT_TYPE, "text/html")]), "ca.example").err().unwrap();
        assert_eq!(error.to_string(), "ca.example replied with status 502");
    }

    #[test]
    fn what_an_error_says_about_the_next_attempt_is_kept() {
        let client = client(&tempfile::tempdir().unwrap());
        assert_eq!(client.retry_after(), None);
        for (value, kept) in [("soon", None), ("-1", None), (" 120 ", Some(120)), ("Fri, 01 Jan 2027", Some(120))] {
            drop(client.check(reply(429, &[(RETRY_AFTER, value)]), "ca.example"));
            assert_eq!(client.retry_after(), kept.map(Duration::from_secs), "{value}");
        }
    }

    /// instant-acme adds it to the present time, which panics on an overflow.
    #[test]
    fn a_wait_for_ever_is_not_passed_on() {
        let client = client(&tempfile::tempdir().unwrap());
        for (value, is_kept) in [("18446744073709551615", false), ("604801", false), ("604800", true), ("3", true)] {
            let reply = client.check(reply(200, &[(RETRY_AFTER, value)]), "ca.example").unwrap();
            assert_eq!(reply.parts.headers.contains_key(RETRY_AFTER), is_kept, "{value}");
        }
    }

    #[test]
    fn a_request_has_its_host_and_only_a_path() {
        let url: Uri = "https://ca.example:14000/dir?a=b".parse().unwrap();
        let request = Request::get(url.clone()).body(BodyWrapper::<Bytes>::default()).unwrap();
        let request = to_origin_form(request, &url);
        assert_eq!(
            (request.uri().to_string(), &request.headers()[HOST]),
            ("/dir?a=b".into(), &"ca.example:14000".parse().unwrap())
        );
    }
}
