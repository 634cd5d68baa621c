//! Decides who is notified of what: the results of one attempt, filtered by the NOTIFY parameters
//! of the message.
//!
//! A [`Report`] exists only if there is something to report and an address to send it to.
//! Recipients that are not in it cause no notice (RFC 3461 section 5.2.8).

use mail::{Address, Envelope, Notify, Recipient, Reply, Return, Timestamp};

use super::letter::ORIGINAL_OCTETS_MAX;

/// The result of one attempt for one recipient.
#[derive(Clone, Copy, Debug)]
pub struct Finding<'a> {
    /// The index of the recipient in the envelope.
    pub ordinal: u32,
    /// The result.
    pub fate: Fate<'a>,
    /// The host that answered; None if no other host was involved (RFC 3464 section 2.3.5).
    pub peer: Option<&'a str>,
}

/// The result for a recipient, with the reply that caused it.
#[derive(Clone, Copy, Debug)]
pub enum Fate<'a> {
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
pub enum Kind {
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
pub struct Report<'a> {
    pub(super) to: &'a Address,
    pub(super) envelope: &'a Envelope,
    pub(super) entries: Vec<Entry<'a>>,
}

/// A recipient in the report.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) ordinal: u32,
    pub(super) recipient: &'a Recipient,
    pub(super) fate: Fate<'a>,
    pub(super) peer: Option<&'a str>,
}

impl<'a> Report<'a> {
    /// Selects what to report and to whom: for a given sender, what NOTIFY asks for; for the null
    /// sender, failures go to the `postmaster` if there is one, except failures of the postmaster's
    /// own address. None: there is nothing to report.
    pub fn of(
        envelope: &'a Envelope,
        postmaster: Option<&'a Address>,
        findings: impl IntoIterator<Item = Finding<'a>>,
    ) -> Option<Self> {
        let to = envelope.sender.as_ref().or(postmaster)?;
        let is_told = |entry: &Entry<'_>| match envelope.sender {
            Some(_) => entry.is_wanted(),
            None => entry.is_double_bounce(to),
        };
        let entries = findings.into_iter().filter_map(|Finding { ordinal, fate, peer }| {
            let recipient = envelope.recipients.get(ordinal as usize)?;
            Some(Entry { ordinal, recipient, fate, peer }).filter(is_told)
        });
        let entries: Vec<_> = entries.collect();
        (!entries.is_empty()).then_some(Report { to, envelope, entries })
    }

    /// The address the notice goes to.
    pub fn to(&self) -> &'a Address {
        self.to
    }

    /// The same report, addressed to another address of the sender.
    pub fn sent_to(self, to: &'a Address) -> Self {
        Report { to, ..self }
    }

    /// The recipient, if the report goes to the sender and is about the failure of this recipient
    /// alone.
    pub fn only_failure(&self) -> Option<&'a Address> {
        match &*self.entries {
            [only] if only.fate.kind() == Kind::Failed && !self.is_double_bounce() => Some(&only.recipient.address),
            _ => None,
        }
    }

    /// Whether the client that sent the message is trusted, so that its sender is not forged.
    pub fn is_of_trusted_client(&self) -> bool {
        self.envelope.client.trusted
    }

    /// The number of recipients in the report.
    pub fn recipients(&self) -> usize {
        self.entries.len()
    }

    /// Whether it reports a message with a null sender to the postmaster.
    pub fn is_double_bounce(&self) -> bool {
        self.envelope.sender.is_none()
    }

    /// The most important result in the report.
    pub fn kind(&self) -> Kind {
        self.entries.iter().map(|entry| entry.fate.kind()).max().expect("a report has at least one recipient")
    }

    /// Whether the report includes this recipient.
    pub fn tells_of(&self, ordinal: u32) -> bool {
        self.entries.iter().any(|entry| entry.ordinal == ordinal)
    }

    /// How much of a message of this size to return: all of it, unless nothing failed (RFC 3461
    /// section 6.2), RET=HDRS was given or it is too large.
    pub(super) fn portion(&self, octets: u64) -> Return {
        let is_short = self.kind() == Kind::Failed && octets <= ORIGINAL_OCTETS_MAX;
        match self.envelope.ret {
            None | Some(Return::Full) if is_short => Return::Full,
            _ => Return::Headers,
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

impl Entry<'_> {
    /// Whether NOTIFY asks for this result (RFC 3461 sections 4.1 and 5.2). Without NOTIFY, delays
    /// are reported.
    fn is_wanted(&self) -> bool {
        let notify = self.recipient.notify;
        match self.fate {
            Fate::Failed(_) => notify.wants_failure(),
            Fate::Delayed { .. } => notify == Notify::UNSET || notify.contains(Notify::DELAY),
            Fate::Delivered | Fate::Relayed { dsn: false, .. } => notify.contains(Notify::SUCCESS),
            Fate::Relayed { dsn: true, .. } => false,
        }
    }

    /// Whether to report this to the postmaster because the sender is null. NOTIFY is ignored: a
    /// notice carries NEVER so that nothing returns to its sender (RFC 3461 section 6.1), and it
    /// has none; informing the postmaster is allowed even then (section 5.2.6).
    fn is_double_bounce(&self, postmaster: &Address) -> bool {
        let Recipient { address, original, .. } = self.recipient;
        self.fate.kind() == Kind::Failed && address != postmaster && original.as_ref() != Some(postmaster)
    }
}

impl Fate<'_> {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Fate::Failed(_) => Kind::Failed,
            Fate::Delayed { .. } => Kind::Delayed,
            Fate::Delivered => Kind::Delivered,
            Fate::Relayed { .. } => Kind::Relayed,
        }
    }

    /// The reply; None for a delivery to a mailbox here.
    pub(super) fn reply(&self) -> Option<&Reply> {
        match self {
            Fate::Failed(reply) | Fate::Delayed { reply, .. } | Fate::Relayed { reply, .. } => Some(reply),
            Fate::Delivered => None,
        }
    }
}
