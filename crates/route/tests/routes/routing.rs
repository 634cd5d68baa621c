//! Routes from destinations to hosts, with good and bad name servers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dns::{AddressFamilies, QueryConfig, ResolverConfig};
use lookup::{LookupFuture, Table};
use route::{
    Config, DomainRoute, DomainTableRoute, Endpoint, EndpointOptions, NextHopHosts, Route, RouteAnswer, RouteRule,
    Router,
};
use sim_dns::TestNameServer;

/// A configuration for this server, with short timeouts.
fn config(zone: &TestNameServer) -> Config {
    let query = QueryConfig {
        servers: vec![zone.address],
        timeout: Duration::from_secs(2),
        attempts: 1,
        ..QueryConfig::default()
    };
    Config { resolver: ResolverConfig { query, ..ResolverConfig::default() }, ..Config::new("mx.we.example") }
}

/// Mailboxes on this host.
fn local_domain(transport: &str) -> DomainRoute {
    DomainRoute { transport: transport.into(), next_hop: None }
}

/// A test zone, and a router for it.
async fn router(lines: &str) -> (Router, TestNameServer) {
    let zone = TestNameServer::serve(lines).await;
    (Router::new(config(&zone)).unwrap(), zone)
}

/// The route of a destination in a test zone.
async fn route(lines: &str, destination: &str) -> Route {
    let (router, _zone) = router(lines).await;
    router.route(destination).await
}

async fn answer(lines: &str, destination: &str) -> RouteAnswer {
    route(lines, destination).await.answer
}

/// The answer as a line: `next hop > host=address,address host=address | host=address`, or the
/// reply.
fn describe(answer: &RouteAnswer) -> String {
    match answer {
        RouteAnswer::Local { transport } => format!("local {transport}"),
        RouteAnswer::Hosts(hosts) => format!("{} > {}", hosts.next_hop, tiers(hosts)),
        RouteAnswer::Defer(reply) => format!("defer {reply}"),
        RouteAnswer::Fail(reply) => format!("fail {reply}"),
    }
}

fn tiers(hosts: &NextHopHosts) -> String {
    let endpoint = |endpoint: &Endpoint| match endpoint {
        Endpoint::Tcp(address) => address.to_string(),
        Endpoint::Unix(path) => path.display().to_string(),
    };
    let tier = |tier: &Vec<route::Host>| {
        let host = |host: &route::Host| {
            format!("{}={}", host.name, host.endpoints.iter().map(endpoint).collect::<Vec<_>>().join(","))
        };
        tier.iter().map(host).collect::<Vec<_>>().join(" ")
    };
    hosts.tiers.iter().map(tier).collect::<Vec<_>>().join(" | ")
}

async fn describe_route(lines: &str, destination: &str) -> String {
    describe(&answer(lines, destination).await)
}

#[tokio::test]
async fn mail_hosts_come_in_tiers_with_the_addresses_of_both_families_in_turn() {
    let lines = "
        example.org 300 MX 20 backup.example.org
        example.org 300 MX 10 MX2.example.org
        example.org 300 MX 10 mx1.example.org
        mx1.example.org 300 A 192.0.2.1
        mx1.example.org 300 A 192.0.2.2
        mx1.example.org 300 AAAA 2001:db8::1
        mx2.example.org 300 A 192.0.2.3
        backup.example.org 300 AAAA 2001:db8::4";
    assert_eq!(
        describe_route(lines, "Example.org").await,
        "smtp:backup.example.org:25,mx1.example.org:25,mx2.example.org:25 > mx2.example.org=192.0.2.3:25 \
         mx1.example.org=[2001:db8::1]:25,192.0.2.1:25,192.0.2.2:25 | backup.example.org=[2001:db8::4]:25"
    );
}

#[tokio::test]
async fn domains_with_the_same_hosts_are_one_next_hop() {
    let lines = "
        one.example 300 MX 10 a.example
        one.example 300 MX 20 b.example
        two.example 300 MX 5 b.example
        two.example 300 MX 1 a.example
        two.example 300 MX 9 a.example
        a.example 300 A 192.0.2.1
        b.example ! SERVFAIL";
    let (router, _zone) = router(lines).await;
    let (one, two) = (router.route("one.example").await.answer, router.route("two.example").await.answer);
    assert_eq!(describe(&one), "smtp:a.example:25,b.example:25 > a.example=192.0.2.1:25");
    assert_eq!(one, two);
}

