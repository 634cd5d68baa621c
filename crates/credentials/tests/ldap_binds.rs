//! Passwords checked by binds to a test LDAP server that can misbehave.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../ldap/tests/ldap/server.rs"]
mod server;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use credentials::{CredentialChecker, CredentialCheckerSettings, CredentialSource, LoginResult, ScramLookupResult};
use ldap::{LdapBindMethod, LdapConfig, LdapConnectionConfig, SearchScope};
use server::{Behavior, Entry, Request, Server};

const BASE: &str = "dc=example,dc=org";
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn person(name: &str) -> Entry {
    let mail = format!("{name}@example.org");
    Entry::new(&format!("cn={name},{BASE}"), &[("cn", name), ("mail", &mail)])
}

fn credentials(server: &Server) -> CredentialChecker {
    credentials_by(server, "(mail={key})", Duration::from_secs(5), 16)
}

fn credentials_by(server: &Server, filter: &str, timeout: Duration, binds_at_once: usize) -> CredentialChecker {
    let servers = LdapConnectionConfig {
        urls: vec![server.url.parse().unwrap()],
        starttls: false,
        ca_file: None,
        bind: LdapBindMethod::Anonymous,
        connect_timeout: Duration::from_secs(5),
        timeout,
    };
    let config = LdapConfig {
        servers,
        base: BASE.into(),
        scope: SearchScope::Sub,
        filter: filter.parse().unwrap(),
        results: Vec::new(),
        members: None,
        values_max: LdapConfig::VALUES_MAX,
        entries_max: None,
        referrals: false,
    };
    let settings = CredentialCheckerSettings {
        recent_ttl: Duration::ZERO,
        bind_concurrency: binds_at_once,
        ..CredentialCheckerSettings::default()
    };
    CredentialChecker::new(CredentialSource::Ldap(Box::new(config)), settings, [3; 32]).unwrap()
}

fn accepted(user: &str) -> LoginResult {
    LoginResult::Accepted { user: user.into() }
}

fn binds(server: &Server) -> Vec<(usize, String, String)> {
    let log = server.log().into_iter();
    log.filter_map(|(number, request)| match request {
        Request::Bind { dn, password } => Some((number, dn, password)),
        _ => None,
    })
    .collect()
}

#[tokio::test]
async fn users_who_can_bind_are_accepted() {
    let server = Server::start(vec![person("bob"), person("carol")], &[]).await;
    let credentials = credentials(&server);
    assert_eq!(credentials.verify_password("Bob@example.org", "secret", HERE).await, accepted("bob@example.org"));
    assert_eq!(credentials.verify_password("carol@example.org", "other", HERE).await, accepted("carol@example.org"));
    let bound = binds(&server);
    assert_eq!(bound[0].1, "cn=bob,dc=example,dc=org");
    assert_eq!((&*bound[1].1, &*bound[1].2), ("cn=carol,dc=example,dc=org", "other"));
    assert_eq!(bound[0].0, bound[1].0, "the connection is reused");
    let log = server.log();
    let mut searches = log.iter().filter(|(_, request)| matches!(request, Request::Search { .. }));
    assert!(searches.all(|(number, _)| *number != bound[0].0), "no search on a user's connection");
    assert!(!credentials.can_scram());
    assert!(matches!(credentials.find_scram_keys("bob@example.org", HERE).await, ScramLookupResult::Unknown { .. }));
}

#[tokio::test]
async fn an_empty_password_and_an_unknown_user_are_refused_without_a_bind() {
    let server = Server::start(vec![person("bob")], &[]).await;
    let credentials = credentials(&server);
    for (user, password) in [("bob@example.org", ""), ("nobody@example.org", "x"), ("*", "x"), ("b*@example.org", "x")]
    {
        assert_eq!(credentials.verify_password(user, password, HERE).await, LoginResult::Refused, "{user}");
    }
    assert_eq!(binds(&server), []);
}

