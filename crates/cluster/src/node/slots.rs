//! The slots of next hops whose concurrency the nodes share: passes what the queues use to
//! [`HopSlots`], stores what that decides, and grants the queues what they may use.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep_until};

use super::NodeShared;
use super::sharing_callbacks::SharingCallbacks;
use crate::clock::boot_time;
use crate::jetstream::{RatesBucket, next_hop_key};
use crate::slots::{ClusterView, HopSlots, SlotTable, SlotUse, WriteOutcome};

/// How often it is looked whether something is due.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// After this time, all nodes have counted this one: each counts every 10 seconds, and what it uses above its
/// new part then ends within 10 more.
const COUNTED_AFTER: Duration = Duration::from_secs(30);

/// Counts the slots of all next hops.
#[derive(Default)]
pub(super) struct SlotCounters {
    /// Those that the queues may use now, by the table of all nodes and as the own part.
    pub(super) shared: AtomicU64,
    pub(super) own_part: AtomicU64,
    /// Those that others held when this node asked for them, since its start.
    pub(super) refused: AtomicU64,
}

/// The slots of a next hop that this node uses.
struct UsedHop {
    next_hop: Box<str>,
    slots: HopSlots,
    /// What the queues were granted last.
    granted: u32,
    /// What the counters have of it.
    counted: CountedSlots,
}

/// The slots of a next hop, as they were counted last.
#[derive(Clone, Copy, Default)]
struct CountedSlots {
    held: u32,
    is_own_part: bool,
    refused: u64,
}

/// All next hops that this node uses.
pub(super) struct SlotShares {
    shared: Arc<NodeShared>,
    callbacks: Arc<SharingCallbacks>,
    bucket: Option<RatesBucket>,
    /// Since when the bucket is open.
    opened_at: Duration,
    /// By key of the next hop.
    hops: HashMap<String, UsedHop>,
    writes: FuturesUnordered<BoxFuture<'static, (String, WriteOutcome)>>,
    /// When to look the next time.
    look_at: Instant,
}

impl SlotCounters {
    /// Counts the slots of a next hop that were counted before.
    fn count(&self, before: CountedSlots, now: CountedSlots) {
        let held = |counted: CountedSlots| if counted.is_own_part { &self.own_part } else { &self.shared };
        held(now).fetch_add(now.held.into(), Relaxed);
        held(before).fetch_sub(before.held.into(), Relaxed);
        self.refused.fetch_add(now.refused - before.refused, Relaxed);
    }
}

impl SlotShares {
    pub(super) fn new(shared: Arc<NodeShared>, callbacks: Arc<SharingCallbacks>) -> SlotShares {
        SlotShares {
            shared,
            callbacks,
            bucket: None,
            opened_at: Duration::ZERO,
            hops: HashMap::new(),
            writes: FuturesUnordered::new(),
            look_at: Instant::now(),
        }
    }

    /// The bucket of the tables was opened anew, or cannot be opened.
    pub(super) fn handle_bucket(&mut self, bucket: Option<RatesBucket>) {
        if bucket.is_some() {
            self.opened_at = boot_time().0;
            self.hops.values_mut().for_each(|hop| hop.slots.handle_reopened());
        }
        self.bucket = bucket;
    }

    /// The queues use other slots now.
    pub(super) fn handle_use(&mut self, next_hop: Box<str>, usage: SlotUse) {
        let Some(key) = next_hop_key(&next_hop) else {
            let nodes = self.view().nodes.max(1);
            return (self.callbacks.grant_slots)(&next_hop, (usage.limit / nodes).max(1));
        };
        let (node, random) = (&self.shared.parts.config.node, self.shared.parts.random);
        let hop = self.hops.entry(key.clone()).or_insert_with(|| UsedHop {
            next_hop,
            slots: HopSlots::new(node.as_str(), random()),
            granted: usage.granted,
            counted: CountedSlots::default(),
        });
        hop.slots.handle_use(usage);
        self.update(&key);
    }

    /// A table was read.
    pub(super) fn handle_table(&mut self, key: &str, revision: u64, table: SlotTable) {
        if let Some(hop) = self.hops.get_mut(key) {
            hop.slots.handle_table(boot_time().0, revision, table);
            self.update(key);
        }
    }

    /// Does what is due, and waits for the next thing that is. Never ends.
    pub(super) async fn work(&mut self) {
        let SlotShares { writes, look_at, hops, .. } = &mut *self;
        let written = async {
            match writes.next().await {
                Some(written) => written,
                None => pending().await,
            }
        };
        let ticked = async {
            match hops.is_empty() {
                true => pending().await,
                false => sleep_until(*look_at).await,
            }
        };
        tokio::select! {
            (key, outcome) = written => {
                if let Some(hop) = self.hops.get_mut(&key) {
                    hop.slots.handle_written(boot_time().0, outcome);
                    self.update(&key);
                }
            }
            () = ticked => {
                self.look_at = Instant::now() + LOOK_INTERVAL;
                let keys: Vec<String> = self.hops.keys().cloned().collect();
                keys.iter().for_each(|key| self.update(key));
            }
        }
    }

    /// Gives back what this node holds, since nothing is delivered any more. Without servers there is nobody to
    /// tell: then the slots are free when the lease of the others for them is over.
    pub(super) async fn give_back(&mut self) {
        self.hops.values_mut().for_each(|hop| hop.slots.handle_stop());
        let keys: Vec<String> = self.hops.keys().cloned().collect();
        keys.iter().for_each(|key| self.update(key));
        while self.bucket.is_some() && !self.hops.is_empty() {
            self.work().await;
        }
    }

    /// Stores and grants what a next hop needs now.
    fn update(&mut self, key: &str) {
        let (now, view) = (boot_time().0, self.view());
        let Some(hop) = self.hops.get_mut(key) else { return };
        if let Some(bucket) = &self.bucket
            && let Some(write) = hop.slots.poll_write(now, view)
        {
            let (bucket, key) = (bucket.clone(), key.to_owned());
            let write = async move {
                let outcome = bucket.change_slots(&key, write).await;
                (key, outcome)
            };
            self.writes.push(write.boxed());
        }
        let granted = hop.slots.granted(now, view);
        let counted = CountedSlots {
            held: granted,
            is_own_part: hop.slots.uses_own_part(now, view),
            refused: hop.slots.refused(),
        };
        self.shared.slots.count(std::mem::replace(&mut hop.counted, counted), counted);
        if std::mem::replace(&mut hop.granted, granted) != granted {
            (self.callbacks.grant_slots)(&hop.next_hop, granted);
        }
        if hop.slots.is_idle() {
            self.hops.remove(key);
        }
    }

    fn view(&self) -> ClusterView {
        let nodes = u32::try_from(self.shared.counters.nodes()).unwrap_or(u32::MAX);
        let is_counted = self.bucket.is_some() && boot_time().0 >= self.opened_at + COUNTED_AFTER;
        ClusterView { nodes, is_connected: self.shared.connection.is_connected(), is_counted }
    }
}