#[tokio::test]
async fn without_mx_the_addresses_of_the_domain_count() {
    let lines = "example.org 300 A 192.0.2.1\n example.org 300 AAAA 2001:db8::1";
    let itself = "smtp:example.org:25 > example.org=[2001:db8::1]:25,192.0.2.1:25";
    assert_eq!(describe_route(lines, "example.org").await, itself);
}

#[tokio::test]
async fn aliases_are_followed_within_an_answer_and_across_answers() {
    for apart in ["", "real.example ! APART\n mx.real.example ! APART"] {
        let lines = format!(
            "{apart}
            alias.example 300 CNAME real.example
            real.example 300 MX 10 www.real.example
            www.real.example 300 CNAME mx.real.example
            mx.real.example 300 A 192.0.2.1"
        );
        let way = "smtp:www.real.example:25 > www.real.example=192.0.2.1:25";
        assert_eq!(describe_route(&lines, "alias.example").await, way, "{apart}");
    }
}

#[tokio::test]
async fn denied_names_fail() {
    let lines = "
        null.example 300 MX 0 .
        twice.example 300 MX 0 .
        twice.example 300 MX 10 .
        empty.example 300 CNAME text.example
        child.text.example 300 A 192.0.2.1
        dangling.example 300 CNAME nowhere.example";
    let (router, _zone) = router(lines).await;
    for (destination, reply) in [
        ("null.example", "fail 556 5.1.10 null.example does not accept mail (null MX)"),
        ("twice.example", "fail 556 5.1.10 twice.example does not accept mail (null MX)"),
        ("none.example", "fail 550 5.1.2 none.example does not exist in the DNS"),
        ("dangling.example", "fail 550 5.1.2 dangling.example does not exist in the DNS"),
        ("empty.example", "fail 550 5.4.4 empty.example has neither an MX host nor an address in the DNS"),
        ("text.example", "fail 550 5.4.4 text.example has neither an MX host nor an address in the DNS"),
        ("a..b", "fail 550 5.1.2 a..b is not a domain"),
        ("[192.0.2.300]", "fail 550 5.1.2 [192.0.2.300] is not a domain"),
    ] {
        assert_eq!(describe(&router.route(destination).await.answer), reply);
    }
}

#[tokio::test]
async fn dns_failures_defer_mail() {
    let lines = "
        servfail.example ! SERVFAIL
        refused.example ! REFUSED
        hang.example ! HANG
        refer.example ! REFER
        lie.example ! LIE
        circle.example 300 CNAME ring.example
        ring.example 300 CNAME circle.example
        self.example 300 CNAME self.example
        apart.example 300 CNAME trap.example
        trap.example 300 CNAME apart.example
        trap.example ! APART
        apart.example ! APART
        half.example 300 MX 10 down.example
        down.example ! SERVFAIL
        gone.example 300 MX 10 gone-mx.example
        glue.example ! GLUE
        glue.example 300 MX 10 mx.glue.example
        glue.example 300 A 192.0.2.1
        glue.example 300 AAAA 2001:db8::1";
    let (router, _zone) = router(lines).await;
    for (destination, reply) in [
        ("servfail.example", "4.4.3 DNS lookup of servfail.example failed: a name server answered"),
        ("refused.example", "4.4.3 DNS lookup of refused.example failed: a name server answered"),
        ("hang.example", "4.4.3 DNS lookup of hang.example failed: no name server answered in time"),
        ("refer.example", "4.4.3 DNS lookup of refer.example failed: a name server returned a referral"),
        ("glue.example", "4.4.3 DNS lookup of glue.example failed: a name server returned a referral"),
        ("lie.example", "4.4.3 DNS lookup of lie.example failed: a name server answered a different question"),
        ("circle.example", "4.4.3 DNS lookup of circle.example failed: CNAME loop"),
        ("self.example", "4.4.3 DNS lookup of self.example failed: CNAME loop"),
        ("apart.example", "4.4.3 DNS lookup of apart.example failed: CNAME loop"),
        ("half.example", "4.4.3 DNS lookup of half.example failed: a name server answered"),
        ("gone.example", "4.4.4 None of the MX hosts of gone.example has an address in the DNS"),
    ] {
        let route = router.route(destination).await;
        let said = describe(&route.answer);
        assert!(said.starts_with(&format!("defer 451 {reply}")) && route.transient, "{said}");
    }
}

