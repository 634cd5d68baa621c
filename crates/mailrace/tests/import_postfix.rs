//! Imports of the example configurations in Postfix's documentation: golden files of the results,
//! which must be valid and mention every parameter.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;

use config::Config;
use import::postfix::expand::ExpandedParameters;
use import::postfix::import;
use import::postfix::main_cf::MainCf;
use import::{FileReader, ImportResult};
use proptest::prelude::*;

const PASSWD: (&str, &str) = ("/etc/passwd", "root:x:0:0::/root:/bin/sh\nbob:x:1000:1000::/home/bob:/bin/sh\n");
const ALIASES: (&str, &str) = ("/etc/aliases", "postmaster: root\nroot: bob\nlog: |/usr/bin/log\nlist: :include:/l\n");
const MASTER: &str = include_str!("postfix/master.cf");

/// Files in memory.
struct Memory(BTreeMap<&'static str, &'static str>);

impl FileReader for Memory {
    fn text(&self, path: &Path) -> io::Result<String> {
        let text = path.to_str().and_then(|path| self.0.get(path));
        text.map(|&text| text.to_owned()).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))
    }
}

fn convert(main: &str, files: &[(&'static str, &'static str)]) -> ImportResult {
    convert_with_master(main, MASTER, files)
}

fn convert_with_master(main: &str, master: &str, files: &[(&'static str, &'static str)]) -> ImportResult {
    let files = Memory([PASSWD, ALIASES].iter().chain(files).copied().collect());
    import(main, master, "mail.example.com", &files, Path::new("/etc/mailrace/mailrace-tables"))
}

/// The complete result for a golden file, with checks that hold for every configuration.
fn golden(main: &str, master: &str, files: &[(&'static str, &'static str)]) -> String {
    let made = convert_with_master(main, master, files);
    if let Err(faults) = Config::parse(&made.text, "mailrace.toml", "mail.example.com") {
        panic!("{faults}\n{}", made.text);
    }
    for (name, _) in MainCf::parse(main).settings() {
        assert!(made.text.contains(name), "{name} is missing in:\n{}", made.text);
    }
    let new = made.files.iter().map(|it| {
        let secret = if it.secret { " (secret)" } else { "" };
        format!("\n--- {}{secret}\n{}", it.path.display(), it.text)
    });
    std::iter::once(made.text.clone()).chain(new).collect()
}

macro_rules! example {
    ($name:ident, $files:expr) => {
        example!($name, MASTER, $files);
    };
    ($name:ident, $master:expr, $files:expr) => {
        #[test]
        fn $name() {
            let main = include_str!(concat!("postfix/", stringify!($name), ".cf"));
            insta::assert_snapshot!(golden(main, $master, &$files));
        }
    };
}

