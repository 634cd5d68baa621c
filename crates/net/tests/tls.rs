//! The server side of TLS: which certificate a client sees, what is refused, and that a reload
//! replaces only valid certificates.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod tls_peer;

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mail::{Timestamp, TlsInfo};
use net::{
    Certificate, CertificateError, CertificateFiles, CertificateSource, CertificateWarning, ChallengeStore,
    ConnectionHandler, FirstHandshake, OutputPiece, ServerStream, StopSender, TlsServer, TlsServerError, TlsVersion,
};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use tls_peer::{AcceptAnyCertificate, connector, issue};

/// Longer than any step of these tests.
const PATIENCE: Duration = Duration::from_secs(20);

/// Replaces the certificate by a new one in new files: the stamps differ even within one tick of
/// the clock.
fn renew(files: &CertificateFiles, host: &str) {
    let folder = TempDir::new_in(files.chain.parent().unwrap()).unwrap();
    let new = issue(folder.path(), "new", &[host], |_| {});
    fs::rename(&new.chain, &files.chain).unwrap();
    fs::rename(&new.key, &files.key).unwrap();
}

fn tls_server(files: Vec<CertificateFiles>) -> TlsServer {
    TlsServer::new(files, TlsVersion::V1_2, PATIENCE).unwrap()
}

/// A connection: the client's end and the server's end.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

/// Performs a handshake with both sides.
async fn shake(
    tls_server: &TlsServer,
    name: &str,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> (io::Result<TlsStream<TcpStream>>, io::Result<ServerStream>) {
    let (client, server) = pair().await;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    tokio::join!(connector(versions).connect(name, client), tls_server.accept(server))
}

/// The certificate presented to a client that asks for `name`, in DER.
async fn presented(tls_server: &TlsServer, name: &str) -> Vec<u8> {
    let (client, server) = shake(tls_server, name, rustls::ALL_VERSIONS).await;
    server.unwrap();
    client.unwrap().get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn certificate_of(files: &CertificateFiles) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject;
    CertificateDer::from_pem_file(&files.chain).unwrap().to_vec()
}

/// Begins a connection with a client that offers these protocols (ALPN). The certificate that it sees,
/// and the protocol that was chosen.
async fn shake_first(
    tls_server: &TlsServer,
    name: &'static str,
    offers: &[&str],
) -> (io::Result<(Vec<u8>, Option<Vec<u8>>)>, io::Result<FirstHandshake>) {
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
        .with_no_client_auth();
    config.alpn_protocols = offers.iter().map(|offer| offer.as_bytes().to_vec()).collect();
    let (client, server) = pair().await;
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from(name).unwrap();
    let (client, server) = tokio::join!(connector.connect(name, client), tls_server.accept_first(server));
    let seen = client.map(|stream| {
        let session = stream.get_ref().1;
        (session.peer_certificates().unwrap()[0].to_vec(), session.alpn_protocol().map(<[u8]>::to_vec))
    });
    (seen, server)
}

fn certificate_in_memory(name: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let pair = KeyPair::generate().unwrap();
    let made = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&pair).unwrap();
    (made.der().clone(), pair.serialize_der().try_into().unwrap())
}

#[tokio::test]
async fn an_authority_gets_the_certificate_of_its_challenge_and_others_get_theirs() {
    let folder = TempDir::new().unwrap();
    let files = issue(folder.path(), "a", &["a.example"], |_| {});
    let store = Arc::new(ChallengeStore::default());
    let tls_server = tls_server(vec![files.clone()]).with_challenges(store.clone()).unwrap();
    let (answer, key) = certificate_in_memory("a.example");
    let pending = store.add_tls("a.example", answer.clone(), key).unwrap();

    let (seen, server) = shake_first(&tls_server, "A.example", &["acme-tls/1"]).await;
    let (presented, protocol) = seen.unwrap();
    assert!(matches!(server.unwrap(), FirstHandshake::Authority(_)));
    assert_eq!(protocol.as_deref(), Some(&b"acme-tls/1"[..]));
    assert_eq!(presented, answer.as_ref());
    for offers in [&[][..], &["http/1.1"], &["acme-tls/1", "http/1.1"]] {
        let (seen, server) = shake_first(&tls_server, "a.example", offers).await;
        assert!(matches!(server.unwrap(), FirstHandshake::Client(_)), "{offers:?}");
        assert_eq!(seen.unwrap().0, certificate_of(&files), "{offers:?}");
    }
    let (seen, server) = shake_first(&tls_server, "b.example", &["acme-tls/1"]).await;
    assert!(seen.is_err() && server.is_err(), "no challenge for this name");
    drop(pending);
    let (seen, _) = shake_first(&tls_server, "a.example", &["acme-tls/1"]).await;
    assert_eq!(seen.unwrap().0, certificate_of(&files), "the challenge is over");
}

