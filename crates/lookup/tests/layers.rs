//! Layered tables on a backend that the test scripts request by request. Keys are queued by the
//! call of `lookup`, not by the first poll, so everything happens in the order written here.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lookup::backend::{Asked, Backend, Failure, Probed};
use lookup::layers::{CacheSettings, Layered, Settings};
use lookup::{Answer, Answers, Event, Layer, Table, Trace};
use tokio::sync::{mpsc, oneshot};

/// A request to the backend, with the channel for its answers.
struct Request {
    keys: Vec<Box<str>>,
    reply: oneshot::Sender<Result<Vec<Answer>, Failure>>,
}

type Probe = oneshot::Sender<Result<(), Failure>>;

/// A backend that hands every request and probe to the test.
struct Scripted {
    requests: mpsc::UnboundedSender<Request>,
    probes: mpsc::UnboundedSender<Probe>,
}

impl Backend for Scripted {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> Asked<'a> {
        Box::pin(async move {
            let (reply, answers) = oneshot::channel();
            self.requests.send(Request { keys: keys.to_vec(), reply }).unwrap();
            answers.await.unwrap_or_else(|_| panic!("the test dropped a request to end the table's thread"))
        })
    }

    fn probe(&self) -> Probed<'_> {
        Box::pin(async move {
            let (reply, result) = oneshot::channel();
            self.probes.send(reply).unwrap();
            result.await.unwrap()
        })
    }
}

