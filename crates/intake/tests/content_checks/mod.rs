//! A check that reads every byte of a message before it is stored: it refuses by content, adds a
//! field, and changes the envelope, whichever way the message comes and wherever its bytes are.

use std::future::ready;
use std::sync::Arc;

use filter::{
    Check, CheckChain, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, Decision, Edit, Field, Origin, Refusal,
    SessionInfo, Stage, Stages, Verdict,
};
use intake::{BodyMemoryBudget, IntakeContext};
use mail::{EnhancedCode, MailEvent, Reply};
use spool::{RecipientState, SpooledMessage};

use crate::both_ways::by_drop_folder;
use crate::server::{Server, body_after_received, everyone};

/// Refuses a message with the word `virus`, discards one with `spam`, holds one with `odd`,
/// redirects one with `away`, and adds the size to the others.
struct WordCheck;

impl CheckFactory for WordCheck {
    fn order(&self) -> CheckOrder {
        CheckOrder::ContentRules
    }

    fn stages(&self, _origin: Origin) -> Stages {
        Stages::from_iter([Stage::Message])
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(WordCheck)
    }
}

impl Check for WordCheck {
    fn message<'a>(&'a mut self, _: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        Box::pin(async move {
            let content = read_all(message).await;
            let has = |word: &str| content.windows(word.len()).any(|window| window == word.as_bytes());
            if has("virus") {
                let reply = Reply::new(550, EnhancedCode(5, 7, 1), "No virus, please");
                return Decision::Refuse(Refusal { by: "words".into(), reply }).into();
            }
            if has("spam") {
                return Decision::Discard { by: "words".into() }.into();
            }
            let text = format!("{} bytes for {}", content.len(), message.recipients().len());
            let mut edits = vec![Edit::PrependField(Field::new("X-Size", &text).unwrap())];
            if has("away") {
                edits.push(Edit::ChangeSender(None));
                edits.push(Edit::add_recipient("robert@example.org".parse().unwrap()));
                edits.extend(message.recipients().into_iter().cloned().map(Edit::RemoveRecipient));
            }
            Verdict { held: has("odd"), edits, ..Verdict::default() }
        })
    }
}

async fn read_all(message: &mut dyn CheckedMessage) -> Vec<u8> {
    let mut content = Vec::new();
    loop {
        let chunk = message.read_content(content.len() as u64).await.unwrap();
        if chunk.is_empty() {
            assert_eq!(content.len() as u64, message.content_len());
            return content;
        }
        content.extend_from_slice(chunk);
    }
}

fn check_words(context: &mut IntakeContext) {
    context.relay_networks = everyone();
    context.checks = CheckChain::new(vec![Arc::new(WordCheck)]);
}

/// A message of this many bytes that ends in a word.
fn message_with(word: &str, bytes: usize) -> String {
    let end = format!("{word}\r\n");
    let mut message = String::from("Subject: x\r\n\r\n");
    while message.len() + end.len() + 100 < bytes {
        message += &format!("{:098}\r\n", message.len());
    }
    message + &end
}

/// The whole stored message, and its prefix alone.
fn stored(message: &SpooledMessage) -> (String, String) {
    let mut bytes = vec![0; message.body.len() as usize];
    assert_eq!(message.body.read_at(&mut bytes, 0).unwrap(), bytes.len());
    assert!(message.body.digest() == crc32c::crc32c(&bytes), "the checksum covers prefix and body");
    let prefix = bytes[..message.prefix_len as usize].to_vec();
    (String::from_utf8(bytes).unwrap(), String::from_utf8(prefix).unwrap())
}

/// In memory; in a file of the spool because it is large; and because memory is short.
#[tokio::test]
async fn a_field_is_added_and_content_refused_wherever_the_message_is() {
    for (bytes, budget) in [(200, 1 << 20), (200_000, 1 << 20), (700_000, 1 << 20), (150_000, 128 << 10)] {
        let server = Server::start(|context| {
            check_words(context);
            context.body_memory = BodyMemoryBudget::new(budget, 256 << 10);
        });
        let mut client = server.client().await;
        client.begin(&["bob@example.org"]).await;
        client.expect(&(message_with("virus", bytes) + "."), "550 5.7.1 No virus, please").await;
        assert_eq!(server.events.denied(), [("message", Some("words".into()))]);
        assert_eq!(server.context.spool.ids(), [], "{bytes}");
        let content = message_with("fine", bytes);
        client.begin(&["bob@example.org"]).await;
        client.expect(&format!("{content}."), "250 2.0.0").await;
        let (message, prefix) = stored(&server.message());
        let field = format!("X-Size: {} bytes for 1\r\nReceived: from client.example", content.len());
        assert!(prefix.starts_with(&field), "{prefix}");
        assert!(message == prefix + &content, "{bytes}");
        let files = server.folder.path().read_dir().unwrap().map(|file| file.unwrap().file_name());
        let bodies = files.filter(|name| name.to_string_lossy().starts_with("body-")).count();
        assert_eq!(bodies, usize::from(bytes > 256 << 10 || budget < 1 << 20), "{bytes}");
    }
}

