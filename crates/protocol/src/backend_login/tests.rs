//! Logins at backends: what is sent for each method, and what every line of a host leads to, however
//! it is split.

use proptest::prelude::*;

use super::*;

fn request(protocol: BackendProtocol) -> BackendLoginRequest {
    BackendLoginRequest {
        protocol,
        starts_tls: false,
        method: BackendLoginMethod::Plain,
        authzid: None,
        user: "bob".into(),
        password: Secret::new("secret".into()),
        client: None,
    }
}

/// The dialogue with a host that says these things, one after each output. Returns all output, the
/// outcome, and what is left for the user.
fn play(request: &BackendLoginRequest, said: &[&str], size: usize) -> (String, Option<BackendLoginOutcome>, String) {
    let mut login = BackendLogin::new(request.clone());
    let (mut output, mut rest) = (String::new(), String::new());
    for text in said {
        for piece in text.as_bytes().chunks(size) {
            let used = login.handle_input(piece);
            rest += str::from_utf8(&piece[used..]).unwrap();
        }
        if login.wants_handshake() {
            login.handle_tls_established();
        }
        output += str::from_utf8(&login.take_output()).unwrap();
    }
    (output, login.outcome().cloned(), rest)
}

/// Plays it whole and byte by byte.
fn converse(request: &BackendLoginRequest, said: &[&str]) -> (String, Option<BackendLoginOutcome>, String) {
    let whole = play(request, said, usize::MAX);
    assert_eq!(play(request, said, 1), whole, "{said:?}");
    whole
}

fn accepted(text: &str) -> Option<BackendLoginOutcome> {
    let acceptance = BackendAcceptance { text: text.into(), capability_line: None };
    Some(BackendLoginOutcome::Accepted(acceptance))
}

fn failed(fault: BackendFault) -> Option<BackendLoginOutcome> {
    Some(BackendLoginOutcome::Failed(fault))
}

const IMAP: BackendProtocol = BackendProtocol::Imap;
const POP3: BackendProtocol = BackendProtocol::Pop3;

#[test]
fn plain_takes_one_command_where_it_can() {
    let said = ["* OK [CAPABILITY IMAP4rev1 SASL-IR] hi\r\n", "L OK [CAPABILITY IDLE] Logged in\r\n* 3 EXISTS\r\n"];
    let (output, outcome, rest) = converse(&request(IMAP), &said);
    assert_eq!(output, "L AUTHENTICATE PLAIN AGJvYgBzZWNyZXQ=\r\n");
    assert_eq!((outcome, &*rest), (accepted("[CAPABILITY IDLE] Logged in"), "* 3 EXISTS\r\n"));

    let (output, outcome, _) = converse(&request(IMAP), &["* OK hi\r\n", "+ \r\n", "L OK in\r\n"]);
    assert_eq!(output, "L AUTHENTICATE PLAIN\r\nAGJvYgBzZWNyZXQ=\r\n");
    assert_eq!(outcome, accepted("in"));

    let (output, outcome, rest) = converse(&request(POP3), &["+OK <1@x> hi\r\n", "+OK 3 messages\r\nmore"]);
    assert_eq!(output, "AUTH PLAIN AGJvYgBzZWNyZXQ=\r\n");
    assert_eq!((outcome, &*rest), (accepted("3 messages"), "more"));

    let long = BackendLoginRequest { password: Secret::new("x".repeat(180)), ..request(POP3) };
    let (output, outcome, _) = converse(&long, &["+OK\r\n", "+ \r\n", "+OK\r\n"]);
    assert!(output.starts_with("AUTH PLAIN\r\nAGJvYgB4") && output.ends_with("\r\n"), "{output}");
    assert_eq!(outcome, accepted(""));
}

#[test]
fn a_master_user_acts_for_the_user() {
    let master =
        |protocol| BackendLoginRequest { authzid: Some("bob".into()), user: "root".into(), ..request(protocol) };
    let (output, ..) = converse(&master(IMAP), &["* OK [CAPABILITY SASL-IR]\r\n"]);
    assert_eq!(output, "L AUTHENTICATE PLAIN Ym9iAHJvb3QAc2VjcmV0\r\n");
    let (output, ..) = converse(&master(POP3), &["+OK\r\n"]);
    assert_eq!(output, "AUTH PLAIN Ym9iAHJvb3QAc2VjcmV0\r\n");
    let by_login = BackendLoginRequest { method: BackendLoginMethod::Login, ..master(IMAP) };
    assert_eq!(converse(&by_login, &["* OK\r\n"]).1, failed(BackendFault::Unsendable));
}

