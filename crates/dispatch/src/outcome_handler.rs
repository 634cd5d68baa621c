//! Sends outcomes to the spool, and writes them to the log once they are durable.
//!
//! Most outcomes go there directly, many at once. Those that may need a notice, or whose message is
//! not yet read, go by way of the DSN sender (`dsn_sender.rs`), which may wait for disks and
//! directories.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use mail::{Envelope, MailEvent, QueueId, Timestamp, TlsSession, TlsSessionLog};
use queue::{AttemptPurpose, OperatorAction, RecipientVerdict};

use super::delivery_route::DeliveryRoute;
use super::dsn_sender::{DsnConfig, DsnRequest};
use super::outcome_writer::OutcomeWriter;
use super::{Attempt, AttemptOutcome};
use crate::OutcomeCounters;
use mail::LogLevel;
use mail::ServerLog;

/// Records outcomes in the spool, then in the log.
pub(super) struct OutcomeHandler {
    outcome_writer: OutcomeWriter,
    dsn_sender: Sender<DsnRequest>,
    hostname: Box<str>,
    outcome_counters: Arc<OutcomeCounters>,
    log: Arc<dyn ServerLog>,
    tls_sessions: Option<Arc<dyn TlsSessionLog>>,
}

impl OutcomeHandler {
    pub(super) fn new(
        outcome_writer: OutcomeWriter,
        dsn_sender: Sender<DsnRequest>,
        hostname: Box<str>,
        attempts: Arc<OutcomeCounters>,
        log: Arc<dyn ServerLog>,
        tls_sessions: Option<Arc<dyn TlsSessionLog>>,
    ) -> Self {
        OutcomeHandler { outcome_writer, dsn_sender, hostname, outcome_counters: attempts, log, tls_sessions }
    }

    /// Switches to another configuration.
    pub(super) fn reconfigure(&mut self, config: DsnConfig) {
        self.hostname = config.hostname.clone();
        // Only fails at shutdown.
        drop(self.dsn_sender.send(DsnRequest::Reconfigure(Box::new(config))));
    }

    /// Submits outcomes, those of a lane together.
    pub(super) fn record(&self, attempt_outcomes: Vec<AttemptOutcome>) {
        let (with_notice, plain): (Vec<_>, Vec<_>) =
            attempt_outcomes.into_iter().partition(AttemptOutcome::may_need_notice);
        self.outcome_writer.submit(plain.into_iter().map(|attempt_outcome| (attempt_outcome, None)));
        if !with_notice.is_empty() {
            // Only fails at shutdown; the next start finds the recipients as they were.
            drop(self.dsn_sender.send(DsnRequest::Record(with_notice)));
        }
    }

    /// Sets a damaged message aside.
    pub(super) fn set_aside(&self, attempt: Attempt, what: String) {
        // Only fails at shutdown; the next start finds the message again.
        drop(self.dsn_sender.send(DsnRequest::SetAside(attempt, what)));
    }

    /// Logs outcomes that are now durable.
    pub(super) fn log_recorded(&self, attempt_outcome: &AttemptOutcome, now: Timestamp) {
        if !is_release(attempt_outcome) {
            let is_attempt = attempt_outcome.attempt.purpose == AttemptPurpose::Deliver;
            let transport = transport_name(attempt_outcome);
            self.outcome_counters.count_for_transport(transport, is_attempt, &attempt_outcome.verdicts);
            attempt_outcome.verdicts.iter().for_each(|verdict| self.outcome_counters.count_outcome(verdict));
            if let Some(proof) = attempt_outcome.proof {
                let is_relayed = |verdict: &&RecipientVerdict| matches!(verdict, RecipientVerdict::Relayed { .. });
                let relayed = attempt_outcome.verdicts.iter().filter(is_relayed).count();
                self.outcome_counters.count_relayed(proof, relayed);
            }
        }
        if let Some(submitted) = &attempt_outcome.submitted_notice {
            self.log.write(submitted.received_event(&self.hostname));
        }
        let Some(message) = &attempt_outcome.message else { return };
        self.report_tls_failures(&attempt_outcome.attempt, &message.envelope);
        for (ordinal, verdict) in attempt_outcome.attempt.recipients.iter().zip(&attempt_outcome.verdicts) {
            if let Some(event) = mail_event(attempt_outcome, &message.envelope, *ordinal, verdict, now) {
                self.log.write(event);
            }
        }
    }

