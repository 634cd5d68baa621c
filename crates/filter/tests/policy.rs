//! Sessions with a policy service on a socket: what it is asked, what its answers do, and what happens
//! when it fails.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fmt;
use std::future::{Future, ready};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use filter::access::{AccessCheck, AccessRules, CompiledRule, ReverseName, RuleAction};
use filter::policy::{PolicyService, PolicySettings};
use filter::{
    Check, CheckChain, CheckFactory, CheckedMessage, ClientNameFuture, ClientNames, ContentFuture, Decision, Edit,
    FailureAction, Field, Origin, RecipientEffects, Refusal, ServiceScope, SessionInfo, Stage, Submitter, Verdict,
};
use lookup::directory::{AliasLimits, RecipientDirectory};
use mail::{Address, EnhancedCode, OperatorLog, Reply, TlsInfo};
use protocol::smtp::server::MailRequest;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A service that gives the same answer to every question, and records them.
#[derive(Clone, Default)]
struct Script {
    answer: Vec<u8>,
    /// It closes the connection after each answer.
    closes: bool,
    asked: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<usize>>,
}

impl Script {
    fn answering(answer: &[u8]) -> Script {
        Script { answer: answer.to_vec(), ..Script::default() }
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

    async fn serve(self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        let mut question = String::new();
        while stream.read_line(&mut question).await.is_ok_and(|count| count > 0) {
            if question.ends_with("\n\n") {
                self.asked.lock().unwrap().push(std::mem::take(&mut question));
                if stream.write_all(&self.answer).await.is_err() || self.closes {
                    break;
                }
            }
        }
    }
}

struct Names;

impl ClientNames for Names {
    fn name(&self, _client: IpAddr) -> ClientNameFuture<'_> {
        Box::pin(ready(ReverseName::Unconfirmed("forged.a.test".into())))
    }
}

struct NoLog;

impl OperatorLog for NoLog {
    fn log_line(&self, _line: fmt::Arguments<'_>) {}
}

/// A message that records its edits.
struct Message {
    recipient: Address,
    edits: Vec<Edit>,
}

impl Message {
    fn to(recipient: &Address) -> Message {
        Message { recipient: recipient.clone(), edits: Vec::new() }
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
        b""
    }

    fn content_len(&self) -> u64 {
        4321
    }

    fn is_eight_bit(&self) -> bool {
        false
    }

    fn read_content(&mut self, _position: u64) -> ContentFuture<'_> {
        Box::pin(ready(Ok(&b""[..])))
    }

    fn edit(&mut self, edit: Edit) -> Pin<Box<dyn Future<Output = Result<(), Reply>> + Send + '_>> {
        self.edits.push(edit);
        Box::pin(ready(Ok(())))
    }
}

fn settings(address: &str, stages: &[Stage]) -> PolicySettings {
    PolicySettings {
        name: "test".into(),
        address: address.parse().unwrap(),
        stages: stages.to_vec(),
        scope: ServiceScope::default(),
        on_failure: FailureAction::Defer,
        connect_time_max: Duration::from_secs(5),
        answer_time_max: Duration::from_secs(5),
        connections_max: 10,
        context: "here".into(),
    }
}

fn service(settings: PolicySettings) -> Box<dyn Check> {
    Arc::new(PolicyService::new(settings, Arc::new(Names), Arc::new(NoLog))).start()
}

/// All stages of a message, up to the first that does not go on.
async fn session(check: &mut Box<dyn Check>) -> Verdict {
    let (sender, recipient): (Address, Address) = ("a@a.test".parse().unwrap(), "b@b.test".parse().unwrap());
    let known = SessionInfo {
        client: Some(Ipv4Addr::new(192, 0, 2, 1).into()),
        client_port: 4321,
        security: Some(TlsInfo { version: "TLSv1.3", cipher: "TLS_AES_128_GCM_SHA256" }),
        local_address: Some(Ipv4Addr::LOCALHOST.into()),
        listener: Some("127.0.0.1:25".parse().unwrap()),
        protocol: "ESMTP",
        submitter: Submitter::User("ann"),
        helo: Some("a.test"),
        sender: Some(Some(&sender)),
        recipients: 1,
        ..SessionInfo::default()
    };
    let at_rcpt = SessionInfo { recipient: Some(&recipient), ..known };
    let mut message = Message::to(&recipient);
    for stage in Stage::ALL {
        let verdict = match stage {
            Stage::Connect => check.connect(&known).await,
            Stage::Helo => check.helo(&known).await,
            Stage::Mail => check.mail(&known).await,
            Stage::Rcpt => check.rcpt(&at_rcpt).await,
            Stage::Data => check.data(&known).await,
            Stage::Message => check.message(&known, &mut message).await,
        };
        if verdict != Verdict::default() {
            return verdict;
        }
    }
    Verdict::default()
}

