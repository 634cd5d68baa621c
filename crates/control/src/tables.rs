//! Lookups and counters of tables: the JSON objects in the server's answers, and what the commands
//! make of them. One definition serves both sides.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use lookup::{BackendDown, LookupAnswer, LookupStats, ReplicaStats, Table, TableLayer, TracedAnswer};
use mail::Histogram;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The answer of a table for one key, the layer it came from, and the time it took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LookupReport {
    /// The answer.
    pub answer: ReportedAnswer,
    /// The layer that gave it.
    pub layer: ReportedLayer,
    /// The time it took, in microseconds.
    pub micros: u64,
}

/// An answer of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReportedAnswer {
    /// Its values.
    Found(Vec<String>),
    /// The key does not exist.
    NotFound,
    /// The table has no answer now; the reason.
    Unavailable(String),
}

/// What of a table has answered; ages in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReportedLayer {
    /// A table held in memory.
    Memory,
    /// The cache.
    Cache(u64),
    /// An expired cache entry, while the backend fails.
    Stale(u64),
    /// The backend.
    Backend,
    /// The circuit breaker, which did not ask the backend.
    Breaker,
    /// A replica; the age of its content.
    Replica(u64),
}

impl LookupReport {
    pub(crate) fn new(trace: TracedAnswer, took: Duration) -> LookupReport {
        let millis = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let answer = match trace.answer {
            LookupAnswer::Found(values) => ReportedAnswer::Found(values),
            LookupAnswer::NotFound => ReportedAnswer::NotFound,
            LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why) => ReportedAnswer::Unavailable(why),
        };
        let layer = match trace.layer {
            TableLayer::Memory => ReportedLayer::Memory,
            TableLayer::Cache { age } => ReportedLayer::Cache(millis(age)),
            TableLayer::Stale { age } => ReportedLayer::Stale(millis(age)),
            TableLayer::Backend => ReportedLayer::Backend,
            TableLayer::Breaker => ReportedLayer::Breaker,
            TableLayer::Replica { age } => ReportedLayer::Replica(millis(age)),
        };
        LookupReport { answer, layer, micros: u64::try_from(took.as_micros()).unwrap_or(u64::MAX) }
    }

    /// Looks a key up, and measures the time.
    pub async fn lookup(table: &dyn Table, key: &str) -> LookupReport {
        let begin = Instant::now();
        let trace = table.trace(key).await;
        LookupReport::new(trace, begin.elapsed())
    }

    /// Writes a line of JSON.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", serde_json::to_string(self)?)
    }
}

/// A table, with its counters if it has any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TableStatus {
    /// Its name in the configuration; for a DNS list, its zone.
    pub table: String,
    /// Its type in the configuration, or `dnsbl`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its counters; a table in memory has none.
    #[serde(flatten)]
    pub counters: Option<TableCounters>,
}

/// The counters of a table, since it was opened. A table in memory has none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TableCounters {
    /// Keys that were found.
    pub found: u64,
    /// Keys that were not found.
    pub not_found: u64,
    /// Keys without an answer.
    pub unavailable: u64,
    /// Answers from the cache.
    pub hits: u64,
    /// Answers from the cache that had expired, while the backend failed.
    pub stale: u64,
    /// Answers in the cache now.
    pub cached: u64,
    /// Keys that waited for the answer to the same key.
    pub joined: u64,
    /// Keys that wait for an answer now.
    pub waiting: u64,
    /// Requests to the backend.
    pub requests: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Keys in these requests.
    pub keys_asked: u64,
    /// An upper bound for the median time of a request, in microseconds.
    pub request_micros_p50_max: Option<u64>,
    /// The same for 99 % of the requests.
    pub request_micros_p99_max: Option<u64>,
    /// Since when the backend is down, if it is.
    pub down: Option<BackendOutage>,
    /// The copy of a directory, if the table has one.
    pub replica: Option<ReplicaStatus>,
}

/// A backend that is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackendOutage {
    /// For so long.
    pub seconds: u64,
    /// The last error.
    pub error: String,
}

/// A copy of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaStatus {
    /// Entries of the directory.
    pub entries: u64,
    /// Keys that have an answer.
    pub keys: u64,
    /// Whether it was complete once.
    pub complete: bool,
    /// Whether it follows the directory now.
    pub live: bool,
    /// Seconds since it was up to date.
    pub age_seconds: Option<u64>,
    /// Removals that wait for `mailrace table accept`.
    pub held_back: Option<u64>,
    /// Bytes of its file.
    pub file_octets: u64,
}

/// The status of a table.
pub fn table_status(name: &str, kind: &str, stats: Option<&LookupStats>) -> TableStatus {
    TableStatus { table: name.to_owned(), kind: kind.to_owned(), counters: stats.map(table_counters) }
}

