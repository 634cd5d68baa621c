//! Quotas: what mailboxes may hold, and whether a message fits. They are checked at RCPT by the
//! sessions, and again at delivery; both trust the same files (see [`super`]).
//!
//! | check | waits for | if unknown |
//! |---|---|---|
//! | at RCPT | nothing, if the last answer is less than 5 seconds old; else the tables, and a thread that reads the file or counts the mailbox | accepts the message |
//! | at delivery | the table, reading the file, a thread that counts the mailbox | delivers |
//!
//! No check waits longer than [`QUOTA_TIME_MAX`], and no delivery waits for a count that was
//! requested longer ago than that, even by another caller; the count continues, and later checks
//! use it. So a mailbox may exceed its quota by the mail in progress, and by what arrives while its
//! usage is unknown.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use lookup::{LookupAnswer, Table};
use mail::Address;
use tokio::time::timeout_at;

use super::{InvalidQuotaLimits, OverQuotaAction, QuotaLimits, Usage, UsageCounter, read_usage};
use crate::QuotaState;

/// How long a message waits for tables and counts together.
pub const QUOTA_TIME_MAX: Duration = Duration::from_secs(1);

/// The quota of a transport's mailboxes.
pub struct TransportQuota {
    /// The limits of each mailbox,
    pub default_limits: QuotaLimits,
    /// unless this table has others, keyed by address.
    pub table: Option<Arc<dyn Table>>,
    /// What happens to mail for full mailboxes.
    pub when_full: OverQuotaAction,
    /// Counts the mailboxes.
    pub counter: UsageCounter,
}

/// A message to check against a quota.
pub struct QuotaRequest<'a> {
    /// The Maildir, if known.
    pub folder: Option<&'a Path>,
    /// The limits of the mailbox, if known.
    pub limits: Option<QuotaLimits>,
    /// The size of the message in bytes.
    pub octets: u64,
}

/// The usage of a Maildir during one batch.
struct MailboxUsage {
    limits: QuotaLimits,
    /// The total of the batch's messages for it.
    wanted: Usage,
    /// The usage, including the messages that fit; None if unknown.
    used: Option<Usage>,
    /// The messages delivered to it.
    added: Usage,
}

