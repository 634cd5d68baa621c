//! Reloads certificates while the server runs: whoever renews them only writes the files. Invalid
//! files change nothing and are logged, each certificate once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use net::{Acceptor, Certificate, CertificateError};

use crate::line::Level;
use crate::log::Log;

/// Checks the files of the current acceptor at intervals, forever, and reloads them if they
/// changed. The disk is read on a blocking thread.
pub async fn keep_fresh(watched: Watched, log: Arc<Log>) {
    loop {
        tokio::time::sleep(watched.now().every).await;
        let (Some(acceptor), log) = (watched.now().acceptor, log.clone()) else { continue };
        // It fails only if the process ends.
        let _ = tokio::task::spawn_blocking(move || look(&acceptor, &log)).await;
    }
}

/// Reloads files that changed and have not been written to since.
fn look(acceptor: &Acceptor, log: &Log) {
    let now = SystemTime::now();
    acceptor.reload_changed(now).iter().for_each(|found| tell(found, now, log));
}

/// Reloads changed files immediately, after they were written. Returns whether any was replaced.
pub fn look_at_once(acceptor: &Acceptor, log: &Log) -> bool {
    let now = SystemTime::now();
    let found = acceptor.reload_ready();
    found.iter().for_each(|found| tell(found, now, log));
    found.iter().any(Result::is_ok)
}

/// The files to watch; they can be exchanged.
#[derive(Clone)]
pub struct Watched(Arc<Mutex<Fresh>>);

/// The acceptor whose certificates are reloaded.
#[derive(Clone)]
pub struct Fresh {
    /// The acceptor; None without TLS.
    pub acceptor: Option<Arc<Acceptor>>,
    /// The interval between checks.
    pub every: Duration,
}

impl Watched {
    /// Watches this acceptor first.
    pub fn new(fresh: Fresh) -> Watched {
        Watched(Arc::new(Mutex::new(fresh)))
    }

    /// Watches this acceptor from the next check on.
    pub fn change(&self, fresh: Fresh) {
        // The lock guards one assignment.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    fn now(&self) -> Fresh {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn tell(found: &Result<Certificate, CertificateError>, now: SystemTime, log: &Log) {
    match found {
        Ok(certificate) => {
            let names = certificate.names().join(",");
            log.event(Level::Info, "reloaded a changed certificate", &[("names", &names)]);
            if let Some(doubt) = certificate.doubt(now) {
                log.event(Level::Warning, &format!("a certificate {doubt}"), &[("names", &names)]);
            }
        }
        // Perhaps only the permission is missing: root privileges were dropped after the start.
        Err(error @ CertificateError::Unreadable { .. }) => {
            let text = "cannot read the files of a certificate to see whether it changed; the current one stays in use";
            log.event(Level::Error, text, &[("error", error)]);
        }
        Err(error) => {
            log.event(Level::Error, "cannot use a changed certificate; the old one stays in use", &[("error", error)]);
        }
    }
}
