//! `[[route]]`, `[[next_hop]]` and `[dns]`: mail to other servers. `message_routes.rs` reads the routes
//! by more than the domain.

use std::ops::Range;

use dispatch::{MessageRoute, NextHopOverride};
use dns::{QueryConfig, ResolverConfig};
use route::{DomainPattern, MissingAddressPolicy};

use super::message_routes::{is_message_route, message_route};
use super::route_target::{login_needs_next_hop, next_hop_of_route};
use super::transports::TransportSections;
use super::{Unique, take_reference, unspanned};
use crate::error::ConfigError;
use crate::section::Section;
use crate::value_kind::{self, ValueKind};
use crate::{DomainSettings, FixedHop, Route, TransportKind, TransportSettings};

/// The pattern that matches everything.
const MATCH_ALL: &str = "*";

/// The routes by domain, with a final one for all other mail; and those by more than the domain.
pub(super) fn routes(
    document: &mut Section<'_, '_>,
    tables: &[String],
    transports: &TransportSections,
    domains: &[DomainSettings],
) -> (Vec<Route>, Vec<MessageRoute>) {
    let mut order = PatternOrder::default();
    let (mut routes, mut message_routes) = (Vec::new(), Vec::new());
    for section in document.sections("route").unwrap_or_default() {
        if !is_message_route(&section) {
            routes.extend(route(section, tables, transports, domains, &mut order));
            continue;
        }
        if !routes.is_empty() {
            let label = "expected before the routes that have only a `domain`: it is tried before them";
            section.report_error(ConfigError::new(section.span(), "this [[route]] is in the wrong place", label));
        }
        message_routes.extend(message_route(section, tables, transports));
    }
    if routes.last().is_none_or(|last| last.pattern != DomainPattern::Any || last.next_hop_table.is_some()) {
        let next_hop = next_hop_of_last_route(document, transports);
        routes.push(Route {
            pattern: DomainPattern::Any,
            transport: TransportSettings::SMTP.into(),
            next_hop,
            next_hop_table: None,
        });
    }
    (routes, message_routes)
}

/// The next hop of mail without a route.
fn next_hop_of_last_route(document: &Section<'_, '_>, transports: &TransportSections) -> Option<FixedHop> {
    let transport = transports.find(TransportSettings::SMTP)?;
    let TransportKind::Smtp(smtp) = &transport.kind else { return None };
    if smtp.next_hop.is_none() && smtp.auth.is_some() {
        let label = login_needs_next_hop(transport);
        document.report(transports.smtp_auth.clone(), "transport.smtp.next_hop", "is missing", label);
    }
    smtp.next_hop.clone()
}

fn route(
    mut section: Section<'_, '_>,
    tables: &[String],
    transports: &TransportSections,
    domains: &[DomainSettings],
    order: &mut PatternOrder,
) -> Option<Route> {
    let next_hops = take_reference(&mut section, "next_hops", "[[table]]", tables);
    let domain = section.take_required("domain", &value_kind::PATTERN);
    if let Some(domain) = &domain {
        match next_hops.is_some() {
            // Domains without an entry in the table go on to the following routes.
            true => order.check_reachable(&section, &domain.get_ref().to_string(), domain.span()),
            false => order.insert(&section, "domain", &domain.get_ref().to_string(), domain.span()),
        }
        let ours = |own: &DomainSettings| own.name.parse().is_ok_and(|name: DomainPattern| name == *domain.get_ref());
        if domains.iter().any(ours) {
            let label =
                "expected a domain without a [[domain]] section: mail for local domains is not routed".to_owned();
            section.report(domain.span(), "domain", "is not allowed here", label);
        }
    }
    let next_hop = section.take("next_hop", &value_kind::NEXT_HOP);
    let transport = take_reference(&mut section, "transport", "[transport.NAME]", &transports.names);
    let place = transport.as_ref().map_or(section.span(), |transport| transport.span());
    let name: Box<str> =
        transport.map_or_else(|| TransportSettings::SMTP.into(), |transport| transport.into_inner().into());
    let next_hop = transports
        .find(&name)
        .and_then(|transport| next_hop_of_route(&section, transport, next_hop, next_hops.is_some(), place));
    let next_hops = next_hops.map(|table| table.into_inner().into());
    Some(Route { pattern: domain?.into_inner(), transport: name, next_hop, next_hop_table: next_hops })
}

