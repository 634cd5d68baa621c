//! The check of incoming mail: at DATA it starts what the message is not needed for, and at the end
//! of the message it verifies the rest, and decides.
//!
//! | stage | what is done |
//! |---|---|
//! | DATA | SPF and the name of the client, in a task of the session's thread |
//! | message | header read and parsed once; keys and policies looked up at the same time; body hashed |
//!
//! DATA is the first stage at which a client has a valid recipient, so addresses that are only tried
//! cost no query. Users, relay networks and local programs are not checked, but what they say in our
//! name is removed like that of strangers. Without any method the check takes part in no stage.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use filter::{
    Check, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, Decision, Edit, Origin, Refusal, SessionInfo, Stage,
    Stages, Verdict,
};
use mail::{Address, EnhancedCode, Networks, Rate, Reply};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::DnsLookup;
use crate::arc::find_chain;
use crate::counters::{ReachedLimit, VerdictCounters};
use crate::dkim::{DkimResult, Rejection, find_signatures};
use crate::dmarc::author::author_domain;
use crate::dmarc::discovery::{self, Discovery, WALK_QUERIES_MAX, WALKS_MAX};
use crate::dmarc::{self, DmarcCheck, DmarcResult};
use crate::header_reader::read_header;
use crate::message_header::MessageHeader;
use crate::query_limits::{ClientQueries, MessageDns};
use crate::reports::ReportCollector;
use crate::results::forged::forged_fields;
use crate::sender_check::{SenderCheckTask, SenderDns, SenderIdentity, SenderVerdicts, check_sender};
use crate::settings::{Method, VerificationSettings};
use crate::signatures::{FoundSignatures, SignatureContext, SignatureVerdicts, verify_all};
use crate::verdicts::{ChainLink, MessageVerdicts, VerdictContext};

/// The most queries for the policy of the author and the domains that may be aligned with it.
const POLICY_QUERIES_MAX: u32 = (WALK_QUERIES_MAX * (WALKS_MAX + 1) + 1) as u32;

/// The message could not be read from the disk.
const UNREADABLE: Reply = Reply::constant(451, EnhancedCode(4, 3, 0), "Message could not be verified, try again later");

/// The check as configured: a [`CheckFactory`].
pub struct SenderAuth {
    /// The settings.
    pub settings: VerificationSettings,
    /// Our name in the results: that of the settings, or the hostname.
    pub authserv_id: Box<str>,
    /// Our name for SPF.
    pub hostname: Box<str>,
    /// The relay networks, which are not checked.
    pub relay_networks: Networks,
    /// The DNS.
    pub dns: Arc<dyn DnsLookup>,
    /// What all sessions share.
    pub state: VerificationState,
    /// What counts for reports; None: no reports are sent.
    pub reports: Option<ReportCollector>,
}

/// What all verifications share.
#[derive(Clone, Debug)]
pub struct VerificationState {
    /// The counters.
    pub counters: Arc<VerdictCounters>,
    clients: Arc<ClientQueries>,
    /// One permit for each message that is verified, or sender that is checked.
    verifications: Arc<Semaphore>,
    /// One permit for each thread.
    threads: Arc<Semaphore>,
    limits: SharedLimits,
}

/// The limits of what all verifications share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SharedLimits {
    client_queries: Option<Rate>,
    verifications: usize,
    threads: usize,
}

impl VerificationState {
    /// The state for these settings: the one before if its limits are the same, so that sessions that
    /// began with it count, else a new one with its counters. `processors` decides about the number of
    /// threads if the settings do not.
    pub fn new(settings: &VerificationSettings, processors: usize, before: Option<&VerificationState>) -> Self {
        let threads = if settings.threads > 0 { settings.threads } else { processors.div_ceil(2) };
        let limits =
            SharedLimits { client_queries: settings.client_queries, verifications: settings.concurrent_max, threads };
        if let Some(same) = before.filter(|before| before.limits == limits) {
            return same.clone();
        }
        let permits = |count: usize| Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
        VerificationState {
            counters: before.map(|before| before.counters.clone()).unwrap_or_default(),
            clients: Arc::new(ClientQueries::new(settings.client_queries)),
            verifications: permits(settings.concurrent_max),
            threads: permits(threads),
            limits,
        }
    }

