//! The counters of tables. A table that is entirely in memory has none and is left out.

use lookup::{LookupStats, ReplicaStats};

use super::families::{MetricFamilies, MetricKind};

/// A counter or value of a table.
type StatsField = fn(&LookupStats) -> u64;

/// Metrics with one sample for each table, before and after the histograms.
const CACHE: [(&str, &str, MetricKind, StatsField); 6] = [
    ("mailrace_table_cache_hits_total", "Keys answered from the cache before expiry", MetricKind::Counter, |stats| {
        stats.hits
    }),
    (
        "mailrace_table_stale_total",
        "Keys answered from the cache after expiry, because the backend failed",
        MetricKind::Counter,
        |stats| stats.stale,
    ),
    ("mailrace_table_cached", "Entries in the cache", MetricKind::Gauge, |stats| stats.cached),
    ("mailrace_table_joined_total", "Keys that joined a pending request", MetricKind::Counter, |stats| stats.joined),
    ("mailrace_table_waiting", "Keys waiting for the backend", MetricKind::Gauge, |stats| stats.waiting),
    ("mailrace_table_down", "Whether the backend is down and not queried", MetricKind::Gauge, |stats| {
        u64::from(stats.down.is_some())
    }),
];

const REQUESTS: [(&str, &str, MetricKind, StatsField); 2] = [
    ("mailrace_table_requests_total", "Requests to the backend", MetricKind::Counter, |stats| stats.requests),
    ("mailrace_table_request_failures_total", "Requests to the backend that failed", MetricKind::Counter, |stats| {
        stats.failures
    }),
];

/// A value of a replica; None has no sample.
type ReplicaField = fn(&ReplicaStats) -> Option<u64>;

const REPLICA: [(&str, &str, ReplicaField); 4] = [
    ("mailrace_table_replica_entries", "Entries in the replica", |copy| Some(copy.entries)),
    ("mailrace_table_replica_age_seconds", "Time since the replica was up to date", |copy| match copy.live {
        true => Some(0),
        false => copy.age.map(|age| age.as_secs()),
    }),
    ("mailrace_table_replica_live", "Whether the replica receives changes as they happen", |copy| {
        Some(u64::from(copy.live))
    }),
    ("mailrace_table_replica_held_back", "Removals that wait for `mailrace table accept`", |copy| {
        Some(copy.held_back.unwrap_or_default())
    }),
];

/// Writes all table metrics, each with a sample for each table.
pub(super) fn write_tables(tables: &[(Box<str>, LookupStats)], out: &mut MetricFamilies) {
    if tables.is_empty() {
        return;
    }
    out.family("mailrace_table_answers_total", "Keys by answer", MetricKind::Counter);
    for (table, stats) in tables {
        let answers = [("found", stats.found), ("not_found", stats.not_found), ("unavailable", stats.unavailable)];
        answers.iter().for_each(|(answer, count)| out.sample(&[("table", table), ("answer", answer)], count));
    }
    for (name, help, kind, read) in CACHE.into_iter().chain(REQUESTS) {
        out.family(name, help, kind);
        tables.iter().for_each(|(table, stats)| out.sample(&[("table", table)], read(stats)));
    }
    out.family("mailrace_table_request_seconds", "Time of a request to the backend", MetricKind::Histogram);
    tables.iter().for_each(|(table, stats)| out.distribution(&[("table", table)], &stats.request_micros, 1e6));
    out.family("mailrace_table_request_keys", "Keys in a request to the backend", MetricKind::Histogram);
    tables.iter().for_each(|(table, stats)| out.distribution(&[("table", table)], &stats.request_keys, 1.0));
    write_replicas(tables, out);
}

fn write_replicas(tables: &[(Box<str>, LookupStats)], out: &mut MetricFamilies) {
    let copies: Vec<_> = tables.iter().filter_map(|(table, stats)| Some((table, stats.replica.as_ref()?))).collect();
    if copies.is_empty() {
        return;
    }
    for (name, help, read) in REPLICA {
        out.family(name, help, MetricKind::Gauge);
        for (table, copy) in &copies {
            read(copy).into_iter().for_each(|value| out.sample(&[("table", table)], value));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lookup::BackendDown;
    use mail::Histogram;

    use super::*;

    fn rendered(tables: &[(Box<str>, LookupStats)]) -> String {
        let mut out = MetricFamilies::default();
        write_tables(tables, &mut out);
        let families: Vec<_> = out.into();
        crate::metrics_text::prometheus(&families)
    }

    #[test]
    fn each_table_that_counts_has_a_sample_in_each_family() {
        let mut request_micros = Histogram { sum: 1_500, ..Histogram::default() };
        request_micros.buckets[11] = 1;
        let mut request_keys = Histogram { sum: 50, ..Histogram::default() };
        request_keys.buckets[6] = 1;
        let down = Some(BackendDown { since: Duration::from_secs(9), error: "refused".into() });
        let replica = ReplicaStats {
            entries: 18,
            live: false,
            age: Some(Duration::from_secs(300)),
            held_back: Some(19),
            ..ReplicaStats::default()
        };
        let direct = LookupStats {
            found: 7,
            not_found: 8,
            unavailable: 9,
            hits: 10,
            stale: 11,
            cached: 12,
            joined: 13,
            waiting: 14,
            requests: 15,
            failures: 16,
            request_micros,
            request_keys,
            request_keys_max: 64,
            down,
            replica: None,
        };
        let copied = LookupStats { replica: Some(replica), ..LookupStats::default() };
        insta::assert_snapshot!("tables", rendered(&[("a \"b\"".into(), direct), ("copied".into(), copied)]));
    }

    #[test]
    fn a_copy_has_an_age_once_it_was_as_its_master() {
        let told =
            |replica| rendered(&[("a".into(), LookupStats { replica: Some(replica), ..LookupStats::default() })]);
        let live = told(ReplicaStats { live: true, ..ReplicaStats::default() });
        assert!(live.contains("\nmailrace_table_replica_age_seconds{table=\"a\"} 0\n"), "{live}");
        let unloaded = told(ReplicaStats::default());
        assert!(unloaded.contains("\nmailrace_table_replica_live{table=\"a\"} 0\n"), "{unloaded}");
        assert!(!unloaded.contains("age_seconds{"), "{unloaded}");
    }

    #[test]
    fn tables_without_stats_have_no_metrics() {
        assert_eq!(rendered(&[]), "");
        assert!(!rendered(&[("a".into(), LookupStats::default())]).contains("replica"));
    }
}
