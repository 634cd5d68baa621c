//! A message arrives exactly as stored, however it is sent, and what a server cannot accept is not
//! sent to it.

use std::sync::Arc;

use delivery::DeliveryResult;
use delivery::remote::{EightBitPolicy, NextHopFeedback, RemoteDeliveryConfig};
use mail::{Body, BodyFlags, Outcome};
use net::TlsClient;
use protocol::mime::seven_bit::to_seven_bit;
use protocol::smtp::MailProtocol;
use protocol::smtp::client::{self, TlsPolicy, stuff_dots};
use rustix::fs::{Advice, fadvise};
use tokio::sync::mpsc::unbounded_channel;

use super::support::*;

const TO: &[&str] = &["bob@example.net"];
const PLAIN: &str = "250 mx\r\n";

/// Sends a body and returns the message that arrived.
async fn deliver_and_read(config: RemoteDeliveryConfig, hello: &'static str, body: Body) -> Message {
    let seen = ServerActivity::default();
    let hop = hop(config, &[serve_all(&seen, hello).await]);
    let end = TestDelivery::new().send(&hop, TO, body).await;
    assert_eq!(summary(&end), ["relayed"]);
    seen.messages.take().pop().unwrap()
}

/// The bytes after DATA.
fn dot_stuffed(text: &[u8]) -> Vec<u8> {
    let end: &[u8] = if text.is_empty() || text.ends_with(b"\r\n") { b".\r\n" } else { b"\r\n.\r\n" };
    [&stuff_dots(text)[..], end].concat()
}

fn texts() -> Vec<Vec<u8>> {
    let dots = b".\r\n..x\r\n\r\n.y\r\n".repeat(30_000);
    let large: Vec<u8> = (0..40_000).flat_map(|number| format!("line {number} .\r\n").into_bytes()).collect();
    vec![b"".to_vec(), TEXT.to_vec(), b".".to_vec(), b"no end".to_vec(), dots, large]
}

#[test]
fn every_text_arrives_as_it_is_by_every_way() {
    run_test(async {
        for text in texts() {
            for sendfile_above in [None, Some(1000)] {
                for hello in [PLAIN, PIPELINING, CHUNKING] {
                    let config = || config_with(|it| it.sendfile_above = sendfile_above);
                    let expected = if hello == CHUNKING { text.clone() } else { dot_stuffed(&text) };
                    let from_memory = deliver_and_read(config(), hello, body(&text)).await.content;
                    assert!(from_memory == expected, "{} octets from memory, {hello}", text.len());
                    let from_file = deliver_and_read(config(), hello, StoredFile::body(&text).1).await.content;
                    assert!(from_file == expected, "{} octets from a file, {hello}", text.len());
                }
            }
        }
    });
}

#[test]
fn what_is_only_on_the_disk_arrives_too() {
    run_test(async {
        for text in texts() {
            for sendfile_above in [None, Some(1000)] {
                let (stored, body) = StoredFile::body(&text);
                stored.file().sync_all().unwrap();
                fadvise(stored.file(), 0, None, Advice::DontNeed).unwrap();
                let message =
                    deliver_and_read(config_with(|it| it.sendfile_above = sendfile_above), PIPELINING, body).await;
                assert!(message.content == dot_stuffed(&text), "{} octets", text.len());
            }
        }
    });
}

