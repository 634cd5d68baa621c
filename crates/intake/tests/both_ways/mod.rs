//! The same envelopes from a client in a relay network and from a local program: each recipient is
//! accepted as the same addresses, refused with the same code, or deferred, whichever way the
//! message comes.

use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use intake::drop_folder::{
    DropFile, DropFolderConfig, DropFolderScanner, DropFolderWriter, DropNotice, DropSubmitter, NoticeComposer,
    NoticeFuture, RefusedMessage,
};
use mail::{
    Address, BodyFlags, BodyType, ClientInfo, DsnNotify, EventLog, LogLevel, MailEvent, QueueId, Recipient, ServerLog,
    Timestamp,
};
use protocol::smtp::server::{NulPolicy, RcptRequest};
use tempfile::TempDir;

use crate::FakeQuotas;
use crate::server::{Server, everyone};

const SENDER: &str = "a@client.example";
/// Fits in the mailbox of Bob.
const SHORT: &str = "Subject: x\r\n\r\nx\r\n";
/// Does not.
const LONG: &str = "Subject: x\r\n\r\n\
                    0123456789012345678901234567890123456789012345678901234567890\r\n\
                    0123456789012345678901234567890123456789012345678901234567890\r\n";

/// What becomes of a recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Accepted,
    /// With this code and enhanced code.
    Refused(&'static str),
    Deferred,
}

use Outcome::{Accepted, Deferred, Refused};

struct Envelope {
    kind: &'static str,
    content: &'static str,
    recipients: &'static [(&'static str, Outcome)],
    /// The recipients in the spool, with the named address if it is another one.
    stored: &'static [&'static str],
}

const ENVELOPES: &[Envelope] = &[
    Envelope { kind: "an alias loop", content: SHORT, recipients: &[("here@example.org", Deferred)], stored: &[] },
    Envelope {
        kind: "an alias loop of the postmaster",
        content: SHORT,
        recipients: &[("postmaster@loops.example", Accepted), ("loop@open.example", Accepted)],
        stored: &["postmaster@loops.example", "loop@open.example"],
    },
    Envelope {
        kind: "the postmaster of this host",
        content: SHORT,
        recipients: &[("Postmaster@mx.example.org", Accepted)],
        stored: &["admin@elsewhere.example < postmaster@example.org"],
    },
    Envelope {
        kind: "a postmaster without a mailbox",
        content: SHORT,
        recipients: &[("postmaster@listed.example", Accepted)],
        stored: &["postmaster@listed.example"],
    },
    Envelope {
        kind: "domains without a dot",
        content: SHORT,
        recipients: &[("bob@com", Refused("550 5.1.2")), ("bob@backup", Accepted), ("bob@[192.0.2.1]", Accepted)],
        stored: &["bob@backup", "bob@[192.0.2.1]"],
    },
    Envelope {
        kind: "only a domain without a dot",
        content: SHORT,
        recipients: &[("bob@com", Refused("550 5.1.2"))],
        stored: &[],
    },
    Envelope {
        kind: "source routes",
        content: SHORT,
        recipients: &[
            ("victim%elsewhere.example@onward.example", Accepted),
            ("elsewhere.example!victim@onward.example", Accepted),
            ("\"victim@elsewhere.example\"@onward.example", Accepted),
            ("a+victim%elsewhere.example@listed.example", Accepted),
            ("c%b@listed.example", Refused("550 5.1.1")),
        ],
        stored: &[
            "victim%elsewhere.example@onward.example",
            "elsewhere.example!victim@onward.example",
            "\"victim@elsewhere.example\"@onward.example",
            "a+victim%elsewhere.example@listed.example",
        ],
    },
    Envelope {
        kind: "a mailbox with room for this message",
        content: SHORT,
        recipients: &[("bob@example.org", Accepted)],
        stored: &["bob@example.org"],
    },
    Envelope {
        kind: "a mailbox that refuses",
        content: SHORT,
        recipients: &[("carol@example.org", Refused("552 5.2.2")), ("dora@open.example", Accepted)],
        stored: &["dora@open.example"],
    },
    Envelope {
        kind: "unknown users and duplicates",
        content: SHORT,
        recipients: &[
            ("nobody@example.org", Refused("550 5.1.1")),
            ("robert@example.org", Accepted),
            ("bob@example.org", Accepted),
            ("away@example.org", Accepted),
        ],
        stored: &["bob@example.org < robert@example.org", "away@elsewhere.example < away@example.org"],
    },
    Envelope {
        kind: "a directory that is down",
        content: SHORT,
        recipients: &[("x@down.example", Deferred)],
        stored: &[],
    },
];

