//! Filters select recipients; all conditions of a filter must hold. One definition serves the
//! command line options and the members of a request.
//!
//! | condition | needs |
//! |---|---|
//! | queue, destination, state, age, error, id, the recipient's domain | the queue: the [`QueueFilter`] |
//! | sender, local part of the recipient, size | the message: its envelope and size, from the spool |
//!
//! An empty condition (an empty text or list, or `null`) is refused: it would select more than it
//! says.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use clap::{Args, ValueEnum};
use mail::{Envelope, QueueId, Timestamp};
use queue::{DestinationId, QueueNumber, Queues, RecipientProgress, RecipientView};
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::pattern::{AddressPattern, DestinationPattern, SubstringPattern, domain_of};
use super::text::{DurationArg, SerdeAsText, SizeArg};

/// Conditions on a recipient and its message.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RecipientFilter {
    /// Sent by this address, @domain or pattern with *; <> for bounces
    #[arg(long, value_name = "ADDRESS")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(value_type = String)]
    pub sender: Option<SerdeAsText<AddressPattern>>,
    /// To this address, @domain or pattern with *
    #[arg(long, value_name = "ADDRESS")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(value_type = String)]
    pub recipient: Option<SerdeAsText<AddressPattern>>,
    /// For this destination, or a pattern with *
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(value_type = String)]
    pub destination: Option<SerdeAsText<DestinationPattern>>,
    /// In this queue
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(value_type = String)]
    pub queue: Option<String>,
    /// In one of these states: held, waiting (for a later attempt), active (ready or in flight),
    /// ready, in-flight
    #[arg(long, value_name = "STATE", value_delimiter = ',', hide_possible_values = true)]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "non_empty")]
    pub state: Vec<RecipientStateFilter>,
    /// Accepted longer ago than this: 90s, 30m, 2h, 5d
    #[arg(long, value_name = "SPAN")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(value_type = String)]
    pub older_than: Option<SerdeAsText<DurationArg>>,
    /// Accepted more recently than this
    #[arg(long, value_name = "SPAN")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(value_type = String)]
    pub younger_than: Option<SerdeAsText<DurationArg>>,
    /// Of a message larger than this: 500B, 100kB, 10MiB
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(value_type = String)]
    pub larger_than: Option<SerdeAsText<SizeArg>>,
    /// Of a message smaller than this
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(value_type = String)]
    pub smaller_than: Option<SerdeAsText<SizeArg>>,
    /// With this text in the last error
    #[arg(long, value_name = "TEXT")]
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[schema(value_type = String)]
    pub error: Option<SerdeAsText<SubstringPattern>>,
    /// Of these messages
    #[arg(long, value_name = "QUEUE-ID", num_args = 1..)]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "non_empty")]
    #[schema(value_type = Vec<String>)]
    pub id: Vec<SerdeAsText<QueueId>>,
}

/// A state, as the operator names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum RecipientStateFilter {
    /// Kept until the operator releases it
    Held,
    /// Waits for a later attempt
    Waiting,
    /// Ready or in flight
    Active,
    /// Due, and waiting for its turn
    Ready,
    /// An attempt or an action has begun and is not recorded yet
    InFlight,
}

impl RecipientStateFilter {
    fn includes(self, progress: RecipientProgress) -> bool {
        match progress {
            RecipientProgress::Held => self == RecipientStateFilter::Held,
            RecipientProgress::Waiting(_) => self == RecipientStateFilter::Waiting,
            RecipientProgress::Ready => matches!(self, RecipientStateFilter::Ready | RecipientStateFilter::Active),
            RecipientProgress::InFlight => {
                matches!(self, RecipientStateFilter::InFlight | RecipientStateFilter::Active)
            }
        }
    }
}

impl RecipientFilter {
    /// Whether the filter selects everything.
    pub fn is_empty(&self) -> bool {
        *self == RecipientFilter::default()
    }

    /// Whether the filter needs more than the queue knows.
    pub(super) fn needs_messages(&self) -> bool {
        let needs_recipient = self.recipient.as_ref().is_some_and(|pattern| !pattern.0.matches_whole_domain());
        self.sender.is_some() || needs_recipient || self.larger_than.is_some() || self.smaller_than.is_some()
    }

