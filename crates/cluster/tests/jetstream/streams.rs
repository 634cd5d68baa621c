//! What the adapter promises about streams, with one server and with three.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::lane::{PublishFailure, ReadFailure, RecordSubject, Slot, TailFailure};
use cluster::record::RecordError;
use cluster::{AskError, ClusterConfig, Connection, LaneStream, NodeEntry, OpenError};
use futures_util::{StreamExt, TryStreamExt};
use mail::SpoolId;
use spool::LaneId;
use tokio::time::timeout;

use crate::servers::NatsServers;

/// More than async-nats allows by default.
const AWAITED_ANSWERS: u64 = 5_100;

/// How long a record may take to be sent on a busy machine.
const SEND_TIME_MAX: Duration = Duration::from_secs(10);

fn lane() -> LaneId {
    LaneId { spool: SpoolId::new(0xabc), number: 3 }
}

/// Stores a record, however long the servers need.
async fn store(stream: &LaneStream, expected_last: u64, record: &Bytes) -> Result<u64, PublishFailure> {
    stream.publish(RecordSubject::Log, expected_last, record.clone()).await?.await
}

async fn records(stream: &LaneStream, first: u64, last: u64) -> Vec<Bytes> {
    let read: Vec<(u64, Bytes)> = stream.read(first, last).try_collect().await.unwrap();
    assert!(read.iter().map(|(sequence, _)| *sequence).eq(first..=last));
    read.into_iter().map(|(_, record)| record).collect()
}

#[tokio::test]
async fn a_record_is_stored_only_behind_the_one_that_its_writer_expects() {
    let servers = NatsServers::start(1).await;
    let connection = servers.connect("a").await;
    let stream = connection.lane_stream(lane());
    stream.ensure().await.unwrap();
    stream.ensure().await.unwrap();
    assert_eq!(connection.lanes().await.unwrap(), [lane()]);
    let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
    assert_eq!(store(&stream, 0, &first).await, Ok(1));
    for expected in [0, 2, u64::MAX / 2] {
        assert_eq!(store(&stream, expected, &second).await, Err(PublishFailure::WrongLastSequence));
    }
    assert_eq!(store(&stream, 1, &second).await, Ok(2));
    assert_eq!(records(&stream, 1, 2).await, [first, second.clone()]);
    stream.purge_up_to(1).await.unwrap();
    assert_eq!(records(&stream, 2, 2).await, std::slice::from_ref(&second));
    assert_eq!(store(&stream, 2, &second).await, Ok(3));
    assert_eq!(stream.slot(3).await, Ok(Slot::Stored(second)));
    for absent in [1, 4] {
        assert_eq!(stream.slot(absent).await, Ok(Slot::Absent { last_sequence: 3 }));
    }
    assert!(matches!(stream.tail().await, Err(TailFailure::Unreadable { error: RecordError::Foreign, .. })));
    assert!(stream.delete().await.unwrap() && !stream.delete().await.unwrap());
    assert_eq!(stream.slot(3).await, Err(ReadFailure::NoStream));
    assert_eq!(stream.tail().await, Err(TailFailure::NoStream));
}

/// By default, async-nats sends nothing while 5,000 answers are awaited: 157 lanes with full windows, such as of streams
/// without a leader, held up all others, also their signs of life.
#[tokio::test]
async fn a_lane_publishes_while_others_await_any_number_of_answers() {
    let servers = NatsServers::start(1).await;
    let stream = servers.connect("a").await.lane_stream(lane());
    stream.ensure().await.unwrap();
    let mut awaited = Vec::new();
    for number in 0..AWAITED_ANSWERS {
        let sent = stream.publish(RecordSubject::Log, number, Bytes::from_static(b"x"));
        awaited.push(timeout(SEND_TIME_MAX, sent).await.expect("it is sent").unwrap());
    }
    for (number, answer) in (0..).zip(awaited) {
        assert_eq!(answer.await, Ok(number + 1));
    }
}

#[tokio::test]
async fn a_full_stream_refuses_records_and_drops_none() {
    let servers = NatsServers::start(1).await;
    let config = ClusterConfig { stream_bytes_max: Some(1 << 20), ..servers.config("a") };
    let stream = Connection::open(&config).await.unwrap().lane_stream(lane());
    stream.ensure().await.unwrap();
    let record = Bytes::from(vec![7; 300_000]);
    let mut last = 0;
    let failure = loop {
        match store(&stream, last, &record).await {
            Ok(sequence) => last = sequence,
            Err(failure) => break failure,
        }
    };
    assert_eq!((failure, last), (PublishFailure::StreamFull, 3));
    assert_eq!(records(&stream, 1, 3).await.len(), 3);
    stream.purge_up_to(2).await.unwrap();
    assert_eq!(store(&stream, last, &record).await, Ok(4));
}

