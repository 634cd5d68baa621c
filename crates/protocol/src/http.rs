//! HTTP/1.1 (RFC 9110 and 9112), as far as needed: GET, HEAD and POST over persistent connections.

mod chunked;
pub mod client;
mod field;
pub mod server;

/// The request method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Get the resource.
    Get,
    /// Get its header only.
    Head,
    /// Process the content of the request.
    Post,
}

impl Method {
    /// The method name in a request.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
        }
    }
}