#[test]
fn a_large_body_goes_to_a_slow_reader_under_its_lease() {
    run_test(async {
        let text: Vec<u8> = (0..300_000).flat_map(|number| format!("line {number}\r\n").into_bytes()).collect();
        assert!(text.len() > 1 << 20);
        let (stored, body) = StoredFile::body(&text);
        let weak = Arc::downgrade(&stored);
        drop(stored);
        let seen = ServerActivity::default();
        let (inner, length, lease) = (seen.clone(), text.len(), weak.clone());
        let (news, mut heard) = unbounded_channel();
        let endpoint = serve(&seen, move |mut connection, _| {
            let (seen, lease, news) = (inner.clone(), lease.clone(), news.clone());
            async move {
                connection.greet(CHUNKING).await;
                connection.expect_commands(&["MAIL", "RCPT"]).await;
                connection.send("250 ok\r\n250 ok\r\n").await;
                connection.expect_commands(&[&format!("BDAT {length} LAST")]).await;
                let mut content = Vec::new();
                while content.len() < length {
                    content.extend(connection.read_octets((length - content.len()).min(50_000)).await);
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                news.send(("the lease is held until the server answers", lease.upgrade().is_some())).unwrap();
                seen.messages.borrow_mut().push(Message { content, ..Message::default() });
                connection.send("250 kept\r\n").await;
                connection.expect_commands(&["QUIT"]).await;
                connection.send("221 bye\r\n").await;
                news.send(("the connection then closes cleanly", connection.wait_for_close().await.is_ok())).unwrap();
            }
        });
        let hop = hop(config(), &[endpoint.await]);
        let mut sender = TestDelivery::new();
        assert_eq!(summary(&sender.send(&hop, TO, body).await), ["relayed"]);
        assert!(seen.messages.borrow()[0].content == text);
        assert!(weak.upgrade().is_none(), "the lease is released while the connection stays open");
        sender.remote.close().await;
        for _ in 0..2 {
            let (what, holds) = heard.recv().await.unwrap();
            assert!(holds, "{what}");
        }
    });
}

#[test]
fn a_damaged_body_is_not_sent() {
    run_test(async {
        let seen = ServerActivity::default();
        let hop = hop(config(), &[serve_all(&seen, CHUNKING).await]);
        let changed = Body::new(Arc::new(TEXT.to_vec()), 0, TEXT.len() as u64, 1, BodyFlags::default());
        let mut sender = TestDelivery::new();
        let end = sender.send(&hop, TO, changed).await;
        assert!(matches!(end.result, DeliveryResult::Damaged(_)), "{:?}", end.result);
        assert_eq!(end.feedback, NextHopFeedback::Unknown);
        let short = Body::new(Arc::new(TEXT.to_vec()), 5, TEXT.len() as u64, 1, BodyFlags::default());
        let end = sender.send(&hop, TO, short).await;
        assert_eq!(summary(&end), ["deferred 451 4.3.0"]);
        assert_eq!(seen.messages.borrow().len(), 0);
    });
}

#[test]
fn what_a_server_cannot_take_fails_and_the_connection_goes_on() {
    run_test(async {
        let seen = ServerActivity::default();
        let config = config_with(|it| it.eight_bit = EightBitPolicy::Bounce);
        let hop = hop(config, &[serve_all(&seen, "250-mx\r\n250-SIZE 100\r\n250 CHUNKING\r\n").await]);
        let mut sender = TestDelivery::new();
        let end = sender.send(&hop, TO, body(&[b'x'; 101])).await;
        assert_eq!((summary(&end), end.feedback), (vec!["failed 552 5.3.4".to_owned()], NextHopFeedback::Unknown));
        assert_eq!(summary(&sender.send(&hop, TO, body("ü\r\n".as_bytes())).await), ["failed 554 5.6.3"]);
        let end = sender.send(&hop, &["böb@example.net"], body(TEXT)).await;
        assert_eq!(summary(&end), ["failed 553 5.6.7"]);
        // A message that declares more than it needs is sent without.
        let mut task = task(&hop, 4, TO, body(TEXT));
        let envelope = Arc::make_mut(&mut task.envelope);
        (envelope.smtputf8, envelope.body_type) = (true, mail::BodyType::EightBitMime);
        sender.remote.start_task(task);
        assert_eq!(summary(&sender.end().await), ["relayed"]);
        assert_eq!((seen.connections.get(), seen.messages.borrow().len()), (1, 1));
        // Nothing would report the failure of a notice, so it is sent as it is.
        let mut notice = super::support::task(&hop, 5, TO, body("ü\r\n".as_bytes()));
        Arc::make_mut(&mut notice.envelope).sender = None;
        sender.remote.start_task(notice);
        assert_eq!(summary(&sender.end().await), ["relayed"]);
    });
}

/// 8-bit messages, small and larger than what is converted at once.
fn eight_bit_texts() -> Vec<Vec<u8>> {
    let line = "grüße .\r\n.\r\n..x\r\n".as_bytes();
    let header = b"Subject: x\r\nMIME-Version: 1.0\r\n";
    let text = |lines| [&header[..], b"\r\n", &line.repeat(lines), b"no end"].concat();
    let file = |octets| [&header[..], b"Content-Type: image/png\r\n\r\n", &vec![0xff; octets]].concat();
    vec![text(1), text(100_000), file(10), file(500_000)]
}

#[test]
fn eight_bit_messages_are_converted_for_servers_without_8bitmime() {
    run_test(async {
        for text in eight_bit_texts() {
            let seven_bit = to_seven_bit(&text).unwrap().into_owned();
            assert!(seven_bit != text && seven_bit.is_ascii());
            for hello in [PLAIN, PIPELINING, CHUNKING, "250-mx\r\n250-SIZE\r\n250 CHUNKING\r\n"] {
                let expected = if hello.contains("CHUNKING") { seven_bit.clone() } else { dot_stuffed(&seven_bit) };
                let message = deliver_and_read(config(), hello, body(&text)).await;
                assert!(message.content == expected, "{} octets from memory, {hello}", text.len());
                let size = if hello.contains("SIZE") {
                    format!(" SIZE={}", declared_octets(&seven_bit))
                } else {
                    String::new()
                };
                assert_eq!(message.envelope[0], format!("MAIL FROM:<alice@example.org>{size}"));
                let (stored, body) = StoredFile::body(&text);
                stored.file().sync_all().unwrap();
                fadvise(stored.file(), 0, None, Advice::DontNeed).unwrap();
                let message = deliver_and_read(config(), hello, body).await;
                assert!(message.content == expected, "{} octets from the disk, {hello}", text.len());
            }
        }
    });
}

fn declared_octets(text: &[u8]) -> usize {
    text.len() + if text.ends_with(b"\r\n") { 0 } else { 2 }
}

#[test]
fn a_server_with_8bitmime_gets_the_original_after_one_without() {
    run_test(async {
        let text = &eight_bit_texts()[1];
        let seen = ServerActivity::default();
        let refusing = serve(&seen, |mut connection, _| async move {
            connection.greet("250-mx\r\n250 LIMITS RCPTMAX=1\r\n").await;
            let _ = connection.read_message().await;
            connection.send("250 kept\r\n").await;
        });
        let with = serve_all(&seen, "250-mx\r\n250 8BITMIME\r\n");
        let (without, with) = (refusing.await, with.await);
        let mut sender = TestDelivery::new();
        let two = ["bob@example.net", "eve@example.net"];
        // The first server takes one recipient and closes; the next attempt finds the other server.
        let end = sender.send(&hop(config(), &[without]), &two, body(text)).await;
        assert_eq!(summary(&end), ["relayed", "deferred 451 4.4.2"]);
        assert_eq!(summary(&sender.send(&hop(config(), &[with]), &two[1..], body(text)).await), ["relayed"]);
        let message = seen.messages.take().pop().unwrap();
        assert!(message.content == dot_stuffed(text));
        assert_eq!(message.envelope[0], "MAIL FROM:<alice@example.org> BODY=8BITMIME");
    });
}

#[test]
fn each_transaction_of_a_task_converts_from_the_start() {
    run_test(async {
        let text = &eight_bit_texts()[1];
        let seen = ServerActivity::default();
        let hop = hop(config(), &[serve_all(&seen, "250-mx\r\n250 LIMITS RCPTMAX=1\r\n").await]);
        let end = TestDelivery::new().send(&hop, &["bob@example.net", "eve@example.net"], body(text)).await;
        assert_eq!(summary(&end), ["relayed", "relayed"]);
        let expected = dot_stuffed(&to_seven_bit(text).unwrap());
        assert!(seen.messages.borrow().len() == 2);
        assert!(seen.messages.borrow().iter().all(|message| message.content == expected));
    });
}

#[test]
fn a_transport_may_send_or_bounce_instead_of_converting() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve_all(&seen, PLAIN).await;
        let text = &eight_bit_texts()[0];
        let mut sender = TestDelivery::new();
        let mut delivered = async |policy, sent_by: Option<&str>, text: &[u8], smtputf8| {
            let hop = hop(config_with(|it| it.eight_bit = policy), std::slice::from_ref(&endpoint));
            let mut task = task(&hop, 1, TO, body(text));
            let envelope = Arc::make_mut(&mut task.envelope);
            (envelope.sender, envelope.smtputf8) = (sent_by.map(|address| address.parse().unwrap()), smtputf8);
            sender.remote.start_task(task);
            let end = sender.end().await;
            (summary(&end).concat(), seen.messages.take().pop().map(|message| message.content))
        };
        let (alice, relayed) = (Some("alice@example.org"), "relayed".to_owned());
        let (as_it_is, seven_bit) = (dot_stuffed(text), dot_stuffed(&to_seven_bit(text).unwrap()));
        let bounced = (String::from("failed 554 5.6.3"), None);
        assert_eq!(
            delivered(EightBitPolicy::Send, alice, text, false).await,
            (relayed.clone(), Some(as_it_is.clone()))
        );
        assert_eq!(delivered(EightBitPolicy::Bounce, alice, text, false).await, bounced);
        assert_eq!(delivered(EightBitPolicy::Bounce, None, text, false).await, (relayed.clone(), Some(as_it_is)));
        assert_eq!(delivered(EightBitPolicy::Convert, None, text, false).await, (relayed.clone(), Some(seven_bit)));
        let utf8 = delivered(EightBitPolicy::Convert, alice, text, true).await;
        assert_eq!(utf8, ("failed 553 5.6.7".to_owned(), None));
        // Beyond the limits there is no conversion, and a notice goes as it is.
        let deep = [b"Content-Type: message/rfc822\r\n\r\n".repeat(200), b"\r\n\xe4\r\n".to_vec()].concat();
        assert_eq!(delivered(EightBitPolicy::Convert, alice, &deep, false).await, bounced);
        let notice = delivered(EightBitPolicy::Convert, None, &deep, false).await;
        assert_eq!(notice, (relayed, Some(dot_stuffed(&deep))));
    });
}

