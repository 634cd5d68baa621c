//! Plays the transcripts of `tests/client_transcripts` against the client, in memory and at several
//! paces. The pace must not change the output or the reported events.

mod client_transcript;

use std::sync::Arc;

use client_transcript::{Event as Happening, Step, Transcript, duration};
use mail::{BodyType, DsnNotify, DsnReturn, Timestamp};
use protocol::sasl::Nonce;
use protocol::sasl::client::LoginMechanism;
use protocol::smtp::client::{
    CloseReason, CommandArgument, ContentSize, DotStuffing, ForwardedClient, MailProtocol, RecipientOutcome,
    SmtpClient, SmtpClientConfig, SmtpClientEvent, SmtpClientOutput, SmtpCredentials, SmtpStage, Timeouts, TlsPolicy,
    Transaction, TransactionRecipient, stuff_dots,
};

/// How bytes are transferred.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// Everything the server sends together arrives together.
    Whole,
    /// In pieces of this many octets.
    Pieces(usize),
    /// Whole, but split once, after this many octets of the session.
    CutAt(usize),
    /// Whole, but the connection accepts this many octets at a time.
    Takes(u64),
}

#[test]
fn every_transcript_holds_however_its_bytes_are_cut() {
    let transcripts = Transcript::all();
    assert!(transcripts.len() > 30, "transcripts are missing");
    for transcript in &transcripts {
        let octets: usize = transcript.steps.iter().map(|step| received_octets(&step.event)).sum();
        let whole = Run::play(transcript, Pace::Whole);
        let cuts = (1..octets).map(Pace::CutAt);
        let takes = [1, 2, 5].map(Pace::Takes);
        for pace in [1, 2, 3, 7].map(Pace::Pieces).into_iter().chain(takes).chain(cuts) {
            assert_eq!(Run::play(transcript, pace), whole, "{}.smtp at {pace:?}", transcript.name);
        }
    }
}

fn received_octets(event: &Happening) -> usize {
    if let Happening::Receive(bytes) = event { bytes.len() } else { 0 }
}

/// Everything a session produced.
#[derive(Debug, Default, PartialEq, Eq)]
struct Record {
    output: String,
    reported: Vec<String>,
}

/// A client with its driver.
struct Run<'a> {
    transcript: &'a Transcript,
    pace: Pace,
    client: SmtpClient,
    now: Timestamp,
    octets_in: usize,
    window: Option<u64>,
    next: Transaction,
    next_message: Vec<u8>,
    /// The message of the open transaction.
    message: Vec<u8>,
    /// Output that was not compared yet.
    pending: Vec<u8>,
    /// Reports that were not compared yet.
    unreported: Vec<String>,
    record: Record,
}

impl<'a> Run<'a> {
    fn play(transcript: &'a Transcript, pace: Pace) -> Record {
        let now = Timestamp(1_000_000);
        let mut run = Run {
            transcript,
            pace,
            client: client(transcript, now),
            now,
            octets_in: 0,
            window: None,
            next: empty_transaction(),
            next_message: Vec::new(),
            message: Vec::new(),
            pending: Vec::new(),
            unreported: Vec::new(),
            record: Record::default(),
        };
        for step in &transcript.steps {
            run.step(step);
        }
        run.check_all_expected("the end");
        let left = run.unreported.iter().find(|told| is_strict(told));
        assert_eq!(left, None, "{}.smtp at {pace:?}: unexpected report", transcript.name);
        run.record
    }

    fn step(&mut self, step: &Step) {
        let place = format!("{}.smtp:{} at {:?}", self.transcript.name, step.line, self.pace);
        match &step.event {
            Happening::Send(bytes) => {
                let count = bytes.len().min(self.pending.len());
                let found: Vec<u8> = self.pending.drain(..count).collect();
                assert_eq!(found.escape_ascii().to_string(), bytes.escape_ascii().to_string(), "{place}");
            }
            Happening::Reported(text) => self.check_reported(text, &place),
            Happening::Closed => assert!(self.client.wants_close(), "{place}: the connection is still open"),
            event => {
                self.check_all_expected(&place);
                self.apply(event);
                self.settle();
            }
        }
    }

