//! Runs one connection: a task, the next task, and the idle time between them ([`super`] lists its
//! states).
//!
//! Before the end of its task is reported, a connection is idle in the pool or closed. So a task
//! started on that report finds the connection there, or opens one in its place; and a message
//! whose lease is returned is no longer being sent.

use std::rc::Rc;
use std::time::Duration;

use mail::{
    Address, BodyError, BodyType, DomainTlsPolicy, Outcome, Recipient, StsTest, TlsFailure, TlsProof, TlsSession,
};
use net::Endpoint;
use protocol::smtp::client::{
    CloseReason, CommandArgument, ContentSize, ForwardedClient, RecipientOutcome, SmtpClientEvent, SmtpStage,
    TlsPolicy, Transaction, TransactionRecipient,
};
use tokio::time::Instant;

use super::address_rotation::AddressRotation;
use super::connect::{ConnectFailure, open_session};
use super::connection::{ConnectionEvent, RemoteConnection, SlowDetector};
use super::content::ContentSender;
use super::generic::{self, AddressChanges};
use super::login;
use super::outcome::{self, SessionFacts, local_error_reply};
use super::pool::{IdleConnection, PreparedTask, SmtpConnectionPool};
use super::seven_bit::UnconvertedMessage;
use super::{ConnectionConfig, EightBitPolicy, NextHopFeedback, RemoteEvent, RemotePeer, RemoteTask, RemoteTaskResult};
use crate::{DeliveryResult, verp};

/// Runs a task on an idle connection or on a new one.
pub(super) fn start<T: 'static>(pool: &Rc<SmtpConnectionPool<T>>, task: RemoteTask<T>) {
    let config = &task.next_hop.config;
    match (&config.logins, &config.generic) {
        (None, None) => assign_or_run(pool, Box::new(PreparedTask { task, changes: AddressChanges::default() })),
        _ => drop(tokio::task::spawn_local(prepare_and_start(pool.clone(), Box::new(task)))),
    }
}

fn assign_or_run<T: 'static>(pool: &Rc<SmtpConnectionPool<T>>, prepared: Box<PreparedTask<T>>) {
    if let Some(prepared) = pool.assign(prepared) {
        tokio::task::spawn_local(run(pool.clone(), prepared));
    }
}

/// Starts the task with the login of its sender, and with the addresses that the next hop gets.
async fn prepare_and_start<T: 'static>(pool: Rc<SmtpConnectionPool<T>>, mut task: Box<RemoteTask<T>>) {
    // Counted like the connection that it is about to need.
    let _life = pool.guard_connection();
    match prepare(&mut task).await {
        Ok(changes) => assign_or_run(&pool, Box::new(PreparedTask { task: *task, changes })),
        Err(outcome) => {
            let result = DeliveryResult::Outcomes(vec![outcome; task.recipients.len()]);
            let end = TaskEnd { result, feedback: NextHopFeedback::Unknown, peer: None, proof: None };
            pool.report(RemoteEvent::Finished(end.into_result(*task)));
        }
    }
}

/// Finds the login of the original sender, and rewrites the addresses. Err: the outcome for all recipients.
async fn prepare<T>(task: &mut RemoteTask<T>) -> Result<AddressChanges, Outcome> {
    let config = task.next_hop.config.clone();
    if let Some(logins) = &config.logins {
        let found = login::logged_in(&task.next_hop, logins, task.envelope.sender.as_ref()).await;
        task.next_hop = found.map_err(|why| Outcome::Deferred(outcome::login_failed_reply(why)))?;
    }
    let Some(rewriter) = &config.generic else { return Ok(AddressChanges::default()) };
    let (changes, body) = generic::rewrite(&**rewriter, &envelope_addresses(task), &task.body).await?;
    task.body = body;
    Ok(changes)
}

/// All addresses that transactions of the task have, each once for each sender and recipient.
fn envelope_addresses<T>(task: &RemoteTask<T>) -> Vec<Address> {
    let mut addresses: Vec<Address> = Vec::with_capacity(task.recipients.len() + 1);
    for recipient in task.recipients.iter().map(|ordinal| &task.envelope.recipients[*ordinal as usize]) {
        let sender = transaction_sender(task, recipient).filter(|sender| !addresses.contains(sender));
        addresses.extend(sender);
        addresses.push(recipient.address.clone());
    }
    addresses
}

