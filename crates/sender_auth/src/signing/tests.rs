//! Keys, signatures by the vectors of RFC 8463, and what the check signs.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use filter::{
    CheckChain, CheckFactory, CheckedMessage, ContentFuture, Edit, MessageCheckError, Origin, SessionInfo, Submitter,
};
use mail::{Address, OperatorLog, Reply};

use super::signer::RelaxedBodyHasher;
use super::*;
use crate::canonical_form::CanonicalForm;
use crate::message_header::{HeaderField, MessageHeader};

/// RFC 8463 appendix A.2.
const SEED: &str = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";

/// RFC 8463 appendix A.3, without the signatures.
const FIELDS: [&str; 5] = [
    "From: Joe SixPack <joe@football.example.com>\r\n",
    "To: Suzie Q <suzie@shopping.example.net>\r\n",
    "Subject: Is dinner ready?\r\n",
    "Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)\r\n",
    "Message-ID: <20030712040037.46341.5F8J@football.example.com>\r\n",
];
const BODY: &str = "Hi.\r\n\r\nWe lost the game.  Are you hungry yet?\r\n\r\nJoe.\r\n";

fn push_field(field: &str, hashed: &mut Vec<u8>) {
    let header = MessageHeader::parse(field.as_bytes().to_vec());
    CanonicalForm::Relaxed.push_field(&header.field(0), hashed);
    hashed.extend_from_slice(b"\r\n");
}

fn ed25519() -> PrivateKey {
    PrivateKey::parse(SEED.as_bytes()).unwrap()
}

#[test]
fn the_signature_of_the_rfc() {
    let mut hasher = RelaxedBodyHasher::default();
    BODY.as_bytes().chunks(3).for_each(|chunk| hasher.update(chunk));
    assert_eq!(BASE64_STANDARD.encode(hasher.finish()), "2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=");
    let mut hashed = Vec::new();
    FIELDS.iter().for_each(|field| push_field(field, &mut hashed));
    let own = "DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed;\r\n d=football.example.com; \
               i=@football.example.com;\r\n q=dns/txt; s=brisbane; t=1528637909; h=from : to :\r\n subject : date : \
               message-id : from : subject : date;\r\n bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;\r\n b=";
    push_field(own, &mut hashed);
    hashed.truncate(hashed.len() - 2);
    let signature = ed25519().sign(&digest(&SHA256, &hashed)).unwrap();
    assert_eq!(
        BASE64_STANDARD.encode(signature),
        "/gCrinpcQOoIfuHNQIbq4pgh9kyIK3AQUdt9OdqQehSwhEIug4D11BusFa3bT3FY5OsU7ZbnKELq+eXdp1Q1Dw=="
    );
}

#[test]
fn keys_are_written_and_read_again() {
    for key in [PrivateKey::generate_rsa(RsaBits::B2048).unwrap(), PrivateKey::generate_ed25519().unwrap()] {
        let pem = key.to_pem().unwrap();
        assert!(pem.lines().all(|line| line.len() <= 64) && pem.ends_with("-----END PRIVATE KEY-----\n"), "{pem}");
        let again = PrivateKey::parse(format!("a remark\n{pem}").as_bytes()).unwrap();
        assert_eq!(again.algorithm(), key.algorithm());
        assert_eq!(again.public_key().unwrap(), key.public_key().unwrap());
    }
}

