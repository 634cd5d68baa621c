//! The buffer that all connections of a thread read into, one at a time, so that an idle connection has none.
//!
//! It lives as long as its thread. What was read must be worked on, or copied, before the loan ends; a second loan
//! within the first one panics, since that would be a read into bytes that somebody still looks at.

use std::cell::RefCell;

/// Bytes that one read takes at the most.
const READ_BYTES: usize = 64 * 1024;

thread_local! {
    static INPUT: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Lends the buffer out. `read` must not use it a second time.
pub(crate) fn with_input<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    INPUT.with_borrow_mut(|input| read(input))
}