#[test]
fn the_commands_of_the_protocols_send_any_name_and_password() {
    let login = |protocol| BackendLoginRequest { method: BackendLoginMethod::Login, ..request(protocol) };
    let (output, outcome, _) = converse(&login(IMAP), &["* OK\r\n", "L OK in\r\n"]);
    assert_eq!((&*output, outcome), ("L LOGIN \"bob\" \"secret\"\r\n", accepted("in")));
    let odd = BackendLoginRequest { user: "b\"\\b".into(), password: Secret::new("sécret".into()), ..login(IMAP) };
    let (output, outcome, _) = converse(&odd, &["* OK\r\n", "+ go\r\n", "L OK in\r\n"]);
    assert_eq!((&*output, outcome), ("L LOGIN \"b\\\"\\\\b\" {7}\r\nsécret\r\n", accepted("in")));
    let both = BackendLoginRequest { user: "bøb".into(), ..odd };
    let (output, ..) = converse(&both, &["* OK\r\n", "+ go\r\n", "+ go\r\n"]);
    assert_eq!(output, "L LOGIN {4}\r\nbøb {7}\r\nsécret\r\n");
    let (output, outcome, _) = converse(&login(POP3), &["+OK\r\n", "+OK\r\n", "+OK in\r\n"]);
    assert_eq!((&*output, outcome), ("USER bob\r\nPASS secret\r\n", accepted("in")));
    for text in ["a\r\nb", "a\0b"] {
        let hostile = BackendLoginRequest { user: text.into(), ..login(POP3) };
        assert_eq!(converse(&hostile, &["+OK\r\n"]).1, failed(BackendFault::Unsendable));
    }
}

#[test]
fn the_login_follows_the_upgrade() {
    let upgraded = |protocol| BackendLoginRequest { starts_tls: true, ..request(protocol) };
    let said = ["* OK [CAPABILITY SASL-IR]\r\n", "* x\r\nS OK go\r\n", "L OK in\r\n"];
    let (output, outcome, _) = converse(&upgraded(IMAP), &said);
    assert_eq!((&*output, outcome), ("S STARTTLS\r\nL AUTHENTICATE PLAIN AGJvYgBzZWNyZXQ=\r\n", accepted("in")));
    let (output, outcome, _) = converse(&upgraded(POP3), &["+OK\r\n", "+OK go\r\n", "+OK in\r\n"]);
    assert_eq!((&*output, outcome), ("STLS\r\nAUTH PLAIN AGJvYgBzZWNyZXQ=\r\n", accepted("in")));
    for (protocol, said) in [(IMAP, ["* OK\r\n", "S NO no\r\n"]), (POP3, ["+OK\r\n", "-ERR no\r\n"])] {
        let text = if protocol == IMAP { "NO no" } else { "no" };
        assert_eq!(converse(&upgraded(protocol), &said).1, failed(BackendFault::NoTls(text.into())));
    }
    for (protocol, said) in [(IMAP, ["* OK\r\n", "S OK\r\nx"]), (POP3, ["+OK\r\n", "+OK\r\nx"])] {
        assert_eq!(converse(&upgraded(protocol), &said).1, failed(BackendFault::ClearTextAfterStartTls));
    }
}

#[test]
fn the_client_is_named_before_an_imap_login() {
    let named = BackendLoginRequest { client: Some([192, 0, 2, 1].into()), ..request(IMAP) };
    let said = ["* OK [CAPABILITY SASL-IR]\r\n", "* ID NIL\r\nI OK\r\n* CAPABILITY IDLE\r\nL OK in\r\n"];
    let (output, outcome, _) = converse(&named, &said);
    let expected = "I ID (\"x-originating-ip\" \"192.0.2.1\")\r\nL AUTHENTICATE PLAIN AGJvYgBzZWNyZXQ=\r\n";
    assert_eq!(output, expected);
    let capability_line = Some("* CAPABILITY IDLE".into());
    let acceptance = BackendAcceptance { text: "in".into(), capability_line };
    assert_eq!(outcome, Some(BackendLoginOutcome::Accepted(acceptance)));
    let (_, outcome, _) = converse(&named, &["* OK\r\n", "I BAD what\r\n", "+ \r\n", "L OK in\r\n"]);
    assert_eq!(outcome, accepted("in"));
}

