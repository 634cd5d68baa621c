//! Sessions before login, each played whole and split at every byte: the output and the actions must
//! be the same.

use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::backend_login::BackendAcceptance;
use crate::sasl::{Nonce, PasswordVerdict, SaslConfig, SaslRefusal, ScramKeysAnswer};

const NOW: Timestamp = Timestamp(0);
const CAPABILITIES: &str = "IMAP4rev1 LITERAL+ SASL-IR ID AUTH=SCRAM-SHA-256 AUTH=PLAIN AUTH=LOGIN";

fn config(change: impl FnOnce(&mut ImapServerConfig)) -> Arc<ImapServerConfig> {
    let auth = ImapAuthConfig {
        mechanisms: Mechanism::ADVERTISED.into(),
        clear_text: true,
        sasl: SaslConfig { secret: [7; 32] },
    };
    let limits = ImapLimits { command_octets_max: 700, literal_octets_max: 300, commands_max: 6, ..Default::default() };
    let mut config = ImapServerConfig { hostname: "imap.example".into(), tls: TlsMode::Never, auth, limits };
    change(&mut config);
    Arc::new(config)
}

/// The result of an input.
#[derive(Debug, Default, PartialEq, Eq)]
struct Played {
    output: String,
    actions: Vec<String>,
    /// What the backend gets first, if the session was handed over.
    handed_over: Option<String>,
    is_closed: bool,
}

/// Bob's password is `secret`; eve has no mailbox; there is no answer about mallory; the backend of
/// dora refuses.
struct Driver {
    session: ImapLoginSession,
    played: Played,
}

impl Driver {
    fn play<'a>(config: &Arc<ImapServerConfig>, pieces: impl IntoIterator<Item = &'a [u8]>) -> Played {
        let mut driver = Driver { session: ImapLoginSession::new(config.clone(), NOW), played: Played::default() };
        for piece in pieces {
            if let Some(pipelined) = &mut driver.played.handed_over {
                pipelined.push_str(&String::from_utf8_lossy(piece));
                continue;
            }
            driver.session.handle_input(NOW, piece);
            driver.settle();
        }
        driver.settle();
        driver.played.is_closed = driver.session.wants_close();
        driver.played
    }

    fn settle(&mut self) {
        while let Some(action) = self.session.poll_action() {
            let text = match &action {
                ImapAction::Ask(ImapQuestion::Password { user, password }) => {
                    format!("password {user} {}", password.reveal())
                }
                ImapAction::Ask(ImapQuestion::ScramKeys { user }) => format!("keys {user}"),
                ImapAction::Ask(ImapQuestion::Open { user }) => format!("open {user}"),
                ImapAction::Login { mechanism, user, outcome } => {
                    let is_accepted = matches!(outcome, SaslOutcome::Accepted { .. });
                    format!("login {mechanism} {user} {is_accepted}")
                }
                ImapAction::Refused { stage, reply } => format!("refused {stage} {reply}"),
            };
            self.played.actions.push(text);
            if let ImapAction::Ask(question) = action {
                self.answer(question);
            }
        }
        self.played.output.push_str(&String::from_utf8_lossy(self.session.output()));
        self.session.handle_sent(self.session.output().len());
    }

    fn answer(&mut self, question: ImapQuestion) {
        match question {
            ImapQuestion::Password { user, .. } if &*user == "mallory" => {
                self.session.handle_password_verdict(NOW, PasswordVerdict::Unavailable);
            }
            ImapQuestion::Password { user, password } => {
                let is_right = password.reveal() == "secret";
                let verdict = if is_right { PasswordVerdict::Accepted { user } } else { PasswordVerdict::Refused };
                self.session.handle_password_verdict(NOW, verdict);
            }
            ImapQuestion::ScramKeys { .. } => {
                let nonce = Nonce::from_random([3; Nonce::OCTETS]);
                self.session.handle_scram_keys(NOW, ScramKeysAnswer::Unknown { iterations: 4096 }, &nonce);
            }
            ImapQuestion::Open { user } if &*user == "eve" => {
                self.session.handle_open_refused(NOW, &ImapOpenRefusal::NoMailbox);
            }
            ImapQuestion::Open { user } if &*user == "dora" => {
                self.session.handle_open_refused(NOW, &ImapOpenRefusal::Backend("[LIMIT] Full".into()));
            }
            ImapQuestion::Open { .. } => {
                let capability_line = Some("* CAPABILITY IMAP4rev1".into());
                let acceptance = BackendAcceptance { text: "[CAPABILITY IDLE] Logged in".into(), capability_line };
                let pipelined = self.session.hand_over(&acceptance).unwrap();
                self.played.handed_over = Some(String::from_utf8_lossy(&pipelined).into_owned());
            }
        }
    }
}

