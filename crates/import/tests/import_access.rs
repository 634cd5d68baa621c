//! Imported restrictions. Random restriction lists are evaluated by a second implementation of
//! Postfix's rules in this file, and the resulting access rules by the server's own code. The
//! server must not accept or relay mail that Postfix rejects. For usual lists, it must not reject
//! mail that Postfix accepts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use config::{AccessRule, Config, ListenerProtocol, ListenerSettings, TableKind};
use filter::access::{
    AccessCondition, AccessDecision, AccessRules, ClientNameKey, ClientNameTable, CompiledRule, ConditionMatcher,
    DnsblCheck, HostNameFuture, HostNames, ReverseName, RuleSubject,
};
use filter::{SessionInfo, Stage};
use import::postfix::import;
use import::{FileReader, ImportResult};
use intake::ThrottledLog;
use lookup::regexp::RegexpTable;
use lookup::text::TextTable;
use lookup::unavailable::UnavailableTable;
use lookup::{LookupAnswer, LookupFuture, Table};
use mail::Address;
use proptest::prelude::*;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The lists, in the order in which Postfix evaluates them.
const LISTS: [&str; 5] = [
    "smtpd_client_restrictions",
    "smtpd_helo_restrictions",
    "smtpd_sender_restrictions",
    "smtpd_relay_restrictions",
    "smtpd_recipient_restrictions",
];

const MAIN: &str = "\
    mydestination = example.org\n\
    local_recipient_maps =\n\
    mynetworks = 127.0.0.0/8, !192.0.2.8, 192.0.2.0/28\n\
    smtpd_tls_cert_file = /c\n\
    smtpd_tls_key_file = /k\n\
    smtpd_tls_security_level = may\n\
    smtpd_restriction_classes = class\n\
    class = permit_mynetworks, reject_rbl_client list.example\n";

/// A client, a sender and a recipient.
#[derive(Clone, Copy, Debug)]
struct TestClient {
    client: &'static str,
    logged_in: bool,
    helo: &'static str,
    /// Empty: the null sender.
    sender: &'static str,
    recipient: &'static str,
}

impl TestClient {
    fn is_in_mynetworks(&self) -> bool {
        ["127.0.0.1", "192.0.2.9"].contains(&self.client)
    }

    fn is_for_other_domain(&self) -> bool {
        !self.recipient.ends_with("@example.org")
    }
}

const CLIENTS: [&str; 7] =
    ["127.0.0.1", "192.0.2.8", "192.0.2.9", "198.51.100.66", "198.51.100.77", "198.51.100.200", "203.0.113.5"];
/// DNS lists and their addresses.
const LISTED: [(&str, &str); 4] = [
    ("list.example", "198.51.100.66"),
    ("list.example", "192.0.2.9"),
    ("white.example", "198.51.100.77"),
    ("white.example", "198.51.100.66"),
];
const HELOS: [&str; 3] = ["localhost", "mx.bad.example", "mx.good.example"];
const SENDERS: [&str; 4] = ["", "bad@bad.example", "x@sub.bad.example", "good@good.example"];
const RECIPIENTS: [&str; 4] = ["bob@example.org", "trap@example.org", "eve@elsewhere.example", "bob@elsewhere.example"];

static TEST_CLIENTS: LazyLock<Vec<TestClient>> = LazyLock::new(|| {
    let mut clients = Vec::new();
    for client in CLIENTS {
        for (logged_in, helo) in [false, true].into_iter().flat_map(|it| HELOS.map(|helo| (it, helo))) {
            for (sender, recipient) in SENDERS.into_iter().flat_map(|it| RECIPIENTS.map(|recipient| (it, recipient))) {
                clients.push(TestClient { client, logged_in, helo, sender, recipient });
            }
        }
    }
    clients
});

/// The result of a restriction in Postfix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RestrictionResult {
    Yes,
    No,
    Nothing,
}

fn yes_if(holds: bool) -> RestrictionResult {
    if holds { RestrictionResult::Yes } else { RestrictionResult::Nothing }
}

fn no_if(holds: bool) -> RestrictionResult {
    if holds { RestrictionResult::No } else { RestrictionResult::Nothing }
}

fn is_listed(zone: &str, client: &str) -> bool {
    LISTED.contains(&(zone, client))
}

