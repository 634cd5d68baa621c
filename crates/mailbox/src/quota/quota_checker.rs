//! Quota checks for sessions at RCPT: which transport delivers to a mailbox, its limits, and
//! whether a message fits. Results are cached for a few seconds, so that many messages for one
//! mailbox read its file once. No check takes longer than [`QUOTA_TIME_MAX`].

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lookup::directory::{MailboxLocation, RecipientDirectory};
use mail::{Address, QuotaCheck, QuotaFit};
use parking_lot::RwLock;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::usage_counter::UsageCheck;
use super::{OverQuotaAction, QUOTA_TIME_MAX, QuotaLimits, TransportQuota, Usage, UsageEstimate};
use crate::MailboxPathResolver;

/// How long a result is cached.
const CACHE_TIME: Duration = Duration::from_secs(5);
/// The most cached mailboxes.
const CACHE_ENTRIES_MAX: usize = 65_536;
/// The minimum time between sweeps of a full cache: a sweep blocks all sessions.
const SWEEP_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Checks the quotas of mailboxes.
pub struct MailboxQuotaChecker {
    directory: Arc<RecipientDirectory>,
    /// The transports with a quota.
    by_transport: HashMap<Box<str>, QuotaTransport>,
    log: UnknownUsageLog,
    cache: RwLock<QuotaCache>,
}

/// Logs why a usage is unknown. Called by sessions, so it must not block.
pub type UnknownUsageLog = Box<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;

/// A transport whose mailboxes have a quota.
pub struct QuotaTransport {
    /// Its name.
    pub name: Box<str>,
    /// Where its mailboxes are.
    pub mailbox_paths: MailboxPathResolver,
    /// Their quota.
    pub quota: Arc<TransportQuota>,
}

/// A mailbox and its limits.
struct MailboxEntry<'a> {
    quota: &'a TransportQuota,
    limits: QuotaLimits,
    folder: PathBuf,
}

/// Recent results.
#[derive(Default)]
struct QuotaCache {
    entries: HashMap<Box<str>, CachedQuota>,
    swept_at: Option<Instant>,
}

struct CachedQuota {
    at: Instant,
    what: MailboxState,
}

/// The state of a mailbox.
#[derive(Clone, Copy)]
enum MailboxState {
    /// It has no limits.
    Unlimited,
    /// Its limits and usage.
    Limited(QuotaLimits, UsageEstimate, OverQuotaAction),
    /// Unknown.
    Unknown,
}

impl MailboxQuotaChecker {
    /// For these transports; None if there are none.
    pub fn new(
        transports: impl IntoIterator<Item = QuotaTransport>,
        directory: &Arc<RecipientDirectory>,
        log: UnknownUsageLog,
    ) -> Option<MailboxQuotaChecker> {
        let by_transport: HashMap<_, _> =
            transports.into_iter().map(|transport| (transport.name.clone(), transport)).collect();
        let (directory, cache) = (directory.clone(), RwLock::default());
        (!by_transport.is_empty()).then_some(MailboxQuotaChecker { directory, by_transport, log, cache })
    }

    /// For the operator: the limits and usage of a mailbox; None if it has no limits.
    ///
    /// # Errors
    ///
    /// They are unknown now; the text says why.
    pub async fn limits_and_usage(&self, mailbox: &Address) -> Result<Option<(QuotaLimits, Usage)>, String> {
        Ok(match self.look_up(mailbox, Usage::default()).await? {
            MailboxState::Limited(limits, UsageEstimate { usage, .. }, _) => Some((limits, usage)),
            MailboxState::Unlimited | MailboxState::Unknown => None,
        })
    }

    async fn state_of(&self, mailbox: &Address, more: Usage) -> MailboxState {
        match self.look_up(mailbox, more).await {
            Ok(found) => found,
            Err(why) => {
                (self.log)(format_args!("cannot check the quota of <{mailbox}>, accepting mail for it: {why}"));
                MailboxState::Unknown
            }
        }
    }

    async fn look_up(&self, mailbox: &Address, more: Usage) -> Result<MailboxState, String> {
        let deadline = Instant::now() + QUOTA_TIME_MAX;
        let untold = |_| "the tables did not answer in time".to_owned();
        let entry = timeout_at(deadline.into(), self.entry(mailbox, deadline)).await.map_err(untold)??;
        let Some(MailboxEntry { quota, limits, folder }) = entry else { return Ok(MailboxState::Unlimited) };
        let (sender, told) = oneshot::channel();
        let done = Box::new(move |standing| {
            // The caller may have timed out.
            let _ = sender.send(standing);
        });
        quota.counter.check(UsageCheck { folder, limits, more, done });
        match timeout_at(deadline.into(), told).await {
            Ok(Ok(Some(standing))) => Ok(MailboxState::Limited(limits, standing, quota.when_full)),
            Ok(_) => Err("cannot count the mailbox".to_owned()),
            Err(_) => Err("the mailbox is still being counted".to_owned()),
        }
    }

