//! Clients of the IMAP proxy and fake backends: logins, refusals, backends that are down, and what
//! passes through afterwards.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod proxy_server;
#[path = "../../net/tests/tls_peer/mod.rs"]
mod tls_peer;

use std::sync::Arc;
use std::time::Duration;

use net::{TlsClient, TlsServer, TlsVersion};
use protocol::TlsMode;
use protocol::sasl::Secret;
use retrieval::proxy::{BackendAccount, BackendAddress, BackendHosts, BackendTls, MasterUser, MasterUserForm};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

use proxy_server::{Backend, PATIENCE, Peer, Proxy};

const ACCEPTED: &str = "L OK [CAPABILITY IMAP4rev1 IDLE] Logged in\r\n";

/// A client and a backend with bob's session between them.
async fn tunnel(proxy: &Proxy, backend: &Backend) -> (Peer, Peer) {
    let mut client = proxy.greeted().await;
    client.send("a LOGIN bob secret\r\n").await;
    let backend = backend.log_in(ACCEPTED).await;
    assert_eq!(client.line().await, "a OK [CAPABILITY IMAP4rev1 IDLE] Logged in");
    (client, backend)
}

#[tokio::test]
async fn a_client_reaches_its_backend_by_every_login() {
    let backend = Backend::start().await;
    let proxy = Proxy::imap(backend.address(), |_| {});
    for login in ["a LOGIN BOB secret", "a LOGIN {3+}\r\nbob {6+}\r\nsecret", "a AUTHENTICATE PLAIN AGJvYgBzZWNyZXQ="] {
        let mut client = proxy.greeted().await;
        // What is pipelined after the login is the backend's, in order.
        client.send(&format!("x NOOP\r\n{login}\r\nb SELECT INBOX\r\nc ")).await;
        let mut backend = backend.log_in(&format!("* CAPABILITY X\r\n{ACCEPTED}* 1 EXISTS\r\n")).await;
        for line in
            ["x OK NOOP completed", "* CAPABILITY X", "a OK [CAPABILITY IMAP4rev1 IDLE] Logged in", "* 1 EXISTS"]
        {
            assert_eq!(client.line().await, line);
        }
        assert_eq!(backend.line().await, "b SELECT INBOX");
        client.send("LOGOUT\r\n").await;
        assert_eq!(backend.line().await, "c LOGOUT");
        backend.send("* BYE\r\nc OK\r\n").await;
        drop(backend);
        assert_eq!((client.line().await, client.line().await), ("* BYE".into(), "c OK".into()));
        assert!(client.is_ended().await);
        drop(client);
        proxy.wait_until_empty().await;
    }
    assert_eq!(*proxy.log.logins.lock(), ["BOB PLAIN ok", "bob PLAIN ok", "bob PLAIN ok"]);
}

#[tokio::test]
async fn a_user_who_cannot_be_passed_on_is_told_why() {
    let backend = Backend::start().await;
    let proxy = Proxy::imap(backend.address(), |_| {});
    let mut client = proxy.connect().await;
    assert!(!client.line().await.contains("SCRAM"), "SCRAM is offered without a master user");
    client.expect("a LOGIN bob wrong", "a NO [AUTHENTICATIONFAILED]").await;
    client.expect("a LOGIN local secret", "a NO [CANNOT]").await;
    client.expect("a LOGIN lost secret", "a NO [UNAVAILABLE]").await;
    client.expect("a LOGIN nobody secret", "a NO [AUTHORIZATIONFAILED]").await;
    for (said, told) in [
        ("L NO [LIMIT] Too many sessions\r\n", "a NO [LIMIT] Too many sessions"),
        ("L NO no\r\n", "a NO [UNAVAILABLE]"),
        ("L BAD what\r\n", "a NO [UNAVAILABLE]"),
        ("garbage\r\n", "a NO [UNAVAILABLE]"),
    ] {
        client.send("a LOGIN bob secret\r\n").await;
        drop(backend.log_in(said).await);
        let reply = client.line().await;
        assert!(reply.starts_with(told), "{said:?} {reply:?}");
    }
    let lines = proxy.log.lines.lock().clone();
    assert!(lines[0].ends_with("user \"lost\": no cable"), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("refuses a login that is right here")), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("secret")), "{lines:?}");
}

