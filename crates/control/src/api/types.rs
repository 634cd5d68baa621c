//! What the API takes and gives, where the command line has no type for it. The OpenAPI document has
//! their schemas and their comments.

use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use utoipa::ToSchema;

use crate::RecipientFilter;
use crate::certificates::{AcmeCertificateRow, CertificateStatus};
use crate::cluster::{LaneReport, NodeReport};
use crate::explanation::{AddressExplanation, MessageExplanation};
use crate::lanes::LaneStatus;
use crate::list::QueuedRecipient;
use crate::overview::Overview;
use crate::pauses::PauseStatus;
use crate::redirects::Redirect;
use crate::request::filter_object;
use crate::summary::QueueStatus;
use crate::tables::TableStatus;
use crate::tokens::Role;

/// The server's state.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct ServerStatus {
    /// The version of the server.
    pub(super) version: &'static str,
    /// The values that the server adapts itself: their names, bounds, values, and why they are so.
    #[schema(value_type = Vec<Object>)]
    pub(super) adapts: Vec<Value>,
    /// The certificates of the listeners.
    pub(super) certificates: Vec<CertificateStatus>,
    /// Each sample of the metrics, by its name and labels.
    #[schema(value_type = std::collections::BTreeMap<String, f64>)]
    pub(super) metrics: Value,
}

/// What the dashboard shows to the owner of a token.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct OverviewAnswer {
    /// The role of the token: readers may look, and not act.
    pub(super) role: Role,
    /// The server.
    #[serde(serialize_with = "shared")]
    #[schema(value_type = Overview)]
    pub(super) server: Arc<Overview>,
}

/// Writes what several answers share.
fn shared<S: Serializer>(overview: &Arc<Overview>, serializer: S) -> Result<S::Ok, S::Error> {
    overview.serialize(serializer)
}

/// All queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct QueueList {
    /// In the order of the configuration.
    pub(super) queues: Vec<QueueStatus>,
}

/// The pauses in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct PauseList {
    /// Queues first, then next hops, then destinations.
    pub(super) pauses: Vec<PauseStatus>,
}

/// The redirects in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct RedirectList {
    /// Those of next hops first.
    pub(super) redirects: Vec<Redirect>,
}

/// The lanes of the spool.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct LaneList {
    /// Its own lanes first, then those that it has taken over.
    pub(super) lanes: Vec<LaneStatus>,
}

/// All tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct TableList {
    /// In the order of the configuration, and then the DNS lists.
    pub(super) tables: Vec<TableStatus>,
}

/// The recipients of an action.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ActRequest {
    /// All conditions must hold.
    #[serde(default, deserialize_with = "filter_object")]
    pub(super) filter: RecipientFilter,
    /// All recipients: instead of a filter, which must not be empty otherwise.
    #[serde(default)]
    pub(super) all: bool,
    /// Only count them.
    #[serde(default)]
    pub(super) dry_run: bool,
}

/// The result of an action on recipients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct ActResult {
    /// How many were selected, and are recorded.
    pub(super) recipients: usize,
    /// How many `hold`, `remove` and `bounce` left out because they were in an attempt.
    pub(super) in_attempt: usize,
    /// Only in a cluster: what each node has done, or why it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nodes: Option<Vec<NodeActResult>>,
}

/// The result of an action on one node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct NodeActResult {
    /// Its name.
    pub(super) node: String,
    /// How many recipients it has selected; null: it has not acted, or it is not known.
    pub(super) recipients: Option<usize>,
    /// How many it has left out because they were in an attempt; null as above.
    pub(super) in_attempt: Option<usize>,
    /// Why it has not.
    pub(super) error: Option<String>,
}

/// Queued recipients of the nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct ClusterRecipients {
    /// By name.
    pub(super) nodes: Vec<NodeRecipients>,
}

/// Queued recipients of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct NodeRecipients {
    /// Its name.
    pub(super) node: String,
    /// Its recipients, oldest first, at most as many as a page has; null: it has not answered.
    pub(super) recipients: Option<Vec<QueuedRecipient>>,
    /// Messages that it has left out because it cannot read them; its log names the first one.
    pub(super) unreadable: usize,
    /// Whether it has more of them.
    pub(super) has_more: bool,
    /// Why it has not answered.
    pub(super) error: Option<String>,
}

