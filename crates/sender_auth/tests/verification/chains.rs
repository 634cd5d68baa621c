//! Chains of ARC that another implementation (dkimpy) made.

use sender_auth::{Method, VerificationSettings};

use crate::dkim::KEY;
use crate::dns_map::DnsMap;
use crate::session::{Checked, check, enforcing, sender_auth};

const ONE: &[u8] = include_bytes!("messages/arc-1.eml");
const THREE: &[u8] = include_bytes!("messages/arc-3.eml");

fn dns() -> DnsMap {
    let names = ["a.example", "hop1.example", "hop2.example", "hop3.example"];
    let dns = names.iter().fold(DnsMap::default(), |dns, name| dns.txt(&format!("s1._domainkey.{name}"), KEY));
    dns.txt("_dmarc.a.example", "v=DMARC1; p=reject")
}

async fn arc(message: &[u8]) -> Checked {
    check(&sender_auth(dns(), VerificationSettings::default()), message).await
}

/// A change that breaks only the signature of the author, as mailing lists make.
fn without_signature(message: &[u8]) -> Vec<u8> {
    String::from_utf8(message.to_vec()).unwrap().replace("DKIM-Signature:", "X-Signature:").into_bytes()
}

#[tokio::test]
async fn chains_are_valid_until_anything_changes() {
    for message in [ONE, THREE] {
        let checked = arc(message).await;
        assert_eq!(checked.result("arc"), "pass", "{}", checked.results());
    }
    let text = String::from_utf8(THREE.to_vec()).unwrap();
    for (from, to) in [
        ("text \t here", "text there"),
        ("two  words", "other words"),
        ("arc=none", "arc=pass"),
        ("i=1; a=rsa", "i=4; a=rsa"),
        ("cv=none", "cv=pass"),
    ] {
        assert!(text.contains(from), "{from}");
        let checked = arc(text.replacen(from, to, 1).as_bytes()).await;
        assert_eq!(checked.result("arc"), "fail", "{from} -> {to}: {}", checked.results());
    }
    assert_eq!(arc(b"From: a@a.example\r\n\r\nx\r\n").await.result("arc"), "none");
}

#[tokio::test]
async fn without_an_answer_for_a_key_a_chain_is_a_temporary_error() {
    let auth = sender_auth(dns().silent("s1._domainkey.hop2.example"), VerificationSettings::default());
    assert_eq!(check(&auth, THREE).await.result("arc"), "temperror");
    // It does not matter where another key shows that the chain is not valid.
    let text = String::from_utf8(THREE.to_vec()).unwrap();
    let changed = text.replacen("arc=none", "arc=pass", 1);
    assert_eq!(check(&auth, changed.as_bytes()).await.result("arc"), "fail");
}

/// A forger has slow domains of his own, and can write the name of a trusted sealer.
#[tokio::test]
async fn only_the_keys_of_trusted_sealers_may_be_late() {
    for (trusted, silent, reply) in [
        (&["hop3.example"][..], "hop1.example", "550 5.7.26 "),
        (&["hop3.example"], "hop3.example", "451 4.7.26 "),
        (&["hop2.example", "hop3.example"], "hop2.example", "451 4.7.26 "),
    ] {
        let mut settings = enforcing(Method::Dmarc);
        settings.trusted_sealers = trusted.iter().map(|name| (*name).into()).collect();
        let dns = dns().silent(&format!("s1._domainkey.{silent}"));
        let checked = check(&sender_auth(dns, settings), &without_signature(THREE)).await;
        assert_eq!(checked.result("arc"), "temperror");
        assert!(checked.reply().is_some_and(|text| text.starts_with(reply)), "{silent}: {:?}", checked.reply());
    }
}

/// What nobody read is no failure, but it is no way to be accepted either.
#[tokio::test]
async fn a_chain_of_a_message_that_is_too_large_is_not_verified() {
    for (trusted, reply) in [(&["hop3.example"][..], "552 5.3.4 "), (&["hop1.example"], "550 5.7.26 ")] {
        let mut settings = VerificationSettings { message_octets_max: 100, ..enforcing(Method::Dmarc) };
        settings.trusted_sealers = trusted.iter().map(|name| (*name).into()).collect();
        let checked = check(&sender_auth(dns(), settings), &without_signature(THREE)).await;
        assert_eq!((checked.result("arc"), checked.result("dmarc")), ("temperror", "fail"));
        assert!(checked.reply().is_some_and(|text| text.starts_with(reply)), "{trusted:?}: {:?}", checked.reply());
    }
}

#[tokio::test]
async fn mail_that_fails_dmarc_is_accepted_by_the_seals_of_trusted_forwarders() {
    for (trusted, is_accepted) in [
        (&["hop1.example", "hop2.example", "hop3.example"][..], true),
        (&["hop3.example"], true),
        (&["hop1.example"], false),
        (&[], false),
    ] {
        let mut settings = enforcing(Method::Dmarc);
        settings.trusted_sealers = trusted.iter().map(|name| (*name).into()).collect();
        let checked = check(&sender_auth(dns(), settings), &without_signature(THREE)).await;
        assert_eq!(checked.result("dmarc"), "fail");
        assert_eq!(checked.reply().is_none(), is_accepted, "{trusted:?}: {}", checked.results());
    }
}
