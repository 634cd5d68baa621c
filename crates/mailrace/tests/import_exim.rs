//! Imports of Exim configurations: golden files of the results, which must be valid and mention every option of the
//! main section. No import opens a relay, and hostile files are errors.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;

use config::Config;
use import::exim::sections::EximConfig;
use import::exim::{debian, import, source};
use import::{FileReader, ImportResult};
use proptest::prelude::*;

const FILES: [(&str, &str); 16] = [
    ("/etc/passwd", "root:x:0:0::/root:/bin/sh\nbob:x:1000:1000::/home/bob:/bin/sh\n"),
    ("/etc/aliases", "postmaster: root\nroot: bob\nlog: |/usr/bin/log\n"),
    ("/etc/email-addresses", "bob: bob@example.net\n"),
    ("/etc/exim4/passwd.client", "*.example.net:us:geheim\n"),
    ("/etc/exim4/virtual/a.example", "info: bob@example.net\n*: carol@example.net\n"),
    ("/etc/exim4/virtual/b.example", "info: dave@example.net, eve@example.net\nnone: :fail: gone\n"),
    ("/etc/exim4/virtual", "a.example b.example"),
    ("/var/lib/mailman/lists", "talk news"),
    ("/loop", ".include /loop\n"),
    (
        "/etc/special",
        "gone: :fail: no longer here\nlater: :defer: not today\nvoid: :blackhole:\ninfo: bob@example.org\n",
    ),
    ("/etc/closed", "info: bob@example.org\n*: :fail: nobody else\n"),
    ("/etc/tagged", "info: bob@example.org\na+b: bob@example.org\n"),
    ("/etc/logins", "bob: pa:ss\n"),
    ("/etc/hosts-of-ours", "10.0.0.0/8: x\n192.0.2.1: x\n"),
    ("/etc/circle", "example.org\n/etc/circle\n/etc/circle\n/etc/circle\n/etc/circle\n/etc/circle\n"),
    ("/etc/domains", "*: default\n*.wide.example: x\nplain.example: x\n+all: x\n"),
];

/// Files in memory. A folder is the list of its names.
struct Memory(BTreeMap<&'static str, &'static str>);

impl FileReader for Memory {
    fn text(&self, path: &Path) -> io::Result<String> {
        let text = path.to_str().and_then(|path| self.0.get(path));
        text.map(|&text| text.to_owned()).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        Ok(self.text(folder)?.split(' ').map(str::to_owned).collect())
    }
}

fn convert(text: &str) -> Result<ImportResult, source::SourceError> {
    let files = Memory(FILES.into_iter().collect());
    import(
        text,
        Path::new("/etc/exim4/exim4.conf"),
        "host.example.org",
        &files,
        Path::new("/etc/mailrace/mailrace-tables"),
    )
}

/// The complete result for a golden file, with checks that hold for every configuration.
fn golden(text: &str) -> String {
    let made = convert(text).unwrap();
    if let Err(faults) = Config::parse(&made.text, "mailrace.toml", "host.example.org") {
        panic!("{faults}\n{}", made.text);
    }
    let files = Memory(FILES.into_iter().collect());
    let lines = source::read_lines(text, Path::new("/etc/exim4/exim4.conf"), &files).unwrap();
    for option in EximConfig::parse(&lines).main.options {
        assert!(made.text.contains(&option.name), "{} is missing in:\n{}", option.name, made.text);
    }
    assert!(!made.text.contains("geheim"), "a password is in the text:\n{}", made.text);
    let new = made.files.iter().map(|it| {
        let secret = if it.secret { " (secret)" } else { "" };
        format!("\n--- {}{secret}\n{}", it.path.display(), it.text)
    });
    std::iter::once(made.text.clone()).chain(new).collect()
}

/// Answers to the questions of Debian's package.
fn debian_answers(kind: &str) -> String {
    format!(
        "dc_eximconfig_configtype='{kind}'\ndc_other_hostnames='mail.example.org'\ndc_local_interfaces='127.0.0.1 ; ::1'\n\
         dc_readhost='example.org'\ndc_relay_domains='relayed.example'\ndc_minimaldns='false'\n\
         dc_relay_nets='10.0.0.0/8'\ndc_smarthost='smtp.example.net::587'\ndc_hide_mailname='true'\n\
         dc_localdelivery='mail_spool'\n"
    )
}

fn debian(kind: &str) -> String {
    debian::configuration(&debian_answers(kind), None, "host.example.org\n").unwrap()
}

#[test]
fn debian_internet_site() {
    insta::assert_snapshot!(golden(&debian("internet")));
}

#[test]
fn debian_smarthost() {
    insta::assert_snapshot!(golden(&debian("smarthost")));
}

#[test]
fn debian_satellite() {
    insta::assert_snapshot!(golden(&debian("satellite")));
}

#[test]
fn debian_local() {
    insta::assert_snapshot!(golden(&debian("local")));
}

#[test]
fn mx_with_ldap() {
    insta::assert_snapshot!(golden(include_str!("exim/mx_ldap")));
}

#[test]
fn virtual_domains_in_mysql() {
    insta::assert_snapshot!(golden(include_str!("exim/vexim")));
}

#[test]
fn smarthost_with_login() {
    insta::assert_snapshot!(golden(include_str!("exim/smarthost")));
}

#[test]
fn mailing_lists_and_domains_in_files() {
    insta::assert_snapshot!(golden(include_str!("exim/lists")));
}