/// Plays the input whole, split once at every place, and byte by byte.
fn play(config: &Arc<ImapServerConfig>, input: &str) -> Played {
    let input = input.as_bytes();
    let whole = Driver::play(config, [input]);
    for place in 1..input.len() {
        let (first, second) = input.split_at(place);
        assert_eq!(Driver::play(config, [first, second]), whole, "split at {place}");
    }
    assert_eq!(Driver::play(config, input.chunks(1)), whole);
    whole
}

/// What the client gets after the greeting.
fn replies(input: &str) -> String {
    let played = play(&config(|_| {}), input);
    let greeting = format!("* OK [CAPABILITY {CAPABILITIES}] imap.example Mailrace\r\n");
    played.output.strip_prefix(&greeting).unwrap().to_owned()
}

#[test]
fn commands_before_login_are_answered() {
    let answers = [
        ("a1 CAPABILITY\r\n", format!("* CAPABILITY {CAPABILITIES}\r\na1 OK Capability completed\r\n")),
        ("a noop\r\n", "a OK NOOP completed\r\n".into()),
        ("A.1] NOOP\r\n", "A.1] OK NOOP completed\r\n".into()),
        ("a ID NIL\r\n", "* ID (\"name\" \"Mailrace\")\r\na OK ID completed\r\n".into()),
        ("a ID ()\r\n", "* ID (\"name\" \"Mailrace\")\r\na OK ID completed\r\n".into()),
        (
            "a ID (\"name\" \"x\\\"y\" {1+}\r\nv NIL)\r\n",
            "* ID (\"name\" \"Mailrace\")\r\na OK ID completed\r\n".into(),
        ),
        ("a ID (\"name\" \"x\"\r\n", "a BAD Unexpected arguments\r\n".into()),
        ("a ID x\r\n", "a BAD Unexpected arguments\r\n".into()),
        ("a NOOP x\r\n", "a BAD Unexpected arguments\r\n".into()),
        ("a SELECT x\r\n", "a BAD Unknown command, or not available before login\r\n".into()),
        ("a STARTTLS\r\n", "a BAD STARTTLS is not available\r\n".into()),
        ("a\r\n", "a BAD Command expected\r\n".into()),
        ("a  NOOP\r\n", "a BAD Command expected\r\n".into()),
        ("+ NOOP\r\n", "* BAD Invalid tag\r\n".into()),
        ("* NOOP\r\n", "* BAD Invalid tag\r\n".into()),
        ("a+b NOOP\r\n", "a BAD Command expected\r\n".into()),
        ("\r\n", "* BAD Invalid tag\r\n".into()),
        ("a LOGOUT\r\nb NOOP\r\n", "* BYE Logging out\r\na OK Logout completed\r\n".into()),
    ];
    for (input, output) in answers {
        assert_eq!(replies(input), output, "{input:?}");
    }
    let long_tag = format!("{} NOOP\r\n", "t".repeat(65));
    assert_eq!(replies(&long_tag), "* BAD Invalid tag\r\n");
}

