//! Certificates change while the server runs: whoever renews them writes the files, and nobody has to tell the server. Files
//! that are wrong change nothing but the log, which tells of each certificate by itself, and once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use net::{Acceptor, Certificate, CertificateError};

use crate::line::Level;
use crate::log::Log;

/// Looks at the files of whoever makes sessions secure now, every so often, for ever, and has them read anew where they
/// changed. The disk is waited for on a thread that does nothing else.
pub async fn keep_fresh(watched: Watched, log: Arc<Log>) {
    loop {
        tokio::time::sleep(watched.now().every).await;
        let (Some(acceptor), log) = (watched.now().acceptor, log.clone()) else { continue };
        // It ends early only where the process does.
        let _ = tokio::task::spawn_blocking(move || look(&acceptor, &log)).await;
    }
}

/// Has files read anew where they changed; whether they did.
pub fn look(acceptor: &Acceptor, log: &Log) -> bool {
    let now = SystemTime::now();
    let found = acceptor.reload_changed(now);
    found.iter().for_each(|found| tell(found, now, log));
    !found.is_empty()
}

/// What is looked at, which may become something else.
#[derive(Clone)]
pub struct Watched(Arc<Mutex<Fresh>>);

/// Who is to have fresh certificates.
#[derive(Clone)]
pub struct Fresh {
    /// Who makes sessions secure; None where that is not done.
    pub acceptor: Option<Arc<Acceptor>>,
    /// The time between looks.
    pub every: Duration,
}

impl Watched {
    /// Looks at these first.
    pub fn new(fresh: Fresh) -> Watched {
        Watched(Arc::new(Mutex::new(fresh)))
    }

    /// Looks at these from the next time on.
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
            log.event(Level::Info, "a certificate has changed and was read anew", &[("names", &names)]);
            if let Some(doubt) = certificate.doubt(now) {
                log.event(Level::Warning, &format!("a certificate {doubt}"), &[("names", &names)]);
            }
        }
        // It may be only the right to read them that has changed: root's was given up after the start.
        Err(error @ CertificateError::Unreadable { .. }) => {
            let text = "a certificate's files cannot be read to see whether it was renewed: the one in force stays";
            log.event(Level::Error, text, &[("error", error)]);
        }
        Err(error) => {
            log.event(
                Level::Error,
                "a certificate has changed and cannot be used: the old one stays",
                &[("error", error)],
            );
        }
    }
}
