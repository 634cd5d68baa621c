//! The policies that are known: found, kept, fetched anew.
//!
//! | record | policy kept | then |
//! |---|---|---|
//! | none, or the DNS does not answer | none | no policy |
//! | none, or the DNS does not answer | valid | it counts (RFC 8461 section 5.1) |
//! | with an id | valid, of this id | it counts; it is fetched again in the background once a day |
//! | with an id | none, or of another id | it is fetched now; if that fails, as without a record |
//!
//! A domain whose policy cannot be fetched is not tried again for [`FAILURE_TIME`], and then at once: a
//! failure may be an attack, so a lookup that depends on one expires with it. There is one fetch of a
//! policy at a time, and few altogether.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dns::{DnsAnswer, QueryType, Resolver};
use mail::{OperatorLog, TlsFailure};
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use crate::cached_policy::CachedPolicy;
use crate::fetch::{FetchConfig, FetchError, PolicyFetcher};
use crate::policy::PolicyMode;
use crate::record::policy_id;
use crate::store::{POLICIES_MAX, PolicyStore};

/// The length of a reason that is kept.
const REASON_OCTETS_MAX: usize = 400;
/// How long a failed fetch is not repeated (RFC 8461 section 3.3: five minutes).
const FAILURE_TIME: Duration = Duration::from_secs(300);
/// The same if others were being fetched.
const NO_TURN_TIME: Duration = Duration::from_secs(10);

/// What is known of the policy of a domain.
#[derive(Clone, Debug, Default)]
pub struct StsLookup {
    /// The policy that counts.
    pub policy: Option<Arc<CachedPolicy>>,
    /// Why the latest policy could not be fetched.
    pub problem: Option<Box<str>>,
    /// The same for a report to the domain; None: there is no problem, or it is one of this host.
    pub failure: Option<TlsFailure>,
    /// When this may change: when the record expires that announces the policy, or when a lookup or
    /// a fetch that failed is repeated. None: there is no record.
    pub expires_at: Option<Instant>,
}

/// The policies of other domains. Shared; its fetches run on the runtime of the resolver.
pub struct PolicyCache {
    fetcher: PolicyFetcher,
    store: PolicyStore,
    policies: Cache<Box<str>, Arc<CachedPolicy>>,
    /// Why the fetches of the last minutes failed.
    failures: Cache<Box<str>, FetchFailure>,
    /// The domains whose policies are being fetched.
    turns: Mutex<HashMap<Box<str>, Arc<tokio::sync::Mutex<()>>>>,
    log: Arc<dyn OperatorLog>,
}

/// A fetch that failed.
#[derive(Clone)]
struct FetchFailure {
    why: Box<str>,
    /// None: this host is the cause.
    reported: Option<TlsFailure>,
    /// When it is tried again.
    retry_at: Instant,
}

impl fmt::Debug for PolicyCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyCache").field("store", &self.store).finish_non_exhaustive()
    }
}

impl StsLookup {
    /// What people should know of the policy of this domain, if there is anything.
    pub fn note(&self, domain: &str) -> Option<Box<str>> {
        let now = SystemTime::now();
        let policy = self.policy.as_ref().map(|found| {
            let hours = found.remaining(now).unwrap_or_default().as_secs().div_ceil(3600);
            let CachedPolicy { id, policy, .. } = &**found;
            let effect = match policy.mode {
                PolicyMode::Enforce => "mail waits if no host meets it",
                PolicyMode::Testing => "it is tried out and reported, not enforced",
                PolicyMode::None => "it demands nothing",
            };
            format!("MTA-STS policy of {domain}: {}, id {id}, valid for {hours} h; {effect}", policy.mode.as_str())
        });
        let problem =
            self.problem.as_ref().map(|why| format!("the latest MTA-STS policy of {domain} cannot be fetched: {why}"));
        let parts: Vec<String> = policy.into_iter().chain(problem).collect();
        (!parts.is_empty()).then(|| parts.join("; ").into())
    }
}

impl PolicyCache {
    /// Keeps policies in this folder, which need not exist. Policies that cannot be fetched go to the
    /// log.
    pub fn new(folder: &Path, config: FetchConfig, log: Arc<dyn OperatorLog>) -> Self {
        PolicyCache {
            fetcher: PolicyFetcher::new(config),
            store: PolicyStore::new(folder),
            policies: Cache::new(POLICIES_MAX as u64),
            failures: Cache::builder().max_capacity(POLICIES_MAX as u64).time_to_live(FAILURE_TIME).build(),
            turns: Mutex::default(),
            log,
        }
    }

    /// The policy of a domain, which is in lower case and has A-labels. Fetches it if it is not
    /// known yet, which may take [`crate::FETCH_TIME_MAX`] and the wait for other fetches.
    pub async fn policy(self: &Arc<Self>, dns: &Arc<Resolver>, domain: &str) -> StsLookup {
        let (announced, record_end) = announced_id(dns, domain).await;
        let expires_at = Some(record_end);
        let known = self.known(domain, SystemTime::now()).await;
        let id = match announced {
            AnnouncedId::Id(id) => id,
            AnnouncedId::None => return StsLookup { policy: known, ..StsLookup::default() },
            AnnouncedId::Unknown => return StsLookup { policy: known, expires_at, ..StsLookup::default() },
        };
        match known {
            Some(known) if known.id == id => {
                if known.is_refresh_due(SystemTime::now()) {
                    let (cache, dns, domain) = (self.clone(), dns.clone(), Box::<str>::from(domain));
                    drop(tokio::spawn(async move { cache.fetch(&dns, &domain, &id).await }));
                }
                StsLookup { policy: Some(known), expires_at, ..StsLookup::default() }
            }
            known => match self.fetch(dns, domain, &id).await {
                Ok(policy) => StsLookup { policy: Some(policy), expires_at, ..StsLookup::default() },
                Err(FetchFailure { why, reported, retry_at }) => StsLookup {
                    policy: known,
                    problem: Some(why),
                    failure: reported,
                    expires_at: Some(retry_at.min(record_end)),
                },
            },
        }
    }