#[test]
fn a_login_has_its_name_and_password_in_every_form() {
    let forms = [
        ("a LOGIN bob secret\r\n", ""),
        ("a login \"bob\" \"secret\"\r\n", ""),
        ("a LOGIN bob \"sec\\\"r\\\\et\"\r\n", ""),
        ("a LOGIN {3}\r\nbob {6}\r\nsecret\r\n", "+ OK\r\n+ OK\r\n"),
        ("a LOGIN {3+}\r\nbob {6+}\r\nsecret\r\n", ""),
        ("a LOGIN \"bob\" {6}\r\nsecret\r\n", "+ OK\r\n"),
        ("a LOGIN bob s%c*r]e\\t{x\r\n", ""),
    ];
    let passwords = ["secret", "secret", "sec\"r\\et", "secret", "secret", "secret", "s%c*r]e\\t{x"];
    for ((input, invited), password) in forms.into_iter().zip(passwords) {
        let played = play(&config(|_| {}), input);
        assert_eq!(played.actions[0], format!("password bob {password}"), "{input:?}");
        let replies = played.output.split_once("Mailrace\r\n").unwrap().1;
        assert!(replies.starts_with(invited), "{input:?} {replies:?}");
        assert_eq!(replies.matches("+ OK").count(), invited.matches("+ OK").count());
    }
    for input in [
        "a LOGIN bob\r\n",
        "a LOGIN bob \r\n",
        "a LOGIN \"bob secret\r\n",
        "a LOGIN bob secret x\r\n",
        "a LOGIN {3}\r\nbob\r\n",
    ] {
        let replies = replies(input);
        assert!(replies.ends_with("a BAD User name and password expected\r\n"), "{input:?} {replies:?}");
    }
}

#[test]
fn an_accepted_client_belongs_to_its_backend_with_all_that_it_sent() {
    let played = play(&config(|_| {}), "x NOOP\r\na1 LOGIN bob secret\r\nb SELECT INBOX\r\nc ID");
    let replies = played.output.split_once("Mailrace\r\n").unwrap().1;
    let expected = "x OK NOOP completed\r\n* CAPABILITY IMAP4rev1\r\na1 OK [CAPABILITY IDLE] Logged in\r\n";
    assert_eq!(replies, expected);
    assert_eq!(played.handed_over.unwrap(), "b SELECT INBOX\r\nc ID");
    assert_eq!(played.actions, ["password bob secret", "login PLAIN bob true", "open bob"]);
}

#[test]
fn a_login_fails_with_a_code_and_the_session_goes_on() {
    let failures = [
        ("a LOGIN bob wrong\r\n", "a NO [AUTHENTICATIONFAILED] Authentication failed\r\n"),
        ("a LOGIN bob \"\"\r\n", "a NO [AUTHENTICATIONFAILED] Authentication failed\r\n"),
        ("a LOGIN mallory secret\r\n", "a NO [UNAVAILABLE] Temporary authentication failure\r\n"),
        ("a LOGIN eve secret\r\n", "a NO [AUTHORIZATIONFAILED] There is no mailbox for this user\r\n"),
        ("a LOGIN dora secret\r\n", "a NO [LIMIT] Full\r\n"),
        ("a AUTHENTICATE PLAIN AGJvYgB3cm9uZw==\r\n", "a NO [AUTHENTICATIONFAILED] Authentication failed\r\n"),
        ("a AUTHENTICATE PLAIN cm9vdABib2IAc2VjcmV0\r\n", "a NO [AUTHORIZATIONFAILED] Authorization failed\r\n"),
        ("a AUTHENTICATE PLAIN\r\n*\r\n", "+ \r\na BAD Authentication cancelled\r\n"),
        ("a AUTHENTICATE PLAIN x\r\n", "a BAD Malformed authentication data\r\n"),
        ("a AUTHENTICATE LOGIN\r\n*\r\n", "+ VXNlcm5hbWU6\r\na BAD Authentication cancelled\r\n"),
        ("a AUTHENTICATE GSSAPI\r\n", "a NO [CANNOT] Unsupported authentication mechanism\r\n"),
        ("a AUTHENTICATE\r\n", "a BAD Mechanism expected\r\n"),
        ("a AUTHENTICATE PLAIN x y\r\n", "a BAD Unexpected arguments\r\n"),
    ];
    for (input, output) in failures {
        let input = format!("{input}b LOGIN bob secret\r\n");
        let goes_on = "* CAPABILITY IMAP4rev1\r\nb OK [CAPABILITY IDLE] Logged in\r\n";
        assert_eq!(replies(&input), format!("{output}{goes_on}"), "{input:?}");
    }
}

