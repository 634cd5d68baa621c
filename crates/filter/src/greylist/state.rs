//! What is known of triplets and clients, in bounded memory, and what is not in the file yet. Time is
//! an argument: seconds since 1970, which may go back. A triplet first seen in the future begins anew.

use std::collections::HashMap;

use super::GreylistSettings;
use super::record::Record;
use crate::key_digest::KeyDigest;
use crate::ordered_table::OrderedTable;

/// Triplets of one client that may wait: one client alone must not fill the memory.
pub(super) const WAITING_PER_CLIENT_MAX: u32 = 1000;
/// Records that wait for the file. With more, it is written anew.
pub(super) const UNWRITTEN_MAX: usize = 100_000;
/// Two passes of a client within this time count as one, and what was seen within it is not written
/// again. In seconds.
const SEEN_AGAIN_AFTER: u64 = 3600;
/// A triplet that has waited for less is not forgotten for another one. In seconds.
const RETRY_TIME_MIN: u64 = 3600;

/// What happens to a recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GreylistVerdict {
    /// It is deferred.
    Deferred,
    /// It has waited long enough.
    Passed,
    /// The triplet or the client is known.
    Known,
    /// There is no room to remember it, so it need not wait.
    Unrecorded,
}

impl GreylistVerdict {
    pub(super) const ALL: [GreylistVerdict; 4] =
        [GreylistVerdict::Deferred, GreylistVerdict::Passed, GreylistVerdict::Known, GreylistVerdict::Unrecorded];

    /// The word in metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            GreylistVerdict::Deferred => "deferred",
            GreylistVerdict::Passed => "passed",
            GreylistVerdict::Known => "known",
            GreylistVerdict::Unrecorded => "unrecorded",
        }
    }
}

/// The triplet of a recipient, and its client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Triplet {
    pub(super) key: KeyDigest,
    pub(super) client: KeyDigest,
}

#[derive(Debug, Default)]
pub(super) struct GreylistState {
    /// By the time of the first try, with the client.
    waiting: OrderedTable<u64, KeyDigest>,
    waiting_of_clients: HashMap<KeyDigest, u32>,
    /// By the time of the last try.
    passed: OrderedTable<u64, ()>,
    /// By the time of the last try, with the number of triplets that have passed.
    clients: OrderedTable<u64, u32>,
    unwritten: Vec<Record>,
    /// The file lacks more than `unwritten`.
    must_rewrite: bool,
}

/// What the file does not have yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unwritten {
    /// Append these.
    Records(Vec<Record>),
    /// Write these instead of what is there.
    All(Vec<Record>),
}

impl GreylistState {
    /// Triplets that wait, triplets that have passed, and clients.
    pub(super) fn entry_counts(&self) -> [usize; 3] {
        [self.waiting.len(), self.passed.len(), self.clients.len()]
    }

    /// A recipient is tried. Returns the seconds for which it has to wait if it is deferred, else 0.
    pub(super) fn check(&mut self, triplet: Triplet, settings: &GreylistSettings, now: u64) -> (GreylistVerdict, u64) {
        self.forget_expired(settings, now);
        if self.is_known_client(triplet.client, settings, now) || self.has_passed(triplet.key, now) {
            return (GreylistVerdict::Known, 0);
        }
        let delay = settings.delay.as_secs();
        match self.waiting.find(triplet.key).map(|(since, _)| now.checked_sub(*since)) {
            Some(Some(waited)) if waited >= delay => {
                self.pass(triplet, settings, now);
                (GreylistVerdict::Passed, 0)
            }
            Some(Some(waited)) => (GreylistVerdict::Deferred, delay - waited),
            Some(None) => {
                // The clock was set back: it need not catch up.
                self.remove_waiting(triplet.key);
                (self.record_first_try(triplet, settings, now), delay)
            }
            None => (self.record_first_try(triplet, settings, now), delay),
        }
    }

    /// Takes over a record of the file, unless it has expired.
    pub(super) fn restore(&mut self, record: Record, settings: &GreylistSettings, now: u64) {
        match record {
            Record::Waiting { triplet, client, since } => {
                self.remove_waiting(triplet);
                self.insert_waiting(triplet, client, since.min(now));
            }
            Record::Passed { triplet, seen } => {
                self.remove_waiting(triplet);
                self.passed.insert(triplet, seen.min(now), ());
            }
            Record::Client { client, passes, seen } => self.clients.insert(client, seen.min(now), passes),
        }
        self.forget_expired(settings, now);
        self.forget_beyond(settings.entries_max);
    }

