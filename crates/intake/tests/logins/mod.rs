//! Users who log in: which logins succeed, what users may do, and how their mail is completed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use credentials::{CredentialChecker, CredentialCheckerSettings, CredentialSource};
use filter::Stage;
use filter::access::{AccessCondition, CompiledRule, ConditionMatcher, DnsblCheck, RuleAction};
use intake::{IntakeContext, LoginPolicy};
use lookup::LookupAnswer;

use crate::server::{Client, Server, TableStub, body_after_received, everyone, set_access_rules};
use mail::Networks;

/// Bob with his password, in another spelling.
const BOB: &str = "AUTH PLAIN AEJvYgBzZWNyZXQ=";
const WRONG: &str = "AUTH PLAIN AGJvYgB3cm9uZw==";
/// A user for whom the table is unavailable.
const DOWN: &str = "AUTH PLAIN AGRvd24AeA==";

/// Bob has a password and two senders; the table is unavailable for the user down; the entry of the
/// user odd is unusable.
fn configure_logins(context: &mut IntakeContext) {
    configure_logins_with(context, CredentialCheckerSettings::default());
}

fn configure_logins_with(context: &mut IntakeContext, settings: CredentialCheckerSettings) {
    let found = |values: &[&str]| LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect());
    let unavailable = || LookupAnswer::Unavailable("no cable".to_owned());
    let odd = found(&["{MD5}x"]);
    let passwords = HashMap::from([("bob", found(&["{PLAIN}secret"])), ("down", unavailable()), ("odd", odd)]);
    let senders = HashMap::from([("bob", found(&["bob@example.org", "@bob.example"]))]);
    let source = CredentialSource::Table(Arc::new(TableStub("passwords", passwords)));
    let credentials =
        CredentialChecker::new(source, CredentialCheckerSettings { threads: 1, ..settings }, [7; 32]).unwrap();
    context.logins = Some(LoginPolicy {
        credentials,
        senders: Some(Arc::new(TableStub("senders", senders))),
        in_received_line: false,
    });
}

async fn bob(server: &Server) -> Client {
    let mut client = server.user().await;
    client.expect(BOB, "235 2.7.0 ").await;
    client
}

#[tokio::test]
async fn users_may_relay_where_other_clients_may_not() {
    let server = Server::for_users(configure_logins);
    let mut client = server.user().await;
    client.expect("MAIL FROM:<bob@example.org>", "530 5.7.0 ").await;
    client.expect(BOB, "235 2.7.0 ").await;
    client.expect("MAIL FROM:<bob@example.org>", "250").await;
    client.expect("RCPT TO:<x@elsewhere.example>", "250").await;
    client.expect("DATA", "354").await;
    client.expect("Subject: x\r\n\r\nx\r\n.", "250").await;
    assert_eq!(server.events.logins(), [("Bob".to_owned(), "PLAIN", "ok")]);
    let text = String::from_utf8(body_after_received(&server.message())).unwrap();
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert!(lines[0].starts_with("Date: ") && lines[1].starts_with("Message-ID: <"), "{text}");
    assert_eq!(lines[2..], ["Subject: x", "", "x", ""]);
}

