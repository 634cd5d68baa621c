//! What operators ask about the cluster. The server that belongs to it answers, behind a trait; this
//! module knows no more of a cluster than its words.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

/// The names of nodes, each with its answer, or the reason why there is none.
pub type NodeReplies = Vec<(String, Result<Vec<u8>, NodeSilence>)>;

/// Why a node has not answered, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeSilence {
    /// It has not begun, and does not begin later.
    NotBegun(String),
    /// It may have done what it was asked for.
    Unfinished(String),
}

/// The cluster, as far as operators can ask it. Its methods may wait for other machines, but not for
/// long.
pub trait ClusterOperator: Send + Sync {
    /// The lanes that this node owns or watches.
    fn lanes(&self) -> Vec<LaneReport>;

    /// What an operator has to mend, in words: such as too few servers for the copies.
    fn problems(&self) -> Vec<String>;

    /// The nodes that are alive.
    ///
    /// # Errors
    ///
    /// The servers between the nodes do not answer; the text says why.
    fn nodes(&self) -> Result<Vec<NodeReport>, String>;

    /// Stops this node, and hands its lanes to the others at once.
    fn drain(&self);

    /// Takes over a lane now, without waiting until its lease is over.
    ///
    /// # Errors
    ///
    /// There is no such lane, its owner is alive, or it cannot be claimed; the text says which.
    fn adopt(&self, lane: &str) -> Result<(), String>;

    /// Forgets a node that never comes back, or a lane. With `force`, also mail that nobody has taken over.
    /// Returns the number of lanes that were given up.
    ///
    /// # Errors
    ///
    /// The node or the owner of the lane is alive, or there is mail; the text says which.
    fn forget(&self, target: &str, force: bool) -> Result<usize, String>;

    /// Sends a question to other nodes that are alive, or only to the named one, all at the same time.
    /// Each has an answer or the reason why there is none.
    ///
    /// # Errors
    ///
    /// Nobody knows which nodes there are; the text says why.
    fn ask(&self, node: Option<&str>, question: &[u8]) -> Result<NodeReplies, String>;

    /// The name of this node.
    fn node(&self) -> String;

    /// How this node is doing, without asking others.
    fn figures(&self) -> ClusterFigures;
}

/// How a node is doing. Counters count since its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterFigures {
    /// Whether a NATS server is connected.
    pub connected: bool,
    /// How often the connection broke.
    pub disconnections: u64,
    /// Bytes sent to the servers, and received from them.
    pub traffic: [(&'static str, u64); 2],
    /// How long the servers took to store the last entry of this node; None: none is stored.
    pub round_trip: Option<Duration>,
    /// The nodes that are alive, as this one knows.
    pub nodes: u64,
    /// Lanes by role.
    pub lanes: [(&'static str, u64); 4],
    /// Owned lanes whose mail may not be delivered now.
    pub lanes_without_lease: u64,
    /// The shortest lease of an owned lane; None without one.
    pub lease_left_min: Option<Duration>,
    /// Bytes that wait for their second copy.
    pub waiting_bytes: u64,
    /// Bytes of the records in the streams of the owned lanes.
    pub stored_bytes: u64,
    /// Messages that are live in them.
    pub live_messages: u64,
    /// Batches by whether they got their second copy, failed, or are on the local disk alone.
    pub batches: [(&'static str, u64); 3],
    /// Records that the servers refused, or did not answer for.
    pub publishes_failed: u64,
    /// Lanes that were taken over.
    pub takeovers: u64,
    /// Departures to next hops with a rate, by where they were granted.
    pub departures: [(&'static str, u64); 2],
    /// Connections to next hops whose limit all nodes share that this one may have now, by who has granted them.
    pub slots_held: [(&'static str, u64); 2],
    /// Those that it has asked for and other nodes held.
    pub slots_refused: u64,
}

/// A lane of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct LaneReport {
    /// Its id, which begins the ids of its messages.
    pub lane: String,
    /// `owner`, `adopted` (an owner that has taken it over), `local` (its mail has no second copy yet) or
    /// `watched`.
    pub role: &'static str,
    /// The epoch of its owner; None: not known here.
    pub epoch: Option<u64>,
    /// The last record that is known to be stored.
    pub sequence: Option<u64>,
    /// Messages that are live in its stream.
    pub messages: Option<u64>,
    /// Bytes that wait for their second copy.
    pub bytes_waiting: Option<u64>,
    /// How long the lease lasts if nothing renews it, in milliseconds.
    pub lease_ms: Option<u64>,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct NodeReport {
    /// Its name.
    pub node: String,
    /// Whether it is the one that answers.
    pub here: bool,
    /// Its version of Mailrace.
    pub version: String,
    /// When it was started, in milliseconds since 1970.
    pub started: u64,
    /// The digest of its configuration.
    pub configuration: String,
    /// The lanes that it owns.
    pub lanes: Vec<String>,
}
