//! Nodes with a spool each: they take over from one another, and start again.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::codec::{BatchEncoder, CopiedEntry};
use cluster::record::{RecordHeader, RecordKind};
use cluster::{
    AskError, ClusterConfig, ClusterNode, ClusterStep, GivenBack, LaneLostCallback, LaneRole, NodeError, NodeParts,
    NodeSharing, StartingNode,
};
use mail::{BodyFlags, EventLog, LogLevel, MailEvent, QueueId, ServerLog};
use spool::{
    CommitError, Disk, DraftBody, FolderDisk, LaneId, LiveMessage, RecipientState, Spool, SpoolEntry, SubmittedBody,
};
use tempfile::TempDir;

use crate::lane_tasks::envelope;
use crate::servers::NatsServers;

pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);
const SEGMENT_BYTES: u64 = 4 << 20;

/// How long a lane that was taken over is finished before it is closed.
const CLOSE_AFTER: Duration = Duration::from_secs(3);

/// Shows what happens, if the test fails; and calls a test with each line, its text and then its fields.
struct PrintedLog(Box<dyn Fn(&str) + Send + Sync>);

impl EventLog for PrintedLog {
    fn write(&self, _event: MailEvent) {}
}

impl ServerLog for PrintedLog {
    fn event(&self, level: LogLevel, text: &str, fields: &[(&'static str, &dyn Display)]) {
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let line = format!("{text} {}", fields.join(" "));
        eprintln!("{level:?} {line}");
        (self.0)(&line);
    }
    fn lines_dropped(&self) -> u64 {
        0
    }
}

/// A node with its spool.
pub(crate) struct TestNode {
    pub(crate) spool: Arc<Spool>,
    pub(crate) node: ClusterNode,
    pub(crate) step: Arc<ClusterStep>,
    pub(crate) sharing: NodeSharing,
    /// What was on its own disk.
    pub(crate) recovered: Vec<QueueId>,
    admitted: Receiver<Vec<LiveMessage>>,
    pub(crate) lost: Receiver<LaneId>,
}

impl TestNode {
    pub(crate) fn start(config: ClusterConfig, folder: &Path) -> TestNode {
        TestNode::start_with(config, folder, Box::new(|_| {}))
    }

    /// Calls `on_log` with each line that is logged, before it goes on.
    pub(crate) fn start_with(
        config: ClusterConfig,
        folder: &Path,
        on_log: Box<dyn Fn(&str) + Send + Sync>,
    ) -> TestNode {
        TestNode::start_with_segments(config, folder, SEGMENT_BYTES, on_log)
    }

    fn start_with_segments(
        config: ClusterConfig,
        folder: &Path,
        segment_bytes: u64,
        on_log: Box<dyn Fn(&str) + Send + Sync>,
    ) -> TestNode {
        TestNode::start_in_steps(config, folder, segment_bytes, on_log, || {})
    }

    /// Calls `between` when the node has joined, and before it claims its lanes.
    pub(crate) fn start_between(config: ClusterConfig, folder: &Path, between: impl FnOnce()) -> TestNode {
        TestNode::start_in_steps(config, folder, SEGMENT_BYTES, Box::new(|_| {}), between)
    }

    fn start_in_steps(
        config: ClusterConfig,
        folder: &Path,
        segment_bytes: u64,
        on_log: Box<dyn Fn(&str) + Send + Sync>,
        between: impl FnOnce(),
    ) -> TestNode {
        let (tell_lost, lost) = channel();
        let tell_lost: Mutex<Sender<LaneId>> = Mutex::new(tell_lost);
        let on_lane_lost = Box::new(move |lane, _: &str| tell_lost.lock().unwrap().send(lane).unwrap_or_default());
        let parts = parts(config, folder, on_log, on_lane_lost);
        let starting = StartingNode::connect(parts).unwrap();
        let config =
            spool::Config { segment_bytes, commit_step: Some(starting.commit_step()), ..spool::Config::default() };
        let open = |path: PathBuf| -> Arc<dyn Disk> { Arc::new(FolderDisk::open(&path).unwrap()) };
        let disks = starting.lane_folders().into_iter().map(open).collect();
        let mut recovered = Vec::new();
        let spool = spool::open(disks, config, random(), &mut |live| recovered.push(live.id)).unwrap();
        let spool = Arc::new(spool);
        let (admit, admitted) = channel();
        let admit = Mutex::new(admit);
        let (step, sharing) = (starting.step(), starting.sharing());
        between();
        let node = starting.start(&spool, Box::new(move |live| drop(admit.lock().unwrap().send(live)))).unwrap();
        TestNode { spool, node, step, sharing, recovered, admitted, lost }
    }

    /// Accepts a message of this size.
    pub(crate) fn accept(&self, size: usize) -> QueueId {
        let id = self.spool.new_id();
        let body = vec![b'x'; size];
        let content = match size {
            0..1_000_000 => SubmittedBody::Memory { prefix: b"P: 1\r\n".to_vec(), body },
            _ => {
                let mut file = self.spool.create_spill_file(id).unwrap();
                file.append(&body).unwrap();
                SubmittedBody::Spilled(file.finish(b"P: 1\r\n").unwrap())
            }
        };
        self.submit(SpoolEntry::Message { id, envelope: envelope(), content, flags: BodyFlags::default() });
        id
    }

    /// Tries to accept a small message.
    pub(crate) fn try_accept(&self) -> Result<QueueId, CommitError> {
        let id = self.spool.new_id();
        let content = SubmittedBody::Memory { prefix: Vec::new(), body: b"small\r\n".to_vec() };
        let (tell, told) = channel();
        let entry = SpoolEntry::Message { id, envelope: envelope(), content, flags: BodyFlags::default() };
        self.spool.submit(vec![entry], Box::new(move |result| drop(tell.send(result))));
        told.recv_timeout(WAIT_MAX).unwrap().map(|()| id)
    }

    pub(crate) fn roles(&self) -> Vec<LaneRole> {
        self.node.lanes().iter().map(|report| report.role).collect()
    }

    /// Accepts a message to two recipients.
    fn accept_for_two(&self) -> QueueId {
        let (id, mut envelope) = (self.spool.new_id(), envelope());
        envelope.recipients.push(envelope.recipients[0].clone());
        let content = SubmittedBody::Memory { prefix: Vec::new(), body: b"two\r\n".to_vec() };
        self.submit(SpoolEntry::Message { id, envelope, content, flags: BodyFlags::default() });
        id
    }

    /// The message is delivered to its first recipient.
    pub(crate) fn finish(&self, id: QueueId) {
        self.submit(SpoolEntry::Outcome { id, recipients: vec![(0, RecipientState::Delivered)], bounce: None });
    }

    fn submit(&self, entry: SpoolEntry) {
        let (tell, told) = channel();
        self.spool.submit(vec![entry], Box::new(move |result| drop(tell.send(result))));
        told.recv_timeout(WAIT_MAX).unwrap().unwrap();
    }

    /// The messages of lanes that were taken over, sorted.
    pub(crate) fn await_adopted(&self, count: usize) -> Vec<QueueId> {
        let (end, mut found) = (Instant::now() + WAIT_MAX, Vec::new());
        while found.len() < count {
            let left = end.saturating_duration_since(Instant::now());
            found.extend(self.admitted.recv_timeout(left).unwrap().into_iter().map(|live| live.id));
        }
        found.sort_unstable();
        found
    }

    fn has_lane(&self, lane: LaneId) -> bool {
        self.node.lanes().iter().any(|report| report.lane == lane)
    }

    pub(crate) fn length(&self, id: QueueId) -> u64 {
        self.spool.message(id).unwrap().body.len()
    }

    /// Ends without giving anything away, as a kill does.
    pub(crate) fn end(self) {
        let TestNode { spool, node, .. } = self;
        node.stop(GivenBack::default());
        drop(spool);
    }
}

fn random() -> u64 {
    static SEED: Mutex<u64> = Mutex::new(0);
    let mut seed = SEED.lock().unwrap();
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    *seed
}

fn parts(
    config: ClusterConfig,
    folder: &Path,
    on_log: Box<dyn Fn(&str) + Send + Sync>,
    on_lane_lost: LaneLostCallback,
) -> NodeParts {
    NodeParts {
        config,
        lane_folders: vec![folder.to_owned()],
        segment_bytes: SEGMENT_BYTES,
        close_lanes_after: CLOSE_AFTER,
        adopts_lanes: true,
        version: "0".into(),
        configuration: "0".into(),
        on_lane_lost,
        random,
        log: Arc::new(PrintedLog(on_log)),
    }
}

/// The servers, for tests that wait on a thread of their own.
pub(crate) fn servers() -> (tokio::runtime::Runtime, NatsServers) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let servers = runtime.block_on(NatsServers::start(1));
    (runtime, servers)
}

pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT_MAX;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until all mail of a node's lane is in its stream, and the folder says so for this epoch.
pub(crate) fn await_copied(folder: &Path, epoch: u32) {
    let expected = format!("{epoch} copied");
    let is_copied = || std::fs::read_to_string(folder.join("copied")).is_ok_and(|text| text == expected);
    await_that("the lane is copied", is_copied);
}

pub(crate) fn folder(home: &TempDir, name: &str) -> PathBuf {
    home.path().join(name)
}

#[test]
fn a_node_takes_over_a_lane_and_the_owner_comes_back_with_a_new_one() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let first = TestNode::start(servers.config("first"), &folder(&home, "first"));
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    let mut expected = vec![first.accept(100), first.accept(2_000_000), first.accept(3000)];
    let finished = first.accept(200);
    first.finish(finished);
    let (small, large) = (expected[0], expected[1]);
    expected.sort_unstable();
    first.end();

