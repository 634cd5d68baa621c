//! Addresses that are rewritten on the way out: in the envelope and the header, however the message is
//! sent; and nothing is sent while they cannot be rewritten.

use std::sync::Arc;

use delivery::DeliveryResult;
use delivery::remote::{
    ConnectionConfig, EightBitPolicy, GenericAddresses, GenericFuture, GenericRewriter, NextHopFeedback,
    RemoteDeliveryConfig,
};
use mail::{Address, Body};
use protocol::mime::seven_bit::to_seven_bit;
use protocol::smtp::client::stuff_dots;
use rustix::fs::{Advice, fadvise};

use super::support::*;

const TO: &[&str] = &["bob@inner.test"];
const INNER: &str = "inner.test";
const OUTER: &str = "isp.example";
const PLAIN: &str = "250 mx\r\n";
const HEADER: &str =
    "Received: from x\r\n\tby inner.host\r\nFrom: alice@inner.test\r\nTo: x@y.test,\r\n bob@inner.test\r\n";

/// Puts one domain in place of another. The table is not available for the domain `broken.test`.
#[derive(Debug)]
struct Domains;

impl GenericRewriter for Domains {
    fn rewrite<'a>(&'a self, envelope: &'a [Address], header: &'a [u8]) -> GenericFuture<'a> {
        Box::pin(async move {
            if envelope.iter().any(|address| address.domain() == "broken.test") {
                return Err("the table is not available".to_owned());
            }
            let new = |address: &Address| address.as_str().replace(INNER, OUTER).parse().unwrap();
            let text = header.escape_ascii().to_string();
            let mut changed = Vec::new();
            for piece in header.split_inclusive(|octet| *octet == b't') {
                changed.extend_from_slice(piece);
                if changed.ends_with(INNER.as_bytes()) {
                    changed.truncate(changed.len() - INNER.len());
                    changed.extend_from_slice(OUTER.as_bytes());
                }
            }
            Ok(GenericAddresses {
                envelope: envelope.iter().map(new).collect(),
                header: text.contains(INNER).then_some(changed),
                needs_smtputf8: text.contains("needs-smtputf8"),
            })
        })
    }
}

fn generic(change: impl FnOnce(&mut ConnectionConfig)) -> RemoteDeliveryConfig {
    RemoteDeliveryConfig { generic: Some(Arc::new(Domains)), ..config_with(change) }
}

fn rewritten(text: &str) -> String {
    let (header, rest) = text.split_at(text.find("\r\n\r\n").unwrap_or(text.len()));
    header.replace(INNER, OUTER) + rest
}

async fn deliver_and_read(config: RemoteDeliveryConfig, hello: &'static str, body: Body) -> Message {
    let seen = ServerActivity::default();
    let hop = hop(config, &[serve_all(&seen, hello).await]);
    let end = TestDelivery::new().send(&hop, TO, body).await;
    assert_eq!(summary(&end), ["relayed"]);
    seen.messages.take().pop().unwrap()
}

fn dot_stuffed(text: &str) -> Vec<u8> {
    let end: &[u8] = if text.ends_with("\r\n") { b".\r\n" } else { b"\r\n.\r\n" };
    [&stuff_dots(text.as_bytes())[..], end].concat()
}

#[test]
fn the_header_is_rewritten_by_every_way_and_the_rest_is_as_stored() {
    let large = "line of bob@inner.test\r\n".repeat(10_000);
    let dots = ".\r\n..x\r\n\r\n.y@inner.test\r\n".repeat(10_000);
    let texts = ["\r\n", "\r\n.bob@inner.test", "", &format!("\r\n{large}"), &format!("\r\n{dots}")]
        .map(|rest| format!("{HEADER}{rest}"));
    run_test(async move {
        for text in texts.iter().chain(&["From: a@inner.test".to_owned(), "Subject: nothing\r\n\r\nx".to_owned()]) {
            for sendfile_above in [None, Some(1000)] {
                for hello in [PLAIN, PIPELINING, CHUNKING] {
                    let config = || generic(|it| it.sendfile_above = sendfile_above);
                    let expected = rewritten(text);
                    let expected =
                        if hello == CHUNKING { expected.clone().into_bytes() } else { dot_stuffed(&expected) };
                    let from_memory = deliver_and_read(config(), hello, body(text.as_bytes())).await;
                    assert!(from_memory.content == expected, "{} octets from memory, {hello}", text.len());
                    let (stored, body) = StoredFile::body(text.as_bytes());
                    stored.file().sync_all().unwrap();
                    fadvise(stored.file(), 0, None, Advice::DontNeed).unwrap();
                    let from_file = deliver_and_read(config(), hello, body).await;
                    assert!(from_file.content == expected, "{} octets from a file, {hello}", text.len());
                }
            }
        }
    });
}

