//! The LDAP backend with a test server that can misbehave.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod server;

use std::time::Duration;

use ldap::{GroupMembersConfig, Ldap, LdapBindMethod, LdapConfig, LdapConfigError, LdapConnectionConfig, SearchScope};
use lookup::LookupAnswer;
use lookup::backend::{Backend, BackendFailure};
use server::{Behavior, Entry, Filter, Request, Server, done, element, message};

const BASE: &str = "dc=example,dc=org";
const TYPES: &[&str] = &[
    "( 0.9.2342.19200300.100.1.3 NAME ( 'mail' 'rfc822Mailbox' ) DESC 'SUP EQUALITY ( x' EQUALITY caseIgnoreIA5Match \
     SUBSTR caseIgnoreIA5SubstringsMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.26{256} )",
    "( 2.5.4.41 NAME 'name' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15{32768} )",
    "( 2.5.4.3 NAME ( 'cn' 'commonName' ) SUP name )",
    "( 1.1.1 NAME 'exact' EQUALITY caseExactMatch )",
    "( 1.1.2 NAME 'alias' EQUALITY caseIgnoreMatch )",
    "( 2.5.4.31 NAME 'member' SUP distinguishedName )",
];

fn servers(urls: &[&str]) -> LdapConnectionConfig {
    LdapConnectionConfig {
        urls: urls.iter().map(|url| url.parse().unwrap()).collect(),
        starttls: false,
        ca_file: None,
        bind: LdapBindMethod::Anonymous,
        connect_timeout: Duration::from_secs(5),
        timeout: Duration::from_secs(5),
    }
}

fn config(server: &Server) -> LdapConfig {
    LdapConfig {
        servers: servers(&[&server.url]),
        base: BASE.into(),
        scope: SearchScope::Sub,
        filter: "(mail={key})".parse().unwrap(),
        results: vec!["home".parse().unwrap()],
        members: None,
        values_max: 1000,
        entries_max: None,
        referrals: false,
    }
}

fn person(name: &str) -> Entry {
    let mail = format!("{name}@example.org");
    Entry::new(&format!("cn={name},{BASE}"), &[("cn", name), ("mail", &mail), ("home", &format!("/home/{name}"))])
}

fn people(count: usize) -> Vec<Entry> {
    (0..count).map(|number| person(&format!("u{number}"))).collect()
}

async fn ask(ldap: &Ldap, keys: &[&str]) -> Result<Vec<LookupAnswer>, BackendFailure> {
    let keys: Vec<Box<str>> = keys.iter().map(|&key| key.into()).collect();
    ldap.ask(&keys).await
}

async fn ask_one(ldap: &Ldap, key: &str) -> LookupAnswer {
    ask(ldap, &[key]).await.unwrap().pop().unwrap()
}

fn found(values: &[&str]) -> LookupAnswer {
    LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
}