#[test]
fn a_damaged_body_is_not_converted() {
    run_test(async {
        let seen = ServerActivity::default();
        let hop = hop(config(), &[serve_all(&seen, PLAIN).await]);
        let text = &eight_bit_texts()[1];
        let flags = BodyFlags { eight_bit: true, ..BodyFlags::default() };
        let changed = Body::new(Arc::new(text.clone()), 0, text.len() as u64, 1, flags);
        let end = TestDelivery::new().send(&hop, TO, changed).await;
        assert!(matches!(end.result, DeliveryResult::Damaged(_)), "{:?}", end.result);
        assert_eq!((end.feedback, seen.messages.borrow().len()), (NextHopFeedback::Unknown, 0));
    });
}

#[test]
fn what_was_asked_for_is_passed_on() {
    run_test(async {
        let seen = ServerActivity::default();
        let hello = "250-mx\r\n250-DSN\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 CHUNKING\r\n";
        let hop = hop(config(), &[serve_all(&seen, hello).await]);
        let mut task = task(&hop, 1, TO, body("ü\r\n".as_bytes()));
        let envelope = Arc::make_mut(&mut task.envelope);
        (envelope.smtputf8, envelope.ret, envelope.envid) = (true, Some(mail::DsnReturn::Headers), Some("e1".into()));
        envelope.recipients[0].notify = mail::DsnNotify::SUCCESS.with(mail::DsnNotify::DELAY);
        envelope.recipients[0].orcpt = Some("rfc822;b+2Bc@example.net".into());
        task.verp = true;
        let mut sender = TestDelivery::new();
        sender.remote.start_task(task);
        let end = sender.end().await;
        assert!(matches!(outcomes(&end), [Outcome::Relayed { dsn: true, .. }]), "{:?}", end.result);
        let lines = seen.messages.take().pop().unwrap().envelope;
        assert_eq!(
            lines,
            [
                "MAIL FROM:<alice+bob=example.net@example.org> BODY=8BITMIME SMTPUTF8 RET=HDRS ENVID=e1",
                "RCPT TO:<bob@example.net> NOTIFY=SUCCESS,DELAY ORCPT=rfc822;b+2Bc@example.net",
            ]
        );
    });
}

