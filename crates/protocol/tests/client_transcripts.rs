//! Plays the transcripts of `tests/client_transcripts` against the client, in memory and at several
//! paces. The pace must not change the output or the reported events.

mod client_transcript;

use std::sync::Arc;

use client_transcript::{Event as Happening, Step, Transcript, duration};
use mail::{BodyType, Notify, Return, Timestamp};
use protocol::smtp::client::{
    Client, Closed, Config, Content, Credentials, Event, Flavor, Form, Output, Recipient, Stage, Timeouts, Tls,
    Transaction, Verdict, Word, stuff_dots,
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
    told: Vec<String>,
}

/// A client with its driver.
struct Run<'a> {
    transcript: &'a Transcript,
    pace: Pace,
    client: Client,
    now: Timestamp,
    octets_in: usize,
    room: Option<u64>,
    next: Transaction,
    next_message: Vec<u8>,
    /// The message of the open transaction.
    message: Vec<u8>,
    /// Output that was not compared yet.
    pending: Vec<u8>,
    /// Reports that were not compared yet.
    untold: Vec<String>,
    record: Record,
}

impl<'a> Run<'a> {
    fn play(transcript: &'a Transcript, pace: Pace) -> Record {
        let now = Timestamp(1_000_000);
        let mut run = Run {
            transcript,
            pace,
            client: Client::new(Arc::new(config(transcript)), now),
            now,
            octets_in: 0,
            room: None,
            next: nothing(),
            next_message: Vec::new(),
            message: Vec::new(),
            pending: Vec::new(),
            untold: Vec::new(),
            record: Record::default(),
        };
        for step in &transcript.steps {
            run.step(step);
        }
        run.check_all_expected("the end");
        let left = run.untold.iter().find(|told| is_strict(told));
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
            Happening::Told(text) => self.check_told(text, &place),
            Happening::Closed => assert!(self.client.wants_close(), "{place}: the connection is still open"),
            event => {
                self.check_all_expected(&place);
                self.happen(event);
                self.settle();
            }
        }
    }

    fn happen(&mut self, event: &Happening) {
        match event {
            Happening::Receive(bytes) => self.receive(bytes),
            Happening::Sender { address, parameters } => self.next_sender(address, parameters),
            Happening::Recipient { address, parameters } => self.next.recipients.push(recipient(address, parameters)),
            Happening::Message(bytes) => self.next_message.extend(bytes),
            Happening::Begin => self.begin(),
            Happening::Quit => self.client.quit(self.now),
            Happening::Secured => self.client.handle_secured(self.now),
            Happening::End => self.client.handle_end(),
            Happening::Room(room) => self.room = *room,
            Happening::Wait(span) => {
                self.now = self.now + *span;
                self.client.handle_timeout(self.now);
            }
            Happening::Send(_) | Happening::Told(_) | Happening::Closed => {}
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
        let mut transaction = std::mem::replace(&mut self.next, nothing());
        self.message = std::mem::take(&mut self.next_message);
        transaction.content = Content::of(&self.message);
        if let Err(error) = self.client.begin(self.now, &transaction) {
            self.tell(format!("unsendable: {error}"));
        }
    }

    fn next_sender(&mut self, address: &str, parameters: &[String]) {
        self.next.sender = (!address.is_empty()).then(|| address.parse().expect("an address"));
        for parameter in parameters {
            match parameter.split_once('=').unwrap_or((parameter, "")) {
                ("BODY", "8BITMIME") => self.next.body_type = BodyType::EightBitMime,
                ("SMTPUTF8", "") => self.next.smtputf8 = true,
                ("RET", "FULL") => self.next.ret = Some(Return::Full),
                ("RET", "HDRS") => self.next.ret = Some(Return::Headers),
                ("ENVID", envid) => self.next.envid = Some(Word::new(envid).expect("a word")),
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
            assert_eq!(bytes.len() as u64, output.octets());
            let at_once = if let Pace::Takes(octets) = self.pace { octets } else { u64::MAX };
            let taken = output.octets().min(at_once).min(self.room.unwrap_or(u64::MAX));
            if taken == 0 {
                return;
            }
            self.record.output += &bytes[..taken as usize].escape_ascii().to_string();
            self.pending.extend(&bytes[..taken as usize]);
            self.room = self.room.map(|room| room - taken);
            self.client.handle_sent(self.now, taken);
        }
    }

    fn take_event(&mut self, event: Event) {
        match event {
            Event::Ready => self.tell("ready".to_owned()),
            Event::StartTls => self.tell("starttls".to_owned()),
            Event::Replied { stage, reply } => self.tell(format!("replied {} {reply}", name(stage))),
            Event::Finished(verdicts) => verdicts.into_iter().for_each(|verdict| self.tell(told_verdict(verdict))),
            Event::Closed(closed) => self.tell(told_closed(closed)),
        }
    }

    fn tell(&mut self, text: String) {
        self.record.told.push(text.clone());
        self.untold.push(text);
    }

    /// Reports must be listed in order; replies may be omitted.
    fn check_told(&mut self, text: &str, place: &str) {
        let found = self.untold.iter().position(|told| told == text || is_strict(told));
        let Some(found) = found else { panic!("{place}: not reported; reported: {:?}", self.untold) };
        assert_eq!(self.untold.drain(..=found).next_back().as_deref(), Some(text), "{place}");
    }

    fn check_all_expected(&self, place: &str) {
        assert_eq!(self.pending.escape_ascii().to_string(), "", "{place}: unexpected output");
    }
}

/// The bytes that an output stands for.
fn wire(output: &Output<'_>, message: &[u8]) -> Vec<u8> {
    let stuffed = stuff_dots(message);
    let form = if output.form == Form::Stuffed { &stuffed[..] } else { message };
    let range = output.content.start as usize..output.content.end as usize;
    [output.head, &form[range], output.tail].concat()
}

fn is_strict(told: &str) -> bool {
    !told.starts_with("replied")
}

fn told_verdict(verdict: Verdict) -> String {
    match verdict {
        Verdict::Accepted(reply) => format!("accepted {reply}"),
        Verdict::Refused { stage, reply } => format!("refused {} {reply}", name(stage)),
        Verdict::NotSent => "not sent".to_owned(),
        Verdict::InDoubt => "in doubt".to_owned(),
    }
}

fn told_closed(closed: Closed) -> String {
    match closed {
        Closed::Quit => "closed by us".to_owned(),
        Closed::Shutdown(reply) => format!("closed {reply}"),
        Closed::Refused { stage, reply } => format!("closed, refused {} {reply}", name(stage)),
        Closed::Lacks(lack) => format!("closed, {lack}"),
        Closed::Ended(stage) => format!("closed by them, {}", name(stage)),
        Closed::TimedOut(stage) => format!("closed, timed out, {}", name(stage)),
        Closed::Misbehaved(misbehaviour) => format!("closed, {misbehaviour}"),
    }
}

fn name(stage: Stage) -> String {
    match stage {
        Stage::Rcpt(index) => format!("rcpt {}", index + 1),
        Stage::Message(None) => "message".to_owned(),
        Stage::Message(Some(index)) => format!("message {}", index + 1),
        other => format!("{other:?}").to_ascii_lowercase(),
    }
}

fn nothing() -> Transaction {
    Transaction::new(None, [], Content::of(b""))
}

fn recipient(address: &str, parameters: &[String]) -> Recipient {
    let mut recipient = Recipient::from(address.parse::<mail::Address>().expect("an address"));
    for parameter in parameters {
        match parameter.split_once('=').expect("a parameter has a value") {
            ("NOTIFY", wishes) => recipient.notify = wishes.split(',').map(wish).fold(Notify::UNSET, Notify::with),
            ("ORCPT", orcpt) => recipient.orcpt = Some(Word::new(orcpt).expect("a word")),
            _ => panic!("unknown parameter of RCPT: {parameter}"),
        }
    }
    recipient
}

fn wish(name: &str) -> Notify {
    match name {
        "NEVER" => Notify::NEVER,
        "SUCCESS" => Notify::SUCCESS,
        "FAILURE" => Notify::FAILURE,
        "DELAY" => Notify::DELAY,
        _ => panic!("unknown NOTIFY value {name}"),
    }
}

fn config(transcript: &Transcript) -> Config {
    let mut config = Config::new(Flavor::Smtp, Word::new("client.example").expect("a word"));
    config.timeouts = Timeouts::default();
    for (name, value) in &transcript.settings {
        let span = || duration(value).expect("a time has a unit");
        match (name.as_str(), value.as_str()) {
            ("flavor", "lmtp") => config.flavor = Flavor::Lmtp,
            ("tls", "never") => config.tls = Tls::Never,
            ("tls", "required") => config.tls = Tls::Required,
            ("pipelining", "off") => config.pipelining = false,
            ("chunking", "on") => config.chunking = true,
            ("login", login) => {
                let (user, password) = login.split_once(' ').expect("a user and a password");
                config.credentials = Some(Credentials::new(user, password).expect("valid credentials"));
            }
            ("timeouts", _) => config.timeouts = Timeouts::all(span()),
            _ => panic!("{}.smtp: unknown setting {name} {value}", transcript.name),
        }
    }
    config
}
