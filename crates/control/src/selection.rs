//! The recipients that a filter selects. The scheduler's thread looks at a part of the queue at a time
//! ([`slot_parts`]), and delivers between the parts, however long the queue is; the handler reads the messages
//! meanwhile, each once if its recipients come one after another.
//!
//! A recipient keeps its slot as long as it is queued. So each one that is there from the first part to the last
//! is looked at exactly once; one that arrives meanwhile may be looked at, or not.

use std::collections::{HashMap, HashSet};
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use mail::{QueueId, Timestamp};
use queue::{DestinationId, OperatorAction, PickCount, Queues, RecipientView, TrackedAction};

use super::recipient_filter::{QueueFilter, RecipientFilter, UnknownQueue};
use super::request::ActionRequest;

/// Slots that are looked at for one page.
const SCANNED_MAX: u32 = 16 * 1024;
/// Slots that the scheduler's thread looks at for a part of the queue. A part takes it some ten milliseconds,
/// among them a pass over the recipients that wait, wherever they are: so there are not many parts either.
const SLOTS_PER_PART: u32 = 64 * 1024;
/// How many times as many slots are read at once as before, until a page is full.
const PART_GROWTH: u32 = 8;

/// A recipient: the message and the ordinal in its envelope.
pub(super) type RecipientId = (QueueId, u32);

/// The recipients that pass the conditions on what the queue knows.
#[derive(Default)]
pub(super) struct SelectedRecipients {
    /// In the order of their slots.
    pub(super) entries: Vec<RecipientView>,
    /// The destinations of the entries.
    pub(super) destinations: HashMap<DestinationId, DestinationName>,
}

/// A recipient, and its destination.
pub(super) type NamedRecipient = (RecipientView, Arc<DestinationName>);

/// The names of a destination and its queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DestinationName {
    pub(super) name: Box<str>,
    pub(super) queue: Box<str>,
}

impl DestinationName {
    pub(super) fn of<R: Clone>(queues: &Queues<R>, destination: DestinationId) -> DestinationName {
        let queue = usize::from(queues.destination_queue(destination).0);
        DestinationName {
            name: queues.destination_name(destination).into(),
            queue: queues.config().queues[queue].name.clone(),
        }
    }
}

/// The slots of a queue, in parts that the scheduler's thread looks at one by one. There is one even if the queue
/// is empty: it finds that a filter names no queue.
pub(super) fn slot_parts(slot_count: u32) -> impl Iterator<Item = Range<u32>> {
    parts_of(slot_count, SLOTS_PER_PART)
}

fn parts_of(slot_count: u32, size: u32) -> impl Iterator<Item = Range<u32>> {
    (0..slot_count.max(1)).step_by(size as usize).map(move |from| from..from.saturating_add(size).min(slot_count))
}

/// Selects recipients in these slots.
pub(super) fn select<R: Clone>(
    queues: &Queues<R>,
    filter: &RecipientFilter,
    slots: Range<u32>,
    now: Timestamp,
) -> Result<SelectedRecipients, UnknownQueue> {
    let mut selected = SelectedRecipients::default();
    passing(queues, filter, slots, now)?.into_iter().for_each(|entry| selected.push(queues, entry));
    Ok(selected)
}

/// Counts recipients.
pub(super) fn count<R: Clone>(
    queues: &Queues<R>,
    filter: &RecipientFilter,
    slots: Range<u32>,
    now: Timestamp,
) -> Result<usize, UnknownQueue> {
    Ok(passing(queues, filter, slots, now)?.len())
}

/// The recipients in these slots that pass the conditions on what the queue knows.
pub(super) fn passing<R: Clone>(
    queues: &Queues<R>,
    filter: &RecipientFilter,
    slots: Range<u32>,
    now: Timestamp,
) -> Result<Vec<RecipientView>, UnknownQueue> {
    let mut queue_filter = QueueFilter::new(filter, queues, now)?;
    let mut entries: Vec<RecipientView> =
        queues.recipients_in_slots(slots).into_iter().map(|(_, entry)| entry).collect();
    queue_filter.add_entries(queues, entries.iter());
    entries.retain(|entry| queue_filter.passes(entry));
    Ok(entries)
}

/// A part of the recipients that pass the conditions on what the queue knows.
#[derive(Default)]
pub(super) struct SlotPage {
    pub(super) selected: SelectedRecipients,
    /// Where the next page begins; None: this is the last one.
    pub(super) next: Option<u32>,
}

