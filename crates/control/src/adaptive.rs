//! What the server sets by itself, so that the operator sees it: `mailrace status`. Each value has its bounds, the value
//! that it starts with, and why it is what it is now.
//!
//! | name | for each | starts with |
//! |---|---|---|
//! | `spool.batch_bytes` | lane | its highest value |
//! | `spool.gather` | lane | 0 |
//! | `next_hop.concurrency` | next hop, those in trouble first; beyond [`NEXT_HOPS_MAX`] they are only counted | its `start` |
//! | `maildir.batch_recipients` | | |
//! | `table.batch` | table in a directory or database | |
//! | `load.deliveries`, `load.clients`, `load.mail` | | no restriction |
//! | what the process chose when it started | | the configuration |

use std::time::Duration;

use load::LoadReport;
use load::policy::{ActiveLimit, AllowedClients, AllowedDeliveries, LoadRestriction};
use lookup::LookupStats;
use mail::Histogram;
use queue::{ConcurrencyFeedback, ConcurrencyReason, NextHopView, Queues};
use serde_json::{Value, json};
use spool::LaneBatching;

/// Next hops that are listed; a server may know thousands.
const NEXT_HOPS_MAX: usize = 20;

/// A value that the server sets by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveValue {
    /// Its name; the section and key of the configuration, if there is one.
    pub name: &'static str,
    /// The lane, next hop or table; empty if there is only one value.
    pub subject: String,
    /// The value now: a number or a word; null if there is none yet.
    pub value: Value,
    /// Between what it stays.
    pub bounds: Bounds,
    /// Why it is what it is: a sentence without a stop.
    pub why: String,
}

/// The bounds of a value; null where there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// The lowest value.
    pub lowest: Value,
    /// The highest value.
    pub highest: Value,
    /// The value at the start.
    pub start: Value,
}

impl Bounds {
    /// Bounds from numbers or words.
    pub fn new(lowest: impl Into<Value>, highest: impl Into<Value>, start: impl Into<Value>) -> Bounds {
        Bounds { lowest: lowest.into(), highest: highest.into(), start: start.into() }
    }
}

impl AdaptiveValue {
    pub(crate) fn to_json(&self) -> Value {
        let AdaptiveValue { name, subject, value, bounds: Bounds { lowest, highest, start }, why } = self;
        json!({
            "name": name, "subject": subject, "value": value, "lowest": lowest, "highest": highest, "start": start,
            "why": why,
        })
    }
}

/// The batches of each lane.
pub(crate) fn of_spool(lanes: &[LaneBatching]) -> Vec<AdaptiveValue> {
    lanes.iter().flat_map(|lane| [batch_bytes(lane), gather(lane)]).collect()
}

fn batch_bytes(lane: &LaneBatching) -> AdaptiveValue {
    let (lowest, highest) = lane.batch_bytes_bounds;
    let target = millis(lane.batch_time_target);
    let why = match lane.slow_batch {
        None => format!("no batch took longer than {target} to write and sync"),
        Some((bytes, took)) => {
            let slow = format!("a batch of {bytes} bytes took {}, longer than {target}", millis(took));
            let state = if lane.batch_bytes < highest {
                "since then it grows with each faster one"
            } else {
                "since then it has grown back"
            };
            format!("{slow}; {state}")
        }
    };
    AdaptiveValue {
        name: "spool.batch_bytes",
        subject: lane.lane.to_string(),
        value: lane.batch_bytes.into(),
        bounds: Bounds::new(lowest, highest, highest),
        why,
    }
}

fn gather(lane: &LaneBatching) -> AdaptiveValue {
    let why = match lane.gather_count {
        0 => "few submissions came together, so a batch does not wait for more".to_owned(),
        count => {
            let time = lane.gather_time_max.as_micros();
            format!(
                "{} submissions came together, so the next batch waits for twice as many, for {time} us at most",
                count / 2
            )
        }
    };
    AdaptiveValue {
        name: "spool.gather",
        subject: lane.lane.to_string(),
        value: lane.gather_count.into(),
        bounds: Bounds::new(0, Value::Null, 0),
        why,
    }
}

/// The concurrency of next hops, those in trouble first.
pub(crate) fn of_next_hops<R: Clone>(queues: &Queues<R>) -> Vec<AdaptiveValue> {
    let mut hops: Vec<_> = queues.next_hop_views().filter(adapts).collect();
    let key = |hop: &NextHopView<'_>| (trouble_rank(hop.concurrency_reason), usize::MAX - hop.attempts);
    let order = |one: &NextHopView<'_>, other: &NextHopView<'_>| (key(one), one.name).cmp(&(key(other), other.name));
    if hops.len() > NEXT_HOPS_MAX {
        // The scheduler waits for this, and the order of the others does not matter.
        hops.select_nth_unstable_by(NEXT_HOPS_MAX, order);
    }
    let shown = hops.len().min(NEXT_HOPS_MAX);
    hops[..shown].sort_unstable_by(order);
    let queue_name = |number: queue::QueueNumber| &*queues.config().queues[usize::from(number.0)].name;
    let (shown, others) = hops.split_at(shown);
    let mut values: Vec<_> = shown.iter().map(|hop| of_next_hop(hop, queue_name)).collect();
    values.extend((!others.is_empty()).then(|| {
        let lowest = others.iter().map(|hop| hop.concurrency).min();
        let highest = others.iter().map(|hop| hop.concurrency).max();
        AdaptiveValue {
            name: "next_hop.concurrency",
            subject: format!("{} others", others.len()),
            value: Value::Null,
            bounds: Bounds::new(json!(lowest), json!(highest), Value::Null),
            why: "the lowest and the highest now; `mailrace queue list --by next-hop` shows each".to_owned(),
        }
    }));
    values
}

