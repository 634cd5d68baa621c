//! Reads that wait for the disk, on a few blocking threads.

use std::io;

use tokio::sync::Semaphore;

/// Concurrent disk reads of the whole process. The runtime's limit on blocking threads should not
/// be lower.
pub const DISK_READS_MAX: usize = 16;

static DISK_READS: Semaphore = Semaphore::const_new(DISK_READS_MAX);

/// Reads on a blocking thread, from the source that `open` gives when it is this read's turn: so
/// there are at most [`DISK_READS_MAX`] of them.
pub(crate) async fn read_blocking<S: Send + 'static, T: Send + 'static>(
    open: impl FnOnce() -> io::Result<S>,
    read: impl FnOnce(&S) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    // The semaphore is never closed, so this is a permit.
    let _place = DISK_READS.acquire().await;
    let source = open()?;
    tokio::task::spawn_blocking(move || read(&source)).await.map_err(io::Error::other)?
}