    /// What to write, which then counts as written.
    pub(super) fn take_unwritten(&mut self) -> Unwritten {
        let records = std::mem::take(&mut self.unwritten);
        match std::mem::take(&mut self.must_rewrite) {
            true => Unwritten::All(self.all_records()),
            false => Unwritten::Records(records),
        }
    }

    /// The next [`GreylistState::take_unwritten`] gives everything.
    pub(super) fn demand_rewrite(&mut self) {
        self.must_rewrite = true;
        self.unwritten.clear();
    }

    fn all_records(&self) -> Vec<Record> {
        let waiting =
            self.waiting.iter().map(|(triplet, since, client)| Record::Waiting { triplet, client: *client, since });
        let passed = self.passed.iter().map(|(triplet, seen, ())| Record::Passed { triplet, seen });
        let clients =
            self.clients.iter().map(|(client, seen, passes)| Record::Client { client, passes: *passes, seen });
        waiting.chain(passed).chain(clients).collect()
    }

    fn is_known_client(&mut self, client: KeyDigest, settings: &GreylistSettings, now: u64) -> bool {
        let found = self.clients.find(client).copied();
        let Some((seen, passes)) = found.filter(|(_, passes)| (1..=*passes).contains(&settings.client_passes)) else {
            return false;
        };
        if is_seen_again(seen, now) {
            self.clients.insert(client, now, passes);
            self.note(Record::Client { client, passes, seen: now });
        }
        true
    }

    fn has_passed(&mut self, triplet: KeyDigest, now: u64) -> bool {
        let Some((seen, ())) = self.passed.find(triplet).copied() else { return false };
        if is_seen_again(seen, now) {
            self.passed.insert(triplet, now, ());
            self.note(Record::Passed { triplet, seen: now });
        }
        true
    }

    fn pass(&mut self, triplet: Triplet, settings: &GreylistSettings, now: u64) {
        self.remove_waiting(triplet.key);
        self.passed.insert(triplet.key, now, ());
        self.note(Record::Passed { triplet: triplet.key, seen: now });
        let before = self.clients.find(triplet.client).copied();
        if before.is_none_or(|(seen, _)| is_seen_again(seen, now)) {
            let passes = before.map_or(0, |(_, passes)| passes).saturating_add(1);
            self.clients.insert(triplet.client, now, passes);
            self.note(Record::Client { client: triplet.client, passes, seen: now });
        }
        self.forget_beyond(settings.entries_max);
    }

    fn record_first_try(&mut self, triplet: Triplet, settings: &GreylistSettings, now: u64) -> GreylistVerdict {
        if self.waiting_of_clients.get(&triplet.client).is_some_and(|count| *count >= WAITING_PER_CLIENT_MAX) {
            return GreylistVerdict::Deferred;
        }
        let is_full = self.waiting.len() >= settings.entries_max;
        if is_full && self.waiting.first().is_none_or(|(since, _)| now.saturating_sub(since) < RETRY_TIME_MIN) {
            return GreylistVerdict::Unrecorded;
        }
        self.insert_waiting(triplet.key, triplet.client, now);
        self.note(Record::Waiting { triplet: triplet.key, client: triplet.client, since: now });
        self.forget_beyond(settings.entries_max);
        GreylistVerdict::Deferred
    }

    fn insert_waiting(&mut self, triplet: KeyDigest, client: KeyDigest, since: u64) {
        self.waiting.insert(triplet, since, client);
        *self.waiting_of_clients.entry(client).or_default() += 1;
    }

    fn remove_waiting(&mut self, triplet: KeyDigest) {
        if let Some((_, client)) = self.waiting.remove(triplet) {
            self.release_client(client);
        }
    }

