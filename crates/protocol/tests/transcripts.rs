//! Plays the transcripts of `tests/transcripts` against the machine, in memory and at several
//! paces. The pace must not change the output, the messages or the log.

mod transcript;

use std::collections::HashMap;
use std::sync::Arc;

use mail::{BodyType, DsnNotify, DsnReturn, EnhancedCode, Reply, Timestamp};
use protocol::TlsMode;
use protocol::smtp::server::{
    MailProtocol, MailRequest, MessageEnd, NulPolicy, RcptRequest, SessionAction, SessionAnswer, SessionLimits,
    SessionQuestion, SmtpPeer, SmtpServerConfig, SmtpSession, TolerancePolicy, XclientIdentity,
};
use transcript::{Event, Step, Transcript, auth, duration, keys, verdict};

/// The number of split positions tried for one transcript.
const CUTS_MAX: usize = 4000;

/// How the input arrives.
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
}

#[test]
fn every_transcript_holds_however_the_input_is_cut() {
    let transcripts = Transcript::all();
    assert!(transcripts.len() > 15, "transcripts are missing");
    for transcript in &transcripts {
        let octets: usize = transcript.steps.iter().map(|step| sent_octets(&step.event)).sum();
        let whole = Run::play(transcript, Pace::Whole);
        // Long transcripts at some positions only, since every split plays the whole transcript.
        let cuts = (1..octets).step_by(octets / CUTS_MAX + 1).map(Pace::CutAt);
        for pace in [1, 2, 3, 7].map(Pace::Pieces).into_iter().chain([Pace::Late]).chain(cuts) {
            assert_eq!(Run::play(transcript, pace), whole, "{}.smtp at {pace:?}", transcript.name);
        }
    }
}

fn sent_octets(event: &Event) -> usize {
    if let Event::Send(bytes) = event { bytes.len() } else { 0 }
}

/// Everything a session produced.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    output: String,
    outcomes: Vec<(String, Vec<u8>)>,
}

/// A session with its driver.
struct Run<'a> {
    transcript: &'a Transcript,
    pace: Pace,
    session: SmtpSession,
    now: Timestamp,
    script: HashMap<&'a str, Reply>,
    body: Vec<u8>,
    kept: usize,
    octets_in: usize,
    /// Output that was not compared yet.
    pending: Vec<u8>,
    /// Outcomes that were not compared yet.
    unnamed: Vec<(String, Vec<u8>)>,
    record: Record,
}

