//! How nodes share the concurrency of a next hop. Pure: times are arguments.
//!
//! The limit consists of *slots*; each attempt holds one. A quarter of a limit from [`UNASKED_LIMIT_MIN`] on is
//! divided by the number of nodes and needs no asking. The others are in a table that all nodes have in
//! common: it says how many each node wants and holds. A node changes only its own entry, and only if
//! nobody has changed the table since it was read.
//!
//! | a node | what it writes | when it uses that |
//! |---|---|---|
//! | holds less than its fair share, and slots are free | that it holds more | [`SETTLE_TIME`] after it was stored |
//! | holds more than that | that it holds fewer | before: first no attempt leaves above its share |
//! | waits and has none, since there are fewer slots than nodes | that it waits | when another one's [`TURN_TIME`] is over |
//! | wrote nothing for [`USE_TIME`] that was stored | - | it uses its own part: the limit by the number of nodes |
//! | stops | that it holds none | its attempts are over before |
//! | changed nothing for [`LEASE`] | others remove it | - |
//!
//! Clusters of older servers compare revisions before they store, and may store two changes of the same
//! revision one after the other. The second one counts: the first node sees it before it uses more.
//!
//! So all nodes together never hold more than the limit while the log's servers answer. No clocks are
//! compared: a node uses slots for a time after it began to write, and others measure theirs from
//! when they read that, which is later.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Slots of a node whose entry did not change for this time are free.
const LEASE: Duration = Duration::from_secs(30);
/// A node uses its slots for this time after it began to write its entry.
const USE_TIME: Duration = Duration::from_secs(20);
/// An entry that stays the same is written again after this time.
const REFRESH_INTERVAL: Duration = Duration::from_secs(6);
/// A node that asks and gets no answer for this time uses its own part; sooner if it knows that no server is
/// connected.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
const CUT_OFF_TIME_MAX: Duration = Duration::from_secs(1);
/// Two changes of an entry are at least this far apart.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);
/// The pause before a change that another node has forestalled is tried again.
const CONFLICT_DELAY: Duration = Duration::from_millis(50);
/// More slots are used after this time, unless another change that was on its way has taken them back.
const SETTLE_TIME: Duration = Duration::from_millis(200);
/// With fewer slots than nodes, a node that holds one leaves it to another after this time.
const TURN_TIME: Duration = Duration::from_secs(5);
/// A quarter of a limit is used without asking, from this limit on.
const UNASKED_LIMIT_MIN: u32 = 20;

/// The slots of a next hop that the queues of a node use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotUse {
    /// The limit of all nodes.
    pub limit: u32,
    /// How many this one could use.
    pub wanted: u32,
    /// How many it uses.
    pub held: u32,
    /// How many it believes that it may use: no attempt leaves above them.
    pub granted: u32,
}

/// What a node knows of its cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterView {
    /// The nodes that are alive, or were when it last knew.
    pub nodes: u32,
    /// Whether a server is connected.
    pub is_connected: bool,
    /// All nodes count this one among them, so that it may use slots without asking.
    pub is_counted: bool,
}

/// The slots that a node wants and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSlots {
    /// Changes with every write.
    beat: u64,
    /// Where there are not enough slots, lower tickets come first.
    ticket: u64,
    wanted: u32,
    held: u32,
}

/// The slots of a next hop that nodes have asked for, as all nodes see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotTable {
    /// The last ticket.
    tickets: u64,
    nodes: BTreeMap<String, NodeSlots>,
}

impl SlotTable {
    /// What all nodes hold.
    pub fn held(&self) -> u32 {
        self.nodes.values().fold(0, |sum, slots| sum.saturating_add(slots.held))
    }

