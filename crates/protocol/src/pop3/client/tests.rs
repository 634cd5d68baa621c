//! Server replies, whole and split at every byte: the result must be the same.

use proptest::prelude::*;

use super::*;

/// The result of a command, as a driver receives it.
#[derive(Clone, Debug, Default, PartialEq)]
struct ReceivedReply {
    /// All events except content.
    events: Vec<Pop3Event<'static>>,
    content: Vec<u8>,
    fault: Option<Pop3Violation>,
    is_ready: bool,
    is_closed: bool,
}

fn gather(command: Option<Pop3Command<'_>>, limits: Pop3ResponseLimits, pieces: &[&[u8]]) -> ReceivedReply {
    let mut client = Pop3Client::new(limits);
    if let Some(command) = command {
        assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Pop3Event::Accepted)));
        client.send(command, &mut Vec::new()).unwrap();
    }
    let mut gathered = ReceivedReply::default();
    for mut input in pieces.iter().copied() {
        loop {
            match client.handle_input(&mut input) {
                Ok(None) => break assert!(input.is_empty(), "unused input"),
                Ok(Some(event)) => gathered.take(event),
                Err(fault) => return ReceivedReply { fault: Some(fault), ..gathered },
            }
        }
    }
    ReceivedReply { is_ready: client.is_ready(), is_closed: client.is_closed(), ..gathered }
}

impl ReceivedReply {
    fn take(&mut self, event: Pop3Event<'_>) {
        let event = match event {
            Pop3Event::Content(piece) => {
                assert!(!piece.is_empty());
                return self.content.extend_from_slice(piece);
            }
            Pop3Event::Accepted => Pop3Event::Accepted,
            Pop3Event::Stat { messages, octets } => Pop3Event::Stat { messages, octets },
            Pop3Event::Refused(text) => Pop3Event::Refused(text),
            Pop3Event::Size { number, octets } => Pop3Event::Size { number, octets },
            Pop3Event::UniqueId { number, id } => Pop3Event::UniqueId { number, id },
            Pop3Event::Capability(text) => Pop3Event::Capability(text),
            Pop3Event::End => Pop3Event::End,
        };
        self.events.push(event);
    }
}

/// Checks that the result is the same for whole input, any split, and single bytes.
fn check(command: Option<Pop3Command<'_>>, input: &[u8]) -> ReceivedReply {
    let limits = Pop3ResponseLimits { message_octets_max: 100 };
    let whole = gather(command, limits, &[input]);
    let same = |mut other: ReceivedReply, how: &str| {
        if whole.fault.is_some() {
            // How much content comes before a violation found behind it depends on the split.
            other.content.clone_from(&whole.content);
        }
        assert_eq!(whole, other, "{} {how}", input.escape_ascii());
    };
    for cut in 0..=input.len() {
        same(gather(command, limits, &[&input[..cut], &input[cut..]]), &format!("cut at {cut}"));
    }
    same(gather(command, limits, &input.chunks(1).collect::<Vec<_>>()), "byte by byte");
    whole
}

fn events(command: Pop3Command<'_>, input: &[u8], expected: &[Pop3Event<'static>]) {
    let gathered = check(Some(command), input);
    assert_eq!((&gathered.events[..], gathered.fault), (expected, None), "{}", input.escape_ascii());
    assert_eq!(gathered.is_ready, command != Pop3Command::Quit);
}

fn content(wire: &[u8], expected: &[u8]) {
    let gathered = check(Some(Pop3Command::Retr(1)), &[b"+OK\r\n", wire].concat());
    assert_eq!(gathered.content, expected, "{}", wire.escape_ascii());
    assert_eq!(gathered.events, [Pop3Event::Accepted, Pop3Event::End]);
    assert!(gathered.is_ready);
}

fn faulty(command: Option<Pop3Command<'_>>, input: &[u8], fault: Pop3Violation) {
    let gathered = check(command, input);
    assert_eq!((gathered.fault, gathered.is_ready), (Some(fault), false), "{}", input.escape_ascii());
}

#[test]
fn a_banner_opens_or_closes() {
    let opened = check(None, b"+OK POP3 ready <1.2@mx>\r\n");
    assert_eq!((&opened.events[..], opened.is_ready), (&[Pop3Event::Accepted][..], true));
    let refused = check(None, b"-ERR too\tmany\r\n");
    assert_eq!((&refused.events[..], refused.is_closed), (&[Pop3Event::Refused("too many".into())][..], true));
}