/// Passes all stages of a chain that has only the service. Returns the edits of the message.
async fn edits_in_chain(settings: PolicySettings, is_user: bool) -> Vec<Edit> {
    let service = PolicyService::new(settings, Arc::new(Names), Arc::new(NoLog));
    let mut checks = CheckChain::new(vec![Arc::new(service)]).start(Origin::Client).unwrap();
    let recipient: Address = "b@b.test".parse().unwrap();
    let listener = Some("127.0.0.1:25".parse().unwrap());
    let known = SessionInfo { listener, is_user, recipient: Some(&recipient), ..SessionInfo::default() };
    checks.connect(&known).await.unwrap();
    checks.helo(&known).await.unwrap();
    checks.mail(&known).await.unwrap();
    let before = RecipientEffects::default();
    let effects = checks.rcpt_admitted(&known, &before).await.unwrap();
    checks.add_recipient(effects);
    checks.data(&known).await.unwrap();
    let mut message = Message::to(&recipient);
    checks.message(&known, &mut message).await.unwrap();
    message.edits
}

async fn verdict_of(answer: &[u8], answer_time_max: Duration) -> Verdict {
    let script = Script::answering(answer);
    let address = script.listen().await;
    session(&mut service(PolicySettings { answer_time_max, ..settings(&address, &[Stage::Rcpt]) })).await
}

fn refusal(code: u16, enhanced: EnhancedCode, text: &'static str) -> Decision {
    Decision::Refuse(Refusal { by: "policy service test".into(), reply: Reply::new(code, enhanced, text) })
}

#[tokio::test]
async fn a_service_is_asked_at_its_stages_with_the_attributes_of_postfix() {
    let script = Script::answering(b"action=DUNNO\n\n");
    let address = script.listen().await;
    assert_eq!(session(&mut service(settings(&address, &[Stage::Rcpt, Stage::Message]))).await, Verdict::default());
    let asked = script.asked.lock().unwrap().clone();
    assert_eq!((asked.len(), *script.connections.lock().unwrap()), (2, 1));
    for line in [
        "request=smtpd_access_policy\nprotocol_state=RCPT\nprotocol_name=ESMTP\nclient_address=192.0.2.1\n",
        "\nclient_name=unknown\nclient_port=4321\nreverse_client_name=forged.a.test\n",
        "\nencryption_cipher=TLS_AES_128_GCM_SHA256\nencryption_keysize=128\n",
        "\nserver_address=127.0.0.1\nserver_port=25\nhelo_name=a.test\nsender=a@a.test\nrecipient=b@b.test\n",
        "\nrecipient_count=0\n",
        "\nsasl_username=ann\n",
        "\npolicy_context=here\n",
    ] {
        assert!(asked[0].contains(line), "{line} {}", asked[0]);
    }
    let instance = |asked: &str| asked.split("\ninstance=").nth(1).unwrap().lines().next().unwrap().to_owned();
    assert!(!instance(&asked[0]).is_empty() && instance(&asked[0]) == instance(&asked[1]));
    for line in ["\nprotocol_state=END-OF-MESSAGE\n", "\nrecipient=\nrecipient_count=1\n", "\nsize=4321\n"] {
        assert!(asked[1].contains(line), "{line} {}", asked[1]);
    }
}

#[tokio::test]
async fn an_instance_is_that_of_one_message_with_what_came_before_it() {
    let script = Script::answering(b"action=DUNNO\n\n");
    let address = script.listen().await;
    let mut check = service(settings(&address, &[Stage::Connect, Stage::Helo, Stage::Mail]));
    let known = SessionInfo { listener: Some("127.0.0.1:25".parse().unwrap()), ..SessionInfo::default() };
    check.connect(&known).await;
    check.helo(&known).await;
    check.mail(&known).await;
    check.mail(&known).await;
    let asked = script.asked.lock().unwrap().clone();
    let instances: Vec<&str> =
        asked.iter().map(|asked| asked.split("\ninstance=").nth(1).unwrap().lines().next().unwrap()).collect();
    assert!(instances[0] == instances[1] && instances[1] == instances[2], "{instances:?}");
    assert_ne!(instances[2], instances[3]);
}