/// Such mail was deferred until it expired.
#[tokio::test]
async fn hosts_that_stay_without_addresses_fail_after_a_few_lookups() {
    let lines = "
        gone.example 0 MX 10 gone-mx.example
        gone.example 0 MX 20 text.example
        child.text.example 300 A 192.0.2.1
        half.example 0 MX 10 gone-mx.example
        half.example 0 MX 20 down.example
        down.example ! SERVFAIL";
    let zone = TestNameServer::serve(lines).await;
    let mut config = config(&zone);
    (config.resolver.ttl_min, config.resolver.negative_ttl_max, config.resolver.failure_ttl) = Default::default();
    let slow = Router::new(config.clone()).unwrap();
    for _ in 0..9 {
        assert!(
            describe(&slow.route("gone.example").await.answer).starts_with("defer 451 4.4.4 "),
            "too early to fail"
        );
    }
    config.missing_addresses.time = Duration::ZERO;
    let router = Router::new(config.clone()).unwrap();
    let ask = async |destination: &str| describe(&router.route(destination).await.answer);
    let wait = "defer 451 4.4.4 None of the MX hosts of gone.example has an address in the DNS";
    let fail = "fail 550 5.4.4 Several lookups found no address for any MX host of gone.example in the DNS";
    for expected in [wait, wait, fail, fail] {
        assert_eq!(ask("gone.example").await, expected);
        assert!(ask("half.example").await.starts_with("defer 451 4.4.3 "), "one of its hosts may have an address");
    }
    config.missing_addresses.lookups = 0;
    let patient = Router::new(config).unwrap();
    for _ in 0..9 {
        assert_eq!(describe(&patient.route("gone.example").await.answer), wait);
    }
}

/// The address of an offline primary MX may be missing for that long.
#[tokio::test]
async fn a_backup_holds_mail_for_a_better_host_that_stays_without_an_address() {
    let lines = "
        backed.example 0 MX 10 home.dyndns.example
        backed.example 0 MX 20 mx.we.example
        mx.we.example 300 A 192.0.2.1";
    let zone = TestNameServer::serve(lines).await;
    let mut config = config(&zone);
    (config.resolver.ttl_min, config.resolver.negative_ttl_max, config.missing_addresses.time) = Default::default();
    let router = Router::new(config).unwrap();
    for _ in 0..9 {
        assert!(describe(&router.route("backed.example").await.answer).starts_with("defer 451 4.4.4 "));
    }
}

#[tokio::test]
async fn one_answer_counts_once_and_a_next_hop_that_an_operator_named_never_fails() {
    let lines = "gone.example 300 MX 10 gone-mx.example";
    let zone = TestNameServer::serve(lines).await;
    let rules = vec![rule("fixed.example smtp mx:gone.example")];
    let mut config = Config { rules, ..config(&zone) };
    config.missing_addresses.time = Duration::ZERO;
    let router = Router::new(config.clone()).unwrap();
    for _ in 0..9 {
        assert!(describe(&router.route("gone.example").await.answer).starts_with("defer 451 4.4.4 "));
    }
    (config.resolver.ttl_min, config.resolver.negative_ttl_max, config.missing_addresses.time) = Default::default();
    let router = Router::new(config).unwrap();
    for _ in 0..9 {
        assert!(describe(&router.route("fixed.example").await.answer).starts_with("defer 451 4.4.4 "));
    }
}

