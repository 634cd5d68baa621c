//! What transcripts cannot show: how much output and input a session holds, when it stops, and how
//! files are cut into ranges.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::sasl::{Mechanism, SaslConfig};

const NOW: Timestamp = Timestamp(1_000_000);

/// Messages that are the same for all: their number and bytes.
struct SameMessages(usize, Vec<u8>);

impl MaildropListing for SameMessages {
    fn message_count(&self) -> usize {
        self.0
    }

    fn octets(&self, _message: usize) -> u64 {
        self.1.len() as u64
    }

    fn write_uid(&self, message: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("uid{message}").as_bytes());
    }
}

/// How a driver gives messages to the session.
#[derive(Clone, Copy, Debug)]
enum Form {
    Whole,
    Chunks(usize),
    File,
}

/// A session with its driver.
struct Pair {
    server: Pop3Server,
    maildrop: Arc<SameMessages>,
    form: Form,
    /// Given of the current message.
    given: usize,
    questions: Vec<Pop3Question>,
}

impl Pair {
    fn new(messages: usize, message: &[u8], form: Form) -> Pair {
        let auth = Pop3AuthConfig {
            mechanisms: Mechanism::ADVERTISED.into(),
            clear_text: true,
            sasl: SaslConfig { secret: [7; 32] },
        };
        let limits = Pop3Limits { commands_max: u32::MAX, errors_max: u32::MAX, ..Pop3Limits::default() };
        let config = Pop3ServerConfig { hostname: "mx.example.org".into(), tls: TlsMode::Never, auth, limits };
        let server = Pop3Server::new(Arc::new(config), NOW);
        let maildrop = Arc::new(SameMessages(messages, message.to_vec()));
        Pair { server, maildrop, form, given: 0, questions: Vec::new() }
    }

    fn logged_in(messages: usize, message: &[u8], form: Form) -> Pair {
        let mut pair = Pair::new(messages, message, form);
        pair.send(b"USER bob\r\nPASS secret\r\n");
        let greeted = pair.receive_all(usize::MAX);
        assert!(greeted.ends_with(format!("+OK logged in, {messages} messages\r\n").as_bytes()));
        pair
    }

    /// Gives input to the session, and answers its questions, without accepting output.
    fn send(&mut self, input: &[u8]) {
        self.server.handle_input(NOW, input);
        self.work();
    }

    fn work(&mut self) {
        while let Some(action) = self.server.poll_action() {
            let Pop3Action::Ask(question) = action else { continue };
            match &question {
                Pop3Question::Password { user, .. } => {
                    let verdict = PasswordVerdict::Accepted { user: user.clone() };
                    self.server.handle_password_verdict(NOW, verdict);
                }
                Pop3Question::ScramKeys { .. } => {
                    let nonce = Nonce::from_random([1; Nonce::OCTETS]);
                    self.server.handle_scram_keys(NOW, ScramKeysAnswer::Unknown { iterations: 4096 }, &nonce);
                }
                Pop3Question::Open { .. } => self.server.handle_opened(NOW, Ok(self.maildrop.clone())),
                Pop3Question::Retrieve { lines, .. } => self.give_content(*lines),
                Pop3Question::More => self.give_chunk(),
                Pop3Question::Update { .. } => self.server.handle_updated(NOW, true),
            }
            self.questions.push(question);
        }
    }

    fn give_content(&mut self, lines: Option<u32>) {
        let message = &self.maildrop.1;
        self.given = 0;
        let content = match self.form {
            Form::Whole => Content::Whole(message),
            Form::File if lines.is_none() => Content::File {
                octets: message.len() as u64,
                dot_lines: dot_lines(message),
                ends_with_newline: message.ends_with(b"\n"),
            },
            Form::Chunks(_) | Form::File => {
                let lacks_newline = !message.is_empty() && !message.ends_with(b"\n");
                Content::Copied { octets: message.len() as u64 + if lacks_newline { 2 } else { 0 } }
            }
        };
        self.server.handle_content(NOW, content);
    }

    fn give_chunk(&mut self) {
        let size = if let Form::Chunks(size) = self.form { size } else { usize::MAX };
        let rest = &self.maildrop.1[self.given..];
        let chunk = &rest[..rest.len().min(size)];
        self.given += chunk.len();
        self.server.handle_chunk(NOW, chunk, chunk.len() == rest.len());
    }

    /// Accepts some output; None if there is none.
    fn receive(&mut self, octets_max: usize) -> Option<Vec<u8>> {
        let bytes = match self.server.output() {
            Pop3Output::Bytes([]) => return None,
            Pop3Output::Bytes(bytes) | Pop3Output::Head(bytes) => bytes[..bytes.len().min(octets_max)].to_vec(),
            Pop3Output::File { offset, octets } => {
                let (start, octets) = (offset as usize, octets as usize);
                self.maildrop.1[start..start + octets.min(octets_max)].to_vec()
            }
        };
        assert!(!bytes.is_empty());
        self.server.handle_sent(NOW, bytes.len());
        Some(bytes)
    }

