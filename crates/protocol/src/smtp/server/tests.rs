//! Properties that hold for any input in any pieces, and the memory use of idle sessions.

use proptest::prelude::*;

use super::*;
use crate::sasl::{self, Mechanism, PasswordVerdict};

/// The result of an input.
#[derive(Debug, Default, PartialEq, Eq)]
struct PlayedSession {
    output: Vec<u8>,
    /// Each action with the bytes of its message, if any.
    actions: Vec<(SessionAction, Vec<u8>)>,
    closed: bool,
}

/// Limits that short inputs reach.
fn small_limits() -> SessionLimits {
    SessionLimits {
        command_line_octets_max: 64,
        commands_max: 6,
        errors_max: 6,
        recipients_max: 2,
        message_octets_max: 60,
        header_octets_max: 40,
        received_max: 1,
        ..SessionLimits::default()
    }
}

/// Two mechanisms, also in clear text.
fn auth() -> AuthConfig {
    AuthConfig {
        mechanisms: [Mechanism::Plain, Mechanism::Login].into(),
        clear_text: true,
        required: false,
        sasl: sasl::SaslConfig { secret: [7; 32] },
    }
}

fn session(flavor: MailProtocol, mend: bool, limits: SessionLimits) -> SmtpSession {
    tolerant(flavor, mend, NulPolicy::Keep, limits)
}

fn tolerant(flavor: MailProtocol, mend: bool, nul: NulPolicy, limits: SessionLimits) -> SmtpSession {
    let config = SmtpServerConfig {
        hostname: "mx.example.org".into(),
        flavor,
        tls: TlsMode::Offered,
        auth: Some(auth()),
        tolerance: TolerancePolicy { nul, ..TolerancePolicy::default() },
        limits,
    };
    SmtpSession::new(Arc::new(config), SmtpPeer { normalise_bare_newlines: mend, ..SmtpPeer::default() }, Timestamp(0))
}

/// Refuses some questions, always the same ones.
fn answer(question: &SessionQuestion) -> SessionAnswer {
    let refused = match question {
        SessionQuestion::Recipient(request) => request.address.as_str().starts_with('n'),
        SessionQuestion::Message(end) => end.octets % 5 == 4,
        SessionQuestion::Mail(request) => request.size == Some(7),
        SessionQuestion::Data => false,
        SessionQuestion::Hello(name) => name.starts_with('n'),
        SessionQuestion::Identity(_) | SessionQuestion::UnknownCommand(_) => false,
        SessionQuestion::Login(request) => {
            return SessionAnswer::Verdict(PasswordVerdict::Accepted { user: request.user.clone() });
        }
        SessionQuestion::Keys(_) => true,
    };
    if refused { SessionAnswer::Refuse(Reply::without_enhanced_code(451, "not now")) } else { SessionAnswer::Accept }
}

/// Plays the pieces; with `late`, answers questions only after every third piece.
fn play<'a>(mut session: SmtpSession, pieces: impl Iterator<Item = &'a [u8]>, late: bool) -> PlayedSession {
    let (mut outcome, mut body) = (PlayedSession::default(), Vec::new());
    for (index, piece) in pieces.enumerate() {
        session.handle_input(Timestamp(0), piece, &mut body);
        if !late || index % 3 == 2 {
            settle(&mut session, &mut outcome, &mut body);
        }
    }
    settle(&mut session, &mut outcome, &mut body);
    session.handle_disconnect();
    settle(&mut session, &mut outcome, &mut body);
    outcome.closed = session.wants_close();
    outcome
}

fn settle(session: &mut SmtpSession, outcome: &mut PlayedSession, body: &mut Vec<u8>) {
    while let Some(action) = session.poll_action() {
        let mut message = Vec::new();
        match &action {
            SessionAction::Ask(question) => {
                if let SessionQuestion::Message(_) = question {
                    message = std::mem::take(body);
                }
                let answer = answer(question);
                session.handle_driver_answer(Timestamp(0), answer, body);
            }
            SessionAction::Abandon => body.clear(),
            SessionAction::Refused { .. } | SessionAction::Login { .. } => {}
        }
        outcome.actions.push((action, message));
    }
    let line_max = match session.state {
        // The peer may have ended the input during an exchange.
        State::Authenticating(_) | State::Closed => sasl::LINE_OCTETS_MAX,
        _ => session.config.limits.command_line_octets_max,
    };
    assert!(session.backlog.len() - session.backlog_used < line_max);
    outcome.output.extend_from_slice(session.output());
    session.handle_sent(session.output().len());
    assert_eq!((session.output.capacity(), session.actions.capacity()), (0, 0));
}

