//! Layered tables on a backend that the test scripts request by request. Keys are queued by the
//! call of `lookup`, not by the first poll, so everything happens in the order written here.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lookup::backend::{Backend, BackendFailure, BackendFuture, ProbeFuture};
use lookup::layers::{BackendSettings, BackendTable, CacheSettings};
use lookup::{LookupAnswer, LookupFuture, Table, TableEvent, TableLayer, TracedAnswer};
use tokio::sync::{mpsc, oneshot};

/// A request to the backend, with the channel for its answers.
struct Request {
    keys: Vec<Box<str>>,
    reply: oneshot::Sender<Result<Vec<LookupAnswer>, BackendFailure>>,
}

type Probe = oneshot::Sender<Result<(), BackendFailure>>;

/// A backend that hands every request and probe to the test.
struct ScriptedBackend {
    requests: mpsc::UnboundedSender<Request>,
    probes: mpsc::UnboundedSender<Probe>,
}

impl Backend for ScriptedBackend {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> BackendFuture<'a> {
        Box::pin(async move {
            let (reply, answers) = oneshot::channel();
            self.requests.send(Request { keys: keys.to_vec(), reply }).unwrap();
            answers.await.unwrap_or_else(|_| panic!("the test dropped a request to end the table's thread"))
        })
    }

    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(async move {
            let (reply, result) = oneshot::channel();
            self.probes.send(reply).unwrap();
            result.await.unwrap()
        })
    }
}

/// A table with the backend's and the operator's side.
struct Harness {
    table: BackendTable,
    requests: mpsc::UnboundedReceiver<Request>,
    probes: mpsc::UnboundedReceiver<Probe>,
    events: mpsc::UnboundedReceiver<TableEvent>,
}

impl Harness {
    fn new(settings: BackendSettings) -> Self {
        let ((ask, requests), (probe, probes)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let (tell, events) = mpsc::unbounded_channel();
        let backend = ScriptedBackend { requests: ask, probes: probe };
        let told = Arc::new(move |event| drop(tell.send(event)));
        Harness { table: BackendTable::start("people", backend, settings, told).unwrap(), requests, probes, events }
    }

    /// Looks up one key and answers the request.
    async fn cache_answer(&mut self, key: &str, answer: LookupAnswer) {
        let asked = [key];
        let question = self.table.lookup(&asked);
        self.requests.recv().await.unwrap().answer(vec![answer]);
        question.await;
    }

    /// Looks up one key and fails the request; returns the answer.
    async fn fail(&mut self, key: &str) -> LookupAnswer {
        let asked = [key];
        let question = self.table.lookup(&asked);
        self.requests.recv().await.unwrap().fail();
        question.await.remove(0)
    }

    fn is_idle(&mut self) -> bool {
        self.requests.try_recv().is_err() && self.table.stats().unwrap().waiting == 0
    }
}

impl Request {
    fn keys(&self) -> Vec<&str> {
        self.keys.iter().map(|key| &**key).collect()
    }

    fn answer(self, answers: Vec<LookupAnswer>) {
        assert!(self.reply.send(Ok(answers)).is_ok());
    }

    fn fail(self) {
        assert!(self.reply.send(Err(BackendFailure::new("ldap://one", "no route"))).is_ok());
    }

    /// Answers each key with itself.
    fn echo(self) {
        let answers = self.keys.iter().map(|key| found(&[key])).collect();
        self.answer(answers);
    }
}

/// The next event other than Failed.
async fn transition(events: &mut mpsc::UnboundedReceiver<TableEvent>) -> TableEvent {
    loop {
        match events.recv().await.unwrap() {
            TableEvent::Failed { .. } => {}
            event => return event,
        }
    }
}

fn found(values: &[&str]) -> LookupAnswer {
    LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
}

fn unavailable(why: &str) -> LookupAnswer {
    LookupAnswer::Unavailable(why.to_owned())
}

/// The answers of a lookup that must be ready.
fn ready_answers(mut question: LookupFuture<'_>) -> Vec<LookupAnswer> {
    match question.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answers) => answers,
        Poll::Pending => panic!("the lookup must not wait"),
    }
}