/// Selects at most `limit` recipients from the slot `from` on, in the order of their slots, and looks at
/// [`SCANNED_MAX`] slots at most.
pub(super) fn select_page<R: Clone>(
    queues: &Queues<R>,
    filter: &RecipientFilter,
    from: u32,
    limit: usize,
    now: Timestamp,
) -> Result<SlotPage, UnknownQueue> {
    let (mut page, mut queue_filter) = (SlotPage::default(), QueueFilter::new(filter, queues, now)?);
    let last = from.saturating_add(SCANNED_MAX).min(queues.slot_count());
    for part in growing_parts(from..last, u32::try_from(limit).unwrap_or(u32::MAX)) {
        let entries = queues.recipients_in_slots(part);
        queue_filter.add_entries(queues, entries.iter().map(|(_, entry)| entry));
        for (slot, entry) in entries {
            if !queue_filter.passes(&entry) {
                continue;
            }
            if page.selected.entries.len() == limit {
                page.next = Some(slot);
                return Ok(page);
            }
            page.selected.push(queues, entry);
        }
    }
    page.next = (last < queues.slot_count()).then_some(last);
    Ok(page)
}

/// The slots in parts, of which the first has this size. Each costs a look at all recipients that wait,
/// wherever they are: so there are few, even if hardly any recipient passes and a page is small.
fn growing_parts(slots: Range<u32>, first: u32) -> impl Iterator<Item = Range<u32>> {
    let (mut from, mut size) = (slots.start, first);
    iter::from_fn(move || {
        let part = from..slots.end.min(from.saturating_add(size));
        (from, size) = (part.end, size.saturating_mul(PART_GROWTH));
        (!part.is_empty()).then_some(part)
    })
}

impl SelectedRecipients {
    fn push<R: Clone>(&mut self, queues: &Queues<R>, entry: RecipientView) {
        let destination = |destination: &DestinationId| DestinationName::of(queues, *destination);
        self.destinations.entry(entry.destination).or_insert_with_key(destination);
        self.entries.push(entry);
    }

    /// Each with the name of its destination: soon, a number may stand for another destination.
    pub(super) fn into_named(self) -> impl Iterator<Item = NamedRecipient> {
        let names = self.destinations.into_iter().map(|(number, name)| (number, Arc::new(name)));
        let names: HashMap<DestinationId, Arc<DestinationName>> = names.collect();
        self.entries.into_iter().map(move |entry| {
            let name = names[&entry.destination].clone();
            (entry, name)
        })
    }
}

/// Sorts oldest first, recipients of one message together. This takes long for many, and is not done on the
/// scheduler's thread.
pub(super) fn sort_by_age(recipients: &mut [NamedRecipient]) {
    recipients.sort_unstable_by_key(|(entry, _)| (entry.accepted_at, entry.id, entry.ordinal));
}

/// The recipients that one visit to the queues looks at for an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ActionPart {
    /// Those of the messages that the filter names.
    NamedMessages,
    /// Those in these slots.
    Slots(Range<u32>),
}

impl ActionPart {
    /// The parts in which an action is done.
    pub(super) fn all(filter: &RecipientFilter, slot_count: u32) -> Vec<ActionPart> {
        match filter.id.is_empty() {
            true => slot_parts(slot_count).map(ActionPart::Slots).collect(),
            false => vec![ActionPart::NamedMessages],
        }
    }

    fn queue_filter<'a, R: Clone>(
        &self,
        queues: &Queues<R>,
        filter: &'a RecipientFilter,
        now: Timestamp,
    ) -> Result<QueueFilter<'a>, UnknownQueue> {
        let mut queue_filter = QueueFilter::new(filter, queues, now)?;
        if filter.names_destinations() {
            let entries: Vec<RecipientView> = match self {
                ActionPart::NamedMessages => queues.recipients_of_messages(&named_messages(filter)),
                ActionPart::Slots(slots) => {
                    queues.recipients_in_slots(slots.clone()).into_iter().map(|(_, entry)| entry).collect()
                }
            };
            queue_filter.add_entries(queues, entries.iter());
        }
        Ok(queue_filter)
    }

    fn pick<R: Clone>(
        &self,
        queues: &mut Queues<R>,
        act: TrackedAction,
        filter: &RecipientFilter,
        now: Timestamp,
        choose: &mut dyn FnMut(&RecipientView) -> bool,
    ) -> PickCount {
        match self {
            ActionPart::NamedMessages => {
                queues.pick_message_recipients_for_action(act, now, &named_messages(filter), choose)
            }
            ActionPart::Slots(slots) => queues.pick_recipients_for_action(act, now, slots.clone(), choose),
        }
    }
}

fn named_messages(filter: &RecipientFilter) -> Vec<QueueId> {
    filter.id.iter().map(|id| id.0).collect()
}

