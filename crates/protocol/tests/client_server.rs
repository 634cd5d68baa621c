//! The client and the server talk to each other in memory. However a message is transferred, what
//! is accepted is what was sent, once for each transaction.

use std::sync::Arc;

use mail::{Address, Reply, Timestamp};
use protocol::smtp::Flavor;
use protocol::smtp::client::{
    self, Client, Content, Event, Form, GROUPED_CHUNK_OCTETS_MAX, Stage, Transaction, Verdict, Word, stuff_dots,
};
use protocol::smtp::server::{self, Action, Answer, Limits, Peer, Question, Session};

const NOW: Timestamp = Timestamp(0);

/// The negotiated extensions, and how many octets are transferred at a time.
#[derive(Clone, Copy, Debug)]
struct Way {
    flavor: Flavor,
    pipelining: bool,
    chunking: bool,
    octets_at_once: u64,
}

/// Both ends and the connection between them.
struct Pair {
    way: Way,
    client: Client,
    session: Session,
    body: Vec<u8>,
    kept: Vec<Vec<u8>>,
    finished: Vec<Vec<Verdict>>,
    replies: Vec<(Stage, u16)>,
}

impl Pair {
    fn new(way: Way) -> Self {
        let Way { flavor, pipelining, chunking, .. } = way;
        let helo = Word::new("client.example").expect("the name is a valid word");
        let client = client::Config { pipelining, chunking, ..client::Config::new(flavor, helo) };
        let limits = Limits { message_octets_max: 1 << 30, errors_max: 1000, commands_max: 1000, ..Limits::default() };
        let server = server::Config {
            hostname: "mx.example.org".into(),
            flavor,
            tls: server::Tls::Never,
            auth: None,
            tolerance: server::Tolerance::default(),
            limits,
        };
        let peer = Peer::default();
        Pair {
            way,
            client: Client::new(Arc::new(client), NOW),
            session: Session::new(Arc::new(server), peer, NOW),
            body: Vec::new(),
            kept: Vec::new(),
            finished: Vec::new(),
            replies: Vec::new(),
        }
    }

    /// Runs until neither side has output.
    fn talk(&mut self, message: &[u8]) {
        let stuffed = stuff_dots(message);
        loop {
            let said = self.serve();
            self.note();
            if !self.carry(message, &stuffed) && !said {
                return;
            }
        }
    }

    /// Transfers the server's output to the client; returns whether there was any.
    fn serve(&mut self) -> bool {
        while let Some(action) = self.session.poll_action() {
            match action {
                Action::Ask(question) => {
                    let answer = self.answer(&question);
                    self.session.handle_answer(NOW, answer, &mut self.body);
                }
                Action::Abandon => self.body.clear(),
                Action::Refused { .. } | Action::Login { .. } => {}
            }
        }
        let output = self.session.output().to_vec();
        self.session.handle_sent(output.len());
        self.client.handle_input(NOW, &output);
        !output.is_empty()
    }

    /// Refuses recipients that begin with `n`, and messages from `nobody`.
    fn answer(&mut self, question: &Question) -> Answer {
        match question {
            Question::Recipient(request) if request.address.as_str().starts_with('n') => {
                Answer::Refuse(Reply::plain(550, "no such mailbox"))
            }
            Question::Mail(request) if request.sender.as_ref().is_some_and(|sender| sender.local() == "nobody") => {
                Answer::Refuse(Reply::plain(550, "not you"))
            }
            Question::Message(_) => {
                self.kept.push(std::mem::take(&mut self.body));
                Answer::Done(Reply::plain(250, "kept"))
            }
            _ => Answer::Accept,
        }
    }

    fn note(&mut self) {
        while let Some(event) = self.client.poll_event() {
            match event {
                Event::Replied { stage, reply } => self.replies.push((stage, reply.code)),
                Event::Finished(verdicts) => self.finished.push(verdicts),
                Event::Ready | Event::Closed(client::Closed::Quit) => {}
                other => panic!("{:?}: {other:?}", self.way),
            }
        }
    }

    /// Transfers some of the client's output to the server; returns whether there was any.
    fn carry(&mut self, message: &[u8], stuffed: &[u8]) -> bool {
        let output = self.client.output();
        let form = if output.form == Form::Stuffed { stuffed } else { message };
        let content = &form[output.content.start as usize..output.content.end as usize];
        let count = output.octets().min(self.way.octets_at_once);
        let bytes = [output.head, content, output.tail].concat();
        self.client.handle_sent(NOW, count);
        self.session.handle_input(NOW, &bytes[..count as usize], &mut self.body);
        count > 0
    }

