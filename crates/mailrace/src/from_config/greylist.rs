//! The greylist, from `[greylist]`. A reload keeps what it knows, unless the file is another one.

use std::sync::Arc;

use anyhow::Context;
use config::Config;
use filter::CheckFactory;
use filter::greylist::{Greylist, GreylistFile};
use mail::{Address, OperatorLog};

/// What the greylist knows; None if it is off.
///
/// # Errors
///
/// The file cannot be read, or the system cannot create a thread.
pub fn greylist_file(
    config: &Config,
    before: Option<&Arc<GreylistFile>>,
    log: Arc<dyn OperatorLog>,
) -> anyhow::Result<Option<Arc<GreylistFile>>> {
    let Some(greylist) = &config.greylist else { return Ok(None) };
    if let Some(same) = before.filter(|before| before.path() == greylist.file) {
        return Ok(Some(same.clone()));
    }
    let opened = GreylistFile::open(&greylist.file, &greylist.settings, log);
    let opened = opened.with_context(|| format!("the greylist {}", greylist.file.display()))?;
    Ok(Some(Arc::new(opened)))
}

/// The check of sessions.
pub fn greylist_check(config: &Config, file: Option<&GreylistFile>) -> Option<Arc<dyn CheckFactory>> {
    let greylist = config.greylist.as_ref()?;
    let exempt = greylist.exempt_recipients.clone();
    Some(Arc::new(Greylist {
        settings: greylist.settings.clone(),
        exempt_recipients: Arc::new(move |recipient: &Address| exempt.iter().any(|own| own.matches(Some(recipient)))),
        memory: file?.memory().clone(),
    }))
}
