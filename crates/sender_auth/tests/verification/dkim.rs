//! Signatures by another implementation (dkimpy), and what becomes of those that are not accepted.

use sender_auth::{Method, VerificationSettings};

use crate::dns_map::DnsMap;
use crate::session::{check, enforcing, sender_auth};

pub(crate) const KEY: &str = include_str!("messages/rsa-key.txt");
const KEY_NAME: &str = "s1._domainkey.a.example";
pub(crate) const SIGNED: &[u8] = include_bytes!("messages/relaxed-white-lines.eml");

async fn dkim_result(message: &[u8], key: &str) -> (&'static str, String) {
    let auth = sender_auth(DnsMap::default().txt(KEY_NAME, key), VerificationSettings::default());
    let checked = check(&auth, message).await;
    (checked.result("dkim"), checked.results())
}

#[tokio::test]
async fn bodies_that_end_in_lines_of_white_space_or_are_empty_are_valid() {
    for message in [
        SIGNED,
        include_bytes!("messages/simple-white-lines.eml"),
        include_bytes!("messages/relaxed-empty.eml"),
        include_bytes!("messages/simple-empty.eml"),
        include_bytes!("messages/only-white-lines.eml"),
        include_bytes!("messages/length.eml"),
    ] {
        let (result, results) = dkim_result(message, KEY).await;
        assert_eq!(result, "pass", "{results}");
    }
}

#[tokio::test]
async fn a_body_that_is_longer_than_its_signature_says_is_not_accepted() {
    let mut longer = include_bytes!("messages/length.eml").to_vec();
    longer.extend_from_slice(b"added\r\n");
    let (result, results) = dkim_result(&longer, KEY).await;
    assert_eq!(result, "policy", "{results}");
    assert!(results.contains("dkim=policy (l= leaves out a part of the body) header.d=a.example"), "{results}");
}

#[tokio::test]
async fn the_conditions_of_keys_are_kept() {
    for (key, result, reason) in [
        (format!("{KEY}; t=y"), "neutral", "test mode"),
        (format!("{KEY}; t=s"), "pass", ""),
        (format!("{KEY}; h=sha1"), "permerror", "other hashes"),
        (format!("{KEY}; s=other"), "permerror", "other services"),
        ("v=DKIM1; k=rsa; p=".to_owned(), "permerror", "revoked"),
        ("v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=".to_owned(), "permerror", "another type"),
        ("v=DKIM1; k=rsa; p=x".to_owned(), "permerror", "key is"),
    ] {
        let (found, results) = dkim_result(SIGNED, &key).await;
        assert_eq!(found, result, "{key}: {results}");
        assert!(results.contains(reason), "{key}: {results}");
    }
    let subdomain = String::from_utf8(SIGNED.to_vec()).unwrap().replace("i=@a.example", "i=@sub.a.example");
    let (found, results) = dkim_result(subdomain.as_bytes(), &format!("{KEY}; t=s")).await;
    assert_eq!((found, results.contains("does not sign for subdomains")), ("permerror", true), "{results}");
}

#[tokio::test]
async fn a_missing_key_is_permanent_and_a_missing_answer_temporary() {
    let auth = sender_auth(DnsMap::default(), VerificationSettings::default());
    assert_eq!(check(&auth, SIGNED).await.result("dkim"), "permerror");
    let auth = sender_auth(DnsMap::default().silent(KEY_NAME), VerificationSettings::default());
    assert_eq!(check(&auth, SIGNED).await.result("dkim"), "temperror");
    assert_eq!(check(&auth, b"From: a@a.example\r\n\r\nx\r\n").await.result("dkim"), "none");
}

#[tokio::test]
async fn a_verdict_has_the_action_of_the_configuration() {
    let settings = enforcing(Method::Dkim);
    let auth = sender_auth(DnsMap::default().txt(KEY_NAME, KEY), settings);
    let mut changed = SIGNED.to_vec();
    changed.extend_from_slice(b"added\r\n");
    let checked = check(&auth, &changed).await;
    let tags = checked.verdict.edits.iter().filter(|edit| {
        matches!(edit, filter::Edit::PrependField(field) if field.wire() == "X-Authentication-Warning: dkim=fail\r\n")
    });
    assert_eq!((tags.count(), checked.reply()), (1, None));
}
