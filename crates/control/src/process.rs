//! What operators ask of the process as a whole: its configuration, and to drain its queue and stop. The
//! binary answers, behind values that it passes; this module knows no configuration.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::handler::{ControlError, ControlHandler, ControlResult};
use crate::request::ControlRequest;
use crate::text::{DurationArg, SerdeAsText};

/// How long a drain takes at most, if the operator does not say.
const DRAIN_TIME: Duration = Duration::from_secs(5 * 60);
/// And at most whatever the operator says.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The configuration in force. Where a secret may be, its text has asterisks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigDocument {
    /// Its file, or that it is the built-in one.
    pub source: String,
    /// Its text, in TOML.
    pub text: String,
}

/// Checks the text of a configuration, without a look at any file and without an effect.
pub type ConfigChecker = fn(&str) -> ConfigVerdict;

/// What is to be said about the text of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigVerdict {
    /// Whether it has no errors. Files that it names were not looked at.
    pub valid: bool,
    /// The errors, as `mailrace check` prints them; empty if there are none.
    pub errors: String,
    /// Likely mistakes, a sentence each.
    pub warnings: Vec<String>,
}

/// A configuration to check.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigText {
    /// Its text, in TOML.
    pub text: String,
}

/// Orders the server to drain its queue for at most this time, and then to stop. False: it drains
/// already.
pub type DrainSender = Arc<dyn Fn(Duration) -> bool + Send + Sync>;

/// A drain before a stop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DrainRequest {
    /// How long deliveries may take: `30s`, `10m`; five minutes if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub within: Option<SerdeAsText<DurationArg>>,
}

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
