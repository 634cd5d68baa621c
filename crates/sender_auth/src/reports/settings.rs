//! What is reported, by whom, and the limits.

use std::time::Duration;

use mail::Address;

use super::counts::CountLimits;
use super::observation::ReportKind;

/// Settings of reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportSettings {
    /// Whether DMARC aggregate reports are sent.
    pub dmarc: bool,
    /// Whether SMTP TLS reports are sent.
    pub tls: bool,
    /// Who reports; None: the hostname.
    pub organization: Option<Box<str>>,
    /// Whom the readers of reports can ask, and the author of the reports; None: the postmaster.
    pub contact: Option<Address>,
    /// Reports are sent within this time after the end of a day, each at a time of its own.
    pub spread: Duration,
    /// The most destinations of one report.
    pub destinations_max: usize,
    /// Limits of what is counted in a day.
    pub counts: CountLimits,
}

impl Default for ReportSettings {
    fn default() -> Self {
        ReportSettings {
            dmarc: false,
            tls: false,
            organization: None,
            contact: None,
            spread: Duration::from_secs(4 * 3600),
            destinations_max: 4,
            counts: CountLimits::default(),
        }
    }
}

impl ReportSettings {
    /// Whether reports of this kind are sent.
    pub fn includes(&self, kind: ReportKind) -> bool {
        match kind {
            ReportKind::Dmarc => self.dmarc,
            ReportKind::Tls => self.tls,
        }
    }

    /// Whether no reports are sent.
    pub fn is_off(&self) -> bool {
        !ReportKind::ALL.into_iter().any(|kind| self.includes(kind))
    }
}