async fn run<T>(pool: Rc<SmtpConnectionPool<T>>, mut prepared: Box<PreparedTask<T>>) {
    let _life = pool.guard_connection();
    let slot = IdleConnection::new(&prepared.task.next_hop);
    let mut reused = None;
    loop {
        let task = &prepared.task;
        let tell_slow = || pool.report(RemoteEvent::Slow { next_hop: task.next_hop.clone() });
        let tell_tls = |peer: &RemotePeer, failure| {
            tls_session(task, peer, failure).into_iter().for_each(|session| pool.report(RemoteEvent::Tls(session)));
        };
        let tell_policy = || {
            let failures = reported_domain(task).into_iter().flat_map(|domain| {
                task.next_hop.tls_failures.iter().map(|failure| failure.session(domain)).collect::<Vec<_>>()
            });
            failures.for_each(|session| pool.report(RemoteEvent::Tls(session)));
        };
        let may_send = || (pool.fence)(task.id);
        let observer = TaskObserver { slow: &tell_slow, tls: &tell_tls, policy: &tell_policy, may_send: &may_send };
        let (end, kept) = TaskRun::new(&prepared, &pool.rotation, observer).run(reused).await;
        let hop = task.next_hop.clone();
        let ConnectionConfig { messages_per_connection_max, idle_connections_max, idle_time_max, .. } =
            hop.config.connections;
        let kept = match kept {
            Some(kept)
                if kept.is_reusable(messages_per_connection_max)
                    && pool.add_idle(&hop, &slot, kept.peer(), idle_connections_max) =>
            {
                Some(kept)
            }
            Some(left) => {
                left.quit().await;
                None
            }
            None => None,
        };
        pool.report(RemoteEvent::Finished(end.into_result(prepared.task)));
        let Some(mut kept) = kept else { return };
        let until = Instant::now() + idle_time_max;
        match slot.wait(|context| kept.poll_idle_end(until, context)).await {
            Some(next) => (prepared, reused) = (next, Some(kept)),
            None => {
                pool.remove_idle(&hop, &slot);
                return kept.quit().await;
            }
        }
    }
}

/// The result of a task.
struct TaskEnd {
    result: DeliveryResult,
    feedback: NextHopFeedback,
    peer: Option<RemotePeer>,
    proof: Option<TlsProof>,
}

impl TaskEnd {
    /// Releases the lease on the body.
    fn into_result<T>(self, task: RemoteTask<T>) -> RemoteTaskResult<T> {
        let TaskEnd { result, feedback, peer, proof } = self;
        RemoteTaskResult { ticket: task.ticket, envelope: task.envelope, result, feedback, peer, proof }
    }
}

/// What a task tells, and asks, before it ends.
struct TaskObserver<'a> {
    /// It waits for a reply for a long time.
    slow: &'a dyn Fn(),
    /// How TLS went with a host.
    tls: &'a dyn Fn(&RemotePeer, Option<TlsFailure>),
    /// It opens a session, so policies of the domain that cannot be met matter.
    policy: &'a dyn Fn(),
    /// Whether its message may be sent.
    may_send: &'a dyn Fn() -> bool,
}

/// How TLS went with a host that the domain of the recipients names; None if no domain wants a report.
fn tls_session<T>(task: &RemoteTask<T>, peer: &RemotePeer, failure: Option<TlsFailure>) -> Option<TlsSession> {
    let Endpoint::Tcp(address) = peer.endpoint() else { return None };
    // A host that the policy does not name is wrong whatever it proves.
    let failure = match peer.sts_test() {
        Some(StsTest::NotNamed) => Some(TlsFailure::HostNotNamed),
        Some(StsTest::Named) | None => failure,
    };
    Some(TlsSession {
        domain: reported_domain(task)?.into(),
        host: Some(peer.host().into()),
        address: Some(address.ip()),
        policy: DomainTlsPolicy::of_host(peer.tls(), peer.0.sts.as_ref()),
        failure,
        reason: failure.and_then(TlsFailure::reason_code).map(Into::into),
    })
}

/// The domain whose owner may want to know how TLS went. None: the operator has named the host, or wants no
/// TLS with it, or see [`TlsSession::reported_domain`].
fn reported_domain<T>(task: &RemoteTask<T>) -> Option<&str> {
    if task.next_hop.is_configured || task.next_hop.config.client.tls == TlsPolicy::Never {
        return None;
    }
    TlsSession::reported_domain(&task.envelope, &task.recipients)
}

/// A running task.
struct TaskRun<'a, T> {
    task: &'a RemoteTask<T>,
    changes: &'a AddressChanges,
    rotation: &'a AddressRotation,
    content: ContentSender,
    slow_detector: SlowDetector<'a>,
    observer: TaskObserver<'a>,
    /// The outcomes of the first recipients of the task.
    outcomes: Vec<Outcome>,
}

