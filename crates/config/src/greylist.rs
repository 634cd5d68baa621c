//! `[greylist]`.

use std::path::PathBuf;

use filter::greylist::GreylistSettings;

use super::EnvelopePattern;

/// How unknown senders are deferred, and where the state is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GreylistConfig {
    /// The settings of the check.
    pub settings: GreylistSettings,
    /// Recipients that need not wait.
    pub exempt_recipients: Vec<EnvelopePattern>,
    /// The file with the state.
    pub file: PathBuf,
}
