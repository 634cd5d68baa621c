//! Servers that disconnect, refuse, send garbage, stay silent or fail at TLS.

use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use delivery::remote::{NextHopFeedback, RemoteDeliveryConfig};
use mail::Outcome;
use net::{Endpoint, TlsClient};
use protocol::smtp::client::{self, Timeouts, TlsPolicy};
use tokio::net::TcpSocket;
use tokio::sync::Notify;
use tokio::sync::mpsc::unbounded_channel;

use super::support::*;

const TO: &[&str] = &["bob@example.net", "carol@example.net"];

/// An address without a listener.
async fn unused_endpoint() -> Endpoint {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    // Keeps the port from other tests until all of them are done.
    std::mem::forget(socket);
    Endpoint::Tcp(address)
}

#[test]
fn whenever_a_server_drops_the_connection_each_recipient_is_deferred_once() {
    let steps: &[&[&str]] = &[
        &[],
        &["220 mx\r\n"],
        &["220 mx\r\n", PIPELINING],
        &["220 mx\r\n", PIPELINING, "250 ok\r\n"],
        &["220 mx\r\n", PIPELINING, "250 ok\r\n250 ok\r\n"],
        &["220 mx\r\n", PIPELINING, "250 ok\r\n250 ok\r\n250 ok\r\n"],
        &["220 mx\r\n", PIPELINING, "250 ok\r\n250 ok\r\n250 ok\r\n354 go\r\n"],
        &["220 mx\r\n", "250-mx\r\n250-PIPELI"],
    ];
    for replies in steps {
        run_test(async {
            let seen = ServerActivity::default();
            let endpoint = serve(&seen, move |mut connection, _| async move {
                for reply in *replies {
                    connection.send(reply).await;
                    if reply.ends_with('\n') {
                        connection.read_line().await;
                    }
                }
            });
            let hop = hop(config(), &[endpoint.await]);
            let mut sender = TestDelivery::new();
            let end = sender.send(&hop, TO, body(TEXT)).await;
            assert_eq!(summary(&end), ["deferred 451 4.4.2"; 2], "{replies:?}");
            // Once EHLO is answered, the message may be what the server cannot handle.
            let is_ready = replies.last().is_some_and(|last| last.ends_with('\n')) && replies.len() > 1;
            let is_blamed = if is_ready {
                matches!(end.feedback, NextHopFeedback::Interrupted(_))
            } else {
                matches!(end.feedback, NextHopFeedback::Failed(_))
            };
            assert!(is_blamed, "{replies:?}: {:?}", end.feedback);
            sender.remote.close().await;
            assert!(!sender.has_report(), "{replies:?}");
            assert_eq!(seen.connections.get(), 1);
        });
    }
}

#[test]
fn what_was_said_before_the_drop_counts() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve(&seen, |mut connection, _| async move {
            connection.greet(PIPELINING).await;
            connection.expect_commands(&["MAIL", "RCPT", "RCPT", "DATA"]).await;
            connection.send("250 ok\r\n550 5.1.1 who?\r\n250 ok\r\n354 go\r\n").await;
            connection.read_octets(TEXT.len() + 3).await;
        });
        let hop = hop(config(), &[endpoint.await]);
        let end = TestDelivery::new().send(&hop, TO, body(TEXT)).await;
        assert_eq!(summary(&end), ["failed 550 5.1.1", "deferred 451 4.4.2"]);
        let said = format!("{:?}", outcomes(&end)[1]);
        assert!(said.contains("may have arrived"), "{said}");
    });
}

