//! Nodes whose mail requires no second copies, while the servers are away; and mail that only the disk of a lane
//! has which another node has taken over.

use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cluster::{ClusterConfig, LaneRole};
use mail::SpoolId;
use spool::{CommitError, LaneId};

use crate::nodes::{TestNode, WAIT_MAX, accept_without_cluster, await_that, folder, servers};
use crate::servers::NatsServers;

/// A node waits for 5 seconds, and twice for 10.
const START_TIME_MAX: Duration = Duration::from_secs(40);

/// The copies were never made: the new owner of the lane does not have it.
#[test]
fn mail_that_only_the_disk_of_a_fenced_lane_has_is_moved_to_a_new_lane() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let old = accept_without_cluster(&path);
    let connection = runtime.block_on(servers.connect("second"));
    let (_, handle) = runtime.block_on(crate::lane_tasks::claim_lane(&connection, LaneId::of(old), "second"));
    runtime.block_on(handle.claimed()).unwrap();
    let first = TestNode::start(servers.config("first"), &path);
    assert_eq!(first.recovered, []);
    await_that("it is moved", || first.spool.ids().len() == 1);
    let new = first.spool.ids()[0];
    assert_ne!(LaneId::of(new), LaneId::of(old));
    assert_eq!(first.length(new), 5);
    await_that("the folder is removed", || !path.join("fenced").join(LaneId::of(old).to_string()).exists());
    first.end();
    // And it is in the stream of its new lane.
    std::fs::remove_dir_all(&path).unwrap();
    let third = TestNode::start(servers.config("third"), &folder(&home, "third"));
    assert_eq!(third.await_adopted(1), [new]);
    third.end();
}

/// A stream may have records of a later version. The mail of all other lanes has waited behind that one.
#[test]
fn mail_of_a_fenced_lane_does_not_wait_for_lanes_whose_streams_cannot_be_read() {
    const UNREADABLE_LANES: u64 = 6;
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let old = accept_without_cluster(&path);
    let connection = runtime.block_on(servers.connect("second"));
    let (_, handle) = runtime.block_on(crate::lane_tasks::claim_lane(&connection, LaneId::of(old), "second"));
    runtime.block_on(handle.claimed()).unwrap();
    for number in 0..UNREADABLE_LANES {
        let lane = LaneId { spool: SpoolId::new(1000 + number), number: 0 };
        runtime.block_on(connection.lane_stream(lane).ensure()).unwrap();
        runtime.block_on(servers.publish_raw(lane, b"MRL\x03 of a later version".as_slice()));
        std::fs::create_dir_all(path.join("fenced").join(lane.to_string())).unwrap();
    }
    let first = TestNode::start(servers.config("first"), &path);
    await_that("it is moved", || first.spool.ids().len() == 1);
    first.end();
}

/// Starts a node while servers are away. A start that waits for them is a failure, and must not take for ever.
fn started_without(servers: &Mutex<NatsServers>, start: impl FnOnce() -> TestNode) -> TestNode {
    let ((tell, started), begin) = (channel(), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if started.recv_timeout(START_TIME_MAX) == Err(RecvTimeoutError::Timeout) {
                servers.lock().unwrap().resume(0);
            }
        });
        let node = start();
        tell.send(()).unwrap_or_default();
        assert!(begin.elapsed() < START_TIME_MAX, "the start has waited for the servers");
        node
    })
}

pub(crate) fn without_copies(servers: &NatsServers, node: &str) -> ClusterConfig {
    ClusterConfig { requires_copies: false, ..servers.config(node) }
}

/// The lanes whose mail was copied.
fn copied_lanes(path: &Path) -> usize {
    let adopted = std::fs::read_dir(path.join("adopted")).into_iter().flatten();
    adopted.filter(|entry| entry.as_ref().unwrap().path().join("copied").exists()).count()
}

