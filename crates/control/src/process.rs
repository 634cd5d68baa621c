//! What operators ask of the process as a whole: its configuration, and to drain its queue and stop. The
//! binary answers, behind values that it passes; this module knows no configuration.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::text::{DurationArg, SerdeAsText};

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
