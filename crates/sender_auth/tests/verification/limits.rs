//! Limits: what is beyond one has a verdict and is counted, and nothing is asked without need.

use std::sync::atomic::Ordering::Relaxed;

use filter::{CheckFactory, Edit, Field, Origin, SessionInfo, Stage, Submitter};
use mail::Address;
use sender_auth::{Method, MethodMode, VerdictAction, VerificationSettings};

use crate::dkim::{KEY, SIGNED};
use crate::dns_map::DnsMap;
use crate::session::{TestMessage, check, enforcing, sender_auth};

fn dns() -> DnsMap {
    DnsMap::default().txt("s1._domainkey.a.example", KEY).txt("_dmarc.a.example", "v=DMARC1; p=reject")
}

#[tokio::test]
async fn of_a_hundred_signatures_eight_are_checked() {
    let text = String::from_utf8(SIGNED.to_vec()).unwrap();
    let (signature, rest) = text.split_at(text.find("From:").unwrap());
    let checked = check(
        &sender_auth(dns(), VerificationSettings::default()),
        format!("{}{rest}", signature.repeat(100)).as_bytes(),
    )
    .await;
    assert_eq!(checked.results().matches("dkim=pass").count(), 8, "{}", checked.results());
    assert!(checked.results().contains("dkim=policy (too many signatures: 92 not checked)"));
}

#[tokio::test]
async fn a_message_that_is_too_large_is_not_verified() {
    let settings = VerificationSettings { message_octets_max: 100, ..enforcing(Method::Dmarc) };
    let auth = |dns| sender_auth(dns, settings.clone());
    let checked = check(&auth(dns()), SIGNED).await;
    // Nobody looked at the signature, so it is not called wrong; it stays too large, so it is not deferred.
    assert_eq!((checked.result("dkim"), checked.limit("message_size")), ("temperror", 1));
    assert_eq!(checked.result("dmarc"), "temperror");
    let reply =
        "552 5.3.4 Too large to verify that it is from a.example, as its DMARC policy asks: more than 100 octets";
    assert_eq!(checked.reply().as_deref(), Some(reply));
    // SPF can confirm the author without the message.
    let confirmed = dns().txt("a.example", "v=spf1 +all");
    let checked = check(&auth(confirmed), SIGNED).await;
    assert_eq!((checked.result("dkim"), checked.result("dmarc"), checked.reply()), ("temperror", "pass", None));
}

/// Size is no way round a policy: what a failure would lead to happens, whatever follows from temporary errors.
#[tokio::test]
async fn a_message_that_is_too_large_is_treated_as_the_policy_asks() {
    let mut settings = VerificationSettings { message_octets_max: 100, ..enforcing(Method::Dmarc) };
    settings.actions.set(Method::Dmarc, "temperror", VerdictAction::Accept);
    let policy = |policy: &str| {
        DnsMap::default().txt("s1._domainkey.a.example", KEY).txt("_dmarc.a.example", &format!("v=DMARC1; p={policy}"))
    };
    let forged = String::from_utf8(SIGNED.to_vec()).unwrap().replace("d=a.example", "d=evil.example");
    let forged = forged.replace("i=@a.example", "i=@evil.example");
    for (name, message, result, reply, is_tagged) in [
        ("reject", SIGNED, "temperror", Some("552 5.3.4"), false),
        ("quarantine", SIGNED, "temperror", None, true),
        ("none", SIGNED, "temperror", None, false),
        // A signature of another domain could not have confirmed the author.
        ("reject", forged.as_bytes(), "fail", Some("550 5.7.26"), false),
    ] {
        let checked = check(&sender_auth(policy(name), settings.clone()), message).await;
        let tag = Edit::PrependField(Field::new("X-Authentication-Warning", "dmarc=temperror").unwrap());
        assert_eq!((checked.result("dmarc"), checked.verdict.edits.contains(&tag)), (result, is_tagged), "{name}");
        assert_eq!(checked.reply().map(|text| text.starts_with(reply.unwrap_or("?"))), reply.map(|_| true), "{name}");
    }
}

