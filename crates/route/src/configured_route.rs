//! The route of a destination according to the configuration and its tables, before any DNS lookup.

use std::net::IpAddr;

use crate::Router;
use crate::config::DomainRoute;
use crate::destination::Destination;
use crate::error::RouteError;
use crate::fixed_hop::FixedHop;
use crate::route_key::RouteKey;
use crate::rule::RouteRule;

/// A route before DNS lookups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfiguredRoute<'a> {
    pub(crate) target: RouteTarget<'a>,
    /// Whether a table was queried; its answer may change soon.
    pub(crate) uses_table: bool,
}

/// The target of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouteTarget<'a> {
    /// Mailboxes on this host.
    Local { transport: &'a str },
    /// A next hop from the configuration or its tables.
    NextHop { hop: FixedHop, transport: &'a str },
    /// The host that stores the mailbox, says the directory.
    MailHost { hop: FixedHop, transport: &'a str },
    /// The MX hosts of a domain.
    MxHosts { domain: Box<str>, transport: &'a str },
    /// An address.
    Address { address: IpAddr, transport: &'a str },
    /// No route.
    Unroutable(RouteError),
}

impl<'a> RouteTarget<'a> {
    fn from_domain_route(route: &'a DomainRoute) -> Self {
        match &route.next_hop {
            Some(hop) => RouteTarget::NextHop { hop: hop.clone(), transport: &route.transport },
            None => RouteTarget::Local { transport: &route.transport },
        }
    }
}

impl<'a> ConfiguredRoute<'a> {
    fn without_tables(target: RouteTarget<'a>) -> Self {
        ConfiguredRoute { target, uses_table: false }
    }
}

impl Router {
    /// Finds the route of a destination.
    pub(crate) async fn configured_route(&self, destination: &str) -> ConfiguredRoute<'_> {
        match Destination::parse(destination) {
            Destination::MailHost(host) => ConfiguredRoute::without_tables(self.target_for_mail_host(host)),
            Destination::Route { key, domain } => ConfiguredRoute::without_tables(self.target_for_key(&key, domain)),
            Destination::Invalid => ConfiguredRoute::without_tables(RouteTarget::Unroutable(RouteError::NotADomain)),
            Destination::Domain(domain) => match self.config.domains.get(&domain) {
                Some(route) => ConfiguredRoute::without_tables(RouteTarget::from_domain_route(route)),
                None => match self.domain_route_from_table(&domain).await {
                    Ok(Some(route)) => {
                        ConfiguredRoute { target: RouteTarget::from_domain_route(route), uses_table: true }
                    }
                    Ok(None) => {
                        let mx_target = |transport| RouteTarget::MxHosts { domain: domain.clone(), transport };
                        self.route_by_rule(&domain, mx_target).await
                    }
                    Err(error) => ConfiguredRoute { target: RouteTarget::Unroutable(error), uses_table: true },
                },
            },
            Destination::Literal(address) => {
                let text = destination.to_ascii_lowercase();
                self.route_by_rule(&text, |transport| RouteTarget::Address { address, transport }).await
            }
        }
    }

    /// The route of the first rule that matches the domain. If no rule matches, or the rule has no
    /// next hop although its transport needs one, `otherwise` gives the target.
    async fn route_by_rule<'a>(
        &'a self,
        domain: &str,
        otherwise: impl FnOnce(&'a str) -> RouteTarget<'a>,
    ) -> ConfiguredRoute<'a> {
        let mut uses_table = !self.config.domain_tables.is_empty();
        for rule in self.config.rules.iter().filter(|rule| rule.pattern.matches(domain)) {
            uses_table |= rule.next_hop_table.is_some();
            let hop = match self.next_hop_by_rule(rule, domain).await {
                Ok(None) => continue,
                Ok(Some(hop)) => hop,
                Err(error) => return ConfiguredRoute { target: RouteTarget::Unroutable(error), uses_table },
            };
            let target = match hop {
                _ if self.config.hostless_transports.contains(&rule.transport) => {
                    RouteTarget::Local { transport: &rule.transport }
                }
                Some(hop) => RouteTarget::NextHop { hop, transport: &rule.transport },
                None => otherwise(&rule.transport),
            };
            return ConfiguredRoute { target, uses_table };
        }
        ConfiguredRoute { target: otherwise(&self.config.transport), uses_table }
    }

    /// The next hop of a rule for a domain, if the rule has one; None if the rule's table does not
    /// contain the domain.
    async fn next_hop_by_rule(&self, rule: &RouteRule, domain: &str) -> Result<Option<Option<FixedHop>>, RouteError> {
        match &rule.next_hop_table {
            Some(table) => {
                let named = self.tables.next_hop(table, domain).await?;
                Ok(named.map(|hop| hop.or_else(|| rule.next_hop.clone())))
            }
            None => Ok(Some(rule.next_hop.clone())),
        }
    }

    /// Where mail goes for a domain that a table lists as local.
    async fn domain_route_from_table(&self, domain: &str) -> Result<Option<&DomainRoute>, RouteError> {
        for table in &self.config.domain_tables {
            if self.tables.contains(&table.table, domain).await? {
                return Ok(Some(&table.route));
            }
        }
        Ok(None)
    }

    /// The target of a transport that a route by address or sender names.
    fn target_for_key(&self, key: &RouteKey, domain: &str) -> RouteTarget<'_> {
        let Some(transport) = self.config.transport_named(key.transport()) else {
            return RouteTarget::Unroutable(RouteError::NoSuchTransport(key.transport().into()));
        };
        let next_hop = key.next_hop().or_else(|| self.config.transport_next_hops.get(transport).cloned());
        match (next_hop, Destination::parse(domain)) {
            _ if self.config.hostless_transports.contains(transport) => RouteTarget::Local { transport },
            (Some(hop), _) => RouteTarget::NextHop { hop, transport },
            (None, Destination::Domain(domain)) => RouteTarget::MxHosts { domain, transport },
            (None, Destination::Literal(address)) => RouteTarget::Address { address, transport },
            (None, _) => RouteTarget::Unroutable(RouteError::NotADomain),
        }
    }

    /// The host stores the mailbox itself, so its own MX records do not matter.
    fn target_for_mail_host(&self, host: &str) -> RouteTarget<'_> {
        match host.parse() {
            Ok(hop @ (FixedHop::Host { .. } | FixedHop::Address { .. })) => {
                RouteTarget::MailHost { hop, transport: &self.config.mail_host_transport }
            }
            _ => RouteTarget::Unroutable(RouteError::BadMailHost(host.into())),
        }
    }
}