#[test]
fn every_mechanism_logs_in() {
    for input in [
        "a AUTHENTICATE PLAIN AGJvYgBzZWNyZXQ=\r\n",
        "a authenticate plain\r\nAGJvYgBzZWNyZXQ=\r\n",
        "a AUTHENTICATE LOGIN Ym9i\r\nc2VjcmV0\r\n",
        "a AUTHENTICATE LOGIN\r\nYm9i\r\nc2VjcmV0\r\n",
    ] {
        let played = play(&config(|_| {}), input);
        assert_eq!(played.actions.last().unwrap(), "open bob", "{input:?}");
        assert!(played.output.ends_with("a OK [CAPABILITY IDLE] Logged in\r\n"), "{input:?}");
    }
    let scram = play(&config(|_| {}), "a AUTHENTICATE SCRAM-SHA-256 biwsbj1ib2Iscj14\r\n*\r\n");
    assert_eq!(scram.actions, ["keys bob", "login SCRAM-SHA-256 bob false"]);
}

#[test]
fn a_client_that_exceeds_a_limit_is_disconnected() {
    let bye = |input: &str, text: &str| {
        let played = play(&config(|_| {}), input);
        assert!(played.is_closed, "{input:?}");
        assert!(played.output.ends_with(&format!("* BYE {text}\r\n")), "{input:?} {}", played.output);
        assert!(played.actions.last().unwrap().starts_with("refused "), "{input:?}");
    };
    bye(&"a NOOP\r\n".repeat(8), "Too many commands without login");
    bye(&"a LOGIN eve secret\r\n".repeat(8), "Too many commands without login");
    bye(&"a LOGIN bob wrong\r\n".repeat(5), "Too many failed logins");
    bye(&format!("a NOOP {}\r\n", "x".repeat(700)), "The command is too long");
    let literal = format!(" {{300+}}\r\n{}", "x".repeat(300));
    bye(&format!("a LOGIN{}\r\n", literal.repeat(3)), "The command is too long");
    bye("a LOGIN {301+}\r\n", "The literal is too long");
    bye("a LOGIN {99999999999999999999999}\r\n", "The literal is too long");
    bye("a NOOP\n", "Lines must end in CRLF");
    bye("a NO\0OP\r\n", "Invalid character in a command");
    bye("a NO\rOP\r\n", "Invalid character in a command");
    bye(&format!("a AUTHENTICATE PLAIN\r\n{}\r\n", "x".repeat(700)), "The line is too long");
    bye("a AUTHENTICATE PLAIN\r\nx\n", "Lines must end in CRLF");
}

#[test]
fn without_tls_no_one_logs_in_unless_it_is_allowed() {
    for (tls, clear_text) in [(TlsMode::Offered, false), (TlsMode::Required, true), (TlsMode::Never, false)] {
        let config = config(|config| (config.tls, config.auth.clear_text) = (tls, clear_text));
        let played = play(&config, "a LOGIN bob secret\r\nb AUTHENTICATE PLAIN AGJvYgBzZWNyZXQ=\r\n");
        assert!(played.output.contains(" LOGINDISABLED]") && !played.output.contains("AUTH="), "{}", played.output);
        assert_eq!(played.output.contains(" STARTTLS "), tls != TlsMode::Never);
        assert!(played.output.contains("a NO [PRIVACYREQUIRED]") && played.output.contains("b NO [PRIVACYREQUIRED]"));
        assert!(played.actions.is_empty());
    }
    let only_scram = config(|config| config.auth.mechanisms = [Mechanism::ScramSha256].into());
    let played = play(&only_scram, "a LOGIN bob secret\r\n");
    assert!(played.output.contains(" LOGINDISABLED AUTH=SCRAM-SHA-256]"), "{}", played.output);
    assert!(played.output.ends_with("a NO [CANNOT] LOGIN is disabled\r\n"));
}