/// The result of one transaction.
enum TransactionEnd {
    /// The session is ready for another transaction.
    Ready,
    /// The server had closed the connection before it saw the message.
    Stale,
    /// The session is over, and with it the task.
    Closed(NextHopFeedback),
    /// The message cannot be read or sent; the session is unchanged, or in the middle of it.
    Unsent(DeliveryResult, NextHopFeedback),
}

impl<'a, T> TaskRun<'a, T> {
    fn new(prepared: &'a PreparedTask<T>, rotation: &'a AddressRotation, observer: TaskObserver<'a>) -> Self {
        let PreparedTask { task, changes } = prepared;
        TaskRun {
            task,
            changes,
            rotation,
            content: ContentSender::new(task.body.clone()),
            slow_detector: SlowDetector::new(task.next_hop.config.slow_after, observer.slow),
            observer,
            outcomes: Vec::with_capacity(task.recipients.len()),
        }
    }

    /// Returns the connection if it can be reused.
    async fn run(mut self, mut reused: Option<Box<RemoteConnection>>) -> (TaskEnd, Option<Box<RemoteConnection>>) {
        loop {
            let is_used = reused.is_some();
            let mut connection = match reused.take() {
                Some(connection) => connection,
                None => match self.open_session().await {
                    Ok(connection) => connection,
                    Err(unopened) => {
                        let result = self.fill_outcomes(unopened.outcome);
                        let end = TaskEnd { result, feedback: unopened.feedback, peer: unopened.peer, proof: None };
                        return (end, None);
                    }
                },
            };
            let (peer, proof) = (Some(connection.peer().clone()), Some(connection.proof()));
            match self.run_transactions(&mut connection, is_used).await {
                TransactionEnd::Ready if self.is_done() => {
                    let feedback = NextHopFeedback::Answered { slowest: connection.take_slowest() };
                    return (
                        TaskEnd { result: DeliveryResult::Outcomes(self.outcomes), feedback, peer, proof },
                        Some(connection),
                    );
                }
                TransactionEnd::Ready => connection.quit().await,
                TransactionEnd::Stale => {}
                TransactionEnd::Closed(feedback) => {
                    connection.close().await;
                    let result = DeliveryResult::Outcomes(self.outcomes);
                    return (TaskEnd { result, feedback, peer, proof }, None);
                }
                TransactionEnd::Unsent(result, feedback) => {
                    let kept = Some(connection).filter(|connection| connection.client().is_ready());
                    return (TaskEnd { result, feedback, peer, proof }, kept);
                }
            }
        }
    }

    async fn open_session(&mut self) -> Result<Box<RemoteConnection>, ConnectFailure> {
        (self.observer.policy)();
        let (next_hop, slow_detector) = (&self.task.next_hop, &mut self.slow_detector);
        Box::pin(open_session(next_hop, self.rotation, slow_detector, self.observer.tls)).await
    }

    fn is_done(&self) -> bool {
        self.outcomes.len() >= self.task.recipients.len()
    }

    /// Sets the same outcome for all recipients without one.
    fn fill_outcomes(&mut self, outcome: Outcome) -> DeliveryResult {
        self.outcomes.resize(self.task.recipients.len(), outcome);
        DeliveryResult::Outcomes(std::mem::take(&mut self.outcomes))
    }

    /// Runs as many transactions as the task needs and the connection allows.
    async fn run_transactions(&mut self, connection: &mut RemoteConnection, is_used: bool) -> TransactionEnd {
        let transactions_max = self.task.next_hop.config.connections.messages_per_connection_max;
        let mut is_fresh = !is_used;
        connection.take_slowest();
        loop {
            match self.run_transaction(connection, is_fresh).await {
                TransactionEnd::Ready if !self.is_done() && connection.is_reusable(transactions_max) => is_fresh = true,
                end => return end,
            }
        }
    }

