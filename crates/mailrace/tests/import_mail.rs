//! How the server handles mail with an imported configuration: which recipients exist and where
//! mail goes. The directory and the router are the server's own; the expected results follow
//! transport(5), virtual(5) and postconf(5).

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use config::Config;
use import::postfix::import;
use import::{FileReader, ImportResult};
use lookup::directory::{AddressResolution, RecipientDirectory};
use mailrace::from_config;
use mailrace::tables::OpenTables;
use route::{Endpoint, RouteAnswer, Router};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const MASTER: &str = "smtp inet n - y - - smtpd\nsmtp unix - - y - - smtp\nrelay unix - - y - - smtp\n\
                      slow unix - - y - - smtp\nmailman unix - n n - - pipe flags=FR\n";
const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nbob:x:1000:1000::/home/bob:/bin/sh\n";

/// Files in memory.
struct Memory<'a>(BTreeMap<&'a str, &'a str>);

impl FileReader for Memory<'_> {
    fn text(&self, path: &Path) -> io::Result<String> {
        let text = path.to_str().and_then(|path| self.0.get(path));
        text.map(|&text| text.to_owned()).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))
    }
}

/// A server with an imported configuration.
struct Server {
    import: ImportResult,
    config: Config,
    directory: RecipientDirectory,
    router: Router,
    runtime: Runtime,
    _folder: TempDir,
}

