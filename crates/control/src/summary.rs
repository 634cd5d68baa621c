//! Summaries of the queue: how many recipients are in each state, their age, and the most common
//! error, for each destination, queue or sender. One pass keeps a few numbers for each. Next hops
//! have a list of their own, since recipients do not know theirs; and so have queues, whose counts
//! need no pass.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

use mail::Timestamp;
use queue::{DestinationId, DestinationView, NextHopView, Queues, RecipientProgress, RecipientView};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::explain;
use super::recipient_filter::{RecipientFilter, UnknownQueue};
use super::selection::{self, DestinationName};
use crate::explanation::Obstacle;

/// The minutes that separate age groups, as in qshape(1). The last group has no upper bound.
pub(super) const AGES: [u64; 9] = [5, 10, 20, 40, 80, 160, 320, 640, 1280];
/// Different errors that are counted for one destination; more are left out.
const ERRORS_MAX: usize = 16;

/// What is known of a group of recipients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecipientTally {
    ready: usize,
    in_flight: usize,
    waiting: usize,
    held: usize,
    /// By age: up to each of [`AGES`], and beyond.
    ages: [usize; AGES.len() + 1],
    accepted_first: Option<Timestamp>,
    due_first: Option<Timestamp>,
    errors: Vec<(Arc<str>, usize)>,
}

impl RecipientTally {
    /// Counts one recipient.
    pub(super) fn count(&mut self, entry: &RecipientView, now: Timestamp) {
        match entry.progress {
            RecipientProgress::Ready => self.ready += 1,
            RecipientProgress::InFlight => self.in_flight += 1,
            RecipientProgress::Held => self.held += 1,
            RecipientProgress::Waiting(until) => {
                self.waiting += 1;
                self.due_first = earliest(self.due_first, Some(until));
            }
        }
        let minutes = now.since(entry.accepted_at).as_secs() / 60;
        self.ages[AGES.partition_point(|age| *age <= minutes)] += 1;
        self.accepted_first = earliest(self.accepted_first, Some(entry.accepted_at));
        if let Some(error) = &entry.error {
            self.count_error(error, 1);
        }
    }

    /// Adds the counts of another group.
    pub(super) fn merge(&mut self, other: RecipientTally) {
        self.ready += other.ready;
        self.in_flight += other.in_flight;
        self.waiting += other.waiting;
        self.held += other.held;
        self.ages.iter_mut().zip(other.ages).for_each(|(age, more)| *age += more);
        self.accepted_first = earliest(self.accepted_first, other.accepted_first);
        self.due_first = earliest(self.due_first, other.due_first);
        other.errors.iter().for_each(|(error, count)| self.count_error(error, *count));
    }

    /// How many recipients were counted.
    pub(super) fn recipients(&self) -> usize {
        self.ready + self.in_flight + self.waiting + self.held
    }

    /// How many of them the operator holds.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// How many of them are due at a later time.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Seconds since the oldest message was accepted.
    pub(super) fn oldest_age_seconds(&self, now: Timestamp) -> Option<u64> {
        self.accepted_first.map(|first| now.since(first).as_secs())
    }

    /// The error that most of them had.
    pub(super) fn most_common_error(&self) -> Option<&str> {
        self.errors.iter().max_by_key(|(_, count)| *count).map(|(text, _)| &**text)
    }

    fn count_error(&mut self, error: &Arc<str>, more: usize) {
        match self.errors.iter_mut().find(|(known, _)| Arc::ptr_eq(known, error)) {
            Some((_, count)) => *count += more,
            None => self.errors.extend((self.errors.len() < ERRORS_MAX).then(|| (error.clone(), more))),
        }
    }

    /// Ready recipients are due now.
    fn next_attempt(&self, now: Timestamp) -> Option<Timestamp> {
        if self.ready > 0 { Some(now) } else { self.due_first }
    }