    /// Whether a message passes the conditions on messages, for one of its recipients.
    pub(super) fn passes_message(&self, envelope: &Envelope, size: u64, ordinal: u32) -> bool {
        let recipient = envelope.recipients.get(ordinal as usize).map(|recipient| &recipient.address);
        self.sender.as_ref().is_none_or(|pattern| pattern.0.matches(envelope.sender.as_ref()))
            && self.recipient.as_ref().is_none_or(|pattern| recipient.is_some() && pattern.0.matches(recipient))
            && self.larger_than.as_ref().is_none_or(|least| size > least.0.0)
            && self.smaller_than.as_ref().is_none_or(|most| size < most.0.0)
    }

    /// Whether it has a condition on the destination.
    pub(super) fn names_destinations(&self) -> bool {
        self.destination.is_some() || self.queue.is_some() || self.recipient.is_some()
    }

    fn passes_name(&self, name: &str) -> bool {
        self.destination.as_ref().is_none_or(|pattern| pattern.0.matches(name))
            && self.recipient.as_ref().is_none_or(|pattern| pattern.0.can_match_domain(domain_of(name)))
    }

    fn passes_state(&self, progress: RecipientProgress) -> bool {
        self.state.is_empty() || self.state.iter().any(|state| state.includes(progress))
    }

    fn passes_age(&self, age: Duration) -> bool {
        self.older_than.as_ref().is_none_or(|span| age > span.0.0)
            && self.younger_than.as_ref().is_none_or(|span| age < span.0.0)
    }
}

/// Reads a condition that is present. Derived code would accept `null` as absent.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Reads a list with at least one element: an empty list would be no condition.
fn non_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() { Err(de::Error::invalid_length(0, &"at least one")) } else { Ok(list) }
}

/// No such queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such queue: {name:?}; expected one of: {others}")]
pub(super) struct UnknownQueue {
    name: String,
    others: String,
}

/// The number of the queue with this name.
pub(super) fn find_queue<R: Clone>(queues: &Queues<R>, name: &str) -> Result<QueueNumber, UnknownQueue> {
    let current_queues = || queues.queue_views().filter(|queue| !queue.is_retired_and_empty());
    current_queues().find(|queue| queue.name == name).map(|queue| queue.number).ok_or_else(|| {
        let others: Vec<_> = current_queues().map(|queue| queue.name).collect();
        UnknownQueue { name: name.into(), others: others.join(", ") }
    })
}

/// The conditions on what the queue knows, prepared for one pass over a million entries: each
/// destination and each error text is checked once.
pub(super) struct QueueFilter<'a> {
    filter: &'a RecipientFilter,
    now: Timestamp,
    queue: Option<QueueNumber>,
    /// Those that were checked, and whether they pass; None: all do.
    destinations: Option<HashMap<DestinationId, bool>>,
    ids: HashSet<QueueId>,
    /// By address of the error text in memory: whether it contains the wanted text.
    errors: HashMap<usize, bool>,
}

