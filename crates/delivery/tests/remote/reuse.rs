//! Connections are reused, the last one first, and closed when they should be; there are never more
//! of them than tasks.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use delivery::remote::{NextHopFeedback, RemoteDeliveryConfig};
use net::Endpoint;

use super::support::*;

/// Sends `count` messages, one after the other.
async fn send_one_by_one(sender: &mut TestDelivery, config: RemoteDeliveryConfig, endpoint: Endpoint, count: u32) {
    let hop = hop(config, &[endpoint]);
    for ticket in 0..count {
        sender.start(&hop, ticket, body(TEXT));
        let end = sender.end().await;
        assert_eq!((end.ticket, summary(&end)), (ticket, vec!["relayed".to_owned()]));
        assert!(matches!(end.feedback, NextHopFeedback::Answered { .. }), "{:?}", end.feedback);
    }
}

#[test]
fn one_connection_carries_one_message_after_the_other_and_is_left_when_it_is_idle() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve_all(&seen, CHUNKING).await;
        let mut sender = TestDelivery::new();
        send_one_by_one(&mut sender, config(), endpoint.clone(), 5).await;
        assert_eq!((seen.connections.get(), seen.messages.borrow().len(), seen.quits.get()), (1, 5, 0));
        advance_time(config().connections.idle_time_max).await;
        seen.until_quits(1).await;
        send_one_by_one(&mut sender, config(), endpoint, 1).await;
        assert_eq!(seen.connections.get(), 2);
    });
}

#[test]
fn as_many_connections_as_tasks_at_a_time_and_the_same_ones_again() {
    run_test(async {
        let seen = ServerActivity::default();
        let hop = hop(config(), &[serve_all(&seen, PIPELINING).await]);
        let mut sender = TestDelivery::new();
        for _ in 0..3 {
            (0..4).for_each(|ticket| sender.start(&hop, ticket, body(TEXT)));
            for _ in 0..4 {
                assert_eq!(summary(&sender.end().await), ["relayed"]);
            }
        }
        assert_eq!((seen.connections.get(), seen.messages.borrow().len()), (4, 12));
        sender.remote.close().await;
        seen.until_quits(4).await;
    });
}

#[test]
fn the_connection_that_was_used_last_is_used_first() {
    run_test(async {
        let seen = ServerActivity::default();
        let served = Rc::new(RefCell::new(Vec::new()));
        let inner = served.clone();
        let endpoint = serve(&seen, move |mut connection, number| {
            let served = inner.clone();
            async move {
                connection.greet(CHUNKING).await;
                while let Some(message) = connection.read_message().await {
                    served.borrow_mut().push((message.content, number));
                    connection.send("250 kept\r\n").await;
                }
            }
        });
        let hop = hop(config(), &[endpoint.await]);
        let mut sender = TestDelivery::new();
        let text = |ticket: u32| format!("{ticket}\r\n").into_bytes();
        (0..3).for_each(|ticket| sender.start(&hop, ticket, body(&text(ticket))));
        let mut last = 0;
        for _ in 0..3 {
            last = sender.end().await.ticket;
        }
        let connections: HashMap<Vec<u8>, usize> = served.take().into_iter().collect();
        for _ in 0..4 {
            sender.send(&hop, &["bob@example.net"], body(TEXT)).await;
        }
        assert!(served.take().iter().all(|(_, number)| *number == connections[&text(last)]));
    });
}

#[test]
fn a_connection_that_finds_no_room_to_wait_is_left_at_once() {
    run_test(async {
        let seen = ServerActivity::default();
        let hop = hop(config_with(|it| it.idle_connections_max = 1), &[serve_all(&seen, CHUNKING).await]);
        let mut sender = TestDelivery::new();
        for ticket in 0..3 {
            sender.start(&hop, ticket, body(TEXT));
        }
        for _ in 0..3 {
            sender.end().await;
        }
        seen.until_quits(2).await;
        sender.start(&hop, 4, body(TEXT));
        sender.end().await;
        assert_eq!((seen.connections.get(), seen.quits.get()), (3, 2));
    });
}

#[test]
fn a_server_that_is_slow_to_say_goodbye_never_has_more_connections_than_tasks() {
    run_test(async {
        let seen = ServerActivity::default();
        let open = Rc::new(Cell::new(0));
        let inner = open.clone();
        let endpoint = serve(&seen, move |mut connection, _| {
            let open = inner.clone();
            async move {
                connection.greet(CHUNKING).await;
                open.set(open.get() + 1);
                connection.read_message().await.unwrap();
                assert_eq!(open.get(), 1);
                connection.send("250 kept\r\n").await;
                connection.expect_commands(&["QUIT"]).await;
                // No reply, yet the connection is closed.
                connection.wait_for_close().await.unwrap();
                open.set(open.get() - 1);
            }
        });
        let hop = hop(config_with(|it| it.messages_per_connection_max = 1), &[endpoint.await]);
        let mut sender = TestDelivery::new();
        for _ in 0..3 {
            assert_eq!(summary(&sender.send(&hop, &["bob@example.net"], body(TEXT)).await), ["relayed"]);
        }
        assert_eq!(seen.connections.get(), 3);
    });
}