#[test]
fn eight_bit_mail_is_converted_with_its_new_header() {
    let text = format!("{HEADER}\r\n{}", "Gr\u{fc}\u{df}e, bob@inner.test\r\n".repeat(5000));
    run_test(async move {
        let config = generic(|it| it.eight_bit = EightBitPolicy::Convert);
        let (_stored, body) = StoredFile::body(text.as_bytes());
        let content = deliver_and_read(config, CHUNKING, body).await.content;
        assert!(content == *to_seven_bit(rewritten(&text).as_bytes()).unwrap());
    });
}

#[test]
fn every_address_of_the_envelope_is_rewritten_and_the_first_address_of_notices_is_not() {
    run_test(async {
        let seen = ServerActivity::default();
        let hop = hop(generic(|_| {}), &[serve_all(&seen, "250-mx\r\n250-DSN\r\n250 CHUNKING\r\n").await]);
        let mut task = task(&hop, 1, &["a@inner.test", "b@far.test", "c@inner.test"], body(TEXT));
        let original = Arc::make_mut(&mut task.envelope);
        original.sender = Some("alice@inner.test".parse().unwrap());
        original.recipients[0].orcpt = Some("rfc822;a@inner.test".into());
        original.recipients[2].is_forwarded = true;
        task.forwarded_sender = Some("SRS0=x=y=z=alice@inner.test".parse().unwrap());
        let mut sender = TestDelivery::new();
        sender.remote.start_task(task.clone());
        let end = sender.end().await;
        assert_eq!(summary(&end), ["relayed"; 3]);
        assert_eq!(end.envelope, task.envelope);
        let envelopes: Vec<_> = seen.messages.take().into_iter().map(|message| message.envelope).collect();
        assert_eq!(
            envelopes,
            [
                vec![
                    "MAIL FROM:<alice@isp.example>",
                    "RCPT TO:<a@isp.example> ORCPT=rfc822;a@inner.test",
                    "RCPT TO:<b@far.test>"
                ],
                vec!["MAIL FROM:<SRS0=x=y=z=alice@isp.example>", "RCPT TO:<c@isp.example>"],
            ]
        );
        Arc::make_mut(&mut task.envelope).sender = None;
        task.recipients = vec![0];
        sender.remote.start_task(task);
        assert_eq!(summary(&sender.end().await), ["relayed"]);
        assert_eq!(seen.messages.take()[0].envelope[0], "MAIL FROM:<>");
    });
}

#[test]
fn nothing_is_sent_while_addresses_cannot_be_rewritten() {
    run_test(async {
        let seen = ServerActivity::default();
        let hop = hop(generic(|_| {}), &[serve_all(&seen, PIPELINING).await]);
        let end = TestDelivery::new().send(&hop, &["a@far.test", "b@broken.test"], body(TEXT)).await;
        assert_eq!(summary(&end), ["deferred 451 4.3.0"; 2]);
        assert_eq!((end.feedback, seen.connections.get()), (NextHopFeedback::Unknown, 0));
        let endless = "X: y\r\n".repeat(200_000);
        let end = TestDelivery::new().send(&hop, TO, body(endless.as_bytes())).await;
        assert_eq!((&*summary(&end)[0], seen.connections.get()), ("failed 554 5.6.0", 0));
    });
}

#[test]
fn an_address_beyond_ascii_in_the_header_needs_a_server_for_it() {
    run_test(async {
        let text = b"From: needs-smtputf8\r\n\r\nx\r\n";
        let hello = "250-mx\r\n250-8BITMIME\r\n250 SMTPUTF8\r\n";
        let message = deliver_and_read(generic(|_| {}), hello, body(text)).await;
        assert!(message.envelope[0].ends_with(" SMTPUTF8"), "{:?}", message.envelope);
        let seen = ServerActivity::default();
        let hop = hop(generic(|_| {}), &[serve_all(&seen, PLAIN).await]);
        assert_eq!(summary(&TestDelivery::new().send(&hop, TO, body(text)).await), ["failed 553 5.6.7"]);
    });
}

#[test]
fn a_damaged_message_is_not_sent_with_another_header() {
    run_test(async {
        let text = format!("{HEADER}\r\nbody\r\n");
        for damaged in [text.replace("Received", "received"), text.replace("body", "bode")] {
            let body = Body::new(
                Arc::new(damaged.into_bytes()),
                0,
                text.len() as u64,
                crc32c::crc32c(text.as_bytes()),
                body(text.as_bytes()).flags(),
            );
            let seen = ServerActivity::default();
            let hop = hop(generic(|_| {}), &[serve_all(&seen, PIPELINING).await]);
            let end = TestDelivery::new().send(&hop, TO, body).await;
            assert!(matches!(end.result, DeliveryResult::Damaged(_)), "{:?}", end.result);
            assert_eq!(seen.messages.take(), []);
        }
    });
}