/// A restriction and its effect.
type Restriction = (&'static str, fn(&TestClient) -> RestrictionResult);

const RESTRICTIONS: [Restriction; 25] = [
    ("permit_mynetworks", |it| yes_if(it.is_in_mynetworks())),
    ("permit_sasl_authenticated", |it| yes_if(it.logged_in)),
    ("permit", |_| RestrictionResult::Yes),
    ("reject", |_| RestrictionResult::No),
    ("defer", |_| RestrictionResult::No),
    ("reject_unauth_destination", |it| no_if(it.is_for_other_domain())),
    ("permit_auth_destination", |it| yes_if(!it.is_for_other_domain())),
    ("warn_if_reject reject", |_| RestrictionResult::Nothing),
    ("reject_rbl_client list.example", |it| no_if(is_listed("list.example", it.client))),
    ("permit_dnswl_client white.example=127.0.0.[0..255]", |it| yes_if(is_listed("white.example", it.client))),
    ("check_client_access inline:{ {203.0.113=REJECT}, {192.0.2.9=OK}, 198.51.100.66=FILTER }", |it| match it.client {
        "203.0.113.5" | "198.51.100.66" => RestrictionResult::No,
        client => yes_if(client == "192.0.2.9"),
    }),
    ("check_client_access inline:{ {partner.example=OK}, {198.51.100=REJECT}, {unknown=DUNNO} }", |it| {
        match it.client {
            "203.0.113.5" => RestrictionResult::Yes,
            // The name is found first: all others are unknown, or localhost.
            _ => RestrictionResult::Nothing,
        }
    }),
    ("check_client_access pcre:/names", |it| yes_if(it.client == "203.0.113.5")),
    ("check_sender_access inline:{ {bad.example=WARN}, {good.example=PREPEND X-Good: yes} }", |_| {
        RestrictionResult::Nothing
    }),
    ("reject_unverified_sender", |it| no_if(!it.sender.is_empty())),
    ("check_client_access cidr:/cidr", |it| match it.client {
        "198.51.100.200" => RestrictionResult::No,
        "198.51.100.66" | "198.51.100.77" => RestrictionResult::Nothing,
        client => yes_if(client.starts_with("192.0.2.")),
    }),
    ("check_helo_access inline:{ bad.example=REJECT, {mx.good.example=OK} }", |it| match it.helo {
        "mx.bad.example" => RestrictionResult::No,
        helo => yes_if(helo == "mx.good.example"),
    }),
    ("check_helo_access inline:{ {localhost=550 no} }", |it| no_if(it.helo == "localhost")),
    ("check_sender_access inline:{ bad.example=REJECT, {good.example=OK}, {sub.bad.example=DUNNO} }", |it| {
        match it.sender {
            "bad@bad.example" => RestrictionResult::No,
            sender => yes_if(sender == "good@good.example"),
        }
    }),
    ("check_sender_access inline:{ {<>=DEFER later}, {good@=WARN} }", |it| no_if(it.sender.is_empty())),
    ("check_sender_access pcre:/pcre", |it| match it.sender {
        "good@good.example" => RestrictionResult::Yes,
        sender => no_if(sender.contains("bad")),
    }),
    ("check_recipient_access inline:{ trap@example.org=REJECT, bob@=OK }", |it| match it.recipient {
        "trap@example.org" => RestrictionResult::No,
        recipient => yes_if(recipient.starts_with("bob@")),
    }),
    ("check_client_access static:OK", |_| RestrictionResult::Yes),
    ("check_recipient_access static:{REJECT nobody}", |_| RestrictionResult::No),
    ("class", |it| match it.is_in_mynetworks() {
        true => RestrictionResult::Yes,
        false => no_if(is_listed("list.example", it.client)),
    }),
];

/// The restrictions that a service for users has on its own.
const OWN: [usize; 6] = [0, 1, 2, 3, 5, 6];

/// Indices into [`RESTRICTIONS`], for each list.
type Lists = [Vec<usize>; 5];

/// Whether Postfix accepts the recipient.
fn is_taken_by_postfix(lists: &Lists, client: &TestClient) -> bool {
    let first = |list: &Vec<usize>| {
        list.iter()
            .map(|&place| RESTRICTIONS[place].1(client))
            .find(|says| *says != RestrictionResult::Nothing)
            .unwrap_or(RestrictionResult::Nothing)
    };
    lists.iter().all(|list| first(list) != RestrictionResult::No)
}

fn text(lists: &Lists, line: impl Fn(&str, &str) -> String) -> String {
    let words = |list: &Vec<usize>| list.iter().map(|&place| RESTRICTIONS[place].0).collect::<Vec<_>>().join(", ");
    LISTS.iter().zip(lists).map(|(name, list)| line(name, &words(list))).collect()
}

struct Tables;

impl FileReader for Tables {
    fn text(&self, path: &Path) -> io::Result<String> {
        let text = match path.to_str() {
            Some("/cidr") => "198.51.100.0/25 DUNNO\n198.51.0.0/16 REJECT\n192.0.2.0/24 OK\n",
            Some("/names") => "/partner\\.example$/ OK\n",
            Some("/whole") => "!/@/ REJECT a part\n/^[^@]+$/ REJECT a part\n/^x@sub\\./ REJECT\n",
            Some("/pcre") => "/good/ OK\n/bad/i REJECT no\n",
            _ => return Err(io::Error::new(io::ErrorKind::NotFound, "no such file")),
        };
        Ok(text.to_owned())
    }
}

/// A DNS list.
struct ListOf(&'static str);

impl Table for ListOf {
    fn name(&self) -> &str {
        self.0
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        let answer = |key: &&str| match is_listed(self.0, key) {
            true => LookupAnswer::Found(vec!["127.0.0.2".into()]),
            false => LookupAnswer::NotFound,
        };
        Box::pin(std::future::ready(keys.iter().map(answer).collect()))
    }
}

/// The client 203.0.113.5 is mx.partner.example, and the others have no name.
struct Names;

impl HostNames for Names {
    fn reverse_name(&self, client: IpAddr) -> HostNameFuture<'_, ReverseName> {
        let is_partner = client.to_string() == "203.0.113.5";
        let name = if is_partner { ReverseName::Confirmed("mx.partner.example".into()) } else { ReverseName::Missing };
        Box::pin(std::future::ready(name))
    }

    fn exists<'a>(&'a self, _name: &'a str) -> HostNameFuture<'a, Option<bool>> {
        Box::pin(std::future::ready(None))
    }

    fn accepts_mail<'a>(&'a self, _domain: &'a str) -> HostNameFuture<'a, Option<bool>> {
        Box::pin(std::future::ready(None))
    }
}

/// A server with an imported configuration.
struct Server {
    import: ImportResult,
    config: Config,
    access: Option<AccessRules>,
    runtime: Runtime,
    _folder: TempDir,
}

impl Server {
    fn new(main: &str, master: &str) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let import = import(main, master, "mail.example.org", &Tables, folder.path());
        let config = Config::parse(&import.text, "mailrace.toml", "mail.example.org")
            .unwrap_or_else(|faults| panic!("{faults}\n{}", import.text));
        for file in &import.files {
            std::fs::write(&file.path, &file.text).unwrap();
        }
        let tables: BTreeMap<&str, Arc<dyn Table>> =
            config.tables.iter().map(|table| (&*table.name, open(table))).collect();
        let access = AccessRules::new(config.access.iter().map(|rule| rule_of(rule, &tables)).collect());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Server { import, config, access, runtime, _folder: folder }
    }

    fn listener(&self, port: u16) -> Option<&ListenerSettings> {
        self.config.listeners.iter().find(|listener| listener.address.port() == port)
    }

    /// Whether it accepts the recipient at a listener: for local domains if no rule refuses it, for
    /// other domains if the client may relay.
    fn takes(&self, listener: &ListenerSettings, client: &TestClient) -> bool {
        let address: IpAddr = client.client.parse().unwrap();
        let can_log_in = listener.auth || !client.logged_in;
        let has_to = listener.require_auth && !client.logged_in;
        let relays = client.logged_in || self.config.relay.networks.iter().any(|network| network.contains(address));
        if !can_log_in || has_to || client.is_for_other_domain() && !relays {
            return false;
        }
        let (sender, recipient): (Option<Address>, Address) =
            (client.sender.parse().ok(), client.recipient.parse().unwrap());
        let visit = SessionInfo {
            client: Some(address),
            listener: Some(listener.address),
            helo: Some(client.helo),
            sender: Some(sender.as_ref()),
            recipient: Some(&recipient),
            is_user: listener.require_auth || client.logged_in,
            ..SessionInfo::default()
        };
        let Some(access) = &self.access else { return true };
        // A WARN in a table is logged with the client; nothing else may be.
        let troubles = ThrottledLog::new(|line, _| assert!(line.to_string().contains("(client "), "{line}"));
        let verdict = self.runtime.block_on(access.evaluate(Stage::Rcpt, &visit, &troubles));
        !matches!(verdict.decision, Some(AccessDecision::Refuse { .. }))
    }
}

