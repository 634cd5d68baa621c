//! The buffer that all connections of a thread read into, one at a time, so that an idle connection has none.

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
