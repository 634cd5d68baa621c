//! Sends outcomes to the spool, and writes them to the log once they are durable.
//!
//! Most outcomes go there directly, many at once. Those that may need a notice, or whose message is
//! not yet read, go by way of the DSN sender (`notary.rs`), which may wait for disks and
//! directories.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use mail::{Envelope, Fact, Journal, QueueId, Timestamp};
use queue::{Act, Purpose, Verdict};

use super::notary::{Commission, Terms};
use super::registrar::Registrar;
use super::{Attempt, Judged};
use crate::line::Level;
use crate::log::Log;
use crate::metrics::Attempts;

/// Records outcomes in the spool, then in the log.
pub(super) struct Recorder {
    registrar: Registrar,
    notary: Sender<Commission>,
    hostname: Box<str>,
    attempts: Arc<Attempts>,
    log: Arc<Log>,
}

impl Recorder {
    pub(super) fn new(
        registrar: Registrar,
        notary: Sender<Commission>,
        hostname: Box<str>,
        attempts: Arc<Attempts>,
        log: Arc<Log>,
    ) -> Self {
        Recorder { registrar, notary, hostname, attempts, log }
    }

    /// Switches to another configuration.
    pub(super) fn change(&mut self, terms: Terms) {
        self.hostname = terms.hostname.clone();
        // Only fails at shutdown.
        drop(self.notary.send(Commission::Change(Box::new(terms))));
    }

    /// Submits outcomes, those of a lane together.
    pub(super) fn record(&self, judged: Vec<Judged>) {
        let (told, plain): (Vec<_>, Vec<_>) = judged.into_iter().partition(Judged::may_need_notice);
        self.registrar.submit(plain.into_iter().map(|judged| (judged, None)));
        if !told.is_empty() {
            // Only fails at shutdown; the next start finds the recipients as they were.
            drop(self.notary.send(Commission::Record(told)));
        }
    }

    /// Sets a damaged message aside.
    pub(super) fn set_aside(&self, attempt: Attempt, what: String) {
        // Only fails at shutdown; the next start finds the message again.
        drop(self.notary.send(Commission::SetAside(attempt, what)));
    }

    /// Logs outcomes that are now durable.
    pub(super) fn tell(&self, judged: &Judged, now: Timestamp) {
        if !is_release(judged) {
            judged.verdicts.iter().for_each(|verdict| self.attempts.count(verdict));
        }
        if let Some(told) = &judged.notice {
            self.log.write(told.received(&self.hostname));
        }
        let Some(message) = &judged.message else { return };
        for (ordinal, verdict) in judged.attempt.recipients.iter().zip(&judged.verdicts) {
            if let Some(fact) = fact(judged, &message.envelope, *ordinal, verdict, now) {
                self.log.write(fact);
            }
        }
    }

    pub(super) fn complain(&self, attempts: usize, why: &str) {
        self.log.event(Level::Error, "cannot record outcomes", &[("attempts", &attempts), ("error", &why)]);
    }

    pub(super) fn complain_of_reading(&self, id: QueueId, why: &str) {
        self.log.event(Level::Warning, "cannot read a message; it is retried later", &[("id", &id), ("error", &why)]);
    }
}

/// Whether the operator released the recipients; no attempt was made.
fn is_release(judged: &Judged) -> bool {
    judged.attempt.purpose == Purpose::Act(Act::Release)
}

/// The log event of one recipient.
fn fact(judged: &Judged, envelope: &Envelope, ordinal: u32, verdict: &Verdict, now: Timestamp) -> Option<Fact> {
    let (id, delay) = (judged.attempt.id, now.since(envelope.accepted_at));
    let (sender, recipient) = (envelope.sender.clone(), envelope.recipients.get(ordinal as usize)?.address.clone());
    let transport = judged.attempt.route.as_ref().map_or("none", |way| way.transport()).into();
    let relay = judged.peer.clone();
    Some(match verdict.clone() {
        Verdict::Delivered => Fact::Delivered { id, sender, recipient, transport, relay: None, delay },
        Verdict::Relayed { reply, .. } => {
            let relay = Some((relay.unwrap_or_default(), reply));
            Fact::Delivered { id, sender, recipient, transport, relay, delay }
        }
        Verdict::Deferred { .. } if is_release(judged) => Fact::Released { id, recipient },
        Verdict::Deferred { reason, until } => {
            Fact::Deferred { id, sender, recipient, transport, relay, reason, until }
        }
        Verdict::Failed { reason } => {
            let told = judged.notice.as_ref().filter(|told| told.ordinals.contains(&ordinal));
            Fact::Bounced { id, sender, recipient, transport, relay, reason, bounce: told.map(|told| told.id) }
        }
        Verdict::Held => Fact::Held { id, recipient },
        Verdict::Removed => Fact::Removed { id, recipient },
    })
}
