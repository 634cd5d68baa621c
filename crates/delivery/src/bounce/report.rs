//! Decides who is notified of what: the results of one attempt, filtered by the NOTIFY parameters
//! of the message.
//!
//! A [`DsnReport`] exists only if there is something to report and an address to send it to.
//! Recipients that are not in it cause no notice (RFC 3461 section 5.2.8).

use mail::{Address, DsnNotify, DsnReturn, Envelope, Recipient, Reply, Timestamp};

use super::dsn_input::ORIGINAL_OCTETS_MAX;

/// The result of one attempt for one recipient.
#[derive(Clone, Copy, Debug)]
pub struct RecipientResult<'a> {
    /// The index of the recipient in the envelope.
    pub ordinal: u32,
    /// The result.
    pub action: DsnAction<'a>,
    /// The host that answered; None if no other host was involved (RFC 3464 section 2.3.5).
    pub peer: Option<&'a str>,
}

/// The result for a recipient, with the reply that caused it.
#[derive(Clone, Copy, Debug)]
pub enum DsnAction<'a> {
    /// Delivery failed for good.
    Failed(&'a Reply),
    /// Delivery has been delayed long enough to tell the sender.
    Delayed {
        /// The last reply.
        reply: &'a Reply,
        /// When the message expires.
        until: Timestamp,
    },
    /// Delivered to a mailbox here.
    Delivered,
    /// Accepted by a next hop.
    Relayed {
        /// The reply that accepted it.
        reply: &'a Reply,
        /// The next hop has DSN and reports to the sender itself: we send no notice (RFC 3461
        /// section 5.2.1).
        dsn: bool,
    },
}

/// The results, in ascending order of importance. The most important one in a report determines its
/// subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DsnKind {
    /// Delivered to a mailbox here.
    Delivered,
    /// Accepted by a next hop without DSN.
    Relayed,
    /// Not yet delivered.
    Delayed,
    /// Failed for good.
    Failed,
}

/// Who is notified of which recipients of one attempt.
#[derive(Debug)]
pub struct DsnReport<'a> {
    pub(super) to: &'a Address,
    pub(super) envelope: &'a Envelope,
    pub(super) entries: Vec<DsnRecipient<'a>>,
}

/// A recipient in the report.
#[derive(Debug)]
pub(super) struct DsnRecipient<'a> {
    pub(super) ordinal: u32,
    pub(super) recipient: &'a Recipient,
    pub(super) action: DsnAction<'a>,
    pub(super) peer: Option<&'a str>,
}