#[tokio::test]
async fn an_author_is_told_of_users_alone() {
    for (submitter, expected) in [(Submitter::User("ann"), "bob@b.test"), (Submitter::Stranger, "")] {
        let script = Script::answering(b"action=DUNNO\n\n");
        let mut check = service(settings(&script.listen().await, &[Stage::Mail]));
        let mail = MailRequest {
            sender: None,
            size: None,
            body_type: Default::default(),
            smtputf8: false,
            ret: None,
            envid: None,
            auth: Some("bob@b.test".into()),
        };
        let listener = Some("127.0.0.1:25".parse().unwrap());
        check.mail(&SessionInfo { listener, submitter, mail: Some(&mail), ..SessionInfo::default() }).await;
        assert!(script.asked.lock().unwrap()[0].contains(&format!("\nsasl_sender={expected}\n")));
    }
}

#[tokio::test]
async fn answers_become_verdicts() {
    let address: Address = "c@c.test".parse().unwrap();
    let reply = Reply::new(450, EnhancedCode(4, 2, 0), "later");
    let deferral =
        Verdict { deferral: Some(Refusal { by: "policy service test".into(), reply }), ..Verdict::default() };
    let edits = |edits: Vec<Edit>| Verdict { edits, ..Verdict::default() };
    for (answer, expected) in [
        (&b"action=OK\n\n"[..], Decision::Accept.into()),
        (b"action=REJECT no\n\n", refusal(554, EnhancedCode(5, 7, 1), "no").into()),
        (b"action=DEFER_IF_PERMIT 4.2.0 later\n\n", refusal(450, EnhancedCode(4, 2, 0), "later").into()),
        (b"action=DEFER_IF_REJECT 4.2.0 later\n\n", deferral),
        (b"action=HOLD\n\n", Verdict { held: true, ..Verdict::default() }),
        (b"action=DISCARD\n\n", Decision::Discard { by: "policy service test".into() }.into()),
        (b"action=PREPEND X-A: b\n\n", edits(vec![Edit::PrependField(Field::new("X-A", "b").unwrap())])),
        (b"action=BCC c@c.test\n\n", edits(vec![Edit::add_recipient(address.clone())])),
        (
            b"action=FILTER amavis:[127.0.0.1]:10024\n\n",
            edits(vec![Edit::PrependField(Field::new("X-Mailrace-Filter", "amavis:[127.0.0.1]:10024").unwrap())]),
        ),
        (b"action=REDIRECT c@c.test\n\n", edits(vec![Edit::Redirect(address)])),
        (b"action=WARN look\n\n", Verdict::default()),
    ] {
        assert_eq!(verdict_of(answer, Duration::from_secs(60)).await, expected, "{}", String::from_utf8_lossy(answer));
    }
}

#[tokio::test]
async fn the_first_restriction_that_decides_counts() {
    let reject = || refusal(554, EnhancedCode(5, 7, 1), "Access denied");
    for (answer, expected) in [
        (&b"action=permit_mynetworks, permit_sasl_authenticated, reject\n\n"[..], Decision::Accept),
        (b"action=reject_unauth_destination permit_mynetworks\n\n", Decision::Continue),
        (
            b"action=reject_unknown_reverse_client_hostname,defer\n\n",
            refusal(450, EnhancedCode(4, 7, 1), "Access denied"),
        ),
        (b"action=warn_if_reject, reject_unknown_client_hostname, reject\n\n", reject()),
        (b"action=warn_if_reject, reject\n\n", Decision::Continue),
        (b"action=warn_if_reject, permit_mynetworks, reject\n\n", reject()),
    ] {
        assert_eq!(
            verdict_of(answer, Duration::from_secs(60)).await,
            expected.into(),
            "{}",
            String::from_utf8_lossy(answer)
        );
    }
}

