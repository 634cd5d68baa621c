//! Plays the transcripts of `tests/pop3_transcripts` against the machine, in memory and at several
//! paces. The pace must not change the output or what the driver is told.

mod pop3_transcript;
#[path = "transcript/users.rs"]
mod users;

use std::collections::HashMap;
use std::sync::Arc;

use mail::Timestamp;
use pop3_transcript::{Event, Step, Transcript, duration};
use protocol::TlsMode;
use protocol::pop3::server::{
    Content, MaildropListing, OpenRefusal, Pop3Action, Pop3AuthConfig, Pop3Limits, Pop3Output, Pop3Question,
    Pop3Server, Pop3ServerConfig,
};
use protocol::sasl::{Nonce, SaslConfig, SaslOutcome};

/// The number of split positions tried for one transcript.
const CUTS_MAX: usize = 4000;

/// How input arrives, and how output leaves.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// Everything the client sends together arrives together.
    Whole,
    /// In pieces of this many bytes.
    Pieces(usize),
    /// Whole, but split once, after this many bytes of the session.
    CutAt(usize),
    /// One byte at a time, and questions are answered only after everything the client sends
    /// together.
    Late,
    /// Whole, but output is accepted in pieces of this many bytes.
    Dripping(usize),
}

#[test]
fn every_transcript_holds_however_the_input_is_cut() {
    let transcripts = Transcript::all();
    assert!(transcripts.len() > 15, "transcripts are missing");
    for transcript in &transcripts {
        let octets: usize = transcript.steps.iter().map(|step| sent_octets(&step.event)).sum();
        let whole = Run::play(transcript, Pace::Whole);
        let pieces = [1, 2, 3, 7].map(Pace::Pieces).into_iter().chain([1, 5].map(Pace::Dripping));
        // Long transcripts at some positions only, since every split plays the whole transcript.
        let cuts = (1..octets).step_by(octets / CUTS_MAX + 1).map(Pace::CutAt);
        for pace in pieces.chain([Pace::Late]).chain(cuts) {
            assert_eq!(Run::play(transcript, pace), whole, "{}.pop3 at {pace:?}", transcript.name);
        }
    }
}

fn sent_octets(event: &Event) -> usize {
    if let Event::Send(bytes) = event { bytes.len() } else { 0 }
}

/// The messages of a transcript.
struct Messages(Vec<Vec<u8>>);

impl MaildropListing for Messages {
    fn message_count(&self) -> usize {
        self.0.len()
    }

    fn octets(&self, message: usize) -> u64 {
        crlf_octets(&self.0[message])
    }

    fn write_uid(&self, message: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("uid-{}", message + 1).as_bytes());
    }
}

fn crlf_octets(message: &[u8]) -> u64 {
    let newlines = message.iter().filter(|&&byte| byte == b'\n').count();
    let whole = message.windows(2).filter(|pair| pair == b"\r\n").count();
    (message.len() + newlines - whole) as u64
}

/// Everything a session produced.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    output: String,
    outcomes: Vec<String>,
}

/// A session with its driver.
struct Run<'a> {
    transcript: &'a Transcript,
    pace: Pace,
    server: Pop3Server,
    messages: Arc<Messages>,
    now: Timestamp,
    script: HashMap<&'a str, &'a str>,
    /// The message that is being sent, and how much of it was given in chunks.
    sending: (usize, usize),
    octets_in: usize,
    /// Output that was not compared yet.
    pending: Vec<u8>,
    /// Outcomes that were not compared yet.
    unnamed: Vec<String>,
    record: Record,
}

impl<'a> Run<'a> {
    fn play(transcript: &'a Transcript, pace: Pace) -> Record {
        let now = Timestamp(1_000_000);
        let mut run = Run {
            transcript,
            pace,
            server: Pop3Server::new(Arc::new(settings(transcript)), now),
            messages: Arc::new(Messages(transcript.messages.clone())),
            now,
            script: HashMap::new(),
            sending: (0, 0),
            octets_in: 0,
            pending: Vec::new(),
            unnamed: Vec::new(),
            record: Record { output: String::new(), outcomes: Vec::new() },
        };
        run.settle();
        for step in &transcript.steps {
            run.step(step);
        }
        run.check_all_expected("the end");
        let left = run.unnamed.iter().find(|text| is_strict(text));
        assert_eq!(left, None, "{}.pop3 at {pace:?}: unexpected outcome", transcript.name);
        run.record
    }

