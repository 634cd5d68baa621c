//! What attempts come to, on its way into the spool: outcomes, and the bounces that they cause, in one
//! submission, so that there is never the one without the other.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use delivery::bounce::{self, Notice, Undelivered};
use lookup::directory::{Directory, Resolution};
use mail::{Address, BodyType, Client, Envelope, Fact, Journal, Notify, QueueId, Recipient, Reply, Timestamp};
use queue::{Attempt, Verdict};
use spool::{CommitError, Content, Entry, ReadError, Spool, State};
use tokio::runtime::Runtime;

use super::{Judged, Mailbag, Note};
use crate::line::Level;
use crate::log::Log;

/// A message larger than this comes back as its header only, of which no more than this is read.
const ORIGINAL_OCTETS_MAX: u64 = bounce::ORIGINAL_OCTETS_MAX;

/// Brings verdicts to the spool, and to the log when they are there.
pub(super) struct Recorder {
    spool: Arc<Spool>,
    directory: Arc<Directory>,
    /// Lookups may wait; this thread waits with them.
    runtime: Runtime,
    hostname: Box<str>,
    log: Arc<Log>,
    mailbag: Mailbag,
}

/// What goes to the spool together.
#[derive(Default)]
struct Sheaf {
    entries: Vec<Entry>,
    judged: Vec<Judged>,
    bytes: usize,
}

/// What an outcome and each of its recipients take in the log, about.
const OUTCOME_BYTES: usize = 128;
const RECIPIENT_BYTES: usize = 16;

/// A bounce cannot be addressed now.
struct Unaddressed;

/// Bytes of outcomes and bounces in one submission, about: it must fit into any segment.
const SUBMISSION_BYTES: usize = 256 * 1024;

/// The bounce that was made of an attempt, and of whom it tells.
pub(crate) struct Told {
    id: QueueId,
    ordinals: Vec<u32>,
    size: u64,
}

