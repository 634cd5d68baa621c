//! Policies fetched by HTTPS from good and hostile hosts, and what becomes of the policy that was
//! known before.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::future::Future;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dns::{QueryConfig, Resolver, ResolverConfig};
use mail::{OperatorLog, TlsFailure};
use mta_sts::{FETCHES_PER_NETWORK_MAX, FetchConfig, PolicyCache, PolicyMode, StsLookup};
use net::TrustedRoots;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use sim_dns::TestNameServer;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const POLICY: &str = "version: STSv1\r\nmode: enforce\r\nmx: mx.d.example\r\nmax_age: 86400\r\n";
const ZONE: &str = "_mta-sts.d.example 300 TXT v=STSv1; id=1;
    mta-sts.d.example 300 A 127.0.0.1";

/// A policy host, a name server, and an empty folder.
struct Setting {
    folder: TempDir,
    requests: Arc<AtomicUsize>,
    port: u16,
    zone: TestNameServer,
    resolver: Arc<Resolver>,
    log: Lines,
}

/// The lines of the log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl OperatorLog for Lines {
    fn log_line(&self, line: std::fmt::Arguments<'_>) {
        self.0.lock().unwrap().push(line.to_string());
    }
}

impl Setting {
    /// The policy host has a certificate with these changes, and treats each connection so.
    async fn with<F: Future<Output = ()> + Send + 'static>(
        change: impl FnOnce(&mut CertificateParams),
        treat: impl Fn(TlsStream<TcpStream>) -> F + Send + 'static,
    ) -> Setting {
        let folder = TempDir::new().unwrap();
        let mut params = CertificateParams::new(vec!["mta-sts.d.example".to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (port, requests) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let counter = requests.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                if let Ok(stream) = acceptor.accept(stream).await {
                    tokio::spawn(treat(stream));
                }
            }
        });
        let zone = TestNameServer::serve(ZONE).await;
        let resolver = Arc::new(resolver(&zone));
        Setting { folder, requests, port, zone, resolver, log: Lines::default() }
    }

    /// The policy host sends this to each request, and closes the connection.
    async fn replying(reply: impl AsRef<[u8]>) -> Setting {
        let reply: Arc<[u8]> = reply.as_ref().into();
        Setting::with(|_| {}, move |stream| send(stream, reply.clone())).await
    }

    fn cache(&self) -> Arc<PolicyCache> {
        self.cache_with(Duration::from_secs(10))
    }

    fn cache_with(&self, time_max: Duration) -> Arc<PolicyCache> {
        let roots = TrustedRoots::in_file(&self.folder.path().join("ca.pem"));
        let config = FetchConfig { roots, port: self.port, time_max, turn_time_max: Duration::from_millis(100) };
        Arc::new(PolicyCache::new(&self.policies(), config, Arc::new(self.log.clone())))
    }

    fn policies(&self) -> std::path::PathBuf {
        self.folder.path().join("policies")
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    async fn lookup(&self, cache: &Arc<PolicyCache>) -> StsLookup {
        cache.policy(&self.resolver, "d.example").await
    }
}

fn resolver(zone: &TestNameServer) -> Resolver {
    let query = QueryConfig { servers: vec![zone.address], attempts: 1, ..QueryConfig::default() };
    Resolver::new(&ResolverConfig { query, ..ResolverConfig::default() }).unwrap()
}

/// Reads the request, sends the reply and closes the connection.
async fn send(mut stream: TlsStream<TcpStream>, reply: Arc<[u8]>) {
    read_request(&mut stream).await;
    // The client may have seen enough.
    let _ = stream.write_all(&reply).await;
    let _ = stream.shutdown().await;
}

async fn read_request(stream: &mut TlsStream<TcpStream>) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(request).unwrap()
}

fn reply_with(fields: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\n{body}")
}