fn ready_trace(table: &BackendTable, key: &str) -> TracedAnswer {
    match pin!(table.trace(key)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(trace) => trace,
        Poll::Pending => panic!("the lookup must not wait"),
    }
}

/// One request at a time; cache entries are stale immediately.
fn instantly_stale() -> BackendSettings {
    let cache = CacheSettings { ttl: Duration::ZERO, negative_ttl: Duration::ZERO, ..CacheSettings::default() };
    BackendSettings { cache: Some(cache), ..one_at_a_time() }
}

fn one_at_a_time() -> BackendSettings {
    BackendSettings { concurrency: 1, ..BackendSettings::default() }
}

const FAILED: &str = "table 'people': ldap://one: no route";

#[tokio::test]
async fn what_the_cache_has_is_answered_at_once_whatever_the_case() {
    let mut harness = Harness::new(BackendSettings::default());
    harness.cache_answer("Bob@Example.org", found(&["mailbox", "other"])).await;
    harness.cache_answer("nobody@example.org", LookupAnswer::NotFound).await;
    let keys = ["nobody@example.org", "bob@example.org", "BOB@EXAMPLE.ORG"];
    let expected = [LookupAnswer::NotFound, found(&["mailbox", "other"]), found(&["mailbox", "other"])];
    assert_eq!(ready_answers(harness.table.lookup(&keys)), expected);
    assert_eq!(ready_answers(harness.table.lookup(&[])), []);
    let stats = harness.table.stats().unwrap();
    assert_eq!((stats.found, stats.not_found, stats.hits, stats.cached, stats.requests), (3, 2, 3, 2, 2));
    assert!(harness.is_idle());
}

#[tokio::test]
async fn the_backend_gets_folded_keys() {
    let mut harness = Harness::new(BackendSettings::default());
    let question = harness.table.lookup(&["STRASSE@Ä.example"]);
    let request = harness.requests.recv().await.unwrap();
    assert_eq!(request.keys(), ["strasse@ä.example"]);
    request.echo();
    assert_eq!(question.await, [found(&["strasse@ä.example"])]);
}

#[tokio::test]
async fn without_a_cache_each_question_is_asked() {
    let mut harness = Harness::new(BackendSettings { cache: None, ..BackendSettings::default() });
    for _ in 0..2 {
        harness.cache_answer("a", found(&["1"])).await;
    }
    assert_eq!(harness.fail("a").await, unavailable(FAILED));
    assert_eq!(harness.table.stats().unwrap().cached, 0);
}

#[tokio::test]
async fn a_lookup_joins_a_request_for_the_same_key() {
    let mut harness = Harness::new(BackendSettings::default());
    let first = harness.table.lookup(&["a"]);
    let request = harness.requests.recv().await.unwrap();
    let others = [harness.table.lookup(&["A"]), harness.table.lookup(&["a"])];
    assert_eq!(harness.table.stats().unwrap().waiting, 1);
    request.answer(vec![found(&["1"])]);
    assert_eq!(first.await, [found(&["1"])]);
    for other in others {
        assert_eq!(other.await, [found(&["1"])]);
    }
    assert_eq!(harness.table.stats().unwrap().joined, 2);
    assert!(harness.is_idle());
}

#[tokio::test]
async fn keys_asked_while_all_requests_are_out_share_the_next_one() {
    let mut harness = Harness::new(BackendSettings { batch_max: 3, ..one_at_a_time() });
    let first = harness.table.lookup(&["a"]);
    let request = harness.requests.recv().await.unwrap();
    let keys = ["b", "c", "d", "e"];
    let others = keys.iter().map(|key| harness.table.lookup(std::slice::from_ref(key))).collect::<Vec<_>>();
    request.echo();
    assert_eq!(first.await, [found(&["a"])]);
    let request = harness.requests.recv().await.unwrap();
    assert_eq!(request.keys(), ["b", "c", "d"]);
    assert!(harness.requests.try_recv().is_err());
    request.echo();
    let request = harness.requests.recv().await.unwrap();
    assert_eq!(request.keys(), ["e"]);
    request.echo();
    for (key, other) in keys.iter().zip(others) {
        assert_eq!(other.await, [found(&[key])]);
    }
    let stats = harness.table.stats().unwrap();
    assert_eq!((stats.requests, stats.request_keys.sum, stats.request_micros.count()), (3, 5, 3));
}

