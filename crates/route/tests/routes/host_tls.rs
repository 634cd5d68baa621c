//! What hosts must prove by TLS: DANE with signed and unsigned zones, MTA-STS policies that are
//! known, and verified transports.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dns::{QueryConfig, ResolverConfig};
use mail::{DomainTlsPolicy, OperatorLog, StsTest};
use mta_sts::{FetchConfig, PolicyCache};
use route::{Config, Route, RouteAnswer, RouteRule, Router, TlsDemand, TlsOptions};
use sim_dns::TestNameServer;
use tempfile::TempDir;

/// A signed zone with a host at an address, without TLSA records.
const SIGNED: &str = "d.example ! SIGNED
    d.example 300 MX 10 mx.d.example
    mx.d.example ! SIGNED
    mx.d.example 300 A 192.0.2.1\n";
/// A digest of the right length; the test server takes it as text.
const DIGEST: &str = "0123456789abcdef0123456789abcdef";

/// A route to a domain in a test zone, as the hosts with what they must prove, and the notes.
struct Case {
    options: TlsOptions,
    validating: bool,
    policies: Option<Arc<PolicyCache>>,
    rules: Vec<RouteRule>,
}

impl Case {
    fn demanding(demand: TlsDemand) -> Case {
        let options = TlsOptions { demand, names: Vec::new(), mta_sts: true };
        Case { options, validating: true, policies: None, rules: Vec::new() }
    }

    async fn resolve(&self, lines: &str, destination: &str) -> Route {
        let zone = TestNameServer::serve(lines).await;
        let query = QueryConfig {
            servers: vec![zone.address],
            timeout: Duration::from_secs(2),
            attempts: 1,
            validating: self.validating,
            ..QueryConfig::default()
        };
        let config = Config {
            resolver: ResolverConfig { query, ..ResolverConfig::default() },
            tls_options: [("smtp".into(), self.options.clone())].into(),
            sts_policies: self.policies.clone(),
            rules: self.rules.clone(),
            ..Config::new("mx.we.example")
        };
        Router::new(config).unwrap().route(destination).await
    }

    /// The failures for reports to the domain: the host, the policy and the result type.
    async fn failures(&self, lines: &str, destination: &str) -> Vec<(Option<Box<str>>, DomainTlsPolicy, &'static str)> {
        let failures = self.resolve(lines, destination).await.tls_failures;
        failures.into_iter().map(|failed| (failed.host, failed.policy, failed.failure.as_str())).collect()
    }

    async fn route(&self, lines: &str, destination: &str) -> String {
        let route = self.resolve(lines, destination).await;
        match route.answer {
            RouteAnswer::Hosts(hosts) => {
                let mut text = String::new();
                for host in hosts.tiers.iter().flatten() {
                    write!(text, "{}: {}; ", host.name, host.tls).unwrap();
                }
                hosts.tls_notes.iter().for_each(|note| write!(text, "[{note}]").unwrap());
                text.trim_end().to_owned()
            }
            RouteAnswer::Defer(reply) => format!("defer {reply}{}", if route.transient { " (transient)" } else { "" }),
            other => panic!("{other:?}"),
        }
    }
}

fn with_tlsa(records: &[&str]) -> String {
    let mut lines = SIGNED.to_owned() + "_25._tcp.mx.d.example ! SIGNED\n";
    records.iter().for_each(|record| writeln!(lines, "_25._tcp.mx.d.example 300 TLSA {record}").unwrap());
    lines
}

#[tokio::test]
async fn tlsa_records_count_if_everything_up_to_them_is_signed() {
    let dane = Case::demanding(TlsDemand::Dane);
    let usable = format!("3 1 1 {DIGEST}");
    let whole = with_tlsa(&[&usable]);
    let enforced = "mx.d.example: dane, by 1 TLSA record of mx.d.example;";
    assert_eq!(dane.route(&whole, "d.example").await, enforced);
    let plain = "mx.d.example: as the transport requires;";
    assert_eq!(dane.route(SIGNED, "d.example").await, plain);
    for unsigned in ["d.example ! SIGNED\n", "mx.d.example ! SIGNED\n", "_25._tcp.mx.d.example ! SIGNED\n"] {
        let lines = whole.replacen(unsigned, "", 1);
        assert_eq!(dane.route(&lines, "d.example").await, plain, "{unsigned}");
    }
    let unvalidated = Case { validating: false, ..Case::demanding(TlsDemand::Dane) };
    assert_eq!(unvalidated.route(&whole, "d.example").await, plain);
    assert_eq!(Case::demanding(TlsDemand::Nothing).route(&whole, "d.example").await, plain);
}