#[test]
fn replies_are_read() {
    events(Pop3Command::User("x"), b"+OK\r\n", &[Pop3Event::Accepted]);
    events(Pop3Command::Pass("x"), b"-ERR [AUTH] no\r\n", &[Pop3Event::Refused("[AUTH] no".into())]);
    events(Pop3Command::Stat, b"+OK 3 4711\r\n", &[Pop3Event::Stat { messages: 3, octets: 4711 }]);
    events(Pop3Command::Stat, b"+OK 0 0 and more\r\n", &[Pop3Event::Stat { messages: 0, octets: 0 }]);
    events(Pop3Command::Dele(1), b"+OK gone\r\n", &[Pop3Event::Accepted]);
    events(Pop3Command::Quit, b"-ERR\r\n", &[Pop3Event::Refused("".into())]);
    events(
        Pop3Command::List,
        b"+OK 2 messages\r\n1 120\r\n2 4294967296 x\r\n.\r\n",
        &[
            Pop3Event::Accepted,
            Pop3Event::Size { number: 1, octets: 120 },
            Pop3Event::Size { number: 2, octets: 1 << 32 },
            Pop3Event::End,
        ],
    );
    events(
        Pop3Command::Uidl,
        b"+OK\r\n1 whqtswO00WBw418f9t5JxYwZ\r\n.\r\n",
        &[
            Pop3Event::Accepted,
            Pop3Event::UniqueId { number: 1, id: "whqtswO00WBw418f9t5JxYwZ".into() },
            Pop3Event::End,
        ],
    );
    events(
        Pop3Command::Capa,
        b"+OK\r\nSASL PLAIN\r\n..x\r\n.\r\n",
        &[
            Pop3Event::Accepted,
            Pop3Event::Capability("SASL PLAIN".into()),
            Pop3Event::Capability(".x".into()),
            Pop3Event::End,
        ],
    );
    events(Pop3Command::List, b"-ERR no\r\n", &[Pop3Event::Refused("no".into())]);
    events(Pop3Command::Retr(9), b"-ERR no such message\r\n", &[Pop3Event::Refused("no such message".into())]);
}

#[test]
fn a_message_is_what_it_was_before_its_dots_were_stuffed() {
    content(b".\r\n", b"");
    content(b"a\r\n.\r\n", b"a\r\n");
    content(b"..\r\n.\r\n", b".\r\n");
    content(b"...x\r\n\r\n..\r\n.\r\n", b"..x\r\n\r\n.\r\n");
    content(b"\r\n\r\n..a.\r\n.b\r\n.\r\n", b"\r\n\r\n.a.\r\nb\r\n");
}

#[test]
fn nothing_but_crlf_dot_crlf_ends_a_message() {
    content(b"a\n.\nb\r.\rc\n.\r\nd\r\n.\n\r\n.\r\n", b"a\n.\nb\r.\rc\n.\r\nd\r\n\n\r\n");
    content(b".\rx\r\n.\r\r\n.\r\n", b"\rx\r\n\r\r\n");
    content(b".\r\r\n.\r\n", b"\r\r\n");
    content(b"\n.\r\n\r\n.\r\n", b"\n.\r\n\r\n");
}

#[test]
fn invalid_replies_are_violations() {
    for line in ["\r\n", "OK\r\n", "+ok\r\n", "+OKAY\r\n", "-ERROR\r\n", "* OK\r\n", "220 mx\r\n", " +OK\r\n"] {
        faulty(None, line.as_bytes(), Pop3Violation::NotAReply);
    }
    for line in ["+OK\n", "+OK a\rb\r\n", "+OK\r\r\n"] {
        faulty(None, line.as_bytes(), Pop3Violation::BareNewline);
    }
    for line in
        ["+OK\r\n", "+OK 1\r\n", "+OK x y\r\n", "+OK -1 2\r\n", "+OK  1 2\r\n", "+OK 1 18446744073709551616\r\n"]
    {
        faulty(Some(Pop3Command::Stat), line.as_bytes(), Pop3Violation::InvalidReply);
    }
    for line in ["\r\n", "x\r\n", "1\r\n", "1 +2\r\n", "4294967296 1\r\n", ". \r\n"] {
        faulty(Some(Pop3Command::List), &[b"+OK\r\n", line.as_bytes()].concat(), Pop3Violation::InvalidReply);
    }
    for line in ["1 \r\n", "1\r\n", "1 a b\r\n", "x a\r\n", "1 \u{fc}\r\n", &format!("1 {}\r\n", "x".repeat(71))] {
        faulty(Some(Pop3Command::Uidl), &[b"+OK\r\n", line.as_bytes()].concat(), Pop3Violation::InvalidReply);
    }
}

