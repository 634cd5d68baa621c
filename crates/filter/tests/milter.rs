//! Sessions with a milter on a socket: what it is told, what its answers do, and what happens when it
//! fails.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fmt;
use std::future::{Future, ready};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use filter::access::ReverseName;
use filter::milter::{Milter, MilterSettings};
use filter::{
    Check, CheckFactory, CheckedMessage, ClientNameFuture, ClientNames, ContentFuture, Decision, Edit, FailureAction,
    Field, Origin, Refusal, ServiceScope, SessionInfo, Submitter, Verdict,
};
use mail::{Address, EnhancedCode, OperatorLog, Reply, TlsInfo};
use protocol::smtp::server::MailRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A milter that gives scripted answers, and records what it is told as `CODE data`.
#[derive(Clone, Default)]
struct Script {
    options: u32,
    /// The frames that answer a command; others are answered with `c`.
    answers: Vec<(u8, Vec<u8>)>,
    /// Reports of progress before the answer to the end of a message: how many, each after this time.
    progress: (usize, Duration),
    heard: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<usize>>,
}

impl Script {
    fn answering(mut self, command: u8, answer: &[u8]) -> Script {
        self.answers.push((command, answer.to_vec()));
        self
    }

    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }

    /// The codes of the commands, without macros and the end of a connection.
    fn heard_codes(&self) -> String {
        let heard = self.heard();
        heard.iter().filter(|frame| !frame.starts_with(['D', 'Q', 'K'])).map(|frame| &frame[..1]).collect()
    }

    async fn listen(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, script) = (listener.local_addr().unwrap().to_string(), self.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *script.connections.lock().unwrap() += 1;
                tokio::spawn(script.clone().serve(stream));
            }
        });
        address
    }

    async fn serve(self, mut stream: TcpStream) {
        while let Ok(length) = stream.read_u32().await {
            let mut data = vec![0; length as usize];
            stream.read_exact(&mut data).await.unwrap();
            self.heard.lock().unwrap().push(String::from_utf8_lossy(&data).replace('\0', "|"));
            let scripted = self.answers.iter().find(|(code, _)| *code == data[0]);
            let answer = match (data[0], scripted) {
                (_, Some((_, answer))) => answer.clone(),
                (b'O', None) => frame(b'O', &[6, 0x1ff, self.options].map(u32::to_be_bytes).concat()),
                (b'D' | b'A' | b'Q' | b'K', None) => continue,
                _ => frame(b'c', b""),
            };
            let progress = if data[0] == b'E' { self.progress } else { (0, Duration::ZERO) };
            for _ in 0..progress.0 {
                tokio::time::sleep(progress.1).await;
                if stream.write_all(&frame(b'p', b"")).await.is_err() {
                    return;
                }
            }
            if stream.write_all(&answer).await.is_err() {
                break;
            }
        }
    }
}

fn frame(code: u8, data: &[u8]) -> Vec<u8> {
    [&(data.len() as u32 + 1).to_be_bytes()[..], &[code], data].concat()
}

struct Names;

impl ClientNames for Names {
    fn name(&self, _client: IpAddr) -> ClientNameFuture<'_> {
        Box::pin(ready(ReverseName::Confirmed("mail.a.test".into())))
    }
}

struct NoLog;