// BASIC_CONFIGURATION_README and STANDARD_CONFIGURATION_README.
example!(stand_alone, []);
example!(null_client, []);
example!(local_network, [("/etc/postfix/transport", "example.com :\n.example.com :\n* smtp:[gate.example.com]\n")]);
example!(
    firewall,
    [
        (
            "/etc/postfix/transport",
            "example.com smtp:[inside-gateway.example.com]\n.example.com smtp:[inside-gateway.example.com]\n"
        ),
        ("/etc/postfix/relay_recipients", "user1@example.com x\nuser2@example.com x\n"),
        ("/etc/postfix/virtual", "postmaster postmaster@example.com\nabuse postmaster@example.com\n"),
    ]
);
example!(backup_mx, [("/etc/postfix/relay_recipients", "user@the-backed-up-domain.example x\n")]);
// VIRTUAL_README.
example!(shared_domains, [("/etc/postfix/virtual", "info@other.example bob\n")]);
example!(
    separate_domains,
    [(
        "/etc/postfix/virtual",
        "postmaster@example.org postmaster\ninfo@example.org bob, carol@x.example\nsales@example.org\n  eve\n@example.org jim\n"
    )]
);
example!(
    virtual_mailboxes,
    [
        (
            "/etc/postfix/vmailbox",
            "info@example.org example.org/info\nsales@example.org example.org/sales/\n@example.org example.org/catchall\n"
        ),
        ("/etc/postfix/virtual", "postmaster@example.org postmaster\n"),
    ]
);
// LDAP_README and PGSQL_README.
example!(
    ldap,
    [
        ("/etc/postfix/ldap-aliases.cf", include_str!("postfix/ldap-aliases")),
        ("/etc/postfix/ldap-users.cf", include_str!("postfix/ldap-users")),
    ]
);
example!(pgsql, [("/etc/postfix/pgsql-aliases.cf", include_str!("postfix/pgsql-aliases"))]);
// MYSQL_README, with the tables of PostfixAdmin.
example!(
    mysql,
    [
        ("/etc/postfix/mysql-aliases.cf", include_str!("postfix/mysql-aliases")),
        ("/etc/postfix/mysql-domains.cf", include_str!("postfix/mysql-domains")),
        ("/etc/postfix/mysql-mailboxes.cf", include_str!("postfix/mysql-mailboxes")),
    ]
);
// FILTER_README, MILTER_README, SMTPD_POLICY_README, SASL_README and RESTRICTION_CLASS_README.
example!(
    filters,
    include_str!("postfix/filters-master.cf"),
    [
        ("/etc/postfix/recipients", "alice@example.com x\ntickets@example.com x\nall@example.com x\n"),
        ("/etc/postfix/transport", "tickets@example.com tickets:incoming\ngone@example.com error:5.1.6 moved\n"),
        ("/etc/postfix/passwords", "[192.0.2.30]:587 us:secret\nbob@example.com bob:hidden\n"),
        ("/etc/postfix/relays", "bob@example.com [192.0.2.33]:587\n@example.net DUNNO\n"),
        ("/etc/postfix/insiders", "example.com OK\n"),
        ("/etc/postfix/protected", "all@example.com insiders_only\n"),
    ]
);
// ADDRESS_REWRITING_README, and what is not supported.
example!(rewriting, [("/etc/postfix/regexp", "/^(.*)@old\\.example$/\n  $1@example.com\n")]);
example!(
    generic,
    concat!(
        "smtp inet n - y - - smtpd\nsmtp unix - - y - - smtp\ninside unix - - y - - smtp\n  -o smtp_generic_maps=\n",
        "partners unix - - y - - smtp\n  -o smtp_generic_maps=hash:/etc/postfix/partners\n"
    ),
    [
        (
            "/etc/postfix/generic",
            "alice@host.localdomain alice@isp.example\nfirst.last fl@isp.example\n@old.localdomain @isp.example\nbob |/bin/x\n"
        ),
        ("/etc/postfix/partners", "@host.localdomain office@isp.example\n"),
        (
            "/etc/postfix/transport",
            "inside.example inside:[192.0.2.1]\npartner.example partners:\nother.example smtp:[192.0.2.2]\n"
        ),
    ]
);
example!(
    content,
    [
        (
            "/etc/postfix/header_checks",
            "/^Subject:.*free/ REJECT 5.7.1 no\nif /^From:/\n!/@example\\.com/ PREPEND X-Outside: yes\nendif\n/^X-Old: (.*)/ REPLACE X-New: $1\n/(a)\\1/ DISCARD\n"
        ),
        ("/etc/postfix/mime_header_checks", "/name=.*\\.(exe|js)\"?$/ REJECT programs are refused\n"),
        ("/etc/postfix/body_checks", "/^TVqQAAMAAAAEAAAA/ REJECT\n/secret/ FILTER smtp:x\n"),
        (
            "/etc/postfix/words",
            "\"win a prize\" REJECT 5.7.1 no prizes\nharmless DUNNO\n\"win (it)\" REJECT 5.7.1 no prizes\n"
        ),
        (
            "/etc/postfix/lines.cf",
            "hosts = 127.0.0.1\nuser = postfix\npassword = x\ndbname = mail\nquery = SELECT action FROM lines WHERE line = '%s'\n"
        ),
        ("/etc/postfix/canonical", "bob Bob.B\n@old.example @example.com\ncarol carol@example.com, x@example.com\n"),
        ("/etc/postfix/old", "/^(.*)@old\\.example$/ $1@example.com\n"),
        ("/etc/postfix/copies", "sales@example.com sales-archive@example.com\n"),
    ]
);
example!(limits, []);
// SASL_README, SMTPD_ACCESS_README and POSTSCREEN_README.
example!(
    submission,
    include_str!("postfix/submission-master.cf"),
    [
        ("/etc/postfix/login_maps", "bob@example.org bob\nsales@example.org bob, alice\n@lists.example.org alice\n"),
        ("/etc/postfix/ldap-users.cf", include_str!("postfix/ldap-users")),
        ("/etc/postfix/vmailbox", "bob@example.org example.org/bob\nalice@example.org example.org/alice/\n"),
    ]
);
example!(
    one_port,
    "smtp inet n - y - - smtpd\n",
    [
        ("/etc/postfix/login_maps", "bob@example.org bob\n"),
        ("/etc/postfix/clients", "198.51.100 OK\n203.0.113.5 421 4.7.1 not now\n"),
    ]
);
example!(
    access,
    [
        (
            "/etc/postfix/clients.cidr",
            "198.51.100.7 DUNNO\n198.51.100.0/24 REJECT go away\n2001:db8:bad::/48 450 4.7.1 later\n203.0.113.0/24 OK\n"
        ),
        ("/etc/postfix/clients", "198.51 REJECT\nbad.example REJECT\ngood.example OK\n"),
        ("/etc/postfix/helo.pcre", "# names\n/^localhost$/ REJECT you are not me\nif /example/\n/^mx/i  OK\nendif\n"),
        (
            "/etc/postfix/senders",
            "bad.example 550 5.7.1 \"never\"\nnews@x.example OK\n<> DUNNO\ndrop@x.example DISCARD\nold@x.example PREPEND X-Old: yes\n"
        ),
        ("/etc/postfix/ldap-users.cf", include_str!("postfix/ldap-users")),
        ("/etc/postfix/recipients", "trap@example.org REJECT\npostmaster@ OK\n"),
    ]
);
example!(
    postscreen,
    include_str!("postfix/postscreen-master.cf"),
    [("/etc/postfix/relay_recipients", "bob@example.org x\n")]
);