#[tokio::test]
async fn hosts_behind_the_first_thirty_two_count_too() {
    let mut lines = "late-mx.example 300 A 192.0.2.1\nlate.example 300 MX 99 late-mx.example\n".to_owned();
    for number in 0..40 {
        lines += &format!("late.example 300 MX {number} gone-{number}.example\n");
    }
    let RouteAnswer::Hosts(hosts) = answer(&lines, "late.example").await else { panic!("expected the last MX host") };
    assert_eq!(tiers(&hosts), "late-mx.example=192.0.2.1:25");
}

#[tokio::test]
async fn hosts_without_addresses_are_left_out_while_others_remain() {
    let lines = "
        example.org 300 MX 10 down.example.org
        example.org 300 MX 10 gone.example.org
        example.org 300 MX 10 half.example.org
        example.org 300 MX 20 hang.example.org
        down.example.org ! SERVFAIL
        hang.example.org ! HANG
        half.example.org ! NO_AAAA
        half.example.org 300 A 192.0.2.1";
    let RouteAnswer::Hosts(hosts) = answer(lines, "example.org").await else { panic!("expected one MX host") };
    assert_eq!(tiers(&hosts), "half.example.org=192.0.2.1:25");
    assert!(hosts.next_hop.contains("down.example.org:25,gone.example.org:25,half"), "{}", hosts.next_hop);
}

#[tokio::test]
async fn names_that_are_no_hosts_are_left_out() {
    let lines = "
        example.org 300 MX 10 192.0.2.66
        example.org 300 MX 10 *.example.org
        example.org 300 MX 10 .
        example.org 300 MX 20 mx_1.example.org
        mx_1.example.org 300 A 192.0.2.1
        address.example 300 MX 10 192.0.2.66";
    let (router, zone) = router(lines).await;
    let way = describe(&router.route("example.org").await.answer);
    assert_eq!(way, "smtp:mx_1.example.org:25 > mx_1.example.org=192.0.2.1:25");
    let way = describe(&router.route("address.example").await.answer);
    assert_eq!(way, "defer 451 4.4.4 None of the MX hosts of address.example has an address in the DNS");
    assert_eq!(zone.query_count("192.0.2.66 A"), 0);
}

#[tokio::test]
async fn mail_is_not_sent_to_this_host_or_to_worse_hosts() {
    let lines = "
        backup.example 300 MX 10 mx.they.example
        backup.example 300 MX 20 MX.We.example
        backup.example 300 MX 20 equal.they.example
        backup.example 300 MX 30 worse.they.example
        best.example 300 MX 10 mx.we.example
        best.example 300 MX 20 mx.they.example
        other-name.example 300 MX 10 alias.we.example
        hidden.example 300 MX 10 hang.they.example
        hidden.example 300 MX 20 alias.we.example
        alias.we.example 300 A 192.0.2.25
        bare.example 300 A 192.0.2.25
        mx.they.example 300 A 192.0.2.1
        equal.they.example 300 A 192.0.2.2
        worse.they.example 300 A 192.0.2.3
        hang.they.example ! HANG
        mx.we.example 300 A 192.0.2.25";
    let zone = TestNameServer::serve(lines).await;
    let own_addresses = vec!["192.0.2.25".parse().unwrap()];
    let router = Router::new(Config { own_addresses, ..config(&zone) }).unwrap();
    let backup = describe(&router.route("backup.example").await.answer);
    assert_eq!(backup, "smtp:mx.they.example:25 > mx.they.example=192.0.2.1:25");
    for destination in ["best.example", "other-name.example", "bare.example", "[192.0.2.25]"] {
        let loops = format!("fail 554 5.4.6 Mail for {destination} loops back to this host");
        assert_eq!(describe(&router.route(destination).await.answer), loops);
    }
    let hidden = describe(&router.route("hidden.example").await.answer);
    assert!(hidden.starts_with("defer 451 4.4.3 "), "{hidden}");
}

