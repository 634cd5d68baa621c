//! Shutdown: the signal to stop, and waiting until everything has stopped.

use tokio::sync::watch;

/// Sends the shutdown signal; dropping it does so too.
#[derive(Debug)]
pub struct StopSender(watch::Sender<bool>);

/// Receives the shutdown signal. Each part of the server holds one until it has stopped.
#[derive(Clone, Debug)]
pub struct StopReceiver(watch::Receiver<bool>);

impl StopSender {
    /// A sender and its first receiver.
    pub fn new() -> (StopSender, StopReceiver) {
        let (sender, receiver) = watch::channel(false);
        (StopSender(sender), StopReceiver(receiver))
    }

    /// Sends the signal.
    pub fn stop(&self) {
        // The value is stored even without receivers.
        self.0.send_replace(true);
    }

    /// Waits until all [`StopReceiver`]s are dropped.
    pub async fn wait_receivers_dropped(&self) {
        self.0.closed().await;
    }
}

impl StopReceiver {
    /// Waits for the signal.
    pub async fn wait_for_stop(&mut self) {
        // An error means that the sender was dropped.
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    /// Whether the signal was sent.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}
