//! What is known of a notice once it is submitted: for the log, and for the outcomes it reports.

use mail::{Envelope, LoggedHeader, MailEvent, QueueId};

use super::Dsn;

/// A notice that was submitted to the spool.
pub struct SubmittedNotice {
    /// Its queue id.
    pub id: QueueId,
    /// The ordinals of the recipients that it reports.
    pub ordinals: Vec<u32>,
    /// How many recipients the notice has.
    recipients: usize,
    /// Its size in bytes.
    pub size: u64,
    /// The header fields for the log.
    header: LoggedHeader,
}

impl SubmittedNotice {
    /// The notice `dsn`, in this envelope.
    pub fn new(dsn: &Dsn, id: QueueId, ordinals: Vec<u32>, envelope: &Envelope) -> SubmittedNotice {
        // The subject would be our own text.
        let header = mail::find_logged_header(&dsn.content, false);
        SubmittedNotice { id, ordinals, recipients: envelope.recipients.len(), size: dsn.content.len() as u64, header }
    }

    /// The log event for the notice.
    pub fn received_event(&self, hostname: &str) -> MailEvent {
        MailEvent::Received {
            id: self.id,
            client: None,
            helo: hostname.into(),
            sender: None,
            recipients: self.recipients,
            size: self.size,
            protocol: "bounce",
            security: None,
            user: None,
            header: self.header.clone(),
            auth: None,
        }
    }
}
