//! The recipients that a filter selects: counted, listed, in pages, and summarized by a key. The scheduler's thread
//! looks at a part of the queue at a time; messages are read between, on the handler's own thread, and only if the
//! filter or the answer needs them.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use dispatch::Queues;
use mail::Timestamp;
use serde_json::Value;

use super::{ControlError, ControlHandler, ControlResult, now};
use crate::list::{self, QueuedRecipient};
use crate::oldest::OldestRecipients;
use crate::pages::{PageRequest, RecipientPage};
use crate::recipient_filter::{RecipientFilter, UnknownQueue};
use crate::request::SummaryKey;
use crate::selection::{self, DestinationName, NamedRecipient, SelectedRecipients, SlotPage};
use crate::stored_messages::{StoredMessage, StoredMessageReader};
use crate::summary::{self, RecipientTally};
use crate::unreadable_row;

impl ControlHandler {
    pub(super) fn write_count(&self, filter: RecipientFilter, out: &mut impl Write) -> ControlResult<()> {
        let mut messages = self.message_reader();
        writeln!(out, "{}", self.count(filter, &mut messages)?)?;
        self.write_unreadable(&messages, out)
    }

    fn count(&self, filter: RecipientFilter, messages: &mut StoredMessageReader) -> ControlResult<usize> {
        if filter.needs_messages() {
            let mut number = 0;
            self.for_each_recipient(filter, messages, |_, _, _| {
                number += 1;
                Ok(())
            })?;
            return Ok(number);
        }
        if filter.is_empty() {
            return self.with_queues(|queues| queues.recipient_count());
        }
        let mut number = 0;
        self.for_each_part(&Arc::new(filter), selection::count, |of_part| number += of_part)?;
        Ok(number)
    }

    pub(super) fn list(&self, filter: RecipientFilter, out: &mut impl Write) -> ControlResult<()> {
        let mut messages = self.message_reader();
        self.for_each_recipient(filter, &mut messages, |entry, place, message| {
            write_recipient(entry, place, message, out)
        })?;
        self.write_unreadable(&messages, out)
    }

    /// Lists at most `limit` recipients, the oldest. Messages of others are read only if the filter asks for more than
    /// the queue knows.
    pub(super) fn list_oldest(&self, limit: usize, filter: RecipientFilter, out: &mut impl Write) -> ControlResult<()> {
        let (filter, mut oldest) = (Arc::new(filter), OldestRecipients::new(limit));
        let mut messages = self.message_reader();
        self.for_each_part(&filter, selection::select, |found| {
            let mut found: Vec<NamedRecipient> = found.into_named().collect();
            selection::sort_by_age(&mut found);
            for (entry, place) in found {
                // The rest of the part is younger.
                if self.check_stopping().is_err() || !oldest.has_room_for(&entry) {
                    break;
                }
                let passes = |(envelope, size): &StoredMessage| filter.passes_message(envelope, *size, entry.ordinal);
                if !filter.needs_messages() || messages.read(entry.id).is_some_and(passes) {
                    oldest.insert((entry, place));
                }
            }
        })?;
        for (entry, place) in oldest.into_sorted() {
            self.check_stopping()?;
            if let Some(message) = messages.read(entry.id) {
                write_recipient(&entry, &place, message, out)?;
            }
        }
        self.write_unreadable(&messages, out)
    }

    /// A page of the recipients that a filter selects. What it costs depends on its size and not on the
    /// queue, so it may be short, or empty, before the last one.
    pub(crate) fn recipient_page(&self, filter: RecipientFilter, request: PageRequest) -> ControlResult<RecipientPage> {
        let PageRequest { from, limit } = request;
        let (filter, found) = self.with_queues(move |queues| {
            let found = selection::select_page(queues, &filter, from, limit, now());
            (filter, found)
        })?;
        let SlotPage { selected: SelectedRecipients { entries, destinations }, next } = found?;
        let mut messages = self.message_reader();
        let row = |entry: queue::RecipientView| -> Option<QueuedRecipient> {
            let (envelope, size) = messages.read(entry.id)?;
            let passes = filter.passes_message(envelope, *size, entry.ordinal);
            passes.then(|| list::queued_recipient(&entry, &destinations[&entry.destination], envelope, *size))?
        };
        Ok(RecipientPage {
            recipients: entries.into_iter().filter_map(row).collect(),
            unreadable: messages.log_unreadable(&*self.shared.log),
            next: next.map(|next| next.to_string()),
        })
    }

    /// Shows each selected recipient with its message, oldest first. Recipients that were delivered
    /// since, or whose message cannot be read, are left out.
    fn for_each_recipient(
        &self,
        filter: RecipientFilter,
        messages: &mut StoredMessageReader,
        mut show: impl FnMut(&queue::RecipientView, &DestinationName, &StoredMessage) -> io::Result<()>,
    ) -> ControlResult<()> {
        let (filter, selected) = self.select(filter)?;
        for (entry, place) in selected {
            self.check_stopping()?;
            let Some(message) = messages.read(entry.id) else { continue };
            if filter.passes_message(&message.0, message.1, entry.ordinal) {
                show(&entry, &place, message)?;
            }
        }
        Ok(())
    }