    /// Accepts everything, as the driver does.
    fn receive_all(&mut self, octets_max: usize) -> Vec<u8> {
        let mut received = Vec::new();
        loop {
            while let Some(bytes) = self.receive(octets_max) {
                received.extend(bytes);
            }
            if !self.server.can_continue() {
                return received;
            }
            self.work();
        }
    }

    fn waiting(&self) -> usize {
        self.server.output.len() - self.server.output_sent
    }
}

/// Where lines begin with a dot.
fn dot_lines(message: &[u8]) -> Arc<[u64]> {
    let begins = |&place: &usize| message[place] == b'.' && (place == 0 || message[place - 1] == b'\n');
    (0..message.len()).filter(begins).map(|place| place as u64).collect()
}

#[test]
fn a_large_list_is_never_whole_in_memory() {
    for (command, line) in [("LIST", "100000 3"), ("UIDL", "100000 uid99999")] {
        let mut pair = Pair::logged_in(100_000, b"a\r\n", Form::Whole);
        pair.send(format!("{command}\r\nNOOP\r\n").as_bytes());
        let mut received = Vec::new();
        let mut portions = 0;
        loop {
            assert!(pair.waiting() < OUTPUT_WAITING_MAX + 100, "{}", pair.waiting());
            while let Some(bytes) = pair.receive(10_000) {
                received.extend(bytes);
            }
            if !pair.server.can_continue() {
                break;
            }
            portions += 1;
            pair.work();
        }
        let text = String::from_utf8(received).unwrap();
        assert!(portions > 10 && text.starts_with("+OK 100000 messages\r\n1 "), "{portions}");
        assert!(text.ends_with(&format!("\r\n{line}\r\n.\r\n+OK\r\n")));
        assert_eq!(text.lines().count(), 100_003);
    }
}

#[test]
fn small_messages_leave_together() {
    let mut pair = Pair::logged_in(50, &b"12345678\r\n".repeat(600), Form::Whole);
    let commands: String = (1..=50).map(|number| format!("RETR {number}\r\n")).collect();
    pair.send(commands.as_bytes());
    let retrieved = OUTPUT_WAITING_MAX.div_ceil(6000 + b"+OK 6000 octets\r\n.\r\n".len());
    assert_eq!(pair.questions.len() - 2, retrieved, "after the questions of the login");
    assert!((OUTPUT_WAITING_MAX..OUTPUT_WAITING_MAX + 6100).contains(&pair.waiting()));
    assert_eq!(pair.receive_all(usize::MAX).len(), 50 * (6000 + b"+OK 6000 octets\r\n.\r\n".len()));
}

/// Sends commands and never reads: what the session holds stays below the numbers of `limits.rs`.
#[test]
fn a_client_that_never_reads_occupies_limited_memory() {
    const PIECE: usize = 64 << 10;
    for (message, form) in [
        (b"\n".repeat(PIECE), Form::Whole),
        (b".\n".repeat(PIECE), Form::Chunks(PIECE)),
        (b"a\r\n".repeat(PIECE), Form::File),
    ] {
        let mut pair = Pair::logged_in(3, &message, form);
        let commands = b"RETR 1\r\nLIST\r\nTOP 2 9999999\r\nUIDL\r\nCAPA\r\n".repeat(PIECE / 38);
        pair.send(&commands[..commands.len().min(PIECE)]);
        for _ in 0..10 {
            pair.work();
            pair.receive(100);
        }
        assert!(pair.waiting() < 200 << 10, "{} with {form:?}", pair.waiting());
        assert!(pair.server.output.capacity() < 400 << 10, "{} with {form:?}", pair.server.output.capacity());
        assert!(pair.server.backlog.len() <= PIECE);
    }
}

#[test]
fn commands_after_a_file_wait_until_it_is_sent() {
    let mut pair = Pair::logged_in(3, b"a\r\n", Form::File);
    pair.send(b"RETR 1\r\nRETR 2\r\nNOOP\r\n");
    assert_eq!(pair.server.output(), Pop3Output::Head(b"+OK 3 octets\r\n"));
    pair.receive(usize::MAX);
    assert_eq!(pair.server.output(), Pop3Output::File { offset: 0, octets: 3 });
    pair.receive(1);
    assert_eq!(pair.server.output(), Pop3Output::File { offset: 1, octets: 2 });
    assert!(pair.server.is_sending_content() && !pair.server.can_continue());
    pair.server.handle_sent(NOW, 0);
    assert_eq!(pair.server.output(), Pop3Output::File { offset: 1, octets: 2 });
    pair.receive(2);
    assert_eq!(pair.server.output(), Pop3Output::Bytes(b".\r\n"));
    assert!(!pair.server.is_sending_content() && pair.server.can_continue());
    assert_eq!(pair.receive_all(usize::MAX), b".\r\n+OK 3 octets\r\na\r\n.\r\n+OK\r\n");
}

