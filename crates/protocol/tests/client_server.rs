//! The client and the server talk to each other in memory. However a message is transferred, what
//! is accepted is what was sent, once for each transaction.

use std::sync::Arc;

use mail::{Address, Reply, Timestamp};
use protocol::smtp::MailProtocol;
use protocol::smtp::client::{
    self, CommandArgument, ContentSize, DotStuffing, GROUPED_CHUNK_OCTETS_MAX, RecipientOutcome, SmtpClient,
    SmtpClientEvent, SmtpStage, Transaction, stuff_dots,
};
use protocol::smtp::server::{
    self, SessionAction, SessionAnswer, SessionLimits, SessionQuestion, SmtpPeer, SmtpSession,
};

const NOW: Timestamp = Timestamp(0);

/// The negotiated extensions, and how many octets are transferred at a time.
#[derive(Clone, Copy, Debug)]
struct TransferMode {
    flavor: MailProtocol,
    pipelining: bool,
    chunking: bool,
    octets_at_once: u64,
}

/// Both ends and the connection between them.
struct Pair {
    mode: TransferMode,
    client: SmtpClient,
    session: SmtpSession,
    body: Vec<u8>,
    stored: Vec<Vec<u8>>,
    finished: Vec<Vec<RecipientOutcome>>,
    replies: Vec<(SmtpStage, u16)>,
}

impl Pair {
    fn new(mode: TransferMode) -> Self {
        let TransferMode { flavor, pipelining, chunking, .. } = mode;
        let helo = CommandArgument::new("client.example").expect("the name is a valid word");
        let client = client::SmtpClientConfig { pipelining, chunking, ..client::SmtpClientConfig::new(flavor, helo) };
        let limits = SessionLimits {
            message_octets_max: 1 << 30,
            errors_max: 1000,
            commands_max: 1000,
            ..SessionLimits::default()
        };
        let server = server::SmtpServerConfig {
            hostname: "mx.example.org".into(),
            flavor,
            tls: protocol::TlsMode::Never,
            auth: None,
            tolerance: server::TolerancePolicy::default(),
            limits,
        };
        let peer = SmtpPeer::default();
        Pair {
            mode,
            client: SmtpClient::new(Arc::new(client), NOW),
            session: SmtpSession::new(Arc::new(server), peer, NOW),
            body: Vec::new(),
            stored: Vec::new(),
            finished: Vec::new(),
            replies: Vec::new(),
        }
    }

    /// Runs until neither side has output.
    fn talk(&mut self, message: &[u8]) {
        let stuffed = stuff_dots(message);
        loop {
            let said = self.run_server();
            self.note();
            if !self.run_client(message, &stuffed) && !said {
                return;
            }
        }
    }

    /// Transfers the server's output to the client; returns whether there was any.
    fn run_server(&mut self) -> bool {
        while let Some(action) = self.session.poll_action() {
            match action {
                SessionAction::Ask(question) => {
                    let answer = self.answer(&question);
                    self.session.handle_driver_answer(NOW, answer, &mut self.body);
                }
                SessionAction::Abandon => self.body.clear(),
                SessionAction::Refused { .. } | SessionAction::Login { .. } => {}
            }
        }
        let output = self.session.output().to_vec();
        self.session.handle_sent(output.len());
        self.client.handle_input(NOW, &output);
        !output.is_empty()
    }

    /// Refuses recipients that begin with `n`, and messages from `nobody`.
    fn answer(&mut self, question: &SessionQuestion) -> SessionAnswer {
        match question {
            SessionQuestion::Recipient(request) if request.address.as_str().starts_with('n') => {
                SessionAnswer::Refuse(Reply::without_enhanced_code(550, "no such mailbox"))
            }
            SessionQuestion::Mail(request)
                if request.sender.as_ref().is_some_and(|sender| sender.local_part() == "nobody") =>
            {
                SessionAnswer::Refuse(Reply::without_enhanced_code(550, "not you"))
            }
            SessionQuestion::Message(_) => {
                self.stored.push(std::mem::take(&mut self.body));
                SessionAnswer::Done(Reply::without_enhanced_code(250, "kept"))
            }
            _ => SessionAnswer::Accept,
        }
    }

    fn note(&mut self) {
        while let Some(event) = self.client.poll_event() {
            match event {
                SmtpClientEvent::Replied { stage, reply } => self.replies.push((stage, reply.code)),
                SmtpClientEvent::Finished(verdicts) => self.finished.push(verdicts),
                SmtpClientEvent::Ready | SmtpClientEvent::Closed(client::CloseReason::Quit) => {}
                other => panic!("{:?}: {other:?}", self.mode),
            }
        }
    }

    /// Transfers some of the client's output to the server; returns whether there was any.
    fn run_client(&mut self, message: &[u8], stuffed: &[u8]) -> bool {
        let output = self.client.output();
        let form = if output.form == DotStuffing::Stuffed { stuffed } else { message };
        let content = &form[output.content.start as usize..output.content.end as usize];
        let count = output.octet_count().min(self.mode.octets_at_once);
        let bytes = [output.head, content, output.tail].concat();
        self.client.handle_sent(NOW, count);
        self.session.handle_input(NOW, &bytes[..count as usize], &mut self.body);
        count > 0
    }

