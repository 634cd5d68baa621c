//! POP3 sessions over real connections, in clear text and over TLS, with real Maildirs: what clients
//! receive of messages of all forms, and what happens to a mailbox when a session ends.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod pop3_server;
#[path = "../../net/tests/tls_peer/mod.rs"]
mod tls_peer;

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use net::ConnectionLimits;
use pop3_server::{Client, Server};
use protocol::TlsMode;
use protocol::pop3::server::Pop3Limits;

/// More than the sockets of both sides hold.
const HUGE_OCTETS: u64 = 64 << 20;

/// Messages of all forms: small and large, with CRLF and LF line ends, with and without dots.
fn messages() -> Vec<Vec<u8>> {
    let mut messages: Vec<Vec<u8>> = vec![b"".to_vec(), b"a".to_vec(), b"Subject: x\n\n.\n..\nbody\n".to_vec()];
    messages.extend((0..50).map(|number| {
        let line = format!("{number:060} some more text\r\n");
        [b"Subject: x\r\n\r\n".to_vec(), line.repeat(75).into_bytes()].concat()
    }));
    let line = "x".repeat(76);
    let text = format!("Subject: large\r\n\r\n.dots\r\n{}.\r\n", format!("{line}\r\n").repeat(4000));
    let dots = format!("{text}{}", ".\r\n".repeat(40_000));
    let without_end = format!(".{text}...");
    messages.extend([&text, &dots, &without_end].map(|text| text.clone().into_bytes()));
    messages.extend([&text, &without_end].map(|text| text.replace("\r\n", "\n").into_bytes()));
    messages.push("\n".repeat(65_536).into_bytes());
    messages
}

/// What a client receives of a message, in the simplest way, and the octets that it sees.
fn encode(message: &[u8], lines: Option<usize>) -> (Vec<u8>, usize) {
    let (mut wire, mut octets, mut in_body) = (Vec::new(), 0, None);
    for line in message.split_inclusive(|&byte| byte == b'\n') {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if let (Some(in_body), Some(lines)) = (&mut in_body, lines) {
            if *in_body == lines {
                break;
            }
            *in_body += 1;
        } else if text.is_empty() {
            in_body = Some(0);
        }
        if text.starts_with(b".") {
            wire.push(b'.');
        }
        wire.extend(text);
        wire.extend(b"\r\n");
        octets += text.len() + 2;
    }
    wire.extend(b".\r\n");
    (wire, octets)
}

/// Retrieves all messages with commands that are sent together, and compares every byte.
async fn compare_messages(client: &mut Client, messages: &[Vec<u8>]) {
    let numbers = 1..=messages.len();
    let commands: String = numbers.map(|number| format!("RETR {number}\r\nTOP {number} 3\r\n")).collect();
    client.send(&(commands + "NOOP\r\n")).await;
    for (index, message) in messages.iter().enumerate() {
        let (wire, octets) = encode(message, None);
        let head = client.line().await;
        let told: usize =
            head.strip_prefix("+OK ").and_then(|head| head.strip_suffix(" octets")).unwrap().parse().unwrap();
        // The size of a large message that is copied is that of its file, which may lack a line end.
        let lacks_end = message.len() > 64 << 10 && !message.ends_with(b"\n");
        assert!(told == octets || lacks_end && told + 2 == octets, "message {index}: told {told}, sent {octets}");
        assert!(client.bytes(wire.len()).await == wire, "message {index}");
        assert_eq!(client.line().await, "+OK top of the message follows");
        let (top, _) = encode(message, Some(3));
        assert!(client.bytes(top.len()).await == top, "top of message {index}");
    }
    assert_eq!(client.line().await, "+OK");
}

async fn compare_all(change: impl Fn(&mut pop3_server::Options) + Copy, upgrades: bool) {
    let server = Server::start(change);
    let messages = messages();
    let stored: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    server.write("bob", &stored);
    // The second session finds what the first one has recorded of the files.
    for _ in 0..2 {
        let mut client = if upgrades { server.upgrade().await } else { server.connect().await };
        if !upgrades {
            client.line().await;
        }
        assert_eq!(client.log_in("bob").await, format!("+OK logged in, {} messages", messages.len()));
        compare_messages(&mut client, &messages).await;
        assert_eq!(client.ask("QUIT").await, "+OK bye");
        assert_eq!(client.rest().await, b"");
    }
}

