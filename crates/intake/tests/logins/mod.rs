//! Users who log in: which logins succeed, what users may do, and how their mail is completed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use intake::access::{Access, Action, Condition, Rule, Stage, Test, Zone};
use intake::{Desk, Logins};
use lookup::Answer;
use lookup::credentials::{Credentials, Settings, Source};

use crate::server::{Client, Server, Told, text_of};

/// Bob with his password, in another spelling.
const BOB: &str = "AUTH PLAIN AEJvYgBzZWNyZXQ=";
const WRONG: &str = "AUTH PLAIN AGJvYgB3cm9uZw==";
/// A user for whom the table is unavailable.
const DOWN: &str = "AUTH PLAIN AGRvd24AeA==";

/// Bob has a password and two senders; the table is unavailable for the user down; the entry of the
/// user odd is unusable.
fn let_in(desk: &mut Desk) {
    let_in_as(desk, Settings::default());
}

fn let_in_as(desk: &mut Desk, settings: Settings) {
    let found = |values: &[&str]| Answer::Found(values.iter().map(|&value| value.to_owned()).collect());
    let unavailable = || Answer::Unavailable("no cable".to_owned());
    let odd = found(&["{MD5}x"]);
    let passwords = HashMap::from([("bob", found(&["{PLAIN}secret"])), ("down", unavailable()), ("odd", odd)]);
    let senders = HashMap::from([("bob", found(&["bob@example.org", "@bob.example"]))]);
    let source = Source::Table(Arc::new(Told("passwords", passwords)));
    let credentials = Credentials::new(source, Settings { threads: 1, ..settings }, [7; 32]).unwrap();
    desk.logins = Some(Logins { credentials, senders: Some(Arc::new(Told("senders", senders))), traced: false });
}

async fn bob(server: &Server) -> Client {
    let mut client = server.user().await;
    client.expect(BOB, "235 2.7.0 ").await;
    client
}

#[tokio::test]
async fn who_logs_in_may_send_to_other_domains_from_where_nobody_else_may_send() {
    let server = Server::for_users(let_in);
    let mut client = server.user().await;
    client.expect("MAIL FROM:<bob@example.org>", "530 5.7.0 ").await;
    client.expect(BOB, "235 2.7.0 ").await;
    client.expect("MAIL FROM:<bob@example.org>", "250").await;
    client.expect("RCPT TO:<x@elsewhere.example>", "250").await;
    client.expect("DATA", "354").await;
    client.expect("Subject: x\r\n\r\nx\r\n.", "250").await;
    assert_eq!(server.facts.logins(), [("Bob".to_owned(), "PLAIN", "ok")]);
    let text = String::from_utf8(text_of(&server.message())).unwrap();
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert!(lines[0].starts_with("Date: ") && lines[1].starts_with("Message-ID: <"), "{text}");
    assert_eq!(lines[2..], ["Subject: x", "", "x", ""]);
}

/// Notices are limited only for senders that may be forged.
#[tokio::test]
async fn a_message_says_whether_its_client_is_trusted() {
    for (is_in_relay_network, logs_in) in [(false, false), (true, false), (false, true)] {
        let server = Server::for_all(|desk| {
            let_in(desk);
            desk.relays = Arc::new(move |_| is_in_relay_network);
        });
        let mut client = if logs_in { bob(&server).await } else { server.user().await };
        client.expect("MAIL FROM:<bob@example.org>", "250").await;
        client.expect("RCPT TO:<bob@example.org>", "250").await;
        client.expect("DATA", "354").await;
        client.expect("Subject: x\r\n\r\nx\r\n.", "250").await;
        assert_eq!(server.message().envelope.client.trusted, is_in_relay_network || logs_in);
    }
}

#[tokio::test]
async fn relay_networks_have_to_log_in_too_where_that_is_required() {
    let server = Server::for_users(|desk| {
        let_in(desk);
        desk.relays = Arc::new(|_| true);
        // A rule that accepts makes no exception either.
        desk.access = Access::new(vec![rule(Stage::Connect, Vec::new(), Action::Accept)]);
    });
    server.user().await.expect("MAIL FROM:<bob@example.org>", "530 5.7.0 ").await;
}

fn rule(stage: Stage, conditions: Vec<Condition>, action: Action) -> Rule {
    Rule { name: "rule".into(), list: None, stage, asks_users: conditions.is_empty(), conditions, action }
}

