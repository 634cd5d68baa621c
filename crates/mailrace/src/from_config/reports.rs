//! Reports to the owners of other domains, from `[reports]`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use config::Config;
use dns::Resolver;
use lookup::directory::RecipientDirectory;
use sender_auth::reports::{ReportCollector, ReportStore, Reporter};
use server_log::Log;

use super::{postmaster_address, throttled_log};
use crate::report_sender::ReportContext;
use crate::signing::SigningParts;

/// Starts to count; None if no reports are sent.
///
/// # Errors
///
/// The folder of the counts cannot be used, or the system has no thread left.
pub fn report_collector(config: &Config, log: &Arc<Log>) -> anyhow::Result<Option<ReportCollector>> {
    if config.reports.is_off() {
        return Ok(None);
    }
    let folder = report_folder(&config.data_dir);
    let store = ReportStore::open(&folder, config.reports.counts, SystemTime::now().into());
    let store = store.with_context(|| format!("the counts of reports in {}", folder.display()))?;
    let collector = ReportCollector::start(store, Arc::new(throttled_log(log.clone())));
    Ok(Some(collector.context("starting the thread that counts for reports")?))
}

fn report_folder(data_dir: &Path) -> PathBuf {
    data_dir.join("reports")
}

/// What sends them.
///
/// # Errors
///
/// The system configures no name server, or the hostname is no domain.
pub fn report_context(
    config: &Config,
    directory: Arc<RecipientDirectory>,
    signing: &SigningParts,
    log: &Arc<Log>,
) -> anyhow::Result<ReportContext> {
    let contact = match &config.reports.contact {
        Some(contact) => contact.clone(),
        None => postmaster_address(config)?,
    };
    Ok(ReportContext {
        directory,
        signer: signing.notice_signer(config, Arc::new(throttled_log(log.clone()))),
        dns: Arc::new(Resolver::new(&config.dns).context("the DNS of [reports]")?),
        reporter: Reporter {
            organization: config.reports.organization.clone().unwrap_or_else(|| config.hostname.clone()),
            contact,
            hostname: config.hostname.clone(),
        },
    })
}
