//! The read buffer that all connections of a thread share, one at a time, so that an idle
//! connection has none.
//!
//! It lives as long as its thread. The bytes must be used or copied within the call; a nested call
//! panics, since it would overwrite bytes still in use.

use std::cell::RefCell;

/// The most bytes one read takes.
pub(crate) const READ_BYTES: usize = 64 * 1024;

thread_local! {
    static INPUT: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Calls `read` with the buffer. `read` must not call this again.
pub(crate) fn with_input<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    INPUT.with_borrow_mut(|input| read(input))
}
