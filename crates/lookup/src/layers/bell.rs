//! Wakes many tasks with few system calls. Waking a task from another thread costs a system call.
//! Therefore the tasks of a runtime are handed to a helper task of that runtime, which is woken
//! once and wakes the others on its own thread. The helper starts with the first waiting lookup and
//! ends with its runtime.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Waker;

use tokio::runtime::{self, Handle, RuntimeFlavor};
use tokio::sync::Notify;

/// The helper of one runtime.
#[derive(Default)]
pub(super) struct Bell {
    called: Mutex<Vec<Waker>>,
    rung: Notify,
}

/// A waiting task and the helper of its runtime.
pub(super) struct Sleeper {
    pub(super) waker: Waker,
    bell: Option<Arc<Bell>>,
}

thread_local! {
    /// The helper of this thread's runtime. Weak, so that it is gone with the helper task.
    static HERE: RefCell<Option<(runtime::Id, Weak<Bell>)>> = const { RefCell::new(None) };
}

impl Sleeper {
    /// The task of this waker, which is being polled on this thread.
    pub(super) fn here(waker: &Waker) -> Self {
        Sleeper { waker: waker.clone(), bell: Bell::here() }
    }

    fn place(&self) -> *const Bell {
        self.bell.as_ref().map_or(std::ptr::null(), Arc::as_ptr)
    }
}

/// Wakes all these tasks.
pub(super) fn wake(mut sleepers: Vec<Sleeper>) {
    sleepers.sort_unstable_by_key(Sleeper::place);
    let mut sleepers = sleepers.into_iter().peekable();
    while let Some(Sleeper { waker, bell }) = sleepers.next() {
        let Some(bell) = bell else {
            waker.wake();
            continue;
        };
        let others = std::iter::from_fn(|| sleepers.next_if(|other| other.place() == Arc::as_ptr(&bell)));
        bell.called().extend(std::iter::once(waker).chain(others.map(|other| other.waker)));
        bell.rung.notify_one();
    }
}

impl Bell {
    /// The helper of the current runtime; None unless it is single-threaded.
    fn here() -> Option<Arc<Bell>> {
        let runtime = Handle::try_current().ok()?;
        if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
            return None;
        }
        HERE.with_borrow_mut(|here| {
            let known = here.as_ref().filter(|(id, _)| *id == runtime.id()).and_then(|(_, bell)| bell.upgrade());
            Some(known.unwrap_or_else(|| {
                let bell = Arc::new(Bell::default());
                *here = Some((runtime.id(), Arc::downgrade(&bell)));
                runtime.spawn(bell.clone().hear());
                bell
            }))
        })
    }

    async fn hear(self: Arc<Bell>) {
        loop {
            self.rung.notified().await;
            let called = std::mem::take(&mut *self.called());
            called.into_iter().for_each(Waker::wake);
        }
    }

    fn called(&self) -> std::sync::MutexGuard<'_, Vec<Waker>> {
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
