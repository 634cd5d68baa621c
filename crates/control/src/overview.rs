//! What the dashboard shows, as one answer: the queues and what hurts, the machine, certificates, and whether
//! the server takes mail. Ages and errors need a pass over all recipients, so the answer is kept for a
//! short time and serves all dashboards; an action of an operator ends that time.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mail::Timestamp;
use parking_lot::Mutex;
use queue::{DestinationId, Queues};
use serde::Serialize;
use utoipa::ToSchema;

use crate::certificates::CertificateStatus;
use crate::handler::{ControlHandler, ControlResult, now};
use crate::lanes::LaneStatus;
use crate::load::LoadStatus;
use crate::redirects::Redirect;
use crate::summary::{self, DestinationStatus, NextHopStatus, QueueStatus, RecipientTally};
use crate::trouble::{troubled_destinations, troubled_next_hops};

/// The next hops, and the destinations, that are shown.
const ROWS_MAX: usize = 20;
/// How long an overview is kept at least.
const KEPT_MIN: Duration = Duration::from_secs(1);
/// It is kept for this many times as long as it took to read, so that a long queue costs no more than half
/// a per cent of a processor.
const KEPT_PER_COST: u32 = 200;
/// How long it is kept at most: the time to read it may be a wait for the scheduler.
const KEPT_MAX: Duration = Duration::from_secs(30);

/// A next hop, with its recipients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct NextHopOverview {
    /// The next hop.
    pub status: NextHopStatus,
    /// Recipients that the operator holds.
    pub held: usize,
    /// Seconds since the oldest of its messages was accepted; null without any.
    pub oldest_age_seconds: Option<u64>,
    /// The most common error of its recipients since the start of the server.
    pub recipient_error: Option<String>,
}

/// A destination, with its recipients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct DestinationOverview {
    /// The destination.
    pub status: DestinationStatus,
    /// Recipients that are due at a later time.
    pub waiting: usize,
    /// Recipients that the operator holds.
    pub held: usize,
    /// Seconds since the oldest of its messages was accepted.
    pub oldest_age_seconds: Option<u64>,
    /// The most common error of its recipients since the start of the server.
    pub error: Option<String>,
}

/// The queues: what hurts most first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct QueueOverview {
    /// Next hops: those that cannot be reached and for which most recipients wait first; at most 20.
    pub next_hops: Vec<NextHopOverview>,
    /// Destinations with recipients, in the same order; at most 20.
    pub destinations: Vec<DestinationOverview>,
    /// All queues, in the order of the configuration.
    pub queues: Vec<QueueStatus>,
}

/// What the dashboard shows.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Overview {
    /// When it was read (RFC 3339). It is kept for a second, or longer with a long queue.
    pub read: String,
    /// Why the server takes no mail; null: it does.
    pub unready: Option<String>,
    /// The queues.
    pub mail: QueueOverview,
    /// Mail that operators redirect to other next hops.
    pub redirects: Vec<Redirect>,
    /// Processors that the server may use.
    pub processors: usize,
    /// The load of the machine, and the limits in force.
    pub load: LoadStatus,
    /// The lanes of the spool.
    pub lanes: Vec<LaneStatus>,
    /// The certificates of the listeners.
    pub certificates: Vec<CertificateStatus>,
    /// Whether the server belongs to a cluster.
    pub in_cluster: bool,
}

impl QueueOverview {
    /// Reads the queues in one pass.
    fn read<R: Clone>(queues: &Queues<R>, now: Timestamp) -> QueueOverview {
        let hops = troubled_next_hops(queues, ROWS_MAX, now);
        let destinations = troubled_destinations(queues, ROWS_MAX, now);
        let mut tallies = ShownTallies::new(queues, &hops, &destinations);
        queues.recipient_views().for_each(|recipient| tallies.count(&recipient, now));
        let next_hop = |(status, tally): (NextHopStatus, &RecipientTally)| NextHopOverview {
            status,
            held: tally.held(),
            oldest_age_seconds: tally.oldest_age_seconds(now),
            recipient_error: tally.most_common_error().map(str::to_owned),
        };
        let destination = |((_, status), tally): ((_, DestinationStatus), &RecipientTally)| DestinationOverview {
            status,
            waiting: tally.waiting(),
            held: tally.held(),
            oldest_age_seconds: tally.oldest_age_seconds(now),
            error: tally.most_common_error().map(str::to_owned),
        };
        QueueOverview {
            next_hops: hops.into_iter().zip(&tallies.hops).map(next_hop).collect(),
            destinations: destinations.into_iter().zip(&tallies.destinations).map(destination).collect(),
            queues: summary::queue_statuses(queues),
        }
    }
}

/// The tallies of what is shown, so that a pass over a million recipients needs memory for a few.
struct ShownTallies {
    /// The rows of a destination: its own, and that of its next hop.
    rows: HashMap<DestinationId, (Option<usize>, Option<usize>)>,
    destinations: Vec<RecipientTally>,
    hops: Vec<RecipientTally>,
}

