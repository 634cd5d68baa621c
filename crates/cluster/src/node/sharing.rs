//! What nodes share: the rates and the concurrency of next hops, and broadcasts about lame next hops, failed logins and used
//! allowances.
//!
//! | the servers | a request for departures |
//! |---|---|
//! | store it in time | gets what [`DepartureLedger`] says, by the order in which requests were stored |
//! | do not | gets the [`OwnPart`] of this node, by the number of nodes that were alive |
//!
//! Each request is answered, so that whoever asks need not ask again.

use std::collections::HashMap;
use std::future::pending;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Stream, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::sharing_callbacks::SharingCallbacks;
use super::slots::SlotShares;
use super::usage::{self, UsageBuffer};
use super::{ClusterNode, NodeShared, RETRY_DELAY};
use crate::clock::boot_time;
use crate::departures::{DepartureLedger, DepartureRequest, OwnPart, nanos};
use crate::jetstream::{NodeBroadcast, RatesBucket, StoredEntry, StoredRequest, next_hop_key};
use crate::slots::SlotUse;

/// A request that was not granted after this time gets the own part.
const GRANT_TIME_MAX: Duration = Duration::from_secs(1);
/// Broadcasts that wait to be sent. Beyond that they are lost: whoever guesses passwords makes as many as they like, also
/// while no server takes any.
const BROADCASTS_MAX: usize = 1000;

/// What the rest of the server tells the other nodes.
#[derive(Debug)]
enum NodeMessage {
    /// Departures are wanted.
    Departures { next_hop: Box<str>, interval: Duration, count: u32 },
    /// Other slots are used.
    Slots { next_hop: Box<str>, usage: SlotUse },
}

/// Takes what this node tells the others. Nothing here waits.
#[derive(Clone, Debug)]
pub struct NodeSharing {
    messages: mpsc::UnboundedSender<NodeMessage>,
    broadcasts: mpsc::Sender<NodeBroadcast>,
    usage: Arc<UsageBuffer>,
}

/// What [`NodeSharing`] was told, until the node takes it.
#[derive(Debug)]
pub(super) struct NodeMessages {
    received: mpsc::UnboundedReceiver<NodeMessage>,
    broadcasts: mpsc::Receiver<NodeBroadcast>,
    usage: Arc<UsageBuffer>,
}

/// Counts departures by where they were granted.
#[derive(Default)]
pub(super) struct DepartureCounters {
    pub(super) shared: AtomicU64,
    pub(super) own_part: AtomicU64,
}

impl NodeSharing {
    pub(super) fn new() -> (NodeSharing, NodeMessages) {
        let ((messages, received), (tell, broadcasts)) = (mpsc::unbounded_channel(), mpsc::channel(BROADCASTS_MAX));
        let usage = Arc::<UsageBuffer>::default();
        (NodeSharing { messages, broadcasts: tell, usage: usage.clone() }, NodeMessages { received, broadcasts, usage })
    }

    /// Asks for departures to a next hop. One request at a time for each.
    pub fn request_departures(&self, next_hop: &str, interval: Duration, count: u32) {
        self.send(NodeMessage::Departures { next_hop: next_hop.into(), interval, count });
    }

    /// The queues use other slots of a next hop now.
    pub fn report_slots(&self, next_hop: Box<str>, usage: SlotUse) {
        self.send(NodeMessage::Slots { next_hop, usage });
    }

    /// Tells the other nodes that a next hop is lame.
    pub fn announce_lame(&self, next_hop: &str) {
        self.announce(NodeBroadcast::LameNextHop(next_hop.into()));
    }

    /// Tells the other nodes that a login has failed.
    pub fn announce_failed_login(&self, user: &str, client: IpAddr) {
        self.announce(NodeBroadcast::FailedLogin { user: user.into(), client });
    }

    /// Tells the other nodes what a key of a limit has used.
    pub fn count_usage(&self, limit: &str, quantity: &'static str, key: u128, cost: u64) {
        self.usage.add(limit, quantity, key, cost);
    }

    fn announce(&self, broadcast: NodeBroadcast) {
        // What finds no room is lost: others find out themselves.
        drop(self.broadcasts.try_send(broadcast));
    }

    fn send(&self, message: NodeMessage) {
        // Only fails when the node has stopped.
        drop(self.messages.send(message));
    }
}

