//! Checks that the certificate files can be used, which the text alone does not show. `serve` and
//! `check` call it; the errors point into the configuration text.

use std::io;
use std::ops::Range;
use std::time::SystemTime;

use net::CertificateError;

use super::error::{ConfigError, ConfigErrors, line_number_at};
use super::secret::likely_secret_spans;
use super::{CertificateSettings, LoadedConfig};

impl CertificateSettings {
    fn to_config_error(&self, error: &CertificateError) -> ConfigError {
        let (key, place) =
            if error.concerns_key_file() { ("key", &self.key_span) } else { ("chain", &self.chain_span) };
        ConfigError::new(place.clone(), format!("`certificate.{key}` cannot be used"), error.to_string())
    }
}

/// Reads all certificates from disk. Returns errors for those that cannot be used, otherwise
/// warnings about those that clients will reject at `now`. Each warning starts with its place in
/// the text. Those that the server obtains itself are no errors: a placeholder stands for them.
pub fn check_certificates(loaded: &LoadedConfig, now: SystemTime) -> Result<Vec<String>, ConfigErrors> {
    let (mut errors, mut doubts) = (Vec::new(), Vec::new());
    for certificate in &loaded.config.certificates {
        match net::Certificate::load(&certificate.files) {
            Err(error) if certificate.obtained_for.is_some() => {
                let place = location(loaded, &certificate.chain_span);
                doubts.push(format!("{place}: {}", placeholder_warning(certificate, &error)));
            }
            Err(error) => errors.push(certificate.to_config_error(&error)),
            Ok(read) => doubts.extend(read.warning(now).map(|doubt| {
                let place = location(loaded, &certificate.chain_span);
                format!("{place}: the certificate in {} {doubt}", certificate.files.chain.display())
            })),
        }
    }
    if errors.is_empty() {
        Ok(doubts)
    } else {
        Err(ConfigErrors::new(&loaded.source.to_string(), &loaded.text, errors, &likely_secret_spans(&loaded.text)))
    }
}

/// Why clients get a placeholder.
fn placeholder_warning(certificate: &CertificateSettings, error: &CertificateError) -> String {
    let names = certificate.obtained_for.iter().flatten().map(|name| &**name).collect::<Vec<_>>().join(", ");
    let why = match error {
        CertificateError::Unreadable { error, .. } if error.kind() == io::ErrorKind::NotFound => {
            "has not been issued yet".to_owned()
        }
        error => format!("cannot be used: {error}"),
    };
    format!("the certificate for {names} {why}; clients get one that the server has signed itself until it is there")
}

fn location(loaded: &LoadedConfig, place: &Range<usize>) -> String {
    format!("{}:{}", loaded.source, line_number_at(&loaded.text, place.start))
}