fn open(table: &config::TableConfig) -> Arc<dyn Table> {
    match &table.kind {
        TableKind::Text { path } => Arc::new(TextTable::load(&table.name, path).unwrap()),
        TableKind::Regexp { path } => Arc::new(RegexpTable::load(&table.name, path).unwrap()),
        TableKind::Unavailable { reason, path: None } => Arc::new(UnavailableTable::new(&table.name, reason, None)),
        _ => panic!("{}: a table of another type", table.name),
    }
}

/// The rule in the form that sessions use.
fn rule_of(rule: &AccessRule, tables: &BTreeMap<&str, Arc<dyn Table>>) -> CompiledRule {
    assert_eq!(rule.stage, Stage::Rcpt);
    assert!(rule.helos.is_empty() && rule.recipients.is_empty());
    assert!(rule.dnsbl_score.is_none() && rule.recipients_min.is_none());
    let mut tests = Vec::new();
    if !rule.clients.is_empty() {
        tests.push(ConditionMatcher::Client(rule.clients.clone().into()));
    }
    if !rule.listeners.is_empty() {
        tests.push(ConditionMatcher::Listener(rule.listeners.clone().into()));
    }
    if !rule.senders.is_empty() {
        let senders = rule.senders.clone();
        let is_sender = move |sender: Option<&Address>| senders.iter().any(|own| own.matches(sender));
        tests.push(ConditionMatcher::Sender(Arc::new(is_sender)));
    }
    let named = [
        (RuleSubject::Client, &rule.clients_in),
        (RuleSubject::Helo, &rule.helos_in),
        (RuleSubject::Sender, &rule.senders_in),
        (RuleSubject::Recipient, &rule.recipients_in),
    ];
    for (subject, name) in named {
        tests.extend(name.as_ref().map(|name| ConditionMatcher::Table(subject, tables[&**name].clone())));
    }
    if let Some(zone) = &rule.dnsbl {
        let name = if &*zone.zone == "list.example" { "list.example" } else { "white.example" };
        let codes = zone.codes.clone();
        tests.push(ConditionMatcher::Dnsbl(DnsblCheck { name: name.into(), table: Arc::new(ListOf(name)), codes }));
    }
    for (key, name) in [
        (ClientNameKey::ConfirmedNameOrAddress, &rule.client_names_in),
        (ClientNameKey::ReverseName, &rule.reverse_names_in),
    ] {
        tests.extend(name.as_ref().map(|name| {
            let (table, names) = (tables[&**name].clone(), Arc::new(Names));
            ConditionMatcher::ClientName(ClientNameTable { table, key, names })
        }));
    }
    let conditions = tests.into_iter().map(|test| AccessCondition { text: "it".into(), test }).collect();
    let (name, list, action) = (rule.name.clone(), rule.list.clone(), rule.action.clone());
    CompiledRule {
        name,
        list,
        class: rule.class.clone(),
        stage: rule.stage,
        conditions,
        action,
        applies_to_users: rule.users,
        chooses_filters: false,
    }
}