    let begin = Instant::now();
    assert_eq!(second.await_adopted(expected.len()), expected);
    assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
    assert_eq!((second.length(small), second.length(large)), (106, 2_000_006));
    second.finish(small);

    // The first one has lost its lane, and nothing of it is kept.
    let first = TestNode::start(servers.config("first"), &folder(&home, "first"));
    assert_eq!(first.recovered, []);
    let own = first.accept(10);
    assert_ne!(LaneId::of(own), LaneId::of(small));
    assert_eq!(first.spool.ids(), [own]);
    assert!(!folder(&home, "first").join("fenced").join(LaneId::of(small).to_string()).exists());

    // The heir starts again, and still has it.
    second.end();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    let left: Vec<QueueId> = expected.iter().copied().filter(|id| *id != small).collect();
    assert_eq!(second.await_adopted(left.len()), left);
    assert_eq!(second.length(large), 2_000_006);
    first.end();
    second.end();
}

#[test]
fn a_node_that_starts_again_soon_goes_on_from_its_disk() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let first = TestNode::start(servers.config("first"), &folder(&home, "first"));
    let ids = [first.accept(100), first.accept(200)];
    first.end();
    let first = TestNode::start(servers.config("first"), &folder(&home, "first"));
    assert_eq!(first.recovered, ids);
    first.finish(ids[0]);
    first.accept(10);
    first.end();
}

