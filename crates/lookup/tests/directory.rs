//! The rules of recipient lookup.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use lookup::directory::{
    AddressResolution, AliasLimits, LocalDomain, LocalDomainTable, MailboxLocation, RecipientDirectory,
    ResolvedRecipient,
};
use lookup::{LookupAnswer, LookupFuture, Table};
use mail::{Address, ReturnRefusal, SenderRewriter};
use proptest::prelude::*;

/// A scripted table that records its keys.
struct ScriptedTable {
    entries: HashMap<String, String>,
    asked: Mutex<Vec<Vec<String>>>,
}

impl ScriptedTable {
    fn new(entries: &[(&str, &str)]) -> Arc<Self> {
        let entries = entries.iter().map(|&(key, values)| (key.to_owned(), values.to_owned())).collect();
        Arc::new(ScriptedTable { entries, asked: Mutex::new(Vec::new()) })
    }

    fn answer(&self, key: &str) -> LookupAnswer {
        match self.entries.get(key).map(String::as_str) {
            None => LookupAnswer::NotFound,
            Some("DOWN") => LookupAnswer::Unavailable("it is down".into()),
            Some("GONE") => LookupAnswer::Unconfirmed("it is down".into()),
            Some("") => LookupAnswer::Found(Vec::new()),
            Some(values) => LookupAnswer::Found(values.split(' ').map(str::to_owned).collect()),
        }
    }

    fn asked(&self) -> Vec<Vec<String>> {
        self.asked.lock().unwrap().clone()
    }
}

impl Table for ScriptedTable {
    fn name(&self) -> &str {
        "script"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        self.asked.lock().unwrap().push(keys.iter().map(|&key| key.to_owned()).collect());
        Box::pin(std::future::ready(keys.iter().map(|key| self.answer(key)).collect()))
    }
}

fn domain(name: &str, mailboxes: &Arc<ScriptedTable>, aliases: &Arc<ScriptedTable>) -> LocalDomain {
    LocalDomain {
        name: name.into(),
        mailboxes: Some(mailboxes.clone()),
        aliases: Some(aliases.clone()),
        catch_all: None,
        wildcard_mailbox: false,
        hosts: None,
        delimiter: Some('+'),
        transport: "maildir".into(),
        is_final: true,
    }
}

/// `x.org` with these mailboxes and aliases.
fn domain_x_org(mailboxes: &[&str], aliases: &[(&str, &str)]) -> LocalDomain {
    let mailboxes: Vec<_> = mailboxes.iter().map(|&mailbox| (mailbox, "")).collect();
    domain("x.org", &ScriptedTable::new(&mailboxes), &ScriptedTable::new(aliases))
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

/// The result of a lookup in memory, which must be ready.
fn poll_ready<T>(asking: impl Future<Output = T> + Send) -> T {
    match pin!(asking).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("local tables must not wait"),
    }
}

fn resolve_in(directory: &RecipientDirectory, text: &str) -> AddressResolution {
    poll_ready(directory.resolve(&address(text)))
}

fn resolve(domain: LocalDomain, text: &str) -> AddressResolution {
    resolve_in(&RecipientDirectory::new(vec![domain], AliasLimits::default()), text)
}

/// Local recipients, or remote ones with a leading `>`, all of them reached from `original`.
fn local(addresses: &[&str], original: Option<&str>) -> AddressResolution {
    let finals = addresses.iter().map(|text| ResolvedRecipient {
        address: address(text.trim_start_matches('>')),
        original: original.map(address),
        local: !text.starts_with('>'),
    });
    AddressResolution::Local(finals.collect())
}

#[test]
fn a_domain_that_is_not_ours_is_remote_and_no_table_is_asked() {
    let (mailboxes, aliases) = (ScriptedTable::new(&[]), ScriptedTable::new(&[]));
    let directory = RecipientDirectory::new(vec![domain("X.org", &mailboxes, &aliases)], AliasLimits::default());
    assert_eq!(resolve_in(&directory, "Bob@y.org"), AddressResolution::Remote(address("Bob@y.org")));
    assert!(mailboxes.asked().is_empty() && aliases.asked().is_empty());
    let found = poll_ready(directory.domain("x.org")).unwrap();
    assert_eq!(found.map(|domain| domain.transport.clone()).as_deref(), Some("maildir"));
}

#[test]
fn a_mailbox_is_found_whatever_the_case() {
    assert_eq!(resolve(domain_x_org(&["bob@x.org"], &[]), "Bob@X.ORG"), local(&["bob@x.org"], None));
    assert_eq!(resolve(domain_x_org(&["jürgen@x.org"], &[]), "JÜRGEN@x.org"), local(&["jürgen@x.org"], None));
    let (composed, apart) = ("jos\u{e9}@x.org", "Jose\u{301}@x.org");
    assert_eq!(
        resolve(domain_x_org(&[composed], &[]), apart),
        local(&[composed], None),
        "both Unicode forms are equal"
    );
}