    fn release_client(&mut self, client: KeyDigest) {
        if let Some(count) = self.waiting_of_clients.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.waiting_of_clients.remove(&client);
            }
        }
    }

    fn forget_expired(&mut self, settings: &GreylistSettings, now: u64) {
        let is_older =
            |first: Option<(u64, KeyDigest)>, age: u64| first.is_some_and(|(at, _)| now.saturating_sub(at) > age);
        while is_older(self.waiting.first(), settings.retry_window.as_secs()) {
            self.forget_oldest_waiting();
        }
        while is_older(self.passed.first(), settings.known_for.as_secs()) {
            self.passed.pop_first();
        }
        while is_older(self.clients.first(), settings.known_for.as_secs()) {
            self.clients.pop_first();
        }
    }

    fn forget_beyond(&mut self, entries_max: usize) {
        while self.waiting.len() > entries_max {
            self.forget_oldest_waiting();
        }
        while self.passed.len() > entries_max {
            self.passed.pop_first();
        }
        while self.clients.len() > entries_max {
            self.clients.pop_first();
        }
    }

    fn forget_oldest_waiting(&mut self) {
        if let Some(client) = self.waiting.pop_first() {
            self.release_client(client);
        }
    }

    fn note(&mut self, record: Record) {
        if self.must_rewrite {
            return;
        }
        match self.unwritten.len() < UNWRITTEN_MAX {
            true => self.unwritten.push(record),
            false => self.demand_rewrite(),
        }
    }
}