#[test]
fn garbage_and_endless_replies_end_the_session() {
    for (reply, is_endless) in [("SSH-2.0-x\r\n", false), ("250-x\r\n", true), ("220 x\r\n220 x\r\n", false)] {
        run_test(async {
            let seen = ServerActivity::default();
            let endpoint = serve(&seen, move |mut connection, _| async move {
                connection.send(reply).await;
                for _ in 0..if is_endless { 100_000 } else { 0 } {
                    connection.send(reply).await;
                }
            });
            let hop = hop(config(), &[endpoint.await]);
            let end = TestDelivery::new().send(&hop, TO, body(TEXT)).await;
            assert_eq!(summary(&end), ["deferred 451 4.4.2"; 2]);
            assert!(
                matches!(&end.feedback, NextHopFeedback::Failed(reply) if reply.text.contains("not SMTP")),
                "{end:?}"
            );
        });
    }
}

#[test]
fn garbage_in_the_middle_of_a_message_is_held_against_the_message_first() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve(&seen, |mut connection, _| async move {
            connection.greet(PIPELINING).await;
            connection.expect_commands(&["MAIL", "RCPT", "RCPT"]).await;
            connection.send("250 ok\r\nwhat?\r\n").await;
        });
        let end = TestDelivery::new().send(&hop(config(), &[endpoint.await]), TO, body(TEXT)).await;
        assert_eq!(summary(&end), ["deferred 451 4.4.2"; 2]);
        assert!(
            matches!(&end.feedback, NextHopFeedback::Interrupted(reply) if reply.text.contains("not SMTP")),
            "{end:?}"
        );
    });
}

#[test]
fn a_host_that_refuses_or_is_silent_leads_to_the_next_one() {
    for first in ["421 4.3.2 busy\r\n", "554 5.7.1 not you\r\n", "450 later\r\n", "220\r\n", ""] {
        run_test(async {
            let (refusing, seen) = (ServerActivity::default(), ServerActivity::default());
            let endpoint = serve(&refusing, move |mut connection, _| async move {
                connection.send(first).await;
                advance_time_until(async { drop(connection.wait_for_close().await) }).await;
            });
            let endpoints = [endpoint.await, unused_endpoint().await, serve_all(&seen, CHUNKING).await];
            let hop = hop(config(), &endpoints);
            let end = TestDelivery::new().send(&hop, TO, body(TEXT)).await;
            assert_eq!(summary(&end), ["relayed"; 2]);
            assert_eq!(end.peer.unwrap().host(), "mx2.example");
            assert_eq!((refusing.connections.get(), seen.connections.get()), (1, 1));
        });
    }
}

#[test]
fn where_no_host_is_left_the_best_answer_counts() {
    let cases = [
        (&["554 5.7.1 not you\r\n"][..], "failed 554 5.7.1", true),
        (&["554 5.7.1 no\r\n", "421 4.3.2 busy\r\n"], "deferred 421 4.3.2", true),
        (&["421 4.3.2 busy\r\n", "554 5.7.1 no\r\n"], "deferred 421 4.3.2", true),
        (&["554 5.7.1 no\r\n", ""], "deferred 451 4.4.1", true),
        (&["", "554 5.7.1 no\r\n"], "deferred 451 4.4.1", true),
        (&[""], "deferred 451 4.4.1", false),
    ];
    for (banners, expected, is_busy) in cases {
        run_test(async {
            let seen = ServerActivity::default();
            let mut endpoints = Vec::new();
            for banner in banners {
                endpoints.push(match banner.is_empty() {
                    true => unused_endpoint().await,
                    false => serve(&seen, move |mut connection, _| async move { connection.send(banner).await }).await,
                });
            }
            let end = TestDelivery::new().send(&hop(config(), &endpoints), TO, body(TEXT)).await;
            assert_eq!(summary(&end), [expected; 2], "{banners:?}");
            assert_eq!(end.feedback == NextHopFeedback::Busy, is_busy, "{banners:?}: {:?}", end.feedback);
        });
    }
}

#[test]
fn no_more_addresses_are_tried_than_may_be() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoints = [unused_endpoint().await, unused_endpoint().await, serve_all(&seen, CHUNKING).await];
        let hop = hop(config_with(|it| it.addresses_tried_max = 2), &endpoints);
        let end = TestDelivery::new().send(&hop, TO, body(TEXT)).await;
        assert_eq!((summary(&end), seen.connections.get()), (vec!["deferred 451 4.4.1".to_owned(); 2], 0));
        assert_eq!(end.peer, None);
    });
}

