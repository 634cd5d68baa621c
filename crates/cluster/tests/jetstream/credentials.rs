//! Users by a file of nsc: a JWT and the seed of an NKey, with a server in operator mode. Its operator, accounts and
//! users are made here.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use cluster::{ClusterConfig, Connection};
use mail::SpoolId;
use nkeys::KeyPair;
use serde_json::{Value, json};
use spool::LaneId;
use tempfile::TempDir;

use crate::nodes::{TestNode, WAIT_MAX, folder};
use crate::servers::NatsServers;

const HOUR: Duration = Duration::from_secs(3600);
/// Longer than a node takes to start on a busy machine.
const LIFETIME: Duration = Duration::from_secs(15);

/// The keys of an operator and of an account with JetStream, in the memory of the server.
struct Operator {
    folder: TempDir,
    operator: KeyPair,
    account: KeyPair,
}

impl Operator {
    fn new() -> Operator {
        let folder = tempfile::tempdir().unwrap();
        Operator { folder, operator: KeyPair::new_operator(), account: KeyPair::new_account() }
    }

    /// What the server is told. It needs an account of its own for what it reports.
    fn security(&self) -> String {
        let system = KeyPair::new_account();
        let (of_system, of_account) = (system.public_key(), self.account.public_key());
        let operator = jwt(&self.operator, &self.operator, json!({"type": "operator", "version": 2}), None);
        let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": -1});
        let mut limits_of_account = limits.clone();
        for key in ["mem_storage", "disk_storage", "streams", "consumer"] {
            limits_of_account[key] = json!(-1);
        }
        let account = |limits: Value| json!({"type": "account", "version": 2, "limits": limits});
        let system = jwt(&self.operator, &system, account(limits), None);
        let account = jwt(&self.operator, &self.account, account(limits_of_account), None);
        format!(
            "operator: {operator}\nsystem_account: {of_system}\nresolver: MEMORY\n\
            resolver_preload: {{ {of_system}: {system}, {of_account}: {account} }}\n"
        )
    }

    /// A file as nsc writes it.
    fn file(&self, name: &str, user: &KeyPair, seed_of: &KeyPair, expires: Option<Duration>) -> PathBuf {
        let claims = json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1});
        let jwt = jwt(&self.account, user, claims, expires);
        let seed = seed_of.seed().unwrap();
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
            ************************* IMPORTANT *************************\n\
            NKEY Seed printed below can be used to sign and prove identity.\n\n\
            -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// A JWT of NATS about `subject`, signed by `issuer`; it expires at a time since 1970.
fn jwt(issuer: &KeyPair, subject: &KeyPair, nats: Value, expires: Option<Duration>) -> String {
    let mut claims = json!({"jti": subject.public_key(), "iat": 0, "iss": issuer.public_key(), "name": "test",
        "sub": subject.public_key(), "nats": nats});
    if let Some(expires) = expires {
        claims["exp"] = json!(expires.as_secs());
    }
    let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let header = encode(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let signed = format!("{header}.{}", encode(claims.to_string().as_bytes()));
    let signature = encode(&issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

/// Why a node cannot connect with this file.
async fn refusal(servers: &NatsServers, file: &Path) -> String {
    let config = ClusterConfig { credentials_file: Some(file.to_owned()), ..servers.config("a") };
    Connection::open(&config).await.err().unwrap().to_string()
}

#[tokio::test]
async fn a_user_with_a_jwt_is_let_in_and_errors_say_what_is_wrong_with_a_file() {
    let (operator, user, other) = (Operator::new(), KeyPair::new_user(), KeyPair::new_user());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let valid = operator.file("valid.creds", &user, &user, Some(now + HOUR));
    let servers = NatsServers::start_secured(1, &operator.security(), Some(&valid)).await;
    let lane = LaneId { spool: SpoolId::new(0xabc), number: 3 };
    servers.connect("a").await.lane_stream(lane).ensure().await.unwrap();

    let other_seed = operator.file("seed.creds", &user, &other, Some(now + HOUR));
    let error = refusal(&servers, &other_seed).await;
    let expected = "its seed is not that of the user whose JWT it has: write it anew with nsc";
    assert_eq!(error, format!("cannot use the credentials in {}: {expected}", other_seed.display()));

    let expired = operator.file("expired.creds", &user, &user, Some(now - HOUR));
    let file = expired.display();
    let expected =
        format!("the NATS servers refuse this node: the user JWT in {file} has expired; make a new one with nsc");
    assert_eq!(refusal(&servers, &expired).await, expected);

    // Of an account that the server does not know.
    let stranger = Operator::new();
    let foreign = stranger.file("foreign.creds", &user, &user, None);
    let error = refusal(&servers, &foreign).await;
    assert!(error.contains("check `cluster.credentials_file`"), "{error}");
}

/// The node went on without a word, each client got a 451, and only a new process read the new file.
#[test]
fn a_node_whose_jwt_expires_while_it_runs_says_so_and_takes_a_new_one() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (operator, user) = (Operator::new(), KeyPair::new_user());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let valid = operator.file("valid.creds", &user, &user, Some(now + HOUR));
    let servers = runtime.block_on(NatsServers::start_secured(1, &operator.security(), Some(&valid)));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let file = operator.file("short.creds", &user, &user, Some(now + LIFETIME));
    let config = ClusterConfig { credentials_file: Some(file), ..servers.config("first") };
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let on_log = Box::new(move |line: &str| tell.lock().unwrap().send(line.to_owned()).unwrap_or_default());
    let home = tempfile::tempdir().unwrap();
    let node = TestNode::start_with(config, &folder(&home, "first"), on_log);
    node.accept(100);
    let mut lines = std::iter::from_fn(|| told.recv_timeout(WAIT_MAX).ok());
    assert!(lines.any(|line| line.starts_with("no NATS server is connected") && line.contains("has expired")));
    operator.file("short.creds", &user, &user, Some(now + HOUR));
    assert!(lines.any(|line| line.starts_with("a NATS server is connected again")));
    node.end();
}
