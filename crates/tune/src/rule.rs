//! What a value should be. Rules that depend on the configuration are functions of plain numbers.

use std::net::{IpAddr, Ipv4Addr};

use crate::knob::{Knob, Rule, RuleName, Sureness, ValueKind};
use crate::settings::ServerSettings;
use crate::value::{Value, display_number};

/// Files of the server other than those of connections: the spool, mailboxes, the log, libraries.
const FILES_RESERVED: u64 = 256;
/// Files of a session that reads: its connection, and a file or a connection to another host.
const FILES_PER_READING_SESSION: u64 = 2;
/// What a busy connection keeps in the buffers of the kernel, in bytes.
const SOCKET_BYTES: u64 = 8 << 10;
/// The kernel's default number of local ports.
const PORTS_DEFAULT: u64 = 28_232;
/// The unit of memory for sockets, in bytes.
const PAGE_BYTES: u64 = 4096;
/// What the server needs besides message bodies, sessions and caches, in bytes.
const MEMORY_RESERVED: u64 = 64 << 20;
/// What a session needs besides message bodies, in bytes (bench/results/memory.md has 3.4 kB).
const SESSION_BYTES: u64 = 8 << 10;
/// Where systemd-resolved listens (systemd-resolved(8)).
const RESOLVED_STUBS: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 53), Ipv4Addr::new(127, 0, 0, 54)];
/// With less memory for message bodies, a few large messages keep all others waiting.
const BODY_MEMORY_MIN: u64 = 8 << 20;

/// Numbers of the host that rules depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostNumbers {
    /// Processors; None if unknown.
    pub(crate) processors: Option<u64>,
    /// Memory in bytes; None if unknown.
    pub(crate) memory: Option<u64>,
    /// Whether no disk of the spool rotates or has a cache that a power failure empties; None if unknown.
    pub(crate) has_cheap_syncs: Option<bool>,
}

/// What a rule says about a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Whether the value is as wanted.
    pub(crate) is_met: bool,
    /// What is wanted, as it is printed.
    pub(crate) wanted: String,
    /// The value to set; empty if there is none that fits every host.
    pub(crate) target: String,
    /// How sure this is; None: as the knob says.
    pub(crate) sureness: Option<Sureness>,
}

/// Compares a value with the knob's rule. None if that is impossible: the value has an unexpected form, or a number of
/// the host is unknown.
pub(crate) fn judge(knob: &Knob, value: &Value, server: &ServerSettings, host: HostNumbers) -> Option<Judgement> {
    match (&knob.wanted, value) {
        (Rule::AtLeast(least), Value::Number(number)) => Some(at_least(*number, *least, knob.kind)),
        (Rule::AtMost(most), Value::Number(number)) => Some(at_most(*number, *most, knob.kind)),
        (Rule::Between(least, most), Value::Number(number)) => Some(between(*number, *least, *most, knob.kind)),
        (Rule::OneOf(words), Value::Text(text)) => Some(one_of(text, words)),
        (Rule::Not(words), Value::Text(text)) => Some(not(std::slice::from_ref(text), words)),
        (Rule::NoneOf(words), Value::Set(set)) => Some(not(set, words)),
        (Rule::Function(name), Value::Number(number)) => number_rule(*name, *number, knob.kind, server, host),
        (Rule::Function(name), Value::Text(text)) => text_rule(*name, text, server, host),
        _ => None,
    }
}

fn at_least(number: u64, least: u64, kind: ValueKind) -> Judgement {
    let wanted = format!("at least {}", display_number(least, kind));
    Judgement { is_met: number >= least, wanted, target: least.to_string(), sureness: None }
}

fn at_most(number: u64, most: u64, kind: ValueKind) -> Judgement {
    let wanted = format!("at most {}", display_number(most, kind));
    Judgement { is_met: number <= most, wanted, target: most.to_string(), sureness: None }
}

fn between(number: u64, least: u64, most: u64, kind: ValueKind) -> Judgement {
    let wanted = format!("{} to {}", display_number(least, kind), display_number(most, kind));
    let target = number.clamp(least, most.max(least)).to_string();
    Judgement { is_met: (least..=most).contains(&number), wanted, target, sureness: None }
}

fn one_of(text: &str, words: &[String]) -> Judgement {
    let target = words.first().cloned().unwrap_or_default();
    Judgement { is_met: words.iter().any(|word| word == text), wanted: words.join(" or "), target, sureness: None }
}

fn not(set: &[String], words: &[String]) -> Judgement {
    let wanted = format!("not {}", words.join(", "));
    Judgement { is_met: !set.iter().any(|word| words.contains(word)), wanted, target: String::new(), sureness: None }
}