#[tokio::test]
async fn a_placeholder_stands_until_the_files_are_there() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a.pem");
    let files = CertificateFiles { chain: path.clone(), key: path.clone(), names: Vec::new() };
    let (certificate, key) = certificate_in_memory("a.example");
    let placeholder = Certificate::from_der(vec![certificate], key).unwrap().into_placeholder();
    let source = CertificateSource { files, placeholder: Some(placeholder) };
    let tls_server = TlsServer::new(vec![source], TlsVersion::V1_2, PATIENCE).unwrap();
    assert!(tls_server.certificates()[0].is_placeholder());
    let first = presented(&tls_server, "a.example").await;
    assert!(tls_server.reload_changed_now().is_empty());

    let issued = issue(folder.path(), "issued", &["a.example"], |_| {});
    let both = [&issued.chain, &issued.key].map(|file| fs::read_to_string(file).unwrap()).concat();
    fs::write(&path, both).unwrap();
    assert!(tls_server.reload_changed_now()[0].is_ok());
    assert!(!tls_server.certificates()[0].is_placeholder());
    assert_ne!(presented(&tls_server, "a.example").await, first);
}

#[tokio::test]
async fn the_name_that_a_client_asks_for_chooses_the_certificate() {
    let folder = TempDir::new().unwrap();
    let first = issue(folder.path(), "first", &["mx.example.org"], |_| {});
    let wild = issue(folder.path(), "wild", &["*.example.net", "example.net"], |_| {});
    let exact = issue(folder.path(), "exact", &["Mail.Example.net"], |_| {});
    let mut named = issue(folder.path(), "named", &["not.used.example"], |_| {});
    named.names = vec!["named.example".into(), "*.named.example".into()];
    let tls_server = tls_server(vec![first.clone(), wild.clone(), exact.clone(), named.clone()]);
    for (name, expected) in [
        ("mx.example.org", &first),
        ("example.net", &wild),
        ("a.example.net", &wild),
        ("A.EXAMPLE.net", &wild),
        ("a.b.example.net", &first),
        ("mail.example.net", &exact),
        ("named.example", &named),
        ("x.named.example", &named),
        ("not.used.example", &first),
        ("elsewhere.example", &first),
        // A client sends no SNI for an IP address.
        ("192.0.2.1", &first),
    ] {
        assert!(presented(&tls_server, name).await == certificate_of(expected), "{name}");
    }
}

#[tokio::test]
async fn of_two_certificates_for_a_name_a_client_gets_the_one_it_supports() {
    let folder = TempDir::new().unwrap();
    let ecdsa = issue(folder.path(), "ecdsa", &["mx.example.org"], |_| {});
    let edwards =
        CertificateFiles { chain: folder.path().join("ed.pem"), key: folder.path().join("ed.key"), names: Vec::new() };
    let pair = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let params = CertificateParams::new(vec!["mx.example.org".to_owned()]).unwrap();
    fs::write(&edwards.chain, params.self_signed(&pair).unwrap().pem()).unwrap();
    fs::write(&edwards.key, pair.serialize_pem()).unwrap();
    let tls_server = tls_server(vec![edwards.clone(), ecdsa.clone()]);
    assert!(presented(&tls_server, "mx.example.org").await == certificate_of(&edwards));

    let mut provider = aws_lc_rs::default_provider();
    let mapping = provider.signature_verification_algorithms.mapping;
    let understood: Vec<_> =
        mapping.iter().copied().filter(|(scheme, _)| *scheme != SignatureScheme::ED25519).collect();
    provider.signature_verification_algorithms.mapping = Box::leak(understood.into_boxed_slice());
    let verifier = AcceptSchemes(provider.signature_verification_algorithms.supported_schemes());
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let (client, server) = self::pair().await;
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("mx.example.org").unwrap();
    let (client, server) = tokio::join!(connector.connect(name, client), tls_server.accept(server));
    server.unwrap();
    assert!(client.unwrap().get_ref().1.peer_certificates().unwrap()[0].to_vec() == certificate_of(&ecdsa));
}

