//! The word that everything is to come to an end, and the waiting until it has.

use tokio::sync::watch;

/// Says that it is time to stop. Dropping it says so too.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Hears it. Each part of the server that must come to its end holds one as long as it works.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

impl Stopper {
    /// A stopper and the first of its hearers.
    pub fn new() -> (Stopper, Stop) {
        let (sender, receiver) = watch::channel(false);
        (Stopper(sender), Stop(receiver))
    }

    /// Says so.
    pub fn stop(&self) {
        // It is stored even when nobody listens any more.
        self.0.send_replace(true);
    }

    /// Waits until nobody holds a [`Stop`].
    pub async fn all_gone(&self) {
        self.0.closed().await;
    }
}

impl Stop {
    /// Waits for the word.
    pub async fn requested(&mut self) {
        // An error is a stopper that is gone.
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    /// Whether the word was given.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}
