//! The configuration file: all errors are reported together, each with its place.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use config::{Config, DEFAULT, ListenerProtocol, QueueSettings, TlsVersion, TransportKind, TransportSettings};
use mailbox::LineEnds;
use mailbox::quota::OverQuotaAction;
use proptest::prelude::*;
use protocol::TlsMode;
use route::DomainPattern;
use server_log::{LogFormat, LogTarget};
use spool::Durability;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, "mailrace.toml", "host.example").map_err(|faults| faults.to_string())
}

fn faults(text: &str) -> String {
    parse(text).expect_err("the text has faults")
}

#[test]
fn the_built_in_text_states_every_default() {
    assert_eq!(parse(DEFAULT), parse(""));
}

/// The built-in text with its examples: the lines that begin with `# key =` or `# [`.
fn with_examples() -> impl Iterator<Item = &'static str> {
    let example = |line: &'static str| {
        let rest = line.strip_prefix("# ")?;
        let after = rest.trim_start_matches(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        (after.starts_with(" = ") || rest.starts_with('[')).then_some(rest)
    };
    DEFAULT.lines().map(move |line| example(line).unwrap_or(line))
}

#[test]
fn the_examples_of_the_built_in_text_are_sound() {
    // These contradict other settings in the text.
    let others = ["sync_every", "bind =", "dovecot =", "auth = {}", "token_file", "senders = \"relay_logins\""];
    let is_other = |line: &&str| others.iter().any(|other| line.starts_with(other));
    let text: Vec<_> = with_examples().filter(|line| !is_other(line)).collect();
    let config = parse(&text.join("\n")).unwrap();
    assert_eq!((config.tables.len(), config.routes.len(), config.next_hops.len()), (12, 2, 1));
    assert!(config.load.limits.refuse_above.is_some() && !config.queues[1].rules.is_empty());
}

/// An error about an unknown key lists all known keys of its section.
#[test]
fn the_built_in_text_names_every_key_that_is_known() {
    // Only the first errors of one text are shown.
    let shown: String = include_str!("unknown.toml").split("# another text\n").map(faults).collect();
    let document: toml::Table = with_examples().collect::<Vec<_>>().join("\n").parse().unwrap();
    let (mut sections, mut missing) = (0, Vec::new());
    for (title, rest) in shown.split("error: unknown key `").skip(1).filter_map(|fault| fault.split_once("zz`")) {
        let known = rest.lines().find_map(|line| line.split_once("expected one of: ")).unwrap().1;
        let stated = keys_in(&document, title.split('.').filter(|name| !name.is_empty()));
        missing.extend(known.split(", ").filter(|key| !stated.contains(*key)).map(|key| format!("{title}{key}")));
        sections += 1;
    }
    assert_eq!((sections, missing), (72, Vec::<String>::new()));
}

/// The keys of the section at that path; for a list of tables, the keys of all of them.
fn keys_in<'a>(document: &toml::Table, path: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let mut tables = vec![document];
    for name in path {
        tables = tables.into_iter().filter_map(|table| table.get(name)).flat_map(tables_of).collect();
    }
    tables.into_iter().flat_map(|table| table.keys().cloned()).collect()
}