/// Whatever the answers, Debian's own configuration gets few remarks.
#[test]
fn a_stock_configuration_needs_few_remarks() {
    for kind in ["internet", "smarthost", "satellite", "local"] {
        let made = convert(&debian(kind)).unwrap();
        assert!(made.behavior_changes.len() <= 4, "{kind}: {:#?}", made.behavior_changes);
    }
}

/// Conditions that the import cannot read give nobody the right to relay.
#[test]
fn nothing_is_relayed_that_exim_refused() {
    let rest = "begin routers\nr:\n driver = dnslookup\n transport = t\nbegin transports\nt:\n driver = smtp\n";
    for (statement, networks) in [
        ("accept hosts = 10.0.0.0/8", "[\"10.0.0.0/8\"]"),
        ("accept hosts = *", "[]"),
        ("accept", "[]"),
        ("accept hosts = 10.0.0.0/8\n condition = ${if eq{$x}{y}}", "[]"),
        ("accept hosts = 10.0.0.0/8\n senders = bob@example.org", "[]"),
        ("accept hosts = 10.0.0.0/8\n verify = sender", "[]"),
        ("accept hosts = !*.example.org : 10.0.0.0/8", "[]"),
        ("accept hosts = !10.1.0.0/16 : 10.0.0.0/15", "[\"10.0.0.0/16\"]"),
        ("accept hosts = ${lookup{$sender_host_address}dbm{/etc/x}}", "[]"),
        ("accept hosts = 10.0.0.0/8\n domains = example.org", "[]"),
        ("accept hosts = 10.0.0.0/8\n !domains = example.org", "[\"10.0.0.0/8\"]"),
        ("deny\naccept hosts = 10.0.0.0/8", "[]"),
        ("deny domains = !example.org\naccept hosts = 10.0.0.0/8", "[]"),
        ("require domains = example.org\naccept hosts = 10.0.0.0/8", "[]"),
        ("accept authenticated = bob\naccept authenticated = *\n hosts = 10.0.0.0/8", "[]"),
    ] {
        let made = convert(&format!("acl_smtp_rcpt = a\nbegin acl\na:\n{statement}\n{rest}")).unwrap();
        let line = made.text.lines().find(|line| line.starts_with("networks = ")).unwrap();
        assert!(line.starts_with(&format!("networks = {networks}")), "{statement}: {line}\n{}", made.text);
        assert!(!made.text.contains("\nauth = true"), "{statement}\n{}", made.text);
    }
    let made = convert(rest).unwrap();
    assert!(made.text.contains("networks = []") && !made.text.contains("[[domain]]\nname = \"host"), "{}", made.text);
}

/// The text and the told changes for a main section, an ACL for recipients, routers and authenticators.
fn converted(main: &str, acl: &str, routers: &str, authenticators: &str) -> ImportResult {
    let text = format!(
        "acl_smtp_rcpt = a\n{main}\nbegin acl\na:\n{acl}\nbegin routers\n{routers}\nbegin transports\nt:\n driver = smtp\n\
         m:\n driver = lmtp\n socket = /run/dovecot/lmtp\nbegin authenticators\n{authenticators}\n"
    );
    let made = convert(&text).unwrap();
    if let Err(faults) = Config::parse(&made.text, "mailrace.toml", "host.example.org") {
        panic!("{faults}\n{}", made.text);
    }
    made
}

const OUT: &str = "out:\n driver = dnslookup\n domains = !+local_domains\n transport = t\n no_more\n\
                   users:\n driver = accept\n local_parts = bob : postmaster\n transport = m\n";

fn relay_networks(made: &ImportResult) -> &str {
    made.text.lines().find_map(|line| line.strip_prefix("networks = ")).unwrap().split('#').next().unwrap().trim()
}

#[test]
fn a_list_with_answers_that_are_none_defers() {
    for (answer, action) in [("254.0.0.2", "defer"), ("127.0.0.2", "refuse")] {
        let acl = format!("deny dnslists = zen.example.com={answer}\naccept hosts = 127.0.0.1");
        let made = converted("", &acl, OUT, "");
        assert!(made.text.contains(&format!("action = \"{action}\"")), "{answer}\n{}", made.text);
    }
}

/// The new file could not be read, and mail to such domains went elsewhere in silence.
#[test]
fn a_host_that_is_none_is_told() {
    for (host, is_told) in [("gate\u{0}.example", true), ("gate*.example", true), ("gate.example", false)] {
        let routers = format!("far:\n driver = manualroute\n route_list = far.example {host}\n transport = t\n{OUT}");
        let made = converted("", "accept hosts = 127.0.0.1", &routers, "");
        assert_eq!(
            made.behavior_changes.iter().any(|told| told.contains("a host that cannot be translated")),
            is_told,
            "{}",
            made.text
        );
    }
}

/// Keys that are networks gave a whole network the right to relay, and keys for names of clients gave it to addresses.
#[test]
fn keys_of_files_are_hosts_only_as_exim_looks_them_up() {
    for (hosts, networks) in [
        ("net-lsearch;/etc/hosts-of-ours", "[\"192.0.2.1/32\"]"),
        ("net-iplsearch;/etc/hosts-of-ours", "[\"10.0.0.0/8\", \"192.0.2.1/32\"]"),
        ("lsearch;/etc/hosts-of-ours", "[]"),
        ("iplsearch;/etc/hosts-of-ours", "[]"),
        ("net-lsearch*;/etc/hosts-of-ours", "[]"),
    ] {
        let made = converted("", &format!("accept hosts = {hosts}"), OUT, "");
        assert_eq!(relay_networks(&made), networks, "{hosts}\n{}", made.text);
    }
}