#[tokio::test]
async fn of_several_records_the_usable_ones_count_and_without_any_tls_is_required() {
    let dane = Case::demanding(TlsDemand::Dane);
    let records = [format!("3 1 1 {DIGEST}"), format!("2 0 1 {DIGEST}"), format!("1 0 1 {DIGEST}")];
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    let text = dane.route(&with_tlsa(&records), "d.example").await;
    assert_eq!(text, "mx.d.example: dane, by 2 TLSA records of mx.d.example;");
    for unusable in
        [format!("0 1 1 {DIGEST}"), format!("3 1 2 {DIGEST}"), "3 1 1 0011".into(), format!("3 7 1 {DIGEST}")]
    {
        let text = dane.route(&with_tlsa(&[&unusable]), "d.example").await;
        assert_eq!(text, "mx.d.example: required, any certificate (no usable TLSA record);", "{unusable}");
    }
}

/// A domain with a hundred hosts once took as many queries at the same time from all others.
#[tokio::test]
async fn few_tlsa_records_of_a_domain_are_looked_up_at_the_same_time() {
    let mut lines = "d.example ! SIGNED\n".to_owned();
    for number in 0..60 {
        let host = format!("mx{number}.d.example");
        writeln!(lines, "d.example 300 MX 10 {host}\n{host} ! SIGNED\n{host} 300 A 192.0.2.1").unwrap();
        writeln!(lines, "_25._tcp.{host} ! SIGNED\n_25._tcp.{host} ! HOLD").unwrap();
    }
    let zone = TestNameServer::serve(&lines).await;
    let (servers, timeout) = (vec![zone.address], Duration::from_secs(20));
    let query = QueryConfig { servers, timeout, attempts: 1, validating: true, ..QueryConfig::default() };
    let options = TlsOptions { demand: TlsDemand::Dane, names: Vec::new(), mta_sts: false };
    let config = Config {
        resolver: ResolverConfig { query, ..ResolverConfig::default() },
        tls_options: [("smtp".into(), options)].into(),
        ..Config::new("mx.we.example")
    };
    let router = Router::new(config).unwrap();
    let held = async {
        zone.wait_until_held(32).await;
        // More would have been sent with these.
        tokio::time::sleep(Duration::from_millis(200)).await;
        zone.release_held();
    };
    let (route, ()) = tokio::join!(router.route("d.example"), held);
    assert!(matches!(route.answer, RouteAnswer::Hosts(_)), "{:?}", route.answer);
    assert_eq!(zone.held_max(), 32);
}

#[tokio::test]
async fn a_host_whose_tlsa_lookup_fails_is_left_out_and_without_another_one_mail_waits() {
    let dane = Case::demanding(TlsDemand::Dane);
    let broken = SIGNED.to_owned() + "_25._tcp.mx.d.example ! SERVFAIL\n";
    let text = dane.route(&broken, "d.example").await;
    assert!(
        text.starts_with("defer 451 4.7.5 No mail host of d.example meets its TLS policy: mx.d.example: the lookup"),
        "{text}"
    );
    assert!(text.ends_with("(transient)"), "{text}");
    let lines = broken
        + "d.example 300 MX 20 b.d.example
        b.d.example 300 A 192.0.2.2";
    let text = dane.route(&lines, "d.example").await;
    assert!(text.starts_with("b.d.example: as the transport requires; [mx.d.example is left out: "), "{text}");
}

/// RFC 7672 section 2.2.2: the name at the end of the aliases goes before the name in the MX.
#[tokio::test]
async fn the_base_domain_is_where_the_aliases_lead_or_else_the_name_itself() {
    let dane = Case::demanding(TlsDemand::Dane);
    let alias = "d.example ! SIGNED
        d.example 300 MX 10 mx.d.example
        mx.d.example ! SIGNED
        mx.d.example 300 CNAME end.e.example
        end.e.example ! SIGNED
        end.e.example 300 A 192.0.2.1
        _25._tcp.mx.d.example ! SIGNED\n"
        .to_owned()
        + &format!("_25._tcp.mx.d.example 300 TLSA 3 1 1 {DIGEST}\n");
    assert_eq!(dane.route(&alias, "d.example").await, "mx.d.example: dane, by 1 TLSA record of mx.d.example;");
    let both =
        alias.clone() + &format!("_25._tcp.end.e.example ! SIGNED\n_25._tcp.end.e.example 300 TLSA 3 1 1 {DIGEST}\n");
    assert_eq!(dane.route(&both, "d.example").await, "mx.d.example: dane, by 1 TLSA record of end.e.example;");
    let broken = alias + "_25._tcp.end.e.example ! SERVFAIL\n";
    assert!(dane.route(&broken, "d.example").await.starts_with("defer 451 4.7.5"));
}

