//! Scripted servers, messages for them, and a [`RemoteDelivery`] whose reports are collected.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::future::Future;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use delivery::remote::{
    ConnectionConfig, NextHop, NextHopAddress, RemoteDelivery, RemoteDeliveryConfig, RemoteEvent, RemoteTask,
    RemoteTaskResult,
};
use delivery::{DeliveryResult, MessageFence};
use mail::{
    Body, BodyFlags, BodyType, ByteSource, ClientInfo, DsnNotify, Envelope, HostTls, Outcome, QueueId, Recipient,
    SpoolId, TlsSession,
};
use net::Endpoint;
use protocol::smtp::MailProtocol;
use protocol::smtp::client::{self, CommandArgument, Timeouts};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::TlsAcceptor;

pub(crate) const PIPELINING: &str = "250-mx\r\n250 PIPELINING\r\n";
pub(crate) const CHUNKING: &str = "250-mx\r\n250-PIPELINING\r\n250 CHUNKING\r\n";
pub(crate) const TEXT: &[u8] = b"Subject: x\r\n\r\nHello.\r\n";

/// The timeout for commands and everything else.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a test on one thread.
pub(crate) fn run_test(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// Advances the clock once all tasks are waiting.
pub(crate) async fn advance_time(span: Duration) {
    // Many short sleeps: if this thread stands still meanwhile, one is over at once, and the tasks go on in the others.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::pause();
    tokio::time::advance(span).await;
    tokio::time::resume();
}

/// Advances the clock until the event happens.
pub(crate) async fn advance_time_until(event: impl Future<Output = ()>) {
    let mut event = std::pin::pin!(event);
    loop {
        tokio::select! {
            () = &mut event => return,
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
        }
        advance_time(TIMEOUT / 4).await;
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// The server's side of one connection.
pub(crate) struct TestConnection(BufStream<Box<dyn Stream>>);

/// What the servers of a test received.
#[derive(Clone, Default)]
pub(crate) struct ServerActivity {
    pub(crate) connections: Rc<Cell<usize>>,
    pub(crate) messages: Rc<RefCell<Vec<Message>>>,
    pub(crate) quits: Rc<Cell<usize>>,
}

/// A message as received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) envelope: Vec<String>,
    pub(crate) content: Vec<u8>,
}

/// Starts a server; `script` gets the number of earlier connections.
pub(crate) async fn serve<F: Future<Output = ()> + 'static>(
    seen: &ServerActivity,
    script: impl Fn(TestConnection, usize) -> F + 'static,
) -> Endpoint {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap());
    let connections = seen.connections.clone();
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn_local(script(
                TestConnection(BufStream::new(Box::new(stream))),
                connections.replace(connections.get() + 1),
            ));
        }
    });
    endpoint
}

impl TestConnection {
    /// Does the server's side of the TLS handshake.
    pub(crate) async fn accept_tls(self) -> TestConnection {
        self.try_accept_tls().await.unwrap()
    }

    /// The same; None if the client does not go through with it.
    pub(crate) async fn try_accept_tls(self) -> Option<TestConnection> {
        const PEM: &[u8] = include_bytes!("mx.example.pem");
        let certificate = CertificateDer::from_pem_slice(PEM).unwrap();
        let key = PrivateKeyDer::from_pem_slice(PEM).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
        let stream = TlsAcceptor::from(Arc::new(config)).accept(self.0.into_inner()).await.ok()?;
        Some(TestConnection(BufStream::new(Box::new(stream))))
    }
}

/// The same on a unix socket.
pub(crate) fn serve_unix<F: Future<Output = ()> + 'static>(
    path: &Path,
    script: impl Fn(TestConnection) -> F + 'static,
) -> Endpoint {
    let listener = UnixListener::bind(path).unwrap();
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn_local(script(TestConnection(BufStream::new(Box::new(stream)))));
        }
    });
    Endpoint::Unix(path.to_owned())
}

/// Starts a server that accepts everything.
pub(crate) async fn serve_all(seen: &ServerActivity, hello: &'static str) -> Endpoint {
    let inner = seen.clone();
    serve(seen, move |connection, _| connection.serve(hello, inner.clone())).await
}

impl ServerActivity {
    pub(crate) async fn until_quits(&self, count: usize) {
        while self.quits.get() < count {
            tokio::task::yield_now().await;
        }
    }
}

impl TestConnection {
    pub(crate) async fn send(&mut self, text: &str) {
        // In some tests the other side is already gone.
        let _ = self.0.write_all(text.as_bytes()).await;
        let _ = self.0.flush().await;
    }

