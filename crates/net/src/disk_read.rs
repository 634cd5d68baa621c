//! Work that waits for the disk, on a few blocking threads.
//!
//! A thread that drives sessions must never wait for the disk. What may wait runs here, at most
//! [`DISK_READS_MAX`] at a time in the whole process: a slow disk then delays those that need it, and
//! does not fill the process with threads.

use std::io;

use tokio::sync::Semaphore;

/// Concurrent disk reads of the whole process. The runtime's limit on blocking threads should not
/// be lower.
pub const DISK_READS_MAX: usize = 16;

static DISK_READS: Semaphore = Semaphore::const_new(DISK_READS_MAX);

/// Runs blocking disk work on another thread when it is its turn. Work that has begun runs to its
/// end, and counts until then, even if the caller no longer waits for it; work that has not begun is
/// dropped with the future.
///
/// # Errors
///
/// The work panicked, or the runtime is shutting down.
pub async fn run_on_disk_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    run_when_admitted(|| Ok(work)).await
}

/// Reads on a blocking thread, from the source that `open` gives when it is this read's turn: so
/// there are at most [`DISK_READS_MAX`] of them.
pub(crate) async fn read_blocking<S: Send + 'static, T: Send + 'static>(
    open: impl FnOnce() -> io::Result<S>,
    read: impl FnOnce(&S) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    run_when_admitted(|| open().map(|source| move || read(&source))).await?
}

async fn run_when_admitted<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
    prepare: impl FnOnce() -> io::Result<W>,
) -> io::Result<T> {
    let permit = DISK_READS.acquire().await.map_err(io::Error::other)?;
    let work = prepare()?;
    let run = move || {
        // Held by the thread, not by the future: the thread is occupied even if the future is gone.
        let _permit = permit;
        work()
    };
    tokio::task::spawn_blocking(run).await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Regression: the place of a read was free as soon as its session ended, so sessions that came
    /// and went could occupy any number of threads.
    #[tokio::test]
    async fn abandoned_work_counts_until_it_ends() {
        let (started, starts) = mpsc::channel();
        let mut releases = Vec::new();
        let mut tasks = Vec::new();
        for _ in 0..DISK_READS_MAX {
            let (release, released) = mpsc::channel::<()>();
            let started = started.clone();
            releases.push(release);
            tasks.push(tokio::spawn(run_on_disk_thread(move || {
                started.send(()).unwrap();
                // Ends with the sender.
                let _ = released.recv();
            })));
        }
        let starts = tokio::task::spawn_blocking(move || {
            (0..DISK_READS_MAX).for_each(|_| starts.recv().unwrap());
            starts
        });
        let starts = starts.await.unwrap();
        for task in tasks {
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
        }
        let mut late = Box::pin(run_on_disk_thread(move || started.send(()).is_ok()));
        assert!(poll_once(late.as_mut()).await.is_none());
        assert!(starts.try_recv().is_err(), "one more than the limit has begun");
        drop(releases);
        assert!(late.await.unwrap());
        assert!(starts.try_recv().is_ok());
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error() {
        assert_eq!(run_on_disk_thread(|| 7).await.unwrap(), 7);
        assert!(run_on_disk_thread(|| panic!("on purpose")).await.is_err());
    }

    async fn poll_once<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