#[test]
fn an_unknown_address_is_unknown() {
    assert_eq!(resolve(domain_x_org(&["bob@x.org"], &[]), "carol@x.org"), AddressResolution::Unknown);
}

#[test]
fn without_a_table_of_mailboxes_everyone_exists_and_tags_make_no_mailboxes() {
    let everyone = || LocalDomain { mailboxes: None, aliases: None, ..domain_x_org(&[], &[]) };
    assert_eq!(resolve(everyone(), "anyone@x.org"), local(&["anyone@x.org"], None));
    assert_eq!(resolve(everyone(), "anyone+tag@x.org"), local(&["anyone@x.org"], Some("anyone+tag@x.org")));
    let no_tags = LocalDomain { delimiter: None, ..everyone() };
    assert_eq!(resolve(no_tags, "anyone+tag@x.org"), local(&["anyone+tag@x.org"], None));
}

#[test]
fn a_tag_is_removed_only_if_the_whole_address_is_unknown() {
    let domain =
        || domain_x_org(&["bob@x.org", "bob+own@x.org"], &[("team@x.org", "bob@x.org"), ("team+y@x.org", "z@y.org")]);
    assert_eq!(resolve(domain(), "bob+list@x.org"), local(&["bob@x.org"], Some("bob+list@x.org")));
    assert_eq!(resolve(domain(), "bob+own@x.org"), local(&["bob+own@x.org"], None));
    assert_eq!(resolve(domain(), "team+list@x.org"), local(&["bob@x.org"], Some("team+list@x.org")));
    assert_eq!(resolve(domain(), "team+y@x.org"), local(&[">z@y.org"], Some("team+y@x.org")));
    assert_eq!(resolve(domain(), "+bob@x.org"), AddressResolution::Unknown);
}

/// `x.org` as a relayed domain with these aliases and, if given, these mailboxes.
fn relayed_domain(mailboxes: Option<&[&str]>, aliases: &[(&str, &str)]) -> LocalDomain {
    let domain = domain_x_org(mailboxes.unwrap_or_default(), aliases);
    LocalDomain { is_final: false, mailboxes: domain.mailboxes.filter(|_| mailboxes.is_some()), ..domain }
}

#[test]
fn relayed_addresses_keep_their_spelling() {
    let given = |text| local(&[text], None);
    for text in ["List-Bounces+Bob=y@x.org", "JÜRGEN@x.org", "\"A b\"@x.org", "PostMaster@x.org", "+Bob@x.org"] {
        assert_eq!(resolve(relayed_domain(None, &[]), text), given(text), "{text}");
    }
    let told = || relayed_domain(Some(&["bob@x.org", "bob+own@x.org"]), &[]);
    for text in ["Bob@x.org", "Bob+List@x.org", "BOB+Own@x.org", "PostMaster@x.org"] {
        assert_eq!(resolve(told(), text), given(text), "{text}");
    }
    assert_eq!(resolve(told(), "Carol@x.org"), AddressResolution::Unknown);
}

#[test]
fn aliases_of_a_relayed_domain_ignore_case_and_keep_the_spelling_of_targets() {
    let aliases = [
        ("team@x.org", "Carol+A@x.org carol+a@x.org Carol+A@x.org"),
        ("bob@x.org", "BOB@x.org c@y.org"),
        ("postmaster@x.org", "gone@x.org"),
    ];
    let team = local(&["Carol+A@x.org", "carol+a@x.org"], Some("Team+List@x.org"));
    assert_eq!(resolve(relayed_domain(None, &aliases), "Team+List@x.org"), team);
    let AddressResolution::Local(finals) = resolve(relayed_domain(None, &aliases), "Bob@x.org") else {
        panic!("bob is known")
    };
    let names: Vec<_> = finals.iter().map(|last| (last.address.as_str(), last.original.is_some())).collect();
    assert_eq!(names, [("Bob@x.org", false), ("c@y.org", true)]);
    let postmaster = resolve(relayed_domain(Some(&[]), &aliases), "PostMaster@x.org");
    assert_eq!(postmaster, local(&["PostMaster@x.org"], None));
}

