//! What verifies, signs and rewrites senders, as the configuration in force wants it.

use std::sync::Arc;

use config::Config;
use sender_auth::SenderAuth;
use sender_auth::srs::SrsRewriter;

use crate::from_config;
use crate::signing::SigningParts;
use crate::tables::OpenTables;

/// The parts of a server that are about senders.
#[derive(Clone)]
pub struct SenderParts {
    /// The check of senders.
    pub auth: Option<Arc<SenderAuth>>,
    /// What signs.
    pub signing: SigningParts,
    /// What rewrites senders of forwarded mail.
    pub srs: Option<Arc<SrsRewriter>>,
}

impl SenderParts {
    /// Reads the keys and secrets of an unchanged configuration again. Returns what has changed, for
    /// the operator.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or has no key or secret.
    pub fn reload_files(&self, config: &Config, tables: &OpenTables) -> anyhow::Result<Vec<String>> {
        let has_new_keys = self.signing.reload_keys(config, tables)?;
        let has_new_secrets = from_config::reload_srs_secrets(config, self.srs.as_deref())?;
        let changes = [(has_new_keys, "signing keys"), (has_new_secrets, "secrets of SRS")];
        Ok(changes.into_iter().filter(|(has_changed, _)| *has_changed).map(|(_, what)| what.to_owned()).collect())
    }
}