impl OperatorLog for NoLog {
    fn log_line(&self, _line: fmt::Arguments<'_>) {}
}

fn settings(address: &str) -> MilterSettings {
    MilterSettings {
        name: "test".into(),
        address: address.parse().unwrap(),
        scope: ServiceScope::default(),
        on_failure: FailureAction::Defer,
        connect_time_max: Duration::from_secs(5),
        command_time_max: Duration::from_secs(5),
        message_time_max: Duration::from_secs(5),
        connections_max: 10,
        reuses_connections: true,
        sends_ahead: true,
        daemon_name: None,
    }
}

fn milter(settings: MilterSettings) -> Arc<Milter> {
    Arc::new(Milter::new(settings, "mx.test".into(), 1000, Arc::new(Names), Arc::new(NoLog)))
}

/// A message in memory, with a Received field of this server and one of a check.
struct Message {
    recipient: Address,
    content: Vec<u8>,
    /// The memory that is left for a new body.
    memory: usize,
}

const PREFIX: &[u8] = b"Authentication-Results: mx.test; none\r\nReceived: by mx.test\r\n";

impl Message {
    fn new() -> Message {
        let content = b"Subject: one\r\n two\r\n\r\nbody\r\n".to_vec();
        Message { recipient: "b@b.test".parse().unwrap(), content, memory: usize::MAX }
    }
}

impl CheckedMessage for Message {
    fn sender(&self) -> Option<&Address> {
        None
    }

    fn recipients(&self) -> Vec<&Address> {
        vec![&self.recipient]
    }

    fn prefix(&self) -> &[u8] {
        PREFIX
    }

    fn content_len(&self) -> u64 {
        self.content.len() as u64
    }

    fn is_eight_bit(&self) -> bool {
        false
    }

    /// Three bytes at a time.
    fn read_content(&mut self, position: u64) -> ContentFuture<'_> {
        let rest = self.content.get(position as usize..).unwrap_or_default();
        Box::pin(ready(Ok(&rest[..rest.len().min(3)])))
    }

    fn reserve_memory(&mut self, octets: usize) -> bool {
        self.memory.checked_sub(octets).map(|left| self.memory = left).is_some()
    }

    fn edit(&mut self, _edit: Edit) -> Pin<Box<dyn Future<Output = Result<(), Reply>> + Send + '_>> {
        Box::pin(ready(Ok(())))
    }
}

fn session<'a>(sender: Option<&'a Address>, recipient: Option<&'a Address>) -> SessionInfo<'a> {
    SessionInfo {
        client: Some(Ipv4Addr::new(192, 0, 2, 1).into()),
        client_port: 0x3039,
        listener: Some("127.0.0.1:25".parse().unwrap()),
        helo: Some("a.test"),
        sender: Some(sender),
        recipient,
        ..SessionInfo::default()
    }
}

/// All stages of one message, up to the first that does not go on.
async fn transaction(check: &mut Box<dyn Check>) -> Verdict {
    let (sender, recipient): (Address, Address) = ("a@a.test".parse().unwrap(), "b@b.test".parse().unwrap());
    let at_mail = session(Some(&sender), None);
    let verdict = check.mail(&at_mail).await;
    if verdict != Verdict::default() {
        return verdict;
    }
    let verdict = check.rcpt(&session(Some(&sender), Some(&recipient))).await;
    if verdict != Verdict::default() {
        return verdict;
    }
    let verdict = check.data(&at_mail).await;
    if verdict != Verdict::default() {
        return verdict;
    }
    check.message(&at_mail, &mut Message::new()).await
}

async fn whole_session(check: &mut Box<dyn Check>) -> Verdict {
    let known = session(None, None);
    let verdict = check.connect(&known).await;
    if verdict != Verdict::default() {
        return verdict;
    }
    let verdict = check.helo(&known).await;
    if verdict != Verdict::default() {
        return verdict;
    }
    transaction(check).await
}

async fn verdict_with(script: &Script, change: impl FnOnce(&mut MilterSettings)) -> Verdict {
    let mut settings = settings(&script.listen().await);
    change(&mut settings);
    whole_session(&mut milter(settings).start()).await
}

fn refusal(code: u16, enhanced: EnhancedCode, text: &'static str) -> Decision {
    Decision::Refuse(Refusal { by: "milter test".into(), reply: Reply::new(code, enhanced, text) })
}

fn unavailable() -> Decision {
    refusal(451, EnhancedCode(4, 7, 1), "Service unavailable, try again later")
}

