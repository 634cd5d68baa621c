//! DMARC with real signatures: policies, and authors that cannot be told.

use filter::{Edit, Field};
use sender_auth::{Method, MethodMode, VerdictAction, VerificationSettings};

use crate::dkim::{KEY, SIGNED};
use crate::dns_map::DnsMap;
use crate::session::{Checked, check, enforcing, sender_auth};

fn dns(policy: &str) -> DnsMap {
    DnsMap::default().txt("s1._domainkey.a.example", KEY).txt("_dmarc.a.example", policy)
}

async fn enforced(dns: DnsMap, message: &[u8]) -> Checked {
    check(&sender_auth(dns, enforcing(Method::Dmarc)), message).await
}

fn signed_text() -> String {
    String::from_utf8(SIGNED.to_vec()).unwrap()
}

#[tokio::test]
async fn an_aligned_signature_passes() {
    let checked = enforced(dns("v=DMARC1; p=reject"), SIGNED).await;
    assert_eq!((checked.result("dmarc"), checked.reply()), ("pass", None));
    assert!(checked.results().contains("dmarc=pass (p=reject) header.from=a.example"), "{}", checked.results());
}

#[tokio::test]
async fn mail_that_fails_is_treated_as_its_domain_wants() {
    let forged = signed_text().replace("two  words", "other");
    for (policy, reply, is_tagged) in [
        ("v=DMARC1; p=reject", Some("550 5.7.26 Not from a.example, by its DMARC policy"), false),
        ("v=DMARC1; p=quarantine", None, true),
        ("v=DMARC1; p=reject; t=y", None, true),
        ("v=DMARC1; p=none", None, false),
    ] {
        let checked = enforced(dns(policy), forged.as_bytes()).await;
        assert_eq!(checked.result("dmarc"), "fail");
        let tag = Edit::PrependField(Field::new("X-Authentication-Warning", "dmarc=fail").unwrap());
        assert_eq!((checked.reply().as_deref(), checked.verdict.edits.contains(&tag)), (reply, is_tagged), "{policy}");
        assert!(!checked.verdict.held, "strangers do not fill the spool: {policy}");
    }
    let mut settings = enforcing(Method::Dmarc);
    settings.actions.set(Method::Dmarc, "quarantine", VerdictAction::Hold);
    let auth = sender_auth(dns("v=DMARC1; p=quarantine"), settings);
    assert!(check(&auth, forged.as_bytes()).await.verdict.held);
    let mut settings = enforcing(Method::Dmarc);
    settings.actions.set(Method::Dmarc, "quarantine", VerdictAction::Queue("slow".into()));
    let checked = check(&sender_auth(dns("v=DMARC1; p=quarantine"), settings), forged.as_bytes()).await;
    let queue = Edit::PrependField(Field::new("X-Mailrace-Queue", "slow").unwrap());
    assert_eq!((checked.reply(), checked.verdict.held), (None, false));
    assert!(checked.verdict.edits.contains(&queue), "{:?}", checked.verdict.edits);
    let observed = sender_auth(dns("v=DMARC1; p=reject"), VerificationSettings::default());
    assert_eq!(check(&observed, forged.as_bytes()).await.reply(), None);
    assert_eq!(enforced(DnsMap::default(), forged.as_bytes()).await.result("dmarc"), "none");
}

/// Each of these once escaped a verdict somewhere.
#[tokio::test]
async fn an_author_that_cannot_be_told_is_refused() {
    let text = signed_text();
    let from = "From: Ann <ann@a.example>";
    for other in [
        "From: x@evil.example\r\nFrom: Ann <ann@a.example>",
        "From: Ann <ann@a.example>\r\nFrom: x@evil.example",
        "From: x@evil.example, Ann <ann@a.example>",
        "From: list: Ann <ann@a.example>;",
        "From: Ann <ann@a\r\n .example>",
        "From: Ann <ann@a(comment).example>",
        "From: =?utf-8?q?Ann_=3Cann=40a.example=3E?=",
        "X-From: Ann <ann@a.example>",
    ] {
        let forged = text.replace(from, other);
        assert_ne!(forged, text);
        let checked = enforced(dns("v=DMARC1; p=none"), forged.as_bytes()).await;
        assert_eq!(checked.result("dmarc"), "permerror", "{other}");
        assert!(checked.reply().is_some_and(|reply| reply.starts_with("550 5.7.1 ")), "{other}");
    }
}

