//! `[[route]]`, `[[next_hop]]` and `[dns]`: mail to other servers.

use std::ops::Range;

use route::Pattern;

use super::transports::Transports;
use super::{Unique, bare, named};
use crate::config::fault::Fault;
use crate::config::key::{self, Kind};
use crate::config::section::Section;
use crate::config::{Dns, Domain, FixedHop, Flavor, NextHop, Route, SmtpTransport, Transport, TransportKind};

/// The pattern that matches everything.
const ALL: &str = "*";

/// The routes, with a final one for all other mail.
pub(super) fn routes(
    document: &mut Section<'_, '_>,
    tables: &[String],
    transports: &Transports,
    domains: &[Domain],
) -> Vec<Route> {
    let mut order = Order::default();
    let sections = document.sections("route").unwrap_or_default();
    let route = |section| route(section, tables, transports, domains, &mut order);
    let mut routes: Vec<Route> = sections.into_iter().filter_map(route).collect();
    if routes.last().is_none_or(|last| last.pattern != Pattern::Any || last.next_hops.is_some()) {
        let next_hop = transports.find(Transport::SMTP).and_then(Transport::next_hop).cloned();
        routes.push(Route { pattern: Pattern::Any, transport: Transport::SMTP.into(), next_hop, next_hops: None });
    }
    routes
}

fn route(
    mut section: Section<'_, '_>,
    tables: &[String],
    transports: &Transports,
    domains: &[Domain],
    order: &mut Order,
) -> Option<Route> {
    let next_hops = named(&mut section, "next_hops", "[[table]]", tables);
    let domain = section.required("domain", &key::PATTERN);
    if let Some(domain) = &domain {
        match next_hops.is_some() {
            // Domains without an entry in the table go on to the following routes.
            true => order.reach(&section, &domain.get_ref().to_string(), domain.span()),
            false => order.claim(&section, "domain", &domain.get_ref().to_string(), domain.span()),
        }
        let ours = |own: &Domain| own.name.parse().is_ok_and(|name: Pattern| name == *domain.get_ref());
        if domains.iter().any(ours) {
            let label =
                "expected a domain without a [[domain]] section: mail for local domains is not routed".to_owned();
            section.state(domain.span(), "domain", "is not allowed here", label);
        }
    }
    let next_hop = section.take("next_hop", &key::NEXT_HOP);
    let transport = named(&mut section, "transport", "[transport.NAME]", &transports.names);
    let place = transport.as_ref().map_or(section.place(), |transport| transport.span());
    let name: Box<str> = transport.map_or_else(|| Transport::SMTP.into(), |transport| transport.into_inner().into());
    let next_hop = transports.find(&name).and_then(|transport| way(&section, transport, next_hop, place));
    let next_hops = next_hops.map(|table| table.into_inner().into());
    Some(Route { pattern: domain?.into_inner(), transport: name, next_hop, next_hops })
}

/// The next hop of a route: its own, else that of its transport. Reports it as missing if the
/// transport needs one.
fn way(
    section: &Section<'_, '_>,
    transport: &Transport,
    own: Option<FixedHop>,
    place: Range<usize>,
) -> Option<FixedHop> {
    let smtp: &SmtpTransport = match &transport.kind {
        TransportKind::Smtp(smtp) => smtp,
        TransportKind::Maildir(_) => {
            let label = "delivers to Maildirs; expected a transport of type \"smtp\" or \"lmtp\"".to_owned();
            section.state(place, "transport", "cannot deliver to other servers", label);
            return None;
        }
    };
    let next_hop = own.or_else(|| smtp.next_hop.clone());
    if next_hop.is_none() && smtp.flavor == Flavor::Lmtp {
        let label =
            format!("{:?} speaks LMTP, which does not use MX; expected {}", transport.name, key::NEXT_HOP.expected);
        section.state(place, "next_hop", "is missing", label);
    }
    next_hop
}

/// Settings of single next hops.
pub(super) fn next_hops(document: &mut Section<'_, '_>) -> Vec<NextHop> {
    let mut order = Order::default();
    let sections = document.sections("next_hop").unwrap_or_default();
    sections.into_iter().filter_map(|section| next_hop(section, &mut order)).collect()
}

fn next_hop(mut section: Section<'_, '_>, order: &mut Order) -> Option<NextHop> {
    let host = section.required("host", &key::PATTERN);
    if let Some(host) = &host {
        order.claim(&section, "host", &host.get_ref().to_string(), host.span());
    }
    let connections_max = section.take("connections", &Kind::COUNT);
    let rate = section.take("rate", &key::RATE);
    let messages_per_connection_max = section.take("messages_per_connection", &Kind::COUNT);
    let recipients_per_message_max = section.take("recipients_per_message", &Kind::COUNT);
    let host = host?.into_inner();
    Some(NextHop { host, connections_max, rate, messages_per_connection_max, recipients_per_message_max })
}

/// Patterns of which the first match wins.
#[derive(Default)]
struct Order {
    unique: Unique,
    any: Option<Range<usize>>,
}

impl Order {
    /// Reports a pattern that an earlier one makes unreachable.
    fn claim(&mut self, section: &Section<'_, '_>, key: &str, pattern: &str, place: Range<usize>) {
        match self.any.is_some() && pattern != ALL {
            true => self.reach(section, pattern, place.clone()),
            false => self.unique.claim(section, key, pattern, place.clone()),
        }
        if pattern == ALL {
            self.any.get_or_insert(place);
        }
    }

    /// The same for a pattern that passes some domains on, and so may appear again.
    fn reach(&self, section: &Section<'_, '_>, pattern: &str, place: Range<usize>) {
        if let Some(any) = &self.any {
            let label = "expected before \"*\", which matches everything: the first match wins";
            let fault = Fault::new(place, format!("{pattern:?} is never reached"), label);
            section.state_fault(fault.with_earlier(any.clone()));
        }
    }
}

pub(super) fn dns(document: &mut Section<'_, '_>) -> Dns {
    let or = Dns::default();
    let Some(mut section) = document.section("dns") else { return or };
    Dns {
        servers: section.list("servers", &key::NAME_SERVER).map_or(or.servers, bare),
        timeout: section.take_or("timeout", &key::SPAN, or.timeout),
        attempts: section.take_or("attempts", &Kind::COUNT, or.attempts),
        cache_entries: section.take_or("cache", &Kind::COUNT, or.cache_entries),
        ttl_max: section.take_or("ttl_max", &key::SPAN, or.ttl_max),
        negative_ttl_max: section.take_or("negative_ttl_max", &key::SPAN, or.negative_ttl_max),
        no_address_lookups: section.take_or("no_address_lookups", &Kind::COUNT_OR_ZERO, or.no_address_lookups),
        no_address_time: section.take_or("no_address_time", &key::SPAN, or.no_address_time),
    }
}
