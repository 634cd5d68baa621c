//! The cost of a TLS handshake for the server, without a network: both ends run in one thread and
//! exchange bytes in memory; only the server's time is measured. Prints the median of full and
//! resumed handshakes for each cipher suite, with an ECDSA P-256 certificate. Run it with
//! `--release`. A real session adds system calls and the encryption of its data.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use rustls::{SignatureAlgorithm, SupportedCipherSuite};

const ROUNDS: usize = 2000;

type Configurations = (Arc<ServerConfig>, Arc<ClientConfig>);

fn main() -> Result<(), Box<dyn Error>> {
    let certified = rcgen::generate_simple_self_signed(["mx.example".to_owned()])?;
    let suites = aws_lc_rs::default_provider().cipher_suites.into_iter();
    for suite in suites.filter(|suite| suite.usable_for_signature_algorithm(SignatureAlgorithm::ECDSA)) {
        for resumes in [false, true] {
            let (server, client) = configurations(suite, &certified, resumes)?;
            handshake(&server, &client)?; // A client's first handshake is full.
            let mut spent = (0..ROUNDS).map(|_| handshake(&server, &client)).collect::<Result<Vec<_>, _>>()?;
            spent.sort_unstable();
            let median = spent[spent.len() / 2].as_secs_f64() * 1e6;
            let kind = if resumes { "resumed" } else { "full" };
            println!("{:<48} {kind:<8} {median:>6.1} us", format!("{:?}", suite.suite()));
        }
    }
    Ok(())
}

/// The configurations of both ends for one cipher suite.
fn configurations(
    suite: SupportedCipherSuite,
    certified: &rcgen::CertifiedKey<rcgen::KeyPair>,
    resumes: bool,
) -> Result<Configurations, Box<dyn Error>> {
    let provider = Arc::new(CryptoProvider { cipher_suites: vec![suite], ..aws_lc_rs::default_provider() });
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der())?;
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[suite.version()])?
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)?;
    server.ticketer = aws_lc_rs::Ticketer::new()?;
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone())?;
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[suite.version()])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    if !resumes {
        client.resumption = rustls::client::Resumption::disabled();
    }
    Ok((Arc::new(server), Arc::new(client)))
}

/// Performs one handshake, including tickets; returns the server's time.
fn handshake(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>) -> Result<Duration, Box<dyn Error>> {
    let mut client = ClientConnection::new(client.clone(), ServerName::try_from("mx.example")?)?;
    let begun = Instant::now();
    let mut server = ServerConnection::new(server.clone())?;
    let mut spent = begun.elapsed();
    let mut flight = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut flight)?;
        let begun = Instant::now();
        let mut rest = flight.as_slice();
        while !rest.is_empty() {
            server.read_tls(&mut rest)?;
            server.process_new_packets()?;
        }
        flight.clear();
        while server.wants_write() {
            server.write_tls(&mut flight)?;
        }
        spent += begun.elapsed();
        let mut rest = flight.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest)?;
            client.process_new_packets()?;
        }
        flight.clear();
    }
    Ok(spent)
}