#[tokio::test]
async fn a_check_discards_holds_and_changes_the_envelope() {
    let server = Server::start(check_words);
    let mut client = server.client().await;
    client.begin(&["bob@example.org"]).await;
    client.expect(&(message_with("spam", 200) + "."), "250 2.0.0 Ok: queued as").await;
    assert_eq!(server.context.spool.ids(), []);
    assert!(server.events.any(|event| matches!(event, MailEvent::Discarded { check, .. } if **check == *"words")));
    client.begin(&["bob@example.org"]).await;
    client.expect(&(message_with("odd", 200) + "."), "250").await;
    let held = server.message();
    assert_eq!(held.states, [RecipientState::Held { attempts: 0 }]);
    let server = Server::start(check_words);
    let mut client = server.client().await;
    client.begin(&["x@elsewhere.example", "y@elsewhere.example"]).await;
    client.expect(&(message_with("away", 200) + "."), "250").await;
    let message = server.message();
    assert_eq!(message.envelope.sender, None);
    assert_eq!(crate::recipients(&message), ["bob@example.org"]);
}

/// Makes these edits to every message.
struct Edits(Vec<Edit>);

impl CheckFactory for Edits {
    fn order(&self) -> CheckOrder {
        CheckOrder::ExternalFilters
    }

    fn stages(&self, _origin: Origin) -> Stages {
        Stages::from_iter([Stage::Message])
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(Edits(self.0.clone()))
    }
}

impl Check for Edits {
    fn message<'a>(&'a mut self, _: &'a SessionInfo<'a>, _: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        Box::pin(ready(Verdict { edits: std::mem::take(&mut self.0), ..Verdict::default() }))
    }
}

fn field(name: &str, value: &str) -> Field {
    Field::new(name, value).unwrap()
}

fn replace(name: &str, occurrence: usize, field: Option<Field>) -> Edit {
    Edit::ReplaceField { name: name.into(), occurrence, field }
}

/// A server whose only check makes these edits, with this much memory for bodies.
fn editing_server(edits: &[Edit], budget: u64) -> Server {
    let edits = edits.to_vec();
    Server::start(|context| {
        context.relay_networks = everyone();
        context.checks = CheckChain::new(vec![Arc::new(Edits(edits))]);
        context.body_memory = BodyMemoryBudget::new(budget, 256 << 10);
    })
}

/// In memory, in a file, and partly in both; from a session and from a local program.
#[tokio::test(flavor = "multi_thread")]
async fn fields_are_added_changed_and_removed_wherever_the_message_is() {
    let edits = [
        Edit::AppendField(field("X-Last", "1")),
        replace("subject", 1, Some(field("Subject", "changed"))),
        replace("X-Old", 2, None),
        replace("X-Old", 7, None),
        replace("X-New", 1, Some(field("X-New", "2"))),
        Edit::PrependField(field("X-First", "0")),
        replace("x-first", 1, Some(field("X-First", "00"))),
    ];
    let header = "X-Old: a\r\nSubject: x\r\nX-Old: b\r\n\tfolded\r\nX-Old: c\r\n";
    let edited = "X-Old: a\r\nSubject: changed\r\nX-Old: c\r\nX-Last: 1\r\nX-New: 2\r\n";
    for (bytes, budget) in [(200, 1 << 20), (200_000, 1 << 20), (700_000, 1 << 20), (150_000, 128 << 10)] {
        let body = message_with("end", bytes);
        let content = format!("{header}{}", body.strip_prefix("Subject: x\r\n").unwrap());
        let expected = content.replacen(header, edited, 1);
        let server = editing_server(&edits, budget);
        let mut client = server.client().await;
        client.begin(&["bob@example.org"]).await;
        client.expect(&format!("{content}."), "250 2.0.0").await;
        let (message, prefix) = stored(&server.message());
        assert!(prefix.starts_with("X-First: 00\r\nReceived: from"), "{prefix}");
        assert!(message == prefix + &expected, "{bytes}");
        let server = editing_server(&edits, budget);
        by_drop_folder(&server, &["bob@example.org"], &content).await;
        let (message, prefix) = stored(&server.message());
        assert!(prefix.starts_with("X-First: 00\r\nReceived: by"), "{prefix}");
        assert!(message == prefix + &expected, "{bytes}");
    }
}

#[tokio::test]
async fn a_body_is_replaced_with_its_properties() {
    for (bytes, budget) in [(200, 1 << 20), (700_000, 1 << 20), (150_000, 128 << 10)] {
        let body = "\u{e4}\r\n.dot\r\nno newline at the end";
        let server = editing_server(&[Edit::ReplaceBody(body.into())], budget);
        let mut client = server.client().await;
        client.begin(&["bob@example.org"]).await;
        client.expect(&(message_with("end", bytes) + "."), "250 2.0.0").await;
        let message = server.message();
        let flags = message.body.flags();
        assert!(flags.eight_bit && flags.dot_lines && !flags.ends_in_crlf);
        let (message, prefix) = stored(&message);
        assert!(message == format!("{prefix}Subject: x\r\n\r\n{body}"), "{bytes}");
    }
}

