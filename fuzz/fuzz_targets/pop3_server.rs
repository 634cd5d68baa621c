//! Any bytes as the client's side of a POP3 session: no panic, the result is the same whether they
//! arrive whole or in pieces, nothing is deleted without QUIT, and the output that waits is limited.
//! The last byte chooses the form of the messages and the size of the pieces. Limits are low, so
//! that short inputs reach them.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use mail::Timestamp;
use protocol::TlsMode;
use protocol::pop3::server::{
    Content, MaildropListing, OUTPUT_WAITING_MAX, Pop3Action, Pop3AuthConfig, Pop3Limits, Pop3Output, Pop3Question,
    Pop3Server, Pop3ServerConfig,
};
use protocol::sasl::{Mechanism, Nonce, PasswordVerdict, SaslConfig, ScramKeysAnswer};

const NOW: Timestamp = Timestamp(0);
/// With CRLF, so that they are the same in every form.
const MESSAGES: [&[u8]; 4] = [
    b"Subject: x\r\n\r\n.a\r\n..\r\nb\r\n",
    b".\r\n",
    b"",
    b"a\r\r\n\r\n\r\n.\rb\r\n",
];

/// The result of an input.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    output: Vec<u8>,
    /// All actions except requests for chunks.
    actions: Vec<Pop3Action>,
    closed: bool,
}

struct Messages;

impl MaildropListing for Messages {
    fn message_count(&self) -> usize {
        MESSAGES.len()
    }

    fn octets(&self, message: usize) -> u64 {
        MESSAGES[message].len() as u64
    }

    fn write_uid(&self, message: usize, out: &mut Vec<u8>) {
        out.push(b'a' + message as u8);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_last() else { return };
    let whole = play(0, bytes, usize::MAX);
    assert_eq!(whole, play(choice, bytes, 1 + usize::from(choice >> 4)));
    let said_quit = bytes.windows(4).any(|word| word.eq_ignore_ascii_case(b"QUIT"));
    let updates = |action: &Pop3Action| matches!(action, Pop3Action::Ask(Pop3Question::Update { .. }));
    assert!(said_quit || !whole.actions.iter().any(updates), "deleted without QUIT");
});

fn play(choice: u8, bytes: &[u8], size: usize) -> Outcome {
    let limits = Pop3Limits {
        command_line_octets_max: 100,
        commands_max: 20,
        errors_max: 5,
        failed_logins_max: 2,
        ..Pop3Limits::default()
    };
    let auth = Pop3AuthConfig {
        mechanisms: Mechanism::ADVERTISED.into(),
        clear_text: true,
        sasl: SaslConfig { secret: [7; 32] },
    };
    let config = Pop3ServerConfig { hostname: "mx.example.org".into(), tls: TlsMode::Offered, auth, limits };
    let mut server = Pop3Server::new(Arc::new(config), NOW);
    let mut outcome = Outcome::default();
    for piece in bytes.chunks(size) {
        server.handle_input(NOW, piece);
        settle(&mut server, choice, &mut outcome);
    }
    server.handle_disconnect();
    settle(&mut server, choice, &mut outcome);
    outcome.closed = server.wants_close();
    outcome
}

/// Does what a driver does after each event.
fn settle(server: &mut Pop3Server, choice: u8, outcome: &mut Outcome) {
    let (mut message, mut given) = (0, 0);
    loop {
        while let Some(action) = server.poll_action() {
            match &action {
                Pop3Action::Ask(Pop3Question::Retrieve { message: wanted, lines }) => {
                    (message, given) = (*wanted, 0);
                    server.handle_content(NOW, content(choice, message, *lines));
                }
                Pop3Action::Ask(Pop3Question::More) => {
                    let rest = &MESSAGES[message][given..];
                    let chunk = &rest[..rest.len().min(1 + usize::from(choice >> 2 & 3))];
                    given += chunk.len();
                    server.handle_chunk(NOW, chunk, chunk.len() == rest.len());
                    continue;
                }
                Pop3Action::Ask(question) => answer(server, question),
                Pop3Action::Login { .. } | Pop3Action::Refused { .. } => {}
            }
            outcome.actions.push(action);
        }
        while let Some(sent) = take_output(server, message, outcome) {
            server.handle_sent(NOW, sent);
        }
        if !server.can_continue() {
            return;
        }
    }
}

fn content(choice: u8, message: usize, lines: Option<u32>) -> Content<'static> {
    let bytes = MESSAGES[message];
    let begins = |place: &usize| bytes[*place] == b'.' && (*place == 0 || bytes[place - 1] == b'\n');
    match choice & 3 {
        0 => Content::Whole(bytes),
        1 if lines.is_none() => Content::File {
            octets: bytes.len() as u64,
            dot_lines: (0..bytes.len()).filter(begins).map(|place| place as u64).collect(),
            ends_with_newline: true,
        },
        _ => Content::Copied { octets: bytes.len() as u64 },
    }
}

fn answer(server: &mut Pop3Server, question: &Pop3Question) {
    match question {
        Pop3Question::Password { user, password } => {
            let is_right = password.reveal() != "wrong";
            let user = user.clone();
            let verdict = if is_right { PasswordVerdict::Accepted { user } } else { PasswordVerdict::Refused };
            server.handle_password_verdict(NOW, verdict);
        }
        Pop3Question::ScramKeys { .. } => {
            let keys = ScramKeysAnswer::Unknown { iterations: 4096 };
            server.handle_scram_keys(NOW, keys, &Nonce::from_random([3; Nonce::OCTETS]));
        }
        Pop3Question::Open { .. } => server.handle_opened(NOW, Ok(Arc::new(Messages))),
        Pop3Question::Update { deleted } => {
            assert!(deleted.is_sorted_by(|a, b| a < b) && deleted.iter().all(|message| *message < MESSAGES.len()));
            server.handle_updated(NOW, true);
        }
        Pop3Question::Retrieve { .. } | Pop3Question::More => unreachable!("answered before"),
    }
}

/// Takes half of the output, at least; returns how much.
fn take_output(server: &Pop3Server, message: usize, outcome: &mut Outcome) -> Option<usize> {
    let bytes = match server.output() {
        Pop3Output::Bytes([]) => return None,
        Pop3Output::Bytes(bytes) | Pop3Output::Head(bytes) => bytes,
        Pop3Output::File { offset, octets } => {
            assert!(octets > 0);
            &MESSAGES[message][offset as usize..(offset + octets) as usize]
        }
    };
    assert!(bytes.len() < OUTPUT_WAITING_MAX + 1000, "too much output waits");
    let taken = bytes.len().div_ceil(2);
    outcome.output.extend_from_slice(&bytes[..taken]);
    Some(taken)
}