    fn step(&mut self, step: &'a Step) {
        let place = format!("{}.pop3:{} at {:?}", self.transcript.name, step.line, self.pace);
        match &step.event {
            Event::Line(line) => assert_eq!(self.next_line().as_deref(), Some(line.as_str()), "{place}"),
            Event::Prefix(prefix) => {
                let line = self.next_line().unwrap_or_default();
                assert!(line.starts_with(prefix), "{place}: expected {prefix}..., found {line:?}");
            }
            Event::Closed => assert!(self.server.wants_close(), "{place}: the connection is still open"),
            Event::Outcome(text) => self.check_outcome(text, &place),
            Event::Script { question, answer } => {
                self.script.insert(question, answer);
            }
            event => {
                self.check_all_expected(&place);
                self.apply(event);
                self.settle();
            }
        }
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Send(bytes) => self.send(bytes),
            Event::End => self.server.handle_disconnect(),
            Event::Shutdown => self.server.handle_shutdown(),
            Event::Secured => {
                assert!(self.server.wants_handshake(), "{}.pop3: no handshake was requested", self.transcript.name);
                self.server.handle_tls_established(self.now);
            }
            Event::Wait(span) => {
                self.now = self.now + *span;
                if self.server.poll_deadline().is_some_and(|deadline| deadline <= self.now) {
                    self.server.handle_timeout(self.now);
                }
            }
            _ => {}
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let before = self.octets_in;
        self.octets_in += bytes.len();
        let size = match self.pace {
            Pace::Pieces(size) => size,
            Pace::Late => 1,
            Pace::CutAt(place) if (before + 1..self.octets_in).contains(&place) => {
                let (head, tail) = bytes.split_at(place - before);
                self.server.handle_input(self.now, head);
                self.settle();
                return self.server.handle_input(self.now, tail);
            }
            Pace::Whole | Pace::CutAt(_) | Pace::Dripping(_) => bytes.len(),
        };
        for piece in bytes.chunks(size) {
            self.server.handle_input(self.now, piece);
            if !matches!(self.pace, Pace::Late) {
                self.settle();
            }
        }
    }

    /// Does what a driver does after each event.
    fn settle(&mut self) {
        loop {
            while let Some(action) = self.server.poll_action() {
                self.perform(action);
            }
            while let Some(sent) = self.accept_output() {
                self.server.handle_sent(self.now, sent);
            }
            if !self.server.can_continue() {
                return;
            }
        }
    }

    /// Takes some output; returns how much.
    fn accept_output(&mut self) -> Option<usize> {
        let octets_max = if let Pace::Dripping(octets) = self.pace { octets } else { usize::MAX };
        let bytes = match self.server.output() {
            Pop3Output::Bytes([]) => return None,
            Pop3Output::Bytes(bytes) | Pop3Output::Head(bytes) => bytes,
            Pop3Output::File { offset, octets } => {
                &self.messages.0[self.sending.0][offset as usize..(offset + octets) as usize]
            }
        };
        let bytes = &bytes[..bytes.len().min(octets_max)];
        self.record.output += &String::from_utf8_lossy(bytes);
        self.pending.extend(bytes);
        Some(bytes.len())
    }

    fn perform(&mut self, action: Pop3Action) {
        match action {
            Pop3Action::Ask(question) => self.answer(question),
            Pop3Action::Login { mechanism, user, outcome } => {
                let result = match outcome {
                    SaslOutcome::Accepted { user } => format!("ok {user}"),
                    SaslOutcome::Refused(refusal) => format!("{refusal:?}"),
                };
                self.note(format!("{mechanism} {user} {result}"));
            }
            Pop3Action::Refused { stage, reply } => self.note(format!("refused {stage}: {reply}")),
        }
    }

    fn answer(&mut self, question: Pop3Question) {
        let now = self.now;
        match question {
            Pop3Question::Password { user, password } => {
                self.note(format!("login {user} {}", password.reveal()));
                let verdict = users::password_verdict(&user, self.scripted("login", &user));
                self.server.handle_password_verdict(now, verdict);
            }
            Pop3Question::ScramKeys { user } => {
                let keys = users::scram_keys(&user, self.scripted("keys", &user));
                self.server.handle_scram_keys(now, keys, &Nonce::from_random([1; Nonce::OCTETS]));
            }
            Pop3Question::Open { user } => {
                self.note(format!("open {user}"));
                let opened = match self.scripted("open", &user) {
                    None => Ok(Arc::clone(&self.messages) as Arc<dyn MaildropListing>),
                    Some("in-use") => Err(OpenRefusal::InUse),
                    Some("no-mailbox") => Err(OpenRefusal::NoMailbox),
                    Some("other-host") => Err(OpenRefusal::OtherHost),
                    Some(_) => Err(OpenRefusal::Unavailable),
                };
                self.server.handle_opened(now, opened);
            }
            Pop3Question::Retrieve { message, lines } => self.give_content(message, lines),
            Pop3Question::More => self.give_chunk(),
            Pop3Question::Update { deleted } => {
                assert_eq!(Arc::strong_count(&self.messages), 1, "the session still has the listing");
                let numbers: String = deleted.iter().map(|message| format!(" {}", message + 1)).collect();
                self.note(format!("update{numbers}"));
                self.server.handle_updated(now, self.scripted("update", "").is_none());
            }
        }
    }

