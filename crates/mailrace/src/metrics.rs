//! The metrics of the server, in the Prometheus text format. No label value comes from outside:
//! they are names of queues, tables, access rules and disks in the configuration, or fixed words.

mod tables;
mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use load::Report;
use lookup::credentials::CredentialStats;
use queue::{Queues, Verdict};
use spool::Stats;

use text::Text;

/// Counts the durable outcomes of recipients.
#[derive(Debug, Default)]
pub struct Attempts {
    delivered: AtomicU64,
    relayed: AtomicU64,
    deferred: AtomicU64,
    failed: AtomicU64,
    notices_dropped: AtomicU64,
}

impl Attempts {
    /// Counts one recipient's outcome. Operator actions are not outcomes.
    pub fn count(&self, verdict: &Verdict) {
        let counter = match verdict {
            Verdict::Delivered => &self.delivered,
            Verdict::Relayed { .. } => &self.relayed,
            Verdict::Deferred { .. } => &self.deferred,
            Verdict::Failed { .. } => &self.failed,
            Verdict::Held | Verdict::Removed => return,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a notice that is not sent because its possibly forged sender has had too many.
    pub fn count_dropped_notice(&self) {
        self.notices_dropped.fetch_add(1, Relaxed);
    }

    /// How many notices were not sent.
    pub fn notices_dropped(&self) -> u64 {
        self.notices_dropped.load(Relaxed)
    }

    /// The count of each outcome.
    pub fn counted(&self) -> [(&'static str, u64); 4] {
        [
            ("delivered", self.delivered.load(Relaxed)),
            ("relayed", self.relayed.load(Relaxed)),
            ("deferred", self.deferred.load(Relaxed)),
            ("failed", self.failed.load(Relaxed)),
        ]
    }
}

/// The state of the queues.
#[derive(Clone, Debug, Default)]
pub struct Census {
    lanes: Vec<Lane>,
    recipients: usize,
    messages: usize,
    destinations: usize,
    unrecorded: usize,
    /// Next hops by state.
    next_hops: [(&'static str, usize); 3],
}

/// One queue.
#[derive(Clone, Debug)]
struct Lane {
    name: Box<str>,
    /// Recipients in each state.
    depth: [(&'static str, usize); 4],
    attempts: usize,
    concurrency: usize,
    paused: bool,
}

impl Census {
    /// Reads the state of the queues.
    pub fn of<R: Clone>(queues: &Queues<R>) -> Census {
        let lane = |view: queue::QueueView<'_>| Lane {
            name: view.name.into(),
            depth: [
                ("ready", view.ready),
                ("in_flight", view.in_flight),
                ("waiting", view.waiting),
                ("held", view.held),
            ],
            attempts: view.attempts,
            concurrency: view.concurrency,
            paused: view.paused,
        };
        let (mut known, mut adopted, mut dead) = (0, 0, 0);
        for hop in queues.next_hops() {
            known += 1;
            adopted += usize::from(hop.adopted_by.is_some());
            dead += usize::from(hop.probe_at.is_some());
        }
        Census {
            lanes: queues.queues().filter(|view| !view.is_gone()).map(lane).collect(),
            recipients: queues.len(),
            messages: queues.messages(),
            destinations: queues.destinations(),
            unrecorded: queues.unrecorded(),
            next_hops: [("known", known), ("adopted", adopted), ("dead", dead)],
        }
    }
}

/// Everything that the metrics show, read at one time.
pub struct Reading {
    /// Open sessions.
    pub sessions: usize,
    /// The queues.
    pub census: Census,
    /// Recipients by outcome.
    pub attempts: [(&'static str, u64); 4],
    /// Notices not sent, by `bounce.per_sender`.
    pub notices_dropped: u64,
    /// Refused clients, by the resource that was short.
    pub refusals: Vec<(&'static str, u64)>,
    /// How often each access rule decided, by name.
    pub access: Vec<(Box<str>, u64)>,
    /// DNS list queries without an answer.
    pub lists_unanswered: u64,
    /// TLS handshakes, by version, or failed.
    pub handshakes: [(&'static str, u64); 3],
    /// Logins, if `[auth]` is configured.
    pub logins: Option<CredentialStats>,
    /// Gauges, and the limits in force.
    pub load: Arc<Report>,
    /// Lost log lines.
    pub log_lines_dropped: u64,
    /// A 250 does not wait for the disk.
    pub relaxed: bool,
    /// The spool's counters.
    pub spool: Stats,
    /// The counters of tables that have any, by name.
    pub tables: Vec<(Box<str>, lookup::Stats)>,
}

/// Renders all metrics.
pub fn text(reading: &Reading) -> String {
    let mut out = Text::default();
    out.gauge("mailrace_sessions", "Open sessions", reading.sessions as u64);
    tell_queues(&reading.census, &mut out);
    tell_next_hops(&reading.census, &mut out);
    out.family("mailrace_outcomes_total", "Recipients by outcome of an attempt", "counter");
    reading.attempts.iter().for_each(|(outcome, count)| out.sample(&[("outcome", outcome)], count));
    let help = "Notices not sent: too many to one sender for mail from untrusted clients";
    out.counter("mailrace_notices_dropped_total", help, reading.notices_dropped);
    out.family("mailrace_refusals_total", "Clients refused, by the resource that was short", "counter");
    reading.refusals.iter().for_each(|(want, count)| out.sample(&[("want", want)], count));
    if !reading.access.is_empty() {
        out.family("mailrace_access_rules_total", "How often each access rule matched and decided", "counter");
        reading.access.iter().for_each(|(rule, count)| out.sample(&[("rule", rule)], count));
        let help = "DNS list queries without an answer";
        out.counter("mailrace_access_lists_unanswered_total", help, reading.lists_unanswered);
    }
    out.family("mailrace_tls_handshakes_total", "TLS handshakes by version, or failed", "counter");
    reading.handshakes.iter().for_each(|(result, count)| out.sample(&[("result", result)], count));
    reading.logins.iter().for_each(|logins| tell_logins(logins, &mut out));
    tell_load(&reading.load, &mut out);
    out.counter("mailrace_log_lines_dropped_total", "Log lines lost", reading.log_lines_dropped);
    out.gauge("mailrace_spool_relaxed", "Whether a power loss may lose accepted mail", u64::from(reading.relaxed));
    tell_spool(&reading.spool, &mut out);
    tables::tell(&reading.tables, &mut out);
    out.into()
}

fn tell_logins(logins: &CredentialStats, out: &mut Text) {
    let &CredentialStats { accepted, remembered, refused, repeated, throttled, unavailable, waiting } = logins;
    out.family("mailrace_auth_logins_total", "Login attempts by result", "counter");
    let results = [("ok", accepted), ("refused", refused), ("throttled", throttled), ("unavailable", unavailable)];
    results.iter().for_each(|(result, count)| out.sample(&[("result", result)], count));
    out.counter("mailrace_auth_remembered_total", "Logins accepted from the cache", remembered);
    out.counter("mailrace_auth_repeated_total", "Logins refused from the cache", repeated);
    out.gauge("mailrace_auth_waiting", "Passwords waiting to be checked", waiting);
}

fn tell_queues(census: &Census, out: &mut Text) {
    out.gauge("mailrace_queue_recipients", "Recipients queued or in flight", census.recipients as u64);
    out.gauge("mailrace_queue_messages", "Messages queued or in flight", census.messages as u64);
    out.gauge("mailrace_queue_destinations", "Destinations with recipients", census.destinations as u64);
    out.gauge("mailrace_attempts_unrecorded", "Attempts that ended but are not recorded", census.unrecorded as u64);
    out.family("mailrace_queue_depth", "Recipients by queue and state", "gauge");
    for lane in &census.lanes {
        lane.depth.iter().for_each(|(state, count)| out.sample(&[("queue", &lane.name), ("state", state)], count));
    }
    out.family("mailrace_queue_attempts", "Attempts in progress, by the queue that serves them", "gauge");
    census.lanes.iter().for_each(|lane| out.sample(&[("queue", &lane.name)], lane.attempts));
    out.family("mailrace_queue_concurrency", "Limit on attempts in progress", "gauge");
    census.lanes.iter().for_each(|lane| out.sample(&[("queue", &lane.name)], lane.concurrency));
    out.family("mailrace_queue_paused", "Whether the operator has paused the queue", "gauge");
    census.lanes.iter().for_each(|lane| out.sample(&[("queue", &lane.name)], u8::from(lane.paused)));
}

fn tell_next_hops(census: &Census, out: &mut Text) {
    out.family("mailrace_next_hops", "Next hops by state", "gauge");
    census.next_hops.iter().for_each(|(state, count)| out.sample(&[("state", state)], count));
}

fn tell_load(report: &Report, out: &mut Text) {
    out.family("mailrace_load", "Load by gauge, in tasks, percent, bytes or files", "gauge");
    for reading in &report.sample.readings {
        if let Some(value) = reading.value {
            out.sample(&[("gauge", &reading.gauge.to_string())], value);
        }
    }
    out.family("mailrace_load_limit_in_force", "Whether a limit is in force", "gauge");
    for limit in &report.limits {
        let in_force = report.state.reasons.iter().any(|reason| reason.limit == *limit);
        let labels = [("gauge", &*limit.gauge.to_string()), ("measure", &*limit.measure.to_string())];
        out.sample(&labels, u8::from(in_force));
    }
}

fn tell_spool(stats: &Stats, out: &mut Text) {
    out.gauge("mailrace_spool_messages", "Messages with unfinished recipients", stats.messages_live);
    out.counter("mailrace_spool_committed_total", "Messages accepted", stats.messages_committed);
    out.counter("mailrace_spool_copied_total", "Messages copied to another segment", stats.messages_copied);
    out.counter("mailrace_spool_set_aside_total", "Damaged places set aside", stats.set_aside);
    out.counter("mailrace_spool_batches_failed_total", "Batches that failed", stats.batches_failed);
    out.gauge("mailrace_spool_segments", "Segment files", stats.segments);
    out.gauge("mailrace_spool_segments_free", "Free segment files", stats.segments_free);
    out.histogram("mailrace_spool_batch_records", "Records in a batch", &stats.batch_records, 1.0);
    out.histogram("mailrace_spool_sync_seconds", "Time to write and sync a batch", &stats.sync_micros, 1e6);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use load::policy::{Gauge, Limits, Sample, State};
    use mail::{Histogram, Reply, Timestamp};

    use super::*;
    use crate::admin::sample;

    fn load() -> Report {
        let reading = |gauge, value| load::policy::Reading { gauge, source: "told", value };
        let disk = Gauge::FreeSpace(Path::new("/var/a \"b\"").into());
        let readings = vec![
            reading(Gauge::LoadAverage, Some(9.5)),
            reading(disk, Some(1e9)),
            reading(Gauge::MemoryAvailable, None),
        ];
        let (sample, limits) =
            (Sample { at: Timestamp(1), readings }, Limits { refuse_above: Some(9.0), ..Limits::default() });
        let of_each = sample.readings.iter().flat_map(|one| limits.of(&one.gauge)).collect();
        Report { state: State::default().after(&sample, &limits), limits: of_each, sample }
    }

    fn stats() -> Stats {
        let mut batch_records = Histogram { sum: 9, ..Histogram::default() };
        (batch_records.buckets[0], batch_records.buckets[3]) = (1, 1);
        let mut sync_micros = Histogram { sum: 20_001_500, ..Histogram::default() };
        (sync_micros.buckets[11], sync_micros.buckets[Histogram::BUCKETS - 1]) = (1, 1);
        Stats {
            messages_live: 4,
            messages_committed: 5,
            batch_records,
            sync_micros,
            batches_failed: 6,
            segments: 7,
            segments_free: 8,
            messages_copied: 9,
            set_aside: 10,
        }
    }

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let mut queues = sample::queues().queues;
        queues.pause(queue::QueueNumber(1), true);
        let reading = Reading {
            sessions: 1,
            census: Census::of(&queues),
            attempts: Attempts::default().counted(),
            notices_dropped: 4,
            refusals: vec![("load", 2), ("disk", 0)],
            access: vec![("listed".into(), 3), ("rule 2".into(), 0)],
            lists_unanswered: 1,
            handshakes: [("TLSv1.2", 1), ("TLSv1.3", 2), ("failed", 0)],
            logins: Some(CredentialStats {
                accepted: 5,
                remembered: 4,
                refused: 3,
                repeated: 7,
                throttled: 2,
                unavailable: 1,
                waiting: 6,
            }),
            load: Arc::new(load()),
            log_lines_dropped: 3,
            relaxed: true,
            spool: stats(),
            tables: Vec::new(),
        };
        insta::assert_snapshot!(text(&reading));
    }

    #[test]
    fn each_outcome_is_counted_by_itself_and_acts_are_not() {
        let (attempts, reason) = (Attempts::default(), Reply::plain(450, "x"));
        let deferred = Verdict::Deferred { reason: reason.clone(), until: Timestamp(1) };
        let relayed = Verdict::Relayed { reply: reason.clone(), dsn: false };
        let verdicts = [Verdict::Delivered, deferred.clone(), deferred, relayed, Verdict::Failed { reason }];
        verdicts.iter().chain(&[Verdict::Held, Verdict::Removed]).for_each(|verdict| attempts.count(verdict));
        assert_eq!(attempts.counted(), [("delivered", 1), ("relayed", 1), ("deferred", 2), ("failed", 1)]);
    }
}
