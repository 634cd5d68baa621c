//! Which servers a client accepts, by a trusted authority and by TLSA records: the handshakes are
//! real, and each client meets a server with a chain that is right or wrong in one way.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mail::{DanePolicy, DaneRecord};
use net::{OutboundConnection, TlsClient, TrustedRoots, TrustedRootsError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256, Sha512};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

/// Longer than any step of these tests.
const PATIENCE: Duration = Duration::from_secs(20);
const HOST: &str = "mx.example.org";

type Authority = CertifiedIssuer<'static, KeyPair>;

/// What a server presents.
#[derive(Clone)]
struct Presented {
    /// The certificate of the server, and those above it.
    chain: Vec<CertificateDer<'static>>,
    key: Arc<KeyPair>,
}

fn authority(name: &str) -> Authority {
    CertifiedIssuer::self_signed(authority_params(name), KeyPair::generate().unwrap()).unwrap()
}

fn authority_below(name: &str, above: &Authority) -> Authority {
    CertifiedIssuer::signed_by(authority_params(name), KeyPair::generate().unwrap(), above).unwrap()
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// A certificate for these names by the first authority; all of them are in the chain.
fn issue(names: &[&str], chain: &[&Authority], change: impl FnOnce(&mut CertificateParams)) -> Presented {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let own = match chain.first() {
        Some(issuer) => params.signed_by(&key, issuer).unwrap(),
        None => params.self_signed(&key).unwrap(),
    };
    let above = chain.iter().map(|authority| authority.der().clone());
    Presented { chain: std::iter::once(own.der().clone()).chain(above).collect(), key: Arc::new(key) }
}

/// The error of the handshake, and after it what reports call it; None if the client accepts the server.
async fn refusal(client: &TlsClient, presented: &Presented, name: &str) -> Option<String> {
    let key = PrivateKeyDer::try_from(presented.key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(presented.chain.clone(), key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        // The client may refuse.
        drop(acceptor.accept(stream).await);
    });
    let deadline = Instant::now() + PATIENCE;
    let outbound = OutboundConnection::connect(address, None, deadline).await.unwrap();
    let result = outbound.start_tls(client, name, deadline).await;
    server.await.unwrap();
    result.err().map(|error| format!("{error}: {}", net::tls_failure(&error).as_str()))
}

/// The roots in a file of these authorities, which lasts as long as the folder.
fn roots(folder: &TempDir, authorities: &[&Authority]) -> TrustedRoots {
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, authorities.iter().map(|authority| authority.pem()).collect::<String>()).unwrap();
    TrustedRoots::in_file(&file)
}

async fn verified(roots: &TrustedRoots, names: &[&str]) -> TlsClient {
    TlsClient::verified(roots, names.iter().map(|&name| name.into()).collect()).await.unwrap()
}