    /// The next line; empty at the end.
    pub(crate) async fn read_line(&mut self) -> String {
        let mut line = String::new();
        let _ = self.0.read_line(&mut line).await;
        line
    }

    pub(crate) async fn expect_commands(&mut self, commands: &[&str]) {
        for command in commands {
            let line = self.read_line().await;
            assert!(line.starts_with(command), "expected {command}, found {line:?}");
        }
    }

    pub(crate) async fn greet(&mut self, hello: &str) {
        self.send("220 mx\r\n").await;
        self.expect_commands(&["EHLO"]).await;
        self.send(hello).await;
    }

    pub(crate) async fn read_octets(&mut self, count: usize) -> Vec<u8> {
        let mut octets = vec![0; count];
        let mut filled = 0;
        while filled < count {
            match self.0.read(&mut octets[filled..]).await {
                Ok(0) | Err(_) => break,
                Ok(read) => filled += read,
            }
        }
        octets.truncate(filled);
        octets
    }

    /// Waits until the other side closes the connection, and returns how.
    pub(crate) async fn wait_for_close(&mut self) -> io::Result<()> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).await.map(|_| ())
    }

    /// The data after DATA, up to its end mark.
    async fn read_data(&mut self) -> Vec<u8> {
        let mut data = Vec::new();
        while !data.ends_with(b"\r\n.\r\n") && data != b".\r\n" {
            if self.0.read_until(b'\n', &mut data).await.is_ok_and(|count| count == 0) {
                break;
            }
        }
        data
    }

    /// Accepts messages until QUIT.
    pub(crate) async fn serve(mut self, hello: &'static str, seen: ServerActivity) {
        self.greet(hello).await;
        while let Some(message) = self.read_message().await {
            seen.messages.borrow_mut().push(message);
            self.send("250 2.0.0 kept\r\n").await;
        }
        seen.quits.set(seen.quits.get() + 1);
    }

    /// Receives the next message, without replying to its end.
    pub(crate) async fn read_message(&mut self) -> Option<Message> {
        let mut message = Message::default();
        loop {
            let line = self.read_line().await;
            match line.split([' ', '\r']).next().unwrap() {
                "MAIL" | "RCPT" => message.envelope.push(line.trim_end().to_owned()),
                "RSET" => message = Message::default(),
                "DATA" => {
                    self.send("354 go\r\n").await;
                    message.content = self.read_data().await;
                    return Some(message);
                }
                "BDAT" => {
                    message.content = self.read_octets(line.split(' ').nth(1).unwrap().parse().unwrap()).await;
                    return Some(message);
                }
                "QUIT" => {
                    self.send("221 bye\r\n").await;
                    return None;
                }
                _ => return None,
            }
            self.send("250 ok\r\n").await;
        }
    }
}

/// A [`RemoteDelivery`] and its reports.
pub(crate) struct TestDelivery {
    pub(crate) remote: RemoteDelivery<u32>,
    reports: UnboundedReceiver<RemoteEvent<u32>>,
    /// How TLS went, as far as it was told.
    pub(crate) tls_sessions: Vec<TlsSession>,
}

impl TestDelivery {
    pub(crate) fn new() -> Self {
        TestDelivery::with_fence(Box::new(|_| true))
    }

    pub(crate) fn with_fence(fence: MessageFence) -> Self {
        let (sender, reports) = unbounded_channel();
        let remote = RemoteDelivery::with_fence(move |report| sender.send(report).unwrap(), fence);
        TestDelivery { remote, reports, tls_sessions: Vec::new() }
    }

    pub(crate) fn start(&self, hop: &Arc<NextHop>, ticket: u32, body: Body) {
        self.remote.start_task(task(hop, ticket, &["bob@example.net"], body));
    }

    /// The next task that ends, and how many times a slow server was reported before.
    pub(crate) async fn end_and_slow(&mut self) -> (RemoteTaskResult<u32>, usize) {
        let mut slow = 0;
        loop {
            match self.reports.recv().await.unwrap() {
                RemoteEvent::Finished(end) => return (end, slow),
                RemoteEvent::Slow { .. } => slow += 1,
                RemoteEvent::Tls(session) => self.tls_sessions.push(session),
            }
        }
    }

    pub(crate) async fn end(&mut self) -> RemoteTaskResult<u32> {
        self.end_and_slow().await.0
    }

    /// Sends one message and waits for its end.
    pub(crate) async fn send(&mut self, hop: &Arc<NextHop>, recipients: &[&str], body: Body) -> RemoteTaskResult<u32> {
        self.remote.start_task(task(hop, 1, recipients, body));
        self.end().await
    }

    pub(crate) fn has_report(&mut self) -> bool {
        self.reports.try_recv().is_ok()
    }
}

