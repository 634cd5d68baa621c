//! Sessions with a scripted server, over real sockets.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Barrier, Mutex};
use std::thread;

use clap::Parser;
use protocol::smtp::client::stuff_dots;

use super::*;
use crate::verify::{CopyLocation, Pop3Mailboxes, compare_until_complete};
use crate::{AcknowledgedMessages, MessageStamp, OwnedTargetOptions, RunId};

const RUN: RunId = RunId(7);
const BODY: &[u8] = b"Hello.\r\n.a line that begins with a dot\r\n..\r\nThe end.\r\n";

/// Replaces the reply to a line. The line of the greeting is empty.
type ReplyOverride = dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync;

struct Server {
    address: SocketAddr,
    /// The lines it received.
    commands: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves this number of sound messages to each user.
    fn start(messages: u64) -> Server {
        Server::with_overrides(move |_| (0..messages).map(message).collect(), |_| None)
    }

    /// Serves each user's messages, except where `twist` has another reply. An empty reply ends the
    /// connection.
    fn with_overrides(
        mailbox: impl Fn(&str) -> Vec<Vec<u8>> + Send + Sync + 'static,
        override_reply: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (noted, mailbox, twist) = (heard.clone(), Arc::new(mailbox), Arc::new(override_reply));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (heard, mailbox, twist) = (noted.clone(), mailbox.clone(), twist.clone());
                thread::spawn(move || serve(&stream.unwrap(), &heard, mailbox.as_ref(), twist.as_ref()));
            }
        });
        Server { address, commands: heard }
    }

    /// The number of received lines that begin with this text.
    fn commands_starting_with(&self, begin: &str) -> usize {
        self.commands.lock().unwrap().iter().filter(|line| line.starts_with(begin)).count()
    }

    fn mailboxes(&self, users: u32) -> Pop3Mailboxes {
        let options = options(self, &["--users", &users.to_string()]);
        let target = TargetServer::resolve(&self.address.to_string(), &OwnedTargetOptions::default()).unwrap();
        Pop3Mailboxes { target, accounts: Arc::new(Accounts::from_options(&options.mailboxes).unwrap()) }
    }
}

fn serve(
    mut stream: &TcpStream,
    heard: &Mutex<Vec<String>>,
    mailbox: &dyn Fn(&str) -> Vec<Vec<u8>>,
    override_reply: &ReplyOverride,
) {
    let mut messages = Vec::new();
    let lines = [Ok(String::new())].into_iter().chain(BufReader::new(stream).lines());
    // The client may have disconnected.
    for line in lines.map_while(Result::ok) {
        heard.lock().unwrap().push(line.clone());
        if let Some(user) = line.strip_prefix("USER ") {
            messages = mailbox(user);
        }
        let reply = override_reply(&line).unwrap_or_else(|| reply(&line, &messages));
        if reply.is_empty() || stream.write_all(&reply).is_err() || line == "QUIT" {
            return;
        }
    }
}

fn reply(line: &str, messages: &[Vec<u8>]) -> Vec<u8> {
    let listed = |what: &dyn Fn(usize) -> String| {
        let lines: String = (1..=messages.len()).map(|number| format!("{number} {}\r\n", what(number))).collect();
        format!("+OK\r\n{lines}.\r\n").into_bytes()
    };
    match line.split_once(' ').unwrap_or((line, "")) {
        ("STAT", _) => format!("+OK {} {}\r\n", messages.len(), messages.concat().len()).into_bytes(),
        ("LIST", _) => listed(&|number| messages[number - 1].len().to_string()),
        ("UIDL", _) => listed(&|number| format!("uid-{number}")),
        ("RETR", number) => {
            let message = &messages[number.parse::<usize>().unwrap() - 1];
            [b"+OK\r\n", &stuff_dots(message)[..], b".\r\n"].concat()
        }
        _ => b"+OK\r\n".to_vec(),
    }
}

fn message(sequence: u64) -> Vec<u8> {
    let mut message = b"Received: by somebody\r\n".to_vec();
    MessageStamp::new(RUN, sequence, [BODY]).append_header(&mut message);
    [&message[..], b"\r\n", BODY].concat()
}

