//! The reverse name of a client, confirmed by its addresses (RFC 8601 section 3).

use std::net::IpAddr;

use crate::DnsLookup;

/// What the check says, in the terms of RFC 8601 section 2.7.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IprevResult {
    /// A name of the client has the client's address.
    Pass,
    /// No name of the client has its address.
    Fail,
    /// The client has no name, or the answer cannot be used.
    PermError,
    /// The DNS did not answer.
    TempError,
}

/// The result and the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IprevCheck {
    /// The result.
    pub result: IprevResult,
    /// The first name of the client that has its address; in lower case. None unless the result is
    /// [`IprevResult::Pass`].
    pub name: Option<Box<str>>,
}

/// Checks the reverse name of a client.
pub async fn check(_dns: &dyn DnsLookup, _client: IpAddr) -> IprevCheck {
    IprevCheck { result: IprevResult::TempError, name: None }
}
