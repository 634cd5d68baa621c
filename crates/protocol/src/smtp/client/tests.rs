//! Properties that hold for any server in any pieces, text that must be rejected, and the memory
//! use of a waiting session.

use mail::Address;
use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp(0);
const MESSAGE: &[u8] = b"Subject: x\r\n\r\n.text";
const TRANSACTIONS_MAX: usize = 3;

/// The settings of a test session.
#[derive(Clone, Copy, Debug)]
struct TestMode {
    lmtp: bool,
    pipelining: bool,
    chunking: bool,
    log_in: bool,
    /// Octets that the connection accepts after each turn of the server.
    room: u64,
}

/// The result of some server turns.
#[derive(Debug, Default, PartialEq, Eq)]
struct PlayedSession {
    output: Vec<u8>,
    events: Vec<SmtpClientEvent>,
    begun: usize,
}

fn config(mode: TestMode) -> SmtpClientConfig {
    let flavor = if mode.lmtp { MailProtocol::Lmtp } else { MailProtocol::Smtp };
    SmtpClientConfig {
        pipelining: mode.pipelining,
        chunking: mode.chunking,
        credentials: mode.log_in.then(|| SmtpCredentials::new("user", "secret").unwrap()),
        ..SmtpClientConfig::new(flavor, CommandArgument::new("client.example").unwrap())
    }
}

fn transaction() -> Transaction {
    let address = |text: &str| -> Address { text.parse().unwrap() };
    let recipients = [address("c@d.example"), address("e@d.example")];
    Transaction::new(Some(address("a@b.example")), recipients, ContentSize::from_message(MESSAGE))
}

/// Plays the server's turns, each in pieces of `size` octets. The client acts between two turns.
fn play(mode: TestMode, turns: &[Vec<u8>], size: usize) -> PlayedSession {
    let mut client = SmtpClient::new(Arc::new(config(mode)), NOW);
    let mut outcome = PlayedSession::default();
    for turn in turns {
        let is_all_sent = client.output().is_empty();
        turn.chunks(size).for_each(|piece| client.handle_input(NOW, piece));
        settle(&mut client, &mut outcome, mode, is_all_sent);
    }
    let is_all_sent = client.output().is_empty();
    client.handle_disconnect();
    settle(&mut client, &mut outcome, mode, is_all_sent);
    assert!(client.wants_close());
    outcome
}

fn settle(client: &mut SmtpClient, outcome: &mut PlayedSession, mode: TestMode, is_all_sent: bool) {
    while let Some(event) = client.poll_event() {
        match &event {
            SmtpClientEvent::StartTls => client.handle_tls_established(NOW),
            SmtpClientEvent::ComputeProof(work) => client.handle_proof(NOW, work.clone().compute()),
            SmtpClientEvent::Finished(verdicts) => {
                let needs_all = |verdict: &RecipientOutcome| {
                    matches!(verdict, RecipientOutcome::Accepted(_) | RecipientOutcome::InDoubt)
                };
                assert!(is_all_sent || !verdicts.iter().any(needs_all), "accepted before it was sent: {verdicts:?}");
                assert_eq!(verdicts.len(), 2);
            }
            _ => {}
        }
        outcome.events.push(event);
    }
    assert_eq!(client.events.capacity(), 0);
    if client.is_ready() {
        assert_eq!(client.outbox.output().octet_count(), 0);
        if outcome.begun < TRANSACTIONS_MAX {
            client.begin_transaction(NOW, &transaction()).unwrap();
            outcome.begun += 1;
        } else {
            client.quit(NOW);
        }
    }
    send(client, outcome, mode.room);
}

fn send(client: &mut SmtpClient, outcome: &mut PlayedSession, room: u64) {
    let stuffed = stuff_dots(MESSAGE);
    let output = client.output();
    let form = if output.form == DotStuffing::Stuffed { &stuffed[..] } else { MESSAGE };
    let content = &form[output.content.start as usize..output.content.end as usize];
    let bytes = [output.head, content, output.tail].concat();
    let count = output.octet_count().min(room);
    outcome.output.extend_from_slice(&bytes[..count as usize]);
    client.handle_sent(NOW, count);
}