#[tokio::test]
async fn a_milter_is_told_of_every_stage_as_postfix_tells_it() {
    let script = Script::default();
    assert_eq!(verdict_with(&script, |_| {}).await, Verdict::default());
    let connect = format!(
        "DCj|mx.test|{{daemon_name}}|mx.test|{{daemon_port}}|25|v|Mailrace {}|_|mail.a.test [192.0.2.1]|\
         {{client_addr}}|192.0.2.1|{{client_port}}|12345|{{client_name}}|mail.a.test|{{client_ptr}}|mail.a.test|\
         {{client_resolve}}|OK|",
        env!("CARGO_PKG_VERSION")
    );
    let heard = script.heard();
    let told: Vec<&str> = heard[1..].iter().map(String::as_str).collect();
    let expected = [
        &*connect,
        "Cmail.a.test|409192.0.2.1|",
        "Ha.test|",
        "DM{mail_addr}|a@a.test|{mail_host}|a.test|",
        "M<a@a.test>|",
        "DR{rcpt_addr}|b@b.test|{rcpt_host}|b.test|",
        "R<b@b.test>|",
        "T",
        "LAuthentication-Results|mx.test; none|",
        "LSubject|one\n two|",
        "N",
        "Bbod",
        "By\r\n",
        "E",
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn answers_become_verdicts() {
    let reply = [b"550 5.7.1 spam\0".as_slice()].concat();
    for (command, answer, expected) in [
        (b'C', frame(b'r', b""), refusal(554, EnhancedCode(5, 7, 1), "Command rejected")),
        (b'H', frame(b'a', b""), Decision::Accept),
        (b'M', frame(b't', b""), unavailable()),
        (b'R', frame(b'r', b""), refusal(550, EnhancedCode(5, 7, 1), "Command rejected")),
        (b'T', frame(b'4', b""), refusal(421, EnhancedCode(4, 7, 0), "Closing the connection")),
        (b'L', frame(b'd', b""), Decision::Discard { by: "milter test".into() }),
        (b'B', frame(b'y', &reply), refusal(550, EnhancedCode(5, 7, 1), "spam")),
        (b'E', frame(b'f', b""), unavailable()),
    ] {
        let script = Script::default().answering(command, &answer);
        assert_eq!(verdict_with(&script, |_| {}).await.decision, expected, "{}", char::from(command));
    }
}

/// At any point of the session. A refusal replaces the reply of the server, and nothing else; after a
/// failure, the message that is under way gets what `on_failure` says.
#[tokio::test]
async fn unknown_commands_are_told_and_get_the_reply_of_the_milter() {
    let known = session(None, None);
    for (answer, expected, later) in [
        (frame(b'c', b""), Decision::Continue, Decision::Continue),
        (frame(b'y', b"503 5.5.1 no magic\0"), refusal(503, EnhancedCode(5, 5, 1), "no magic"), Decision::Continue),
        (
            frame(b'd', b""),
            Decision::Discard { by: "milter test".into() },
            Decision::Discard { by: "milter test".into() },
        ),
        (frame(b'f', b""), Decision::Continue, unavailable()),
    ] {
        let script = Script::default().answering(b'U', &answer);
        let mut check = milter(settings(&script.listen().await)).start();
        check.connect(&known).await;
        check.mail(&known).await;
        assert_eq!(check.unknown_command(&known, b"WIZ now").await.decision, expected);
        assert_eq!(check.data(&known).await.decision, later, "{expected:?}");
        assert!(script.heard().contains(&"UWIZ now|".to_owned()));
    }
}

/// Another check may refuse the recipient at which the milter discarded the message.
#[tokio::test]
async fn a_message_that_is_discarded_at_a_recipient_stays_so() {
    let script = Script::default().answering(b'R', &frame(b'd', b""));
    let mut check = milter(settings(&script.listen().await)).start();
    let discarded = Decision::Discard { by: "milter test".into() };
    assert_eq!(whole_session(&mut check).await.decision, discarded);
    let recipient = "c@b.test".parse().unwrap();
    let (known, at_rcpt) = (session(None, None), session(None, Some(&recipient)));
    assert_eq!(check.rcpt(&at_rcpt).await.decision, discarded);
    assert_eq!(check.data(&known).await.decision, discarded);
    assert_eq!(check.message(&known, &mut Message::new()).await.decision, discarded);
    assert_eq!(check.mail(&known).await, Verdict::default());
    assert_eq!(script.heard_codes(), "OCHMRAM");
}

#[tokio::test]
async fn changes_become_edits() {
    let answer = [frame(b'h', b"X-A\0a\0"), frame(b'q', b"odd\0"), frame(b'b', b"new\n"), frame(b'a', b"")].concat();
    let verdict = verdict_with(&Script::default().answering(b'E', &answer), |_| {}).await;
    let edits = vec![Edit::AppendField(Field::new("X-A", "a").unwrap()), Edit::ReplaceBody(b"new\r\n".to_vec())];
    assert_eq!(verdict, Verdict { decision: Decision::Accept, held: true, edits, ..Verdict::default() });
    let answer = [frame(b'h', b"X A\0a\0"), frame(b'c', b"")].concat();
    let verdict = verdict_with(&Script::default().answering(b'E', &answer), |_| {}).await;
    assert_eq!(verdict.decision, unavailable(), "an invalid field");
}

/// A milter that answers only when it has got the end of the header, and then all at once.
#[tokio::test]
async fn parts_of_a_message_come_before_the_answers_to_earlier_parts() {
    let (long, short) = (Duration::from_secs(60), Duration::from_millis(300));
    for (version, command_time_max, expected) in [(6, long, Decision::Continue), (4, short, unavailable())] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = MilterSettings { command_time_max, ..settings(&listener.local_addr().unwrap().to_string()) };
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut waiting = Vec::new();
            while let Ok(length) = stream.read_u32().await {
                let mut data = vec![0; length as usize];
                stream.read_exact(&mut data).await.unwrap();
                match data[0] {
                    b'O' => waiting.extend(frame(b'O', &[version, 0, 0].map(u32::to_be_bytes).concat())),
                    b'D' | b'A' | b'Q' | b'K' => {}
                    _ => waiting.extend(frame(b'c', b"")),
                }
                if !matches!(data[0], b'D' | b'L' | b'N') {
                    let _ = stream.write_all(&std::mem::take(&mut waiting)).await;
                }
            }
        };
        let mut check = milter(settings).start();
        let verdict = tokio::select! {
            verdict = whole_session(&mut check) => verdict,
            () = serve => panic!("the session is open"),
        };
        assert_eq!(verdict.decision, expected, "version {version}");
    }
}