const ONE_SERVICE: &str = "smtp inet n - y - - smtpd -o smtpd_sasl_auth_enable=yes\n";

/// Lists with up to `most` of these restrictions.
fn lists(of: &'static [usize], most: usize) -> impl Strategy<Value = Lists> {
    let list = move || prop::collection::vec(prop::sample::select(of), 0..=most);
    [list(), list(), list(), list(), list()]
}

static ALL: LazyLock<Vec<usize>> = LazyLock::new(|| (0..RESTRICTIONS.len()).collect());

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// For local domains. For other domains there is a single list of networks, so fewer clients
    /// may relay.
    #[test]
    fn accepts_exactly_the_mail_that_postfix_accepts(lists in lists(&ALL, 4)) {
        let restrictions = text(&lists, |name, words| format!("{name} = {words}\n"));
        let server = Server::new(&format!("{MAIN}{restrictions}"), ONE_SERVICE);
        let listener = server.listener(25).unwrap();
        for test_client in TEST_CLIENTS.iter() {
            let (here, there) = (server.takes(listener, test_client), is_taken_by_postfix(&lists, test_client));
            // If no user may relay, nobody can log in.
            let is_same = test_client.is_for_other_domain() || test_client.logged_in && !listener.auth;
            prop_assert!(
                here == there || is_same && !here,
                "{test_client:?} {here}\n{restrictions}\n{}", server.import.text
            );
        }
    }

    #[test]
    fn a_submission_listener_accepts_nothing_more(front in lists(&ALL, 3), own in lists(&OWN, 3), logins: bool) {
        let restrictions = text(&front, |name, words| format!("{name} = {words}\n"));
        let overrides = text(&own, |name, words| format!("  -o {{ {name} = {words} }}\n"));
        let logins = if logins { "yes" } else { "no" };
        let master = format!(
            "smtp inet n - y - - smtpd\nsubmission inet n - y - - smtpd\n  -o smtpd_sasl_auth_enable={logins}\n{overrides}"
        );
        let server = Server::new(&format!("{MAIN}{restrictions}"), &master);
        for (port, lists) in [(25, &front), (587, &own)] {
            let Some(listener) = server.listener(port) else { continue };
            for test_client in TEST_CLIENTS.iter().filter(|client| server.takes(listener, client)) {
                // Rules of port 25 apply to all listeners; relaying is checked for each listener.
                prop_assert!(
                    is_taken_by_postfix(lists, test_client),
                    "port {port}: {test_client:?}\n{restrictions}{overrides}\n{}", server.import.text
                );
            }
        }
    }
}