/// Otherwise a check could smuggle another message to the next hop.
#[tokio::test]
async fn a_body_with_a_bare_newline_is_not_taken_from_a_check() {
    for body in ["x\n.\n", "x\r.\r", "x\n\r\n", "\n", "x\r"] {
        let server = editing_server(&[Edit::ReplaceBody(body.into())], 1 << 20);
        let mut client = server.client().await;
        client.begin(&["bob@example.org"]).await;
        client.expect("Subject: x\r\n\r\nx\r\n.", "451 4.3.0 Body edited").await;
        assert_eq!(server.context.spool.ids(), [], "{body:?}");
    }
}

/// Without a session: a refusal goes into the notice, and the rest is the same.
#[tokio::test(flavor = "multi_thread")]
async fn mail_of_local_programs_passes_the_same_checks() {
    let server = Server::start(check_words);
    let names = ["bob@example.org", "x@elsewhere.example"];
    let refused = by_drop_folder(&server, &names, &message_with("virus", 200)).await;
    assert_eq!(refused, (vec!["550 5.7.1".into(); 2], Vec::new()));
    let server = Server::start(check_words);
    let content = message_with("fine", 200);
    let accepted = by_drop_folder(&server, &names, &content).await;
    assert_eq!(accepted.1, ["bob@example.org", "x@elsewhere.example"]);
    let (message, prefix) = stored(&server.message());
    let field = format!("X-Size: {} bytes for 2\r\nReceived: by mx.example.org", content.len());
    assert!(prefix.starts_with(&field), "{prefix}");
    assert!(message == prefix + &content);
    let server = Server::start(check_words);
    by_drop_folder(&server, &names, &message_with("spam", 200)).await;
    assert_eq!(server.context.spool.ids(), []);
    assert!(server.events.any(|event| matches!(event, MailEvent::Discarded { .. })));
}

/// A check that takes part in DATA alone, refuses there, and reads nothing.
#[tokio::test]
async fn a_refusal_at_data_comes_before_the_message() {
    struct NoData;
    impl CheckFactory for NoData {
        fn order(&self) -> CheckOrder {
            CheckOrder::ExternalFilters
        }
        fn stages(&self, _origin: Origin) -> Stages {
            Stages::from_iter([Stage::Data])
        }
        fn start(self: Arc<Self>) -> Box<dyn Check> {
            Box::new(NoData)
        }
    }
    impl Check for NoData {
        fn data<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
            assert_eq!(session.sender.flatten().map(ToString::to_string).as_deref(), Some("a@client.example"));
            let reply = Reply::new(451, EnhancedCode(4, 7, 1), "Not now");
            Box::pin(ready(Decision::Refuse(Refusal { by: "later".into(), reply }).into()))
        }
    }
    let server = Server::start(|context| context.checks = CheckChain::new(vec![Arc::new(NoData)]));
    let mut client = server.client().await;
    client.expect("MAIL FROM:<a@client.example>", "250").await;
    client.expect("RCPT TO:<bob@example.org>", "250").await;
    client.expect("DATA", "451 4.7.1 Not now").await;
    assert_eq!(server.events.denied(), [("DATA", Some("later".into()))]);
    drop(client);
}

/// A hundred fields of a kilobyte do not fit.
#[tokio::test]
async fn fields_beyond_the_limit_of_the_prefix_refuse_the_message() {
    struct ManyFields;
    impl CheckFactory for ManyFields {
        fn order(&self) -> CheckOrder {
            CheckOrder::ExternalFilters
        }
        fn stages(&self, _origin: Origin) -> Stages {
            Stages::from_iter([Stage::Mail])
        }
        fn start(self: Arc<Self>) -> Box<dyn Check> {
            Box::new(ManyFields)
        }
    }
    impl Check for ManyFields {
        fn mail<'a>(&'a mut self, _: &'a SessionInfo<'a>) -> CheckFuture<'a> {
            let edit = || Edit::PrependField(Field::new("X", &"x".repeat(1000)).unwrap());
            let edits = (0..100).map(|_| edit()).collect();
            Box::pin(ready(Verdict { edits, ..Verdict::default() }))
        }
    }
    let server = Server::start(|context| context.checks = CheckChain::new(vec![Arc::new(ManyFields)]));
    let mut client = server.client().await;
    client.begin(&["bob@example.org"]).await;
    client.expect("Subject: x\r\n\r\nx\r\n.", "451 4.3.0 Too many fields added to the message").await;
    assert_eq!(server.context.spool.ids(), []);
}

/// What a session stores without checks is what the client sent, after the Received line.
#[tokio::test]
async fn without_checks_the_prefix_is_the_received_line() {
    let server = Server::start(|_| {});
    server.client().await.deliver(&["bob@example.org"]).await;
    let message = server.message();
    let (whole, prefix) = stored(&message);
    assert_eq!(&whole.as_bytes()[prefix.len()..], body_after_received(&message));
}