#[test]
fn forwarded_recipients_get_another_sender_in_transactions_of_their_own() {
    run_test(async {
        let seen = ServerActivity::default();
        let hop = hop(config(), &[serve_all(&seen, PLAIN).await]);
        let mut task = task(&hop, 1, &["a@example.net", "b@example.net", "c@example.net", "d@example.net"], body(TEXT));
        let envelope = Arc::make_mut(&mut task.envelope);
        (envelope.recipients[1].is_forwarded, envelope.recipients[2].is_forwarded) = (true, true);
        task.forwarded_sender = Some("SRS0=x=y=example.org=alice@us.example".parse().unwrap());
        let mut sender = TestDelivery::new();
        sender.remote.start_task(task);
        assert_eq!(summary(&sender.end().await), ["relayed"; 4]);
        let envelopes: Vec<_> = seen.messages.take().into_iter().map(|message| message.envelope).collect();
        assert_eq!(
            envelopes,
            [
                vec!["MAIL FROM:<alice@example.org>", "RCPT TO:<a@example.net>"],
                vec![
                    "MAIL FROM:<SRS0=x=y=example.org=alice@us.example>",
                    "RCPT TO:<b@example.net>",
                    "RCPT TO:<c@example.net>"
                ],
                vec!["MAIL FROM:<alice@example.org>", "RCPT TO:<d@example.net>"],
            ]
        );
    });
}