#[test]
fn mail_from_before_the_cluster_is_copied_to_it() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let id = accept_without_cluster(&path);
    let first = TestNode::start(servers.config("first"), &path);
    assert_eq!(first.recovered, [id]);
    await_that("it is copied", || path.join("copied").exists());
    first.end();
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    assert_eq!(second.await_adopted(1), [id]);
    assert_eq!(second.length(id), 5);
    second.end();
}

/// A server without a cluster accepts a message.
pub(crate) fn accept_without_cluster(path: &Path) -> QueueId {
    let disk: Arc<dyn Disk> = Arc::new(FolderDisk::open(path).unwrap());
    let config = spool::Config { segment_bytes: SEGMENT_BYTES, ..spool::Config::default() };
    let spool = spool::open(vec![disk], config, 77, &mut |_| {}).unwrap();
    let id = spool.new_id();
    let content = SubmittedBody::Memory { prefix: Vec::new(), body: b"old\r\n".to_vec() };
    let (tell, told) = channel();
    let entry = SpoolEntry::Message { id, envelope: envelope(), content, flags: BodyFlags::default() };
    spool.submit(vec![entry], Box::new(move |result| drop(tell.send(result))));
    told.recv_timeout(WAIT_MAX).unwrap().unwrap();
    spool.close();
    id
}

#[test]
fn a_node_that_hangs_learns_that_its_lane_is_gone() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let first = TestNode::start(servers.config("first"), &folder(&home, "first"));
    let id = first.accept(100);
    // The same node elsewhere, such as a copy of its machine, claims the lane without its disk.
    let lane = LaneId::of(id);
    let connection = runtime.block_on(servers.connect("second"));
    // A claim is refused if the owner has just written a record.
    let claim = || runtime.block_on(crate::lane_tasks::claim_lane(&connection, lane, "second")).1;
    let mut handles = std::iter::repeat_with(claim).take(10);
    let claimed = handles.find(|handle| runtime.block_on(handle.claimed()).is_ok());
    assert!(claimed.is_some());
    assert_eq!(first.lost.recv_timeout(WAIT_MAX), Ok(lane));
    first.end();
}

