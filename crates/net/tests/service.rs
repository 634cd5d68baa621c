//! A service of a few lines behind the listeners, in clear text and over TLS: what happens before
//! its sessions, and ranges of files in its output.
//!
//! `GET name offset` answers the length of the rest of the file, the rest, and `done`. `PARTS count`
//! answers so many lines, each made when the one before is sent. `TLS` upgrades, and `QUIT` ends.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod tls_peer;

use std::collections::VecDeque;
use std::fs::File;
use std::future::pending;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mail::{EventLog, LogLevel, MailEvent, Networks, ServerLog, Timestamp, TlsInfo};
use net::{
    AdmissionRefusal, AdmittedClient, BoundListener, ConnectionHandler, ConnectionLimiter, ConnectionLimits, FileRange,
    InheritedSockets, ListenerOpener, OutputPiece, Service, SessionWorkers, StopReceiver, StopSender, TlsServer,
    TlsVersion,
};
use rustix::fs::{Advice, fadvise};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_rustls::client::TlsStream;

/// Longer than any step of these tests.
const PATIENCE: Duration = Duration::from_secs(20);
/// More than the sockets of both sides hold.
const HUGE_OCTETS: u64 = 64 << 20;

/// The settings of the service; each test changes some.
struct Settings {
    folder: TempDir,
    limiter: Arc<ConnectionLimiter>,
    proxies: Networks,
    tls_server: Option<Arc<TlsServer>>,
    implicit_tls: bool,
    overloaded: bool,
    /// The reply of the service's own check, if it refuses.
    refusal: Option<&'static str>,
    /// How long the peer may accept nothing.
    stall_max: Duration,
    events: UnboundedSender<String>,
}

#[derive(Clone)]
struct FileService(Arc<Settings>);

impl FileService {
    fn note(&self, event: impl ToString) {
        // The test may have seen enough.
        let _ = self.0.events.send(event.to_string());
    }
}

impl Service for FileService {
    type Checked = ();

    fn proxy_networks(&self) -> &Networks {
        &self.0.proxies
    }

    fn connection_limiter(&self) -> &Arc<ConnectionLimiter> {
        &self.0.limiter
    }

    fn is_trusted(&self, _client: IpAddr) -> bool {
        false
    }

    fn tls_server(&self) -> Option<Arc<TlsServer>> {
        self.0.tls_server.clone()
    }

    fn has_implicit_tls(&self) -> bool {
        self.0.implicit_tls
    }

    fn is_overloaded_for(&self, _client: IpAddr) -> bool {
        self.0.overloaded
    }

    async fn check_client(
        &self,
        _client: SocketAddr,
        _is_early_talker: bool,
        _stop: &StopReceiver,
    ) -> Option<Result<(), Vec<u8>>> {
        Some(self.0.refusal.map_or(Ok(()), |reply| Err(reply.into())))
    }

    fn open(self, client: AdmittedClient, (): ()) -> impl ConnectionHandler + Send {
        self.note(format_args!("open {} tls={}", client.address, client.security.is_some()));
        let deadline = Some(net::steady_now() + self.0.stall_max);
        let (input, output) = (Vec::new(), VecDeque::new());
        let (parts, wants_tls, ends) = (0, false, false);
        FileSession { service: self, _client: client, input, output, parts, deadline, wants_tls, ends }
    }

    fn refusal_reply(&self, _reason: AdmissionRefusal) -> Vec<u8> {
        b"busy\n".into()
    }

    fn handle_refused(&self, _client: IpAddr, reason: AdmissionRefusal) {
        self.note(format_args!("{reason:?}"));
    }

    fn handle_proxy_error(&self, _proxy: IpAddr, error: &io::Error) {
        self.note(format_args!("{:?}", error.kind()));
    }

    fn handle_tls_established(&self, _security: TlsInfo) {
        self.note("tls");
    }

    fn handle_handshake_failed(&self, _client: IpAddr, _error: &io::Error) {
        self.note("no tls");
    }
}

enum Piece {
    Bytes(Vec<u8>),
    File { file: File, offset: u64, octets: u64 },
}

struct FileSession {
    service: FileService,
    _client: AdmittedClient,
    input: Vec<u8>,
    output: VecDeque<Piece>,
    /// Lines still to be made.
    parts: u64,
    deadline: Option<Timestamp>,
    wants_tls: bool,
    ends: bool,
}

