//! `[[route]]` with `address`, `sender`, `transports` or `sender_transports`: routes by more than the
//! recipient's domain.

use dispatch::MessageRoute;
use route::{DomainPattern, RouteKey};
use toml::Spanned;

use super::route_target::next_hop_of_route;
use super::take_reference;
use super::transports::TransportSections;
use crate::TransportSettings;
use crate::section::Section;
use crate::value_kind;

/// The keys that make a route one of these.
const KEYS: [&str; 4] = ["address", "sender", "transports", "sender_transports"];

/// Whether the route depends on more than the domain.
pub(super) fn is_message_route(section: &Section<'_, '_>) -> bool {
    KEYS.iter().any(|key| section.has(key))
}

/// A route by an address, a sender, or a table of either.
pub(super) fn message_route(
    mut section: Section<'_, '_>,
    tables: &[String],
    transports: &TransportSections,
) -> Option<MessageRoute> {
    let mut given = KEYS.into_iter().filter(|key| section.has(key));
    let (key, other) = (given.next()?, given.next());
    if let Some(other) = other {
        let label = format!("expected only one of {}", KEYS.map(|key| format!("`{key}`")).join(", "));
        section.report(section.span_of(other), other, "is not allowed here", label);
        section.skip_rest();
        return None;
    }
    let mut table = |key| take_reference(&mut section, key, "[[table]]", tables).map(Spanned::into_inner);
    match key {
        "transports" => return Some(MessageRoute::RecipientTable(table(key)?.into())),
        "sender_transports" => return Some(MessageRoute::SenderTable(table(key)?.into())),
        _ => {}
    }
    let address = section.take("address", &value_kind::ADDRESS);
    let sender = section.take("sender", &value_kind::SENDER_RULE);
    let domain = match key {
        "sender" => section.take("domain", &value_kind::PATTERN),
        _ => None,
    };
    let key = target(section, transports)?;
    match (address, sender) {
        (Some(address), _) => Some(MessageRoute::Address { address, key }),
        (_, Some(sender)) => Some(MessageRoute::Sender { sender, domain: domain.unwrap_or(DomainPattern::Any), key }),
        (None, None) => None,
    }
}

/// The transport and the next hop. The next hop of a transport is not part of the key, so that it can
/// change while mail waits.
fn target(mut section: Section<'_, '_>, transports: &TransportSections) -> Option<RouteKey> {
    let next_hop = section.take("next_hop", &value_kind::NEXT_HOP);
    let transport = take_reference(&mut section, "transport", "[transport.NAME]", &transports.names);
    let place = transport.as_ref().map_or(section.span(), |transport| transport.span());
    let name = transport.map_or_else(|| TransportSettings::SMTP.to_owned(), Spanned::into_inner);
    let transport = transports.find(&name)?;
    if !transport.is_maildir() {
        next_hop_of_route(&section, transport, next_hop.clone(), false, place);
    }
    Some(RouteKey::new(&name, next_hop.as_ref()))
}
