//! The operator's actions on recipients: hold, release, retry, remove, bounce. The scheduler's thread picks the
//! recipients of one part of the queue at a time; messages are read between, on the handler's own thread.

use std::collections::HashSet;
use std::sync::Arc;

use queue::OperatorAction;

use super::{ControlHandler, ControlResult, now};
use crate::request::{ActionRequest, ControlRequest};
use crate::selection::{self, ActionPart, RecipientId, StoredMessageReader};
use crate::text::plural;

impl ControlHandler {
    /// Applies an action, and returns how many recipients it selects. If the server stops meanwhile, the parts
    /// that were done stay so.
    pub(crate) fn act(&self, caller: &str, act: OperatorAction, action: ActionRequest) -> ControlResult<usize> {
        let order = ControlRequest::action(act, action.clone());
        self.logged(caller, &order, |count| plural(*count, "recipient"), || self.apply(act, action))
    }

    fn apply(&self, act: OperatorAction, action: ActionRequest) -> ControlResult<usize> {
        let slot_count = self.with_queues(|queues| queues.slot_count())?;
        let (parts, action, mut count) = (ActionPart::all(&action.filter, slot_count), Arc::new(action), 0);
        for part in parts {
            self.check_stopping()?;
            count += self.apply_to_part(act, &action, part)?;
        }
        Ok(count)
    }

    fn apply_to_part(
        &self,
        act: OperatorAction,
        action: &Arc<ActionRequest>,
        part: ActionPart,
    ) -> ControlResult<usize> {
        let messages = match action.filter.needs_messages() {
            true => Some(self.match_messages(act, action, part.clone())?),
            false => None,
        };
        let action = action.clone();
        Ok(self.with_queues(move |queues| {
            selection::apply_action(queues, act, &action, &part, messages.as_ref(), now())
        })??)
    }

    /// The recipients of a part that an action selects by their messages.
    fn match_messages(
        &self,
        act: OperatorAction,
        action: &Arc<ActionRequest>,
        part: ActionPart,
    ) -> ControlResult<HashSet<RecipientId>> {
        let asked = action.clone();
        let found = self.with_queues(move |queues| selection::candidates(queues, act, &asked.filter, &part, now()))?;
        let mut candidates = found?;
        candidates.sort_unstable();
        let mut messages = StoredMessageReader::new(&self.parts.intake.spool);
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