#[test]
fn a_first_address_beyond_ascii_keeps_no_message_back() {
    run_test(async {
        let seen = ServerActivity::default();
        let hop = hop(config(), &[serve_all(&seen, "250-mx\r\n250-DSN\r\n250 CHUNKING\r\n").await]);
        let mut task = task(&hop, 1, &["bob@example.net"], body(TEXT));
        let envelope = Arc::make_mut(&mut task.envelope);
        (envelope.smtputf8, envelope.recipients[0].orcpt) = (true, Some("utf-8;bü@example.net".into()));
        let mut sender = TestDelivery::new();
        sender.remote.start_task(task);
        assert_eq!(summary(&sender.end().await), ["relayed"]);
        assert_eq!(seen.messages.take().pop().unwrap().envelope[1], "RCPT TO:<bob@example.net>");
    });
}

#[test]
fn lmtp_over_a_unix_socket_has_an_outcome_for_each() {
    run_test(async {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = serve_unix(&folder.path().join("lmtp"), |mut connection| async move {
            connection.send("220 mx\r\n").await;
            connection.expect_commands(&["LHLO"]).await;
            connection.send(CHUNKING).await;
            connection.expect_commands(&["MAIL", "RCPT", "RCPT", "RCPT", "RCPT", "BDAT"]).await;
            connection.read_octets(TEXT.len()).await;
            connection.send("250 ok\r\n250 ok\r\n550 5.1.1 who?\r\n250 ok\r\n250 ok\r\n").await;
            connection.send("250 2.0.0 kept\r\n452 4.2.2 full\r\n").await;
        });
        let flavor = MailProtocol::Lmtp;
        let hop = hop(
            RemoteDeliveryConfig { client: client::SmtpClientConfig { flavor, ..client() }.into(), ..config() },
            &[endpoint],
        );
        let to = ["a@example.net", "b@example.net", "c@example.net", "d@example.net"];
        let end = TestDelivery::new().send(&hop, &to, body(TEXT)).await;
        assert_eq!(summary(&end), ["relayed", "failed 550 5.1.1", "deferred 452 4.2.2", "deferred 451 4.4.2"]);
        let peer = end.peer.unwrap().to_string();
        assert!(peer.starts_with("mx0.example[/") && peer.ends_with("lmtp]"), "{peer}");
    });
}

#[test]
fn a_large_body_goes_over_a_unix_socket_too() {
    run_test(async {
        let text = b"0123456789\r\n".repeat(100_000);
        let folder = tempfile::tempdir().unwrap();
        let seen = ServerActivity::default();
        let inner = seen.clone();
        let endpoint =
            serve_unix(&folder.path().join("smtp"), move |connection| connection.serve(CHUNKING, inner.clone()));
        let end = TestDelivery::new().send(&hop(config(), &[endpoint]), TO, StoredFile::body(&text).1).await;
        assert_eq!(summary(&end), ["relayed"]);
        assert!(seen.messages.borrow()[0].content == text);
    });
}

#[test]
fn every_text_arrives_through_tls_and_the_connection_is_used_again() {
    run_test(async {
        let seen = ServerActivity::default();
        let inner = seen.clone();
        let endpoint = serve(&seen, move |mut connection, _| {
            let seen = inner.clone();
            async move {
                connection.greet("250-mx\r\n250 STARTTLS\r\n").await;
                connection.expect_commands(&["STARTTLS"]).await;
                connection.send("220 go\r\n").await;
                let mut connection = connection.accept_tls().await;
                connection.expect_commands(&["EHLO"]).await;
                connection.send(PIPELINING).await;
                while let Some(message) = connection.read_message().await {
                    seen.messages.borrow_mut().push(message);
                    connection.send("250 kept\r\n").await;
                }
            }
        });
        let client = client::SmtpClientConfig { tls: TlsPolicy::Required, ..client() };
        let config =
            RemoteDeliveryConfig { client: client.into(), tls_client: Some(TlsClient::unverified()), ..config() };
        let hop = hop(config, &[endpoint.await]);
        let mut sender = TestDelivery::new();
        for text in texts() {
            let end = sender.send(&hop, TO, StoredFile::body(&text).1).await;
            assert_eq!(summary(&end), ["relayed"]);
            assert!(seen.messages.take()[0].content == dot_stuffed(&text), "{} octets", text.len());
        }
        assert_eq!(seen.connections.get(), 1);
    });
}
