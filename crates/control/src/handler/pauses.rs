//! Pauses: carried out and listed on the scheduler's thread.

use mail::Timestamp;
use queue::{PauseEnd, PauseTarget, Queues, TooManyPauses};

use super::{ControlError, ControlHandler, ControlResult, now};
use crate::pauses::{PauseRequest, PauseStatus, PausedName, ResumeRequest};
use crate::recipient_filter::{UnknownQueue, find_queue};
use crate::request::ControlRequest;

/// Octets of the name of a next hop or destination.
const NAME_OCTETS_MAX: usize = 1024;

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
            let now = now();
            let until = request.duration.map(|duration| now + duration.0.0);
            self.with_queues(move |queues| begin(queues, request.target, until, now))?
        })
    }

    /// Ends a pause.
    pub(crate) fn resume(&self, caller: &str, request: ResumeRequest) -> ControlResult<()> {
        let order = ControlRequest::Resume(request.clone());
        self.logged_as_done(caller, &order, || {
            let now = now();
            self.with_queues(move |queues| {
                let target = request.target.target(queues).map_err(not_found)?;
                let is_queue = matches!(target, PauseTarget::Queue(_));
                match queues.resume(now, &target) || is_queue {
                    true => Ok(()),
                    false => Err(ControlError::NotFound("it is not paused: see `mailrace queue pauses`".into())),
                }
            })?
        })
    }

    /// The pauses in force.
    pub(crate) fn pauses(&self) -> ControlResult<Vec<PauseStatus>> {
        self.with_queues(|queues| pause_statuses(queues, now()))
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
}