#[test]
fn starttls_begins_a_new_dialogue_and_takes_no_clear_text() {
    let config = config(|config| (config.tls, config.auth.clear_text) = (TlsMode::Required, false));
    let mut session = ImapLoginSession::new(config.clone(), NOW);
    session.handle_input(NOW, b"a STARTTLS\r\n");
    assert!(session.wants_handshake() && session.output().ends_with(b"a OK Begin TLS negotiation now\r\n"));
    session.handle_sent(session.output().len());
    session.handle_tls_established(NOW);
    session.handle_input(NOW, b"b CAPABILITY\r\nc STARTTLS\r\nd LOGIN bob secret\r\n");
    let output = String::from_utf8(session.output().to_vec()).unwrap();
    assert!(output.contains("SASL-IR ID AUTH=") && output.contains("c BAD STARTTLS is not available"), "{output}");
    assert!(matches!(session.poll_action(), Some(ImapAction::Ask(ImapQuestion::Password { .. }))));

    let played = play(&config, "a STARTTLS\r\nb LOGIN bob secret\r\n");
    assert!(played.is_closed && played.output.ends_with("* BYE Clear text received after STARTTLS\r\n"));
    assert_eq!(played.actions, ["refused STARTTLS Clear text received after STARTTLS"]);
}

#[test]
fn a_silent_or_slow_client_is_disconnected_in_time() {
    let mut session = ImapLoginSession::new(config(|_| {}), NOW);
    let minute = Duration::from_secs(60);
    assert_eq!(session.poll_deadline(), Some(NOW + minute));
    session.handle_timeout(NOW + (minute - Duration::from_millis(1)));
    assert!(!session.wants_close());
    for seconds in [50, 100, 150] {
        session.handle_input(NOW + Duration::from_secs(seconds), b"a");
    }
    assert_eq!(session.poll_deadline(), Some(NOW + 3 * minute));
    session.handle_timeout(NOW + 3 * minute);
    assert!(session.wants_close() && session.output().ends_with(b"* BYE Too slow to log in\r\n"));
}

#[test]
fn a_shutdown_waits_for_the_answer_to_a_question() {
    let mut session = ImapLoginSession::new(config(|_| {}), NOW);
    session.handle_input(NOW, b"a LOGIN bob secret\r\nb NOOP\r\n");
    session.handle_shutdown(NOW);
    session.handle_disconnect();
    assert!(!session.wants_close() && session.poll_deadline().is_none());
    session.handle_password_verdict(NOW, PasswordVerdict::Refused);
    let output = String::from_utf8(session.output().to_vec()).unwrap();
    assert!(
        output.ends_with("a NO [AUTHENTICATIONFAILED] Authentication failed\r\n* BYE The server is shutting down\r\n")
    );
    assert!(session.wants_close());
}

#[test]
fn unexpected_answers_change_nothing() {
    let mut session = ImapLoginSession::new(config(|_| {}), NOW);
    let accepted = PasswordVerdict::Accepted { user: "bob".into() };
    session.handle_password_verdict(NOW, accepted.clone());
    session.handle_open_refused(NOW, &ImapOpenRefusal::Unavailable);
    session.handle_tls_established(NOW);
    let acceptance = BackendAcceptance { text: "x".into(), capability_line: None };
    assert_eq!(session.hand_over(&acceptance), None);
    session.handle_input(NOW, b"a AUTHENTICATE SCRAM-SHA-256 biwsbj1ib2Iscj14\r\n");
    session.handle_password_verdict(NOW, accepted);
    let is_login_failure = |action: &ImapAction| {
        matches!(action, ImapAction::Login { outcome: SaslOutcome::Refused(SaslRefusal::Unavailable), .. })
    };
    assert!(std::iter::from_fn(|| session.poll_action()).any(|action| is_login_failure(&action)));
}

proptest! {
    #[test]
    fn no_input_panics_or_depends_on_its_pieces(
        words in proptest::collection::vec(
            proptest::sample::select(vec![
                "a ", "LOGIN ", "bob ", "secret", "\r\n", "\"", "\\", "{3}\r\n", "{6+}\r\n", "AUTHENTICATE ", "PLAIN",
                " AGJvYgBzZWNyZXQ=", "*", "ID ", "(", ")", "NIL", " ", "NOOP", "\n", "\0", "é", "CAPABILITY", "STARTTLS",
            ]),
            0..30,
        ),
        size in 1_usize..9,
    ) {
        let input = words.concat();
        let config = config(|config| config.tls = TlsMode::Offered);
        let whole = Driver::play(&config, [input.as_bytes()]);
        prop_assert_eq!(Driver::play(&config, input.as_bytes().chunks(size)), whole);
    }
}