#[test]
fn mail_is_accepted_without_servers_into_a_lane_of_its_own_and_copied_when_they_are_back() {
    let (_runtime, mut servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(without_copies(&servers, "first"), &path);
    let before = first.accept(100);
    let step = first.step.clone();
    servers.kill(0);
    await_that("there is a local lane", || first.roles().contains(&LaneRole::Local));
    // Without the lease, nothing comes into the own lane.
    await_that("the own lane has no lease", || !step.may_deliver(LaneId::of(before)));
    await_that("it takes new mail", || first.spool.new_id().spool() != before.spool());
    let local = first.try_accept().unwrap();
    assert_ne!(LaneId::of(local), LaneId::of(before));
    assert!(step.may_deliver(LaneId::of(local)), "nobody else can have it");
    let finished = first.try_accept().unwrap();
    first.finish(finished);
    assert_eq!(first.node.figures().lanes_local, 1);
    assert!(first.node.figures().local_batches >= 3);
    servers.resume(0);
    await_that("its mail is copied", || copied_lanes(&path) == 1);
    await_that("the own lane takes mail again", || LaneId::of(first.spool.new_id()) == LaneId::of(before));
    let roles = first.roles();
    assert!(roles.contains(&LaneRole::Own) && roles.contains(&LaneRole::Adopted), "{roles:?}");
    first.end();
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    let mut expected = [before, local];
    expected.sort_unstable();
    assert_eq!(second.await_adopted(2), expected);
    second.end();
}

/// A lane without a stream is no other node's, and one of before may be: it is opened when that is known.
#[test]
fn a_node_that_starts_without_servers_accepts_at_once_and_opens_its_lanes_later() {
    let (_runtime, mut servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    let before = first.accept(100);
    first.end();
    servers.kill(0);
    let (config, servers) = (without_copies(&servers, "first"), Mutex::new(servers));
    let first = started_without(&servers, || TestNode::start(config, &path));
    let mut servers = servers.into_inner().unwrap();
    assert_eq!(first.recovered, []);
    let alone = first.try_accept().unwrap();
    assert!(first.step.may_deliver(LaneId::of(alone)) && !first.step.may_deliver(LaneId::of(before)));
    servers.resume(0);
    assert_eq!(first.await_adopted(1), [before]);
    await_that("it delivers mail of before", || first.step.may_deliver(LaneId::of(before)));
    await_that("its mail is copied", || copied_lanes(&path) == 1);
    assert_eq!(first.length(before), 106);
    first.end();
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    let mut expected = [before, alone];
    expected.sort_unstable();
    assert_eq!(second.await_adopted(2), expected);
    second.end();
}

/// It was killed, and another node has the lane of before: the mail of the time alone is not concerned.
#[test]
fn what_was_accepted_without_servers_survives_the_loss_of_all_other_lanes() {
    let (_runtime, mut servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(without_copies(&servers, "first"), &path);
    let before = first.accept(100);
    servers.kill(0);
    await_that("a local lane takes new mail", || first.spool.new_id().spool() != before.spool());
    let local = first.try_accept().unwrap();
    first.end();
    servers.resume(0);
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    assert_eq!(second.await_adopted(1), [before]);
    let first = TestNode::start(without_copies(&servers, "first"), &path);
    assert_eq!(first.await_adopted(1), [local]);
    assert_eq!(first.spool.ids(), [local]);
    await_that("its mail is copied", || copied_lanes(&path) == 1);
    first.end();
    second.end();
}

/// Servers that come and go would fill the disks with lanes.
#[test]
fn beyond_a_number_of_local_lanes_mail_is_refused() {
    const LOCAL_LANES_MAX: u64 = 16;
    let (_runtime, mut servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(without_copies(&servers, "first"), &path);
    for number in 0..LOCAL_LANES_MAX {
        let lane = LaneId { spool: SpoolId::new(1000 + number), number: 0 };
        let made = path.join("adopted").join(lane.to_string());
        std::fs::create_dir_all(&made).unwrap();
        std::fs::write(made.join("local"), "").unwrap();
    }
    servers.kill(0);
    await_that("mail is refused", || first.try_accept() == Err(CommitError::StepAway));
    assert_eq!(first.roles(), [LaneRole::Own]);
    first.end();
}

/// It cannot have it: a copy of the disk elsewhere, or a mistake. Without an end, it would be claimed for ever, and its mail
/// be delivered here too.
#[test]
fn a_local_lane_that_another_node_has_claimed_ends_the_process() {
    let (runtime, mut servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let first = TestNode::start(without_copies(&servers, "first"), &folder(&home, "first"));
    let before = first.accept(100);
    servers.kill(0);
    await_that("it takes new mail", || first.spool.new_id().spool() != before.spool());
    let lane = LaneId::of(first.try_accept().unwrap());
    servers.resume(0);
    let connection = runtime.block_on(servers.connect("second"));
    let (_, handle) = runtime.block_on(crate::lane_tasks::claim_lane(&connection, lane, "second"));
    runtime.block_on(handle.claimed()).unwrap();
    assert_eq!(first.lost.recv_timeout(WAIT_MAX), Ok(lane));
    assert!(!first.step.may_deliver(lane));
    first.end();
}

#[test]
fn servers_that_fail_before_lanes_are_claimed_do_not_keep_a_node_from_accepting() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    let before = first.accept(100);
    first.end();
    let (config, servers) = (without_copies(&servers, "first"), Mutex::new(servers));
    let start = || TestNode::start_between(config, &path, || servers.lock().unwrap().kill(0));
    let first = started_without(&servers, start);
    let mut servers = servers.into_inner().unwrap();
    assert_eq!(first.recovered, [before]);
    await_that("a local lane takes mail", || first.try_accept().is_ok());
    assert!(!first.step.may_deliver(LaneId::of(before)));
    servers.resume(0);
    await_that("its lane is claimed", || first.step.may_deliver(LaneId::of(before)));
    await_that("its lane takes mail", || LaneId::of(first.spool.new_id()) == LaneId::of(before));
    assert!(first.lost.try_recv().is_err());
    first.end();
}

#[test]
fn servers_that_fail_while_a_node_joins_do_not_keep_it_from_accepting() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    let before = first.accept(100);
    first.end();
    let config = without_copies(&servers, "first");
    // The first thing that a node asks when it joins.
    let asked = runtime.block_on(servers.listen("node.first.presence"));
    let servers = Mutex::new(servers);
    std::thread::scope(|scope| {
        let killing = &servers;
        scope.spawn(move || {
            runtime.block_on(asked);
            killing.lock().unwrap().kill(0);
        });
        let first = started_without(&servers, || TestNode::start(config, &path));
        assert_eq!(first.recovered, []);
        first.try_accept().unwrap();
        servers.lock().unwrap().resume(0);
        assert_eq!(first.await_adopted(1), [before]);
        await_that("its lane is claimed", || first.step.may_deliver(LaneId::of(before)));
        first.end();
    });
}
