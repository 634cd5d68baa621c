//! `[cluster]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::lane::LEASE_MAX;
use cluster::{ClusterConfig, ClusterName, ClusterTls, NatsServer, NodeName};

use spool::Durability;

use super::{Unique, fill_path, unspanned};
use crate::error::ConfigError;
use crate::section::Section;
use crate::value_kind::{self, ValueKind};

const NAME: ValueKind<ClusterName> = ValueKind {
    expected: "a name of 1 to 32 lower-case letters, digits and hyphens",
    parse: |v| v.as_str()?.parse().ok(),
};

const SERVER: ValueKind<NatsServer> = ValueKind {
    expected: "a NATS server such as \"nats://10.0.0.1:4222\" or \"tls://nats1.example.org:4222\", without a user",
    parse: |v| v.as_str()?.parse().ok(),
};

/// More copies than five are refused by the servers; two of them protect no better than one.
const REPLICAS: ValueKind<usize> = ValueKind {
    expected: "1, 3 or 5",
    parse: |v| (ValueKind::COUNT.parse)(v).filter(|replicas| matches!(replicas, 1 | 3 | 5)),
};

const LEASE: ValueKind<Duration> = ValueKind {
    expected: "a time from \"1s\" to \"1m\"",
    parse: |v| (value_kind::DURATION.parse)(v).filter(|lease| (LEASE_MIN..=LEASE_MAX).contains(lease)),
};

/// Below, a pause of the processor or of a server's disk would look like the end of a node.
const LEASE_MIN: Duration = Duration::from_secs(1);

/// The cluster; None without the section. A node has the name of its machine unless the file says
/// otherwise, so that all nodes can have the same file.
pub(super) fn cluster(
    document: &mut Section<'_, '_>,
    machine: &str,
    data_dir: &Path,
    durability: Durability,
) -> Option<ClusterConfig> {
    let mut section = document.section("cluster")?;
    if durability != Durability::Commit {
        // After a power failure, what the disk has lost would count as finished, and end in the stream too.
        let label = "expected only with durability = \"commit\" in [spool]".to_owned();
        section.report_error(ConfigError::new(section.span(), "`[cluster]` is not allowed here".to_owned(), label));
    }
    let name = section.take("name", &NAME).or_else(|| ClusterConfig::NAME.parse().ok());
    let servers = servers(&mut section);
    let node = node(&mut section, machine);
    let config = ClusterConfig {
        servers,
        credentials_file: file(&mut section, "credentials_file", data_dir),
        tls: tls(&mut section, data_dir),
        replicas: section.take_or("replicas", &REPLICAS, ClusterConfig::REPLICAS),
        lease: section.take_or("lease", &LEASE, ClusterConfig::LEASE),
        stream_bytes_max: section.take("stream_max", &value_kind::SIZE),
        requires_copies: section.take_or("require", &value_kind::FLAG, ClusterConfig::REQUIRES_COPIES),
        waiting_bytes_max: section.take_or("waiting_max", &value_kind::SIZE, ClusterConfig::WAITING_BYTES_MAX),
        // Last, so that all other keys have been read.
        name: name?,
        node: node?,
    };
    Some(config)
}

fn servers(section: &mut Section<'_, '_>) -> Vec<NatsServer> {
    section.report_if_missing("servers", "a list of NATS servers, such as [\"nats://10.0.0.1:4222\"]");
    let place = section.span_of("servers");
    let Some(servers) = section.list("servers", &SERVER) else { return Vec::new() };
    if servers.is_empty() {
        section.report(place, "servers", "is empty", "expected at least one server".into());
    }
    let mut unique = Unique::default();
    for server in &servers {
        unique.insert(section, "servers", &server.get_ref().to_string(), server.span());
    }
    unspanned(servers)
}