#[tokio::test]
async fn queries_are_limited_for_a_message_and_for_a_client() {
    let settings = VerificationSettings { queries_max: 0, ..VerificationSettings::default() };
    let checked = check(&sender_auth(dns().uncached(), settings), SIGNED).await;
    assert_eq!(checked.result("dkim"), "temperror");
    assert!(checked.limit("message_queries") > 0);
    // The policy has a limit of its own, so that signatures and SPF cannot use it up.
    assert_ne!(checked.result("dmarc"), "none");
    let rate = Some("1/h".parse().unwrap());
    let settings = VerificationSettings { client_queries: rate, ..VerificationSettings::default() };
    let checked = check(&sender_auth(dns().uncached(), settings.clone()), SIGNED).await;
    assert!(checked.limit("client_queries") > 0);
    // What the cache answers is not counted.
    let checked = check(&sender_auth(dns(), settings), SIGNED).await;
    assert_eq!((checked.result("dkim"), checked.limit("client_queries")), ("pass", 0));
}

#[tokio::test]
async fn a_client_beyond_its_limit_is_deferred_where_dmarc_is_enforced() {
    let settings = VerificationSettings { client_queries: Some("1/h".parse().unwrap()), ..enforcing(Method::Dmarc) };
    let forged = String::from_utf8(SIGNED.to_vec()).unwrap().replace("s=s1", "s=other");
    let checked = check(&sender_auth(dns().uncached(), settings), forged.as_bytes()).await;
    assert_eq!(checked.result("dmarc"), "temperror");
    assert!(checked.reply().is_some_and(|reply| reply.starts_with("451 4.7.26 ")), "{:?}", checked.reply());
}

/// A client that had used up its queries could send in the name of any domain.
#[tokio::test]
async fn a_client_beyond_its_limit_is_deferred_where_spf_is_enforced() {
    let dns = || DnsMap::default().txt("a.example", "v=spf1 -all");
    let settings = VerificationSettings { queries_max: 0, ..enforcing(Method::Spf) };
    let checked = check(&sender_auth(dns().uncached(), settings.clone()), SIGNED).await;
    assert_eq!(checked.result("spf"), "temperror");
    assert!(checked.reply().is_some_and(|reply| reply.starts_with("451 4.7.24 ")), "{:?}", checked.reply());
    let mut settings = VerificationSettings { queries_max: 125, ..settings };
    assert!(check(&sender_auth(dns(), settings.clone()), SIGNED).await.reply().unwrap().starts_with("550 5.7.23 "));
    // Name servers of the domain that do not answer are its own matter.
    let silent = check(&sender_auth(DnsMap::default().silent("a.example"), settings.clone()), SIGNED).await;
    assert_eq!((silent.result("spf"), silent.reply()), ("temperror", None));
    // What is only tagged if it fails is not deferred.
    settings.queries_max = 0;
    settings.actions.set(Method::Spf, "fail", VerdictAction::Tag);
    let checked = check(&sender_auth(dns().uncached(), settings), SIGNED).await;
    assert_eq!((checked.result("spf"), checked.reply()), ("temperror", None));
}

#[tokio::test(start_paused = true)]
async fn a_late_key_is_a_temporary_error_of_its_own_signature_only() {
    let text = String::from_utf8(SIGNED.to_vec()).unwrap();
    let (signature, rest) = text.split_at(text.find("From:").unwrap());
    let slow = signature.replace("d=a.example", "d=slow.example").replace("i=@a.example", "i=@slow.example");
    let dns = || dns().dropping("s1._domainkey.slow.example");
    let checked =
        check(&sender_auth(dns(), enforcing(Method::Dmarc)), format!("{slow}{signature}{rest}").as_bytes()).await;
    assert_eq!((checked.result("dkim"), checked.result("dmarc")), ("pass", "pass"), "{}", checked.results());
    assert!(checked.results().contains("dkim=temperror (no answer for the key in time)"), "{}", checked.results());
    // A key that does not exist stays a fault beside it.
    let missing = signature.replace("s=s1", "s=other");
    let checked =
        check(&sender_auth(dns(), enforcing(Method::Dmarc)), format!("{slow}{missing}{rest}").as_bytes()).await;
    assert_eq!((checked.result("dmarc"), checked.limit("time")), ("fail", 1), "{}", checked.results());
    assert!(checked.reply().is_some_and(|reply| reply.starts_with("550 5.7.26 ")));
}