/// A table with the backend's and the operator's side.
struct Stage {
    table: Layered,
    requests: mpsc::UnboundedReceiver<Request>,
    probes: mpsc::UnboundedReceiver<Probe>,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Stage {
    fn new(settings: Settings) -> Self {
        let ((ask, requests), (probe, probes)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let (tell, events) = mpsc::unbounded_channel();
        let backend = Scripted { requests: ask, probes: probe };
        let told = Arc::new(move |event| drop(tell.send(event)));
        Stage { table: Layered::start("people", backend, settings, told).unwrap(), requests, probes, events }
    }

    /// Looks up one key and answers the request.
    async fn teach(&mut self, key: &str, answer: Answer) {
        let asked = [key];
        let question = self.table.lookup(&asked);
        self.requests.recv().await.unwrap().answer(vec![answer]);
        question.await;
    }

    /// Looks up one key and fails the request; returns the answer.
    async fn fail(&mut self, key: &str) -> Answer {
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

    fn answer(self, answers: Vec<Answer>) {
        assert!(self.reply.send(Ok(answers)).is_ok());
    }

    fn fail(self) {
        assert!(self.reply.send(Err(Failure::new("ldap://one", "no route"))).is_ok());
    }

    /// Answers each key with itself.
    fn echo(self) {
        let answers = self.keys.iter().map(|key| found(&[key])).collect();
        self.answer(answers);
    }
}

/// The next event other than Failed.
async fn transition(events: &mut mpsc::UnboundedReceiver<Event>) -> Event {
    loop {
        match events.recv().await.unwrap() {
            Event::Failed { .. } => {}
            event => return event,
        }
    }
}

fn found(values: &[&str]) -> Answer {
    Answer::Found(values.iter().map(|&value| value.to_owned()).collect())
}

fn unavailable(why: &str) -> Answer {
    Answer::Unavailable(why.to_owned())
}

/// The answers of a lookup that must be ready.
fn at_once(mut question: Answers<'_>) -> Vec<Answer> {
    match question.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answers) => answers,
        Poll::Pending => panic!("the lookup must not wait"),
    }
}

fn trace_at_once(table: &Layered, key: &str) -> Trace {
    match pin!(table.trace(key)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(trace) => trace,
        Poll::Pending => panic!("the lookup must not wait"),
    }
}

/// One request at a time; cache entries are stale immediately.
fn forgetful() -> Settings {
    let cache = CacheSettings { ttl: Duration::ZERO, negative_ttl: Duration::ZERO, ..CacheSettings::default() };
    Settings { cache: Some(cache), ..one_at_a_time() }
}

fn one_at_a_time() -> Settings {
    Settings { concurrency: 1, ..Settings::default() }
}

const FAILED: &str = "table 'people': ldap://one: no route";

#[tokio::test]
async fn what_the_cache_has_is_answered_at_once_whatever_the_case() {
    let mut stage = Stage::new(Settings::default());
    stage.teach("Bob@Example.org", found(&["mailbox", "other"])).await;
    stage.teach("nobody@example.org", Answer::NotFound).await;
    let keys = ["nobody@example.org", "bob@example.org", "BOB@EXAMPLE.ORG"];
    let expected = [Answer::NotFound, found(&["mailbox", "other"]), found(&["mailbox", "other"])];
    assert_eq!(at_once(stage.table.lookup(&keys)), expected);
    assert_eq!(at_once(stage.table.lookup(&[])), []);
    let stats = stage.table.stats().unwrap();
    assert_eq!((stats.found, stats.not_found, stats.hits, stats.cached, stats.requests), (3, 2, 3, 2, 2));
    assert!(stage.is_idle());
}

#[tokio::test]
async fn the_backend_gets_folded_keys() {
    let mut stage = Stage::new(Settings::default());
    let question = stage.table.lookup(&["STRASSE@Ä.example"]);
    let request = stage.requests.recv().await.unwrap();
    assert_eq!(request.keys(), ["strasse@ä.example"]);
    request.echo();
    assert_eq!(question.await, [found(&["strasse@ä.example"])]);
}

#[tokio::test]
async fn without_a_cache_each_question_is_asked() {
    let mut stage = Stage::new(Settings { cache: None, ..Settings::default() });
    for _ in 0..2 {
        stage.teach("a", found(&["1"])).await;
    }
    assert_eq!(stage.fail("a").await, unavailable(FAILED));
    assert_eq!(stage.table.stats().unwrap().cached, 0);
}

#[tokio::test]
async fn who_asks_for_a_key_under_way_joins() {
    let mut stage = Stage::new(Settings::default());
    let first = stage.table.lookup(&["a"]);
    let request = stage.requests.recv().await.unwrap();
    let others = [stage.table.lookup(&["A"]), stage.table.lookup(&["a"])];
    assert_eq!(stage.table.stats().unwrap().waiting, 1);
    request.answer(vec![found(&["1"])]);
    assert_eq!(first.await, [found(&["1"])]);
    for other in others {
        assert_eq!(other.await, [found(&["1"])]);
    }
    assert_eq!(stage.table.stats().unwrap().joined, 2);
    assert!(stage.is_idle());
}

#[tokio::test]
async fn what_is_asked_while_all_requests_are_out_leaves_together() {
    let mut stage = Stage::new(Settings { batch_max: 3, ..one_at_a_time() });
    let first = stage.table.lookup(&["a"]);
    let request = stage.requests.recv().await.unwrap();
    let keys = ["b", "c", "d", "e"];
    let others = keys.iter().map(|key| stage.table.lookup(std::slice::from_ref(key))).collect::<Vec<_>>();
    request.echo();
    assert_eq!(first.await, [found(&["a"])]);
    let request = stage.requests.recv().await.unwrap();
    assert_eq!(request.keys(), ["b", "c", "d"]);
    assert!(stage.requests.try_recv().is_err());
    request.echo();
    let request = stage.requests.recv().await.unwrap();
    assert_eq!(request.keys(), ["e"]);
    request.echo();
    for (key, other) in keys.iter().zip(others) {
        assert_eq!(other.await, [found(&[key])]);
    }
    let stats = stage.table.stats().unwrap();
    assert_eq!((stats.requests, stats.request_keys.sum, stats.request_micros.count()), (3, 5, 3));
}

#[tokio::test]
async fn requests_go_out_at_once_up_to_the_concurrency() {
    let mut stage = Stage::new(Settings { concurrency: 2, ..Settings::default() });
    let first = stage.table.lookup(&["a"]);
    let a = stage.requests.recv().await.unwrap();
    let second = stage.table.lookup(&["b"]);
    let b = stage.requests.recv().await.unwrap();
    let third = stage.table.lookup(&["c"]);
    b.echo();
    assert_eq!(second.await, [found(&["b"])]);
    let c = stage.requests.recv().await.unwrap();
    c.echo();
    assert_eq!(third.await, [found(&["c"])]);
    a.echo();
    assert_eq!(first.await, [found(&["a"])]);
}

#[tokio::test]
async fn a_question_of_many_keys_keeps_their_order_whatever_was_in_the_cache() {
    let mut stage = Stage::new(Settings::default());
    stage.teach("b", found(&["b"])).await;
    let question = stage.table.lookup(&["a", "b", "c", "a", "B"]);
    let request = stage.requests.recv().await.unwrap();
    assert_eq!(request.keys(), ["a", "c"]);
    request.answer(vec![found(&["a"]), Answer::NotFound]);
    let b = || found(&["b"]);
    assert_eq!(question.await, [found(&["a"]), b(), Answer::NotFound, found(&["a"]), b()]);
}

#[tokio::test]
async fn where_the_backend_fails_what_was_found_is_served_stale_and_what_was_not_is_unconfirmed() {
    let mut stage = Stage::new(Settings { failures_max: 100, ..forgetful() });
    stage.teach("known", found(&["1"])).await;
    stage.teach("unknown", Answer::NotFound).await;
    for _ in 0..2 {
        let question = stage.table.lookup(&["known", "unknown", "new"]);
        stage.requests.recv().await.unwrap().fail();
        let Answer::Unavailable(why) = unavailable(FAILED) else { unreachable!() };
        assert_eq!(question.await, [found(&["1"]), Answer::Unconfirmed(why), unavailable(FAILED)]);
    }
    let stats = stage.table.stats().unwrap();
    assert_eq!((stats.stale, stats.unavailable, stats.hits, stats.failures), (4, 4, 0, 2));
}

#[tokio::test]
async fn a_found_beyond_its_time_and_the_time_for_failures_is_unavailable() {
    let cache = CacheSettings { ttl: Duration::ZERO, stale_if_error: Duration::ZERO, ..CacheSettings::default() };
    let mut stage = Stage::new(Settings { cache: Some(cache), ..one_at_a_time() });
    stage.teach("known", found(&["1"])).await;
    assert_eq!(stage.fail("known").await, unavailable(FAILED));
}

#[tokio::test]
async fn a_key_that_the_backend_cannot_answer_is_no_failed_request() {
    let mut stage = Stage::new(Settings { failures_max: 1, ..forgetful() });
    stage.teach("a", found(&["1"])).await;
    let question = stage.table.lookup(&["a", "b", "c"]);
    let too_many = || unavailable("too many values");
    stage.requests.recv().await.unwrap().answer(vec![too_many(), too_many(), found(&["3"])]);
    let b = unavailable("table 'people': too many values");
    assert_eq!(question.await, [found(&["1"]), b, found(&["3"])]);
    let told = Event::Failed { table: "people".into(), error: "too many values".into(), left_out: 1 };
    assert_eq!(stage.events.recv().await, Some(told));
    assert_eq!(stage.table.stats().unwrap().failures, 0);
    assert_eq!(stage.table.stats().unwrap().down, None);
}

/// The backend works but has no answer for the key, so an earlier NotFound confirms nothing.
#[tokio::test]
async fn what_a_backend_that_works_cannot_say_is_not_unconfirmed() {
    let mut stage = Stage::new(forgetful());
    stage.teach("a", Answer::NotFound).await;
    let question = stage.table.lookup(&["a"]);
    stage.requests.recv().await.unwrap().answer(vec![unavailable("too many values")]);
    assert_eq!(question.await, [unavailable("table 'people': too many values")]);
}

#[tokio::test]
async fn answers_of_which_the_number_is_wrong_are_a_failure() {
    let mut stage = Stage::new(Settings::default());
    let question = stage.table.lookup(&["a", "b"]);
    stage.requests.recv().await.unwrap().answer(vec![found(&["1"])]);
    let why = unavailable("table 'people': backend: 1 answers to 2 keys");
    assert_eq!(question.await, [why.clone(), why]);
    assert_eq!(stage.table.stats().unwrap().failures, 1);
}

#[tokio::test]
async fn while_the_backend_is_down_nobody_waits_and_nothing_is_asked() {
    let cache =
        CacheSettings { ttl: Duration::ZERO, negative_ttl: Duration::from_secs(60), ..CacheSettings::default() };
    let settings = Settings {
        cache: Some(cache),
        failures_max: 2,
        batch_max: 1,
        probe_every: Duration::from_millis(1),
        ..one_at_a_time()
    };
    let mut stage = Stage::new(settings);
    stage.teach("known", found(&["1"])).await;
    stage.teach("fresh", Answer::NotFound).await;
    assert_eq!(stage.fail("a").await, unavailable(FAILED));
    // Queued keys are answered when the breaker opens.
    let under_way = stage.table.lookup(&["b"]);
    let request = stage.requests.recv().await.unwrap();
    let in_line = stage.table.lookup(&["c", "known"]);
    request.fail();
    assert_eq!(under_way.await, [unavailable(FAILED)]);
    assert_eq!(in_line.await, [unavailable(FAILED), found(&["1"])]);
    let failed = Event::Failed { table: "people".into(), error: "ldap://one: no route".into(), left_out: 0 };
    let down = Event::Down { table: "people".into(), error: "ldap://one: no route".into() };
    assert_eq!(stage.events.recv().await, Some(failed));
    assert_eq!(transition(&mut stage.events).await, down);

    let answers = at_once(stage.table.lookup(&["known", "fresh", "a"]));
    assert_eq!(answers, [found(&["1"]), Answer::NotFound, unavailable(FAILED)]);
    assert_eq!(trace_at_once(&stage.table, "a").layer, Layer::Breaker);
    assert!(matches!(trace_at_once(&stage.table, "known").layer, Layer::Stale { .. }));
    assert!(matches!(trace_at_once(&stage.table, "fresh").layer, Layer::Cache { .. }));
    assert_eq!(&*stage.table.stats().unwrap().down.unwrap().error, "ldap://one: no route");
    assert!(stage.is_idle());

    // A failed probe changes nothing; a successful one resumes requests.
    let probe = stage.probes.recv().await.unwrap();
    probe.send(Err(Failure::new("ldap://one", "still nothing"))).unwrap();
    let probe = stage.probes.recv().await.unwrap();
    assert_eq!(at_once(stage.table.lookup(&["a"])), [unavailable(FAILED)]);
    assert!(stage.events.try_recv().is_err());
    probe.send(Ok(())).unwrap();
    assert!(matches!(transition(&mut stage.events).await, Event::Up { .. }));
    assert_eq!(stage.table.stats().unwrap().down, None);
    stage.teach("known", found(&["2"])).await;
    stage.teach("a", found(&["3"])).await;
    assert!(stage.probes.try_recv().is_err());

    // The count of failures restarts, and a second outage is reported like the first.
    stage.fail("d").await;
    assert_eq!(stage.table.stats().unwrap().down, None);
    stage.fail("d").await;
    assert!(matches!(transition(&mut stage.events).await, Event::Down { .. }));
}

#[tokio::test]
async fn a_request_that_was_under_way_when_the_breaker_opened_answers_and_opens_or_closes_nothing() {
    let mut stage = Stage::new(Settings { failures_max: 1, concurrency: 3, ..Settings::default() });
    let a = stage.table.lookup(&["a"]);
    let first = stage.requests.recv().await.unwrap();
    let b = stage.table.lookup(&["b"]);
    let second = stage.requests.recv().await.unwrap();
    let c = stage.table.lookup(&["c"]);
    let third = stage.requests.recv().await.unwrap();
    first.fail();
    assert_eq!(a.await, [unavailable(FAILED)]);
    assert!(matches!(transition(&mut stage.events).await, Event::Down { .. }));
    second.echo();
    assert_eq!(b.await, [found(&["b"])]);
    assert_eq!(at_once(stage.table.lookup(&["b", "c"])), [found(&["b"]), unavailable(FAILED)]);
    third.fail();
    assert_eq!(c.await, [unavailable(FAILED)]);
    let probe = stage.probes.recv().await.unwrap();
    assert!(stage.table.stats().unwrap().down.is_some());
    probe.send(Ok(())).unwrap();
    assert!(matches!(transition(&mut stage.events).await, Event::Up { .. }));
}

#[tokio::test]
async fn the_layer_that_answered_is_told() {
    let mut stage = Stage::new(Settings { failures_max: 2, ..forgetful() });
    let trace = stage.table.trace("a");
    stage.requests.recv().await.unwrap().echo();
    assert_eq!(trace.await, Trace { answer: found(&["a"]), layer: Layer::Backend });
    let trace = stage.table.trace("a");
    stage.requests.recv().await.unwrap().fail();
    let trace = trace.await;
    assert_eq!(trace.answer, found(&["a"]));
    assert!(matches!(trace.layer, Layer::Stale { .. }));
    let trace = stage.table.trace("b");
    stage.requests.recv().await.unwrap().fail();
    assert_eq!(trace.await, Trace { answer: unavailable(FAILED), layer: Layer::Backend });

    let mut stage = Stage::new(Settings::default());
    stage.teach("a", found(&["1"])).await;
    assert!(matches!(trace_at_once(&stage.table, "A"), Trace { layer: Layer::Cache { .. }, .. }));
}

#[tokio::test]
async fn only_as_many_keys_wait_as_may() {
    let mut stage = Stage::new(Settings { waiting_max: 2, ..forgetful() });
    stage.teach("known", found(&["1"])).await;
    let waiting = stage.table.lookup(&["a", "b"]);
    let request = stage.requests.recv().await.unwrap();
    let why = unavailable("table 'people': too many keys are waiting");
    assert_eq!(at_once(stage.table.lookup(&["c", "known"])), [why, found(&["1"])]);
    let joined = stage.table.lookup(&["a"]);
    assert!(matches!(stage.events.recv().await, Some(Event::Failed { .. })));
    request.echo();
    assert_eq!(waiting.await, [found(&["a"]), found(&["b"])]);
    assert_eq!(joined.await, [found(&["a"])]);
}

#[tokio::test]
async fn a_question_waits_no_longer_than_it_may_and_its_answer_serves_the_next_one() {
    let settings = Settings { wait_max: Duration::from_millis(5), concurrency: 1, ..Settings::default() };
    let mut stage = Stage::new(settings);
    let question = stage.table.lookup(&["a"]);
    let request = stage.requests.recv().await.unwrap();
    assert_eq!(question.await, [unavailable("table 'people': no answer within 5ms")]);
    assert_eq!(stage.table.lookup(&["b"]).await, [unavailable("table 'people': no answer within 5ms")]);
    assert!(matches!(stage.events.recv().await, Some(Event::Failed { .. })));
    assert_eq!(stage.table.stats().unwrap().waiting, 1, "b was removed, a is under way");
    // A lookup joins the request under way.
    drop(stage.table.lookup(&["a"]));
    assert_eq!(stage.table.stats().unwrap().joined, 1);
    request.echo();
    while stage.table.stats().unwrap().waiting > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(at_once(stage.table.lookup(&["a"])), [found(&["a"])]);
    assert!(stage.is_idle());
}

#[tokio::test]
async fn who_goes_away_takes_along_what_only_he_waited_for() {
    let mut stage = Stage::new(one_at_a_time());
    let first = stage.table.lookup(&["a"]);
    let request = stage.requests.recv().await.unwrap();
    let (gone, stays) = (stage.table.lookup(&["b", "c", "a"]), stage.table.lookup(&["c"]));
    drop(gone);
    drop(first);
    assert_eq!(stage.table.stats().unwrap().waiting, 2);
    request.echo();
    let request = stage.requests.recv().await.unwrap();
    assert_eq!(request.keys(), ["c"]);
    request.echo();
    assert_eq!(stays.await, [found(&["c"])]);
    assert_eq!(at_once(stage.table.lookup(&["a"])), [found(&["a"])]);
    assert!(stage.is_idle());
}

#[tokio::test]
async fn failures_within_a_second_are_told_once() {
    let mut stage = Stage::new(Settings { failures_max: 100, ..one_at_a_time() });
    let began = Instant::now();
    for _ in 0..5 {
        stage.fail("a").await;
    }
    // Once this is answered, all earlier failures have been reported.
    stage.teach("a", found(&[])).await;
    assert!(matches!(stage.events.recv().await, Some(Event::Failed { left_out: 0, .. })));
    let others = std::iter::from_fn(|| stage.events.try_recv().ok()).count();
    assert!(others as u64 <= began.elapsed().as_secs(), "{others}");
}

#[tokio::test]
async fn the_thread_and_the_backend_end_with_the_table() {
    let Stage { table, mut requests, mut probes, mut events } = Stage::new(Settings::default());
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
async fn where_the_thread_is_lost_nobody_waits() {
    let mut stage = Stage::new(forgetful());
    stage.teach("known", found(&["1"])).await;
    let question = stage.table.lookup(&["a", "known"]);
    drop(stage.requests.recv().await.unwrap());
    let why = || unavailable("table 'people': the table has shut down");
    assert_eq!(question.await, [why(), found(&["1"])]);
    assert_eq!(at_once(stage.table.lookup(&["b"])), [why()]);
}

#[test]
fn a_question_may_be_asked_before_its_runtime_runs_and_go_from_one_to_another() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut stage = Stage::new(Settings::default());
    let mut question = stage.table.lookup(&["a"]);
    let first = runtime();
    first.block_on(async {
        let polled = std::future::poll_fn(|context| Poll::Ready(question.as_mut().poll(context).is_ready())).await;
        assert!(!polled);
    });
    stage.requests.blocking_recv().unwrap().echo();
    assert_eq!(runtime().block_on(question), [found(&["a"])]);
}