/// `*` in a file stood for all domains, and `*.wide.example` for subdomains, which Exim finds in no such file.
#[test]
fn keys_of_files_are_domains_only_as_exim_looks_them_up() {
    for (domains, names, tells) in [
        ("lsearch;/etc/domains", "plain.example", false),
        ("partial-lsearch;/etc/domains", "wide.example subdomains plain.example", false),
        ("lsearch*;/etc/domains", "plain.example", true),
        ("${lookup{$sender_address_domain}lsearch{/etc/domains}}", "", false),
    ] {
        let made = converted(&format!("domainlist d = {domains}"), "accept domains = +d", OUT, "");
        let sections = made.text.split("\n[[domain]]\n").skip(1);
        let name =
            |section: &str| Some(section.lines().find(|line| line.starts_with("name"))?.split('"').nth(1)?.to_owned());
        let found: Vec<String> = sections.filter_map(name).filter(|name| !name.ends_with(".invalid")).collect();
        let mut expected: Vec<&str> = names.split_whitespace().collect();
        let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected, "{domains}\n{}", made.text);
        assert_eq!(made.behavior_changes.iter().any(|told| told.contains("anybody could relay")), tells, "{domains}");
    }
}

/// Mail to a domain by name was accepted, whether the database that is excluded had it or not.
#[test]
fn a_domain_that_a_database_may_exclude_is_not_accepted() {
    let excluded = "domains = !mysql;SELECT 1 FROM blocked WHERE domain = '$domain' : a.example";
    for (acl, is_closed) in [
        (format!("accept {excluded}"), true),
        ("accept !domains = mysql;SELECT 1 FROM blocked\n domains = a.example".to_owned(), true),
        ("accept domains = a.example : !mysql;SELECT 1 FROM blocked".to_owned(), false),
        ("accept domains = mysql;SELECT 1 FROM ours : a.example".to_owned(), false),
    ] {
        let made = converted("hide mysql_servers = localhost/mail/user/geheim", &acl, OUT, "");
        let refuses = |rule: &str| rule.contains("\"@a.example\"") && rule.contains("\"refuse\"");
        assert_eq!(made.text.split("[[access]]").any(refuses), is_closed, "{acl}\n{}", made.text);
    }
}

/// Relay networks could send to a domain that the statement about them excludes.
#[test]
fn relay_networks_cannot_send_to_domains_that_are_closed_to_them() {
    let refuses = |acl: &str| {
        let made = converted("", acl, OUT, "");
        assert_eq!(relay_networks(&made), "[\"10.0.0.0/8\"]", "{acl}");
        let closes = |rule: &str| rule.contains("[\"@closed.example\"]") && rule.contains("\"refuse\"");
        made.text.split("[[access]]").any(closes)
    };
    assert!(refuses("accept hosts = 10.0.0.0/8\n domains = !closed.example"));
    assert!(!refuses("accept hosts = 10.0.0.0/8\n domains = !closed.example\naccept domains = closed.example"));
    assert!(!refuses("accept hosts = 10.0.0.0/8\naccept domains = other.example : !closed.example : *.b.example"));
}

/// Mail that Exim keeps until somebody has looked at it was delivered, and nothing told of it.
#[test]
fn frozen_mail_is_held() {
    let acl = |conditions: &str| {
        let acl = format!("warn {conditions}\n control = freeze/no_tell\naccept domains = example.org");
        let made = converted("domainlist local_domains = example.org", &acl, OUT, "");
        let holds = |rule: &str| rule.contains("senders = [\"@bad.example\"]") && rule.contains("\"hold\"");
        let tells = made.behavior_changes.iter().any(|told| told.contains("froze"));
        (made.text.split("[[access]]").any(holds), tells)
    };
    assert_eq!(acl("senders = *@bad.example"), (true, false));
    assert_eq!(acl("condition = ${if eq{$h_X:}{y}}"), (false, true));
    let fake = converted("", "accept control = fakereject/no\n senders = a@b.example", OUT, "");
    assert!(fake.behavior_changes.iter().any(|told| told.contains("reply of a refusal")), "{}", fake.text);
}

/// Mail that Exim takes and drops was refused, and nothing told of it.
#[test]
fn discarded_mail_is_told() {
    let tells = |acl: &str| {
        let made = converted("domainlist local_domains = example.org", acl, OUT, "");
        made.behavior_changes.iter().any(|told| told.contains("dropped after a 250"))
    };
    assert!(tells("discard senders = *@bad.example\naccept domains = example.org"));
    assert!(tells("discard domains = !+local_domains\naccept domains = example.org"));
    assert!(!tells("discard condition = false\naccept domains = example.org"));
}

/// A file that named itself several times was read at each step again: the import took 48 seconds.
#[test]
fn files_of_lists_contain_no_further_files() {
    let made = converted("", "accept domains = /etc/circle\n hosts = /etc/circle", OUT, "");
    let told: Vec<_> = made.behavior_changes.iter().filter(|told| told.contains("/etc/circle")).collect();
    assert!(!told.is_empty(), "{}", made.text);
}

