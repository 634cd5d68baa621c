//! NATS servers for a test: one, or three that replicate, each in a folder of its own, on ports of
//! the loopback address that nobody else uses. They end with the value that holds them.
//!
//! The binary is `nats-server` (Debian's package), or what `MAILRACE_NATS_SERVER` names.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cluster::{ClusterConfig, Connection, NatsServer};
use futures_util::StreamExt;
use spool::LaneId;
use tempfile::TempDir;

/// How long servers may take to be ready on a busy machine.
const READY: Duration = Duration::from_secs(150);

/// Servers that form a cluster.
pub(crate) struct NatsServers {
    folder: TempDir,
    servers: Vec<Server>,
    credentials_file: Option<PathBuf>,
}

struct Server {
    port: u16,
    process: Option<Child>,
}

impl NatsServers {
    /// Starts all servers of a cluster but the last one. `config` names all.
    pub(crate) async fn start_without_last(count: usize) -> NatsServers {
        let mut servers = NatsServers::configured(count, "", None);
        (0..count - 1).for_each(|number| servers.resume(number));
        servers.wait_until_ready(count - 1).await;
        servers
    }

    /// A server that stores nothing: JetStream is not enabled.
    pub(crate) async fn start_without_jetstream() -> NatsServers {
        let mut servers = NatsServers::configured(1, "", None);
        let text = format!("listen: \"127.0.0.1:{}\"\n", servers.servers[0].port);
        std::fs::write(servers.folder.path().join("0.conf"), text).unwrap();
        servers.resume(0);
        servers
    }

    /// Starts `count` servers, and waits until they store records.
    pub(crate) async fn start(count: usize) -> NatsServers {
        NatsServers::start_secured(count, "", None).await
    }

    /// The same, with servers that ask for what is in the file; `security` is added to their configuration.
    pub(crate) async fn start_secured(count: usize, security: &str, credentials: Option<&Path>) -> NatsServers {
        let mut servers = NatsServers::configured(count, security, credentials);
        (0..count).for_each(|number| servers.resume(number));
        servers.wait_until_ready(count).await;
        servers
    }

    fn configured(count: usize, security: &str, credentials: Option<&Path>) -> NatsServers {
        let folder = tempfile::tempdir().unwrap();
        let ports: Vec<u16> = (0..2 * count).map(|_| sim::free_port()).collect();
        let (clients, routes) = ports.split_at(count);
        for (number, port) in clients.iter().enumerate() {
            let text = configuration(&folder, number, *port, routes) + security;
            std::fs::write(folder.path().join(format!("{number}.conf")), text).unwrap();
        }
        let server = |port: &u16| Server { port: *port, process: None };
        let credentials_file = credentials.map(Path::to_owned);
        NatsServers { folder, servers: clients.iter().map(server).collect(), credentials_file }
    }

    /// The port of a server.
    pub(crate) fn port(&self, number: usize) -> u16 {
        self.servers[number].port
    }

    /// How many copies the servers keep of a stream of the cluster; None: there is no such stream.
    pub(crate) async fn copies_of(&self, stream: &str) -> Option<usize> {
        let client = async_nats::connect(format!("127.0.0.1:{}", self.servers[0].port)).await.unwrap();
        let stream = async_nats::jetstream::new(client).get_stream(format!("mailrace-test-{stream}")).await.ok()?;
        Some(stream.cached_info().config.num_replicas)
    }

    /// The settings of a node that uses these servers.
    pub(crate) fn config(&self, node: &str) -> ClusterConfig {
        let server = |server: &Server| format!("nats://127.0.0.1:{}", server.port).parse::<NatsServer>().unwrap();
        let servers = self.servers.iter().map(server).collect();
        let replicas = self.servers.len();
        let config = ClusterConfig::new("test".parse().unwrap(), node.parse().unwrap(), servers);
        ClusterConfig { replicas, credentials_file: self.credentials_file.clone(), ..config }
    }

