//! Server replies, whole and split at every byte: the result must be the same.

use proptest::prelude::*;

use super::*;

/// The result of a command, as a driver receives it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Gathered {
    /// All events except content.
    events: Vec<Event<'static>>,
    content: Vec<u8>,
    fault: Option<Misbehaviour>,
    is_ready: bool,
    is_closed: bool,
}

fn gather(command: Option<Command<'_>>, limits: Limits, pieces: &[&[u8]]) -> Gathered {
    let mut client = Client::new(limits);
    if let Some(command) = command {
        assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Event::Accepted)));
        client.say(command, &mut Vec::new()).unwrap();
    }
    let mut gathered = Gathered::default();
    for mut input in pieces.iter().copied() {
        loop {
            match client.handle_input(&mut input) {
                Ok(None) => break assert!(input.is_empty(), "unused input"),
                Ok(Some(event)) => gathered.take(event),
                Err(fault) => return Gathered { fault: Some(fault), ..gathered },
            }
        }
    }
    Gathered { is_ready: client.is_ready(), is_closed: client.is_closed(), ..gathered }
}

impl Gathered {
    fn take(&mut self, event: Event<'_>) {
        let event = match event {
            Event::Content(piece) => {
                assert!(!piece.is_empty());
                return self.content.extend_from_slice(piece);
            }
            Event::Accepted => Event::Accepted,
            Event::Stat { messages, octets } => Event::Stat { messages, octets },
            Event::Refused(text) => Event::Refused(text),
            Event::Size { number, octets } => Event::Size { number, octets },
            Event::Unique { number, id } => Event::Unique { number, id },
            Event::Capability(text) => Event::Capability(text),
            Event::End => Event::End,
        };
        self.events.push(event);
    }
}

/// Checks that the result is the same for whole input, any split, and single bytes.
fn check(command: Option<Command<'_>>, input: &[u8]) -> Gathered {
    let limits = Limits { message_octets_max: 100 };
    let whole = gather(command, limits, &[input]);
    let same = |mut other: Gathered, how: &str| {
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

fn events(command: Command<'_>, input: &[u8], expected: &[Event<'static>]) {
    let gathered = check(Some(command), input);
    assert_eq!((&gathered.events[..], gathered.fault), (expected, None), "{}", input.escape_ascii());
    assert_eq!(gathered.is_ready, command != Command::Quit);
}

fn content(wire: &[u8], expected: &[u8]) {
    let gathered = check(Some(Command::Retr(1)), &[b"+OK\r\n", wire].concat());
    assert_eq!(gathered.content, expected, "{}", wire.escape_ascii());
    assert_eq!(gathered.events, [Event::Accepted, Event::End]);
    assert!(gathered.is_ready);
}

fn faulty(command: Option<Command<'_>>, input: &[u8], fault: Misbehaviour) {
    let gathered = check(command, input);
    assert_eq!((gathered.fault, gathered.is_ready), (Some(fault), false), "{}", input.escape_ascii());
}

#[test]
fn a_banner_opens_or_closes() {
    let opened = check(None, b"+OK POP3 ready <1.2@mx>\r\n");
    assert_eq!((&opened.events[..], opened.is_ready), (&[Event::Accepted][..], true));
    let refused = check(None, b"-ERR too\tmany\r\n");
    assert_eq!((&refused.events[..], refused.is_closed), (&[Event::Refused("too many".into())][..], true));
}

#[test]
fn replies_are_read() {
    events(Command::User("x"), b"+OK\r\n", &[Event::Accepted]);
    events(Command::Pass("x"), b"-ERR [AUTH] no\r\n", &[Event::Refused("[AUTH] no".into())]);
    events(Command::Stat, b"+OK 3 4711\r\n", &[Event::Stat { messages: 3, octets: 4711 }]);
    events(Command::Stat, b"+OK 0 0 and more\r\n", &[Event::Stat { messages: 0, octets: 0 }]);
    events(Command::Dele(1), b"+OK gone\r\n", &[Event::Accepted]);
    events(Command::Quit, b"-ERR\r\n", &[Event::Refused("".into())]);
    events(
        Command::List,
        b"+OK 2 messages\r\n1 120\r\n2 4294967296 x\r\n.\r\n",
        &[
            Event::Accepted,
            Event::Size { number: 1, octets: 120 },
            Event::Size { number: 2, octets: 1 << 32 },
            Event::End,
        ],
    );
    events(
        Command::Uidl,
        b"+OK\r\n1 whqtswO00WBw418f9t5JxYwZ\r\n.\r\n",
        &[Event::Accepted, Event::Unique { number: 1, id: "whqtswO00WBw418f9t5JxYwZ".into() }, Event::End],
    );
    events(
        Command::Capa,
        b"+OK\r\nSASL PLAIN\r\n..x\r\n.\r\n",
        &[Event::Accepted, Event::Capability("SASL PLAIN".into()), Event::Capability(".x".into()), Event::End],
    );
    events(Command::List, b"-ERR no\r\n", &[Event::Refused("no".into())]);
    events(Command::Retr(9), b"-ERR no such message\r\n", &[Event::Refused("no such message".into())]);
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
fn what_is_no_reply_is_misbehaviour() {
    for line in ["\r\n", "OK\r\n", "+ok\r\n", "+OKAY\r\n", "-ERROR\r\n", "* OK\r\n", "220 mx\r\n", " +OK\r\n"] {
        faulty(None, line.as_bytes(), Misbehaviour::NoReply);
    }
    for line in ["+OK\n", "+OK a\rb\r\n", "+OK\r\r\n"] {
        faulty(None, line.as_bytes(), Misbehaviour::BareNewline);
    }
    for line in
        ["+OK\r\n", "+OK 1\r\n", "+OK x y\r\n", "+OK -1 2\r\n", "+OK  1 2\r\n", "+OK 1 18446744073709551616\r\n"]
    {
        faulty(Some(Command::Stat), line.as_bytes(), Misbehaviour::NoAnswer);
    }
    for line in ["\r\n", "x\r\n", "1\r\n", "1 +2\r\n", "4294967296 1\r\n", ". \r\n"] {
        faulty(Some(Command::List), &[b"+OK\r\n", line.as_bytes()].concat(), Misbehaviour::NoAnswer);
    }
    for line in ["1 \r\n", "1\r\n", "1 a b\r\n", "x a\r\n", "1 \u{fc}\r\n", &format!("1 {}\r\n", "x".repeat(71))] {
        faulty(Some(Command::Uidl), &[b"+OK\r\n", line.as_bytes()].concat(), Misbehaviour::NoAnswer);
    }
}

#[test]
fn everything_endless_has_its_limit() {
    let limits = Limits { message_octets_max: 100 };
    let line = |octets: usize| [b"+OK ", &vec![b'x'; octets - 6][..], b"\r\n"].concat();
    assert_eq!(gather(None, limits, &[&line(LINE_OCTETS_MAX)]).fault, None);
    for input in [line(LINE_OCTETS_MAX + 1), vec![b'+'; LINE_OCTETS_MAX]] {
        assert_eq!(gather(None, limits, &[&input]).fault, Some(Misbehaviour::LineTooLong));
        let pieces: Vec<_> = input.chunks(7).collect();
        assert_eq!(gather(None, limits, &pieces).fault, Some(Misbehaviour::LineTooLong));
    }
    let message = |octets: usize| [b"+OK\r\n", &vec![b'x'; octets - 2][..], b"\r\n.\r\n"].concat();
    assert_eq!(check(Some(Command::Retr(1)), &message(100)).fault, None);
    faulty(Some(Command::Retr(1)), &message(101), Misbehaviour::MessageTooLong);
    let mut client = Client::new(limits);
    assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Event::Accepted)));
    client.say(Command::List, &mut Vec::new()).unwrap();
    assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Event::Accepted)));
    for _ in 0..LIST_LINES_MAX {
        assert!(client.handle_input(&mut &b"1 1\r\n"[..]).is_ok());
    }
    assert_eq!(client.handle_input(&mut &b"1 1\r\n"[..]), Err(Misbehaviour::ListTooLong));
}

