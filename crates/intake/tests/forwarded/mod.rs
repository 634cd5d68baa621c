//! Which recipients are marked as forwarded, so that their next hop gets a rewritten sender, and where
//! notices to such a sender go.

use std::collections::HashMap;
use std::sync::Arc;

use intake::IntakeContext;
use lookup::LookupAnswer;
use lookup::directory::{LocalDomain, LocalDomainTable};
use mail::{Address, ReturnRefusal, SenderRewriter};

use crate::both_ways::by_drop_folder;
use crate::server::{Server, TableStub, directory, everyone};

/// Takes `back=LOCAL=DOMAIN@srs.example` for the sender `LOCAL@DOMAIN`.
struct Rewriter;

impl SenderRewriter for Rewriter {
    fn forward(&self, _sender: &Address) -> Option<Address> {
        None
    }

    fn reverse(&self, recipient: &Address) -> Option<Result<Address, ReturnRefusal>> {
        let original = recipient.as_str().strip_suffix("@srs.example")?;
        match original.split_once('=')? {
            ("back", original) => original.replace('=', "@").parse().ok().map(Ok),
            ("old", _) => Some(Err(ReturnRefusal::Expired)),
            _ => Some(Err(ReturnRefusal::Forged)),
        }
    }
}

fn start(change: impl FnOnce(&mut IntakeContext)) -> Server {
    Server::start(|context| {
        context.directory = Arc::new(directory().with_sender_rewriter(Some(Arc::new(Rewriter))));
        context.rewritten_senders = Some(Arc::new(|domain| domain != "partner.example"));
        change(context);
    })
}

/// The recipients of the only message, with a star if they are forwarded.
fn stored(server: &Server) -> Vec<String> {
    let envelope = server.message().envelope;
    let star = |forwarded| if forwarded { " *" } else { "" };
    envelope.recipients.iter().map(|to| format!("{}{}", to.address, star(to.is_forwarded))).collect()
}

async fn deliver(server: &Server, sender: &str, recipient: &str) -> Vec<String> {
    let mut client = server.client().await;
    client.expect(&format!("MAIL FROM:<{sender}>"), "250").await;
    client.expect(&format!("RCPT TO:<{recipient}>"), "250").await;
    client.expect("DATA", "354").await;
    client.expect("Subject: x\r\n\r\nx\r\n.", "250 2.0.0").await;
    stored(server)
}

#[tokio::test]
async fn mail_of_a_stranger_is_forwarded_where_an_alias_leads_out_of_our_domains() {
    let told = deliver(&start(|_| {}), "a@client.example", "both@example.org").await;
    assert_eq!(told, ["both@elsewhere.example *", "bob@example.org", "both@onward.example"]);
    let told = deliver(&start(|_| {}), "a@client.example", "robert@example.org").await;
    assert_eq!(told, ["bob@example.org"]);
}

#[tokio::test]
async fn all_other_mail_keeps_its_sender() {
    for sender in ["", "carol@example.org", "Carol@onward.example", "a@partner.example"] {
        assert_eq!(deliver(&start(|_| {}), sender, "away@example.org").await, ["away@elsewhere.example"], "{sender}");
    }
    let trusting = start(|context| context.relay_networks = everyone());
    assert_eq!(deliver(&trusting, "a@client.example", "away@example.org").await, ["away@elsewhere.example"]);
    let without = start(|context| context.rewritten_senders = None);
    assert_eq!(deliver(&without, "a@client.example", "away@example.org").await, ["away@elsewhere.example"]);
    let server = start(|_| {});
    by_drop_folder(&server, &["away@example.org"], "Subject: x\r\n\r\nx\r\n").await;
    assert_eq!(stored(&server), ["away@elsewhere.example"]);
}

/// A bounce to a local user who has moved since: the way back is the one that RCPT would take.
#[tokio::test]
async fn a_notice_to_a_rewritten_sender_goes_to_the_original_one_for_every_client() {
    for (recipient, expected) in [
        ("back=eve=client.example@srs.example", "eve@client.example"),
        ("back=robert=example.org@srs.example", "bob@example.org"),
    ] {
        let server = start(|_| {});
        assert_eq!(deliver(&server, "", recipient).await, [expected]);
        let original = server.message().envelope.recipients[0].original.clone();
        assert_eq!(original, Some(recipient.parse().unwrap()));
    }
}

#[tokio::test]
async fn nothing_else_gets_through_by_a_rewritten_sender() {
    let server = start(|context| context.relay_networks = everyone());
    for (sender, recipient, reply) in [
        ("a@client.example", "back=eve=client.example@srs.example", "550 5.7.1 <back="),
        ("", "back=eve=localhost@srs.example", "550 5.1.2 "),
        ("", "back=nobody=example.org@srs.example", "550 5.1.1 "),
        ("", "forged=eve=client.example@srs.example", "550 5.1.1 <forged="),
        ("", "old=eve=client.example@srs.example", "550 5.1.1 <old="),
    ] {
        let mut client = server.client().await;
        client.expect(&format!("MAIL FROM:<{sender}>"), "250").await;
        client.expect(&format!("RCPT TO:<{recipient}>"), reply).await;
        client.end().await;
    }
    let server = start(|_| {});
    let mut client = server.client().await;
    client.expect("MAIL FROM:<>", "250").await;
    client.expect("RCPT TO:<bob@srs.example>", "550 5.7.1 ").await;
}

#[tokio::test]
async fn mail_waits_while_nobody_can_say_whether_the_sender_is_ours() {
    let answers = HashMap::from([("client.example", LookupAnswer::Unavailable("no cable".into()))]);
    let names = Arc::new(TableStub("names", answers));
    let settings = LocalDomain {
        name: "".into(),
        mailboxes: None,
        aliases: None,
        catch_all: None,
        wildcard_mailbox: false,
        hosts: None,
        delimiter: None,
        transport: "maildir".into(),
        is_final: true,
    };
    let server = start(|context| {
        context.directory = Arc::new(directory().with_domain_tables(vec![LocalDomainTable { names, settings }]));
    });
    let mut client = server.client().await;
    client.begin(&["away@example.org"]).await;
    client.expect("Subject: x\r\n\r\nx\r\n.", "451 4.3.0 ").await;
    let told = server.log_lines.lock().unwrap().concat();
    assert!(told.contains("cannot look up <a@client.example> in the directory: no cable"), "{told}");
    assert_eq!(deliver(&server, "a@other.example", "away@example.org").await, ["away@elsewhere.example *"]);
}