fn table_counters(stats: &LookupStats) -> TableCounters {
    let replica = |replica: &ReplicaStats| ReplicaStatus {
        entries: replica.entries,
        keys: replica.keys,
        complete: replica.complete,
        live: replica.live,
        age_seconds: replica.age.map(|age| age.as_secs()),
        held_back: replica.held_back,
        file_octets: replica.file_octets,
    };
    let down = |down: &BackendDown| BackendOutage { seconds: down.since.as_secs(), error: down.error.to_string() };
    TableCounters {
        found: stats.found,
        not_found: stats.not_found,
        unavailable: stats.unavailable,
        hits: stats.hits,
        stale: stats.stale,
        cached: stats.cached,
        joined: stats.joined,
        waiting: stats.waiting,
        requests: stats.requests,
        failures: stats.failures,
        keys_asked: stats.request_keys.sum,
        request_micros_p50_max: quantile(&stats.request_micros, 0.5),
        request_micros_p99_max: quantile(&stats.request_micros, 0.99),
        down: stats.down.as_ref().map(down),
        replica: stats.replica.as_ref().map(replica),
    }
}

/// An upper bound for this share of the values, within a factor of two; None if there are no
/// values, or beyond the last bucket.
fn quantile(histogram: &Histogram, share: f64) -> Option<u64> {
    let wanted = (histogram.count() as f64 * share).ceil() as u64;
    let mut below = 0;
    let bucket = histogram.buckets.iter().position(|count| {
        below += count;
        wanted > 0 && below >= wanted
    })?;
    (bucket < Histogram::BUCKETS - 1).then(|| 1 << bucket)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A table with counts of every kind.
    pub(crate) fn stats() -> LookupStats {
        let mut request_micros = Histogram { sum: 4_000, ..Histogram::default() };
        (request_micros.buckets[9], request_micros.buckets[11]) = (3, 1);
        let mut request_keys = Histogram { sum: 90, ..Histogram::default() };
        (request_keys.buckets[4], request_keys.buckets[6]) = (2, 2);
        LookupStats {
            found: 700,
            not_found: 290,
            unavailable: 10,
            hits: 895,
            stale: 5,
            cached: 600,
            joined: 7,
            waiting: 3,
            requests: 4,
            failures: 1,
            request_keys,
            request_micros,
            ..LookupStats::default()
        }
    }

    pub(crate) fn down() -> Option<BackendDown> {
        Some(BackendDown { since: Duration::from_secs(150), error: "ldap://127.0.0.1:389: connection refused".into() })
    }

    pub(crate) fn replica() -> ReplicaStats {
        ReplicaStats {
            entries: 12_000,
            keys: 15_000,
            complete: true,
            live: true,
            age: None,
            held_back: None,
            file_octets: 1 << 20,
        }
    }

    #[test]
    fn lookup_reports_round_trip() {
        let age = Duration::from_millis(12_345);
        let answers = [
            LookupAnswer::Found(vec!["ä \"b\"".into()]),
            LookupAnswer::NotFound,
            LookupAnswer::Unavailable("down\n".into()),
        ];
        let layers = [
            TableLayer::Memory,
            TableLayer::Cache { age },
            TableLayer::Stale { age },
            TableLayer::Backend,
            TableLayer::Breaker,
            TableLayer::Replica { age },
        ];
        for (answer, layer) in answers.iter().flat_map(|answer| layers.map(|layer| (answer.clone(), layer))) {
            let told = LookupReport::new(TracedAnswer { answer, layer }, Duration::from_micros(14));
            let mut line = Vec::new();
            told.write(&mut line).unwrap();
            assert_eq!(line.iter().filter(|octet| **octet == b'\n').count(), 1);
            assert_eq!(serde_json::from_slice::<LookupReport>(&line).unwrap(), told);
        }
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let histogram = stats().request_micros;
        assert_eq!([0.5, 0.75, 0.76, 0.99].map(|share| quantile(&histogram, share).unwrap()), [512, 512, 2048, 2048]);
        assert_eq!(quantile(&Histogram::default(), 0.5), None);
        let mut beyond = Histogram::default();
        beyond.buckets[Histogram::BUCKETS - 1] = 1;
        assert_eq!(quantile(&beyond, 0.5), None);
    }

    #[test]
    fn counts_are_an_object_for_each_table() {
        let full = LookupStats { down: down(), replica: Some(replica()), ..stats() };
        let rows = [table_status("people", "ldap", Some(&full)), table_status("aliases", "cdb", None)];
        insta::assert_snapshot!("table_stats_json", rows.map(|row| serde_json::to_string(&row).unwrap()).join("\n"));
    }
}