#[test]
fn files_that_give_no_key_are_told_apart() {
    let fault = |text: &str| PrivateKey::parse(text.as_bytes()).unwrap_err().to_string();
    let pem = |kind: &str, body: &str| format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n");
    for (file, expected) in [
        (String::new(), "no private key found"),
        ("nonsense".into(), "no private key found"),
        (pem("CERTIFICATE", "AAAA"), "no private key found"),
        (pem("ENCRYPTED PRIVATE KEY", "AAAA"), "encrypted"),
        (pem("PRIVATE KEY", "AAAA"), "damaged, or neither"),
        (pem("RSA PRIVATE KEY", "AAAA"), "damaged, or neither"),
        (pem("EC PRIVATE KEY", "AAAA"), "damaged, or neither"),
        (include_str!("../../tests/keys/rsa-1024.pem").into(), "too short; expected at least 2048"),
    ] {
        assert!(fault(&file).contains(expected), "{file}: {}", fault(&file));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    assert!(matches!(PrivateKey::load(&path), Err(KeyError::Unreadable(_))));
    std::fs::write(&path, vec![b'x'; 70_000]).unwrap();
    assert!(matches!(PrivateKey::load(&path), Err(KeyError::FileTooLarge)));
}

/// A message in memory that gives its content in small chunks.
struct TestMessage {
    prefix: Vec<u8>,
    content: Vec<u8>,
    chunk: usize,
}

impl CheckedMessage for TestMessage {
    fn sender(&self) -> Option<&Address> {
        None
    }

    fn recipients(&self) -> Vec<&Address> {
        Vec::new()
    }

    fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    fn content_len(&self) -> u64 {
        self.content.len() as u64
    }

    fn is_eight_bit(&self) -> bool {
        !self.content.is_ascii()
    }

    fn read_content(&mut self, position: u64) -> ContentFuture<'_> {
        let rest = &self.content[(position as usize).min(self.content.len())..];
        Box::pin(ready(Ok(&rest[..rest.len().min(self.chunk)])))
    }

    fn edit(&mut self, edit: Edit) -> Pin<Box<dyn Future<Output = Result<(), Reply>> + Send + '_>> {
        match edit {
            Edit::PrependField(field) => drop(self.prefix.splice(..0, field.wire().bytes())),
            Edit::ReplaceContent(content) => self.content = content,
            _ => panic!("another edit: {edit:?}"),
        }
        Box::pin(ready(Ok(())))
    }
}

struct Silent;

impl OperatorLog for Silent {
    fn log_line(&self, _: std::fmt::Arguments<'_>) {}
}

/// Users may write as their name at football.example.com; no one knows the rights of `lost`.
struct OwnName;

impl AuthorRights for OwnName {
    fn may_use<'a>(&'a self, user: &'a str, address: &'a Address) -> RightsFuture<'a> {
        let known = (user != "lost").then(|| address.local_part() == user);
        Box::pin(ready(known.ok_or_else(|| "no answer".to_owned())))
    }
}

fn chain(keys: Vec<PrivateKey>, submitters: SignedSubmitters) -> CheckChain {
    let keys = keys.into_iter().map(|key| {
        let selector = key.algorithm().key_type().into();
        ("example.com".into(), SigningKey { selector, key: Arc::new(key) })
    });
    let ring = KeyRing::new(keys, None);
    let signer = Signer::start(ring, &SigningThreadsConfig::default(), None, Arc::default()).unwrap();
    let (signer, rights) = (Arc::new(signer), Some(Arc::new(OwnName) as Arc<dyn AuthorRights>));
    let policy = Arc::new(SigningPolicy { signer, submitters, rights, log: Arc::new(Silent) });
    let conversion = Arc::new(SevenBitCheck::new(policy.clone()));
    CheckChain::new(vec![Arc::new(SigningCheck { policy }) as Arc<dyn CheckFactory>, conversion])
}

/// The fields that the check puts before the message.
async fn signatures(
    chain: &CheckChain,
    submitter: Submitter<'_>,
    message: &mut TestMessage,
) -> Result<String, MessageCheckError> {
    let before = message.prefix.len();
    let Some(mut checks) = chain.start(Origin::Client) else { return Ok(String::new()) };
    let session = SessionInfo { submitter, ..SessionInfo::default() };
    checks.message(&session, message).await?;
    Ok(String::from_utf8(message.prefix[..message.prefix.len() - before].to_vec()).unwrap())
}

fn message(header: &str) -> TestMessage {
    let (prefix, content) = (b"Received: by us\r\n".to_vec(), format!("{header}\r\n{BODY}").into_bytes());
    TestMessage { prefix, content, chunk: 7 }
}