    /// The mailbox and its limits; None if it has none.
    async fn entry(&self, mailbox: &Address, deadline: Instant) -> Result<Option<MailboxEntry<'_>>, String> {
        let Some(QuotaTransport { mailbox_paths, quota, .. }) = self.mailboxes_of(mailbox).await? else {
            return Ok(None);
        };
        let unanswered = || "no answer".to_owned();
        let limits = quota.lookup_limits(&[mailbox], deadline).await.pop().ok_or_else(unanswered)??;
        if limits.is_unlimited() {
            return Ok(None);
        }
        let folder = mailbox_paths.resolve(&[mailbox]).await.pop().ok_or_else(unanswered)??;
        Ok(Some(MailboxEntry { quota, limits, folder }))
    }

    /// The transport of the mailbox, if the mailbox is local and its transport has a quota.
    async fn mailboxes_of(&self, mailbox: &Address) -> Result<Option<&QuotaTransport>, String> {
        let Some(domain) = self.directory.domain(mailbox.domain()).await? else { return Ok(None) };
        let Some(mailboxes) = self.by_transport.get(&domain.transport) else { return Ok(None) };
        if domain.hosts.is_none() {
            return Ok(Some(mailboxes));
        }
        match self.directory.mailbox_locations(std::slice::from_ref(mailbox)).await.pop() {
            Some(MailboxLocation::ThisHost) => Ok(Some(mailboxes)),
            Some(MailboxLocation::Unavailable(why)) => Err(why),
            Some(MailboxLocation::NextHop | MailboxLocation::OtherHost(_)) | None => Ok(None),
        }
    }
}

impl QuotaCheck for MailboxQuotaChecker {
    fn cached(&self, mailbox: &Address, octets: u64, now: Instant) -> Option<QuotaFit> {
        let cache = self.cache.read();
        cache.entries.get(mailbox.as_str()).filter(|known| known.is_fresh(now))?.what.fit(Usage::of_message(octets))
    }

    fn check<'a>(&'a self, mailbox: &'a Address, octets: u64) -> Pin<Box<dyn Future<Output = QuotaFit> + Send + 'a>> {
        Box::pin(async move {
            let more = Usage::of_message(octets);
            let found = self.state_of(mailbox, more).await;
            let mut cache = self.cache.write();
            cache.insert(mailbox.as_str(), found, Instant::now());
            drop(cache);
            found.fit(more).unwrap_or(QuotaFit::Unknown)
        })
    }
}

impl QuotaCache {
    fn insert(&mut self, mailbox: &str, what: MailboxState, now: Instant) {
        let is_rested = |at| now.saturating_duration_since(at) >= SWEEP_INTERVAL_MIN;
        if self.entries.len() >= CACHE_ENTRIES_MAX && self.swept_at.is_none_or(is_rested) {
            self.entries.retain(|_, known| known.is_fresh(now));
            self.swept_at = Some(now);
        }
        if self.entries.len() < CACHE_ENTRIES_MAX || self.entries.contains_key(mailbox) {
            self.entries.insert(mailbox.into(), CachedQuota { at: now, what });
        }
    }
}

impl CachedQuota {
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < CACHE_TIME
    }
}

