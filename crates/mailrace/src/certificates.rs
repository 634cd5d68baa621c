//! Certificates change while the server runs: whoever renews them writes the files, and nobody has to tell the server. Files
//! that are wrong change nothing but the log, which tells of each certificate by itself, and once.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use net::{Acceptor, Certificate, CertificateError};

use crate::line::Level;
use crate::log::Log;

/// Looks at the files every so often, for ever, and has them read anew where they changed. The disk is waited for on a
/// thread that does nothing else.
pub async fn keep_fresh(acceptor: Arc<Acceptor>, every: Duration, log: Arc<Log>) {
    loop {
        tokio::time::sleep(every).await;
        let (acceptor, log) = (acceptor.clone(), log.clone());
        // It ends early only where the process does.
        let _ = tokio::task::spawn_blocking(move || look(&acceptor, &log)).await;
    }
}

fn look(acceptor: &Acceptor, log: &Log) {
    let now = SystemTime::now();
    acceptor.reload_changed(now).iter().for_each(|found| tell(found, now, log));
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