impl<'a> DsnReport<'a> {
    /// Selects what to report and to whom: for a given sender, what NOTIFY asks for; for the null
    /// sender, failures go to the `postmaster` if there is one, except failures of the postmaster's
    /// own address. None: there is nothing to report.
    pub fn build(
        envelope: &'a Envelope,
        postmaster: Option<&'a Address>,
        findings: impl IntoIterator<Item = RecipientResult<'a>>,
    ) -> Option<Self> {
        let to = envelope.sender.as_ref().or(postmaster)?;
        let is_reported = |entry: &DsnRecipient<'_>| match envelope.sender {
            Some(_) => entry.is_wanted(),
            None => entry.is_double_bounce(to),
        };
        let entries = findings.into_iter().filter_map(|RecipientResult { ordinal, action, peer }| {
            let recipient = envelope.recipients.get(ordinal as usize)?;
            Some(DsnRecipient { ordinal, recipient, action, peer }).filter(is_reported)
        });
        let entries: Vec<_> = entries.collect();
        (!entries.is_empty()).then_some(DsnReport { to, envelope, entries })
    }

    /// The address the notice goes to.
    pub fn notified_address(&self) -> &'a Address {
        self.to
    }

    /// The same report, addressed to another address of the sender.
    pub fn with_notified_address(self, to: &'a Address) -> Self {
        DsnReport { to, ..self }
    }

    /// The recipient, if the report goes to the sender and is about the failure of this recipient
    /// alone.
    pub fn sole_failed_recipient(&self) -> Option<&'a Address> {
        match &*self.entries {
            [only] if only.action.kind() == DsnKind::Failed && !self.is_double_bounce() => {
                Some(&only.recipient.address)
            }
            _ => None,
        }
    }

    /// Whether the client that sent the message is trusted, so that its sender is not forged.
    pub fn is_from_trusted_client(&self) -> bool {
        self.envelope.client.trusted
    }

    /// The number of recipients in the report.
    pub fn recipient_count(&self) -> usize {
        self.entries.len()
    }

    /// Whether it reports a message with a null sender to the postmaster.
    pub fn is_double_bounce(&self) -> bool {
        self.envelope.sender.is_none()
    }

    /// The most important result in the report.
    pub fn kind(&self) -> DsnKind {
        self.entries.iter().map(|entry| entry.action.kind()).max().expect("a report has at least one recipient")
    }

    /// Whether the report includes this recipient.
    pub fn includes_recipient(&self, ordinal: u32) -> bool {
        self.entries.iter().any(|entry| entry.ordinal == ordinal)
    }

    /// How much of a message of this size to return: all of it, unless nothing failed (RFC 3461
    /// section 6.2), RET=HDRS was given or it is too large.
    pub(super) fn returned_portion(&self, octets: u64) -> DsnReturn {
        let is_short = self.kind() == DsnKind::Failed && octets <= ORIGINAL_OCTETS_MAX;
        match self.envelope.ret {
            None | Some(DsnReturn::Full) if is_short => DsnReturn::Full,
            _ => DsnReturn::Headers,
        }
    }

    /// Whether the report contains a non-ASCII address.
    pub(super) fn is_international(&self) -> bool {
        let is_plain = |recipient: &Recipient| {
            recipient.address.is_ascii()
                && recipient.original.as_ref().is_none_or(Address::is_ascii)
                && recipient.orcpt.as_deref().is_none_or(str::is_ascii)
        };
        !self.to.is_ascii() || !self.entries.iter().all(|entry| is_plain(entry.recipient))
    }
}

impl DsnRecipient<'_> {
    /// Whether NOTIFY asks for this result (RFC 3461 sections 4.1 and 5.2). Without NOTIFY, delays
    /// are reported.
    fn is_wanted(&self) -> bool {
        let notify = self.recipient.notify;
        match self.action {
            DsnAction::Failed(_) => notify.wants_failure(),
            DsnAction::Delayed { .. } => notify == DsnNotify::UNSET || notify.contains(DsnNotify::DELAY),
            DsnAction::Delivered | DsnAction::Relayed { dsn: false, .. } => notify.contains(DsnNotify::SUCCESS),
            DsnAction::Relayed { dsn: true, .. } => false,
        }
    }

    /// Whether to report this to the postmaster because the sender is null. NOTIFY is ignored: a
    /// notice carries NEVER so that nothing returns to its sender (RFC 3461 section 6.1), and it
    /// has none; informing the postmaster is allowed even then (section 5.2.6).
    fn is_double_bounce(&self, postmaster: &Address) -> bool {
        let Recipient { address, original, .. } = self.recipient;
        self.action.kind() == DsnKind::Failed && address != postmaster && original.as_ref() != Some(postmaster)
    }
}

impl DsnAction<'_> {
    pub(super) fn kind(&self) -> DsnKind {
        match self {
            DsnAction::Failed(_) => DsnKind::Failed,
            DsnAction::Delayed { .. } => DsnKind::Delayed,
            DsnAction::Delivered => DsnKind::Delivered,
            DsnAction::Relayed { .. } => DsnKind::Relayed,
        }
    }

    /// The reply; None for a delivery to a mailbox here.
    pub(super) fn reply(&self) -> Option<&Reply> {
        match self {
            DsnAction::Failed(reply) | DsnAction::Delayed { reply, .. } | DsnAction::Relayed { reply, .. } => {
                Some(reply)
            }
            DsnAction::Delivered => None,
        }
    }
}