pub(crate) fn client() -> client::SmtpClientConfig {
    client::SmtpClientConfig {
        chunking: true,
        timeouts: Timeouts::uniform(TIMEOUT),
        ..client::SmtpClientConfig::new(MailProtocol::Smtp, CommandArgument::new("client.example").unwrap())
    }
}

pub(crate) fn config() -> RemoteDeliveryConfig {
    config_with(|_| {})
}

/// The same with other settings of connections.
pub(crate) fn config_with(change: impl FnOnce(&mut ConnectionConfig)) -> RemoteDeliveryConfig {
    let mut connections =
        ConnectionConfig { connect_timeout: TIMEOUT, sendfile_above: Some(1000), ..ConnectionConfig::default() };
    change(&mut connections);
    RemoteDeliveryConfig { connections, ..RemoteDeliveryConfig::new(client()) }
}

/// A next hop with one host in each tier.
pub(crate) fn hop(config: RemoteDeliveryConfig, endpoints: &[Endpoint]) -> Arc<NextHop> {
    let target = |(number, endpoint): (usize, &Endpoint)| {
        vec![NextHopAddress {
            host: format!("mx{number}.example").into(),
            endpoint: endpoint.clone(),
            tls: HostTls::Transport,
            sts: None,
        }]
    };
    let tiers = endpoints.iter().enumerate().map(target).collect();
    Arc::new(NextHop {
        name: "hop".into(),
        config_version: 0,
        is_configured: true,
        tiers,
        config: Arc::new(config),
        tls_failures: Vec::new(),
    })
}

pub(crate) fn task(hop: &Arc<NextHop>, ticket: u32, recipients: &[&str], body: Body) -> RemoteTask<u32> {
    let recipient = |text: &&str| Recipient {
        address: text.parse().unwrap(),
        original: None,
        notify: DsnNotify::UNSET,
        orcpt: None,
        is_forwarded: false,
    };
    let envelope = Envelope {
        sender: Some("alice@example.org".parse().unwrap()),
        recipients: recipients.iter().map(recipient).collect(),
        accepted_at: net::steady_now(),
        client: ClientInfo { address: None, helo: "test".into(), trusted: true },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
        content_filter: false,
    };
    RemoteTask {
        ticket,
        id: QueueId::new(SpoolId::new(1), 0, u64::from(ticket)),
        envelope: Arc::new(envelope),
        recipients: (0..recipients.len() as u32).collect(),
        body,
        next_hop: hop.clone(),
        verp: false,
        forwarded_sender: None,
    }
}

fn flags(text: &[u8]) -> BodyFlags {
    BodyFlags {
        dot_lines: text.starts_with(b".") || text.windows(3).any(|window| window == b"\r\n."),
        eight_bit: !text.is_ascii(),
        ends_in_crlf: text.is_empty() || text.ends_with(b"\r\n"),
    }
}

pub(crate) fn body(text: &[u8]) -> Body {
    Body::new(Arc::new(text.to_vec()), 0, text.len() as u64, crc32c::crc32c(text), flags(text))
}

/// Bytes within a file, with other bytes around them.
pub(crate) struct StoredFile(File);

impl StoredFile {
    pub(crate) fn file(&self) -> &File {
        &self.0
    }

    pub(crate) fn body(text: &[u8]) -> (Arc<StoredFile>, Body) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[b"before", text, b"after"].concat()).unwrap();
        let stored = Arc::new(StoredFile(file));
        let body = Body::new(stored.clone(), 6, text.len() as u64, crc32c::crc32c(text), flags(text));
        (stored, body)
    }
}

impl ByteSource for StoredFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn file(&self) -> Option<&File> {
        Some(&self.0)
    }
}

pub(crate) fn outcomes(end: &RemoteTaskResult<u32>) -> &[Outcome] {
    match &end.result {
        DeliveryResult::Outcomes(outcomes) => outcomes,
        other => panic!("{other:?}"),
    }
}

/// `relayed`, `deferred 451 4.4.2`, `failed 550` for each recipient.
pub(crate) fn summary(end: &RemoteTaskResult<u32>) -> Vec<String> {
    let codes = |reply: &mail::Reply| match reply.enhanced {
        Some(enhanced) => format!("{} {enhanced}", reply.code),
        None => reply.code.to_string(),
    };
    let word = |outcome: &Outcome| match outcome {
        Outcome::Delivered => "delivered".to_owned(),
        Outcome::Relayed { .. } => "relayed".to_owned(),
        Outcome::Deferred(reply) => format!("deferred {}", codes(reply)),
        Outcome::Failed(reply) => format!("failed {}", codes(reply)),
    };
    outcomes(end).iter().map(word).collect()
}