/// Verifies as a receiver does: each signature by itself, over the fields that it names.
fn assert_verifies(field: &str, whole: &str, key: &PrivateKey) {
    let (unsigned, signature) = field.split_once(" b=").unwrap();
    let tag = |name: &str| {
        let tags = unsigned.split_once(':').unwrap().1.split(';').map(str::trim);
        let value = tags.filter_map(|tag| tag.split_once('=')).find(|(found, _)| *found == name).unwrap().1;
        value.replace(['\r', '\n', ' '], "")
    };
    let (header, body) = whole.split_once("\r\n\r\n").unwrap();
    let header = MessageHeader::parse(format!("{header}\r\n").into_bytes());
    let mut left: Vec<HeaderField<'_>> = header.fields().map(|(_, field)| field).collect();
    let mut hashed = Vec::new();
    for name in tag("h").split(':') {
        if let Some(place) = left.iter().rposition(|field| field.is_named(name.as_bytes())) {
            CanonicalForm::Relaxed.push_field(&left.remove(place), &mut hashed);
            hashed.extend_from_slice(b"\r\n");
        }
    }
    push_field(&format!("{unsigned} b="), &mut hashed);
    hashed.truncate(hashed.len() - 2);
    let mut hasher = RelaxedBodyHasher::default();
    hasher.update(body.as_bytes());
    assert_eq!(tag("bh"), BASE64_STANDARD.encode(hasher.finish()));
    let signature = BASE64_STANDARD.decode(signature.replace(['\r', '\n', ' '], "")).unwrap();
    let public = key.public_key().unwrap();
    match key.algorithm() {
        KeyAlgorithm::Rsa => UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public).verify(&hashed, &signature),
        KeyAlgorithm::Ed25519 => {
            UnparsedPublicKey::new(&ED25519, public).verify(digest(&SHA256, &hashed).as_ref(), &signature)
        }
    }
    .unwrap();
}

#[tokio::test]
async fn both_keys_sign_beside_each_other() {
    let rsa_pem = PrivateKey::generate_rsa(RsaBits::B2048).unwrap().to_pem().unwrap();
    let rsa = || PrivateKey::parse(rsa_pem.as_bytes()).unwrap();
    let chain = chain(vec![rsa(), ed25519()], SignedSubmitters::default());
    for chunk in [1, 7, 100_000] {
        let mut message = TestMessage { chunk, ..message(&FIELDS.concat()) };
        let whole = String::from_utf8([&message.prefix[..], &message.content].concat()).unwrap();
        let fields = signatures(&chain, Submitter::RelayNetwork, &mut message).await.unwrap();
        let found: Vec<&str> = fields.split_inclusive("DKIM-Signature").skip(1).collect();
        assert_eq!(found.len(), 2);
        assert!(fields.lines().all(|line| line.len() < 78), "{fields}");
        for (rest, key) in found.iter().rev().zip([rsa(), ed25519()]) {
            let rest = rest.strip_suffix("DKIM-Signature").unwrap_or(rest);
            assert!(rest.contains("d=example.com;"), "{rest}");
            assert_verifies(&format!("DKIM-Signature{rest}"), &whole, &key);
        }
    }
}

#[tokio::test]
async fn only_mail_of_those_who_may_send_it_is_signed() {
    let all = chain(vec![ed25519()], SignedSubmitters::default());
    let header = FIELDS.concat();
    for (submitter, is_signed) in [
        (Submitter::Stranger, false),
        (Submitter::RelayNetwork, true),
        (Submitter::LocalProgram, true),
        (Submitter::User("joe"), true),
        (Submitter::User("eve"), false),
    ] {
        let fields = signatures(&all, submitter, &mut message(&header)).await.unwrap();
        assert_eq!(!fields.is_empty(), is_signed, "{submitter:?}");
    }
    let refused = signatures(&all, Submitter::User("lost"), &mut message(&header)).await.unwrap_err();
    let MessageCheckError::Refused(refusal) = refused else { panic!("not refused") };
    assert_eq!((refusal.reply.code, &*refusal.by), (451, "signing"));
    let users = SignedSubmitters { relay_networks: false, ..SignedSubmitters::default() };
    let users = chain(vec![ed25519()], users);
    assert_eq!(signatures(&users, Submitter::RelayNetwork, &mut message(&header)).await.unwrap(), "");
    assert_ne!(signatures(&users, Submitter::User("joe"), &mut message(&header)).await.unwrap(), "");
}