#[tokio::test]
async fn what_the_directory_says_of_a_bind_is_told_apart() {
    let server = Server::start(vec![person("bob")], &[]).await;
    let credentials = credentials(&server);
    for code in [49, 53, 19, 48] {
        server.set(Behavior::NoBind(code, "no"));
        assert_eq!(credentials.verify_password("bob@example.org", "x", HERE).await, LoginResult::Refused, "{code}");
    }
    for (code, client) in [1, 8, 13, 51, 52, 80].into_iter().zip(2..) {
        let client = IpAddr::V4(Ipv4Addr::new(127, 0, 0, client));
        server.set(Behavior::NoBind(code, "not now"));
        match credentials.verify_password("bob@example.org", "x", client).await {
            LoginResult::Unavailable(why) => {
                assert!(why.contains("not now"), "{why}")
            }
            other => panic!("{code}: {other:?}"),
        }
    }
    server.set(Behavior::Normal);
    assert_eq!(credentials.verify_password("bob@example.org", "x", HERE).await, accepted("bob@example.org"));
}

#[tokio::test]
async fn a_user_with_two_entries_is_unusable() {
    let mut other = person("bob");
    other.dn = format!("cn=other,{BASE}");
    let server = Server::start(vec![person("bob"), other], &[]).await;
    let credentials = credentials(&server);
    let refused = |verdict| matches!(verdict, LoginResult::Unusable(why) if why.contains("entr"));
    assert!(refused(credentials.verify_password("bob@example.org", "x", HERE).await));
    server.set(Behavior::SizeLimit(1));
    assert!(refused(credentials.verify_password("bob@example.org", "x", HERE).await));
    // The search counts as a failure; the repetition was free.
    for number in 0..4 {
        assert!(refused(credentials.verify_password("bob@example.org", &number.to_string(), HERE).await), "{number}");
    }
    assert_eq!(credentials.verify_password("bob@example.org", "x", HERE).await, LoginResult::Throttled);
    assert_eq!(binds(&server), []);
}

#[tokio::test]
async fn names_that_only_the_server_considers_equal_are_refused() {
    // A full-width b, which the server considers equal to the plain one.
    let spelled = "\u{ff42}ob@example.org";
    let mut hidden = person("carol");
    hidden.attributes.iter_mut().for_each(|(name, _)| name.insert(0, '!'));
    let mut wide = person("dave");
    wide.attributes[1].1 = vec!["  Dave  \u{c4}@Example.org".into()];
    let server = Server::start(vec![person("bob"), hidden, wide], &[]).await;
    let credentials = credentials(&server);
    assert_eq!(credentials.verify_password(spelled, "x", HERE).await, LoginResult::Refused);
    for user in ["bob@example.org ", " bob@example.org"] {
        assert_eq!(credentials.verify_password(user, "x", HERE).await, LoginResult::Refused, "{user}");
    }
    assert_eq!(binds(&server), []);
    assert_eq!(credentials.verify_password("BOB@example.org", "x", HERE).await, accepted("bob@example.org"));
    assert_eq!(
        credentials.verify_password("dave \u{e4}@example.org", "x", HERE).await,
        accepted("dave \u{e4}@example.org")
    );
    // A name in printable ASCII has no other spelling, even if its values are not readable.
    assert_eq!(credentials.verify_password("carol@example.org", "x", HERE).await, accepted("carol@example.org"));
    let by_part = credentials_by(&server, "(cn={local})", Duration::from_secs(5), 16);
    assert_eq!(by_part.verify_password("bob", "x", HERE).await, accepted("bob"));
    let refused = |verdict| matches!(verdict, LoginResult::Unusable(why) if why.contains("spelled"));
    assert!(refused(by_part.verify_password("\u{ff42}ob", "x", HERE).await));
    let refused = |verdict| matches!(verdict, LoginResult::Unusable(why) if why.contains("any domain"));
    assert!(refused(by_part.verify_password("bob@anywhere.org", "x", HERE).await));
    let by_either = credentials_by(&server, "(|(cn={local})(mail={local}@{domain}))", Duration::from_secs(5), 16);
    assert!(refused(by_either.verify_password("bob@anywhere.org", "x", HERE).await));
    let by_whole = credentials_by(&server, "(mail={local}@{domain})", Duration::from_secs(5), 16);
    assert_eq!(by_whole.verify_password("bob@example.org", "x", HERE).await, accepted("bob@example.org"));
}

