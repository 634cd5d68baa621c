//! The handler of the configuration in force, which a reload replaces.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::handler::ControlHandler;

/// Shared by all that handle requests.
#[derive(Clone)]
pub struct CurrentHandler(Arc<Mutex<Arc<ControlHandler>>>);

impl CurrentHandler {
    /// The first handler.
    pub(crate) fn new(handler: ControlHandler) -> CurrentHandler {
        CurrentHandler(Arc::new(Mutex::new(Arc::new(handler))))
    }

    /// The handler for a new request.
    pub(crate) fn current(&self) -> Arc<ControlHandler> {
        self.0.lock().clone()
    }

    /// New requests use this handler; requests in progress keep the old one.
    pub(crate) fn replace(&self, handler: ControlHandler) {
        *self.0.lock() = Arc::new(handler);
    }
}