/// Nobody knows how many answers follow an early one, so the connection ends; from then on the milter gets
/// one command at a time.
#[tokio::test]
async fn a_milter_that_answers_early_is_told_the_next_messages_step_by_step() {
    let script = Script::default().answering(b'L', &frame(b'a', b""));
    let milter = milter(settings(&script.listen().await));
    let mut check = milter.start();
    assert_eq!(whole_session(&mut check).await.decision, Decision::Accept);
    assert_eq!(transaction(&mut check).await.decision, Decision::Accept);
    assert_eq!(transaction(&mut check).await.decision, Decision::Accept);
    let heard = script.heard_codes();
    let (first, later) = heard.split_once("OCHMRTL").unwrap().1.split_once('O').unwrap();
    assert!("LNBBE".starts_with(first), "{heard}");
    assert_eq!(later, "CHMRTLMRTL", "{heard}");
}

#[tokio::test]
async fn a_new_body_needs_memory_of_the_message() {
    let answer = [frame(b'b', &[b'x'; 700]), frame(b'c', b"")].concat();
    for (memory, expected) in [(2000, Decision::Continue), (1000, unavailable())] {
        let script = Script::default().answering(b'E', &answer);
        let milter = milter(settings(&script.listen().await));
        let recipients = session(None, None);
        let mut message = Message { memory, ..Message::new() };
        let mut check = milter.start();
        assert_eq!(check.connect(&recipients).await, Verdict::default());
        assert_eq!(check.mail(&recipients).await, Verdict::default());
        assert_eq!(check.message(&recipients, &mut message).await.decision, expected, "{memory}");
    }
}