    /// Fetches policies again that are kept on disk and were not fetched for a day, one after the
    /// other, so that they do not expire while no mail is sent (RFC 8461 section 10.2).
    pub async fn refresh_due(self: &Arc<Self>, dns: &Resolver) {
        let store = self.store.clone();
        let domains = spawn_blocking(move || store.domains()).await.unwrap_or_default();
        for domain in domains {
            let now = SystemTime::now();
            let is_due = self.known(&domain, now).await.is_some_and(|known| known.is_refresh_due(now));
            if is_due && let (AnnouncedId::Id(id), _) = announced_id(dns, &domain).await {
                // A failure leaves the policy as it is.
                drop(self.fetch(dns, &domain, &id).await);
            }
        }
    }

    /// The policy in memory or on disk, if it is valid.
    async fn known(&self, domain: &str, now: SystemTime) -> Option<Arc<CachedPolicy>> {
        let known = match self.policies.get(domain) {
            Some(known) => known,
            None => {
                let (store, name) = (self.store.clone(), Box::<str>::from(domain));
                let loaded = Arc::new(spawn_blocking(move || store.load(&name)).await.ok()??);
                self.policies.insert(domain.into(), loaded.clone());
                loaded
            }
        };
        known.remaining(now).map(|_| known)
    }

    /// Fetches the policy with this id, unless it is known and new, or failed a moment ago.
    async fn fetch(&self, dns: &Resolver, domain: &str, id: &str) -> Result<Arc<CachedPolicy>, FetchFailure> {
        let turn = self.turns.lock().entry(domain.into()).or_default().clone();
        let fetched = {
            let _turn = turn.lock().await;
            self.fetch_in_turn(dns, domain, id).await
        };
        let mut turns = self.turns.lock();
        // One is in the map, and one is ours.
        if Arc::strong_count(&turn) <= 2 {
            turns.remove(domain);
        }
        fetched
    }

    async fn fetch_in_turn(&self, dns: &Resolver, domain: &str, id: &str) -> Result<Arc<CachedPolicy>, FetchFailure> {
        if let Some(failure) = self.failures.get(domain) {
            return Err(failure);
        }
        let now = SystemTime::now();
        if let Some(known) =
            self.known(domain, now).await.filter(|known| *known.id == *id && !known.is_refresh_due(now))
        {
            return Ok(known);
        }
        match self.fetcher.fetch(dns, domain).await {
            Ok(policy) => {
                Ok(self.keep(domain, CachedPolicy { id: id.into(), fetched_at: SystemTime::now(), policy }).await)
            }
            Err(error @ FetchError::NoTurn) => {
                let (why, retry_at) = (error.to_string().into(), Instant::now() + NO_TURN_TIME);
                Err(FetchFailure { why, reported: error.reported(), retry_at })
            }
            Err(error) => {
                let (why, reported) = (shortened(error.to_string()), error.reported());
                self.log.log_line(format_args!("cannot fetch the MTA-STS policy of {domain}: {why}"));
                let failure = FetchFailure { why, reported, retry_at: Instant::now() + FAILURE_TIME };
                self.failures.insert(domain.into(), failure.clone());
                Err(failure)
            }
        }
    }

    async fn keep(&self, domain: &str, policy: CachedPolicy) -> Arc<CachedPolicy> {
        let policy = Arc::new(policy);
        self.policies.insert(domain.into(), policy.clone());
        let (store, name, stored) = (self.store.clone(), Box::<str>::from(domain), policy.clone());
        // Without the file, the policy counts until the next start.
        drop(spawn_blocking(move || store.save(&name, &stored)).await);
        policy
    }
}

/// A reason that is kept: a hostile host has certificates with thousands of names.
fn shortened(mut why: String) -> Box<str> {
    why.truncate(why.floor_char_boundary(REASON_OCTETS_MAX));
    why.into()
}

/// What a domain announces.
enum AnnouncedId {
    /// The id of its policy.
    Id(Box<str>),
    /// It has no policy.
    None,
    /// The DNS does not answer.
    Unknown,
}

/// What the domain announces, and when that expires.
async fn announced_id(dns: &Resolver, domain: &str) -> (AnnouncedId, Instant) {
    let found = dns.lookup(&format!("_mta-sts.{domain}"), QueryType::Txt).await;
    let announced = match &found.answer {
        DnsAnswer::Texts(texts) => policy_id(texts).map_or(AnnouncedId::None, AnnouncedId::Id),
        DnsAnswer::Unanswered(_) => AnnouncedId::Unknown,
        _ => AnnouncedId::None,
    };
    (announced, found.expires_at)
}
