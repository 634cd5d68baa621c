//! What operators pause and resume: queues, next hops and destinations, for some time or until they
//! resume them. A restart ends all pauses.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::text::{DurationArg, SerdeAsText};

/// What is paused, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PausedName {
    /// A queue of the configuration.
    Queue(String),
    /// A next hop, as `mailrace queue list --by next-hop` shows it.
    NextHop(String),
    /// A destination, in all queues.
    Destination(String),
}

/// A pause to begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// What to pause.
    pub target: PausedName,
    /// How long: `90s`, `30m`, `2h`; if it is missing, until it is resumed or the server restarts.
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub duration: Option<SerdeAsText<DurationArg>>,
}

/// A pause to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeRequest {
    /// What to resume.
    pub target: PausedName,
}

/// A pause in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PauseStatus {
    /// What is paused.
    pub target: PausedName,
    /// When it ends (RFC 3339); null: when it is resumed.
    pub until: Option<String>,
    /// Seconds until then.
    pub for_seconds: Option<u64>,
    /// Whether the server knows it at present. What has had no mail is not known.
    pub known: bool,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_request_names_one_thing() {
        let read = serde_json::from_str::<PauseRequest>;
        let request = read(r#"{"target": {"next_hop": "mx"}, "for": "2h"}"#).unwrap();
        assert_eq!(
            (request.target, request.duration.unwrap().0.0),
            (PausedName::NextHop("mx".into()), Duration::from_secs(7200))
        );
        for text in [
            "{}",
            r#"{"target": "mx"}"#,
            r#"{"target": {"next_hop": "a", "queue": "b"}}"#,
            r#"{"target": {"host": "a"}}"#,
            r#"{"target": {"queue": "a"}, "for": "soon"}"#,
            r#"{"target": {"queue": "a"}, "four": "2h"}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
