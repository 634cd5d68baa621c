//! The requests on the control socket. A request is a line: a word, and after a space a JSON object
//! if there are parameters. Client and server share this definition. Unknown members are refused: a
//! misspelt filter must not select everything.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use clap::ValueEnum;
use mail::{Address, QueueId};
use queue::OperatorAction;
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::pauses::{PauseRequest, ResumeRequest};
use super::process::DrainRequest;
use super::recipient_filter::RecipientFilter;
use super::redirects::{EndRedirectRequest, Redirect};
use super::text::SerdeAsText;
use super::tokens::Role;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ControlRequest {
    /// Counts recipients.
    Count(RecipientFilter),
    /// Lists recipients.
    List(RecipientFilter),
    /// Lists the oldest recipients.
    ListOldest {
        /// The most of them.
        limit: usize,
        /// Which recipients.
        #[serde(default, deserialize_with = "filter_object")]
        filter: RecipientFilter,
    },
    /// Counts recipients by a key.
    Summary {
        /// The key.
        by: SummaryKey,
        /// Which recipients.
        #[serde(default, deserialize_with = "filter_object")]
        filter: RecipientFilter,
    },
    /// Holds recipients.
    Hold(ActionRequest),
    /// Releases held recipients.
    Release(ActionRequest),
    /// Makes recipients due now.
    Retry(ActionRequest),
    /// Removes recipients without a notice.
    Remove(ActionRequest),
    /// Bounces recipients.
    Bounce(ActionRequest),
    /// Stops deliveries from a queue, to a next hop or to a destination.
    Pause(PauseRequest),
    /// Ends a pause.
    Resume(ResumeRequest),
    /// Lists the pauses in force.
    Pauses,
    /// Redirects the mail for a next hop or a destination.
    Redirect(Redirect),
    /// Ends a redirect.
    EndRedirect(EndRedirectRequest),
    /// Lists the redirects in force.
    Redirects,
    /// Explains how mail for this address would be routed.
    ExplainAddress {
        /// The recipient.
        address: SerdeAsText<Address>,
        /// The sender, which may choose the queue; none: no rule by sender applies.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sender: Option<SerdeAsText<Address>>,
        /// Explain the access rules for this client first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<IpAddr>,
        /// The client's HELO name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        helo: Option<String>,
    },
    /// Explains the state of this message.
    ExplainMessage {
        /// The message.
        id: SerdeAsText<QueueId>,
    },
    /// Tells whether mail for this address would be delivered.
    Verify {
        /// The recipient.
        address: SerdeAsText<Address>,
    },
    /// Shows the envelope of this message and the state of its recipients.
    Show {
        /// The message.
        id: SerdeAsText<QueueId>,
    },
    /// Returns a chunk of its bytes.
    Content {
        /// The message.
        id: SerdeAsText<QueueId>,
        /// The offset of the chunk.
        #[serde(default)]
        from: u64,
    },
    /// Shows what the log has about a message.
    History {
        /// The message.
        id: SerdeAsText<QueueId>,
    },
    /// Looks up a key in a table.
    TableGet {
        /// The table's name.
        table: String,
        /// The key.
        key: String,
    },
    /// Shows the counters of all tables, or of one.
    TableStats {
        /// The table's name; none: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        table: Option<String>,
    },
    /// Lets a replica apply the removals that it held back.
    TableAccept {
        /// The table's name.
        table: String,
    },
    /// Shows gauges and limits.
    Load,
    /// Shows the values that the server adapts itself.
    Adaptive,
    /// Shows what is counted for reports.
    ReportsShow,
    /// Sends the reports about a domain now.
    ReportsSend {
        /// The domain.
        domain: String,
    },
    /// Shows the certificates that the server obtains.
    AcmeStatus,
    /// Has the next attempt at them come now.
    AcmeRenew {
        /// A name of the certificate; none: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Shows the lanes of the cluster.
    ClusterStatus,
    /// Shows its nodes.
    ClusterNodes,
    /// Takes over a lane.
    ClusterAdopt {
        /// The lane.
        lane: String,
    },
    /// Forgets a node or a lane.
    ClusterForget {
        /// The name of the node, or the lane.
        target: String,
        /// Also with mail that nobody has taken over.
        #[serde(default)]
        force: bool,
    },
    /// Hands the lanes of this node to others, and stops.
    ClusterDrain,
    /// Sends a request to the nodes of the cluster.
    Nodes {
        /// The only node to ask; none: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<String>,
        /// The request; see [`ControlRequest::is_for_nodes`].
        request: Box<ControlRequest>,
    },
    /// Records that a token of the HTTP API was made.
    TokenCreated {
        /// Its name.
        name: String,
        /// What its owner may do.
        role: Role,
    },
    /// Records that a token was revoked.
    TokenRevoked {
        /// Its name or id.
        name: String,
    },
    /// Shows metrics.
    Status,
    /// Drains the queue, and stops.
    Drain(DrainRequest),
    /// Reloads the configuration.
    Reload,
}

/// The recipients of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionRequest {
    /// Always required, so that omitting it does not select everything.
    #[serde(deserialize_with = "filter_object")]
    pub filter: RecipientFilter,
    /// Only count them.
    #[serde(default)]
    pub dry_run: bool,
}

