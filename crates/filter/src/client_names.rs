//! The names of clients, which programs outside are told.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

pub(crate) use crate::access::LOCALHOST;
use crate::access::ReverseName;
use crate::check::SessionInfo;

/// The name of a client without one, as in Postfix.
pub(crate) const UNKNOWN: &str = "unknown";

/// The name of a client to come.
pub type ClientNameFuture<'a> = Pin<Box<dyn Future<Output = ReverseName> + Send + 'a>>;

/// Finds the names of clients.
pub trait ClientNames: Send + Sync {
    /// The name of an address.
    fn name(&self, client: IpAddr) -> ClientNameFuture<'_>;
}

/// The name of a session's client.
pub(crate) async fn client_name(names: &dyn ClientNames, session: &SessionInfo<'_>) -> ReverseName {
    match session.client {
        _ if session.listener.is_none() => ReverseName::Confirmed(LOCALHOST.into()),
        Some(client) => names.name(client).await,
        None => ReverseName::Missing,
    }
}

impl ReverseName {
    /// The name that has the client's address, or `unknown`.
    pub(crate) fn confirmed_or_unknown(&self) -> &str {
        if let ReverseName::Confirmed(name) = self { name } else { UNKNOWN }
    }

    /// The name that the client's address has, confirmed or not, or `unknown`.
    pub(crate) fn reverse_or_unknown(&self) -> &str {
        match self {
            ReverseName::Confirmed(name) | ReverseName::Unconfirmed(name) => name,
            ReverseName::Missing | ReverseName::Unanswered => UNKNOWN,
        }
    }

    /// The value of the macro `{client_resolve}`, as in Sendmail and Postfix.
    pub(crate) fn resolution(&self) -> &'static str {
        match self {
            ReverseName::Confirmed(_) => "OK",
            ReverseName::Unconfirmed(_) => "FORGED",
            ReverseName::Missing => "FAIL",
            ReverseName::Unanswered => "TEMP",
        }
    }
}