    fn json_members(&self, now: Timestamp) -> Map<String, Value> {
        let next = self.next_attempt(now);
        let members = [
            ("recipients", json!(self.recipients())),
            ("ready", json!(self.ready)),
            ("in_flight", json!(self.in_flight)),
            ("waiting", json!(self.waiting)),
            ("held", json!(self.held)),
            ("ages", json!(self.ages)),
            ("oldest", json!(self.accepted_first.map(Timestamp::to_rfc3339))),
            ("oldest_age_seconds", json!(self.oldest_age_seconds(now))),
            ("next_attempt", json!(next.map(Timestamp::to_rfc3339))),
            ("next_attempt_in_seconds", json!(next.map(|next| next.since(now).as_secs()))),
            ("error", json!(self.most_common_error())),
        ];
        members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// Counts the selected recipients in these slots by destination.
pub(super) fn tally_destinations<R: Clone>(
    queues: &Queues<R>,
    filter: &RecipientFilter,
    slots: Range<u32>,
    now: Timestamp,
) -> Result<HashMap<DestinationName, RecipientTally>, UnknownQueue> {
    let selected = selection::passing(queues, filter, slots, now)?.into_iter();
    let tallies: HashMap<DestinationId, RecipientTally> = tally(selected, now, |entry| entry.destination);
    Ok(tallies.into_iter().map(|(destination, tally)| (DestinationName::of(queues, destination), tally)).collect())
}

/// Counts all entries, grouped by `key`.
pub(super) fn tally<K: Eq + Hash>(
    entries: impl Iterator<Item = RecipientView>,
    now: Timestamp,
    key: impl Fn(&RecipientView) -> K,
) -> HashMap<K, RecipientTally> {
    let mut tallies: HashMap<K, RecipientTally> = HashMap::new();
    for entry in entries {
        tallies.entry(key(&entry)).or_default().count(&entry, now);
    }
    tallies
}

/// A row for each destination, those with the most recipients first.
pub(super) fn by_destination(tallies: HashMap<DestinationName, RecipientTally>, now: Timestamp) -> Vec<Value> {
    let row = |(destination, tally): &(DestinationName, RecipientTally)| {
        let names = [("destination", json!(destination.name)), ("queue", json!(destination.queue))];
        json_object(names, tally.json_members(now))
    };
    sort_by_recipients(tallies).iter().map(row).collect()
}

/// A row for each sender.
pub(super) fn by_sender(tallies: HashMap<String, RecipientTally>, now: Timestamp) -> Vec<Value> {
    sort_by_recipients(tallies)
        .iter()
        .map(|(sender, tally)| json_object([("sender", json!(sender))], tally.json_members(now)))
        .collect()
}

/// A queue, without its recipients.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueSummary {
    name: Box<str>,
    attempts: usize,
    concurrency: usize,
    paused: bool,
}

/// All queues, in the order of the configuration.
pub(super) fn queue_summaries<R: Clone>(queues: &Queues<R>) -> Vec<QueueSummary> {
    let queue = |view: queue::QueueView<'_>| QueueSummary {
        name: view.name.into(),
        attempts: view.attempts,
        concurrency: view.concurrency,
        paused: view.pause.is_some(),
    };
    queues.queue_views().filter(|view| !view.is_retired_and_empty()).map(queue).collect()
}

/// A row for each queue, including empty ones.
pub(super) fn by_queue(
    queues: Vec<QueueSummary>,
    destinations: HashMap<DestinationName, RecipientTally>,
    now: Timestamp,
) -> Vec<Value> {
    let mut tallies: HashMap<Box<str>, RecipientTally> = HashMap::new();
    for (destination, tally) in destinations {
        tallies.entry(destination.queue).or_default().merge(tally);
    }
    let with_tally = |queue: QueueSummary| {
        let tally = tallies.remove(&queue.name).unwrap_or_default();
        (queue, tally)
    };
    let row = |(queue, tally): &(QueueSummary, RecipientTally)| {
        let names = [
            ("queue", json!(queue.name)),
            ("attempts", json!(queue.attempts)),
            ("concurrency", json!(queue.concurrency)),
            ("paused", json!(queue.paused)),
        ];
        json_object(names, tally.json_members(now))
    };
    sort_by_recipients(queues.into_iter().map(with_tally)).iter().map(row).collect()
}

/// A queue, with the recipients in each state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct QueueStatus {
    /// Its name.
    pub queue: String,
    /// Whether the operator has paused it.
    pub paused: bool,
    /// When the pause ends (RFC 3339); null: when it is resumed.
    pub paused_until: Option<String>,
    /// Attempts in progress.
    pub attempts: usize,
    /// The highest number of attempts in progress.
    pub concurrency: usize,
    /// Recipients that wait for their turn.
    pub ready: usize,
    /// Recipients in an attempt, or whose attempt or action is not recorded.
    pub in_flight: usize,
    /// Recipients that are due at a later time.
    pub waiting: usize,
    /// Recipients that the operator holds.
    pub held: usize,
}