impl<'a> Run<'a> {
    fn play(transcript: &'a Transcript, pace: Pace) -> Record {
        let (config, peer) = settings(transcript);
        let now = Timestamp(1_000_000);
        let mut run = Run {
            transcript,
            pace,
            session: with_settings(transcript, SmtpSession::new(Arc::new(config), peer, now)),
            now,
            script: HashMap::new(),
            body: Vec::new(),
            kept: 0,
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
        let left = run.unnamed.iter().find(|(text, _)| is_strict(text));
        assert_eq!(left, None, "{}.smtp at {pace:?}: unexpected outcome", transcript.name);
        run.record
    }

    fn step(&mut self, step: &'a Step) {
        let place = format!("{}.smtp:{} at {:?}", self.transcript.name, step.line, self.pace);
        match &step.event {
            Event::Line(line) => assert_eq!(self.next_line().as_deref(), Some(line.as_str()), "{place}"),
            Event::Prefix(prefix) => {
                let line = self.next_line().unwrap_or_default();
                assert!(line.starts_with(prefix), "{place}: expected {prefix}..., found {line:?}");
            }
            Event::Closed => assert!(self.session.wants_close(), "{place}: the connection is still open"),
            Event::Outcome { text, body } => self.check_outcome(text, body, &place),
            Event::Script { question, code, enhanced: (class, subject, detail), text } => {
                let reply = Reply::new(*code, EnhancedCode(*class, *subject, *detail), text.clone());
                self.script.insert(question, reply);
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
            Event::End => self.session.handle_disconnect(),
            Event::Shutdown => self.session.handle_shutdown(self.now),
            Event::Secured => {
                assert!(self.session.wants_handshake(), "{}.smtp: no handshake was requested", self.transcript.name);
                self.session.handle_tls_established(self.now);
            }
            Event::Wait(span) => {
                self.now = self.now + *span;
                if self.session.poll_deadline().is_some_and(|deadline| deadline <= self.now) {
                    self.session.handle_timeout(self.now);
                }
            }
            _ => {}
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let (before, late) = (self.octets_in, matches!(self.pace, Pace::Late) || self.has("enforces_sync"));
        self.octets_in += bytes.len();
        let size = match self.pace {
            Pace::Whole => bytes.len(),
            Pace::Pieces(size) => size,
            Pace::Late => 1,
            Pace::CutAt(place) if (before + 1..self.octets_in).contains(&place) => {
                let (head, tail) = bytes.split_at(place - before);
                self.session.handle_input(self.now, head, &mut self.body);
                if !late {
                    self.settle();
                }
                return self.session.handle_input(self.now, tail, &mut self.body);
            }
            Pace::CutAt(_) => bytes.len(),
        };
        for piece in bytes.chunks(size) {
            self.session.handle_input(self.now, piece, &mut self.body);
            if !late {
                self.settle();
            }
        }
    }

    /// Whether the transcript has a setting.
    fn has(&self, name: &str) -> bool {
        self.transcript.settings.iter().any(|(own, _)| own == name)
    }

    /// Does what a driver does after each event.
    fn settle(&mut self) {
        while let Some(action) = self.session.poll_action() {
            match action {
                SessionAction::Ask(question) => {
                    let answer = self.answer(question);
                    self.session.handle_driver_answer(self.now, answer, &mut self.body);
                }
                SessionAction::Abandon => {
                    self.body.clear();
                    self.note("abandoned".to_owned(), Vec::new());
                }
                SessionAction::Refused { stage, address, reply } => {
                    let address = address.map(|address| format!("<{address}> ")).unwrap_or_default();
                    self.note(format!("refused {stage} {address}{}", reply.code), Vec::new());
                }
                SessionAction::Login { mechanism, user, outcome } => {
                    self.note(format!("{mechanism} {user} {}", outcome.reply().code), Vec::new());
                }
            }
        }
        let output = self.session.output().to_vec();
        self.session.handle_sent(output.len());
        self.record.output += &String::from_utf8_lossy(&output);
        self.pending.extend(output);
    }

    fn answer(&mut self, question: SessionQuestion) -> SessionAnswer {
        let (kind, address) = match &question {
            SessionQuestion::Mail(request) => ("mail", request.sender.as_ref().map(ToString::to_string)),
            SessionQuestion::Recipient(request) => ("rcpt", Some(request.address.to_string())),
            SessionQuestion::Hello(name) => ("hello", Some(name.to_string())),
            SessionQuestion::UnknownCommand(line) => ("unknown", Some(String::from_utf8_lossy(line).into_owned())),
            SessionQuestion::Identity(identity) => ("identity", identity_address(identity)),
            SessionQuestion::Data => ("data", None),
            SessionQuestion::Message(_) => ("message", None),
            SessionQuestion::Login(request) => ("login", Some(request.user.to_string())),
            SessionQuestion::Keys(request) => ("keys", Some(request.user.to_string())),
        };
        let exact = format!("{kind} {}", address.unwrap_or_default());
        let reply = self.script.get(exact.trim_end()).or_else(|| self.script.get(kind)).cloned();
        match &question {
            SessionQuestion::Message(end) => return self.take_message(end, reply),
            SessionQuestion::Login(request) => {
                self.note(format!("login {} {}", request.user, request.password.reveal()), Vec::new());
                return verdict(request, reply.as_ref());
            }
            SessionQuestion::Keys(request) => return keys(request, reply.as_ref()),
            _ => {}
        }
        if let Some(reply) = reply {
            return SessionAnswer::Refuse(reply);
        }
        match &question {
            SessionQuestion::Mail(request) => self.note(mail_text(request), Vec::new()),
            SessionQuestion::Recipient(request) => self.note(rcpt_text(request), Vec::new()),
            SessionQuestion::Identity(identity) if is_proxy(identity) => self.session.allow_client_xclient(),
            _ => {}
        }
        SessionAnswer::Accept
    }

    fn take_message(&mut self, end: &MessageEnd, reply: Option<Reply>) -> SessionAnswer {
        let body = std::mem::take(&mut self.body);
        assert_eq!(end.octets, body.len() as u64, "{}.smtp: octets", self.transcript.name);
        let notes =
            [(end.flags.eight_bit, " 8bit"), (end.flags.dot_lines, " dots"), (!end.flags.ends_in_crlf, " unfinished")];
        let notes: String = notes.iter().filter(|(holds, _)| *holds).map(|(_, note)| *note).collect();
        self.note(format!("message {}{notes}", self.session.protocol_name()), body);
        self.kept += 1;
        let kept = || Reply::new(250, EnhancedCode(2, 0, 0), format!("kept as {}", self.kept));
        SessionAnswer::Done(reply.unwrap_or_else(kept))
    }

    fn note(&mut self, text: String, body: Vec<u8>) {
        self.record.outcomes.push((text.clone(), body.clone()));
        self.unnamed.push((text, body));
    }

    /// Messages and abandoned transactions must be listed in order; other outcomes may be omitted.
    fn check_outcome(&mut self, text: &str, body: &[u8], place: &str) {
        let found = self.unnamed.iter().position(|(found, _)| found == text || is_strict(found) && is_strict(text));
        let Some(found) = found else { panic!("{place}: no such outcome; outcomes: {:?}", self.unnamed) };
        let (found_text, found_body) = self.unnamed.remove(found);
        assert_eq!(found_text, text, "{place}");
        assert_eq!(found_body.escape_ascii().to_string(), body.escape_ascii().to_string(), "{place}");
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
    outcome.starts_with("message") || outcome == "abandoned"
}

fn identity_address(identity: &XclientIdentity) -> Option<String> {
    identity.address.flatten().map(|address| address.to_string())
}

fn is_proxy(identity: &XclientIdentity) -> bool {
    identity_address(identity).is_some_and(|address| address.starts_with("192.0.2."))
}

fn mail_text(request: &MailRequest) -> String {
    let sender = request.sender.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut text = format!("mail <{sender}>");
    text += &request.size.map(|size| format!(" SIZE={size}")).unwrap_or_default();
    text += if request.body_type == BodyType::EightBitMime { " BODY=8BITMIME" } else { "" };
    text += if request.smtputf8 { " SMTPUTF8" } else { "" };
    text += match request.ret {
        Some(DsnReturn::Full) => " RET=FULL",
        Some(DsnReturn::Headers) => " RET=HDRS",
        None => "",
    };
    text + &request.envid.as_ref().map(|envid| format!(" ENVID={envid}")).unwrap_or_default()
}

fn rcpt_text(request: &RcptRequest) -> String {
    let names = [
        (DsnNotify::NEVER, "NEVER"),
        (DsnNotify::SUCCESS, "SUCCESS"),
        (DsnNotify::FAILURE, "FAILURE"),
        (DsnNotify::DELAY, "DELAY"),
    ];
    let wishes: Vec<&str> =
        names.iter().filter(|(wish, _)| request.notify.contains(*wish)).map(|(_, name)| *name).collect();
    let notify = if wishes.is_empty() { String::new() } else { format!(" NOTIFY={}", wishes.join(",")) };
    let orcpt = request.orcpt.as_ref().map(|orcpt| format!(" ORCPT={orcpt}")).unwrap_or_default();
    format!("rcpt <{}>{notify}{orcpt}", request.address)
}

/// Applies the settings that are not in the configuration.
fn with_settings(transcript: &Transcript, session: SmtpSession) -> SmtpSession {
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
            "tls" => config.tls = tls(value).expect("never, offered, required or implicit"),
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

fn tls(word: &str) -> Option<TlsMode> {
    match word {
        "never" => Some(TlsMode::Never),
        "offered" => Some(TlsMode::Offered),
        "required" => Some(TlsMode::Required),
        "implicit" => Some(TlsMode::Implicit),
        _ => None,
    }
}
