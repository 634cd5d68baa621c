//! Lane tasks against real servers: batches are confirmed, owners follow one another, and servers
//! fail.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::lane::owner::{Claim, LaneOwner};
use cluster::lane::replay::{BatchReader, ReplayEvent};
use cluster::lane::retention::LaneRetention;
use cluster::lane::{COPYING_LEASE, LaneTimes, StreamTail};
use cluster::{ClusterConfig, ClusterStep, Connection, LaneEnd, LaneHandle, LaneStream, LaneTask, boot_time};
use futures_util::StreamExt;
use mail::{
    Body, BodyFlags, BodyType, ByteSource, ClientInfo, DsnNotify, Envelope, QueueId, Recipient, SpoolId, Timestamp,
};
use spool::{BatchDraft, CommitStep, DraftBody, EntryDraft, LaneId, RecipientState, SpooledMessage, StepAnswer};
use tokio::sync::oneshot;

use crate::nodes::WAIT_MAX;
use crate::servers::NatsServers;

const IN_FLIGHT_BYTES_MAX: u64 = 4 << 20;

fn lane() -> LaneId {
    LaneId { spool: SpoolId::new(0xabc), number: 0 }
}

/// A body that is read like a file.
struct Content(Vec<u8>);

impl ByteSource for Content {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = &self.0[usize::try_from(offset).unwrap().min(self.0.len())..];
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn file(&self) -> Option<&File> {
        None
    }
}

/// The stream of the lane, and its task, for a node that claims it as it is.
async fn claim(connection: &Connection, node: &str) -> (LaneStream, LaneHandle) {
    claim_lane(connection, lane(), node).await
}

/// The same with any lane.
pub(crate) async fn claim_lane(connection: &Connection, lane: LaneId, node: &str) -> (LaneStream, LaneHandle) {
    claim_with_lease(connection, lane, node, LaneTimes::default().lease).await
}

async fn claim_with_lease(
    connection: &Connection,
    lane: LaneId,
    node: &str,
    announced_lease: Duration,
) -> (LaneStream, LaneHandle) {
    let stream = connection.lane_stream(lane);
    stream.ensure().await.unwrap();
    let StreamTail { last_sequence, .. } = stream.tail().await.unwrap();
    let newest = stream.newest_epoch().await.unwrap();
    let claim = Claim {
        epoch: newest.map_or(1, |newest| newest.header.epoch + 1),
        token: u64::from(last_sequence as u32) << 32 | u64::from(node.len() as u32),
        node: node.parse().unwrap(),
        spool_epoch: 1,
        last_sequence,
        announced_lease,
    };
    let owner = LaneOwner::claim(LaneTimes::default(), IN_FLIGHT_BYTES_MAX, claim, boot_time());
    let task = LaneTask::start(&tokio::runtime::Handle::current(), stream.clone(), owner);
    (stream, task)
}

pub(crate) fn envelope() -> Envelope {
    let recipient = Recipient {
        address: "b@example.org".parse().unwrap(),
        original: None,
        notify: DsnNotify::UNSET,
        orcpt: None,
        is_forwarded: false,
    };
    Envelope {
        sender: Some("a@example.org".parse().unwrap()),
        recipients: vec![recipient],
        accepted_at: Timestamp(1),
        client: ClientInfo { address: None, helo: "client".into(), trusted: false },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
        content_filter: false,
    }
}

fn message(number: u64, content: DraftBody, digest: u32) -> BatchDraft {
    let id = QueueId::new(lane().spool, lane().number, number);
    let entry = EntryDraft::Message { id, envelope: envelope(), content, flags: BodyFlags::default(), digest };
    BatchDraft { lane: lane(), entries: vec![entry] }
}

/// A batch with one message, whose body tells its number.
fn in_memory(number: u64, octets: usize) -> BatchDraft {
    let body = vec![number as u8; octets];
    let (prefix, digest) = (Arc::new(Vec::new()), crc32c::crc32c(&body));
    message(number, DraftBody::Memory { prefix, body: Arc::new(body) }, digest)
}

/// Submits a batch. What comes back is its answer.
fn submit(handle: &LaneHandle, batch: BatchDraft) -> oneshot::Receiver<Result<(), String>> {
    let (sender, answer) = oneshot::channel();
    handle.submit(batch, StepAnswer::new(move |result| drop(sender.send(result))));
    answer
}