/// The indices of restrictions by how they start.
fn places(of: &[&str]) -> Vec<usize> {
    let place = |word: &&str| RESTRICTIONS.iter().position(|(text, _)| text.starts_with(word)).unwrap();
    of.iter().map(place).collect()
}

#[test]
fn usual_lists_let_in_and_refuse_the_same() {
    let first = ["permit_mynetworks", "permit_sasl_authenticated"];
    let with = |more: &[&str]| places(&first.iter().chain(more).copied().collect::<Vec<_>>());
    let guarded = with(&["reject_unauth_destination"]);
    let listed = with(&["reject_unauth_destination", "reject_rbl_client"]);
    let excepted =
        with(&["reject_unauth_destination", "check_client_access inline", "permit_dnswl", "reject_rbl_client"]);
    let (none, senders, helos) =
        (Vec::new(), places(&["check_sender_access inline:{ {<>"]), with(&["check_helo_access inline:{ {localhost"]));
    for lists in [
        [none.clone(), none.clone(), none.clone(), guarded.clone(), none.clone()],
        [with(&["reject_rbl_client"]), helos.clone(), senders.clone(), guarded.clone(), listed.clone()],
        [none.clone(), none.clone(), senders.clone(), guarded.clone(), excepted],
        [with(&["reject"]), none.clone(), none.clone(), guarded.clone(), none.clone()],
        [with(&["check_client_access cidr"]), helos, senders, guarded, places(&["class"])],
        [none.clone(), none.clone(), none.clone(), with(&["permit_auth_destination", "reject"]), none],
    ] {
        let restrictions = text(&lists, |name, words| format!("{name} = {words}\n"));
        let server = Server::new(&format!("{MAIN}{restrictions}"), ONE_SERVICE);
        let listener = server.listener(25).unwrap();
        for test_client in TEST_CLIENTS.iter() {
            let taken = is_taken_by_postfix(&lists, test_client);
            assert_eq!(
                server.takes(listener, test_client),
                taken,
                "{test_client:?}\n{restrictions}\n{}",
                server.import.text
            );
        }
    }
}

/// `OK` in one list had no effect if another list had one too, so that `reject` refused all mail.
#[test]
fn an_allow_list_accepts_its_clients() {
    let main = "smtpd_sender_restrictions = check_sender_access inline:{ {good.example=OK} }, reject\n\
                smtpd_recipient_restrictions = permit_mynetworks, reject_unauth_destination, reject_rbl_client list.example\n";
    let server = Server::new(&format!("{MAIN}{main}"), ONE_SERVICE);
    let listener = server.listener(25).unwrap();
    let test_client = |client, sender| TestClient {
        client,
        logged_in: false,
        helo: "mx.good.example",
        sender,
        recipient: "bob@example.org",
    };
    let taken = |client, sender| server.takes(listener, &test_client(client, sender));
    assert!(taken("203.0.113.5", "good@good.example") && taken("192.0.2.9", "good@good.example"));
    assert!(!taken("203.0.113.5", "bad@bad.example") && !taken("192.0.2.9", "bad@bad.example"));
    assert!(!taken("198.51.100.66", "good@good.example"));
}