/// An answer of each node of a cluster, with a type of its own for each kind of answer: the document cannot name a
/// generic one.
macro_rules! cluster_answer {
    ($(#[$about:meta])* $cluster:ident, $node:ident, $answer:ty) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
        pub(super) struct $cluster {
            /// By name.
            pub(super) nodes: Vec<$node>,
        }

        /// What one node has answered.
        #[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
        pub(super) struct $node {
            /// Its name.
            pub(super) node: String,
            /// Its answer; null: there is none.
            pub(super) answer: Option<$answer>,
            /// Why there is none.
            pub(super) error: Option<String>,
        }

        impl $cluster {
            /// From the name of each node, and its answer or why there is none.
            pub(super) fn new(answers: impl Iterator<Item = (String, Result<$answer, String>)>) -> $cluster {
                let of_node = |(node, answer)| match answer {
                    Ok(answer) => $node { node, answer: Some(answer), error: None },
                    Err(error) => $node { node, answer: None, error: Some(error) },
                };
                $cluster { nodes: answers.map(of_node).collect() }
            }
        }
    };
}

cluster_answer! {
    /// The state of each node of a cluster.
    ClusterStatus, NodeStatusAnswer, NodeStatus
}

cluster_answer! {
    /// The recipients of each node of a cluster, counted by a key.
    ClusterSummary, NodeSummaryAnswer, NodeSummary
}

cluster_answer! {
    /// How each node of a cluster would route mail for an address.
    ClusterAddressExplanation, NodeAddressExplanation, AddressExplanation
}

cluster_answer! {
    /// What a message in a cluster waits for.
    ClusterMessageExplanation, NodeMessageExplanation, MessageExplanation
}

/// The state of a node.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct NodeStatus {
    /// The values that it adapts itself: their names, bounds, values, and why they are so.
    #[schema(value_type = Vec<Object>)]
    pub(super) adapts: Vec<Value>,
    /// Each sample of its metrics, by its name and labels.
    #[schema(value_type = std::collections::BTreeMap<String, f64>)]
    pub(super) metrics: Value,
}

/// Recipients of a node, counted by a key.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct NodeSummary {
    /// For each value of the key, its recipients in each state, their ages and errors; for next hops, limits too.
    #[schema(value_type = Vec<Object>)]
    pub(super) groups: Vec<Value>,
    /// Messages that it has left out because it cannot read them; its log names the first one.
    pub(super) unreadable: usize,
}

/// The nodes of the cluster that are alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct ClusterNodeList {
    /// By name.
    pub(super) nodes: Vec<NodeReport>,
}

/// The lanes of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct ClusterLaneList {
    /// Those that this node owns or watches.
    pub(super) lanes: Vec<LaneReport>,
}

/// The certificates that the server obtains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct AcmeCertificateList {
    /// In the order of the configuration.
    pub(super) certificates: Vec<AcmeCertificateRow>,
}

/// The certificates whose next attempt is to come now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RenewRequest {
    /// A name of the certificate; all if it is missing.
    pub(super) name: Option<String>,
}

/// How many certificates are concerned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct RenewResult {
    /// Certificates for which the next attempt comes now.
    pub(super) certificates: usize,
}

/// Reports that are being counted, or were sent.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct ReportList {
    /// Of each, its day and kind; what was counted, or where it was sent and what became of it.
    #[schema(value_type = Vec<Object>)]
    pub(super) reports: Vec<Value>,
}

/// The reports that are to be sent now.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SendReportsRequest {
    /// The domain that they are about.
    pub(super) domain: String,
}

/// The result of any other action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct ActDone {
    /// Always true.
    pub(super) done: bool,
}

/// The result of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct ReloadResult {
    /// The file of the configuration, or that it is the built-in one.
    pub(super) source: String,
    /// What has changed, and what is likely to be a mistake.
    pub(super) changes: Vec<String>,
}

/// An error (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct ProblemDocument {
    /// Always `about:blank`: the status says what kind of problem it is.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The phrase of the status.
    pub(super) title: String,
    /// The status.
    pub(super) status: u16,
    /// What happened in this case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
}