#[tokio::test]
async fn requests_go_out_at_once_up_to_the_concurrency() {
    let mut harness = Harness::new(BackendSettings { concurrency: 2, ..BackendSettings::default() });
    let first = harness.table.lookup(&["a"]);
    let a = harness.requests.recv().await.unwrap();
    let second = harness.table.lookup(&["b"]);
    let b = harness.requests.recv().await.unwrap();
    let third = harness.table.lookup(&["c"]);
    b.echo();
    assert_eq!(second.await, [found(&["b"])]);
    let c = harness.requests.recv().await.unwrap();
    c.echo();
    assert_eq!(third.await, [found(&["c"])]);
    a.echo();
    assert_eq!(first.await, [found(&["a"])]);
}

#[tokio::test]
async fn a_question_of_many_keys_keeps_their_order_whatever_was_in_the_cache() {
    let mut harness = Harness::new(BackendSettings::default());
    harness.cache_answer("b", found(&["b"])).await;
    let question = harness.table.lookup(&["a", "b", "c", "a", "B"]);
    let request = harness.requests.recv().await.unwrap();
    assert_eq!(request.keys(), ["a", "c"]);
    request.answer(vec![found(&["a"]), LookupAnswer::NotFound]);
    let b = || found(&["b"]);
    assert_eq!(question.await, [found(&["a"]), b(), LookupAnswer::NotFound, found(&["a"]), b()]);
}

#[tokio::test]
async fn where_the_backend_fails_what_was_found_is_served_stale_and_what_was_not_is_unconfirmed() {
    let mut harness = Harness::new(BackendSettings { failures_max: 100, ..instantly_stale() });
    harness.cache_answer("known", found(&["1"])).await;
    harness.cache_answer("unknown", LookupAnswer::NotFound).await;
    for _ in 0..2 {
        let question = harness.table.lookup(&["known", "unknown", "new"]);
        harness.requests.recv().await.unwrap().fail();
        let LookupAnswer::Unavailable(why) = unavailable(FAILED) else { unreachable!() };
        assert_eq!(question.await, [found(&["1"]), LookupAnswer::Unconfirmed(why), unavailable(FAILED)]);
    }
    let stats = harness.table.stats().unwrap();
    assert_eq!((stats.stale, stats.unavailable, stats.hits, stats.failures), (4, 4, 0, 2));
}

#[tokio::test]
async fn a_found_beyond_its_time_and_the_time_for_failures_is_unavailable() {
    let cache = CacheSettings { ttl: Duration::ZERO, stale_if_error: Duration::ZERO, ..CacheSettings::default() };
    let mut harness = Harness::new(BackendSettings { cache: Some(cache), ..one_at_a_time() });
    harness.cache_answer("known", found(&["1"])).await;
    assert_eq!(harness.fail("known").await, unavailable(FAILED));
}

#[tokio::test]
async fn a_key_that_the_backend_cannot_answer_is_no_failed_request() {
    let mut harness = Harness::new(BackendSettings { failures_max: 1, ..instantly_stale() });
    harness.cache_answer("a", found(&["1"])).await;
    let question = harness.table.lookup(&["a", "b", "c"]);
    let too_many = || unavailable("too many values");
    harness.requests.recv().await.unwrap().answer(vec![too_many(), too_many(), found(&["3"])]);
    let b = unavailable("table 'people': too many values");
    assert_eq!(question.await, [found(&["1"]), b, found(&["3"])]);
    let told = TableEvent::Failed { table: "people".into(), error: "too many values".into(), left_out: 1 };
    assert_eq!(harness.events.recv().await, Some(told));
    assert_eq!(harness.table.stats().unwrap().failures, 0);
    assert_eq!(harness.table.stats().unwrap().down, None);
}