#[tokio::test]
async fn a_loopback_address_in_a_foreign_zone_is_this_host_at_our_port() {
    let lines = "
        here.example 300 MX 10 localhost.example
        mapped.example 300 AAAA ::ffff:127.0.0.1
        six.example 300 AAAA ::1
        none.example 300 A 0.0.0.0
        beside.example 300 MX 10 mx.they.example
        beside.example 300 MX 20 localhost.example
        localhost.example 300 A 127.0.0.9
        mx.they.example 300 A 192.0.2.1";
    let zone = TestNameServer::serve(lines).await;
    let rules = vec![rule("fixed.example smtp localhost.example"), rule("address.example smtp [127.0.0.9]")];
    let router = Router::new(Config { own_ports: vec![2525, 25], rules, ..config(&zone) }).unwrap();
    let strange = ["here", "mapped", "six", "none"].map(|name| format!("{name}.example"));
    for destination in strange.iter().map(|name| &**name).chain(["[127.0.0.9]", "[ipv6:::1]", "[0.0.0.0]"]) {
        let loops = format!("fail 554 5.4.6 Mail for {destination} loops back to this host");
        assert_eq!(describe(&router.route(destination).await.answer), loops);
    }
    for (destination, way) in [
        ("beside.example", "smtp:mx.they.example:25 > mx.they.example=192.0.2.1:25"),
        ("fixed.example", "smtp:localhost.example:25 > localhost.example=127.0.0.9:25"),
        ("address.example", "smtp:127.0.0.9:25 > 127.0.0.9=127.0.0.9:25"),
    ] {
        assert_eq!(describe(&router.route(destination).await.answer), way);
    }
}

#[tokio::test]
async fn a_loopback_at_another_port_is_a_host_and_no_address_never_is() {
    let lines = "
        here.example 300 A 127.0.0.9
        none.example 300 MX 10 mx.none.example
        mx.none.example 300 A 0.0.0.0
        mx.none.example 300 AAAA ::
        half.example 300 A 0.0.0.0
        half.example 300 AAAA 2001:db8::1";
    let zone = TestNameServer::serve(lines).await;
    let router = Router::new(Config { own_ports: vec![2525], ..config(&zone) }).unwrap();
    for (destination, way) in [
        ("here.example", "smtp:here.example:25 > here.example=127.0.0.9:25"),
        ("none.example", "defer 451 4.4.4 None of the MX hosts of none.example has an address in the DNS"),
        ("half.example", "smtp:half.example:25 > half.example=[2001:db8::1]:25"),
        ("[0.0.0.0]", "fail 550 5.4.4 This server does not send mail to addresses like 0.0.0.0"),
    ] {
        assert_eq!(describe(&router.route(destination).await.answer), way);
    }
}

#[tokio::test]
async fn a_hundred_mail_hosts_are_one_short_name_and_all_of_them_may_be_tried() {
    let mut lines = String::new();
    for number in 0..100 {
        lines += &format!("example.org 300 MX 10 a-host-of-many-{number}.example.org\n");
        lines += &format!("a-host-of-many-{number}.example.org 300 A 192.0.2.{number}\n");
    }
    let (router, zone) = router(&lines).await;
    let RouteAnswer::Hosts(hosts) = router.route("example.org").await.answer else { panic!("expected hosts") };
    assert_eq!(hosts.tiers.iter().flatten().flat_map(|host| &host.endpoints).count(), 100);
    assert!(hosts.next_hop.len() < 200, "{}", hosts.next_hop);
    assert!(zone.over_tcp() > 0, "100 MX hosts do not fit in a datagram");
    assert!(zone.query_count_total() < 210, "{}", zone.query_count_total());
}

#[tokio::test]
async fn a_domain_beyond_ascii_is_asked_for_in_a_labels() {
    let lines = "xn--mller-kva.example 300 MX 10 mx.xn--mller-kva.example
        mx.xn--mller-kva.example 300 A 192.0.2.1";
    let way = "smtp:mx.xn--mller-kva.example:25 > mx.xn--mller-kva.example=192.0.2.1:25";
    assert_eq!(describe_route(lines, "müller.example").await, way);
    assert_eq!(describe_route(lines, "MÜLLER.example").await, way);
}