/// Pattern tables were also searched for parts of addresses: a pattern without @ refused a whole
/// domain.
#[test]
fn patterns_are_asked_for_the_whole_alone() {
    let main = "smtpd_sender_restrictions = check_sender_access pcre:/whole\n";
    let server = Server::new(&format!("{MAIN}{main}"), ONE_SERVICE);
    let listener = server.listener(25).unwrap();
    let test_client = |sender| TestClient {
        client: "203.0.113.5",
        logged_in: false,
        helo: "mx.good.example",
        sender,
        recipient: "bob@example.org",
    };
    assert!(
        server.takes(listener, &test_client("good@good.example"))
            && server.takes(listener, &test_client("bad@bad.example"))
    );
    assert!(!server.takes(listener, &test_client("x@sub.bad.example")) && !server.takes(listener, &test_client("")));
}

#[test]
fn no_import_is_an_open_relay() {
    let relayers = |main: &str, master: &str| {
        let server = Server::new(&format!("{MAIN}{main}"), master);
        let networks: Vec<String> = server.config.relay.networks.iter().map(ToString::to_string).collect();
        let users = server.config.listeners.iter().any(|listener| listener.auth);
        (networks.join(" "), users)
    };
    let smtp = "smtp inet n - y - - smtpd\n";
    let all = "127.0.0.0/8 192.0.2.0/29 192.0.2.12/30 192.0.2.10/31 192.0.2.9/32";
    let cases: &[(&str, &str, &str, bool)] = &[
        // By default the networks may relay, and there are no users.
        ("", smtp, all, false),
        // Nobody may relay.
        ("smtpd_relay_restrictions = reject_unauth_destination\n", smtp, "", false),
        ("smtpd_recipient_restrictions = reject_unauth_destination, permit_mynetworks\n", smtp, "", false),
        // Only users, on another port.
        (
            "smtpd_relay_restrictions = permit_sasl_authenticated, reject_unauth_destination\n",
            "smtp inet n - y - - smtpd\nsubmission inet n - y - - smtpd -o smtpd_sasl_auth_enable=yes\n",
            "",
            true,
        ),
        // Users may log in but not relay.
        (
            "smtpd_sasl_auth_enable = yes\nsmtpd_relay_restrictions = permit_mynetworks, reject_unauth_destination\n",
            smtp,
            all,
            false,
        ),
        // One service lets fewer networks relay than the others.
        ("", "smtp inet n - y - - smtpd\n2525 inet n - y - - smtpd -o mynetworks=192.0.2.12\n", "192.0.2.12/32", false),
        // A service on the loopback interface says nothing about other clients.
        (
            "",
            "smtp inet n - y - - smtpd\n127.0.0.1:10025 inet n - y - - smtpd -o smtpd_relay_restrictions=reject\n",
            "192.0.2.0/29 192.0.2.12/30 192.0.2.10/31 192.0.2.9/32",
            false,
        ),
        // The exclusion cannot be read, so nothing after it counts.
        ("mynetworks = 127.0.0.0/8, !host.example, 192.0.2.0/28\n", smtp, "127.0.0.0/8", false),
        // In a table, Postfix looks up only the address, never a network.
        ("mynetworks = inline:{10.2.3.0/24=x, 192.0.2.1=x, 192.0.2.7/32=x}\n", smtp, "192.0.2.1/32", false),
        // A table entry permits mail, but no relaying.
        ("smtpd_relay_restrictions = check_client_access static:OK, reject_unauth_destination\n", smtp, "", false),
    ];
    for (main, master, networks, users) in cases {
        assert_eq!(relayers(main, master), ((*networks).to_owned(), *users), "{main}{master}");
    }
}