/// The backend works but has no answer for the key, so an earlier NotFound confirms nothing.
#[tokio::test]
async fn what_a_backend_that_works_cannot_say_is_not_unconfirmed() {
    let mut harness = Harness::new(instantly_stale());
    harness.cache_answer("a", LookupAnswer::NotFound).await;
    let question = harness.table.lookup(&["a"]);
    harness.requests.recv().await.unwrap().answer(vec![unavailable("too many values")]);
    assert_eq!(question.await, [unavailable("table 'people': too many values")]);
}

#[tokio::test]
async fn answers_of_which_the_number_is_wrong_are_a_failure() {
    let mut harness = Harness::new(BackendSettings::default());
    let question = harness.table.lookup(&["a", "b"]);
    harness.requests.recv().await.unwrap().answer(vec![found(&["1"])]);
    let why = unavailable("table 'people': backend: 1 answers to 2 keys");
    assert_eq!(question.await, [why.clone(), why]);
    assert_eq!(harness.table.stats().unwrap().failures, 1);
}

#[tokio::test]
async fn while_the_backend_is_down_lookups_fail_immediately() {
    let cache =
        CacheSettings { ttl: Duration::ZERO, negative_ttl: Duration::from_secs(60), ..CacheSettings::default() };
    let settings = BackendSettings {
        cache: Some(cache),
        failures_max: 2,
        batch_max: 1,
        probe_interval: Duration::from_millis(1),
        ..one_at_a_time()
    };
    let mut harness = Harness::new(settings);
    harness.cache_answer("known", found(&["1"])).await;
    harness.cache_answer("fresh", LookupAnswer::NotFound).await;
    assert_eq!(harness.fail("a").await, unavailable(FAILED));
    // Queued keys are answered when the breaker opens.
    let under_way = harness.table.lookup(&["b"]);
    let request = harness.requests.recv().await.unwrap();
    let in_line = harness.table.lookup(&["c", "known"]);
    request.fail();
    assert_eq!(under_way.await, [unavailable(FAILED)]);
    assert_eq!(in_line.await, [unavailable(FAILED), found(&["1"])]);
    let failed = TableEvent::Failed { table: "people".into(), error: "ldap://one: no route".into(), left_out: 0 };
    let down = TableEvent::Down { table: "people".into(), error: "ldap://one: no route".into() };
    assert_eq!(harness.events.recv().await, Some(failed));
    assert_eq!(transition(&mut harness.events).await, down);

    let answers = ready_answers(harness.table.lookup(&["known", "fresh", "a"]));
    assert_eq!(answers, [found(&["1"]), LookupAnswer::NotFound, unavailable(FAILED)]);
    assert_eq!(ready_trace(&harness.table, "a").layer, TableLayer::Breaker);
    assert!(matches!(ready_trace(&harness.table, "known").layer, TableLayer::Stale { .. }));
    assert!(matches!(ready_trace(&harness.table, "fresh").layer, TableLayer::Cache { .. }));
    assert_eq!(&*harness.table.stats().unwrap().down.unwrap().error, "ldap://one: no route");
    assert!(harness.is_idle());

    // A failed probe changes nothing; a successful one resumes requests.
    let probe = harness.probes.recv().await.unwrap();
    probe.send(Err(BackendFailure::new("ldap://one", "still nothing"))).unwrap();
    let probe = harness.probes.recv().await.unwrap();
    assert_eq!(ready_answers(harness.table.lookup(&["a"])), [unavailable(FAILED)]);
    assert!(harness.events.try_recv().is_err());
    probe.send(Ok(())).unwrap();
    assert!(matches!(transition(&mut harness.events).await, TableEvent::Up { .. }));
    assert_eq!(harness.table.stats().unwrap().down, None);
    harness.cache_answer("known", found(&["2"])).await;
    harness.cache_answer("a", found(&["3"])).await;
    assert!(harness.probes.try_recv().is_err());

    // The count of failures restarts, and a second outage is reported like the first.
    harness.fail("d").await;
    assert_eq!(harness.table.stats().unwrap().down, None);
    harness.fail("d").await;
    assert!(matches!(transition(&mut harness.events).await, TableEvent::Down { .. }));
}

