//! Whole sessions over TCP with a real spool: the replies, and the messages stored.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access_rules;
mod both_ways;
mod content_checks;
mod forwarded;
mod logins;
mod rate_limits;
mod server;
mod trusted;
mod under_load;

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use intake::{BodyMemoryBudget, ResourceRefusal};
use mail::{Address, QuotaCheck, QuotaFit};
use server::{Server, body_after_received, everyone};
use spool::SpooledMessage;

fn recipients(message: &SpooledMessage) -> Vec<&str> {
    message.envelope.recipients.iter().map(|recipient| recipient.address.as_str()).collect()
}

#[tokio::test]
async fn a_message_is_kept_with_its_trace() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.deliver(&["robert@example.org"]).await;
    let message = server.message();
    assert_eq!(recipients(&message), ["bob@example.org"]);
    assert_eq!(message.envelope.recipients[0].original.as_ref().map(|a| a.as_str()), Some("robert@example.org"));
    assert_eq!(body_after_received(&message), b"Subject: x\r\n\r\nx\r\n");
    assert!(!message.body.flags().eight_bit);
}

/// Also for a message that moved to a file early: with a budget of two floors a body has no more
/// than one.
#[tokio::test]
async fn the_log_has_the_message_id_and_where_it_may_the_subject() {
    for (logs_subjects, subject) in [(true, Some("a\u{e9}\tb")), (false, None)] {
        let server = Server::start(|context| {
            context.logs_subjects = logs_subjects;
            context.body_memory = BodyMemoryBudget::new(0, 0);
        });
        let mut client = server.client().await;
        for octets in [10, 200_000] {
            client.expect("MAIL FROM:<a@client.example> BODY=8BITMIME", "250").await;
            client.expect("RCPT TO:<bob@example.org>", "250").await;
            client.expect("DATA", "354").await;
            let text = format!(
                "Subject: a\u{e9}\r\n\tb\r\nMessage-ID: <{octets}@x>\r\n\r\n{}\r\n.\r\n",
                "x\r\n".repeat(octets)
            );
            client.send(text.as_bytes()).await;
            assert!(client.reply().await.starts_with("250"));
            let header = server.events.headers().pop().unwrap();
            assert_eq!(header.message_id.as_deref(), Some(&*format!("<{octets}@x>")));
            assert_eq!(header.subject.as_deref(), subject, "{octets}");
        }
    }
}

#[tokio::test]
async fn sessions_are_limited_per_client() {
    let server = Server::start(|_| {});
    let (first, _second) = (server.client().await, server.client().await);
    // Clients that send before the banner get the reply too.
    let mut third = server.connect_and_send(b"EHLO client.example\r\n");
    let banner = third.reply().await;
    assert!(banner.starts_with("421 4.7.0 "), "{banner}");
    assert_eq!(third.until_closed().await, "");
    first.end().await;
    server.client().await;
}

#[tokio::test]
async fn trusted_clients_share_one_limit() {
    let server = Server::start(|context| context.relay_networks = everyone());
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(server.client().await);
    }
    let (_, banner) = server.connect().await;
    assert!(banner.starts_with("421 4.3.2 "), "{banner}");
}

#[tokio::test]
async fn memory_is_short_at_data_and_not_before() {
    let server = Server::start(|context| context.body_memory = BodyMemoryBudget::new(0, 0));
    let (mut first, mut second) = (server.client().await, server.client().await);
    first.begin(&["bob@example.org"]).await;
    second.expect("MAIL FROM:<a@client.example>", "250").await;
    second.expect("RCPT TO:<bob@example.org>", "250").await;
    second.expect("DATA", "452 4.3.1 ").await;
    second.expect("DATA", "503").await;
    first.expect(".", "250").await;
    second.deliver(&["bob@example.org"]).await;
}

#[tokio::test]
async fn recipients_get_distinct_replies() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<nobody@example.org>", "550 5.1.1 ").await;
    client.expect("RCPT TO:<bob@elsewhere.example>", "550 5.7.1 ").await;
    client.expect("RCPT TO:<bob@[192.0.2.1]>", "550 5.7.1 ").await;
    client.expect("RCPT TO:<bob@backup>", "550 5.7.1 ").await;
    client.expect("RCPT TO:<x@down.example>", "451 4.3.0 ").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
    let log_lines = server.log_lines.lock().unwrap();
    assert_eq!(*log_lines, ["cannot look up <x@down.example> in the directory: no cable"]);
}

#[tokio::test]
async fn a_local_alias_may_lead_elsewhere_for_every_client() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.deliver(&["away@example.org"]).await;
    let message = server.message();
    assert_eq!(recipients(&message), ["away@elsewhere.example"]);
    assert_eq!(message.envelope.recipients[0].original.as_ref().map(|a| a.as_str()), Some("away@example.org"));
}

