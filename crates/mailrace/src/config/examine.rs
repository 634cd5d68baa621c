//! Checks that the certificate files can be used, which the text alone does not show. `serve` and
//! `check` call it; the errors point into the configuration text.

use std::ops::Range;
use std::time::SystemTime;

use net::{CertificateError, CertificateFiles};

use super::fault::{Fault, Faults, line_of};
use super::secret::likely_places;
use super::{Certificate, Loaded};

impl Certificate {
    /// In the type of the `net` crate.
    pub fn files(&self) -> CertificateFiles {
        CertificateFiles { chain: self.chain.clone(), key: self.key.clone(), names: self.names.clone() }
    }

    fn fault(&self, error: &CertificateError) -> Fault {
        let (key, place) = if error.is_of_key() { ("key", &self.key_place) } else { ("chain", &self.chain_place) };
        Fault::new(place.clone(), format!("`certificate.{key}` cannot be used"), error.to_string())
    }
}

/// Reads all certificates from disk. Returns errors for those that cannot be used, otherwise
/// warnings about those that clients will reject at `now`. Each warning starts with its place in
/// the text.
pub fn examine(loaded: &Loaded, now: SystemTime) -> Result<Vec<String>, Faults> {
    let (mut faults, mut doubts) = (Vec::new(), Vec::new());
    for certificate in &loaded.config.certificates {
        match net::Certificate::load(&certificate.files()) {
            Err(error) => faults.push(certificate.fault(&error)),
            Ok(read) => doubts.extend(read.doubt(now).map(|doubt| {
                let place = shown(loaded, &certificate.chain_place);
                format!("{place}: the certificate in {} {doubt}", certificate.chain.display())
            })),
        }
    }
    if faults.is_empty() {
        Ok(doubts)
    } else {
        Err(Faults::new(&loaded.source.to_string(), &loaded.text, faults, &likely_places(&loaded.text)))
    }
}

fn shown(loaded: &Loaded, place: &Range<usize>) -> String {
    format!("{}:{}", loaded.source, line_of(&loaded.text, place.start))
}