    /// Reports the policies about TLS for which the attempt found no host. An attempt that has hosts reports for
    /// itself.
    fn report_tls_failures(&self, attempt: &Attempt, envelope: &Envelope) {
        let (Some(sessions), Some(DeliveryRoute::NoRoute { tls_failures, .. })) =
            (&self.tls_sessions, attempt.route.as_deref())
        else {
            return;
        };
        if attempt.purpose == AttemptPurpose::Deliver
            && let Some(domain) = TlsSession::reported_domain(envelope, &attempt.recipients)
        {
            tls_failures.iter().for_each(|failure| sessions.record(failure.session(domain)));
        }
    }

    pub(super) fn log_not_recorded(&self, attempts: usize, why: &str) {
        self.log.event(LogLevel::Error, "cannot record outcomes", &[("attempts", &attempts), ("error", &why)]);
    }

    pub(super) fn log_unreadable_message(&self, id: QueueId, why: &str) {
        self.log.event(
            LogLevel::Warning,
            "cannot read a message; it is retried later",
            &[("id", &id), ("error", &why)],
        );
    }
}

/// Whether the operator released the recipients; no attempt was made.
fn is_release(attempt_outcome: &AttemptOutcome) -> bool {
    attempt_outcome.attempt.purpose == AttemptPurpose::Action(OperatorAction::Release)
}

/// The transport of the attempt; `none` if no attempt was possible.
fn transport_name(attempt_outcome: &AttemptOutcome) -> &str {
    attempt_outcome.attempt.route.as_ref().map_or("none", |way| way.transport_name())
}

/// The log event of one recipient.
fn mail_event(
    attempt_outcome: &AttemptOutcome,
    envelope: &Envelope,
    ordinal: u32,
    verdict: &RecipientVerdict,
    now: Timestamp,
) -> Option<MailEvent> {
    let (id, delay) = (attempt_outcome.attempt.id, now.since(envelope.accepted_at));
    let (sender, recipient) = (envelope.sender.clone(), envelope.recipients.get(ordinal as usize)?.address.clone());
    let transport = transport_name(attempt_outcome).into();
    let relay = attempt_outcome.peer.clone();
    Some(match verdict.clone() {
        RecipientVerdict::Delivered => {
            MailEvent::Delivered { id, sender, recipient, transport, relay: None, tls: None, delay }
        }
        RecipientVerdict::Relayed { reply, .. } => {
            let relay = Some((relay.unwrap_or_default(), reply));
            let tls = attempt_outcome.proof;
            MailEvent::Delivered { id, sender, recipient, transport, relay, tls, delay }
        }
        RecipientVerdict::Deferred { .. } if is_release(attempt_outcome) => MailEvent::Released { id, recipient },
        RecipientVerdict::Deferred { reason, until } => {
            MailEvent::Deferred { id, sender, recipient, transport, relay, reason, until }
        }
        RecipientVerdict::Failed { reason } => {
            let submitted = attempt_outcome.submitted_notice.as_ref().filter(|told| told.ordinals.contains(&ordinal));
            MailEvent::Bounced {
                id,
                sender,
                recipient,
                transport,
                relay,
                reason,
                bounce: submitted.map(|submitted| submitted.id),
            }
        }
        RecipientVerdict::Held => MailEvent::Held { id, recipient },
        RecipientVerdict::Removed => MailEvent::Removed { id, recipient },
    })
}