impl FileSession {
    fn handle_line(&mut self, line: &str) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["GET", name, offset] => {
                let file = File::open(self.service.0.folder.path().join(name)).unwrap();
                let offset = offset.parse().unwrap();
                let octets = file.metadata().unwrap().len() - offset;
                self.output.push_back(Piece::Bytes(format!("{octets}\n").into()));
                if octets > 0 {
                    self.output.push_back(Piece::File { file, offset, octets });
                }
                self.output.push_back(Piece::Bytes(b"done\n".into()));
            }
            ["PARTS", count] => self.parts = count.parse().unwrap(),
            ["TLS"] => self.wants_tls = true,
            _ => self.ends = true,
        }
    }
}

impl ConnectionHandler for FileSession {
    fn handle_input(&mut self, _now: Timestamp, input: &[u8]) {
        self.input.extend(input);
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            self.handle_line(str::from_utf8(&line).unwrap().trim_end());
        }
    }

    fn handle_disconnect(&mut self, _now: Timestamp) {
        self.service.note("disconnected");
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.deadline = self.deadline.filter(|deadline| now < *deadline);
    }

    fn handle_stop(&mut self, _now: Timestamp) {
        self.ends = true;
        self.service.note("stop");
    }

    async fn work(&mut self) {
        if self.parts > 0 {
            self.parts -= 1;
            self.output.push_back(Piece::Bytes(b"part\n".into()));
        }
    }

    fn has_work(&self) -> bool {
        self.parts > 0
    }

    fn output(&self) -> OutputPiece<'_> {
        match self.output.front() {
            None => OutputPiece::Bytes(&[]),
            Some(Piece::Bytes(bytes)) => OutputPiece::Bytes(bytes),
            Some(&Piece::File { ref file, offset, octets }) => OutputPiece::File(FileRange { file, offset, octets }),
        }
    }

    fn handle_sent(&mut self, count: usize) {
        let is_sent = match self.output.front_mut() {
            None => return,
            Some(Piece::Bytes(bytes)) => {
                bytes.drain(..count);
                bytes.is_empty()
            }
            Some(Piece::File { offset, octets, .. }) => {
                (*offset, *octets) = (*offset + count as u64, *octets - count as u64);
                *octets == 0
            }
        };
        if is_sent {
            self.output.pop_front();
        } else if count > 0 {
            self.service.note("sent a part");
        }
        self.deadline = Some(net::steady_now() + self.service.0.stall_max);
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.deadline
    }

    fn wants_close(&self) -> bool {
        self.ends || self.deadline.is_none()
    }

    fn wants_handshake(&self) -> Option<Arc<TlsServer>> {
        self.service.0.tls_server.clone().filter(|_| self.wants_tls)
    }

    fn handle_tls_established(&mut self, _now: Timestamp, _security: TlsInfo) {
        self.wants_tls = false;
    }
}

/// Ignores everything.
struct NoLog;

impl EventLog for NoLog {
    fn write(&self, _event: MailEvent) {}
}