/// With all files that it names, where these are only files that the import writes.
#[test]
fn what_is_written_passes_check() {
    let mains = [include_str!("postfix/access.cf"), include_str!("postfix/virtual_mailboxes.cf")];
    let tables = [
        PASSWD,
        ALIASES,
        ("/etc/postfix/clients.cidr", "198.51.100.0/24 REJECT\n"),
        ("/etc/postfix/clients", "198.51 REJECT\n"),
        ("/etc/postfix/helo.pcre", "/^localhost$/ REJECT\n"),
        ("/etc/postfix/senders", "bad.example 550 5.7.1 \"never\", ever,\n"),
        ("/etc/postfix/recipients", "trap@example.org REJECT\n"),
        ("/etc/postfix/vmailbox", "bob@example.org example.org/bob\n"),
        ("/etc/postfix/virtual", "postmaster@example.org bob@example.org\n"),
    ];
    for main in mains {
        let folder = tempfile::tempdir().unwrap();
        let made = import(main, "", "mail.example.org", &Memory(tables.into_iter().collect()), folder.path());
        made.files.iter().for_each(|file| std::fs::write(&file.path, &file.text).unwrap());
        let output = folder.path().join("mailrace.toml");
        std::fs::write(&output, made.text).unwrap();
        let command = Command::new(env!("CARGO_BIN_EXE_mailrace")).args(["check", "--config"]).arg(&output).output();
        let told = command.unwrap();
        assert!(told.status.success() && told.stderr.is_empty(), "{told:?}");
    }
}

/// Compares the results with Postfix itself, if it is installed.
#[test]
fn parameters_expand_as_postfix_expands_them() {
    let examples = [include_str!("postfix/stand_alone.cf"), include_str!("postfix/rewriting.cf"), EXPANSIONS];
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for main in examples {
        let folder = tempfile::tempdir().unwrap();
        let main = &format!("myhostname = mail.example.com\n{main}");
        std::fs::write(folder.path().join("main.cf"), main).unwrap();
        std::fs::write(folder.path().join("master.cf"), "").unwrap();
        let file = MainCf::parse(main);
        let values = ExpandedParameters::new(&file, "mail.example.com");
        // `luser_relay` is expanded at delivery.
        for (name, _) in file.settings().filter(|(name, _)| *name != "luser_relay") {
            let asked = Command::new("postconf").arg("-c").arg(folder.path()).args(["-x", "-h", name]).output();
            let Ok(told) = asked else {
                eprintln!("skipped: postconf is not installed");
                return;
            };
            if told.stdout.is_empty() {
                continue;
            }
            let told = String::from_utf8(told.stdout).unwrap();
            assert_eq!(words(&values.value(name)), words(&told), "{name}");
        }
    }
}

const EXPANSIONS: &str = "\
    myhostname = host.example.org\n\
    relayhost = ${myhostname?{$mydomain}:{none}}\n\
    mynetworks = 10.0.0.0/8 # not a comment\n\
    mydestination = a,\n # between\n\n  ${mydomain}\n\
    virtual_alias_domains = $(myhostname) ${nothing_of_this_name:nothing} ${myhostname?x $mydomain}\n\
    content_filter = ${{$mydomain} == {example.org} ? {same} : {other}}\n\
    always_bcc = ${{10} > {9} ? {more} : {less}}\n\
    smtpd_banner = a = b\n\
    smtpd_banner = $myhostname $$\n";

