//! What Postfix refuses by a setting that is easily overlooked, the import must not accept: each test is about one
//! that it did.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use config::Config;
use import::postfix::import;
use import::{FileReader, ImportResult};

const FOLDER: &str = "/etc/mailrace/mailrace-tables";
const SMTP: &str = "smtp inet n - y - - smtpd -o smtpd_sasl_auth_enable=yes\n";
const SCREENED: &str = "smtp inet n - y - 1 postscreen\nsmtpd pass - - y - - smtpd\n";
const MAIN: &str = "\
    mydestination = example.org\n\
    local_recipient_maps =\n\
    mynetworks = 192.0.2.0/28\n\
    smtpd_tls_cert_file = /c\n\
    smtpd_tls_key_file = /k\n\
    smtpd_tls_security_level = may\n";

struct Files(BTreeMap<&'static str, &'static str>);

impl FileReader for Files {
    fn text(&self, path: &Path) -> io::Result<String> {
        let text = path.to_str().and_then(|path| self.0.get(path));
        text.map(|&text| text.to_owned()).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))
    }
}

fn convert(main: &str, master: &str, files: &[(&'static str, &'static str)]) -> ImportResult {
    let files = Files(files.iter().copied().collect());
    let made = import(&format!("{MAIN}{main}"), master, "mail.example.org", &files, Path::new(FOLDER));
    if let Err(faults) = Config::parse(&made.text, "mailrace.toml", "mail.example.org") {
        panic!("{faults}\n{}", made.text);
    }
    made
}

/// The access rules after those for malformed recipients, one in a line.
fn rules(made: &ImportResult) -> Vec<String> {
    let line = |section: &str| {
        let lines = section.split("\n[").next().unwrap_or_default().lines();
        let keys = lines.map(|line| line.split("#").next().unwrap_or_default().trim()).filter(|key| !key.is_empty());
        keys.collect::<Vec<_>>().join("; ")
    };
    let sections = made.text.split("\n[[access]]\n").skip(1).map(line);
    sections.filter(|rule| !rule.contains("malformed") && !rule.contains("routed")).collect()
}

/// The text of the new file of this name.
fn file<'m>(made: &'m ImportResult, name: &str) -> &'m str {
    made.files.iter().find(|file| file.path.ends_with(name)).map_or("", |file| &file.text)
}