#[tokio::test]
async fn a_service_may_name_a_class_of_access_rules() {
    let rule = |name: &str, class: Option<&str>, action| CompiledRule {
        name: name.into(),
        list: None,
        class: class.map(Into::into),
        stage: Stage::Rcpt,
        applies_to_users: true,
        chooses_filters: false,
        conditions: Vec::new(),
        action,
    };
    let rules = vec![
        rule("no class", None, RuleAction::Refuse(None)),
        rule("other class", Some("others"), RuleAction::Refuse(None)),
        rule("held", Some("late"), RuleAction::Hold),
        rule("late", Some("late"), RuleAction::Defer(None)),
        rule("held too", Some("holding"), RuleAction::Hold),
        CompiledRule { list: Some("l".into()), ..rule("pass", Some("pass"), RuleAction::Accept) },
        CompiledRule { stage: Stage::Mail, ..rule("early", Some("early"), RuleAction::Refuse(None)) },
    ];
    let access = Arc::new(AccessCheck {
        rules: Arc::new(AccessRules::new(rules).unwrap()),
        directory: Arc::new(RecipientDirectory::new(Vec::new(), AliasLimits::default())),
        log: Arc::new(NoLog),
    });
    let deferred = Reply::new(450, EnhancedCode(4, 7, 1), "Access temporarily denied, try again later");
    let by_rule = Decision::Refuse(Refusal { by: "late".into(), reply: deferred });
    let failure = refusal(451, EnhancedCode(4, 7, 1), "Service unavailable, try again later");
    for (answer, expected) in [
        (&b"action=late\n\n"[..], Verdict { held: true, ..by_rule.clone().into() }),
        (b"action=permit_mynetworks, holding late\n\n", Verdict { held: true, ..by_rule.into() }),
        (b"action=holding, permit\n\n", Verdict { held: true, ..Decision::Accept.into() }),
        (b"action=pass, reject\n\n", Decision::Accept.into()),
        (b"action=warn_if_reject late\n\n", Verdict::default()),
        (b"action=unknown_class\n\n", failure.clone().into()),
        (b"action=holding, unknown_class\n\n", failure.clone().into()),
        // It let in what the class refuses at another stage.
        (b"action=early\n\n", failure.into()),
        (b"action=DUNNO\n\n", Verdict::default()),
    ] {
        let address = Script::answering(answer).listen().await;
        let service = PolicyService::new(settings(&address, &[Stage::Rcpt]), Arc::new(Names), Arc::new(NoLog));
        let mut check = Arc::new(service.with_access_rules(Some(access.clone()))).start();
        assert_eq!(session(&mut check).await, expected, "{}", String::from_utf8_lossy(answer));
    }
}

#[tokio::test]
async fn mail_is_redirected_from_every_stage() {
    for stage in Stage::ALL {
        let address = Script::answering(b"action=REDIRECT c@c.test\n\n").listen().await;
        let expected = [Edit::Redirect("c@c.test".parse().unwrap())];
        assert_eq!(edits_in_chain(settings(&address, &[stage]), false).await, expected, "{stage:?}");
    }
}

#[tokio::test]
async fn mail_of_users_is_only_asked_about_in_the_scope() {
    for stage in [Stage::Mail, Stage::Rcpt, Stage::Data, Stage::Message] {
        for (users, expected) in [(true, 1), (false, 0)] {
            let script = Script::answering(b"action=DUNNO\n\n");
            let scope = ServiceScope { users, ..ServiceScope::default() };
            let settings = PolicySettings { scope, ..settings(&script.listen().await, &[stage]) };
            assert_eq!(edits_in_chain(settings, true).await, []);
            assert_eq!(script.asked.lock().unwrap().len(), expected, "{stage:?} {users}");
        }
    }
}

#[tokio::test]
async fn a_service_that_fails_leaves_the_decision_to_its_action() {
    let unavailable = refusal(451, EnhancedCode(4, 7, 1), "Service unavailable, try again later");
    let endless = b"x=y\n".repeat(5000);
    for answer in [
        &b""[..],
        b"action=OK\n",
        b"OK\n\n",
        b"action=FILTER amavis\n\n",
        b"action=PREPEND X A: b\n\n",
        b"action=OK\n\naction=OK\n\n",
        &endless,
    ] {
        assert_eq!(
            verdict_of(answer, Duration::from_millis(200)).await.decision,
            unavailable,
            "{}",
            String::from_utf8_lossy(&answer[..answer.len().min(40)])
        );
    }
}

#[tokio::test]
async fn a_connection_that_the_service_has_closed_is_replaced() {
    let script = Script { closes: true, ..Script::answering(b"action=DUNNO\n\n") };
    let address = script.listen().await;
    let mut check = service(settings(&address, &[Stage::Helo, Stage::Mail, Stage::Rcpt, Stage::Data]));
    assert_eq!(session(&mut check).await, Verdict::default());
    assert_eq!(script.asked.lock().unwrap().len(), 4);
}