/// Clients that Postfix let relay by an unsupported restriction were rejected permanently, without
/// a report.
#[test]
fn clients_that_might_relay_with_postfix_are_deferred() {
    let smtp = "smtp inet n - y - - smtpd\n";
    let guarded = "permit_mynetworks, reject_unauth_destination";
    let open = "smtpd_relay_restrictions =\nsmtpd_recipient_restrictions = permit_mynetworks, ";
    for (main, is_put_off) in [
        (format!("smtpd_relay_restrictions = {guarded}\n"), false),
        (format!("smtpd_relay_restrictions = check_client_access inline:{{192.0.2.1=OK}}, {guarded}\n"), true),
        (format!("smtpd_relay_restrictions = permit_tls_clientcerts, {guarded}\n"), true),
        (format!("smtpd_relay_restrictions = permit_mx_backup, {guarded}\n"), true),
        (format!("smtpd_relay_restrictions = warn_if_reject permit_mx_backup, {guarded}\n"), false),
        (format!("smtpd_relay_restrictions = {guarded}, permit_mx_backup\n"), false),
        (format!("{open} permit_mx_backup, reject_unauth_destination\n"), true),
        (format!("{open} check_client_access inline:{{192.0.2.1=REJECT}}, reject_unauth_destination\n"), false),
        (format!("{open} check_recipient_access inline:{{bob@example.org=OK}}, reject_unauth_destination\n"), false),
        (format!("{open} check_recipient_access inline:{{bob@=OK}}, reject_unauth_destination\n"), true),
        // Another list rejects them.
        (
            format!(
                "smtpd_relay_restrictions = {guarded}\n\
                 smtpd_recipient_restrictions = permit_mynetworks, permit_mx_backup, reject_unauth_destination\n"
            ),
            false,
        ),
        // Networks that are not detected.
        ("mynetworks = 127.0.0.0/8, host.example\n".to_owned(), true),
    ] {
        let server = Server::new(&format!("{MAIN}{main}"), smtp);
        let told = server.import.behavior_changes.iter().any(|alarm| alarm.contains("gets 454"));
        let text = &server.import.text;
        assert_eq!((server.config.relay.is_deferred, told), (is_put_off, is_put_off), "{main}\n{text}");
    }
    for (level, style, is_put_off) in [
        ("", "", true),
        ("compatibility_level = 1\n", "", true),
        ("compatibility_level = 3.6\n", "", false),
        ("", "mynetworks_style = host\n", false),
        ("compatibility_level = 2\n", "mynetworks_style = class\n", true),
        ("", "inet_interfaces = loopback-only\n", false),
    ] {
        let relay = format!("smtpd_relay_restrictions = {guarded}\n");
        let server = Server::new(&format!("mydestination = example.org\n{relay}{level}{style}"), smtp);
        assert_eq!(server.config.relay.is_deferred, is_put_off, "{level}{style}\n{}", server.import.text);
    }
}

/// The partner of a closed gateway was rejected permanently.
#[test]
fn what_closes_a_list_puts_off_where_something_that_let_pass_is_lost() {
    for (main, action) in [
        ("smtpd_client_restrictions = check_client_access inline:{192.0.2.1=OK}, reject\n", "Refuse"),
        (
            "smtpd_client_restrictions = check_client_access inline:{192.0.2.1=OK, partner.example=OK}, reject\n",
            "Refuse",
        ),
        ("smtpd_client_restrictions = permit_tls_clientcerts, reject\n", "Defer"),
        ("smtpd_client_restrictions = permit_mynetworks, reject\n", "Refuse"),
        ("mynetworks = host.example\nsmtpd_client_restrictions = permit_mynetworks, reject\n", "Defer"),
        ("smtpd_client_restrictions = check_client_access pcre:/names, reject\n", "Refuse"),
        ("smtpd_client_restrictions = check_client_mx_access inline:{192.0.2.1=OK}, reject\n", "Defer"),
    ] {
        let server = Server::new(&format!("{MAIN}{main}"), ONE_SERVICE);
        let last = server.config.access.last().unwrap();
        let told = server.import.behavior_changes.iter().any(|alarm| alarm.contains("refused gets 450"));
        assert!(format!("{:?}", last.action).starts_with(action), "{main}{:?}\n{}", last.action, server.import.text);
        assert_eq!(told, action == "Defer", "{main}");
    }
}