/// A list that excludes another list contains all others, and what that one excludes is not added.
#[test]
fn excluded_lists_of_hosts_exclude_their_hosts_and_no_others() {
    let main = "domainlist internal = internal.example\ndomainlist local_domains = internal.example : example.org\n\
                hostlist relay_from_hosts = 10.0.0.0/8\nhostlist holes = !10.0.0.5 : 10.0.0.0/8\nhostlist open = 10.0.0.0/8 : !10.9.0.0/16";
    let made = converted(
        main,
        "deny domains = +internal\n hosts = !+relay_from_hosts\naccept domains = +local_domains",
        OUT,
        "",
    );
    assert!(!made.text.contains("name = \"internal.example\""), "{}", made.text);
    for (hosts, networks) in [
        ("!+holes : 10.0.0.4/30", "[\"10.0.0.5/32\"]"),
        ("!+holes : 192.0.2.0/24", "[\"192.0.2.0/24\"]"),
        ("+open", "[]"),
        ("!+open", "[]"),
        ("!+none : 192.0.2.0/24", "[]"),
    ] {
        let made = converted(main, &format!("accept hosts = {hosts}"), OUT, "");
        assert_eq!(relay_networks(&made), networks, "{hosts}\n{}", made.text);
    }
}

const TLS: &str =
    "tls_certificate = /etc/ssl/mail.pem\nmysql_servers = localhost/u/u/x\ndomainlist local_domains = example.org";

/// The result of a check is not a password, and a login by one condition of several is none.
#[test]
fn a_password_is_looked_up_only_where_nothing_else_decides() {
    let by_name = "${lookup mysql{SELECT p FROM u WHERE l='${quote_mysql:$auth2}'}{$value}fail}";
    let refused = [
        "${if eq{yes}{${lookup mysql{SELECT IF(COUNT(*)=1,'yes','no') FROM u WHERE l='${quote_mysql:$1}' AND p='${quote_mysql:$2}'}}}}".to_owned(),
        "${if eq{yes}{${lookup mysql{SELECT a FROM u WHERE l='$auth2'}}}}".to_owned(),
        format!("${{if and{{{{eq{{x}}{{${{lookup mysql{{SELECT off FROM u WHERE l='$auth2'}}}}}}}}{{crypteq{{$auth3}}{{{by_name}}}}}}}}}"),
        format!("${{if crypteq{{$auth2}}{{{by_name}}}}}"),
        format!("${{if crypteq{{$auth3}}{{{by_name}}}{{no}}{{yes}}}}"),
        format!("${{if !crypteq{{$auth3}}{{{by_name}}}}}"),
        format!("${{if eq{{${{md5:$auth3}}}}{{{by_name}}}}}"),
        "${if crypteq{$auth3}{${lookup mysql{SELECT p FROM u WHERE l='$auth2' AND ip='$sender_host_address'}}}}".to_owned(),
        "${if crypteq{$auth3}{${lookup{$auth2}lsearch*{/etc/aliases}}}}".to_owned(),
        "${lookup mysql{SELECT 1 FROM u WHERE l='$auth2'}}".to_owned(),
    ];
    let login = |condition: &str| {
        let driver = format!("p:\n driver = plaintext\n public_name = PLAIN\n server_condition = {condition}");
        converted(TLS, "accept authenticated = *\naccept domains = +local_domains", OUT, &driver)
    };
    for condition in refused {
        let made = login(&condition);
        assert!(
            made.text.contains("passwords = \"logins\"") && made.text.contains("not translated"),
            "{condition}\n{}",
            made.text
        );
        assert!(made.behavior_changes.iter().any(|it| it.contains("Logins get 454")), "{condition}");
    }
    for (function, format) in [("crypteq", false), ("eq", true)] {
        let made = login(&format!("${{if {function}{{$auth3}}{{{by_name}}}{{yes}}{{no}}}}"));
        assert!(made.text.contains("passwords = \"mysql\""), "{}", made.text);
        assert_eq!(made.text.contains("{{PLAIN}}{value}"), format, "{}", made.text);
    }
}

/// A router that refuses or redirects some mail to other domains is not passed over in silence.
#[test]
fn conditional_redirects_of_other_domains_are_told() {
    for router in [
        "condition = ${lookup{$sender_address}lsearch{/etc/suspended}{1}{0}}\n data = :fail: suspended",
        "require_files = /etc/suspended/$sender_address\n data = :fail: suspended",
        "data = ${lookup{$sender_address}lsearch{/etc/suspended}{:fail: suspended}fail}",
        "domains = dbm;/etc/blocked\n data = :fail: blocked",
    ] {
        let routers = format!("suspended:\n driver = redirect\n {router}\n{OUT}");
        let made = converted("domainlist local_domains = example.org", "accept hosts = 10.0.0.0/8", &routers, "");
        let is_told = made.behavior_changes.iter().any(|it| it.contains("router suspended refused or redirected"));
        assert!(is_told, "{router}: {:#?}", made.behavior_changes);
    }
}

