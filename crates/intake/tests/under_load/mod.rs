//! Load, with simulated gauges: each stage has its reply, and whatever has begun may finish.

use std::path::Path;
use std::time::Duration;

use crate::server::{GATE_LIMITS, Server, body_after_received, everyone};
use intake::ResourceRefusal;
use load::policy::Gauge;
use mail::Rate;
use net::{ConnectionLimiter, ConnectionLimits};

const MAIL: &str = "MAIL FROM:<a@client.example>";
/// So few that no token returns during a test.
const TWO_A_DAY: Option<Rate> = Some(Rate { count: 2, per: Duration::from_secs(86_400) });

fn load(value: f64) -> [(Gauge, f64); 1] {
    [(Gauge::LoadAverage, value)]
}

fn space(value: f64) -> [(Gauge, f64); 1] {
    [(Gauge::FreeSpace(Path::new("/lane").into()), value)]
}

#[tokio::test]
async fn a_high_load_turns_strangers_away_before_they_speak() {
    let server = Server::start(|_| {});
    let mut early = server.client().await;
    server.set_gauges(&load(20.1));
    let (mut late, banner) = server.connect().await;
    assert!(banner.starts_with("421 4.3.2 "), "{banner}");
    assert_eq!(late.until_closed().await, "");
    early.deliver(&["bob@example.org"]).await;
    server.set_gauges(&load(18.5));
    assert!(server.connect().await.1.starts_with("421 4.3.2 "), "the load is still within the margin");
    server.set_gauges(&load(18.0));
    server.client().await;
    assert_eq!(server.context.refusals.count_of(ResourceRefusal::Load), 2);
    assert_eq!(server.events.refused(), [("connect", 421); 2]);
}

#[tokio::test]
async fn reserved_networks_are_let_in_whatever_the_load() {
    let server = Server::start(|context| context.reserved_networks = everyone());
    server.set_gauges(&load(400.0));
    server.client().await.deliver(&["bob@example.org"]).await;
}

#[tokio::test]
async fn short_disks_and_memory_take_no_new_mail_and_let_clients_in() {
    let path = Path::new("/lane");
    let server = Server::start(|context| context.reserved_networks = everyone());
    for short in [Gauge::FreeSpace(path.into()), Gauge::FreeInodes(path.into()), Gauge::MemoryAvailable] {
        server.set_gauges(&[(short, 99.0)]);
        let mut client = server.client().await;
        client.expect(MAIL, "452 4.3.1 ").await;
        server.set_gauges(&[]);
        client.expect(MAIL, "250").await;
        client.end().await;
    }
    let counted = [ResourceRefusal::DiskShort, ResourceRefusal::MemoryShort]
        .map(|refusal| server.context.refusals.count_of(refusal));
    assert_eq!(counted, [2, 1]);
    assert_eq!(server.events.refused(), [("MAIL", 452); 3]);
}

#[tokio::test]
async fn a_transaction_that_was_begun_is_let_come_to_its_end() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.expect(MAIL, "250").await;
    server.set_gauges(&[load(99.0), space(0.0)].concat());
    client.expect("RCPT TO:<bob@example.org>", "250").await;
    client.expect("DATA", "354").await;
    client.expect("x\r\n.", "250").await;
    client.expect(MAIL, "452 4.3.1 ").await;
}

#[tokio::test]
async fn a_message_after_the_354_is_never_cut_by_load() {
    let server = Server::start(|_| {});
    let mut client = server.client().await;
    client.begin(&["bob@example.org"]).await;
    let everything = [load(400.0), space(0.0), [(Gauge::MemoryAvailable, 0.0)]].concat();
    let text = format!("Subject: whole\r\n\r\n{}", "every line of it arrives\r\n".repeat(20_000));
    for part in text.as_bytes().chunks(text.len() / 10) {
        server.set_gauges(&everything);
        client.send(part).await;
    }
    client.expect(".", "250 2.0.0 ").await;
    assert!(body_after_received(&server.message()) == text.as_bytes());
    client.expect(MAIL, "452 4.3.1 ").await;
}

#[tokio::test]
async fn too_many_connections_are_refused_at_connect() {
    let limits = ConnectionLimits { connections_per_client: TWO_A_DAY, ..GATE_LIMITS };
    let server = Server::start(|context| context.connection_limiter = ConnectionLimiter::new(limits));
    server.client().await.end().await;
    server.client().await.end().await;
    let (mut third, banner) = server.connect().await;
    assert!(banner.starts_with("421 4.7.0 Too many connections"), "{banner}");
    assert_eq!(third.until_closed().await, "");
    assert_eq!(server.context.refusals.count_of(ResourceRefusal::ClientConnections), 1);
}

#[tokio::test]
async fn too_many_messages_are_refused_at_mail() {
    let limits = ConnectionLimits { messages_per_client: TWO_A_DAY, ..GATE_LIMITS };
    let server = Server::start(|context| context.connection_limiter = ConnectionLimiter::new(limits));
    let (mut one, mut other) = (server.client().await, server.client().await);
    one.deliver(&["bob@example.org"]).await;
    other.deliver(&["bob@example.org"]).await;
    one.expect(MAIL, "451 4.7.1 ").await;
    other.expect(MAIL, "451 4.7.1 ").await;
    assert_eq!(server.context.refusals.count_of(ResourceRefusal::ClientMessages), 2);
}

#[tokio::test]
async fn relay_networks_have_no_rate_limits() {
    let limits = ConnectionLimits { connections_per_client: TWO_A_DAY, messages_per_client: TWO_A_DAY, ..GATE_LIMITS };
    let server = Server::start(|context| {
        context.connection_limiter = ConnectionLimiter::new(limits);
        context.relay_networks = everyone();
    });
    for _ in 0..4 {
        let mut client = server.client().await;
        client.deliver(&["bob@example.org"]).await;
        client.end().await;
    }
}