    /// None, and counted: too many are verified at the same time.
    fn admit(&self) -> Option<OwnedSemaphorePermit> {
        let permit = self.verifications.clone().try_acquire_owned().ok();
        if permit.is_none() {
            self.counters.count_limit(ReachedLimit::Concurrent);
        }
        permit
    }
}

impl CheckFactory for SenderAuth {
    fn order(&self) -> CheckOrder {
        CheckOrder::Verification
    }

    fn stages(&self, origin: Origin) -> Stages {
        match origin {
            _ if self.settings.is_off() => Stages::default(),
            Origin::Client => [Stage::Data, Stage::Message].into_iter().collect(),
            Origin::LocalProgram => [Stage::Message].into_iter().collect(),
        }
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(SenderAuthCheck { auth: self, sender: SenderState::Unchecked })
    }
}

/// The check of a session.
struct SenderAuthCheck {
    auth: Arc<SenderAuth>,
    sender: SenderState,
}

/// What is known of the sender of the transaction.
enum SenderState {
    /// It is not checked.
    Unchecked,
    /// Too many are checked.
    Limited(SenderIdentity),
    Running(SenderCheckTask),
}

impl Check for SenderAuthCheck {
    fn data<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        self.sender = match self.auth.is_exempt(session) {
            true => SenderState::Unchecked,
            false => self.auth.start_sender_check(session),
        };
        Box::pin(std::future::ready(Verdict::default()))
    }

    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        let sender = std::mem::replace(&mut self.sender, SenderState::Unchecked);
        match self.auth.is_exempt(session) {
            true => Box::pin(self.auth.clean_message(session.client, message)),
            false => Box::pin(self.auth.check_message(sender, session, message)),
        }
    }
}

impl SenderAuth {
    fn is_exempt(&self, session: &SessionInfo<'_>) -> bool {
        let is_exempt = |client| self.relay_networks.contains(client) || self.settings.exempt.contains(client);
        session.is_user || session.client.is_some_and(is_exempt)
    }

    fn checks_name(&self) -> bool {
        self.settings.is_on(Method::Iprev)
    }

    fn start_sender_check(self: &Arc<Self>, session: &SessionInfo<'_>) -> SenderState {
        let (Some(client), Some(sender)) = (session.client, session.sender) else { return SenderState::Unchecked };
        if !self.settings.needs_spf() && !self.checks_name() {
            return SenderState::Unchecked;
        }
        let identity = SenderIdentity {
            client,
            helo: session.helo.unwrap_or_default().into(),
            sender: sender.cloned(),
            hostname: self.hostname.clone(),
        };
        let Some(permit) = self.state.admit() else { return SenderState::Limited(identity) };
        let auth = self.clone();
        SenderState::Running(SenderCheckTask::spawn(async move {
            let _permit = permit;
            let dns = || auth.message_dns(client, auth.settings.queries_max);
            let (mail_from, client) = (dns(), dns());
            let dns = SenderDns { mail_from: &mail_from, client: &client };
            let (checks_spf, checks_name) = (auth.settings.needs_spf(), auth.checks_name());
            let checked = check_sender(&dns, &identity, checks_spf, checks_name, auth.settings.time_max).await;
            let (mut verdicts, is_late) = checked;
            if is_late {
                auth.state.counters.count_limit(ReachedLimit::Time);
            }
            verdicts.is_limited = is_late || mail_from.is_limited() || client.is_limited();
            verdicts
        }))
    }

    fn message_dns(&self, client: IpAddr, queries_max: u32) -> MessageDns {
        let (clients, counters) = (self.state.clients.clone(), self.state.counters.clone());
        MessageDns::new(self.dns.clone(), queries_max, client, clients, counters)
    }

