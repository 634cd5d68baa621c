//! Certificates change while the server runs: whoever renews them writes the files, and nobody has to tell the server. Files
//! that are wrong change nothing but the log.

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
    if let Some(reloaded) = acceptor.reload_if_changed() {
        tell(&reloaded, SystemTime::now(), log);
    }
}

fn tell(reloaded: &Result<Vec<Certificate>, CertificateError>, now: SystemTime, log: &Log) {
    match reloaded {
        Ok(certificates) => {
            let fields: &[_] = &[("certificates", &certificates.len() as &dyn std::fmt::Display)];
            log.event(Level::Info, "certificates have changed and were read anew", fields);
            for certificate in certificates {
                if let Some(doubt) = certificate.doubt(now) {
                    let text = format!("a certificate {doubt}");
                    log.event(Level::Warning, &text, &[("names", &certificate.names().join(","))]);
                }
            }
        }
        Err(error) => {
            log.event(
                Level::Error,
                "certificates have changed and cannot be used: the old ones stay",
                &[("error", error)],
            );
        }
    }
}
