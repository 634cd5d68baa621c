//! A request as it goes out, made once and sent often.

use super::Method;

/// Octets of the host and of the target of a request, each. RFC 9112 section 3 wants 8,000 to be possible.
pub const TARGET_OCTETS_MAX: usize = 8000;

/// Whether the client wants to use the connection again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Yes; HTTP/1.1 says so without a word.
    Keep,
    /// No: `Connection: close`.
    Close,
}

/// The bytes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    method: Method,
    bytes: Box<[u8]>,
}

/// Why there is no such request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsendable {
    /// It is empty, over [`TARGET_OCTETS_MAX`], or has something else than visible ASCII in it, or a `/`.
    #[error("invalid host")]
    Host,
    /// It does not begin with `/`, is over [`TARGET_OCTETS_MAX`], or has something else than visible ASCII in it.
    #[error("invalid path: expected visible ASCII starting with a slash")]
    Target,
}

impl Request {
    /// Asks `host` (`example.org:8080`) for `target` (`/page?question`).
    pub fn new(method: Method, host: &str, target: &str, persistence: Persistence) -> Result<Self, Unsendable> {
        let is_sound = |text: &str| text.len() <= TARGET_OCTETS_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || host.contains('/') || !is_sound(host) {
            return Err(Unsendable::Host);
        }
        if !target.starts_with('/') || !is_sound(target) {
            return Err(Unsendable::Target);
        }
        let last = match persistence {
            Persistence::Keep => "",
            Persistence::Close => "Connection: close\r\n",
        };
        let bytes = format!("{} {target} HTTP/1.1\r\nHost: {host}\r\n{last}\r\n", method.as_str());
        Ok(Request { method, bytes: bytes.into_bytes().into() })
    }

    /// What it asks.
    pub fn method(&self) -> Method {
        self.method
    }

    /// What goes over the wire.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