#[tokio::test]
async fn a_backend_of_this_host_and_a_master_user_are_used() {
    let backend = Backend::start().await;
    let forms = [
        (MasterUserForm::Authzid, "L AUTHENTICATE PLAIN bG9jYWwAcm9vdABib3Nz"),
        (MasterUserForm::Separator('*'), "L AUTHENTICATE PLAIN AGxvY2FsKnJvb3QAYm9zcw=="),
    ];
    for (form, login) in forms {
        let address = backend.address();
        let proxy = Proxy::imap(address, |settings| {
            settings.proxy.on_this_host = Some(BackendAddress::parse(&address.to_string(), 1).unwrap());
            let (user, password) = ("root".into(), Secret::new("boss".into()));
            settings.proxy.account = BackendAccount::Master(MasterUser { user, password, form });
            settings.proxy.tells_client_address = true;
        });
        let mut client = proxy.connect().await;
        assert!(client.line().await.contains(" AUTH=SCRAM-SHA-256 "));
        client.send("a LOGIN local secret\r\n").await;
        let mut backend = backend.accept().await;
        backend.send("* OK [CAPABILITY SASL-IR]\r\n").await;
        assert_eq!(backend.line().await, "I ID (\"x-originating-ip\" \"127.0.0.1\")");
        assert_eq!(backend.line().await, login);
        backend.send(&format!("I OK\r\n{ACCEPTED}")).await;
        assert_eq!(client.line().await, "a OK [CAPABILITY IMAP4rev1 IDLE] Logged in");
    }
}

#[tokio::test]
async fn a_backend_may_check_the_password_itself() {
    let backend = Backend::start().await;
    let proxy = Proxy::imap(backend.address(), |settings| settings.proxy.account = BackendAccount::UserUnchecked);
    let mut client = proxy.greeted().await;
    let refuse = async |client: &mut Peer, reply: &str, told: &str| {
        client.send("a LOGIN bob secret\r\n").await;
        drop(backend.log_in(reply).await);
        let got = client.line().await;
        assert!(got.starts_with(told), "{got:?}");
    };
    refuse(&mut client, "L NO [UNAVAILABLE] later\r\n", "a NO [UNAVAILABLE]").await;
    refuse(&mut client, "L NO [AUTHENTICATIONFAILED] no\r\n", "a NO [AUTHENTICATIONFAILED]").await;
    client.expect("a LOGIN nobody secret", "a NO [AUTHENTICATIONFAILED]").await;
    client.send("a LOGIN Bob secret\r\nb NOOP\r\n").await;
    let mut peer = backend.log_in(ACCEPTED).await;
    assert_eq!(client.line().await, "a OK [CAPABILITY IMAP4rev1 IDLE] Logged in");
    assert_eq!(peer.line().await, "b NOOP");
    let logins = proxy.log.logins.lock().clone();
    assert_eq!(logins, ["bob PLAIN unavailable", "bob PLAIN refused", "nobody PLAIN refused", "Bob PLAIN ok"]);
    // The fifth failure has to wait.
    let mut client = proxy.greeted().await;
    let mut replies = Vec::new();
    for _ in 0..3 {
        client.send("a LOGIN nobody secret\r\n").await;
        replies.push(client.line().await);
    }
    let mut client = proxy.greeted().await;
    for _ in 0..3 {
        client.send("a LOGIN nobody secret\r\n").await;
        replies.push(client.line().await);
    }
    assert!(replies.iter().any(|reply| reply.contains("Too many failures")), "{replies:?}");
}

#[tokio::test]
async fn a_backend_that_is_down_is_refused_at_once_and_comes_back() {
    let backend = Backend::start().await;
    let address = backend.address();
    drop(backend);
    let proxy = Proxy::imap(address, |_| {});
    let mut client = proxy.greeted().await;
    client.expect("a LOGIN bob secret", "a NO [UNAVAILABLE]").await;
    assert_eq!(proxy.hosts.down().len(), 1);
    // A backend that would accept now is not asked before the probe has found it.
    let listener = TcpListener::bind(address).await.unwrap();
    client.expect("a LOGIN bob secret", "a NO [UNAVAILABLE]").await;
    let mut probe = Peer::new(listener.accept().await.unwrap().0);
    probe.send("* OK up\r\n").await;
    assert!(probe.is_ended().await, "the probe logs in");
    while !proxy.hosts.down().is_empty() {
        tokio::task::yield_now().await;
    }
    client.send("a LOGIN bob secret\r\n").await;
    let mut peer = Peer::new(listener.accept().await.unwrap().0);
    peer.send("* OK [CAPABILITY SASL-IR]\r\n").await;
    assert!(peer.line().await.starts_with("L AUTHENTICATE"));
    peer.send(ACCEPTED).await;
    assert!(client.line().await.starts_with("a OK"));
    let lines = proxy.log.lines.lock().clone();
    assert!(lines.iter().any(|line| line.contains("is up again")), "{lines:?}");
}

