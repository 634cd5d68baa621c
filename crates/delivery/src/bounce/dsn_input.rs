//! What a notice is composed from, beside its report.

use mail::{QueueId, Timestamp};

/// Of larger messages only the header is returned.
pub const ORIGINAL_OCTETS_MAX: u64 = 50_000;

/// What a notice needs beside its report.
#[derive(Clone, Copy, Debug)]
pub struct DsnComposeInput<'a> {
    /// Our host name, the reporting MTA.
    pub hostname: &'a str,
    /// The queue ID of the notice itself.
    pub id: QueueId,
    /// The date of the notice.
    pub now: Timestamp,
    /// The queue ID of the message the report is about.
    pub original_id: QueueId,
    /// The time of the last attempt, if there was one.
    pub attempted_at: Option<Timestamp>,
    /// The size of that message.
    pub octets: u64,
    /// The message itself, or as much as could be read. No more than its first
    /// [`ORIGINAL_OCTETS_MAX`] are needed.
    pub original: &'a [u8],
}