fn number_rule(
    name: RuleName,
    number: u64,
    kind: ValueKind,
    server: &ServerSettings,
    host: HostNumbers,
) -> Option<Judgement> {
    Some(match name {
        RuleName::FilesForServer => at_least(number, files_for_server(server, host.processors), kind),
        RuleName::Backlog => at_least(number, server.backlog, kind),
        RuleName::SynBacklog => at_least(number, server.backlog.min(1024), kind),
        RuleName::PortsForDeliveries => at_least(number, ports_for_deliveries(server, host.processors), kind),
        RuleName::SocketMemoryPages => at_least(number, socket_memory_pages(server), kind),
        RuleName::TrackedConnections => at_least(number, tracked_connections(server), kind),
        RuleName::MemoryForServer => at_least(number, memory_for_server(server), kind),
        RuleName::ProcessorsForServer => processors_for_server(number, server, kind),
        RuleName::Threads => at_most(number, host.processors?, kind),
        RuleName::BodyMemory => between(number, BODY_MEMORY_MIN, host.memory? / 4, kind),
        RuleName::AccessTimes
        | RuleName::FileSystem
        | RuleName::PressureEnabled
        | RuleName::Loopback
        | RuleName::Durability => return None,
    })
}

fn text_rule(name: RuleName, text: &str, server: &ServerSettings, host: HostNumbers) -> Option<Judgement> {
    match name {
        RuleName::AccessTimes => Some(access_times(text)),
        RuleName::FileSystem => Some(file_system(text)),
        RuleName::PressureEnabled => Some(pressure_enabled(text, server.limits_pressure)),
        RuleName::Loopback => loopback(text),
        RuleName::Durability => Some(durability(text, host.has_cheap_syncs)),
        _ => None,
    }
}

/// The files of a full server: connections of clients, of deliveries, and the rest. A server with fewer starts, but
/// admits fewer sessions than configured.
fn files_for_server(server: &ServerSettings, processors: Option<u64>) -> u64 {
    let sessions = server.sessions.saturating_add(server.reading_sessions.saturating_mul(FILES_PER_READING_SESSION));
    sessions.saturating_add(connections_out(server, processors)).saturating_add(FILES_RESERVED)
}

/// Connections to other hosts, busy and idle.
fn connections_out(server: &ServerSettings, processors: Option<u64>) -> u64 {
    let idle = server.idle_connections.saturating_mul(server.session_threads(processors));
    server.outgoing.saturating_add(idle)
}

/// With `threads = 0`, the server takes half of the processors that its cgroup allows.
fn processors_for_server(number: u64, server: &ServerSettings, kind: ValueKind) -> Judgement {
    match server.threads {
        0 => Judgement { is_met: true, wanted: "any number".to_owned(), target: String::new(), sureness: None },
        threads => at_least(number, threads, kind),
    }
}

/// At worst all connections go to one relay.
fn ports_for_deliveries(server: &ServerSettings, processors: Option<u64>) -> u64 {
    connections_out(server, processors).clamp(PORTS_DEFAULT, 60_000)
}

fn socket_memory_pages(server: &ServerSettings) -> u64 {
    let connections = server.sessions.saturating_add(server.reading_sessions).saturating_add(server.outgoing);
    connections.saturating_mul(SOCKET_BYTES / PAGE_BYTES)
}

/// Closed connections are tracked for two minutes, so several times the open ones.
fn tracked_connections(server: &ServerSettings) -> u64 {
    let connections = server.sessions.saturating_add(server.reading_sessions).saturating_add(server.outgoing);
    connections.saturating_mul(4)
}

fn memory_for_server(server: &ServerSettings) -> u64 {
    let sessions = server.sessions.saturating_add(server.reading_sessions).saturating_mul(SESSION_BYTES);
    let caches = server.body_memory.saturating_add(server.file_cache_memory);
    caches.saturating_add(sessions).saturating_add(MEMORY_RESERVED)
}

fn access_times(text: &str) -> Judgement {
    let sureness = (text == "strictatime").then_some(Sureness::Sure);
    Judgement { sureness, ..one_of(text, &["noatime".to_owned()]) }
}

/// Memory file systems lose everything at the next restart.
fn file_system(text: &str) -> Judgement {
    let sureness = ["tmpfs", "ramfs"].contains(&text).then_some(Sureness::Sure);
    Judgement { sureness, ..one_of(text, &["ext4", "xfs"].map(str::to_owned)) }
}

/// A limit on pressure that cannot be measured never applies.
fn pressure_enabled(text: &str, is_limited: bool) -> Judgement {
    let sureness = is_limited.then_some(Sureness::Sure);
    Judgement { sureness, ..one_of(text, &["on".to_owned()]) }
}