/// Protocol words and difficult bytes, so that random input gets beyond the greeting.
fn input() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        4 => Just(&b"EHLO c\r\n"[..]),
        8 => Just(&b"MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\n"[..]),
        2 => Just(&b"MAIL FROM:<> SIZE=7\r\n"[..]),
        2 => Just(&b"RCPT TO:<no@d.example> NOTIFY=NEVER\r\n"[..]),
        8 => Just(&b"DATA\r\n"[..]),
        4 => Just(&b"BDAT 9\r\n"[..]),
        4 => Just(&b"BDAT 4 LAST\r\n"[..]),
        2 => Just(&b"BDAT 0 LAST\r\n"[..]),
        1 => Just(&b"BDAT 99\r\n"[..]),
        1 => Just(&b"LHLO c\r\n"[..]),
        1 => Just(&b"RSET\r\n"[..]),
        1 => Just(&b"STARTTLS\r\n"[..]),
        1 => Just(&b"NOOP\r\n"[..]),
        8 => Just(&b"\r\n.\r\n"[..]),
        2 => Just(&b"\r\n"[..]),
        2 => Just(&b"Received: x\r\n"[..]),
        2 => Just(&b"a line of text\r\n"[..]),
        2 => Just(&b"AUTH PLAIN AGEAYg==\r\n"[..]),
        2 => Just(&b"AUTH LOGIN\r\n"[..]),
        2 => Just(&b"YQ==\r\n"[..]),
        1 => Just(&b"*\r\n"[..]),
        1 => Just(&b"\n"[..]),
        1 => Just(&b"\r"[..]),
        1 => Just(&b"."[..]),
        1 => Just(&b"\0"[..]),
        1 => Just(&b" "[..]),
        1 => Just(&[b'x'; 70][..]),
    ];
    let piece = prop_oneof![9 => word.prop_map(<[u8]>::to_vec), 1 => prop::collection::vec(any::<u8>(), 1..6)];
    let greeting = prop::sample::select(vec![&b"EHLO c\r\n"[..], b"LHLO c\r\n", b""]);
    (greeting, prop::collection::vec(piece, 0..24)).prop_map(|(greeting, pieces)| [greeting, &pieces.concat()].concat())
}

