//! The answers of one lookup, filled in one by one, and the task to wake after the last one.

use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;

use super::notifier::WaitingTask;
use crate::TracedAnswer;

pub(super) struct AnswerSlots {
    state: Mutex<State>,
}

struct State {
    /// Empty once the lookup has taken them.
    answers: Vec<Option<TracedAnswer>>,
    missing: usize,
    waiting_task: Option<WaitingTask>,
}

/// One key of a waiting lookup.
pub(super) struct Waiter {
    pub(super) slots: Arc<AnswerSlots>,
    pub(super) place: usize,
}

impl Waiter {
    /// Sets the answer. Returns the task to wake if it was the last one.
    pub(super) fn deliver(&self, answer: TracedAnswer) -> Option<WaitingTask> {
        self.slots.deliver(self.place, answer)
    }
}

impl AnswerSlots {
    pub(super) fn new(places: usize) -> Self {
        let answers = std::iter::repeat_with(|| None).take(places).collect();
        AnswerSlots { state: Mutex::new(State { answers, missing: places, waiting_task: None }) }
    }

    pub(super) fn deliver(&self, place: usize, answer: TracedAnswer) -> Option<WaitingTask> {
        let mut state = self.state.lock();
        let empty = state.answers.get_mut(place).filter(|held| held.is_none())?;
        *empty = Some(answer);
        state.missing -= 1;
        if state.missing == 0 { state.waiting_task.take() } else { None }
    }

    /// Whether all answers are set, or were taken.
    pub(super) fn is_complete(&self) -> bool {
        self.state.lock().missing == 0
    }

    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.missing == 0 {
            return Poll::Ready(());
        }
        if !state.waiting_task.as_ref().is_some_and(|sleeper| sleeper.waker.will_wake(context.waker())) {
            state.waiting_task = Some(WaitingTask::current(context.waker()));
        }
        Poll::Pending
    }

    /// Takes the answers set so far and ignores later ones.
    pub(super) fn take(&self) -> Vec<Option<TracedAnswer>> {
        let mut state = self.state.lock();
        state.missing = 0;
        state.waiting_task = None;
        std::mem::take(&mut state.answers)
    }
}
