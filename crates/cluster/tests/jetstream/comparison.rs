//! What becomes of mail that the stream of its lane lacks when the spool is closed, a message is damaged, or the
//! stream was lost: the lane may not count as copied, since another node would take it over without this mail.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use cluster::lane::COPYING_LEASE;
use cluster::{GivenBack, LaneStream, lane::LEASE_MAX};
use spool::LaneId;

use crate::nodes::{TestNode, WAIT_MAX, accept_without_cluster, await_copied, await_that, folder, servers};

const COMPARED: &str = "compared a lane with its stream";
const ALL_COPIED: &str = "all mail of a lane has its second copy";

/// What a node logs.
struct LogTap {
    texts: Receiver<String>,
    /// Lets it go on.
    go_on: Sender<()>,
}

type OnLog = Box<dyn Fn(&str) + Send + Sync>;

impl LogTap {
    /// The node waits where it logs a text that begins like this.
    fn pausing_at(pause: &'static str) -> (LogTap, OnLog) {
        let ((tell, texts), (go_on, resumed)) = (channel(), channel());
        let ends = Mutex::new((tell, resumed));
        let on_log = move |text: &str| {
            let (tell, resumed): &(Sender<String>, Receiver<()>) = &ends.lock().unwrap();
            // The test may have ended.
            tell.send(text.to_owned()).unwrap_or_default();
            if text.starts_with(pause) {
                resumed.recv_timeout(WAIT_MAX).unwrap_or_default();
            }
        };
        (LogTap { texts, go_on }, Box::new(on_log))
    }

    /// Waits until one of these is logged. Returns which.
    fn await_one_of<'a>(&self, beginnings: &[&'a str]) -> &'a str {
        loop {
            let text = self.texts.recv_timeout(WAIT_MAX).expect("it is logged");
            if let Some(found) = beginnings.iter().find(|beginning| text.starts_with(**beginning)) {
                return found;
            }
        }
    }

    fn await_text(&self, beginning: &str) {
        self.await_one_of(&[beginning]);
    }
}

/// As `mailrace cluster drain` and a stop close it: before the node knows that it stops.
#[test]
fn a_spool_that_is_closed_before_its_mail_is_copied_does_not_make_the_lane_a_copied_one() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let id = accept_without_cluster(&path);
    let (tap, on_log) = LogTap::pausing_at(COMPARED);
    let TestNode { spool, node, .. } = TestNode::start_with(servers.config("first"), &path, on_log);
    tap.await_text(COMPARED);
    Arc::into_inner(spool).unwrap().close();
    tap.go_on.send(()).unwrap();
    let end = tap.await_one_of(&[ALL_COPIED, "not all mail of a lane was copied"]);
    assert_ne!(end, ALL_COPIED);
    node.stop(GivenBack { lanes: true, slots: true });
    assert!(!path.join("copied").exists());
    let first = TestNode::start(servers.config("first"), &path);
    await_copied(&path, 3);
    first.end();
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    assert_eq!(second.await_adopted(1), [id]);
    second.end();
}

/// How long others wait for the owner of a lane.
fn announced(runtime: &tokio::runtime::Runtime, stream: &LaneStream) -> std::time::Duration {
    runtime.block_on(stream.newest_epoch()).unwrap().unwrap().record.lease
}

#[test]
fn a_damaged_message_keeps_its_lane_from_being_a_copied_one_and_no_other_message() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    await_copied(&path, 1);
    let mut ids = [first.accept(2_000_000), first.accept(100)];
    ids.sort_unstable();
    first.end();
    let stream = runtime.block_on(servers.connect("probe")).lane_stream(LaneId::of(ids[0]));
    runtime.block_on(stream.delete()).unwrap();
    let (tap, on_log) = LogTap::pausing_at(COMPARED);
    let first = TestNode::start_with(servers.config("first"), &path, on_log);
    tap.await_text(COMPARED);
    let body = body_file(&path);
    std::fs::rename(path.join(&body), home.path().join(&body)).unwrap();
    tap.go_on.send(()).unwrap();
    let end = tap.await_one_of(&[ALL_COPIED, "cannot read a message to copy it"]);
    assert_ne!(end, ALL_COPIED);
    let has_other = || first.node.lanes()[0].status.unwrap().live_messages == 1;
    await_that("the other message is copied", has_other);
    assert!(!path.join("copied").exists());
    assert_eq!(announced(&runtime, &stream), COPYING_LEASE);
    std::fs::rename(home.path().join(&body), path.join(&body)).unwrap();
    await_copied(&path, 2);
    first.end();
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    assert_eq!(second.await_adopted(2), ids);
    second.end();
}