/// The task that shares next hops, while it runs.
pub(super) struct NextHopSharing {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl NextHopSharing {
    /// Gives all slots back, and ends when the other nodes know that.
    pub(super) async fn stop(self) {
        if self.stop.send(()).is_ok() {
            // A panic has ended the process already.
            drop(self.task.await);
        }
    }
}

impl ClusterNode {
    /// Begins to answer what [`NodeSharing`] was told, and to pass on what other nodes tell. Called once.
    pub fn share(&self, callbacks: SharingCallbacks) {
        let Some(NodeMessages { received, broadcasts, usage }) = self.shared.node_messages.lock().take() else {
            return;
        };
        let callbacks = Arc::new(callbacks);
        self.thread.handle().spawn(pass_broadcasts(self.shared.clone(), callbacks.clone()));
        self.thread.handle().spawn(announce_broadcasts(self.shared.clone(), broadcasts));
        self.thread.handle().spawn(usage::tell_others(self.shared.clone(), usage));
        let (stop, stopped) = oneshot::channel();
        let task = NextHopTask::new(self.shared.clone(), callbacks).run(received, stopped);
        let task = self.thread.handle().spawn(task);
        *self.next_hop_sharing.lock() = Some(NextHopSharing { stop, task });
    }
}

/// Sends the broadcasts of this node to the others. This may wait for the servers, so nothing else waits for it.
async fn announce_broadcasts(shared: Arc<NodeShared>, mut broadcasts: mpsc::Receiver<NodeBroadcast>) {
    while let Some(broadcast) = broadcasts.recv().await {
        shared.connection.announce(broadcast).await;
    }
}

/// Passes on the broadcasts of other nodes, for ever.
async fn pass_broadcasts(shared: Arc<NodeShared>, callbacks: Arc<SharingCallbacks>) {
    loop {
        if let Ok(broadcasts) = shared.connection.broadcasts().await {
            let mut broadcasts = Box::pin(broadcasts);
            while let Some(broadcast) = broadcasts.next().await {
                match broadcast {
                    NodeBroadcast::LameNextHop(next_hop) => (callbacks.report_lame)(&next_hop),
                    NodeBroadcast::FailedLogin { user, client } => (callbacks.count_failed_login)(&user, client),
                    NodeBroadcast::LimitUse(used) => used.iter().for_each(&callbacks.count_usage),
                }
            }
        }
        sleep(RETRY_DELAY).await;
    }
}

type StoredEntries = Pin<Box<dyn Stream<Item = StoredEntry> + Send>>;

/// The log of requests. Servers may take long to open it, so it is opened beside everything else.
enum RequestLog {
    Opening(BoxFuture<'static, (RatesBucket, StoredEntries)>),
    Open(StoredEntries),
}

enum LogEvent {
    Opened(Box<RatesBucket>),
    Stored(StoredEntry),
    /// It cannot be read on.
    Ended,
}

impl RequestLog {
    /// What comes next. It is not lost if nobody waits for it to the end.
    async fn next(&mut self) -> LogEvent {
        match self {
            RequestLog::Opening(opening) => {
                let (bucket, entries) = opening.await;
                *self = RequestLog::Open(entries);
                LogEvent::Opened(Box::new(bucket))
            }
            RequestLog::Open(entries) => entries.next().await.map_or(LogEvent::Ended, LogEvent::Stored),
        }
    }
}

/// Opens the log of requests, however often that fails.
async fn open_log(shared: Arc<NodeShared>) -> (RatesBucket, StoredEntries) {
    loop {
        if shared.connection.is_connected()
            && let Ok(bucket) = shared.connection.rates().await
            && let Ok(entries) = bucket.read().await
        {
            return (bucket, Box::pin(entries));
        }
        sleep(RETRY_DELAY).await;
    }
}

/// A request that is not granted yet.
struct PendingRequest {
    next_hop: Box<str>,
    number: u64,
    interval: Duration,
    until: Instant,
}

/// Asks the other nodes, and answers.
struct NextHopTask {
    shared: Arc<NodeShared>,
    callbacks: Arc<SharingCallbacks>,
    bucket: Option<RatesBucket>,
    ledger: DepartureLedger,
    own_part: OwnPart,
    /// By key of the next hop.
    pending: HashMap<String, PendingRequest>,
    /// Requests that are being written: their key and number, if that has failed.
    writes: FuturesUnordered<BoxFuture<'static, Option<(String, u64)>>>,
    number: u64,
    slots: SlotShares,
}

impl NextHopTask {
    fn new(shared: Arc<NodeShared>, callbacks: Arc<SharingCallbacks>) -> NextHopTask {
        let number = (shared.parts.random)();
        let slots = SlotShares::new(shared.clone(), callbacks.clone());
        NextHopTask {
            slots,
            shared,
            callbacks,
            bucket: None,
            ledger: DepartureLedger::default(),
            own_part: OwnPart::default(),
            pending: HashMap::new(),
            writes: FuturesUnordered::new(),
            number,
        }
    }

