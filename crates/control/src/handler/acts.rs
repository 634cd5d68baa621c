//! The operator's actions on recipients: hold, release, retry, remove, bounce. The scheduler's thread picks the
//! recipients of one part of the queue at a time; messages are read between, on the handler's own thread.
//!
//! An action has succeeded once all that was picked is recorded, so that it survives a crash. Otherwise it fails
//! with [`UnfinishedAct`], which says how much is recorded. What was picked is recorded later, also while the
//! server stops.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use queue::{ActCounts, ActProgress, OperatorAction, TrackedAction};

use super::{ControlError, ControlHandler, ControlResult, now};
use crate::act_report::ActReport;
use crate::request::{ActionRequest, ControlRequest};
use crate::selection::{self, ActionPart, RecipientId};
use crate::stored_messages::StoredMessageReader;
use crate::text::plural;

/// How long an action waits until all that it has picked is recorded.
const RECORD_WAIT_MAX: Duration = Duration::from_secs(30);
/// The same in a cluster, where other nodes wait for the answer for five seconds.
const CLUSTER_RECORD_WAIT_MAX: Duration = Duration::from_secs(2);
/// How often the counts are looked at meanwhile.
const RECORD_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What was selected until now.
struct Selected<'a> {
    report: ActReport,
    /// If a message cannot be read, nobody knows whether it is meant.
    messages: StoredMessageReader<'a>,
}

/// An action that was not done in full, or is not recorded in full yet.
#[derive(Debug, thiserror::Error)]
pub(crate) struct UnfinishedAct {
    counts: ActCounts,
    unreadable: usize,
    /// Why it ended midway.
    error: Option<Box<ControlError>>,
}

impl fmt::Display for UnfinishedAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ActCounts { recorded, pending, dropped } = self.counts;
        write!(f, "the action is unfinished: {} recorded", plural(recorded, "recipient"))?;
        if pending > 0 {
            write!(f, "; {pending} more picked and not recorded yet: look at the queue again")?;
        }
        if dropped > 0 {
            write!(f, "; {dropped} picked and not done: a later action took them, or they cannot be recorded")?;
        }
        if self.unreadable > 0 {
            write!(f, "; {} left out that cannot be read", plural(self.unreadable, "message"))?;
        }
        self.error.iter().try_for_each(|error| write!(f, "; it ended midway: {error}"))
    }
}

impl ControlHandler {
    /// Applies an action, and reports what it has done once all that it selects is recorded. If the server stops
    /// meanwhile, the parts that were done stay so.
    pub(crate) fn act(&self, caller: &str, act: OperatorAction, action: ActionRequest) -> ControlResult<ActReport> {
        let order = ControlRequest::action(act, action.clone());
        self.logged(caller, &order, ActReport::to_string, || self.apply(act.into(), action))
    }

    fn apply(&self, act: TrackedAction, action: ActionRequest) -> ControlResult<ActReport> {
        let is_dry_run = action.dry_run;
        let mut selected = Selected { report: ActReport::default(), messages: self.message_reader() };
        let ended = self.apply_to_all(&act, action, &mut selected);
        if ended.is_ok() {
            self.wait_until_recorded(&act.progress);
        }
        let Selected { report, messages } = selected;
        let unreadable = messages.log_unreadable(&*self.shared.log);
        let mut counts = act.progress.counts();
        if is_dry_run {
            counts.recorded = report.recipients;
        }
        match ended {
            // Nothing was done.
            Err(error) if counts == ActCounts::default() && unreadable == 0 => Err(error),
            Ok(()) if counts.pending + counts.dropped + unreadable == 0 => Ok(report),
            ended => Err(UnfinishedAct { counts, unreadable, error: ended.err().map(Box::new) }.into()),
        }
    }

    /// Waits until nothing is pending, but not beyond shutdown.
    fn wait_until_recorded(&self, progress: &ActProgress) {
        let in_cluster = self.shared.cluster.is_some();
        let deadline = Instant::now() + if in_cluster { CLUSTER_RECORD_WAIT_MAX } else { RECORD_WAIT_MAX };
        while progress.counts().pending > 0 && Instant::now() < deadline && self.check_stopping().is_ok() {
            thread::sleep(RECORD_POLL_INTERVAL);
        }
    }

    fn apply_to_all(&self, act: &TrackedAction, action: ActionRequest, selected: &mut Selected) -> ControlResult<()> {
        let slot_count = self.with_queues(|queues| queues.slot_count())?;
        let (parts, action) = (ActionPart::all(&action.filter, slot_count), Arc::new(action));
        for part in parts {
            self.check_stopping()?;
            self.apply_to_part(act, &action, part, selected)?;
        }
        Ok(())
    }

    fn apply_to_part(
        &self,
        act: &TrackedAction,
        action: &Arc<ActionRequest>,
        part: ActionPart,
        selected: &mut Selected,
    ) -> ControlResult<()> {
        let messages = match action.filter.needs_messages() {
            true => Some(self.match_messages(act.action, action, part.clone(), &mut selected.messages)?),
            false => None,
        };
        let (act, action) = (act.clone(), action.clone());
        let count = self.with_queues(move |queues| {
            selection::apply_action(queues, act, &action, &part, messages.as_ref(), now())
        })??;
        selected.report.recipients += count.picked;
        selected.report.in_attempt += count.in_attempt;
        Ok(())
    }

    /// The recipients of a part that an action selects by their messages.
    fn match_messages(
        &self,
        act: OperatorAction,
        action: &Arc<ActionRequest>,
        part: ActionPart,
        messages: &mut StoredMessageReader,
    ) -> ControlResult<HashSet<RecipientId>> {
        let asked = action.clone();
        let found = self.with_queues(move |queues| selection::candidates(queues, act, &asked.filter, &part, now()))?;
        let mut candidates = found?;
        candidates.sort_unstable();
        let mut chosen = HashSet::new();
        for (id, ordinal) in candidates {
            self.check_stopping()?;
            let passes = |(envelope, size): &(_, u64)| action.filter.passes_message(envelope, *size, ordinal);
            if messages.read(id).is_some_and(passes) {
                chosen.insert((id, ordinal));
            }
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_action_says_what_is_recorded_and_what_is_not() {
        let counts = ActCounts { recorded: 1, pending: 2, dropped: 3 };
        let unfinished = UnfinishedAct { counts, unreadable: 1, error: Some(Box::new(ControlError::Stopping)) };
        let expected = "the action is unfinished: 1 recipient recorded; 2 more picked and not recorded yet: look at the \
                        queue again; 3 picked and not done: a later action took them, or they cannot be recorded; \
                        1 message left out that cannot be read; it ended midway: the server is stopping";
        assert_eq!(ControlError::from(unfinished).to_string(), expected);
    }
}
