//! DNS queries: shared, limited in number, and repeated only after answers expire.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dns::{QueryConfig, ResolverConfig};
use route::{Config, Route, RouteAnswer, Router};
use sim_dns::{NEGATIVE_TTL, TestNameServer};
use tokio::task::JoinSet;

fn with_query(query: QueryConfig) -> ResolverConfig {
    ResolverConfig { query, ..ResolverConfig::default() }
}

/// A test zone, and a router for it with changed settings.
async fn router(lines: &str, change: impl FnOnce(&mut ResolverConfig)) -> (Arc<Router>, TestNameServer) {
    let zone = TestNameServer::serve(lines).await;
    let timeout = Duration::from_secs(20);
    let mut resolver =
        with_query(QueryConfig { servers: vec![zone.address], timeout, attempts: 1, ..QueryConfig::default() });
    change(&mut resolver);
    let router = Router::new(Config { resolver, ..Config::new("mx.we.example") }).unwrap();
    (Arc::new(router), zone)
}

/// Resolves all destinations concurrently, each in its own task.
fn spawn_all(router: &Arc<Router>, destinations: impl IntoIterator<Item = String>) -> JoinSet<Route> {
    let mut asking = JoinSet::new();
    for destination in destinations {
        let router = router.clone();
        asking.spawn(async move { router.route(&destination).await });
    }
    asking
}

fn has_hosts(route: &Route) -> bool {
    matches!(route.answer, RouteAnswer::Hosts(_))
}

fn assert_about(actual: Duration, seconds: u64) {
    let expected = Duration::from_secs(seconds);
    assert!(actual <= expected && actual + Duration::from_secs(10) > expected, "{actual:?} is not {expected:?}");
}

#[tokio::test]
async fn concurrent_lookups_of_a_name_share_one_query() {
    let lines = "slow.example ! HOLD
        slow.example 300 MX 10 mx.example
        mx.example 300 A 192.0.2.1";
    let (router, zone) = router(lines, |_| ()).await;
    let asking = spawn_all(&router, (0..100).map(|_| "slow.example".into()));
    zone.wait_until_held(1).await;
    zone.release_held();
    assert!(asking.join_all().await.iter().all(has_hosts));
    assert_eq!((zone.query_count("slow.example MX"), zone.query_count("mx.example A")), (1, 1));
}

#[tokio::test]
async fn a_cancelled_lookup_does_not_cancel_the_shared_query() {
    let lines = "slow.example ! HOLD
        slow.example 300 MX 10 mx.example
        mx.example 300 A 192.0.2.1";
    let (router, zone) = router(lines, |_| ()).await;
    let mut first = spawn_all(&router, ["slow.example".into()]);
    zone.wait_until_held(1).await;
    let second = spawn_all(&router, ["slow.example".into()]);
    first.shutdown().await;
    zone.release_held();
    assert!(second.join_all().await.iter().all(has_hosts));
}

#[tokio::test]
async fn concurrent_queries_are_bounded_and_a_slow_name_takes_one_permit() {
    let mut lines = "popular.example ! HOLD\n popular.example 300 A 192.0.2.1\n".to_owned();
    for number in 0..30 {
        lines += &format!("shares{number}.example 300 MX 10 popular.example\n");
        lines += &format!("slow{number}.example ! HOLD\n slow{number}.example 300 A 192.0.2.2\n");
    }
    let (router, zone) = router(&lines, |dns| dns.query.concurrency_max = 4).await;
    let sharing = spawn_all(&router, (0..30).map(|number| format!("shares{number}.example")));
    zone.wait_until_held(2).await;
    // All thirty lookups share the two queries for the popular host; two more queries are allowed.
    let quick = router.route("quick.example").await;
    assert!(matches!(quick.answer, RouteAnswer::Fail(_)));
    let slow = spawn_all(&router, (0..30).map(|number| format!("slow{number}.example")));
    zone.wait_until_held(4).await;
    zone.release_held();
    assert!(sharing.join_all().await.iter().all(has_hosts));
    assert!(slow.join_all().await.iter().all(has_hosts));
    assert_eq!(zone.held_max(), 4);
}

#[tokio::test]
async fn a_route_is_valid_as_long_as_its_records() {
    let lines = "
        mx.example 900 MX 10 host.example
        host.example 600 A 192.0.2.1
        host.example 700 A 192.0.2.2
        host.example 800 AAAA 2001:db8::1
        zero.example 0 MX 10 long.example
        huge.example 4294967295 MX 10 long.example
        long.example 2147483647 A 192.0.2.1
        long.example 2147483647 AAAA 2001:db8::1
        alias.example 120 CNAME mx.example
        null.example 500 MX 0 .
        broken.example ! SERVFAIL";
    let (router, _zone) = router(lines, |_| ()).await;
    for (destination, seconds) in [
        ("mx.example", 600),
        ("zero.example", 5),
        ("huge.example", 3600),
        ("alias.example", 120),
        ("null.example", 500),
        ("none.example", u64::from(NEGATIVE_TTL)),
        ("broken.example", 30),
        ("[192.0.2.1]", 3600),
    ] {
        assert_about(router.route(destination).await.valid_for, seconds);
    }
}