/// What to summarize recipients by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SummaryKey {
    /// By destination
    Destination,
    /// By next hop, with limits and errors
    NextHop,
    /// By queue
    Queue,
    /// By sender
    Sender,
}

impl ControlRequest {
    /// The request for an action.
    pub fn action(act: OperatorAction, action: ActionRequest) -> ControlRequest {
        match act {
            OperatorAction::Hold => ControlRequest::Hold(action),
            OperatorAction::Release => ControlRequest::Release(action),
            OperatorAction::Retry => ControlRequest::Retry(action),
            OperatorAction::Remove => ControlRequest::Remove(action),
            OperatorAction::Bounce => ControlRequest::Bounce(action),
        }
    }

    /// Whether it changes anything.
    pub fn is_change(&self) -> bool {
        match self {
            ControlRequest::Hold(order)
            | ControlRequest::Release(order)
            | ControlRequest::Retry(order)
            | ControlRequest::Remove(order)
            | ControlRequest::Bounce(order) => !order.dry_run,
            ControlRequest::Pause(_)
            | ControlRequest::Resume(_)
            | ControlRequest::Redirect(_)
            | ControlRequest::EndRedirect(_)
            | ControlRequest::TableAccept { .. }
            | ControlRequest::ReportsSend { .. }
            | ControlRequest::AcmeRenew { .. }
            | ControlRequest::ClusterDrain
            | ControlRequest::Drain(_)
            | ControlRequest::ClusterAdopt { .. }
            | ControlRequest::ClusterForget { .. }
            | ControlRequest::TokenCreated { .. }
            | ControlRequest::TokenRevoked { .. }
            | ControlRequest::Reload => true,
            _ => false,
        }
    }

    /// Whether the log says who made it: it changes something, or it reads a message, which is private. A
    /// message is read in chunks, of which the first one counts.
    pub fn is_audited(&self) -> bool {
        self.is_change() || matches!(self, ControlRequest::Content { from: 0, .. })
    }

    /// Whether nodes of a cluster take it from one another: it concerns their queues, and its answer is
    /// not longer than what they hold in memory.
    pub fn is_for_nodes(&self) -> bool {
        matches!(
            self,
            ControlRequest::Count(_)
                | ControlRequest::List(_)
                | ControlRequest::ListOldest { .. }
                | ControlRequest::Summary { .. }
                | ControlRequest::Hold(_)
                | ControlRequest::Release(_)
                | ControlRequest::Retry(_)
                | ControlRequest::Remove(_)
                | ControlRequest::Bounce(_)
                | ControlRequest::ExplainAddress { .. }
                | ControlRequest::ExplainMessage { .. }
                | ControlRequest::Adaptive
                | ControlRequest::Status
        )
    }
}

