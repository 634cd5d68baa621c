//! Who reports.

use mail::Address;

/// What reports say about this server and its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reporter {
    /// The name of the organization.
    pub organization: Box<str>,
    /// The author of the reports, whom their readers can ask.
    pub contact: Address,
    /// The name of this server, which is part of identifiers and names of files.
    pub hostname: Box<str>,
}