    async fn run_transaction(&mut self, connection: &mut RemoteConnection, is_fresh: bool) -> TransactionEnd {
        if !(self.observer.may_send)() {
            return self.withhold();
        }
        let transaction = match self.next_transaction(connection).await {
            Ok(transaction) => transaction,
            Err(UnconvertedMessage::Body(error)) => return self.fail_damaged(error),
            Err(UnconvertedMessage::Limit(error)) => {
                return TransactionEnd::Unsent(
                    self.fill_outcomes(outcome::unconverted_outcome(error)),
                    NextHopFeedback::Unknown,
                );
            }
        };
        let begun = connection.begin_transaction(
            &transaction,
            &mut self.content,
            self.task.next_hop.config.connections.sendfile_above,
        );
        if let Err(unsendable) = begun {
            return TransactionEnd::Unsent(
                self.fill_outcomes(outcome::unsendable_outcome(unsendable)),
                NextHopFeedback::Unknown,
            );
        }
        let dsn = connection.client().extensions().dsn;
        let has_logins = self.task.next_hop.config.logins.is_some();
        let mut verdicts = Vec::new();
        loop {
            match connection.next_event(Some(&mut self.content), &mut self.slow_detector, self.observer.may_send).await
            {
                ConnectionEvent::Session(SmtpClientEvent::Finished(found)) => verdicts = found,
                ConnectionEvent::Session(SmtpClientEvent::Ready) => {
                    let facts = SessionFacts { dsn, has_logins, peer: connection.peer() };
                    let outcomes = verdicts.into_iter().map(|verdict| outcome::outcome(verdict, facts, None));
                    self.outcomes.extend(outcomes);
                    return TransactionEnd::Ready;
                }
                ConnectionEvent::Session(SmtpClientEvent::Closed(closed))
                    if !is_fresh && is_stale(&closed, &verdicts) =>
                {
                    return TransactionEnd::Stale;
                }
                ConnectionEvent::Session(SmtpClientEvent::Closed(closed)) => {
                    let slowest = connection.take_slowest();
                    let facts = SessionFacts { dsn, has_logins, peer: connection.peer() };
                    return self.end_session(verdicts, slowest, facts, &closed);
                }
                ConnectionEvent::Session(
                    SmtpClientEvent::Replied { .. } | SmtpClientEvent::StartTls | SmtpClientEvent::ComputeProof(_),
                ) => {}
                ConnectionEvent::Damaged(damaged) => return self.fail_damaged(damaged),
                ConnectionEvent::Withheld => return self.withhold(),
            }
        }
    }

    /// The session ended; outcomes known before that are kept.
    fn end_session(
        &mut self,
        verdicts: Vec<RecipientOutcome>,
        slowest: Duration,
        facts: SessionFacts<'_>,
        closed: &CloseReason,
    ) -> TransactionEnd {
        let feedback = outcome::next_hop_feedback(closed, &verdicts, slowest, facts.peer);
        let outcomes = verdicts.into_iter().map(|verdict| outcome::outcome(verdict, facts, Some(closed)));
        self.outcomes.extend(outcomes);
        // Recipients left for a further transaction.
        let rest = outcome::outcome(RecipientOutcome::NotSent, facts, Some(closed));
        self.outcomes.resize(self.task.recipients.len(), rest);
        TransactionEnd::Closed(feedback)
    }

    /// The message may not be sent from here any more. Recipients that have its outcome keep it.
    fn withhold(&mut self) -> TransactionEnd {
        let result = match self.outcomes.is_empty() {
            true => DeliveryResult::Withheld,
            false => self.fill_outcomes(Outcome::Deferred(local_error_reply("the message is withheld".to_owned()))),
        };
        TransactionEnd::Unsent(result, NextHopFeedback::Unknown)
    }

    /// The server waits for bytes that will not come: the connection cannot be reused, and the
    /// server is not at fault.
    fn fail_damaged(&mut self, damaged: BodyError) -> TransactionEnd {
        let result = match damaged {
            // The device may be able to read the bytes later.
            BodyError::Unreadable(error) => self.fill_outcomes(Outcome::Deferred(local_error_reply(error.to_string()))),
            damaged => {
                let mut outcomes: Vec<_> = std::mem::take(&mut self.outcomes).into_iter().map(Some).collect();
                outcomes.resize(self.task.recipients.len(), None);
                DeliveryResult::damaged_with_outcomes(damaged.to_string(), outcomes)
            }
        };
        TransactionEnd::Unsent(result, NextHopFeedback::Unknown)
    }