const ALIAS: &str = "d.example ! SIGNED
    d.example 300 MX 10 mx.d.example
    mx.d.example ! SIGNED
    mx.d.example 300 CNAME mid.e.example
    mid.e.example ! SIGNED
    mid.e.example 300 CNAME end.e.example
    end.e.example ! SIGNED
    end.e.example 300 A 192.0.2.1
    _25._tcp.mx.d.example ! SIGNED
    _25._tcp.end.e.example ! SIGNED\n";

/// Who makes the lookup of an alias fail must not turn off the records at its end.
#[tokio::test]
async fn a_host_whose_alias_lookup_fails_is_left_out() {
    let dane = Case::demanding(TlsDemand::Dane);
    let lines = ALIAS.to_owned() + &format!("_25._tcp.end.e.example 300 TLSA 3 1 1 {DIGEST}\n");
    assert_eq!(dane.route(&lines, "d.example").await, "mx.d.example: dane, by 1 TLSA record of end.e.example;");
    for name in ["mx.d.example", "mid.e.example", "end.e.example"] {
        let text = dane.route(&format!("{lines}{name} ! NO_CNAME\n"), "d.example").await;
        assert!(text.starts_with("defer 451 4.7.5") && text.contains("the lookup of its alias failed"), "{text}");
    }
}

/// RFC 7672 section 2.2.2: if only the alias is signed, the records at its own name count.
#[tokio::test]
async fn a_signed_alias_of_an_unsigned_name_has_the_records_of_its_own() {
    let dane = Case::demanding(TlsDemand::Dane);
    let lines = ALIAS.replacen("end.e.example ! SIGNED\n", "", 1);
    let lines = lines + &format!("_25._tcp.mx.d.example 300 TLSA 3 1 1 {DIGEST}\n");
    assert_eq!(dane.route(&lines, "d.example").await, "mx.d.example: dane, by 1 TLSA record of mx.d.example;");
    let text = dane.route(&format!("{lines}mx.d.example ! NO_CNAME\n"), "d.example").await;
    assert!(text.starts_with("defer 451 4.7.5"), "{text}");
    let unsigned = lines.replacen("mx.d.example ! SIGNED\n", "", 1);
    assert_eq!(dane.route(&unsigned, "d.example").await, "mx.d.example: as the transport requires;");
}

#[tokio::test]
async fn a_domain_without_mx_and_a_configured_host_have_dane_at_their_port() {
    let lines = format!(
        "d.example ! SIGNED
        d.example 300 A 192.0.2.1
        _25._tcp.d.example ! SIGNED
        _25._tcp.d.example 300 TLSA 3 1 1 {DIGEST}
        relay.example ! SIGNED
        relay.example 300 A 192.0.2.2
        _2525._tcp.relay.example ! SIGNED
        _2525._tcp.relay.example 300 TLSA 3 1 1 {DIGEST}"
    );
    let rule = RouteRule {
        pattern: "relayed.example".parse().unwrap(),
        transport: "smtp".into(),
        next_hop: Some("relay.example:2525".parse().unwrap()),
        next_hop_table: None,
    };
    let dane = Case { rules: vec![rule], ..Case::demanding(TlsDemand::Dane) };
    assert_eq!(dane.route(&lines, "d.example").await, "d.example: dane, by 1 TLSA record of d.example;");
    assert_eq!(dane.route(&lines, "relayed.example").await, "relay.example: dane, by 1 TLSA record of relay.example;");
}