fn is_seen_again(seen: u64, now: u64) -> bool {
    now.abs_diff(seen) >= SEEN_AGAIN_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000;
    const HOUR: u64 = 3600;
    const DAY: u64 = 24 * HOUR;

    fn settings(entries_max: usize) -> GreylistSettings {
        GreylistSettings { entries_max, client_passes: 2, ..GreylistSettings::default() }
    }

    fn triplet(client: u32, number: u32) -> Triplet {
        let client = KeyDigest::of(&["client", &client.to_string()]);
        Triplet { key: KeyDigest::of(&[&format!("{client:?}"), &number.to_string()]), client }
    }

    #[test]
    fn a_triplet_waits_passes_and_stays_known() {
        let (mut state, settings) = (GreylistState::default(), settings(100));
        let mut check = |after| state.check(triplet(1, 1), &settings, START + after);
        assert_eq!(check(0), (GreylistVerdict::Deferred, 300));
        assert_eq!(check(299), (GreylistVerdict::Deferred, 1));
        assert_eq!(check(300), (GreylistVerdict::Passed, 0));
        assert_eq!(check(301), (GreylistVerdict::Known, 0));
        assert_eq!(check(34 * DAY).0, GreylistVerdict::Known);
        assert_eq!(check(68 * DAY).0, GreylistVerdict::Known);
        assert_eq!(check(104 * DAY).0, GreylistVerdict::Deferred, "it was known longer than allowed");
    }

    #[test]
    fn a_triplet_that_comes_too_late_begins_anew() {
        let (mut state, settings) = (GreylistState::default(), settings(100));
        assert_eq!(state.check(triplet(1, 1), &settings, START).0, GreylistVerdict::Deferred);
        assert_eq!(state.check(triplet(1, 1), &settings, START + 2 * DAY + 1), (GreylistVerdict::Deferred, 300));
        assert_eq!(state.check(triplet(1, 1), &settings, START + 2 * DAY + 301).0, GreylistVerdict::Passed);
    }

    #[test]
    fn a_client_is_known_after_its_passes_at_most_one_an_hour() {
        let (mut state, settings) = (GreylistState::default(), settings(100));
        (1..=9).for_each(|number| _ = state.check(triplet(1, number), &settings, START));
        (1..=8).for_each(|number| _ = state.check(triplet(1, number), &settings, START + 600));
        assert_eq!(state.check(triplet(1, 20), &settings, START + 601).0, GreylistVerdict::Deferred);
        assert_eq!(state.check(triplet(1, 9), &settings, START + 600 + HOUR).0, GreylistVerdict::Passed);
        assert_eq!(state.check(triplet(1, 21), &settings, START + 601 + HOUR).0, GreylistVerdict::Known);
        assert_eq!(state.check(triplet(2, 21), &settings, START + 601 + HOUR).0, GreylistVerdict::Deferred);
        let never = GreylistSettings { client_passes: 0, ..settings };
        assert_eq!(state.check(triplet(1, 22), &never, START + 602 + HOUR).0, GreylistVerdict::Deferred);
    }

    #[test]
    fn a_clock_that_goes_back_delays_and_loses_nothing() {
        let (mut state, settings) = (GreylistState::default(), settings(100));
        assert_eq!(state.check(triplet(1, 1), &settings, START).0, GreylistVerdict::Deferred);
        assert_eq!(state.check(triplet(1, 1), &settings, START - 10 * DAY), (GreylistVerdict::Deferred, 300));
        assert_eq!(state.check(triplet(1, 1), &settings, START - 10 * DAY + 300).0, GreylistVerdict::Passed);
        assert_eq!(state.check(triplet(1, 1), &settings, START - 20 * DAY).0, GreylistVerdict::Known);
    }

    #[test]
    fn a_million_triplets_of_a_thousand_clients_stay_in_bounds() {
        let (mut state, settings) = (GreylistState::default(), settings(10_000));
        let mut results = HashMap::new();
        for number in 0..1_000_000 {
            let (verdict, _) = state.check(triplet(number % 1000, number), &settings, START);
            *results.entry(verdict.name()).or_insert(0) += 1;
        }
        assert_eq!(state.entry_counts(), [10_000, 0, 0]);
        assert!(state.waiting_of_clients.len() <= 1000 && state.unwritten.len() <= UNWRITTEN_MAX);
        assert_eq!((results["deferred"], results["unrecorded"]), (10_000, 990_000));
        assert_eq!(state.check(triplet(0, 0), &settings, START + 300).0, GreylistVerdict::Passed);
        let later = START + HOUR;
        assert_eq!(state.check(triplet(7, 2_000_000), &settings, later).0, GreylistVerdict::Deferred);
        assert_eq!(state.check(triplet(8, 3_000_000), &settings, later).0, GreylistVerdict::Deferred);
        assert_eq!(state.entry_counts()[0], 10_000);
    }

    #[test]
    fn one_client_alone_cannot_fill_the_memory() {
        let (mut state, settings) = (GreylistState::default(), settings(10_000));
        let all = (0..5000).map(|number| state.check(triplet(1, number), &settings, START).0);
        assert_eq!(all.filter(|verdict| *verdict == GreylistVerdict::Deferred).count(), 5000);
        assert_eq!(state.entry_counts(), [WAITING_PER_CLIENT_MAX as usize, 0, 0]);
        assert_eq!(state.check(triplet(1, 0), &settings, START + 300).0, GreylistVerdict::Passed);
        assert_eq!(state.check(triplet(1, 4999), &settings, START + 300).0, GreylistVerdict::Deferred);
        assert_eq!(state.check(triplet(1, 4999), &settings, START + 600).0, GreylistVerdict::Passed);
    }

    #[test]
    fn what_was_written_restores_the_same_state() {
        let (mut state, settings) = (GreylistState::default(), settings(100));
        (1..=5).for_each(|number| _ = state.check(triplet(number, 1), &settings, START));
        (1..=2).for_each(|number| _ = state.check(triplet(number, 1), &settings, START + 400));
        let Unwritten::Records(records) = state.take_unwritten() else { panic!("a rewrite was not needed") };
        assert_eq!(records.len(), 5 + 2 * 2);
        state.demand_rewrite();
        let Unwritten::All(all) = state.take_unwritten() else { panic!("a rewrite was demanded") };
        assert_eq!(state.take_unwritten(), Unwritten::Records(Vec::new()));
        for records in [records, all] {
            let mut restored = GreylistState::default();
            records.iter().for_each(|record| restored.restore(*record, &settings, START + 500));
            assert_eq!(restored.entry_counts(), state.entry_counts());
            assert_eq!(restored.check(triplet(1, 1), &settings, START + 500).0, GreylistVerdict::Known);
            assert_eq!(restored.check(triplet(5, 1), &settings, START + 500).0, GreylistVerdict::Passed);
        }
    }

    #[test]
    fn records_from_the_future_and_the_far_past_do_no_harm() {
        let (mut state, settings) = (GreylistState::default(), settings(100));
        let Triplet { key, client } = triplet(1, 1);
        state.restore(Record::Waiting { triplet: key, client, since: u64::MAX }, &settings, START);
        state.restore(Record::Passed { triplet: triplet(1, 2).key, seen: 0 }, &settings, START);
        state.restore(Record::Client { client, passes: 9, seen: 1 }, &settings, START);
        assert_eq!(state.entry_counts(), [1, 0, 0]);
        assert_eq!(state.check(triplet(1, 1), &settings, START + 300).0, GreylistVerdict::Passed);
    }
}