    /// Runs until the node stops.
    async fn run(mut self, mut messages: mpsc::UnboundedReceiver<NodeMessage>, mut stopped: oneshot::Receiver<()>) {
        let mut log = self.reopen().await;
        loop {
            let overdue = self.pending.values().map(|pending| pending.until).min();
            tokio::select! {
                biased;
                _ = &mut stopped => return self.slots.give_back().await,
                event = log.next() => match event {
                    LogEvent::Opened(bucket) => self.handle_opened(*bucket),
                    LogEvent::Stored(StoredEntry::Request(request)) => self.handle_stored(request),
                    LogEvent::Stored(StoredEntry::Slots(key, revision, table)) => {
                        self.slots.handle_table(&key, revision, table);
                    }
                    LogEvent::Ended => log = self.reopen().await,
                },
                Some(failed) = self.writes.next() => self.handle_write(failed),
                () = until(overdue) => self.grant_overdue(),
                () = self.slots.work() => {},
                message = messages.recv() => match message {
                    Some(message) => self.handle_message(message),
                    None => return,
                },
            }
        }
    }

    /// Opens the log anew. Requests wait for it as long as for an answer, and get the own part after that, until it
    /// is open.
    async fn reopen(&mut self) -> RequestLog {
        self.bucket = None;
        self.slots.handle_bucket(None);
        let mut log = RequestLog::Opening(open_log(self.shared.clone()).boxed());
        // Nobody waits for servers that are not there.
        let patience = if self.shared.connection.is_connected() { GRANT_TIME_MAX } else { Duration::ZERO };
        if let Ok(LogEvent::Opened(bucket)) = timeout(patience, log.next()).await {
            self.handle_opened(*bucket);
        }
        log
    }

    fn handle_opened(&mut self, bucket: RatesBucket) {
        self.slots.handle_bucket(Some(bucket.clone()));
        self.bucket = Some(bucket);
    }

    fn handle_message(&mut self, message: NodeMessage) {
        match message {
            NodeMessage::Slots { next_hop, usage } => self.slots.handle_use(next_hop, usage),
            NodeMessage::Departures { next_hop, interval, count } => self.request(next_hop, interval, count),
        }
    }

    fn request(&mut self, next_hop: Box<str>, interval: Duration, count: u32) {
        let bucket = self.bucket.clone().filter(|_| self.shared.connection.is_connected());
        let (Some(bucket), Some(key)) = (bucket, next_hop_key(&next_hop)) else {
            return self.grant_own_part(&next_hop, interval);
        };
        self.number = self.number.wrapping_add(1);
        let request = DepartureRequest {
            node: self.shared.parts.config.node.to_string(),
            number: self.number,
            interval: nanos(interval),
            count,
            free_at: self.ledger.free_at(&key),
        };
        let pending =
            PendingRequest { next_hop, number: self.number, interval, until: Instant::now() + GRANT_TIME_MAX };
        self.pending.insert(key.clone(), pending);
        let write = async move { bucket.write(&key, &request).await.is_err().then_some((key, request.number)) };
        self.writes.push(write.boxed());
    }

    fn handle_stored(&mut self, StoredRequest { key, stored_at, request }: StoredRequest) {
        let departures = self.ledger.handle_request(&key, stored_at, &request);
        if request.node != self.shared.parts.config.node.as_str() {
            return;
        }
        // One that comes too late is lost: its departures are nobody's.
        if self.pending.get(&key).is_some_and(|pending| pending.number == request.number)
            && let Some(pending) = self.pending.remove(&key)
        {
            self.shared.departures.shared.fetch_add(departures.count.into(), Relaxed);
            (self.callbacks.grant)(&pending.next_hop, departures);
        }
    }

    fn handle_write(&mut self, failed: Option<(String, u64)>) {
        let Some((key, number)) = failed else { return };
        if self.pending.get(&key).is_some_and(|pending| pending.number == number)
            && let Some(pending) = self.pending.remove(&key)
        {
            self.grant_own_part(&pending.next_hop, pending.interval);
        }
    }

    fn grant_overdue(&mut self) {
        let now = Instant::now();
        let overdue: Vec<PendingRequest> =
            self.pending.extract_if(|_, pending| pending.until <= now).map(|(_, pending)| pending).collect();
        for pending in overdue {
            self.grant_own_part(&pending.next_hop, pending.interval);
        }
    }

    fn grant_own_part(&mut self, next_hop: &str, interval: Duration) {
        let nodes = self.shared.counters.nodes();
        let departures = self.own_part.grant(next_hop, interval, nodes, boot_time().0);
        self.shared.departures.own_part.fetch_add(departures.count.into(), Relaxed);
        (self.callbacks.grant)(next_hop, departures);
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