#[test]
fn no_balancer_is_taken_for_the_client() {
    let server =
        Server::new(&format!("{MAIN}smtpd_upstream_proxy_protocol = haproxy\n"), "smtp inet n - y - - smtpd\n");
    let listener = server.listener(25).unwrap();
    assert!(!server.config.relay.networks.is_empty());
    assert_eq!(listener.proxies, server.config.relay.networks);
}

#[test]
fn nobody_logs_in_without_a_password_table() {
    let master = "submission inet n - y - - smtpd -o smtpd_sasl_auth_enable=yes\n\
                  \x20 -o smtpd_recipient_restrictions=permit_sasl_authenticated,reject\n";
    let server = Server::new(MAIN, master);
    let listener = server.listener(587).unwrap();
    assert_eq!((listener.protocol, listener.auth, listener.require_auth), (ListenerProtocol::Submission, true, true));
    let logins = server.import.files.iter().find(|file| file.path.ends_with("logins")).unwrap();
    assert!(logins.secret && logins.text.lines().all(|line| line.starts_with('#')), "{}", logins.text);
}

#[test]
fn restrictions_about_names_become_rules_that_refuse_or_defer_as_there() {
    let unknown = "reverse_name = [\"missing\", \"unconfirmed\"]";
    let rhsbl = |of: &str| format!("rhsbl = {{ zone = \"dbl.example\", of = [\"{of}\"] }}");
    for (restriction, main, condition, action) in [
        ("reject_unknown_reverse_client_hostname", "", "reverse_name = [\"missing\"]".to_owned(), "defer"),
        ("reject_unknown_client_hostname", "", unknown.to_owned(), "defer"),
        ("reject_unknown_client_hostname", "unknown_client_reject_code = 550\n", unknown.to_owned(), "refuse"),
        ("reject_invalid_helo_hostname", "", "helo_is = [\"invalid\"]".to_owned(), "refuse"),
        ("reject_non_fqdn_helo_hostname", "", "helo_is = [\"not_qualified\"]".to_owned(), "refuse"),
        ("reject_unknown_helo_hostname", "", "helo_is = [\"unknown\"]".to_owned(), "defer"),
        ("reject_rhsbl_client dbl.example", "", rhsbl("client_name"), "refuse"),
        ("reject_rhsbl_reverse_client dbl.example", "", rhsbl("reverse_name"), "refuse"),
        ("reject_rhsbl_helo dbl.example", "", rhsbl("helo"), "refuse"),
        ("reject_rhsbl_sender dbl.example", "maps_rbl_reject_code = 450\n", rhsbl("sender"), "defer"),
        ("permit_rhswl_client dbl.example", "", rhsbl("client_name"), "accept"),
    ] {
        let lists = format!("smtpd_client_restrictions = permit_mynetworks, {restriction}, reject\n");
        let server = Server::new(&format!("{MAIN}{main}{lists}"), ONE_SERVICE);
        let text = &server.import.text;
        let rule = text.split("[[access]]").find(|section| section.contains(&condition));
        assert!(rule.is_some_and(|rule| rule.contains(&format!("action = \"{action}\""))), "{restriction}\n{text}");
        let is_lost = |alarm: &String| alarm.contains("is accepted") && alarm.contains(restriction);
        assert!(!server.import.behavior_changes.iter().any(is_lost), "{restriction}\n{text}");
    }
}

#[test]
fn the_wait_of_postscreen_and_the_rate_of_recipients_are_kept() {
    let screened = "smtp inet n - y - 1 postscreen\nsmtpd pass - - y - - smtpd\n";
    let delay = |main: &str| {
        let server = Server::new(&format!("{MAIN}{main}"), screened);
        server.config.listeners[0].greeting.delay.map(|delay| delay.as_secs())
    };
    assert_eq!(delay("postscreen_greet_action = enforce\n"), Some(6));
    assert_eq!(delay("postscreen_greet_action = drop\npostscreen_greet_wait = 3s\n"), Some(3));
    assert_eq!(delay("postscreen_greet_action = ignore\n"), None);
    let server = Server::new(&format!("{MAIN}smtpd_client_recipient_rate_limit = 30\n"), ONE_SERVICE);
    let limit = &server.config.rate_limits[0];
    assert_eq!(limit.allowances[1].map(|it| (it.amount, it.per.as_secs())), Some((30, 60)));
    assert!(limit.exempt.contains("192.0.2.9".parse().unwrap()), "{}", server.import.text);
}
