//! Limits over time and greylisting in whole sessions: what counts, what does not, and the replies.

use std::sync::Arc;
use std::time::Duration;

use filter::greylist::{Greylist, GreylistMemory, GreylistSettings};
use filter::limits::{KEYS_MAX, LimitSettings, LimitSubject, RateLimits};
use filter::{CheckChain, CheckFactory};
use intake::IntakeContext;
use mail::{Address, Allowance, Networks};

use crate::server::Server;

/// A limit of all clients together on messages, recipients and bytes in an hour; 0 for none.
fn set_limit(context: &mut IntakeContext, amounts: [u64; 3]) {
    let per = Duration::from_secs(3600);
    let settings = LimitSettings {
        name: "all".into(),
        subject: LimitSubject::Listener,
        allowances: amounts.map(|amount| (amount > 0).then_some(Allowance { amount, per })),
        listeners: Vec::new(),
        exempt: Networks::default(),
        exempt_users: Vec::new(),
        users: true,
        keys_max: KEYS_MAX,
    };
    let limits = Arc::new(RateLimits::new(&[settings], None).unwrap());
    context.rate_limits = Some(limits.clone());
    context.checks = CheckChain::new(vec![limits]);
}

#[tokio::test]
async fn messages_are_counted_over_sessions_and_tries_of_the_limit_itself_are_not() {
    let server = Server::start(|context| set_limit(context, [2, 0, 0]));
    server.client().await.deliver(&["robert@example.org"]).await;
    let mut client = server.client().await;
    client.deliver(&["robert@example.org"]).await;
    for _ in 0..3 {
        client.expect("MAIL FROM:<a@client.example>", "450 4.7.1 Too many messages at once (limit all), try").await;
    }
    let refused = server.context.rate_limits.as_ref().unwrap().stats()[0].refused;
    assert_eq!(refused, 3);
}

#[tokio::test]
async fn only_recipients_that_exist_are_counted() {
    let server = Server::start(|context| set_limit(context, [0, 1, 0]));
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<nobody@example.org>", "550 5.1.1").await;
    client.expect("RCPT TO:<eve@elsewhere.example>", "550 5.7.1").await;
    client.expect("RCPT TO:<robert@example.org>", "250").await;
    client.expect("RCPT TO:<robert@example.org>", "452 4.7.1 Too many recipients at once").await;
}

#[tokio::test]
async fn bytes_are_refused_by_their_announcement_or_at_the_end() {
    let server = Server::start(|context| set_limit(context, [0, 0, 2000]));
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example> SIZE=2001", "552 5.3.4").await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<robert@example.org>", "250").await;
    client.expect("DATA", "354").await;
    client.expect(&format!("Subject: x\r\n\r\n{}\r\n.", "x".repeat(900)), "250").await;
    client.expect("MAIL FROM:<a@client.example> SIZE=1500", "452 4.7.1 Too many bytes").await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<robert@example.org>", "250").await;
    client.expect("DATA", "354").await;
    client.expect(&format!("Subject: x\r\n\r\n{}\r\n.", "x".repeat(900)), "452 4.7.1 Too many bytes").await;
}

#[tokio::test]
async fn a_stranger_is_greylisted_for_recipients_that_exist() {
    let memory = Arc::new(GreylistMemory::default());
    let greylist = Greylist {
        settings: GreylistSettings::default(),
        exempt_recipients: Arc::new(|_: &Address| false),
        memory: memory.clone(),
    };
    let server =
        Server::start(|context| context.checks = CheckChain::new(vec![Arc::new(greylist) as Arc<dyn CheckFactory>]));
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<nobody@example.org>", "550 5.1.1").await;
    client.expect("RCPT TO:<robert@example.org>", "450 4.7.1 Greylisted, try again in").await;
    client.expect("RCPT TO:<robert@example.org>", "450 4.7.1 Greylisted, try again in").await;
    assert_eq!(memory.stats().entries, [("waiting", 1), ("passed", 0), ("clients", 0)]);
}