/// Mail failed although most hosts had not been tried.
#[test]
fn mail_waits_where_all_that_were_tried_refuse_it_and_there_are_others() {
    run_test(async {
        let (refusing, seen) = (ServerActivity::default(), ServerActivity::default());
        let mut endpoints = Vec::new();
        for _ in 0..3 {
            let endpoint = serve(&refusing, |mut connection, _| async move {
                connection.send("554 5.7.1 not you\r\n").await;
                advance_time_until(async { drop(connection.wait_for_close().await) }).await;
            });
            endpoints.push(endpoint.await);
        }
        endpoints.push(serve_all(&seen, CHUNKING).await);
        let hop = hop(config_with(|it| it.addresses_tried_max = 3), &endpoints);
        let mut sender = TestDelivery::new();
        let end = sender.send(&hop, TO, body(TEXT)).await;
        let Outcome::Deferred(reply) = &outcomes(&end)[0] else { panic!("{:?}", outcomes(&end)) };
        let count = ": 554 5.7.1 not you (3 of 4 addresses tried; the next attempt tries others)";
        assert!(reply.code == 451 && reply.text.ends_with(count), "{reply}");
        assert_eq!(
            (summary(&sender.send(&hop, TO, body(TEXT)).await), end.feedback),
            (vec!["relayed".into(); 2], NextHopFeedback::Busy)
        );
    });
}

/// The same few addresses were tried in every attempt.
#[test]
fn later_tasks_go_on_with_the_addresses_that_were_not_tried() {
    run_test(async {
        let seen = ServerActivity::default();
        let mut endpoints = Vec::new();
        for _ in 0..11 {
            endpoints.push(unused_endpoint().await);
        }
        endpoints.push(serve_all(&seen, CHUNKING).await);
        let hop = hop(config_with(|it| (it.addresses_tried_max, it.idle_connections_max) = (4, 0)), &endpoints);
        let mut sender = TestDelivery::new();
        for _ in 0..4 {
            let end = sender.send(&hop, TO, body(TEXT)).await;
            let Outcome::Deferred(reply) = &outcomes(&end)[0] else { panic!("expected a deferral") };
            let count = " (4 of 12 addresses tried; the next attempt tries others)";
            assert!(reply.text.starts_with("mx") && reply.text.ends_with(count), "{reply}");
        }
        // Once one worked, the next task tries it again.
        for connections in 1..=3 {
            let end = sender.send(&hop, TO, body(TEXT)).await;
            assert!(matches!(end.feedback, NextHopFeedback::Answered { .. }), "{:?}", end.feedback);
            assert_eq!(seen.connections.get(), connections);
        }
    });
}

#[test]
fn a_shutdown_in_the_middle_is_an_answer_and_no_reason_to_connect_again() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve(&seen, |mut connection, _| async move {
            connection.greet(PIPELINING).await;
            connection.expect_commands(&["MAIL", "RCPT", "RCPT"]).await;
            connection.send("250 ok\r\n250 ok\r\n421 4.3.2 stopping\r\n").await;
        });
        let end = TestDelivery::new().send(&hop(config(), &[endpoint.await]), TO, body(TEXT)).await;
        assert_eq!((summary(&end), end.feedback), (vec!["deferred 421 4.3.2".to_owned(); 2], NextHopFeedback::Busy));
        assert_eq!(seen.connections.get(), 1);
    });
}

