//! The chain calls checks in the fixed order, keeps what they say for as long as it holds, and asks
//! nobody again who has accepted.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use filter::{
    Check, CheckChain, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, ContentFuture, Decision, Disposition,
    Edit, Field, Finding, MessageCheckError, Origin, Refusal, SessionChecks, SessionInfo, Stage, Stages, Verdict,
};
use mail::{Address, EnhancedCode, Reply};

/// The names of the checks that were called, with the stage.
type Calls = Arc<Mutex<Vec<String>>>;

/// Gives the same verdict at one stage, and nothing at others.
struct Scripted {
    name: &'static str,
    order: CheckOrder,
    stage: Stage,
    verdict: Verdict,
    calls: Calls,
}

struct Running(Arc<Scripted>);

impl CheckFactory for Scripted {
    fn order(&self) -> CheckOrder {
        self.order
    }

    fn stages(&self, origin: Origin) -> Stages {
        let stages = Stage::ALL.into_iter();
        stages.filter(|stage| origin == Origin::Client || *stage == Stage::Message).collect()
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(Running(self))
    }
}

impl Running {
    fn answer<'a>(&'a self, stage: Stage, session: &SessionInfo<'_>) -> CheckFuture<'a> {
        let known: Vec<&str> = session.findings.iter().map(|finding| finding.result).collect();
        self.0.calls.lock().unwrap().push(format!("{} {}{}", self.0.name, stage.name(), known.concat()));
        let verdict = if stage == self.0.stage { self.0.verdict.clone() } else { Verdict::default() };
        Box::pin(ready(verdict))
    }
}

impl Check for Running {
    fn connect<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        self.answer(Stage::Connect, session)
    }

    fn helo<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        self.answer(Stage::Helo, session)
    }

    fn mail<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        self.answer(Stage::Mail, session)
    }

    fn rcpt<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        self.answer(Stage::Rcpt, session)
    }

    fn data<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        self.answer(Stage::Data, session)
    }

    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, _: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        self.answer(Stage::Message, session)
    }
}

/// Refuses the greeting `refused`, and holds the mail of others.
struct Greetings;

struct RunningGreetings;

impl CheckFactory for Greetings {
    fn order(&self) -> CheckOrder {
        CheckOrder::AccessRules
    }

    fn stages(&self, _: Origin) -> Stages {
        [Stage::Helo].into_iter().collect()
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(RunningGreetings)
    }
}

impl Check for RunningGreetings {
    fn helo<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        let is_refused = session.helo == Some("refused");
        Box::pin(ready(if is_refused { Decision::Refuse(refusal("greetings")).into() } else { held() }))
    }
}

/// A message that records its edits.
#[derive(Default)]
struct Edited(Vec<Edit>);

impl CheckedMessage for Edited {
    fn sender(&self) -> Option<&Address> {
        None
    }

    fn recipients(&self) -> Vec<&Address> {
        Vec::new()
    }

    fn prefix(&self) -> &[u8] {
        b""
    }

    fn is_eight_bit(&self) -> bool {
        false
    }

    fn content_len(&self) -> u64 {
        0
    }

    fn read_content(&mut self, _position: u64) -> ContentFuture<'_> {
        Box::pin(ready(Ok(&b""[..])))
    }

    fn edit(&mut self, edit: Edit) -> Pin<Box<dyn Future<Output = Result<(), Reply>> + Send + '_>> {
        let refused = matches!(&edit, Edit::AddRecipient { .. }).then(|| Reply::new(451, EnhancedCode(4, 3, 0), "no"));
        self.0.push(edit);
        Box::pin(ready(refused.map_or(Ok(()), Err)))
    }
}

/// A chain of scripted checks, and what was called.
#[derive(Default)]
struct Chain(Vec<Arc<dyn CheckFactory>>, Calls);

impl Chain {
    fn with(mut self, name: &'static str, order: CheckOrder, stage: Stage, verdict: impl Into<Verdict>) -> Chain {
        let (verdict, calls) = (verdict.into(), self.1.clone());
        self.0.push(Arc::new(Scripted { name, order, stage, verdict, calls }));
        self
    }

    fn start(self) -> (Box<SessionChecks>, Calls) {
        (CheckChain::new(self.0).start(Origin::Client).unwrap(), self.1)
    }
}

fn held() -> Verdict {
    Verdict { held: true, ..Verdict::default() }
}

fn refusal(by: &str) -> Refusal {
    Refusal { by: by.into(), reply: Reply::new(550, EnhancedCode(5, 7, 1), "no") }
}

fn field(name: &str) -> Edit {
    Edit::PrependField(Field::new(name, "x").unwrap())
}

fn session() -> SessionInfo<'static> {
    SessionInfo::default()
}

fn take(calls: &Calls) -> Vec<String> {
    std::mem::take(&mut *calls.lock().unwrap())
}

