//! Next hops and destinations in the order of what hurts: those that cannot be reached and for which most
//! recipients wait come first. One pass over next hops and destinations, whatever the number of
//! recipients.

use std::collections::HashMap;

use mail::Timestamp;
use queue::{DestinationId, DestinationView, NextHopView, Queues};

use crate::summary::{
    DestinationStatus, NextHopStatus, destination_key, destination_status, first_sorted, recipients_by_hop,
};

/// What keeps mail back; the later, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    None,
    /// There was trouble, and no mail waits for its end.
    WithoutMail,
    /// The operator keeps the mail back.
    Paused,
    /// Attempts fail.
    Failing,
    /// The next hop cannot be reached.
    Unreachable,
}

impl Trouble {
    fn of_next_hop(hop: &NextHopView<'_>, recipients: usize) -> Trouble {
        let (is_dead, is_failing, is_paused) = (hop.probe_at.is_some(), hop.failures > 0, hop.pause.is_some());
        match recipients {
            0 if is_dead || is_failing || is_paused || hop.error.is_some() => Trouble::WithoutMail,
            0 => Trouble::None,
            _ if is_dead => Trouble::Unreachable,
            _ if is_failing => Trouble::Failing,
            _ if is_paused => Trouble::Paused,
            _ if hop.error.is_some() => Trouble::WithoutMail,
            _ => Trouble::None,
        }
    }
}

/// At most `limit` next hops, those that hurt most first.
pub(super) fn troubled_next_hops<R: Clone>(queues: &Queues<R>, limit: usize, now: Timestamp) -> Vec<NextHopStatus> {
    let recipients = recipients_by_hop(queues);
    let recipients_of = |hop: &NextHopView<'_>| recipients.get(hop.name).copied().unwrap_or_default();
    let trouble = |hop: &NextHopView<'_>| {
        let recipients = recipients_of(hop);
        (Trouble::of_next_hop(hop, recipients), recipients, hop.failures, hop.error.is_some(), hop.attempts)
    };
    let order = |one: &NextHopView<'_>, other: &NextHopView<'_>| {
        trouble(other).cmp(&trouble(one)).then_with(|| one.name.cmp(other.name))
    };
    let hops = first_sorted(queues.next_hop_views().collect(), limit, order);
    hops.iter().map(|hop| NextHopStatus::of(queues, hop, recipients_of(hop), now)).collect()
}

/// At most `limit` destinations, those that hurt most first.
pub(super) fn troubled_destinations<R: Clone>(
    queues: &Queues<R>,
    limit: usize,
    now: Timestamp,
) -> Vec<(DestinationId, DestinationStatus)> {
    let hops: HashMap<&str, Trouble> =
        queues.next_hop_views().map(|hop| (hop.name, Trouble::of_next_hop(&hop, 1))).collect();
    let is_paused: Vec<bool> = queues.queue_views().map(|queue| queue.pause.is_some()).collect();
    let trouble = |view: &DestinationView<'_>| {
        let of_hop = view.next_hop.and_then(|hop| hops.get(hop)).copied().unwrap_or(Trouble::None);
        let is_paused = view.pause.is_some() || is_paused[usize::from(view.queue.0)];
        let own = if is_paused { Trouble::Paused } else { Trouble::None };
        (of_hop.max(own), view.recipients)
    };
    let order = |one: &DestinationView<'_>, other: &DestinationView<'_>| {
        trouble(other)
            .cmp(&trouble(one))
            .then_with(|| destination_key(queues, one).cmp(&destination_key(queues, other)))
    };
    let found = first_sorted(queues.destination_views().collect(), limit, order);
    found.iter().map(|view| (view.number, destination_status(queues, view, now))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::{self, NOW};
    use super::*;

    #[test]
    fn what_cannot_be_reached_comes_before_what_is_larger() {
        let mut sample = sample::queues();
        let destinations = |queues: &Queues<()>| {
            troubled_destinations(queues, 9, NOW).into_iter().map(|(_, row)| row.destination).collect::<Vec<_>>()
        };
        assert_eq!(destinations(&sample.queues)[0], "a.example");
        let error = mail::Reply::without_enhanced_code(451, "no route to host");
        sample.queues.finish_contact(NOW, &mut sample.attempt, queue::ContactResult::Failed(error));
        assert_eq!(destinations(&sample.queues)[0], "mx.here!d.example");
        let hops = troubled_next_hops(&sample.queues, 2, NOW);
        assert_eq!((hops.len(), hops[0].next_hop.as_str()), (2, "smtp:mx.here!d.example"));
        assert_eq!((hops[0].failures, hops[0].recipients), (1, 1));
        assert_eq!((hops[1].next_hop.as_str(), hops[1].recipients), ("smtp:a.example", 3));
    }
}
