//! Sessions under access rules.

use std::sync::Arc;
use std::time::Duration;

use filter::Stage;
use filter::access::{AccessCondition, CompiledRule, ConditionMatcher, RuleAction, RuleSubject};
use intake::ResourceRefusal;
use lookup::Table;
use lookup::fixed::StaticTable;
use mail::{Address, EnhancedCode, Networks, Reply};
use spool::RecipientState;
use tokio::sync::Notify;

use super::server::{Client, GATE_LIMITS, Server, everyone, set_access_rules};

fn rule(stage: Stage, test: Option<ConditionMatcher>, action: RuleAction) -> CompiledRule {
    let conditions = test.into_iter().map(|test| AccessCondition { text: "it".into(), test }).collect();
    CompiledRule {
        name: stage.name().into(),
        list: None,
        class: None,
        stage,
        applies_to_users: true,
        chooses_filters: false,
        conditions,
        action,
    }
}

fn server(rules: Vec<CompiledRule>) -> Server {
    Server::start(|context| {
        set_access_rules(context, rules);
        // Every client is a proxy.
        context.proxy_networks = Networks::loopback();
    })
}

fn client_is(client: &'static str) -> Option<ConditionMatcher> {
    Some(ConditionMatcher::Client(client.parse().unwrap()))
}

fn recipient_is(recipient: &'static str) -> Option<ConditionMatcher> {
    Some(ConditionMatcher::Recipient(Arc::new(move |address: &Address| address.as_str() == recipient)))
}

fn sender_is(sender: &'static str) -> Option<ConditionMatcher> {
    Some(ConditionMatcher::Sender(Arc::new(move |address: Option<&Address>| {
        address.is_some_and(|own| own.as_str() == sender)
    })))
}

fn refuse() -> RuleAction {
    RuleAction::Refuse(None)
}

#[tokio::test]
async fn a_client_is_refused_in_place_of_the_banner() {
    let server = server(vec![rule(Stage::Connect, client_is("127.0.0.1"), refuse())]);
    let (mut client, banner) = server.connect().await;
    assert_eq!(banner, "554 5.7.1 Access denied");
    assert_eq!(client.until_closed().await, "");
    assert_eq!(server.events.refused(), [("connect", 554)]);
    assert_eq!(server.events.denied(), [("connect", Some("connect".into()))]);
}

/// A client that sent before the banner was reset, and might never see the reply.
#[tokio::test]
async fn a_client_that_talks_early_still_gets_the_refusal() {
    let server = server(vec![rule(Stage::Connect, client_is("127.0.0.1"), refuse())]);
    let mut client = server.connect_and_send(b"EHLO client.example\r\n");
    assert_eq!(client.reply().await, "554 5.7.1 Access denied");
    assert_eq!(client.until_closed().await, "");
}

