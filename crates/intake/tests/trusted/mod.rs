//! What trusted clients may do and others may not: omit the domain, send before the reply, send
//! slowly.

use std::time::Duration;

use intake::BodyMemoryBudget;

use crate::server::{Client, Server, body_after_received, everyone};

const RELAY_CLIENT: &str = "192.0.2.7";
const AT_ONCE: &[u8] = b"MAIL FROM:<a@client.example>\r\nRCPT TO:<bob@example.org>\r\nDATA\r\nx\r\n.\r\n";

async fn send_at_once(client: &mut Client, replies: &[&str]) {
    client.send(AT_ONCE).await;
    for start in replies {
        let reply = client.reply().await;
        assert!(reply.starts_with(start), "expected {start}, found {reply:?}");
    }
}

#[tokio::test]
async fn a_stranger_that_does_not_wait_for_the_354_is_cut_off() {
    let server = Server::start_as(|machine| machine.tolerance.enforces_sync = true, |_| {});
    let mut client = server.client().await;
    send_at_once(&mut client, &["250", "250", "554 5.5.0 "]).await;
    assert_eq!(client.until_closed().await, "");
    assert_eq!(server.events.refused(), [("DATA", 554)]);
    assert!(server.context.spool.ids().is_empty());
    server.client().await.deliver(&["bob@example.org"]).await;
}

#[tokio::test]
async fn a_relay_client_need_not_wait_whether_it_comes_itself_or_by_a_proxy() {
    let server = Server::start_as(
        |machine| machine.tolerance.enforces_sync = true,
        |context| {
            context.proxy_networks = everyone();
            context.relay_networks = RELAY_CLIENT.parse().unwrap();
        },
    );
    let mut proxy = server.client().await;
    proxy.expect(&format!("XCLIENT ADDR={RELAY_CLIENT}"), "220").await;
    proxy.expect("HELO client.example", "250").await;
    send_at_once(&mut proxy, &["250", "250", "354", "250"]).await;
    proxy.expect("XCLIENT ADDR=192.0.2.8", "220").await;
    proxy.expect("HELO client.example", "250").await;
    send_at_once(&mut proxy, &["250", "250", "554 5.5.0 "]).await;

    let server = Server::start_as(
        |machine| machine.tolerance.enforces_sync = true,
        |context| context.relay_networks = everyone(),
    );
    send_at_once(&mut server.client().await, &["250", "250", "354", "250"]).await;
}

#[tokio::test]
async fn a_relay_client_that_names_no_domain_means_the_origin() {
    let relays = |context: &mut intake::IntakeContext| context.relay_networks = everyone();
    let server = Server::start_as(|machine| machine.tolerance.origin = Some("example.org".into()), relays);
    let mut client = server.client().await;
    client.expect("MAIL FROM:root", "250").await;
    client.expect("RCPT TO:<bob>", "250").await;
    client.expect("DATA", "354").await;
    client.expect("x\r\n.", "250").await;
    let message = server.message();
    assert_eq!(message.envelope.sender.as_ref().map(|sender| sender.as_str()), Some("root@example.org"));
    assert_eq!(message.envelope.recipients[0].address.as_str(), "bob@example.org");
    assert_eq!(body_after_received(&message), b"x\r\n");
}

#[tokio::test]
async fn a_stranger_names_a_domain_of_its_sender_and_of_its_recipients() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.expect("MAIL FROM:<root>", "501 5.1.7 ").await;
    client.expect("MAIL FROM:<>", "250").await;
    client.expect("RCPT TO:<bob>", "501 5.1.3 ").await;
    client.expect("RCPT TO:<postmaster>", "250").await;
    client.expect("RCPT TO:bob@example.org.", "250").await;
}

#[tokio::test]
async fn relaying_can_be_put_off_in_place_of_being_refused() {
    let server = Server::start(|context| context.relaying_is_deferred = true);
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<x@elsewhere.example>", "454 4.7.1 Relaying temporarily denied").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
}

/// Clients that sent a byte now and then occupied body memory for as long as they liked.
#[tokio::test]
async fn a_stranger_whose_message_comes_too_slowly_gives_its_memory_to_another() {
    let server = Server::start_as(
        |machine| {
            machine.limits.data_rate_min = 4000;
            machine.limits.data_rate_window = Duration::from_secs(1);
        },
        |context| {
            // Memory for one external client.
            context.body_memory = BodyMemoryBudget::new(0, 0);
            context.message_wait_max = Duration::from_secs(20);
        },
    );
    let (mut slow, mut other) = (server.client().await, server.client().await);
    slow.begin(&["bob@example.org"]).await;
    slow.send(b"Subject: slow\r\n").await;
    other.begin(&["bob@example.org"]).await;
    let reply = slow.reply().await;
    assert!(reply.starts_with("421 4.4.2 "), "{reply}");
    assert_eq!(slow.until_closed().await, "");
    let text = format!("Subject: quick\r\n\r\n{}", "every line of it arrives\r\n".repeat(200));
    other.expect(&format!("{text}."), "250").await;
    assert_eq!(body_after_received(&server.message()), text.as_bytes());
    assert_eq!(server.events.refused(), [("data-rate", 421)]);
}