impl TransportQuota {
    /// The limits of each mailbox, or why they are unknown at the deadline; a table gets one query
    /// for all.
    pub async fn lookup_limits(&self, mailboxes: &[&Address], deadline: Instant) -> Vec<Result<QuotaLimits, String>> {
        let Some(table) = &self.table else { return self.default_limits(mailboxes.len()) };
        let keys: Vec<&str> = mailboxes.iter().map(|mailbox| mailbox.as_str()).collect();
        let Ok(answers) = timeout_at(deadline.into(), table.lookup(&keys)).await else {
            return vec![Err(format!("table '{}' did not answer in time", table.name())); mailboxes.len()];
        };
        let limits = |(mailbox, answer): (&&Address, LookupAnswer)| match answer {
            // Some tables split a text with commas into several values.
            LookupAnswer::Found(values) if !values.is_empty() => {
                let wrong = |error: InvalidQuotaLimits| format!("table '{}': {mailbox}: {error}", table.name());
                values.join(",").parse().map_err(wrong)
            }
            LookupAnswer::Found(_) | LookupAnswer::NotFound => Ok(self.default_limits),
            LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why) => Err(why),
        };
        mailboxes.iter().zip(answers).map(limits).collect()
    }

    /// The same without a table.
    pub fn default_limits(&self, count: usize) -> Vec<Result<QuotaLimits, String>> {
        vec![Ok(self.default_limits); count]
    }

    /// Checks each message against the quota of its mailbox, assuming that those before it are
    /// delivered. Waits for the disk, and until the deadline for counts.
    pub fn check(&self, requests: &[QuotaRequest<'_>], now: SystemTime, deadline: Instant) -> Vec<QuotaState> {
        let mut mailboxes: HashMap<&Path, MailboxUsage> = HashMap::new();
        for (folder, limits, octets) in requests.iter().filter_map(QuotaRequest::limited_mailbox) {
            let mailbox = mailboxes.entry(folder).or_insert_with(|| MailboxUsage::new(limits));
            mailbox.wanted = mailbox.wanted + Usage::of_message(octets);
        }
        self.load_usage(&mut mailboxes, now, deadline);
        let mut check_one = |request: &QuotaRequest<'_>| match request
            .limited_mailbox()
            .and_then(|(folder, ..)| mailboxes.get_mut(folder))
        {
            Some(mailbox) => mailbox.reserve(request.octets),
            // If the limits are unknown there may be a quota, so the usage is updated.
            None if request.limits.is_none() => QuotaState::Counted,
            None => QuotaState::None,
        };
        let results = requests.iter().map(&mut check_one).collect();
        self.counter.add(mailboxes.iter().map(|(folder, mailbox)| (*folder, mailbox.added)));
        results
    }

    /// Gets the usage of the Maildirs; those that must be counted are counted in parallel.
    fn load_usage(&self, mailboxes: &mut HashMap<&Path, MailboxUsage>, now: SystemTime, deadline: Instant) {
        let (sender, counted) = mpsc::channel();
        let mut pending: HashMap<PathBuf, Instant> = HashMap::new();
        for (folder, mailbox) in mailboxes.iter_mut() {
            // An unreadable file is treated as missing.
            match read_usage(folder, mailbox.limits, now).ok().flatten() {
                Some(standing) if standing.is_conclusive(mailbox.limits, mailbox.wanted) => {
                    mailbox.used = Some(standing.usage);
                }
                _ => {
                    let (sender, counted_folder) = (sender.clone(), folder.to_path_buf());
                    // The receiver is gone if the count took too long.
                    let done = move |usage| drop(sender.send((counted_folder, usage)));
                    let since = self.counter.count(folder.to_path_buf(), mailbox.limits, Box::new(done));
                    pending.insert(folder.to_path_buf(), deadline.min(since + QUOTA_TIME_MAX));
                }
            }
        }
        while let Some(latest) = pending.values().max() {
            let left = latest.saturating_duration_since(Instant::now());
            let Ok((folder, usage)) = counted.recv_timeout(left) else { return };
            pending.remove(&folder);
            if let Some(mailbox) = mailboxes.get_mut(&*folder) {
                mailbox.used = usage;
            }
        }
    }
}

impl QuotaRequest<'_> {
    /// The mailbox and its limits, if it has any.
    fn limited_mailbox(&self) -> Option<(&Path, QuotaLimits, u64)> {
        let limits = self.limits.filter(|limits| !limits.is_unlimited())?;
        Some((self.folder?, limits, self.octets))
    }
}

impl MailboxUsage {
    fn new(limits: QuotaLimits) -> Self {
        MailboxUsage { limits, wanted: Usage::default(), used: None, added: Usage::default() }
    }

