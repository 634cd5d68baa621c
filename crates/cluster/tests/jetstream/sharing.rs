//! What nodes tell one another, and departures of a shared rate while servers take nothing: the own part is granted
//! without waiting for them.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use cluster::SharingCallbacks;

use crate::nodes::{TestNode, WAIT_MAX, await_that, folder, servers};
use crate::servers::NatsServers;

const INTERVAL: Duration = Duration::from_millis(100);
/// A request that is not answered for a second gets the own part.
const GRANT_TIME_MAX: Duration = Duration::from_secs(2);
/// How often a node says the same, until the other one listens.
const BROADCAST_INTERVAL: Duration = Duration::from_millis(200);
/// More than what the connection and the node keep of them.
const FAILED_LOGINS: usize = 10_000;
/// In this time, a node would try twice to open the log of requests.
const TIME_WITHOUT_MAJORITY: Duration = Duration::from_secs(10);

/// Begins to share; returns what comes when departures are granted.
fn share(node: &TestNode) -> Receiver<()> {
    let (tell, granted) = channel();
    let tell = Mutex::new(tell);
    let grant = move |_: &str, _| tell.lock().unwrap().send(()).unwrap_or_default();
    node.node.share(SharingCallbacks { grant: Box::new(grant), ..ignored() });
    granted
}

/// Begins to share; returns the next hops that are lame elsewhere.
fn share_lame(node: &TestNode) -> Receiver<String> {
    let (tell, lame) = channel();
    let tell = Mutex::new(tell);
    let report_lame = move |next_hop: &str| tell.lock().unwrap().send(next_hop.to_owned()).unwrap_or_default();
    node.node.share(SharingCallbacks { report_lame: Box::new(report_lame), ..ignored() });
    lame
}

fn ignored() -> SharingCallbacks {
    SharingCallbacks {
        grant: Box::new(|_, _| {}),
        grant_slots: Box::new(|_, _| {}),
        report_lame: Box::new(|_| {}),
        count_failed_login: Box::new(|_, _| {}),
        count_usage: Box::new(|_| {}),
    }
}

#[test]
fn a_next_hop_that_is_lame_for_one_node_is_reported_to_the_others() {
    let (_runtime, servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| TestNode::start(servers.config(name), &folder(&home, name)));
    let (own, others) = (share_lame(&first), share_lame(&second));
    let mut heard = None;
    await_that("the other node hears of it", || {
        // Who does not listen yet, never hears of one that was sent before.
        first.sharing.announce_lame("smtp:b.example");
        heard = others.recv_timeout(BROADCAST_INTERVAL).ok();
        heard.is_some()
    });
    assert_eq!(heard.as_deref(), Some("smtp:b.example"));
    assert!(own.try_recv().is_err(), "a node does not hear itself");
    first.end();
    second.end();
}

/// A node that was cut off took no requests any more as soon as enough logins had failed.
#[test]
fn broadcasts_that_no_server_takes_hold_up_nothing_else() {
    let (_runtime, mut servers) = servers();
    let home = tempfile::tempdir().unwrap();
    let node = TestNode::start(servers.config("first"), &folder(&home, "first"));
    let granted = share(&node);
    servers.kill(0);
    await_that("no server is connected", || !node.node.figures().connected);
    for _ in 0..FAILED_LOGINS {
        node.sharing.announce_failed_login("alice", IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    node.sharing.request_departures("smtp:a.example", INTERVAL, 1);
    granted.recv_timeout(WAIT_MAX).expect("the own part is granted");
    node.end();
}

/// A server that is connected, but has no majority, answers nothing; each attempt to open the log took seconds.
#[test]
fn requests_do_not_wait_for_servers_without_a_majority() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut servers = runtime.block_on(NatsServers::start(3));
    let home = tempfile::tempdir().unwrap();
    let node = TestNode::start(servers.config("first"), &folder(&home, "first"));
    let granted = share(&node);
    servers.kill(0);
    servers.kill(1);
    let (end, mut late) = (Instant::now() + TIME_WITHOUT_MAJORITY, 0);
    while Instant::now() < end {
        let begin = Instant::now();
        node.sharing.request_departures("smtp:a.example", INTERVAL, 1);
        granted.recv_timeout(WAIT_MAX).expect("departures are granted");
        late += usize::from(begin.elapsed() > GRANT_TIME_MAX);
    }
    // One may be late since this machine was.
    assert!(late < 2, "{late} of them waited");
    assert!(node.node.figures().departures_own_part > 0);
    node.end();
}