/// All queues, in the order of the configuration.
pub(super) fn queue_statuses<R: Clone>(queues: &Queues<R>) -> Vec<QueueStatus> {
    let status = |view: queue::QueueView<'_>| QueueStatus {
        queue: view.name.to_owned(),
        paused: view.pause.is_some(),
        paused_until: view.pause.flatten().map(Timestamp::to_rfc3339),
        attempts: view.attempts,
        concurrency: view.concurrency,
        ready: view.ready,
        in_flight: view.in_flight,
        waiting: view.waiting,
        held: view.held,
    };
    queues.queue_views().filter(|view| !view.is_retired_and_empty()).map(status).collect()
}

/// A next hop that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct NextHopStatus {
    /// Its name.
    pub next_hop: String,
    /// Destinations that are routed there.
    pub destinations: usize,
    /// Recipients of these destinations, queued or in an attempt.
    pub recipients: usize,
    /// Attempts in progress.
    pub attempts: usize,
    /// The highest number of attempts in progress, as of now.
    pub concurrency: usize,
    /// The queue that has adopted it.
    pub adopted_by: Option<String>,
    /// Whether the operator has paused it.
    pub paused: bool,
    /// When the pause ends (RFC 3339); null: when it is resumed.
    pub paused_until: Option<String>,
    /// Failures since it last answered.
    pub failures: u32,
    /// When it is tried again, if it cannot be reached (RFC 3339).
    pub dead_until: Option<String>,
    /// Seconds until then.
    pub dead_for_seconds: Option<u64>,
    /// When its rate allows the next attempt (RFC 3339); null: now.
    pub rate_free_at: Option<String>,
    /// Milliseconds until then.
    pub rate_free_in_ms: Option<u64>,
    /// Its last error.
    pub error: Option<String>,
}

impl NextHopStatus {
    /// The status of a next hop for which this many recipients wait.
    pub(super) fn of<R: Clone>(
        queues: &Queues<R>,
        hop: &NextHopView<'_>,
        recipients: usize,
        now: Timestamp,
    ) -> NextHopStatus {
        let queue_name = |number: queue::QueueNumber| queues.config().queues[usize::from(number.0)].name.to_string();
        let rate_free_at = hop.rate_free_at.filter(|at| *at > now);
        NextHopStatus {
            next_hop: hop.name.to_owned(),
            destinations: hop.destinations,
            recipients,
            attempts: hop.attempts,
            concurrency: hop.concurrency,
            adopted_by: hop.adopted_by.map(queue_name),
            paused: hop.pause.is_some(),
            paused_until: hop.pause.flatten().map(Timestamp::to_rfc3339),
            failures: hop.failures,
            dead_until: hop.probe_at.map(Timestamp::to_rfc3339),
            dead_for_seconds: hop.probe_at.map(|at| at.since(now).as_secs()),
            rate_free_at: rate_free_at.map(Timestamp::to_rfc3339),
            rate_free_in_ms: rate_free_at.map(|at| at.since(now).as_millis() as u64),
            error: hop.error.map(ToString::to_string),
        }
    }
}

/// All known next hops, the busiest first.
pub(super) fn by_next_hop<R: Clone>(queues: &Queues<R>, now: Timestamp) -> Vec<NextHopStatus> {
    let mut hops: Vec<_> = queues.next_hop_views().collect();
    hops.sort_unstable_by(|one, other| (other.attempts, one.name).cmp(&(one.attempts, other.name)));
    hop_statuses(queues, &hops, now)
}

