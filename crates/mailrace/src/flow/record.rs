//! What attempts come to, on its way to the registrar, and into the log when the spool has it.
//!
//! Nearly all verdicts go there straight, many at once. Those of which somebody is to be told, and those whose message
//! nobody has read yet, go by way of the notary (`notary.rs`), who may wait for disks and directories.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use mail::{Envelope, Fact, Journal, QueueId, Timestamp};
use queue::{Purpose, Verdict};

use super::notary::{Commission, Terms};
use super::registrar::Registrar;
use super::{Attempt, Judged};
use crate::line::Level;
use crate::log::Log;
use crate::metrics::Attempts;

/// Brings verdicts to the spool, and to the log when they are there.
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

    /// Goes by other terms from now on.
    pub(super) fn change(&mut self, terms: Terms) {
        self.hostname = terms.hostname.clone();
        // Nobody listens only at the end.
        drop(self.notary.send(Commission::Change(Box::new(terms))));
    }

    /// Submits verdicts, many of a lane together.
    pub(super) fn record(&self, judged: Vec<Judged>) {
        let (told, plain): (Vec<_>, Vec<_>) = judged.into_iter().partition(Judged::may_need_notice);
        self.registrar.submit(plain.into_iter().map(|judged| (judged, None)));
        if !told.is_empty() {
            // Nobody listens only at the end; the next start finds them as they were before.
            drop(self.notary.send(Commission::Record(told)));
        }
    }

    /// Has a damaged message taken out of the spool.
    pub(super) fn set_aside(&self, attempt: Attempt, what: String) {
        // Nobody listens only at the end; the next start finds it again.
        drop(self.notary.send(Commission::SetAside(attempt, what)));
    }

    /// Writes what is durable now into the log.
    pub(super) fn tell(&self, judged: &Judged, now: Timestamp) {
        judged.verdicts.iter().for_each(|verdict| self.attempts.count(verdict));
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
        self.log.event(Level::Error, "outcomes could not be recorded", &[("attempts", &attempts), ("error", &why)]);
    }

    pub(super) fn complain_of_reading(&self, id: QueueId, why: &str) {
        self.log.event(Level::Warning, "a message could not be read; it waits", &[("id", &id), ("error", &why)]);
    }
}

/// What the log says of one recipient.
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
        // A release is recorded as a deferral until this moment.
        Verdict::Deferred { .. } if matches!(judged.attempt.purpose, Purpose::Act(_)) => {
            Fact::Released { id, recipient }
        }
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
