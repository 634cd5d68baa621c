//! What concerns the process as a whole: its configuration, and a drain before a stop.

use std::time::Duration;

use super::{ControlError, ControlHandler, ControlResult};
use crate::process::{ConfigDocument, ConfigVerdict, DrainRequest};
use crate::request::ControlRequest;

/// How long a drain takes at most, if the operator does not say.
const DRAIN_TIME: Duration = Duration::from_secs(5 * 60);
/// And at most whatever the operator says.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

impl ControlHandler {
    /// The configuration in force.
    pub(crate) fn config_document(&self) -> &ConfigDocument {
        &self.parts.config
    }

    /// What `mailrace check` would say about a text.
    pub(crate) fn check_config(&self, text: &str) -> ConfigVerdict {
        (self.shared.config_checker)(text)
    }

    /// The server takes no mail from now on, delivers what it can within a time, and stops.
    pub(crate) fn drain(&self, caller: &str, request: DrainRequest) -> ControlResult<()> {
        let order = ControlRequest::Drain(request.clone());
        let within = request.within.map_or(DRAIN_TIME, |within| within.0.0);
        self.logged(
            caller,
            &order,
            |()| "draining".to_owned(),
            || match () {
                () if within > DRAIN_TIME_MAX => Err(ControlError::Refused("a drain takes at most 7 days".into())),
                () if (self.shared.drain_sender)(within) => Ok(()),
                () => Err(ControlError::Refused("the server is draining its queue already".into())),
            },
        )
    }
}
