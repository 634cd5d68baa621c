//! Plays the protocol's transcripts over TCP: the state machine under the session driver, with
//! answers from the script. The output must be the same as in memory, where `protocol` plays them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../protocol/tests/transcript/mod.rs"]
mod transcript;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mail::{BodyFlags, EnhancedCode, Reply, Timestamp};
use net::{ConnectionHandler, OutputPiece, StopSender};
use protocol::TlsMode;
use protocol::smtp::server::{
    MailProtocol, NulPolicy, SessionAction, SessionAnswer, SessionLimits, SessionQuestion, SmtpPeer, SmtpServerConfig,
    SmtpSession, TolerancePolicy,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use transcript::{Event, Step, Transcript, auth, duration, keys, verdict};

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn every_transcript_holds_over_tcp() {
    let transcripts = Transcript::all();
    assert!(transcripts.len() > 15, "too few transcripts found");
    // Transcripts with a TLS handshake are played elsewhere.
    let makes_none = |transcript: &&Transcript| transcript.steps.iter().all(|step| step.event != Event::Secured);
    for transcript in transcripts.iter().filter(makes_none) {
        TranscriptRun::play(transcript).await;
    }
}

/// What the scripted session shares with the runner.
#[derive(Default)]
struct Shared {
    script: HashMap<String, Reply>,
    /// Results that the transcript has not checked yet: messages with their content, and abandoned
    /// transactions.
    outcomes: Vec<(String, Vec<u8>)>,
}

/// The state machine, with answers from the script.
struct Scripted {
    session: SmtpSession,
    body: Vec<u8>,
    kept: usize,
    shared: Arc<Mutex<Shared>>,
    /// How many bytes of the client were processed.
    received: watch::Sender<usize>,
}

impl Scripted {
    fn answer(&mut self, question: SessionQuestion) -> SessionAnswer {
        let (kind, address) = match &question {
            SessionQuestion::Mail(request) => ("mail", request.sender.as_ref().map(ToString::to_string)),
            SessionQuestion::Recipient(request) => ("rcpt", Some(request.address.to_string())),
            SessionQuestion::Hello(name) => ("hello", Some(name.to_string())),
            SessionQuestion::UnknownCommand(line) => ("unknown", Some(String::from_utf8_lossy(line).into_owned())),
            SessionQuestion::Identity(identity) => {
                ("identity", identity.address.flatten().map(|address| address.to_string()))
            }
            SessionQuestion::Data => ("data", None),
            SessionQuestion::Message(_) => ("message", None),
            SessionQuestion::Login(request) => ("login", Some(request.user.to_string())),
            SessionQuestion::Keys(request) => ("keys", Some(request.user.to_string())),
        };
        if kind == "identity" && address.as_ref().is_some_and(|address| address.starts_with("192.0.2.")) {
            self.session.allow_client_xclient();
        }
        let mut shared = self.shared.lock().unwrap();
        let exact = format!("{kind} {}", address.unwrap_or_default());
        let reply = shared.script.get(exact.trim_end()).or_else(|| shared.script.get(kind)).cloned();
        let end = match question {
            SessionQuestion::Message(end) => end,
            SessionQuestion::Login(request) => return verdict(&request, reply.as_ref()),
            SessionQuestion::Keys(request) => return keys(&request, reply.as_ref()),
            _ => return reply.map_or(SessionAnswer::Accept, SessionAnswer::Refuse),
        };
        let text = format!("message {}{}", self.session.protocol_name(), flag_words(end.flags));
        shared.outcomes.push((text, std::mem::take(&mut self.body)));
        self.kept += 1;
        let kept = Reply::new(250, EnhancedCode(2, 0, 0), format!("kept as {}", self.kept));
        SessionAnswer::Done(reply.unwrap_or(kept))
    }
}

fn flag_words(flags: BodyFlags) -> String {
    let notes = [(flags.eight_bit, " 8bit"), (flags.dot_lines, " dots"), (!flags.ends_in_crlf, " unfinished")];
    notes.iter().filter(|(holds, _)| *holds).map(|(_, note)| *note).collect()
}

impl ConnectionHandler for Scripted {
    fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        self.session.handle_input(now, input, &mut self.body);
        self.received.send_modify(|heard| *heard += input.len());
    }

    fn handle_disconnect(&mut self, _now: Timestamp) {
        self.session.handle_disconnect();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.session.handle_timeout(now);
    }

    fn handle_stop(&mut self, now: Timestamp) {
        self.session.handle_shutdown(now);
    }

    async fn work(&mut self) {
        while let Some(action) = self.session.poll_action() {
            match action {
                SessionAction::Ask(question) => {
                    let answer = self.answer(question);
                    self.session.handle_driver_answer(net::steady_now(), answer, &mut self.body);
                }
                SessionAction::Abandon => {
                    self.body.clear();
                    self.shared.lock().unwrap().outcomes.push(("abandoned".to_owned(), Vec::new()));
                }
                SessionAction::Refused { .. } | SessionAction::Login { .. } => {}
            }
        }
    }

    fn output(&self) -> OutputPiece<'_> {
        OutputPiece::Bytes(self.session.output())
    }

    fn handle_sent(&mut self, count: usize) {
        self.session.handle_sent(count);
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.session.poll_deadline()
    }

    fn wants_close(&self) -> bool {
        self.session.wants_close()
    }
}

