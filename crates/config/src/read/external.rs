//! `[[milter]]`: programs outside that decide about mail.

use std::net::SocketAddr;
use std::time::Duration;

use filter::milter::MilterSettings;
use filter::{FailureAction, ServiceScope};
use toml::Spanned;

use super::{Unique, networks};
use crate::ListenerSettings;
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ValueKind};

const CONNECT_TIME: Duration = Duration::from_secs(30);
const COMMAND_TIME: Duration = Duration::from_secs(30);
const MESSAGE_TIME: Duration = Duration::from_secs(300);
const CONNECTIONS: usize = 100;

const FAILURE: Keywords<FailureAction> = Keywords {
    supported: &[
        ("accept", FailureAction::Accept),
        ("defer", FailureAction::Defer),
        ("refuse", FailureAction::Refuse),
        ("quarantine", FailureAction::Quarantine),
    ],
    planned: &[],
};

pub(super) fn milters(document: &mut Section<'_, '_>, listeners: &[ListenerSettings]) -> Vec<MilterSettings> {
    let mut names = Unique::default();
    let sections = document.sections("milter").unwrap_or_default();
    sections.into_iter().filter_map(|section| milter(section, listeners, &mut names)).collect()
}

fn milter(mut section: Section<'_, '_>, listeners: &[ListenerSettings], names: &mut Unique) -> Option<MilterSettings> {
    let address = section.take_required("address", &value_kind::SERVICE).map(Spanned::into_inner);
    let name = name(&mut section, address.as_ref().map(ToString::to_string), names);
    let scope = scope(&mut section, listeners);
    let settings = MilterSettings {
        name,
        address: address?,
        scope,
        on_failure: section.choice("on_failure", &FAILURE).unwrap_or_default(),
        connect_time_max: section.take_or("connect_time", &value_kind::DURATION, CONNECT_TIME),
        command_time_max: section.take_or("command_time", &value_kind::DURATION, COMMAND_TIME),
        message_time_max: section.take_or("message_time", &value_kind::DURATION, MESSAGE_TIME),
        connections_max: section.take_or("connections", &ValueKind::COUNT, CONNECTIONS),
        reuses_connections: section.take_or("reuse", &value_kind::FLAG, true),
        daemon_name: section.take("daemon_name", &value_kind::TEXT).map(Into::into),
    };
    Some(settings)
}

/// The name in the log; by default the address.
fn name(section: &mut Section<'_, '_>, default: Option<String>, names: &mut Unique) -> Box<str> {
    let (name, place) = match section.take_spanned("name", &value_kind::TEXT) {
        Some(name) => (name.get_ref().clone(), name.span()),
        None => (default.unwrap_or_default(), section.span()),
    };
    names.insert(section, "name", &name, place);
    name.into()
}

fn scope(section: &mut Section<'_, '_>, listeners: &[ListenerSettings]) -> ServiceScope {
    let defaults = ServiceScope::default();
    ServiceScope {
        listeners: listener_addresses(section, listeners),
        clients: networks(section, "clients").unwrap_or(defaults.clients),
        exempt: networks(section, "exempt").unwrap_or(defaults.exempt),
        users: section.take_or("users", &value_kind::FLAG, defaults.users),
        local_programs: section.take_or("local_programs", &value_kind::FLAG, defaults.local_programs),
    }
}

/// Addresses of listeners that receive mail.
fn listener_addresses(section: &mut Section<'_, '_>, listeners: &[ListenerSettings]) -> Vec<SocketAddr> {
    let named = section.list("listeners", &value_kind::ENDPOINT).unwrap_or_default();
    let receiving = || listeners.iter().filter(|listener| !listener.protocol.is_retrieval());
    let mut known = Vec::with_capacity(named.len());
    for named in named {
        match receiving().find(|listener| Some(listener.address) == *named.get_ref()) {
            Some(listener) => known.push(listener.address),
            None => {
                let addresses: Vec<_> = receiving().map(|listener| listener.address.to_string()).collect();
                let label =
                    format!("expected the address of a [[listener]] that receives mail: {}", addresses.join(", "));
                section.report(named.span(), "listeners", "names no listener", label);
            }
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn parse(text: &str) -> Result<Vec<MilterSettings>, String> {
        Config::parse(text, "text", "mx.here").map(|config| config.milters).map_err(|faults| faults.to_string())
    }

    #[test]
    fn a_milter_needs_only_an_address() {
        let milters = parse("[[milter]]\naddress = \"localhost:8891\"\n").unwrap();
        assert_eq!((&*milters[0].name, milters[0].on_failure), ("localhost:8891", FailureAction::Defer));
        assert_eq!(milters[0].scope, ServiceScope::default());
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        for (text, expected) in [
            ("", "`milter.address` is missing"),
            ("address = \"inet:8891@localhost\"", "`milter.address` has an invalid value"),
            ("address = \"unix:relative\"", "`milter.address` has an invalid value"),
            ("address = \"a:1\"\nlisteners = [\"127.0.0.1:25\"]", "`milter.listeners` names no listener"),
            ("address = \"a:1\"\non_failure = \"tempfail\"", "`milter.on_failure` has an invalid value"),
            ("address = \"a:1\"\n[[milter]]\naddress = \"a:1\"", "\"a:1\" appears twice"),
        ] {
            let faults = parse(&format!("[[milter]]\n{text}\n")).unwrap_err();
            assert!(faults.contains(expected), "{text}: {faults}");
        }
    }
}