/// Common and difficult replies, so that random input gets beyond the banner.
fn turn() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        8 => Just(&b"250 2.0.0 ok\r\n"[..]),
        8 => Just(&b"250 ok\r\n250 ok\r\n250 ok\r\n354 go\r\n"[..]),
        4 => Just(&b"250 ok\r\n550 5.1.1 no\r\n250-o\r\n250 k\r\n354 go\r\n"[..]),
        2 => Just(&b"250 ok\r\n550 no\r\n550 no\r\n"[..]),
        4 => Just(&b"354 go\r\n"[..]),
        2 => Just(&b"250 kept\r\n452 full\r\n"[..]),
        3 => Just(&b"550 5.1.1 no\r\n"[..]),
        2 => Just(&b"503 5.5.1 no\r\n"[..]),
        2 => Just(&b"334 more\r\n"[..]),
        2 => Just(&b"235 welcome\r\n"[..]),
        2 => Just(&b"220 go\r\n"[..]),
        1 => Just(&b"421 bye\r\n"[..]),
        1 => Just(&b"250-"[..]),
        1 => Just(&b"250"[..]),
        1 => Just(&b"\r\n"[..]),
        1 => Just(&b"\n"[..]),
        1 => Just(&b"\r"[..]),
        1 => Just(&b"\0"[..]),
    ];
    prop_oneof![30 => word.prop_map(<[u8]>::to_vec), 1 => prop::collection::vec(any::<u8>(), 1..6)]
}

fn turns() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let hello = prop::sample::select(vec![
        &b"250 mx\r\n"[..],
        b"250-mx\r\n250-PIPELINING\r\n250 CHUNKING\r\n",
        b"250-mx\r\n250-PIPELINING\r\n250 AUTH LOGIN\r\n",
        b"250-mx\r\n250-STARTTLS\r\n250 AUTH PLAIN\r\n",
        b"500 what?\r\n",
    ]);
    (hello, prop::collection::vec(turn(), 0..24)).prop_map(|(hello, turns)| {
        let greeting = [b"220 mx\r\n".to_vec(), hello.to_vec()];
        greeting.into_iter().chain(turns).collect()
    })
}