/// The client of a transcript.
struct TranscriptRun<'a> {
    transcript: &'a Transcript,
    stream: BufReader<TcpStream>,
    shared: Arc<Mutex<Shared>>,
    received: watch::Receiver<usize>,
    sent: usize,
    stopper: StopSender,
    session: JoinHandle<()>,
}

impl<'a> TranscriptRun<'a> {
    async fn play(transcript: &'a Transcript) {
        let mut run = TranscriptRun::start(transcript).await;
        for step in &transcript.steps {
            let place = format!("{}.smtp:{}", transcript.name, step.line);
            let played = tokio::time::timeout(TIMEOUT, run.step(step, &place)).await;
            assert!(played.is_ok(), "{place}: timed out");
        }
        run.check_all_expected("the end");
        let left = std::mem::take(&mut run.shared.lock().unwrap().outcomes);
        assert_eq!(left, [], "{}.smtp: outcomes that were not checked", transcript.name);
        drop(run.stream);
        run.session.await.unwrap();
    }

    async fn start(transcript: &'a Transcript) -> TranscriptRun<'a> {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let (config, peer) = settings(transcript);
        let (sender, received) = watch::channel(0);
        let shared = Arc::new(Mutex::new(Shared::default()));
        let session = prepared(transcript, SmtpSession::new(Arc::new(config), peer, net::steady_now()));
        let mut scripted = Scripted { session, body: Vec::new(), kept: 0, shared: shared.clone(), received: sender };
        let (stopper, stop) = StopSender::new();
        let session = tokio::spawn(async move { net::drive_connection(accepted.into(), stop, &mut scripted).await });
        TranscriptRun { transcript, stream: BufReader::new(stream), shared, received, sent: 0, stopper, session }
    }

    async fn step(&mut self, step: &Step, place: &str) {
        match &step.event {
            Event::Line(line) => assert_eq!(self.next_line().await, *line, "{place}"),
            Event::Prefix(prefix) => {
                let line = self.next_line().await;
                assert!(line.starts_with(prefix), "{place}: expected {prefix}..., found {line:?}");
            }
            Event::Closed => {
                let mut rest = Vec::new();
                self.stream.read_to_end(&mut rest).await.unwrap();
                assert_eq!(rest.escape_ascii().to_string(), "", "{place}: unexpected output");
            }
            Event::Outcome { text, body } => self.check_outcome(text, body, place),
            Event::Script { question, code, enhanced: (class, subject, detail), text } => {
                let reply = Reply::new(*code, EnhancedCode(*class, *subject, *detail), text.clone());
                self.shared.lock().unwrap().script.insert(question.clone(), reply);
            }
            event => {
                self.check_all_expected(place);
                self.apply(event).await;
            }
        }
    }

    async fn apply(&mut self, event: &Event) {
        match event {
            Event::Send(bytes) => {
                self.stream.get_mut().write_all(bytes).await.unwrap();
                self.sent += bytes.len();
                // A session that has ended processes no more.
                let _ = self.received.wait_for(|heard| *heard >= self.sent).await;
            }
            Event::End => self.stream.get_mut().shutdown().await.unwrap(),
            Event::Shutdown => self.stopper.stop(),
            Event::Wait(span) => {
                tokio::time::pause();
                tokio::time::advance(*span).await;
                tokio::time::resume();
            }
            _ => {}
        }
    }

    /// Messages and abandoned transactions are checked in order; other outcomes are not checked
    /// here.
    fn check_outcome(&self, text: &str, body: &[u8], place: &str) {
        if text != "abandoned" && !text.starts_with("message") {
            return;
        }
        let mut shared = self.shared.lock().unwrap();
        assert!(!shared.outcomes.is_empty(), "{place}: no outcome for the mail");
        let (found_text, found_body) = shared.outcomes.remove(0);
        assert_eq!(found_text, text, "{place}");
        assert_eq!(found_body.escape_ascii().to_string(), body.escape_ascii().to_string(), "{place}");
    }

    fn check_all_expected(&self, place: &str) {
        let mut unread = [0; 512];
        let count = self.stream.get_ref().try_read(&mut unread).unwrap_or(0);
        let output = [self.stream.buffer(), &unread[..count]].concat();
        let name = &self.transcript.name;
        assert_eq!(output.escape_ascii().to_string(), "", "{name}.smtp: {place}: unexpected output");
    }

    async fn next_line(&mut self) -> String {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).await.unwrap();
        String::from_utf8(line.strip_suffix(b"\r\n").unwrap_or(&line).to_vec()).unwrap()
    }
}