    /// Reads the messages for one request.
    pub(super) fn message_reader(&self) -> StoredMessageReader<'_> {
        StoredMessageReader::new(&self.parts.intake.spool)
    }

    /// Ends an answer: says how many messages were left out because they cannot be read.
    fn write_unreadable(&self, messages: &StoredMessageReader, out: &mut impl Write) -> ControlResult<()> {
        Ok(unreadable_row::write_unreadable(messages.log_unreadable(&*self.shared.log), out)?)
    }

    /// The recipients that pass the conditions on what the queue knows, oldest first.
    fn select(&self, filter: RecipientFilter) -> ControlResult<(Arc<RecipientFilter>, Vec<NamedRecipient>)> {
        let (filter, mut selected) = (Arc::new(filter), Vec::new());
        self.for_each_part(&filter, selection::select, |found| selected.extend(found.into_named()))?;
        selection::sort_by_age(&mut selected);
        Ok((filter, selected))
    }

    /// Asks about each part of the queue, in a visit of its own to the scheduler's thread.
    fn for_each_part<T: Send + 'static>(
        &self,
        filter: &Arc<RecipientFilter>,
        ask: fn(&Queues, &RecipientFilter, Range<u32>, Timestamp) -> Result<T, UnknownQueue>,
        mut take: impl FnMut(T),
    ) -> ControlResult<()> {
        for part in selection::slot_parts(self.with_queues(|queues| queues.slot_count())?) {
            self.check_stopping()?;
            let filter = filter.clone();
            take(self.with_queues(move |queues| ask(queues, &filter, part, now()))??);
        }
        Ok(())
    }

    pub(super) fn write_summary(
        &self,
        by: SummaryKey,
        filter: RecipientFilter,
        out: &mut impl Write,
    ) -> ControlResult<()> {
        let mut messages = self.message_reader();
        super::write_rows(&self.summary(by, filter, &mut messages)?, out)?;
        self.write_unreadable(&messages, out)
    }

    fn summary(
        &self,
        by: SummaryKey,
        filter: RecipientFilter,
        messages: &mut StoredMessageReader,
    ) -> ControlResult<Vec<Value>> {
        match by {
            SummaryKey::NextHop if filter.is_empty() => {
                let hops = self.with_queues(|queues| summary::by_next_hop(queues, now()))?;
                Ok(hops.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(io::Error::from)?)
            }
            SummaryKey::NextHop => {
                Err(ControlError::Refused("a filter selects recipients and does not apply to next hops".into()))
            }
            SummaryKey::Destination => Ok(summary::by_destination(self.tally_destinations(filter, messages)?, now())),
            SummaryKey::Queue => {
                let places = self.tally_destinations(filter, messages)?;
                Ok(summary::by_queue(self.with_queues(|queues| summary::queue_summaries(queues))?, places, now()))
            }
            SummaryKey::Sender => self.summary_by_sender(filter, messages),
        }
    }

    /// Counts by destination; on the scheduler's thread if no message has to be read.
    fn tally_destinations(
        &self,
        filter: RecipientFilter,
        messages: &mut StoredMessageReader,
    ) -> ControlResult<HashMap<DestinationName, RecipientTally>> {
        let mut tallies: HashMap<DestinationName, RecipientTally> = HashMap::new();
        if !filter.needs_messages() {
            self.for_each_part(&Arc::new(filter), summary::tally_destinations, |of_part| {
                of_part.into_iter().for_each(|(place, tally)| tallies.entry(place).or_default().merge(tally));
            })?;
            return Ok(tallies);
        }
        self.for_each_recipient(filter, messages, |entry, place, _| {
            tallies.entry(place.clone()).or_default().count(entry, now());
            Ok(())
        })?;
        Ok(tallies)
    }

    fn summary_by_sender(
        &self,
        filter: RecipientFilter,
        messages: &mut StoredMessageReader,
    ) -> ControlResult<Vec<Value>> {
        let (mut tallies, now): (HashMap<String, RecipientTally>, _) = (HashMap::new(), now());
        self.for_each_recipient(filter, messages, |entry, _, (envelope, _)| {
            let sender = envelope.sender.as_ref().map_or("", |sender| sender.as_str());
            match tallies.get_mut(sender) {
                Some(tally) => tally.count(entry, now),
                None => tallies.entry(sender.to_owned()).or_default().count(entry, now),
            }
            Ok(())
        })?;
        Ok(summary::by_sender(tallies, now))
    }
}

/// Writes a recipient, if the envelope of its message has it.
fn write_recipient(
    entry: &queue::RecipientView,
    place: &DestinationName,
    (envelope, size): &StoredMessage,
    out: &mut impl Write,
) -> io::Result<()> {
    match list::queued_recipient(entry, place, envelope, *size) {
        Some(row) => writeln!(out, "{}", serde_json::to_string(&row)?),
        None => Ok(()),
    }
}