    /// The fair share of a node: all get the same, except those that want less. What is left over is
    /// given by ticket.
    fn share(&self, node: &str, limit: u32) -> u32 {
        let Some(own) = self.nodes.get(node) else { return 0 };
        let mut wanted: Vec<u32> = self.nodes.values().map(|slots| slots.wanted).filter(|wanted| *wanted > 0).collect();
        wanted.sort_unstable();
        let (mut left, mut asking) = (limit, u32::try_from(wanted.len()).unwrap_or(u32::MAX));
        for wants in wanted {
            if wants > left / asking {
                break;
            }
            (left, asking) = (left - wants, asking - 1);
        }
        let level = left.checked_div(asking).unwrap_or(u32::MAX);
        if own.wanted <= level {
            return own.wanted;
        }
        let before = self.nodes.values().filter(|slots| slots.wanted > level && slots.ticket < own.ticket).count();
        level + u32::from(before < (left % asking) as usize)
    }

    /// Whether a node wants slots and has to get none, because there are fewer than nodes.
    fn has_waiting(&self, limit: u32) -> bool {
        self.nodes.iter().any(|(node, slots)| slots.wanted > 0 && self.share(node, limit) == 0)
    }

    fn next_ticket(&mut self) -> u64 {
        self.tickets = self.tickets.saturating_add(1);
        self.tickets
    }
}

/// A change of the table, to be stored if the table's revision is still this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotWrite {
    /// The revision that the table has to have; 0: there is none.
    pub revision: u64,
    /// The new table.
    pub table: SlotTable,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It was stored, and the table has this revision.
    Stored(u64),
    /// The table had another revision: this one, if it could be read. None inside: there is no table.
    Refused(Option<Option<(u64, SlotTable)>>),
    /// Nobody knows.
    Unknown,
}

/// The slots of one next hop, as one node sees them.
#[derive(Debug)]
pub struct HopSlots {
    node: String,
    usage: SlotUse,
    table: SlotTable,
    revision: u64,
    /// By node: its last beat, and when it was read.
    seen: BTreeMap<String, (u64, Duration)>,
    /// The change that is being stored.
    write: Option<SlotWrite>,
    /// Changes that may have been stored: the revision before, and the least that they hold.
    unresolved: Option<(u64, u32)>,
    /// The last beat that was written, and when.
    beat: u64,
    sent_at: Duration,
    /// When the last change was written that is known to be stored.
    stored_at: Option<Duration>,
    /// Since when slots are wanted and no server answers.
    unanswered_since: Option<Duration>,
    /// The next change is not written before this time.
    not_before: Duration,
    /// Of the slots that the table says, those that are used, and when all of them are.
    settled: u32,
    settles_at: Duration,
    /// The ticket by which slots are held, and since when.
    turn: Option<(u64, Duration)>,
    /// How many it has asked for and not got, by the table; and all that were refused so far.
    missing: u32,
    refused: u64,
}

/// What is to be written, and the fair share.
struct Plan {
    table: SlotTable,
    share: u32,
}

impl HopSlots {
    /// Nothing is known yet. `beat` is unpredictable, so that it differs from those of earlier processes
    /// of this node.
    pub fn new(node: &str, beat: u64) -> HopSlots {
        HopSlots {
            node: node.to_owned(),
            usage: SlotUse::default(),
            table: SlotTable::default(),
            revision: 0,
            seen: BTreeMap::new(),
            write: None,
            unresolved: None,
            beat,
            sent_at: Duration::ZERO,
            stored_at: None,
            unanswered_since: None,
            not_before: Duration::ZERO,
            settled: 0,
            settles_at: Duration::ZERO,
            turn: None,
            missing: 0,
            refused: 0,
        }
    }

    /// The queues use other slots now.
    pub fn handle_use(&mut self, usage: SlotUse) {
        self.usage = usage;
    }

    /// The node stops: no attempt uses a slot any more. What it holds is given back with the next change, which
    /// does not wait for the time between two.
    pub fn handle_stop(&mut self) {
        self.usage = SlotUse { limit: self.usage.limit, ..SlotUse::default() };
        self.not_before = Duration::ZERO;
    }

    /// The table was read. What is older than what is known changes nothing.
    pub fn handle_table(&mut self, now: Duration, revision: u64, table: SlotTable) {
        if revision > self.revision {
            self.adopt(now, revision, table);
        }
    }

    /// The log was opened anew: it may have lost everything.
    pub fn handle_reopened(&mut self) {
        let own = self.own().held;
        (self.revision, self.table, self.settled) = (0, SlotTable::default(), 0);
        self.unresolved = Some((0, self.unresolved.map_or(own, |(_, held)| held.min(own))));
    }