#[tokio::test]
async fn a_backend_that_accepts_and_never_greets_is_down() {
    let backend = Backend::start().await;
    let proxy = Proxy::imap(backend.address(), |settings| {
        let limits = retrieval::proxy::BackendLimits {
            connect_time_max: Duration::from_millis(100),
            ..retrieval::proxy::BackendLimits::default()
        };
        let resolver = Arc::new(proxy_server::LocalResolver);
        settings.proxy.hosts = BackendHosts::new(resolver, limits, Arc::new(proxy_server::TestLog::default()));
    });
    let mut client = proxy.greeted().await;
    client.expect("a LOGIN bob secret", "a NO [UNAVAILABLE]").await;
    assert_eq!(proxy.hosts.down().len(), 1);
}

/// Bytes that differ everywhere.
fn content(octets: usize, seed: u32) -> Vec<u8> {
    (0..octets as u32).map(|place| (place.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

/// Sends much both ways at once; one side begins to read late and reads little at a time.
async fn exchange(client: impl AsyncRead + AsyncWrite, backend: impl AsyncRead + AsyncWrite, octets: usize) {
    let (mut client_reader, mut client_writer) = tokio::io::split(client);
    let (mut backend_reader, mut backend_writer) = tokio::io::split(backend);
    let (up, down) = (content(octets, 1), content(octets + 12_345, 2));
    let write_up = async {
        client_writer.write_all(&up).await.unwrap();
        client_writer.shutdown().await.unwrap();
    };
    let write_down = async {
        backend_writer.write_all(&down).await.unwrap();
        backend_writer.shutdown().await.unwrap();
    };
    let read_up = async {
        let mut got = Vec::new();
        backend_reader.read_to_end(&mut got).await.unwrap();
        assert!(got == up, "{} of {} octets", got.len(), up.len());
    };
    let read_down = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (mut got, mut piece) = (Vec::new(), vec![0; 7001]);
        loop {
            match client_reader.read(&mut piece).await.unwrap() {
                0 => break,
                count => got.extend_from_slice(&piece[..count]),
            }
        }
        assert!(got == down, "{} of {} octets", got.len(), down.len());
    };
    let all = async { tokio::join!(write_up, write_down, read_up, read_down) };
    tokio::time::timeout(PATIENCE, all).await.unwrap();
}

#[tokio::test]
async fn much_passes_both_ways_at_once_and_each_end_is_passed_on() {
    let backend = Backend::start().await;
    let proxy = Proxy::imap(backend.address(), |_| {});
    for octets in [0, 1, 5_000, 16 << 10, 20_000_003] {
        let (client, peer) = tunnel(&proxy, &backend).await;
        exchange(client.stream, peer.stream, octets).await;
        proxy.wait_until_empty().await;
    }
}

#[tokio::test]
async fn much_passes_over_tls() {
    let folder = tempfile::TempDir::new().unwrap();
    let files = tls_peer::issue(folder.path(), "a", &["proxy.example"], |_| {});
    let tls_server = Arc::new(TlsServer::new(vec![files], TlsVersion::V1_2, PATIENCE).unwrap());
    let backend = Backend::start().await;
    let proxy = Proxy::imap(backend.address(), |settings| {
        (settings.tls, settings.tls_server) = (TlsMode::Required, Some(tls_server));
    });
    for octets in [1, 5_000_003] {
        let mut client = proxy.greeted().await;
        client.expect("a LOGIN bob secret", "a NO [PRIVACYREQUIRED]").await;
        client.expect("a STARTTLS", "a OK").await;
        let connector = tls_peer::connector(rustls::ALL_VERSIONS);
        let name = ServerName::try_from("proxy.example").unwrap();
        let mut client = connector.connect(name, client.stream).await.unwrap();
        client.write_all(b"b LOGIN bob secret\r\n").await.unwrap();
        let peer = backend.log_in(ACCEPTED).await;
        let mut reply = [0; b"b OK [CAPABILITY IMAP4rev1 IDLE] Logged in\r\n".len()];
        client.read_exact(&mut reply).await.unwrap();
        assert!(reply.starts_with(b"b OK"));
        exchange(client, peer.stream, octets).await;
        proxy.wait_until_empty().await;
    }
}

#[tokio::test]
async fn a_backend_is_reached_over_tls() {
    let folder = tempfile::TempDir::new().unwrap();
    let files = tls_peer::issue(folder.path(), "a", &["backend.example"], |_| {});
    let chain = vec![CertificateDer::from_pem_file(&files.chain).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let backend = Backend::start().await;
    for tls in [BackendTls::StartTls(TlsClient::unverified()), BackendTls::Implicit(TlsClient::unverified())] {
        let proxy = Proxy::imap(backend.address(), |settings| settings.proxy.tls = tls.clone());
        let mut client = proxy.greeted().await;
        client.send("a LOGIN bob secret\r\n").await;
        let mut peer = backend.accept().await;
        if let BackendTls::StartTls(_) = tls {
            peer.send("* OK [CAPABILITY SASL-IR]\r\n").await;
            assert_eq!(peer.line().await, "S STARTTLS");
            peer.send("S OK go\r\n").await;
        }
        let mut peer = acceptor.accept(peer.stream).await.unwrap();
        if let BackendTls::Implicit(_) = tls {
            peer.write_all(b"* OK [CAPABILITY SASL-IR]\r\n").await.unwrap();
        }
        let mut login = [0; b"L AUTHENTICATE PLAIN AGJvYgBzZWNyZXQ=\r\n".len()];
        peer.read_exact(&mut login).await.unwrap();
        assert!(login.starts_with(b"L AUTHENTICATE PLAIN AGJ"));
        peer.write_all(ACCEPTED.as_bytes()).await.unwrap();
        assert!(client.line().await.starts_with("a OK"));
        exchange(client.stream, peer, 1_000_003).await;
        proxy.wait_until_empty().await;
    }
}

#[tokio::test]
async fn a_half_closed_connection_still_carries_the_other_way() {
    let backend = Backend::start().await;
    let proxy = Proxy::imap(backend.address(), |_| {});
    let (mut client, mut peer) = tunnel(&proxy, &backend).await;
    client.send("last words\r\n").await;
    client.stream.shutdown().await.unwrap();
    assert_eq!((peer.line().await, peer.line().await), ("last words".into(), String::new()));
    peer.send("an answer\r\n").await;
    assert_eq!(client.line().await, "an answer");
    drop(peer);
    assert!(client.is_ended().await);
    proxy.wait_until_empty().await;
}

#[tokio::test]
async fn a_stop_and_silence_end_a_tunnel() {
    let backend = Backend::start().await;
    let proxy = Proxy::imap(backend.address(), |settings| settings.proxy.idle_time_max = Duration::from_millis(50));
    let (mut client, mut peer) = tunnel(&proxy, &backend).await;
    assert!(client.is_ended().await && peer.is_ended().await);

    let proxy = Proxy::imap(backend.address(), |_| {});
    let (mut client, mut peer) = tunnel(&proxy, &backend).await;
    proxy.stopper.stop();
    assert!(client.is_ended().await && peer.is_ended().await);
    proxy.wait_until_empty().await;
}

#[tokio::test]
async fn a_reset_of_one_side_ends_the_other() {
    let backend = Backend::start().await;
    let proxy = Proxy::imap(backend.address(), |_| {});
    let (mut client, peer) = tunnel(&proxy, &backend).await;
    peer.stream.set_zero_linger().unwrap();
    drop(peer);
    assert!(client.is_ended().await);
    proxy.wait_until_empty().await;
}

#[tokio::test]
async fn a_pop3_client_reaches_its_backend() {
    let backend = Backend::start().await;
    let proxy = Proxy::pop3(backend.address(), |_| {});
    let mut client = proxy.greeted().await;
    client.expect("USER bob", "+OK").await;
    client.expect("PASS wrong", "-ERR [AUTH]").await;
    client.expect("USER nobody", "+OK").await;
    client.expect("PASS secret", "-ERR [SYS/PERM]").await;
    for (said, told) in
        [("-ERR [IN-USE] no\r\n", "-ERR [IN-USE]"), ("-ERR no\r\n", "-ERR [SYS/TEMP]"), ("what\r\n", "-ERR [SYS/TEMP]")]
    {
        client.expect("USER bob", "+OK").await;
        client.send("PASS secret\r\n").await;
        let mut peer = backend.accept().await;
        peer.send("+OK hi\r\n").await;
        assert_eq!(peer.line().await, "AUTH PLAIN AGJvYgBzZWNyZXQ=");
        peer.send(said).await;
        assert!(client.line().await.starts_with(told), "{said:?}");
    }
    // What is pipelined after the login is the backend's, in order.
    client.send("NOOP\r\nUSER bob\r\nPASS secret\r\nSTAT\r\nQU").await;
    let mut peer = backend.accept().await;
    peer.send("+OK hi\r\n").await;
    peer.line().await;
    peer.send("+OK 2 messages\r\n").await;
    assert!(client.line().await.starts_with("-ERR") && client.line().await.starts_with("+OK"));
    assert_eq!((client.line().await, peer.line().await), ("+OK 2 messages".into(), "STAT".into()));
    client.send("IT\r\n").await;
    assert_eq!(peer.line().await, "QUIT");
    drop(peer);
    assert!(client.is_ended().await);
}