#[test]
fn a_domain_beyond_ascii_is_the_same_in_letters_and_in_a_labels() {
    const LETTERS: &str = "müller.example";
    const A_LABELS: &str = "xn--mller-kva.example";
    for (ours, other) in [(LETTERS, A_LABELS), (A_LABELS, LETTERS), ("MÜLLER.example", A_LABELS)] {
        let at = |local: &str, domain: &str| format!("{local}@{}", domain.to_lowercase());
        let (bob, team, rest) = (at("bob", ours), at("team", ours), at("", ours));
        let (targets, own) = (format!("{} c@y.org", at("BOB", other)), at("bob", other));
        let mailboxes = ScriptedTable::new(&[(&bob, "")]);
        let aliases = ScriptedTable::new(&[(&bob, &own), (&team, &targets), (&rest, "all@y.org")]);
        let hosts = ScriptedTable::new(&[(&bob, "a.x.org")]);
        let domain = LocalDomain { hosts: Some(hosts), ..domain(ours, &mailboxes, &aliases) };
        let directory = RecipientDirectory::new(vec![domain], AliasLimits::default());
        assert!(directory.is_configured_domain(LETTERS) && directory.is_configured_domain(A_LABELS));
        for spelt in [LETTERS, A_LABELS] {
            let (team, nobody) = (at("team", spelt), at("nobody", spelt));
            assert_eq!(resolve_in(&directory, &at("Bob", spelt)), local(&[&bob], None), "{ours} {spelt}");
            assert_eq!(resolve_in(&directory, &team), local(&[">c@y.org", &bob], Some(&team)), "{ours} {spelt}");
            assert_eq!(resolve_in(&directory, &nobody), local(&[">all@y.org"], Some(&nobody)), "{ours} {spelt}");
            let stores = poll_ready(directory.mailbox_locations(&[address(&at("bob", spelt))]));
            assert_eq!(stores, [MailboxLocation::OtherHost("a.x.org".into())], "{ours} {spelt}");
        }
    }
}

#[test]
fn relayed_addresses_keep_the_spelling_of_their_domain() {
    let domain = || LocalDomain { name: "müller.example".into(), ..relayed_domain(None, &[]) };
    for text in ["Bob@xn--mller-kva.example", "Bob@müller.example"] {
        assert_eq!(resolve(domain(), text), local(&[text], None));
    }
    assert_eq!(resolve(domain(), "Bob@xn--a.example"), AddressResolution::Remote(address("Bob@xn--a.example")));
}

#[test]
fn an_alias_comes_before_a_mailbox_and_both_addresses_are_kept() {
    let domain = domain_x_org(&["bob@x.org", "carol@x.org"], &[("bob@x.org", "Carol@x.org Dave@y.org")]);
    assert_eq!(resolve(domain, "Bob@x.org"), local(&[">Dave@y.org", "carol@x.org"], Some("Bob@x.org")));
}

#[test]
fn an_alias_that_names_itself_stands_for_its_mailbox() {
    let aliases = [("bob@x.org", "BOB@x.org c@y.org"), ("eve@x.org", "eve+kept@x.org")];
    let domain = || domain_x_org(&["bob@x.org", "eve@x.org"], &aliases);
    let AddressResolution::Local(mut finals) = resolve(domain(), "bob@x.org") else { panic!("bob is known") };
    finals.sort_by_key(|last| last.local);
    assert_eq!((finals[0].address.as_str(), &finals[0].original), ("c@y.org", &Some(address("bob@x.org"))));
    assert_eq!((finals[1].address.as_str(), &finals[1].original), ("bob@x.org", &None));
    assert_eq!(finals.len(), 2);
    assert_eq!(resolve(domain(), "eve@x.org"), local(&["eve@x.org"], None));
}

#[test]
fn a_recipient_named_twice_gets_one_copy() {
    let aliases =
        [("all@x.org", "one@x.org two@x.org c@y.org"), ("one@x.org", "bob@x.org"), ("two@x.org", "bob@x.org c@y.org")];
    let domain = domain_x_org(&["bob@x.org"], &aliases);
    assert_eq!(resolve(domain, "all@x.org"), local(&[">c@y.org", "bob@x.org"], Some("all@x.org")));
}

/// Regression: two lists that contained each other were expanded in turn up to the limit, and mail
/// to them was refused.
#[test]
fn lists_that_name_each_other_stand_for_all_their_members() {
    let lists = [("a@x.org", "x@x.org b@x.org"), ("b@x.org", "A@x.org y@x.org z@y.org")];
    let aliases = ScriptedTable::new(&lists);
    let domain = domain("x.org", &ScriptedTable::new(&[("x@x.org", ""), ("y@x.org", "")]), &aliases);
    assert_eq!(resolve(domain, "a@x.org"), local(&["x@x.org", ">z@y.org", "y@x.org"], Some("a@x.org")));
    let asked = [vec!["a@x.org"], vec!["x@x.org", "b@x.org"], vec!["y@x.org"]];
    assert_eq!(aliases.asked(), asked, "no list is opened twice");
    let domain = || domain_x_org(&["d@x.org"], &[("a@x.org", "b@x.org d@x.org"), ("b@x.org", "a@x.org")]);
    assert_eq!(resolve(domain(), "a@x.org"), local(&["d@x.org"], Some("a@x.org")));
    assert_eq!(resolve(domain(), "b@x.org"), local(&["d@x.org"], Some("b@x.org")));
}