impl ServerLog for NoLog {
    fn event(&self, _level: LogLevel, _text: &str, _fields: &[(&'static str, &dyn std::fmt::Display)]) {}

    fn lines_dropped(&self) -> u64 {
        0
    }
}

/// A running server with one worker.
struct Server {
    workers: SessionWorkers,
    address: SocketAddr,
    service: FileService,
    events: UnboundedReceiver<String>,
}

impl Server {
    fn start(change: impl FnOnce(&mut Settings)) -> Server {
        let (sender, events) = mpsc::unbounded_channel();
        let folder = TempDir::new().unwrap();
        let files = tls_peer::issue(folder.path(), "a", &["mx.example.org"], |_| {});
        let tls_server = TlsServer::new(vec![files], TlsVersion::V1_2, PATIENCE).unwrap();
        let mut settings = Settings {
            folder,
            limiter: ConnectionLimiter::new(ConnectionLimits::default()),
            proxies: Networks::default(),
            tls_server: Some(Arc::new(tls_server)),
            implicit_tls: false,
            overloaded: false,
            refusal: None,
            stall_max: PATIENCE,
            events: sender,
        };
        change(&mut settings);
        let service = FileService(Arc::new(settings));
        let mut opener = ListenerOpener {
            previous: Vec::new(),
            inherited: InheritedSockets::default(),
            workers: 1,
            refuses_until_served: false,
        };
        let socket = opener.open((Ipv4Addr::LOCALHOST, 0).into(), 16).unwrap();
        opener.finish().unwrap();
        let address = socket.address();
        let listeners = vec![BoundListener::new(socket, "files", [service.clone()])];
        let workers = SessionWorkers::start(listeners, [pending()], &Arc::new(NoLog)).unwrap();
        Server { workers, address, service, events }
    }

    /// The same, with TLS from the first byte or none.
    fn with_tls(implicit: bool, change: impl FnOnce(&mut Settings)) -> Server {
        Server::start(|settings| {
            settings.implicit_tls = implicit;
            change(settings);
        })
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection in the form that [`Server::with_tls`] serves.
    async fn open(&self) -> Box<dyn Stream> {
        let socket = self.connect().await;
        if self.service.0.implicit_tls { Box::new(handshake(socket).await) } else { Box::new(socket) }
    }

    /// Writes a file of the service, and returns its bytes.
    fn write(&self, name: &str, octets: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..octets as u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut file = self.create(name);
        file.write_all(&bytes).unwrap();
        bytes
    }

    /// Makes a file of zeros that occupies no disk.
    fn write_huge(&self) -> File {
        let file = self.create("huge");
        file.set_len(HUGE_OCTETS).unwrap();
        file
    }

    fn create(&self, name: &str) -> File {
        File::create(self.service.0.folder.path().join(name)).unwrap()
    }

    /// Waits for an event, past others.
    async fn wait_for(&mut self, wanted: &str) {
        let find = async { while self.events.recv().await.unwrap() != wanted {} };
        tokio::time::timeout(PATIENCE, find).await.unwrap_or_else(|_| panic!("never saw {wanted:?}"));
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

async fn handshake(socket: TcpStream) -> TlsStream<TcpStream> {
    let name = ServerName::try_from("mx.example.org").unwrap();
    tls_peer::connector(rustls::ALL_VERSIONS).connect(name, socket).await.unwrap()
}

/// Reads to the end of the connection. Over TLS, an end without close_notify is an error.
async fn read_rest(stream: &mut (impl AsyncRead + Unpin)) -> (Vec<u8>, io::Result<()>) {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.unwrap();
    (rest, read.map(drop))
}

/// Requests ranges in one go, and compares the answers to the last byte.
async fn compare_answers(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), files: &[(&str, &[u8], usize)]) {
    let mut requests = String::new();
    let mut expected = Vec::new();
    for (name, bytes, offset) in files {
        requests += &format!("GET {name} {offset}\n");
        expected.extend(format!("{}\n", bytes.len() - offset).bytes());
        expected.extend(&bytes[*offset..]);
        expected.extend(b"done\n");
    }
    stream.write_all((requests + "QUIT\n").as_bytes()).await.unwrap();
    let (answers, end) = read_rest(stream).await;
    end.unwrap();
    assert_eq!(answers.len(), expected.len());
    assert!(answers == expected);
}

/// Ranges of all kinds, one after another.
async fn compare_ranges(server: &Server, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let (large, small, empty) =
        (server.write("large", 5_000_003), server.write("small", 100), server.write("empty", 0));
    let file = File::open(server.service.0.folder.path().join("large")).unwrap();
    file.sync_all().unwrap();
    // Some of the pages must be read from the disk first.
    fadvise(&file, 2_000_000, None, Advice::DontNeed).unwrap();
    let files: [(&str, &[u8], usize); 8] = [
        ("small", &small, 0),
        ("large", &large, 0),
        ("empty", &empty, 0),
        ("large", &large, 1_234_567),
        ("large", &large, large.len()),
        ("small", &small, 99),
        ("small", &small, 0),
        ("large", &large, 4096),
    ];
    compare_answers(stream, &files).await;
}

#[tokio::test]
async fn pieces_of_both_kinds_arrive_in_order() {
    let server = Server::start(|_| {});
    compare_ranges(&server, &mut server.connect().await).await;
}

#[tokio::test]
async fn pieces_of_both_kinds_arrive_in_order_over_implicit_tls() {
    let mut server = Server::with_tls(true, |_| {});
    compare_ranges(&server, &mut handshake(server.connect().await).await).await;
    server.wait_for("tls").await;
    server.wait_for("open 127.0.0.1 tls=true").await;
}

#[tokio::test]
async fn pieces_of_both_kinds_arrive_in_order_after_an_upgrade() {
    let server = Server::start(|_| {});
    let small = server.write("small", 100);
    let mut socket = server.connect().await;
    // The range goes in clear text, and the handshake follows it.
    socket.write_all(b"GET small 0\nTLS\n").await.unwrap();
    let mut clear = vec![0; b"100\n".len() + 100 + b"done\n".len()];
    socket.read_exact(&mut clear).await.unwrap();
    assert_eq!(clear[4..104], small);
    compare_ranges(&server, &mut handshake(socket).await).await;
}

/// The first byte that the client gets after the file was overwritten in place, while its first
/// pages were sent but not read.
async fn first_byte_after_overwriting(implicit_tls: bool) -> u8 {
    let mut server = Server::with_tls(implicit_tls, |_| {});
    let file = server.write_huge();
    let mut stream = server.open().await;
    stream.write_all(b"GET huge 0\n").await.unwrap();
    server.wait_for("sent a part").await;
    file.write_all_at(&[b'x'; 4096], 0).unwrap();
    let mut head = vec![0; HUGE_OCTETS.to_string().len() + 2];
    stream.read_exact(&mut head).await.unwrap();
    head[head.len() - 1]
}

#[tokio::test]
async fn in_clear_text_the_socket_has_the_pages_of_the_file_and_no_copy() {
    assert_eq!(first_byte_after_overwriting(false).await, b'x');
}

#[tokio::test]
async fn over_tls_the_socket_has_a_copy() {
    assert_eq!(first_byte_after_overwriting(true).await, 0);
}

#[tokio::test]
async fn a_file_that_is_truncated_in_flight_ends_the_connection() {
    for implicit_tls in [false, true] {
        let mut server = Server::with_tls(implicit_tls, |_| {});
        let file = server.write_huge();
        let mut stream = server.open().await;
        stream.write_all(b"GET huge 0\n").await.unwrap();
        stream.read_exact(&mut [0; 1_000_000]).await.unwrap();
        file.set_len(1).unwrap();
        let (rest, end) = read_rest(&mut stream).await;
        assert!((rest.len() as u64) < HUGE_OCTETS - 1_000_000 && !rest.ends_with(b"done\n"));
        // Over TLS the client sees that something is missing.
        assert_eq!(end.is_err(), implicit_tls);
        server.wait_for("disconnected").await;
    }
}

#[tokio::test]
async fn a_peer_that_does_not_read_a_range_has_until_the_deadline() {
    for implicit_tls in [false, true] {
        let mut server = Server::with_tls(implicit_tls, |settings| settings.stall_max = Duration::from_millis(100));
        server.write_huge();
        let mut stream = server.open().await;
        stream.write_all(b"GET huge 0\n").await.unwrap();
        server.wait_for("disconnected").await;
        let (rest, _) = read_rest(&mut stream).await;
        assert!((rest.len() as u64) < HUGE_OCTETS);
    }
}

#[tokio::test]
async fn a_drain_waits_for_the_range_in_flight() {
    for implicit_tls in [false, true] {
        let mut server = Server::with_tls(implicit_tls, |_| {});
        server.write_huge();
        let mut stream = server.open().await;
        stream.write_all(b"GET huge 0\n").await.unwrap();
        server.wait_for("sent a part").await;
        let (workers, events) = (server.workers, &mut server.events);
        let read = async {
            // The session learns of the stop before the client reads on.
            while events.recv().await.unwrap() != "stop" {}
            read_rest(&mut stream).await
        };
        let (all_ended, (answer, end)) = tokio::join!(workers.drain(PATIENCE), read);
        end.unwrap();
        assert!(all_ended && answer.ends_with(b"done\n") && answer.len() as u64 > HUGE_OCTETS);
        workers.abort();
        assert!(TcpStream::connect(server.address).await.is_err());
    }
}

#[tokio::test]
async fn a_range_that_takes_too_long_is_cut_off() {
    for implicit_tls in [false, true] {
        let mut server = Server::with_tls(implicit_tls, |_| {});
        server.write_huge();
        let mut stream = server.open().await;
        stream.write_all(b"GET huge 0\n").await.unwrap();
        server.wait_for("sent a part").await;
        assert!(!server.workers.drain(Duration::from_millis(50)).await);
        server.workers.abort();
        let (rest, _) = read_rest(&mut stream).await;
        assert!((rest.len() as u64) < HUGE_OCTETS);
    }
}

/// A socket that always accepts more must not keep the thread: here it accepts the whole range.
#[tokio::test]
async fn a_large_range_leaves_turns_to_others_and_sees_a_stop() {
    let mut server = Server::start(|_| {});
    server.write("large", 2 << 20);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    client.write_all(b"GET large 0\nQUIT\n").await.unwrap();
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let permit = server.service.0.limiter.admit(address, true, Instant::now()).unwrap();
    let admitted = AdmittedClient { address, port: 0, local_address: None, trusted: true, permit, security: None };
    let mut session = server.service.clone().open(admitted, ());
    let (stopper, stop) = StopSender::new();
    let driving = async {
        net::drive_connection(accepted.into(), stop, &mut session).await;
    };
    let mut driving = pin!(driving);
    tokio::select! {
        biased;
        () = &mut driving => panic!("the range was sent in one turn"),
        () = server.wait_for("sent a part") => stopper.stop(),
    }
    let (_, (answer, end)) = tokio::join!(driving, read_rest(&mut client));
    end.unwrap();
    assert!(answer.ends_with(b"done\n"));
    server.wait_for("stop").await;
}

#[tokio::test]
async fn a_long_output_is_made_in_parts() {
    let server = Server::start(|_| {});
    let mut stream = server.connect().await;
    stream.write_all(b"PARTS 1000\n").await.unwrap();
    let mut parts = vec![0; 5000];
    stream.read_exact(&mut parts).await.unwrap();
    assert_eq!(parts, b"part\n".repeat(1000));
    stream.write_all(b"QUIT\n").await.unwrap();
    assert_eq!(read_rest(&mut stream).await.0, b"");
}

#[tokio::test]
async fn a_stop_is_seen_between_the_parts_of_an_output() {
    let server = Server::start(|_| {});
    let mut stream = server.connect().await;
    stream.write_all(format!("PARTS {}\n", u64::MAX).as_bytes()).await.unwrap();
    stream.read_exact(&mut [0; 5]).await.unwrap();
    let drained = server.workers.drain(PATIENCE);
    let ((), (rest, end)) = tokio::join!(async { assert!(drained.await) }, read_rest(&mut stream));
    end.unwrap();
    assert!(rest.len() % 5 == 0);
}

#[tokio::test]
async fn clients_are_refused_before_their_session() {
    let read_all = async |server: &Server| String::from_utf8(read_rest(&mut server.connect().await).await.0).unwrap();

    let mut server = Server::start(|settings| settings.overloaded = true);
    assert_eq!(read_all(&server).await, "busy\n");
    server.wait_for("Overload").await;

    let limits = ConnectionLimits { sessions_per_client_max: 0, ..ConnectionLimits::default() };
    let mut server = Server::start(|settings| settings.limiter = ConnectionLimiter::new(limits.clone()));
    assert_eq!(read_all(&server).await, "busy\n");
    server.wait_for("Limit(ClientFull)").await;

    let server = Server::start(|settings| settings.refusal = Some("not you\n"));
    assert_eq!(read_all(&server).await, "not you\n");
    while server.service.0.limiter.session_count() > 0 {
        tokio::task::yield_now().await;
    }

    let mut server = Server::with_tls(true, |settings| settings.overloaded = true);
    assert_eq!(read_all(&server).await, "", "clear text where TLS is expected");
    server.wait_for("Overload").await;
}

#[tokio::test]
async fn the_client_that_a_proxy_names_has_the_session() {
    let mut server = Server::start(|settings| settings.proxies = Networks::loopback());
    let mut stream = server.connect().await;
    stream.write_all(b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 25\r\nQUIT\n").await.unwrap();
    read_rest(&mut stream).await.1.unwrap();
    server.wait_for("open 192.0.2.1 tls=false").await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET small 0\n\n\n\n").await.unwrap();
    let _ = read_rest(&mut stream).await;
    server.wait_for("InvalidData").await;
}

#[tokio::test]
async fn implicit_tls_never_continues_in_clear_text() {
    let mut server = Server::with_tls(true, |_| {});
    let mut stream = server.connect().await;
    stream.write_all(b"QUIT\nQUIT\nQUIT\n").await.unwrap();
    let _ = read_rest(&mut stream).await;
    server.wait_for("no tls").await;

    let server = Server::with_tls(true, |settings| settings.tls_server = None);
    assert_eq!(read_rest(&mut server.connect().await).await.0, b"");
}