/// None for the stubs of systemd-resolved, which pass questions on, maybe to a public resolver. A resolver in a private
/// network is no public one, and may be near enough.
fn loopback(text: &str) -> Option<Judgement> {
    let first: Option<IpAddr> = text.split(", ").next().and_then(|address| address.parse().ok());
    let is_private = match first {
        Some(IpAddr::V4(address)) if RESOLVED_STUBS.contains(&address) => return None,
        Some(IpAddr::V4(address)) => address.is_private(),
        Some(IpAddr::V6(address)) => address.is_unique_local() || address.is_unicast_link_local(),
        None => false,
    };
    Some(Judgement {
        is_met: first.is_some_and(|address| address.is_loopback()),
        wanted: "an address of this host first".to_owned(),
        target: "127.0.0.1".to_owned(),
        sureness: is_private.then_some(Sureness::Depends),
    })
}

/// If a sync costs little, relaxed durability gains nothing for what it risks.
fn durability(text: &str, has_cheap_syncs: Option<bool>) -> Judgement {
    let sureness = (has_cheap_syncs == Some(true)).then_some(Sureness::Sure);
    Judgement { sureness, ..one_of(text, &["commit".to_owned()]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> ServerSettings {
        ServerSettings {
            sessions: 10_000,
            reading_sessions: 1000,
            outgoing: 1075,
            idle_connections: 2000,
            body_memory: 128 << 20,
            ..ServerSettings::default()
        }
    }

    #[test]
    fn numbers_follow_from_the_configuration() {
        assert_eq!(files_for_server(&server(), Some(4)), 10_000 + 2000 + 1075 + 4000 + 256);
        assert_eq!(files_for_server(&server(), None), 10_000 + 2000 + 1075 + 2000 + 256);
        assert_eq!(ports_for_deliveries(&server(), Some(2)), PORTS_DEFAULT);
        assert_eq!(ports_for_deliveries(&ServerSettings { outgoing: 40_000, ..server() }, Some(2)), 42_000);
        assert_eq!(socket_memory_pages(&server()), 2 * 12_075);
        assert_eq!(memory_for_server(&server()), (128 + 64) * (1 << 20) + 11_000 * 8192);
        assert_eq!(ServerSettings { threads: 3, ..server() }.session_threads(Some(8)), 3);
    }

    #[test]
    fn absurd_configurations_do_not_overflow() {
        let all = u64::MAX;
        let server = ServerSettings {
            threads: all,
            sessions: all,
            reading_sessions: all,
            outgoing: all,
            idle_connections: all,
            body_memory: all,
            file_cache_memory: all,
            ..ServerSettings::default()
        };
        assert_eq!(files_for_server(&server, Some(all)), all);
        assert_eq!(memory_for_server(&server), all);
        assert_eq!(tracked_connections(&server), all);
        assert!(!between(5, BODY_MEMORY_MIN, 0, ValueKind::Bytes).is_met);
    }

    /// The server asks for the processors that it may use, which are not all of the host.
    #[test]
    fn a_server_that_chooses_its_threads_fits_into_every_quota() {
        let judged = |threads, number| {
            processors_for_server(number, &ServerSettings { threads, ..server() }, ValueKind::Integer).is_met
        };
        assert!(judged(0, 0) && judged(0, 2) && judged(2, 2));
        assert!(!judged(3, 2));
    }

    #[test]
    fn some_values_are_worse_than_others() {
        assert_eq!(access_times("relatime").sureness, None);
        assert_eq!(access_times("strictatime").sureness, Some(Sureness::Sure));
        assert_eq!(file_system("tmpfs").sureness, Some(Sureness::Sure));
        assert_eq!(pressure_enabled("off", true).sureness, Some(Sureness::Sure));
        assert_eq!(durability("relaxed", Some(true)).sureness, Some(Sureness::Sure));
        assert_eq!(durability("relaxed", None).sureness, None);
        let is_met = |text| loopback(text).map(|judgement| (judgement.is_met, judgement.sureness));
        assert_eq!(is_met("127.0.0.1, 8.8.8.8"), Some((true, None)));
        assert_eq!(is_met("::1"), Some((true, None)));
        assert_eq!(is_met("8.8.8.8, 127.0.0.1"), Some((false, None)));
        assert_eq!(is_met(""), Some((false, None)));
        assert_eq!(is_met("10.0.0.1"), Some((false, Some(Sureness::Depends))));
        assert_eq!(is_met("127.0.0.53, 8.8.8.8"), None, "it passes questions on");
    }
}
