//! What operators pause and resume: queues, next hops and destinations, for some time or until they
//! resume them. A restart ends all pauses.

use mail::Timestamp;
use queue::{PauseEnd, PauseTarget, Queues, TooManyPauses};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::handler::{ControlError, ControlHandler, ControlResult};
use crate::recipient_filter::{UnknownQueue, find_queue};
use crate::request::ControlRequest;
use crate::text::{DurationArg, SerdeAsText};

/// Octets of the name of a next hop or destination.
const NAME_OCTETS_MAX: usize = 1024;

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

impl PausedName {
    fn target<R: Clone>(self, queues: &Queues<R>) -> Result<PauseTarget, UnknownQueue> {
        Ok(match self {
            PausedName::Queue(name) => PauseTarget::Queue(find_queue(queues, &name)?),
            PausedName::NextHop(name) => PauseTarget::NextHop(name.into()),
            PausedName::Destination(name) => PauseTarget::Destination(name.to_lowercase().into()),
        })
    }

    fn of<R: Clone>(queues: &Queues<R>, target: &PauseTarget) -> PausedName {
        match target {
            PauseTarget::Queue(queue) => {
                PausedName::Queue(queues.config().queues[usize::from(queue.0)].name.to_string())
            }
            PauseTarget::NextHop(name) => PausedName::NextHop(name.to_string()),
            PauseTarget::Destination(name) => PausedName::Destination(name.to_string()),
        }
    }

    fn text(&self) -> &str {
        let (PausedName::Queue(name) | PausedName::NextHop(name) | PausedName::Destination(name)) = self;
        name
    }
}

impl ControlHandler {
    /// Begins a pause, or gives another end to one that is in force.
    pub(crate) fn pause(&self, caller: &str, request: PauseRequest) -> ControlResult<PauseStatus> {
        let order = ControlRequest::Pause(request.clone());
        let describe = |status: &PauseStatus| match &status.until {
            Some(until) => format!("until {until}"),
            None => "done".to_owned(),
        };
        self.logged(caller, &order, describe, || {
            let name = request.target.text();
            if name.is_empty() || name.len() > NAME_OCTETS_MAX {
                return Err(ControlError::Refused(format!("expected a name of 1 to {NAME_OCTETS_MAX} bytes")));
            }
            let now = super::handler::now();
            let until = request.duration.map(|duration| now + duration.0.0);
            self.with_queues(move |queues| begin(queues, request.target, until, now))?
        })
    }

    /// Ends a pause.
    pub(crate) fn resume(&self, caller: &str, request: ResumeRequest) -> ControlResult<()> {
        let order = ControlRequest::Resume(request.clone());
        self.logged(
            caller,
            &order,
            |()| "done".to_owned(),
            || {
                let now = super::handler::now();
                self.with_queues(move |queues| {
                    let target = request.target.target(queues).map_err(not_found)?;
                    let is_queue = matches!(target, PauseTarget::Queue(_));
                    match queues.resume(now, &target) || is_queue {
                        true => Ok(()),
                        false => Err(ControlError::NotFound("it is not paused: see `mailrace queue pauses`".into())),
                    }
                })?
            },
        )
    }

    /// The pauses in force.
    pub(crate) fn pauses(&self) -> ControlResult<Vec<PauseStatus>> {
        self.with_queues(|queues| pause_statuses(queues, super::handler::now()))
    }
}

fn begin<R: Clone>(
    queues: &mut Queues<R>,
    name: PausedName,
    until: PauseEnd,
    now: Timestamp,
) -> ControlResult<PauseStatus> {
    let target = name.target(queues).map_err(not_found)?;
    queues
        .pause(now, target.clone(), until)
        .map_err(|error: TooManyPauses| ControlError::Refused(error.to_string()))?;
    Ok(pause_status(queues, &target, until, now))
}

fn not_found(error: UnknownQueue) -> ControlError {
    ControlError::NotFound(error.to_string())
}

fn pause_statuses<R: Clone>(queues: &Queues<R>, now: Timestamp) -> Vec<PauseStatus> {
    queues.pause_views().map(|(target, until)| pause_status(queues, target, until, now)).collect()
}

fn pause_status<R: Clone>(queues: &Queues<R>, target: &PauseTarget, until: PauseEnd, now: Timestamp) -> PauseStatus {
    let known = match target {
        PauseTarget::Queue(_) => true,
        PauseTarget::NextHop(name) => queues.find_next_hop(name).is_some(),
        PauseTarget::Destination(name) => queues.has_destination(name),
    };
    PauseStatus {
        target: PausedName::of(queues, target),
        until: until.map(Timestamp::to_rfc3339),
        for_seconds: until.map(|until| until.since(now).as_secs()),
        known,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sample::{self, HOUR, NOW};

    #[test]
    fn pauses_are_shown_with_their_names_and_ends() {
        let mut queues = sample::queues().queues;
        let targets = [
            (PausedName::Queue("lists".into()), None),
            (PausedName::NextHop("smtp:a.example".into()), Some(NOW + HOUR)),
            (PausedName::NextHop("smtp:unknown.example".into()), None),
            (PausedName::Destination("B.Example".into()), Some(NOW + HOUR * 2)),
        ];
        for (name, until) in targets {
            begin(&mut queues, name, until, NOW).unwrap();
        }
        let shown: Vec<_> = pause_statuses(&queues, NOW + Duration::from_secs(60))
            .iter()
            .map(|status| serde_json::to_string(status).unwrap())
            .collect();
        insta::assert_snapshot!("pauses", shown.join("\n"));
        let unknown = begin(&mut queues, PausedName::Queue("none".into()), None, NOW);
        assert!(matches!(unknown, Err(ControlError::NotFound(_))));
    }

    #[test]
    fn a_request_names_one_thing() {
        let read = serde_json::from_str::<PauseRequest>;
        let request = read(r#"{"target": {"next_hop": "mx"}, "for": "2h"}"#).unwrap();
        assert_eq!((request.target, request.duration.unwrap().0.0), (PausedName::NextHop("mx".into()), HOUR * 2));
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