#[test]
fn each_side_waits_for_its_turn() {
    let mut client = Client::new(Limits::default());
    let mut out = Vec::new();
    assert_eq!(client.say(Command::Stat, &mut out), Err(Unsayable::NotReady));
    assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Event::Accepted)));
    client.say(Command::Retr(17), &mut out).unwrap();
    assert_eq!(client.say(Command::Quit, &mut out), Err(Unsayable::NotReady));
    assert_eq!(out, b"RETR 17\r\n");
    faulty(None, b"+OK\r\n+OK\r\n", Misbehaviour::Unasked);
    faulty(Some(Command::Retr(1)), b"+OK\r\n.\r\n.", Misbehaviour::Unasked);
}

#[test]
fn a_session_ends_by_quit_and_not_otherwise() {
    let mut client = Client::new(Limits::default());
    assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Event::Accepted)));
    client.say(Command::Quit, &mut Vec::new()).unwrap();
    assert_eq!(client.handle_input(&mut &b"+OK bye\r\n"[..]), Ok(Some(Event::Accepted)));
    assert!(client.is_closed());
    assert_eq!(client.handle_input(&mut &b"whatever"[..]), Ok(None));
    assert_eq!(client.handle_end(), Ok(()));
    assert_eq!(Client::new(Limits::default()).handle_end(), Err(Misbehaviour::Cut));
}

#[test]
fn a_command_carries_no_other_one() {
    let mut client = Client::new(Limits::default());
    assert_eq!(client.handle_input(&mut &b"+OK\r\n"[..]), Ok(Some(Event::Accepted)));
    let mut out = Vec::new();
    for name in ["a\r\nDELE 1", "a\0", "\u{85}"] {
        assert_eq!(client.say(Command::User(name), &mut out), Err(Unsayable::ControlCharacter));
    }
    assert_eq!(client.say(Command::Pass(&"x".repeat(249)), &mut out), Err(Unsayable::TooLong));
    assert_eq!(out, b"");
    client.say(Command::Pass(&"x".repeat(248)), &mut out).unwrap();
    assert_eq!(out.len(), COMMAND_OCTETS_MAX);
    assert_eq!(format!("{:?}", Command::Pass("secret")), "PASS");
}

/// RFC 1939 section 3, implemented in the simplest way.
fn plain(wire: &[u8]) -> Option<Vec<u8>> {
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
    fn content_is_what_the_plain_way_says(wire in "[.\r\na]{0,30}") {
        let wire = [wire.as_bytes(), b"\r\n.\r\n"].concat();
        let end = [b"\r\n", &wire[..]].concat().windows(5).position(|bytes| bytes == b"\r\n.\r\n").unwrap() + 3;
        content(&wire[..end], &plain(&wire).unwrap());
    }

    #[test]
    fn garbage_is_the_same_garbage_however_it_is_cut(input in "(\\+OK|-ERR)?[ 0-9.a\r\n\u{fc}]{0,40}", which in 0..5_usize) {
        let commands = [Command::Stat, Command::List, Command::Uidl, Command::Retr(1), Command::Quit];
        check(Some(commands[which]), input.as_bytes());
    }
}