/// Statements before those that let clients relay count.
#[test]
fn what_is_denied_before_relaying_stays_denied() {
    let logged = "p:\n driver = plaintext\n server_condition = ${if eq{$auth3}{${lookup mysql{SELECT p FROM u WHERE l='$auth2'}}}}";
    let rights = "\naccept hosts = 10.0.0.0/15\naccept authenticated = *\naccept domains = +local_domains";
    let deny = |statement: &str| converted(TLS, &format!("{statement}{rights}"), OUT, logged);
    let (all, users) = ("[\"10.0.0.0/15\"]", "\nauth = true");
    for (statement, networks, has_users) in [
        ("deny domains = gmial.com : blocked.example", all, true),
        ("deny domains = !+local_domains\n !authenticated = *", "[]", true),
        ("deny domains = !+local_domains\n authenticated = *", all, false),
        ("deny domains = !+local_domains\n !hosts = 10.0.0.0/16", "[\"10.0.0.0/16\"]", false),
        ("deny domains = !+local_domains\n hosts = 10.1.0.0/16", "[\"10.0.0.0/16\"]", true),
        ("deny domains = !+local_domains\n !authenticated = bob", "[]", false),
        ("deny domains = !+local_domains\n !hosts = 10.0.0.0/15\n !authenticated = *", all, true),
    ] {
        let made = deny(statement);
        assert_eq!(relay_networks(&made), networks, "{statement}\n{}", made.text);
        assert_eq!(made.text.contains(users), has_users, "{statement}\n{}", made.text);
    }
    let made = deny("deny domains = gmial.com : blocked.example");
    let rule = "recipients = [\"@gmial.com\", \"@blocked.example\"]\naction = \"refuse\"";
    assert!(made.text.contains(rule), "{}", made.text);
    let made = converted(TLS, "require domains = +local_domains\n verify = sender\naccept", OUT, "");
    assert!(made.text.contains("sender_is = [\"unknown\"]\naction = \"refuse\""), "{}", made.text);
    assert!(made.text.contains("name = \"example.org\""), "{}", made.text);
}

/// Special targets of aliases are replies and dropped mail, where the router allows them.
#[test]
fn special_targets_of_aliases_are_replies_and_dropped_mail() {
    let routers = "al:\n driver = redirect\n allow_fail\n allow_defer\n data = ${lookup{$local_part}lsearch{/etc/special}}\n\
                   users:\n driver = accept\n local_parts = bob\n transport = m\n";
    let convert = |routers: &str| {
        converted("domainlist local_domains = example.org", "accept domains = +local_domains", routers, "")
    };
    let made = convert(routers);
    let file = |made: &ImportResult, name: &str| {
        made.files.iter().find(|file| file.path.ends_with(name)).map(|file| file.text.clone()).unwrap_or_default()
    };
    assert_eq!(
        file(&made, "alias-replies"),
        "gone@example.org 550 5.1.1 no longer here\nlater@example.org 451 4.3.0 not today\n"
    );
    assert_eq!(file(&made, "dropped"), "void@example.org\n");
    assert!(made.text.contains("address = \"void@example.org\"\ntransport = \"drop\""), "{}", made.text);
    assert!(made.text.contains("mailboxes = \"users-or-dropped\""), "{}", made.text);
    let made = convert(&routers.replace(" allow_fail\n", ""));
    assert_eq!(file(&made, "alias-replies"), "later@example.org 451 4.3.0 not today\n");
    assert!(file(&made, "put-off").contains("gone@example.org"), "{}", made.text);
    // `*: :fail:` refuses all that are not in the file, also those that later routers know.
    let made = convert(&routers.replace("lsearch{/etc/special}", "lsearch*{/etc/closed}"));
    assert!(made.text.contains("mailboxes = \"nobody\""), "{}", made.text);
}

/// A tag is part of an address only where the router of that address has a suffix.
#[test]
fn aliases_have_tags_only_if_their_router_has_a_suffix() {
    let suffix = " local_part_suffix = +*\n local_part_suffix_optional\n";
    let routers = |aliases: &str, users: &str| {
        format!(
            "al:\n driver = redirect\n{aliases} data = ${{lookup{{$local_part}}lsearch{{/etc/tagged}}}}\n\
             users:\n driver = accept\n{users} local_parts = lsearch;/etc/aliases\n transport = m\n"
        )
    };
    for (aliases, users, has_rules) in
        [("", suffix, true), (suffix, suffix, false), ("", "", false), (suffix, "", true)]
    {
        let main = "domainlist local_domains = example.org";
        let made = converted(main, "accept domains = +local_domains", &routers(aliases, users), "");
        assert_eq!(made.text.contains("list = \"tags\""), has_rules, "{}", made.text);
        if aliases.is_empty() && has_rules {
            let tags = made.files.iter().find(|file| file.path.ends_with("tags")).unwrap();
            let rule = made.text.split("recipients_in = \"tagged\"").nth(1).unwrap_or_default();
            assert!(rule.split("\n\n").next().unwrap().contains("action = \"refuse\""), "{}", made.text);
            assert_eq!(tags.text, "/^[^+]+@/ x\n/^a\\+b\\@example\\.org$/ x\n");
        }
    }
}

/// Routers that share a transport, and those to other hosts with a list of names, are all translated.
#[test]
fn routers_that_share_a_transport_are_one_domain() {
    let routers = "a:\n driver = accept\n local_parts = bob\n transport = m\n\
                   b:\n driver = accept\n local_parts = carol\n transport = m\n";
    let main = "domainlist local_domains = example.org";
    let made = converted(main, "accept domains = +local_domains", routers, "");
    assert!(made.text.contains("mailboxes = \"a-or-b\"\ntransport = \"m\""), "{}", made.text);
    let routers = "a:\n driver = manualroute\n domains = +local_domains\n local_parts = lsearch;/etc/aliases\n route_list = * 192.0.2.9\n transport = t\n\
                   b:\n driver = manualroute\n route_list = example.net 192.0.2.1\n transport = t\n";
    let made = converted(main, "accept domains = +local_domains", routers, "");
    assert!(made.text.contains("mailboxes = \"aliases\"\ntransport = \"t\""), "{}", made.text);
    assert_eq!(made.behavior_changes, [] as [String; 0]);
}