/// The recipients of a part that an action may apply to, or would if they were not in an attempt, so that the
/// caller can read their messages first. Only the queue knows which these are: it is asked to pick, in a dry run.
pub(super) fn candidates<R: Clone>(
    queues: &mut Queues<R>,
    act: OperatorAction,
    filter: &RecipientFilter,
    part: &ActionPart,
    now: Timestamp,
) -> Result<Vec<RecipientId>, UnknownQueue> {
    let mut queue_filter = part.queue_filter(queues, filter, now)?;
    let mut candidates = Vec::new();
    let dry_run = TrackedAction { dry_run: true, ..act.into() };
    part.pick(queues, dry_run, filter, now, &mut |entry| {
        let passes = queue_filter.passes(entry);
        if passes {
            candidates.push((entry.id, entry.ordinal));
        }
        passes
    });
    Ok(candidates)
}

/// Applies an action to the recipients of a part that pass, limited to `recipients` if given, and returns how
/// many. A dry run only counts.
pub(super) fn apply_action<R: Clone>(
    queues: &mut Queues<R>,
    act: impl Into<TrackedAction>,
    order: &ActionRequest,
    part: &ActionPart,
    recipients: Option<&HashSet<RecipientId>>,
    now: Timestamp,
) -> Result<PickCount, UnknownQueue> {
    let mut queue_filter = part.queue_filter(queues, &order.filter, now)?;
    let act = TrackedAction { dry_run: order.dry_run, ..act.into() };
    Ok(part.pick(queues, act, &order.filter, now, &mut |entry| {
        recipients.is_none_or(|recipients| recipients.contains(&(entry.id, entry.ordinal)))
            && queue_filter.passes(entry)
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mail::SpoolId;
    use queue::{AdmittedMessage, AttemptPurpose, PendingRecipient, QueueConfig, QueueNumber, SchedulerConfig};

    use super::super::sample::{self, NOW};
    use super::*;

    const ALL: ActionPart = ActionPart::Slots(0..u32::MAX);

    fn order(options: &[&str], dry_run: bool) -> ActionRequest {
        ActionRequest { filter: sample::filter(options), dry_run }
    }

    #[test]
    fn entries_come_with_destination_names() {
        let sample = sample::queues();
        let selected = select(&sample.queues, &sample::filter(&["--older-than", "90m"]), 0..u32::MAX, NOW).unwrap();
        let mut named: Vec<_> = selected.into_named().collect();
        sort_by_age(&mut named);
        let rows: Vec<_> = named.iter().map(|(entry, place)| (entry.ordinal, &*place.name, &*place.queue)).collect();
        let expected = [(0, "a.example", "standard"), (1, "a.example", "standard"), (2, "b.example", "standard")];
        assert_eq!(rows, expected);
        let number = |options: &[&str]| count(&sample.queues, &sample::filter(options), 0..u32::MAX, NOW).unwrap();
        assert_eq!([number(&[]), number(&["--older-than", "90m"]), number(&["--id", "7-0-9"])], [5, 3, 0]);
    }

    #[test]
    fn each_recipient_is_on_one_page() {
        let sample = sample::queues();
        for options in [&[][..], &["--state", "waiting"], &["--destination", "a*"], &["--queue", "lists"]] {
            let filter = sample::filter(options);
            let all = select(&sample.queues, &filter, 0..u32::MAX, NOW).unwrap();
            let mut expected: Vec<_> = all.entries.iter().map(|entry| format!("{entry:?}")).collect();
            let (mut found, mut from) = (Vec::new(), Some(0));
            while let Some(start) = from {
                let page = select_page(&sample.queues, &filter, start, 2, NOW).unwrap();
                assert!(page.selected.entries.len() <= 2);
                let names = &page.selected.destinations;
                assert!(page.selected.entries.iter().all(|entry| names.contains_key(&entry.destination)));
                found.extend(page.selected.entries.iter().map(|entry| format!("{entry:?}")));
                from = page.next;
            }
            expected.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, expected, "{options:?}");
        }
    }

    #[test]
    fn a_small_page_takes_few_passes_over_all_that_wait() {
        for first in [1, 2, 100, SCANNED_MAX, u32::MAX] {
            let parts: Vec<_> = growing_parts(7..7 + SCANNED_MAX, first).collect();
            assert!(parts.len() <= 6, "{first}: {}", parts.len());
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
            assert_eq!((parts[0].start, parts[parts.len() - 1].end), (7, 7 + SCANNED_MAX));
        }
        let (end, beyond) = (7, 9);
        assert_eq!(growing_parts(end..end, 1).chain(growing_parts(beyond..end, 1)).count(), 0);
    }

    #[test]
    fn actions_skip_recipients_in_flight() {
        let acts = [
            OperatorAction::Hold,
            OperatorAction::Release,
            OperatorAction::Retry,
            OperatorAction::Remove,
            OperatorAction::Bounce,
        ];
        let number = |dry_run: bool| {
            acts.map(|act| {
                apply_action(&mut sample::queues().queues, act, &order(&[], dry_run), &ALL, None, NOW).unwrap().picked
            })
        };
        assert_eq!(number(true), [3, 1, 2, 4, 4]);
        assert_eq!(number(false), number(true));
    }

    #[test]
    fn a_dry_run_changes_nothing() {
        let mut queues = sample::queues().queues;
        let run = |queues: &mut Queues<()>, dry_run| {
            apply_action(queues, OperatorAction::Retry, &order(&["--error", "greylisted"], dry_run), &ALL, None, NOW)
                .unwrap()
                .picked
        };
        assert_eq!([run(&mut queues, true), run(&mut queues, true), run(&mut queues, false)], [2, 2, 2]);
        assert_eq!(run(&mut queues, true), 0);
        let attempt = queues.next_attempt(NOW).unwrap();
        assert_eq!(attempt.purpose, AttemptPurpose::Action(OperatorAction::Retry));
    }

    #[test]
    fn message_conditions_limit_the_selection() {
        let mut queues = sample::queues().queues;
        let filter = order(&["--recipient", "*@a.example"], false);
        let mut selected = candidates(&mut queues, OperatorAction::Hold, &filter.filter, &ALL, NOW).unwrap();
        selected.sort_unstable();
        let id = |sequence| QueueId::new(mail::SpoolId::new(7), 0, sequence);
        assert_eq!(selected, [(id(1), 1), (id(2), 0)]);
        let recipients = HashSet::from([(id(2), 0), (id(3), 0)]);
        assert_eq!(
            apply_action(&mut queues, OperatorAction::Hold, &filter, &ALL, Some(&recipients), NOW).unwrap().picked,
            1
        );
    }
    #[test]
    fn the_parts_of_a_queue_are_all_of_it_once() {
        let parts = |count, size| parts_of(count, size).map(|part| (part.start, part.end)).collect::<Vec<_>>();
        assert_eq!(parts(0, 4), [(0, 0)]);
        assert_eq!(parts(4, 4), [(0, 4)]);
        assert_eq!(parts(9, 4), [(0, 4), (4, 8), (8, 9)]);
        assert_eq!(slot_parts(u32::MAX).last().map(|last| last.end), Some(u32::MAX));
    }

    /// A queue with messages of one recipient each.
    fn queue_of(messages: std::ops::RangeInclusive<u64>) -> Queues<()> {
        let queues = vec![QueueConfig { name: "standard".into(), ..QueueConfig::default() }];
        let mut queues = Queues::new(SchedulerConfig { queues, ..SchedulerConfig::default() }, 0);
        messages.for_each(|number| admit(&mut queues, number));
        queues
    }

    fn admit(queues: &mut Queues<()>, number: u64) {
        let destination = queues.intern_destination(QueueNumber(0), "a.example");
        let recipient = PendingRecipient { ordinal: 0, destination, attempts: 0, due: NOW, held: false };
        let admission = AdmittedMessage {
            id: QueueId::new(SpoolId::new(7), 0, number),
            sender: number,
            accepted_at: NOW,
            recovered: false,
            separate_attempts: false,
            recipients: vec![recipient],
        };
        queues.admit(NOW, &admission);
    }

    /// An operator who holds a million messages must not stop deliveries meanwhile: the scheduler works between
    /// two parts, here by ending what was picked and by admitting more mail, which takes the slots that are free.
    #[test]
    fn the_scheduler_works_between_the_parts_of_an_action_and_nothing_is_done_twice_or_left_out() {
        let mut queues = queue_of(1..=100);
        let remove = order(&["--destination", "a.example"], false);
        let (mut picked, mut removed, mut arrived) = (0, BTreeSet::new(), 100);
        for slots in parts_of(queues.slot_count(), 16) {
            let part = ActionPart::Slots(slots);
            picked += apply_action(&mut queues, OperatorAction::Remove, &remove, &part, None, NOW).unwrap().picked;
            // The scheduler has the thread: it ends the actions, and takes new mail.
            while let Some(attempt) = queues.next_attempt(NOW) {
                assert_eq!(attempt.purpose, AttemptPurpose::Action(OperatorAction::Remove));
                assert!(removed.insert(attempt.id), "{} was removed twice", attempt.id);
                let outcome = mail::Outcome::Delivered;
                let verdict = queues.compute_verdict(NOW, &attempt, outcome);
                queues.report_verdicts(NOW, attempt, &[verdict]);
            }
            arrived += 1;
            admit(&mut queues, arrived);
        }
        assert_eq!((picked, removed.len()), (100, 100));
        assert!(removed.iter().all(|id| id.sequence() <= 100), "{removed:?}");
        assert_eq!(queues.recipient_count(), 7);
    }
}