    /// The change that [`poll_write`](HopSlots::poll_write) has returned was stored, or not.
    pub fn handle_written(&mut self, now: Duration, outcome: WriteOutcome) {
        let Some(write) = self.write.take() else { return };
        if matches!(outcome, WriteOutcome::Stored(_) | WriteOutcome::Refused(Some(_))) {
            self.unanswered_since = None;
        }
        match outcome {
            WriteOutcome::Stored(revision) => {
                self.stored_at = Some(self.sent_at);
                self.handle_table(now, revision, write.table);
            }
            WriteOutcome::Refused(Some(Some((revision, table)))) => {
                self.not_before = now + CONFLICT_DELAY;
                self.handle_table(now, revision, table);
            }
            WriteOutcome::Refused(Some(None)) => {
                self.not_before = now + CONFLICT_DELAY;
                self.handle_reopened();
            }
            WriteOutcome::Refused(None) | WriteOutcome::Unknown => self.not_before = now + WRITE_INTERVAL,
        }
    }

    /// The change that is to be stored now.
    pub fn poll_write(&mut self, now: Duration, view: ClusterView) -> Option<SlotWrite> {
        self.note_answer(now, view);
        if now >= self.settles_at {
            self.settled = self.own().held;
        }
        if self.write.is_some() || now < self.not_before {
            return None;
        }
        let mut table = self.plan(now, view).table;
        let (before, after) = (self.table.nodes.get(&self.node), table.nodes.get_mut(&self.node));
        let is_due = after.is_some() && now >= self.sent_at + REFRESH_INTERVAL;
        if before == after.as_deref() && !is_due {
            return None;
        }
        self.beat = self.beat.wrapping_add(1);
        let held = after.as_ref().map_or(0, |own| own.held);
        after.into_iter().for_each(|own| own.beat = self.beat);
        let least =
            self.unresolved.filter(|(revision, _)| *revision == self.revision).map_or(held, |it| it.1.min(held));
        self.unresolved = Some((self.revision, least));
        (self.sent_at, self.not_before) = (now, now + WRITE_INTERVAL);
        let write = SlotWrite { revision: self.revision, table };
        self.write = Some(write.clone());
        Some(write)
    }

    /// How many attempts may be made at a time.
    pub fn granted(&self, now: Duration, view: ClusterView) -> u32 {
        if self.usage.wanted == 0 && self.usage.held == 0 {
            return 0;
        }
        let unasked = view.unasked(self.usage.limit);
        if self.is_answered(now) {
            let held = self.unresolved.map_or(u32::MAX, |(_, held)| held).min(self.settled);
            return unasked + held.min(self.plan(now, view).share);
        }
        match self.uses_own_part(now, view) {
            true => self.usage.limit.div_euclid(view.nodes.max(1)).max(1),
            false => unasked,
        }
    }

    /// Whether the servers have not answered for so long that the node uses its own part.
    pub fn uses_own_part(&self, now: Duration, view: ClusterView) -> bool {
        let patience = if view.is_connected { ANSWER_TIME_MAX } else { CUT_OFF_TIME_MAX };
        self.unanswered_since.is_some_and(|since| now >= since + patience) && !self.is_answered(now)
    }

    /// The slots that the node has asked for and others held, each counted once for as long as it is missing.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether nothing is used, held or wanted.
    pub fn is_idle(&self) -> bool {
        let SlotUse { wanted, held, granted, .. } = self.usage;
        wanted == 0 && held == 0 && granted == 0 && self.write.is_none() && !self.table.nodes.contains_key(&self.node)
    }

    fn own(&self) -> NodeSlots {
        self.table.nodes.get(&self.node).copied().unwrap_or_default()
    }

    fn is_answered(&self, now: Duration) -> bool {
        self.stored_at.is_some_and(|at| now < at + USE_TIME)
    }

    fn note_answer(&mut self, now: Duration, view: ClusterView) {
        let wants = self.usage.wanted > view.unasked(self.usage.limit);
        match wants && !self.is_answered(now) {
            true => _ = self.unanswered_since.get_or_insert(now),
            false => self.unanswered_since = None,
        }
    }