/// The line is not a valid request.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRequest(#[from] serde_json::Error);

impl FromStr for ControlRequest {
    type Err = InvalidRequest;

    fn from_str(line: &str) -> Result<Self, InvalidRequest> {
        let (word, body) = line.split_once(' ').unwrap_or((line, ""));
        if body.is_empty()
            && let Ok(request) = serde_json::from_value(Value::from(word))
        {
            return Ok(request);
        }
        let body: Map<String, Value> = if body.is_empty() { Map::new() } else { serde_json::from_str(body)? };
        Ok(serde_json::from_value(Value::Object(Map::from_iter([(word.to_owned(), body.into())])))?)
    }
}

/// Reads a filter from an object only. Derived code would accept an array too, and an empty one
/// would select everything.
pub(crate) fn filter_object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RecipientFilter, D::Error> {
    let members = Map::deserialize(deserializer)?;
    serde_json::from_value(Value::Object(members)).map_err(de::Error::custom)
}

impl fmt::Display for ControlRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match serde_json::to_value(self).map_err(|_| fmt::Error)? {
            Value::Object(named) => named.iter().try_for_each(|(word, body)| write!(f, "{word} {body}")),
            word => f.write_str(word.as_str().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pauses::PausedName;
    use super::super::redirects::RedirectedName;
    use super::super::sample;
    use super::*;

    #[test]
    fn requests_round_trip() {
        let all =
            &["--sender", "*@a", "--recipient", "@b", "--destination", "c*", "--queue", "d", "--older-than", "1s"];
        let rest = &["--younger-than", "2h", "--larger-than", "3kB", "--smaller-than", "4MiB", "--error", "ö \"e\""];
        let filter = sample::filter(&[&all[..], rest, &["--id", "7-0-1", "7-0-2"]].concat());
        let action = ActionRequest { filter: filter.clone(), dry_run: true };
        let name = || "lists".to_owned();
        for request in [
            ControlRequest::Count(RecipientFilter::default()),
            ControlRequest::List(filter.clone()),
            ControlRequest::Summary { by: SummaryKey::NextHop, filter },
            ControlRequest::action(OperatorAction::Hold, action.clone()),
            ControlRequest::action(OperatorAction::Release, action.clone()),
            ControlRequest::action(OperatorAction::Retry, action.clone()),
            ControlRequest::action(OperatorAction::Remove, action.clone()),
            ControlRequest::action(OperatorAction::Bounce, action),
            ControlRequest::Pause(PauseRequest { target: PausedName::Queue(name()), duration: "2h".parse().ok() }),
            ControlRequest::Pause(PauseRequest { target: PausedName::NextHop(name()), duration: None }),
            ControlRequest::Resume(ResumeRequest { target: PausedName::Destination(name()) }),
            ControlRequest::Pauses,
            ControlRequest::Redirect(Redirect {
                from: RedirectedName::NextHop(name()),
                to: "[192.0.2.1]:26".into(),
                transport: Some(name()),
            }),
            ControlRequest::EndRedirect(EndRedirectRequest { from: RedirectedName::Destination(name()) }),
            ControlRequest::Redirects,
            ControlRequest::ExplainAddress {
                address: "a@b.example".parse().unwrap(),
                sender: None,
                client: None,
                helo: None,
            },
            ControlRequest::ExplainAddress {
                address: "a@b.example".parse().unwrap(),
                sender: None,
                client: "2001:db8::1".parse().ok(),
                helo: Some(name()),
            },
            ControlRequest::ExplainMessage { id: "7-0-1".parse().unwrap() },
            ControlRequest::History { id: "7-0-1".parse().unwrap() },
            ControlRequest::Drain(DrainRequest { within: "10m".parse().ok() }),
            ControlRequest::Drain(DrainRequest::default()),
            ControlRequest::TableGet { table: name(), key: "Bob \"b\"@a.example\n".into() },
            ControlRequest::TableStats { table: None },
            ControlRequest::TableStats { table: Some(name()) },
            ControlRequest::TableAccept { table: name() },
            ControlRequest::AcmeStatus,
            ControlRequest::AcmeRenew { name: None },
            ControlRequest::AcmeRenew { name: Some(name()) },
            ControlRequest::TokenCreated { name: name(), role: Role::Read },
            ControlRequest::TokenRevoked { name: name() },
            ControlRequest::ReportsShow,
            ControlRequest::ReportsSend { domain: name() },
            ControlRequest::Load,
            ControlRequest::Adaptive,
            ControlRequest::Status,
            ControlRequest::Reload,
        ] {
            check_round_trip(&request);
        }
    }

    #[test]
    fn requests_about_clusters_round_trip() {
        let name = || "mx1".to_owned();
        for request in [
            ControlRequest::ClusterStatus,
            ControlRequest::ClusterNodes,
            ControlRequest::ClusterDrain,
            ControlRequest::ClusterAdopt { lane: name() },
            ControlRequest::ClusterForget { target: name(), force: true },
            ControlRequest::Nodes { node: None, request: Box::new(ControlRequest::Status) },
            ControlRequest::ListOldest { limit: 101, filter: sample::filter(&["--queue", "d"]) },
            ControlRequest::Nodes {
                node: Some(name()),
                request: Box::new(ControlRequest::List(sample::filter(&["--queue", "d"]))),
            },
        ] {
            check_round_trip(&request);
        }
    }

    /// Its line is one line, and is read as the same request.
    fn check_round_trip(request: &ControlRequest) {
        let line = request.to_string();
        assert!(!line.contains('\n'));
        assert_eq!(&line.parse::<ControlRequest>().unwrap(), request, "{line}");
    }

    #[test]
    fn a_word_alone_selects_everything() {
        assert_eq!("list".parse::<ControlRequest>().unwrap(), ControlRequest::List(RecipientFilter::default()));
        assert_eq!(ControlRequest::Status.to_string(), "status");
        assert_eq!(
            r#"hold {"filter":{"queue":"a"}}"#.parse::<ControlRequest>().unwrap(),
            ControlRequest::Hold(ActionRequest { filter: sample::filter(&["--queue", "a"]), dry_run: false })
        );
    }

    #[test]
    fn what_is_no_question_is_refused_with_the_reason() {
        let told: Vec<String> = [
            "",
            "lists",
            "list []",
            "list {",
            r#"list {"sendr":"a@b"}"#,
            r#"list {"sender":"a"}"#,
            r#"list {"id":["x"]}"#,
            r#"remove {"filter":{"id":[]}}"#,
            r#"remove {"filter":{"sender":""}}"#,
            r#"remove {"filter":{"sender":null}}"#,
            r#"remove {"filter":{"error":""}}"#,
            "remove",
            "remove {}",
            "remove []",
            r#"remove {"filter":[]}"#,
            r#"remove {"queue":"a"}"#,
            r#"remove {"filter":{},"dryrun":true}"#,
            r#"summary {"by":"colour"}"#,
            "pause",
            "status {}",
            "table-get",
            r#"table-get {"table":"a"}"#,
            r#"table-stats {"name":"a"}"#,
            "table-accept",
            "show",
            r#"content {"id":"7-0-1","from":-1}"#,
            r#"list {"state":["done"]}"#,
            r#"hold {"filter":{"state":[]}}"#,
        ]
        .into_iter()
        .map(|line| format!("{line}: {}", line.parse::<ControlRequest>().unwrap_err()))
        .collect();
        insta::assert_snapshot!(told.join("\n"));
    }
}
