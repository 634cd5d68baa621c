//! Who is told what: the recipients of one attempt, sifted by the wishes that came with the message.
//!
//! A [`Report`] exists only where there is somebody to tell, and something. Of whom it does not tell, nobody hears
//! (RFC 3461 section 5.2.8).

use mail::{Address, Envelope, Notify, Recipient, Reply, Return, Timestamp};

use super::letter::ORIGINAL_OCTETS_MAX;

/// What became of one recipient in an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Finding<'a> {
    /// The recipient's place in the envelope.
    pub ordinal: u32,
    /// What became of it.
    pub fate: Fate<'a>,
    /// The host that answered; None where no other host took part (RFC 3464 section 2.3.5).
    pub peer: Option<&'a str>,
}

/// What became of a recipient, with the answer that says so.
#[derive(Clone, Copy, Debug)]
pub enum Fate<'a> {
    /// It does not get the message.
    Failed(&'a Reply),
    /// It has not got the message for so long that the sender should know.
    Delayed {
        /// The last answer.
        reply: &'a Reply,
        /// When we give up.
        until: Timestamp,
    },
    /// Its mailbox, here, has the message.
    Delivered,
    /// A next hop has the message.
    Relayed {
        /// How it said so.
        reply: &'a Reply,
        /// It reports to the sender itself: we have nothing to say (RFC 3461 section 5.2.1).
        dsn: bool,
    },
}

/// What a report is about, in order of weight: the weightiest of its recipients' gives it its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Delivered here.
    Delivered,
    /// Taken by a next hop that reports nothing.
    Relayed,
    /// Not yet delivered.
    Delayed,
    /// Given up.
    Failed,
}

/// Who is told what of one attempt.
#[derive(Debug)]
pub struct Report<'a> {
    pub(super) to: &'a Address,
    pub(super) envelope: &'a Envelope,
    pub(super) entries: Vec<Entry<'a>>,
}

/// A recipient of whom the report tells.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) ordinal: u32,
    pub(super) recipient: &'a Recipient,
    pub(super) fate: Fate<'a>,
    pub(super) peer: Option<&'a str>,
}

impl<'a> Report<'a> {
    /// Sorts out who is told what: the sender as accepted, by the wishes in the envelope; for a message from the null
    /// sender the `postmaster`, if there is one, of failures of others than himself. None: nobody is told anything.
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

    /// Who gets the letter.
    pub fn to(&self) -> &'a Address {
        self.to
    }

    /// The same report, to this address of the sender.
    pub fn sent_to(self, to: &'a Address) -> Self {
        Report { to, ..self }
    }

    /// The recipient, where the report tells of the failure of one, and of nothing else, to the sender.
    pub fn only_failure(&self) -> Option<&'a Address> {
        match &*self.entries {
            [only] if only.fate.kind() == Kind::Failed && !self.is_double_bounce() => Some(&only.recipient.address),
            _ => None,
        }
    }

    /// Whether the message came from a client that is trusted: its sender is not forged.
    pub fn is_of_trusted_client(&self) -> bool {
        self.envelope.client.trusted
    }

    /// Of how many recipients it tells.
    pub fn recipients(&self) -> usize {
        self.entries.len()
    }

    /// Whether it tells the postmaster of a message from the null sender.
    pub fn is_double_bounce(&self) -> bool {
        self.envelope.sender.is_none()
    }

    /// The weightiest that it tells.
    pub fn kind(&self) -> Kind {
        self.entries.iter().map(|entry| entry.fate.kind()).max().expect("a report has at least one recipient")
    }

    /// Whether it tells of this recipient.
    pub fn tells_of(&self, ordinal: u32) -> bool {
        self.entries.iter().any(|entry| entry.ordinal == ordinal)
    }

    /// How much of a message of so many octets comes back: all, unless nothing failed (RFC 3461 section 6.2),
    /// RET=HDRS was asked for or it is too large.
    pub(super) fn portion(&self, octets: u64) -> Return {
        let is_short = self.kind() == Kind::Failed && octets <= ORIGINAL_OCTETS_MAX;
        match self.envelope.ret {
            None | Some(Return::Full) if is_short => Return::Full,
            _ => Return::Headers,
        }
    }

    /// Whether an address that the report names is not ASCII.
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
    /// Whether the sender wants to know (RFC 3461 sections 4.1 and 5.2). Where nothing was asked, delays are told.
    fn is_wanted(&self) -> bool {
        let notify = self.recipient.notify;
        match self.fate {
            Fate::Failed(_) => notify.wants_failure(),
            Fate::Delayed { .. } => notify == Notify::UNSET || notify.contains(Notify::DELAY),
            Fate::Delivered | Fate::Relayed { dsn: false, .. } => notify.contains(Notify::SUCCESS),
            Fate::Relayed { dsn: true, .. } => false,
        }
    }

    /// Whether this is to be told to the postmaster where the sender is null. NOTIFY is not asked: a notification
    /// bears NEVER so that nothing comes back to its sender (RFC 3461 section 6.1), and there is none; to inform the
    /// postmaster is right even then (section 5.2.6).
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

    /// What was answered; None where nobody was asked.
    pub(super) fn reply(&self) -> Option<&Reply> {
        match self {
            Fate::Failed(reply) | Fate::Delayed { reply, .. } | Fate::Relayed { reply, .. } => Some(reply),
            Fate::Delivered => None,
        }
    }
}