/// The purge of an owner that is gone may arrive when its lane is claimed already.
#[test]
fn a_lane_is_taken_over_although_its_stream_gets_shorter_meanwhile() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let first = TestNode::start(servers.config("first"), &folder(&home, "first"));
    let id = first.accept(100);
    let stream = runtime.block_on(servers.connect("probe")).lane_stream(LaneId::of(id));
    let purge = Mutex::new((runtime, stream));
    let on_log = Box::new(move |text: &str| {
        if text.starts_with("taking over a lane") {
            let purge = &purge;
            // The caller drives a runtime of its own.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let purge = purge.lock().unwrap();
                    purge.0.block_on(purge.1.purge_up_to(20)).unwrap();
                });
            });
        }
    });
    let second = TestNode::start_with(servers.config("second"), &folder(&home, "second"), on_log);
    first.end();
    assert_eq!(second.await_adopted(1), [id]);
    second.end();
}

/// An outcome is recorded on the disk, and the node ends before its copy.
#[test]
fn outcomes_of_single_recipients_that_the_stream_lacks_are_copied_after_a_start() {
    let (_runtime, mut servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    let (id, other) = (first.accept_for_two(), first.accept_for_two());
    servers.kill(0);
    first.finish(id);
    first.end();
    servers.resume(0);
    let first = TestNode::start(servers.config("first"), &path);
    assert_eq!(first.recovered, [id, other]);
    await_copied(&path, 2);
    first.end();
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    assert_eq!(second.await_adopted(2), [id, other]);
    assert_eq!(second.spool.states(id), [(0, RecipientState::Delivered)], "it would be delivered twice");
    assert_eq!(second.spool.states(other), []);
    second.end();
}

/// As servers of version 2.9.10 do that are killed after a purge: mail and the Epoch record are missing.
#[test]
fn what_the_servers_have_lost_is_copied_again_by_its_living_owner() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    await_copied(&path, 1);
    let mut ids = [first.accept(100), first.accept(2_000_000)];
    ids.sort_unstable();
    let stream = runtime.block_on(servers.connect("probe")).lane_stream(LaneId::of(ids[0]));
    let confirmed = first.node.lanes()[0].status.unwrap().confirmed_sequence;
    runtime.block_on(stream.purge_up_to(confirmed)).unwrap();
    let owner = || runtime.block_on(stream.newest_epoch()).unwrap().map(|newest| newest.record.node);
    await_that("a Renew record names the owner", || owner() == Some("first".parse().unwrap()));
    // Nothing before the repeated Epoch record is needed any more: the mail was copied behind it.
    await_that("the mail is copied", || {
        let newest = runtime.block_on(stream.newest_epoch()).unwrap().unwrap();
        newest.header.kind == RecordKind::Epoch
            && newest.sequence > confirmed
            && runtime.block_on(stream.first_sequence()) == Ok(newest.sequence)
    });
    first.end();
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    assert_eq!(second.await_adopted(2), ids);
    assert_eq!((second.length(ids[0]), second.length(ids[1])), (106, 2_000_006));
    second.end();
}

/// Two nodes would deliver otherwise: the owner, and one that waits for its own shorter lease.
#[test]
fn a_lane_is_taken_over_only_when_the_lease_of_its_owner_is_over() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let lease = Duration::from_secs(9);
    let first = TestNode::start(ClusterConfig { lease, ..servers.config("first") }, &folder(&home, "first"));
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    // Before the record, which the other node may see sooner than this thread goes on.
    let begin = Instant::now();
    let id = first.accept(100);
    first.end();
    assert_eq!(second.await_adopted(1), [id]);
    assert!(begin.elapsed() >= lease, "{:?}", begin.elapsed());
    second.end();
}