#[tokio::test]
async fn a_policy_is_fetched_once_and_is_there_after_a_restart() {
    let (sender, mut requests) = tokio::sync::mpsc::unbounded_channel();
    let setting = Setting::with(|_| {}, move |mut stream| {
        let sender = sender.clone();
        async move {
            sender.send(read_request(&mut stream).await).unwrap();
            let chunked = format!("content-type: text/plain; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{POLICY}\r\n0\r\n\r\n", POLICY.len());
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{chunked}").as_bytes()).await.unwrap();
            // The connection stays open.
            let _ = stream.read_u8().await;
        }
    })
    .await;
    let cache = setting.cache();
    for _ in 0..3 {
        let found = setting.lookup(&cache).await;
        let (policy, problem) = (found.policy.unwrap(), found.problem);
        assert_eq!(
            (policy.policy.mode, policy.policy.names("mx.d.example"), problem),
            (PolicyMode::Enforce, true, None)
        );
        assert!(found.expires_at.is_some());
    }
    let request = requests.recv().await.unwrap();
    assert!(request.starts_with("GET /.well-known/mta-sts.txt HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("host: mta-sts.d.example\r\n"), "{request}");
    assert!(setting.lookup(&setting.cache()).await.policy.is_some());
    assert_eq!(setting.requests(), 1);
}

#[tokio::test]
async fn concurrent_lookups_share_one_fetch() {
    let setting = Setting::replying(reply_with("content-type: text/plain\r\n", POLICY)).await;
    let cache = setting.cache();
    let lookups = (0..50).map(|_| {
        let (cache, resolver) = (cache.clone(), setting.resolver.clone());
        tokio::spawn(async move { cache.policy(&resolver, "d.example").await })
    });
    for lookup in lookups.collect::<Vec<_>>() {
        assert!(lookup.await.unwrap().policy.is_some());
    }
    assert_eq!(setting.requests(), 1);
}

#[tokio::test]
async fn a_domain_without_a_record_is_not_asked_for_a_policy() {
    let setting = Setting::replying("").await;
    let found = setting.cache().policy(&setting.resolver, "other.example").await;
    assert!(found.policy.is_none() && found.problem.is_none() && found.expires_at.is_none());
    assert_eq!((setting.requests(), setting.zone.query_count_total()), (0, 1));
}

#[tokio::test]
async fn replies_that_are_not_a_policy_count_as_none_and_are_not_asked_for_again() {
    let plain = "content-type: text/plain\r\n";
    let endless_head = format!("HTTP/1.1 200 OK\r\n{}", "x-filler: 0123456789\r\n".repeat(10_000));
    let many_fields = reply_with(&(plain.to_owned() + &"x: y\r\n".repeat(200)), POLICY);
    let large = reply_with(plain, &(POLICY.to_owned() + &"x: y\r\n".repeat(20_000)));
    let large_announced = reply_with(&format!("{plain}content-length: 10000000\r\n"), POLICY);
    for (reply, why) in [
        (reply_with("content-type: text/html\r\n", POLICY), "not of type text/plain"),
        (reply_with("", POLICY), "not of type text/plain"),
        ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(), "status 404"),
        (
            "HTTP/1.1 301 Moved\r\nlocation: https://mta-sts.d.example/x\r\ncontent-length: 0\r\n\r\n".to_owned(),
            "status 301",
        ),
        (reply_with(plain, "<html>"), "no colon"),
        (reply_with(plain, ""), "version"),
        (large, "larger than 65536"),
        (large_announced, "larger than 65536"),
        (endless_head, "HTTP"),
        (many_fields, "HTTP"),
        ("SSH-2.0-OpenSSH_9.2\r\n".to_owned(), "HTTP"),
        (String::new(), "HTTP"),
        (reply_with(&format!("{plain}content-length: 999\r\n"), POLICY), "HTTP"),
    ] {
        let setting = Setting::replying(&reply).await;
        let cache = setting.cache();
        for _ in 0..2 {
            let found = setting.lookup(&cache).await;
            let problem = found.problem.unwrap_or_default();
            assert!(found.policy.is_none() && problem.contains(why), "{problem} instead of {why}");
        }
        assert_eq!(setting.requests(), 1, "{why}");
        let lines = setting.log.0.lock().unwrap().clone();
        assert!(
            lines.len() == 1 && lines[0].starts_with("cannot fetch the MTA-STS policy of d.example: "),
            "{lines:?}"
        );
        assert!(!setting.policies().exists());
    }
}

/// An attacker who makes one lookup or fetch fail must not gain more time than that failure lasts.
#[tokio::test]
async fn what_a_failure_decides_expires_with_it() {
    let setting = Setting::replying("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n").await;
    let zone = TestNameServer::serve(
        "_mta-sts.d.example 3000 TXT v=STSv1; id=1;
        mta-sts.d.example 3000 A 127.0.0.1
        _mta-sts.broken.example ! SERVFAIL",
    )
    .await;
    let (cache, resolver) = (setting.cache(), Arc::new(resolver(&zone)));
    for (domain, seconds_max) in [("d.example", 300), ("d.example", 300), ("broken.example", 60)] {
        let found = cache.policy(&resolver, domain).await;
        let left = found.expires_at.unwrap().saturating_duration_since(std::time::Instant::now());
        assert!(left <= Duration::from_secs(seconds_max), "{domain}: {left:?}");
    }
    assert_eq!(setting.requests(), 1);
}

#[tokio::test]
async fn slow_hosts_of_one_network_leave_turns_to_others() {
    let setting = Setting::replying(reply_with("content-type: text/plain\r\n", POLICY)).await;
    let silent = TcpListener::bind((Ipv4Addr::new(127, 0, 9, 1), setting.port)).await.unwrap();
    let accepted = Arc::new(Mutex::new(Vec::new()));
    let streams = accepted.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = silent.accept().await {
            streams.lock().unwrap().push(stream);
        }
    });
    let slow = (0..100).map(|number| {
        format!("_mta-sts.s{number}.example 300 TXT v=STSv1; id=1;\nmta-sts.s{number}.example 300 A 127.0.9.1\n")
    });
    let zone = TestNameServer::serve(&(slow.collect::<String>() + ZONE)).await;
    let (cache, resolver) = (setting.cache_with(Duration::from_secs(30)), Arc::new(resolver(&zone)));
    let (sender, mut results) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..100 {
        let (cache, resolver, sender) = (cache.clone(), resolver.clone(), sender.clone());
        tokio::spawn(async move { sender.send(cache.policy(&resolver, &format!("s{number}.example")).await) });
    }
    for _ in 0..100 - FETCHES_PER_NETWORK_MAX {
        let found = results.recv().await.unwrap();
        assert_eq!(found.problem.as_deref(), Some("too many policies are being fetched"));
        let left = found.expires_at.unwrap().saturating_duration_since(std::time::Instant::now());
        assert!(left <= Duration::from_secs(10), "{left:?}");
    }
    assert_eq!(accepted.lock().unwrap().len(), FETCHES_PER_NETWORK_MAX);
    assert!(cache.policy(&resolver, "d.example").await.policy.is_some());
}