    /// A new connection of a node.
    pub(crate) async fn connect(&self, node: &str) -> Connection {
        connect(&self.config(node)).await
    }

    /// Kills the server with this number.
    pub(crate) fn kill(&mut self, number: usize) {
        let mut process = self.servers[number].process.take().expect("the server runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Starts a server again, with what it has stored.
    pub(crate) fn resume(&mut self, number: usize) {
        let binary = std::env::var_os("MAILRACE_NATS_SERVER").map_or_else(|| "nats-server".into(), PathBuf::from);
        let log = std::fs::File::create(self.folder.path().join(format!("{number}.log"))).unwrap();
        let process = Command::new(&binary)
            .arg("-c")
            .arg(self.folder.path().join(format!("{number}.conf")))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}: install the package nats-server", binary.display()));
        self.servers[number].process = Some(process);
    }

    /// Stores something in the stream of a lane that no node has written.
    pub(crate) async fn publish_raw(&self, lane: LaneId, bytes: impl Into<bytes::Bytes>) {
        let client = async_nats::connect(format!("127.0.0.1:{}", self.servers[0].port)).await.unwrap();
        let context = async_nats::jetstream::new(client);
        context.publish(format!("mailrace.test.lane.{lane}.log"), bytes.into()).await.unwrap().await.unwrap();
    }

    /// Subscribes to a subject of the cluster. What it returns ends with the first message, which gets no answer.
    pub(crate) async fn listen(&self, subject: &str) -> impl Future<Output = ()> + Send + use<> {
        let client = async_nats::connect(format!("127.0.0.1:{}", self.servers[0].port)).await.unwrap();
        let mut messages = client.subscribe(format!("mailrace.test.{subject}")).await.unwrap();
        client.flush().await.unwrap();
        async move {
            assert!(messages.next().await.is_some());
            drop(client);
        }
    }

    /// The number of the server that leads the stream of a lane.
    pub(crate) async fn leader_of(&self, lane: LaneId) -> usize {
        let client = async_nats::connect(format!("127.0.0.1:{}", self.servers[0].port)).await.unwrap();
        let context = async_nats::jetstream::new(client);
        let stream = context.get_stream(format!("mailrace-test-{lane}")).await.unwrap();
        let leader = stream.cached_info().cluster.as_ref().unwrap().leader.clone().unwrap();
        leader.trim_start_matches('n').parse().unwrap()
    }

    async fn wait_until_ready(&self, replicas: usize) {
        let config = ClusterConfig { replicas, ..self.config("probe") };
        let (connection, end) = (connect(&config).await, Instant::now() + READY);
        let probe = connection.lane_stream(LaneId { spool: mail::SpoolId::new(1), number: u16::MAX });
        while let Err(error) = probe.ensure().await {
            assert!(Instant::now() < end, "the servers do not become ready: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        probe.delete().await.unwrap();
    }
}

async fn connect(config: &ClusterConfig) -> Connection {
    let end = Instant::now() + READY;
    loop {
        match Connection::open(config).await {
            Ok(connection) => return connection,
            Err(error) if error.is_temporary() && Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for NatsServers {
    fn drop(&mut self) {
        for process in self.servers.iter_mut().filter_map(|server| server.process.as_mut()) {
            // It may have ended by itself.
            drop(process.kill());
            drop(process.wait());
        }
    }
}

fn configuration(folder: &TempDir, number: usize, port: u16, routes: &[u16]) -> String {
    let store = folder.path().join(format!("store{number}"));
    let mut text = format!(
        "server_name: n{number}\nlisten: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\" }}\n",
        store.display()
    );
    if routes.len() > 1 {
        let urls: Vec<String> = routes.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        let (own, all) = (routes[number], urls.join(", "));
        text +=
            &format!("cluster {{ name: test, listen: \"127.0.0.1:{own}\", no_advertise: true, routes: [{all}] }}\n");
    }
    text
}