#[tokio::test]
async fn a_transport_reaches_the_families_and_as_many_addresses_as_it_says() {
    let lines = "
        example.org 300 MX 10 mx.example.org
        mx.example.org 300 A 192.0.2.1
        mx.example.org 300 A 192.0.2.2
        mx.example.org 300 AAAA 2001:db8::1
        six.example 300 AAAA 2001:db8::2";
    let zone = TestNameServer::serve(lines).await;
    let reaching = |reach| {
        let endpoint_options = HashMap::from([("smtp".into(), reach)]);
        Router::new(Config { endpoint_options, ..config(&zone) }).unwrap()
    };
    let four = reaching(EndpointOptions { families: AddressFamilies::V4, port: 2525, ..EndpointOptions::default() });
    let way = "smtp:mx.example.org:2525 > mx.example.org=192.0.2.1:2525,192.0.2.2:2525";
    assert_eq!(describe(&four.route("example.org").await.answer), way);
    assert!(describe(&four.route("six.example").await.answer).starts_with("fail 550 5.4.4 "));
    assert!(describe(&four.route("[IPv6:2001:db8::2]").await.answer).starts_with("fail 550 5.4.4 "));
    assert_eq!(zone.query_count("mx.example.org AAAA"), 0);
    let six = reaching(EndpointOptions { families: AddressFamilies::V6, ..EndpointOptions::default() });
    let way = "smtp:mx.example.org:25 > mx.example.org=[2001:db8::1]:25";
    assert_eq!(describe(&six.route("example.org").await.answer), way);
    let two = reaching(EndpointOptions { addresses_max: 2, ..EndpointOptions::default() });
    let way = "smtp:mx.example.org:25 > mx.example.org=[2001:db8::1]:25,192.0.2.1:25";
    assert_eq!(describe(&two.route("example.org").await.answer), way);
}

/// `pattern transport next-hop`; the next hop may be omitted.
fn rule(text: &str) -> RouteRule {
    let fields: Vec<&str> = text.split(' ').collect();
    let next_hop = fields.get(2).map(|hop| hop.parse().unwrap());
    RouteRule { pattern: fields[0].parse().unwrap(), transport: fields[1].into(), next_hop, next_hop_table: None }
}

#[tokio::test]
async fn the_first_matching_rule_names_the_route() {
    let lines = "
        relay.example 300 A 192.0.2.1
        relay.example 300 MX 10 not-asked-for.example
        pool.example 300 MX 10 relay.example
        null.example 300 MX 0 .
        slow.example 300 MX 10 relay.example
        mx.we.example 300 A 192.0.2.25";
    let zone = TestNameServer::serve(lines).await;
    let rules = [
        "exact.example relay relay.example:2525",
        "*.sub.example relay relay.example",
        "beside.example relay mx.we.example:2525",
        "pool-of.example relay mx:pool.example",
        "lists.example lmtp unix:/run/lists",
        "fixed.example relay [192.0.2.7]:26",
        "fixed6.example relay [IPv6:2001:db8::7]",
        "lost.example relay lost-relay.example",
        "nowhere.example relay mx:nowhere-else.example",
        "nobody.example relay mx:null.example",
        "slow.example slow",
        "ours.example relay relay.example",
        "xn--mller-kva.example relay [192.0.2.8]",
        "[2001:db8::5] relay [192.0.2.9]",
        "* relay [192.0.2.10]",
    ];
    let rules = rules.into_iter().map(rule).collect();
    let domains = HashMap::from([("Ours.example".into(), local_domain("maildir"))]);
    let router = Router::new(Config { rules, domains, ..config(&zone) }).unwrap();
    for (destination, way) in [
        ("exact.example", "relay:relay.example:2525 > relay.example=192.0.2.1:2525"),
        ("a.b.sub.example", "relay:relay.example:25 > relay.example=192.0.2.1:25"),
        ("sub.example", "relay:192.0.2.10:25 > 192.0.2.10=192.0.2.10:25"),
        ("beside.example", "relay:mx.we.example:2525 > mx.we.example=192.0.2.25:2525"),
        ("pool-of.example", "relay:relay.example:25 > relay.example=192.0.2.1:25"),
        ("lists.example", "lmtp:unix:/run/lists > /run/lists=/run/lists"),
        ("fixed.example", "relay:192.0.2.7:26 > 192.0.2.7=192.0.2.7:26"),
        ("fixed6.example", "relay:[2001:db8::7]:25 > 2001:db8::7=[2001:db8::7]:25"),
        ("lost.example", "defer 451 4.4.4 lost-relay.example has neither an MX host nor an address in the DNS"),
        ("nowhere.example", "defer 451 4.1.2 mx:nowhere-else.example does not exist in the DNS"),
        ("nobody.example", "defer 451 4.1.10 mx:null.example does not accept mail (null MX)"),
        ("[IPv6:2001:DB8::5]", "relay:192.0.2.9:25 > 192.0.2.9=192.0.2.9:25"),
        ("slow.example", "slow:relay.example:25 > relay.example=192.0.2.1:25"),
        ("ours.example", "local maildir"),
        ("müller.example", "relay:192.0.2.8:25 > 192.0.2.8=192.0.2.8:25"),
        ("[192.0.2.77]", "relay:192.0.2.10:25 > 192.0.2.10=192.0.2.10:25"),
        ("any.other.example", "relay:192.0.2.10:25 > 192.0.2.10=192.0.2.10:25"),
    ] {
        assert_eq!(describe(&router.route(destination).await.answer), way, "{destination}");
    }
}

