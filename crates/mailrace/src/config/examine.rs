//! What the text of a configuration cannot tell: whether the files of its certificates can be used. Asked by those who
//! need them, `serve` and `check`, and told as faults of the text, with their places.

use std::ops::Range;
use std::time::SystemTime;

use net::{CertificateError, CertificateFiles};

use super::fault::{Fault, Faults, line_of};
use super::secret::likely_places;
use super::{Certificate, Loaded};

impl Certificate {
    /// As the room of sockets has it.
    pub fn files(&self) -> CertificateFiles {
        CertificateFiles { chain: self.chain.clone(), key: self.key.clone(), names: self.names.clone() }
    }

    fn fault(&self, error: &CertificateError) -> Fault {
        let (key, place) = if error.is_of_key() { ("key", &self.key_place) } else { ("chain", &self.chain_place) };
        Fault::new(place.clone(), format!("`certificate.{key}` cannot be used"), error.to_string())
    }
}

/// Reads all certificates: what is wrong with them; or else what clients will not like about them at `now`, a sentence
/// each that begins with its place. Waits for the disk.
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