    /// The end of a message that is not checked.
    async fn clean_message(&self, client: Option<IpAddr>, message: &mut dyn CheckedMessage) -> Verdict {
        if self.is_trusted(client) {
            return Verdict::default();
        }
        let Ok((header, _)) = read_header(message).await else { return unreadable() };
        Verdict { edits: self.removal(&header, client).into_iter().collect(), ..Verdict::default() }
    }

    /// Removes the fields in our name (RFC 8601 section 5).
    fn removal(&self, header: &MessageHeader, client: Option<IpAddr>) -> Option<Edit> {
        let places = if self.is_trusted(client) { Vec::new() } else { forged_fields(header, &self.authserv_id) };
        (!places.is_empty()).then(|| Edit::RemoveFields { places: places.into() })
    }

    /// Whether the client may pass on fields in our name.
    fn is_trusted(&self, client: Option<IpAddr>) -> bool {
        client.is_some_and(|client| self.settings.results_from.contains(client))
    }

    /// The end of a message that is checked.
    async fn check_message(
        &self,
        sender: SenderState,
        session: &SessionInfo<'_>,
        message: &mut dyn CheckedMessage,
    ) -> Verdict {
        let client = session.client;
        let Ok((header, body_start)) = read_header(message).await else { return unreadable() };
        let header = Arc::new(header);
        let removal = self.removal(&header, client);
        let found = self.find_signatures(&header);
        let chain = ChainLink::of(&found);
        let author = self.settings.is_on(Method::Dmarc).then(|| author_domain(&header));
        let work = MessageWork { header: &header, body_start, author, client };
        let (sender, signatures, dmarc) = match self.state.admit() {
            Some(_permit) => self.verify(work, found, sender, message).await,
            None => self.without_verification(work, found, sender).await,
        };
        let verdicts = MessageVerdicts { sender, signatures, dmarc };
        let context = VerdictContext {
            settings: &self.settings,
            authserv_id: &self.authserv_id,
            client,
            envelope_from: session.sender.flatten().map_or("", Address::domain),
            reports: self.reports.as_ref(),
        };
        verdicts.into_verdict(&context, &header, &chain, removal, &self.state.counters)
    }

    fn find_signatures(&self, header: &MessageHeader) -> FoundSignatures {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        FoundSignatures {
            dkim: self.settings.needs_dkim().then(|| find_signatures(header, now)),
            chain: self.settings.needs_arc().then(|| find_chain(header, now)),
        }
    }

    /// Does everything at the same time, within the time for a message.
    async fn verify(
        &self,
        work: MessageWork<'_>,
        found: FoundSignatures,
        sender: SenderState,
        message: &mut dyn CheckedMessage,
    ) -> Results {
        let started_at = Instant::now();
        let deadline = started_at + self.settings.time_max;
        // The client of a message whose address is unknown shares its limit with others like it.
        let client = work.client.unwrap_or(UNKNOWN_CLIENT);
        let (dns, policy_dns) =
            (self.message_dns(client, self.settings.queries_max), self.message_dns(client, POLICY_QUERIES_MAX));
        let state = &self.state;
        let context = SignatureContext {
            dns: &dns,
            threads: &state.threads,
            counters: &state.counters,
            keys_deadline: started_at + self.settings.time_max / 4 * 3,
            deadline,
        };
        let is_large = message.content_len() > self.settings.message_octets_max;
        let signatures = async {
            match found.can_be_verified() {
                true if is_large => {
                    self.state.counters.count_limit(ReachedLimit::MessageSize);
                    found.oversized()
                }
                true => verify_all(found, work.header, work.body_start, message, &context).await,
                false => found.unverified(NOT_ADMITTED),
            }
        };
        let discovered = self.discover(&policy_dns, work.author.as_ref(), deadline);
        let (sender, signatures, discovered) = tokio::join!(self.finish_sender(sender), signatures, discovered);
        let dmarc = match (work.author, discovered) {
            (Some(Err(reason)), _) => Some(DmarcCheck::new(DmarcResult::PermError, reason)),
            (Some(Ok(author)), None) => Some(unanswered_policy(author)),
            (Some(Ok(author)), Some(discovery)) => {
                Some(self.judge(&policy_dns, author, &discovery, &sender, &signatures, deadline).await)
            }
            (None, _) => None,
        };
        (sender, signatures, dmarc)
    }