#[tokio::test]
async fn only_mail_with_one_author_of_a_domain_with_a_key_is_signed() {
    let chain = chain(vec![ed25519()], SignedSubmitters::default());
    for (header, is_signed) in [
        ("From: joe@example.com\r\n", true),
        ("FROM : Joe <joe@a.b.example.com>\r\n", true),
        ("From: joe@example.net\r\n", false),
        ("From: joe@notexample.com\r\n", false),
        ("From: joe@com\r\n", false),
        ("From: joe@example.com, eve@example.com\r\n", false),
        ("From: joe@example.com\r\nFrom: joe@example.com\r\n", false),
        // A look-alike of From counts: receivers refuse such mail, with or without a signature.
        ("Fr\0om: eve@example.net\r\nFrom: joe@example.com\r\n", false),
        ("From: joe@example.com\r\nFrom\x01: eve@example.net\r\n", false),
        ("From\r\n : eve@example.net\r\nFrom: joe@example.com\r\n", false),
        ("From: joe(x)@example.com\r\n", false),
        ("Subject: x\r\n", false),
        ("", false),
    ] {
        let fields = signatures(&chain, Submitter::LocalProgram, &mut message(header)).await.unwrap();
        assert_eq!(!fields.is_empty(), is_signed, "{header:?}");
    }
    let long = format!("From: joe@example.com\r\nX: {}\r\n", "x".repeat(1 << 20));
    let mut long = TestMessage { chunk: 100_000, ..message(&long) };
    assert_eq!(signatures(&chain, Submitter::LocalProgram, &mut long).await.unwrap(), "");
}

/// RFC 6376 section 5.3.
#[tokio::test]
async fn eight_bit_content_is_converted_before_it_is_signed() {
    let chain = chain(vec![ed25519()], SignedSubmitters::default());
    let header = "From: joe@example.com\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\
                  Content-Transfer-Encoding: 8bit\r\n";
    let content = format!("{header}\r\nGr\u{fc}\u{df}e\r\n \r\n").into_bytes();
    for chunk in [1, 5, 100_000] {
        let mut message = TestMessage { prefix: Vec::new(), content: content.clone(), chunk };
        let field = signatures(&chain, Submitter::LocalProgram, &mut message).await.unwrap();
        let whole = String::from_utf8(message.content).unwrap();
        assert!(whole.is_ascii() && whole.contains("Gr=C3=BC=C3=9Fe\r\n"), "{whole}");
        assert!(whole.contains("Content-Transfer-Encoding: quoted-printable\r\n"), "{whole}");
        assert_verifies(&field, &whole, &ed25519());
    }
    let mut stranger = TestMessage { prefix: Vec::new(), content: content.clone(), chunk: 7 };
    assert_eq!(signatures(&chain, Submitter::Stranger, &mut stranger).await.unwrap(), "");
    assert_eq!(stranger.content, content);
}

/// A field that this server or a check has put before the content is covered too.
#[tokio::test]
async fn fields_of_the_prefix_are_signed() {
    let chain = chain(vec![ed25519()], SignedSubmitters::default());
    let mut message = message("From: joe@example.com\r\n");
    message.prefix.extend_from_slice(b"Date: Fri, 11 Jul 2003 21:00:37 -0700\r\n");
    let whole = String::from_utf8([&message.prefix[..], &message.content].concat()).unwrap();
    let field = signatures(&chain, Submitter::LocalProgram, &mut message).await.unwrap();
    assert!(field.replace("\r\n ", "").contains("Date:Date:To:"), "{field}");
    assert_verifies(&field, &whole, &ed25519());
}

#[tokio::test]
async fn messages_without_header_end_or_body_are_signed() {
    let chain = chain(vec![ed25519()], SignedSubmitters::default());
    for content in ["From: joe@example.com\r\n", "From: joe@example.com\r\n\r\n", "From: joe@example.com\r\n\r\n \r\n"]
    {
        let mut message = TestMessage { prefix: Vec::new(), content: content.into(), chunk: 3 };
        let field = signatures(&chain, Submitter::LocalProgram, &mut message).await.unwrap();
        assert!(field.contains("bh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="), "{content:?}: {field}");
    }
}