#[test]
fn a_connection_carries_no_more_messages_than_it_may() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve_all(&seen, CHUNKING).await;
        let mut sender = TestDelivery::new();
        let config = config_with(|it| it.messages_per_connection_max = 2);
        send_one_by_one(&mut sender, config, endpoint, 5).await;
        assert_eq!((seen.connections.get(), seen.messages.borrow().len()), (3, 5));
    });
}

#[test]
fn a_server_that_hangs_up_on_an_idle_connection_costs_no_outcome() {
    run_test(async {
        let seen = ServerActivity::default();
        let inner = seen.clone();
        let endpoint = serve(&seen, move |mut connection, number| {
            let seen = inner.clone();
            async move {
                if number > 0 {
                    return connection.serve(CHUNKING, seen).await;
                }
                connection.greet(CHUNKING).await;
                connection.read_message().await.unwrap();
                // Then it disconnects, with or without a reply.
                connection.send("250 kept\r\n421 too long idle\r\n").await;
            }
        });
        let endpoint = endpoint.await;
        let mut sender = TestDelivery::new();
        send_one_by_one(&mut sender, config(), endpoint, 2).await;
        assert_eq!((seen.connections.get(), seen.messages.borrow().len()), (2, 1));
    });
}

#[test]
fn a_used_connection_that_is_dead_when_the_message_comes_is_replaced_once() {
    for farewell in ["", "421 4.4.2 too late\r\n"] {
        run_test(async {
            let seen = ServerActivity::default();
            let inner = seen.clone();
            let endpoint = serve(&seen, move |mut connection, number| {
                let seen = inner.clone();
                async move {
                    if number > 0 {
                        return connection.serve(CHUNKING, seen).await;
                    }
                    connection.greet(CHUNKING).await;
                    connection.read_message().await.unwrap();
                    connection.send("250 kept\r\n").await;
                    connection.expect_commands(&["MAIL"]).await;
                    connection.send(farewell).await;
                }
            });
            let endpoint = endpoint.await;
            let mut sender = TestDelivery::new();
            send_one_by_one(&mut sender, config(), endpoint, 2).await;
            assert_eq!((seen.connections.get(), seen.messages.borrow().len()), (2, 1));
        });
    }
}

#[test]
fn a_used_connection_that_dies_later_in_the_message_is_not_replaced() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve(&seen, |mut connection, _| async move {
            connection.greet(PIPELINING).await;
            connection.read_message().await.unwrap();
            connection.send("250 kept\r\n").await;
            connection.expect_commands(&["MAIL", "RCPT", "DATA"]).await;
            connection.send("250 ok\r\n").await;
        });
        let hop = hop(config(), &[endpoint.await]);
        let mut sender = TestDelivery::new();
        assert_eq!(summary(&sender.send(&hop, &["bob@example.net"], body(TEXT)).await), ["relayed"]);
        let end = sender.send(&hop, &["bob@example.net"], body(TEXT)).await;
        assert_eq!(summary(&end), ["deferred 451 4.4.2"]);
        assert!(matches!(end.feedback, NextHopFeedback::Interrupted(_)));
        assert_eq!(seen.connections.get(), 1);
    });
}

#[test]
fn closing_waits_for_what_is_under_way() {
    run_test(async {
        let seen = ServerActivity::default();
        let hop = hop(config(), &[serve_all(&seen, CHUNKING).await]);
        let mut sender = TestDelivery::new();
        sender.start(&hop, 1, body(TEXT));
        sender.remote.close().await;
        assert_eq!(summary(&sender.end().await), ["relayed"]);
        assert_eq!(seen.messages.borrow().len(), 1);
        seen.until_quits(1).await;
    });
}

#[test]
fn the_limits_of_a_server_are_obeyed_over_transactions_and_connections() {
    run_test(async {
        let seen = ServerActivity::default();
        let hello = "250-mx\r\n250-PIPELINING\r\n250-CHUNKING\r\n250 LIMITS RCPTMAX=2 MAILMAX=2\r\n";
        let hop = hop(config(), &[serve_all(&seen, hello).await]);
        let mut sender = TestDelivery::new();
        let recipients: Vec<String> = (0..7).map(|number| format!("r{number}@example.net")).collect();
        let recipients: Vec<&str> = recipients.iter().map(String::as_str).collect();
        let end = sender.send(&hop, &recipients, body(TEXT)).await;
        assert_eq!(summary(&end), vec!["relayed"; 7]);
        let messages = seen.messages.borrow();
        let counts: Vec<usize> = messages.iter().map(|message| message.envelope.len() - 1).collect();
        assert_eq!((counts, seen.connections.get()), (vec![2, 2, 2, 1], 2));
        let named = messages.iter().flat_map(|message| &message.envelope[1..]);
        assert!(named.zip(recipients).all(|(line, recipient)| line.contains(recipient)));
    });
}