#[tokio::test]
async fn messages_arrive_as_they_are_stored() {
    compare_all(|_| {}, false).await;
}

#[tokio::test]
async fn messages_arrive_as_they_are_stored_without_sendfile() {
    compare_all(|options| options.sendfile = false, false).await;
}

#[tokio::test]
async fn messages_arrive_as_they_are_stored_over_implicit_tls() {
    compare_all(|options| options.tls = TlsMode::Implicit, false).await;
}

#[tokio::test]
async fn messages_arrive_as_they_are_stored_after_an_upgrade() {
    compare_all(|options| options.tls = TlsMode::Required, true).await;
}

#[tokio::test]
async fn only_quit_deletes() {
    let server = Server::start(|_| {});
    server.write("bob", &[b"a\r\n", b"bb\r\n", b"ccc\r\n"]);
    let mut client = server.user("bob").await;
    assert!(client.ask("DELE 2").await.starts_with("+OK"));
    drop(client);
    server.sessions_end().await;
    let mut client = log_in_when_free(&server, "bob").await;
    assert_eq!(client.ask("STAT").await, "+OK 3 12");
    assert!(client.ask("DELE 2").await.starts_with("+OK"));
    assert_eq!(client.ask("QUIT").await, "+OK bye");
    let mut client = server.user("bob").await;
    assert_eq!(client.ask("STAT").await, "+OK 2 8");
    assert_eq!(client.ask("LIST 2").await, "+OK 2 5");
}

/// A lock is released after the end of a connection, but not at once.
async fn log_in_when_free(server: &Server, user: &str) -> Client {
    loop {
        let mut client = server.connect().await;
        client.line().await;
        let reply = client.log_in(user).await;
        if reply.starts_with("+OK") {
            return client;
        }
        assert!(reply.starts_with("-ERR [IN-USE]"), "{reply}");
    }
}

#[tokio::test]
async fn a_mailbox_has_one_session_and_is_free_after_quit() {
    let server = Server::start(|_| {});
    server.write("bob", &[b"a\r\n"]);
    server.write("carol", &[b"a\r\n"]);
    let mut first = server.user("bob").await;
    let mut second = server.connect().await;
    second.line().await;
    assert!(second.log_in("bob").await.starts_with("-ERR [IN-USE]"));
    // Another mailbox is not locked.
    assert!(second.log_in("carol").await.starts_with("+OK"));
    assert_eq!(first.ask("QUIT").await, "+OK bye");
    let mut third = server.user("bob").await;
    assert_eq!(third.ask("STAT").await, "+OK 1 3");
}

#[tokio::test]
async fn a_message_that_another_program_deletes_is_gone() {
    let server = Server::start(|_| {});
    server.write("bob", &[b"a\r\n", b"b\r\n"]);
    let mut client = server.user("bob").await;
    for file in fs::read_dir(server.messages("bob")).unwrap() {
        let path = file.unwrap().path();
        if path.to_string_lossy().contains("1000000.") {
            fs::remove_file(path).unwrap();
        }
    }
    assert_eq!(client.ask("RETR 1").await, "-ERR message was deleted by another program");
    assert_eq!(client.ask("RETR 2").await, "+OK 3 octets");
    assert_eq!(client.bytes(6).await, b"b\r\n.\r\n");
    client.send("DELE 1\r\nDELE 2\r\n").await;
    assert!(client.line().await.starts_with("+OK") && client.line().await.starts_with("+OK"));
    assert_eq!(client.ask("QUIT").await, "+OK bye");
    assert_eq!(fs::read_dir(server.messages("bob")).unwrap().count(), 0);
}