/// Regression: a local program could send to a domain without a dot and into a full mailbox, and
/// an alias loop refused the recipient.
#[tokio::test]
async fn a_recipient_has_the_same_outcome_whichever_way_the_message_comes() {
    for envelope in ENVELOPES {
        let names: Vec<_> = envelope.recipients.iter().map(|(name, _)| *name).collect();
        let expected: Vec<_> = envelope.recipients.iter().map(|(_, outcome)| outcome_text(*outcome)).collect();
        for (way, (outcomes, stored)) in [
            ("SMTP", by_session(&start(), &names, envelope.content).await),
            ("drop folder", by_drop_folder(&start(), &names, envelope.content).await),
        ] {
            assert_eq!(outcomes, expected, "{} by {way}", envelope.kind);
            assert_eq!(stored, envelope.stored, "{} by {way}", envelope.kind);
        }
    }
}

/// A client can send the message again for the recipients that were too many; a file cannot.
#[tokio::test]
async fn too_many_recipients_are_deferred_for_clients_and_refused_for_local_programs() {
    for (name, others) in [("eleven@example.org", 1), ("six@example.org", 5)] {
        let others: Vec<_> = (0..others).map(|number| format!("x{number}@open.example")).collect();
        let mut names: Vec<_> = others.iter().map(String::as_str).collect();
        names.push(name);
        for (expected, (mut outcomes, stored)) in [
            ("deferred", by_session(&start(), &names, SHORT).await),
            ("550 5.5.3", by_drop_folder(&start(), &names, SHORT).await),
        ] {
            assert_eq!(outcomes.pop().as_deref(), Some(expected));
            assert!(outcomes.iter().all(|outcome| outcome == "accepted"));
            assert_eq!(stored, others);
        }
    }
}

/// A client can wait until a mailbox has room; for a program that has ended, the queue does.
#[tokio::test]
async fn a_full_mailbox_defers_clients_and_mail_of_local_programs_waits_in_the_queue() {
    for name in ["bob@example.org", "robert@example.org"] {
        let (outcomes, stored) = by_session(&start(), &[name], LONG).await;
        assert_eq!((outcomes, stored), (vec!["deferred".to_owned()], Vec::new()), "{name}");
        let (outcomes, stored) = by_drop_folder(&start(), &[name], LONG).await;
        assert_eq!((outcomes, stored.len()), (vec!["accepted".to_owned()], 1), "{name}");
    }
}

/// Otherwise the owner of the file, who sent the message, would be lost with the file.
#[tokio::test]
async fn a_deferred_recipient_keeps_the_file_for_all() {
    let server = start();
    let (_, stored) =
        by_drop_folder(&server, &["dora@open.example", "here@example.org", "nobody@example.org"], SHORT).await;
    assert!(stored.is_empty() && server.context.spool.ids().is_empty());
}

fn outcome_text(outcome: Outcome) -> String {
    match outcome {
        Accepted => "accepted".into(),
        Refused(code) => code.into(),
        Deferred => "deferred".into(),
    }
}

fn start() -> Server {
    Server::start(|context| {
        context.relay_networks = everyone();
        context.quota_check = Some(Arc::new(FakeQuotas::default()));
    })
}

/// The outcomes for the recipients, and what is in the spool.
async fn by_session(server: &Server, names: &[&str], content: &str) -> (Vec<String>, Vec<String>) {
    let mut client = server.user().await;
    client.expect(&format!("MAIL FROM:<{SENDER}> SIZE={}", content.len()), "250").await;
    let mut outcomes = Vec::new();
    for name in names {
        client.send(format!("RCPT TO:<{name}>\r\n").as_bytes()).await;
        let reply = client.reply().await;
        outcomes.push(match reply.as_bytes()[0] {
            b'2' => "accepted".into(),
            b'4' => "deferred".into(),
            _ => reply[..9].to_owned(),
        });
    }
    if outcomes.iter().any(|outcome| outcome == "accepted") {
        client.expect("DATA", "354").await;
        client.expect(&format!("{content}."), "250").await;
    }
    let ids = server.context.spool.ids();
    (outcomes, ids.first().map_or_else(Vec::new, |id| stored(server, *id)))
}

