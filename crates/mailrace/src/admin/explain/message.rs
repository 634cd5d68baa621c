//! The state of one message: each recipient by the spool, or by the queue while it waits, and what
//! holds the destinations of waiting recipients.

use std::collections::BTreeMap;
use std::io::{self, Write};

use mail::{QueueId, Timestamp};
use queue::{Entry, Obstacle, Progress, QueueNumber, Queues};
use spool::{State, Stored};

use super::super::found::Place;
use super::super::text::{brief, counted};
use super::{moment, obstacle_lines, sentence};

/// Recipients listed one by one.
const RECIPIENTS_MAX: usize = 1000;

/// What the queues know of a message.
pub(in super::super) struct Account {
    pub(in super::super) id: QueueId,
    /// By ordinal.
    pub(in super::super) entries: BTreeMap<u32, Entry>,
    /// What holds each destination.
    obstacles: BTreeMap<Place, Vec<Obstacle>>,
    /// The next hop of each destination, if known.
    hops: BTreeMap<Place, Box<str>>,
    pub(in super::super) places: BTreeMap<queue::Destination, Place>,
    names: Vec<Box<str>>,
}

impl Account {
    /// Collects the state in one pass.
    pub(in super::super) fn of<R: Clone>(queues: &Queues<R>, id: QueueId, now: Timestamp) -> Account {
        let theirs = queues.entries().filter(|entry| entry.id == id);
        let entries: BTreeMap<u32, Entry> = theirs.map(|entry| (entry.ordinal, entry)).collect();
        let places: BTreeMap<_, _> =
            entries.values().map(|entry| (entry.destination, Place::of(queues, entry.destination))).collect();
        let held =
            |(destination, place): (&queue::Destination, &Place)| (place.clone(), queues.explain(now, *destination));
        let hop = |(destination, place): (&queue::Destination, &Place)| {
            Some((place.clone(), queues.destination_next_hop(*destination)?.into()))
        };
        Account {
            id,
            obstacles: places.iter().map(held).collect(),
            hops: places.iter().filter_map(hop).collect(),
            names: queues.config().queues.iter().map(|queue| queue.name.clone()).collect(),
            entries,
            places,
        }
    }

    /// The obstacles of each destination as sentences, and its next hop if known.
    pub(in super::super) fn destinations(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (&Place, Option<&str>, Vec<String>)> {
        let name = |number: QueueNumber| &*self.names[usize::from(number.0)];
        self.obstacles.iter().map(move |(place, obstacles)| {
            let sentences = obstacles.iter().map(|obstacle| sentence(obstacle, now, name)).collect();
            (place, self.hops.get(place).map(|hop| &**hop), sentences)
        })
    }

    /// Writes the state, with what the spool knows.
    pub(in super::super) fn tell(&self, stored: &Stored, now: Timestamp, out: &mut impl Write) -> io::Result<()> {
        let envelope = &stored.envelope;
        let sender = envelope.sender.as_ref().map_or("", |sender| sender.as_str());
        let age = brief(now.since(envelope.accepted_at));
        let recipients = counted(envelope.recipients.len(), "recipient");
        writeln!(out, "{} from <{sender}> to {recipients}", self.id)?;
        writeln!(out, "  {} bytes, accepted {} ({age} ago)", stored.body.len(), envelope.accepted_at.rfc3339_date())?;
        let all = (0..).zip(&envelope.recipients);
        for (ordinal, recipient) in all.clone().take(RECIPIENTS_MAX) {
            writeln!(out, "  <{}>: {}", recipient.address, self.state(ordinal, stored, now))?;
        }
        let more = envelope.recipients.len().saturating_sub(RECIPIENTS_MAX);
        if more > 0 {
            writeln!(out, "  and {} more", counted(more, "recipient"))?;
        }
        self.obstacles.iter().try_for_each(|(place, obstacles)| self.tell_place(place, obstacles, now, out))
    }

    fn tell_place(
        &self,
        place: &Place,
        obstacles: &[Obstacle],
        now: Timestamp,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let here = |entry: &&Entry| self.places.get(&entry.destination) == Some(place);
        let waiting = self.entries.values().filter(here).count();
        let hop = self.hops.get(place).map(|hop| format!(", next hop {hop}")).unwrap_or_default();
        writeln!(out, "destination {}, queue {}{hop}: {}", place.name, place.queue, counted(waiting, "recipient"))?;
        let name = |number: QueueNumber| &*self.names[usize::from(number.0)];
        obstacle_lines(obstacles, now, name).iter().try_for_each(|line| writeln!(out, "  {line}"))
    }

    fn state(&self, ordinal: u32, stored: &Stored, now: Timestamp) -> String {
        match self.entries.get(&ordinal) {
            Some(entry) => waits(entry, now),
            None => over(stored.states.get(ordinal as usize)).into(),
        }
    }
}

/// What a recipient waits for.
fn waits(entry: &Entry, now: Timestamp) -> String {
    let state = match entry.progress {
        Progress::Ready => "ready, waiting for its turn".into(),
        Progress::InFlight => "in flight".into(),
        Progress::Held => "held by the operator".into(),
        Progress::Waiting(until) if entry.attempts == 0 => {
            format!("waiting for its first attempt {}", moment(until, now))
        }
        Progress::Waiting(until) => format!("waiting for its next attempt {}", moment(until, now)),
    };
    let attempts = counted(usize::from(entry.attempts), "attempt");
    let error = entry.error.as_ref().map(|error| format!("; last error: {error}")).unwrap_or_default();
    format!("{state}; {attempts} so far{error}")
}

/// The state of a recipient that is in no queue.
fn over(state: Option<&State>) -> &'static str {
    match state {
        Some(State::Delivered) => "delivered",
        Some(State::Failed) => "failed, or removed by the operator",
        Some(State::SetAside) => "set aside: the message is damaged",
        Some(State::Waiting { .. } | State::Held { .. }) | None => "entering or leaving the queue",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mail::{Body, BodyFlags, SpoolId};

    use super::super::super::sample::{self, NOW};
    use super::*;

    /// Of the first message, one recipient is held and two wait; a fourth is delivered.
    #[test]
    fn a_message_is_told_by_its_recipients_and_by_what_holds_them() {
        let sample = sample::queues();
        let id = QueueId::new(SpoolId::new(7), 0, 1);
        let mut envelope = sample.letters[&id].0.clone();
        envelope.recipients.push(envelope.recipients[0].clone());
        let waiting = State::Waiting { attempts: 1, until: NOW };
        let states = vec![State::Held { attempts: 0 }, waiting, waiting, State::Delivered];
        let bytes: Arc<dyn mail::ByteSource> = Arc::new(b"Subject: x\r\n\r\n".to_vec());
        let body = Body::new(bytes, 0, 14, 0, BodyFlags::default());
        let mut told = Vec::new();
        let account = Account::of(&sample.queues, id, NOW);
        account.tell(&Stored { envelope, states, body }, NOW, &mut told).unwrap();
        insta::assert_snapshot!("message", String::from_utf8(told).unwrap());
    }
}