/// Notices are limited only for senders that may be forged.
#[tokio::test]
async fn a_message_says_whether_its_client_is_trusted() {
    for (is_in_relay_network, logs_in) in [(false, false), (true, false), (false, true)] {
        let server = Server::for_all(|context| {
            configure_logins(context);
            context.relay_networks = if is_in_relay_network { everyone() } else { Networks::default() };
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
    let server = Server::for_users(|context| {
        configure_logins(context);
        context.relay_networks = everyone();
        // A rule that accepts makes no exception either.
        set_access_rules(context, vec![rule(Stage::Connect, Vec::new(), RuleAction::Accept)]);
    });
    server.user().await.expect("MAIL FROM:<bob@example.org>", "530 5.7.0 ").await;
}

fn rule(stage: Stage, conditions: Vec<AccessCondition>, action: RuleAction) -> CompiledRule {
    CompiledRule {
        name: "rule".into(),
        list: None,
        class: None,
        stage,
        applies_to_users: conditions.is_empty(),
        chooses_filters: false,
        conditions,
        action,
    }
}

/// Every client here is on a DNS list and refused for it.
fn list_all_clients(context: &mut IntakeContext, stage: Stage) {
    let listed = HashMap::from([("127.0.0.1", LookupAnswer::Found(vec!["127.0.0.2".to_owned()]))]);
    let zone =
        DnsblCheck { name: "list.example".into(), table: Arc::new(TableStub("list", listed)), codes: Vec::new() };
    let listed = AccessCondition { text: "listed".into(), test: ConditionMatcher::Dnsbl(zone) };
    set_access_rules(context, vec![rule(stage, vec![listed], RuleAction::Refuse(None))]);
}

/// Users send from listed addresses. Refused at connect, they could not even log in.
#[tokio::test]
async fn a_user_sends_from_a_listed_address() {
    for stage in Stage::ALL {
        let server = Server::for_users(|context| {
            configure_logins(context);
            list_all_clients(context, stage);
        });
        let mut client = bob(&server).await;
        client.expect("MAIL FROM:<bob@example.org>", "250").await;
        client.expect("RCPT TO:<x@elsewhere.example>", "250").await;
    }
}

#[tokio::test]
async fn a_listed_address_is_accepted_after_login() {
    let server = Server::for_all(|context| {
        configure_logins(context);
        list_all_clients(context, Stage::Rcpt);
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
    let server = Server::for_all(|context| {
        configure_logins(context);
        context.proxy_networks = Networks::loopback();
        // XCLIENT for the same address keeps the rights of a proxy.
        list_all_clients(context, Stage::Rcpt);
    });
    let mut client = bob(&server).await;
    client.expect("XCLIENT ADDR=127.0.0.1 HELO=x.example LOGIN=bob", "220 ").await;
    client.expect("HELO x.example", "250").await;
    client.expect("MAIL FROM:<alice@example.org>", "250").await;
    client.expect("RCPT TO:<bob@example.org>", "550 5.7.1 127.0.0.1 is listed").await;
    client.expect("RCPT TO:<x@elsewhere.example>", "550 5.7.1").await;
}

#[tokio::test]
async fn rules_run_before_the_sender_check_and_do_not_replace_it() {
    for (action, told) in [(RuleAction::Accept, "553 5.7.1"), (RuleAction::Refuse(None), "550 5.7.1 Access denied")] {
        let server = Server::for_users(|context| {
            configure_logins(context);
            set_access_rules(context, vec![rule(Stage::Mail, Vec::new(), action)]);
        });
        bob(&server).await.expect("MAIL FROM:<alice@example.org>", told).await;
    }
}

#[tokio::test]
async fn a_user_may_use_only_his_own_senders_or_none() {
    let server = Server::for_users(configure_logins);
    let mut client = bob(&server).await;
    let refused = "553 5.7.1 <alice@example.org>: Sender address rejected: not owned by user bob";
    client.expect("MAIL FROM:<alice@example.org>", refused).await;
    for sender in ["BOB@example.org", "anyone@bob.example", ""] {
        client.expect(&format!("MAIL FROM:<{sender}>"), "250").await;
        client.expect("RSET", "250").await;
    }
}

#[tokio::test]
async fn an_unavailable_sender_table_defers_mail() {
    let server = Server::for_users(|context| {
        configure_logins(context);
        let down = HashMap::from([("bob", LookupAnswer::Unavailable("no cable".to_owned()))]);
        context.logins.as_mut().unwrap().senders = Some(Arc::new(TableStub("senders", down)));
    });
    bob(&server).await.expect("MAIL FROM:<bob@example.org>", "451 4.3.0 ").await;
    let log_lines = server.log_lines.lock().unwrap();
    assert_eq!(*log_lines, ["cannot look up the senders of user \"bob\": no cable"]);
}

#[tokio::test]
async fn login_results_are_logged_and_counted_without_passwords() {
    let server = Server::for_users(configure_logins);
    let mut client = server.user().await;
    client.expect(WRONG, "535 5.7.8 ").await;
    client.expect(DOWN, "454 4.7.0 Temporary").await;
    client.expect("AUTH SCRAM-SHA-256 biwsbj1ib2Iscj14", "334 ").await;
    client.expect("*", "501 5.7.0 ").await;
    client.expect("AUTH PLAIN =", "501 5.5.2 ").await;
    client.expect(BOB, "235 2.7.0 ").await;
    let logins = server.events.logins();
    let results: Vec<_> = logins.iter().map(|(user, mechanism, result)| (&**user, *mechanism, *result)).collect();
    let expected = [
        ("bob", "PLAIN", "refused"),
        ("down", "PLAIN", "unavailable"),
        ("bob", "SCRAM-SHA-256", "cancelled"),
        ("", "PLAIN", "malformed"),
        ("Bob", "PLAIN", "ok"),
    ];
    assert_eq!(results, expected);
    let stats = server.context.logins.as_ref().unwrap().credentials.stats();
    assert_eq!((stats.accepted, stats.refused, stats.unavailable), (1, 1, 1), "each result is counted once");
}

/// A line that was too long ended an exchange without telling the credentials, which kept waiting
/// for the proof: the next login in that session, with the client's own password, settled it, so
/// that guesses at another user's password cost nothing.
#[tokio::test]
async fn a_login_does_not_settle_the_proof_of_another_user() {
    let mut settings = CredentialCheckerSettings::default();
    settings.throttle.pair.delay = Duration::from_secs(600);
    let server = Server::for_users(|context| configure_logins_with(context, settings));
    let mut client = server.user().await;
    for _ in 0..5 {
        client.expect("AUTH SCRAM-SHA-256 biwsbj12aWN0aW0scj14", "334 ").await;
        client.expect(&"A".repeat(13_000), "500 ").await;
        client.expect(BOB, "235 2.7.0 ").await;
        client = server.user().await;
    }
    client.expect("AUTH SCRAM-SHA-256 biwsbj12aWN0aW0scj14", "454 4.7.0 Too many").await;
    let stats = server.context.logins.as_ref().unwrap().credentials.stats();
    assert_eq!((stats.accepted, stats.throttled), (5, 1));
    assert_eq!(server.events.logins()[0], ("victim".to_owned(), "SCRAM-SHA-256", "malformed"));
}

#[tokio::test]
async fn an_unusable_entry_is_logged_but_not_shown_to_the_client() {
    let server = Server::for_users(configure_logins);
    let mut client = server.user().await;
    // One user with an unsupported password scheme, and one who does not exist.
    for (user, response) in [("odd", "AG9kZAB4"), ("noo", "AG5vbwB4")] {
        client.expect(&format!("AUTH PLAIN {response}"), "535 5.7.8 Authentication credentials invalid").await;
        assert_eq!(server.events.logins().pop(), Some((user.to_owned(), "PLAIN", "refused")));
    }
    client.expect("AUTH SCRAM-SHA-256 biwsbj1vZGQscj14", "334 ").await;
    let log_lines = server.log_lines.lock().unwrap().join("\n");
    assert!(
        log_lines.contains("user \"odd\": table 'passwords', user 'odd': ") && log_lines.contains("{MD5}"),
        "{log_lines}"
    );
    assert!(!log_lines.contains("noo"), "{log_lines}");
}

#[tokio::test]
async fn a_received_line_names_a_user_only_where_that_is_wanted() {
    for traced in [false, true] {
        let server = Server::for_users(|context| {
            configure_logins(context);
            context.logins.as_mut().unwrap().in_received_line = traced;
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
    let server = Server::for_users(configure_logins);
    let mut client = bob(&server).await;
    client.expect("MAIL FROM:<>", "250").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
    client.send(b"BDAT 5\r\ndate:BDAT 4 LAST\r\n x\r\n").await;
    assert!(client.reply().await.starts_with("250 ") && client.reply().await.starts_with("250 "));
    let text = String::from_utf8(body_after_received(&server.message())).unwrap();
    let (added, own) = text.split_once("\r\n").unwrap();
    assert!(added.starts_with("Message-ID: <") && own == "date: x\r\n", "{text}");
}