#[test]
fn a_refusal_is_about_the_password_or_not() {
    let refusals = [
        (IMAP, "L NO [AUTHENTICATIONFAILED] no\r\n", true),
        (IMAP, "L NO no\r\n", true),
        (IMAP, "L no [authorizationfailed] no\r\n", true),
        (IMAP, "L NO [UNAVAILABLE] no\r\n", false),
        (IMAP, "L NO [ALERT x] no\r\n", false),
        (IMAP, "L BAD no\r\n", false),
        (POP3, "-ERR no\r\n", true),
        (POP3, "-ERR [AUTH] no\r\n", true),
        (POP3, "-ERR [IN-USE] no\r\n", false),
        (POP3, "-ERR [SYS/TEMP] no\r\n", false),
    ];
    for (protocol, reply, expected) in refusals {
        let greeting = if protocol == IMAP { "* OK [CAPABILITY SASL-IR]\r\n" } else { "+OK\r\n" };
        let outcome = converse(&request(protocol), &[greeting, reply]).1;
        let Some(BackendLoginOutcome::Refused(refusal)) = outcome else { panic!("{reply:?} {outcome:?}") };
        assert!(refusal.is_about_credentials == expected && refusal.text.ends_with("no"), "{reply:?} {refusal:?}");
    }
}

#[test]
fn a_host_that_speaks_something_else_is_left() {
    let long = format!("* OK {}\r\n", "x".repeat(LINE_OCTETS_MAX));
    let chatty = format!("* OK\r\n{}", "* x\r\n".repeat(LINES_MAX));
    let faults = [
        (IMAP, vec!["* BYE full\r\n"], BackendFault::NoGreeting("BYE full".into())),
        (IMAP, vec!["* PREAUTH in\r\n"], BackendFault::NoGreeting("PREAUTH in".into())),
        (POP3, vec!["-ERR full\r\n"], BackendFault::NoGreeting("full".into())),
        (IMAP, vec!["+OK\r\n"], BackendFault::Unexpected("+OK".into())),
        (POP3, vec!["* OK\r\n"], BackendFault::Unexpected("* OK".into())),
        (IMAP, vec!["* OK\n"], BackendFault::Unexpected("* OK ".into())),
        (IMAP, vec![&long], BackendFault::LineTooLong),
        (IMAP, vec![&chatty], BackendFault::TooManyLines),
        (IMAP, vec!["* OK\r\n", "* BYE x\r\n"], BackendFault::Unexpected("* BYE x".into())),
        (IMAP, vec!["* OK\r\n", "L OK early\r\n"], BackendFault::Unexpected("L OK early".into())),
        (IMAP, vec!["* OK\r\n", "+ \r\n", "+ \r\n"], BackendFault::Unexpected("+".into())),
        (POP3, vec!["+OK\r\n", "+ \r\n"], BackendFault::Unexpected("+".into())),
    ];
    for (protocol, said, fault) in faults {
        assert_eq!(converse(&request(protocol), &said).1, failed(fault), "{said:?}");
    }
    let mut login = BackendLogin::new(request(IMAP));
    assert!(!login.is_greeted());
    login.handle_input(b"* OK\r\n");
    assert!(login.is_greeted());
    login.handle_disconnect();
    assert_eq!(login.outcome().cloned(), failed(BackendFault::Disconnected));
    assert!(IMAP.is_greeting(b"* OK x") && !IMAP.is_greeting(b"* BYE") && POP3.is_greeting(b"+OK"));
}

proptest! {
    #[test]
    fn no_host_makes_a_login_panic_or_depend_on_the_pieces(
        is_imap in any::<bool>(),
        starts_tls in any::<bool>(),
        words in proptest::collection::vec(
            proptest::sample::select(vec![
                "* OK", "+OK", "+ ", "L OK in", "L NO", "-ERR", "\r\n", "\r\n", "\r\n", "S OK", " ", "[AUTH]", "I OK",
                "* CAPABILITY x", "\n", "é",
            ]),
            0..20,
        ),
        size in 1_usize..6,
    ) {
        let request = BackendLoginRequest { starts_tls, ..request(if is_imap { IMAP } else { POP3 }) };
        let input = words.concat().into_bytes();
        let run = |size: usize| {
            let mut login = BackendLogin::new(request.clone());
            let used: usize = input.chunks(size).map(|piece| login.handle_input(piece)).sum();
            (used, login.take_output().to_vec(), login.outcome().cloned())
        };
        prop_assert_eq!(run(size), run(usize::MAX));
    }
}
