//! What became of observations and of reports, for metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why an observation is in no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedObservation {
    /// The thread that counts is behind.
    Line,
    /// Too many domains in a day.
    Domains,
    /// Too many rows of a domain.
    Rows,
    /// Too many octets in a day.
    Octets,
}

impl DroppedObservation {
    /// All reasons.
    pub const ALL: [DroppedObservation; 4] =
        [DroppedObservation::Line, DroppedObservation::Domains, DroppedObservation::Rows, DroppedObservation::Octets];

    /// The word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            DroppedObservation::Line => "line",
            DroppedObservation::Domains => "domains",
            DroppedObservation::Rows => "rows",
            DroppedObservation::Octets => "octets",
        }
    }
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportResult {
    /// It is in the queue.
    Sent,
    /// The domain names no destination that takes mail.
    NoDestination,
    /// A destination has not agreed to get reports about the domain.
    Unverified,
    /// It is larger than a destination allows.
    TooLarge,
    /// It could not be sent in time.
    Expired,
}

impl ReportResult {
    /// All of them.
    pub const ALL: [ReportResult; 5] = [
        ReportResult::Sent,
        ReportResult::NoDestination,
        ReportResult::Unverified,
        ReportResult::TooLarge,
        ReportResult::Expired,
    ];

    /// The word in metrics and in the answers of commands.
    pub fn as_str(self) -> &'static str {
        match self {
            ReportResult::Sent => "sent",
            ReportResult::NoDestination => "no_destination",
            ReportResult::Unverified => "unverified",
            ReportResult::TooLarge => "too_large",
            ReportResult::Expired => "expired",
        }
    }
}

/// The counters since the start.
#[derive(Debug, Default)]
pub struct ReportCounters {
    dropped: [AtomicU64; DroppedObservation::ALL.len()],
    reports: [AtomicU64; ReportResult::ALL.len()],
}

impl ReportCounters {
    /// Observations that are in no report, by the reason.
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        DroppedObservation::ALL.iter().map(|why| (why.as_str(), self.dropped[*why as usize].load(Relaxed)))
    }

    /// What became of reports, once for each destination.
    pub fn reports(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ReportResult::ALL.iter().map(|result| (result.as_str(), self.reports[*result as usize].load(Relaxed)))
    }

    pub(crate) fn count_dropped(&self, why: DroppedObservation) {
        self.dropped[why as usize].fetch_add(1, Relaxed);
    }

    /// Counts what became of reports.
    pub fn count_reports(&self, result: ReportResult, count: u64) {
        self.reports[result as usize].fetch_add(count, Relaxed);
    }
}