/// Every client here is on a DNS list and refused for it.
fn list_all(desk: &mut Desk, stage: Stage) {
    let listed = HashMap::from([("127.0.0.1", Answer::Found(vec!["127.0.0.2".to_owned()]))]);
    let zone = Zone { name: "list.example".into(), table: Arc::new(Told("list", listed)), codes: Vec::new() };
    let listed = Condition { text: "listed".into(), test: Test::Listed(zone) };
    desk.access = Access::new(vec![rule(stage, vec![listed], Action::Refuse(None))]);
}

/// Users send from listed addresses. Refused at connect, they could not even log in.
#[tokio::test]
async fn a_user_sends_from_a_listed_address() {
    for stage in Stage::ALL {
        let server = Server::for_users(|desk| {
            let_in(desk);
            list_all(desk, stage);
        });
        let mut client = bob(&server).await;
        client.expect("MAIL FROM:<bob@example.org>", "250").await;
        client.expect("RCPT TO:<x@elsewhere.example>", "250").await;
    }
}

#[tokio::test]
async fn where_others_send_too_a_listed_address_is_a_users_from_his_login_on() {
    let server = Server::for_all(|desk| {
        let_in(desk);
        list_all(desk, Stage::Rcpt);
    });
    let mut client = server.user().await;
    client.expect("MAIL FROM:<bob@example.org>", "250").await;
    client.expect("RCPT TO:<bob@example.org>", "550 5.7.1 127.0.0.1 is listed by list.example").await;
    client.expect("RSET", "250").await;
    client.expect(BOB, "235 2.7.0 ").await;
    client.expect("MAIL FROM:<bob@example.org>", "250").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
}

/// What applies to a proxied client does not depend on a login of another one.
#[tokio::test]
async fn a_login_is_not_that_of_the_next_client_of_a_proxy() {
    let server = Server::for_all(|desk| {
        let_in(desk);
        desk.proxies = Arc::new(|address| address.is_loopback());
        // XCLIENT for the same address keeps the rights of a proxy.
        list_all(desk, Stage::Rcpt);
    });
    let mut client = bob(&server).await;
    client.expect("XCLIENT ADDR=127.0.0.1 HELO=x.example LOGIN=bob", "220 ").await;
    client.expect("HELO x.example", "250").await;
    client.expect("MAIL FROM:<alice@example.org>", "250").await;
    client.expect("RCPT TO:<bob@example.org>", "550 5.7.1 127.0.0.1 is listed").await;
    client.expect("RCPT TO:<x@elsewhere.example>", "550 5.7.1").await;
}

#[tokio::test]
async fn rules_are_asked_before_whose_the_sender_is_and_spare_nobody_that() {
    for (action, told) in [(Action::Accept, "553 5.7.1"), (Action::Refuse(None), "550 5.7.1 Access denied")] {
        let server = Server::for_users(|desk| {
            let_in(desk);
            desk.access = Access::new(vec![rule(Stage::Mail, Vec::new(), action)]);
        });
        bob(&server).await.expect("MAIL FROM:<alice@example.org>", told).await;
    }
}

#[tokio::test]
async fn a_user_names_senders_of_his_own_or_none() {
    let server = Server::for_users(let_in);
    let mut client = bob(&server).await;
    let refused = "553 5.7.1 <alice@example.org>: Sender address rejected: not owned by user bob";
    client.expect("MAIL FROM:<alice@example.org>", refused).await;
    for sender in ["BOB@example.org", "anyone@bob.example", ""] {
        client.expect(&format!("MAIL FROM:<{sender}>"), "250").await;
        client.expect("RSET", "250").await;
    }
}

#[tokio::test]
async fn an_owner_of_whom_nothing_can_be_said_is_put_off() {
    let server = Server::for_users(|desk| {
        let_in(desk);
        let down = HashMap::from([("bob", Answer::Unavailable("no cable".to_owned()))]);
        desk.logins.as_mut().unwrap().senders = Some(Arc::new(Told("senders", down)));
    });
    bob(&server).await.expect("MAIL FROM:<bob@example.org>", "451 4.3.0 ").await;
    let heard = server.heard.lock().unwrap();
    assert_eq!(*heard, ["cannot look up the senders of user \"bob\": no cable"]);
}