/// The outcome is recorded on the disk only, and the message is live in the stream.
#[test]
fn a_message_that_the_disk_knows_as_finished_is_not_restored() {
    let (_runtime, mut servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    let (id, other) = (first.accept(100), first.accept(200));
    servers.kill(0);
    first.finish(id);
    first.end();
    servers.resume(0);
    let first = TestNode::start(servers.config("first"), &path);
    await_copied(&path, 2);
    assert_eq!(first.spool.ids(), [other]);
    first.end();
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    assert_eq!(second.await_adopted(1), [other], "it would be delivered twice");
    second.end();
}

/// The disk was set back to an earlier time, in the same epoch of its spool: a snapshot, or a cache that
/// was never written. What it lacks was accepted.
#[test]
fn mail_that_the_disk_has_lost_is_restored_from_the_stream() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    let kept = first.accept(100);
    let snapshot = snapshot(&path);
    let (small, large, two) = (first.accept(300), first.accept(2_000_000), first.accept_for_two());
    first.finish(two);
    first.end();
    restore_snapshot(&path, &snapshot);

    let first = TestNode::start(servers.config("first"), &path);
    assert_eq!(first.recovered, [kept]);
    await_copied(&path, 2);
    let mut expected = [kept, small, large, two];
    expected.sort_unstable();
    assert_eq!(first.spool.ids(), expected);
    assert_eq!((first.length(small), first.length(large)), (306, 2_000_006));
    assert_eq!(first.spool.states(two), [(0, RecipientState::Delivered)]);
    first.finish(small);
    first.end();

    // The stream has them still, and once each.
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    let expected: Vec<QueueId> = expected.into_iter().filter(|id| *id != small).collect();
    assert_eq!(second.await_adopted(3), expected);
    assert_eq!(second.length(large), 2_000_006);
    second.end();
}

/// A block of the disk cannot be read: it had the message, and not the outcome, which is only here.
#[test]
fn the_stream_learns_the_outcomes_of_what_is_restored_from_it() {
    let (_runtime, mut servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    let id = first.accept_for_two();
    servers.kill(0);
    first.finish(id);
    first.end();
    damage(&path, b"b@example.org");
    servers.resume(0);
    let first = TestNode::start(servers.config("first"), &path);
    assert_eq!(first.recovered, []);
    await_copied(&path, 2);
    assert_eq!(first.spool.states(id), [(0, RecipientState::Delivered)]);
    first.end();
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    assert_eq!(second.await_adopted(1), [id]);
    assert_eq!(second.spool.states(id), [(0, RecipientState::Delivered)], "it would be delivered twice");
    second.end();
}

/// The segments are smaller than before. The others are restored, and the lane goes on.
#[test]
fn a_lost_message_that_does_not_fit_the_spool_any_more_is_logged_and_stays_in_the_stream() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    let snapshot = snapshot(&path);
    let (large, small) = (first.accept(500_000), first.accept(300));
    first.end();
    restore_snapshot(&path, &snapshot);
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let on_log = Box::new(move |text: &str| tell.lock().unwrap().send(text.to_owned()).unwrap_or_default());
    let first = TestNode::start_with_segments(servers.config("first"), &path, 64 << 10, on_log);
    await_copied(&path, 2);
    assert_eq!(first.spool.ids(), [small]);
    assert!(told.try_iter().any(|text| text.starts_with("cannot restore a message that the disk lacks")));
    first.end();
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    let mut expected = [large, small];
    expected.sort_unstable();
    assert_eq!(second.await_adopted(2), expected);
    second.end();
}

/// Changes this text wherever it is in the files of a folder.
fn damage(path: &Path, text: &[u8]) {
    for (file, mut content) in snapshot(path) {
        let places: Vec<usize> = (0..content.len()).filter(|at| content[*at..].starts_with(text)).collect();
        places.into_iter().for_each(|at| content[at] ^= 1);
        std::fs::write(file, content).unwrap();
    }
}

/// The files of a folder, with their content.
fn snapshot(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).filter(|file| file.is_file());
    files.map(|file| (file.clone(), std::fs::read(file).unwrap())).collect()
}

fn restore_snapshot(path: &Path, files: &[(PathBuf, Vec<u8>)]) {
    std::fs::remove_dir_all(path).unwrap();
    std::fs::create_dir(path).unwrap();
    for (file, content) in files {
        std::fs::write(file, content).unwrap();
    }
}