fn hop_statuses<R: Clone>(queues: &Queues<R>, hops: &[NextHopView<'_>], now: Timestamp) -> Vec<NextHopStatus> {
    let recipients = recipients_by_hop(queues);
    let recipients_of = |hop: &NextHopView<'_>| recipients.get(hop.name).copied().unwrap_or_default();
    hops.iter().map(|hop| NextHopStatus::of(queues, hop, recipients_of(hop), now)).collect()
}

/// At most `limit` next hops whose names come after this one, by name.
pub(super) fn next_hops_after<R: Clone>(
    queues: &Queues<R>,
    after: Option<&str>,
    limit: usize,
    now: Timestamp,
) -> Vec<NextHopStatus> {
    let is_after = |hop: &NextHopView<'_>| after.is_none_or(|after| hop.name > after);
    let all = queues.next_hop_views().filter(is_after).collect();
    let found = first_sorted(all, limit, |one: &NextHopView<'_>, other: &NextHopView<'_>| one.name.cmp(other.name));
    hop_statuses(queues, &found, now)
}

/// The first `limit` in this order.
pub(super) fn first_sorted<T>(mut all: Vec<T>, limit: usize, order: impl Fn(&T, &T) -> Ordering) -> Vec<T> {
    if all.len() > limit {
        all.select_nth_unstable_by(limit, &order);
        all.truncate(limit);
    }
    all.sort_unstable_by(order);
    all
}

/// A destination with recipients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct DestinationStatus {
    /// Its name, in most cases a domain.
    pub destination: String,
    /// Its queue.
    pub queue: String,
    /// Its recipients, queued or in an attempt.
    pub recipients: usize,
    /// Its next hop, if it is known.
    pub next_hop: Option<String>,
    /// Whether the operator has paused it.
    pub paused: bool,
    /// When the pause ends (RFC 3339); null: when it is resumed.
    pub paused_until: Option<String>,
    /// What blocks it now; empty if its recipients only wait for their turn, for their time, or for the
    /// operator.
    pub obstacles: Vec<Obstacle>,
}

/// At most `limit` destinations, those with the most recipients first.
pub(super) fn largest_destinations<R: Clone>(
    queues: &Queues<R>,
    limit: usize,
    now: Timestamp,
) -> Vec<DestinationStatus> {
    let order = |one: &DestinationView<'_>, other: &DestinationView<'_>| {
        other
            .recipients
            .cmp(&one.recipients)
            .then_with(|| destination_key(queues, one).cmp(&destination_key(queues, other)))
    };
    let found = first_sorted(queues.destination_views().collect(), limit, order);
    found.iter().map(|view| destination_status(queues, view, now)).collect()
}

/// At most `limit` destinations whose name and queue come after these, in this order.
pub(super) fn destinations_after<R: Clone>(
    queues: &Queues<R>,
    after: Option<(&str, &str)>,
    limit: usize,
    now: Timestamp,
) -> Vec<DestinationStatus> {
    let is_after = |view: &DestinationView<'_>| after.is_none_or(|after| destination_key(queues, view) > after);
    let all = queues.destination_views().filter(is_after).collect();
    let order = |one: &DestinationView<'_>, other: &DestinationView<'_>| {
        destination_key(queues, one).cmp(&destination_key(queues, other))
    };
    first_sorted(all, limit, order).iter().map(|view| destination_status(queues, view, now)).collect()
}

pub(super) fn destination_key<'a, R: Clone>(queues: &'a Queues<R>, view: &DestinationView<'a>) -> (&'a str, &'a str) {
    (view.name, &*queues.config().queues[usize::from(view.queue.0)].name)
}

/// The recipients for each next hop.
pub(super) fn recipients_by_hop<R: Clone>(queues: &Queues<R>) -> HashMap<&str, usize> {
    let mut recipients = HashMap::new();
    for view in queues.destination_views() {
        if let Some(hop) = view.next_hop {
            *recipients.entry(hop).or_default() += view.recipients;
        }
    }
    recipients
}

pub(super) fn destination_status<R: Clone>(
    queues: &Queues<R>,
    view: &DestinationView<'_>,
    now: Timestamp,
) -> DestinationStatus {
    let (destination, queue) = destination_key(queues, view);
    DestinationStatus {
        destination: destination.to_owned(),
        queue: queue.to_owned(),
        recipients: view.recipients,
        next_hop: view.next_hop.map(str::to_owned),
        paused: view.pause.is_some(),
        paused_until: view.pause.flatten().map(Timestamp::to_rfc3339),
        obstacles: explain::obstacles(queues, view.number, now),
    }
}

