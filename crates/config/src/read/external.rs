//! `[[milter]]` and `[[policy_service]]`: programs outside that decide about mail.

use std::net::SocketAddr;
use std::time::Duration;

use filter::milter::MilterSettings;
use filter::policy::PolicySettings;
use filter::{FailureAction, ServiceScope, Stage};
use toml::Spanned;

use super::{Unique, networks, unspanned};
use crate::ListenerSettings;
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ValueKind};

const CONNECT_TIME: Duration = Duration::from_secs(30);
const COMMAND_TIME: Duration = Duration::from_secs(30);
const MESSAGE_TIME: Duration = Duration::from_secs(300);
const POLICY_TIME: Duration = Duration::from_secs(100);
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

const STAGE: ValueKind<Stage> = ValueKind {
    expected: "a stage: \"connect\", \"helo\", \"mail\", \"rcpt\", \"data\" or \"message\"",
    parse: |v| Stage::ALL.into_iter().find(|stage| v.as_str() == Some(stage.name())),
};

pub(super) fn milters(document: &mut Section<'_, '_>, listeners: &[ListenerSettings]) -> Vec<MilterSettings> {
    let mut names = Unique::default();
    let sections = document.sections("milter").unwrap_or_default();
    sections.into_iter().filter_map(|section| milter(section, listeners, &mut names)).collect()
}

fn milter(mut section: Section<'_, '_>, listeners: &[ListenerSettings], names: &mut Unique) -> Option<MilterSettings> {
    let address = section.take_required("address", &value_kind::SERVICE).map(Spanned::into_inner);
    let name = name(&mut section, address.as_ref().map(ToString::to_string), names);
    let local_programs = section.take_or("local_programs", &value_kind::FLAG, true);
    let scope = ServiceScope { local_programs, ..scope(&mut section, listeners) };
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
        sends_ahead: section.take_or("pipelining", &value_kind::FLAG, true),
        daemon_name: section.take("daemon_name", &value_kind::TEXT).map(Into::into),
    };
    Some(settings)
}

pub(super) fn policy_services(document: &mut Section<'_, '_>, listeners: &[ListenerSettings]) -> Vec<PolicySettings> {
    let mut names = Unique::default();
    let sections = document.sections("policy_service").unwrap_or_default();
    sections.into_iter().filter_map(|section| policy_service(section, listeners, &mut names)).collect()
}

fn policy_service(
    mut section: Section<'_, '_>,
    listeners: &[ListenerSettings],
    names: &mut Unique,
) -> Option<PolicySettings> {
    let address = section.take_required("address", &value_kind::SERVICE).map(Spanned::into_inner);
    let name = name(&mut section, address.as_ref().map(ToString::to_string), names);
    let scope = scope(&mut section, listeners);
    let stages = section.list("stages", &STAGE).map_or_else(|| vec![Stage::Rcpt], unspanned);
    let settings = PolicySettings {
        name,
        address: address?,
        stages,
        scope,
        on_failure: section.choice("on_failure", &FAILURE).unwrap_or_default(),
        connect_time_max: section.take_or("connect_time", &value_kind::DURATION, CONNECT_TIME),
        answer_time_max: section.take_or("answer_time", &value_kind::DURATION, POLICY_TIME),
        connections_max: section.take_or("connections", &ValueKind::COUNT, CONNECTIONS),
        context: section.take("context", &value_kind::TEXT).unwrap_or_default().into(),
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

/// The mail that a filter is about; never that of local programs.
pub(super) fn scope(section: &mut Section<'_, '_>, listeners: &[ListenerSettings]) -> ServiceScope {
    let defaults = ServiceScope::default();
    ServiceScope {
        listeners: listener_addresses(section, listeners),
        clients: networks(section, "clients").unwrap_or(defaults.clients),
        exempt: networks(section, "exempt").unwrap_or(defaults.exempt),
        users: section.take_or("users", &value_kind::FLAG, defaults.users),
        local_programs: false,
    }
}

/// Addresses of listeners that receive mail.
pub(super) fn listener_addresses(section: &mut Section<'_, '_>, listeners: &[ListenerSettings]) -> Vec<SocketAddr> {
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

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "text", "mx.here").map_err(|faults| faults.to_string())
    }

    #[test]
    fn a_milter_needs_only_an_address() {
        let milters = parse("[[milter]]\naddress = \"localhost:8891\"\n").unwrap().milters;
        assert_eq!((&*milters[0].name, milters[0].on_failure), ("localhost:8891", FailureAction::Defer));
        assert_eq!(milters[0].scope, ServiceScope::default());
    }

    #[test]
    fn a_policy_service_is_asked_at_rcpt_unless_the_text_says_otherwise() {
        let text =
            "[[policy_service]]\naddress = \"a:1\"\n[[policy_service]]\naddress = \"a:2\"\nstages = [\"data\"]\n";
        let services = parse(text).unwrap().policy_services;
        assert_eq!((&*services[0].stages, &*services[1].stages), (&[Stage::Rcpt][..], &[Stage::Data][..]));
        let faults = parse("[[policy_service]]\naddress = \"a:1\"\nstages = [\"vrfy\"]\n").unwrap_err();
        assert!(faults.contains("`policy_service.stages` has an invalid value"), "{faults}");
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