/// The name of the node, or that of the machine up to its first dot.
fn node(section: &mut Section<'_, '_>, machine: &str) -> Option<NodeName> {
    if let Some(node) = section.take_spanned("node", &value_kind::TEXT) {
        let parsed = node.get_ref().parse().ok();
        if parsed.is_none() {
            let label = format!("found {:?}, expected {}", node.get_ref(), NAME.expected);
            section.report(node.span(), "node", "has an invalid value", label);
        }
        return parsed;
    }
    let host = machine.split('.').next().unwrap_or_default().to_lowercase();
    let node = host.parse().ok();
    if node.is_none() {
        let label = format!("this machine is called {machine:?}, so expected here: {}", NAME.expected);
        section.report(section.span(), "node", "is missing", label);
    }
    node
}

fn tls(section: &mut Section<'_, '_>, data_dir: &Path) -> ClusterTls {
    let Some(mut tls) = section.section("tls") else { return ClusterTls::default() };
    let ca_file = file(&mut tls, "ca_file", data_dir);
    let (of_certificate, of_key) = (tls.span_of("certificate_file"), tls.span_of("key_file"));
    let files = (file(&mut tls, "certificate_file", data_dir), file(&mut tls, "key_file", data_dir));
    let certificate = match files {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            tls.report(of_certificate, "certificate_file", "needs its key", "expected `key_file` too".into());
            None
        }
        (None, Some(_)) => {
            tls.report(of_key, "key_file", "needs its certificate", "expected `certificate_file` too".into());
            None
        }
    };
    ClusterTls { ca_file, certificate }
}

fn file(section: &mut Section<'_, '_>, key: &'static str, data_dir: &Path) -> Option<PathBuf> {
    let template = section.take_spanned(key, &value_kind::TEXT)?;
    fill_path(section, key, &template, data_dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn parse(text: &str) -> Result<Option<ClusterConfig>, String> {
        Config::parse(text, "text", "Node1.example.org")
            .map(|config| config.cluster)
            .map_err(|errors| errors.to_string())
    }

    #[test]
    fn without_the_section_there_is_no_cluster_and_servers_are_enough() {
        assert_eq!(parse(""), Ok(None));
        let cluster = parse("[cluster]\nservers = [\"nats://127.0.0.1:4222\"]\n").unwrap().unwrap();
        assert_eq!((cluster.name.as_str(), cluster.node.as_str()), ("mailrace", "node1"));
        assert_eq!((cluster.replicas, cluster.lease, cluster.requires_copies), (3, Duration::from_secs(3), true));
        let text = "[cluster]\nservers = [\"nats://127.0.0.1:4222\"]\nrequire = false\n";
        assert!(!parse(text).unwrap().unwrap().requires_copies);
    }

    #[test]
    fn what_cannot_work_is_reported() {
        for (text, expected) in [
            ("", "`cluster.servers` is missing"),
            ("servers = []", "`cluster.servers` is empty"),
            ("servers = [\"10.0.0.1\"]", "`cluster.servers` has an invalid value"),
            ("servers = [\"nats://a:b@10.0.0.1\"]", "`cluster.servers` has an invalid value"),
            ("servers = [\"nats://h\", \"nats://h\"]", "appears twice"),
            ("name = \"Mail\"", "`cluster.name` has an invalid value"),
            ("node = \"a.b\"", "`cluster.node` has an invalid value"),
            ("require = \"no\"", "`cluster.require` has an invalid value"),
            ("replicas = 2", "`cluster.replicas` has an invalid value"),
            ("lease = \"100ms\"", "`cluster.lease` has an invalid value"),
            ("tls = { key_file = \"/k\" }", "`cluster.tls.key_file` needs its certificate"),
        ] {
            let errors = parse(&format!("[cluster]\n{text}\n")).unwrap_err();
            assert!(errors.contains(expected), "{text}: {errors}");
        }
    }

    #[test]
    fn a_machine_whose_name_no_node_can_have_needs_one_in_the_file() {
        let text = "[cluster]\nservers = [\"nats://h\"]\n";
        let errors = Config::parse(text, "text", "").unwrap_err().to_string();
        assert!(errors.contains("`cluster.node` is missing"), "{errors}");
    }
}