    fn send(&mut self, sender: &str, recipients: &[&str], message: &[u8]) -> Vec<RecipientOutcome> {
        assert!(self.client.is_ready(), "{:?}", self.mode);
        let address = |text: &&str| -> Address { text.parse().expect("an address") };
        let transaction = Transaction::new(
            Some(address(&sender)),
            recipients.iter().map(address),
            ContentSize::from_message(message),
        );
        self.client.begin_transaction(NOW, &transaction).expect("the server accepts the transaction");
        self.talk(message);
        assert_eq!(self.finished.len(), 1, "{:?}: a transaction was not finished exactly once", self.mode);
        self.finished.pop().expect("a transaction has finished")
    }
}

fn modes() -> impl Iterator<Item = TransferMode> {
    let flags = [(false, false), (false, true), (true, false), (true, true)];
    let flavors = [MailProtocol::Smtp, MailProtocol::Lmtp];
    flavors.into_iter().flat_map(move |flavor| {
        flags.into_iter().flat_map(move |(pipelining, chunking)| {
            [1, 7, 1000, u64::MAX].map(|octets_at_once| TransferMode { flavor, pipelining, chunking, octets_at_once })
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
    for mode in modes() {
        let mut pair = Pair::new(mode);
        pair.talk(b"");
        for (round, message) in MESSAGES.iter().cycle().take(100).enumerate() {
            let recipients: Vec<String> = (0..1 + round % 5).map(|index| format!("r{index}@example.org")).collect();
            let recipients: Vec<&str> = recipients.iter().map(String::as_str).collect();
            let outcomes = pair.send("a@client.example", &recipients, message);
            assert_eq!(
                outcomes,
                vec![RecipientOutcome::Accepted(Reply::without_enhanced_code(250, "kept")); recipients.len()],
                "{mode:?}"
            );
            let kept = pair.stored.pop().unwrap();
            assert!(pair.stored.is_empty());
            // DATA completes an unfinished last line (RFC 5321 section 4.1.1.4); BDAT leaves it
            // unchanged.
            let end: &[u8] =
                if mode.chunking || ContentSize::from_message(message).ends_in_crlf { b"" } else { b"\r\n" };
            let expected = [message, end].concat();
            assert_eq!(kept.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{mode:?}");
        }
        pair.client.quit(NOW);
        pair.talk(b"");
        assert!(pair.client.wants_close() && pair.session.wants_close());
    }
}

#[test]
fn refusals_match_their_recipients_and_leave_the_session_ready() {
    for mode in modes() {
        let mut pair = Pair::new(mode);
        pair.talk(b"");
        for _ in 0..4 {
            let outcomes =
                pair.send("a@client.example", &["no@example.org", "b@example.org", "ny@example.org"], b".\r\n");
            assert!(matches!(&outcomes[0], RecipientOutcome::Refused { stage: SmtpStage::Rcpt(0), .. }), "{mode:?}");
            assert!(matches!(&outcomes[1], RecipientOutcome::Accepted(_)), "{mode:?}");
            assert!(matches!(&outcomes[2], RecipientOutcome::Refused { stage: SmtpStage::Rcpt(2), .. }), "{mode:?}");
            let outcomes = pair.send("a@client.example", &["no@example.org"], b".\r\n");
            assert!(matches!(&outcomes[..], [RecipientOutcome::Refused { stage: SmtpStage::Rcpt(0), .. }]), "{mode:?}");
            let outcomes = pair.send("nobody@client.example", &["b@example.org"], b".\r\n");
            assert!(matches!(&outcomes[..], [RecipientOutcome::Refused { stage: SmtpStage::Mail, .. }]), "{mode:?}");
        }
        assert_eq!(pair.stored, vec![b".\r\n"; 4], "{mode:?}");
    }
}

#[test]
fn a_large_chunk_waits_until_a_recipient_is_accepted() {
    let message = b"\r\n0123456789abcd".repeat((GROUPED_CHUNK_OCTETS_MAX / 16) as usize + 1);
    for flavor in [MailProtocol::Smtp, MailProtocol::Lmtp] {
        let mut pair = Pair::new(TransferMode { flavor, pipelining: true, chunking: true, octets_at_once: u64::MAX });
        pair.talk(b"");
        let outcomes = pair.send("a@client.example", &["no@example.org"], &message);
        assert!(matches!(&outcomes[..], [RecipientOutcome::Refused { stage: SmtpStage::Rcpt(0), .. }]));
        assert!(!pair.replies.iter().any(|(stage, _)| matches!(stage, SmtpStage::Message(_))), "BDAT was sent");
        let outcomes = pair.send("a@client.example", &["no@example.org", "b@example.org"], &message);
        assert!(matches!(&outcomes[..], [RecipientOutcome::Refused { .. }, RecipientOutcome::Accepted(_)]));
        assert_eq!(pair.stored.len(), 1);
        assert!(pair.stored[0] == message);
    }
}
