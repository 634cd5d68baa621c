//! HTTP/1.1 (RFC 9110 and 9112), as much of it as is spoken here: GET and HEAD over connections that are kept.

pub mod client;

/// What is asked of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The resource itself.
    Get,
    /// What would come with it.
    Head,
}

impl Method {
    /// As it stands in a request.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
        }
    }
}