#[tokio::test]
async fn a_request_that_was_under_way_when_the_breaker_opened_answers_and_opens_or_closes_nothing() {
    let mut harness = Harness::new(BackendSettings { failures_max: 1, concurrency: 3, ..BackendSettings::default() });
    let a = harness.table.lookup(&["a"]);
    let first = harness.requests.recv().await.unwrap();
    let b = harness.table.lookup(&["b"]);
    let second = harness.requests.recv().await.unwrap();
    let c = harness.table.lookup(&["c"]);
    let third = harness.requests.recv().await.unwrap();
    first.fail();
    assert_eq!(a.await, [unavailable(FAILED)]);
    assert!(matches!(transition(&mut harness.events).await, TableEvent::Down { .. }));
    second.echo();
    assert_eq!(b.await, [found(&["b"])]);
    assert_eq!(ready_answers(harness.table.lookup(&["b", "c"])), [found(&["b"]), unavailable(FAILED)]);
    third.fail();
    assert_eq!(c.await, [unavailable(FAILED)]);
    let probe = harness.probes.recv().await.unwrap();
    assert!(harness.table.stats().unwrap().down.is_some());
    probe.send(Ok(())).unwrap();
    assert!(matches!(transition(&mut harness.events).await, TableEvent::Up { .. }));
}

#[tokio::test]
async fn the_layer_that_answered_is_told() {
    let mut harness = Harness::new(BackendSettings { failures_max: 2, ..instantly_stale() });
    let trace = harness.table.trace("a");
    harness.requests.recv().await.unwrap().echo();
    assert_eq!(trace.await, TracedAnswer { answer: found(&["a"]), layer: TableLayer::Backend });
    let trace = harness.table.trace("a");
    harness.requests.recv().await.unwrap().fail();
    let trace = trace.await;
    assert_eq!(trace.answer, found(&["a"]));
    assert!(matches!(trace.layer, TableLayer::Stale { .. }));
    let trace = harness.table.trace("b");
    harness.requests.recv().await.unwrap().fail();
    assert_eq!(trace.await, TracedAnswer { answer: unavailable(FAILED), layer: TableLayer::Backend });

    let mut harness = Harness::new(BackendSettings::default());
    harness.cache_answer("a", found(&["1"])).await;
    assert!(matches!(ready_trace(&harness.table, "A"), TracedAnswer { layer: TableLayer::Cache { .. }, .. }));
}

#[tokio::test]
async fn waiting_keys_are_bounded() {
    let mut harness = Harness::new(BackendSettings { waiting_max: 2, ..instantly_stale() });
    harness.cache_answer("known", found(&["1"])).await;
    let waiting = harness.table.lookup(&["a", "b"]);
    let request = harness.requests.recv().await.unwrap();
    let why = unavailable("table 'people': too many keys are waiting");
    assert_eq!(ready_answers(harness.table.lookup(&["c", "known"])), [why, found(&["1"])]);
    let joined = harness.table.lookup(&["a"]);
    assert!(matches!(harness.events.recv().await, Some(TableEvent::Failed { .. })));
    request.echo();
    assert_eq!(waiting.await, [found(&["a"]), found(&["b"])]);
    assert_eq!(joined.await, [found(&["a"])]);
}

