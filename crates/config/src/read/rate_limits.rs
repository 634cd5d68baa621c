//! `[[limit]]`: limits over time.

use filter::ClientPrefixes;
use filter::limits::{KEYS_MAX, LimitSettings, LimitSubject, Quantity};
use mail::Allowance;
use toml::Spanned;

use super::external::listener_addresses;
use super::{Unique, networks, unspanned};
use crate::ListenerSettings;
use crate::section::{Keywords, Section};
use crate::value_kind;

/// Each message asks all limits.
const LIMITS_MAX: usize = 100;
/// An IPv6 client usually has a whole /64 (RFC 6177).
const SINGLE_CLIENTS: ClientPrefixes = ClientPrefixes { v4: 32, v6: 64 };

const SUBJECT: Keywords<LimitSubject> = Keywords {
    supported: &[
        ("user", LimitSubject::User),
        ("sender", LimitSubject::Sender),
        ("sender_domain", LimitSubject::SenderDomain),
        ("client", LimitSubject::Client(SINGLE_CLIENTS)),
        ("listener", LimitSubject::Listener),
    ],
    planned: &[],
};

pub(super) fn limits(document: &mut Section<'_, '_>, listeners: &[ListenerSettings]) -> Vec<LimitSettings> {
    let mut names = Unique::default();
    let sections = document.sections("limit").unwrap_or_default();
    if let Some(section) = sections.get(LIMITS_MAX) {
        section.report(section.span(), "limit", "has too many sections", format!("expected at most {LIMITS_MAX}"));
    }
    (1..).zip(sections).filter_map(|(number, section)| limit(number, section, listeners, &mut names)).collect()
}

fn limit(
    number: usize,
    mut section: Section<'_, '_>,
    listeners: &[ListenerSettings],
    names: &mut Unique,
) -> Option<LimitSettings> {
    let (name, place) = match section.take_spanned("name", &value_kind::REPLY_WORD) {
        Some(name) => (name.get_ref().clone(), name.span()),
        None => (number.to_string(), section.span()),
    };
    names.insert(&section, "name", &name, place);
    let subject = section.take_required_choice("by", &SUBJECT);
    let allowances = allowances(&mut section);
    let settings = LimitSettings {
        name: name.into(),
        allowances,
        listeners: listener_addresses(&mut section, listeners),
        exempt: networks(&mut section, "exempt").unwrap_or_default(),
        exempt_users: section.list("exempt_users", &value_kind::TEXT).map(boxed).unwrap_or_default(),
        users: users(&mut section, subject),
        keys_max: section.take_or("keys", &value_kind::TABLE_SIZE, KEYS_MAX),
        subject: with_prefixes(&mut section, subject)?,
    };
    Some(settings)
}

fn allowances(section: &mut Section<'_, '_>) -> [Option<Allowance>; 3] {
    let allowances = Quantity::ALL.map(|quantity| match quantity {
        Quantity::Bytes => section.take(quantity.name(), &value_kind::SIZE_ALLOWANCE),
        Quantity::Messages | Quantity::Recipients => section.take(quantity.name(), &value_kind::COUNT_ALLOWANCE),
    });
    if allowances.iter().all(Option::is_none) {
        let label = "expected at least one of `messages`, `recipients` and `bytes`".to_owned();
        section.report(section.span(), "messages", "is missing", label);
    }
    allowances
}

fn users(section: &mut Section<'_, '_>, subject: Option<LimitSubject>) -> bool {
    let users = section.take_spanned("users", &value_kind::FLAG);
    if let Some(users) = users.as_ref().filter(|users| subject == Some(LimitSubject::User) && !users.get_ref()) {
        let label = "expected true: a limit by user has nobody else".to_owned();
        section.report(users.span(), "users", "leaves nobody to limit", label);
    }
    users.is_none_or(Spanned::into_inner)
}

/// Prefixes are only for limits by client.
fn with_prefixes(section: &mut Section<'_, '_>, subject: Option<LimitSubject>) -> Option<LimitSubject> {
    match subject {
        Some(LimitSubject::Client(defaults)) => Some(LimitSubject::Client(prefixes(section, defaults))),
        Some(other) => {
            let why = "expected only with by = \"client\"";
            section.reject("ipv4_prefix", why);
            section.reject("ipv6_prefix", why);
            Some(other)
        }
        None => {
            prefixes(section, SINGLE_CLIENTS);
            None
        }
    }
}

/// `ipv4_prefix` and `ipv6_prefix`.
pub(super) fn prefixes(section: &mut Section<'_, '_>, defaults: ClientPrefixes) -> ClientPrefixes {
    ClientPrefixes {
        v4: section.take_or("ipv4_prefix", &value_kind::PREFIX_V4, defaults.v4),
        v6: section.take_or("ipv6_prefix", &value_kind::PREFIX_V6, defaults.v6),
    }
}

fn boxed(texts: Vec<Spanned<String>>) -> Vec<Box<str>> {
    unspanned(texts).into_iter().map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Config;

    fn parse(text: &str) -> Result<Vec<LimitSettings>, String> {
        Config::parse(text, "text", "mx.here").map(|config| config.rate_limits).map_err(|faults| faults.to_string())
    }

    #[test]
    fn a_limit_needs_a_subject_and_an_allowance() {
        let limits = parse("[[limit]]\nby = \"client\"\nipv4_prefix = 24\nbytes = \"1GiB/1d\"\n").unwrap();
        assert_eq!((&*limits[0].name, limits[0].users, limits[0].keys_max), ("1", true, KEYS_MAX));
        assert_eq!(limits[0].subject, LimitSubject::Client(ClientPrefixes { v4: 24, v6: 64 }));
        let day = Duration::from_secs(86_400);
        assert_eq!(limits[0].allowances, [None, None, Some(Allowance { amount: 1 << 30, per: day })]);
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        for (text, expected) in [
            ("messages = \"1/h\"", "`limit.by` is missing"),
            ("by = \"user\"", "`limit.messages` is missing"),
            ("by = \"nobody\"\nmessages = \"1/h\"", "`limit.by` has an invalid value"),
            ("by = \"user\"\nmessages = \"0/h\"", "`limit.messages` has an invalid value"),
            ("by = \"user\"\nrecipients = \"1MB/h\"", "`limit.recipients` has an invalid value"),
            ("by = \"user\"\nbytes = \"1000/h\"", "`limit.bytes` has an invalid value"),
            ("by = \"user\"\nmessages = \"1/h\"\nusers = false", "`limit.users` leaves nobody to limit"),
            ("by = \"sender\"\nmessages = \"1/h\"\nipv4_prefix = 24", "`limit.ipv4_prefix` is not allowed here"),
            ("by = \"client\"\nmessages = \"1/h\"\nipv6_prefix = 129", "`limit.ipv6_prefix` has an invalid value"),
            ("by = \"client\"\nmessages = \"1/h\"\nkeys = 0", "`limit.keys` has an invalid value"),
            ("name = \"a\u{e4}\"\nby = \"user\"\nmessages = \"1/h\"", "`limit.name` has an invalid value"),
            (
                "name = \"2\"\nby = \"user\"\nmessages = \"1/h\"\n[[limit]]\nby = \"user\"\nmessages = \"1/h\"",
                "\"2\" appears twice",
            ),
        ] {
            let faults = parse(&format!("[[limit]]\n{text}\n")).unwrap_err();
            assert!(faults.contains(expected), "{text}: {faults}");
        }
    }
}
