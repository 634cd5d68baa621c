//! Sessions under access rules.

use std::sync::Arc;

use intake::access::{Access, Action, Condition, Rule, Stage, Test};
use mail::Address;
use spool::State;

use super::server::{Client, Server};

fn rule(stage: Stage, test: Option<Test>, action: Action) -> Rule {
    let conditions = test.into_iter().map(|test| Condition { text: "it".into(), test }).collect();
    Rule { name: stage.word().into(), stage, conditions, action }
}

fn server(rules: Vec<Rule>) -> Server {
    Server::start(|desk| {
        desk.access = Access::new(rules);
        // Whoever comes is a proxy.
        desk.proxies = Arc::new(|address| address.is_loopback());
    })
}

fn client_is(client: &'static str) -> Option<Test> {
    Some(Test::Client(Arc::new(move |address| address.to_string() == client)))
}

fn recipient_is(recipient: &'static str) -> Option<Test> {
    Some(Test::Recipient(Arc::new(move |address: &Address| address.as_str() == recipient)))
}

fn sender_is(sender: &'static str) -> Option<Test> {
    Some(Test::Sender(Arc::new(move |address: Option<&Address>| address.is_some_and(|own| own.as_str() == sender))))
}

fn refuse() -> Action {
    Action::Refuse(None)
}

#[tokio::test]
async fn a_client_is_refused_in_place_of_the_banner() {
    let server = server(vec![rule(Stage::Connect, client_is("127.0.0.1"), refuse())]);
    let (mut client, banner) = server.connect().await;
    assert_eq!(banner, "554 5.7.1 Access denied");
    assert_eq!(client.until_closed().await, "");
    assert_eq!(server.facts.refused(), [("connect", 554)]);
}

#[tokio::test]
async fn each_stage_is_asked_and_what_is_refused_may_be_tried_otherwise() {
    let bad_name = Some(Test::Helo(Arc::new(|helo: &str| helo == "bad.example")));
    let server = server(vec![
        rule(Stage::Helo, bad_name, refuse()),
        rule(Stage::Mail, sender_is("bad@client.example"), Action::Defer(None)),
        rule(Stage::Rcpt, recipient_is("carol@example.org"), refuse()),
    ]);
    let (mut client, _) = server.connect().await;
    client.expect("HELO bad.example", "550 5.7.1").await;
    client.expect("MAIL FROM:<a@client.example>", "503").await;
    client.expect("HELO client.example", "250").await;
    client.expect("MAIL FROM:<bad@client.example>", "451 4.7.1").await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<carol@example.org>", "550 5.7.1").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
    assert_eq!(server.facts.refused().len(), 4);
}

#[tokio::test]
async fn who_is_accepted_is_asked_nothing_later_but_may_not_relay() {
    let server = server(vec![
        rule(Stage::Connect, client_is("127.0.0.1"), Action::Accept),
        rule(Stage::Helo, None, refuse()),
        rule(Stage::Mail, None, refuse()),
        rule(Stage::Rcpt, None, refuse()),
    ]);
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<x@elsewhere.example>", "550 5.7.1 Relaying denied").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
}

#[tokio::test]
async fn an_accepted_sender_or_recipient_is_accepted_for_himself() {
    let server = server(vec![
        rule(Stage::Mail, sender_is("good@client.example"), Action::Accept),
        rule(Stage::Rcpt, recipient_is("bob@example.org"), Action::Accept),
        rule(Stage::Rcpt, None, refuse()),
    ]);
    let mut client = server.client().await;
    client.expect("MAIL FROM:<good@client.example>", "250").await;
    client.expect("RCPT TO:<carol@example.org>", "250").await;
    client.expect("RSET", "250").await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<carol@example.org>", "550").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
}

async fn delivered(client: &mut Client, server: &Server, recipients: &[&str]) -> Vec<State> {
    client.deliver(recipients).await;
    server.message().states
}

#[tokio::test]
async fn a_message_is_held_for_all_when_a_rule_holds_it_for_one() {
    let held = State::Held { attempts: 0 };
    let server = server(vec![rule(Stage::Rcpt, recipient_is("carol@example.org"), Action::Hold)]);
    let mut client = server.client().await;
    assert_eq!(delivered(&mut client, &server, &["bob@example.org", "carol@example.org"]).await, [held, held]);
}

#[tokio::test]
async fn a_recipient_who_is_not_taken_holds_nothing() {
    let server = server(vec![rule(Stage::Rcpt, recipient_is("nobody@example.org"), Action::Hold)]);
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<nobody@example.org>", "550 5.1.1").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
    client.expect("DATA", "354").await;
    client.expect("Subject: x\r\n\r\nx\r\n.", "250 2.0.0").await;
    assert_eq!(server.message().states, [State::NEW]);
}

#[tokio::test]
async fn a_proxy_speaks_for_clients_each_of_whom_the_rules_are_asked() {
    let server = server(vec![rule(Stage::Connect, client_is("192.0.2.9"), refuse())]);
    let mut client = server.client().await;
    client.expect("XCLIENT ADDR=192.0.2.1 HELO=real.example", "220 ").await;
    client.expect("HELO proxy.example", "250").await;
    client.deliver(&["bob@example.org"]).await;
    let envelope = server.message().envelope;
    assert_eq!((envelope.client.address, &*envelope.client.helo), ("192.0.2.1".parse().ok(), "real.example"));
    client.expect("XCLIENT ADDR=192.0.2.9", "554 5.7.1 Access denied").await;
    assert_eq!(client.until_closed().await, "");
}