fn damaged(sequence: u64) -> Vec<u8> {
    let mut message = message(sequence);
    let place = message.len() - 3;
    message[place] ^= 1;
    message
}

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    options: Pop3Options,
}

fn options(server: &Server, words: &[&str]) -> Pop3Options {
    let target = server.address.to_string();
    let line = [&["pop3", "--target", &target, "--user", "user{}", "--password", "secret{}"], words].concat();
    CommandLine::try_parse_from(line).unwrap().options
}

fn load(server: &Server, sessions: u32, words: &[&str]) -> LoadSummary {
    run_load(&options(server, &[&["--sessions", &sessions.to_string()], words].concat())).unwrap()
}

fn errors(summary: &LoadSummary) -> Vec<(&str, u64)> {
    summary.errors.iter().map(|(text, &count)| (text.as_str(), count)).collect()
}

#[test]
fn every_message_of_every_mailbox_is_read() {
    let server = Server::start(3);
    let summary = load(&server, 6, &["--connections", "2", "--users", "3"]);
    assert_eq!((summary.done, summary.failed, summary.parts, summary.connections), (6, 0, 18, 6));
    assert_eq!(summary.octets, 18 * message(0).len() as u64);
    assert_eq!(summary.verdict(), RunVerdict::Good, "{summary}");
    let phases: Vec<_> = summary.phases.iter().map(|times| (times.name, times.count)).collect();
    assert_eq!(phases, [("connect", 6), ("banner", 6), ("login", 6), ("list", 6), ("retr", 18), ("quit", 6)]);
    for user in 1..=3 {
        assert_eq!(server.commands_starting_with(&format!("USER user{user}")), 2);
        assert_eq!(server.commands_starting_with(&format!("PASS secret{user}")), 2);
    }
}

#[test]
fn a_damaged_message_is_an_error_and_a_foreign_one_is_not() {
    let foreign = b"Subject: x\r\n\r\nNobody knows me.\r\n".to_vec();
    let server = Server::with_overrides(move |_| vec![message(0), damaged(1), foreign.clone()], |_| None);
    let summary = load(&server, 2, &[]);
    assert_eq!((summary.done, summary.parts), (2, 6));
    assert_eq!(errors(&summary), [("a message is damaged", 2)]);
    assert_eq!(summary.verdict(), RunVerdict::Bad);
}

#[test]
fn messages_are_fetched_and_deleted_by_share() {
    let server = Server::start(100);
    let summary = load(&server, 2, &["--connections", "1", "--retrieve", "0%", "--delete", "100%"]);
    assert_eq!(
        (summary.done, summary.parts, server.commands_starting_with("RETR"), server.commands_starting_with("DELE")),
        (2, 0, 0, 200)
    );
    load(&server, 2, &["--connections", "1", "--retrieve", "50%"]);
    assert!((60..=140).contains(&server.commands_starting_with("RETR")), "{}", server.commands_starting_with("RETR"));
    assert_eq!(server.commands_starting_with("DELE"), 200);
}

#[test]
fn a_refusal_is_counted_by_its_text_and_no_deletion_is_committed() {
    let override_reply = |line: &str| match line {
        "PASS secret1" => Some(b"-ERR [AUTH] not today\r\n".to_vec()),
        "RETR 2" => Some(b"-ERR it is gone\r\n".to_vec()),
        _ => None,
    };
    let server = Server::with_overrides(|_| vec![message(0), message(1)], override_reply);
    let summary = load(&server, 2, &["--connections", "1", "--users", "2", "--delete", "100%"]);
    assert_eq!(errors(&summary), [("PASS: -ERR [AUTH] not today", 1), ("RETR: -ERR it is gone", 1)]);
    assert_eq!(
        (summary.failed, summary.parts, server.commands_starting_with("DELE"), server.commands_starting_with("QUIT")),
        (2, 1, 1, 0)
    );
}

