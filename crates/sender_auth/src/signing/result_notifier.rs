//! Passes results of the signing threads to the threads whose sessions wait for them. The results of
//! several messages are collected here and their thread is woken once: waking each session from a
//! signing thread would cost a system call, and would let the session's thread run for one message
//! at a time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use tokio::runtime::{self, Handle};
use tokio::sync::Notify;

/// Gives one result to the session that waits for it. Called on the thread of the session.
type ResultDelivery = Box<dyn FnOnce() + Send>;

/// A result, and the notifier of the runtime in which a session waits for it.
pub(super) struct FinishedJob {
    pub(super) notifier: Arc<ResultNotifier>,
    pub(super) delivery: ResultDelivery,
}

/// The notifiers of all runtimes in which sessions wait. Their tasks end with this list.
#[derive(Default)]
pub(super) struct ResultNotifiers {
    /// Each belongs to a task of its runtime, and ends with it.
    by_runtime: RwLock<HashMap<runtime::Id, Weak<ResultNotifier>>>,
}

/// The results for the sessions of one runtime.
#[derive(Default)]
pub(super) struct ResultNotifier {
    ready: Mutex<Vec<ResultDelivery>>,
    is_closed: AtomicBool,
    changed: Notify,
}

impl ResultNotifiers {
    /// The notifier of the runtime that this is called in.
    pub(super) fn current(&self) -> Arc<ResultNotifier> {
        let runtime = Handle::current();
        let known = self.by_runtime.read().get(&runtime.id()).and_then(Weak::upgrade);
        known.unwrap_or_else(|| self.start(&runtime))
    }

    fn start(&self, runtime: &Handle) -> Arc<ResultNotifier> {
        let mut by_runtime = self.by_runtime.write();
        if let Some(known) = by_runtime.get(&runtime.id()).and_then(Weak::upgrade) {
            return known;
        }
        let notifier = Arc::<ResultNotifier>::default();
        runtime.spawn(notifier.clone().run());
        by_runtime.retain(|_, notifier| notifier.strong_count() > 0);
        by_runtime.insert(runtime.id(), Arc::downgrade(&notifier));
        notifier
    }
}

impl Drop for ResultNotifiers {
    fn drop(&mut self) {
        self.by_runtime.get_mut().values().filter_map(Weak::upgrade).for_each(|notifier| notifier.close());
    }
}

/// Passes results on. All of them are with their notifiers before the first thread is woken, which
/// may take the processor of this one.
pub(super) fn pass_on(finished: Vec<FinishedJob>) {
    let mut waiting = Vec::new();
    for FinishedJob { notifier, delivery } in finished {
        if notifier.add(delivery) {
            waiting.push(notifier);
        }
    }
    waiting.iter().for_each(|notifier| notifier.changed.notify_one());
}

impl ResultNotifier {
    /// Returns whether the result is the first, so that the task must be woken.
    fn add(&self, delivery: ResultDelivery) -> bool {
        let mut ready = self.ready.lock();
        ready.push(delivery);
        ready.len() == 1
    }

    fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.changed.notify_one();
    }

    async fn run(self: Arc<Self>) {
        while !self.is_closed.load(Relaxed) {
            self.changed.notified().await;
            let ready = std::mem::take(&mut *self.ready.lock());
            ready.into_iter().for_each(|deliver| deliver());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn finished(notifier: &Arc<ResultNotifier>, number: u32) -> (FinishedJob, oneshot::Receiver<u32>) {
        let (waiter, result) = oneshot::channel();
        let delivery = Box::new(move || waiter.send(number).unwrap());
        (FinishedJob { notifier: notifier.clone(), delivery }, result)
    }

    #[test]
    fn each_runtime_has_one_notifier_which_gets_the_results_of_its_sessions() {
        let notifiers = ResultNotifiers::default();
        let build = || runtime::Builder::new_current_thread().build().unwrap();
        let (one, other) = (build(), build());
        let of_one = one.block_on(async { notifiers.current() });
        let of_other = other.block_on(async { notifiers.current() });
        assert!(Arc::ptr_eq(&of_one, &one.block_on(async { notifiers.current() })));
        assert!(!Arc::ptr_eq(&of_one, &of_other));
        let (first, first_result) = finished(&of_one, 1);
        let (second, second_result) = finished(&of_other, 2);
        let (third, third_result) = finished(&of_one, 3);
        pass_on(vec![first, second, third]);
        assert_eq!(one.block_on(async { (first_result.await, third_result.await) }), (Ok(1), Ok(3)));
        assert_eq!(other.block_on(second_result), Ok(2));
    }

    #[test]
    fn a_task_ends_with_the_list_and_a_notifier_with_its_runtime() {
        let notifiers = ResultNotifiers::default();
        let gone = runtime::Builder::new_current_thread().build().unwrap();
        let of_gone = Arc::downgrade(&gone.block_on(async { notifiers.current() }));
        drop(gone);
        assert!(of_gone.upgrade().is_none());
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let in_use = runtime.block_on(async { notifiers.current() });
        assert_eq!(notifiers.by_runtime.read().len(), 1, "what is gone is forgotten");
        drop(notifiers);
        while Arc::strong_count(&in_use) > 1 {
            runtime.block_on(tokio::task::yield_now());
        }
    }
}