/// Of two methods, one may tag what the other sends to a queue; what is refused needs neither.
#[tokio::test]
async fn the_actions_of_several_methods_go_together() {
    let forged = signed_text().replace("two  words", "other");
    let actions = |dkim: VerdictAction, dmarc: VerdictAction| {
        let mut settings = enforcing(Method::Dmarc);
        settings.modes[Method::Dkim as usize] = MethodMode::Enforce;
        settings.actions.set(Method::Dkim, "fail", dkim);
        settings.actions.set(Method::Dmarc, "quarantine", dmarc);
        settings
    };
    let queue = |name: &str| VerdictAction::Queue(name.into());
    for (settings, expected) in [
        (
            actions(VerdictAction::Tag, queue("slow")),
            &["X-Authentication-Warning: dkim=fail", "X-Mailrace-Queue: slow"][..],
        ),
        (actions(queue("other"), queue("slow")), &["X-Mailrace-Queue: slow"]),
        (actions(queue("slow"), VerdictAction::Hold), &["X-Mailrace-Queue: slow"]),
    ] {
        let is_held = settings.actions.action(Method::Dmarc, "quarantine") == VerdictAction::Hold;
        let checked = check(&sender_auth(dns("v=DMARC1; p=quarantine"), settings), forged.as_bytes()).await;
        let fields = checked.verdict.edits.iter().filter_map(|edit| match edit {
            Edit::PrependField(field) => Some(field.wire().trim_end().to_owned()),
            _ => None,
        });
        let fields: Vec<String> = fields.filter(|field| field.starts_with("X-")).collect();
        assert_eq!((fields, checked.verdict.held), (expected.iter().map(ToString::to_string).collect(), is_held));
    }
}

#[tokio::test]
async fn subdomains_have_the_policy_of_their_organization() {
    let forged = signed_text().replace("ann@a.example>", "ann@news.a.example>");
    for (policy, existing, reply) in [
        ("v=DMARC1; p=reject", true, true),
        ("v=DMARC1; p=reject; sp=none", true, false),
        ("v=DMARC1; p=none; np=reject", true, false),
        ("v=DMARC1; p=none; np=reject", false, true),
    ] {
        let dns = dns(policy);
        let dns = if existing { dns.txt("news.a.example", "x").a("news.a.example") } else { dns };
        let checked = enforced(dns, forged.as_bytes()).await;
        assert_eq!((checked.result("dmarc"), checked.reply().is_some()), ("fail", reply), "{policy} {existing}");
    }
}

#[tokio::test]
async fn a_missing_answer_is_temporary_only_where_it_matters() {
    let forged = signed_text().replace("two  words", "other");
    let silent = || dns("v=DMARC1; p=reject").silent("_dmarc.a.example");
    let checked = enforced(silent(), forged.as_bytes()).await;
    assert_eq!(checked.result("dmarc"), "temperror");
    assert!(checked.reply().is_some_and(|reply| reply.starts_with("451 4.7.26 ")));
    let mut settings = enforcing(Method::Dmarc);
    settings.actions.set(Method::Dmarc, "temperror", VerdictAction::Accept);
    assert_eq!(check(&sender_auth(silent(), settings), forged.as_bytes()).await.reply(), None);
    // Where the domain asks for nothing, nobody waits for an answer.
    let unknown_key = dns("v=DMARC1; p=none").silent("s1._domainkey.a.example");
    let checked = enforced(unknown_key, forged.as_bytes()).await;
    assert_eq!((checked.result("dmarc"), checked.reply()), ("temperror", None));
    // A signature of the forger, whose DNS is slow, changes nothing.
    let evil = forged.replace("d=a.example", "d=evil.example").replace("i=@a.example", "i=@evil.example");
    let checked = enforced(dns("v=DMARC1; p=reject").silent("s1._domainkey.evil.example"), evil.as_bytes()).await;
    assert_eq!((checked.result("dkim"), checked.result("dmarc")), ("temperror", "fail"));
}