    fn adopt(&mut self, now: Duration, revision: u64, table: SlotTable) {
        (self.revision, self.table) = (revision, table);
        self.seen.retain(|node, _| self.table.nodes.contains_key(node));
        for (node, slots) in &self.table.nodes {
            let seen = self.seen.entry(node.clone()).or_insert((slots.beat, now));
            if seen.0 != slots.beat {
                *seen = (slots.beat, now);
            }
        }
        self.unresolved = self.unresolved.filter(|(before, _)| *before >= revision);
        let own = self.own();
        if own.held > self.settled {
            self.settles_at = now + SETTLE_TIME;
        }
        self.settled = self.settled.min(own.held);
        let missing = own.wanted.saturating_sub(own.held);
        self.refused = self.refused.saturating_add(missing.saturating_sub(self.missing).into());
        self.missing = missing;
        if own.beat == self.beat && self.table.nodes.contains_key(&self.node) {
            (self.stored_at, self.unanswered_since) = (Some(self.sent_at), None);
        }
        self.turn = match self.turn {
            _ if own.held == 0 => None,
            Some((ticket, since)) if ticket == own.ticket => Some((ticket, since)),
            Some(_) | None => Some((own.ticket, now)),
        };
    }

    /// What this node would write now.
    fn plan(&self, now: Duration, view: ClusterView) -> Plan {
        let limit = asked(self.usage.limit);
        let above = |slots: u32| slots.saturating_sub(view.unasked(self.usage.limit));
        let mut table = self.table.clone();
        table.nodes.retain(|node, _| *node == self.node || !self.is_gone(now, node));
        let before = self.table.nodes.get(&self.node).copied();
        let mut own = before.unwrap_or_else(|| NodeSlots { ticket: table.next_ticket(), ..NodeSlots::default() });
        own.wanted = above(self.usage.wanted);
        table.nodes.insert(self.node.clone(), own);
        let is_turn_over = self.turn.is_some_and(|(_, since)| now >= since + TURN_TIME);
        if is_turn_over && table.has_waiting(limit) {
            own.ticket = table.next_ticket();
            table.nodes.insert(self.node.clone(), own);
        }
        let share = table.share(&self.node, limit);
        own.held = match own.held > share {
            // What is used, or may still be begun, is not given back.
            true => own.held.min(share.max(above(self.usage.held)).max(above(self.usage.granted))),
            false => own.held + (share - own.held).min(limit.saturating_sub(table.held())),
        };
        match own.wanted == 0 && own.held == 0 {
            true => drop(table.nodes.remove(&self.node)),
            false => drop(table.nodes.insert(self.node.clone(), own)),
        }
        Plan { table, share }
    }

    fn is_gone(&self, now: Duration, node: &str) -> bool {
        self.seen.get(node).is_some_and(|(_, at)| now >= *at + LEASE)
    }
}

impl ClusterView {
    /// The slots that each node uses without asking.
    fn unasked(self, limit: u32) -> u32 {
        if self.is_counted { (limit - asked(limit)) / self.nodes.max(1) } else { 0 }
    }
}