#[tokio::test]
async fn a_directory_that_fails_is_unavailable_until_it_works_again() {
    let server = Server::start(vec![person("bob")], &[]).await;
    let credentials = credentials(&server);
    server.set(Behavior::Code(52, "going down", Vec::new()));
    assert!(matches!(credentials.verify_password("bob@example.org", "x", HERE).await, LoginResult::Unavailable(_)));
    server.set(Behavior::Normal);
    assert_eq!(credentials.verify_password("bob@example.org", "x", HERE).await, accepted("bob@example.org"));
    // Idle connections that the server has closed.
    server.hang_up();
    assert_eq!(credentials.verify_password("bob@example.org", "x", HERE).await, accepted("bob@example.org"));
    server.stop().await;
    assert!(matches!(credentials.verify_password("bob@example.org", "x", HERE).await, LoginResult::Unavailable(_)));
}

#[tokio::test]
async fn a_bind_that_is_not_answered_is_a_failure_and_not_sent_again() {
    for behavior in [Behavior::SilentToBinds, Behavior::ClosesAtBinds, Behavior::NoBind(51, "busy")] {
        let server = Server::start(vec![person("bob")], &[]).await;
        let credentials = credentials_by(&server, "(mail={key})", Duration::from_millis(300), 16);
        // The next bind uses a connection that has worked.
        assert_eq!(credentials.verify_password("bob@example.org", "x", HERE).await, accepted("bob@example.org"));
        server.set(behavior.clone());
        for number in 0..5 {
            let verdict = credentials.verify_password("bob@example.org", &number.to_string(), HERE).await;
            assert!(matches!(verdict, LoginResult::Unavailable(_)), "{behavior:?}: {verdict:?}");
        }
        assert_eq!(binds(&server).len(), 6, "{behavior:?}");
        assert_eq!(
            credentials.verify_password("bob@example.org", "x", HERE).await,
            LoginResult::Throttled,
            "{behavior:?}"
        );
    }
}

/// Failed binds are not cached, so each one has its full cost for the server.
#[tokio::test]
async fn the_same_wrong_password_is_not_bound_with_over_and_over() {
    let server = Server::start(vec![person("bob")], &[]).await;
    let credentials = credentials(&server);
    server.set(Behavior::NoBind(49, "no"));
    // Five failures and one free repetition.
    for number in 0..6 {
        assert_eq!(credentials.verify_password("bob@example.org", "x", HERE).await, LoginResult::Refused, "{number}");
    }
    assert_eq!(credentials.verify_password("bob@example.org", "x", HERE).await, LoginResult::Throttled);
    assert_eq!(binds(&server).len(), 6);
}

#[tokio::test]
async fn the_right_password_is_accepted_after_repeated_attempts_during_an_outage() {
    let server = Server::start(vec![person("bob")], &[]).await;
    let credentials = credentials(&server);
    server.set(Behavior::NoBind(51, "busy"));
    for _ in 0..20 {
        assert!(matches!(credentials.verify_password("bob@example.org", "x", HERE).await, LoginResult::Unavailable(_)));
    }
    server.set(Behavior::Normal);
    assert_eq!(credentials.verify_password("bob@example.org", "x", HERE).await, accepted("bob@example.org"));
}

#[tokio::test]
async fn abandoned_logins_are_not_looked_up() {
    let server = Server::start(vec![person("bob"), person("carol"), person("dave")], &[]).await;
    let credentials = credentials_by(&server, "(mail={key})", Duration::from_secs(1), 1);
    server.set(Behavior::SilentToBinds);
    let bob = credentials.verify_password("bob@example.org", "x", HERE);
    let carol = credentials.verify_password("carol@example.org", "x", HERE);
    let dave = credentials.verify_password("dave@example.org", "x", HERE);
    let (mut bob, mut carol, mut dave) = (Box::pin(bob), Box::pin(carol), Box::pin(dave));
    assert!(futures_util::poll!(&mut bob).is_pending());
    server.wait_for_searches(1).await;
    assert!(futures_util::poll!(&mut carol).is_pending());
    assert!(futures_util::poll!(&mut dave).is_pending());
    drop(carol);
    let _ = tokio::join!(bob, dave);
    let asked = format!("{:?}", server.filters());
    assert!(asked.contains("bob@") && asked.contains("dave@") && !asked.contains("carol@"), "{asked}");
}