#[test]
fn an_alias_loop_without_recipients_is_too_deep() {
    let circle = [("a@x.org", "b@x.org nobody@x.org"), ("b@x.org", "a@x.org")];
    assert_eq!(resolve(domain_x_org(&[], &circle), "a@x.org"), AddressResolution::TooDeep);
    let no_circle = [("a@x.org", "b@x.org c@x.org"), ("b@x.org", "nobody@x.org"), ("c@x.org", "b@x.org")];
    assert_eq!(resolve(domain_x_org(&[], &no_circle), "a@x.org"), AddressResolution::Unknown);
    let postmaster = [("postmaster@x.org", "root@x.org"), ("root@x.org", "postmaster@x.org")];
    assert_eq!(resolve(domain_x_org(&[], &postmaster), "postmaster@x.org"), AddressResolution::TooDeep);
}

#[test]
fn the_last_alias_that_the_limit_allows_still_leads_on() {
    let chain: Vec<_> = (0..20).map(|n| (format!("a{n}@x.org"), format!("a{}@x.org", n + 1))).collect();
    let aliases: Vec<_> = chain.iter().map(|(key, value)| (&**key, &**value)).collect();
    let domain = || domain_x_org(&["a20@x.org"], &aliases);
    assert_eq!(resolve(domain(), "a10@x.org"), local(&["a20@x.org"], Some("a10@x.org")));
    assert_eq!(resolve(domain(), "a9@x.org"), AddressResolution::TooDeep);
}

#[test]
fn more_addresses_than_the_limit_are_too_many() {
    let list = |count: usize| (0..count).map(|n| format!("a{n}@y.org")).collect::<Vec<_>>().join(" ");
    let domain = || domain_x_org(&[], &[("few@x.org", &list(1000)), ("many@x.org", &list(1001))]);
    assert!(matches!(resolve(domain(), "few@x.org"), AddressResolution::Local(finals) if finals.len() == 1000));
    assert_eq!(resolve(domain(), "many@x.org"), AddressResolution::TooMany);
}

#[test]
fn an_alias_of_the_domain_comes_after_its_mailboxes_and_before_the_catch_all() {
    let domain = || LocalDomain {
        catch_all: Some(address("never@y.org")),
        ..domain_x_org(&["bob@x.org"], &[("@x.org", "all@y.org"), ("carol@x.org", "c@y.org")])
    };
    assert_eq!(resolve(domain(), "bob@x.org"), local(&["bob@x.org"], None));
    assert_eq!(resolve(domain(), "carol@x.org"), local(&[">c@y.org"], Some("carol@x.org")));
    assert_eq!(resolve(domain(), "dave@x.org"), local(&[">all@y.org"], Some("dave@x.org")));
}

#[test]
fn the_catch_all_gets_unknown_addresses_and_may_be_an_alias() {
    let domain = || LocalDomain {
        catch_all: Some(address("rest@x.org")),
        ..domain_x_org(&["bob@x.org"], &[("rest@x.org", "bob@x.org")])
    };
    assert_eq!(resolve(domain(), "nobody@x.org"), local(&["bob@x.org"], Some("nobody@x.org")));
    assert_eq!(resolve(domain(), "bob@x.org"), local(&["bob@x.org"], None));
}

#[test]
fn a_catch_all_that_is_unknown_makes_no_mailbox() {
    let domain = LocalDomain { catch_all: Some(address("ghost@x.org")), ..domain_x_org(&[], &[]) };
    assert_eq!(resolve(domain, "nobody@x.org"), AddressResolution::Unknown);
}

#[test]
fn unknown_targets_are_dropped_while_others_remain() {
    let domain =
        || domain_x_org(&["bob@x.org"], &[("team@x.org", "bob@x.org gone@x.org"), ("old@x.org", "gone@x.org")]);
    assert_eq!(resolve(domain(), "team@x.org"), local(&["bob@x.org"], Some("team@x.org")));
    assert_eq!(resolve(domain(), "old@x.org"), AddressResolution::Unknown);
}