/// The session with the settings of the transcript.
fn prepared(transcript: &Transcript, session: SmtpSession) -> SmtpSession {
    let has = |name: &str| transcript.settings.iter().any(|(own, _)| own == name);
    let session = if has("asks_hello") { session.with_hello_check() } else { session };
    let session = if has("asks_unknown") { session.with_unknown_command_check() } else { session };
    if has("trusts_xclient") { session.with_xclient() } else { session }
}

fn settings(transcript: &Transcript) -> (SmtpServerConfig, SmtpPeer) {
    let mut config = SmtpServerConfig {
        hostname: "mx.example.org".into(),
        flavor: MailProtocol::Smtp,
        tls: TlsMode::Never,
        auth: None,
        tolerance: TolerancePolicy::default(),
        limits: SessionLimits::default(),
    };
    let mut peer = SmtpPeer::default();
    let limits = &mut config.limits;
    for (name, value) in &transcript.settings {
        let number = || value.parse::<u32>().expect("a limit is a number");
        let span = || duration(value).expect("a time has a unit");
        match name.as_str() {
            "flavor" if value == "lmtp" => config.flavor = MailProtocol::Lmtp,
            // Without TLS handshakes here, commands pipelined after STARTTLS are refused; that must
            // hold over TCP too.
            "tls" if value == "offered" => config.tls = TlsMode::Offered,
            "tls" if value == "required" => config.tls = TlsMode::Required,
            "tls" if value == "implicit" => config.tls = TlsMode::Implicit,
            "auth" => config.auth = Some(auth(value)),
            "auth_clear_text" => config.auth.iter_mut().for_each(|auth| auth.clear_text = true),
            "auth_required" => config.auth.iter_mut().for_each(|auth| auth.required = true),
            "failed_logins_max" => limits.failed_logins_max = number(),
            "asks_hello" | "asks_unknown" | "trusts_xclient" => {}
            "normalise_bare_newlines" => peer.normalise_bare_newlines = true,
            "may_relay" => peer.may_relay = true,
            "strict_addresses" => config.tolerance.strict_addresses = true,
            "origin" => config.tolerance.origin = Some(value.as_str().into()),
            "nul" if value == "strip" => config.tolerance.nul = NulPolicy::Strip,
            "nul" if value == "refuse" => config.tolerance.nul = NulPolicy::Refuse,
            "enforces_sync" => config.tolerance.enforces_sync = true,
            "data_rate_min" => limits.data_rate_min = number().into(),
            "data_rate_window" => limits.data_rate_window = span(),
            "command_line_octets_max" => limits.command_line_octets_max = number() as usize,
            "commands_max" => limits.commands_max = number(),
            "errors_max" => limits.errors_max = number(),
            "recipients_max" => limits.recipients_max = number() as usize,
            "message_octets_max" => limits.message_octets_max = number().into(),
            "header_octets_max" => limits.header_octets_max = number().into(),
            "received_max" => limits.received_max = number(),
            "session_time_max" => limits.session_time_max = span(),
            "idle_time_max" => limits.idle_time_max = span(),
            _ => panic!("{}.smtp: unknown setting {name}", transcript.name),
        }
    }
    (config, peer)
}