#[tokio::test]
async fn a_literal_is_the_address_in_it() {
    let (router, zone) = router("").await;
    for (destination, way) in [
        ("[192.0.2.1]", "smtp:192.0.2.1:25 > 192.0.2.1=192.0.2.1:25"),
        ("[ipv6:2001:db8::1]", "smtp:[2001:db8::1]:25 > 2001:db8::1=[2001:db8::1]:25"),
    ] {
        assert_eq!(describe(&router.route(destination).await.answer), way);
    }
    assert_eq!(zone.query_count_total(), 0);
}

#[tokio::test]
async fn the_machine_that_stores_a_mailbox_is_reached_by_its_addresses() {
    let lines = "
        store.we.example 300 A 192.0.2.1
        store.we.example 300 MX 10 mx.we.example";
    let zone = TestNameServer::serve(lines).await;
    let domains = HashMap::from([("we.example".into(), local_domain("maildir"))]);
    let rules = vec![rule("* relay [192.0.2.10]")];
    let config = Config { domains, rules, mail_host_transport: "inner".into(), ..config(&zone) };
    let router = Router::new(config).unwrap();
    for (destination, way) in [
        ("store.we.example!we.example", "inner:store.we.example:25 > store.we.example=192.0.2.1:25"),
        ("store.we.example:24!we.example", "inner:store.we.example:24 > store.we.example=192.0.2.1:24"),
        ("[192.0.2.7]:26!we.example", "inner:192.0.2.7:26 > 192.0.2.7=192.0.2.7:26"),
        (
            "lost.we.example!we.example",
            "defer 451 4.4.4 lost.we.example has neither an MX host nor an address in the DNS",
        ),
        ("mx:we.example!we.example", "defer 451 4.3.5 The directory names an invalid mail host: 'mx:we.example'"),
    ] {
        assert_eq!(describe(&router.route(destination).await.answer), way, "{destination}");
    }
}

/// Whoever gives the address of a recipient chooses the hosts of its domain; logins must not go there.
#[tokio::test]
async fn a_next_hop_is_configured_only_if_the_configuration_names_it() {
    let lines = "
        far.example 300 MX 10 mx.far.example
        mx.far.example 300 A 192.0.2.3
        relay.example 300 A 192.0.2.4";
    let zone = TestNameServer::serve(lines).await;
    let domains = HashMap::from([("we.example".into(), local_domain("maildir"))]);
    let rules = vec![
        rule("a.example smtp relay.example"),
        rule("b.example smtp [192.0.2.10]"),
        rule("c.example smtp mx:far.example"),
        rule("d.example smtp unix:/run/lmtp"),
    ];
    let router = Router::new(Config { domains, rules, ..config(&zone) }).unwrap();
    for (destination, is_configured) in [
        ("a.example", true),
        ("b.example", true),
        ("c.example", true),
        ("d.example", true),
        ("far.example", false),
        ("[192.0.2.7]", false),
        ("relay.example!we.example", false),
    ] {
        let RouteAnswer::Hosts(hosts) = router.route(destination).await.answer else { panic!("{destination}") };
        assert_eq!(hosts.is_configured, is_configured, "{destination}");
    }
}