#[test]
fn a_server_that_never_answers_is_told_slow_once_and_given_up_in_doubt() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve(&seen, |mut connection, _| async move {
            connection.greet(CHUNKING).await;
            connection.read_message().await.unwrap();
            // It answers after we have stopped waiting.
            advance_time_until(async { drop(connection.wait_for_close().await) }).await;
            connection.send("250 kept\r\n").await;
        });
        let begun = tokio::time::Instant::now();
        let hop = hop(config(), &[endpoint.await]);
        let mut sender = TestDelivery::new();
        sender.start(&hop, 1, body(TEXT));
        let (end, slow) = sender.end_and_slow().await;
        assert_eq!((summary(&end), slow), (vec!["deferred 451 4.4.2".to_owned()], 1));
        assert!(matches!(end.feedback, NextHopFeedback::Interrupted(reply) if reply.text.contains("in time")));
        let elapsed = begun.elapsed();
        assert!((TIMEOUT..TIMEOUT * 2).contains(&elapsed), "{elapsed:?}");
    });
}

#[test]
fn slow_answers_are_told_once_and_measured() {
    run_test(async {
        let seen = ServerActivity::default();
        let inner = seen.clone();
        let endpoint = serve(&seen, move |mut connection, _| {
            let seen = inner.clone();
            async move {
                advance_time(Duration::from_secs(12)).await;
                connection.greet(CHUNKING).await;
                let message = connection.read_message().await.unwrap();
                advance_time(Duration::from_secs(15)).await;
                seen.messages.borrow_mut().push(message);
                connection.send("250 kept\r\n").await;
                let _ = connection.wait_for_close().await;
            }
        });
        let hop = hop(config(), &[endpoint.await]);
        let mut sender = TestDelivery::new();
        sender.start(&hop, 1, body(TEXT));
        let (end, slow) = sender.end_and_slow().await;
        assert_eq!((summary(&end), slow), (vec!["relayed".to_owned()], 1));
        // The delay of the banner belongs to opening the connection, not to the message.
        let NextHopFeedback::Answered { slowest } = end.feedback else { panic!("{:?}", end.feedback) };
        assert!((Duration::from_secs(15)..Duration::from_secs(16)).contains(&slowest), "{slowest:?}");
    });
}

fn tls_config(tls: TlsPolicy) -> RemoteDeliveryConfig {
    RemoteDeliveryConfig {
        client: client::SmtpClientConfig { tls, ..client() }.into(),
        tls_client: Some(TlsClient::unverified()),
        ..config()
    }
}

#[test]
fn tls_that_fails_is_done_without_where_it_was_only_offered() {
    for how in ["220 go\r\nthis is no TLS\r\n", "220 go\r\n", "454 4.7.0 not now\r\n"] {
        run_test(async {
            let seen = ServerActivity::default();
            let endpoint = serve(&seen, move |mut connection, number| async move {
                connection.greet("250-mx\r\n250-STARTTLS\r\n250 PIPELINING\r\n").await;
                if number == 0 {
                    connection.expect_commands(&["STARTTLS"]).await;
                    connection.send(how).await;
                    if !how.starts_with('4') {
                        return;
                    }
                }
                connection.read_message().await.unwrap();
                connection.send("250 kept\r\n").await;
                let _ = connection.wait_for_close().await;
            });
            let hop = hop(tls_config(TlsPolicy::Offered), &[endpoint.await]);
            let end = TestDelivery::new().send(&hop, TO, body(TEXT)).await;
            assert_eq!(summary(&end), ["relayed"; 2], "{how}");
            assert_eq!(seen.connections.get(), if how.starts_with('4') { 1 } else { 2 });
        });
    }
}

#[test]
fn tls_that_is_required_and_fails_defers() {
    for how in ["220 go\r\nthis is no TLS\r\n", "454 4.7.0 not now\r\n"] {
        run_test(async {
            let seen = ServerActivity::default();
            let endpoint = serve(&seen, move |mut connection, _| async move {
                connection.greet("250-mx\r\n250 STARTTLS\r\n").await;
                connection.expect_commands(&["STARTTLS"]).await;
                connection.send(how).await;
            });
            let hop = hop(tls_config(TlsPolicy::Required), &[endpoint.await]);
            let end = TestDelivery::new().send(&hop, TO, body(TEXT)).await;
            assert_eq!((summary(&end), seen.connections.get()), (vec!["deferred 451 4.7.5".to_owned(); 2], 1));
            assert!(matches!(end.feedback, NextHopFeedback::Failed(_)));
        });
    }
}

