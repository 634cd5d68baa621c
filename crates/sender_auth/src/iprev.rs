//! The reverse name of a client, confirmed by its addresses (RFC 8601 section 3).
//!
//! At most ten names are looked up. A name that the DNS does not answer for is skipped; if no other
//! name is confirmed, the result is a temporary error.

use std::net::IpAddr;

use crate::DnsLookup;
use crate::client_names::{ReverseNames, has_address, reverse_names};

/// What the check says, in the terms of RFC 8601 section 2.7.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IprevResult {
    /// A name of the client has the client's address.
    Pass,
    /// No name of the client has its address.
    Fail,
    /// The client has no name.
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
    /// The first name of the client, if the result is [`IprevResult::Fail`].
    pub unconfirmed: Option<Box<str>>,
}

impl IprevResult {
    /// The word of RFC 8601 section 2.7.3.
    pub fn as_str(self) -> &'static str {
        match self {
            IprevResult::Pass => "pass",
            IprevResult::Fail => "fail",
            IprevResult::PermError => "permerror",
            IprevResult::TempError => "temperror",
        }
    }
}

/// Checks the reverse name of a client.
pub async fn check(dns: &dyn DnsLookup, client: IpAddr) -> IprevCheck {
    let without_name = |result| IprevCheck { result, name: None, unconfirmed: None };
    let names = match reverse_names(dns, client).await {
        ReverseNames::Named(names) => names,
        ReverseNames::Unnamed => return without_name(IprevResult::PermError),
        ReverseNames::Unanswered => return without_name(IprevResult::TempError),
    };
    let mut result = IprevResult::Fail;
    for name in &names {
        match has_address(dns, name, client).await {
            Some(true) => return IprevCheck { name: Some(name.clone()), ..without_name(IprevResult::Pass) },
            Some(false) => {}
            None => result = IprevResult::TempError,
        }
    }
    let unconfirmed = names.into_iter().next().filter(|_| result == IprevResult::Fail);
    IprevCheck { unconfirmed, ..without_name(result) }
}