    fn give_content(&mut self, message: usize, lines: Option<u32>) {
        self.sending = (message, 0);
        let messages = Arc::clone(&self.messages);
        let bytes = &messages.0[message];
        let content = match self.scripted("content", &(message + 1).to_string()) {
            Some("gone") => Content::Gone,
            Some("unavailable") => Content::Unavailable,
            _ if self.setting("file").is_some() && lines.is_none() => Content::File {
                octets: bytes.len() as u64,
                dot_lines: dot_lines(bytes),
                ends_with_newline: bytes.ends_with(b"\n"),
            },
            _ if self.setting("chunk").is_some() => Content::Copied { octets: crlf_octets(bytes) },
            _ => Content::Whole(bytes),
        };
        self.server.handle_content(self.now, content);
    }

    fn give_chunk(&mut self) {
        let (message, given) = self.sending;
        if self.scripted("content", &(message + 1).to_string()) == Some("fails") && given > 0 {
            return self.server.handle_content_failed();
        }
        let messages = Arc::clone(&self.messages);
        let rest = &messages.0[message][given..];
        let size = self.setting("chunk").and_then(|size| size.parse().ok()).unwrap_or(usize::MAX);
        let chunk = &rest[..rest.len().min(size)];
        self.sending.1 += chunk.len();
        self.server.handle_chunk(self.now, chunk, chunk.len() == rest.len());
    }

    fn setting(&self, name: &str) -> Option<&'a str> {
        self.transcript.settings.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    fn scripted(&self, kind: &str, about: &str) -> Option<&'a str> {
        let exact = format!("{kind} {about}");
        self.script.get(exact.trim_end()).or_else(|| self.script.get(kind)).copied()
    }

    fn note(&mut self, text: String) {
        self.record.outcomes.push(text.clone());
        self.unnamed.push(text);
    }

    /// Updates must be listed; other outcomes may be omitted.
    fn check_outcome(&mut self, text: &str, place: &str) {
        let found = self.unnamed.iter().position(|found| found == text || is_strict(found) && is_strict(text));
        let Some(found) = found else { panic!("{place}: no such outcome; outcomes: {:?}", self.unnamed) };
        assert_eq!(self.unnamed.remove(found), text, "{place}");
    }

    fn check_all_expected(&self, place: &str) {
        assert_eq!(self.pending.escape_ascii().to_string(), "", "{place}: unexpected output");
    }

    fn next_line(&mut self) -> Option<String> {
        let end = self.pending.windows(2).position(|pair| pair == b"\r\n")?;
        let line = self.pending.drain(..end + 2).collect::<Vec<u8>>();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

fn is_strict(outcome: &str) -> bool {
    outcome.starts_with("update")
}

fn dot_lines(message: &[u8]) -> Arc<[u64]> {
    let begins = |&place: &usize| message[place] == b'.' && (place == 0 || message[place - 1] == b'\n');
    (0..message.len()).filter(begins).map(|place| place as u64).collect()
}

fn settings(transcript: &Transcript) -> Pop3ServerConfig {
    let (mut limits, mut tls, mut clear_text) = (Pop3Limits::default(), TlsMode::Never, true);
    let mut mechanisms = "PLAIN";
    for (name, value) in &transcript.settings {
        let number = || value.parse::<u32>().expect("a limit is a number");
        let span = || duration(value).expect("a time has a unit");
        match name.as_str() {
            "tls" => tls = tls_mode(value).expect("never, offered, required or implicit"),
            "auth" => mechanisms = value,
            "needs_tls" => clear_text = false,
            "chunk" | "file" => {}
            "command_line_octets_max" => limits.command_line_octets_max = number() as usize,
            "commands_max" => limits.commands_max = number(),
            "errors_max" => limits.errors_max = number(),
            "failed_logins_max" => limits.failed_logins_max = number(),
            "session_time_max" => limits.session_time_max = span(),
            "idle_time_max" => limits.idle_time_max = span(),
            "login_time_max" => limits.login_time_max = span(),
            _ => panic!("{}.pop3: unknown setting {name}", transcript.name),
        }
    }
    let auth =
        Pop3AuthConfig { mechanisms: users::mechanisms(mechanisms), clear_text, sasl: SaslConfig { secret: [7; 32] } };
    Pop3ServerConfig { hostname: "mx.example.org".into(), tls, auth, limits }
}

fn tls_mode(word: &str) -> Option<TlsMode> {
    match word {
        "never" => Some(TlsMode::Never),
        "offered" => Some(TlsMode::Offered),
        "required" => Some(TlsMode::Required),
        "implicit" => Some(TlsMode::Implicit),
        _ => None,
    }
}