/// The input cut into pieces of these sizes.
fn cut<'a>(input: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = input;
    sizes.iter().cycle().map_while(move |&size| {
        let (piece, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_in_any_pieces_give_the_same(
        input in input(),
        sizes in prop::collection::vec(1..40usize, 1..8),
        lmtp: bool,
        mend: bool,
        nul in prop::sample::select(vec![NulPolicy::Keep, NulPolicy::Strip, NulPolicy::Refuse]),
        late: bool,
    ) {
        let flavor = if lmtp { MailProtocol::Lmtp } else { MailProtocol::Smtp };
        let whole = play(tolerant(flavor, mend, nul, small_limits()), std::iter::once(&input[..]), false);
        let pieces = play(tolerant(flavor, mend, nul, small_limits()), cut(&input, &sizes), late);
        prop_assert_eq!(&whole, &pieces);
        for (action, message) in &whole.actions {
            let SessionAction::Ask(SessionQuestion::Message(end)) = action else { continue };
            let text = String::from_utf8_lossy(message).replace("\r\n", "");
            prop_assert!(!text.contains(['\r', '\n']), "a bare newline was passed on");
            prop_assert!(nul == NulPolicy::Keep || !message.contains(&0), "a NUL was passed on");
            prop_assert!(message.len() <= 60);
            prop_assert_eq!(end.octets, message.len() as u64);
            prop_assert_eq!(end.flags.ends_in_crlf, message.is_empty() || message.ends_with(b"\r\n"));
            prop_assert_eq!(end.flags.eight_bit, !message.is_ascii());
            let dots = message.starts_with(b".") || message.windows(3).any(|three| three == b"\r\n.");
            prop_assert_eq!(end.flags.dot_lines, dots);
        }
    }
}

#[test]
fn an_idle_session_is_small_and_keeps_no_buffers() {
    let mut session = session(MailProtocol::Smtp, false, SessionLimits::default());
    let (mut outcome, mut body) = (PlayedSession::default(), Vec::new());
    let dialogue = b"EHLO client.example\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\nDATA\r\nx\r\n.\r\n";
    for piece in dialogue.chunks(30) {
        session.handle_input(Timestamp(0), piece, &mut body);
        settle(&mut session, &mut outcome, &mut body);
    }
    assert_eq!(outcome.actions.len(), 4);
    let heap = session.backlog.capacity() + session.output.capacity() + session.actions.capacity() + session.helo.len();
    assert_eq!(heap, "client.example".len());
    assert!(size_of::<SmtpSession>() <= 400, "{} bytes", size_of::<SmtpSession>());
}

/// A session that waits for the answer about its message, with one more command pending.
fn session_with_message() -> SmtpSession {
    let mut session = session(MailProtocol::Smtp, false, SessionLimits::default());
    let mut body = Vec::new();
    let dialogue = b"HELO c\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\nDATA\r\nx\r\n.\r\nNOOP\r\n";
    session.handle_input(Timestamp(0), dialogue, &mut body);
    while let Some(SessionAction::Ask(question)) = session.poll_action() {
        if let SessionQuestion::Message(_) = question {
            break;
        }
        session.handle_driver_answer(Timestamp(0), SessionAnswer::Accept, &mut body);
    }
    session.handle_sent(session.output().len());
    session
}

#[test]
fn a_message_handed_to_the_driver_is_always_answered() {
    let late = Timestamp(u64::MAX);
    let mut session = session_with_message();
    assert_eq!((session.poll_deadline(), session.wants_input()), (None, false));
    session.handle_timeout(late);
    session.handle_disconnect();
    assert_eq!((session.output(), session.wants_close()), (&b""[..], false));
    session.handle_driver_answer(late, SessionAnswer::Accept, &mut Vec::new());
    assert_eq!(session.output(), b"250 2.0.0 message accepted\r\n250 2.0.0 ok\r\n");
    assert!(session.wants_close());
    assert_eq!(session.poll_action(), None);

    let mut session = session_with_message();
    session.handle_shutdown(late);
    session.handle_driver_answer(Timestamp(1), SessionAnswer::Accept, &mut Vec::new());
    assert_eq!(session.output(), b"250 2.0.0 message accepted\r\n421 4.3.2 server is shutting down; closing\r\n");
}

#[test]
fn an_unexpected_answer_is_ignored() {
    let mut session = session(MailProtocol::Smtp, false, SessionLimits::default());
    session.handle_sent(session.output().len());
    session.handle_driver_answer(Timestamp(0), SessionAnswer::Accept, &mut Vec::new());
    session.handle_timeout(Timestamp(300_000));
    session.handle_driver_answer(Timestamp(0), SessionAnswer::Accept, &mut Vec::new());
    assert_eq!(session.output(), b"421 4.4.2 idle for too long; closing\r\n");
}

#[test]
fn a_line_of_an_exchange_has_a_limit_of_its_own_and_ends_the_exchange() {
    // RFC 4954 section 4: 12,288 octets, with the CRLF.
    for (letters, replies) in [
        (sasl::LINE_OCTETS_MAX - 4, &b"535 5.7.8 Authentication credentials invalid\r\n250 2.0.0 ok\r\n"[..]),
        (sasl::LINE_OCTETS_MAX, b"500 5.5.6 Authentication Exchange line is too long\r\n250 2.0.0 ok\r\n"),
    ] {
        for size in [1000, 4096, 100_000] {
            let mut session = session(MailProtocol::Smtp, false, SessionLimits::default());
            session.handle_input(Timestamp(0), b"EHLO c\r\nAUTH LOGIN YQ==\r\n", &mut Vec::new());
            session.handle_sent(session.output().len());
            let line = [&b"A".repeat(letters)[..], b"\r\nNOOP\r\n"].concat();
            line.chunks(size).for_each(|piece| session.handle_input(Timestamp(0), piece, &mut Vec::new()));
            assert_eq!(session.output(), replies, "{letters} octets in pieces of {size}");
        }
    }
}