    fn send(&mut self, sender: &str, recipients: &[&str], message: &[u8]) -> Vec<Verdict> {
        assert!(self.client.is_ready(), "{:?}", self.way);
        let address = |text: &&str| -> Address { text.parse().expect("an address") };
        let transaction =
            Transaction::new(Some(address(&sender)), recipients.iter().map(address), Content::of(message));
        self.client.begin(NOW, &transaction).expect("the server accepts the transaction");
        self.talk(message);
        assert_eq!(self.finished.len(), 1, "{:?}: a transaction was not finished exactly once", self.way);
        self.finished.pop().expect("a transaction has finished")
    }
}

fn ways() -> impl Iterator<Item = Way> {
    let flags = [(false, false), (false, true), (true, false), (true, true)];
    let flavors = [Flavor::Smtp, Flavor::Lmtp];
    flavors.into_iter().flat_map(move |flavor| {
        flags.into_iter().flat_map(move |(pipelining, chunking)| {
            [1, 7, 1000, u64::MAX].map(|octets_at_once| Way { flavor, pipelining, chunking, octets_at_once })
        })
    })
}

const MESSAGES: [&[u8]; 7] = [
    b"",
    b"Subject: x\r\n\r\ntext\r\n",
    b".\r\n",
    b"..\r\n.\r\n\r\n.a\r\na.\r\n",
    b"no end of line",
    b".",
    b"a\r\n.b\r\nc\xff",
];

#[test]
fn what_is_accepted_is_what_was_sent() {
    for way in ways() {
        let mut pair = Pair::new(way);
        pair.talk(b"");
        for (round, message) in MESSAGES.iter().cycle().take(100).enumerate() {
            let recipients: Vec<String> = (0..1 + round % 5).map(|index| format!("r{index}@example.org")).collect();
            let recipients: Vec<&str> = recipients.iter().map(String::as_str).collect();
            let verdicts = pair.send("a@client.example", &recipients, message);
            assert_eq!(verdicts, vec![Verdict::Accepted(Reply::plain(250, "kept")); recipients.len()], "{way:?}");
            let kept = pair.kept.pop().unwrap();
            assert!(pair.kept.is_empty());
            // DATA completes an unfinished last line (RFC 5321 section 4.1.1.4); BDAT leaves it
            // unchanged.
            let end: &[u8] = if way.chunking || Content::of(message).ends_in_crlf { b"" } else { b"\r\n" };
            let expected = [message, end].concat();
            assert_eq!(kept.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{way:?}");
        }
        pair.client.quit(NOW);
        pair.talk(b"");
        assert!(pair.client.wants_close() && pair.session.wants_close());
    }
}

#[test]
fn refusals_find_their_recipients_and_leave_the_session_fit_for_the_next_message() {
    for way in ways() {
        let mut pair = Pair::new(way);
        pair.talk(b"");
        for _ in 0..4 {
            let verdicts =
                pair.send("a@client.example", &["no@example.org", "b@example.org", "ny@example.org"], b".\r\n");
            assert!(matches!(&verdicts[0], Verdict::Refused { stage: Stage::Rcpt(0), .. }), "{way:?}");
            assert!(matches!(&verdicts[1], Verdict::Accepted(_)), "{way:?}");
            assert!(matches!(&verdicts[2], Verdict::Refused { stage: Stage::Rcpt(2), .. }), "{way:?}");
            let verdicts = pair.send("a@client.example", &["no@example.org"], b".\r\n");
            assert!(matches!(&verdicts[..], [Verdict::Refused { stage: Stage::Rcpt(0), .. }]), "{way:?}");
            let verdicts = pair.send("nobody@client.example", &["b@example.org"], b".\r\n");
            assert!(matches!(&verdicts[..], [Verdict::Refused { stage: Stage::Mail, .. }]), "{way:?}");
        }
        assert_eq!(pair.kept, vec![b".\r\n"; 4], "{way:?}");
    }
}

#[test]
fn a_large_chunk_waits_until_somebody_wants_it() {
    let message = b"\r\n0123456789abcd".repeat((GROUPED_CHUNK_OCTETS_MAX / 16) as usize + 1);
    for flavor in [Flavor::Smtp, Flavor::Lmtp] {
        let mut pair = Pair::new(Way { flavor, pipelining: true, chunking: true, octets_at_once: u64::MAX });
        pair.talk(b"");
        let verdicts = pair.send("a@client.example", &["no@example.org"], &message);
        assert!(matches!(&verdicts[..], [Verdict::Refused { stage: Stage::Rcpt(0), .. }]));
        assert!(!pair.replies.iter().any(|(stage, _)| matches!(stage, Stage::Message(_))), "BDAT was sent");
        let verdicts = pair.send("a@client.example", &["no@example.org", "b@example.org"], &message);
        assert!(matches!(&verdicts[..], [Verdict::Refused { .. }, Verdict::Accepted(_)]));
        assert_eq!(pair.kept.len(), 1);
        assert!(pair.kept[0] == message);
    }
}
