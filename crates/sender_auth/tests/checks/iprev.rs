//! The reverse name of a client.

use sender_auth::iprev::{IprevResult, check};

use crate::zone::{Zone, ip};

async fn result(lines: &[&str], client: &str) -> (&'static str, Option<String>) {
    let zone = Zone::parse(lines.iter().copied());
    let check = check(&zone, ip(client)).await;
    (check.result.as_str(), check.name.map(Into::into))
}

#[tokio::test]
async fn a_name_counts_if_it_leads_back_to_the_client() {
    let lines = [
        "1.2.0.192.in-addr.arpa PTR Other.example",
        "1.2.0.192.in-addr.arpa PTR MX.example",
        "other.example A 192.0.2.9",
        "mx.example A 192.0.2.8",
        "mx.example A 192.0.2.1",
        "9.2.0.192.in-addr.arpa PTR lies.example",
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa PTR mx.example",
        "mx.example AAAA 2001:db8::1",
    ];
    let pass = ("pass", Some("mx.example".to_owned()));
    assert_eq!(result(&lines, "192.0.2.1").await, pass);
    assert_eq!(result(&lines, "::ffff:192.0.2.1").await, pass);
    assert_eq!(result(&lines, "2001:db8::1").await, pass);
    assert_eq!(result(&lines, "192.0.2.9").await, ("fail", None));
    assert_eq!(result(&lines, "192.0.2.7").await, ("permerror", None));
}

#[tokio::test]
async fn without_an_answer_the_result_is_temporary_unless_another_name_is_confirmed() {
    let lines = [
        "1.2.0.192.in-addr.arpa ! SERVFAIL",
        "2.2.0.192.in-addr.arpa PTR broken.example",
        "3.2.0.192.in-addr.arpa PTR broken.example",
        "3.2.0.192.in-addr.arpa PTR good.example",
        "broken.example ! SERVFAIL",
        "good.example A 192.0.2.3",
    ];
    assert_eq!(result(&lines, "192.0.2.1").await, ("temperror", None));
    assert_eq!(result(&lines, "192.0.2.2").await, ("temperror", None));
    assert_eq!(result(&lines, "192.0.2.3").await, ("pass", Some("good.example".to_owned())));
}

#[tokio::test]
async fn at_most_ten_names_are_looked_up() {
    let names: Vec<String> = (0..500).map(|number| format!("1.2.0.192.in-addr.arpa PTR n{number}.example")).collect();
    let zone = Zone::parse(names.iter().map(String::as_str).chain(["n499.example A 192.0.2.1"]));
    assert_eq!(check(&zone, ip("192.0.2.1")).await.result, IprevResult::Fail);
    assert_eq!(zone.queries().len(), 11);
}