impl Recorder {
    pub(super) fn new(
        spool: Arc<Spool>,
        directory: Arc<Directory>,
        hostname: Box<str>,
        log: Arc<Log>,
        mailbag: Mailbag,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Recorder { spool, directory, runtime, hostname, log, mailbag })
    }

    /// Submits verdicts, many of a lane together. The answers come as [`Note::Recorded`]. Gives back those whose
    /// bounces cannot be addressed now.
    pub(super) fn record(&self, judged: Vec<Judged>, now: Timestamp) -> Vec<Judged> {
        let mut lanes: BTreeMap<u16, Sheaf> = BTreeMap::new();
        let mut rest = Vec::new();
        for mut judged in judged {
            let bounce = match self.bounce(&judged, now) {
                Ok(bounce) => bounce,
                Err(Unaddressed) => {
                    rest.push(judged);
                    continue;
                }
            };
            let sheaf = lanes.entry(judged.attempt.id.lane()).or_default();
            judged.bounce = bounce.map(|(told, entry)| {
                sheaf.bytes += told.size as usize;
                sheaf.entries.push(entry);
                told
            });
            sheaf.bytes += OUTCOME_BYTES + judged.verdicts.len() * RECIPIENT_BYTES;
            sheaf.entries.push(outcome(&judged));
            sheaf.judged.push(judged);
            if sheaf.bytes >= SUBMISSION_BYTES {
                self.submit(std::mem::take(sheaf));
            }
        }
        lanes.into_values().for_each(|sheaf| self.submit(sheaf));
        rest
    }

    fn submit(&self, sheaf: Sheaf) {
        let Sheaf { entries, judged, .. } = sheaf;
        let mailbag = self.mailbag.clone();
        self.spool.submit(entries, Box::new(move |result| mailbag.tell(Note::Recorded(judged, result))));
    }

    /// The bounce for those recipients that failed, if somebody wants to know and can be told.
    fn bounce(&self, judged: &Judged, now: Timestamp) -> Result<Option<(Told, Entry)>, Unaddressed> {
        let failed = failures(judged).collect::<Vec<_>>();
        let Some(undelivered) = Undelivered::new(&judged.envelope, failed.iter().copied()) else { return Ok(None) };
        let recipients = self.address(undelivered.sender())?;
        if recipients.is_empty() {
            return Ok(None);
        }
        let id = self.spool.begin_beside(judged.attempt.id);
        let (portion, original) = self.original(judged.attempt.id, &undelivered);
        let bounce = bounce::compose(&Notice {
            hostname: &self.hostname,
            id,
            date: &now.rfc5322_date(),
            original_id: judged.attempt.id,
            arrival_date: &judged.envelope.accepted_at.rfc5322_date(),
            undelivered: &undelivered,
            portion,
            original: &original,
        });
        let ordinals = failed.iter().map(|(ordinal, _)| *ordinal).filter(|ordinal| undelivered.tells_of(*ordinal));
        let told = Told { id, ordinals: ordinals.collect(), size: bounce.content.len() as u64 };
        let envelope = Envelope {
            sender: None,
            recipients,
            accepted_at: now,
            client: Client { address: None, helo: self.hostname.clone() },
            body_type: if bounce.flags.eight_bit { BodyType::EightBitMime } else { BodyType::SevenBit },
            smtputf8: bounce.smtputf8,
            ret: None,
            envid: None,
        };
        let content = Content::Memory(bounce.content);
        Ok(Some((told, Entry::Message { id, envelope, content, flags: bounce.flags })))
    }

    /// Who gets a bounce: the sender as RCPT would have it. Nobody, where there is no such user or no way to him:
    /// then the log alone tells.
    fn address(&self, sender: &Address) -> Result<Vec<Recipient>, Unaddressed> {
        let finals = match self.runtime.block_on(self.directory.resolve(sender)) {
            Resolution::Local(finals) => finals,
            Resolution::Unavailable(_) => return Err(Unaddressed),
            Resolution::Remote(_) | Resolution::Unknown | Resolution::TooDeep | Resolution::TooMany => Vec::new(),
        };
        let ours = finals.into_iter().filter(|found| found.local).map(|found| Recipient {
            address: found.address,
            original: found.original,
            notify: Notify::UNSET,
            orcpt: None,
        });
        Ok(ours.collect())
    }

    /// The message that failed, or as much of it as comes back. What cannot be read is left out: the sender is
    /// told all the same.
    fn original(&self, id: QueueId, undelivered: &Undelivered<'_>) -> (mail::Return, Vec<u8>) {
        let Ok(stored) = self.spool.message(id) else { return (mail::Return::Headers, Vec::new()) };
        let portion = undelivered.portion(stored.body.len());
        let mut bytes = vec![0; stored.body.len().min(ORIGINAL_OCTETS_MAX) as usize];
        let read = stored.body.read_at(&mut bytes, 0).unwrap_or(0);
        bytes.truncate(read);
        (portion, bytes)
    }

    /// Takes a damaged message out of the spool. If that fails, the queue lets go of it all the same, and the
    /// next start finds it again.
    pub(super) fn set_aside(&self, attempt: Attempt, what: &str) {
        let (mailbag, log) = (self.mailbag.clone(), self.log.clone());
        let id = attempt.id;
        let done = move |result: Result<(), CommitError>| {
            if let Err(error) = result {
                log.event(Level::Error, "a damaged message could not be set aside", &[("id", &id), ("error", &error)]);
            }
            mailbag.tell(Note::Void(attempt));
        };
        self.spool.set_aside(id, what, Box::new(done));
    }

    /// The envelope of a message that no courier has fetched.
    pub(super) fn envelope(&self, id: QueueId) -> Result<Envelope, ReadError> {
        self.spool.message(id).map(|stored| stored.envelope)
    }

    /// Writes what is durable now into the log.
    pub(super) fn tell(&self, judged: &Judged, transport: &str, now: Timestamp) {
        let Judged { attempt, envelope, verdicts, bounce } = judged;
        let id = attempt.id;
        if let Some(told) = bounce {
            self.log.write(Fact::Received {
                id: told.id,
                client: None,
                helo: self.hostname.clone(),
                sender: None,
                recipients: 1,
                size: told.size,
                protocol: "bounce",
            });
        }
        for (ordinal, verdict) in attempt.recipients.iter().zip(verdicts) {
            let recipient = envelope.recipients[*ordinal as usize].address.clone();
            self.log.write(match verdict.clone() {
                Verdict::Delivered => {
                    let delay = now.since(envelope.accepted_at);
                    Fact::Delivered { id, recipient, transport: transport.into(), relay: None, delay }
                }
                Verdict::Deferred { reason, until } => Fact::Deferred { id, recipient, reason, until },
                Verdict::Failed { reason } => {
                    let told = bounce.as_ref().filter(|told| told.ordinals.contains(ordinal));
                    Fact::Bounced { id, recipient, reason, bounce: told.map(|told| told.id) }
                }
            });
        }
    }

    pub(super) fn complain(&self, attempts: usize, why: &str) {
        self.log.event(Level::Error, "outcomes could not be recorded", &[("attempts", &attempts), ("error", &why)]);
    }

    pub(super) fn complain_of_reading(&self, id: QueueId, why: &str) {
        self.log.event(Level::Warning, "a message could not be read; it waits", &[("id", &id), ("error", &why)]);
    }
}

fn failures(judged: &Judged) -> impl Iterator<Item = (u32, &Reply)> {
    judged.attempt.recipients.iter().zip(&judged.verdicts).filter_map(|(ordinal, verdict)| match verdict {
        Verdict::Failed { reason } => Some((*ordinal, reason)),
        _ => None,
    })
}

fn outcome(judged: &Judged) -> Entry {
    let Judged { attempt, verdicts, bounce, .. } = judged;
    let state = |verdict: &Verdict| match verdict {
        Verdict::Delivered => State::Delivered,
        Verdict::Deferred { until, .. } => State::Waiting { attempts: attempt.number, until: *until },
        Verdict::Failed { .. } => State::Failed,
    };
    let recipients = attempt.recipients.iter().copied().zip(verdicts.iter().map(state)).collect();
    Entry::Outcome { id: attempt.id, recipients, bounce: bounce.as_ref().map(|told| told.id) }
}

/// Stands for the envelope of a message whose own cannot be read; nobody is told anything by it.
pub(super) fn unreadable_envelope(accepted_at: Timestamp) -> Envelope {
    Envelope {
        sender: None,
        recipients: Vec::new(),
        accepted_at,
        client: Client { address: None, helo: "".into() },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
    }
}