#[tokio::test]
async fn relay_networks_send_elsewhere_by_name_by_literal_and_by_route() {
    let server = Server::start(|context| context.relay_networks = everyone());
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<bob@com>", "550 5.1.2 ").await;
    client.expect("RCPT TO:<bob@backup>", "250").await;
    client.expect("RCPT TO:<bob@[192.0.2.1]>", "250").await;
    client.expect("RCPT TO:<Bob@Elsewhere.Example>", "250").await;
    client.expect("RCPT TO:<bob@elsewhere.example>", "250").await;
    client.expect("DATA", "354").await;
    client.expect(".", "250").await;
    let expected = ["bob@backup", "bob@[192.0.2.1]", "Bob@elsewhere.example", "bob@elsewhere.example"];
    assert_eq!(recipients(&server.message()), expected);
}

/// Recipients with a source route through a relay domain.
const SOURCE_ROUTES: [&str; 5] = [
    "victim%elsewhere.example@onward.example",
    "elsewhere.example!victim@onward.example",
    "\"victim@elsewhere.example\"@onward.example",
    "\"victim\\@elsewhere.example\"@onward.example",
    "a+victim%elsewhere.example@listed.example",
];

#[tokio::test]
async fn source_routes_through_relay_domains_are_refused() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    for route in SOURCE_ROUTES {
        client.expect(&format!("RCPT TO:<{route}>"), "550 5.7.1 ").await;
    }
    client.expect("RCPT TO:<c%b@listed.example>", "550 5.1.1 ").await;
    let others = [
        "List+Bob=x@onward.example",
        "A%b@listed.example",
        "a+Tag@listed.example",
        "way@example.org",
        "a%b@open.example",
    ];
    for other in others {
        client.expect(&format!("RCPT TO:<{other}>"), "250").await;
    }
    client.expect("DATA", "354").await;
    client.expect(".", "250").await;
    let expected = [others[0], others[1], others[2], "a%b@onward.example", others[4]];
    assert_eq!(recipients(&server.message()), expected);
}

#[tokio::test]
async fn relay_networks_may_use_source_routes() {
    let server = Server::start(|context| context.relay_networks = everyone());
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    for route in SOURCE_ROUTES {
        client.expect(&format!("RCPT TO:<{route}>"), "250").await;
    }
}

#[tokio::test]
async fn an_address_literal_of_this_host_names_its_mailboxes() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<nobody@[127.0.0.1]>", "550 5.1.1 <nobody@[127.0.0.1]>").await;
    client.expect("RCPT TO:<robert@[127.0.0.1]>", "250").await;
    client.expect("RCPT TO:<carol@[127.0.0.2]>", "550 5.7.1 ").await;
    client.expect("DATA", "354").await;
    client.expect(".", "250").await;
    assert_eq!(recipients(&server.message()), ["bob@example.org"]);
}

#[tokio::test]
async fn the_postmaster_always_gets_mail() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.deliver(&["PostMaster", "postmaster@open.example"]).await;
    assert_eq!(recipients(&server.message()), ["admin@elsewhere.example", "root@open.example"]);
}

#[tokio::test]
async fn aliases_count_by_their_expansion() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<eleven@example.org>", "452 4.5.3 ").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
    client.expect("RCPT TO:<robert@example.org>", "250").await;
    client.expect("RCPT TO:<six@example.org>", "250").await;
    client.expect("RCPT TO:<six@example.org>", "250").await;
    client.expect("RCPT TO:<carol@example.org>", "250").await;
    client.expect("RCPT TO:<a@open.example>", "250").await;
    client.expect("RCPT TO:<b@open.example>", "250").await;
    client.expect("RCPT TO:<c@open.example>", "452 4.5.3 ").await;
    client.expect("DATA", "354").await;
    client.expect(".", "250").await;
    let message = server.message();
    let names = recipients(&message);
    assert_eq!(names.len(), 10);
    assert_eq!((names[0], names[7], names[9]), ("bob@example.org", "carol@example.org", "b@open.example"));
}

/// It was refused permanently, although the aliases only had to be corrected.
#[tokio::test]
async fn an_alias_loop_defers_the_recipient() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<here@example.org>", "451 4.4.6 ").await;
}