/// What has no counterpart is told in a line each.
#[test]
fn each_lookup_and_flag_without_a_counterpart_is_told() {
    let main = "domainlist local_domains = example.org";
    for (router, expected) in [
        ("redirect\n data = ${lookup{$local_part}dbm{/etc/x.db}}", "lookups of type dbm have no counterpart"),
        ("redirect\n data = ${lookup redis{GET $local_part}}", "lookups of type redis have no counterpart"),
        ("redirect\n data = ${lookup{$local_part}cdb{/etc/x.cdb}}", "cdb need whole addresses as keys"),
        ("accept\n unseen\n transport = m", "Copies of mail that router r makes are not made"),
        ("accept\n local_part_suffix = +* : -*\n local_part_suffix_optional\n transport = m", "a tag other than +*"),
        ("accept\n local_parts = lsearch;/etc/aliases\n transport = files", "its transport uses what a lookup gives"),
    ] {
        let routers = format!("r:\n driver = {router}\nl:\n driver = accept\n local_parts = bob\n transport = m");
        let rest = "begin transports\nfiles:\n driver = appendfile\n maildir_format\n directory = /m/$local_part_data";
        let made = converted(main, "accept domains = +local_domains", &format!("{routers}\n{rest}"), "");
        let is_told = made.behavior_changes.iter().any(|it| it.contains(expected));
        assert!(is_told, "{expected}: {:#?}", made.behavior_changes);
    }
    let cdb =
        "r:\n driver = accept\n condition = ${lookup{$local_part@$domain}cdb{/etc/users.cdb}{yes}}\n transport = m";
    let made = converted(main, "accept domains = +local_domains", cdb, "");
    assert!(made.text.contains("type = \"cdb\"\npath = \"/etc/users.cdb\""), "{}", made.text);
    for (rule, is_told) in [("*@old.example $1@example.org F", true), ("*@old.example $1@example.org", false)] {
        let made = converted(main, "accept domains = +local_domains", OUT, &format!("begin rewrite\n{rule}"));
        assert_eq!(made.behavior_changes.iter().any(|it| it.contains("Addresses stay")), is_told, "{rule}");
    }
}

/// A password in a file may contain colons, unless the condition cuts it at the first one.
#[test]
fn a_password_with_colons_is_kept_whole() {
    let cut = "${extract{1}{:}{${lookup{$auth2}lsearch{/etc/logins}{$value}fail}}}";
    let whole = "${lookup{$auth2}lsearch{/etc/logins}{$value}fail}";
    for (stored, expected) in [(cut, "{PLAIN}pa\n"), (whole, "{PLAIN}pa:ss\n")] {
        let driver = format!("p:\n driver = plaintext\n server_condition = ${{if eq{{$auth3}}{{{stored}}}}}");
        let made = converted(TLS, "accept authenticated = *\naccept domains = +local_domains", OUT, &driver);
        let file = made.files.iter().find(|file| file.path.ends_with("logins")).unwrap();
        assert!(file.secret && file.text.ends_with(expected), "{}", file.text);
    }
}

/// Addresses that Exim refuses whatever its ACLs say are refused here, too.
#[test]
fn malformed_addresses_are_refused() {
    let made = |main: &str| converted(main, "accept domains = example.org", OUT, "");
    let text = |made: &ImportResult| made.files.iter().find(|it| it.path.ends_with("malformed")).unwrap().text.clone();
    let usual = made("");
    assert!(usual.text.contains("strict_addresses = true") && text(&usual).contains("\\["), "{}", usual.text);
    let lax = made("allow_domain_literals\nrecipient_unqualified_hosts = 10.0.0.0/8");
    assert!(!lax.text.contains("strict_addresses = true") && !text(&lax).contains("\\["), "{}", lax.text);
    assert!(
        lax.behavior_changes.iter().any(|it| it.contains("recipient_unqualified_hosts")),
        "{:?}",
        lax.behavior_changes
    );
}

/// A router with conditions does not make all addresses of its domains exist.
#[test]
fn a_router_with_conditions_does_not_take_all_addresses() {
    for router in [
        "manualroute\n route_list = * 192.0.2.1\n local_parts = !bob",
        "manualroute\n route_list = * 192.0.2.1\n condition = ${if eq{$interface_port}{10025}{no}{yes}}",
        "manualroute\n route_list = * 127.0.0.1\n no_verify",
        "dnslookup\n senders = *@example.net",
        "dnslookup\n require_files = /etc/backup/$local_part",
        "accept\n address_data = ${lookup{$local_part}lsearch{/etc/aliases}{$value}fail}",
        "accept\n condition = ${lookup{$local_part}lsearch{/etc/aliases}}\n condition = yes",
        "accept\n condition = yes\n no_verify",
        "accept\n local_part_suffix = +*",
        "accept\n check_local_user\n require_files = /etc/mail/$local_part",
    ] {
        let routers = format!("r:\n driver = {router}\n transport = t");
        let made = converted("domainlist local_domains = example.org", "accept domains = +local_domains", &routers, "");
        let domain = made.text.split_once("name = \"example.org\"").unwrap().1;
        assert!(domain.split("\n\n").next().unwrap().contains("mailboxes = "), "{router}\n{}", made.text);
        let is_told = made.behavior_changes.iter().any(|it| it.contains("no router before r takes gets 451"));
        assert!(is_told, "{router}: {:#?}", made.behavior_changes);
    }
}

