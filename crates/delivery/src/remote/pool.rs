//! The idle connections by next hop. A task gets the one used last, which is least likely to have
//! been closed by its server.
//!
//! An idle connection has a [`Slot`] here. Taking it out means giving it a task or telling it to
//! close, so outside the pool it always has a command.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use super::rotation::Rotation;
use super::{NextHop, Report, Task};

/// Next hops without idle connections are kept while there are fewer than this.
const PLACES_MIN: usize = 100;

/// The idle connections, by the name of their next hop.
type Waiting<T> = HashMap<Arc<str>, Vec<Rc<Slot<T>>>>;

pub(super) struct Pool<T> {
    reports: Box<dyn Fn(Report<T>)>,
    /// Which addresses to try next.
    pub(super) rotation: Rotation,
    waiting: RefCell<Waiting<T>>,
    waiting_count: Cell<usize>,
    /// The number of connections, including those being opened or closed.
    alive: Cell<usize>,
    closing: Cell<bool>,
    gone: Notify,
}

/// Through this an idle connection gets its next command.
pub(super) struct Slot<T> {
    /// The version of the settings with which the connection was opened.
    edition: u32,
    word: Cell<Option<Word<T>>>,
    waker: Cell<Option<Waker>>,
}

/// What an idle connection does next.
enum Word<T> {
    Carry(Box<Task<T>>),
    Leave,
}

/// Counts a connection while it is open.
pub(super) struct Life<T>(Rc<Pool<T>>);

impl<T> Pool<T> {
    pub(super) fn new(reports: Box<dyn Fn(Report<T>)>) -> Self {
        Pool {
            reports,
            rotation: Rotation::default(),
            waiting: RefCell::default(),
            waiting_count: Cell::new(0),
            alive: Cell::new(0),
            closing: Cell::new(false),
            gone: Notify::new(),
        }
    }

    pub(super) fn report(&self, report: Report<T>) {
        (self.reports)(report);
    }

    pub(super) fn life(self: &Rc<Self>) -> Life<T> {
        self.alive.set(self.alive.get() + 1);
        Life(self.clone())
    }

    /// Gives the task to an idle connection, or returns it if there is none. Connections with other
    /// settings are closed.
    pub(super) fn hand_over(&self, task: Box<Task<T>>) -> Option<Box<Task<T>>> {
        let mut waiting = self.waiting.borrow_mut();
        let Some(slots) = waiting.get_mut(&task.next_hop.name) else { return Some(task) };
        while let Some(slot) = slots.pop() {
            self.waiting_count.set(self.waiting_count.get() - 1);
            if slot.edition == task.next_hop.edition {
                slot.say(Word::Carry(task));
                return None;
            }
            slot.say(Word::Leave);
        }
        Some(task)
    }

    /// Adds an idle connection if there are fewer than `waiting_max`. If there is no room, the
    /// connections already idle stay: with more next hops than room and mail for each of them in
    /// rotation, the one idle longest is the one needed next.
    pub(super) fn park(&self, next_hop: &NextHop, slot: &Rc<Slot<T>>, waiting_max: usize) -> bool {
        if self.closing.get() || self.waiting_count.get() >= waiting_max {
            return false;
        }
        self.waiting_count.set(self.waiting_count.get() + 1);
        let mut waiting = self.waiting.borrow_mut();
        // Most next hops soon have an idle connection again, so their empty lists are kept for now.
        if waiting.len() >= PLACES_MIN + 2 * self.waiting_count.get() {
            waiting.retain(|_, slots| !slots.is_empty());
        }
        waiting.entry(next_hop.name.clone()).or_default().push(slot.clone());
        true
    }

    /// Removes a connection that is no longer idle.
    pub(super) fn withdraw(&self, next_hop: &NextHop, slot: &Rc<Slot<T>>) {
        let mut waiting = self.waiting.borrow_mut();
        let Some(slots) = waiting.get_mut(&next_hop.name) else { return };
        if let Some(place) = slots.iter().position(|other| Rc::ptr_eq(other, slot)) {
            slots.remove(place);
            self.waiting_count.set(self.waiting_count.get() - 1);
        }
        if slots.is_empty() {
            waiting.remove(&next_hop.name);
        }
    }

    /// Closes all idle connections, accepts no more, and returns when no connection is left.
    pub(super) async fn close(&self) {
        self.closing.set(true);
        self.waiting_count.set(0);
        self.waiting.take().into_values().flatten().for_each(|slot| slot.say(Word::Leave));
        while self.alive.get() > 0 {
            // No connection can end between this check and the wait: everything runs on one thread.
            self.gone.notified().await;
        }
    }
}

impl<T> Slot<T> {
    pub(super) fn new(edition: u32) -> Rc<Self> {
        Rc::new(Slot { edition, word: Cell::new(None), waker: Cell::new(None) })
    }

    fn say(&self, word: Word<T>) {
        self.word.set(Some(word));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Waits for a task. None: the connection should be closed, on command or because `poll_end` is
    /// ready.
    pub(super) async fn wait(&self, mut poll_end: impl FnMut(&mut Context<'_>) -> Poll<()>) -> Option<Box<Task<T>>> {
        poll_fn(|context| match self.word.take() {
            Some(Word::Carry(task)) => Poll::Ready(Some(task)),
            Some(Word::Leave) => Poll::Ready(None),
            None => {
                self.waker.set(Some(context.waker().clone()));
                poll_end(context).map(|()| None)
            }
        })
        .await
    }
}

impl<T> Drop for Life<T> {
    fn drop(&mut self) {
        let left = self.0.alive.get() - 1;
        self.0.alive.set(left);
        if left == 0 {
            self.0.gone.notify_waiters();
        }
    }
}
