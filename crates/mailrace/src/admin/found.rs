//! The recipients that a filter selects. The queue's part is copied in one pass on the scheduler's
//! thread; the handler reads the messages afterwards, each once if its recipients come one after
//! another.

use std::collections::{HashMap, HashSet};

use mail::{Envelope, QueueId, Timestamp};
use queue::{Act, Destination, Entry, Queues};
use spool::Spool;

use super::filter::{Filter, NoSuchQueue, Sieve};
use super::question::Order;

/// A recipient: the message and the ordinal in its envelope.
pub(super) type Whom = (QueueId, u32);

/// The recipients that pass the conditions on what the queue knows.
#[derive(Default)]
pub(super) struct Found {
    /// Oldest first, recipients of one message together.
    pub(super) entries: Vec<Entry>,
    /// The destinations of the entries.
    pub(super) places: HashMap<Destination, Place>,
}

/// The names of a destination and its queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) name: Box<str>,
    pub(super) queue: Box<str>,
}

impl Place {
    pub(super) fn of<R: Clone>(queues: &Queues<R>, destination: Destination) -> Place {
        let queue = usize::from(queues.destination_queue(destination).0);
        Place { name: queues.destination_name(destination).into(), queue: queues.config().queues[queue].name.clone() }
    }
}

/// Selects recipients.
pub(super) fn find<R: Clone>(queues: &Queues<R>, filter: &Filter, now: Timestamp) -> Result<Found, NoSuchQueue> {
    let mut sieve = Sieve::new(filter, queues, now)?;
    let mut found = Found::default();
    for entry in queues.entries().filter(|entry| sieve.passes(entry)) {
        found.places.entry(entry.destination).or_insert_with_key(|destination| Place::of(queues, *destination));
        found.entries.push(entry);
    }
    Ok(found)
}

impl Found {
    /// Sorts the entries. This takes long for many, and is not done on the scheduler's thread.
    pub(super) fn sort(&mut self) {
        self.entries.sort_unstable_by_key(|entry| (entry.accepted_at, entry.id, entry.ordinal));
    }
}

/// Counts the recipients that pass the conditions on what the queue knows.
pub(super) fn count<R: Clone>(queues: &Queues<R>, filter: &Filter, now: Timestamp) -> Result<usize, NoSuchQueue> {
    if filter.is_empty() {
        return Ok(queues.len());
    }
    let mut sieve = Sieve::new(filter, queues, now)?;
    Ok(queues.entries().filter(|entry| sieve.passes(entry)).count())
}

/// The recipients that an action may apply to, so that the caller can read their messages first.
/// Only the queue knows which these are: it is asked to pick, and every pick is declined.
pub(super) fn candidates<R: Clone>(
    queues: &mut Queues<R>,
    act: Act,
    filter: &Filter,
    now: Timestamp,
) -> Result<Vec<Whom>, NoSuchQueue> {
    let mut sieve = Sieve::new(filter, queues, now)?;
    let mut candidates = Vec::new();
    queues.pick(act, now, &mut |entry| {
        if sieve.passes(entry) {
            candidates.push((entry.id, entry.ordinal));
        }
        false
    });
    Ok(candidates)
}

/// Applies an action to the recipients that pass, limited to `letters` if given, and returns how
/// many. A dry run only counts.
pub(super) fn pick<R: Clone>(
    queues: &mut Queues<R>,
    act: Act,
    order: &Order,
    letters: Option<&HashSet<Whom>>,
    now: Timestamp,
) -> Result<usize, NoSuchQueue> {
    let mut sieve = Sieve::new(&order.filter, queues, now)?;
    let mut count = 0;
    queues.pick(act, now, &mut |entry| {
        let is_meant =
            letters.is_none_or(|letters| letters.contains(&(entry.id, entry.ordinal))) && sieve.passes(entry);
        count += usize::from(is_meant);
        is_meant && !order.dry_run
    });
    Ok(count)
}

/// A message: its envelope and its size in bytes.
pub(super) type Letter = (Envelope, u64);

/// Reads messages, and keeps the last one.
pub(super) struct Letters<'a> {
    spool: &'a Spool,
    last: Option<(QueueId, Option<Letter>)>,
}

impl<'a> Letters<'a> {
    pub(super) fn new(spool: &'a Spool) -> Self {
        Letters { spool, last: None }
    }

    /// None if the message is gone or cannot be read.
    pub(super) fn letter(&mut self, id: QueueId) -> Option<&Letter> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != id) {
            let stored = self.spool.message(id).ok();
            self.last = Some((id, stored.map(|stored| (stored.envelope, stored.body.len()))));
        }
        self.last.as_ref()?.1.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use queue::Purpose;

    use super::super::sample::{self, NOW};
    use super::*;

    fn order(options: &[&str], dry_run: bool) -> Order {
        Order { filter: sample::filter(options), dry_run }
    }

    #[test]
    fn entries_are_found_with_the_names_of_their_places() {
        let sample = sample::queues();
        let mut found = find(&sample.queues, &sample::filter(&["--older-than", "90m"]), NOW).unwrap();
        found.sort();
        assert_eq!(found.entries.iter().map(|entry| entry.ordinal).collect::<Vec<_>>(), [0, 1, 2]);
        let mut places: Vec<_> = found.places.values().map(|place| (&*place.name, &*place.queue)).collect();
        places.sort_unstable();
        assert_eq!(places, [("a.example", "standard"), ("b.example", "standard")]);
        let number = |options: &[&str]| count(&sample.queues, &sample::filter(options), NOW).unwrap();
        assert_eq!([number(&[]), number(&["--older-than", "90m"]), number(&["--id", "7-0-9"])], [5, 3, 0]);
    }

    #[test]
    fn an_act_chooses_those_who_pass_and_never_those_in_flight() {
        let acts = [Act::Hold, Act::Release, Act::Retry, Act::Remove, Act::Bounce];
        let number = |dry_run: bool| {
            acts.map(|act| pick(&mut sample::queues().queues, act, &order(&[], dry_run), None, NOW).unwrap())
        };
        assert_eq!(number(true), [3, 1, 2, 4, 4]);
        assert_eq!(number(false), number(true));
    }

    #[test]
    fn a_dry_run_changes_nothing() {
        let mut queues = sample::queues().queues;
        let run = |queues: &mut Queues<()>, dry_run| {
            pick(queues, Act::Retry, &order(&["--error", "greylisted"], dry_run), None, NOW).unwrap()
        };
        assert_eq!([run(&mut queues, true), run(&mut queues, true), run(&mut queues, false)], [2, 2, 2]);
        assert_eq!(run(&mut queues, true), 0);
        let attempt = queues.next(NOW).unwrap();
        assert_eq!(attempt.purpose, Purpose::Act(Act::Retry));
    }

    #[test]
    fn where_letters_count_only_theirs_are_chosen() {
        let mut queues = sample::queues().queues;
        let filter = order(&["--recipient", "*@a.example"], false);
        let mut found = candidates(&mut queues, Act::Hold, &filter.filter, NOW).unwrap();
        found.sort_unstable();
        let id = |sequence| QueueId::new(mail::SpoolId::new(7), 0, sequence);
        assert_eq!(found, [(id(1), 1), (id(2), 0)]);
        let letters = HashSet::from([(id(2), 0), (id(3), 0)]);
        assert_eq!(pick(&mut queues, Act::Hold, &filter, Some(&letters), NOW).unwrap(), 1);
    }
}