#[test]
fn a_lane_that_was_taken_over_is_closed_when_its_mail_is_finished_and_stays_closed() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let first = TestNode::start(servers.config("first"), &folder(&home, "first"));
    let id = first.accept(100);
    let lane = LaneId::of(id);
    first.end();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    assert_eq!(second.await_adopted(1), [id]);
    std::thread::sleep(2 * CLOSE_AFTER);
    assert!(second.has_lane(lane), "it has mail");
    second.finish(id);
    let connection = runtime.block_on(servers.connect("probe"));
    await_that("the stream is deleted", || !runtime.block_on(connection.lanes()).unwrap().contains(&lane));
    let figures = second.node.figures();
    assert_eq!((figures.lanes_own, figures.lanes_adopted), (1, 0));
    assert!(!second.has_lane(lane) && runtime.block_on(connection.is_closed(lane)).unwrap());

    // The message is live on the first one's disk.
    let first = TestNode::start(servers.config("first"), &folder(&home, "first"));
    assert_eq!((first.recovered, first.spool.ids()), (Vec::new(), Vec::new()));
    assert!(second.lost.try_recv().is_err());
    second.end();

    // The second one has nothing of it after its next start, and its own lane is there.
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    assert!(!folder(&home, "second").join("adopted").join(lane.to_string()).exists());
    assert_eq!(second.spool.lane_epochs().len(), 1);
    second.end();
}

/// Somebody makes the stream of a closed lane anew: the lane is not claimed.
#[test]
fn a_closed_lane_is_not_taken_over_and_its_stream_is_removed() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let lane = LaneId { spool: mail::SpoolId::new(0xdead), number: 0 };
    let connection = runtime.block_on(servers.connect("probe"));
    runtime.block_on(connection.note_closed(lane)).unwrap();
    runtime.block_on(connection.lane_stream(lane).ensure()).unwrap();
    let node = TestNode::start(servers.config("first"), &folder(&home, "first"));
    await_that("the stream is deleted", || !runtime.block_on(connection.lanes()).unwrap().contains(&lane));
    assert_eq!(node.spool.lane_epochs().len(), 1);
    node.end();
}

/// The servers have lost every record that says whose lane it is: nobody takes it over, and an operator
/// can end that.
#[test]
fn a_lane_without_an_owner_waits_until_it_is_forgotten() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let lane = LaneId { spool: mail::SpoolId::new(0xbeef), number: 0 };
    let connection = runtime.block_on(servers.connect("probe"));
    let header = RecordHeader { kind: RecordKind::Part, epoch: 3, token: 1, batch: 1, part: 0, last: true };
    runtime.block_on(connection.lane_stream(lane).ensure()).unwrap();
    runtime.block_on(servers.publish_raw(lane, header.encode(&[])));
    let node = TestNode::start(servers.config("first"), &folder(&home, "first"));
    let own = LaneId::of(node.accept(10)).to_string();
    let forget = |target: &str, force| node.node.forget(target, force).map_err(|error| error.to_string());
    let refused = forget(&lane.to_string(), false).unwrap_err();
    assert!(refused.contains("their mail would be lost"), "{refused}");
    assert!(forget(&own, true).unwrap_err().contains("this node owns"));
    await_that("its entry is there", || !node.node.nodes().unwrap().is_empty());
    assert!(forget("first", true).unwrap_err().contains("is alive"));
    assert_eq!(forget("gone", false), Ok(vec![]));
    assert_eq!(forget(&lane.to_string(), true), Ok(vec![lane]));
    assert!(forget(&lane.to_string(), true).unwrap_err().contains("has no stream"));
    node.end();
}

/// The servers have lost who owns it. An operator decides that nobody does any more.
#[test]
fn a_lane_without_an_owner_record_is_taken_over_by_hand() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let lane = LaneId { spool: mail::SpoolId::new(0xbeef), number: 0 };
    let id = QueueId::new(lane.spool, lane.number, 5 << 40 | 1);
    let body = b"kept\r\n".to_vec();
    let entry = CopiedEntry::Message {
        id,
        envelope: envelope(),
        states: Vec::new(),
        digest: crc32c::crc32c(&body),
        content: DraftBody::Memory { prefix: Arc::new(Vec::new()), body: Arc::new(body) },
        flags: BodyFlags::default(),
    };
    let (payload, last) = BatchEncoder::new(vec![entry], 64 << 10).next_part().unwrap().unwrap();
    let header = RecordHeader { kind: RecordKind::Part, epoch: 3, token: 1, batch: 1, part: 0, last };
    runtime.block_on(async { servers.connect("probe").await.lane_stream(lane).ensure().await.unwrap() });
    runtime.block_on(servers.publish_raw(lane, header.encode(&payload)));
    let node = TestNode::start(servers.config("first"), &folder(&home, "first"));
    node.node.adopt(&lane.to_string()).unwrap();
    assert_eq!(node.await_adopted(1), [id]);
    assert_eq!(node.length(id), 6);
    assert!(node.spool.new_id_in_lane_of(id) > id);
    node.end();
}