#[tokio::test]
async fn without_a_server_a_connection_cannot_be_opened_now_and_requests_fail_at_once() {
    let mut servers = NatsServers::start(1).await;
    let connection = servers.connect("a").await;
    let stream = connection.lane_stream(lane());
    stream.ensure().await.unwrap();
    servers.kill(0);
    let error = Connection::open(&servers.config("a")).await.err().unwrap();
    assert!(matches!(error, OpenError::Unreachable(_)) && error.is_temporary(), "{error}");
    while connection.is_connected() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut times = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        assert_eq!(store(&stream, 0, &Bytes::new()).await, Err(PublishFailure::Unavailable));
        times.push(start.elapsed());
    }
    // One of them is, even on a machine that is busy with others.
    assert!(times.iter().min() < Some(&Duration::from_secs(1)), "{times:?}");
    servers.resume(0);
    let end = Instant::now() + Duration::from_secs(60);
    while store(&stream, 0, &Bytes::from_static(b"x")).await.is_err() {
        assert!(Instant::now() < end, "the connection does not come back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn nodes_see_one_another_and_answer_requests() {
    let servers = NatsServers::start(1).await;
    let (one, other) = (servers.connect("one").await, servers.connect("other").await);
    let entry = |control_subject: &str| NodeEntry {
        version: "1".into(),
        started: 7,
        configuration: "abc".into(),
        lanes: vec![lane().to_string()],
        control_subject: control_subject.into(),
    };
    let (nodes, seen) = (one.nodes().await.unwrap(), other.nodes().await.unwrap());
    assert_eq!(seen.list().await.unwrap(), []);
    nodes.write(&"one".parse().unwrap(), &entry("x")).await.unwrap();
    nodes.write(&"one".parse().unwrap(), &entry("y")).await.unwrap();
    assert_eq!(seen.list().await.unwrap(), [("one".parse().unwrap(), entry("y"))]);
    nodes.remove(&"one".parse().unwrap()).await.unwrap();
    assert_eq!(seen.list().await.unwrap(), []);

    let mut requests = Box::pin(one.requests().await.unwrap());
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let answer = request.payload.iter().rev().copied().collect::<Vec<u8>>();
            request.answer(answer.into()).await;
        }
    });
    let (abc, wait) = (Bytes::from_static(b"abc"), Duration::from_secs(5));
    let ask = async |node: &str| other.ask(&node.parse().unwrap(), abc.clone(), wait).await;
    assert_eq!(ask("one").await.unwrap(), "cba");
    let large: Bytes = (0..700_000_u32).map(|number| number as u8).collect();
    let answer = other.ask(&"one".parse().unwrap(), large.clone(), wait).await.unwrap();
    assert!(answer.iter().rev().eq(&large), "an answer of several parts");
    assert!(ask("nobody").await.unwrap_err().to_string().contains("is not connected"));
}

#[tokio::test]
async fn a_request_is_awaited_until_its_sender_gives_up() {
    let servers = NatsServers::start(1).await;
    let (one, other) = (servers.connect("one").await, servers.connect("other").await);
    let mut requests = Box::pin(one.requests().await.unwrap());
    let name = "one".parse().unwrap();
    let given_up = other.ask(&name, Bytes::from_static(b"abc"), Duration::from_millis(100)).await;
    assert!(matches!(given_up, Err(AskError::Silent(..))), "it was not begun: {given_up:?}");
    assert!(!requests.next().await.unwrap().is_awaited().await);
    let begin = async {
        let request = requests.next().await.unwrap();
        assert!(request.is_awaited().await);
    };
    let ask = other.ask(&name, Bytes::from_static(b"abc"), Duration::from_secs(6));
    let (unfinished, ()) = futures_util::future::join(ask, begin).await;
    assert!(matches!(unfinished, Err(AskError::Unfinished(..))), "it was begun: {unfinished:?}");
}

/// The heart of it: however many write at the same sequence, one is stored.
#[tokio::test]
async fn of_three_that_write_the_same_record_one_is_stored() {
    const ROUNDS: u64 = 200;
    let servers = NatsServers::start(3).await;
    let mut streams = Vec::new();
    for node in ["a", "b", "c"] {
        streams.push(servers.connect(node).await.lane_stream(lane()));
    }
    streams[0].ensure().await.unwrap();
    for round in 0..ROUNDS {
        let records = [0, 1, 2].map(|node: u64| Bytes::from(format!("{round} {node}")));
        let answers = futures_util::future::join_all(
            streams.iter().zip(&records).map(|(stream, record)| store(stream, round, record)),
        );
        let answers = answers.await;
        let stored: Vec<usize> = (0..3).filter(|node| answers[*node].is_ok()).collect();
        assert_eq!(stored.len(), 1, "round {round}: {answers:?}");
        let read = streams[0].read(round + 1, round + 1).try_next().await.unwrap().unwrap();
        assert_eq!(read, (round + 1, records[stored[0]].clone()));
    }
}