#[test]
fn no_password_is_in_the_text() {
    let main = include_str!("postfix/ldap.cf");
    let files = [
        ("/etc/postfix/ldap-aliases.cf", include_str!("postfix/ldap-aliases")),
        ("/etc/postfix/ldap-users.cf", include_str!("postfix/ldap-users")),
    ];
    let made = convert(main, &files);
    assert!(!made.text.contains("geheim"), "{}", made.text);
    let secrets: Vec<_> = made.files.iter().filter(|file| file.text.contains("geheim")).collect();
    assert!(!secrets.is_empty() && secrets.iter().all(|file| file.secret));
}

/// The first list wins, as in Postfix.
#[test]
fn a_table_of_domains_in_two_lists_is_used_once() {
    let lists = ["mydestination", "virtual_alias_domains", "virtual_mailbox_domains", "relay_domains"];
    let main: String = lists.map(|list| format!("{list} = unix:passwd.byname\n")).concat();
    let made = convert(&main, &[]);
    Config::parse(&made.text, "mailrace.toml", "mail.example.com").unwrap();
    assert_eq!(made.text.matches("\nnames = ").count(), 1, "{}", made.text);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_main_cf_says_our_reader_finds_no_fault(
        settings in prop::collection::vec((prop::sample::select(NAMES), prop::sample::select(VALUES)), 0..8),
        own in prop::collection::vec((prop::sample::select(NAMES), prop::sample::select(VALUES)), 0..4),
        service in prop::sample::select(&["submission", "465", "25", "127.0.0.1:10025", "2525"]),
        any in "(?s).{0,60}",
    ) {
        let main: String = settings.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
        let own: String = own.iter().map(|(name, value)| format!("  -o {{ {name} = {value} }}\n")).collect();
        let master = format!("{MASTER}{service} inet n - y - - smtpd\n{own}");
        let made = convert_with_master(&format!("{main}{any}"), &master, &[("/cidr", "10.0.0.0/8 OK\n10.0.0.0/9 DUNNO\n0.0.0.0/0 REJECT a,\n")]);
        let read = Config::parse(&made.text, "mailrace.toml", "mail.example.com");
        prop_assert!(read.is_ok(), "{}\n{}", read.unwrap_err(), made.text);
    }
}

const NAMES: &[&str] = &[
    "myhostname",
    "mydomain",
    "myorigin",
    "mydestination",
    "virtual_mailbox_domains",
    "virtual_mailbox_maps",
    "alias_maps",
    "virtual_alias_domains",
    "virtual_alias_maps",
    "relay_domains",
    "relayhost",
    "transport_maps",
    "mynetworks",
    "recipient_delimiter",
    "virtual_transport",
    "local_recipient_maps",
    "inet_interfaces",
    "message_size_limit",
    "virtual_mailbox_base",
    "smtp_destination_concurrency_limit",
    "smtp_mx_address_limit",
    "maximal_backoff_time",
    "minimal_backoff_time",
    "maximal_queue_lifetime",
    "smtp_helo_name",
    "luser_relay",
    "notify_classes",
    "queue_minfree",
    "smtp_bind_address",
    "delay_warning_time",
    "smtp_connect_timeout",
    "mailbox_transport",
    "2bounce_notice_recipient",
    "anvil_rate_time_unit",
    "mailbox_size_limit",
    "smtpd_authorized_xclient_hosts",
    "smtpd_client_message_rate_limit",
    "smtpd_client_restrictions",
    "smtpd_delay_reject",
    "smtpd_helo_restrictions",
    "smtpd_recipient_restrictions",
    "smtpd_relay_restrictions",
    "smtpd_restriction_classes",
    "smtpd_sasl_auth_enable",
    "smtpd_sasl_authenticated_header",
    "smtpd_sender_login_maps",
    "smtpd_sender_restrictions",
    "smtpd_tls_cert_file",
    "smtpd_tls_security_level",
    "smtpd_tls_wrappermode",
    "smtpd_upstream_proxy_protocol",
    "virtual_mailbox_limit",
];