/// The entry of its node may be missing for a while, and it has mail.
#[test]
fn a_lane_whose_stream_grows_is_never_forgotten() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let lane = LaneId { spool: mail::SpoolId::new(0xbeef), number: 0 };
    let stream = runtime.block_on(servers.connect("probe")).lane_stream(lane);
    let header = RecordHeader { kind: RecordKind::Part, epoch: 3, token: 1, batch: 1, part: 0, last: true };
    let publish = || runtime.block_on(servers.publish_raw(lane, header.encode(&[])));
    runtime.block_on(stream.ensure()).unwrap();
    publish();
    let node = TestNode::start(servers.config("first"), &folder(&home, "first"));
    let refused = std::thread::scope(|scope| {
        let forgetting = scope.spawn(|| node.node.forget(&lane.to_string(), true));
        while !forgetting.is_finished() {
            publish();
            std::thread::sleep(Duration::from_millis(100));
        }
        forgetting.join().unwrap().unwrap_err().to_string()
    });
    assert!(refused.contains("is alive"), "{refused}");
    assert!(runtime.block_on(stream.tail()).is_ok());
    node.end();
}

/// A copy of a machine, or a name that was given twice.
#[test]
fn a_second_process_with_the_name_of_a_node_that_is_alive_does_not_start() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let first = TestNode::start(servers.config("first"), &folder(&home, "first"));
    let parts = parts(servers.config("first"), &folder(&home, "other"), Box::new(|_| {}), Box::new(|_, _| {}));
    let error = StartingNode::connect(parts).err().unwrap();
    assert!(matches!(error, NodeError::NameTaken(_)), "{error}");
    first.end();
    TestNode::start(servers.config("first"), &folder(&home, "first")).end();
}

/// Whoever starts beside a later version must be told why a lane waits.
#[test]
fn a_lane_whose_records_are_of_a_later_version_is_named_in_the_log() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let lane = LaneId { spool: mail::SpoolId::new(0xbeef), number: 0 };
    runtime.block_on(async {
        servers.connect("probe").await.lane_stream(lane).ensure().await.unwrap();
        servers.publish_raw(lane, b"MRL\x03 of a later version".as_slice()).await;
    });
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let on_log = Box::new(move |text: &str| tell.lock().unwrap().send(text.to_owned()).unwrap_or_default());
    let node = TestNode::start_with(servers.config("first"), &folder(&home, "first"), on_log);
    let mut texts = std::iter::from_fn(|| told.recv_timeout(WAIT_MAX).ok());
    assert!(texts.any(|text| text.starts_with("cannot watch a lane")));
    node.end();
}

/// An operator was told that an act was not done; then a node that had been busy did it.
#[test]
fn a_request_that_a_node_could_not_begin_in_time_is_not_done_later() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let first = TestNode::start(servers.config("first"), &folder(&home, "first"));
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    let (begun, release) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(())));
    let busy = release.lock().unwrap();
    let (begun_there, release_there) = (begun.clone(), release.clone());
    let answer = move |question: &[u8]| {
        begun_there.lock().unwrap().push(question.to_vec());
        if question == b"blocked" {
            drop(release_there.lock().unwrap());
        }
        question.to_vec()
    };
    first.node.serve_requests(Arc::new(answer));
    let ask = |question: &'static [u8]| {
        let mut answers = second.node.ask(Some("first".parse().unwrap()), question).unwrap();
        answers.pop().unwrap().1
    };
    await_that("requests are taken", || ask(b"first").is_ok());
    begun.lock().unwrap().clear();
    std::thread::scope(|scope| {
        let blocked: Vec<_> = (0..4).map(|_| scope.spawn(|| ask(b"blocked"))).collect();
        await_that("four are being answered", || begun.lock().unwrap().len() == 4);
        assert!(matches!(ask(b"late"), Err(AskError::Silent(..))));
        for asked in blocked {
            assert!(matches!(asked.join().unwrap(), Err(AskError::Unfinished(..))));
        }
    });
    drop(busy);
    assert_eq!(ask(b"next").unwrap(), "next");
    let begun = begun.lock().unwrap().clone();
    assert!(!begun.contains(&b"late".to_vec()), "{begun:?}");
    first.end();
    second.end();
}
