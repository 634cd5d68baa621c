//! The one unsafe system call of the laboratory: the scheduling policy of a thread.
#![expect(unsafe_code, reason = "no safe wrapper sets a thread's scheduling policy")]

/// Sets the policy of this thread to `SCHED_BATCH` (sched(7)): when it wakes up, it does not
/// preempt the running thread. Its share of CPU time stays the same.
///
/// An error is ignored.
pub(crate) fn use_batch_scheduling() {
    let plain = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread; the parameter is only read, and only during the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &plain) };
}
