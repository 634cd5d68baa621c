//! The route of a destination according to the configuration and its tables, before any DNS lookup.

use std::net::IpAddr;

use crate::Router;
use crate::config::Home;
use crate::destination::Destination;
use crate::hop::FixedHop;
use crate::replies::Obstacle;
use crate::rule::Rule;

/// A route before DNS lookups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Way<'a> {
    pub(crate) leads: Leads<'a>,
    /// Whether a table was queried; its answer may change soon.
    pub(crate) tabled: bool,
}

/// The target of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leads<'a> {
    /// Mailboxes on this host.
    Local { transport: &'a str },
    /// A next hop from the configuration or the directory.
    Hop { hop: FixedHop, transport: &'a str },
    /// The MX hosts of a domain.
    Exchangers { domain: Box<str>, transport: &'a str },
    /// An address.
    Literal { address: IpAddr, transport: &'a str },
    /// No route.
    Nowhere(Obstacle),
}

impl<'a> Leads<'a> {
    fn home(home: &'a Home) -> Self {
        match &home.next_hop {
            Some(hop) => Leads::Hop { hop: hop.clone(), transport: &home.transport },
            None => Leads::Local { transport: &home.transport },
        }
    }
}

impl<'a> Way<'a> {
    fn configured(leads: Leads<'a>) -> Self {
        Way { leads, tabled: false }
    }
}

impl Router {
    /// Finds the route of a destination.
    pub(crate) async fn way(&self, destination: &str) -> Way<'_> {
        match Destination::parse(destination) {
            Destination::MailHost(host) => Way::configured(self.way_to_mail_host(host)),
            Destination::Nonsense => Way::configured(Leads::Nowhere(Obstacle::NoDomain)),
            Destination::Domain(domain) => match self.config.domains.get(&domain) {
                Some(home) => Way::configured(Leads::home(home)),
                None => match self.tabled_home(&domain).await {
                    Ok(Some(home)) => Way { leads: Leads::home(home), tabled: true },
                    Ok(None) => {
                        let own = |transport| Leads::Exchangers { domain: domain.clone(), transport };
                        self.way_by_rule(&domain, own).await
                    }
                    Err(obstacle) => Way { leads: Leads::Nowhere(obstacle), tabled: true },
                },
            },
            Destination::Literal(address) => {
                let text = destination.to_ascii_lowercase();
                self.way_by_rule(&text, |transport| Leads::Literal { address, transport }).await
            }
        }
    }

    /// The route of the first rule that matches the domain. If no rule matches, or the rule has no
    /// next hop, `otherwise` gives the target.
    async fn way_by_rule<'a>(&'a self, domain: &str, otherwise: impl FnOnce(&'a str) -> Leads<'a>) -> Way<'a> {
        let mut tabled = !self.config.domain_tables.is_empty();
        for rule in self.config.rules.iter().filter(|rule| rule.pattern.fits(domain)) {
            tabled |= rule.next_hops.is_some();
            let hop = match self.hop_by_rule(rule, domain).await {
                Ok(None) => continue,
                Ok(Some(hop)) => hop,
                Err(obstacle) => return Way { leads: Leads::Nowhere(obstacle), tabled },
            };
            let leads = match hop {
                Some(hop) => Leads::Hop { hop, transport: &rule.transport },
                None => otherwise(&rule.transport),
            };
            return Way { leads, tabled };
        }
        Way { leads: otherwise(&self.config.transport), tabled }
    }

    /// The next hop of a rule for a domain, if the rule has one; None if the rule's table does not
    /// contain the domain.
    async fn hop_by_rule(&self, rule: &Rule, domain: &str) -> Result<Option<Option<FixedHop>>, Obstacle> {
        match &rule.next_hops {
            Some(table) => {
                let named = self.tables.hop(table, domain).await?;
                Ok(named.map(|hop| hop.or_else(|| rule.next_hop.clone())))
            }
            None => Ok(Some(rule.next_hop.clone())),
        }
    }

    /// Where mail goes for a domain that a table lists as local.
    async fn tabled_home(&self, domain: &str) -> Result<Option<&Home>, Obstacle> {
        for table in &self.config.domain_tables {
            if self.tables.has(&table.names, domain).await? {
                return Ok(Some(&table.home));
            }
        }
        Ok(None)
    }

    /// The host stores the mailbox itself, so its own MX records do not matter.
    fn way_to_mail_host(&self, host: &str) -> Leads<'_> {
        match host.parse() {
            Ok(hop @ (FixedHop::Host { .. } | FixedHop::Address { .. })) => {
                Leads::Hop { hop, transport: &self.config.mail_host_transport }
            }
            _ => Leads::Nowhere(Obstacle::MailHost(host.into())),
        }
    }
}