fn tables_of(value: &toml::Value) -> Vec<&toml::Table> {
    match value {
        toml::Value::Table(table) => vec![table],
        toml::Value::Array(elements) => elements.iter().filter_map(toml::Value::as_table).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn without_a_file_it_keeps_mail_for_localhost() {
    let config = parse("").unwrap();
    assert_eq!(&*config.hostname, "host.example");
    assert_eq!(config.listeners[0].address.to_string(), "127.0.0.1:2525");
    assert_eq!(&*config.domains[0].name, "localhost");
    let TransportKind::Maildir(maildir) = &config.transport(&config.domains[0].transport).unwrap().kind else {
        panic!("the default transport is not a Maildir");
    };
    assert_eq!(maildir.path.expand("localhost", "bob"), Path::new("./mailrace-data/mail/localhost/bob"));
    assert_eq!(config.spool.lanes, [Path::new("./mailrace-data/spool")]);
    assert!(config.relay.networks[0].contains("127.0.0.1".parse().unwrap()));
}

#[test]
fn what_is_built_in_is_always_there_and_comes_first() {
    let adopting = |config: &Config| {
        let mut adopting = config.queues.iter().filter(|queue| queue.adopt.is_some());
        let name = adopting.next().unwrap().name.clone();
        assert_eq!(adopting.next(), None);
        name
    };
    for (text, adopts) in [
        ("", QueueSettings::LAME),
        ("[[queue]]\nname = \"lame\"\nconcurrency = 1\n", QueueSettings::LAME),
        ("[[queue]]\nname = \"slow\"\nadopt = {}\n[[queue]]\nname = \"local\"\n", "slow"),
        ("[transport.a]\ntype = \"maildir\"\n[transport.smtp]\nport = 26\n", QueueSettings::LAME),
    ] {
        let config = parse(text).unwrap();
        let queues: Vec<_> = config.queues.iter().map(|queue| &*queue.name).collect();
        assert_eq!(queues[..3], [QueueSettings::LOCAL, QueueSettings::STANDARD, QueueSettings::LAME], "{text}");
        let transports: Vec<_> = config.transports.iter().map(|transport| &*transport.name).collect();
        assert_eq!(transports[..2], [TransportSettings::MAILDIR, TransportSettings::SMTP], "{text}");
        assert_eq!(&*adopting(&config), adopts, "{text}");
    }
}

#[test]
fn the_last_route_is_for_all_and_takes_the_next_hop_of_its_transport() {
    let last = |text: &str| parse(text).unwrap().routes.pop().unwrap();
    assert_eq!((last("").pattern, last("").next_hop), (DomainPattern::Any, None));
    let relayed = last("[transport.smtp]\nnext_hop = \"relay.example.net\"\n");
    assert_eq!(relayed.next_hop.unwrap().to_string(), "relay.example.net");
    let own = parse("[[route]]\ndomain = \"*\"\nnext_hop = \"[192.0.2.1]\"\n").unwrap().routes;
    assert_eq!((own.len(), own[0].next_hop.as_ref().unwrap().to_string()), (1, "[192.0.2.1]".to_owned()));
}

/// Whoever gives the address of a recipient chooses its MX hosts, and these can prove their names.
#[test]
fn a_transport_with_a_login_needs_a_next_hop() {
    let auth = "tls = \"verified\"\nauth = { user = \"us\", password_file = \"/p\" }\n";
    let provider = format!("[transport.provider]\ntype = \"smtp\"\n{auth}");
    let route = "[[route]]\ndomain = \"*\"\ntransport = \"provider\"\n";
    let hop = "next_hop = \"relay.example.net\"\n";
    for text in [
        format!("{provider}{route}"),
        format!("{provider}[[route]]\ndomain = \"a.example\"\ntransport = \"provider\"\n"),
        format!("[transport.smtp]\n{auth}"),
        format!("[transport.smtp]\n{auth}{}", route.replace("provider", "smtp")),
        format!("[transport.smtp]\n{auth}[[route]]\ndomain = \"a.example\"\n{hop}"),
    ] {
        let shown = faults(&text);
        assert!(shown.contains("next_hop` is missing") && shown.contains("must not go to the MX hosts"), "{shown}");
        assert_eq!(shown.matches("error: ").count(), 1, "{shown}");
    }
    let table = "[[table]]\nname = \"hops\"\ntype = \"static\"\nvalues = [\"relay.example.net\"]\n";
    for text in [
        provider.clone(),
        format!("{provider}{hop}{route}"),
        format!("{provider}{route}{hop}"),
        format!("{table}{provider}{route}next_hops = \"hops\"\n"),
        format!("[transport.smtp]\n{auth}{hop}"),
        format!("[transport.smtp]\n{auth}{}{hop}", route.replace("provider", "smtp")),
    ] {
        assert_eq!(parse(&text).err(), None, "{text}");
    }
}

#[test]
fn fewer_connections_than_the_usual_first_ones_are_no_fault() {
    let config = parse("[transport.smtp]\nconnections = 1\n").unwrap();
    let TransportKind::Smtp(smtp) = &config.transport(TransportSettings::SMTP).unwrap().kind else {
        panic!("not SMTP")
    };
    assert_eq!((smtp.limits.concurrency.start, smtp.limits.concurrency.max), (1, 1));
}

#[test]
fn durability_can_be_relaxed_but_not_in_a_cluster() {
    const RELAXED: &str = "[spool]\ndurability = \"relaxed\"\nsync_every = \"250ms\"\n";
    let spool = parse(RELAXED).unwrap().spool;
    assert_eq!(spool.durability, Durability::Relaxed { sync_every: Duration::from_millis(250) });
    let cluster = "[cluster]\nname = \"mx\"\nnode = \"mx-1\"\nservers = [\"nats://10.0.0.1:4222\"]\n";
    parse(cluster).unwrap();
    let found = faults(&[RELAXED, cluster].concat());
    assert!(found.contains("`[cluster]` is not allowed here") && found.contains("durability = \"commit\""), "{found}");
}

#[test]
fn a_machine_without_a_usable_name_is_localhost() {
    for name in ["", "a b", "-"] {
        assert_eq!(&*Config::parse("", "", name).unwrap().hostname, "localhost");
    }
}

#[test]
fn every_setting_arrives_where_it_belongs() {
    let config = parse(include_str!("full.toml")).unwrap();
    insta::assert_debug_snapshot!(config);
    assert_eq!(config.listeners[1].protocol, ListenerProtocol::Lmtp);
    let TransportKind::Maildir(boxes) = &config.transport("boxes").unwrap().kind else { panic!("not a Maildir") };
    assert_eq!(boxes.line_ends, LineEnds::Lf);
    let names: Vec<_> = config.queues.iter().map(|queue| &*queue.name).collect();
    assert_eq!(names, ["local", "standard", "lame", "lists"]);
    assert_eq!((config.log.format, config.log.to), (LogFormat::Json, LogTarget::File("/srv/mail/log".into())));
}

#[test]
fn a_quota_may_be_of_a_table_alone_and_what_belongs_to_none_is_told() {
    let quota = |text: &str| {
        let text =
            format!("[[table]]\nname = \"t\"\ntype = \"static\"\nvalues = [\"1S\"]\n[transport.maildir]\n{text}\n");
        let TransportKind::Maildir(maildir) = &parse(&text).unwrap().transports[0].kind else {
            panic!("not a Maildir")
        };
        maildir
            .quota
            .as_ref()
            .map(|quota| (quota.limits.bytes, quota.limits.messages, quota.table.is_some(), quota.full))
    };
    assert_eq!(quota(""), None);
    assert_eq!(quota("quota = { bytes = \"1KiB\" }"), Some((1024, 0, false, OverQuotaAction::Defer)));
    assert_eq!(quota("quota_table = \"t\"\nquota_full = \"refuse\""), Some((0, 0, true, OverQuotaAction::Refuse)));
    let shown = faults(
        "[transport.maildir]\nquota_full = \"defer\"\n[transport.a]\ntype = \"maildir\"\nquota_table = \"nowhere\"\n\
         quota = { bytes = \"much\", mesages = 1 }\nquota_full = \"bounce\"\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn an_unknown_key_is_told_with_the_nearest_known_one() {
    let shown = faults("hostnam = \"mx1.example.org\"\n\n[limits]\nmesage = \"50MiB\"\ncolour = 3\n");
    insta::assert_snapshot!(shown);
}

#[test]
fn a_wrong_type_is_told_with_what_was_found() {
    let shown = faults(
        "hostname = 5\nallow_root = \"yes\"\nlistener = 25\nlimits = []\n[relay]\nnetworks = \"10.0.0.0/8\"\n[transport]\nmaildir = 1\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn a_wrong_unit_or_range_is_told_with_examples() {
    let shown = faults(
        "[limits]\nsession_time = \"2 parsecs\"\nidle_time = 300\nmessage = \"50 mib\"\nsessions = 0\nerrors = -1\n\
         spill_above = \"63KiB\"\n\
         [relay]\nnetworks = [\"10.0.0.0/8\", \"10.0.0.1/8\"]\n[spool]\nsegment = \"1KiB\"\n",
    );
    insta::assert_snapshot!(shown);
}

/// The error used to list the known words, without the equivalent of the given one.
#[test]
fn words_of_other_servers_are_told_with_ours() {
    insta::assert_snapshot!(faults(include_str!("foreign.toml")));
}

#[test]
fn what_is_wrong_about_tls_is_told() {
    let shown = faults(
        "[[listener]]\nprotocol = \"smtp\"\naddress = \"127.0.0.1:465\"\ntls = \"implicit\"\n\
         [tls]\nmin_version = \"1.1\"\nhandshake_timeout = \"0s\"\n",
    );
    insta::assert_snapshot!(shown);
    let shown = faults(
        "[[certificate]]\nchain = \"a.pem\"\n[[certificate]]\nchain = \"{x}/a.pem\"\nkey = \"k\"\nnames = [\"*\", \"a b\"]\n\
         [[listener]]\nprotocol = \"lmtp\"\naddress = \"127.0.0.1:25\"\ntls = \"startls\"\n",
    );
    insta::assert_snapshot!("what_is_wrong_about_certificates", shown);
}

#[test]
fn what_is_wrong_about_signing_is_told() {
    let shown = faults(
        "[signing]\nsign = [\"users\", \"strangers\"]\ntable = \"keys\"\nexpires_after = \"0s\"\nwaiting = 0\n\
         [[signing.key]]\ndomain = \"*.example.org\"\nselector = \"a;b\"\n\
         [[signing.key]]\ndomain = \"Example.org\"\nselector = \"one\"\nfile = \"a\"\n\
         [[signing.key]]\ndomain = \"example.org\"\nselector = \"one\"\nfile = \"b\"\n\
         [[signing.key]]\ndomain = \"example.org\"\nselector = \"two\"\nfile = \"{x}/c\"\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn a_signing_key_that_cannot_be_used_is_told_at_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mailrace.toml");
    let (key, missing) = (folder.path().join("key"), folder.path().join("missing"));
    std::fs::write(&key, "nonsense").unwrap();
    let section = |path: &Path| {
        format!(
            "[[signing.key]]\ndomain = \"example.org\"\nselector = \"{}\"\nfile = {path:?}\n",
            path.as_os_str().len()
        )
    };
    std::fs::write(&file, section(&key) + &section(&missing)).unwrap();
    let shown = config::check_signing_keys(&config::load(Some(&file)).unwrap()).unwrap_err().to_string();
    for part in ["mailrace.toml:4:8", "mailrace.toml:8:8", "no private key found", "unable to read the key", "2 errors"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // 32 octets in base64: a key of Ed25519.
    std::fs::write(&key, "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=\n").unwrap();
    std::fs::write(&file, section(&key)).unwrap();
    let loaded = config::load(Some(&file)).unwrap();
    for (mode, warnings) in [(0o600, 0), (0o644, 1)] {
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        let told = config::check_signing_keys(&loaded).unwrap();
        assert_eq!(told.len(), warnings, "{told:?}");
    }
}

#[test]
fn a_listener_offers_tls_where_there_is_a_certificate() {
    let listener = |tls: &str| format!("[[listener]]\nprotocol = \"smtp\"\naddress = \"127.0.0.1:0\"\n{tls}");
    let certificate = "[[certificate]]\nchain = \"{data_dir}/a.pem\"\nkey = \"b.pem\"\nnames = [\"*.Example.ORG\"]\n";
    let tls_of = |text: &str| parse(text).unwrap().listeners[0].tls;
    assert_eq!(tls_of(""), TlsMode::Never);
    assert_eq!(tls_of(&listener("")), TlsMode::Never);
    assert_eq!(tls_of(certificate), TlsMode::Offered);
    assert_eq!(tls_of(&format!("{}{certificate}", listener(""))), TlsMode::Offered);
    for (word, tls) in [
        ("none", TlsMode::Never),
        ("starttls", TlsMode::Offered),
        ("required", TlsMode::Required),
        ("implicit", TlsMode::Implicit),
    ] {
        assert_eq!(tls_of(&format!("{}{certificate}", listener(&format!("tls = \"{word}\"\n")))), tls);
    }
    let config = parse(&format!("data_dir = \"/d\"\n{certificate}[tls]\nmin_version = \"1.3\"\n")).unwrap();
    assert_eq!(config.certificates[0].files.chain, Path::new("/d/a.pem"));
    assert_eq!(config.certificates[0].files.names, ["*.example.org".into()]);
    assert_eq!(config.tls.version_min, TlsVersion::V1_3);
}

#[test]
fn the_same_twice_is_told_with_both_places() {
    let shown = faults(
        "[[listener]]\nprotocol = \"smtp\"\naddress = \"127.0.0.1:25\"\n\n[[listener]]\nprotocol = \"lmtp\"\n\
         address = \"127.0.0.1:25\"\n\n[[domain]]\nname = \"example.org\"\n\n[[domain]]\nname = \"Example.ORG\"\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn a_name_that_nothing_bears_is_told_with_those_there_are() {
    let shown = faults(
        "[[domain]]\nname = \"example.org\"\nmailboxes = \"peeple\"\naliases = \"others\"\ntransport = \"mailder\"\n\n\
         [[table]]\nname = \"people\"\ntype = \"text\"\npath = \"people\"\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn what_is_missing_is_told_at_its_section() {
    let shown = faults("[[listener]]\n[[table]]\nname = \"people\"\n[[domain]]\nmailboxes = \"people\"\n");
    insta::assert_snapshot!(shown);
}

#[test]
fn what_the_design_has_and_this_version_has_not_is_told_as_such() {
    let shown = faults(include_str!("designed.toml"));
    insta::assert_snapshot!(shown);
}

#[test]
fn a_text_that_is_not_toml_is_told_by_its_syntax_alone() {
    let shown = faults("hostname = \"mx1\ncolour = \n[limits\n");
    insta::assert_snapshot!(shown);
}

#[test]
fn settings_that_do_not_go_together_are_told() {
    let shown = faults(
        "[[queue]]\nname = \"standard\"\nretry = { first = \"5h\", factor = 0.5, jitter = 2 }\n\n\
         [spool]\nsync_every = \"1s\"\nsegment = 4194303\nlanes = [\"/a\", \"/a\", \"{local}\"]\n\n\
         [transport.maildir]\ntype = \"maildir\"\npath = \"{data_dir}/mail\"\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn a_proxy_does_not_lead_back_to_itself() {
    let text = |address: &str, backend: &str| {
        format!(
            "[[table]]\nname = \"t\"\ntype = \"text\"\npath = \"/t\"\n[auth]\npasswords = \"t\"\nclear_text = true\n\
             [[listener]]\nprotocol = \"pop3-proxy\"\naddress = \"{address}\"\ntls = \"none\"\n\
             [proxy]\nlocal_pop3 = \"{backend}\"\nlocal_imap = \"{backend}\"\n"
        )
    };
    for (address, backend) in [
        ("127.0.0.1:110", "127.0.0.1:110"),
        ("0.0.0.0:110", "127.0.0.1:110"),
        ("0.0.0.0:110", "localhost:110"),
        ("[::]:110", "[::1]:110"),
    ] {
        let shown = faults(&text(address, backend));
        assert!(shown.contains("`proxy.local_pop3` leads back to the proxy"), "{shown}");
        assert!(!shown.contains("local_imap` leads"), "{shown}");
    }
    for (address, backend) in [("127.0.0.1:110", "127.0.0.1:111"), ("127.0.0.1:110", "127.0.0.2:110")] {
        parse(&text(address, backend)).unwrap();
    }
}

#[test]
fn unusable_transports_are_reported() {
    let shown = faults(include_str!("astray.toml"));
    insta::assert_snapshot!(shown);
}

#[test]
fn conflicting_queues_are_reported() {
    let shown = faults(include_str!("queues.toml"));
    insta::assert_snapshot!(shown);
}

#[test]
fn a_thousand_queues_are_enough() {
    let queues = |count| (0..count).map(|n| format!("[[queue]]\nname = \"q{n}\"\n")).collect::<String>();
    assert_eq!(parse(&queues(997)).unwrap().queues.len(), 1000);
    assert!(faults(&queues(998)).contains("too many queues"));
}

#[test]
fn what_is_no_pattern_no_next_hop_and_no_rate_is_told_with_examples() {
    let shown = faults(include_str!("notations.toml"));
    insta::assert_snapshot!(shown);
}

#[test]
fn only_the_first_errors_are_shown() {
    let text: String = (0..5000).map(|n| format!("k{n} = 1\n")).collect();
    let shown = faults(&text);
    assert_eq!(shown.matches("error: ").count(), 50);
    assert!(shown.ends_with("5000 errors in mailrace.toml, only the first 50 are shown"));
}

/// Texts similar to configurations: known keys with values of all kinds, in any order.
fn nearly_toml() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        proptest::sample::select(with_examples().collect::<Vec<_>>()).prop_map(str::to_owned),
        ("[a-z_]{1,12}", "[\"\\[\\]{}0-9a-zA-Zé\u{202e}\t .=,-]{0,12}")
            .prop_map(|(key, value)| format!("{key} = {value}")),
        any::<String>(),
    ];
    proptest::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in nearly_toml()) {
        let _ = parse(&text);
    }
}

#[test]
fn what_is_wrong_about_logins_is_told() {
    let shown = faults(
        "[[listener]]\nprotocol = \"submission\"\naddress = \"0.0.0.0:587\"\n\
         [[listener]]\nprotocol = \"smtp\"\naddress = \"127.0.0.1:25\"\nauth = true\n\
         [[listener]]\nprotocol = \"smtp\"\naddress = \"127.0.0.1:26\"\nrequire_auth = true\n\
         [[table]]\nname = \"people\"\ntype = \"static\"\nvalues = [\"x\"]\n\
         [auth]\nbind = \"people\"\npasswords = \"people\"\nmechanisms = [\"SCRAM-SHA-256\", \"XOAUTH2\"]\n\
         senders = \"owners\"\n",
    );
    insta::assert_snapshot!(shown);
    insta::assert_snapshot!(faults("[auth]\n"));
    insta::assert_snapshot!(faults("[[listener]]\nprotocol = \"submission\"\naddress = \"127.0.0.1:587\"\n"));
}

#[test]
fn what_is_wrong_about_listeners_of_http_is_told() {
    let shown = faults(
        "[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:80\"\n\
         [[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:81\"\nmailboxes = true\nfiles = \"/srv/www\"\nlisting = true\n\
         [[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:82\"\nmailboxes = true\nauth = false\n\
         [[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:83\"\nmailboxes = true\nrequire_auth = false\n\
         [[listener]]\nprotocol = \"pop3\"\naddress = \"127.0.0.1:110\"\nmailboxes = true\n\
         [http]\nmessage_size = \"2GiB\"\nhead_size = 100\n",
    );
    insta::assert_snapshot!(shown);
}

#[test]
fn what_is_wrong_about_listeners_of_the_api_is_told() {
    let api = |address: &str, more: &str| {
        format!("[[listener]]\nprotocol = \"http\"\napi = true\naddress = {address:?}\n{more}")
    };
    let shown = faults(
        &[
            api("0.0.0.0:80", ""),
            api("127.0.0.1:81", "files = \"/srv\"\nauth = true\nmailboxes = true\n"),
            "[[listener]]\nprotocol = \"pop3\"\naddress = \"127.0.0.1:110\"\napi = true\n".to_owned(),
            "[api]\nhosts = [\"a b\"]\nconnections = 0\npage = 0\n".to_owned(),
        ]
        .concat(),
    );
    for told in [
        "`listener.api` needs TLS on addresses that other hosts can reach",
        "`listener.files` is not allowed here",
        "`listener.mailboxes` is not allowed here",
        "`listener.auth` is not allowed here",
        "expected only without `api`",
        "unknown key `listener.api`",
        "`api.hosts` has an invalid value",
        "`api.connections` has an invalid value",
        "`api.page` has an invalid value",
    ] {
        assert!(shown.contains(told), "{told}: {shown}");
    }
    let listener = parse(&api("[::1]:80", "")).unwrap().listeners.remove(0);
    assert!(listener.api && listener.http.is_none() && !listener.is_for_readers());
    let certificate = "[[certificate]]\nchain = \"a\"\nkey = \"b\"\n";
    let secure = format!("{}{certificate}", api("0.0.0.0:443", "tls = \"implicit\"\n"));
    assert!(parse(&secure).is_ok());
}

#[test]
fn mailboxes_by_http_have_the_limits_of_their_sections_and_want_logins() {
    let users =
        "[[table]]\nname = \"a\"\ntype = \"static\"\nvalues = [\"x\"]\n[auth]\npasswords = \"a\"\nclear_text = true\n";
    let listener = "[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:81\"\nmailboxes = true\n";
    let text = format!("{listener}{users}[http]\nparts = 7\n[pop3]\nlock_timeout = \"9s\"\n");
    let listener = parse(&text).unwrap().listeners.remove(0);
    assert!(listener.auth && listener.require_auth);
    let http = listener.http.unwrap();
    assert_eq!((&*http.realm, http.clear_text_logins, http.content.requires_login()), ("mailbox", true, true));
    let retrieval::http::ContentSettings::Mailboxes(mailboxes) = http.content else { panic!("no mailboxes") };
    assert_eq!((mailboxes.limits.parts_max, mailboxes.lock_timeout), (7, Duration::from_secs(9)));
}

#[test]
fn who_must_log_in_depends_on_the_protocol_and_scram_is_spoken_where_it_is_named() {
    let of = |auth: &str| {
        let table =
            "[[table]]\nname = \"a\"\ntype = \"ldap\"\nurl = \"ldap://x\"\nbase = \"x\"\nfilter = \"(x={key})\"\n";
        let listeners = "[[listener]]\nprotocol = \"submission\"\naddress = \"127.0.0.1:587\"\n\
                         [[listener]]\nprotocol = \"submission\"\naddress = \"127.0.0.1:588\"\nrequire_auth = false\n\
                         [[listener]]\nprotocol = \"smtp\"\naddress = \"127.0.0.1:25\"\n\
                         [[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:80\"\nfiles = \"/x\"\nauth = true\n\
                         [[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:81\"\nfiles = \"/x\"\n";
        parse(&format!("{listeners}{table}[auth]\nclear_text = true\n{auth}")).unwrap()
    };
    let config = of("passwords = \"a\"\n");
    let asked: Vec<_> = config.listeners.iter().map(|listener| (listener.auth, listener.require_auth)).collect();
    assert_eq!(asked, [(true, true), (true, false), (false, false), (true, true), (false, false)]);
    let spoken = |config: Config| {
        let auth = config.auth.unwrap();
        (auth.mechanisms.iter().map(|it| it.name()).collect::<Vec<_>>(), auth.verification.scram)
    };
    assert_eq!(spoken(config), (vec!["PLAIN", "LOGIN"], false));
    assert_eq!(spoken(of("bind = \"a\"\n")), (vec!["PLAIN", "LOGIN"], false));
    let named = "passwords = \"a\"\nmechanisms = [\"SCRAM-SHA-256\", \"PLAIN\"]\n";
    assert_eq!(spoken(of(named)), (vec!["SCRAM-SHA-256", "PLAIN"], true));
}
