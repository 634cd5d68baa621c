//! Which way a destination takes, by the configuration alone: nobody is asked here.

use std::net::IpAddr;

use crate::config::Config;
use crate::destination::Destination;
use crate::hop::FixedHop;
use crate::replies::Obstacle;

/// A way, before the DNS is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way<'a> {
    /// Into mailboxes here.
    Local { transport: &'a str },
    /// To a next hop that the operator or the directory names.
    Hop { hop: FixedHop, transport: &'a str },
    /// To the mail hosts of a domain.
    Exchangers { domain: Box<str>, transport: &'a str },
    /// To an address.
    Literal { address: IpAddr, transport: &'a str },
    /// There is none.
    Nowhere(Obstacle),
}

impl Config {
    /// The way of a destination.
    pub(crate) fn way(&self, destination: &str) -> Way<'_> {
        match Destination::parse(destination) {
            Destination::MailHost(host) => self.way_to_mail_host(host),
            Destination::Nonsense => Way::Nowhere(Obstacle::NoDomain),
            Destination::Domain(domain) => match self.domains.get(&domain) {
                Some(transport) => Way::Local { transport },
                None => self.way_by_rule(&domain, |transport| Way::Exchangers { domain: domain.clone(), transport }),
            },
            Destination::Literal(address) => {
                let text = destination.to_ascii_lowercase();
                self.way_by_rule(&text, |transport| Way::Literal { address, transport })
            }
        }
    }

    /// The way that the first rule names which takes the domain; where none does, or it names no next hop, the other.
    fn way_by_rule<'a>(&'a self, domain: &str, otherwise: impl FnOnce(&'a str) -> Way<'a>) -> Way<'a> {
        match self.rules.iter().find(|rule| rule.pattern.fits(domain)) {
            Some(rule) => match &rule.next_hop {
                Some(hop) => Way::Hop { hop: hop.clone(), transport: &rule.transport },
                None => otherwise(&rule.transport),
            },
            None => otherwise(&self.transport),
        }
    }

    /// A machine is named by itself: whose mail hosts take mail for it does not matter, it stores the mailbox.
    fn way_to_mail_host(&self, host: &str) -> Way<'_> {
        match host.parse() {
            Ok(hop @ (FixedHop::Host { .. } | FixedHop::Address { .. })) => {
                Way::Hop { hop, transport: &self.mail_host_transport }
            }
            _ => Way::Nowhere(Obstacle::MailHost(host.into())),
        }
    }
}