fn mode() -> impl Strategy<Value = TestMode> {
    let room = prop_oneof![3 => Just(u64::MAX), 1 => 1..120u64];
    (any::<[bool; 4]>(), room).prop_map(|([lmtp, pipelining, chunking, log_in], room)| TestMode {
        lmtp,
        pipelining,
        chunking,
        log_in,
        room,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_server_in_any_pieces_gives_the_same(turns in turns(), size in 1..40usize, mode in mode()) {
        let whole = play(mode, &turns, usize::MAX);
        prop_assert_eq!(&whole, &play(mode, &turns, size));
        let finished = whole.events.iter().filter(|event| matches!(event, SmtpClientEvent::Finished(_))).count();
        prop_assert_eq!(finished, whole.begun, "each transaction is finished once");
        let closed = whole.events.iter().position(|event| matches!(event, SmtpClientEvent::Closed(_)));
        prop_assert_eq!(closed, Some(whole.events.len() - 1), "Closed is not the last event");
    }
}

/// A client after the greeting.
fn ready(config: SmtpClientConfig) -> SmtpClient {
    let mut client = SmtpClient::new(Arc::new(config), NOW);
    for input in [&b"220 mx\r\n"[..], b"250-mx\r\n250-PIPELINING\r\n250 CHUNKING\r\n"] {
        client.handle_input(NOW, input);
        client.handle_sent(NOW, client.output().octet_count());
    }
    assert!(client.is_ready());
    client
}

#[test]
fn a_waiting_session_is_small_and_keeps_no_buffers() {
    let mode = TestMode { lmtp: false, pipelining: true, chunking: false, log_in: false, room: 0 };
    for chunking in [false, true] {
        let mut client = ready(config(TestMode { chunking, ..mode }));
        client.begin_transaction(NOW, &transaction()).unwrap();
        for input in [&b"250 ok\r\n250 ok\r\n25"[..], b"0 ok\r\n", b"354 go\r\n", b"250-kept\r\n250 as 1\r\n"] {
            if !chunking || input[0] != b'3' {
                client.handle_sent(NOW, client.output().octet_count());
                client.handle_input(NOW, input);
            }
        }
        while client.poll_event().is_some() {}
        assert!(client.is_ready());
        assert_eq!((client.events.capacity(), client.outbox.capacity(), client.reader.capacity()), (0, 0, 0));
    }
    assert!(size_of::<SmtpClient>() <= 320, "{} octets", size_of::<SmtpClient>());
}

#[test]
fn no_text_can_end_a_command_line() {
    for text in ["", "a b", "a\r\nRSET", "a\nRSET", "a\rRSET", "a\0", "a\tb", "a\u{2028}b", "a\u{85}b", "\u{a0}"] {
        assert_eq!(CommandArgument::new(text), Err(InvalidCommandArgument), "{}", text.escape_debug());
    }
    for text in ["a\r\nRSET", "a\nRSET", "a\rRSET", "a\0"] {
        let quoted = format!("\"{text}\"@example.org");
        for address in [format!("{text}@example.org"), quoted, format!("a@example.org{text}"), format!("a@[{text}]")] {
            assert!(address.parse::<Address>().is_err(), "{}", address.escape_debug());
        }
    }
    assert!(CommandArgument::new(&"x".repeat(WORD_OCTETS_MAX)).is_ok());
    assert_eq!(CommandArgument::new(&"x".repeat(WORD_OCTETS_MAX + 1)), Err(InvalidCommandArgument));
    for (user, password) in [("", "x"), ("x", ""), ("x\0y", "z"), ("x", "y\0z")] {
        assert_eq!(SmtpCredentials::new(user, password), Err(MalformedCredentials::Password));
    }
}

#[test]
fn a_password_is_never_shown() {
    let mode = TestMode { lmtp: false, pipelining: true, chunking: false, log_in: true, room: 0 };
    let mut client = SmtpClient::new(Arc::new(config(mode)), NOW);
    client.handle_input(NOW, b"220 mx\r\n");
    client.handle_sent(NOW, client.output().octet_count());
    client.handle_input(NOW, b"250-mx\r\n250 AUTH PLAIN\r\n");
    let line = str::from_utf8(client.output().head).unwrap().to_owned();
    let response = line.strip_prefix("AUTH PLAIN ").unwrap().trim_end();
    let (shown, octets) = (format!("{client:?}"), format!("{:?}", client.output().head));
    assert!(!shown.contains("secret") && !shown.contains(response) && !shown.contains(&octets), "{shown}");
}

#[test]
fn a_deadline_moves_with_what_goes_on_and_not_with_half_a_reply() {
    let minute = |count: u64| Timestamp(count * 60_000);
    let mut client =
        SmtpClient::new(Arc::new(SmtpClientConfig::new(MailProtocol::Smtp, CommandArgument::new("c").unwrap())), NOW);
    assert_eq!(client.poll_deadline(), Some(minute(5)));
    client.handle_input(minute(4), b"220-mx\r\n220 ");
    assert_eq!(client.poll_deadline(), Some(minute(5)));
    client.handle_timeout(minute(4));
    client.handle_input(minute(4), b"mx\r\n");
    assert_eq!(client.poll_deadline(), Some(minute(9)));
    client.handle_sent(minute(5), client.output().octet_count());
    client.handle_sent(minute(6), 0);
    assert_eq!(client.poll_deadline(), Some(minute(10)));
    client.handle_input(minute(6), b"250 mx\r\n");
    assert_eq!(client.poll_deadline(), None);
}

#[test]
fn content_knows_its_forms() {
    for (message, stuffed, dot_lines, ends_in_crlf) in [
        (&b""[..], &b""[..], 0, true),
        (b"a.\r\n", b"a.\r\n", 0, true),
        (b".", b"..", 1, false),
        (b".\r\n..\r\n\r\n.\n.x", b"..\r\n...\r\n\r\n..\n.x", 3, false),
    ] {
        let content = ContentSize::from_message(message);
        let expected = ContentSize { octets: message.len() as u64, dot_lines, ends_in_crlf };
        assert_eq!(content, expected, "{}", message.escape_ascii());
        assert_eq!(stuff_dots(message), stuffed);
        assert_eq!(content.encoded_len(DotStuffing::Stuffed), stuffed.len() as u64);
        assert_eq!(content.encoded_len(DotStuffing::Plain), message.len() as u64);
    }
}
