//! Reloads certificates while the server runs: whoever renews them only writes the files. Invalid
//! files change nothing and are logged, each certificate once.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use net::{Certificate, CertificateError, TlsServer};
use parking_lot::Mutex;

use mail::{LogLevel, ServerLog};
use server_log::Log;

/// Checks the files of the current acceptor at intervals, forever, and reloads them if they
/// changed. The disk is read on a blocking thread.
pub async fn watch(certificate_watch: CertificateWatchHandle, log: Arc<Log>) {
    loop {
        tokio::time::sleep(certificate_watch.current().interval).await;
        let (Some(acceptor), log) = (certificate_watch.current().acceptor, log.clone()) else { continue };
        // It fails only if the process ends.
        let _ = tokio::task::spawn_blocking(move || reload_changed(&acceptor, &log)).await;
    }
}

/// Reloads files that changed and have not been written to since.
fn reload_changed(acceptor: &TlsServer, log: &Log) {
    let now = SystemTime::now();
    acceptor.reload_changed(now).iter().for_each(|found| log_result(found, now, log));
}

/// Reloads changed files immediately, after they were written. Returns whether any was replaced.
pub fn reload_now(acceptor: &TlsServer, log: &Log) -> bool {
    let now = SystemTime::now();
    let found = acceptor.reload_changed_now();
    found.iter().for_each(|found| log_result(found, now, log));
    found.iter().any(Result::is_ok)
}

/// The files to watch; they can be exchanged.
#[derive(Clone)]
pub struct CertificateWatchHandle(Arc<Mutex<WatchConfig>>);

/// The acceptor whose certificates are reloaded.
#[derive(Clone)]
pub struct WatchConfig {
    /// The acceptor; None without TLS.
    pub acceptor: Option<Arc<TlsServer>>,
    /// The interval between checks.
    pub interval: Duration,
}

impl CertificateWatchHandle {
    /// Watches this acceptor first.
    pub fn new(fresh: WatchConfig) -> CertificateWatchHandle {
        CertificateWatchHandle(Arc::new(Mutex::new(fresh)))
    }

    /// Watches this acceptor from the next check on.
    pub fn set_config(&self, fresh: WatchConfig) {
        *self.0.lock() = fresh;
    }

    /// What it watches now.
    pub fn current(&self) -> WatchConfig {
        self.0.lock().clone()
    }
}

fn log_result(found: &Result<Certificate, CertificateError>, now: SystemTime, log: &Log) {
    match found {
        Ok(certificate) => {
            let names = certificate.names().join(",");
            log.event(LogLevel::Info, "reloaded a changed certificate", &[("names", &names)]);
            if let Some(doubt) = certificate.warning(now) {
                log.event(LogLevel::Warning, &format!("a certificate {doubt}"), &[("names", &names)]);
            }
        }
        // Perhaps only the permission is missing: root privileges were dropped after the start.
        Err(error @ CertificateError::Unreadable { .. }) => {
            let text = "cannot read the files of a certificate to see whether it changed; the current one stays in use";
            log.event(LogLevel::Error, text, &[("error", error)]);
        }
        Err(error) => {
            log.event(
                LogLevel::Error,
                "cannot use a changed certificate; the old one stays in use",
                &[("error", error)],
            );
        }
    }
}
