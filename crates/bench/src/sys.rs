//! The one thing that the laboratory asks of the system and the compiler cannot vouch for: how its threads are scheduled.
#![expect(unsafe_code, reason = "no safe wrapper sets a thread's scheduling policy")]

/// From now on this thread, when it is woken, does not take the processor away from whom it finds there (`SCHED_BATCH`,
/// sched(7)). Its share of the processors remains what it was.
///
/// Where the system refuses, it stays as it is.
pub(crate) fn interrupt_nobody() {
    let plain = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the thread that calls; the parameter is a plain value that is only read, and only during the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &plain) };
}