impl ShownTallies {
    fn new<R: Clone>(
        queues: &Queues<R>,
        hops: &[NextHopStatus],
        destinations: &[(DestinationId, DestinationStatus)],
    ) -> ShownTallies {
        let row_of: HashMap<_, _> = destinations.iter().enumerate().map(|(row, (number, _))| (*number, row)).collect();
        let hop_rows: HashMap<_, _> = hops.iter().enumerate().map(|(row, hop)| (hop.next_hop.as_str(), row)).collect();
        let rows = queues.destination_views().filter_map(|view| {
            let own = row_of.get(&view.number).copied();
            let hop = view.next_hop.and_then(|hop| hop_rows.get(hop)).copied();
            (own.is_some() || hop.is_some()).then_some((view.number, (own, hop)))
        });
        ShownTallies {
            rows: rows.collect(),
            destinations: vec![RecipientTally::default(); destinations.len()],
            hops: vec![RecipientTally::default(); hops.len()],
        }
    }

    fn count(&mut self, recipient: &queue::RecipientView, now: Timestamp) {
        let Some((destination, hop)) = self.rows.get(&recipient.destination) else { return };
        let tallies = [destination.map(|row| &mut self.destinations[row]), hop.map(|row| &mut self.hops[row])];
        tallies.into_iter().flatten().for_each(|tally| tally.count(recipient, now));
    }
}

impl ControlHandler {
    /// What the dashboard shows, from a short time ago at most.
    pub(super) fn overview(&self) -> ControlResult<Arc<Overview>> {
        self.shared.live.overview.get(|| self.read_overview())
    }

    fn read_overview(&self) -> ControlResult<Overview> {
        Ok(Overview {
            read: now().to_rfc3339(),
            unready: self.unreadiness().map(str::to_owned),
            mail: self.with_queues(|queues| QueueOverview::read(queues, now()))?,
            redirects: self.redirects(),
            processors: std::thread::available_parallelism().map_or(1, NonZero::get),
            load: self.load_status(),
            lanes: self.lanes(),
            certificates: self.certificates(),
            in_cluster: self.shared.cluster.is_some(),
        })
    }
}

/// The overview that was read last.
#[derive(Default)]
pub(crate) struct OverviewCache(Mutex<Option<KeptOverview>>);

struct KeptOverview {
    overview: Arc<Overview>,
    until: Instant,
}

impl OverviewCache {
    /// The kept overview, or a new one. Readers that come together wait for the same one.
    fn get(&self, read: impl FnOnce() -> ControlResult<Overview>) -> ControlResult<Arc<Overview>> {
        let mut kept = self.0.lock();
        let begin = Instant::now();
        if let Some(known) = kept.as_ref().filter(|known| begin < known.until) {
            return Ok(known.overview.clone());
        }
        let overview = Arc::new(read()?);
        let end = Instant::now();
        let until = end + ((end - begin) * KEPT_PER_COST).clamp(KEPT_MIN, KEPT_MAX);
        *kept = Some(KeptOverview { overview: overview.clone(), until });
        Ok(overview)
    }

    /// Something was changed, and its effect is to be seen at once.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{self, NOW};
    use super::*;

    #[test]
    fn what_hurts_comes_with_its_age_and_its_error() {
        let sample = sample::queues();
        let overview = QueueOverview::read(&sample.queues, NOW);
        let destination = &overview.destinations[0];
        assert_eq!((&*destination.status.destination, &*destination.status.queue), ("a.example", "standard"));
        assert_eq!((destination.status.recipients, destination.held, destination.waiting), (2, 1, 1));
        assert_eq!(destination.oldest_age_seconds, Some(7200));
        assert!(destination.error.as_ref().is_some_and(|error| error.contains("Greylisted")), "{destination:?}");
        let hop = overview.next_hops.iter().find(|hop| hop.status.next_hop == "smtp:a.example").unwrap();
        assert_eq!((hop.status.recipients, hop.held, hop.oldest_age_seconds), (3, 1, Some(7200)));
        assert_eq!(hop.recipient_error, destination.error);
        assert_eq!(overview.queues.len(), 3);
    }

    #[test]
    fn an_overview_is_read_once_for_all_until_an_action() {
        let (cache, sample) = (OverviewCache::default(), sample::queues());
        let reads = std::cell::Cell::new(0);
        let get = || {
            cache.get(|| {
                reads.set(reads.get() + 1);
                Ok(overview(&sample.queues))
            })
        };
        assert_eq!((get().is_ok(), get().is_ok(), reads.get()), (true, true, 1));
        cache.forget();
        assert_eq!((get().is_ok(), reads.get()), (true, 2));
    }

    fn overview(queues: &Queues<()>) -> Overview {
        let report = crate::load::tests::report(NOW);
        Overview {
            read: NOW.to_rfc3339(),
            unready: None,
            mail: QueueOverview::read(queues, NOW),
            redirects: Vec::new(),
            processors: 2,
            load: crate::load::load_status(&report, &intake::RefusalCounters::default(), NOW),
            lanes: Vec::new(),
            certificates: Vec::new(),
            in_cluster: false,
        }
    }
}