/// TLS asks for more when nothing waits.
#[test]
fn sending_nothing_changes_nothing() {
    let mut pair = Pair::logged_in(1, b"a\r\n", Form::Chunks(1));
    pair.server.handle_input(NOW, b"RETR 1\r\nSTAT\r\n");
    pair.server.handle_sent(NOW, 0);
    pair.work();
    assert_eq!(pair.receive_all(usize::MAX), b"+OK 3 octets\r\na\r\n.\r\n+OK 1 3\r\n");
}

#[test]
fn a_broken_connection_ends_even_what_was_sent_ahead() {
    let mut pair = Pair::logged_in(3, b"a\r\n", Form::File);
    pair.send(b"RETR 1\r\nDELE 1\r\nQUIT\r\n");
    pair.receive(usize::MAX);
    pair.server.handle_disconnect();
    pair.work();
    assert!(pair.server.wants_close());
    assert!(!pair.questions.iter().any(|question| matches!(question, Pop3Question::Update { .. })));
}

#[test]
fn time_runs_while_the_client_neither_sends_nor_reads() {
    let minutes = |minutes: u64| NOW + Duration::from_secs(60 * minutes);
    let mut pair = Pair::new(1, b"a\r\n", Form::File);
    // CAPA does not prolong the time for the login.
    pair.server.handle_input(NOW + Duration::from_secs(30), b"CAPA\r\n");
    assert_eq!(pair.server.poll_deadline(), Some(minutes(1)));
    pair.server.handle_timeout(NOW + Duration::from_secs(59));
    assert!(!pair.server.wants_close());

    let mut pair = Pair::logged_in(1, b"a\r\n", Form::File);
    pair.send(b"RETR 1\r\n");
    assert_eq!(pair.server.poll_deadline(), Some(minutes(10)));
    pair.receive(3);
    pair.server.handle_sent(minutes(5), 1);
    assert_eq!(pair.server.poll_deadline(), Some(minutes(15)));
    pair.server.handle_sent(minutes(6), 0);
    assert_eq!(pair.server.poll_deadline(), Some(minutes(15)));
    pair.server.handle_timeout(minutes(15));
    // Nothing may be sent that could be taken for the rest of the message.
    assert!(pair.server.wants_close());
    assert_eq!((pair.server.output(), pair.server.poll_deadline()), (Pop3Output::Bytes(b""), None));
}

#[test]
fn a_question_has_no_deadline_and_other_answers_are_ignored() {
    let mut pair = Pair::new(1, b"a\r\n", Form::Whole);
    pair.server.handle_input(NOW, b"USER bob\r\nPASS secret\r\nSTAT\r\n");
    assert_eq!(pair.server.poll_deadline(), None);
    pair.server.handle_content(NOW, Content::Whole(b"x"));
    pair.server.handle_chunk(NOW, b"x", true);
    pair.server.handle_content_failed();
    pair.server.handle_updated(NOW, true);
    pair.server.handle_opened(NOW, Err(OpenRefusal::InUse));
    pair.server.handle_tls_established(NOW);
    pair.work();
    assert!(pair.receive_all(7).ends_with(b"+OK logged in, 1 messages\r\n+OK 1 3\r\n"));
}

/// What a session answers to the input, cut into pieces, if its output is accepted in pieces.
fn answers(message: &[u8], form: Form, input: &[u8], piece: usize, octets_max: usize) -> Vec<u8> {
    let mut pair = Pair::logged_in(3, message, form);
    let mut received = Vec::new();
    for piece in input.chunks(piece) {
        pair.send(piece);
        received.extend(pair.receive_all(octets_max));
    }
    received
}

proptest! {
    #[test]
    fn output_does_not_depend_on_the_pieces(
        commands in proptest::collection::vec("(RETR|TOP|DELE|LIST|UIDL|STAT|RSET|NOOP|CAPA|LANG|X)( [0-4])?( [0-3])?\r?\n", 0..8),
        message in "([.a]{0,3}\r\n){0,5}[.a]{0,2}",
        sizes in (1..20_usize, 1..20_usize, 1..20_usize),
    ) {
        let input = commands.concat();
        let (message, input) = (message.as_bytes(), input.as_bytes());
        let expected = answers(message, Form::Whole, input, usize::MAX, usize::MAX);
        for form in [Form::Whole, Form::Chunks(sizes.0)] {
            prop_assert_eq!(&answers(message, form, input, sizes.1, sizes.2), &expected);
        }
        prop_assert_eq!(&answers(message, Form::File, input, sizes.1, sizes.2), &expected);
    }
}