impl Server {
    fn new(main: &str, files: &[(&str, &str)]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let files = Memory([("/etc/passwd", PASSWD), ("/etc/aliases", "")].iter().chain(files).copied().collect());
        let import = import(main, MASTER, "mx.example.com", &files, folder.path());
        let config = Config::parse(&import.text, "mailrace.toml", "mx.example.com")
            .unwrap_or_else(|faults| panic!("{faults}\n{}", import.text));
        for file in &import.files {
            std::fs::write(&file.path, &file.text).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tables =
            OpenTables::open(&config, Arc::new(|_| {})).unwrap_or_else(|error| panic!("{error}\n{}", import.text));
        let directory = from_config::recipient_directory(&config, &tables, None);
        let routes = route::Config { resolver: no_dns(), ..from_config::routing_config(&config, None) };
        let router = Router::new(routes).unwrap().with_tables(tables.iter().map(|(_, table)| table.clone()));
        Server { import, config, directory, router, runtime, _folder: folder }
    }

    /// The mailbox for an address; "451" or "550" if there is none.
    fn mailbox_result(&self, address: &str) -> String {
        match self.runtime.block_on(self.directory.resolve(&address.parse().unwrap())) {
            AddressResolution::Local(finals) => {
                finals.iter().map(|it| it.address.to_string()).collect::<Vec<_>>().join(" ")
            }
            AddressResolution::Remote(address) => format!("remote {address}"),
            AddressResolution::Unavailable(_) => "451".into(),
            AddressResolution::Unknown => "550".into(),
            other => panic!("{other:?}"),
        }
    }

    /// Where mail for a domain goes.
    fn route_of(&self, domain: &str) -> String {
        match self.runtime.block_on(self.router.route(domain)).answer {
            RouteAnswer::Local { transport } => format!("local {transport}"),
            RouteAnswer::Hosts(hosts) => match &hosts.tiers[0][0].endpoints[0] {
                Endpoint::Tcp(address) => address.to_string(),
                Endpoint::Unix(path) => path.display().to_string(),
            },
            // No name server answers, so mail that needs DNS waits.
            RouteAnswer::Defer(reply) if reply.text.contains("DNS") => "by MX".into(),
            RouteAnswer::Defer(reply) | RouteAnswer::Fail(reply) => reply.to_string(),
        }
    }

    /// Whether a transport has a login.
    fn logs_in(&self, transport: &str) -> bool {
        let found = self.config.transports.iter().find(|it| &*it.name == transport);
        found.and_then(|it| it.smtp()).is_some_and(|smtp| smtp.auth.is_some())
    }

    fn reports(&self, words: &str) -> bool {
        self.import.behavior_changes.iter().any(|alarm| alarm.contains(words))
    }
}

/// Name servers that do not answer.
fn no_dns() -> dns::ResolverConfig {
    let timeout = std::time::Duration::from_millis(20);
    let servers = vec!["127.0.0.1:9".parse().unwrap()];
    let query = dns::QueryConfig { servers, timeout, attempts: 1, ..dns::QueryConfig::default() };
    dns::ResolverConfig { query, ..dns::ResolverConfig::default() }
}

const OWN: &str = "mydestination = example.com\nmyorigin = example.com\n";

#[test]
fn transport_maps_win_over_all_transports_by_the_closest_entry() {
    let main = format!(
        "{OWN}relay_domains = relay.example, other.example, plain.example\nrelayhost = [192.0.2.1]\nrelay_transport = relay\n\
         transport_maps = hash:/transport\n"
    );
    let map = "relay.example smtp:[192.0.2.2]:2525\n.below.example slow:[192.0.2.3]\nown.example smtp:\nplain.example :\n\
               none.example error:5.1.2 gone, for ever\nlater.example retry:4.4.1 not now\nexample.com :\n\
               * smtp:[192.0.2.9]\nOTHER.example :[192.0.2.4]\n";
    let server = Server::new(&main, &[("/transport", map)]);
    for (domain, way) in [
        ("relay.example", "192.0.2.2:2525"),
        ("other.example", "192.0.2.4:25"),
        ("plain.example", "192.0.2.1:25"),
        ("a.b.below.example", "192.0.2.3:25"),
        ("below.example", "192.0.2.9:25"),
        ("own.example", "by MX"),
        ("none.example", "550 5.1.2 gone, for ever"),
        ("later.example", "450 4.4.1 not now"),
        ("any.example", "192.0.2.9:25"),
        ("example.com", "local maildir"),
    ] {
        assert_eq!(server.route_of(domain), way, "{domain}\n{}", server.import.text);
    }
}

/// `*` was ignored for local domains, whose mail went into Maildirs.
#[test]
fn the_widest_entry_is_for_domains_of_ours_as_well() {
    let server = Server::new(&format!("{OWN}transport_maps = inline:{{*=lmtp:[192.0.2.9]:24}}\n"), &[]);
    assert_eq!(server.route_of("example.com"), "192.0.2.9:24");
    let main = format!(
        "{OWN}relay_domains = r.example\ntransport_maps = inline:{{*=smtp:[192.0.2.9]}}\nrelayhost = [192.0.2.1]\n"
    );
    let server = Server::new(&main, &[]);
    assert_eq!((&*server.route_of("r.example"), &*server.route_of("x.example")), ("192.0.2.9:25", "192.0.2.9:25"));
}

/// A domain whose transport has no next hop used the relay host.
#[test]
fn a_transport_without_a_next_hop_is_for_the_domain_itself() {
    for map in ["own.example smtp:", "own.example slow", ".example smtp:"] {
        let main = format!("{OWN}relayhost = [192.0.2.1]\ntransport_maps = hash:/transport\n");
        let server = Server::new(&main, &[("/transport", map)]);
        assert_eq!((&*server.route_of("own.example"), &*server.route_of("x.test")), ("by MX", "192.0.2.1:25"), "{map}");
    }
}

/// `error:` and `discard:` were ignored, so their mail was relayed.
#[test]
fn what_is_refused_or_thrown_away_is_not_relayed() {
    let server = Server::new(&format!("{OWN}default_transport = error:no mail leaves\n"), &[]);
    assert_eq!(server.route_of("x.example"), "550 5.0.0 no mail leaves");
    let server = Server::new(&format!("{OWN}relay_domains = r.example\nrelay_transport = discard:\n"), &[]);
    assert_eq!((&*server.route_of("r.example"), server.reports("r.example")), ("local relay", false));
    let server = Server::new("mydestination = example.com\nlocal_transport = error:none here\n", &[]);
    assert_eq!(
        (&*server.route_of("example.com"), &*server.mailbox_result("bob@example.com")),
        ("550 5.0.0 none here", "550")
    );
    let server = Server::new(&format!("{OWN}transport_maps = pcre:/none\n"), &[]);
    assert!(server.import.text.contains("transports = ") && server.reports("waits in the queue"));
}

/// Mail for a mailing list went into a Maildir.
#[test]
fn addresses_with_a_transport_of_their_own_have_a_route() {
    let map = "list@example.com mailman:\nlist-bounces@example.com mailman:\nBob@example.com :\ngone@example.com error:5.1.6 moved\n\
               list@elsewhere.example mailman:\n";
    let main = format!(
        "{OWN}transport_maps = hash:/transport\nlocal_recipient_maps = inline:{{list=x, list-bounces=x, bob=x}}\n"
    );
    let server = Server::new(&main, &[("/transport", map)]);
    assert_eq!(server.mailbox_result("list@example.com"), "list@example.com");
    assert_eq!(server.mailbox_result("bob@example.com"), "bob@example.com");
    // The service has no program.
    assert!(server.reports("list@example.com waits") && server.reports("list@elsewhere.example waits"));
    let routes = server.import.files.iter().find(|file| file.path.ends_with("routes")).unwrap();
    assert!(routes.text.contains("list@example.com                retry:4.3.5"), "{}", routes.text);
    let stopped = server.import.files.iter().find(|file| file.path.ends_with("stopped")).unwrap();
    assert!(stopped.text.contains("gone@example.com                550 5.1.6 moved"), "{}", stopped.text);
    assert!(server.config.access.iter().any(|rule| rule.recipients_in.as_deref() == Some("stopped")));
}

/// The host refused cron's mail to root, and it was lost.
#[test]
fn a_null_client_passes_on_what_its_programs_write() {
    let main = "mydestination =\nmyorigin = example.com\nrelayhost = [192.0.2.1]\ninet_interfaces = loopback-only\n";
    let server = Server::new(main, &[]);
    assert_eq!(&*from_config::origin_domain(&server.config), "example.com");
    for address in ["root@example.com", "root@mx.example.com"] {
        assert_eq!(server.mailbox_result(address), format!("remote {address}"));
    }
    assert_eq!(
        (&*server.route_of("example.com"), &*server.route_of("mx.example.com")),
        ("192.0.2.1:25", "192.0.2.1:25")
    );
    assert_eq!(server.mailbox_result("postmaster@nothing-kept-here.invalid"), "postmaster@example.com");
    // It was refused.
    assert_eq!(
        (&*server.mailbox_result("bob@localhost"), &*server.route_of("localhost")),
        ("remote bob@localhost", "192.0.2.1:25")
    );
    assert_eq!(server.import.behavior_changes, [""; 0]);
}

/// A domain excluded with `!` became local if a later table contained it.
#[test]
fn domains_that_are_excepted_are_none_of_ours() {
    let doms = "good.example x\nbad.example x\nlow.bad.example x\nsingle x\n";
    for parameter in ["mydestination", "virtual_mailbox_domains", "relay_domains"] {
        let own = if parameter == "mydestination" { "" } else { "mydestination =\n" };
        let server = |value: &str| {
            let main = format!("{own}myorigin = example.com\nrelayhost = [192.0.2.1]\n{parameter} = {value}\n");
            Server::new(&main, &[("/doms", doms), ("/file", "bad.example\n"), ("/re", "/example$/ x\n")])
        };
        for value in ["!bad.example, hash:/doms", "!/file hash:/doms", "!inline:{bad.example=x} bad.example hash:/doms"]
        {
            let server = server(value);
            let is_ours = |domain: &str| !server.mailbox_result(&format!("x@{domain}")).starts_with("remote");
            assert!(is_ours("good.example") && is_ours("single"), "{parameter} = {value}\n{}", server.import.text);
            assert!(!is_ours("bad.example"), "{parameter} = {value}\n{}", server.import.text);
            // See parent_domain_matches_subdomains.
            assert_eq!(is_ours("low.bad.example"), parameter != "relay_domains", "{parameter} = {value}");
        }
        for value in ["!bad.example, regexp:/re", "!regexp:/re, bad.example", "!/none, bad.example"] {
            let server = server(value);
            assert_eq!(server.mailbox_result("x@bad.example"), "451", "{parameter} = {value}\n{}", server.import.text);
            assert!(server.reports("that is not in this file gets 451"), "{parameter} = {value}");
        }
    }
}

#[test]
fn names_without_a_domain_are_meant_at_the_origin() {
    let server =
        Server::new("mydestination = $myhostname\nmyorigin = /etc/mailname\n", &[("/etc/mailname", "a.example\n")]);
    assert_eq!(&*from_config::origin_domain(&server.config), "a.example");
}

/// All addresses at such a domain were refused.
#[test]
fn an_entry_for_all_of_a_domain_lets_everybody_in() {
    let main = format!(
        "{OWN}relay_domains = branch.example, head.example\nrelay_recipient_maps = hash:/recipients\nrelayhost = [192.0.2.1]\n"
    );
    let server = Server::new(&main, &[("/recipients", "@branch.example x\neve@head.example x\n")]);
    assert_eq!(server.mailbox_result("anybody@branch.example"), "anybody@branch.example");
    assert_eq!(
        (&*server.mailbox_result("eve@head.example"), &*server.mailbox_result("bob@head.example")),
        ("eve@head.example", "550")
    );
    let main = "mydestination =\nvirtual_mailbox_domains = v.example\nvirtual_mailbox_base = /var/mail\n\
                virtual_mailbox_maps = hash:/boxes\n";
    let boxes = [("/boxes", "bob@v.example v/bob/\n@v.example v/all/\n")];
    let server = Server::new(main, &boxes);
    assert_eq!(
        (&*server.mailbox_result("bob@v.example"), &*server.mailbox_result("x@v.example")),
        ("bob@v.example", "catch-all@v.example")
    );
    let places = server.import.files.iter().find(|file| file.path.ends_with("boxes")).unwrap();
    assert!(places.text.contains("catch-all@v.example             v/all/"), "{}", places.text);
    let server = Server::new(&format!("{main}virtual_transport = lmtp:unix:/run/lmtp\n"), &boxes);
    assert_eq!((&*server.mailbox_result("x@v.example"), &*server.route_of("v.example")), ("x@v.example", "/run/lmtp"));
}

/// Its users were refused.
#[test]
fn a_table_that_cannot_be_said_puts_off_and_refuses_nobody() {
    let virtual_boxes = "mydestination =\nvirtual_mailbox_domains = v.example\nvirtual_mailbox_base = /var/mail\n";
    let ldap = "server_host = ldap.example\nsearch_base = dc=example\nresult_attribute = uid\nresult_format = %d/%x/\n";
    for maps in ["hash:/boxes, ldap:/ldap.cf", "hash:/boxes, mysql:/etc/postfix/mysql.cf", "hash:/boxes, hash:/none"] {
        let main = format!("{virtual_boxes}virtual_mailbox_maps = {maps}\n");
        let server = Server::new(&main, &[("/boxes", "bob@v.example v/bob/\n"), ("/ldap.cf", ldap)]);
        let found = (server.mailbox_result("bob@v.example"), server.mailbox_result("eve@v.example"));
        assert_eq!(found, ("bob@v.example".to_owned(), "451".to_owned()), "{maps}\n{}", server.import.text);
        assert!(server.reports("gets 451"), "{maps}");
    }
    let groups = "server_host = ldap.example\nsearch_base = dc=example\nresult_attribute = mail\n\
                  terminal_result_attribute = maildrop\n";
    let main = format!("{OWN}virtual_alias_maps = ldap:/groups.cf\n");
    let server = Server::new(&main, &[("/groups.cf", groups)]);
    assert!(server.reports("terminal_result_attribute") && server.mailbox_result("bob@example.com") == "451");
    // A format that is known decides who exists, also where only that matters.
    let ldap = ldap.replace("%x", "%u");
    let main =
        format!("{virtual_boxes}virtual_mailbox_maps = ldap:/ldap.cf\nvirtual_transport = lmtp:unix:/run/lmtp\n");
    let server = Server::new(&main, &[("/ldap.cf", &ldap)]);
    let format = "result_format = \"{value_domain}/{value_local}/\"";
    assert!(server.import.text.contains(format), "{}", server.import.text);
}

/// An alias for a program was ignored, so its mail was refused.
#[test]
fn aliases_to_programs_and_files_are_put_off() {
    let main = format!("{OWN}alias_maps = hash:/aliases\nvirtual_alias_maps = hash:/virtual\n");
    let files =
        [("/aliases", "log: |/bin/log\nall: log, bob\nteam: bob\n"), ("/virtual", "@old.example @example.com\n")];
    let server = Server::new(&main, &files);
    let found =
        ["log@example.com", "all@example.com", "team@example.com"].map(|address| server.mailbox_result(address));
    assert_eq!(found, ["451", "451", "bob@example.com"]);
    assert!(server.reports("log@example.com gets 451"));
}

/// The relay host rejected all mail permanently, since there was no login.
#[test]
fn a_relay_host_that_wants_a_password_gets_it() {
    let sasl = "smtp_sasl_auth_enable = yes\nsmtp_sasl_password_maps = hash:/passwords\nrelayhost = [192.0.2.1]:587\n";
    let server = Server::new(&format!("{OWN}{sasl}"), &[("/passwords", "[192.0.2.1]:587 a:b\n")]);
    assert_eq!((&*server.route_of("x.example"), server.logs_in("smtp")), ("192.0.2.1:587", true));
    let server = Server::new(&format!("{OWN}{sasl}"), &[("/passwords", "other.example a:b\n")]);
    assert_eq!(server.route_of("x.example"), "192.0.2.1:587");
    // Other transports to the same host lacked this check.
    let ways = "relay_domains = r.example\ntransport_maps = inline:{{t.example=smtp:[192.0.2.1]:587}, {free.example=smtp:[192.0.2.2]}}\n";
    let server = Server::new(&format!("{OWN}{sasl}{ways}"), &[("/passwords", "[192.0.2.1]:587 a:b\n")]);
    for domain in ["r.example", "t.example"] {
        assert_eq!(server.route_of(domain), "192.0.2.1:587", "{domain}\n{}", server.import.text);
    }
    assert_eq!((&*server.route_of("free.example"), server.logs_in("onward")), ("192.0.2.2:25", false));
    assert!(server.logs_in("relay"), "{}", server.import.text);
}

#[test]
fn who_exists_is_known_also_where_postfix_returned_mail_later() {
    let server = Server::new(&format!("{OWN}local_recipient_maps =\n"), &[]);
    assert_eq!(
        (&*server.mailbox_result("bob@example.com"), &*server.mailbox_result("eve@example.com")),
        ("bob@example.com", "550")
    );
    let server = Server::new(&format!("{OWN}local_recipient_maps =\nluser_relay = bob\n"), &[]);
    assert_eq!(server.mailbox_result("eve@example.com"), "bob@example.com");
}

/// Every address got a Maildir, although virtual(8) knows none.
#[test]
fn nobody_is_at_a_domain_without_a_table_of_mailboxes() {
    let server = Server::new("mydestination =\nvirtual_mailbox_domains = v.example\n", &[]);
    assert_eq!((&*server.mailbox_result("bob@v.example"), &*server.route_of("v.example")), ("550", "local maildir"));
    let main = "mydestination =\nvirtual_mailbox_domains = v.example\nvirtual_transport = lmtp:unix:/run/lmtp\n";
    assert_eq!(Server::new(main, &[]).mailbox_result("bob@v.example"), "bob@v.example");
}

/// Postfix required TLS for all next hops, but only one transport did.
#[test]
fn all_transports_of_smtp_share_what_postfixs_client_is_told() {
    let main = format!(
        "{OWN}smtp_tls_security_level = encrypt\nrelay_domains = r.example\nrelay_transport = smtp:[192.0.2.2]\n"
    );
    let server = Server::new(&main, &[]);
    let transports = server.config.transports.iter().filter_map(|transport| Some(transport.smtp()?.client.tls));
    assert!(
        transports.into_iter().all(|tls| tls == protocol::smtp::client::TlsPolicy::Required),
        "{}",
        server.import.text
    );
}