fn body_file(path: &Path) -> String {
    let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.into_iter().find(|name| name.starts_with("body-")).unwrap()
}

/// Another node would take the new stream over, which has nothing yet.
#[test]
fn a_stream_that_was_made_anew_is_not_taken_for_the_one_that_had_all_mail() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    let id = first.accept(100);
    await_copied(&path, 1);
    first.end();
    let stream = runtime.block_on(servers.connect("probe")).lane_stream(LaneId::of(id));
    runtime.block_on(stream.delete()).unwrap();
    let (tap, on_log) = LogTap::pausing_at(COMPARED);
    let first = TestNode::start_with(servers.config("first"), &path, on_log);
    tap.await_text(COMPARED);
    assert_eq!(announced(&runtime, &stream), COPYING_LEASE);
    assert!(!path.join("copied").exists());
    tap.go_on.send(()).unwrap();
    await_copied(&path, 2);
    await_that("others wait as usual", || announced(&runtime, &stream) <= LEASE_MAX);
    first.end();
}

/// The servers have lost it, as some versions do, but not whose the lane is.
#[test]
fn mail_that_the_stream_has_lost_while_its_owner_was_away_makes_others_wait_until_it_is_copied() {
    let (runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let path = folder(&home, "first");
    let first = TestNode::start(servers.config("first"), &path);
    await_copied(&path, 1);
    let id = first.accept(100);
    let stream = runtime.block_on(servers.connect("probe")).lane_stream(LaneId::of(id));
    let confirmed = first.node.lanes()[0].status.unwrap().confirmed_sequence;
    await_that("a record follows", || runtime.block_on(stream.tail()).unwrap().last_sequence > confirmed);
    first.end();
    runtime.block_on(stream.purge_up_to(confirmed)).unwrap();
    let (tap, on_log) = LogTap::pausing_at(COMPARED);
    let first = TestNode::start_with(servers.config("first"), &path, on_log);
    tap.await_text(COMPARED);
    let copied = std::fs::read_to_string(path.join("copied")).unwrap();
    assert!(!copied.starts_with("2 "), "it is not compared yet: {copied}");
    tap.go_on.send(()).unwrap();
    await_copied(&path, 2);
    // It is logged only of a lane whose mail was not copied.
    tap.await_text(ALL_COPIED);
    first.end();
    std::fs::remove_dir_all(&path).unwrap();
    let second = TestNode::start(servers.config("second"), &folder(&home, "second"));
    assert_eq!(second.await_adopted(1), [id]);
    second.end();
}

/// The folder cannot be read for a while. Its mail was never copied.
#[test]
fn fenced_lanes_that_cannot_be_listed_are_listed_again() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let (path, old) = (folder(&home, "first"), folder(&home, "old"));
    let lane = LaneId::of(accept_without_cluster(&old));
    std::fs::create_dir(&path).unwrap();
    let fenced = path.join("fenced");
    std::fs::write(&fenced, "no folder").unwrap();
    let (tap, on_log) = LogTap::pausing_at("nowhere");
    let first = TestNode::start_with(servers.config("first"), &path, on_log);
    tap.await_text("cannot list the lanes that other nodes have taken over");
    std::fs::remove_file(&fenced).unwrap();
    std::fs::create_dir(&fenced).unwrap();
    std::fs::rename(&old, fenced.join(lane.to_string())).unwrap();
    await_that("its mail is moved", || first.spool.ids().len() == 1);
    first.end();
}