/// The transport of the content filter. It needs a next hop of its own: mail for all domains goes there.
pub(super) fn content_filter(document: &mut Section<'_, '_>, transports: &TransportSections) -> Option<Box<str>> {
    let mut section = document.section("content_filter")?;
    section.report_if_missing("transport", "the name of a transport");
    let name = take_reference(&mut section, "transport", "[transport.NAME]", &transports.names)?;
    let transport = transports.find(name.get_ref())?;
    let leads_nowhere = transport.is_maildir() || (!transport.is_hostless() && transport.next_hop().is_none());
    if leads_nowhere {
        let label = format!("expected a program, or a `next_hop` in [transport.{}]", name.get_ref());
        section.report(name.span(), "transport", "is no content filter", label);
    }
    Some(name.into_inner().into())
}

/// Settings of single next hops.
pub(super) fn next_hops(document: &mut Section<'_, '_>) -> Vec<NextHopOverride> {
    let mut order = PatternOrder::default();
    let sections = document.sections("next_hop").unwrap_or_default();
    sections.into_iter().filter_map(|section| next_hop(section, &mut order)).collect()
}

fn next_hop(mut section: Section<'_, '_>, order: &mut PatternOrder) -> Option<NextHopOverride> {
    let host = section.take_required("host", &value_kind::PATTERN);
    if let Some(host) = &host {
        order.insert(&section, "host", &host.get_ref().to_string(), host.span());
    }
    let (connections, rate) = (section.take("connections", &ValueKind::COUNT), section.take("rate", &value_kind::RATE));
    let messages_per_connection = section.take("messages_per_connection", &ValueKind::COUNT);
    let recipients_per_message = section.take("recipients_per_message", &ValueKind::COUNT);
    let host = host?.into_inner();
    Some(NextHopOverride { host, connections, rate, messages_per_connection, recipients_per_message })
}

/// Patterns of which the first match wins.
#[derive(Default)]
struct PatternOrder {
    unique: Unique,
    any: Option<Range<usize>>,
}

impl PatternOrder {
    /// Reports a pattern that an earlier one makes unreachable.
    fn insert(&mut self, section: &Section<'_, '_>, key: &str, pattern: &str, place: Range<usize>) {
        match self.any.is_some() && pattern != MATCH_ALL {
            true => self.check_reachable(section, pattern, place.clone()),
            false => self.unique.insert(section, key, pattern, place.clone()),
        }
        if pattern == MATCH_ALL {
            self.any.get_or_insert(place);
        }
    }

    /// The same for a pattern that passes some domains on, and so may appear again.
    fn check_reachable(&self, section: &Section<'_, '_>, pattern: &str, place: Range<usize>) {
        if let Some(any) = &self.any {
            let label = "expected before \"*\", which matches everything: the first match wins";
            let error = ConfigError::new(place, format!("{pattern:?} is never reached"), label);
            section.report_error(error.with_earlier(any.clone()));
        }
    }
}

pub(super) fn dns(document: &mut Section<'_, '_>) -> (ResolverConfig, MissingAddressPolicy) {
    let (resolver, missing) = (ResolverConfig::default(), MissingAddressPolicy::default());
    let Some(mut section) = document.section("dns") else { return (resolver, missing) };
    let query = QueryConfig {
        servers: section.list("servers", &value_kind::NAME_SERVER).map_or(Vec::new(), unspanned),
        timeout: section.take_or("timeout", &value_kind::DURATION, resolver.query.timeout),
        attempts: section.take_or("attempts", &ValueKind::COUNT, resolver.query.attempts),
        validating: section.take_or("validating", &value_kind::FLAG, resolver.query.validating),
        ..resolver.query
    };
    let resolver = ResolverConfig {
        query,
        cache_entries: section.take_or("cache", &ValueKind::COUNT, resolver.cache_entries),
        ttl_max: section.take_or("ttl_max", &value_kind::DURATION, resolver.ttl_max),
        negative_ttl_max: section.take_or("negative_ttl_max", &value_kind::DURATION, resolver.negative_ttl_max),
        ..resolver
    };
    let missing = MissingAddressPolicy {
        lookups: section.take_or("no_address_lookups", &ValueKind::COUNT_OR_ZERO, missing.lookups),
        time: section.take_or("no_address_time", &value_kind::DURATION, missing.time),
    };
    (resolver, missing)
}
