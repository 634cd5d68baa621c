//! The answers of one lookup, filled in one by one, and the task to wake after the last one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use super::bell::Sleeper;
use crate::Trace;

pub(super) struct Ticket {
    state: Mutex<State>,
}

struct State {
    /// Empty once the lookup has taken them.
    answers: Vec<Option<Trace>>,
    missing: usize,
    sleeper: Option<Sleeper>,
}

/// One key of a waiting lookup.
pub(super) struct Waiter {
    pub(super) ticket: Arc<Ticket>,
    pub(super) place: usize,
}

impl Waiter {
    /// Sets the answer. Returns the task to wake if it was the last one.
    pub(super) fn give(&self, answer: Trace) -> Option<Sleeper> {
        self.ticket.give(self.place, answer)
    }
}

impl Ticket {
    pub(super) fn new(places: usize) -> Self {
        let answers = std::iter::repeat_with(|| None).take(places).collect();
        Ticket { state: Mutex::new(State { answers, missing: places, sleeper: None }) }
    }

    pub(super) fn give(&self, place: usize, answer: Trace) -> Option<Sleeper> {
        let mut state = self.state();
        let empty = state.answers.get_mut(place).filter(|held| held.is_none())?;
        *empty = Some(answer);
        state.missing -= 1;
        if state.missing == 0 { state.sleeper.take() } else { None }
    }

    /// Whether all answers are set, or were taken.
    pub(super) fn is_complete(&self) -> bool {
        self.state().missing == 0
    }

    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.missing == 0 {
            return Poll::Ready(());
        }
        if !state.sleeper.as_ref().is_some_and(|sleeper| sleeper.waker.will_wake(context.waker())) {
            state.sleeper = Some(Sleeper::here(context.waker()));
        }
        Poll::Pending
    }

    /// Takes the answers set so far and ignores later ones.
    pub(super) fn take(&self) -> Vec<Option<Trace>> {
        let mut state = self.state();
        state.missing = 0;
        state.sleeper = None;
        std::mem::take(&mut state.answers)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
