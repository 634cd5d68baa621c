//! Pipes through which the kernel moves bytes from socket to socket (`splice`). A tunnel has one only
//! while bytes are under way; then the next one of the thread uses it.
//!
//! The number of pipes is limited for the whole process. Without one, bytes are copied, which works
//! as well and costs more.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::net::TcpStream;

/// The pipes of the process, each of two file descriptors.
const PIPES_MAX: usize = 256;
/// The unused pipes that a thread keeps.
const IDLE_PIPES_MAX: usize = 4;
/// The most bytes in a pipe.
const PIPE_OCTETS: usize = 256 << 10;

static PIPES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IDLE: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// A pipe, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Pipe {
    /// An empty pipe; None if there are too many, or the system has none.
    pub(crate) fn take() -> Option<Pipe> {
        let idle = IDLE.try_with(|idle| idle.borrow_mut().pop()).ok().flatten();
        idle.or_else(Pipe::open)
    }

    fn open() -> Option<Pipe> {
        if PIPES.fetch_add(1, Relaxed) >= PIPES_MAX {
            PIPES.fetch_sub(1, Relaxed);
            return None;
        }
        let Ok((reader, writer)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) else {
            PIPES.fetch_sub(1, Relaxed);
            return None;
        };
        // With the size that it has, it works too.
        let _ = fcntl_setpipe_size(&writer, PIPE_OCTETS);
        Some(Pipe { reader, writer })
    }

    /// Leaves an empty pipe to others.
    pub(crate) fn put_back(self) {
        // Dropped if the thread has enough, or ends.
        let _ = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            if idle.len() < IDLE_PIPES_MAX {
                idle.push(self);
            }
        });
    }

    /// Moves bytes from the socket into the pipe, which must be empty; returns their number, which is
    /// 0 at the end of the connection. `WouldBlock`: nothing has arrived.
    pub(crate) fn fill(&self, socket: &TcpStream) -> io::Result<usize> {
        Ok(retry_on_intr(|| splice(socket, None, &self.writer, None, PIPE_OCTETS, flags()))?)
    }

    /// Moves bytes of the pipe, which has this many, to the socket; returns their number.
    /// `WouldBlock`: the socket accepts no more.
    pub(crate) fn empty(&self, socket: &TcpStream, octets: usize) -> io::Result<usize> {
        Ok(retry_on_intr(|| splice(&self.reader, None, socket, None, octets, flags()))?)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        PIPES.fetch_sub(1, Relaxed);
    }
}

fn flags() -> SpliceFlags {
    SpliceFlags::MOVE | SpliceFlags::NONBLOCK
}

/// The unused pipes of this thread.
#[cfg(test)]
pub(crate) fn idle_pipes() -> usize {
    IDLE.with_borrow(Vec::len)
}
