//! Compares two configurations by section, and tells which changes a running server cannot take
//! over.

use acme::CertificateNames;
use config::{Config, LoadSettings};
use load::LoadLimits;
use net::CertificateFiles;

use crate::pipe_launcher::definition;

/// A section or key that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConfigDifference {
    /// As in the file.
    pub key: &'static str,
    /// Changing it needs a restart.
    pub needs_restart: bool,
}

/// All differences, in the order of the file.
pub(super) fn differences(old: &Config, new: &Config) -> Vec<ConfigDifference> {
    let changes = restart_keys(old, new).map(|(key, differs)| (key, true, differs));
    let all = changes.into_iter().chain(reload_keys(old, new).map(|(key, differs)| (key, false, differs)));
    let all = all.filter(|(_, _, differs)| *differs);
    all.map(|(key, needs_restart, _)| ConfigDifference { key, needs_restart }).collect()
}

/// Settings that folders, threads or the process depend on.
fn restart_keys(old: &Config, new: &Config) -> [(&'static str, bool); 15] {
    let (spool, other) = (&old.spool, &new.spool);
    [
        ("data_dir", old.data_dir != new.data_dir),
        ("user", old.user != new.user),
        ("allow_root", old.allow_root != new.allow_root),
        ("threads", old.threads != new.threads),
        ("[spool] lanes", spool.lanes != other.lanes),
        ("[spool] durability", spool.durability != other.durability),
        ("[spool] segment", spool.segment_octets != other.segment_octets),
        ("[spool] spare_segments", spool.spare_segments != other.spare_segments),
        ("[log] format", old.log.format != new.log.format),
        ("[log] to", old.log.to != new.log.to),
        ("[log] queue", old.log.queue != new.log.queue),
        // The process that starts them has to know them before the server drops its privileges.
        ("the programs of [transport.NAME] with type = \"pipe\"", !has_known_programs(old, new)),
        ("[cluster]", old.cluster != new.cluster),
        ("[reports]", old.reports != new.reports),
        ("[admin] socket", old.admin.socket != new.admin.socket),
    ]
}

/// All other settings. A new field of the configuration does not compile here until it is handled.
#[expect(clippy::too_many_lines, reason = "a flat list of all sections")]
fn reload_keys(old: &Config, new: &Config) -> [(&'static str, bool); 40] {
    let Config {
        data_dir: _,
        user: _,
        allow_root: _,
        threads: _,
        log,
        admin: _,
        // Only programs that submit mail use it, and they read the file themselves.
        hostname,
        origin,
        listeners,
        certificates: _,
        acme,
        tls,
        tables,
        domains,
        domain_tables,
        transports,
        content_filter,
        routes,
        message_routes,
        next_hops,
        dns,
        missing_addresses,
        relay,
        access,
        milters,
        policy_services,
        rate_limits,
        greylist,
        content,
        rewrite,
        bcc,
        auth,
        sender_auth,
        reports: _,
        smtp,
        pop3,
        http,
        proxy,
        limits,
        queues,
        scheduler,
        load,
        bounce,
        signing,
        srs,
        cluster: _,
        spool: _,
        api,
    } = new;
    [
        ("hostname", *hostname != old.hostname),
        ("origin", *origin != old.origin),
        ("[[listener]]", *listeners != old.listeners),
        // Their position in the file does not matter.
        ("[[certificate]]", !certificate_files(new).eq(certificate_files(old))),
        ("[acme]", *acme != old.acme),
        ("[tls]", *tls != old.tls),
        ("[relay]", *relay != old.relay),
        ("[[access]]", *access != old.access),
        ("[[milter]]", *milters != old.milters),
        ("[[policy_service]]", *policy_services != old.policy_services),
        ("[[limit]]", *rate_limits != old.rate_limits),
        ("[greylist]", *greylist != old.greylist),
        ("[[content]]", *content != old.content),
        ("[rewrite]", *rewrite != old.rewrite),
        ("[bcc]", *bcc != old.bcc),
        ("[auth]", *auth != old.auth),
        ("[sender_auth]", *sender_auth != old.sender_auth),
        ("[smtp]", *smtp != old.smtp),
        ("[pop3]", *pop3 != old.pop3),
        ("[http]", *http != old.http),
        ("[proxy]", *proxy != old.proxy),
        ("[limits]", *limits != old.limits),
        ("[load]", with_space_limits(load, &old.load) != old.load),
        ("[[table]]", *tables != old.tables),
        ("[[domain]]", *domains != old.domains),
        ("[[domain]] names", *domain_tables != old.domain_tables),
        ("[transport]", *transports != old.transports),
        ("[[route]]", *routes != old.routes),
        ("[content_filter]", *content_filter != old.content_filter),
        ("[[route]] by address or sender", *message_routes != old.message_routes),
        ("[[next_hop]]", *next_hops != old.next_hops),
        ("[dns]", (dns, missing_addresses) != (&old.dns, &old.missing_addresses)),
        ("[[queue]]", *queues != old.queues),
        ("[queues]", *scheduler != old.scheduler),
        ("[bounce]", *bounce != old.bounce),
        ("[signing]", *signing != old.signing),
        ("[srs]", *srs != old.srs),
        ("[api]", *api != old.api),
        ("[log] subject", log.subject != old.log.subject),
        ("[spool] space_min, inodes_min", with_space_limits(load, &old.load) != *load),
    ]
}

/// Whether all programs of the new configuration are in the old one, with the same users and arguments.
fn has_known_programs(old: &Config, new: &Config) -> bool {
    let programs = |config: &Config| -> Vec<_> {
        let pipes = config.transports.iter().filter_map(|transport| Some((&transport.name, transport.pipe()?)));
        pipes.map(|(name, pipe)| (definition(name, pipe, (0, 0)), pipe.user.clone())).collect()
    };
    let known = programs(old);
    programs(new).iter().all(|program| known.contains(program))
}

/// The settings with the limits of others that have their keys in [spool].
fn with_space_limits(load: &LoadSettings, others: &LoadSettings) -> LoadSettings {
    let LoadLimits { space_min, inodes_min, .. } = others.limits;
    LoadSettings { limits: LoadLimits { space_min, inodes_min, ..load.limits.clone() }, ..load.clone() }
}

/// Whether routes or transport settings differ.
pub(super) fn routes_differ(old: &Config, new: &Config) -> bool {
    let slow = |config: &Config| config.queues.iter().find_map(|queue| queue.adopt.as_ref()).map(|it| it.slower_than);
    old.hostname != new.hostname
        || old.listeners != new.listeners
        || old.domains != new.domains
        || old.domain_tables != new.domain_tables
        || old.transports != new.transports
        || old.routes != new.routes
        || old.next_hops != new.next_hops
        || (&old.dns, old.missing_addresses) != (&new.dns, new.missing_addresses)
        || slow(old) != slow(new)
}

/// Whether TLS for clients uses the same files and settings.
pub(super) fn is_same_tls(old: &Config, new: &Config) -> bool {
    let settings = |config: &Config| (config.tls.version_min, config.tls.handshake_timeout);
    certificate_files(old).eq(certificate_files(new)) && settings(old) == settings(new)
}

fn certificate_files(config: &Config) -> impl Iterator<Item = (&CertificateFiles, Option<&CertificateNames>)> {
    config.certificates.iter().map(|certificate| (&certificate.files, certificate.obtained_for.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, "text", "host.example").unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn told(old: &str, new: &str) -> Vec<(&'static str, bool)> {
        let differences = differences(&config(old), &config(new));
        differences.into_iter().map(|it| (it.key, it.needs_restart)).collect()
    }

    #[test]
    fn what_the_server_was_built_on_needs_a_restart() {
        for (text, key) in [
            ("user = \"mail\"\n", "user"),
            ("allow_root = true\n", "allow_root"),
            ("threads = 3\n", "threads"),
            ("[spool]\nlanes = [\"/a\"]\n", "[spool] lanes"),
            ("[spool]\ndurability = \"relaxed\"\n", "[spool] durability"),
            ("[spool]\nsegment = \"8MiB\"\n", "[spool] segment"),
            ("[spool]\nspare_segments = 2\n", "[spool] spare_segments"),
            ("[log]\nformat = \"json\"\n", "[log] format"),
            ("[log]\nto = \"/a\"\n", "[log] to"),
            ("[log]\nqueue = 10\n", "[log] queue"),
            ("[admin]\nsocket = \"/a\"\n", "[admin] socket"),
        ] {
            assert_eq!(told("", text), [(key, true)], "{text}");
        }
        assert!(told("", "data_dir = \"/a\"\n").contains(&("data_dir", true)));
    }

    #[test]
    fn everything_else_reloads() {
        for (text, key) in [
            ("hostname = \"mx.example\"\n", "hostname"),
            ("[relay]\nnetworks = []\n", "[relay]"),
            ("[[access]]\nclients = [\"192.0.2.1\"]\naction = \"refuse\"\n", "[[access]]"),
            ("[[policy_service]]\naddress = \"localhost:10023\"\n", "[[policy_service]]"),
            ("[[milter]]\naddress = \"localhost:8891\"\n", "[[milter]]"),
            ("[[content]]\nmatches = \"^X:\"\naction = \"hold\"\n", "[[content]]"),
            ("[rewrite]\nmasquerade = [\"example.org\"]\n", "[rewrite]"),
            ("[bcc]\nalways = \"a@example.org\"\n", "[bcc]"),
            ("[[table]]\nname = \"t\"\ntype = \"static\"\nvalues = [\"x\"]\n[auth]\npasswords = \"t\"\n", "[auth]"),
            ("[transport.maildir]\nquota = { bytes = \"1MiB\" }\n", "[transport]"),
            ("[smtp]\nxclient_from = [\"192.0.2.1\"]\n", "[smtp]"),
            ("[[queue]]\nname = \"standard\"\nclients = [\"192.0.2.1\"]\n", "[[queue]]"),
            (
                "[[listener]]\nprotocol = \"smtp\"\naddress = \"127.0.0.1:2525\"\nproxy_from = [\"192.0.2.1\"]\n",
                "[[listener]]",
            ),
            ("[limits]\nmessage = \"1MiB\"\n", "[limits]"),
            ("[load]\nrefuse_above = 3.0\n", "[load]"),
            ("[[domain]]\nname = \"example.org\"\n", "[[domain]]"),
            ("[[route]]\ndomain = \"*\"\nnext_hop = \"relay.example\"\n", "[[route]]"),
            ("[[next_hop]]\nhost = \"big.example\"\nconnections = 2\n", "[[next_hop]]"),
            ("[[queue]]\nname = \"standard\"\nconcurrency = 7\n", "[[queue]]"),
            ("[spool]\nspace_min = \"1GiB\"\n", "[spool] space_min, inodes_min"),
            ("[log]\nsubject = true\n", "[log] subject"),
            ("[signing]\nexpires_after = \"7d\"\n", "[signing]"),
            ("[srs]\nsecret_file = \"/a\"\n", "[srs]"),
            ("[api]\npage = 10\n", "[api]"),
            ("[acme]\naccept_terms = true\n", "[acme]"),
        ] {
            let told = told("", text);
            assert!(told.contains(&(key, false)), "{text}: {told:?}");
            assert!(told.iter().all(|(_, needs_restart)| !needs_restart), "{text}: {told:?}");
        }
        assert_eq!(told("# a remark\n[relay]\nnetworks = []\n", "[relay]\nnetworks = []\n"), []);
    }
}