    /// The next transaction, with as many of the remaining recipients as this server accepts at
    /// once, and as have the same sender.
    async fn next_transaction(&mut self, connection: &RemoteConnection) -> Result<Transaction, UnconvertedMessage> {
        let (task, extensions) = (self.task, connection.client().extensions());
        let envelope = &*task.envelope;
        let left = task.recipients[self.outcomes.len()..].iter().map(|ordinal| &envelope.recipients[*ordinal as usize]);
        let first = left.clone().next();
        let is_forwarded = first.is_some_and(|first| first.is_forwarded);
        let left = left.take_while(|recipient| recipient.is_forwarded == is_forwarded);
        let left_addresses = left.clone().map(|recipient| self.changes.outgoing(&recipient.address));
        let count = extensions.fitting_recipient_count(left_addresses);
        let recipients: Vec<TransactionRecipient> =
            left.take(count).map(|recipient| transaction_recipient(recipient, self.changes)).collect();
        let sender = first.and_then(|first| transaction_sender(task, first));
        let sender = sender.map(|sender| self.changes.outgoing(&sender).clone());
        let eight_bit = task.body.flags().eight_bit;
        let addresses = recipients.iter().map(|recipient| &recipient.address).chain(&sender);
        let is_ascii = addresses.into_iter().all(Address::is_ascii);
        let smtputf8 = !is_ascii || self.changes.needs_smtputf8 || envelope.smtputf8 && eight_bit;
        let (content, body_type) = self.describe_content(connection, sender.is_none(), smtputf8).await?;
        Ok(Transaction {
            content,
            body_type,
            smtputf8,
            ret: envelope.ret,
            envid: envelope.envid.as_deref().and_then(|envid| CommandArgument::new(envid).ok()),
            sender,
            recipients,
            client: task.next_hop.config.client.xforward.then(|| Box::new(forwarded_client(task))),
        })
    }

    /// How the content is sent, and what BODY= says. A message without 8-bit bytes needs neither
    /// extension, whatever its sender asked for. A notice that cannot be sent is lost without any
    /// report, so it is sent as it is if nothing else is possible.
    async fn describe_content(
        &mut self,
        connection: &RemoteConnection,
        is_notice: bool,
        smtputf8: bool,
    ) -> Result<(ContentSize, BodyType), UnconvertedMessage> {
        let form = connection.form();
        let policy = self.task.next_hop.config.connections.eight_bit;
        if !self.task.body.flags().eight_bit {
            return Ok((self.content.describe(form).await?, BodyType::SevenBit));
        }
        if connection.client().extensions().eight_bit_mime {
            return Ok((self.content.describe(form).await?, BodyType::EightBitMime));
        }
        // The header of a message with SMTPUTF8 cannot be converted.
        if policy == EightBitPolicy::Convert && !smtputf8 {
            match Box::pin(self.content.describe_seven_bit(form)).await {
                Err(UnconvertedMessage::Limit(_)) if is_notice => {}
                described => return Ok((described?, BodyType::SevenBit)),
            }
        }
        let is_sent_anyway = is_notice || policy == EightBitPolicy::Send;
        let body_type = if is_sent_anyway { BodyType::SevenBit } else { BodyType::EightBitMime };
        Ok((self.content.describe(form).await?, body_type))
    }
}

/// The sender of a transaction with this first recipient.
fn transaction_sender<T>(task: &RemoteTask<T>, first: &Recipient) -> Option<Address> {
    let sender = task.envelope.sender.as_ref()?;
    let changed = match first.is_forwarded {
        true => task.forwarded_sender.clone(),
        false if task.verp => verp::sender_address(sender, &first.address),
        false => None,
    };
    changed.or_else(|| Some(sender.clone()))
}

/// The server closed an idle connection before the message arrived: it answered nothing, or only
/// that it is closing.
fn is_stale(closed: &CloseReason, verdicts: &[RecipientOutcome]) -> bool {
    match closed {
        CloseReason::Ended(SmtpStage::Xforward | SmtpStage::Mail | SmtpStage::Idle) => true,
        CloseReason::Shutdown(_) => verdicts.iter().all(|verdict| {
            matches!(verdict, RecipientOutcome::Refused { stage: SmtpStage::Xforward | SmtpStage::Mail, .. })
        }),
        _ => false,
    }
}

/// The client of the message, for a content filter.
fn forwarded_client<T>(task: &RemoteTask<T>) -> ForwardedClient {
    let client = &task.envelope.client;
    ForwardedClient { address: client.address, helo: client.helo.clone(), ident: task.id.to_string().into() }
}

fn transaction_recipient(recipient: &Recipient, changes: &AddressChanges) -> TransactionRecipient {
    TransactionRecipient {
        address: changes.outgoing(&recipient.address).clone(),
        notify: recipient.notify,
        orcpt: recipient.orcpt.as_deref().and_then(|orcpt| CommandArgument::new(orcpt).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of a connection beside its socket, timer and slot; it is mostly idle.
    #[test]
    fn a_connection_is_small() {
        let octets = future_octets(run::<u64>);
        assert!(octets <= 2048, "{octets} octets");
    }

    fn future_octets<A, B, F>(_: fn(A, B) -> F) -> usize {
        size_of::<F>()
    }
}