#[tokio::test]
async fn the_helo_cannot_use_up_the_queries_for_the_sender() {
    let record = |hosts: &str| {
        let hosts: String = (0..10).map(|number| format!("a:{hosts}{number}.example ")).collect();
        format!("v=spf1 {hosts}-all")
    };
    let dns = dns().txt("mail.a.example", &record("x")).txt("a.example", &record("y")).uncached();
    let dns = (0..10).fold(dns, |dns, number| dns.a(&format!("x{number}.example")).a(&format!("y{number}.example")));
    let settings = VerificationSettings { queries_max: 12, ..VerificationSettings::default() };
    let checked = check(&sender_auth(dns, settings), SIGNED).await;
    assert!(checked.results().contains("spf=fail smtp.mailfrom=a.example"), "{}", checked.results());
    assert_eq!(checked.limit("message_queries"), 0);
}

#[tokio::test]
async fn beyond_the_messages_at_the_same_time_verdicts_are_temporary_errors() {
    let settings = VerificationSettings { concurrent_max: 1, ..enforcing(Method::Dmarc) };
    let auth = sender_auth(dns(), settings);
    let session = SessionInfo { client: Some("192.0.2.9".parse().unwrap()), ..SessionInfo::default() };
    let sender: Option<&Address> = None;
    let session = SessionInfo { sender: Some(sender), helo: Some("x"), ..session };
    // A check of a sender has the only permit.
    let mut other = auth.clone().start();
    other.data(&session).await;
    let checked = check(&auth, SIGNED).await;
    assert_eq!((checked.result("dkim"), checked.result("dmarc")), ("temperror", "temperror"));
    assert!(checked.reply().is_some_and(|reply| reply.starts_with("451 4.7.26 ")), "{:?}", checked.reply());
    assert!(checked.limit("concurrent") > 0);
    let forged = b"From: a@a.example\r\nFrom: b@b.example\r\n\r\nx\r\n";
    assert!(check(&auth, forged).await.reply().is_some(), "the author is judged without the DNS");
}

#[tokio::test]
async fn users_and_the_networks_that_are_exempt_are_not_checked() {
    let exempt = vec!["192.0.2.64/28".parse().unwrap()].into();
    let auth = sender_auth(dns(), VerificationSettings { exempt, ..VerificationSettings::default() });
    for session in [
        SessionInfo { client: Some("192.0.2.1".parse().unwrap()), is_user: true, ..SessionInfo::default() },
        SessionInfo { client: Some("127.0.0.1".parse().unwrap()), ..SessionInfo::default() },
        SessionInfo { client: Some("192.0.2.65".parse().unwrap()), ..SessionInfo::default() },
    ] {
        let mut check = auth.clone().start();
        check.data(&session).await;
        let verdict = check.message(&session, &mut TestMessage(SIGNED.to_vec())).await;
        assert_eq!(verdict, filter::Verdict::default());
    }
}

#[test]
fn without_a_method_the_check_takes_part_in_nothing() {
    let off = VerificationSettings { modes: [MethodMode::Off; 5], ..VerificationSettings::default() };
    for origin in [Origin::Client, Origin::LocalProgram] {
        assert!(sender_auth(DnsMap::default(), off.clone()).stages(origin).is_empty());
    }
    let auth = sender_auth(DnsMap::default(), VerificationSettings::default());
    let of_programs = auth.stages(Origin::LocalProgram);
    assert!(of_programs.contains(Stage::Message) && !of_programs.contains(Stage::Data));
    assert!(auth.stages(Origin::Client).contains(Stage::Message) && !auth.stages(Origin::Client).contains(Stage::Mail));
}