fn why(answer: LookupAnswer) -> String {
    match answer {
        LookupAnswer::Unavailable(why) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn keys_that_can_share_a_search_do() {
    let server = Server::start(people(3), TYPES).await;
    let ldap = Ldap::new(config(&server), 1).unwrap();
    let keys = ["u1@example.org", "u2@example.org", "u0@example.org"];
    let answers = ask(&ldap, &keys).await.unwrap();
    assert_eq!(answers, [found(&["/home/u1"]), found(&["/home/u2"]), found(&["/home/u0"])]);
    let equal = |key: &str| Filter::Equal("mail".to_owned(), key.to_owned());
    assert_eq!(server.filters(), [Filter::Or(keys.iter().map(|key| equal(key)).collect())]);
    // The schema is read once per connection, and the connection is reused.
    ask(&ldap, &keys).await.unwrap();
    assert_eq!(server.log().len(), 2 + 2);
    assert!(server.log().iter().all(|(connection, _)| *connection == 0));
    // If nothing is found, the result is certain.
    assert_eq!(ask(&ldap, &["x", "y", "z"]).await.unwrap(), [const { LookupAnswer::NotFound }; 3]);
    assert_eq!(server.filters().len(), 3);
}

#[tokio::test]
async fn an_entry_may_be_found_by_what_is_not_shown() {
    let hidden = [("mail", "bob@example.org"), ("!alias", "robert@example.org"), ("home", "/home/bob")];
    let part = [("alias;range=0-0", "first"), ("!alias", "second"), ("home", "/home/part")];
    let entries = vec![Entry::new(&format!("cn=b,{BASE}"), &hidden), Entry::new(&format!("cn=p,{BASE}"), &part)];
    let server = Server::start([entries, people(2)].concat(), TYPES).await;
    let filter = "(|(mail={key})(alias={key}))".parse().unwrap();
    let ldap = Ldap::new(LdapConfig { filter, ..config(&server) }, 1).unwrap();
    let bob = found(&["/home/bob"]);
    let both = ask(&ldap, &["bob@example.org", "robert@example.org"]).await.unwrap();
    assert_eq!(both, [bob.clone(), bob.clone()]);
    let before = server.filters().len();
    let keys = ["bob@example.org", "x", "robert@example.org", "u1@example.org", "y"];
    let answers = ask(&ldap, &keys).await.unwrap();
    assert_eq!(answers, [bob.clone(), LookupAnswer::NotFound, bob, found(&["/home/u1"]), LookupAnswer::NotFound]);
    // One search for all, one for the keys without entries, and one for each of these.
    assert_eq!(server.filters().len() - before, 1 + 1 + 3);
    // Keys that do not exist are searched once more, together.
    let before = server.filters().len();
    let answers = ask(&ldap, &["u0@example.org", "x", "y", "z"]).await.unwrap();
    assert_eq!(answers[1..], [const { LookupAnswer::NotFound }; 3]);
    assert_eq!(server.filters().len() - before, 2);
    let answers = ask(&ldap, &["first", "second"]).await.unwrap();
    assert_eq!(answers, [found(&["/home/part"]), found(&["/home/part"])]);
}

#[tokio::test]
async fn constants_and_alternatives_around_the_key_are_kept() {
    let mut entries = people(2);
    entries.push(Entry::new(&format!("cn=a,{BASE}"), &[("alias", "U1@Example.ORG"), ("home", "/alias"), ("on", "1")]));
    entries[1].attributes.push(("on".to_owned(), vec![b"1".to_vec()]));
    let server = Server::start(entries, TYPES).await;
    let filter = "(&(on=1)(|(mail={key})(alias={key})))".parse().unwrap();
    let ldap = Ldap::new(LdapConfig { filter, ..config(&server) }, 1).unwrap();
    let answers = ask(&ldap, &["u0@example.org", "u1@example.org", "x"]).await.unwrap();
    assert_eq!(answers, [LookupAnswer::NotFound, found(&["/home/u1", "/alias"]), LookupAnswer::NotFound]);
    assert_eq!(server.filters().len(), 2);
}

#[tokio::test]
async fn values_find_their_keys_as_the_schema_says() {
    let entries = vec![
        Entry::new(&format!("cn=1,{BASE}"), &[("alias", " Big   BOSS "), ("home", "1")]),
        Entry::new(
            &format!("cn=2,{BASE}"),
            &[("alias", "other"), ("alias", "small boss"), ("home", "2"), ("home", "2b")],
        ),
        Entry::new(&format!("cn=3,{BASE}"), &[("alias;x-option", "Other"), ("home", "3"), ("home", "2")]),
    ];
    let server = Server::start(entries, TYPES).await;
    let filter = "(alias={key})".parse().unwrap();
    let ldap = Ldap::new(LdapConfig { filter, ..config(&server) }, 1).unwrap();
    let answers = ask(&ldap, &["big boss", "small boss", "other", "big  boss"]).await.unwrap();
    assert_eq!(answers, [found(&["1"]), found(&["2", "2b"]), found(&["2", "2b", "3"]), found(&["1"])]);
    assert_eq!(server.filters().len(), 1);
}

#[tokio::test]
async fn an_attribute_goes_by_all_its_names() {
    let server = Server::start(people(2), TYPES).await;
    let results = vec!["0.9.2342.19200300.100.1.3".parse().unwrap()];
    // This server has no synonyms and returns attributes by the requested name.
    let filter = "(mail={key})".parse().unwrap();
    let ldap = Ldap::new(LdapConfig { filter, results, ..config(&server) }, 1).unwrap();
    let answers = ask(&ldap, &["u0@example.org", "u1@example.org"]).await.unwrap();
    assert_eq!(answers, [found(&["u0@example.org"]), found(&["u1@example.org"])]);
}

#[tokio::test]
async fn keys_do_not_share_a_search_where_equality_is_unknown() {
    for (types, filter) in [(&[][..], "(mail={key})"), (TYPES, "(name={key})"), (TYPES, "(member={key})")] {
        let mut entries = people(40);
        for entry in &mut entries {
            let mail = entry.attributes[1].1.clone();
            entry.attributes.extend([("name".to_owned(), mail.clone()), ("member".to_owned(), mail)]);
        }
        let server = Server::start(entries, types).await;
        let ldap = Ldap::new(LdapConfig { filter: filter.parse().unwrap(), ..config(&server) }, 1).unwrap();
        let keys: Vec<String> = (0..40).map(|number| format!("u{number}@example.org")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let answers = ask(&ldap, &keys).await.unwrap();
        for (number, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer, found(&[&format!("/home/u{number}")]));
        }
        assert_eq!(server.filters().len(), 40, "{filter}");
        assert!(server.log().iter().all(|(connection, _)| *connection == 0));
    }
}

#[tokio::test]
async fn a_key_that_only_the_server_can_compare_is_not_missed() {
    // Servers treat a full-width letter as equal to the plain one (RFC 4518 section 2.3).
    let mut entries = people(2);
    entries.push(Entry::new(&format!("cn=b,{BASE}"), &[("mail", "\u{ff42}ob@example.org"), ("home", "/home/bob")]));
    let server = Server::start(entries, TYPES).await;
    let ldap = Ldap::new(config(&server), 1).unwrap();
    let answers = ask(&ldap, &["u0@example.org", "bob@example.org", "\u{ff42}ob@example.org"]).await.unwrap();
    assert_eq!(answers, [found(&["/home/u0"]), found(&["/home/bob"]), found(&["/home/bob"])]);
    // The same with another value that matches a key for certain.
    let both = [("mail", "\u{ff42}ob@example.org"), ("mail", "u9@example.org"), ("home", "/home/bob")];
    let server = Server::start(vec![Entry::new(&format!("cn=b,{BASE}"), &both)], TYPES).await;
    let ldap = Ldap::new(config(&server), 1).unwrap();
    let answers = ask(&ldap, &["bob@example.org", "u9@example.org"]).await.unwrap();
    assert_eq!(answers, [found(&["/home/bob"]), found(&["/home/bob"])]);
    // And with a value that can be searched but not read.
    let hidden = Entry::new(&format!("cn=h,{BASE}"), &[("!mail", "hidden@example.org"), ("home", "/home/hidden")]);
    let server = Server::start(vec![person("u0"), hidden], TYPES).await;
    let ldap = Ldap::new(config(&server), 1).unwrap();
    let answers = ask(&ldap, &["hidden@example.org", "u0@example.org"]).await.unwrap();
    assert_eq!(answers, [found(&["/home/hidden"]), found(&["/home/u0"])]);
}

#[tokio::test]
async fn keys_are_not_found_by_another_spelling() {
    let wide = "\u{ff42}ob@example.org";
    let hidden = Entry::new(&format!("cn=h,{BASE}"), &[("!mail", "hib@example.org"), ("home", "/h")]);
    let own = Entry::new(&format!("cn=o,{BASE}"), &[("mail", "  \u{dc}wer  X"), ("home", "/own")]);
    let server = Server::start(vec![person("bob"), own, hidden], TYPES).await;
    let ldap = Ldap::new(config(&server), 1).unwrap();
    assert_eq!(ask_one(&ldap, "bob@example.org").await, found(&["/home/bob"]));
    assert_eq!(ask_one(&ldap, wide).await, LookupAnswer::NotFound);
    assert_eq!(ask(&ldap, &["x", wide, "\u{fc}wer x"]).await.unwrap()[1..], [LookupAnswer::NotFound, found(&["/own"])]);
    // If compared values are not all visible, the result is unknown.
    assert!(why(ask_one(&ldap, "hi\u{ff42}@example.org").await).ends_with("does not show how it is spelled"));
    let filter = "(|(mail={key})(alias={key}))".parse().unwrap();
    let ldap = Ldap::new(LdapConfig { filter, ..config(&server) }, 1).unwrap();
    why(ask_one(&ldap, wide).await);
    // If the filter compares differently, every match counts.
    let filter = "(&(mail={key})(mail={key}))".parse().unwrap();
    let ldap = Ldap::new(LdapConfig { filter, ..config(&server) }, 1).unwrap();
    assert_eq!(ask_one(&ldap, wide).await, found(&["/home/bob"]));
}

#[tokio::test]
async fn case_counts_where_the_schema_says_so() {
    let entry = Entry::new(&format!("cn=b,{BASE}"), &[("exact", "Bob"), ("exact", "x  y"), ("home", "/home/bob")]);
    let server = Server::start(vec![entry], TYPES).await;
    let filter = "(exact={key})".parse().unwrap();
    let ldap = Ldap::new(LdapConfig { filter, ..config(&server) }, 1).unwrap();
    assert_eq!(ask(&ldap, &["x y", "x  y"]).await.unwrap(), [found(&["/home/bob"]), found(&["/home/bob"])]);
    assert_eq!(server.filters().len(), 1);
    // By the schema the entry does not match this key, so the server is asked again.
    ask(&ldap, &["bob", "x y"]).await.unwrap();
    assert_eq!(server.filters()[2..], [Filter::Equal("exact".to_owned(), "bob".to_owned())]);
}

#[tokio::test]
async fn too_many_entries_split_the_batch() {
    let mut entries = people(8);
    entries
        .extend((0..3).map(|n| Entry::new(&format!("cn=d{n},{BASE}"), &[("mail", "many@example.org"), ("home", "x")])));
    let server = Server::start(entries, TYPES).await;
    let ldap = Ldap::new(config(&server), 1).unwrap();
    let keys: Vec<String> = (0..8).map(|number| format!("u{number}@example.org")).collect();
    let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    keys.push("many@example.org");
    for behavior in [Behavior::SizeLimit(2), Behavior::SizeLimit(1)] {
        server.set(behavior);
        let mut answers = ask(&ldap, &keys).await.unwrap();
        let many = why(answers.pop().unwrap());
        assert_eq!(many, format!("{}: sizeLimitExceeded (4): too many", server.url));
        for (number, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer, found(&[&format!("/home/u{number}")]));
        }
    }
    // A key that the server rejects as a value does not affect others.
    server.set(Behavior::Splits(21));
    assert_eq!(ask_one(&ldap, "u3@example.org").await, found(&["/home/u3"]));
    assert!(ask(&ldap, &keys[..8]).await.unwrap().iter().all(|answer| matches!(answer, LookupAnswer::Found(_))));
}

#[tokio::test]
async fn a_key_with_too_many_values_is_not_read_to_its_end() {
    let many = |n| Entry::new(&format!("cn={n},{BASE}"), &[("mail", "many@example.org"), ("home", &format!("/{n}"))]);
    let server = Server::start((0..1000).map(many).collect(), TYPES).await;
    let ldap = Ldap::new(LdapConfig { values_max: 10, ..config(&server) }, 1).unwrap();
    assert_eq!(why(ask_one(&ldap, "many@example.org").await), format!("{}: more than 10 values", server.url));
    server.wait_for_request(&Request::Abandon).await;
    // Remaining responses of the abandoned search are ignored.
    assert_eq!(ask_one(&ldap, "nobody@example.org").await, LookupAnswer::NotFound);
    assert_eq!(server.log().last().unwrap().0, 0);
    let ldap = Ldap::new(LdapConfig { values_max: 1000, ..config(&server) }, 1).unwrap();
    let LookupAnswer::Found(values) = ask_one(&ldap, "many@example.org").await else { panic!() };
    assert!(values.iter().enumerate().all(|(n, value)| *value == format!("/{n}")) && values.len() == 1000);
}

#[tokio::test]
async fn what_servers_refuse_is_never_an_absence() {
    let mut entries = people(2);
    entries.push(Entry::new(BASE, &[]));
    let server = Server::start(entries, TYPES).await;
    let ldap = Ldap::new(config(&server), 1).unwrap();
    let keys = ["u0@example.org", "u1@example.org"];
    server.set(Behavior::Code(32, "no base", Vec::new()));
    for answer in ask(&ldap, &keys).await.unwrap() {
        let expected = format!("{}: base '{BASE}': noSuchObject (32): no base", server.url);
        assert_eq!(why(answer), expected);
    }
    ldap.probe().await.unwrap();
    for code in [1, 2, 8, 50, 52, 53, 80, 99] {
        server.set(Behavior::Code(code, "details", Vec::new()));
        let failure = ask(&ldap, &keys).await.unwrap_err();
        assert_eq!(*failure.at, server.url);
        assert!(failure.what.contains(&code.to_string()) && failure.what.ends_with(": details"), "{failure}");
        ldap.probe().await.unwrap_err();
    }
    server.set(Behavior::Code(10, "", vec!["ldap://elsewhere/dc=x".to_owned()]));
    let failure = ask(&ldap, &keys).await.unwrap_err();
    let expected = "referral to ldap://elsewhere/dc=x, but referrals are disabled: referral (10)";
    assert_eq!(&*failure.what, expected);
    // References to other parts of the tree do not affect entries found here.
    server.set(Behavior::References(vec!["ldap://elsewhere/dc=x".to_owned()]));
    assert_eq!(ask_one(&ldap, keys[0]).await, found(&["/home/u0"]));
    server.set(Behavior::Normal);
    assert_eq!(ask_one(&ldap, keys[0]).await, found(&["/home/u0"]));
    ldap.probe().await.unwrap();
}

#[tokio::test]
async fn a_probe_asks_what_requests_ask() {
    let server = Server::start(people(1), TYPES).await;
    let ldap = Ldap::new(config(&server), 1).unwrap();
    // No key is known yet.
    ldap.probe().await.unwrap();
    assert_eq!(server.filters().pop(), Some(Filter::Present("objectClass".to_owned())));
    let asks = |key: &str| Some(Filter::Equal("mail".to_owned(), key.to_owned()));
    server.set(Behavior::Code(53, "not indexed", Vec::new()));
    ask(&ldap, &["bad"]).await.unwrap_err();
    ldap.probe().await.unwrap_err();
    assert_eq!(server.filters().pop(), asks("bad"));
    server.set(Behavior::Normal);
    ask_one(&ldap, "good").await;
    server.set(Behavior::Code(53, "not indexed", Vec::new()));
    ask(&ldap, &["bad"]).await.unwrap_err();
    ldap.probe().await.unwrap_err();
    // An answered key shows whether the server works, even if later requests were for others.
    assert_eq!(server.filters().pop(), asks("good"));
}

#[tokio::test]
async fn a_probe_does_not_wait_for_a_server_that_says_nothing() {
    let (first, second) = (Server::start(people(1), TYPES).await, Server::start(people(1), TYPES).await);
    let servers = LdapConnectionConfig { timeout: Duration::from_secs(600), ..servers(&[&first.url, &second.url]) };
    let ldap = Ldap::new(LdapConfig { servers, ..config(&first) }, 1).unwrap();
    first.set(Behavior::Silent);
    tokio::time::timeout(Duration::from_secs(10), ldap.probe()).await.expect("the second server answers").unwrap();
}

#[tokio::test]
async fn a_key_that_is_too_much_for_the_server_harms_no_other() {
    let server = Server::start(people(3), TYPES).await;
    let alone = "(&(mail={key})(mail={key}))".parse().unwrap();
    let alone = Ldap::new(LdapConfig { filter: alone, ..config(&server) }, 1).unwrap();
    let together = Ldap::new(config(&server), 1).unwrap();
    let keys = ["u0@example.org", "u1@example.org", "u2@example.org"];
    for code in [3, 11, 53, 80] {
        server.set(Behavior::Refuses("u1@example.org", code));
        for ldap in [&alone, &together] {
            if code > 11 && std::ptr::eq(ldap, &together) {
                continue;
            }
            let mut answers = ask(ldap, &keys).await.unwrap();
            let words = why(answers.remove(1));
            assert!(words.starts_with(&server.url) && words.ends_with(&format!("({code}): too much")), "{words}");
            assert_eq!(answers, [found(&["/home/u0"]), found(&["/home/u2"])]);
        }
        let asked = ask(&alone, &keys[1..2]).await;
        assert_eq!(asked.is_ok(), code <= 11, "{asked:?}");
    }
}

#[tokio::test]
async fn a_busy_server_is_asked_again_after_a_pause() {
    let server = Server::start(people(2), TYPES).await;
    let ldap = Ldap::new(config(&server), 1).unwrap();
    server.set(Behavior::Code(51, "later", Vec::new()));
    let free_later = async {
        server.wait_for_searches(3).await;
        server.set(Behavior::Normal);
    };
    let (answers, ()) = tokio::join!(ask(&ldap, &["u0@example.org", "u1@example.org"]), free_later);
    assert_eq!(answers.unwrap(), [found(&["/home/u0"]), found(&["/home/u1"])]);
    assert!(server.log().iter().all(|(connection, _)| *connection == 0));
    // Not forever.
    server.set(Behavior::Code(51, "later", Vec::new()));
    let servers = LdapConnectionConfig { timeout: Duration::from_millis(400), ..servers(&[&server.url]) };
    let ldap = Ldap::new(LdapConfig { servers, ..config(&server) }, 1).unwrap();
    assert_eq!(&*ask(&ldap, &["x"]).await.unwrap_err().what, "busy (51): later");
}

#[tokio::test]
async fn what_is_answered_in_time_counts_when_the_rest_is_not() {
    let server = Server::start(people(40), TYPES).await;
    let timeout = Duration::from_millis(200);
    let servers = LdapConnectionConfig { timeout, connect_timeout: timeout, ..servers(&[&server.url]) };
    let filter = "(&(mail={key})(mail={key}))".parse().unwrap();
    let ldap = Ldap::new(LdapConfig { servers, filter, ..config(&server) }, 1).unwrap();
    server.set(Behavior::SilentTo("slow"));
    let mut keys = vec!["u0@example.org"];
    let slow: Vec<String> = (0..90).map(|number| format!("slow{number}")).collect();
    keys.extend(slow.iter().map(String::as_str));
    let began = std::time::Instant::now();
    let answers = ask(&ldap, &keys).await.unwrap();
    // Six windows, each with its own timeout, would take longer.
    assert!(began.elapsed() < timeout * 5, "{:?}", began.elapsed());
    assert_eq!(answers[0], found(&["/home/u0"]));
    assert!(why(answers[1].clone()).ends_with("search: no answer within 0.2 s"));
    assert!(why(answers[90].clone()).ends_with("not all keys answered within 0.6 s"));
}

#[tokio::test]
async fn binds_as_configured() {
    let server = Server::start(people(1), TYPES).await;
    let bind = LdapBindMethod::Simple { dn: "cn=mail".into(), password: "secret".into() };
    for (bind, said) in [
        (LdapBindMethod::Anonymous, None),
        (bind.clone(), Some(Request::Bind { dn: "cn=mail".to_owned(), password: "secret".to_owned() })),
        (LdapBindMethod::External, Some(Request::External)),
    ] {
        let said_before = server.log().len();
        let servers = LdapConnectionConfig { bind, ..servers(&[&server.url]) };
        let ldap = Ldap::new(LdapConfig { servers, ..config(&server) }, 1).unwrap();
        assert_eq!(ask_one(&ldap, "u0@example.org").await, found(&["/home/u0"]));
        let mut log = server.log().into_iter().skip(said_before).map(|(_, request)| request);
        let bind = log.find(|request| !matches!(request, Request::Search { .. } | Request::Unbind));
        assert_eq!(bind, said);
    }
    server.set(Behavior::NoBind(49, "wrong"));
    assert!(!format!("{bind:?}").contains("secret"));
    let servers = LdapConnectionConfig { bind, ..servers(&[&server.url]) };
    let ldap = Ldap::new(LdapConfig { servers, ..config(&server) }, 1).unwrap();
    let failure = ask(&ldap, &["x"]).await.unwrap_err();
    assert_eq!(failure, BackendFailure::new(&*server.url, "bind: invalidCredentials (49): wrong"));
}

#[tokio::test]
async fn what_cannot_work_is_refused_at_once() {
    let server = Server::start(Vec::new(), &[]).await;
    let bind = LdapBindMethod::Simple { dn: "cn=mail".into(), password: "".into() };
    let with = |servers| Ldap::new(LdapConfig { servers, ..config(&server) }, 1).err();
    assert_eq!(with(LdapConnectionConfig { bind, ..servers(&[&server.url]) }), Some(LdapConfigError::EmptyPassword));
    assert_eq!(with(servers(&[])), Some(LdapConfigError::NoServer));
    let missing =
        LdapConnectionConfig { ca_file: Some("/nonexistent/ca.pem".into()), ..servers(&["ldaps://127.0.0.1"]) };
    assert!(with(missing).unwrap().to_string().starts_with("/nonexistent/ca.pem: "));
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("ca.pem");
    std::fs::write(&empty, "nothing").unwrap();
    let empty = LdapConnectionConfig { ca_file: Some(empty), starttls: true, ..servers(&[&server.url]) };
    assert!(with(empty).unwrap().to_string().ends_with("no certificate found"));
}

#[tokio::test]
async fn malformed_answers_fail_the_request_only() {
    let server = Server::start(people(1), TYPES).await;
    let servers = LdapConnectionConfig { timeout: Duration::from_millis(300), ..servers(&[&server.url]) };
    let ldap = Ldap::new(LdapConfig { servers, ..config(&server) }, 1).unwrap();
    // Nested elements.
    let nested = (0..5000).fold(Vec::new(), |within, _| element(0x30, &within));
    let entry = |attributes: &[u8]| element(0x64, &[element(4, b"cn=x"), attributes.to_vec()].concat());
    let wrong: Vec<(&str, Vec<u8>)> = vec![
        ("not LDAP", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("an empty message", element(0x30, b"")),
        ("no number", element(0x30, &element(4, b""))),
        ("no operation", element(0x30, &element(2, &[4]))),
        ("a negative number", element(0x30, &[element(2, &[0xff; 4]), done(0x65, 0, "", &[])].concat())),
        ("an unknown operation", message(3, &element(0x7e, b""))),
        ("an invalid result", message(3, &element(0x65, &element(4, b"x")))),
        ("a truncated result", message(3, &[0x65, 0x20, 0x0a, 1, 0])),
        ("an empty entry", message(3, &element(0x64, b""))),
        ("invalid attributes", message(3, &entry(&element(0x30, &element(4, b"x"))))),
        ("invalid values", message(3, &entry(&element(0x30, &element(0x30, &element(4, b"mail")))))),
        ("a DN that is not UTF-8", message(3, &element(0x64, &[element(4, &[0xff]), element(0x30, b"")].concat()))),
        ("a huge length", vec![0x30, 0x84, 0xff, 0xff, 0xff, 0xff, 2, 1, 3]),
        ("an even larger length", vec![0x30, 0x88, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ("an indefinite length", vec![0x30, 0x80, 2, 1, 3, 0, 0]),
        ("deep nesting", message(3, &element(0x64, &nested))),
        ("deeply nested controls", message(3, &[done(0x65, 0, "", &[]), element(0xa0, &nested)].concat())),
    ];
    for (what, octets) in wrong {
        server.set(Behavior::Sends(octets.clone()));
        let failure = ask(&ldap, &["u0@example.org"]).await.unwrap_err();
        assert!(failure.what.contains("malformed message"), "{what}: {failure}");
        // Cut at any position.
        for cut in [1, octets.len() / 2, octets.len() - 1] {
            server.set(Behavior::SendsAndCloses(octets[..cut].to_vec()));
            let failure = ask(&ldap, &["u0@example.org"]).await.unwrap_err();
            let is_told = failure.what.contains("closed") || failure.what.contains("malformed");
            assert!(is_told, "{what}: {failure}");
        }
    }
    // Each promises more data than arrives, but within the limit.
    let promises = std::iter::repeat_n([0x30, 0x84, 0, 0xf0, 0, 0], 100_000).flatten().collect();
    server.set(Behavior::Sends(promises));
    assert!(ask(&ldap, &["u0@example.org"]).await.unwrap_err().what.contains("no answer within"));
    server.set(Behavior::Normal);
    assert_eq!(ask_one(&ldap, "u0@example.org").await, found(&["/home/u0"]));
}

#[tokio::test]
async fn a_notice_of_disconnection_is_quoted() {
    let server = Server::start(people(1), TYPES).await;
    let ldap = Ldap::new(config(&server), 1).unwrap();
    let name = element(0x8a, b"1.3.6.1.4.1.1466.20036");
    let leave = message(0, &element(0x78, &[&done(0x78, 52, "going down", &[])[2..], &name].concat()));
    // Active Directory puts the name elsewhere.
    let other = element(0x30, &[element(2, &[0]), done(0x78, 52, "going down", &[]), name.clone()].concat());
    for leave in [leave, other] {
        server.set(Behavior::Sends(leave));
        let failure = ask(&ldap, &["u0@example.org"]).await.unwrap_err();
        assert_eq!(&*failure.what, "the server is closing the connection: unavailable (52): going down");
    }
}

#[tokio::test]
async fn a_silent_server_is_given_up_and_the_search_abandoned() {
    let server = Server::start(people(1), TYPES).await;
    let servers = LdapConnectionConfig { timeout: Duration::from_millis(100), ..servers(&[&server.url]) };
    let ldap = Ldap::new(LdapConfig { servers, ..config(&server) }, 1).unwrap();
    server.set(Behavior::Silent);
    let failure = ask(&ldap, &["u0@example.org"]).await.unwrap_err();
    assert_eq!(failure, BackendFailure::new(&*server.url, "search: no answer within 0.1 s"));
    server.wait_for_request(&Request::Abandon).await;
    // The request was repeated on a new connection, and both were closed.
    server.wait_for_request(&Request::Unbind).await;
    assert_eq!(server.filters().len(), 2);
}

#[tokio::test]
async fn a_connection_that_was_lost_is_replaced() {
    let server = Server::start(people(1), TYPES).await;
    let ldap = Ldap::new(config(&server), 1).unwrap();
    assert_eq!(ask_one(&ldap, "u0@example.org").await, found(&["/home/u0"]));
    server.hang_up();
    assert_eq!(ask_one(&ldap, "u0@example.org").await, found(&["/home/u0"]));
    let answered = server.log().last().unwrap().0;
    assert_eq!(answered, 1);
    // A server that closes every connection fails the request after two connections.
    server.set(Behavior::SendsAndCloses(Vec::new()));
    let failure = ask(&ldap, &["u0@example.org"]).await.unwrap_err();
    assert!(failure.what.contains("closed") || failure.what.contains("lost"), "{failure}");
    assert_eq!(server.log().last().unwrap().0, 2);
}

#[tokio::test]
async fn the_next_server_answers_for_one_that_fails() {
    let first = Server::start(people(1), TYPES).await;
    let second = Server::start(people(1), TYPES).await;
    let both = |timeout| LdapConnectionConfig { timeout, ..servers(&[&first.url, &second.url]) };
    let wait = Duration::from_secs(5);
    let ldap = Ldap::new(LdapConfig { servers: both(wait), ..config(&first) }, 1).unwrap();
    assert_eq!(ask_one(&ldap, "u0@example.org").await, found(&["/home/u0"]));
    assert!(second.log().is_empty());
    for behavior in [
        Behavior::Code(51, "", Vec::new()),
        Behavior::Code(52, "", Vec::new()),
        Behavior::SendsAndCloses(Vec::new()),
        Behavior::Sends(b"?".to_vec()),
        Behavior::NoBind(49, "nobody"),
        Behavior::Silent,
    ] {
        let wait = if matches!(behavior, Behavior::Silent) { Duration::from_millis(100) } else { wait };
        let bind = LdapBindMethod::Simple { dn: "cn=mail".into(), password: "secret".into() };
        let ldap = Ldap::new(LdapConfig { servers: LdapConnectionConfig { bind, ..both(wait) }, ..config(&first) }, 1)
            .unwrap();
        first.set(behavior.clone());
        let (asked, before) = (first.log().len(), second.filters().len());
        assert_eq!(ask_one(&ldap, "u0@example.org").await, found(&["/home/u0"]), "{behavior:?}");
        assert!(first.log().len() > asked);
        let asked = first.filters().len();
        // The failed server is not asked again immediately.
        assert_eq!(ask_one(&ldap, "u0@example.org").await, found(&["/home/u0"]));
        assert_eq!((first.filters().len(), second.filters().len()), (asked, before + 2), "{behavior:?}");
    }
    // An error that both servers would return causes no failover.
    first.set(Behavior::Code(50, "", Vec::new()));
    let ldap = Ldap::new(LdapConfig { servers: both(wait), ..config(&first) }, 1).unwrap();
    assert_eq!(*ask(&ldap, &["u0@example.org"]).await.unwrap_err().at, first.url);
    let urls = first.url.clone();
    first.stop().await;
    let servers = servers(&[&urls, &second.url]);
    let ldap = Ldap::new(LdapConfig { servers, ..config(&second) }, 1).unwrap();
    assert_eq!(ask_one(&ldap, "u0@example.org").await, found(&["/home/u0"]));
    second.stop().await;
    let failure = ask(&ldap, &["u0@example.org"]).await.unwrap_err();
    assert!(failure.what.starts_with("cannot connect: "), "{failure}");
}

#[tokio::test]
async fn requests_at_once_have_connections_of_their_own() {
    let server = Server::start(people(2), TYPES).await;
    let ldap = Ldap::new(config(&server), 2).unwrap();
    for _ in 0..3 {
        let (one, other) = tokio::join!(ask(&ldap, &["u0@example.org"]), ask(&ldap, &["u1@example.org"]));
        assert_eq!((one.unwrap(), other.unwrap()), (vec![found(&["/home/u0"])], vec![found(&["/home/u1"])]));
    }
    let connections: std::collections::HashSet<usize> = server.log().into_iter().map(|(number, _)| number).collect();
    assert_eq!(connections.len(), 2);
}

#[tokio::test]
async fn results_are_made_of_attributes_and_templates() {
    let mut bad = person("bad");
    bad.attributes[2].1[0] = vec![0xff, 0xfe];
    let mut part = person("part");
    part.attributes[2].0 = "home;range=0-1499".to_owned();
    let mut many = person("many");
    many.attributes[2].1 = (0..1001).map(|number| format!("/{number}").into_bytes()).collect();
    let server = Server::start(
        vec![person("one"), Entry::new(&format!("cn=two,{BASE}"), &[("mail", "two@example.org")]), bad, part, many],
        TYPES,
    )
    .await;
    let with = |results: &[&str]| {
        let results = results.iter().map(|result| result.parse().unwrap()).collect();
        Ldap::new(LdapConfig { results, ..config(&server) }, 1).unwrap()
    };
    let keys =
        ["one@example.org", "two@example.org", "bad@example.org", "part@example.org", "many@example.org", "none"];
    let mut answers = ask(&with(&["{home}/Maildir/", "MAIL"]), &keys).await.unwrap();
    assert_eq!(answers.pop(), Some(LookupAnswer::NotFound));
    assert_eq!(why(answers.pop().unwrap()), format!("{}: more than 1000 values", server.url));
    let expected =
        format!("{}: 'cn=part,{BASE}' has more values than the server returned: 'home;range=0-1499'", server.url);
    assert_eq!(why(answers.pop().unwrap()), expected);
    assert_eq!(
        why(answers.pop().unwrap()),
        format!("{}: a value of 'home' of 'cn=bad,{BASE}' is not UTF-8", server.url)
    );
    assert_eq!(answers, [found(&["/home/one/Maildir/", "one@example.org"]), found(&["two@example.org"])]);
    // An entry without values counts as not found, unless only existence matters.
    assert_eq!(ask_one(&with(&["home"]), "two@example.org").await, LookupAnswer::NotFound);
    assert_eq!(ask_one(&with(&[]), "two@example.org").await, found(&[]));
    assert_eq!(ask_one(&with(&[]), "bad@example.org").await, found(&[]));
}

fn group(name: &str, members: &[&str]) -> Entry {
    let mail = format!("{name}@example.org");
    let dns: Vec<String> = members.iter().map(|member| format!("CN={member},{BASE}")).collect();
    let mut attributes = vec![("mail", mail.as_str())];
    attributes.extend(dns.iter().map(|dn| ("member", dn.as_str())));
    Entry::new(&format!("cn={name},{BASE}"), &attributes)
}

fn groups(depth_max: usize) -> GroupMembersConfig {
    GroupMembersConfig {
        attributes: vec!["member".into()],
        leaf_results: Vec::new(),
        terminal_results: Vec::new(),
        depth_max,
    }
}

/// ldap_table(5): a group has an address of its own, which its members must not be mistaken for.
#[tokio::test]
async fn leaf_results_are_those_of_members_and_terminal_results_end_the_search() {
    let mut entries = people(2);
    let delegated = format!("CN=u1,{BASE}");
    let host = [("mail", "far@example.org"), ("member", &*delegated), ("host", "far@lists.example")];
    entries.extend([group("staff", &["u0", "u1", "void"]), group("void", &[])]);
    entries.push(Entry::new(&format!("cn=far,{BASE}"), &host));
    let server = Server::start(entries, TYPES).await;
    let members = |terminal: &[&str]| GroupMembersConfig {
        leaf_results: vec!["mail".parse().unwrap()],
        terminal_results: terminal.iter().map(|name| name.parse().unwrap()).collect(),
        ..groups(3)
    };
    let with =
        |members| Ldap::new(LdapConfig { members: Some(members), results: Vec::new(), ..config(&server) }, 1).unwrap();
    let leaf = found(&["u0@example.org", "u1@example.org", "void@example.org"]);
    assert_eq!(ask_one(&with(members(&[])), "staff@example.org").await, leaf);
    assert_eq!(ask_one(&with(members(&[])), "u0@example.org").await, found(&["u0@example.org"]));
    assert_eq!(ask_one(&with(members(&["host"])), "far@example.org").await, found(&["far@lists.example"]));
    assert_eq!(ask_one(&with(members(&["host"])), "staff@example.org").await, leaf);
    assert_eq!(ask_one(&with(members(&[])), "far@example.org").await, found(&["u1@example.org"]));
}

#[tokio::test]
async fn a_key_of_more_entries_than_allowed_has_no_answer() {
    let entries = ["a", "b"].map(|name| Entry::new(&format!("cn={name},{BASE}"), &[("mail", "x@y"), ("home", "/h")]));
    let server = Server::start(entries.into_iter().chain(people(1)).collect(), TYPES).await;
    let with = |entries_max| Ldap::new(LdapConfig { entries_max, ..config(&server) }, 1).unwrap();
    assert_eq!(ask_one(&with(Some(2)), "x@y").await, found(&["/h"]));
    let answers = ask(&with(Some(1)), &["x@y", "u0@example.org"]).await.unwrap();
    assert_eq!(answers[1], found(&["/home/u0"]));
    assert_eq!(why(answers[0].clone()), format!("{}: more than 1 entries", server.url));
}

#[tokio::test]
async fn members_of_groups_are_followed() {
    let mut entries = people(4);
    entries.extend([
        group("staff", &["u0", "gone", "team", "u1"]),
        group("team", &["u2", "staff", "u1", "deep"]),
        group("deep", &["u3"]),
        group("void", &["gone"]),
        group("tower", &["staff"]),
        group("four", &["u0", "u1", "u2", "u3"]),
    ]);
    let server = Server::start(entries, TYPES).await;
    let members = |depth_max| Some(groups(depth_max));
    let with = |members, values_max| Ldap::new(LdapConfig { members, values_max, ..config(&server) }, 1).unwrap();
    let keys = ["staff@example.org", "u1@example.org", "void@example.org"];
    let answers = ask(&with(members(3), 1000), &keys).await.unwrap();
    let staff = found(&["/home/u0", "/home/u1", "/home/u2", "/home/u3"]);
    assert_eq!(answers, [staff.clone(), found(&["/home/u1"]), LookupAnswer::NotFound]);
    let ldap = with(members(3), 1000);
    let expected = format!("{}: groups nested more than 3 deep", server.url);
    assert_eq!(why(ask_one(&ldap, "tower@example.org").await), expected);
    assert_eq!(ask_one(&with(members(4), 1000), "tower@example.org").await, staff);
    assert_eq!(
        why(ask_one(&with(members(9), 3), "four@example.org").await),
        format!("{}: more than 3 values", server.url)
    );
    let expected = format!("{}: group with more than 4 entries", server.url);
    assert_eq!(why(ask_one(&with(members(9), 2), "staff@example.org").await), expected);
}

#[tokio::test]
async fn referrals_are_followed_where_they_may_be() {
    let here = Server::start(people(1), TYPES).await;
    let there =
        Server::start(vec![Entry::new("cn=far,ou=far", &[("mail", "far@example.org"), ("home", "/far")])], TYPES).await;
    let bind = LdapBindMethod::Simple { dn: "cn=mail".into(), password: "secret".into() };
    let servers = LdapConnectionConfig { bind, ..servers(&[&here.url]) };
    let ldap = Ldap::new(LdapConfig { referrals: true, servers, ..config(&here) }, 1).unwrap();
    let url = format!("{}/ou=far??sub", there.url);
    here.set(Behavior::References(vec!["ldap://127.0.0.1:1/ou=far".to_owned(), url.clone()]));
    let answers = ask(&ldap, &["u0@example.org", "far@example.org", "nobody@example.org"]).await.unwrap();
    assert_eq!(answers, [found(&["/home/u0"]), found(&["/far"]), LookupAnswer::NotFound]);
    assert_eq!(there.log()[0].1, Request::Bind { dn: "cn=mail".to_owned(), password: "secret".to_owned() });
    here.set(Behavior::Code(10, "", vec![url]));
    assert_eq!(ask_one(&ldap, "far@example.org").await, found(&["/far"]));
    // A referral loop.
    let before = here.filters().len();
    here.set(Behavior::Code(10, "", vec![here.url.clone()]));
    let failure = ask(&ldap, &["far@example.org"]).await.unwrap_err();
    assert_eq!(&*failure.what, "more than 3 referrals in a row");
    assert_eq!(here.filters().len() - before, 4);
    here.set(Behavior::Code(10, "", vec!["ldap://127.0.0.1:1".to_owned()]));
    assert!(ask(&ldap, &["far@example.org"]).await.unwrap_err().what.starts_with("cannot follow referral: "));
}

#[tokio::test]
async fn passwords_do_not_follow_referrals_into_the_open() {
    let here = Server::start(people(1), TYPES).await;
    let there = Server::start(people(2), TYPES).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let address = here.url.strip_prefix("ldap://").unwrap().to_owned();
    let passing_on = tokio::spawn(async move {
        loop {
            let (mut from, _) = listener.accept().await.unwrap();
            let mut to = tokio::net::TcpStream::connect(&address).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
        }
    });
    here.set(Behavior::References(vec![there.url.clone()]));
    let bind = LdapBindMethod::Simple { dn: "cn=mail".into(), password: "secret".into() };
    let servers = LdapConnectionConfig { bind, ..servers(&[&format!("ldapi://{}", path.display())]) };
    let ldap = Ldap::new(LdapConfig { referrals: true, servers, ..config(&here) }, 1).unwrap();
    let failure = ask(&ldap, &["u1@example.org"]).await.unwrap_err();
    let expected = format!("cannot follow referral: {} is not encrypted, but {} is private", there.url, failure.at);
    assert_eq!(&*failure.what, expected);
    assert!(there.log().is_empty());
    passing_on.abort();
}

#[tokio::test]
async fn tls_is_not_left_out_and_nothing_comes_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, include_str!("ca.pem")).unwrap();
    let server = Server::start(people(1), TYPES).await;
    let servers = LdapConnectionConfig { starttls: true, ca_file: Some(ca), ..servers(&[&server.url]) };
    let ldap = Ldap::new(LdapConfig { servers, ..config(&server) }, 1).unwrap();
    let agreed = message(1, &done(0x78, 0, "", &[]));
    for (octets, expected) in [
        (message(1, &done(0x78, 2, "no TLS", &[])), "StartTLS: protocolError (2): no TLS"),
        ([agreed.clone(), message(2, &done(0x61, 0, "", &[]))].concat(), "StartTLS: the server sent data before TLS"),
        (message(1, &element(0x64, &[element(4, b""), element(0x30, b"")].concat())), "StartTLS: unexpected response"),
        (b"+OK".to_vec(), "malformed message: unexpected first octet"),
    ] {
        server.set(Behavior::AnswersStartTls(octets));
        let failure = ask(&ldap, &["x"]).await.unwrap_err();
        assert_eq!(*failure.what, *format!("cannot connect: {expected}"));
    }
    assert!(server.log().iter().all(|(_, request)| *request == Request::Extended));
}