/// A table of `key value` lines; it is unavailable for keys with the value `DOWN`.
struct ScriptedTable(&'static str, &'static [(&'static str, &'static str)]);

impl Table for ScriptedTable {
    fn name(&self) -> &str {
        self.0
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        let answer = |key: &&str| match self.1.iter().find(|(own, _)| own == key).map(|(_, value)| *value) {
            None => lookup::LookupAnswer::NotFound,
            Some("DOWN") => lookup::LookupAnswer::Unavailable("it is down".into()),
            Some("") => lookup::LookupAnswer::Found(Vec::new()),
            Some(value) => lookup::LookupAnswer::Found(vec![value.into()]),
        };
        Box::pin(std::future::ready(keys.iter().map(answer).collect()))
    }
}

#[tokio::test]
async fn tables_say_which_domains_are_ours_and_which_next_hop_takes_others() {
    let zone = TestNameServer::serve("far.example 300 MX 10 mx.far.example\n mx.far.example 300 A 192.0.2.3").await;
    let ours = ScriptedTable("ours", &[("here.example", ""), ("down.example", "DOWN")]);
    let passed = ScriptedTable("passed", &[("beyond.example", "any value")]);
    let hops = [
        ("a.example", "[192.0.2.1]:2525"),
        (".b.example", "[192.0.2.2]"),
        ("x.b.example", "[192.0.2.4]"),
        ("here.example", "[192.0.2.99]"),
        ("mx.example", "mx:far.example"),
        ("wrong.example", "a b"),
        ("far.example", ""),
        ("silent.example", "DOWN"),
    ];
    let tables: [Arc<dyn Table>; 3] =
        [Arc::new(ours), Arc::new(passed), Arc::new(ScriptedTable("hops", Box::leak(Box::new(hops))))];
    let beyond = DomainRoute { transport: "lmtp".into(), next_hop: "unix:/run/lmtp".parse().ok() };
    let domain_tables = vec![
        DomainTableRoute { table: "ours".into(), route: local_domain("maildir") },
        DomainTableRoute { table: "passed".into(), route: beyond },
    ];
    let rules = vec![RouteRule { next_hop_table: Some("hops".into()), ..rule("* relay") }, rule("* rest [192.0.2.77]")];
    let config = Config { domain_tables, rules, ..config(&zone) };
    let ttl = config.table_ttl;
    let router = Router::new(config).unwrap().with_tables(tables);
    for (destination, way) in [
        ("Here.example", "local maildir"),
        ("beyond.example", "lmtp:unix:/run/lmtp > /run/lmtp=/run/lmtp"),
        ("down.example", "defer 451 4.3.0 Cannot look up the route of down.example: it is down"),
        ("a.example", "relay:192.0.2.1:2525 > 192.0.2.1=192.0.2.1:2525"),
        ("b.example", "rest:192.0.2.77:25 > 192.0.2.77=192.0.2.77:25"),
        ("y.z.b.example", "relay:192.0.2.2:25 > 192.0.2.2=192.0.2.2:25"),
        ("x.b.example", "relay:192.0.2.4:25 > 192.0.2.4=192.0.2.4:25"),
        ("mx.example", "relay:mx.far.example:25 > mx.far.example=192.0.2.3:25"),
        ("far.example", "relay:mx.far.example:25 > mx.far.example=192.0.2.3:25"),
        ("wrong.example", "defer 451 4.3.5 Table 'hops' has an invalid next hop for wrong.example: 'a b'"),
        ("silent.example", "defer 451 4.3.0 Cannot look up the route of silent.example: it is down"),
    ] {
        let route = router.route(destination).await;
        assert_eq!(describe(&route.answer), way, "{destination}");
        assert!(route.valid_for <= ttl, "cached for too long: {:?}", route.valid_for);
    }
}
