//! What the API takes and gives, where the command line has no type for it. The OpenAPI document has
//! their schemas and their comments.

use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use utoipa::ToSchema;

use crate::RecipientFilter;
use crate::certificates::CertificateStatus;
use crate::lanes::LaneStatus;
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

/// An explanation for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Explanation {
    /// As `mailrace explain` prints them.
    pub(super) lines: Vec<String>,
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
    /// How many were selected. The action itself follows at once; recipients in an attempt are left out.
    pub(super) recipients: usize,
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
    /// What has changed.
    pub(super) changed: String,
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
