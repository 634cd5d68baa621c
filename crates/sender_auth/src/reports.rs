//! Reports to the owners of other domains: about mail in their name (DMARC aggregate reports, RFC 9990)
//! and about TLS with their hosts (SMTP TLS reports, RFC 8460). Both are counted and written by the same
//! code; only their rows and their texts differ.
//!
//! | step | here | bounded by |
//! |---|---|---|
//! | a session or a delivery submits an observation | [`ReportCollector`] | a line that nobody waits for |
//! | its thread counts it, by day, domain and row | `counts` | domains, rows, octets of a day |
//! | the counts are in a file for each day | [`ReportStore`], `day_file` | the octets of a day, twice |
//! | after the day, a report is written | [`compose_report`] | its counts |
//! | it goes to the destinations that want it | [`destination`] | destinations of a domain |
//!
//! What exceeds a bound is counted and not reported. A crash loses the counts of the last seconds. The
//! sender of reports is not here: it needs the spool.

mod collector;
mod counters;
mod counts;
mod day_file;
pub mod destination;
mod dmarc_xml;
mod observation;
mod report_mail;
mod reporter;
mod settings;
mod store;
mod tls_json;
mod utc_day;

pub use crate::dmarc::record::{Policy, PublishedPolicy};
pub use collector::ReportCollector;
pub use counters::{DroppedObservation, ReportCounters, ReportResult};
pub use counts::{CollectedReport, CountLimits, DayCounts};
pub use observation::{
    Disposition, DkimSignatureResult, DmarcRow, Observation, OverrideReason, ReportKind, ReportRow, ReportSubject,
    SpfDomainResult, TlsRow,
};
pub use report_mail::{compose_report, report_content};
pub use reporter::Reporter;
pub use settings::ReportSettings;
pub use store::{DueReport, ReportStore, ReportSummary};
pub use utc_day::UtcDay;