/// The client must not take what it has for the message.
#[tokio::test]
async fn a_file_that_is_truncated_in_flight_ends_the_connection() {
    for (tls, sendfile) in [(TlsMode::Never, true), (TlsMode::Never, false), (TlsMode::Implicit, true)] {
        let server = Server::start(|options| (options.tls, options.sendfile) = (tls, sendfile));
        let file = server.write_huge("bob", HUGE_OCTETS);
        let mut client = server.user("bob").await;
        client.send("RETR 1\r\nNOOP\r\n").await;
        assert!(client.line().await.starts_with("+OK "));
        client.bytes(1_000_000).await;
        file.set_len(1).unwrap();
        let rest = client.rest().await;
        assert!((rest.len() as u64) < HUGE_OCTETS - 1_000_000 && !rest.ends_with(b"\n"), "{tls:?} {sendfile}");
        assert!(server.log.has_line("cannot read a message of user \"bob\": "), "{tls:?} {sendfile}");
        server.sessions_end().await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected() {
    for sendfile in [true, false] {
        let server = Server::start(|options| {
            options.sendfile = sendfile;
            options.limits = Pop3Limits { idle_time_max: Duration::from_millis(300), ..Pop3Limits::default() };
        });
        server.write_huge("bob", HUGE_OCTETS);
        let mut client = server.user("bob").await;
        client.send("RETR 1\r\nDELE 1\r\nQUIT\r\n").await;
        server.sessions_end().await;
        assert!((client.rest().await.len() as u64) < HUGE_OCTETS);
        assert!(server.log.has_line("idle for too long"));
        assert_eq!(fs::read_dir(server.messages("bob")).unwrap().count(), 1, "the message was deleted");
    }
}

#[tokio::test]
async fn a_list_is_sent_in_portions() {
    let server = Server::start(|_| {});
    server.write("bob", &vec![&b"a\r\n"[..]; 10_000]);
    let mut client = server.user("bob").await;
    client.send("UIDL\r\nLIST\r\nNOOP\r\n").await;
    for line in ["1 ", "1 3"] {
        assert_eq!(client.line().await, "+OK 10000 messages");
        assert!(client.line().await.starts_with(line));
        for _ in 1..10_000 {
            client.line().await;
        }
        assert_eq!(client.line().await, ".");
    }
    assert_eq!(client.line().await, "+OK");
}

#[tokio::test]
async fn logins_are_answered_and_logged() {
    let server = Server::start(|_| {});
    let mut client = server.connect().await;
    client.line().await;
    assert!(client.log_in("nobody").await.starts_with("-ERR [AUTH]"));
    assert!(client.log_in("elsewhere").await.starts_with("-ERR [SYS/PERM] your mailbox is on another host"));
    assert!(client.log_in("homeless").await.starts_with("-ERR [SYS/PERM]"));
    assert!(client.log_in("lost").await.starts_with("-ERR [SYS/TEMP]"));
    assert!(server.log.has_line("no cable"));
    assert_eq!(client.ask("AUTH PLAIN AEJvYgBzZWNyZXQ=").await, "+OK logged in, 0 messages");
    let logins = server.log.logins();
    assert_eq!(logins[0], ("nobody".to_owned(), "PLAIN", "refused"));
    assert_eq!(logins[4], ("Bob".to_owned(), "PLAIN", "ok"));
}

#[tokio::test]
async fn clients_over_the_limit_are_refused_in_pop3() {
    let connections = ConnectionLimits { sessions_per_client_max: 0, ..ConnectionLimits::default() };
    let server = Server::start(|options| options.connections = connections);
    let reply = String::from_utf8(server.connect().await.rest().await).unwrap();
    assert_eq!(reply, "-ERR [SYS/TEMP] too many sessions of this client, try again later\r\n");
    assert!(server.log.has_line(&format!("refused a connection from {}", Ipv4Addr::LOCALHOST)));
}

#[tokio::test]
async fn a_shutdown_deletes_nothing() {
    let server = Server::start(|_| {});
    server.write("bob", &[b"a\r\n"]);
    let mut client = server.user("bob").await;
    assert!(client.ask("DELE 1").await.starts_with("+OK"));
    assert!(server.workers.drain(pop3_server::PATIENCE).await);
    assert!(client.rest().await.starts_with(b"-ERR [SYS/TEMP] server is shutting down"));
    assert_eq!(fs::read_dir(server.messages("bob")).unwrap().count(), 1);
}
