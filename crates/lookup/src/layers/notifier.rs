//! Wakes many tasks with few system calls. Waking a task from another thread costs a system call.
//! Therefore the tasks of a runtime are handed to a helper task of that runtime, which is woken
//! once and wakes the others on its own thread. The helper starts with the first waiting lookup and
//! ends with its runtime.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::task::Waker;

use parking_lot::Mutex;
use tokio::runtime::{self, Handle, RuntimeFlavor};
use tokio::sync::Notify;

/// The helper of one runtime.
#[derive(Default)]
pub(super) struct RuntimeNotifier {
    wakers: Mutex<Vec<Waker>>,
    notify: Notify,
}

/// A waiting task and the helper of its runtime.
pub(super) struct WaitingTask {
    pub(super) waker: Waker,
    notifier: Option<Arc<RuntimeNotifier>>,
}

thread_local! {
    /// The helper of this thread's runtime. Weak, so that it is gone with the helper task.
    static CURRENT: RefCell<Option<(runtime::Id, Weak<RuntimeNotifier>)>> = const { RefCell::new(None) };
}

impl WaitingTask {
    /// The task of this waker, which is being polled on this thread.
    pub(super) fn current(waker: &Waker) -> Self {
        WaitingTask { waker: waker.clone(), notifier: RuntimeNotifier::current() }
    }

    fn notifier_ptr(&self) -> *const RuntimeNotifier {
        self.notifier.as_ref().map_or(std::ptr::null(), Arc::as_ptr)
    }
}

/// Wakes all these tasks.
pub(super) fn wake(mut tasks: Vec<WaitingTask>) {
    tasks.sort_unstable_by_key(WaitingTask::notifier_ptr);
    let mut tasks = tasks.into_iter().peekable();
    while let Some(WaitingTask { waker, notifier }) = tasks.next() {
        let Some(notifier) = notifier else {
            waker.wake();
            continue;
        };
        let others = std::iter::from_fn(|| tasks.next_if(|other| other.notifier_ptr() == Arc::as_ptr(&notifier)));
        notifier.wakers.lock().extend(std::iter::once(waker).chain(others.map(|other| other.waker)));
        notifier.notify.notify_one();
    }
}

impl RuntimeNotifier {
    /// The helper of the current runtime; None unless it is single-threaded.
    fn current() -> Option<Arc<RuntimeNotifier>> {
        let runtime = Handle::try_current().ok()?;
        if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
            return None;
        }
        CURRENT.with_borrow_mut(|here| {
            let known = here.as_ref().filter(|(id, _)| *id == runtime.id()).and_then(|(_, bell)| bell.upgrade());
            Some(known.unwrap_or_else(|| {
                let notifier = Arc::new(RuntimeNotifier::default());
                *here = Some((runtime.id(), Arc::downgrade(&notifier)));
                runtime.spawn(notifier.clone().run());
                notifier
            }))
        })
    }

    async fn run(self: Arc<RuntimeNotifier>) {
        loop {
            self.notify.notified().await;
            let called = std::mem::take(&mut *self.wakers.lock());
            called.into_iter().for_each(Waker::wake);
        }
    }
}