#[tokio::test]
async fn a_policy_host_must_prove_its_name() {
    let body: Arc<[u8]> = reply_with("content-type: text/plain\r\n", POLICY).as_bytes().into();
    let expire = |params: &mut CertificateParams| params.not_after = date_time_ymd(2001, 1, 1);
    let rename = |params: &mut CertificateParams| {
        params.subject_alt_names = CertificateParams::new(vec!["d.example".to_owned()]).unwrap().subject_alt_names;
    };
    for (change, why) in [(&expire as &dyn Fn(&mut CertificateParams), "expired"), (&rename, "not valid for name")] {
        let body = body.clone();
        let setting = Setting::with(change, move |stream| send(stream, body.clone())).await;
        let problem = setting.lookup(&setting.cache()).await.problem.unwrap();
        assert!(problem.starts_with("TLS with mta-sts.d.example") && problem.contains(why), "{problem}");
    }
    let body = body.clone();
    let setting = Setting::with(|_| {}, move |stream| send(stream, body.clone())).await;
    let stranger = CertificateParams::new(vec!["x.example".to_owned()]).unwrap();
    let stranger = stranger.self_signed(&KeyPair::generate().unwrap()).unwrap();
    std::fs::write(setting.folder.path().join("ca.pem"), stranger.pem()).unwrap();
    let found = setting.lookup(&setting.cache()).await;
    let problem = found.problem.unwrap();
    assert!(problem.contains("invalid peer certificate"), "{problem}");
    assert_eq!(found.failure, Some(TlsFailure::StsPolicyCertificate));
}