/// Accepts every certificate with a signature of one of these schemes.
#[derive(Debug)]
struct AcceptSchemes(Vec<SignatureScheme>);

impl ServerCertVerifier for AcceptSchemes {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        AcceptAnyCertificate.verify_server_cert(end_entity, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        AcceptAnyCertificate.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        AcceptAnyCertificate.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

#[tokio::test]
async fn a_version_below_the_least_is_refused_with_the_reason() {
    let folder = TempDir::new().unwrap();
    let files = vec![issue(folder.path(), "a", &["mx.example.org"], |_| {})];
    let old: &[_] = &[&rustls::version::TLS12];
    let (client, server) = shake(&tls_server(files.clone()), "mx.example.org", old).await;
    client.unwrap();
    assert_eq!(server.unwrap().tls_info().unwrap().version, "TLSv1.2");

    let strict = TlsServer::new(files, TlsVersion::V1_3, PATIENCE).unwrap();
    let (client, server) = shake(&strict, "mx.example.org", old).await;
    assert!(client.is_err());
    assert!(server.unwrap_err().to_string().contains("incompatible"));
    let (_, server) = shake(&strict, "mx.example.org", rustls::ALL_VERSIONS).await;
    let security = server.unwrap().tls_info().unwrap();
    assert_eq!((security.version, security.cipher), ("TLSv1.3", "TLS_AES_128_GCM_SHA256"));
}

/// A time at which files written just now are old enough to be read.
fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(60)
}

fn reload(tls_server: &TlsServer) -> Vec<Result<usize, String>> {
    let found = tls_server.reload_changed(later()).into_iter();
    found.map(|one| one.map(|it| it.names().len()).map_err(|error| error.to_string())).collect()
}

#[tokio::test]
async fn a_reload_takes_valid_certificates_and_keeps_the_old_ones_for_invalid_files() {
    let folder = TempDir::new().unwrap();
    let files = issue(folder.path(), "a", &["mx.example.org"], |_| {});
    let tls_server = tls_server(vec![files.clone()]);
    let old = certificate_of(&files);
    assert_eq!(reload(&tls_server), []);

    // A new certificate whose key is not there yet.
    let other = issue(folder.path(), "b", &["mx.example.org"], |_| {});
    fs::rename(&other.chain, &files.chain).unwrap();
    let errors: Vec<_> = tls_server.reload_changed(later());
    assert!(matches!(errors[..], [Err(CertificateError::Mismatch { .. })]), "{errors:?}");
    assert!(presented(&tls_server, "mx.example.org").await == old);
    assert_eq!(reload(&tls_server), [], "the error was reported twice");

    fs::rename(&other.key, &files.key).unwrap();
    assert_eq!(reload(&tls_server), [Ok(1)]);
    assert!(presented(&tls_server, "mx.example.org").await == certificate_of(&files));
    assert_eq!(reload(&tls_server), []);
}

#[tokio::test]
async fn unreadable_files_are_tried_every_time_and_reported_once() {
    let folder = TempDir::new().unwrap();
    let files = issue(folder.path(), "a", &["mx.example.org"], |_| {});
    let other = issue(folder.path(), "b", &["mx.example.org"], |_| {});
    let tls_server = tls_server(vec![files.clone()]);
    fs::remove_file(&files.key).unwrap();
    let error = tls_server.reload_changed(later()).remove(0).unwrap_err();
    assert!(matches!(error, CertificateError::Unreadable { is_key: true, .. }), "{error}");
    assert_eq!(reload(&tls_server), []);
    fs::remove_file(&files.chain).unwrap();
    assert!(
        matches!(&reload(&tls_server)[..], [Err(text)] if text.contains("a.pem")),
        "the new error was not reported"
    );
    assert_eq!(reload(&tls_server), []);

    fs::rename(&other.chain, &files.chain).unwrap();
    fs::rename(&other.key, &files.key).unwrap();
    assert_eq!(reload(&tls_server), [Ok(1)]);
    assert!(presented(&tls_server, "mx.example.org").await == certificate_of(&files));
}

#[tokio::test]
async fn unchanged_files_that_were_missing_for_a_time_are_not_reported_again() {
    let folder = TempDir::new().unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let files = issue(&inner, "a", &["mx.example.org"], |_| {});
    let tls_server = tls_server(vec![files]);
    fs::rename(&inner, folder.path().join("away")).unwrap();
    assert_eq!(reload(&tls_server).len(), 1);
    assert_eq!(reload(&tls_server), []);
    fs::rename(folder.path().join("away"), &inner).unwrap();
    assert_eq!(reload(&tls_server), []);
    fs::rename(&inner, folder.path().join("away")).unwrap();
    assert_eq!(reload(&tls_server).len(), 1, "the second failure was not reported");
}

#[tokio::test]
async fn an_invalid_certificate_does_not_stop_the_renewal_of_others() {
    let folder = TempDir::new().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| issue(folder.path(), name, &[&format!("{name}.example")], |_| {}));
    let tls_server = tls_server(vec![a.clone(), b.clone(), c.clone()]);
    let old = certificate_of(&a);
    fs::write(&a.chain, "nothing").unwrap();
    renew(&b, "b.example");
    fs::remove_file(&c.key).unwrap();
    let found = reload(&tls_server);
    assert!(matches!(&found[..], [Err(a), Ok(1), Err(c)] if a.contains("a.pem") && c.contains("c.key")), "{found:?}");
    for (name, expected) in [("a.example", old), ("b.example", certificate_of(&b)), ("c.example", certificate_of(&c))] {
        assert!(presented(&tls_server, name).await == expected, "{name}");
    }
    assert_eq!(reload(&tls_server), []);
}

