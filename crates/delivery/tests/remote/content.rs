//! A message arrives exactly as stored, however it is sent, and what a server cannot accept is not
//! sent to it.

use std::sync::Arc;

use delivery::DeliveryResult;
use delivery::remote::{NextHopFeedback, RemoteDeliveryConfig};
use mail::{Body, BodyFlags, Outcome};
use net::TlsClient;
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
        let hop = hop(config(), &[serve_all(&seen, "250-mx\r\n250-SIZE 100\r\n250 CHUNKING\r\n").await]);
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
