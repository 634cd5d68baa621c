//! Why a destination has no route, and the replies that say so (RFC 3463 section 3).

use std::net::IpAddr;

use mail::{Enhanced, Reply};

/// Why a destination has no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The DNS lookup failed; the reason.
    Unanswered(Box<str>),
    /// The domain does not exist in the DNS.
    NoSuchDomain,
    /// The domain has neither MX hosts nor an address.
    NoAddress,
    /// The domain accepts no mail (RFC 7505).
    NullMx,
    /// None of its MX hosts has an address at the moment.
    HostsWithoutAddress,
    /// None of its MX hosts had an address in as many lookups as are required to fail.
    HostsStayWithoutAddress,
    /// The best MX host is this host, but the domain is not local.
    Loop,
    /// An address of a family the transport does not use, or one no host can have.
    Family(IpAddr),
    /// The destination is not a domain.
    NoDomain,
    /// The directory has an invalid host.
    MailHost(Box<str>),
    /// A table has an invalid next hop.
    NextHop { table: Box<str>, text: Box<str> },
    /// A table is unavailable; the reason, for the log.
    Table(Box<str>),
}

impl Obstacle {
    /// Whether mail fails because of it. Lookup failures and missing addresses, as during a move of
    /// hosts, may go away.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            Obstacle::Unanswered(_) | Obstacle::HostsWithoutAddress | Obstacle::MailHost(_) => false,
            Obstacle::NextHop { .. } | Obstacle::Table(_) => false,
            Obstacle::NoSuchDomain | Obstacle::NoAddress | Obstacle::NullMx | Obstacle::Loop => true,
            Obstacle::HostsStayWithoutAddress | Obstacle::Family(_) | Obstacle::NoDomain => true,
        }
    }

    /// Whether it is unknown where the mail goes. All other errors come from data that someone
    /// entered.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Obstacle::Unanswered(_) | Obstacle::HostsWithoutAddress | Obstacle::Table(_))
    }

    /// The 5xx reply for the destination `name`.
    pub(crate) fn failure(&self, name: &str) -> Reply {
        let (code, subject, detail) = self.codes();
        Reply::new(code, Enhanced(5, subject, detail), self.text(name))
    }

    /// The 4xx reply for the destination `name`.
    pub(crate) fn deferral(&self, name: &str) -> Reply {
        let (_, subject, detail) = self.codes();
        Reply::new(451, Enhanced(4, subject, detail), self.text(name))
    }

    /// The permanent code, and the subject and detail of the enhanced code.
    fn codes(&self) -> (u16, u16, u16) {
        match self {
            Obstacle::Unanswered(_) => (554, 4, 3),
            Obstacle::NoSuchDomain | Obstacle::NoDomain => (550, 1, 2),
            Obstacle::NoAddress | Obstacle::Family(_) => (550, 4, 4),
            Obstacle::HostsWithoutAddress | Obstacle::HostsStayWithoutAddress => (550, 4, 4),
            Obstacle::NullMx => (556, 1, 10),
            Obstacle::Loop => (554, 4, 6),
            Obstacle::MailHost(_) | Obstacle::NextHop { .. } => (554, 3, 5),
            Obstacle::Table(_) => (554, 3, 0),
        }
    }

    fn text(&self, name: &str) -> String {
        let text = match self {
            Obstacle::Unanswered(why) => format!("DNS lookup of {name} failed: {why}"),
            Obstacle::NoSuchDomain => format!("{name} does not exist in the DNS"),
            Obstacle::NoAddress => format!("{name} has neither an MX host nor an address in the DNS"),
            Obstacle::NullMx => format!("{name} does not accept mail (null MX)"),
            Obstacle::HostsWithoutAddress => format!("None of the MX hosts of {name} has an address in the DNS"),
            Obstacle::HostsStayWithoutAddress => {
                format!("Several lookups found no address for any MX host of {name} in the DNS")
            }
            Obstacle::Loop => format!("Mail for {name} loops back to this host"),
            Obstacle::Family(address) => format!("This server does not send mail to addresses like {address}"),
            Obstacle::NoDomain => format!("{name} is not a domain"),
            Obstacle::NextHop { table, text } => {
                format!("Table '{table}' has an invalid next hop for {name}: '{text}'")
            }
            Obstacle::Table(why) => format!("Cannot look up the route of {name}: {why}"),
            Obstacle::MailHost(host) => format!("The directory names an invalid mail host: '{host}'"),
        };
        // A reply is a single line, and this text may come from a name server.
        text.replace(char::is_control, "?")
    }
}
