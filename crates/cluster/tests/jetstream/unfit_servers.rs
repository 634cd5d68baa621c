//! Servers that are too old, too few, without JetStream or without the copies that the settings ask for; and some that do
//! not deliver what a node subscribes to.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::lane::{PublishFailure, RecordSubject};
use cluster::{ClusterConfig, Connection, OpenError, StreamError};
use futures_util::StreamExt;
use mail::SpoolId;
use spool::LaneId;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::nodes::{TestNode, WAIT_MAX, folder, servers};
use crate::servers::NatsServers;

fn lane() -> LaneId {
    LaneId { spool: SpoolId::new(0xabc), number: 3 }
}

/// A server that says which version it has, answers pings, and does nothing else. It ends with the value.
struct FakeServer(JoinHandle<()>);

impl FakeServer {
    async fn start(port: u16, version: &str) -> FakeServer {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let info = format!(
            "INFO {{\"server_id\":\"fake\",\"server_name\":\"fake\",\"version\":\"{version}\",\"proto\":1,\"go\":\"\",\
             \"host\":\"127.0.0.1\",\"port\":{port},\"headers\":true,\"max_payload\":1048576}}\r\n"
        );
        FakeServer(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(answer_pings(stream, info.clone()));
            }
        }))
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn answer_pings(mut stream: TcpStream, info: String) {
    let (reader, mut writer) = stream.split();
    let mut lines = BufReader::new(reader).lines();
    writer.write_all(info.as_bytes()).await.unwrap();
    while let Ok(Some(line)) = lines.next_line().await {
        if line == "PING" && writer.write_all(b"PONG\r\n").await.is_err() {
            return;
        }
    }
}

/// Why a connection cannot be opened, once a server answers.
async fn open_error(config: &ClusterConfig) -> OpenError {
    let end = Instant::now() + WAIT_MAX;
    loop {
        match Connection::open(config).await.err().expect("the server cannot be used") {
            error if error.is_temporary() && Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            error => return error,
        }
    }
}

#[tokio::test]
async fn a_server_that_is_too_old_is_not_used() {
    let port = sim::free_port();
    let _server = FakeServer::start(port, "2.9.9").await;
    let servers = vec![format!("nats://127.0.0.1:{port}").parse().unwrap()];
    let config = ClusterConfig::new("test".parse().unwrap(), "a".parse().unwrap(), servers);
    let error = open_error(&config).await;
    assert!(matches!(&error, OpenError::TooOld { server, version } if server == "fake" && version == "2.9.9"));
    assert_eq!(error.to_string(), "NATS server fake has version 2.9.9; versions from 2.9.10 on can fence a lane");
}