#[tokio::test]
async fn files_that_have_just_changed_are_left_for_the_next_time() {
    let folder = TempDir::new().unwrap();
    let files = issue(folder.path(), "a", &["mx.example.org"], |_| {});
    let tls_server = tls_server(vec![files.clone()]);
    let old = certificate_of(&files);
    renew(&files, "mx.example.org");
    let changed = fs::metadata(&files.chain).unwrap().modified().unwrap();
    assert!(tls_server.reload_changed(changed + Duration::from_millis(1900)).is_empty());
    assert!(presented(&tls_server, "mx.example.org").await == old);
    assert_eq!(reload(&tls_server), [Ok(1)]);
    assert!(presented(&tls_server, "mx.example.org").await == certificate_of(&files));

    // Unless the caller says that they are complete.
    renew(&files, "mx.example.org");
    assert!(matches!(tls_server.reload_changed_now()[..], [Ok(_)]) && tls_server.reload_changed_now().is_empty());
    assert!(presented(&tls_server, "mx.example.org").await == certificate_of(&files));

    // A file time in the future does not delay the reload.
    renew(&files, "mx.example.org");
    assert_eq!(tls_server.reload_changed(changed - Duration::from_secs(3600)).len(), 1);
}

#[test]
fn a_certificate_error_names_its_file() {
    let folder = TempDir::new().unwrap();
    let (a, b) = (issue(folder.path(), "a", &["a.example"], |_| {}), issue(folder.path(), "b", &["b.example"], |_| {}));
    let error_of = |chain: &Path, key: &Path| {
        let files = CertificateFiles { chain: chain.into(), key: key.into(), names: Vec::new() };
        let error = Certificate::load(&files).unwrap_err();
        (error.concerns_key_file(), error.to_string())
    };
    let broken = folder.path().join("broken");
    fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let long = folder.path().join("long");
    fs::write(&long, vec![b'\n'; (1 << 20) + 1]).unwrap();
    let none = folder.path().join("none");
    for (chain, key, is_of_key, words) in [
        (&a.chain, &b.key, true, "does not match"),
        (&none, &a.key, false, "none: "),
        (&a.chain, &none, true, "none: "),
        (&a.key, &a.key, false, "a.key: the file contains none"),
        (&broken, &a.key, false, "broken: "),
        (&a.chain, &a.chain, true, "no usable private key"),
        (&long, &a.key, false, "larger than 1 MiB"),
    ] {
        let (of_key, told) = error_of(chain, key);
        assert!(of_key == is_of_key && told.contains(words), "{told}");
    }
    assert!(matches!(
        TlsServer::new(Vec::<CertificateFiles>::new(), TlsVersion::V1_2, PATIENCE).unwrap_err(),
        TlsServerError::NoCertificate
    ));
}