#[tokio::test]
async fn a_verified_transport_demands_names_that_nobody_can_forge() {
    let verified = Case::demanding(TlsDemand::Verified);
    let foreign = "d.example 300 MX 10 mx.elsewhere.example
        mx.elsewhere.example 300 A 192.0.2.1";
    let text = verified.route(foreign, "d.example").await;
    assert_eq!(text, "mx.elsewhere.example: verified, certificate for d.example;");
    let signed = format!("d.example ! SIGNED\n{foreign}");
    let text = verified.route(&signed, "d.example").await;
    assert_eq!(text, "mx.elsewhere.example: verified, certificate for d.example or mx.elsewhere.example;");
    let text = verified.route(&with_tlsa(&[&format!("3 1 1 {DIGEST}")]), "d.example").await;
    assert_eq!(text, "mx.d.example: verified, certificate for d.example or mx.d.example;");
    assert_eq!(verified.route("", "[192.0.2.7]").await, "192.0.2.7: verified, certificate for 192.0.2.7;");
}

struct NoLog;

impl OperatorLog for NoLog {
    fn log_line(&self, _: std::fmt::Arguments<'_>) {}
}

/// Policies that were fetched before, in a folder.
fn policies(folder: &TempDir, domain: &str, mode: &str, mx: &str) -> Arc<PolicyCache> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let text = format!("id: 1\nfetched: {now}\nversion: STSv1\nmode: {mode}\nmx: {mx}\nmax_age: 86400\n");
    std::fs::write(folder.path().join(domain), text).unwrap();
    // The test zones have no policy hosts, so nothing is fetched.
    Arc::new(PolicyCache::new(folder.path(), FetchConfig::default(), Arc::new(NoLog)))
}

const STS: &str = "_mta-sts.d.example 300 TXT v=STSv1; id=1;
    d.example 300 MX 10 mx.d.example
    d.example 300 MX 20 mx.other.example
    mx.d.example 300 A 192.0.2.1
    mx.other.example 300 A 192.0.2.2\n";

#[tokio::test]
async fn an_enforced_policy_demands_the_names_of_its_hosts_and_leaves_out_all_others() {
    let folder = TempDir::new().unwrap();
    let case = |mode: &str, mx: &str| Case {
        policies: Some(policies(&folder, "d.example", mode, mx)),
        validating: false,
        ..Case::demanding(TlsDemand::Nothing)
    };
    let text = case("enforce", "*.d.example").route(STS, "d.example").await;
    assert!(
        text.starts_with("mx.d.example: mta-sts, certificate for mx.d.example; [MTA-STS policy of d.example: enforce, id 1, valid for 24 h; mail waits if no host meets it]"),
        "{text}"
    );
    assert!(text.ends_with("[mx.other.example is left out: the domain's MTA-STS policy does not name it]"), "{text}");
    let text = case("enforce", "mx.third.example").route(STS, "d.example").await;
    assert!(text.starts_with("defer 451 4.7.5 No mail host of d.example meets its TLS policy"), "{text}");
    let text = case("testing", "mx.third.example").route(STS, "d.example").await;
    assert!(text.starts_with("mx.d.example: as the transport requires; mx.other.example: as"), "{text}");
    assert!(text.contains("it is tried out and reported, not enforced]"), "{text}");
    assert!(text.ends_with("[mx.other.example is not named by the policy, and would be left out]"), "{text}");
    let off = Case { options: TlsOptions::NONE, ..case("enforce", "mx.third.example") };
    assert_eq!(
        off.route(STS, "d.example").await,
        "mx.d.example: as the transport requires; mx.other.example: as the transport requires;"
    );
}

fn sts(mode: &str, mx: &str) -> DomainTlsPolicy {
    let lines = ["version: STSv1".into(), format!("mode: {mode}"), format!("mx: {mx}"), "max_age: 86400".into()];
    DomainTlsPolicy::Sts(Some(lines.into_iter().map(Into::into).collect()))
}

#[tokio::test]
async fn hosts_that_are_left_out_are_reported_to_the_domain_and_not_for_a_next_hop_of_the_operator() {
    let folder = TempDir::new().unwrap();
    let case = |mode: &str, mx: &str| Case {
        policies: Some(policies(&folder, "d.example", mode, mx)),
        validating: false,
        ..Case::demanding(TlsDemand::Nothing)
    };
    let other = (Some("mx.other.example".into()), sts("enforce", "*.d.example"), "validation-failure");
    assert_eq!(case("enforce", "*.d.example").failures(STS, "d.example").await, [other]);
    let failures = case("enforce", "*.d.example").resolve(STS, "d.example").await.tls_failures;
    assert_eq!(failures[0].reason.as_deref(), Some("mx-host-not-in-policy"));
    // Without any host, too.
    let third = case("enforce", "mx.third.example");
    assert_eq!(third.failures(STS, "d.example").await.len(), 2);
    assert_eq!(case("testing", "mx.third.example").failures(STS, "d.example").await, []);
    let rule = RouteRule {
        pattern: "relayed.example".parse().unwrap(),
        transport: "smtp".into(),
        next_hop: Some("mx:d.example".parse().unwrap()),
        next_hop_table: None,
    };
    assert_eq!(Case { rules: vec![rule], ..third }.failures(STS, "relayed.example").await, []);
    let broken = with_tlsa(&[]) + "_25._tcp.mx.d.example ! SERVFAIL\n";
    let failed = (Some("mx.d.example".into()), DomainTlsPolicy::Tlsa(None), "dnssec-invalid");
    assert_eq!(Case::demanding(TlsDemand::Dane).failures(&broken, "d.example").await, [failed]);
}