/// Only the first server was looked at: after a reconnect, an older one got records.
#[tokio::test]
async fn after_a_reconnect_a_server_that_is_too_old_gets_no_record() {
    let mut servers = NatsServers::start(1).await;
    let connection = servers.connect("a").await;
    let stream = connection.lane_stream(lane());
    stream.ensure().await.unwrap();
    let publish = async || match stream.publish(RecordSubject::Log, 0, Bytes::from_static(b"x")).await {
        Ok(answer) => answer.await,
        Err(failure) => Err(failure),
    };
    servers.kill(0);
    let old = FakeServer::start(servers.port(0), "2.9.9").await;
    let end = Instant::now() + WAIT_MAX;
    while connection.server().1 != "2.9.9" {
        assert!(Instant::now() < end, "the old server is not connected");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!connection.is_connected());
    assert_eq!(publish().await, Err(PublishFailure::Unavailable));
    drop(old);
    servers.resume(0);
    while publish().await.is_err() {
        assert!(Instant::now() < end, "the connection does not come back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn a_node_leaves_a_server_that_is_too_old_for_another_one() {
    let (runtime, mut servers) = servers();
    let (home, old_port) = (tempfile::tempdir().unwrap(), sim::free_port());
    let mut config = servers.config("first");
    config.servers.push(format!("nats://127.0.0.1:{old_port}").parse().unwrap());
    let (tell, told) = channel();
    let on_log = move |line: &str| drop(tell.send(line.to_owned()));
    let node = TestNode::start_with(config, &folder(&home, "first"), Box::new(on_log));
    let said = |text: &str| loop {
        let line = told.recv_timeout(WAIT_MAX).unwrap_or_else(|_| panic!("the log does not say: {text}"));
        if line.contains(text) {
            return line;
        }
    };
    let version = runtime.block_on(servers.connect("probe")).server().1;
    if version.starts_with("2.9.") {
        assert!(said("can lose records").contains(&version));
    }
    servers.kill(0);
    // It answers beside the test.
    let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _old = other.block_on(FakeServer::start(old_port, "2.9.9"));
    let line = said("too old to be used");
    assert!(line.contains("NATS server fake has version 2.9.9"), "{line}");
    assert!(!node.node.figures().connected);
    servers.resume(0);
    said("a NATS server is connected again");
    node.accept(100);
    node.end();
}

#[tokio::test]
async fn a_server_without_jetstream_is_not_used() {
    let servers = NatsServers::start_without_jetstream().await;
    let error = open_error(&servers.config("a")).await;
    assert!(matches!(error, OpenError::NoJetStream { .. }), "{error}");
}

#[tokio::test]
async fn a_server_alone_refuses_copies_on_others() {
    let servers = NatsServers::start(1).await;
    let connection = Connection::open(&ClusterConfig { replicas: 3, ..servers.config("a") }).await.unwrap();
    let error = connection.lane_stream(lane()).ensure().await.unwrap_err();
    assert!(matches!(error, StreamError::Refused { .. }) && !error.is_temporary(), "{error}");
    assert!(error.to_string().contains("`cluster.replicas` = 3"), "{error}");
}

#[tokio::test]
async fn a_stream_without_room_names_the_setting_that_asks_for_it() {
    let servers = NatsServers::start(1).await;
    let config = ClusterConfig { stream_bytes_max: Some(1 << 60), ..servers.config("a") };
    let connection = Connection::open(&config).await.unwrap();
    let error = connection.lane_stream(lane()).ensure().await.unwrap_err();
    assert!(error.is_temporary() && error.to_string().contains("`cluster.stream_max`"), "{error}");
    assert_eq!(connection.missing_places(), [error.to_string()]);
    assert!(!connection.lane_stream(lane()).delete().await.unwrap());
    assert_eq!(connection.missing_places(), [""; 0]);
}

/// A node waited for ever for servers that were there, and said nothing of `replicas`.
#[test]
fn a_node_waits_for_as_many_servers_as_it_wants_copies_and_says_so() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut servers = runtime.block_on(NatsServers::start_without_last(3));
    let (home, config) = (tempfile::tempdir().unwrap(), servers.config("first"));
    let (tell, told) = channel();
    let path = folder(&home, "first");
    let start = std::thread::spawn(move || {
        let on_log = move |line: &str| drop(tell.send(line.to_owned()));
        TestNode::start_with(config, &path, Box::new(on_log))
    });
    let mut lines = std::iter::from_fn(|| told.recv_timeout(WAIT_MAX).ok());
    let line = lines.find(|line| line.contains("waiting for the NATS servers")).unwrap();
    assert!(line.contains("`cluster.replicas` = 3") && line.contains("`cluster.stream_max`"), "{line}");
    servers.resume(2);
    let node = start.join().unwrap();
    assert_eq!(node.node.problems(), [""; 0]);
    node.accept(100);
    node.end();
}

/// Only the streams of the lanes got more copies: a note that a lane is closed could be lost with one server.
#[test]
fn the_notes_of_closed_lanes_get_the_copies_of_the_settings() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let servers = runtime.block_on(NatsServers::start(3));
    let home = tempfile::tempdir().unwrap();
    let copies = || runtime.block_on(servers.copies_of("closed"));
    for replicas in [1, 3] {
        let config = ClusterConfig { replicas, ..servers.config("first") };
        let node = TestNode::start(config.clone(), &folder(&home, "first"));
        assert_eq!(copies(), Some(replicas));
        node.end();
        runtime.block_on(async {
            let connection = Connection::open(&config).await.unwrap();
            assert_eq!(connection.is_closed(lane()).await, Ok(replicas == 3));
            connection.note_closed(lane()).await.unwrap();
        });
    }
}

/// What is delivered to consumers goes to subjects that this user may not hear. Answers have longer ones.
const DEAF_USER: &str = r#"authorization { users = [
    { user: all, password: all }
    { user: deaf, password: deaf, permissions: { subscribe: { deny: ["_INBOX.*"] } } }
] }"#;

/// Less than an entry lasts. A count of the nodes and the pause after it take five seconds each.
const ENTRY_INTERVAL_MAX: Duration = Duration::from_secs(13);

/// A count of the nodes that hung delayed the next entry until the last one was gone: others missed a node that lived.
#[test]
fn a_node_whose_count_of_the_nodes_hangs_writes_its_entry_again_before_the_last_one_is_gone() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let home = tempfile::tempdir().unwrap();
    let credentials = |user: &str| {
        let path = home.path().join(format!("{user}.credentials"));
        std::fs::write(&path, format!("{user}:{user}")).unwrap();
        path
    };
    let servers = runtime.block_on(NatsServers::start_secured(1, DEAF_USER, Some(&credentials("all"))));
    let mut entries = runtime.block_on(async {
        let options = async_nats::ConnectOptions::with_user_and_password("all".into(), "all".into());
        let client = options.connect(format!("127.0.0.1:{}", servers.port(0))).await.unwrap();
        let entries = client.subscribe("$KV.mailrace-test-nodes.first").await.unwrap();
        client.flush().await.unwrap();
        entries
    });
    let config = ClusterConfig { credentials_file: Some(credentials("deaf")), ..servers.config("first") };
    let node = TestNode::start(config, &folder(&home, "first"));
    for time_max in [WAIT_MAX, ENTRY_INTERVAL_MAX] {
        runtime.block_on(async { timeout(time_max, entries.next()).await }).expect("it is written in time");
    }
    node.end();
}