/// The messages of all complete batches in the stream: their numbers and content.
async fn stored(stream: &LaneStream) -> Vec<(u64, Vec<u8>)> {
    let tail = stream.tail().await.unwrap();
    let (mut reader, mut complete, mut open) = (BatchReader::new(tail.first_sequence), Vec::new(), Vec::new());
    let mut records = Box::pin(stream.read(tail.first_sequence, tail.last_sequence));
    while let Some(record) = records.next().await {
        let (sequence, record) = record.unwrap();
        reader.handle_record(sequence, &record).unwrap();
        while let Some(event) = reader.poll_event() {
            match event {
                ReplayEvent::Message(message) => open.push((message.id.sequence(), Vec::new())),
                ReplayEvent::Content(bytes) => open.last_mut().unwrap().1.extend_from_slice(&bytes),
                ReplayEvent::BatchComplete(_) => complete.append(&mut open),
                ReplayEvent::BatchDropped => open.clear(),
                ReplayEvent::Epoch { .. } | ReplayEvent::Outcome { .. } | ReplayEvent::Released => {}
            }
        }
    }
    complete
}

#[tokio::test]
async fn a_batch_is_confirmed_when_it_is_stored_and_the_next_owner_reads_it() {
    let servers = NatsServers::start(1).await;
    let (_, one) = claim(&servers.connect("one").await, "one").await;
    assert!(!one.may_deliver());
    assert_eq!(one.claimed().await.unwrap().epoch, 1);
    assert!(one.may_deliver());
    for number in 1..=3 {
        submit(&one, in_memory(number, 1000)).await.unwrap().unwrap();
    }
    let (stream, other) = claim(&servers.connect("other").await, "other").await;
    assert_eq!(other.claimed().await.unwrap().epoch, 2);
    let late = submit(&one, in_memory(4, 1000));
    assert_eq!(one.ended().await, LaneEnd::Fenced { by: Some("other".parse().unwrap()) });
    assert!(late.await.unwrap().is_err() && !one.may_deliver());
    assert!(submit(&one, in_memory(5, 1000)).await.unwrap().is_err());
    submit(&other, in_memory(6, 1000)).await.unwrap().unwrap();
    let expected = [1, 2, 3, 6].map(|number| (number, vec![number as u8; 1000]));
    assert_eq!(stored(&stream).await, expected);
}

#[tokio::test]
async fn a_message_larger_than_a_record_is_stored_in_parts_from_memory_and_from_a_file() {
    let servers = NatsServers::start(1).await;
    let (stream, handle) = claim(&servers.connect("one").await, "one").await;
    let octets = 3 << 20;
    submit(&handle, in_memory(1, octets)).await.unwrap().unwrap();
    let bytes: Vec<u8> = (0..octets as u32).map(|at| (at / 7) as u8).collect();
    let digest = crc32c::crc32c(&bytes);
    let body = Body::new(Arc::new(Content(bytes.clone())), 0, bytes.len() as u64, digest, BodyFlags::default());
    submit(&handle, message(2, DraftBody::Spilled { content: body, prefix_len: 10 }, digest)).await.unwrap().unwrap();
    assert_eq!(stored(&stream).await, [(1, vec![1; octets]), (2, bytes)]);
}

#[tokio::test]
async fn a_released_lane_has_everything_that_was_submitted_before() {
    let servers = NatsServers::start(1).await;
    let (stream, handle) = claim(&servers.connect("one").await, "one").await;
    let answers: Vec<_> = (1..=50).map(|number| submit(&handle, in_memory(number, 5000))).collect();
    assert_eq!(handle.release().await, LaneEnd::Released);
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(stored(&stream).await.len(), 50);
}

/// The next owner would not get what only the disk has.
#[tokio::test]
async fn a_lane_is_not_released_before_all_of_it_is_copied() {
    let servers = NatsServers::start(1).await;
    let (_, handle) = claim_with_lease(&servers.connect("one").await, lane(), "one", COPYING_LEASE).await;
    handle.claimed().await.unwrap();
    assert!(matches!(handle.release().await, LaneEnd::Lost(_)));
    assert!(handle.may_deliver());
    let (sender, announced) = oneshot::channel();
    handle.announce_lease(LaneTimes::default().lease, StepAnswer::new(move |result| drop(sender.send(result))));
    announced.await.unwrap().unwrap();
    submit(&handle, in_memory(1, 10)).await.unwrap().unwrap();
    assert_eq!(handle.release().await, LaneEnd::Released);
}

#[tokio::test]
async fn an_idle_owner_keeps_its_lease() {
    let servers = NatsServers::start(1).await;
    let (_, handle) = claim(&servers.connect("one").await, "one").await;
    handle.claimed().await.unwrap();
    assert_keeps_lease(&handle).await;
}