/// A router that is not translated defers, also when one behind it takes all addresses.
#[test]
fn a_domain_with_an_untranslated_router_does_not_take_all_addresses() {
    let routers = "a:\n driver = accept\n local_parts = bob\n transport = m\n\
                   b:\n driver = redirect\n condition = ${lookup{$local_part}lsearch{/etc/off}{1}{0}}\n data = :fail: off\n\
                   c:\n driver = manualroute\n route_list = * 192.0.2.1\n transport = t";
    let made = converted("domainlist local_domains = example.org", "accept domains = +local_domains", routers, "");
    assert!(made.text.contains("mailboxes = \"a-or-router-b-or-router-c\""), "{}", made.text);
}

/// Where Exim offers logins, and what it asks beside a password, is told of if it is lost.
#[test]
fn restrictions_of_logins_are_told() {
    let acl = "accept authenticated = *\naccept domains = +local_domains";
    let dovecot = "d:\n driver = dovecot\n public_name = PLAIN\n server_socket = /run/dovecot/auth-client";
    let made = converted(TLS, acl, OUT, dovecot);
    assert!(made.text.contains("dovecot = ") && made.behavior_changes.is_empty(), "{:?}", made.behavior_changes);
    let limited = format!("{dovecot}\n server_condition = ${{if eq{{$auth1}}{{bob}}}}");
    let made = converted(TLS, acl, OUT, &limited);
    assert!(!made.text.contains("dovecot = ") && made.behavior_changes[0].contains("Logins get 454"), "{}", made.text);
    for (hosts, is_told) in [
        ("10.0.0.0/8", true),
        ("", true),
        ("*", false),
        ("${if eq {$tls_in_cipher}{}{}{*}}", false),
        ("${if eq{$sender_host_address}{192.0.2.1}{}{*}}", true),
    ] {
        let made = converted(&format!("{TLS}\nauth_advertise_hosts = {hosts}"), acl, OUT, dovecot);
        let told = made.behavior_changes.iter().any(|it| it.contains("auth_advertise_hosts allows"));
        assert_eq!(told, is_told, "{hosts}: {:#?}", made.behavior_changes);
    }
    let advertised = format!("{dovecot}\n server_advertise_condition = ${{if eq{{$interface_port}}{{587}}}}");
    let made = converted(TLS, acl, OUT, &advertised);
    assert!(made.behavior_changes[0].contains("server_advertise_condition of d"), "{:?}", made.behavior_changes);
}

/// What Exim refused and the new file accepts is told at its top.
#[test]
fn refusals_without_a_counterpart_are_told() {
    let rest = "\naccept domains = +local_domains";
    for (main, acl, expected) in [
        ("", "deny senders = :\n condition = ${if >{$rcpt_count}{1}}", "a count of recipients is no condition"),
        ("acl_not_smtp = a", "deny", "Mail that acl_not_smtp refused is accepted"),
        ("host_reject_connection = x.example : 203.0.113.0/24", "", "Clients in x.example (host_reject_connection)"),
        ("host_reject_connection = !x.example : 203.0.113.0/24", "", "Clients in !x.example : 203.0.113.0/24 (host_"),
        ("helo_verify_hosts = *", "", "Mail of clients that helo_verify_hosts refused"),
        ("tls_verify_hosts = 192.0.2.0/24", "", "Mail of clients that tls_verify_hosts refused"),
        ("", "deny ratelimit = 10 / 1h / per_byte", "Mail above the rate"),
    ] {
        let made = converted(&format!("{TLS}\n{main}"), &format!("{acl}{rest}"), OUT, "");
        let is_told = made.behavior_changes.iter().any(|it| it.contains(expected));
        assert!(is_told, "{expected}: {:#?}", made.behavior_changes);
    }
    for unit in ["per_cmd", "per_addr", "per_rcpt"] {
        let made = converted(TLS, &format!("deny ratelimit = 10 / 1h / {unit}{rest}"), OUT, "");
        assert!(made.text.contains("recipients = \"10/1h\""), "{unit}\n{}", made.text);
    }
}

/// Thousands of domains are read in seconds, and those that are left out are told of.
#[test]
fn domains_above_the_limit_are_told() {
    let names = |letter: char| (0..2600).map(|n| format!("{letter}{n}.example")).collect::<Vec<_>>().join(" : ");
    let main = format!("domainlist local_domains = {}\ndomainlist more = {}", names('a'), names('b'));
    let acl = "deny senders = :\n domains = +more\naccept domains = +local_domains\naccept domains = +more";
    let made = converted(&main, acl, OUT, "");
    assert!(
        made.behavior_changes.iter().any(|it| it.contains("first 5000 are left out")),
        "{:?}",
        made.behavior_changes
    );
    assert_eq!(made.text.matches("\n[[domain]]").count(), 5001);
}

#[test]
fn what_refuses_by_an_unknown_condition_defers() {
    let text = "acl_smtp_rcpt = a\nbegin acl\na:\ndeny condition = ${if eq{$x}{y}}\n hosts = 192.0.2.0/24\n\
                accept domains = example.org\nbegin routers\nr:\n driver = accept\n transport = t\n";
    let made = convert(text).unwrap();
    assert!(made.text.contains("clients = [\"192.0.2.0/24\"]\naction = \"defer\""), "{}", made.text);
    assert!(made.behavior_changes.iter().any(|it| it.contains("is deferred")), "{:?}", made.behavior_changes);
}

