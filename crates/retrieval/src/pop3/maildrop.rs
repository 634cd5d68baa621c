//! The open maildrop of a session. The session and its machine share it; the last one unlocks it,
//! which may wait for the disk.

use std::path::PathBuf;
use std::sync::Arc;

use mailbox::maildrop::{Maildrop, MaildropError, MaildropSettings};
use protocol::pop3::server::MaildropListing;
use tokio::runtime::Handle;

/// A maildrop that the machine can list.
pub(super) struct OpenMaildrop(pub(super) Maildrop);

impl OpenMaildrop {
    /// Locks and lists a maildrop on another thread.
    pub(super) async fn open(folder: PathBuf, settings: MaildropSettings) -> Result<Arc<OpenMaildrop>, MaildropError> {
        let opened = net::run_on_disk_thread(move || Maildrop::open(&folder, &settings)).await;
        let opened = opened.unwrap_or_else(|error| Err(MaildropError::Unavailable(error)))?;
        Ok(Arc::new(OpenMaildrop(opened)))
    }

    /// Removes messages and unlocks, on another thread. Returns how many could not be removed.
    pub(super) async fn update(self: Arc<Self>, deleted: Vec<usize>) -> std::io::Result<usize> {
        net::run_on_disk_thread(move || if deleted.is_empty() { 0 } else { self.0.delete(&deleted) }).await
    }

    /// Refreshes the lock on another thread, without waiting for it.
    pub(super) fn refresh_lock(self: &Arc<Self>) {
        let maildrop = Arc::clone(self);
        run_detached(move || maildrop.0.touch_lock());
    }

    /// Unlocks on another thread, without waiting for it.
    pub(super) fn close(self: Arc<Self>) {
        run_detached(move || drop(self));
    }
}

impl MaildropListing for OpenMaildrop {
    fn message_count(&self) -> usize {
        self.0.len()
    }

    fn octets(&self, message: usize) -> u64 {
        self.0.octets(message)
    }

    fn write_uid(&self, message: usize, out: &mut Vec<u8>) {
        self.0.write_uid(message, out);
    }
}

/// Runs work on a thread for disk work. If the threads of the sessions are shutting down, it may run
/// here.
fn run_detached(work: impl FnOnce() + Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(net::run_on_disk_thread(work))),
        Err(_) => work(),
    }
}
