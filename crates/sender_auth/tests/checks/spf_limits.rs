//! The limits of a check: terms, queries, time, and the size of what comes out.

use std::time::Duration;

use sender_auth::spf::{SpfCheck, SpfClient, SpfResult, check_mail_from};
use tokio::time::Instant;

use crate::zone::{Zone, ip};

async fn check(zone: &Zone, client: &str, sender: &str) -> SpfCheck {
    let client = SpfClient { address: ip(client), helo: "helo.example", hostname: "mx.receiver.example" };
    check_mail_from(zone, &client, Some(&sender.parse().unwrap())).await
}

#[tokio::test]
async fn the_worst_record_makes_123_queries() {
    let record = format!("d.example TXT v=spf1 {}exp=e.example -all", "mx ".repeat(10));
    let mut lines = vec![record, "e.example TXT you are %{p}".to_owned()];
    for number in 0..10 {
        lines.push(format!("d.example MX {number} mx{number}.example"));
        lines.push(format!("mx{number}.example A 192.0.2.9"));
    }
    lines.extend((0..20).map(|number| format!("1.2.0.192.in-addr.arpa PTR ptr{number}.example")));
    let zone = Zone::parse(lines.iter().map(String::as_str));
    let check = check(&zone, "192.0.2.1", "bob@d.example").await;
    assert_eq!((check.result, check.explanation.as_deref()), (SpfResult::Fail, Some("you are unknown")));
    assert_eq!(zone.queries().len(), 123);
}

#[tokio::test]
async fn an_eleventh_mail_host_is_an_error_before_any_is_asked() {
    let lines = (0..11).map(|number| format!("d.example MX {number} mx{number}.example"));
    let lines: Vec<String> = lines.chain(["d.example TXT v=spf1 mx -all".to_owned()]).collect();
    let zone = Zone::parse(lines.iter().map(String::as_str));
    assert_eq!(check(&zone, "192.0.2.1", "bob@d.example").await.result, SpfResult::PermError);
    assert_eq!(zone.queries().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_check_ends_after_twenty_seconds_with_a_temporary_error() {
    let lines = ["d.example TXT v=spf1 a:slow.example -all", "slow.example ! HANG", "hangs.example ! HANG"];
    let zone = Zone::parse(lines);
    for sender in ["bob@d.example", "bob@hangs.example"] {
        let start = Instant::now();
        assert_eq!(check(&zone, "192.0.2.1", sender).await.result, SpfResult::TempError);
        assert_eq!(start.elapsed().as_secs(), 20);
    }
}

/// A client with slow name servers of its own could turn the failure of any domain with `ptr` into a
/// temporary error.
#[tokio::test(start_paused = true)]
async fn the_names_of_a_client_cannot_use_up_the_time_of_a_check() {
    let names = (0..10).flat_map(|number| {
        [format!("1.2.0.192.in-addr.arpa PTR slow{number}.example"), format!("slow{number}.example ! HANG")]
    });
    let lines = names.chain([
        "d.example TXT v=spf1 ptr ptr:e.example exists:%{p}.f.example -all".to_owned(),
        "3.2.0.192.in-addr.arpa ! HANG".to_owned(),
        "4.2.0.192.in-addr.arpa PTR slow1.example".to_owned(),
        "4.2.0.192.in-addr.arpa PTR mail.d.example".to_owned(),
        "mail.d.example A 192.0.2.4".to_owned(),
    ]);
    let lines: Vec<String> = lines.collect();
    let zone = Zone::parse(lines.iter().map(String::as_str));
    for (client, expected) in
        [("192.0.2.1", SpfResult::Fail), ("192.0.2.3", SpfResult::Fail), ("192.0.2.4", SpfResult::Pass)]
    {
        let start = Instant::now();
        assert_eq!(check(&zone, client, "bob@d.example").await.result, expected, "{client}");
        assert_eq!(start.elapsed().as_secs(), 5, "{client}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_stays_one_if_its_explanation_never_comes() {
    let zone = Zone::parse(["d.example TXT v=spf1 exp=slow.example -all", "slow.example ! HANG"]);
    let start = Instant::now();
    let check = check(&zone, "192.0.2.1", "bob@d.example").await;
    assert_eq!((check.result, check.explanation), (SpfResult::Fail, None));
    assert!(start.elapsed() < Duration::from_secs(21));
}

#[tokio::test]
async fn an_explanation_is_short_printable_and_without_line_ends() {
    let long = format!("long.example TXT {}", "%{s} ".repeat(12_000));
    let zone = Zone::parse([
        "long.example TXT v=spf1 exp=long-text.example -all",
        &long.replace("long.example", "long-text.example"),
        "utf8.example TXT v=spf1 exp=utf8-text.example -all",
        "utf8-text.example TXT %{l} may not\t",
        "utf8-local.example TXT v=spf1 exp=local-text.example -all",
        "local-text.example TXT %{l} may not",
    ]);
    let text = check(&zone, "192.0.2.1", "bob@long.example").await.explanation.unwrap();
    assert!((250..=255).contains(&text.len()) && text.starts_with("bob@long.example bob@long.example "), "{text}");
    assert_eq!(check(&zone, "192.0.2.1", "bob@utf8.example").await.explanation, None, "a tab is a syntax error");
    let text = check(&zone, "192.0.2.1", "jürgen@utf8-local.example").await.explanation.unwrap();
    assert_eq!(&*text, "j?rgen may not");
}

#[tokio::test]
async fn a_record_of_64_kb_is_checked_and_ends() {
    let terms = ["ip4:192.0.2.9 ".repeat(4000), "exists:%{S}%{s}.example ".repeat(2500), "x=%{S} ".repeat(8000)];
    for (terms, result) in terms.iter().zip([SpfResult::Fail, SpfResult::PermError, SpfResult::Fail]) {
        let zone = Zone::parse([&*format!("d.example TXT v=spf1 {terms} -all")]);
        assert_eq!(check(&zone, "192.0.2.1", "bob@d.example").await.result, result);
    }
    let deep = "%{S}".repeat(15_000);
    let zone = Zone::parse([&*format!("d.example TXT v=spf1 exists:{deep}.example -all")]);
    assert_eq!(check(&zone, "192.0.2.1", "bob@d.example").await.result, SpfResult::Fail);
}