impl MailboxState {
    /// Whether the message fits; None if this has to be counted.
    fn fit(self, more: Usage) -> Option<QuotaFit> {
        match self {
            MailboxState::Unlimited => Some(QuotaFit::Fits),
            MailboxState::Unknown => Some(QuotaFit::Unknown),
            MailboxState::Limited(limits, standing, _) if limits.allows_usage(standing.usage + more) => {
                Some(QuotaFit::Fits)
            }
            MailboxState::Limited(_, standing, when_full) => {
                standing.is_reliable.then_some(QuotaFit::Full { for_good: when_full == OverQuotaAction::Refuse })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lookup::Table;
    use lookup::directory::{self, LocalDomain};

    use crate::MailboxPathTable;
    use crate::quota::transport_quota::tests::{SilentTable, transport_quota};

    use super::*;

    fn limited_state(bytes: u64, is_settled: bool, when_full: OverQuotaAction) -> MailboxState {
        let standing = UsageEstimate { usage: Usage { bytes, messages: 1 }, is_reliable: is_settled };
        MailboxState::Limited(QuotaLimits { bytes: 100, messages: 0 }, standing, when_full)
    }

    #[test]
    fn only_what_is_settled_refuses_and_a_smaller_message_may_fit() {
        let fit = |found: MailboxState, bytes| found.fit(Usage::of_message(bytes));
        assert_eq!(fit(limited_state(90, false, OverQuotaAction::Defer), 10), Some(QuotaFit::Fits));
        assert_eq!(fit(limited_state(90, false, OverQuotaAction::Defer), 11), None);
        assert_eq!(fit(limited_state(90, true, OverQuotaAction::Defer), 11), Some(QuotaFit::Full { for_good: false }));
        assert_eq!(fit(limited_state(90, true, OverQuotaAction::Refuse), 11), Some(QuotaFit::Full { for_good: true }));
        assert_eq!(fit(MailboxState::Unlimited, u64::MAX), Some(QuotaFit::Fits));
        assert_eq!(fit(MailboxState::Unknown, 1), Some(QuotaFit::Unknown));
    }

    /// Quotas of the mailboxes of x.org, with tables for hosts, quotas and paths.
    fn mailbox_quotas(
        hosts: Option<SilentTable>,
        quotas: Option<SilentTable>,
        mailbox_paths: Option<SilentTable>,
    ) -> MailboxQuotaChecker {
        let table = |silent: Option<SilentTable>| silent.map(|silent| -> Arc<dyn Table> { Arc::new(silent) });
        let domain = LocalDomain {
            name: "x.org".into(),
            mailboxes: None,
            aliases: None,
            catch_all: None,
            wildcard_mailbox: false,
            hosts: table(hosts),
            delimiter: None,
            transport: "maildir".into(),
            is_final: true,
        };
        let root = PathBuf::from("/nowhere/that/is");
        let mailbox_paths = MailboxPathResolver {
            pattern: Arc::new(|_: &Address| "/nowhere/that/is/bob".into()),
            table: table(mailbox_paths).map(|table| MailboxPathTable { table, root, has_wildcards: false }),
        };
        let quota = Arc::new(transport_quota(table(quotas)));
        let mailboxes = QuotaTransport { name: "maildir".into(), mailbox_paths, quota };
        MailboxQuotaChecker {
            directory: Arc::new(RecipientDirectory::new(vec![domain], directory::AliasLimits::default())),
            by_transport: [("maildir".into(), mailboxes)].into(),
            log: Box::new(|_| ()),
            cache: RwLock::default(),
        }
    }

    /// Regression: a session waited for a silent table; only counting had a time limit.
    #[tokio::test]
    async fn silent_tables_do_not_block_sessions() {
        let bob: Address = "bob@x.org".parse().unwrap();
        let fit =
            async |rooms: MailboxQuotaChecker| tokio::time::timeout(QUOTA_TIME_MAX * 5, rooms.check(&bob, 1)).await;
        let silent = || Some(SilentTable);
        let fits = tokio::join!(
            fit(mailbox_quotas(silent(), None, None)),
            fit(mailbox_quotas(None, silent(), None)),
            fit(mailbox_quotas(None, None, silent())),
            fit(mailbox_quotas(None, None, None)),
        );
        assert_eq!(fits, (Ok(QuotaFit::Unknown), Ok(QuotaFit::Unknown), Ok(QuotaFit::Unknown), Ok(QuotaFit::Fits)));
    }

    /// Regression: each new entry swept the whole cache even if no entry was old.
    #[test]
    fn a_full_cache_is_swept_once_a_second() {
        let (mut cache, start) = (QuotaCache::default(), Instant::now());
        for number in 0..CACHE_ENTRIES_MAX {
            cache.insert(&number.to_string(), MailboxState::Unlimited, start);
        }
        let mut is_kept = |mailbox, after| {
            cache.insert(mailbox, MailboxState::Unlimited, start + after);
            cache.entries.contains_key(mailbox)
        };
        let almost = CACHE_TIME - Duration::from_millis(500);
        assert!(!is_kept("a", almost), "all are fresh");
        assert!(!is_kept("a", CACHE_TIME), "there is no sweep so soon");
        assert!(is_kept("1", CACHE_TIME), "it has an entry already");
        assert!(is_kept("a", almost + SWEEP_INTERVAL_MIN));
        assert_eq!(cache.entries.len(), 2);
    }
}