fn sort_by_recipients<K: Ord>(tallies: impl IntoIterator<Item = (K, RecipientTally)>) -> Vec<(K, RecipientTally)> {
    let mut rows: Vec<_> = tallies.into_iter().collect();
    rows.sort_unstable_by(|(one, of_one), (other, of_other)| {
        of_other.recipients().cmp(&of_one.recipients()).then_with(|| one.cmp(other))
    });
    rows
}

fn json_object<const N: usize>(names: [(&str, Value); N], mut members: Map<String, Value>) -> Value {
    members.extend(names.into_iter().map(|(name, value)| (name.to_owned(), value)));
    Value::Object(members)
}

#[cfg(test)]
mod tests {
    use super::super::sample::{self, NOW};
    use super::*;

    fn lines(rows: &[impl Serialize]) -> String {
        rows.iter().map(|row| serde_json::to_string(row).unwrap()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn recipients_are_summed_up_by_where_they_are_and_by_who_writes_to_them() {
        let sample = sample::queues();
        let (queues, letters) = (&sample.queues, &sample.messages);
        let entries = || queues.recipient_views();
        let destinations = tally(entries(), NOW, |entry| DestinationName::of(queues, entry.destination));
        let senders = tally(entries(), NOW, |entry| {
            let sender = letters[&entry.id].0.sender.as_ref();
            sender.map(ToString::to_string).unwrap_or_default()
        });
        let summaries = [
            by_destination(destinations.clone(), NOW),
            by_queue(queue_summaries(queues), destinations, NOW),
            by_sender(senders, NOW),
        ]
        .concat();
        insta::assert_snapshot!("summaries", lines(&summaries));
    }

    #[test]
    fn next_hops_are_listed_with_their_limits_and_troubles() {
        let mut sample = sample::queues();
        let error = mail::Reply::without_enhanced_code(451, "no route to host");
        sample.queues.finish_contact(NOW, &mut sample.attempt, queue::ContactResult::Failed(error));
        let rows = by_next_hop(&sample.queues, NOW);
        insta::assert_snapshot!("next_hops", lines(&rows));
        let names = |after, limit| {
            let rows = next_hops_after(&sample.queues, after, limit, NOW);
            rows.into_iter().map(|row| row.next_hop).collect::<Vec<_>>()
        };
        let all = names(None, 9);
        assert!(all.is_sorted() && all.len() == rows.len(), "{all:?}");
        assert_eq!([names(None, 1), names(Some(&*all[0]), 1)].concat(), all[..2]);
    }

    #[test]
    fn destinations_are_listed_by_size_and_by_name() {
        let sample = sample::queues();
        let names = |rows: Vec<DestinationStatus>| {
            rows.into_iter().map(|row| (row.destination, row.queue, row.recipients)).collect::<Vec<_>>()
        };
        let all = names(destinations_after(&sample.queues, None, 9, NOW));
        assert_eq!(all.len(), 4);
        assert!(all.is_sorted_by_key(|(name, queue, _)| (name.clone(), queue.clone())), "{all:?}");
        let second = destinations_after(&sample.queues, Some((&all[0].0, &all[0].1)), 1, NOW);
        assert_eq!(names(second), all[1..2]);
        let largest = names(largest_destinations(&sample.queues, 1, NOW));
        assert_eq!(largest[0].2, 2, "{largest:?}");
    }

    #[test]
    fn an_age_is_counted_where_it_ends() {
        let (sample, minute) = (sample::queues(), std::time::Duration::from_secs(60));
        let entry = sample.queues.recipient_views().next().unwrap();
        let destination = |minutes: u32| {
            let mut tally = RecipientTally::default();
            tally.count(&entry, entry.accepted_at + minute * minutes);
            tally.ages.iter().position(|count| *count == 1).unwrap()
        };
        assert_eq!([0, 4, 5, 9, 10, 1279, 1280, 99_999].map(destination), [0, 0, 1, 1, 2, 8, 9, 9]);
    }

    #[test]
    fn the_most_common_error_is_shown() {
        let mut tally = RecipientTally::default();
        let (rare, common): (Arc<str>, Arc<str>) = ("451 rare".into(), "450 common".into());
        [&rare, &common, &common].into_iter().for_each(|error| tally.count_error(error, 1));
        (0..100).for_each(|number| tally.count_error(&format!("{number}").into(), 1));
        assert_eq!(tally.json_members(NOW)["error"], "450 common");
        assert_eq!(tally.errors.len(), ERRORS_MAX);
    }
}