    fn reserve(&mut self, octets: u64) -> QuotaState {
        let message = Usage::of_message(octets);
        if let Some(used) = self.used {
            if !self.limits.allows_usage(used + message) {
                return QuotaState::Full;
            }
            self.used = Some(used + message);
        }
        self.added = self.added + message;
        QuotaState::Counted
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use lookup::LookupFuture;
    use lookup::fixed::StaticTable;

    use super::*;

    const LIMITS: QuotaLimits = QuotaLimits { bytes: 100, messages: 0 };

    /// A table whose server does not answer.
    pub(in crate::quota) struct SilentTable;

    impl Table for SilentTable {
        fn name(&self) -> &str {
            "silent"
        }

        fn lookup<'a>(&'a self, _: &'a [&'a str]) -> LookupFuture<'a> {
            Box::pin(std::future::pending())
        }
    }

    pub(in crate::quota) fn transport_quota(table: Option<Arc<dyn Table>>) -> TransportQuota {
        TransportQuota {
            default_limits: LIMITS,
            table,
            when_full: OverQuotaAction::Defer,
            counter: UsageCounter::start().unwrap(),
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn messages_of_a_batch_share_the_quota() {
        let root = tempfile::tempdir().unwrap();
        let (full, free) = (root.path().join("full"), root.path().join("free"));
        for folder in [&full, &free] {
            ["tmp", "new", "cur"].iter().for_each(|part| fs::create_dir_all(folder.join(part)).unwrap());
        }
        fs::write(full.join("new/1.a.mx"), [0; 50]).unwrap();
        let request = |folder, octets| QuotaRequest { folder: Some(folder), limits: Some(LIMITS), octets };
        let requests = [
            request(&*full, 30),
            request(&*free, 100),
            request(&*full, 30),
            request(&*full, 20),
            request(&*full, 1),
            QuotaRequest { limits: Some(QuotaLimits::default()), ..request(&*full, 1000) },
            QuotaRequest { limits: None, ..request(&*full, 1000) },
        ];
        use QuotaState::{Counted, Full};
        let expected = [Counted, Counted, Full, Counted, Full, QuotaState::None, Counted];
        let allowance = transport_quota(None);
        assert_eq!(allowance.check(&requests, SystemTime::now(), soon()), expected);
        // The second time from the files instead of counting.
        assert!(full.join("maildirsize").exists());
        assert_eq!(allowance.check(&requests, SystemTime::now(), soon()), expected);
    }

    #[tokio::test]
    async fn a_table_sets_limits_per_mailbox() {
        let bob: Address = "bob@example.org".parse().unwrap();
        for (values, expected) in [
            (vec!["1KiB"], Ok(QuotaLimits { bytes: 1024, messages: 0 })),
            (vec!["10S", "2C"], Ok(QuotaLimits { bytes: 10, messages: 2 })),
            (vec!["0"], Ok(QuotaLimits::default())),
            (vec![], Ok(LIMITS)),
        ] {
            let values: Vec<String> = values.into_iter().map(str::to_owned).collect();
            let table: Arc<dyn Table> = Arc::new(StaticTable::new("quotas", values));
            assert_eq!(transport_quota(Some(table)).lookup_limits(&[&bob], soon()).await, [expected]);
        }
        let table: Arc<dyn Table> = Arc::new(StaticTable::new("quotas", vec!["much".to_owned()]));
        let limits = transport_quota(Some(table)).lookup_limits(&[&bob], soon()).await;
        assert!(limits[0].as_ref().is_err_and(|why| why.contains("bob@example.org")), "{limits:?}");
    }

    /// Regression: a silent table delayed the mail for all mailboxes of a transport.
    #[tokio::test]
    async fn a_silent_table_times_out() {
        let bob: Address = "bob@example.org".parse().unwrap();
        let allowance = transport_quota(Some(Arc::new(SilentTable)));
        let twice = [&bob, &bob];
        let limits = allowance.lookup_limits(&twice, Instant::now() + Duration::from_millis(10));
        let limits = tokio::time::timeout(Duration::from_secs(5), limits).await.unwrap();
        assert_eq!(limits, vec![Err("table 'silent' did not answer in time".to_owned()); 2]);
    }

    #[test]
    fn remembered_slow_counts_limit_messages() {
        let folder = Path::new("/nowhere/that/is");
        let request = |octets| QuotaRequest { folder: Some(folder), limits: Some(LIMITS), octets };
        let allowance = transport_quota(None);
        allowance.counter.record_slow_count(folder, Usage { bytes: 50, messages: 1 });
        let results = |octets: &[u64]| {
            let requests: Vec<_> = octets.iter().map(|octets| request(*octets)).collect();
            allowance.check(&requests, SystemTime::now(), soon())
        };
        assert_eq!(results(&[30, 30]), [QuotaState::Counted, QuotaState::Full]);
        assert_eq!(results(&[30, 20, 1]), [QuotaState::Full, QuotaState::Counted, QuotaState::Full]);
    }

    /// Regression: each batch waited again for a count that takes long.
    #[test]
    fn a_pending_count_delays_mail_once() {
        let (counter, _jobs) = UsageCounter::with_stuck_threads();
        let allowance = TransportQuota { counter, ..transport_quota(None) };
        let requests =
            [QuotaRequest { folder: Some(Path::new("/nowhere/that/is")), limits: Some(LIMITS), octets: 1000 }];
        let deadline = soon();
        assert_eq!(allowance.check(&requests, SystemTime::now(), deadline), [QuotaState::Counted]);
        let begun_at = Instant::now();
        assert_eq!(allowance.check(&requests, SystemTime::now(), deadline), [QuotaState::Counted]);
        assert!(begun_at.elapsed() < QUOTA_TIME_MAX / 2);
    }
}
