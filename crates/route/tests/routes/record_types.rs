//! Records of each type, from answers that are large, truncated, circular or authenticated.

use std::time::Duration;

use dns::{AddressFamilies, DnsAnswer, QueryConfig, QueryType, Resolver, ResolverConfig, TlsaRecord};
use sim_dns::TestNameServer;

/// A test zone, and a resolver for it.
async fn resolver(lines: &str, validating: bool) -> (Resolver, TestNameServer) {
    let zone = TestNameServer::serve(lines).await;
    let timeout = Duration::from_secs(20);
    let query = QueryConfig { servers: vec![zone.address], timeout, attempts: 1, validating, ..QueryConfig::default() };
    (Resolver::new(&ResolverConfig { query, ..ResolverConfig::default() }).unwrap(), zone)
}

async fn answer(lines: &str, name: &str, kind: QueryType) -> DnsAnswer {
    let (resolver, _zone) = resolver(lines, false).await;
    resolver.lookup(name, kind).await.answer
}

fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> DnsAnswer {
    DnsAnswer::Texts(texts.into_iter().map(|text| text.as_bytes().into()).collect())
}

#[tokio::test]
async fn texts_names_and_certificates_are_read() {
    let lines = "
        example.org 300 TXT v=spf1 -all
        example.org 300 TXT other
        alias.example.org 300 CNAME example.org
        1.2.0.192.in-addr.arpa 300 PTR MX.Example.ORG
        1.2.0.192.in-addr.arpa 300 PTR .
        1.2.0.192.in-addr.arpa 300 PTR 192.0.2.1
        _25._tcp.mx.example.org 300 TLSA 3 1 1 digest
        _25._tcp.mx.example.org 300 TLSA 255 7 9 other";
    let (resolver, _zone) = resolver(lines, false).await;
    for name in ["example.org", "alias.example.org"] {
        let expected = texts(["v=spf1-all", "other"]);
        assert_eq!(resolver.lookup(name, QueryType::Txt).await.answer, expected, "the strings are joined as they are");
    }
    let names = resolver.lookup(&dns::reverse_name([192, 0, 2, 1].into()), QueryType::Ptr).await.answer;
    assert_eq!(names, DnsAnswer::Names(["mx.example.org".into()].into()));
    let record =
        |usage, selector, matching, data: &str| TlsaRecord { usage, selector, matching, data: data.as_bytes().into() };
    let expected = DnsAnswer::Tlsa([record(3, 1, 1, "digest"), record(255, 7, 9, "other")].into());
    assert_eq!(resolver.lookup("_25._tcp.mx.example.org", QueryType::Tlsa).await.answer, expected);
    assert_eq!(resolver.lookup("mx.example.org", QueryType::Tlsa).await.answer, DnsAnswer::NoRecords);
    assert_eq!(resolver.lookup("no.example.org", QueryType::Txt).await.answer, DnsAnswer::NoSuchName);
}

#[tokio::test]
async fn a_record_of_almost_64_kb_comes_over_tcp() {
    let text = "x".repeat(64_000);
    let (resolver, zone) = resolver(&format!("large.example 300 TXT {text}"), false).await;
    assert_eq!(resolver.lookup("large.example", QueryType::Txt).await.answer, texts([&*text]));
    assert_eq!(zone.over_tcp(), 1);
}

#[tokio::test]
async fn an_answer_that_is_truncated_even_over_tcp_is_none() {
    let lines = "cut.example ! CUT\n cut.example 300 TXT half";
    let (resolver, zone) = resolver(lines, false).await;
    let answer = resolver.lookup("cut.example", QueryType::Txt).await.answer;
    assert!(matches!(answer, DnsAnswer::Unanswered(_)), "{answer:?}");
    assert!(zone.over_tcp() > 0);
}

