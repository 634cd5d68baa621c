//! The thread on which everything runs that this crate does by itself: connections, lane tasks,
//! encoding. Sessions and deliveries share no thread with it, and it reads no disk: bodies in files
//! are read on blocking threads.

use std::io;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The thread of the cluster. Its tasks end when it is dropped.
pub struct ClusterThread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ClusterThread {
    /// Starts the thread.
    pub fn start() -> io::Result<ClusterThread> {
        let runtime = Builder::new_current_thread().enable_all().thread_name("cluster-disk").build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        // It ends when the sender is dropped, too.
        let work = move || runtime.block_on(async move { drop(stopped.await) });
        let thread = std::thread::Builder::new().name("cluster".into()).spawn(work)?;
        Ok(ClusterThread { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Starts tasks on it.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for ClusterThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, it has already reported that.
            drop(thread.join());
        }
    }
}