/// `reject` at the end of the access list, which closes a server to all other clients, had no effect.
#[test]
fn postscreen_refuses_whom_its_access_list_does_not_name() {
    let files = [("/cidr", "198.51.100.0/24 permit\n203.0.113.0/24 OK\n0.0.0.0/0 dunno\n")];
    let list = "postscreen_access_list = permit_mynetworks, cidr:/cidr, Reject, cidr:/unread\n";
    let closed = convert(&format!("{list}postscreen_denylist_action = enforce\n"), SCREENED, &files);
    insta::assert_snapshot!(rules(&closed).join("\n"), @r#"
    name = "mynetworks"; list = "postscreen"; stage = "rcpt"; clients = ["192.0.2.0/28"]; action = "accept"
    name = "cidr"; list = "postscreen"; stage = "rcpt"; clients = ["198.51.100.0/24"]; action = "accept"
    name = "all others"; list = "postscreen"; stage = "rcpt"; action = "refuse"
    "#);
    let ignored = convert(list, SCREENED, &files);
    assert!(!rules(&ignored).iter().any(|rule| rule.contains("\"refuse\"")), "{}", ignored.text);
    let unknown = convert("postscreen_access_list = permitted, cidr:/cidr\n", SCREENED, &files);
    assert!(rules(&unknown).is_empty(), "{}", unknown.text);
}

/// A key that is a network, which postscreen never looks up, and a value that it does not know spared clients the
/// DNS lists.
#[test]
fn postscreen_looks_up_whole_addresses_and_knows_three_words() {
    let files =
        [("/hosts", "192.0.2 permit\n192.0.2.77 permit\n192.0.2.88 OK\n192.0.2.99 reject\n2001:db8::1 Permit\n")];
    let main = "postscreen_access_list = hash:/hosts\npostscreen_denylist_action = drop\n\
                postscreen_dnsbl_sites = a.example=127.0.0.[2..4]*3, b.example*-2, c.example\n\
                postscreen_dnsbl_threshold = 3\npostscreen_dnsbl_action = enforce\n";
    insta::assert_snapshot!(rules(&convert(main, SCREENED, &files)).join("\n"), @r#"
    name = "hosts"; list = "postscreen"; stage = "rcpt"; clients = ["192.0.2.77/32", "2001:db8::1/128"]; action = "accept"
    name = "hosts 2"; list = "postscreen"; stage = "rcpt"; clients = ["192.0.2.99/32"]; action = "refuse"
    name = "score of DNS lists"; list = "postscreen"; stage = "rcpt"; dnsbl_score = { at_least = 3, lists = [{ zone = "a.example", codes = ["127.0.0.2/31", "127.0.0.4"], weight = 3 }, { zone = "b.example", weight = -2 }, { zone = "c.example", weight = 1 }] }; action = "refuse"
    "#);
}

/// postscreen stands before one service, and the refusals were for clients of all.
#[test]
fn postscreen_refuses_nobody_at_other_services() {
    let main = "postscreen_access_list = reject\npostscreen_denylist_action = drop\n";
    let master = format!("{SCREENED}submission inet n - y - - smtpd -o smtpd_sasl_auth_enable=yes\n");
    let made = rules(&convert(main, &master, &[]));
    let closing = made.iter().find(|rule| rule.contains("\"refuse\"")).cloned().unwrap_or_default();
    assert!(closing.contains("listeners = [\"0.0.0.0:25\", \"[::]:25\"]"), "{made:?}");
}

/// Settings of the service itself had no effect: what they refuse was accepted.
#[test]
fn postscreen_has_the_settings_of_its_service() {
    let main = "postscreen_dnsbl_sites = a.example\npostscreen_access_list = permit_mynetworks\n";
    let own = "  -o postscreen_dnsbl_action=enforce\n  -o postscreen_access_list=reject\n  -o postscreen_denylist_action=drop\n";
    let (passed, master) = ("smtpd pass - - y - - smtpd\n", "smtp inet n - y - 1 postscreen\n");
    let made = rules(&convert(main, &format!("{master}{own}{passed}"), &[]));
    assert!(made.iter().any(|rule| rule.contains("a.example") && rule.contains("\"refuse\"")), "{made:?}");
    assert!(made.iter().any(|rule| rule.contains("all others") && rule.contains("\"refuse\"")), "{made:?}");
    assert!(!rules(&convert(main, SCREENED, &[])).iter().any(|rule| rule.contains("\"refuse\"")));
}

/// `spam.example` in a directory did not concern `sub.spam.example`, as it does in a file.
#[test]
fn a_domain_in_a_database_stands_for_its_subdomains() {
    let files = [("/sql", "hosts = 127.0.0.1\ndbname = mail\nquery = SELECT act FROM senders WHERE name = '%s'\n")];
    let main = "smtpd_sender_restrictions = check_sender_access mysql:/sql\n";
    let parents = |more: &str| convert(&format!("{main}{more}"), SMTP, &files).text.contains("match_subdomains = true");
    assert!(parents(""));
    assert!(!parents("parent_domain_matches_subdomains = mynetworks\n"));
    let body = convert("body_checks = mysql:/sql\n", SMTP, &files);
    assert!(!body.text.contains("match_subdomains"), "{}", body.text);
}

/// A permit for users spared them the DNS lists, although nobody has logged in when the client is checked.
#[test]
fn a_login_permits_nothing_before_it() {
    let lists = "smtpd_client_restrictions = permit_sasl_authenticated, reject_rbl_client a.example\n";
    let users = |more: &str| {
        let made = rules(&convert(&format!("{lists}{more}"), SMTP, &[]));
        made.iter().any(|rule| rule.contains("a.example") && rule.contains("users = true"))
    };
    assert!(!users(""));
    assert!(users("smtpd_delay_reject = no\n") && users("smtpd_delay_reject = NO\n"));
    let helo = "smtpd_client_restrictions = reject_invalid_hostname, reject_unknown_client_hostname\nsmtpd_delay_reject = no\n";
    let made = rules(&convert(helo, SMTP, &[]));
    assert!(made.len() == 1 && made[0].contains("reverse_name"), "{made:?}");
}

/// Bounces that a table refuses by another key than `<>` were accepted.
#[test]
fn the_null_sender_keeps_its_key() {
    let files = [("/senders", "null REJECT no bounces\n<> OK\n")];
    let main = "smtpd_null_access_lookup_key = NULL\nsmtpd_sender_restrictions = check_sender_access hash:/senders\n";
    insta::assert_snapshot!(file(&convert(main, SMTP, &files), "senders"), @"<>                              REJECT no bounces");
    let patterns = [("/senders", "/^null$/ REJECT no bounces\n")];
    let made = convert(&main.replace("hash:", "regexp:"), SMTP, &patterns);
    assert!(made.behavior_changes.iter().any(|told| told.contains("smtpd_null_access_lookup_key")), "{made:?}");
}

/// The only rule of a class was taken for a permit at the end of its list, which has no effect: the table named a class
/// that did not exist.
#[test]
fn a_class_that_only_permits_has_its_rule() {
    let main = "smtpd_recipient_restrictions = permit_mynetworks, reject_unauth_destination,\n\
                \x20 check_client_access inline:{ {198.51.100.7=permit_mynetworks} }\n";
    let made = rules(&convert(main, SMTP, &[]));
    assert!(made.iter().any(|rule| rule.contains("class = \"permit_mynetworks\"")), "{made:?}");
}
