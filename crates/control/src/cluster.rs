//! What operators ask about the cluster. The server that belongs to it answers, behind a trait; this
//! module knows no more of a cluster than its words.

use serde::Serialize;

/// The cluster, as far as operators can ask it. Its methods may wait for other machines, but not for
/// long.
pub trait ClusterOperator: Send + Sync {
    /// The lanes that this node owns or watches.
    fn lanes(&self) -> Vec<LaneReport>;

    /// The nodes that are alive.
    ///
    /// # Errors
    ///
    /// The servers between the nodes do not answer; the text says why.
    fn nodes(&self) -> Result<Vec<NodeReport>, String>;

    /// Stops this node, and hands its lanes to the others at once.
    fn drain(&self);
}

/// A lane of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneReport {
    /// Its id, which begins the ids of its messages.
    pub lane: String,
    /// `owner` or `watched`.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