/// Garbage, half a frame, an endless frame, nothing at all: at each step, and for each action.
#[tokio::test]
async fn a_milter_that_fails_leaves_the_decision_to_its_action() {
    let hostile = [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"\0\0\0\x05c", b"\xff\xff\xff\xff", b"\0\0\0\0", b""];
    for command in *b"OCHMRTLNBE" {
        for answer in hostile {
            let script = Script::default().answering(command, answer);
            let verdict = verdict_with(&script, |settings| {
                let MilterSettings { connect_time_max, command_time_max, message_time_max, .. } = settings;
                let times = [connect_time_max, command_time_max, message_time_max];
                times.into_iter().for_each(|time| *time = Duration::from_millis(30));
            });
            assert_eq!(verdict.await.decision, unavailable(), "{} {answer:?}", char::from(command));
        }
    }
    for (action, decision, held) in [
        (FailureAction::Accept, Decision::Continue, false),
        (FailureAction::Refuse, refusal(550, EnhancedCode(5, 7, 1), "Service unavailable"), false),
        (FailureAction::Quarantine, Decision::Continue, true),
    ] {
        let script = Script::default().answering(b'E', b"\0\0\0\0");
        let verdict = verdict_with(&script, |settings| settings.on_failure = action).await;
        assert_eq!((verdict.decision, verdict.held), (decision, held), "{action:?}");
    }
}

#[tokio::test]
async fn progress_renews_the_time_for_a_message() {
    let script = Script { progress: (6, Duration::from_millis(800)), ..Script::default() };
    let verdict = verdict_with(&script, |settings| settings.message_time_max = Duration::from_secs(4)).await;
    assert_eq!(verdict, Verdict::default());
}

#[tokio::test]
async fn a_milter_that_is_not_there_fails_at_mail() {
    let address = Script::default().listen().await;
    let port: u16 = address.rsplit_once(':').unwrap().1.parse().unwrap();
    // Nobody listens on a port of another loopback address.
    let mut check = milter(settings(&format!("127.0.0.9:{port}"))).start();
    let known = session(None, None);
    assert_eq!(check.connect(&known).await, Verdict::default());
    assert_eq!(check.helo(&known).await, Verdict::default());
    assert_eq!(transaction(&mut check).await.decision, unavailable());
}

#[tokio::test]
async fn the_next_message_after_a_failure_begins_anew() {
    let script = Script::default().answering(b'T', b"\0\0\0\0");
    let mut check = milter(settings(&script.listen().await)).start();
    assert_eq!(whole_session(&mut check).await.decision, unavailable());
    assert_eq!(transaction(&mut check).await.decision, unavailable());
    assert_eq!(script.heard_codes(), "OCHMRTOCHMRT");
}

#[tokio::test]
async fn a_transaction_without_a_message_is_aborted() {
    let script = Script::default();
    let mut check = milter(settings(&script.listen().await)).start();
    let known = session(None, None);
    check.connect(&known).await;
    check.mail(&known).await;
    check.mail(&known).await;
    check.helo(&known).await;
    check.mail(&known).await;
    assert_eq!(script.heard_codes(), "OCMAMAHM");
}

