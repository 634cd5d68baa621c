//! Why there is no way, and what the sender is told of it (RFC 3463 section 3).

use std::net::IpAddr;

use mail::{Enhanced, Reply};

/// Why a destination has no way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The DNS did not say; why.
    Unanswered(Box<str>),
    /// The domain is not in the DNS.
    NoSuchDomain,
    /// It is, with neither MX nor an address.
    NoAddress,
    /// It takes no mail, and says so (RFC 7505).
    NullMx,
    /// None of its MX hosts has an address at the moment.
    HostsWithoutAddress,
    /// None of them has had one in as many lookups as are waited for.
    HostsStayWithoutAddress,
    /// The best of its hosts is this one, which does not know it.
    Loop,
    /// An address of a family that the transport does not have, or that no host can have.
    Family(IpAddr),
    /// The destination is no domain.
    NoDomain,
    /// The directory names a host that is none.
    MailHost(Box<str>),
    /// A table names a next hop that is none.
    NextHop { table: Box<str>, text: Box<str> },
    /// A table could not say; why, for the log.
    Table(Box<str>),
}

impl Obstacle {
    /// Whether it will be there again at the next try. What the DNS cannot say, and hosts whose addresses are
    /// missing, as they are while somebody moves them, may come back.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            Obstacle::Unanswered(_) | Obstacle::HostsWithoutAddress | Obstacle::MailHost(_) => false,
            Obstacle::NextHop { .. } | Obstacle::Table(_) => false,
            Obstacle::NoSuchDomain | Obstacle::NoAddress | Obstacle::NullMx | Obstacle::Loop => true,
            Obstacle::HostsStayWithoutAddress | Obstacle::Family(_) | Obstacle::NoDomain => true,
        }
    }

    /// Whether it is no word on where mail goes: nobody could say. The others are what somebody has written.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Obstacle::Unanswered(_) | Obstacle::HostsWithoutAddress | Obstacle::Table(_))
    }

    /// The reply of 5xx that says so of the name that was asked for.
    pub(crate) fn failure(&self, name: &str) -> Reply {
        let (code, subject, detail) = self.codes();
        Reply::new(code, Enhanced(5, subject, detail), self.text(name))
    }

    /// The reply of 4xx that says so.
    pub(crate) fn deferral(&self, name: &str) -> Reply {
        let (_, subject, detail) = self.codes();
        Reply::new(451, Enhanced(4, subject, detail), self.text(name))
    }

    /// The code where it is permanent, subject and detail.
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
        // Texts of replies are lines; a name server may have had its hand in this one.
        text.replace(char::is_control, "?")
    }
}