#[tokio::test]
async fn checks_run_in_the_fixed_order_and_a_refusal_ends_the_stage() {
    let refuse = Decision::Refuse(refusal("milter"));
    let (mut checks, calls) = Chain::default()
        .with("signer", CheckOrder::Signing, Stage::Mail, Decision::Continue)
        .with("milter", CheckOrder::ExternalFilters, Stage::Mail, refuse)
        .with("access", CheckOrder::AccessRules, Stage::Mail, Decision::Continue)
        .start();
    assert_eq!(checks.mail(&session()).await, Err(refusal("milter")));
    assert_eq!(take(&calls), ["access mail", "milter mail"]);
    checks.connect(&session()).await.unwrap();
    assert_eq!(take(&calls), ["access connect", "milter connect", "signer connect"]);
}

#[tokio::test]
async fn accepting_ends_only_the_check_itself_for_as_long_as_the_answer_holds() {
    for (stage, expected) in [
        (Stage::Connect, "b helo, b mail, b rcpt, b data, b message, b mail"),
        (Stage::Helo, "a helo, b helo, b mail, b rcpt, b data, b message, b mail"),
        (Stage::Mail, "a helo, b helo, a mail, b mail, b rcpt, b data, b message, a mail, b mail"),
        (
            Stage::Rcpt,
            "a helo, b helo, a mail, b mail, a rcpt, b rcpt, a data, b data, a message, b message, a mail, b mail",
        ),
        (Stage::Data, "a helo, b helo, a mail, b mail, a rcpt, b rcpt, a data, b data, b message, a mail, b mail"),
    ] {
        let (mut checks, calls) = Chain::default()
            .with("a", CheckOrder::AccessRules, stage, Decision::Accept)
            .with("b", CheckOrder::ContentRules, stage, Decision::Continue)
            .start();
        checks.connect(&session()).await.unwrap();
        take(&calls);
        checks.helo(&session()).await.unwrap();
        checks.mail(&session()).await.unwrap();
        let effects = checks.rcpt(&session()).await.unwrap();
        let later = checks.rcpt_admitted(&session(), &effects).await.unwrap();
        checks.add_recipient(effects);
        checks.add_recipient(later);
        checks.data(&session()).await.unwrap();
        checks.message(&session(), &mut Edited::default()).await.unwrap();
        checks.mail(&session()).await.unwrap();
        assert_eq!(take(&calls).join(", "), expected, "{stage:?}");
        checks.connect(&session()).await.unwrap();
        assert_eq!(take(&calls), ["a connect", "b connect"], "another client");
    }
}

#[tokio::test]
async fn what_is_held_stays_held_for_session_helo_or_transaction() {
    let is_held = |checks: &SessionChecks| checks.disposition(true).held;
    let (mut checks, _) = Chain::default().with("a", CheckOrder::AccessRules, Stage::Helo, held()).start();
    checks.helo(&session()).await.unwrap();
    checks.mail(&session()).await.unwrap();
    checks.mail(&session()).await.unwrap();
    assert!(is_held(&checks));
    checks.connect(&session()).await.unwrap();
    assert!(!is_held(&checks));
    let (mut checks, _) = Chain::default().with("a", CheckOrder::AccessRules, Stage::Rcpt, held()).start();
    let unused = checks.rcpt(&session()).await.unwrap();
    drop(unused);
    assert!(!is_held(&checks), "the recipient was not added");
    let effects = checks.rcpt(&session()).await.unwrap();
    checks.add_recipient(effects);
    assert!(is_held(&checks));
    checks.mail(&session()).await.unwrap();
    assert!(!is_held(&checks), "another transaction");
}

#[tokio::test]
async fn a_greeting_that_is_refused_leaves_what_was_said_of_the_last_one() {
    let mut checks = CheckChain::new(vec![Arc::new(Greetings)]).start(Origin::Client).unwrap();
    checks.helo(&SessionInfo { helo: Some("held"), ..session() }).await.unwrap();
    checks.helo(&SessionInfo { helo: Some("refused"), ..session() }).await.unwrap_err();
    checks.mail(&session()).await.unwrap();
    assert!(checks.disposition(true).held);
}

#[tokio::test]
async fn edits_are_made_in_order_and_seen_by_later_checks() {
    let edit = |names: &[&str]| Verdict { edits: names.iter().map(|name| field(name)).collect(), ..Verdict::default() };
    let (mut checks, _) = Chain::default()
        .with("spf", CheckOrder::Verification, Stage::Mail, edit(&["A", "B"]))
        .with("milter", CheckOrder::ExternalFilters, Stage::Message, edit(&["C"]))
        .with("proxy", CheckOrder::AccessRules, Stage::Connect, edit(&["D"]))
        .start();
    checks.connect(&session()).await.unwrap();
    checks.mail(&session()).await.unwrap();
    assert!(checks.concern_message());
    let mut message = Edited::default();
    checks.message(&session(), &mut message).await.unwrap();
    assert_eq!(message.0, ["D", "A", "B", "C"].map(field));
}