/// For twice as long as a lease, the owner has it nearly always. A machine or a server that stands still for seconds
/// costs it the rest of one lease; then it renews it.
async fn assert_keeps_lease(handle: &LaneHandle) {
    let end = Instant::now() + 2 * LaneTimes::default().lease;
    let (mut looks, mut having) = (0, 0);
    while Instant::now() < end {
        looks += 1;
        having += usize::from(handle.may_deliver());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(4 * having > 3 * looks, "the lease is lost: it was there at {having} of {looks} looks");
}

#[tokio::test]
async fn without_servers_nothing_is_confirmed_and_no_delivery_begins_and_later_all_is_stored() {
    let mut servers = NatsServers::start(1).await;
    let (stream, handle) = claim(&servers.connect("one").await, "one").await;
    handle.claimed().await.unwrap();
    servers.kill(0);
    let start = Instant::now();
    let error = submit(&handle, in_memory(1, 1000)).await.unwrap().unwrap_err();
    assert!(start.elapsed() > Duration::from_secs(5), "{error}");
    assert!(!handle.may_deliver());
    servers.resume(0);
    let end = Instant::now() + WAIT_MAX;
    while !handle.may_deliver() {
        assert!(Instant::now() < end, "the lease is not renewed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    submit(&handle, in_memory(2, 1000)).await.unwrap().unwrap();
    assert_eq!(stored(&stream).await.into_iter().map(|(number, _)| number).collect::<Vec<_>>(), [1, 2]);
}

/// More than is sent ahead: what was not begun must not wait until the servers are back.
#[tokio::test]
async fn without_servers_every_batch_fails_in_time_however_many_wait() {
    let mut servers = NatsServers::start(1).await;
    let (_, handle) = claim(&servers.connect("one").await, "one").await;
    handle.claimed().await.unwrap();
    servers.kill(0);
    let answers: Vec<_> = (1..=40).map(|number| submit(&handle, in_memory(number, 1 << 20))).collect();
    let outcome = submit(&handle, delivered(99));
    for answer in answers {
        let answer = tokio::time::timeout(Duration::from_secs(30), answer).await.expect("it fails in time");
        assert!(answer.unwrap().is_err());
    }
    assert!(outcome.await.unwrap().is_err());
}

fn delivered(number: u64) -> BatchDraft {
    let id = QueueId::new(lane().spool, lane().number, number);
    let recipients = vec![(0, RecipientState::Delivered)];
    BatchDraft { lane: lane(), entries: vec![EntryDraft::Outcome { id, recipients, bounce: None }] }
}

/// The copy was read before the outcome was recorded, and is queued behind it.
#[tokio::test]
async fn a_copy_of_a_missing_message_has_the_outcomes_that_came_before_it() {
    let servers = NatsServers::start(1).await;
    let (stream, handle) = claim(&servers.connect("one").await, "one").await;
    handle.claimed().await.unwrap();
    handle.seed(LaneRetention::new(u64::MAX, None), Arc::new(|_| None));
    submit(&handle, delivered(1)).await.unwrap().unwrap();
    let id = QueueId::new(lane().spool, lane().number, 1);
    let (sender, answer) = oneshot::channel();
    let body = Body::new(Arc::new(Content(vec![7; 10])), 0, 10, crc32c::crc32c(&[7; 10]), BodyFlags::default());
    let message = SpooledMessage { envelope: envelope(), states: vec![RecipientState::NEW], body, prefix_len: 0 };
    handle.submit_missing(id, message, StepAnswer::new(move |result| drop(sender.send(result))));
    answer.await.unwrap().unwrap();
    let tail = stream.tail().await.unwrap();
    let (mut reader, mut states) = (BatchReader::new(tail.first_sequence), Vec::new());
    let mut records = Box::pin(stream.read(tail.first_sequence, tail.last_sequence));
    while let Some(record) = records.next().await {
        let (sequence, record) = record.unwrap();
        reader.handle_record(sequence, &record).unwrap();
        while let Some(event) = reader.poll_event() {
            if let ReplayEvent::Message(message) = event {
                states.push(message.states);
            }
        }
    }
    assert_eq!(states[0], [(0, RecipientState::Delivered)]);
}

/// Passes a batch to the step, as the spool does.
fn pass(step: &ClusterStep, batch: BatchDraft) -> oneshot::Receiver<Result<(), String>> {
    let (sender, answer) = oneshot::channel();
    step.start(batch, StepAnswer::new(move |result| drop(sender.send(result))));
    answer
}

/// A session may have got its id while the lane took mail. Its mail would be acknowledged, and deleted with the stream.
#[tokio::test]
async fn a_lane_that_is_being_closed_takes_no_mail_and_is_not_finished_with_what_came_just_before() {
    let servers = NatsServers::start(1).await;
    let (_, handle) = claim(&servers.connect("one").await, "one").await;
    handle.claimed().await.unwrap();
    handle.seed(LaneRetention::new(1 << 20, None), Arc::new(|_| None));
    assert!(handle.confirm_finished().await);
    let step = ClusterStep::new();
    step.insert(lane(), handle.clone());
    let before = pass(&step, in_memory(1, 100));
    assert!(handle.is_finished(), "its task has not seen the message yet");
    assert!(step.close_if_finished(lane(), async { false }).await.is_none());
    before.await.unwrap().unwrap();
    assert!(step.takes_mail(lane()), "as before");
    pass(&step, delivered(1)).await.unwrap().unwrap();
    assert!(step.close_if_finished(lane(), async { true }).await.is_none(), "it is on the disk");
    assert!(step.takes_mail(lane()));
    let is_refused = async || pass(&step, in_memory(2, 100)).await.unwrap().is_err();
    let looking = async {
        assert!(is_refused().await, "while it is looked for the last time");
        false
    };
    assert!(step.close_if_finished(lane(), looking).await.is_some());
    assert!(!step.takes_mail(lane()) && is_refused().await);
    pass(&step, delivered(1)).await.unwrap().unwrap();
}

/// The spool frees it with the next batch that succeeds: if it was answered as failed, and the node were killed before
/// the lane is compared, its message would be delivered again.
#[tokio::test]
async fn an_outcome_from_before_the_claim_is_in_the_stream_before_it_is_answered() {
    let servers = NatsServers::start(1).await;
    let step = ClusterStep::new();
    let mut early = pass(&step, delivered(1));
    assert!(pass(&step, in_memory(2, 100)).await.unwrap().is_err());
    assert!(early.try_recv().is_err(), "it waits");
    let (_, handle) = claim(&servers.connect("one").await, "one").await;
    handle.claimed().await.unwrap();
    let before = handle.status().confirmed_sequence;
    step.insert(lane(), handle.clone());
    early.await.unwrap().unwrap();
    assert!(handle.status().confirmed_sequence > before);
}

/// Before the stream is full, new mail is refused: outcomes and the lease go on, and make room.
#[tokio::test]
async fn an_owner_whose_stream_is_nearly_full_keeps_its_lease_and_takes_outcomes() {
    const STREAM_BYTES_MAX: u64 = 2 << 20;
    let servers = NatsServers::start(1).await;
    let config = ClusterConfig { stream_bytes_max: Some(STREAM_BYTES_MAX), ..servers.config("one") };
    let connection = Connection::open(&config).await.unwrap();
    let (_, handle) = claim(&connection, "one").await;
    handle.claimed().await.unwrap();
    handle.seed(LaneRetention::new(u64::MAX, Some(STREAM_BYTES_MAX)), Arc::new(|_| None));
    let mut accepted = Vec::new();
    let error = loop {
        let number = accepted.len() as u64 + 1;
        match submit(&handle, in_memory(number, 50_000)).await.unwrap() {
            Ok(()) => accepted.push(number),
            Err(error) => break error,
        }
    };
    assert!(error.contains("nearly full"), "{error}");
    assert!((30..40).contains(&accepted.len()), "{}", accepted.len());
    assert_keeps_lease(&handle).await;
    assert!(!handle.is_finished());
    for number in accepted {
        submit(&handle, delivered(number)).await.unwrap().unwrap();
    }
    let end = Instant::now() + Duration::from_secs(30);
    while submit(&handle, in_memory(99, 50_000)).await.unwrap().is_err() {
        assert!(Instant::now() < end, "there is no room again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    submit(&handle, delivered(99)).await.unwrap().unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while !handle.is_finished() {
        assert!(Instant::now() < end, "the lane is not finished");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(handle.status().publishes_failed, 0);
}

/// Three servers, of which the leader of the stream dies while mail is written: what was confirmed
/// is there, once and in its order.
#[tokio::test]
async fn nothing_confirmed_is_lost_when_the_leader_of_the_stream_dies() {
    const BATCHES: u64 = 600;
    const CONFIRMED_BEFORE: usize = 200;
    let mut servers = NatsServers::start(3).await;
    let (stream, handle) = claim(&servers.connect("one").await, "one").await;
    handle.claimed().await.unwrap();
    let (mut answers, mut confirmed) = (VecDeque::new(), Vec::new());
    for number in 1..=BATCHES {
        answers.push_back((number, submit(&handle, in_memory(number, 3000))));
        if number == BATCHES / 2 {
            // Others are on their way still.
            for (number, answer) in answers.drain(..CONFIRMED_BEFORE) {
                answer.await.unwrap().unwrap();
                confirmed.push(number);
            }
            let leader = servers.leader_of(lane()).await;
            servers.kill(leader);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for (number, answer) in answers {
        if answer.await.unwrap().is_ok() {
            confirmed.push(number);
        }
    }
    let numbers: Vec<u64> = stored(&stream).await.into_iter().map(|(number, _)| number).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "twice, or out of order: {numbers:?}");
    let lost: Vec<_> = confirmed.iter().filter(|number| !numbers.contains(number)).collect();
    assert!(lost.is_empty(), "confirmed and lost: {lost:?}");
    assert!(confirmed.len() > CONFIRMED_BEFORE, "{} confirmed", confirmed.len());
}