#[tokio::test]
async fn cached_answers_are_not_queried_again() {
    let lines = "
        mx.example 0 MX 10 host.example
        host.example 300 A 192.0.2.1
        broken.example ! SERVFAIL";
    let (router, zone) = router(lines, |_| ()).await;
    for destination in ["mx.example", "none.example", "broken.example"] {
        let first = router.route(destination).await;
        let asked = zone.query_count_total();
        let second = router.route(destination).await;
        assert_eq!((&second.answer, zone.query_count_total()), (&first.answer, asked), "{destination}");
        assert!(second.valid_for < first.valid_for, "the remaining lifetime shrinks");
    }
}

#[tokio::test]
async fn expired_answers_are_queried_again() {
    let lines = "
        mx.example 0 MX 10 host.example
        host.example 300 A 192.0.2.1
        host.example 300 AAAA 2001:db8::1";
    let (router, zone) = router(lines, |dns| dns.ttl_min = Duration::ZERO).await;
    for times in 1..4 {
        assert!(has_hosts(&router.route("mx.example").await));
        assert_eq!((zone.query_count("mx.example MX"), zone.query_count("host.example A")), (times, 1));
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_puts_mail_off_within_the_time_that_is_allowed() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let dead = socket.local_addr().unwrap();
    drop(socket);
    let resolver =
        with_query(QueryConfig { servers: vec![dead], timeout: Duration::from_millis(200), ..QueryConfig::default() });
    let (patience, start) = (resolver.query.total_timeout(), Instant::now());
    let router = Router::new(Config { resolver, ..Config::new("mx.we.example") }).unwrap();
    let RouteAnswer::Defer(reply) = router.route("example.org").await.answer else { panic!("expected a deferral") };
    let text = reply.to_string();
    assert!(text.starts_with("451 4.4.3 DNS lookup of example.org failed: no name server "), "{text}");
    assert!(start.elapsed() < patience + Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test]
async fn the_next_server_answers_where_one_is_silent() {
    let (silent, zone) =
        (TestNameServer::serve("mx.example ! HANG").await, TestNameServer::serve("mx.example 300 A 192.0.2.1").await);
    let servers = vec![silent.address, zone.address];
    let resolver = with_query(QueryConfig { servers, timeout: Duration::from_secs(20), ..QueryConfig::default() });
    let router = Router::new(Config { resolver, ..Config::new("mx.we.example") }).unwrap();
    assert!(has_hosts(&router.route("mx.example").await));
}

#[tokio::test]
async fn one_good_server_is_enough_wherever_it_stands() {
    let good = "mx.example 300 MX 10 host.example\n host.example 300 A 192.0.2.1";
    for fault in ["REFUSED", "SERVFAIL", "REFER", "LIE"] {
        for place in 0..4 {
            let (zone, mut servers) = (TestNameServer::serve(good).await, Vec::new());
            let broken = TestNameServer::serve(&format!("mx.example ! {fault}\n host.example ! {fault}")).await;
            servers.resize(3, broken.address);
            servers.insert(place, zone.address);
            let resolver = with_query(QueryConfig {
                servers,
                timeout: Duration::from_secs(20),
                attempts: 1,
                ..QueryConfig::default()
            });
            let router = Router::new(Config { resolver, ..Config::new("mx.we.example") }).unwrap();
            assert!(has_hosts(&router.route("mx.example").await), "{fault} at {place}");
        }
    }
}

#[tokio::test]
async fn a_server_that_fails_for_once_is_asked_again_as_often_as_there_are_tries() {
    let (router, zone) = router("broken.example ! SERVFAIL", |dns| dns.query.attempts = 3).await;
    let RouteAnswer::Defer(reply) = router.route("broken.example").await.answer else { panic!("expected a deferral") };
    assert!(reply.to_string().contains("a name server answered"), "{reply}");
    assert_eq!(zone.query_count("broken.example MX"), 3);
}

/// Mail was deferred until it expired if the name server did not support EDNS (RFC 6891).
#[tokio::test]
async fn a_server_that_refuses_edns_is_asked_without_it() {
    for fault in ["FORMERR", "NOTIMP", "BADVERS"] {
        let lines = format!("mx.example ! {fault}\n mx.example 300 A 192.0.2.1");
        let (router, zone) = router(&lines, |_| ()).await;
        assert!(has_hosts(&router.route("mx.example").await), "{fault}");
        assert_eq!(zone.query_count("mx.example MX"), 2, "{fault}");
    }
}

#[tokio::test]
async fn a_server_that_drops_what_has_edns_is_asked_again_without_it() {
    let lines = "mx.example ! DROPS\n mx.example 300 A 192.0.2.1";
    let quick = |dns: &mut ResolverConfig| (dns.query.timeout, dns.query.attempts) = (Duration::from_secs(3), 2);
    let (router, _zone) = router(lines, quick).await;
    assert!(has_hosts(&router.route("mx.example").await));
}