#[test]
fn the_postmaster_is_always_known() {
    let mailbox = local(&["postmaster@x.org"], None);
    assert_eq!(resolve(domain_x_org(&[], &[]), "PostMaster@x.org"), mailbox);
    assert_eq!(resolve(domain_x_org(&[], &[("postmaster@x.org", "gone@x.org")]), "postmaster@x.org"), mailbox);
    let led_to = domain_x_org(&[], &[("help@x.org", "postmaster@x.org")]);
    assert_eq!(resolve(led_to, "help@x.org"), local(&["postmaster@x.org"], Some("help@x.org")));
    let aliased = domain_x_org(&[], &[("postmaster@x.org", "root@y.org")]);
    assert_eq!(resolve(aliased, "postmaster@x.org"), local(&[">root@y.org"], Some("postmaster@x.org")));
    let catch_all = LocalDomain { catch_all: Some(address("root@y.org")), ..domain_x_org(&[], &[]) };
    assert_eq!(resolve(catch_all, "postmaster@x.org"), local(&[">root@y.org"], Some("postmaster@x.org")));
}

#[test]
fn a_wildcard_mailbox_is_asked_for_last_and_only_where_the_domain_has_one() {
    let mailboxes = ScriptedTable::new(&[("bob@x.org", ""), ("@x.org", "rest/")]);
    let aliases = ScriptedTable::new(&[("team@x.org", "one@x.org two+tag@x.org"), ("own@x.org", "own@x.org c@y.org")]);
    let plain = || domain("x.org", &mailboxes, &aliases);
    assert_eq!(resolve(plain(), "nobody@x.org"), AddressResolution::Unknown);
    assert_eq!(mailboxes.asked(), [["nobody@x.org"]], "one lookup, as without the setting");
    let wild = || LocalDomain { wildcard_mailbox: true, catch_all: Some(address("lost@y.org")), ..plain() };
    assert_eq!(resolve(wild(), "Bob@x.org"), local(&["bob@x.org"], None));
    assert_eq!(mailboxes.asked()[1..], [["bob@x.org"]], "a known mailbox costs nothing more");
    assert_eq!(resolve(wild(), "Nobody+Tag@x.org"), local(&["nobody@x.org"], Some("Nobody+Tag@x.org")));
    let asked = mailboxes.asked().len();
    assert_eq!(resolve(wild(), "team@x.org"), local(&["one@x.org", "two@x.org"], Some("team@x.org")));
    assert_eq!(mailboxes.asked()[asked + 1..], [["@x.org", "@x.org"]], "both together, after their own keys");
    let AddressResolution::Local(own) = resolve(wild(), "own@x.org") else { panic!("it is an alias of itself") };
    assert_eq!(own.len(), 2, "{own:?}");
    let relayed = LocalDomain { is_final: false, ..wild() };
    assert_eq!(resolve(relayed, "Nobody+Tag@x.org"), local(&["Nobody+Tag@x.org"], None));
    let by_alias = ScriptedTable::new(&[("@x.org", "all@y.org")]);
    let aliased = LocalDomain { aliases: Some(by_alias), ..wild() };
    assert_eq!(resolve(aliased, "nobody@x.org"), local(&[">all@y.org"], Some("nobody@x.org")));
    let down = ScriptedTable::new(&[("@x.org", "DOWN")]);
    let unsaid = LocalDomain { mailboxes: Some(down), ..wild() };
    assert_eq!(resolve(unsaid, "nobody@x.org"), AddressResolution::Unavailable("it is down".into()));
    let none = LocalDomain { mailboxes: Some(ScriptedTable::new(&[])), ..wild() };
    assert_eq!(resolve(none, "nobody@x.org"), local(&[">lost@y.org"], Some("nobody@x.org")));
}

#[test]
fn unavailable_is_never_taken_for_not_found() {
    let down = AddressResolution::Unavailable("it is down".into());
    let mailboxes = ScriptedTable::new(&[("bob@x.org", ""), ("carol@x.org", "DOWN"), ("erin@x.org", "")]);
    let aliases = ScriptedTable::new(&[
        ("bob@x.org", "DOWN"),
        ("team@x.org", "erin@x.org carol@x.org"),
        ("erin@x.org", "erin@x.org"),
        ("postmaster@x.org", "DOWN"),
        ("tagged@x.org", "DOWN"),
        ("tagged+a@x.org", "erin@x.org"),
        ("@x.org", "DOWN"),
    ]);
    let domain = || LocalDomain { catch_all: Some(address("erin@x.org")), ..domain("x.org", &mailboxes, &aliases) };
    for text in ["bob@x.org", "carol@x.org", "team@x.org", "postmaster@x.org", "bob+tag@x.org", "nobody@x.org"] {
        assert_eq!(resolve(domain(), text), down, "{text}");
    }
    // Keys after the first one found do not matter.
    assert_eq!(resolve(domain(), "tagged+a@x.org"), local(&["erin@x.org"], Some("tagged+a@x.org")));
}

