//! Waits for a slow answer on a handler's thread, but not beyond shutdown.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// How often the stop flag is checked.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Runs `work`, which may ask the directory and the DNS. None if `stopping` is set meanwhile.
///
/// # Errors
///
/// A runtime cannot be created.
pub(super) fn unless_stopping<T>(stopping: &AtomicBool, work: impl Future<Output = T>) -> io::Result<Option<T>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async {
        tokio::select! {
            done = work => Some(done),
            () = wait_until_set(stopping) => None,
        }
    }))
}

async fn wait_until_set(stopping: &AtomicBool) {
    while !stopping.load(Relaxed) {
        tokio::time::sleep(STOP_POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_when_the_server_stops() {
        let stopping = AtomicBool::new(false);
        assert_eq!(unless_stopping(&stopping, async { 7 }).unwrap(), Some(7));
        stopping.store(true, Relaxed);
        assert_eq!(unless_stopping(&stopping, std::future::pending::<()>()).unwrap(), None);
    }
}
