//! Reloads certificates while the server runs: whoever renews them only writes the files. Invalid
//! files change nothing and are logged, each certificate once. The certificates that the server obtains
//! itself (`acme`) come the same way, without the wait.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use acme::{CertificateRenewer, RenewalPlan, RenewerParts};
use config::{self, Config, LoadedConfig};
use net::{Certificate, CertificateError, ChallengeStore, TlsServer};
use parking_lot::Mutex;

use mail::{LogLevel, ServerLog};
use server_log::Log;

use crate::{from_config, server_parts};

/// The certificates as they are before the server starts.
pub struct PreparedCertificates {
    challenges: Arc<ChallengeStore>,
    acceptor: Option<Arc<TlsServer>>,
    doubts: Vec<String>,
}

/// What obtains the certificates of the listeners, and what reloads them.
pub struct RunningCertificates {
    /// The answers to certificate authorities, which the listeners give.
    pub challenges: Arc<ChallengeStore>,
    /// The acceptor whose files are watched.
    pub watch: CertificateWatchHandle,
    /// Obtains certificates, once it has a plan.
    pub renewer: Arc<CertificateRenewer>,
}

impl PreparedCertificates {
    /// Reads the certificates.
    ///
    /// # Errors
    ///
    /// One of them cannot be used.
    pub fn load(loaded: &LoadedConfig) -> anyhow::Result<PreparedCertificates> {
        let doubts = config::check_certificates(loaded, SystemTime::now())?;
        let challenges = Arc::default();
        let acceptor = from_config::load_tls_acceptor(&loaded.config, &challenges)?;
        Ok(PreparedCertificates { challenges, acceptor, doubts })
    }

    /// Logs what is doubtful about them, and starts the thread that obtains others.
    ///
    /// # Errors
    ///
    /// The system has no thread or no event queue left.
    pub fn start(self, config: &Config, log: &Arc<Log>) -> io::Result<RunningCertificates> {
        let PreparedCertificates { challenges, acceptor, doubts } = self;
        doubts.iter().for_each(|doubt| log.event(LogLevel::Warning, doubt, &[]));
        let watch = CertificateWatchHandle::new(WatchConfig { acceptor, interval: config.tls.reload_every });
        let (watched, reload_log) = (watch.clone(), log.clone());
        let on_issued = move || {
            if let Some(acceptor) = watched.current().acceptor {
                reload_now(&acceptor, &reload_log);
            }
        };
        let parts = RenewerParts {
            challenges: challenges.clone(),
            on_issued: Box::new(on_issued),
            random: server_parts::random,
            log: log.clone(),
        };
        Ok(RunningCertificates { challenges, watch, renewer: Arc::new(CertificateRenewer::start(parts)?) })
    }
}

impl RunningCertificates {
    /// Switches to another configuration, with the acceptor that was made for it.
    pub fn reconfigure(&self, acceptor: Option<Arc<TlsServer>>, config: &Config, drain_only: bool) {
        self.watch.set_config(WatchConfig { acceptor, interval: config.tls.reload_every });
        self.obtain(config, drain_only);
    }

    /// Obtains the certificates of this configuration from now on. A server that only drains its queue
    /// has no listeners, so that no authority could ask it.
    pub fn obtain(&self, config: &Config, drain_only: bool) {
        self.renewer.reconfigure(renewal_plan(config).filter(|_| !drain_only));
    }

    /// What operators can ask.
    pub fn control_parts(&self) -> control::CertificateParts {
        control::CertificateParts { tls_server: self.watch.current().acceptor, renewer: Some(self.renewer.clone()) }
    }
}

/// The certificates that the server obtains.
fn renewal_plan(config: &Config) -> Option<RenewalPlan> {
    let certificates = config.certificates.iter().filter_map(|certificate| certificate.obtained_for.clone());
    Some(RenewalPlan { settings: config.acme.clone()?, certificates: certificates.collect() })
}

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