#[tokio::test]
async fn a_large_message_goes_through_a_file_byte_for_byte() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    let lines = (0..40_000).map(|n| format!("line {n:06} {}\r\n", "x".repeat(n % 130)));
    let text = format!("Subject: large\r\n\r\n{}", lines.collect::<String>());
    assert!(text.len() > 3_000_000);
    client.begin(&["bob@example.org"]).await;
    client.send(text.as_bytes()).await;
    client.expect(".", "250").await;
    assert_eq!(body_files(&server), 1);
    assert!(body_after_received(&server.message()) == text.as_bytes());
}

#[tokio::test]
async fn a_client_that_goes_away_in_the_middle_leaves_nothing() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.begin(&["bob@example.org"]).await;
    client.send(&b"x".repeat(78).into_iter().chain(*b"\r\n").collect::<Vec<u8>>().repeat(8000)).await;
    assert_eq!(client.end().await, "");
    assert!(server.context.spool.ids().is_empty());
    // The file is removed on another thread, without notification.
    while body_files(&server) > 0 {
        tokio::task::yield_now().await;
    }
}

fn body_files(server: &Server) -> usize {
    let entries = std::fs::read_dir(server.folder.path()).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("body-")).count()
}

#[tokio::test]
async fn a_stop_lets_a_message_end_and_no_other_begin() {
    let server = Server::start(|_| {});
    let (mut idle, mut busy) = (server.client().await, server.client().await);
    busy.begin(&["bob@example.org"]).await;
    server.stopper.stop();
    assert!(idle.until_closed().await.starts_with("421 4.3.2 "));
    busy.expect("x\r\n.", "250").await;
    assert!(busy.until_closed().await.starts_with("421 4.3.2 "));
    drop((idle, busy));
    server.stopper.wait_receivers_dropped().await;
    server.message();
}

#[tokio::test]
async fn a_recipient_beyond_ascii_makes_the_trace_so() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.send(b"EHLO client.example\r\n").await;
    while client.reply().await.starts_with("250-") {}
    client.expect("MAIL FROM:<a@client.example> SMTPUTF8", "250").await;
    client.expect("RCPT TO:<用户@例子.example>", "250").await;
    client.expect("DATA", "354").await;
    client.expect("x\r\n.", "250").await;
    assert!(server.message().body.flags().eight_bit);
}

/// Bob has room for 100 bytes, Carol for nothing ever again, and all others are unknown. Records
/// which mailboxes were asked about for the first time.
#[derive(Default)]
struct FakeQuotas(Mutex<Vec<String>>);

impl QuotaCheck for FakeQuotas {
    fn cached(&self, mailbox: &Address, octets: u64, _now: Instant) -> Option<QuotaFit> {
        let is_known = self.0.lock().unwrap().iter().any(|asked| asked == mailbox.as_str());
        is_known.then_some(match mailbox.local_part() {
            "bob" if octets <= 100 => QuotaFit::Fits,
            "bob" => QuotaFit::Full { for_good: false },
            "carol" => QuotaFit::Full { for_good: true },
            _ => QuotaFit::Unknown,
        })
    }

    fn check<'a>(&'a self, mailbox: &'a Address, octets: u64) -> Pin<Box<dyn Future<Output = QuotaFit> + Send + 'a>> {
        self.0.lock().unwrap().push(mailbox.as_str().to_owned());
        Box::pin(async move { self.cached(mailbox, octets, Instant::now()).unwrap() })
    }
}

#[tokio::test]
async fn a_full_mailbox_is_refused_at_rcpt_and_checked_once() {
    let quotas = Arc::new(FakeQuotas::default());
    let shared = quotas.clone();
    let server = Server::start(|context| context.quota_check = Some(shared));
    let mut client = server.client().await;
    client.expect("EHLO client.example", "250").await;
    // The greeting has several lines; the last one has no hyphen.
    while client.reply().await.as_bytes()[3] == b'-' {}
    client.expect("MAIL FROM:<a@client.example> SIZE=101", "250").await;
    client.expect("RCPT TO:<robert@example.org>", "452 4.2.2 <robert@example.org>: Mailbox full").await;
    client.expect("RCPT TO:<bob@example.org>", "452 4.2.2 <bob@example.org>: Mailbox full").await;
    client.expect("RCPT TO:<carol@example.org>", "552 5.2.2 <carol@example.org>: Mailbox full").await;
    client.expect("RCPT TO:<six@example.org>", "250").await;
    client.expect("RSET", "250").await;
    client.deliver(&["bob@example.org", "someone@open.example"]).await;
    assert_eq!(*quotas.0.lock().unwrap(), ["bob@example.org", "carol@example.org", "someone@open.example"]);
    assert_eq!(server.context.refusals.count_of(ResourceRefusal::MailboxFull), 3);
    assert_eq!(server.events.refused(), [("RCPT", 452), ("RCPT", 452), ("RCPT", 552)]);
}