#[test]
fn an_alias_that_names_no_address_is_a_fault_of_the_table_and_not_of_the_sender() {
    let domain = || domain_x_org(&[], &[("bob@x.org", "carol"), ("none@x.org", "")]);
    let AddressResolution::Unavailable(why) = resolve(domain(), "bob@x.org") else { panic!("the alias is wrong") };
    assert_eq!(why, "table 'script': the alias for bob@x.org names 'carol': the domain is missing");
    assert!(matches!(resolve(domain(), "none@x.org"), AddressResolution::Unavailable(_)));
}

struct SilentTable;

impl Table for SilentTable {
    fn name(&self) -> &str {
        "mute"
    }

    fn lookup<'a>(&'a self, _: &'a [&'a str]) -> LookupFuture<'a> {
        Box::pin(std::future::ready(Vec::new()))
    }
}

#[test]
fn a_table_that_leaves_a_question_open_is_unavailable() {
    let domain = LocalDomain { mailboxes: Some(Arc::new(SilentTable)), ..domain_x_org(&[], &[]) };
    assert!(matches!(resolve(domain, "bob@x.org"), AddressResolution::Unavailable(_)));
}

#[test]
fn a_round_asks_a_table_once_for_each_step_with_the_keys_of_all_domains() {
    let mailboxes = ScriptedTable::new(&[("a@x.org", ""), ("b@y.org", "")]);
    let aliases = ScriptedTable::new(&[("team@x.org", "a@x.org b+t@y.org A@x.org")]);
    let domains = vec![domain("x.org", &mailboxes, &aliases), domain("y.org", &mailboxes, &aliases)];
    let directory = RecipientDirectory::new(domains, AliasLimits::default());
    assert_eq!(resolve_in(&directory, "team@x.org"), local(&["a@x.org", "b@y.org"], Some("team@x.org")));
    assert_eq!(aliases.asked(), [vec!["team@x.org"], vec!["a@x.org", "b+t@y.org", "b@y.org"]]);
    assert_eq!(mailboxes.asked(), [vec!["a@x.org", "b+t@y.org", "b@y.org"]]);
}

/// The directory of host `mx1.x.org` with this table of hosts.
fn directory_with_hosts(hosts: &Arc<ScriptedTable>) -> RecipientDirectory {
    let domain = |name| LocalDomain {
        hosts: Some(hosts.clone()),
        ..domain(name, &ScriptedTable::new(&[]), &ScriptedTable::new(&[]))
    };
    let here = LocalDomain { name: "here.org".into(), ..domain_x_org(&[], &[]) };
    RecipientDirectory::new(vec![domain("x.org"), domain("z.org"), here], AliasLimits::default())
        .with_hostname("MX1.x.org")
}

fn stores(hosts: &[(&str, &str)], mailboxes: &[&str]) -> Vec<MailboxLocation> {
    let mailboxes: Vec<Address> = mailboxes.iter().map(|mailbox| address(mailbox)).collect();
    poll_ready(directory_with_hosts(&ScriptedTable::new(hosts)).mailbox_locations(&mailboxes))
}

#[test]
fn a_mailbox_is_here_unless_a_table_names_another_machine() {
    let hosts = [("bob@x.org", "Store2.x.org:2525"), ("own@x.org", "mx1.X.org"), ("port@x.org", "mx1.x.org.:25")];
    let mailboxes = ["Bob@x.org", "own@x.org", "port@x.org", "nobody@x.org", "bob@here.org", "bob@not-ours.org"];
    let at = MailboxLocation::OtherHost("store2.x.org:2525".into());
    let here = || MailboxLocation::ThisHost;
    assert_eq!(stores(&hosts, &mailboxes), [at, here(), here(), here(), here(), MailboxLocation::NextHop]);
    assert_eq!(
        stores(&[("six@x.org", "[2001:db8::1]:24")], &["six@x.org"]),
        [MailboxLocation::OtherHost("[2001:db8::1]:24".into())]
    );
}

#[test]
fn of_several_machines_the_first_counts_unless_it_is_this_one() {
    let hosts = [("two@x.org", "a.x.org b.x.org"), ("copy@x.org", "a.x.org mx1.x.org")];
    assert_eq!(
        stores(&hosts, &["two@x.org", "copy@x.org"]),
        [MailboxLocation::OtherHost("a.x.org".into()), MailboxLocation::ThisHost]
    );
}

#[test]
fn a_table_that_cannot_name_the_machine_puts_off_that_mailbox_alone() {
    let hosts = [("down@x.org", "DOWN"), ("none@x.org", ""), ("odd@x.org", "a!b"), ("bob@x.org", "a.x.org")];
    let stores = stores(&hosts, &["down@x.org", "none@x.org", "odd@x.org", "bob@x.org"]);
    let unavailable = |why: &str| MailboxLocation::Unavailable(why.into());
    assert_eq!(stores[0], unavailable("it is down"));
    assert_eq!(stores[1], unavailable("table 'script': host of none@x.org: no value"));
    assert_eq!(stores[2], unavailable("table 'script': host of odd@x.org: invalid host 'a!b'"));
    assert_eq!(stores[3], MailboxLocation::OtherHost("a.x.org".into()));
}