#[tokio::test]
async fn an_edit_that_fails_refuses_the_message() {
    let edits = vec![Edit::add_recipient("a@b.test".parse().unwrap())];
    let verdict = Verdict { edits, ..Verdict::default() };
    let (mut checks, calls) = Chain::default()
        .with("a", CheckOrder::ExternalFilters, Stage::Message, verdict)
        .with("b", CheckOrder::Signing, Stage::Message, Decision::Continue)
        .start();
    let refused = checks.message(&session(), &mut Edited::default()).await;
    assert!(matches!(refused, Err(MessageCheckError::NotEdited(reply)) if reply.code == 451));
    assert_eq!(take(&calls), ["a message"]);
}

#[tokio::test]
async fn a_discarded_message_is_not_checked_further() {
    let (mut checks, calls) = Chain::default()
        .with("a", CheckOrder::ExternalFilters, Stage::Message, Decision::Discard { by: "a".into() })
        .with("b", CheckOrder::Signing, Stage::Message, Decision::Continue)
        .start();
    checks.message(&session(), &mut Edited::default()).await.unwrap();
    assert_eq!(checks.disposition(true), Disposition { held: false, discarded_by: Some("a".into()) });
    assert_eq!(take(&calls), ["a message"]);
}

#[tokio::test]
async fn later_checks_know_what_earlier_ones_found() {
    let found =
        |result| Verdict { findings: vec![Finding { method: "spf", result, domain: None }], ..Verdict::default() };
    let (mut checks, calls) = Chain::default()
        .with("a", CheckOrder::Verification, Stage::Mail, found("-fail"))
        .with("b", CheckOrder::ContentRules, Stage::Data, Decision::Continue)
        .start();
    checks.mail(&session()).await.unwrap();
    checks.data(&session()).await.unwrap();
    checks.mail(&session()).await.unwrap();
    let expected = ["a mail", "b mail-fail", "a data-fail", "b data-fail", "a mail", "b mail-fail"];
    assert_eq!(take(&calls), expected);
}

fn deferring(by: &str) -> Verdict {
    Verdict { deferral: Some(deferral(by)), ..Verdict::default() }
}

fn deferral(by: &str) -> Refusal {
    Refusal { by: by.into(), reply: Reply::new(450, EnhancedCode(4, 7, 1), "not now") }
}

#[tokio::test]
async fn a_refusal_for_good_becomes_the_first_deferral_that_a_check_of_the_stage_has_named() {
    let refuse = |by| Decision::Refuse(refusal(by));
    for stage in [Stage::Connect, Stage::Helo, Stage::Mail, Stage::Data] {
        let (mut checks, _) = Chain::default()
            .with("access", CheckOrder::AccessRules, stage, deferring("access"))
            .with("policy", CheckOrder::ExternalFilters, stage, deferring("policy"))
            .with("content", CheckOrder::ContentRules, stage, refuse("content"))
            .start();
        let result = match stage {
            Stage::Connect => checks.connect(&session()).await,
            Stage::Helo => checks.helo(&session()).await,
            Stage::Mail => checks.mail(&session()).await,
            _ => checks.data(&session()).await,
        };
        assert_eq!(result, Err(deferral("access")), "{stage:?}");
    }
    let (mut checks, _) = Chain::default()
        .with("policy", CheckOrder::ExternalFilters, Stage::Message, deferring("policy"))
        .with("content", CheckOrder::ContentRules, Stage::Message, refuse("content"))
        .start();
    let result = checks.message(&session(), &mut Edited::default()).await;
    assert_eq!(result, Err(MessageCheckError::Refused(deferral("policy"))));
}

#[tokio::test]
async fn a_deferral_in_place_of_a_refusal_holds_for_its_stage_and_its_recipient() {
    let (mut checks, _) = Chain::default()
        .with("access", CheckOrder::AccessRules, Stage::Rcpt, deferring("access"))
        .with("milter", CheckOrder::ExternalFilters, Stage::Rcpt, Decision::Refuse(refusal("milter")))
        .with("content", CheckOrder::ContentRules, Stage::Data, Decision::Refuse(refusal("content")))
        .start();
    let effects = checks.rcpt(&session()).await.unwrap();
    let unknown = Reply::new(550, EnhancedCode(5, 1, 1), "no such mailbox");
    assert_eq!(effects.refusal_reply(unknown), deferral("access").reply);
    let busy = Reply::new(452, EnhancedCode(4, 3, 1), "busy");
    assert_eq!(effects.refusal_reply(busy.clone()), busy, "a temporary refusal stays");
    assert_eq!(checks.rcpt_admitted(&session(), &effects).await.unwrap_err(), deferral("access"));
    checks.add_recipient(effects);
    assert_eq!(checks.data(&session()).await, Err(refusal("content")), "another stage");
}

#[test]
fn without_checks_nothing_is_started() {
    assert!(CheckChain::default().start(Origin::Client).is_none());
}