impl<'a> QueueFilter<'a> {
    /// For no recipients before [`add_entries`](QueueFilter::add_entries).
    pub(super) fn new<R: Clone>(
        filter: &'a RecipientFilter,
        queues: &Queues<R>,
        now: Timestamp,
    ) -> Result<QueueFilter<'a>, UnknownQueue> {
        Ok(QueueFilter {
            filter,
            now,
            queue: filter.queue.as_ref().map(|name| find_queue(queues, name)).transpose()?,
            destinations: filter.names_destinations().then(HashMap::new),
            ids: filter.id.iter().map(|id| id.0).collect(),
            errors: HashMap::new(),
        })
    }

    /// For these recipients too, in the same pass.
    pub(super) fn add_entries<'e, R: Clone>(
        &mut self,
        queues: &Queues<R>,
        entries: impl Iterator<Item = &'e RecipientView>,
    ) {
        let (filter, queue) = (self.filter, self.queue);
        let is_selected = |destination: &DestinationId| {
            queue.is_none_or(|queue| queues.destination_queue(*destination) == queue)
                && filter.passes_name(queues.destination_name(*destination))
        };
        let Some(checked) = &mut self.destinations else { return };
        for entry in entries {
            checked.entry(entry.destination).or_insert_with_key(is_selected);
        }
    }

    /// Whether an entry passes.
    pub(super) fn passes(&mut self, entry: &RecipientView) -> bool {
        let passes = |checked: &HashMap<_, _>| checked.get(&entry.destination) == Some(&true);
        self.destinations.as_ref().is_none_or(passes)
            && (self.ids.is_empty() || self.ids.contains(&entry.id))
            && self.filter.passes_state(entry.progress)
            && self.filter.passes_age(self.now.since(entry.accepted_at))
            && self.passes_error(entry)
    }

    fn passes_error(&mut self, entry: &RecipientView) -> bool {
        let Some(wanted) = &self.filter.error else { return true };
        let Some(error) = &entry.error else { return false };
        // The queue keeps each text once, and does not move it during this pass.
        let address = error.as_ptr().addr();
        *self.errors.entry(address).or_insert_with(|| wanted.0.matches(error))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{self, HOUR, NOW};
    use super::*;

    /// The recipients of the sample that a filter selects, by their number there.
    fn selected(options: &[&str]) -> Vec<u32> {
        let filter = sample::filter(options);
        let sample = sample::queues();
        let mut queue_filter = QueueFilter::new(&filter, &sample.queues, NOW).unwrap();
        let all: Vec<RecipientView> = sample.queues.recipient_views().collect();
        queue_filter.add_entries(&sample.queues, all.iter());
        let passes_letter = |entry: &RecipientView| {
            let (envelope, size) = &sample.messages[&entry.id];
            filter.passes_message(envelope, *size, entry.ordinal)
        };
        let entries = all.into_iter().filter(|entry| queue_filter.passes(entry) && passes_letter(entry));
        let mut found: Vec<_> = entries.map(|entry| sample.number(&entry)).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn each_condition_selects_by_itself() {
        for (options, expected) in [
            (&[][..], &[0, 1, 2, 3, 4][..]),
            (&["--sender", "news@lists.example"], &[0, 1, 2]),
            (&["--sender", "@LISTS.example"], &[0, 1, 2]),
            (&["--sender", "<>"], &[4]),
            (&["--recipient", "bob@a.example"], &[0, 3]),
            (&["--recipient", "@a.example"], &[0, 1, 3]),
            (&["--recipient", "*o*"], &[0, 2, 3]),
            (&["--destination", "b.example"], &[2]),
            (&["--destination", "*.example"], &[0, 1, 2, 3, 4]),
            (&["--destination", "mx.here!*"], &[4]),
            (&["--queue", "standard"], &[0, 1, 2, 4]),
            (&["--older-than", "90m"], &[0, 1, 2]),
            (&["--older-than", "2h"], &[]),
            (&["--younger-than", "2h"], &[3, 4]),
            (&["--younger-than", "1h"], &[]),
            (&["--larger-than", "1999B"], &[0, 1, 2]),
            (&["--larger-than", "2000B"], &[]),
            (&["--smaller-than", "2kB"], &[3, 4]),
            (&["--error", "GREYLISTED"], &[1, 2]),
            (&["--id", "7-0-1", "7-0-3"], &[0, 1, 2, 4]),
            (&["--state", "held"], &[0]),
            (&["--state", "waiting"], &[1, 2]),
            (&["--state", "ready"], &[3]),
            (&["--state", "in-flight"], &[4]),
            (&["--state", "active"], &[3, 4]),
            (&["--state", "held,ready"], &[0, 3]),
            (&["--state", "held", "--state", "waiting"], &[0, 1, 2]),
        ] {
            assert_eq!(selected(options), expected, "{options:?}");
        }
    }

    #[test]
    fn all_conditions_together_must_hold() {
        for (options, expected) in [
            (&["--sender", "@lists.example", "--recipient", "@a.example"][..], &[0, 1][..]),
            (&["--queue", "lists", "--older-than", "10m"], &[3]),
            (&["--queue", "lists", "--destination", "b.example"], &[]),
            (&["--error", "greylisted", "--recipient", "*@b.example", "--larger-than", "1kB"], &[2]),
            (&["--older-than", "10m", "--younger-than", "90m", "--smaller-than", "1001B"], &[3, 4]),
            (&["--state", "waiting", "--recipient", "@a.example"], &[1]),
        ] {
            assert_eq!(selected(options), expected, "{options:?}");
        }
    }

    #[test]
    fn messages_are_read_only_if_needed() {
        let needs = |options: &[&str]| sample::filter(options).needs_messages();
        for options in [&["--sender", "@a"][..], &["--recipient", "b*"], &["--larger-than", "1B"]] {
            assert!(needs(options), "{options:?}");
        }
        for options in
            [&["--recipient", "@a"][..], &["--state", "held"], &["--queue", "a", "--error", "b", "--older-than", "1d"]]
        {
            assert!(!needs(options), "{options:?}");
        }
    }

    #[test]
    fn an_unknown_queue_error_lists_the_queues() {
        let (filter, sample) = (sample::filter(&["--queue", "list"]), sample::queues());
        let error = QueueFilter::new(&filter, &sample.queues, NOW + HOUR).err().unwrap();
        assert_eq!(error.to_string(), "no such queue: \"list\"; expected one of: standard, lists, lame");
    }
}