#[test]
fn hostile_files_are_errors_that_name_the_place() {
    let long = format!("qualify_domain = {}\n", "x".repeat(1 << 20));
    let mut bomb = "A_X = 0123456789\n".to_owned();
    bomb.extend(
        (0..60).map(|n| format!("B{n}_ = {0}{0}\n", if n == 0 { "A_X".into() } else { format!("B{}_", n - 1) })),
    );
    for (text, place, fault) in [
        (long.as_str(), "line 1", "the line is longer than 65536 octets"),
        (".include /loop\n", "/loop", "this file includes itself"),
        (".include /none\n", "line 1", "cannot include /none: no such file"),
        (".ifdef X\nqueue_only\n", "exim4.conf", "an .ifdef has no .endif"),
        ("", "exim4.conf", "this is not an Exim configuration"),
        (bomb.as_str(), "line ", "longer than 65536 octets"),
    ] {
        let error = convert(text).unwrap_err();
        assert!(error.place.contains(place) && error.fault.contains(fault), "{error}");
    }
    let open = "acl_smtp_rcpt = ${if exists{{{{\ndomainlist d = ${lookup{\nbegin routers\nr:\ndriver = redirect\ndata = ${lookup{\n";
    let made = convert(open).unwrap();
    Config::parse(&made.text, "mailrace.toml", "host.example.org").unwrap();
}

/// The command itself, with a copy of Debian's folder.
#[test]
fn the_command_writes_a_configuration_that_passes_check() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("exim4"), folder.path().join("new/mailrace.toml"));
    std::fs::create_dir(&old).unwrap();
    let answers = old.join("update-exim4.conf.conf");
    std::fs::write(&answers, debian_answers("internet")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mailrace"));
    let told = command.args(["import", "exim"]).arg(&answers).arg("--output").arg(&new).output().unwrap();
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    let checked = Command::new(env!("CARGO_BIN_EXE_mailrace")).args(["check", "--config"]).arg(&new).output().unwrap();
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn whatever_exim_s_configuration_says_our_reader_finds_no_fault(
        main in prop::collection::vec(prop::sample::select(MAIN), 0..6),
        acl in prop::collection::vec(prop::sample::select(ACL), 0..8),
        routers in prop::collection::vec(prop::sample::select(ROUTERS), 0..5),
        any in "[ -~]{0,40}",
    ) {
        let routers: String = routers.iter().enumerate().map(|(n, router)| format!("r{n}:\n{router}\n")).collect();
        let text = format!(
            "primary_hostname = mx.example.org\nacl_smtp_rcpt = a\ndomainlist d = example.org : *.example.com\n{}\n\
             begin acl\na:\n{}\nbegin routers\n{routers}\nbegin transports\nt:\n driver = smtp\nm:\n driver = appendfile\n{any}\n",
            main.join("\n"), acl.join("\n"),
        );
        // A line may also be an error, which names its place.
        let Ok(made) = convert(&text) else { return Ok(()) };
        let read = Config::parse(&made.text, "mailrace.toml", "host.example.org");
        prop_assert!(read.is_ok(), "{}\n{}\n{text}", read.unwrap_err(), made.text);
    }
}

const MAIN: &[&str] = &[
    "qualify_domain = \"\"",
    "local_interfaces = 127.0.0.1 : [::1]:26 : eth0",
    "message_size_limit = 5X",
    "message_size_limit = 5M",
    "smtp_accept_max = 0",
    "recipients_max = 999999999999",
    "tls_certificate = ${if x}",
    "tls_certificate = /c",
    "daemon_smtp_ports = 25 : smtps : x",
    "tls_on_connect_ports = 465",
    "acl_smtp_data = a",
    "acl_smtp_mail = a",
    "acl_smtp_connect = a",
    "acl_smtp_helo = a",
    "queue_only_load = 4",
    "host_reject_connection = 192.0.2.1 : x.example",
    "delay_warning = 1h:2h",
    "smtp_receive_timeout = 0s",
];
const ACL: &[&str] = &[
    "accept hosts = 10.0.0.0/8",
    "accept domains = +d",
    "accept authenticated = *",
    "deny hosts = !192.0.2.0/24",
    "deny senders = : a@b.example : *@*.c.example",
    "deny local_parts = ^[.] : postmaster",
    "deny !verify = sender",
    "require verify = helo",
    "deny dnslists = a.example=127.0.0.2 : b.example/$sender_helo_name",
    "deny spf = fail",
    "deny message = \"no, \\\"never\\\"\"\n domains = example.org : *.example.com\n recipients = x@example.org",
    "defer ratelimit = 5 / 1h / per_rcpt",
    "drop recipients = a@example.org\n hosts = *",
    "warn add_header = X: y",
    "accept",
    "deny",
    "deny malware = *",
    "require domains = lsearch;/etc/aliases",
    "accept acl = a",
    "discard senders = a@b.example",
];
const ROUTERS: &[&str] = &[
    "driver = dnslookup\ndomains = !+d\ntransport = t\nno_more",
    "driver = dnslookup\ntransport = t",
    "driver = manualroute\nroute_list = * a.example::26 : b.example\ntransport = t",
    "driver = manualroute\nroute_list = example.net 192.0.2.1\ntransport = t",
    "driver = redirect\ndata = ${lookup{$local_part}lsearch{/etc/aliases}}",
    "driver = redirect\ndata = $local_part@example.net",
    "driver = redirect\ndata = bob@example.net\nlocal_parts = a : b",
    "driver = redirect\ndata = :fail: no",
    "driver = accept\ncheck_local_user\ntransport = m",
    "driver = accept\ntransport = m\nunseen",
    "driver = accept\nlocal_parts = lsearch;/etc/aliases\ntransport = t",
    "driver = accept\nlocal_part_suffix = -*\ntransport = none",
    "driver = ipliteral",
    "driver = iplookup",
];
