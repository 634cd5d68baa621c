//! What is known of a condition.

/// The result of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConditionResult {
    /// It matches.
    Holds,
    /// It matches: the table has the subject, with this value.
    Value(String),
    /// It matches: the DNS list has this name.
    Listed(String),
    /// It does not match.
    Fails,
    /// The table is unavailable; the reason.
    TableUnavailable(String),
    /// The DNS list is unavailable and lists nothing; the reason.
    DnsblUnavailable(String),
    /// A table or a DNS list must be queried.
    Pending,
}