/// The slots that nodes have to ask for.
fn asked(limit: u32) -> u32 {
    if limit < UNASKED_LIMIT_MIN { limit } else { limit - limit / 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);
    const SECOND: Duration = Duration::from_secs(1);
    const ALONE: ClusterView = ClusterView { nodes: 1, is_connected: true, is_counted: false };

    fn table(wanted: &[u32]) -> SlotTable {
        let node = |(place, wanted): (usize, &u32)| {
            let slots = NodeSlots { beat: 0, ticket: place as u64, wanted: *wanted, held: 0 };
            (place.to_string(), slots)
        };
        SlotTable { tickets: wanted.len() as u64, nodes: wanted.iter().enumerate().map(node).collect() }
    }

    fn shares(wanted: &[u32], limit: u32) -> Vec<u32> {
        (0..wanted.len()).map(|node| table(wanted).share(&node.to_string(), limit)).collect()
    }

    #[test]
    fn each_node_has_a_fair_share_and_none_more_than_it_wants() {
        assert_eq!(shares(&[10], 8), [8]);
        assert_eq!(shares(&[10, 10], 8), [4, 4]);
        assert_eq!(shares(&[10, 2, 10], 8), [3, 2, 3]);
        assert_eq!(shares(&[10, 10, 10], 8), [3, 3, 2]);
        assert_eq!(shares(&[1, 0, 5], 8), [1, 0, 5]);
        assert_eq!(shares(&[4, 4, 4], 2), [1, 1, 0]);
        assert_eq!(shares(&[0], 2), [0]);
    }

    fn wants(wanted: u32, held: u32, granted: u32) -> SlotUse {
        SlotUse { limit: 4, wanted, held, granted }
    }

    /// A node that holds all four slots, and another one that asks for some.
    fn contended() -> (HopSlots, HopSlots) {
        let (mut first, mut second) = (HopSlots::new("a", 5), HopSlots::new("b", 5));
        first.handle_use(wants(4, 0, 0));
        let write = first.poll_write(NOW, ALONE).unwrap();
        assert_eq!((write.revision, first.granted(NOW, ALONE)), (0, 0), "not before it is stored");
        first.handle_written(NOW, WriteOutcome::Stored(1));
        assert_eq!(first.granted(NOW, ALONE), 0, "not before no other change can be on its way");
        first.poll_write(NOW + SETTLE_TIME, ALONE);
        assert_eq!(first.granted(NOW + SETTLE_TIME, ALONE), 4);
        first.handle_use(wants(4, 4, 4));
        second.handle_use(wants(4, 0, 0));
        second.handle_table(NOW, 1, write.table);
        let write = second.poll_write(NOW, ALONE).unwrap();
        second.handle_written(NOW, WriteOutcome::Stored(2));
        assert_eq!(second.granted(NOW + SECOND * 5, ALONE), 0, "none is free, and the servers answer");
        first.handle_table(NOW, 2, write.table);
        (first, second)
    }

    #[test]
    fn slots_are_given_back_after_no_attempt_can_use_them() {
        let (mut first, mut second) = contended();
        let later = NOW + SECOND;
        assert_eq!(first.granted(later, ALONE), 2);
        assert_eq!(first.poll_write(later, ALONE), None, "attempts hold them, and the queues do not know yet");
        first.handle_use(wants(4, 2, 4));
        assert_eq!(first.poll_write(later, ALONE), None, "the queues do not know yet");
        first.handle_use(wants(4, 3, 2));
        let write = first.poll_write(later, ALONE).unwrap();
        assert_eq!(write.table.held(), 3);
        second.handle_table(later, 3, write.table);
        assert_eq!(second.poll_write(later, ALONE).unwrap().table.held(), 4);
    }

    #[test]
    fn a_slot_is_refused_once_for_as_long_as_it_is_missing() {
        let (mut first, mut second) = contended();
        assert_eq!((first.refused(), second.refused()), (0, 4));
        first.handle_use(wants(4, 2, 2));
        let write = first.poll_write(NOW + SECOND, ALONE).unwrap();
        second.handle_table(NOW + SECOND, 3, write.table);
        let write = second.poll_write(NOW + SECOND, ALONE).unwrap();
        second.handle_written(NOW + SECOND, WriteOutcome::Stored(4));
        assert_eq!((write.table.held(), second.refused()), (4, 4), "two are still missing");
        let mut table = write.table;
        table.nodes.get_mut("b").unwrap().held = 1;
        second.handle_table(NOW + SECOND, 5, table);
        assert_eq!(second.refused(), 5, "one more");
    }

    #[test]
    fn a_node_that_stops_gives_all_slots_back_at_once() {
        let (mut first, mut second) = contended();
        first.handle_stop();
        let write = first.poll_write(NOW, ALONE).unwrap();
        first.handle_written(NOW, WriteOutcome::Stored(3));
        assert_eq!((first.granted(NOW, ALONE), first.is_idle()), (0, true));
        second.handle_table(NOW, 3, write.table);
        let write = second.poll_write(NOW + WRITE_INTERVAL, ALONE).unwrap();
        assert_eq!((write.table.held(), write.table.nodes.len()), (4, 1));
    }

    #[test]
    fn slots_of_a_node_that_is_gone_are_free_after_its_own_use_of_them_ends() {
        let (first, mut second) = contended();
        assert_eq!(first.granted(NOW + USE_TIME, ALONE), 0);
        for seconds in 1..30 {
            if second.poll_write(NOW + SECOND * seconds, ALONE).is_some() {
                second.handle_written(NOW + SECOND * seconds, WriteOutcome::Stored(u64::from(seconds) + 2));
            }
            assert_eq!(second.granted(NOW + SECOND * seconds, ALONE), 0, "after {seconds} s");
        }
        assert_eq!(second.poll_write(NOW + LEASE, ALONE).unwrap().table.held(), 4);
    }

    #[test]
    fn a_node_without_an_answer_uses_its_part() {
        let view = ClusterView { nodes: 3, is_connected: true, is_counted: true };
        let mut slots = HopSlots::new("a", 5);
        slots.handle_use(SlotUse { limit: 40, wanted: 9, held: 0, granted: 0 });
        assert!(slots.poll_write(NOW, view).is_some());
        assert_eq!(slots.granted(NOW + SECOND * 9, view), 3, "a quarter is divided");
        assert_eq!(slots.granted(NOW + SECOND * 10, view), 13);
        let view = ClusterView { is_connected: false, ..view };
        assert_eq!((slots.granted(NOW, view), slots.granted(NOW + SECOND, view)), (3, 13));
        assert_eq!((slots.uses_own_part(NOW, view), slots.uses_own_part(NOW + SECOND, view)), (false, true));
        let few = SlotUse { limit: 2, wanted: 2, held: 0, granted: 0 };
        slots.handle_use(few);
        assert_eq!(slots.granted(NOW + SECOND, view), 1, "at least one");
    }

    #[test]
    fn few_slots_of_a_large_limit_are_used_without_asking() {
        let view = ClusterView { nodes: 3, is_connected: true, is_counted: true };
        let mut slots = HopSlots::new("a", 5);
        slots.handle_use(SlotUse { limit: 40, wanted: 3, held: 0, granted: 0 });
        assert_eq!((slots.poll_write(NOW, view), slots.granted(NOW, view)), (None, 3));
        slots.handle_use(SlotUse { limit: 40, wanted: 0, held: 0, granted: 3 });
        assert_eq!((slots.granted(NOW, view), slots.is_idle()), (0, false));
        slots.handle_use(SlotUse { limit: 40, ..SlotUse::default() });
        assert!(slots.is_idle());
    }

    #[test]
    fn a_change_that_may_have_been_stored_gives_slots_back_at_least() {
        let (mut first, _) = contended();
        first.handle_use(wants(4, 2, 2));
        let write = first.poll_write(NOW + SECOND, ALONE).unwrap();
        first.handle_written(NOW + SECOND, WriteOutcome::Unknown);
        first.handle_use(wants(4, 2, 2));
        assert_eq!((write.table.held(), first.granted(NOW + SECOND, ALONE)), (2, 2));
    }

    #[test]
    fn of_two_changes_of_one_revision_the_second_counts() {
        let (mut first, mut second) = (HopSlots::new("a", 5), HopSlots::new("b", 5));
        first.handle_use(wants(3, 0, 0));
        second.handle_use(wants(3, 0, 0));
        let (one, other) = (first.poll_write(NOW, ALONE).unwrap(), second.poll_write(NOW, ALONE).unwrap());
        first.handle_written(NOW, WriteOutcome::Stored(1));
        first.handle_table(NOW, 2, other.table.clone());
        second.handle_table(NOW, 1, one.table);
        second.handle_written(NOW, WriteOutcome::Stored(2));
        let later = NOW + SETTLE_TIME;
        assert_eq!(second.poll_write(later, ALONE), None);
        assert_eq!((first.granted(later, ALONE), second.granted(later, ALONE)), (0, 3));
        assert_eq!(first.poll_write(NOW + WRITE_INTERVAL, ALONE).unwrap().table.held(), 4, "it asks again");
    }
}