#[test]
fn everything_has_a_limit() {
    let limits = Pop3ResponseLimits { message_octets_max: 100 };
    let line = |octets: usize| [b"+OK ", &vec![b'x'; octets - 6][..], b"\r\n"].concat();
    assert_eq!(gather(None, limits, &[&line(LINE_OCTETS_MAX)]).fault, None);
    for input in [line(LINE_OCTETS_MAX + 1), vec![b'+'; LINE_OCTETS_MAX]] {
        assert_eq!(gather(None, limits, &[&input]).fault, Some(Pop3Violation::LineTooLong));
        let pieces: Vec<_> = input.chunks(7).collect();
        assert_eq!(gather(None, limits, &pieces).fault, Some(Pop3Violation::LineTooLong));
    }
    let message = |octets: usize| [b"+OK\r\n", &vec![b'x'; octets - 2][..], b"\r\n.\r\n"].concat();
    assert_eq!(check(Some(Pop3Command::Retr(1)), &message(100)).fault, None);
    faulty(Some(Pop3Command::Retr(1)), &message(101), Pop3Violation::MessageTooLong);
    let mut client = Pop3Client::new(limits);
    assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Pop3Event::Accepted)));
    client.send(Pop3Command::List, &mut Vec::new()).unwrap();
    assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Pop3Event::Accepted)));
    for _ in 0..LIST_LINES_MAX {
        assert!(client.handle_input(&mut &b"1 1\r\n"[..]).is_ok());
    }
    assert_eq!(client.handle_input(&mut &b"1 1\r\n"[..]), Err(Pop3Violation::ListTooLong));
}

#[test]
fn each_side_waits_for_its_turn() {
    let mut client = Pop3Client::new(Pop3ResponseLimits::default());
    let mut out = Vec::new();
    assert_eq!(client.send(Pop3Command::Stat, &mut out), Err(Pop3CommandError::NotReady));
    assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Pop3Event::Accepted)));
    client.send(Pop3Command::Retr(17), &mut out).unwrap();
    assert_eq!(client.send(Pop3Command::Quit, &mut out), Err(Pop3CommandError::NotReady));
    assert_eq!(out, b"RETR 17\r\n");
    faulty(None, b"+OK\r\n+OK\r\n", Pop3Violation::Unsolicited);
    faulty(Some(Pop3Command::Retr(1)), b"+OK\r\n.\r\n.", Pop3Violation::Unsolicited);
}

#[test]
fn a_session_ends_by_quit_and_not_otherwise() {
    let mut client = Pop3Client::new(Pop3ResponseLimits::default());
    assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Pop3Event::Accepted)));
    client.send(Pop3Command::Quit, &mut Vec::new()).unwrap();
    assert_eq!(client.handle_input(&mut &b"+OK bye\r\n"[..]), Ok(Some(Pop3Event::Accepted)));
    assert!(client.is_closed());
    assert_eq!(client.handle_input(&mut &b"whatever"[..]), Ok(None));
    assert_eq!(client.handle_disconnect(), Ok(()));
    assert_eq!(
        Pop3Client::new(Pop3ResponseLimits::default()).handle_disconnect(),
        Err(Pop3Violation::ConnectionClosed)
    );
}

#[test]
fn a_command_carries_no_other_one() {
    let mut client = Pop3Client::new(Pop3ResponseLimits::default());
    assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Pop3Event::Accepted)));
    let mut out = Vec::new();
    for name in ["a\r\nDELE 1", "a\0", "\u{85}"] {
        assert_eq!(client.send(Pop3Command::User(name), &mut out), Err(Pop3CommandError::ControlCharacter));
    }
    assert_eq!(client.send(Pop3Command::Pass(&"x".repeat(249)), &mut out), Err(Pop3CommandError::TooLong));
    assert_eq!(out, b"");
    client.send(Pop3Command::Pass(&"x".repeat(248)), &mut out).unwrap();
    assert_eq!(out.len(), COMMAND_OCTETS_MAX);
    assert_eq!(format!("{:?}", Pop3Command::Pass("secret")), "PASS");
}

/// RFC 1939 section 3, implemented in the simplest way.
fn simple_decode(wire: &[u8]) -> Option<Vec<u8>> {
    let wire = [b"\r\n", wire].concat();
    let end = wire.windows(5).position(|bytes| bytes == b"\r\n.\r\n")?;
    let mut content = Vec::new();
    for (place, &byte) in wire[..end + 2].iter().enumerate() {
        if !(byte == b'.' && wire[..place].ends_with(b"\r\n")) {
            content.push(byte);
        }
    }
    Some(content.split_off(2))
}

proptest! {
    #[test]
    fn content_matches_a_simple_implementation(wire in "[.\r\na]{0,30}") {
        let wire = [wire.as_bytes(), b"\r\n.\r\n"].concat();
        let end = [b"\r\n", &wire[..]].concat().windows(5).position(|bytes| bytes == b"\r\n.\r\n").unwrap() + 3;
        content(&wire[..end], &simple_decode(&wire).unwrap());
    }

    #[test]
    fn garbage_is_the_same_garbage_however_it_is_cut(input in "(\\+OK|-ERR)?[ 0-9.a\r\n\u{fc}]{0,40}", which in 0..5_usize) {
        let commands = [Pop3Command::Stat, Pop3Command::List, Pop3Command::Uidl, Pop3Command::Retr(1), Pop3Command::Quit];
        check(Some(commands[which]), input.as_bytes());
    }
}
