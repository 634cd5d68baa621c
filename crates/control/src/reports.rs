//! What operators ask about reports to the owners of other domains. The sender of reports answers; this
//! module only puts it into words.

use std::sync::Arc;

use mail::Address;
use sender_auth::reports::{ReportCounters, ReportKind, ReportSummary, UtcDay};
use serde_json::{Value, json};

/// The sender of reports, as far as operators can ask it.
pub trait ReportOperator: Send + Sync {
    /// What is counted, and not reported yet. None: the server is stopping.
    fn pending(&self) -> Option<Vec<ReportSummary>>;

    /// Sends all reports about this domain now, with what has been counted so far. None: the server is
    /// stopping.
    fn send_now(&self, domain: &str) -> Option<Vec<SentReport>>;
}

/// What became of a report at one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentReport {
    /// The day of its counts.
    pub day: UtcDay,
    /// Its kind.
    pub kind: ReportKind,
    /// The destination; None: there is none.
    pub to: Option<Address>,
    /// The word for it.
    pub result: &'static str,
}

/// What a handler needs to answer.
#[derive(Clone)]
pub struct ReportParts {
    /// The sender of reports.
    pub operator: Arc<dyn ReportOperator>,
    /// Its counters.
    pub counters: Arc<ReportCounters>,
}

/// The object for counts that are not reported yet.
pub(crate) fn summary_json(summary: &ReportSummary) -> Value {
    json!({
        "day": summary.day.to_string(),
        "kind": summary.subject.kind.as_str(),
        "domain": summary.subject.domain,
        "rows": summary.rows,
        "count": summary.total,
    })
}

/// The object for a report that was to be sent.
pub(crate) fn sent_json(sent: &SentReport) -> Value {
    json!({
        "day": sent.day.to_string(),
        "kind": sent.kind.as_str(),
        "to": sent.to.as_ref().map(Address::as_str),
        "result": sent.result,
    })
}