#[tokio::test]
async fn of_thousands_of_records_the_same_part_is_used_each_time() {
    let zone = |order: fn(usize) -> usize| -> String {
        let line = |number| {
            format!("many.example 300 TXT t{0}\nmany.example 300 A 10.0.{1}.{2}\n", number, number / 256, number % 256)
        };
        (0..2000).map(order).map(line).collect()
    };
    let (forth, back) = (zone(|number| number), zone(|number| 1999 - number));
    for (kind, count) in [(QueryType::Txt, 500), (QueryType::A, 100)] {
        let used = answer(&forth, "many.example", kind).await;
        assert_eq!(used, answer(&back, "many.example", kind).await);
        let used = match used {
            DnsAnswer::Texts(texts) => texts.len(),
            DnsAnswer::Addresses(addresses) => addresses.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(used, count);
    }
}

#[tokio::test]
async fn a_circle_of_aliases_is_no_answer_for_texts_either() {
    let lines = "circle.example 300 CNAME ring.example\n ring.example 300 CNAME circle.example";
    let answer = answer(lines, "circle.example", QueryType::Txt).await;
    assert_eq!(answer, DnsAnswer::Unanswered("CNAME loop".into()));
}

#[tokio::test]
async fn names_that_no_host_has_are_queried_as_they_are() {
    let lines = r"foo:bar/baz.example 300 A 127.0.0.2
        a\.b\099.example 300 A 127.0.0.3";
    for name in ["foo:bar/baz.example", r"a\.b\099.example"] {
        assert!(matches!(answer(lines, name, QueryType::A).await, DnsAnswer::Addresses(_)), "{name}");
    }
}

const SIGNED_ZONE: &str = "
    signed.example ! SIGNED
    signed.example 300 TXT text
    signed.example 300 MX 10 mx.signed.example
    mx.signed.example ! SIGNED
    mx.signed.example 300 A 192.0.2.1
    plain.example ! APART
    plain.example 300 TXT text
    inside.example 300 CNAME signed.example
    inside.example ! SIGNED
    outside.example 300 CNAME plain.example
    outside.example ! SIGNED";

#[tokio::test]
async fn an_answer_is_authenticated_if_each_response_on_the_way_to_it_is() {
    let (resolver, zone) = resolver(SIGNED_ZONE, true).await;
    for (name, kind, authenticated) in [
        ("signed.example", QueryType::Txt, true),
        ("signed.example", QueryType::Mx, true),
        ("inside.example", QueryType::Txt, true),
        ("outside.example", QueryType::Txt, false),
        ("plain.example", QueryType::Txt, false),
        ("signed.example", QueryType::Tlsa, false),
    ] {
        for _ in ["from the server", "from the cache"] {
            assert_eq!(resolver.lookup(name, kind).await.authenticated, authenticated, "{name} {kind:?}");
        }
    }
    let addresses = resolver.addresses("mx.signed.example", AddressFamilies::Both).await;
    assert!(addresses.authenticated, "that there is no AAAA does not matter");
    assert!(zone.with_ad() > 0);
}

#[tokio::test]
async fn no_server_is_believed_that_the_operator_does_not_call_validating() {
    let (resolver, zone) = resolver(&format!("{SIGNED_ZONE}\nsigned.example ! UNASKED"), false).await;
    assert!(!resolver.lookup("signed.example", QueryType::Txt).await.authenticated);
    assert!(!resolver.addresses("mx.signed.example", AddressFamilies::V4).await.authenticated);
    assert_eq!(zone.with_ad(), 0);
}

#[tokio::test]
async fn addresses_are_authenticated_only_if_those_of_both_families_are() {
    let lines = "mixed.example 300 A 192.0.2.1\n mixed.example 300 AAAA 2001:db8::1";
    for (fault, authenticated) in [("", false), ("mixed.example ! SIGNED_A", false), ("mixed.example ! SIGNED", true)] {
        let (resolver, _zone) = resolver(&format!("{lines}\n{fault}"), true).await;
        let addresses = resolver.addresses("mixed.example", AddressFamilies::Both).await;
        assert_eq!(addresses.authenticated, authenticated);
    }
}