/// Next hops that only stand for a bounce or an error have a fixed number.
fn adapts(hop: &NextHopView<'_>) -> bool {
    hop.policy.start < hop.policy.max || hop.policy.shrink < 1.0
}

/// Reasons for a low number come first.
fn trouble_rank(reason: ConcurrencyReason) -> u8 {
    match reason {
        ConcurrencyReason::Dead => 0,
        ConcurrencyReason::Suspect => 1,
        ConcurrencyReason::Adopted(_) => 2,
        ConcurrencyReason::Reduced => 3,
        ConcurrencyReason::Raised | ConcurrencyReason::Start | ConcurrencyReason::Unproven => 4,
    }
}

fn of_next_hop<'a>(hop: &NextHopView<'_>, queue_name: impl Fn(queue::QueueNumber) -> &'a str) -> AdaptiveValue {
    let highest = hop.policy.max.max(1);
    let error = hop.error.map_or_else(String::new, |error| format!(": {error}"));
    let (bad, good) = match hop.policy.adapt {
        ConcurrencyFeedback::ByAnswers => ("failures or busy replies".to_owned(), "good answers"),
        ConcurrencyFeedback::ByLatency { target } => {
            (format!("failures, or attempts longer than {},", millis(target)), "quick attempts")
        }
    };
    let why = match hop.concurrency_reason {
        ConcurrencyReason::Dead => format!("it cannot be reached, and one attempt probes it{error}"),
        ConcurrencyReason::Suspect => format!("sessions were interrupted, so one message goes at a time{error}"),
        ConcurrencyReason::Unproven => format!("it has not answered yet, so one attempt goes at a time{error}"),
        ConcurrencyReason::Adopted(queue) => format!("the queue {} has adopted it{error}", queue_name(queue)),
        ConcurrencyReason::Reduced => format!("{bad} reduced it; it grows with {good}{error}"),
        ConcurrencyReason::Raised => format!("{good} raised it"),
        ConcurrencyReason::Start => format!("it grows with {good} while at least half of it is used"),
    };
    AdaptiveValue {
        name: "next_hop.concurrency",
        subject: hop.name.to_owned(),
        value: hop.concurrency.into(),
        bounds: Bounds::new(1, highest, hop.policy.start.clamp(1, highest)),
        why,
    }
}

/// How many recipients are delivered to Maildirs together.
pub(crate) fn of_maildir_batches(batches: &Histogram) -> AdaptiveValue {
    AdaptiveValue {
        name: "maildir.batch_recipients",
        subject: String::new(),
        value: mean(batches),
        bounds: Bounds::new(1, dispatch::MAILDIR_BATCH_MAX, Value::Null),
        why: mean_text(batches, "batches", "each takes what has come while the one before was delivered"),
    }
}

/// How many keys a table asks for together; None if it asks nobody.
pub(crate) fn of_table(table: &str, stats: &LookupStats) -> Option<AdaptiveValue> {
    (stats.request_keys_max > 0).then(|| AdaptiveValue {
        name: "table.batch",
        subject: table.to_owned(),
        value: mean(&stats.request_keys),
        bounds: Bounds::new(1, stats.request_keys_max, Value::Null),
        why: mean_text(&stats.request_keys, "requests", "keys that come while all requests are out go together"),
    })
}

/// The mean, rounded; null without any.
fn mean(sizes: &Histogram) -> Value {
    match sizes.count() {
        0 => Value::Null,
        count => ((sizes.sum + count / 2) / count).into(),
    }
}

fn mean_text(sizes: &Histogram, what: &str, rule: &str) -> String {
    match sizes.count() {
        0 => format!("no {what} yet; {rule}"),
        count => format!("the mean of {count} {what}; {rule}"),
    }
}