#[tokio::test]
async fn connections_serve_one_session_after_another() {
    for (reuses, last, expected) in [(true, b'c', 1), (false, b'c', 3), (true, b'a', 3)] {
        let script = Script::default().answering(b'E', &frame(last, b""));
        let milter = milter(MilterSettings { reuses_connections: reuses, ..settings(&script.listen().await) });
        for _ in 0..3 {
            whole_session(&mut milter.clone().start()).await;
        }
        assert_eq!(*script.connections.lock().unwrap(), expected, "{reuses} {}", char::from(last));
    }
}

#[tokio::test]
async fn sessions_beyond_the_limit_on_connections_fail_in_time() {
    let script = Script::default();
    let settings = MilterSettings {
        connections_max: 1,
        connect_time_max: Duration::from_secs(3),
        ..settings(&script.listen().await)
    };
    let milter = milter(settings);
    let (mut first, mut second) = (milter.clone().start(), milter.start());
    assert_eq!(first.connect(&session(None, None)).await, Verdict::default());
    assert_eq!(whole_session(&mut second).await.decision, unavailable());
    assert_eq!(transaction(&mut first).await, Verdict::default());
    drop(first);
    assert_eq!(transaction(&mut second).await, Verdict::default());
}

#[tokio::test]
async fn mail_of_local_programs_passes_all_stages_at_once() {
    let script = Script::default();
    let milter = milter(settings(&script.listen().await));
    let known =
        SessionInfo { is_user: true, submitter: Submitter::LocalProgram, sender: Some(None), ..SessionInfo::default() };
    let verdict = milter.start().message(&known, &mut Message::new()).await;
    assert_eq!(verdict, Verdict::default());
    let heard = script.heard();
    let told: Vec<&str> =
        heard.iter().map(String::as_str).filter(|frame| !frame.starts_with(['D', 'O', 'L', 'B'])).collect();
    assert_eq!(told, ["Clocalhost|4||127.0.0.1|", "Hlocalhost|", "M<>|", "R<b@b.test>|", "T", "N", "E"]);
}

#[tokio::test]
async fn only_mail_in_its_scope_is_shown_to_a_milter() {
    type Change = fn(&mut ServiceScope);
    let cases: [(Change, Decision); 5] = [
        (|scope| scope.exempt = "192.0.2.0/24".parse().unwrap(), Decision::Accept),
        (|scope| scope.clients = "198.51.100.0/24".parse().unwrap(), Decision::Accept),
        (|scope| scope.listeners = vec!["127.0.0.1:26".parse().unwrap()], Decision::Accept),
        (|scope| scope.listeners = vec!["127.0.0.1:25".parse().unwrap()], Decision::Continue),
        (|scope| scope.clients = "192.0.2.1/32".parse().unwrap(), Decision::Continue),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let script = Script::default();
        let verdict = verdict_with(&script, |settings| change(&mut settings.scope)).await;
        assert_eq!(
            (verdict.decision, script.heard().is_empty()),
            (expected.clone(), expected == Decision::Accept),
            "{number}"
        );
    }
    let script = Script::default();
    let scope = ServiceScope { users: false, local_programs: false, ..ServiceScope::default() };
    let milter = milter(MilterSettings { scope, ..settings(&script.listen().await) });
    assert!(milter.stages(Origin::LocalProgram).is_empty());
    let mut check = milter.start();
    let known = SessionInfo { is_user: true, ..session(None, None) };
    check.connect(&known).await;
    assert_eq!(check.mail(&known).await.decision, Decision::Accept);
    assert_eq!(script.heard_codes(), "OC");
}

/// A header that is too long shows whether the message is read.
#[tokio::test]
async fn a_message_is_only_read_for_milters_that_want_a_part_of_it() {
    let content = "x: y\r\n".repeat(filter::header::HEADER_OCTETS_MAX / 6 + 1).into_bytes();
    for (options, expected) in [(0x10 | 0x20, Decision::Continue), (0x10, unavailable()), (0x20, unavailable())] {
        let script = Script { options, ..Script::default() };
        let mut check = milter(settings(&script.listen().await)).start();
        let known = session(None, None);
        check.connect(&known).await;
        check.mail(&known).await;
        let mut message = Message { content: content.clone(), ..Message::new() };
        assert_eq!(check.message(&known, &mut message).await.decision, expected, "{options:x}");
    }
}