#[test]
fn an_expired_certificate_is_accepted_with_a_warning() {
    let folder = TempDir::new().unwrap();
    let files = issue(folder.path(), "a", &["a.example"], |params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    });
    let certificate = Certificate::load(&files).unwrap();
    let year = |year: i32| date_time_ymd(year, 6, 1).into();
    assert_eq!(certificate.warning(year(2000)), Some(CertificateWarning::NotYetValid));
    assert_eq!(certificate.warning(year(2001)), None);
    assert_eq!(certificate.warning(year(2002)), Some(CertificateWarning::Expired));
    assert_eq!(certificate.not_after(), std::time::SystemTime::from(date_time_ymd(2002, 1, 1)));
    assert_eq!(certificate.names(), ["a.example".into()]);
}

#[test]
fn a_plain_stream_is_as_large_as_its_socket() {
    assert_eq!(size_of::<ServerStream>(), size_of::<TcpStream>());
}

/// Asks for a handshake on the input "tls", and echoes any other input.
struct Echo {
    acceptor: Arc<TlsServer>,
    output: Vec<u8>,
    wants: bool,
    secured: Option<TlsInfo>,
    error: Option<String>,
    closes: bool,
    ended: bool,
    stopped: bool,
}

impl ConnectionHandler for Echo {
    fn handle_input(&mut self, _now: Timestamp, input: &[u8]) {
        if input == b"tls" {
            self.wants = true;
            self.output.extend(b"go");
        } else {
            self.closes = input == b"end";
            self.output.extend(input);
        }
    }

    fn handle_disconnect(&mut self, _now: Timestamp) {
        self.ended = true;
    }

    fn handle_timeout(&mut self, _now: Timestamp) {}

    fn handle_stop(&mut self, _now: Timestamp) {
        self.stopped = true;
    }

    async fn work(&mut self) {}

    fn output(&self) -> OutputPiece<'_> {
        OutputPiece::Bytes(&self.output)
    }

    fn handle_sent(&mut self, count: usize) {
        self.output.drain(..count);
    }

    fn deadline(&self) -> Option<Timestamp> {
        Some(net::steady_now() + PATIENCE)
    }

    fn wants_close(&self) -> bool {
        self.closes
    }

    fn wants_handshake(&self) -> Option<Arc<TlsServer>> {
        self.wants.then(|| self.acceptor.clone())
    }

    fn handle_tls_established(&mut self, _now: Timestamp, security: TlsInfo) {
        (self.wants, self.secured) = (false, Some(security));
    }

    fn handle_handshake_failed(&mut self, _now: Timestamp, error: &io::Error) {
        self.error = Some(error.to_string());
    }
}

fn echo(folder: &TempDir, handshake_time_max: Duration) -> Echo {
    let files = vec![issue(folder.path(), "a", &["mx.example.org"], |_| {})];
    let tls_server = Arc::new(TlsServer::new(files, TlsVersion::V1_2, handshake_time_max).unwrap());
    Echo {
        acceptor: tls_server,
        output: Vec::new(),
        wants: false,
        secured: None,
        error: None,
        closes: false,
        ended: false,
        stopped: false,
    }
}