/// What is restricted because of the load.
pub(crate) fn of_load(report: &LoadReport) -> [AdaptiveValue; 3] {
    let restrictions = report.state.restrictions();
    let deliveries = match restrictions.delivery {
        AllowedDeliveries::All => "all",
        AllowedDeliveries::QueueOnly => "queued only",
        AllowedDeliveries::None => "none",
    };
    let clients = match restrictions.intake {
        AllowedClients::Open => "all",
        AllowedClients::ReservedOnly => "reserved only",
        AllowedClients::None => "none",
    };
    let mail = if restrictions.shortage.is_some() { "refused" } else { "accepted" };
    let value =
        |name, value: &str, (strictest, usual): (&str, &str), concerns: fn(LoadRestriction) -> bool| AdaptiveValue {
            name,
            subject: String::new(),
            value: value.into(),
            bounds: Bounds::new(strictest, usual, usual),
            why: active_limits(&report.state.active, concerns),
        };
    [
        value("load.deliveries", deliveries, ("none", "all"), |restriction| {
            matches!(restriction, LoadRestriction::QueueOnly | LoadRestriction::NoDelivery)
        }),
        value("load.clients", clients, ("reserved only", "all"), |restriction| {
            restriction == LoadRestriction::ReservedOnly
        }),
        value("load.mail", mail, ("refused", "accepted"), |restriction| {
            matches!(restriction, LoadRestriction::NoMail(_))
        }),
    ]
}

fn active_limits(active: &[ActiveLimit], concerns: fn(LoadRestriction) -> bool) -> String {
    let reasons: Vec<_> =
        active.iter().filter(|one| concerns(one.limit.restriction)).map(ToString::to_string).collect();
    if reasons.is_empty() { "no limit of [load] is in force".to_owned() } else { reasons.join("; ") }
}

fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

#[cfg(test)]
mod tests {
    use load::policy::{ActiveLimits, Gauge, GaugeReading, LoadLimits, LoadSample};
    use mail::Timestamp;
    use queue::{ContactResult, NextHopLimits, NextHopRoute};

    use super::*;
    use crate::adaptive_text::adaptive_table;
    use crate::sample::{self, NOW};

    fn lines(values: &[AdaptiveValue]) -> String {
        values.iter().map(|value| value.to_json().to_string()).collect::<Vec<_>>().join("\n")
    }

    fn lane(batch_bytes: u64, slow_batch: Option<(u64, Duration)>, gather_count: u64) -> LaneBatching {
        LaneBatching {
            lane: spool::LaneId { spool: mail::SpoolId::new(7), number: 0 },
            batch_bytes,
            batch_bytes_bounds: (262_144, 8_388_608),
            batch_time_target: Duration::from_millis(100),
            slow_batch,
            gather_count,
            gather_time_max: Duration::from_micros(500),
        }
    }

    #[test]
    fn each_value_has_its_bounds_and_its_reason() {
        let slow = Some((4_000_000, Duration::from_millis(412)));
        let histogram = |count, sum| {
            let mut sizes = Histogram { sum, ..Histogram::default() };
            sizes.buckets[3] = count;
            sizes
        };
        let mut sample = sample::queues();
        let error = mail::Reply::without_enhanced_code(451, "no route\nto host");
        sample.queues.finish_contact(NOW, &mut sample.attempt, ContactResult::Failed(error));
        let asked = LookupStats { request_keys: histogram(4, 90), request_keys_max: 64, ..LookupStats::default() };
        let reading = GaugeReading { gauge: Gauge::LoadAverage, source: "test", value: Some(9.5) };
        let limits = LoadLimits { refuse_above: Some(9.0), no_delivery_above: Some(8.0), ..LoadLimits::default() };
        let loaded = LoadSample { at: Timestamp(1), readings: vec![reading] };
        let state = ActiveLimits::default().after_sample(&loaded, &limits);
        let report = LoadReport { state, sample: loaded, limits: Vec::new() };
        let values = [
            of_spool(&[lane(8_388_608, None, 0), lane(2_036_000, slow, 24), lane(8_388_608, slow, 8)]),
            of_next_hops(&sample.queues),
            vec![of_maildir_batches(&histogram(3, 40)), of_maildir_batches(&Histogram::default())],
            of_table("people", &asked).into_iter().collect(),
            of_load(&report).into(),
            of_load(&LoadReport::default()).into(),
        ]
        .concat();
        let rows: Vec<Value> = values.iter().map(AdaptiveValue::to_json).collect();
        insta::assert_snapshot!("adaptive", format!("{}\n\n{}", lines(&values), adaptive_table(&rows).join("\n")));
        assert_eq!(of_table("file", &LookupStats::default()), None);
    }

    #[test]
    fn of_many_next_hops_those_in_trouble_are_shown() {
        let mut queues = sample::queues().queues;
        for number in 0..60 {
            let destination = queues.intern_destination(queue::QueueNumber(0), &format!("d{number}.example"));
            let routed = NextHopRoute {
                next_hop: format!("smtp:d{number}.example").into(),
                route: (),
                limits: NextHopLimits::default(),
                until: NOW + sample::HOUR,
                transient: false,
            };
            queues.set_route(NOW, destination, routed);
        }
        let known = queues.next_hop_views().count();
        let values = of_next_hops(&queues);
        assert_eq!(values.len(), (NEXT_HOPS_MAX + 1).min(known));
        let last = values.last().map(|value| value.subject.clone());
        assert_eq!(last, Some(format!("{} others", known - NEXT_HOPS_MAX)));
    }
}