/// Macros about TLS and the login, with the names and at the stages of Postfix.
#[tokio::test]
async fn a_milter_is_told_of_the_encryption_and_the_login() {
    let script = Script::default();
    let mut check = milter(settings(&script.listen().await)).start();
    let sender: Address = "a@a.test".parse().unwrap();
    let mail = MailRequest {
        sender: Some(sender.clone()),
        size: None,
        body_type: Default::default(),
        smtputf8: false,
        ret: None,
        envid: None,
        auth: Some("bob@b.test".into()),
    };
    let known = SessionInfo {
        security: Some(TlsInfo { version: "TLSv1.3", cipher: "TLS_AES_256_GCM_SHA384" }),
        login_mechanism: Some("PLAIN"),
        submitter: Submitter::User("ann"),
        is_user: true,
        mail: Some(&mail),
        ..session(Some(&sender), None)
    };
    check.connect(&known).await;
    check.helo(&known).await;
    check.mail(&known).await;
    let tls = "{tls_version}|TLSv1.3|{cipher}|TLS_AES_256_GCM_SHA384|{cipher_bits}|256|";
    let login = "{auth_type}|PLAIN|{auth_authen}|ann|{auth_author}|bob@b.test|";
    let heard = script.heard();
    for expected in [format!("DH{tls}"), format!("DM{login}{{mail_addr}}|a@a.test|{{mail_host}}|a.test|{tls}")] {
        assert!(heard.contains(&expected), "{expected} {heard:?}");
    }
    // Nobody who has not logged in may name an author.
    let stranger = SessionInfo { submitter: Submitter::Stranger, login_mechanism: None, ..known };
    check.mail(&stranger).await;
    assert!(!script.heard().iter().any(|frame| frame.contains("auth_")));
}

/// The words that Postfix has for its own transports.
#[tokio::test]
async fn recipients_are_told_with_where_their_mail_goes() {
    for (is_recipient_local, expected) in [(Some(true), "local"), (Some(false), "smtp")] {
        let script = Script::default();
        let mut check = milter(settings(&script.listen().await)).start();
        let recipient = "b@b.test".parse().unwrap();
        let (known, at_rcpt) = (session(None, None), session(None, Some(&recipient)));
        check.connect(&known).await;
        check.mail(&known).await;
        check.rcpt(&SessionInfo { is_recipient_local, ..at_rcpt }).await;
        let told = format!("DR{{rcpt_addr}}|b@b.test|{{rcpt_host}}|b.test|{{rcpt_mailer}}|{expected}|");
        assert!(script.heard().contains(&told));
    }
}

#[tokio::test]
async fn refused_recipients_are_told_to_milters_that_ask_for_them() {
    let reply = Reply::new(550, EnhancedCode(5, 1, 1), "No such user");
    for (options, expected) in [(0, "OCM"), (0x800, "OCMR")] {
        let script = Script { options, ..Script::default() };
        let mut check = milter(settings(&script.listen().await)).start();
        let recipient = "x@b.test".parse().unwrap();
        let (known, at_rcpt) = (session(None, None), session(None, Some(&recipient)));
        check.connect(&known).await;
        check.mail(&known).await;
        check.recipient_refused(&at_rcpt, &reply).await;
        let heard = script.heard.lock().unwrap().clone();
        assert_eq!(script.heard_codes(), expected);
        let told = "DR{rcpt_addr}|No such user|{rcpt_host}|5.1.1|{rcpt_mailer}|error|";
        assert_eq!(heard.iter().any(|frame| frame == told), options != 0);
    }
}
