//! A prepared request, which can be sent any number of times.

use super::Method;

/// Octets of the host and of the target, each. RFC 9112 section 3 requires support for 8,000.
pub const TARGET_OCTETS_MAX: usize = 8000;

/// Whether the client wants to reuse the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Yes, the default of HTTP/1.1.
    Keep,
    /// No: `Connection: close`.
    Close,
}

/// A prepared request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    method: Method,
    bytes: Box<[u8]>,
}

/// Why a request is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHttpRequest {
    /// The host is empty, exceeds [`TARGET_OCTETS_MAX`], or contains `/` or anything but visible
    /// ASCII.
    #[error("invalid host")]
    Host,
    /// The target does not begin with `/`, exceeds [`TARGET_OCTETS_MAX`], or contains anything but
    /// visible ASCII.
    #[error("invalid path: expected visible ASCII starting with a slash")]
    Target,
}

impl HttpRequest {
    /// A request to `host` (`example.org:8080`) for `target` (`/page?query`).
    pub fn new(method: Method, host: &str, target: &str, persistence: Persistence) -> Result<Self, InvalidHttpRequest> {
        let is_sound = |text: &str| text.len() <= TARGET_OCTETS_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || host.contains('/') || !is_sound(host) {
            return Err(InvalidHttpRequest::Host);
        }
        if !target.starts_with('/') || !is_sound(target) {
            return Err(InvalidHttpRequest::Target);
        }
        let last = match persistence {
            Persistence::Keep => "",
            Persistence::Close => "Connection: close\r\n",
        };
        let bytes = format!("{} {target} HTTP/1.1\r\nHost: {host}\r\n{last}\r\n", method.as_str());
        Ok(HttpRequest { method, bytes: bytes.into_bytes().into() })
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The bytes to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}