/// Sends "tls", then runs `client` on the connection while the server side is driven.
async fn with_echo<F: Future<Output = ()>>(echo: &mut Echo, client: impl FnOnce(TcpStream) -> F) {
    let (mut ours, theirs) = pair().await;
    let (_stopper, stop) = StopSender::new();
    let client = async {
        ours.write_all(b"tls").await.unwrap();
        let mut go = [0; 2];
        ours.read_exact(&mut go).await.unwrap();
        client(ours).await;
    };
    let both = async { tokio::join!(net::drive_connection(theirs.into(), stop, echo), client) };
    tokio::time::timeout(PATIENCE, both).await.unwrap();
}

#[tokio::test]
async fn a_conversation_continues_over_tls_with_large_data() {
    let folder = TempDir::new().unwrap();
    let mut echo = echo(&folder, PATIENCE);
    with_echo(&mut echo, async |socket| {
        let name = ServerName::try_from("mx.example.org").unwrap();
        let stream = connector(rustls::ALL_VERSIONS).connect(name, socket).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let text: Vec<u8> = (0..8_000_000_u32).map(|n| b'a' + (n / 7 % 26) as u8).collect();
        let mut back = vec![0; text.len()];
        let write = async {
            writer.write_all(&text).await.unwrap();
            writer.flush().await.unwrap();
        };
        tokio::join!(write, async { reader.read_exact(&mut back).await.unwrap() });
        assert!(back == text);
        writer.write_all(b"end").await.unwrap();
        writer.flush().await.unwrap();
        let mut rest = Vec::new();
        // Without the server's close_notify, this would be an error.
        reader.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"end");
    })
    .await;
    assert!(echo.secured.is_some() && echo.error.is_none());
}

#[tokio::test]
async fn a_handshake_that_fails_is_the_end() {
    let folder = TempDir::new().unwrap();
    let mut echo = echo(&folder, PATIENCE);
    with_echo(&mut echo, async |mut socket| {
        socket.write_all(b"EHLO client.example\r\n").await.unwrap();
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest).await;
        assert!(!rest.windows(4).any(|four| four == b"EHLO"), "clear text was processed");
    })
    .await;
    assert!(echo.ended && echo.secured.is_none());
    assert!(echo.error.unwrap().contains("corrupt message"));
}

#[tokio::test]
async fn a_handshake_has_a_time_limit() {
    let folder = TempDir::new().unwrap();
    let mut echo = echo(&folder, Duration::from_millis(50));
    with_echo(&mut echo, async |mut socket| {
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest).await;
    })
    .await;
    assert!(echo.ended);
    assert_eq!(echo.error.as_deref(), Some("handshake timed out after 50ms"));
}

#[tokio::test]
async fn a_stop_ends_a_handshake() {
    let folder = TempDir::new().unwrap();
    let mut echo = echo(&folder, PATIENCE);
    let (mut ours, theirs) = pair().await;
    let (stopper, stop) = StopSender::new();
    let client = async {
        ours.write_all(b"tls").await.unwrap();
        let mut go = [0; 2];
        ours.read_exact(&mut go).await.unwrap();
        stopper.stop();
        let mut rest = Vec::new();
        let _ = ours.read_to_end(&mut rest).await;
    };
    let both = async { tokio::join!(net::drive_connection(theirs.into(), stop, &mut echo), client) };
    tokio::time::timeout(PATIENCE / 2, both).await.unwrap();
    assert!(echo.stopped && echo.ended);
    assert_eq!(echo.error, None, "the handshake was reported as failed");
}

#[tokio::test]
async fn a_client_that_closes_first_gets_a_close_notify_too() {
    let folder = TempDir::new().unwrap();
    let mut echo = echo(&folder, PATIENCE);
    with_echo(&mut echo, async |socket| {
        let name = ServerName::try_from("mx.example.org").unwrap();
        let mut stream = connector(rustls::ALL_VERSIONS).connect(name, socket).await.unwrap();
        stream.write_all(b"last").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        // Without the server's close_notify this would be an error.
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"last");
    })
    .await;
    assert!(echo.ended);
}