#[tokio::test]
async fn a_policy_that_is_tried_out_goes_with_the_hosts() {
    let folder = TempDir::new().unwrap();
    for (mode, expected) in [("testing", [Some(StsTest::Named), Some(StsTest::NotNamed)]), ("enforce", [None; 2])] {
        let case = Case {
            policies: Some(policies(&folder, "d.example", mode, "mx.d.example")),
            validating: false,
            ..Case::demanding(TlsDemand::Nothing)
        };
        let route = case.resolve(STS, "d.example").await;
        let RouteAnswer::Hosts(hosts) = route.answer else { panic!("hosts") };
        for (host, test) in hosts.tiers.iter().flatten().zip(expected) {
            let rule = host.sts.as_ref().unwrap();
            assert_eq!((DomainTlsPolicy::Sts(Some(rule.policy.clone())), rule.test), (sts(mode, "mx.d.example"), test));
        }
    }
}

#[tokio::test]
async fn hosts_that_are_left_out_use_up_no_addresses() {
    let folder = TempDir::new().unwrap();
    let mut lines = STS.replacen("MX 10 mx.d.example", "MX 30 mx.d.example", 1);
    for host in 0..3 {
        writeln!(lines, "d.example 300 MX 10 a{host}.d.example").unwrap();
        (0..100).for_each(|last| writeln!(lines, "a{host}.d.example 300 A 192.0.2.{last}").unwrap());
    }
    let case = Case {
        policies: Some(policies(&folder, "d.example", "enforce", "mx.d.example")),
        validating: false,
        ..Case::demanding(TlsDemand::Nothing)
    };
    let text = case.route(&lines, "d.example").await;
    assert!(text.starts_with("mx.d.example: mta-sts, certificate for mx.d.example;"), "{text}");
}

/// A record that is gone, or a name server that does not answer, must not undo a policy; nor a
/// newer one that cannot be fetched.
#[tokio::test]
async fn a_known_policy_counts_without_its_record() {
    let folder = TempDir::new().unwrap();
    let case = Case {
        policies: Some(policies(&folder, "d.example", "enforce", "*.d.example")),
        validating: false,
        ..Case::demanding(TlsDemand::Nothing)
    };
    let record = "_mta-sts.d.example 300 TXT v=STSv1; id=1;\n";
    for other in ["", "_mta-sts.d.example ! SERVFAIL\n", "_mta-sts.d.example 300 TXT v=STSv1; id=2;\n"] {
        let text = case.route(&STS.replacen(record, other, 1), "d.example").await;
        assert!(text.starts_with("mx.d.example: mta-sts, certificate for mx.d.example; ["), "{other}: {text}");
        assert_eq!(text.contains("cannot be fetched"), other.contains("id=2"), "{text}");
    }
}

#[tokio::test]
async fn dane_goes_before_mta_sts() {
    let folder = TempDir::new().unwrap();
    let case = Case {
        policies: Some(policies(&folder, "d.example", "enforce", "mx.d.example")),
        ..Case::demanding(TlsDemand::Dane)
    };
    let lines = with_tlsa(&[&format!("3 1 1 {DIGEST}")]);
    assert!(case.route(&lines, "d.example").await.starts_with("mx.d.example: dane, by 1 TLSA record"));
    assert!(case.route(SIGNED, "d.example").await.starts_with("mx.d.example: mta-sts, certificate for mx.d.example"));
    let unusable = with_tlsa(&[&format!("0 1 1 {DIGEST}")]);
    assert!(case.route(&unusable, "d.example").await.starts_with("mx.d.example: mta-sts, certificate"));
}