pub(crate) async fn by_drop_folder(server: &Server, names: &[&str], content: &str) -> (Vec<String>, Vec<String>) {
    let folders = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let recipient = |name: &&str| RcptRequest { address: address(name), notify: DsnNotify::UNSET, orcpt: None };
    let file = DropFile {
        sender: Some(address(SENDER)),
        recipients: names.iter().map(recipient).collect(),
        ret: None,
        envid: None,
        body_type: BodyType::SevenBit,
        smtputf8: false,
        content: content.into(),
    };
    DropFolderWriter::new(folders.0.path().to_owned()).write_file(&file.encode(), Timestamp(1)).unwrap();
    let log = Arc::new(ScannerLog::default());
    let config = DropFolderConfig {
        folder: folders.0.path().to_owned(),
        rejected: folders.1.path().to_owned(),
        message_octets_max: 1 << 20,
        submitter: submitter(server),
        log: log.clone(),
    };
    let scanner = DropFolderScanner::start(config).unwrap();
    while log.kept().is_none() && folders.0.path().read_dir().unwrap().next().is_some() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    scanner.stop();
    if log.kept().is_some() {
        return (vec!["deferred".into(); names.len()], Vec::new());
    }
    let refused = server.events.bounced();
    let outcome =
        |name: &&str| refused.iter().find(|(to, _)| to == name).map_or("accepted", |(_, code)| code).to_owned();
    (
        names.iter().map(outcome).collect(),
        server.events.received_locally().map_or_else(Vec::new, |id| stored(server, id)),
    )
}

fn submitter(server: &Server) -> DropSubmitter {
    DropSubmitter {
        intake: server.context.clone(),
        runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        spill_above: 1 << 20,
        received_max: 30,
        nul: NulPolicy::Keep,
        notices: Box::new(ShortNotices),
    }
}

/// The recipients of a message; none if it is not in the spool.
fn stored(server: &Server, id: QueueId) -> Vec<String> {
    let Ok(message) = server.context.spool.message(id) else { return Vec::new() };
    let text = |Recipient { address, original, .. }: &Recipient| match original {
        Some(original) => format!("{address} < {original}"),
        None => address.to_string(),
    };
    message.envelope.recipients.iter().map(text).collect()
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

/// What the scanner logs.
#[derive(Default)]
struct ScannerLog(Mutex<Vec<String>>);

impl ScannerLog {
    /// Why the file stays. Panics on any other line.
    fn kept(&self) -> Option<String> {
        let line = self.0.lock().unwrap().first().cloned()?;
        assert!(line.starts_with("a message stays in the drop folder"), "{line}");
        Some(line)
    }
}

impl EventLog for ScannerLog {
    fn write(&self, event: MailEvent) {
        panic!("{event:?}");
    }
}

impl ServerLog for ScannerLog {
    fn event(&self, _level: LogLevel, text: &str, fields: &[(&'static str, &dyn Display)]) {
        let fields: String = fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        self.0.lock().unwrap().push(format!("{text}{fields}"));
    }

    fn lines_dropped(&self) -> u64 {
        0
    }
}

/// Notices without text, to every sender.
struct ShortNotices;

impl NoticeComposer for ShortNotices {
    fn notified_address(&self, refused: &RefusedMessage<'_>) -> Option<Address> {
        refused.envelope.sender.clone()
    }

    fn compose<'a>(
        &'a self,
        refused: &'a RefusedMessage<'a>,
        id: QueueId,
        recipients: Vec<Recipient>,
    ) -> NoticeFuture<'a> {
        let client = ClientInfo { address: None, helo: "mx.example.org".into(), trusted: true };
        let envelope = mail::Envelope { sender: None, recipients, client, ..refused.envelope.clone() };
        let received = MailEvent::Received {
            id,
            client: None,
            helo: "mx.example.org".into(),
            sender: None,
            recipients: envelope.recipients.len(),
            size: 0,
            protocol: "bounce",
            security: None,
            user: None,
            header: mail::find_logged_header(b"", false),
            auth: None,
        };
        let (prefix, content) = (Vec::new(), b"\r\n".to_vec());
        let notice = DropNotice { envelope, prefix, content, flags: BodyFlags::default(), received };
        Box::pin(std::future::ready(Some(notice)))
    }
}