#[test]
fn a_table_of_machines_is_asked_once_for_the_mailboxes_of_all_domains() {
    let hosts = ScriptedTable::new(&[("b@z.org", "b.z.org")]);
    let mailboxes = ["A@x.org", "b@z.org", "c@here.org", "d@x.org"].map(address);
    let found = poll_ready(directory_with_hosts(&hosts).mailbox_locations(&mailboxes));
    assert_eq!(
        found,
        [
            MailboxLocation::ThisHost,
            MailboxLocation::OtherHost("b.z.org".into()),
            MailboxLocation::ThisHost,
            MailboxLocation::ThisHost
        ]
    );
    assert_eq!(hosts.asked(), [vec!["a@x.org", "b@z.org", "d@x.org"]]);
}

proptest! {
    #[test]
    fn whatever_aliases_name_it_ends_with_mailboxes_that_exist(
        aliases in proptest::collection::hash_map("[a-e](\\+t)?@x[.]org", "[a-e](\\+t)?@[xy][.]org( [a-e]@x[.]org){0,2}", 0..8),
        asked in "[a-e](\\+t)?@x[.]org",
    ) {
        let aliases: Vec<_> = aliases.iter().map(|(key, values)| (&**key, &**values)).collect();
        match resolve(domain_x_org(&["a@x.org", "b@x.org"], &aliases), &asked) {
            AddressResolution::Local(finals) => {
                prop_assert!(!finals.is_empty());
                for last in finals {
                    let is_mailbox = ["a@x.org", "b@x.org"].contains(&last.address.as_str());
                    prop_assert_eq!(is_mailbox, last.local);
                    prop_assert_eq!(last.local, last.address.domain() == "x.org");
                }
            }
            AddressResolution::Unknown | AddressResolution::TooDeep => {}
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

/// A directory with a table of domain names, besides `x.org`.
fn directory_with_domain_table(
    names: &Arc<ScriptedTable>,
    mailboxes: &Arc<ScriptedTable>,
    aliases: &Arc<ScriptedTable>,
) -> RecipientDirectory {
    let table = LocalDomainTable { names: names.clone(), settings: domain("", mailboxes, aliases) };
    RecipientDirectory::new(vec![domain_x_org(&["bob@x.org"], &[])], AliasLimits::default())
        .with_domain_tables(vec![table])
}

#[test]
fn a_domain_may_be_ours_since_a_table_says_so() {
    let names = ScriptedTable::new(&[("y.org", ""), ("xn--mller-kva.example", ""), ("down.org", "DOWN")]);
    let mailboxes = ScriptedTable::new(&[("bob@y.org", ""), ("bob@xn--mller-kva.example", "")]);
    let directory = directory_with_domain_table(
        &names,
        &mailboxes,
        &ScriptedTable::new(&[("carol@y.org", "bob@x.org bob@y.org eve@z.org")]),
    );
    let resolve = |text| resolve_in(&directory, text);
    assert_eq!(resolve("Bob@y.org"), local(&["bob@y.org"], None));
    assert_eq!(resolve("bob@müller.example"), local(&["bob@xn--mller-kva.example"], None));
    assert_eq!(resolve("eve@y.org"), AddressResolution::Unknown);
    assert_eq!(resolve("eve@z.org"), AddressResolution::Remote(address("eve@z.org")));
    assert_eq!(resolve("eve@down.org"), AddressResolution::Unavailable("it is down".into()));
    assert_eq!(resolve("carol@y.org"), local(&[">eve@z.org", "bob@x.org", "bob@y.org"], Some("carol@y.org")));
    let found = |name| poll_ready(directory.domain(name)).map(|domain| domain.map(|domain| domain.name.clone()));
    assert_eq!(found("y.org"), Ok(Some("y.org".into())));
    assert_eq!((found("z.org"), found("down.org")), (Ok(None), Err("it is down".into())));
    assert!(directory.is_configured_domain("x.org") && !directory.is_configured_domain("y.org"));
}

#[test]
fn names_of_domains_are_asked_for_once_and_only_where_the_configuration_has_none() {
    let names = ScriptedTable::new(&[("y.org", "")]);
    let aliases = ScriptedTable::new(&[("all@y.org", "a@y.org b@y.org c@z.org d@w.org e@x.org")]);
    let directory =
        directory_with_domain_table(&names, &ScriptedTable::new(&[("a@y.org", ""), ("b@y.org", "")]), &aliases);
    assert_eq!(resolve_in(&directory, "bob@x.org"), local(&["bob@x.org"], None));
    assert!(names.asked().is_empty());
    let expected = local(&[">c@z.org", ">d@w.org", "a@y.org", "b@y.org"], Some("all@y.org"));
    assert_eq!(resolve_in(&directory, "all@y.org"), expected);
    assert_eq!(names.asked(), [vec!["y.org"], vec!["w.org", "z.org"]]);
}

#[test]
fn mailboxes_of_a_domain_that_a_table_names_are_here_and_others_are_not() {
    let names = ScriptedTable::new(&[("y.org", ""), ("down.org", "DOWN")]);
    let directory = directory_with_domain_table(&names, &ScriptedTable::new(&[]), &ScriptedTable::new(&[]));
    let stores = |mailboxes: &[&str]| {
        let mailboxes: Vec<_> = mailboxes.iter().map(|text| address(text)).collect();
        poll_ready(directory.mailbox_locations(&mailboxes))
    };
    assert_eq!(
        stores(&["a@y.org", "b@z.org", "c@x.org"]),
        [MailboxLocation::ThisHost, MailboxLocation::NextHop, MailboxLocation::ThisHost]
    );
    let down = MailboxLocation::Unavailable("it is down".into());
    assert_eq!(
        stores(&["a@down.org", "a@y.org"]),
        [down, MailboxLocation::ThisHost],
        "one domain does not affect others"
    );
}

/// If the alias table is down, an address without alias before is still a mailbox. No address
/// becomes unknown, and the catch-all does not get mail for a possible alias.
#[test]
fn an_address_without_alias_before_an_outage_is_still_a_mailbox() {
    let down = || AddressResolution::Unavailable("it is down".into());
    let aliases = [("bob@x.org", "GONE"), ("bob+tag@x.org", "GONE"), ("eve@x.org", "GONE"), ("ann+tag@x.org", "GONE")];
    let aliases = [&aliases[..], &[("ann@x.org", "bob@x.org"), ("@x.org", "carol@z.org")]].concat();
    let catching = || LocalDomain { catch_all: Some(address("dora@z.org")), ..domain_x_org(&["bob@x.org"], &aliases) };
    assert_eq!(resolve(catching(), "bob@x.org"), local(&["bob@x.org"], None));
    assert_eq!(resolve(catching(), "bob+tag@x.org"), local(&["bob@x.org"], Some("bob+tag@x.org")));
    assert_eq!(resolve(catching(), "eve@x.org"), down());
    assert_eq!(resolve(catching(), "ann+tag@x.org"), down(), "the tagged address may have its own alias by now");
    let gone = ScriptedTable::new(&[("bob@x.org", "GONE")]);
    assert_eq!(resolve(domain("x.org", &gone, &ScriptedTable::new(&[("@x.org", "carol@z.org")])), "bob@x.org"), down());
}

/// Takes `back=LOCAL@srs.x` for the sender `LOCAL@x.org` or `LOCAL@y.org`, and knows a forged one.
struct Rewriter;

impl SenderRewriter for Rewriter {
    fn forward(&self, _sender: &Address) -> Option<Address> {
        None
    }

    fn reverse(&self, recipient: &Address) -> Option<Result<Address, ReturnRefusal>> {
        let (kind, local) = recipient.local_part().split_once('=')?;
        match kind {
            "x" | "y" => Some(Ok(address(&format!("{local}@{kind}.org")))),
            _ => Some(Err(ReturnRefusal::Forged)),
        }
    }
}

#[test]
fn a_rewritten_sender_stands_for_the_original_before_any_table_is_asked() {
    let domain = domain_x_org(&["bob@x.org", "y=eve@x.org", "z=eve@x.org"], &[]);
    let directory = RecipientDirectory::new(vec![domain], AliasLimits::default());
    let directory = directory.with_sender_rewriter(Some(Arc::new(Rewriter)));
    let returned = |text: &str, addresses: &[(&str, bool)]| {
        let found = |(to, local): &(&str, bool)| ResolvedRecipient {
            address: address(to),
            original: Some(address(text)),
            local: *local,
        };
        assert_eq!(
            resolve_in(&directory, text),
            AddressResolution::Returned(addresses.iter().map(found).collect()),
            "{text}"
        );
    };
    returned("y=eve@x.org", &[("eve@y.org", false)]);
    returned("x=bob@x.org", &[("bob@x.org", true)]);
    assert_eq!(resolve_in(&directory, "x=nobody@x.org"), AddressResolution::Unknown);
    assert_eq!(resolve_in(&directory, "z=eve@x.org"), AddressResolution::NotReturned(ReturnRefusal::Forged));
    assert_eq!(resolve_in(&directory, "bob@x.org"), local(&["bob@x.org"], None));
}