    fn apply(&mut self, event: &Happening) {
        match event {
            Happening::Receive(bytes) => self.receive(bytes),
            Happening::Sender { address, parameters } => self.next_sender(address, parameters),
            Happening::Recipient { address, parameters } => self.next.recipients.push(recipient(address, parameters)),
            Happening::Message(bytes) => self.next_message.extend(bytes),
            Happening::Begin => self.begin(),
            Happening::Quit => self.client.quit(self.now),
            Happening::Secured => self.client.handle_tls_established(self.now),
            Happening::End => self.client.handle_disconnect(),
            Happening::Accepts(room) => self.window = *room,
            Happening::Wait(span) => {
                self.now = self.now + *span;
                self.client.handle_timeout(self.now);
            }
            Happening::Send(_) | Happening::Reported(_) | Happening::Closed => {}
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        let before = self.octets_in;
        self.octets_in += bytes.len();
        let pieces: Vec<&[u8]> = match self.pace {
            Pace::Pieces(size) => bytes.chunks(size).collect(),
            Pace::CutAt(place) if (before + 1..self.octets_in).contains(&place) => {
                let (head, tail) = bytes.split_at(place - before);
                vec![head, tail]
            }
            Pace::Whole | Pace::Takes(_) | Pace::CutAt(_) => vec![bytes],
        };
        for piece in pieces {
            // Output caused by a reply in the middle is sent only after the rest, or the split
            // would make a difference.
            self.client.handle_input(self.now, piece);
        }
    }

    fn begin(&mut self) {
        let mut transaction = std::mem::replace(&mut self.next, empty_transaction());
        self.message = std::mem::take(&mut self.next_message);
        transaction.content = ContentSize::from_message(&self.message);
        if let Err(error) = self.client.begin_transaction(self.now, &transaction) {
            self.report(format!("unsendable: {error}"));
        }
    }

    fn next_sender(&mut self, address: &str, parameters: &[String]) {
        self.next.sender = (!address.is_empty()).then(|| address.parse().expect("an address"));
        for parameter in parameters {
            match parameter.split_once('=').unwrap_or((parameter, "")) {
                ("BODY", "8BITMIME") => self.next.body_type = BodyType::EightBitMime,
                ("SMTPUTF8", "") => self.next.smtputf8 = true,
                ("RET", "FULL") => self.next.ret = Some(DsnReturn::Full),
                ("RET", "HDRS") => self.next.ret = Some(DsnReturn::Headers),
                ("CLIENT", address) => self.next.client = Some(Box::new(forwarded(address))),
                ("ENVID", envid) => self.next.envid = Some(CommandArgument::new(envid).expect("a word")),
                _ => panic!("{}.smtp: unknown parameter of MAIL: {parameter}", self.transcript.name),
            }
        }
    }

    /// Does what a driver does after each event.
    fn settle(&mut self) {
        while let Some(event) = self.client.poll_event() {
            self.take_event(event);
        }
        loop {
            let output = self.client.output();
            let bytes = wire(&output, &self.message);
            assert_eq!(bytes.len() as u64, output.octet_count());
            let at_once = if let Pace::Takes(octets) = self.pace { octets } else { u64::MAX };
            let taken = output.octet_count().min(at_once).min(self.window.unwrap_or(u64::MAX));
            if taken == 0 {
                return;
            }
            self.record.output += &bytes[..taken as usize].escape_ascii().to_string();
            self.pending.extend(&bytes[..taken as usize]);
            self.window = self.window.map(|room| room - taken);
            self.client.handle_sent(self.now, taken);
        }
    }

    fn take_event(&mut self, event: SmtpClientEvent) {
        match event {
            SmtpClientEvent::Ready => self.report("ready".to_owned()),
            SmtpClientEvent::StartTls => self.report("starttls".to_owned()),
            SmtpClientEvent::ComputeProof(work) => self.client.handle_proof(self.now, work.compute()),
            SmtpClientEvent::Replied { stage, reply } => self.report(format!("replied {} {reply}", name(stage))),
            SmtpClientEvent::Finished(verdicts) => {
                verdicts.into_iter().for_each(|outcome| self.report(outcome_text(outcome)))
            }
            SmtpClientEvent::Closed(closed) => self.report(close_reason_text(closed)),
        }
    }

    fn report(&mut self, text: String) {
        self.record.reported.push(text.clone());
        self.unreported.push(text);
    }

    /// Reports must be listed in order; replies may be omitted.
    fn check_reported(&mut self, text: &str, place: &str) {
        let found = self.unreported.iter().position(|told| told == text || is_strict(told));
        let Some(found) = found else { panic!("{place}: not reported; reported: {:?}", self.unreported) };
        assert_eq!(self.unreported.drain(..=found).next_back().as_deref(), Some(text), "{place}");
    }

    fn check_all_expected(&self, place: &str) {
        assert_eq!(self.pending.escape_ascii().to_string(), "", "{place}: unexpected output");
    }
}

/// The bytes that an output stands for.
fn wire(output: &SmtpClientOutput<'_>, message: &[u8]) -> Vec<u8> {
    let stuffed = stuff_dots(message);
    let form = if output.form == DotStuffing::Stuffed { &stuffed[..] } else { message };
    let range = output.content.start as usize..output.content.end as usize;
    [output.head, &form[range], output.tail].concat()
}

fn is_strict(told: &str) -> bool {
    !told.starts_with("replied")
}

fn outcome_text(outcome: RecipientOutcome) -> String {
    match outcome {
        RecipientOutcome::Accepted(reply) => format!("accepted {reply}"),
        RecipientOutcome::Refused { stage, reply } => format!("refused {} {reply}", name(stage)),
        RecipientOutcome::NotSent => "not sent".to_owned(),
        RecipientOutcome::InDoubt => "in doubt".to_owned(),
    }
}

fn close_reason_text(closed: CloseReason) -> String {
    match closed {
        CloseReason::Quit => "closed by us".to_owned(),
        CloseReason::Shutdown(reply) => format!("closed {reply}"),
        CloseReason::Refused { stage, reply } => format!("closed, refused {} {reply}", name(stage)),
        CloseReason::Lacks(lack) => format!("closed, {lack}"),
        CloseReason::Ended(stage) => format!("closed by them, {}", name(stage)),
        CloseReason::TimedOut(stage) => format!("closed, timed out, {}", name(stage)),
        CloseReason::ProtocolViolation(misbehaviour) => format!("closed, {misbehaviour}"),
    }
}

fn name(stage: SmtpStage) -> String {
    match stage {
        SmtpStage::Rcpt(index) => format!("rcpt {}", index + 1),
        SmtpStage::Message(None) => "message".to_owned(),
        SmtpStage::Message(Some(index)) => format!("message {}", index + 1),
        other => format!("{other:?}").to_ascii_lowercase(),
    }
}

fn forwarded(address: &str) -> ForwardedClient {
    let address = Some(address.parse().expect("an IP address"));
    ForwardedClient { address, helo: "mail.client.example".into(), ident: "1-0-1".into() }
}

fn empty_transaction() -> Transaction {
    Transaction::new(None, [], ContentSize::from_message(b""))
}

fn recipient(address: &str, parameters: &[String]) -> TransactionRecipient {
    let mut recipient = TransactionRecipient::from(address.parse::<mail::Address>().expect("an address"));
    for parameter in parameters {
        match parameter.split_once('=').expect("a parameter has a value") {
            ("NOTIFY", wishes) => {
                recipient.notify = wishes.split(',').map(notify_value).fold(DsnNotify::UNSET, DsnNotify::with)
            }
            ("ORCPT", orcpt) => recipient.orcpt = Some(CommandArgument::new(orcpt).expect("a word")),
            _ => panic!("unknown parameter of RCPT: {parameter}"),
        }
    }
    recipient
}

fn notify_value(name: &str) -> DsnNotify {
    match name {
        "NEVER" => DsnNotify::NEVER,
        "SUCCESS" => DsnNotify::SUCCESS,
        "FAILURE" => DsnNotify::FAILURE,
        "DELAY" => DsnNotify::DELAY,
        _ => panic!("unknown NOTIFY value {name}"),
    }
}

fn client(transcript: &Transcript, now: Timestamp) -> SmtpClient {
    let client = SmtpClient::new(Arc::new(config(transcript)), now).with_nonce(Nonce::from_random([7; Nonce::OCTETS]));
    let is_implicit = transcript.settings.iter().any(|(name, value)| name == "tls" && value == "implicit");
    if is_implicit { client.over_tls() } else { client }
}

fn mechanism(name: &str) -> LoginMechanism {
    let known = LoginMechanism::WITH_PASSWORD.into_iter().find(|mechanism| mechanism.name() == name);
    known.expect("a mechanism")
}

fn config(transcript: &Transcript) -> SmtpClientConfig {
    let mut config = SmtpClientConfig::new(MailProtocol::Smtp, CommandArgument::new("client.example").expect("a word"));
    config.timeouts = Timeouts::default();
    for (name, value) in &transcript.settings {
        let span = || duration(value).expect("a time has a unit");
        match (name.as_str(), value.as_str()) {
            ("flavor", "lmtp") => config.flavor = MailProtocol::Lmtp,
            ("tls", "never") => config.tls = TlsPolicy::Never,
            ("tls", "required") => config.tls = TlsPolicy::Required,
            ("tls", "implicit") => {}
            ("pipelining", "off") => config.pipelining = false,
            ("chunking", "on") => config.chunking = true,
            ("login", login) => {
                let (user, password) = login.split_once(' ').expect("a user and a password");
                config.credentials = Some(SmtpCredentials::new(user, password).expect("valid credentials"));
            }
            ("token", login) => {
                let (user, token) = login.split_once(' ').expect("a user and a token");
                config.credentials = Some(SmtpCredentials::with_token(user, token).expect("valid credentials"));
            }
            ("mechanisms", names) => {
                let mechanisms: Vec<LoginMechanism> = names.split(' ').map(mechanism).collect();
                config.credentials = config.credentials.map(|login| login.restricted(&mechanisms, false));
            }
            ("login_tls", "required") => {
                let mechanisms = [LoginMechanism::Plain];
                config.credentials = config.credentials.map(|login| login.restricted(&mechanisms, true));
            }
            ("timeouts", _) => config.timeouts = Timeouts::uniform(span()),
            _ => panic!("{}.smtp: unknown setting {name} {value}", transcript.name),
        }
    }
    config
}