#[test]
fn a_server_that_stops_reading_is_given_up_and_the_connection_reset() {
    run_test(async {
        let seen = ServerActivity::default();
        let given_up = Rc::new(Notify::new());
        let (ends, mut ended) = unbounded_channel();
        let news = given_up.clone();
        let endpoint = serve(&seen, move |mut connection, _| {
            let (news, ends) = (news.clone(), ends.clone());
            async move {
                connection.greet(PIPELINING).await;
                connection.expect_commands(&["MAIL", "RCPT", "DATA"]).await;
                connection.send("250 ok\r\n250 ok\r\n354 go\r\n").await;
                advance_time_until(news.notified()).await;
                ends.send(connection.wait_for_close().await).unwrap();
            }
        });
        let hop = hop(config(), &[endpoint.await]);
        let (stored, body) = StoredFile::body(&b"x\r\n".repeat(8 << 20));
        let mut sender = TestDelivery::new();
        let end = sender.send(&hop, &["bob@example.net"], body).await;
        assert_eq!(summary(&end), ["deferred 451 4.4.2"]);
        assert_eq!(Arc::strong_count(&stored), 1, "the lease is released");
        given_up.notify_one();
        let error = ended.recv().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_server_that_answers_before_it_has_read_is_reset_and_sees_no_more_of_the_file() {
    run_test(async {
        let seen = ServerActivity::default();
        let reported = Rc::new(Notify::new());
        let (ends, mut ended) = unbounded_channel();
        let news = reported.clone();
        let endpoint = serve(&seen, move |mut connection, _| {
            let (news, ends) = (news.clone(), ends.clone());
            async move {
                connection.greet(CHUNKING).await;
                connection.expect_commands(&["MAIL", "RCPT"]).await;
                connection.send("250 ok\r\n250 ok\r\n").await;
                connection.expect_commands(&["BDAT"]).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                connection.send("250 kept\r\n").await;
                news.notified().await;
                ends.send(connection.wait_for_close().await).unwrap();
            }
        });
        let hop = hop(config(), &[endpoint.await]);
        // More than the server's side buffers unread, and less than ours does.
        let (stored, body) = StoredFile::body(&b"0123456789abcd\r\n".repeat(600 << 10 >> 4));
        let mut sender = TestDelivery::new();
        let end = sender.send(&hop, &["bob@example.net"], body).await;
        assert_eq!(summary(&end), ["relayed"]);
        assert_eq!(Arc::strong_count(&stored), 1, "the lease is released");
        reported.notify_one();
        let error = ended.recv().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_server_that_reads_slowly_is_told_slow_and_given_up_though_it_never_stops() {
    const SPAN: Duration = Duration::from_secs(10_000);
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve(&seen, |mut connection, _| async move {
            connection.greet(CHUNKING).await;
            connection.expect_commands(&["MAIL", "RCPT"]).await;
            connection.send("250 ok\r\n250 ok\r\n").await;
            connection.expect_commands(&["BDAT"]).await;
            for _ in 0..30 {
                connection.read_octets(1 << 20).await;
                advance_time(SPAN).await;
            }
        });
        let client = client::SmtpClientConfig { timeouts: Timeouts::uniform(SPAN * 10), ..client() };
        let hop = hop(RemoteDeliveryConfig { client: client.into(), ..config() }, &[endpoint.await]);
        let mut sender = TestDelivery::new();
        sender.start(&hop, 1, body(&b"x\r\n".repeat(12 << 20)));
        let (end, slow) = sender.end_and_slow().await;
        assert_eq!((summary(&end), slow), (vec!["deferred 451 4.4.2".to_owned()], 1));
        assert!(
            matches!(&end.feedback, NextHopFeedback::Interrupted(reply) if reply.text.contains("in time")),
            "{:?}",
            end.feedback
        );
    });
}
