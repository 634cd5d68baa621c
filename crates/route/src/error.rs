//! Why a destination has no route, and the replies that say so (RFC 3463 section 3).

use std::net::IpAddr;

use mail::{EnhancedCode, Reply};

/// Why a destination has no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouteError {
    /// The DNS lookup failed; the reason.
    DnsUnavailable(Box<str>),
    /// The domain does not exist in the DNS.
    NoSuchDomain,
    /// The domain has neither MX hosts nor an address.
    NoAddress,
    /// The domain accepts no mail (RFC 7505).
    NullMx,
    /// None of its MX hosts has an address at the moment.
    HostsWithoutAddress,
    /// No host with an address meets the TLS policy; the first of them, and why.
    TlsPolicy(Box<str>),
    /// None of its MX hosts had an address in as many lookups as are required to fail.
    HostsStayWithoutAddress,
    /// The best MX host is this host, but the domain is not local.
    Loop,
    /// An address of a family the transport does not use, or one no host can have.
    UnreachableAddress(IpAddr),
    /// The destination is not a domain.
    NotADomain,
    /// The directory has an invalid host.
    BadMailHost(Box<str>),
    /// A table has an invalid next hop.
    BadNextHop { table: Box<str>, text: Box<str> },
    /// A table names a transport that is not configured.
    NoSuchTransport(Box<str>),
    /// A table is unavailable; the reason, for the log.
    TableUnavailable(Box<str>),
}

impl RouteError {
    /// Whether mail fails because of it. Lookup failures and missing addresses, as during a move of
    /// hosts, may go away.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            RouteError::DnsUnavailable(_) | RouteError::HostsWithoutAddress | RouteError::BadMailHost(_) => false,
            RouteError::BadNextHop { .. } | RouteError::TableUnavailable(_) | RouteError::TlsPolicy(_) => false,
            RouteError::NoSuchTransport(_) => false,
            RouteError::NoSuchDomain | RouteError::NoAddress | RouteError::NullMx | RouteError::Loop => true,
            RouteError::HostsStayWithoutAddress | RouteError::UnreachableAddress(_) | RouteError::NotADomain => true,
        }
    }

    /// Whether it is unknown where the mail goes. All other errors come from data that someone
    /// entered.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self,
            RouteError::DnsUnavailable(_)
                | RouteError::HostsWithoutAddress
                | RouteError::TableUnavailable(_)
                | RouteError::TlsPolicy(_)
        )
    }

    /// The 5xx reply for the destination `name`.
    pub(crate) fn failure_reply(&self, name: &str) -> Reply {
        let (code, subject, detail) = self.codes();
        Reply::new(code, EnhancedCode(5, subject, detail), self.text(name))
    }

    /// The 4xx reply for the destination `name`.
    pub(crate) fn deferral_reply(&self, name: &str) -> Reply {
        let (_, subject, detail) = self.codes();
        Reply::new(451, EnhancedCode(4, subject, detail), self.text(name))
    }

    /// The permanent code, and the subject and detail of the enhanced code.
    fn codes(&self) -> (u16, u16, u16) {
        match self {
            RouteError::DnsUnavailable(_) => (554, 4, 3),
            RouteError::NoSuchDomain | RouteError::NotADomain => (550, 1, 2),
            RouteError::NoAddress | RouteError::UnreachableAddress(_) => (550, 4, 4),
            RouteError::HostsWithoutAddress | RouteError::HostsStayWithoutAddress => (550, 4, 4),
            RouteError::NullMx => (556, 1, 10),
            RouteError::Loop => (554, 4, 6),
            RouteError::BadMailHost(_) | RouteError::BadNextHop { .. } | RouteError::NoSuchTransport(_) => (554, 3, 5),
            RouteError::TableUnavailable(_) => (554, 3, 0),
            RouteError::TlsPolicy(_) => (554, 7, 5),
        }
    }

    fn text(&self, name: &str) -> String {
        let text = match self {
            RouteError::DnsUnavailable(why) => format!("DNS lookup of {name} failed: {why}"),
            RouteError::NoSuchDomain => format!("{name} does not exist in the DNS"),
            RouteError::NoAddress => format!("{name} has neither an MX host nor an address in the DNS"),
            RouteError::NullMx => format!("{name} does not accept mail (null MX)"),
            RouteError::HostsWithoutAddress => format!("None of the MX hosts of {name} has an address in the DNS"),
            RouteError::HostsStayWithoutAddress => {
                format!("Several lookups found no address for any MX host of {name} in the DNS")
            }
            RouteError::Loop => format!("Mail for {name} loops back to this host"),
            RouteError::UnreachableAddress(address) => {
                format!("This server does not send mail to addresses like {address}")
            }
            RouteError::NotADomain => format!("{name} is not a domain"),
            RouteError::BadNextHop { table, text } => {
                format!("Table '{table}' has an invalid next hop for {name}: '{text}'")
            }
            RouteError::NoSuchTransport(transport) => {
                format!("A table names the transport '{transport}' for {name}, which is not configured")
            }
            RouteError::TableUnavailable(why) => format!("Cannot look up the route of {name}: {why}"),
            RouteError::TlsPolicy(why) => format!("No mail host of {name} meets its TLS policy: {why}"),
            RouteError::BadMailHost(host) => format!("The directory names an invalid mail host: '{host}'"),
        };
        // A reply is a single line, and this text may come from a name server.
        text.replace(char::is_control, "?")
    }
}
