//! What can be wrong with the domain of a sender. The null sender and address literals have no fault.
//!
//! | fault | the domain |
//! |---|---|
//! | not qualified | has no dot |
//! | unknown | has no mail host and no address in the DNS, or accepts no mail (RFC 7505) |

use std::sync::Arc;

use super::HostNames;
use crate::check::SessionInfo;

/// A fault of a sender's domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderFault {
    /// It has no dot.
    NotQualified,
    /// The DNS knows no host for its mail.
    Unknown,
}

impl SenderFault {
    /// Both.
    pub const ALL: [SenderFault; 2] = [SenderFault::NotQualified, SenderFault::Unknown];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            SenderFault::NotQualified => "not_qualified",
            SenderFault::Unknown => "unknown",
        }
    }
}

/// The faults that a rule names.
pub struct SenderFaults {
    /// At least one.
    pub faults: Box<[SenderFault]>,
    /// Knows which domains accept mail.
    pub names: Arc<dyn HostNames>,
}

impl SenderFaults {
    /// Whether the domain has a fault that needs no DNS.
    pub(super) fn has_evident_fault(&self, info: &SessionInfo<'_>) -> bool {
        let names_it = self.faults.contains(&SenderFault::NotQualified);
        names_it && domain(info).is_some_and(|domain| !domain.contains('.'))
    }

    /// The domain that the DNS is asked for, in lower case. None: it need not be.
    pub(super) fn domain_to_ask(&self, info: &SessionInfo<'_>) -> Option<String> {
        domain(info).filter(|_| self.faults.contains(&SenderFault::Unknown)).map(str::to_lowercase)
    }
}

fn domain<'a>(info: &SessionInfo<'a>) -> Option<&'a str> {
    info.sender?.map(|sender| sender.domain()).filter(|domain| !domain.starts_with('['))
}
