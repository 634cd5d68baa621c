//! The metrics of the server. Label values are names in the configuration
//! (queues, listeners, transports, tables, access rules, disks) or fixed words, so their number is
//! bounded. Only names of next hops come from outside, and of these only the largest have metrics.

mod cluster;
mod families;
mod next_hops;
mod tables;
mod traffic;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use credentials::CredentialStats;
use dispatch::TransportCounts;
use filter::greylist::GreylistStats;
use filter::limits::LimitStats;
use intake::ListenerCounts;
use load::LoadReport;
use mail::{Histogram, TlsProof};
use queue::{PauseTarget, Queues};
use retrieval::RetrievalStats;
use sender_auth::VerdictCounters;
use sender_auth::reports::ReportCounters;
use sender_auth::signing::{KeyAlgorithm, SigningCounters};
use spool::Stats;

use families::MetricFamilies;
use next_hops::NextHopSample;

use crate::ClusterFigures;
use crate::certificates::CertificateStatus;

pub use families::{MetricFamily, MetricKind, MetricSample, MetricValue};

/// The state of the queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueMetrics {
    queues: Vec<QueueSample>,
    recipients: usize,
    held: usize,
    messages: usize,
    destinations: usize,
    unrecorded: usize,
    /// Pauses in force.
    pauses: [(&'static str, usize); 3],
    /// Known next hops, and those of them that are adopted or dead.
    next_hops: [(&'static str, usize); 3],
    /// The lowest and the highest concurrency of a known next hop; None without any.
    concurrency: Option<(usize, usize)>,
    /// Those with the most recipients.
    largest_next_hops: Vec<NextHopSample>,
}

/// One queue.
#[derive(Clone, Debug)]
struct QueueSample {
    name: Box<str>,
    /// Recipients in each state.
    recipients: [(&'static str, usize); 4],
    attempts: usize,
    concurrency: usize,
    paused: bool,
}

impl QueueMetrics {
    /// Reads the state of the queues, and of at most this many next hops.
    pub(crate) fn read<R: Clone>(queues: &Queues<R>, next_hops_max: usize) -> QueueMetrics {
        let queue = |view: queue::QueueView<'_>| QueueSample {
            name: view.name.into(),
            recipients: [
                ("ready", view.ready),
                ("in_flight", view.in_flight),
                ("waiting", view.waiting),
                ("held", view.held),
            ],
            attempts: view.attempts,
            concurrency: view.concurrency,
            paused: view.pause.is_some(),
        };
        let (mut known, mut adopted, mut dead) = (0, 0, 0);
        let mut concurrency = None;
        for hop in queues.next_hop_views() {
            let (lowest, highest) = concurrency.unwrap_or((hop.concurrency, hop.concurrency));
            concurrency = Some((lowest.min(hop.concurrency), highest.max(hop.concurrency)));
            known += 1;
            adopted += usize::from(hop.adopted_by.is_some());
            dead += usize::from(hop.probe_at.is_some());
        }
        QueueMetrics {
            queues: queues.queue_views().filter(|view| !view.is_retired_and_empty()).map(queue).collect(),
            recipients: queues.recipient_count(),
            held: queues.recipients_held(),
            messages: queues.message_count(),
            destinations: queues.destination_count(),
            unrecorded: queues.unrecorded_attempts(),
            pauses: count_pauses(queues),
            next_hops: [("known", known), ("adopted", adopted), ("dead", dead)],
            concurrency,
            largest_next_hops: next_hops::largest(queues, next_hops_max),
        }
    }
}

fn count_pauses<R: Clone>(queues: &Queues<R>) -> [(&'static str, usize); 3] {
    let mut counts = [("queue", 0), ("next_hop", 0), ("destination", 0)];
    for (target, _) in queues.pause_views() {
        let kind = match target {
            PauseTarget::Queue(_) => 0,
            PauseTarget::NextHop(_) => 1,
            PauseTarget::Destination(_) => 2,
        };
        counts[kind].1 += 1;
    }
    counts
}

impl QueueMetrics {
    /// Recipients in the queues, and those of them that are held.
    pub(crate) fn depth(&self) -> (usize, usize) {
        (self.recipients, self.held)
    }
}

/// The DKIM signatures that were made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignatureCounts {
    /// By algorithm.
    made: [(&'static str, u64); 2],
    /// Messages that were deferred because they could not be signed.
    deferred: u64,
}

impl SignatureCounts {
    pub(crate) fn read(counters: &SigningCounters) -> SignatureCounts {
        let SigningCounters { rsa, ed25519, deferred } = counters;
        let made = [(KeyAlgorithm::Rsa, rsa), (KeyAlgorithm::Ed25519, ed25519)];
        let made = made.map(|(algorithm, count)| (algorithm.signature_name(), count.load(Relaxed)));
        SignatureCounts { made, deferred: deferred.load(Relaxed) }
    }
}

/// Everything that the metrics show, read at one time.
pub(crate) struct MetricsSnapshot {
    /// Open sessions of clients that send mail.
    pub sessions: usize,
    /// Clients that read.
    pub retrieval: RetrievalStats,
    /// The queues.
    pub queues: QueueMetrics,
    /// What each listener has answered.
    pub listeners: Vec<ListenerCounts>,
    /// Recipients by outcome.
    pub outcomes: [(&'static str, u64); 4],
    /// What became of the attempts of each transport.
    pub transports: Vec<(Box<str>, TransportCounts)>,
    /// Recipients relayed, by how the connection was protected.
    pub relayed_by_proof: [(TlsProof, u64); TlsProof::ALL.len()],
    /// Notices not sent, by `bounce.per_sender`.
    pub notices_dropped: u64,
    /// Refused clients, by the resource that was short.
    pub refusals: Vec<(&'static str, u64)>,
    /// How often each access rule decided, by name.
    pub access: Vec<(Box<str>, u64)>,
    /// Clients that wait before the greeting.
    pub delayed_greetings: usize,
    /// Clients that talked before it.
    pub early_talkers: u64,
    /// Limits over time.
    pub rate_limits: Vec<LimitStats>,
    /// Greylisting, if it is on.
    pub greylist: Option<GreylistStats>,
    /// DKIM signatures, if there are keys.
    pub signatures: Option<SignatureCounts>,
    /// Senders of forwarded mail by result, if they are rewritten.
    pub srs: Option<[(&'static str, u64); 5]>,
    /// DNS list queries without an answer.
    pub lists_unanswered: u64,
    /// What was found about the senders of mail.
    pub sender_auth: Option<Arc<VerdictCounters>>,
    /// Reports, if any are sent.
    pub reports: Option<Arc<ReportCounters>>,
    /// The certificates of listeners.
    pub certificates: Vec<CertificateStatus>,
    /// TLS handshakes, by version, or failed.
    pub handshakes: [(&'static str, u64); 3],
    /// Logins, if `[auth]` is configured.
    pub logins: Option<CredentialStats>,
    /// Gauges, and the limits in force.
    pub load: Arc<LoadReport>,
    /// Lost log lines.
    pub log_lines_dropped: u64,
    /// A 250 does not wait for the disk.
    pub relaxed_durability: bool,
    /// How long commits take.
    pub commit_micros: Histogram,
    /// The spool's counters.
    pub spool: Stats,
    /// The cluster, if the server belongs to one.
    pub cluster: Option<ClusterFigures>,
    /// The counters of tables that have any, by name.
    pub tables: Vec<(Box<str>, lookup::LookupStats)>,
}

/// All metrics.
pub(crate) fn families(snapshot: &MetricsSnapshot) -> Vec<MetricFamily> {
    let mut out = MetricFamilies::default();
    out.gauge("mailrace_sessions", "Open sessions of SMTP and LMTP", snapshot.sessions as u64);
    traffic::write_listeners(&snapshot.listeners, &mut out);
    write_retrieval(&snapshot.retrieval, &mut out);
    write_queues(&snapshot.queues, &mut out);
    write_next_hops(&snapshot.queues, &mut out);
    out.family("mailrace_outcomes_total", "Recipients by outcome of an attempt", MetricKind::Counter);
    snapshot.outcomes.iter().for_each(|(outcome, count)| out.sample(&[("outcome", outcome)], count));
    traffic::write_transports(&snapshot.transports, &mut out);
    let help = "Recipients relayed to other hosts, by how the connection was protected";
    out.family("mailrace_relayed_total", help, MetricKind::Counter);
    snapshot.relayed_by_proof.iter().for_each(|(proof, count)| out.sample(&[("tls", proof.as_str())], count));
    let help = "Notices not sent: too many to one sender for mail from untrusted clients";
    out.counter("mailrace_notices_dropped_total", help, snapshot.notices_dropped);
    out.family("mailrace_refusals_total", "Clients refused, by the resource that was short", MetricKind::Counter);
    snapshot.refusals.iter().for_each(|(want, count)| out.sample(&[("want", want)], count));
    let help = "Clients that wait for the greeting, which greeting_delay holds back";
    out.gauge("mailrace_delayed_greetings", help, snapshot.delayed_greetings as u64);
    out.counter("mailrace_early_talkers_total", "Clients that talked before the greeting", snapshot.early_talkers);
    if !snapshot.access.is_empty() {
        out.family(
            "mailrace_access_rules_total",
            "How often each access rule matched and decided",
            MetricKind::Counter,
        );
        snapshot.access.iter().for_each(|(rule, count)| out.sample(&[("rule", rule)], count));
        let help = "DNS list queries without an answer";
        out.counter("mailrace_access_lists_unanswered_total", help, snapshot.lists_unanswered);
    }
    write_rate_limits(&snapshot.rate_limits, &mut out);
    snapshot.greylist.iter().for_each(|stats| write_greylist(stats, &mut out));
    snapshot.sender_auth.iter().for_each(|counters| write_sender_auth(counters, &mut out));
    snapshot.reports.iter().for_each(|counters| write_reports(counters, &mut out));
    snapshot.signatures.iter().for_each(|counts| write_signatures(counts, &mut out));
    if let Some(results) = &snapshot.srs {
        let help = "Senders of forwarded mail that were rewritten (SRS), and addresses that were taken back to them";
        out.family("mailrace_srs_total", help, MetricKind::Counter);
        results.iter().for_each(|(result, count)| out.sample(&[("result", result)], count));
    }
    out.family("mailrace_tls_handshakes_total", "TLS handshakes by version, or failed", MetricKind::Counter);
    snapshot.handshakes.iter().for_each(|(result, count)| out.sample(&[("result", result)], count));
    write_certificates(&snapshot.certificates, &mut out);
    snapshot.logins.iter().for_each(|logins| write_logins(logins, &mut out));
    write_load(&snapshot.load, &mut out);
    out.counter("mailrace_log_lines_dropped_total", "Log lines lost", snapshot.log_lines_dropped);
    out.gauge(
        "mailrace_spool_relaxed",
        "Whether a power loss may lose accepted mail",
        u64::from(snapshot.relaxed_durability),
    );
    let help = "Time from the end of a message's checks to its 250";
    out.histogram("mailrace_commit_seconds", help, &snapshot.commit_micros, 1e6);
    write_spool(&snapshot.spool, &mut out);
    snapshot.cluster.iter().for_each(|figures| cluster::write_cluster(figures, &mut out));
    tables::write_tables(&snapshot.tables, &mut out);
    out.into()
}

/// A certificate has the label of its first name, and its number in the configuration.
fn write_certificates(certificates: &[CertificateStatus], out: &mut MetricFamilies) {
    let help = "When each certificate of the listeners expires, in seconds since 1970";
    out.family("mailrace_certificate_expiry_seconds", help, MetricKind::Gauge);
    let issued = certificates.iter().zip(1..).filter(|(certificate, _)| !certificate.placeholder);
    for (certificate, number) in issued {
        let (name, number) = (certificate.names.first().map_or("", String::as_str), number.to_string());
        out.sample(&[("name", name), ("number", &number)], certificate.expires_seconds);
    }
    let placeholders = certificates.iter().filter(|certificate| certificate.placeholder).count();
    let help = "Certificates that have not been issued yet, for which one of our own stands in";
    out.gauge("mailrace_certificate_placeholders", help, placeholders as u64);
}

fn write_rate_limits(limits: &[LimitStats], out: &mut MetricFamilies) {
    if limits.is_empty() {
        return;
    }
    let mut family = |name, help, kind, value: fn(&LimitStats) -> u64| {
        out.family(name, help, kind);
        limits.iter().for_each(|it| out.sample(&[("limit", &it.limit), ("of", it.quantity)], value(it)));
    };
    let help = "Messages and recipients refused by a limit over time";
    family("mailrace_limit_refusals_total", help, MetricKind::Counter, |stats| stats.refused);
    let help = "Users, senders or clients that have used a part of a limit";
    family("mailrace_limit_keys", help, MetricKind::Gauge, |stats| stats.keys as u64);
    let help = "Users, senders or clients that a limit has forgotten because there were too many";
    family("mailrace_limit_forgotten_total", help, MetricKind::Counter, |stats| stats.forgotten);
}

fn write_greylist(stats: &GreylistStats, out: &mut MetricFamilies) {
    out.family("mailrace_greylist_total", "Recipients by what the greylist said", MetricKind::Counter);
    stats.results.iter().for_each(|(result, count)| out.sample(&[("result", result)], count));
    out.family("mailrace_greylist_entries", "What the greylist remembers", MetricKind::Gauge);
    stats.entries.iter().for_each(|(kind, count)| out.sample(&[("of", kind)], count));
}

fn write_reports(counters: &ReportCounters, out: &mut MetricFamilies) {
    let help = "Reports to the owners of domains, by what became of them at each destination";
    out.family("mailrace_reports_total", help, MetricKind::Counter);
    counters.reports().for_each(|(result, count)| out.sample(&[("result", result)], count));
    let help = "What is in no report, by the limit that was reached";
    out.family("mailrace_reports_dropped_total", help, MetricKind::Counter);
    counters.dropped().for_each(|(limit, count)| out.sample(&[("limit", limit)], count));
}

fn write_signatures(counts: &SignatureCounts, out: &mut MetricFamilies) {
    out.family("mailrace_dkim_signatures_total", "DKIM signatures made, by algorithm", MetricKind::Counter);
    counts.made.iter().for_each(|(algorithm, count)| out.sample(&[("algorithm", algorithm)], count));
    out.counter("mailrace_dkim_deferred_total", "Messages deferred because they could not be signed", counts.deferred);
}

fn write_sender_auth(counters: &VerdictCounters, out: &mut MetricFamilies) {
    out.family("mailrace_sender_auth_total", "Messages by what a method found about their sender", MetricKind::Counter);
    let verdicts = counters.verdicts();
    verdicts.iter().for_each(|(method, result, count)| out.sample(&[("method", method), ("result", result)], count));
    let help = "Checks of senders that a limit left open";
    out.family("mailrace_sender_auth_limited_total", help, MetricKind::Counter);
    counters.limits().iter().for_each(|(limit, count)| out.sample(&[("limit", limit)], count));
}

fn write_logins(logins: &CredentialStats, out: &mut MetricFamilies) {
    let &CredentialStats { accepted, remembered, refused, repeated, throttled, unavailable, waiting } = logins;
    out.family(
        "mailrace_auth_logins_total",
        "Logins by result, without malformed and cancelled ones",
        MetricKind::Counter,
    );
    let results = [("ok", accepted), ("refused", refused), ("throttled", throttled), ("unavailable", unavailable)];
    results.iter().for_each(|(result, count)| out.sample(&[("result", result)], count));
    out.counter("mailrace_auth_remembered_total", "Logins accepted from the cache", remembered);
    out.counter("mailrace_auth_repeated_total", "Logins refused from the cache", repeated);
    out.gauge("mailrace_auth_waiting", "Passwords waiting to be checked", waiting);
}

fn write_retrieval(stats: &RetrievalStats, out: &mut MetricFamilies) {
    out.gauge("mailrace_reading_sessions", "Open sessions of POP3, HTTP and the proxies", stats.sessions as u64);
    out.counter("mailrace_pop3_messages_total", "Messages sent by POP3, whole or in part", stats.pop3_messages);
    out.family("mailrace_http_responses_total", "HTTP responses by result", MetricKind::Counter);
    stats.http_responses.iter().for_each(|(result, count)| out.sample(&[("result", result)], count));
    let Some(down) = stats.backends_down else { return };
    out.family("mailrace_proxy_logins_total", "Logins of the proxies at backends by result", MetricKind::Counter);
    stats.backend_logins.iter().for_each(|(result, count)| out.sample(&[("result", result)], count));
    out.gauge("mailrace_proxy_backends_down", "Backends that are down", down as u64);
}

fn write_queues(metrics: &QueueMetrics, out: &mut MetricFamilies) {
    out.gauge("mailrace_queue_recipients", "Recipients queued or in flight", metrics.recipients as u64);
    out.gauge("mailrace_queue_messages", "Messages queued or in flight", metrics.messages as u64);
    out.gauge("mailrace_queue_destinations", "Destinations with recipients", metrics.destinations as u64);
    out.gauge("mailrace_attempts_unrecorded", "Attempts that ended but are not recorded", metrics.unrecorded as u64);
    out.family("mailrace_queue_depth", "Recipients by queue and state", MetricKind::Gauge);
    for queue in &metrics.queues {
        queue
            .recipients
            .iter()
            .for_each(|(state, count)| out.sample(&[("queue", &queue.name), ("state", state)], count));
    }
    out.family("mailrace_queue_attempts", "Attempts in progress, by the queue that serves them", MetricKind::Gauge);
    metrics.queues.iter().for_each(|queue| out.sample(&[("queue", &queue.name)], queue.attempts));
    out.family("mailrace_queue_concurrency", "Limit on attempts in progress", MetricKind::Gauge);
    metrics.queues.iter().for_each(|queue| out.sample(&[("queue", &queue.name)], queue.concurrency));
    out.family("mailrace_queue_paused", "Whether the operator has paused the queue", MetricKind::Gauge);
    metrics.queues.iter().for_each(|queue| out.sample(&[("queue", &queue.name)], u8::from(queue.paused)));
}

fn write_next_hops(metrics: &QueueMetrics, out: &mut MetricFamilies) {
    out.family("mailrace_next_hops", "Known next hops, and those of them that are adopted or dead", MetricKind::Gauge);
    metrics.next_hops.iter().for_each(|(state, count)| out.sample(&[("state", state)], count));
    out.family("mailrace_pauses", "What the operator has paused, by kind", MetricKind::Gauge);
    metrics.pauses.iter().for_each(|(kind, count)| out.sample(&[("kind", kind)], count));
    if let Some((lowest, highest)) = metrics.concurrency {
        let help = "Limit on attempts at one next hop, which adapts to its replies: the lowest and the highest";
        out.family("mailrace_next_hop_concurrency", help, MetricKind::Gauge);
        out.sample(&[("of", "lowest")], lowest);
        out.sample(&[("of", "highest")], highest);
    }
    next_hops::write_largest(&metrics.largest_next_hops, out);
}

fn write_load(report: &LoadReport, out: &mut MetricFamilies) {
    out.family("mailrace_load", "Load by gauge, in tasks, percent, bytes or files", MetricKind::Gauge);
    for snapshot in &report.sample.readings {
        if let Some(value) = snapshot.value {
            out.sample(&[("gauge", &snapshot.gauge.to_string())], value);
        }
    }
    out.family("mailrace_load_limit_in_force", "Whether a limit is in force", MetricKind::Gauge);
    for limit in &report.limits {
        let in_force = report.state.active.iter().any(|reason| reason.limit == *limit);
        let labels = [("gauge", &*limit.gauge.to_string()), ("measure", &*limit.restriction.to_string())];
        out.sample(&labels, u8::from(in_force));
    }
}

fn write_spool(stats: &Stats, out: &mut MetricFamilies) {
    out.gauge("mailrace_spool_messages", "Messages with unfinished recipients", stats.messages_live);
    out.counter("mailrace_spool_committed_total", "Messages accepted", stats.messages_committed);
    out.counter("mailrace_spool_copied_total", "Messages copied to another segment", stats.messages_copied);
    out.counter("mailrace_spool_set_aside_total", "Damaged places set aside", stats.set_aside);
    out.counter("mailrace_spool_batches_failed_total", "Batches that failed", stats.batches_failed);
    out.gauge("mailrace_spool_segments", "Segment files", stats.segments);
    out.gauge("mailrace_spool_segments_free", "Free segment files", stats.segments_free);
    let help = "Limit on the bytes of a batch, which adapts to the disk, in the lane with the lowest";
    out.gauge("mailrace_spool_batch_limit_bytes", help, stats.batch_bytes_max);
    out.histogram("mailrace_spool_batch_records", "Records in a batch", &stats.batch_records, 1.0);
    out.histogram("mailrace_spool_sync_seconds", "Time to write and sync a batch", &stats.sync_micros, 1e6);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dispatch::OutcomeCounters;
    use load::policy::{ActiveLimits, Gauge, LoadLimits, LoadSample};
    use mail::Timestamp;
    use sender_auth::srs::SrsCounters;

    use super::*;
    use crate::sample;

    fn load() -> LoadReport {
        let snapshot = |gauge, value| load::policy::GaugeReading { gauge, source: "told", value };
        let disk = Gauge::FreeSpace(Path::new("/var/a \"b\"").into());
        let readings = vec![
            snapshot(Gauge::LoadAverage, Some(9.5)),
            snapshot(disk, Some(1e9)),
            snapshot(Gauge::MemoryAvailable, None),
        ];
        let (sample, limits) = (
            LoadSample { at: Timestamp(1), readings },
            LoadLimits { refuse_above: Some(9.0), ..LoadLimits::default() },
        );
        let of_each = sample.readings.iter().flat_map(|one| limits.for_gauge(&one.gauge)).collect();
        LoadReport { state: ActiveLimits::default().after_sample(&sample, &limits), limits: of_each, sample }
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
            batch_bytes_max: 1_048_576,
            batches_failed: 6,
            segments: 7,
            segments_free: 8,
            messages_copied: 9,
            set_aside: 10,
        }
    }

    fn certificate(name: &str, placeholder: bool) -> CertificateStatus {
        CertificateStatus {
            names: vec![name.to_owned()],
            issuer: "CN=a".into(),
            expires: "2027-01-01T00:00:00.000Z".into(),
            expires_seconds: 1_798_761_600,
            expires_in_seconds: 10,
            placeholder,
        }
    }

    fn cluster_figures() -> ClusterFigures {
        ClusterFigures {
            connected: true,
            disconnections: 1,
            traffic: [("sent", 12_000), ("received", 3000)],
            round_trip: Some(std::time::Duration::from_micros(1500)),
            nodes: 3,
            lanes: [("own", 1), ("adopted", 2), ("local", 1), ("watched", 4)],
            lanes_without_lease: 1,
            lease_left_min: None,
            waiting_bytes: 600,
            stored_bytes: 7000,
            live_messages: 8,
            batches: [("stored", 9), ("failed", 1), ("local", 6)],
            publishes_failed: 2,
            takeovers: 2,
            departures: [("shared", 40), ("own part", 5)],
            slots_held: [("shared", 7), ("own part", 1)],
            slots_refused: 3,
        }
    }

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let mut queues = sample::queues().queues;
        queues.pause(sample::NOW, queue::PauseTarget::Queue(queue::QueueNumber(1)), None).unwrap();
        let snapshot = MetricsSnapshot {
            sessions: 1,
            retrieval: RetrievalStats {
                sessions: 2,
                pop3_messages: 3,
                http_responses: [("ok", 4), ("error", 5)],
                backend_logins: [("ok", 6), ("refused", 7), ("unavailable", 8)],
                backends_down: Some(9),
            },
            queues: QueueMetrics::read(&queues, 2),
            listeners: vec![ListenerCounts {
                protocol: "smtp",
                address: ([0, 0, 0, 0], 25).into(),
                connections: 20,
                sessions: 1,
                recipients: [("accepted", 30), ("deferred", 2), ("refused", 3)],
                messages: [("accepted", 10), ("deferred", 0), ("refused", 1)],
            }],
            outcomes: OutcomeCounters::default().by_outcome(),
            transports: vec![("smtp".into(), TransportCounts { attempts: 5, delivered: 6, deferred: 7, failed: 8 })],
            relayed_by_proof: OutcomeCounters::default().relayed_by_proof(),
            notices_dropped: 4,
            refusals: vec![("load", 2), ("disk", 0)],
            access: vec![("listed".into(), 3), ("rule 2".into(), 0)],
            delayed_greetings: 2,
            early_talkers: 6,
            rate_limits: vec![LimitStats {
                limit: "users".into(),
                quantity: "messages",
                refused: 2,
                keys: 5,
                forgotten: 0,
            }],
            greylist: Some(GreylistStats {
                results: [("deferred", 4), ("passed", 3), ("known", 2), ("unrecorded", 0)],
                entries: [("waiting", 1), ("passed", 3), ("clients", 1)],
            }),
            lists_unanswered: 1,
            srs: Some(SrsCounters::default().by_result()),
            signatures: Some(SignatureCounts { made: [("rsa-sha256", 12), ("ed25519-sha256", 13)], deferred: 1 }),
            sender_auth: Some(Arc::default()),
            reports: Some(Arc::default()),
            certificates: vec![certificate("mx.example.org", false), certificate("b.example", true)],
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
            relaxed_durability: true,
            commit_micros: Histogram::default(),
            spool: stats(),
            cluster: Some(cluster_figures()),
            tables: Vec::new(),
        };
        insta::assert_snapshot!(crate::metrics_text::prometheus(&families(&snapshot)));
    }
}