    /// What can be said without queries and computations.
    async fn without_verification(
        &self,
        work: MessageWork<'_>,
        found: FoundSignatures,
        sender: SenderState,
    ) -> Results {
        let dmarc = work.author.map(|author| match author {
            Err(reason) => DmarcCheck::new(DmarcResult::PermError, reason),
            Ok(author) => unanswered_policy(author),
        });
        (self.finish_sender(sender).await, found.unverified(NOT_ADMITTED), dmarc)
    }

    async fn finish_sender(&self, sender: SenderState) -> SenderVerdicts {
        match sender {
            SenderState::Unchecked => SenderVerdicts::default(),
            SenderState::Running(task) => task.finish().await.unwrap_or_default(),
            SenderState::Limited(identity) => {
                SenderVerdicts::unknown(&identity, self.settings.needs_spf(), self.checks_name())
            }
        }
    }

    /// None: the DNS did not answer in time, or nobody asks.
    async fn discover(
        &self,
        dns: &MessageDns,
        author: Option<&Result<Box<str>, &'static str>>,
        deadline: Instant,
    ) -> Option<Discovery> {
        let Some(Ok(author)) = author else { return None };
        match tokio::time::timeout_at(deadline.into(), discovery::discover(dns, author)).await {
            Ok(discovered) => discovered.ok(),
            Err(_) => {
                self.state.counters.count_limit(ReachedLimit::Time);
                None
            }
        }
    }

    async fn judge(
        &self,
        dns: &MessageDns,
        author: Box<str>,
        discovery: &Discovery,
        sender: &SenderVerdicts,
        signatures: &SignatureVerdicts,
        deadline: Instant,
    ) -> DmarcCheck {
        let signing: Vec<(Box<str>, dmarc::DomainState)> = signatures.signing_domains().collect();
        let signing = signing.iter().map(|(domain, state)| dmarc::CheckedDomain {
            method: dmarc::AlignedMethod::Dkim,
            domain,
            state: *state,
        });
        let checked = sender.checked_domain().into_iter().chain(signing);
        let checked: Vec<dmarc::CheckedDomain<'_>> = checked.collect();
        let judged =
            tokio::time::timeout_at(deadline.into(), dmarc::judge(dns, discovery, &checked, self.reports.is_some()));
        let judged = judged.await;
        judged.unwrap_or_else(|_| unanswered_policy(author))
    }
}

fn unreadable() -> Verdict {
    Decision::Refuse(Refusal { by: "sender_auth".into(), reply: UNREADABLE }).into()
}

/// What is known of a message from its header alone.
struct MessageWork<'a> {
    header: &'a Arc<MessageHeader>,
    body_start: u64,
    /// None: not asked for.
    author: Option<Result<Box<str>, &'static str>>,
    client: Option<IpAddr>,
}

type Results = (SenderVerdicts, SignatureVerdicts, Option<DmarcCheck>);

const NOT_ADMITTED: Rejection = Rejection::new(DkimResult::TempError, "too many messages are verified");

const UNKNOWN_CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

fn unanswered_policy(author: Box<str>) -> DmarcCheck {
    DmarcCheck { author_domain: Some(author), ..DmarcCheck::new(DmarcResult::TempError, "no answer for the policy") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_with_the_same_limits_is_kept() {
        let settings = VerificationSettings { concurrent_max: 1, ..VerificationSettings::default() };
        let before = VerificationState::new(&settings, 2, None);
        let _permit = before.admit().unwrap();
        assert!(VerificationState::new(&settings, 2, Some(&before)).admit().is_none());
        let other = VerificationSettings { concurrent_max: 2, ..settings };
        let after = VerificationState::new(&other, 2, Some(&before));
        assert!(after.admit().is_some() && Arc::ptr_eq(&after.counters, &before.counters));
    }
}