const VALUES: &[&str] = &[
    "",
    "a.example",
    "a.example, b.example",
    "hash:/etc/aliases",
    "hash:/none",
    "static:all",
    "inline:{a.example=b, *=c}",
    "lmtp:unix:private/x",
    "lmtp:[127.0.0.1]:24",
    "smtp:[b.example]:587",
    "0",
    "1",
    "5d",
    "20m",
    "4294967296",
    "-1",
    "+",
    "+-",
    "all",
    "loopback-only",
    "192.0.2.1",
    "10.0.0.0/8 [::1]/128 !10.1.1.1",
    "\"",
    "[",
    "$myhostname",
    "bob",
    "bob@a.example",
    "2bounce",
    "/var/mail",
    "@",
    " x y ",
    "regexp:/x",
    "ldap:x",
    "unix:passwd.byname",
    "127.0.0.1",
    "inline:{{a.example = smtp:b.example:25}, {.example = lmtp:c:24}}",
    "static:{a b}",
    "{data_dir}",
    "#",
    "*",
    "0.0.0.0",
    "yes",
    "no",
    "may",
    "encrypt",
    "haproxy",
    "permit_mynetworks, permit_sasl_authenticated, reject",
    "reject_sender_login_mismatch, check_client_access cidr:/cidr, check_sender_access { }",
    "check_helo_access { inline:{a=\"b, {c = 5}} }, check_recipient_access static:{}, warn_if_reject",
    "reject_rbl_client a.example=127.0.0.[2..], reject_rbl_client b.example=127.0.0.[2..9]*3, permit_dnswl_client .",
    "smtpd_client_restrictions, smtpd_relay_restrictions, yes",
];

#[test]
fn files_are_written_once_and_passwords_for_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let postfix = folder.path().join("postfix");
    std::fs::create_dir(&postfix).unwrap();
    let main = "compatibility_level = 3.6\nmydestination =\nvirtual_alias_maps = ldap:/etc/postfix/ldap-aliases.cf\n\
         virtual_alias_domains = a.example\n";
    std::fs::write(postfix.join("main.cf"), main).unwrap();
    std::fs::write(postfix.join("ldap-aliases.cf"), include_str!("postfix/ldap-aliases")).unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mailrace"));
        command.current_dir(folder.path()).args(["import", "postfix", "postfix"]).args(more).output().unwrap()
    };
    let shown = run(&[]);
    assert!(shown.status.success() && shown.stdout.starts_with(b"# Made by"), "{shown:?}");
    assert!(!String::from_utf8_lossy(&shown.stderr).contains("differently"), "{shown:?}");
    assert!(!folder.path().join("mailrace-tables").exists());
    assert_eq!(run(&["--output", "new.toml"]).status.code(), Some(0));
    let password = folder.path().join("mailrace-tables/ldap-aliases.password");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&password).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(&password, "mine").unwrap();
    assert_eq!(run(&["--output", "new.toml"]).status.code(), Some(74));
    assert_eq!(std::fs::read_to_string(&password).unwrap(), "mine");
    assert_eq!(run(&["--output", "new.toml", "--force"]).status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(&password).unwrap(), "geheim\n");
}

/// The folder was created only if there were tables.
#[test]
fn the_folder_of_the_new_configuration_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let main = "compatibility_level = 3.6\nmydestination =\nrelay_domains = a.example\nrelayhost = [192.0.2.1]\n\
                parent_domain_matches_subdomains =\n";
    std::fs::write(folder.path().join("main.cf"), main).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mailrace"));
    let run =
        command.current_dir(folder.path()).args(["import", "postfix", ".", "--output", "new/x.toml"]).output().unwrap();
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    assert!(folder.path().join("new/x.toml").exists() && folder.path().join("new/mailrace-tables/routed").exists());
    let mut command = Command::new(env!("CARGO_BIN_EXE_mailrace"));
    let words = ["import", "postfix", ".", "--output", "other/x.toml", "--installed-in", "/etc/elsewhere"];
    let run = command.current_dir(folder.path()).args(words).output().unwrap();
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    let text = std::fs::read_to_string(folder.path().join("other/x.toml")).unwrap();
    assert!(text.contains("\"/etc/elsewhere/mailrace-tables/routed\"") && !text.contains("/other/"), "{text}");
    assert!(folder.path().join("other/mailrace-tables/routed").exists());
}

/// Differences were reported only in the file, and the exit code was 0.
#[test]
fn what_happens_to_mail_is_told_on_the_terminal_and_by_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let main = "compatibility_level = 3.6\nmydestination =\nsmtp_header_checks = regexp:/h\n";
    std::fs::write(folder.path().join("main.cf"), main).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mailrace"));
    let run =
        command.current_dir(folder.path()).args(["import", "postfix", ".", "--output", "new.toml"]).output().unwrap();
    let told = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(1), "{told}");
    assert!(told.contains("Mail is sent with its header unchanged"), "{told}");
    assert!(told.contains("1 kind of mail is handled differently than by Postfix"), "{told}");
    let text = std::fs::read_to_string(folder.path().join("new.toml")).unwrap();
    assert!(text.contains("1. Mail is sent with its header unchanged"), "{text}");
}