#[tokio::test]
async fn each_stage_is_asked_and_what_is_refused_may_be_tried_otherwise() {
    let bad_name = Some(ConditionMatcher::Helo(Arc::new(|helo: &str| helo == "bad.example")));
    let server = server(vec![
        rule(Stage::Helo, bad_name, refuse()),
        rule(Stage::Mail, sender_is("bad@client.example"), RuleAction::Defer(None)),
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
    // A refusal without a rule is logged without one.
    let denied = |stage, rule: Option<&str>| (stage, rule.map(Into::into));
    let expected = [
        denied("HELO", Some("helo")),
        denied("MAIL", None),
        denied("MAIL", Some("mail")),
        denied("RCPT", Some("rcpt")),
    ];
    assert_eq!(server.events.denied(), expected);
}

#[tokio::test]
async fn an_accepted_client_skips_later_rules_but_may_not_relay() {
    let server = server(vec![
        rule(Stage::Connect, client_is("127.0.0.1"), RuleAction::Accept),
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
        rule(Stage::Mail, sender_is("good@client.example"), RuleAction::Accept),
        rule(Stage::Rcpt, recipient_is("bob@example.org"), RuleAction::Accept),
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

#[tokio::test]
async fn defer_if_reject_defers_the_recipient_that_the_server_refuses() {
    let table: Arc<dyn Table> = Arc::new(StaticTable::new("soon", vec!["DEFER_IF_REJECT 4.7.0 soon".into()]));
    let softens = Some(ConditionMatcher::Table(RuleSubject::Client, table));
    let server = server(vec![rule(Stage::Rcpt, softens, RuleAction::Table)]);
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<nobody@example.org>", "450 4.7.0 soon").await;
    client.expect("RCPT TO:<x@elsewhere.example>", "450 4.7.0 soon").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
}

/// Rules saw the address as received: at a literal of this host they matched no recipient.
#[tokio::test]
async fn rules_see_the_normalized_recipient() {
    let server = server(vec![
        rule(Stage::Rcpt, recipient_is("bob@example.org"), refuse()),
        rule(Stage::Rcpt, recipient_is("postmaster@example.org"), RuleAction::Defer(None)),
    ]);
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<bob@[127.0.0.1]>", "550 5.7.1").await;
    client.expect("RCPT TO:<postmaster@mx.example.org>", "450 4.7.1").await;
    client.expect("RCPT TO:<carol@[127.0.0.1]>", "250").await;
}

#[tokio::test]
async fn rules_match_addresses_without_their_tag() {
    let server = server(vec![
        rule(Stage::Mail, sender_is("eve@onward.example"), refuse()),
        rule(Stage::Rcpt, recipient_is("bob@onward.example"), refuse()),
        rule(Stage::Rcpt, recipient_is("bob@example.org"), refuse()),
    ]);
    let mut client = server.client().await;
    client.expect("MAIL FROM:<eve+x@onward.example>", "550 5.7.1").await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<bob+x@onward.example>", "550 5.7.1").await;
    client.expect("RCPT TO:<bobby+x@onward.example>", "250").await;
    // That domain has no tag delimiter.
    client.expect("RCPT TO:<bob+x@example.org>", "550 5.1.1").await;
}

async fn delivered(client: &mut Client, server: &Server, recipients: &[&str]) -> Vec<RecipientState> {
    client.deliver(recipients).await;
    server.message().states
}

#[tokio::test]
async fn a_message_is_held_for_all_when_a_rule_holds_it_for_one() {
    let held = RecipientState::Held { attempts: 0 };
    let server = server(vec![rule(Stage::Rcpt, recipient_is("carol@example.org"), RuleAction::Hold)]);
    let mut client = server.client().await;
    assert_eq!(delivered(&mut client, &server, &["bob@example.org", "carol@example.org"]).await, [held, held]);
}

/// A rule whose table has this value for every recipient.
fn says(value: &str) -> CompiledRule {
    let table: Arc<dyn Table> = Arc::new(StaticTable::new("says", vec![value.to_owned()]));
    rule(Stage::Rcpt, Some(ConditionMatcher::Table(RuleSubject::Recipient, table)), RuleAction::Table)
}

#[tokio::test]
async fn a_table_marks_a_message_and_sends_it_elsewhere() {
    let server = server(vec![says("PREPEND X-Seen: yes"), says("REDIRECT carol@example.org")]);
    let mut client = server.client().await;
    client.deliver(&["bob@example.org"]).await;
    let message = server.message();
    let mut content = vec![0; message.body.len() as usize];
    message.body.read_at(&mut content, 0).unwrap();
    assert!(content.starts_with(b"X-Seen: yes\r\nReceived: "), "{}", String::from_utf8_lossy(&content));
    let recipients: Vec<&str> = message.envelope.recipients.iter().map(|one| one.address.as_str()).collect();
    assert_eq!(recipients, ["carol@example.org"]);
}

#[tokio::test]
async fn a_table_drops_a_message() {
    let server = server(vec![says("DISCARD")]);
    let mut client = server.client().await;
    client.deliver(&["bob@example.org"]).await;
    assert!(server.context.spool.ids().is_empty());
}

#[tokio::test]
async fn a_notice_to_several_is_refused_at_data() {
    let several = rule(Stage::Data, Some(ConditionMatcher::RecipientsMin(2)), refuse());
    let server = server(vec![several]);
    let mut client = server.client().await;
    client.deliver(&["bob@example.org"]).await;
    client.expect("MAIL FROM:<>", "250").await;
    for recipient in ["bob", "carol"] {
        client.expect(&format!("RCPT TO:<{recipient}@example.org>"), "250").await;
    }
    client.expect("DATA", "550 5.7.1").await;
}

#[tokio::test]
async fn a_recipient_who_is_not_taken_holds_nothing() {
    let server = server(vec![rule(Stage::Rcpt, recipient_is("nobody@example.org"), RuleAction::Hold)]);
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<nobody@example.org>", "550 5.1.1").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
    client.expect("DATA", "354").await;
    client.expect("Subject: x\r\n\r\nx\r\n.", "250 2.0.0").await;
    assert_eq!(server.message().states, [RecipientState::NEW]);
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
    let mut client = server.client().await;
    client.expect("XCLIENT ADDR=192.0.2.9", "554 5.7.1 Access denied").await;
    assert_eq!(client.until_closed().await, "");
    // Tools that read the log must ban the client, not the proxy.
    assert_eq!(server.events.clients_refused(), ["192.0.2.9".parse().ok()]);
}

#[tokio::test]
async fn a_rule_that_speaks_as_a_full_mailbox_does_is_not_counted_as_one() {
    let full = Reply::new(552, EnhancedCode(5, 2, 2), "Mailbox is full, says a rule");
    let server = server(vec![rule(Stage::Rcpt, None, RuleAction::Refuse(Some(full)))]);
    let mut client = server.client().await;
    client.expect("HELO client.example", "250").await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<bob@example.org>", "552 5.2.2 Mailbox is full, says a rule").await;
    assert_eq!(server.events.denied(), [("RCPT", Some("rcpt".into()))]);
    assert_eq!(server.context.refusals.count_of(ResourceRefusal::MailboxFull), 0);
}

/// The proxy passes on what the client sends: with the rights of the proxy, the client could claim
/// to be in a relay network.
#[tokio::test]
async fn a_proxied_client_may_not_use_xclient() {
    let server = Server::start(|context| {
        context.proxy_networks = Networks::loopback();
        context.relay_networks = Networks::loopback();
    });
    let mut client = server.client().await;
    client.expect("XCLIENT ADDR=127.0.0.7", "220 ").await;
    client.expect("XCLIENT ADDR=192.0.2.1", "220 ").await;
    client.expect("XCLIENT ADDR=127.0.0.1", "550 5.7.0").await;
    client.expect("HELO client.example", "250").await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<x@elsewhere.example>", "550 5.7.1 Relaying denied").await;
}

#[tokio::test]
async fn bare_newlines_are_normalized_for_the_client_not_the_proxy() {
    let server = Server::start(|context| {
        context.proxy_networks = Networks::loopback();
        context.normalized_networks = "192.0.2.1".parse().unwrap();
    });
    for (address, reply) in [("192.0.2.1", "250 2.0.0"), ("192.0.2.2", "5")] {
        let mut client = server.client().await;
        client.expect(&format!("XCLIENT ADDR={address}"), "220 ").await;
        client.expect("HELO client.example", "250").await;
        client.begin(&["bob@example.org"]).await;
        client.expect("Subject: x\r\n\r\na\nb\r\n.", reply).await;
    }
}

/// The session still counted as the proxy's, which has no limit.
#[tokio::test]
async fn clients_without_a_known_address_share_one_limit() {
    let server = Server::start(|context| {
        context.proxy_networks = Networks::loopback();
        context.relay_networks = Networks::loopback();
    });
    let mut clients = Vec::new();
    for reply in ["220 ", "220 ", "421 4.7.0"] {
        let mut client = server.client().await;
        client.expect("XCLIENT ADDR=[UNAVAILABLE]", reply).await;
        clients.push(client);
    }
}

/// Otherwise a balancer could open any number of connections without sending anything.
#[tokio::test]
async fn a_connection_without_proxy_header_holds_a_permit_and_transfers_it() {
    let server = Server::start_behind(everyone(), |_| {});
    let mut clients = Vec::new();
    for count in 1..=GATE_LIMITS.sessions_max {
        clients.push(server.connect_without_reading().await);
        let all_counted = async {
            while server.context.connection_limiter.session_count() < count {
                tokio::task::yield_now().await
            }
        };
        tokio::time::timeout(Duration::from_secs(4), all_counted).await.expect("connections without header count");
    }
    let (_, reply) = server.connect().await;
    assert!(reply.starts_with("421 4.3.2"), "{reply}");
    for client in &mut clients[..2] {
        client.send(b"PROXY TCP4 192.0.2.1 192.0.2.5 4711 25\r\n").await;
        let banner = client.reply().await;
        assert!(banner.starts_with("220 "), "the client takes over the session: {banner}");
    }
    clients[2].send(b"PROXY TCP4 192.0.2.1 192.0.2.5 4711 25\r\n").await;
    assert!(clients[2].reply().await.starts_with("421 4.7.0"), "the limits of the client apply");
    assert_eq!(clients[2].until_closed().await, "");
}

/// A table that never answers, and signals each query.
struct SilentTable(Arc<Notify>);

impl Table for SilentTable {
    fn name(&self) -> &str {
        "silent"
    }

    fn lookup<'a>(&'a self, _keys: &'a [&'a str]) -> lookup::LookupFuture<'a> {
        self.0.notify_one();
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_stop_ends_the_wait_for_connect_rules() {
    let asked = Arc::new(Notify::new());
    let table: Arc<dyn Table> = Arc::new(SilentTable(asked.clone()));
    let server =
        server(vec![rule(Stage::Connect, Some(ConditionMatcher::Table(RuleSubject::Client, table)), refuse())]);
    let mut client = server.connect_without_reading().await;
    asked.notified().await;
    assert_eq!(server.context.connection_limiter.session_count(), 1);
    server.stopper.stop();
    assert_eq!(client.until_closed().await, "");
    server.stopper.wait_receivers_dropped().await;
}