#[tokio::test]
async fn a_lookup_times_out_and_its_late_answer_is_cached() {
    let settings = BackendSettings { wait_max: Duration::from_millis(5), concurrency: 1, ..BackendSettings::default() };
    let mut harness = Harness::new(settings);
    let question = harness.table.lookup(&["a"]);
    let request = harness.requests.recv().await.unwrap();
    assert_eq!(question.await, [unavailable("table 'people': no answer within 5ms")]);
    assert_eq!(harness.table.lookup(&["b"]).await, [unavailable("table 'people': no answer within 5ms")]);
    assert!(matches!(harness.events.recv().await, Some(TableEvent::Failed { .. })));
    assert_eq!(harness.table.stats().unwrap().waiting, 1, "b was removed, a is under way");
    // A lookup joins the request under way.
    drop(harness.table.lookup(&["a"]));
    assert_eq!(harness.table.stats().unwrap().joined, 1);
    request.echo();
    while harness.table.stats().unwrap().waiting > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ready_answers(harness.table.lookup(&["a"])), [found(&["a"])]);
    assert!(harness.is_idle());
}

#[tokio::test]
async fn a_dropped_lookup_removes_keys_that_only_it_waits_for() {
    let mut harness = Harness::new(one_at_a_time());
    let first = harness.table.lookup(&["a"]);
    let request = harness.requests.recv().await.unwrap();
    let (gone, stays) = (harness.table.lookup(&["b", "c", "a"]), harness.table.lookup(&["c"]));
    drop(gone);
    drop(first);
    assert_eq!(harness.table.stats().unwrap().waiting, 2);
    request.echo();
    let request = harness.requests.recv().await.unwrap();
    assert_eq!(request.keys(), ["c"]);
    request.echo();
    assert_eq!(stays.await, [found(&["c"])]);
    assert_eq!(ready_answers(harness.table.lookup(&["a"])), [found(&["a"])]);
    assert!(harness.is_idle());
}

#[tokio::test]
async fn failures_within_a_second_are_reported_once() {
    let mut harness = Harness::new(BackendSettings { failures_max: 100, ..one_at_a_time() });
    let began = Instant::now();
    for _ in 0..5 {
        harness.fail("a").await;
    }
    // Once this is answered, all earlier failures have been reported.
    harness.cache_answer("a", found(&[])).await;
    assert!(matches!(harness.events.recv().await, Some(TableEvent::Failed { left_out: 0, .. })));
    let others = std::iter::from_fn(|| harness.events.try_recv().ok()).count();
    assert!(others as u64 <= began.elapsed().as_secs(), "{others}");
}

#[tokio::test]
async fn the_thread_and_the_backend_end_with_the_table() {
    let Harness { table, mut requests, mut probes, mut events } = Harness::new(BackendSettings::default());
    let question = table.lookup(&["a"]);
    let request = requests.recv().await.unwrap();
    drop(question);
    drop(table);
    assert!(request.reply.is_closed());
    assert!(requests.recv().await.is_none());
    assert!(probes.recv().await.is_none());
    assert!(events.recv().await.is_none());
}

#[tokio::test]
async fn lookups_fail_when_the_thread_has_ended() {
    let mut harness = Harness::new(instantly_stale());
    harness.cache_answer("known", found(&["1"])).await;
    let question = harness.table.lookup(&["a", "known"]);
    drop(harness.requests.recv().await.unwrap());
    let why = || unavailable("table 'people': the table has shut down");
    assert_eq!(question.await, [why(), found(&["1"])]);
    assert_eq!(ready_answers(harness.table.lookup(&["b"])), [why()]);
}

#[test]
fn a_question_may_be_asked_before_its_runtime_runs_and_go_from_one_to_another() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut harness = Harness::new(BackendSettings::default());
    let mut question = harness.table.lookup(&["a"]);
    let first = runtime();
    first.block_on(async {
        let polled = std::future::poll_fn(|context| Poll::Ready(question.as_mut().poll(context).is_ready())).await;
        assert!(!polled);
    });
    harness.requests.blocking_recv().unwrap().echo();
    assert_eq!(runtime().block_on(question), [found(&["a"])]);
}