#[tokio::test]
async fn forged_results_are_removed_and_those_of_others_stay() {
    let message = b"Authentication-Results: other.example; dkim=pass\r\nauthentication-results: MX.example.org;\r\n \
        dkim=pass\r\nFrom: a@a.example\r\n\r\nx\r\n";
    let checked = check(&sender_auth(DnsMap::default(), VerificationSettings::default()), message).await;
    assert_eq!(removed(message, &checked.verdict), ["authentication-results: MX.example.org;\r\n dkim=pass\r\n"]);
    assert!(checked.results().starts_with("Authentication-Results: mx.example.org; "), "{}", checked.results());
}

/// The fields that the check removes.
fn removed<'a>(message: &'a [u8], verdict: &filter::Verdict) -> Vec<&'a str> {
    let places = verdict.edits.iter().flat_map(|edit| match edit {
        Edit::RemoveFields { places } => places.to_vec(),
        _ => Vec::new(),
    });
    places.map(|place| std::str::from_utf8(&message[place]).unwrap()).collect()
}

/// A stolen password, and a server in front of this one that does not know our name, made fields that
/// scripts believed.
#[tokio::test]
async fn only_networks_that_are_named_may_pass_on_results_in_our_name() {
    let message = b"Authentication-Results: mx.example.org; dmarc=pass\r\nFrom: a@a.example\r\n\r\nx\r\n";
    let exempt = vec!["192.0.2.64/28".parse().unwrap()].into();
    let results_from = vec!["192.0.2.65".parse().unwrap(), "192.0.2.1".parse().unwrap()].into();
    let auth = sender_auth(
        DnsMap::default(),
        VerificationSettings { exempt, results_from, ..VerificationSettings::default() },
    );
    let client = |address: &str| Some(address.parse().unwrap());
    let user = SessionInfo { client: client("192.0.2.9"), is_user: true, ..SessionInfo::default() };
    let local = SessionInfo { submitter: Submitter::LocalProgram, is_user: true, ..SessionInfo::default() };
    for (session, is_removed) in [
        (user, true),
        (local, true),
        (SessionInfo { client: client("127.0.0.1"), ..SessionInfo::default() }, true),
        (SessionInfo { client: client("192.0.2.66"), ..SessionInfo::default() }, true),
        (SessionInfo { client: client("192.0.2.65"), ..SessionInfo::default() }, false),
    ] {
        let verdict = auth.clone().start().message(&session, &mut TestMessage(message.to_vec())).await;
        assert_eq!(!removed(message, &verdict).is_empty(), is_removed, "{session:?}");
        assert!(verdict.edits.len() <= 1 && verdict.findings.is_empty(), "{verdict:?}");
    }
    let stranger = check(&auth, message).await;
    assert!(removed(message, &stranger.verdict).is_empty() && !stranger.results().is_empty());
}

#[tokio::test]
async fn a_message_without_signatures_asks_nothing_for_dkim_and_arc() {
    let dns = std::sync::Arc::new(DnsMap::default());
    let mut settings = VerificationSettings::default();
    settings.modes[Method::Spf as usize] = MethodMode::Off;
    settings.modes[Method::Iprev as usize] = MethodMode::Off;
    settings.modes[Method::Dmarc as usize] = MethodMode::Off;
    let auth = sender_auth(DnsMap::default(), settings);
    let auth = std::sync::Arc::new(sender_auth::SenderAuth {
        dns: dns.clone(),
        settings: auth.settings.clone(),
        authserv_id: auth.authserv_id.clone(),
        hostname: auth.hostname.clone(),
        relay_networks: auth.relay_networks.clone(),
        state: auth.state.clone(),
        reports: None,
    });
    let checked = check(&auth, b"From: a@a.example\r\n\r\nx\r\n").await;
    assert_eq!((checked.result("dkim"), dns.queries.load(Relaxed)), ("none", 0));
}