#[tokio::test]
async fn what_became_of_passwords_is_told_and_counted_and_they_are_not() {
    let server = Server::for_users(let_in);
    let mut client = server.user().await;
    client.expect(WRONG, "535 5.7.8 ").await;
    client.expect(DOWN, "454 4.7.0 Temporary").await;
    client.expect("AUTH SCRAM-SHA-256 biwsbj1ib2Iscj14", "334 ").await;
    client.expect("*", "501 5.7.0 ").await;
    client.expect("AUTH PLAIN =", "501 5.5.2 ").await;
    client.expect(BOB, "235 2.7.0 ").await;
    let logins = server.facts.logins();
    let told: Vec<_> = logins.iter().map(|(user, mechanism, result)| (&**user, *mechanism, *result)).collect();
    let expected = [
        ("bob", "PLAIN", "refused"),
        ("down", "PLAIN", "unavailable"),
        ("bob", "SCRAM-SHA-256", "cancelled"),
        ("", "PLAIN", "malformed"),
        ("Bob", "PLAIN", "ok"),
    ];
    assert_eq!(told, expected);
    let stats = server.desk.logins.as_ref().unwrap().credentials.stats();
    assert_eq!((stats.accepted, stats.refused, stats.unavailable), (1, 1, 1), "each result is counted once");
}

/// A line that was too long ended an exchange without telling the credentials, which kept waiting
/// for the proof: the next login in that session, with the client's own password, settled it, so
/// that guesses at another user's password cost nothing.
#[tokio::test]
async fn nobodys_proof_is_settled_by_the_login_of_another() {
    let mut settings = Settings::default();
    settings.throttle.pair.delay = Duration::from_secs(600);
    let server = Server::for_users(|desk| let_in_as(desk, settings));
    let mut client = server.user().await;
    for _ in 0..5 {
        client.expect("AUTH SCRAM-SHA-256 biwsbj12aWN0aW0scj14", "334 ").await;
        client.expect(&"A".repeat(13_000), "500 ").await;
        client.expect(BOB, "235 2.7.0 ").await;
        client = server.user().await;
    }
    client.expect("AUTH SCRAM-SHA-256 biwsbj12aWN0aW0scj14", "454 4.7.0 Too many").await;
    let stats = server.desk.logins.as_ref().unwrap().credentials.stats();
    assert_eq!((stats.accepted, stats.throttled), (5, 1));
    assert_eq!(server.facts.logins()[0], ("victim".to_owned(), "SCRAM-SHA-256", "malformed"));
}

#[tokio::test]
async fn that_an_entry_is_of_no_use_the_operator_hears_and_the_client_does_not() {
    let server = Server::for_users(let_in);
    let mut client = server.user().await;
    // One user with an unsupported password scheme, and one who does not exist.
    for (user, response) in [("odd", "AG9kZAB4"), ("noo", "AG5vbwB4")] {
        client.expect(&format!("AUTH PLAIN {response}"), "535 5.7.8 Authentication credentials invalid").await;
        assert_eq!(server.facts.logins().pop(), Some((user.to_owned(), "PLAIN", "refused")));
    }
    client.expect("AUTH SCRAM-SHA-256 biwsbj1vZGQscj14", "334 ").await;
    let heard = server.heard.lock().unwrap().join("\n");
    assert!(heard.contains("user \"odd\": table 'passwords', user 'odd': ") && heard.contains("{MD5}"), "{heard}");
    assert!(!heard.contains("noo"), "{heard}");
}

#[tokio::test]
async fn a_received_line_names_a_user_only_where_that_is_wanted() {
    for traced in [false, true] {
        let server = Server::for_users(|desk| {
            let_in(desk);
            desk.logins.as_mut().unwrap().traced = traced;
        });
        let mut client = bob(&server).await;
        client.expect("MAIL FROM:<>", "250").await;
        client.expect("RCPT TO:<bob@example.org>", "250").await;
        client.expect("DATA", "354").await;
        client.expect("Subject: x\r\n.", "250").await;
        let message = server.message();
        let mut bytes = vec![0; message.body.len() as usize];
        message.body.read_at(&mut bytes, 0).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("with ESMTPA"), "{text}");
        assert_eq!(text.contains("(authenticated as bob)"), traced, "{text}");
    }
}

#[tokio::test]
async fn what_is_missing_is_added_to_chunks_and_to_a_message_that_is_only_a_header() {
    let server = Server::for_users(let_in);
    let mut client = bob(&server).await;
    client.expect("MAIL FROM:<>", "250").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
    client.send(b"BDAT 5\r\ndate:BDAT 4 LAST\r\n x\r\n").await;
    assert!(client.reply().await.starts_with("250 ") && client.reply().await.starts_with("250 "));
    let text = String::from_utf8(text_of(&server.message())).unwrap();
    let (added, own) = text.split_once("\r\n").unwrap();
    assert!(added.starts_with("Message-ID: <") && own == "date: x\r\n", "{text}");
}