#[test]
fn uidl_is_optional_but_list_must_agree_with_stat() {
    let server =
        Server::with_overrides(|_| vec![message(0)], |line| (line == "UIDL").then(|| b"-ERR what?\r\n".to_vec()));
    assert_eq!(load(&server, 1, &[]).verdict(), RunVerdict::Good);
    let server =
        Server::with_overrides(|_| vec![message(0)], |line| (line == "LIST").then(|| b"+OK\r\n.\r\n".to_vec()));
    assert_eq!(errors(&load(&server, 1, &[])), [("LIST and STAT differ in the number of messages", 1)]);
}

#[test]
fn a_broken_session_is_an_error_that_names_the_command() {
    let said = |when: &'static str, what: &'static [u8]| {
        let server = Server::with_overrides(|_| vec![message(0)], move |line| (line == when).then(|| what.to_vec()));
        let summary = load(&server, 1, &["--users", "1", "--timeout", "200ms"]);
        assert_eq!(summary.failed, 1);
        errors(&summary)[0].0.to_owned()
    };
    assert_eq!(said("", b"220 mx ESMTP\r\n"), "banner: a line is not a reply");
    assert_eq!(said("", b"-ERR too busy\r\n"), "banner: -ERR too busy");
    assert_eq!(said("STAT", b""), "STAT: connection closed before the end of the session");
    assert_eq!(said("RETR 1", b"+OK\r\nhalf a mess"), "RETR: no answer in time");
    assert_eq!(said("QUIT", b""), "QUIT: connection closed before the end of the session");
}

#[test]
fn a_walk_shows_what_each_mailbox_has() {
    let server = Server::with_overrides(|user| (0..user[4..].parse().unwrap()).map(message).collect(), |_| None);
    let mailboxes = server.mailboxes(40);
    let mut counts = std::collections::BTreeMap::new();
    walk(&mailboxes.target, &mailboxes.accounts, |user, seen| {
        assert!(seen.unwrap().sound);
        *counts.entry(user.to_owned()).or_insert(0) += 1;
    })
    .unwrap();
    assert_eq!(counts, (1..=40).map(|user| (format!("user{user}"), user)).collect());
    assert_eq!((server.commands_starting_with("QUIT"), server.commands_starting_with("DELE")), (40, 0));
}

#[test]
fn a_walk_reads_several_mailboxes_at_a_time() {
    // Each session waits until the other one has come as far.
    let both = Barrier::new(2);
    let override_reply = move |line: &str| {
        if line == "STAT" {
            both.wait();
        }
        None
    };
    let server = Server::with_overrides(|_| vec![message(0)], override_reply);
    let mailboxes = server.mailboxes(2);
    let mut count = 0;
    walk(&mailboxes.target, &mailboxes.accounts, |_, _| count += 1).unwrap();
    assert_eq!(count, 2);
}

#[test]
fn a_mailbox_that_cannot_be_read_is_a_fault() {
    let server =
        Server::with_overrides(|_| vec![message(0)], |line| (line == "PASS secret3").then(|| b"-ERR no\r\n".to_vec()));
    let mailboxes = server.mailboxes(5);
    let fault = walk(&mailboxes.target, &mailboxes.accounts, |_, _| {}).unwrap_err().to_string();
    assert_eq!(fault, format!("{}, mailbox user3: PASS: -ERR no", server.address));
}

#[test]
fn acknowledged_messages_are_searched_for_in_mailboxes() {
    let lines: String = (0..5).map(|sequence| format!("{sequence}\tuser1@x.test\n")).collect();
    let acknowledged = AcknowledgedMessages::parse(format!("run {RUN}\n{lines}")).unwrap();
    let server = Server::with_overrides(|_| vec![message(0), message(1), message(1), damaged(2), message(3)], |_| None);
    let held =
        compare_until_complete(&acknowledged, &CopyLocation::Pop3(server.mailboxes(1)), Default::default()).unwrap();
    assert_eq!((held.found, held.lost, held.doubled, held.damaged), (4, 1, 1, 1));
    assert_eq!(held.verdict(), RunVerdict::Bad);
}
