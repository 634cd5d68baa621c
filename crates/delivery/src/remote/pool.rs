//! The connections without a task, by next hop, and how a task finds one: the last used first, since that is the one
//! least likely to have been given up by its server.
//!
//! A connection that waits has a [`Slot`] here. Whoever takes the slot out gives it a task or sends it away, so a slot
//! outside the pool has its word.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use super::rotation::Rotation;
use super::{NextHop, Report, Task};

/// Next hops at which nobody waits are not swept out while there are so few.
const PLACES_MIN: usize = 100;

/// Those that wait, by the name of their next hop.
type Waiting<T> = HashMap<Arc<str>, Vec<Rc<Slot<T>>>>;

pub(super) struct Pool<T> {
    reports: Box<dyn Fn(Report<T>)>,
    /// Which addresses are tried next.
    pub(super) rotation: Rotation,
    waiting: RefCell<Waiting<T>>,
    waiting_count: Cell<usize>,
    /// Connections, and those that are being opened or left.
    alive: Cell<usize>,
    closing: Cell<bool>,
    gone: Notify,
}

/// Where a connection that waits hears what is next.
pub(super) struct Slot<T> {
    /// Of the settings by which the connection was opened.
    edition: u32,
    word: Cell<Option<Word<T>>>,
    waker: Cell<Option<Waker>>,
}

/// What is next for a connection that waited.
enum Word<T> {
    Carry(Box<Task<T>>),
    Leave,
}

/// Counts a connection as alive.
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

    /// Gives the task to a connection that waits, or gives it back where none does. Those of another edition are sent away.
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

    /// Lets a connection wait, if there are less than `waiting_max`. Where there is no room, those that wait stay: with
    /// more next hops than room and mail for each in turn, the one that has waited longest is the one needed next.
    pub(super) fn park(&self, next_hop: &NextHop, slot: &Rc<Slot<T>>, waiting_max: usize) -> bool {
        if self.closing.get() || self.waiting_count.get() >= waiting_max {
            return false;
        }
        self.waiting_count.set(self.waiting_count.get() + 1);
        let mut waiting = self.waiting.borrow_mut();
        // Most next hops have somebody waiting again in a moment, so that their places stay for a while.
        if waiting.len() >= PLACES_MIN + 2 * self.waiting_count.get() {
            waiting.retain(|_, slots| !slots.is_empty());
        }
        waiting.entry(next_hop.name.clone()).or_default().push(slot.clone());
        true
    }

    /// Takes a slot out that waits no longer.
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

    /// Sends all away that wait, lets nobody wait any more, and returns when no connection is left.
    pub(super) async fn close(&self) {
        self.closing.set(true);
        self.waiting_count.set(0);
        self.waiting.take().into_values().flatten().for_each(|slot| slot.say(Word::Leave));
        while self.alive.get() > 0 {
            // Nothing ends between the look and the waiting: all is on one thread.
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

    /// Waits for a task. None where the connection should end: it was sent away, or `poll_end` is ready.
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