#[tokio::test]
async fn slow_and_silent_policy_hosts_take_no_longer_than_allowed() {
    let time_max = Duration::from_millis(500);
    let slow = Setting::with(
        |_| {},
        |mut stream| async move {
            read_request(&mut stream).await;
            let head = reply_with("content-type: text/plain\r\n", "");
            for byte in head.bytes().chain(std::iter::repeat(b'x')) {
                if stream.write_all(&[byte]).await.is_err() || stream.flush().await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        },
    );
    let silent = Setting::with(|_| {}, |mut stream| async move { while stream.read_u8().await.is_ok() {} });
    for setting in [slow.await, silent.await] {
        let started = std::time::Instant::now();
        let found = setting.lookup(&setting.cache_with(time_max)).await;
        let problem = found.problem.unwrap();
        assert!(problem.contains("took too long"), "{problem}");
        assert_eq!(found.failure, Some(TlsFailure::StsPolicyFetch));
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}

/// Writes a policy as if it had been fetched some hours ago.
fn store(folder: &Path, id: &str, hours: u64, max_age: u64) {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let fetched = now - 3600 * hours;
    let text =
        format!("id: {id}\nfetched: {fetched}\nversion: STSv1\nmode: enforce\nmx: old.d.example\nmax_age: {max_age}\n");
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("d.example"), text).unwrap();
}

#[tokio::test]
async fn a_policy_of_another_id_or_that_has_expired_is_replaced() {
    for (id, hours) in [("0", 1), ("1", 30)] {
        let setting = Setting::replying(reply_with("content-type: text/plain\r\n", POLICY)).await;
        store(&setting.policies(), id, hours, 86_400);
        let found = setting.lookup(&setting.cache()).await.policy.unwrap();
        assert!(found.policy.names("mx.d.example") && *found.id == *"1");
        let stored = std::fs::read_to_string(setting.policies().join("d.example")).unwrap();
        assert!(stored.starts_with("id: 1\n") && stored.contains("mx: mx.d.example"), "{stored}");
    }
}

#[tokio::test]
async fn a_policy_that_cannot_be_replaced_counts_until_it_expires() {
    for (id, hours, counts) in [("0", 1, true), ("0", 30, false), ("1", 30, false)] {
        let setting = Setting::replying("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n").await;
        store(&setting.policies(), id, hours, 86_400);
        let found = setting.lookup(&setting.cache()).await;
        assert_eq!(found.policy.is_some_and(|found| found.policy.names("old.d.example")), counts, "{id} {hours}");
        assert!(found.problem.unwrap().contains("500"));
    }
}

#[tokio::test]
async fn a_policy_that_was_not_fetched_for_a_day_is_fetched_again_without_anyone_waiting() {
    let setting = Setting::replying(reply_with("content-type: text/plain\r\n", POLICY)).await;
    store(&setting.policies(), "1", 30, 1_000_000);
    let cache = setting.cache();
    assert!(setting.lookup(&cache).await.policy.unwrap().policy.names("old.d.example"));
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !setting.lookup(&cache).await.policy.unwrap().policy.names("mx.d.example") {
        assert!(std::time::Instant::now() < deadline, "it was not fetched");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(setting.requests(), 1);
    // The new one may be stored a moment later.
    let stored = setting.policies().join("d.example");
    while !std::fs::read_to_string(&stored).unwrap().contains("mx: mx.d.example") {
        assert!(std::time::Instant::now() < deadline, "it was not stored");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    store(&setting.policies(), "1", 30, 1_000_000);
    setting.cache().refresh_due(&setting.resolver).await;
    assert_eq!(setting.requests(), 2);
    setting.cache().refresh_due(&setting.resolver).await;
    assert_eq!(setting.requests(), 2);
}