#[tokio::test]
async fn a_trusted_authority_and_one_of_the_names_are_needed() {
    let folder = TempDir::new().unwrap();
    let (root, stranger) = (authority("root"), authority("stranger"));
    let middle = authority_below("middle", &root);
    let roots = roots(&folder, &[&root]);
    let client = verified(&roots, &["example.org", HOST]).await;
    let right = issue(&[HOST], &[&middle, &root], |_| {});
    let expired = issue(&[HOST], &[&middle], |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    let early = issue(&[HOST], &[&middle], |params| params.not_before = date_time_ymd(2200, 1, 1));
    let without_middle = Presented { chain: right.chain[..1].to_vec(), ..right.clone() };
    let only_common_name = issue(&[], &[&middle], |params| params.distinguished_name.push(DnType::CommonName, HOST));
    for (presented, error) in [
        (right, None),
        (issue(&["*.example.org"], &[&middle], |_| {}), None),
        (issue(&["a.example", "example.org"], &[&middle], |_| {}), None),
        (issue(&["other.example.org"], &[&middle], |_| {}), Some(("not valid for name", "certificate-host-mismatch"))),
        (issue(&["*.org"], &[&middle], |_| {}), Some(("not valid for name", "certificate-host-mismatch"))),
        (only_common_name, Some(("not valid for name", "certificate-host-mismatch"))),
        (expired, Some(("expired", "certificate-expired"))),
        (early, Some(("not valid yet", "certificate-expired"))),
        (without_middle, Some(("UnknownIssuer", "certificate-not-trusted"))),
        (issue(&[HOST], &[&stranger], |_| {}), Some(("UnknownIssuer", "certificate-not-trusted"))),
        (issue(&[HOST], &[], |_| {}), Some(("UnknownIssuer", "certificate-not-trusted"))),
    ] {
        let refusal = refusal(&client, &presented, HOST).await;
        let is_expected = match (&refusal, error) {
            (Some(refusal), Some((error, result_type))) => refusal.contains(error) && refusal.ends_with(result_type),
            (refusal, error) => refusal.is_none() && error.is_none(),
        };
        assert!(is_expected, "{refusal:?} instead of {error:?}");
    }
}

/// The error goes into the queue with each message.
#[tokio::test]
async fn a_certificate_with_many_names_has_a_short_error() {
    let folder = TempDir::new().unwrap();
    let root = authority("root");
    let roots = roots(&folder, &[&root]);
    let names: Vec<String> = (0..1000).map(|number| format!("host{number}.example")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let refused = refusal(&verified(&roots, &[HOST]).await, &issue(&names, &[&root], |_| {}), HOST).await.unwrap();
    assert!(refused.contains("not valid for name") && refused.len() < 500, "{refused}");
}

#[tokio::test]
async fn an_address_can_be_a_name_and_no_name_matches_nothing() {
    let folder = TempDir::new().unwrap();
    let root = authority("root");
    let roots = roots(&folder, &[&root]);
    let presented = issue(&["192.0.2.1", HOST], &[&root], |_| {});
    assert_eq!(refusal(&verified(&roots, &["192.0.2.1"]).await, &presented, "192.0.2.1").await, None);
    assert!(refusal(&verified(&roots, &["192.0.2.2"]).await, &presented, "192.0.2.1").await.is_some());
    assert!(refusal(&verified(&roots, &[]).await, &presented, HOST).await.is_some());
    assert!(refusal(&verified(&roots, &["not a name"]).await, &presented, HOST).await.is_some());
}

#[tokio::test]
async fn a_client_that_verifies_nobody_accepts_them_all() {
    let expired = issue(&["other.example"], &[], |params| params.not_after = date_time_ymd(2001, 1, 1));
    assert_eq!(refusal(&TlsClient::unverified(), &expired, HOST).await, None);
}

#[test]
fn a_file_without_certificates_trusts_nobody_and_says_why() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("ca.pem");
    let why = |file: &PathBuf| match TrustedRoots::in_file(file).load() {
        Err(TrustedRootsError::File { why, .. }) => why.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(!why(&file).is_empty());
    std::fs::write(&file, "nothing").unwrap();
    assert_eq!(why(&file), "it contains no certificate");
    let half = authority("root").pem().replace("MII", "MI");
    std::fs::write(&file, half).unwrap();
    assert!(!why(&file).is_empty());
}

/// The public key in a certificate, with its algorithm.
fn public_key(presented: &Presented) -> Vec<u8> {
    use rcgen::PublicKeyData;
    presented.key.subject_public_key_info()
}

fn record(usage: u8, selector: u8, matching: u8, data: &[u8]) -> DaneRecord {
    DaneRecord::new(usage, selector, matching, data).unwrap()
}

fn dane(records: Vec<DaneRecord>) -> TlsClient {
    let names = vec![HOST.into(), "example.org".into()];
    TlsClient::dane(Arc::new(DanePolicy { records, base_domain: HOST.into(), names }))
}

#[tokio::test]
async fn dane_ee_is_the_certificate_whatever_its_names_and_dates() {
    let expired = issue(&["other.example"], &[], |params| params.not_after = date_time_ymd(2001, 1, 1));
    let other = issue(&[HOST], &[], |_| {});
    let (certificate, key) = (expired.chain[0].to_vec(), public_key(&expired));
    for right in [
        record(3, 0, 0, &certificate),
        record(3, 0, 1, &Sha256::digest(&certificate)),
        record(3, 0, 2, &Sha512::digest(&certificate)),
        record(3, 1, 0, &key),
        record(3, 1, 1, &Sha256::digest(&key)),
        record(3, 1, 2, &Sha512::digest(&key)),
    ] {
        let client = dane(vec![record(3, 1, 1, &[0; 32]), right.clone()]);
        assert_eq!(refusal(&client, &expired, HOST).await, None, "{right:?}");
        let refused = refusal(&client, &other, HOST).await;
        assert!(refused.as_ref().is_some_and(|why| why.contains("matches no TLSA record")), "{refused:?}");
    }
    for wrong in [
        record(3, 1, 1, &Sha256::digest(&certificate)),
        record(3, 0, 1, &Sha256::digest(&key)),
        record(3, 0, 0, &certificate[..certificate.len() - 1]),
        record(3, 1, 1, &[0; 32]),
        record(2, 1, 1, &Sha256::digest(&key)),
    ] {
        assert!(refusal(&dane(vec![wrong.clone()]), &expired, HOST).await.is_some(), "{wrong:?}");
    }
}

/// The certificate that a record names must be that of the server, not another one in its chain.
#[tokio::test]
async fn dane_ee_does_not_look_at_the_rest_of_the_chain() {
    let (honest, attacker) = (issue(&[HOST], &[], |_| {}), issue(&[HOST], &[], |_| {}));
    let mixed = Presented { chain: vec![attacker.chain[0].clone(), honest.chain[0].clone()], ..attacker.clone() };
    let client = dane(vec![record(3, 1, 1, &Sha256::digest(public_key(&honest)))]);
    assert_eq!(refusal(&client, &honest, HOST).await, None);
    assert!(refusal(&client, &mixed, HOST).await.is_some());
}

#[tokio::test]
async fn dane_ta_is_an_authority_in_the_chain_that_vouches_for_a_name() {
    let root = authority("root");
    let middle = authority_below("middle", &root);
    let right = issue(&[HOST], &[&middle, &root], |_| {});
    for anchor in [&middle, &root] {
        let certificate = anchor.der().to_vec();
        for right_record in [
            record(2, 0, 0, &certificate),
            record(2, 0, 1, &Sha256::digest(&certificate)),
            record(2, 0, 2, &Sha512::digest(&certificate)),
        ] {
            assert_eq!(refusal(&dane(vec![right_record.clone()]), &right, HOST).await, None, "{right_record:?}");
        }
    }
    let client = dane(vec![record(2, 0, 1, &Sha256::digest(root.der()))]);
    let by_domain = issue(&["example.org"], &[&middle, &root], |_| {});
    assert_eq!(refusal(&client, &by_domain, HOST).await, None);
    let expired = issue(&[HOST], &[&middle, &root], |params| params.not_after = date_time_ymd(2001, 1, 1));
    let without_root = Presented { chain: right.chain[..2].to_vec(), ..right.clone() };
    for (presented, error) in [
        (issue(&["other.example"], &[&middle, &root], |_| {}), "not valid for name"),
        (expired, "expired"),
        (without_root, "matches no TLSA record"),
        (issue(&[HOST], &[&authority("stranger")], |_| {}), "matches no TLSA record"),
    ] {
        let refused = refusal(&client, &presented, HOST).await;
        assert!(refused.as_ref().is_some_and(|why| why.contains(error)), "{refused:?} instead of {error}");
    }
}

/// An authority is above the server, so a certificate that signed itself is none.
#[tokio::test]
async fn dane_ta_is_not_the_certificate_of_the_server() {
    let own = issue(&[HOST], &[], |_| {});
    let client =
        dane(vec![record(2, 0, 1, &Sha256::digest(&own.chain[0])), record(2, 1, 1, &Sha256::digest(public_key(&own)))]);
    let refused = refusal(&client, &own, HOST).await;
    assert!(refused.as_ref().is_some_and(|why| why.contains("matches no TLSA record")), "{refused:?}");
}

/// A chain may contain any certificate, but the authority must have signed.
#[tokio::test]
async fn dane_ta_is_not_met_by_an_authority_that_is_only_shown() {
    let (root, attacker) = (authority("root"), authority("attacker"));
    let mut forged = issue(&[HOST], &[&attacker], |_| {});
    forged.chain.push(root.der().clone());
    let client = dane(vec![record(2, 0, 1, &Sha256::digest(root.der()))]);
    let refused = refusal(&client, &forged, HOST).await;
    assert!(refused.as_ref().is_some_and(|why| why.contains("UnknownIssuer")), "{refused:?}");
}

/// A hostile server shows many authorities of one name, of which its own zone has as many records: the
/// work for one chain was once done for each of them.
#[test]
fn many_authorities_take_as_long_as_one() {
    let authorities: Vec<Authority> = (0..60).map(|_| authority("decoy")).collect();
    let mut presented = issue(&[HOST], &[&authority("decoy")], |_| {});
    presented.chain.truncate(1);
    presented.chain.extend(authorities.iter().map(|authority| authority.der().clone()));
    let chain: Vec<&[u8]> = presented.chain.iter().map(AsRef::as_ref).collect();
    let verify = |count: usize| {
        let records = authorities[..count].iter().map(|anchor| record(2, 0, 1, &Sha256::digest(anchor.der())));
        let policy = DanePolicy { records: records.collect(), base_domain: HOST.into(), names: vec![HOST.into()] };
        let start = std::time::Instant::now();
        assert!(!net::meets_dane_policy(&policy, &chain, std::time::SystemTime::now()));
        start.elapsed()
    };
    let least = |count: usize| (0..3).map(|_| verify(count)).min().unwrap();
    let (one, all) = (least(1), least(authorities.len()));
    assert!(all < one * 25, "{one:?} for one record, {all:?} for {}", authorities.len());
}
