//! Quotas: what mailboxes may hold, and whether a message fits. They are checked at RCPT by the
//! sessions, and again at delivery; both trust the same files (see [`mailbox::quota`]).
//!
//! | check | waits for | if unknown |
//! |---|---|---|
//! | at RCPT | nothing, if the last answer is less than 5 seconds old; else the tables, and a thread that reads the file or counts the mailbox | accepts the message |
//! | at delivery | the table, reading the file, a thread that counts the mailbox | delivers |
//!
//! No check waits longer than [`PATIENCE`], and no delivery waits for a count that was requested
//! longer ago than that, even by another caller; the count continues, and later checks use it. So a
//! mailbox may exceed its quota by the mail in progress, and by what arrives while its usage is
//! unknown.

mod counter;
mod rooms;
mod slow;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use delivery::local::WhenFull;
use lookup::{Answer, Table};
use mail::Address;
use mailbox::Quota;
use mailbox::quota::{Limits, NoLimits, Usage, recorded};
use tokio::time::timeout_at;

pub use counter::Counter;
pub use rooms::Rooms;

/// How long a message waits for tables and counts together.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The quota of a transport's mailboxes.
pub struct Allowance {
    /// The limits of each mailbox,
    pub usual: Limits,
    /// unless this table has others, keyed by address.
    pub table: Option<Arc<dyn Table>>,
    /// What happens to mail for full mailboxes.
    pub when_full: WhenFull,
    /// Counts the mailboxes.
    pub counter: Counter,
}

/// A message to check against a quota.
pub struct Letter<'a> {
    /// The Maildir, if known.
    pub folder: Option<&'a Path>,
    /// The limits of the mailbox, if known.
    pub limits: Option<Limits>,
    /// The size of the message in bytes.
    pub octets: u64,
}

/// The usage of a Maildir during one batch.
struct Account {
    limits: Limits,
    /// The total of the batch's messages for it.
    wanted: Usage,
    /// The usage, including the messages that fit; None if unknown.
    used: Option<Usage>,
    /// The messages delivered to it.
    added: Usage,
}

impl Allowance {
    /// The limits of each mailbox, or why they are unknown at the deadline; a table gets one query
    /// for all.
    pub async fn limits(&self, mailboxes: &[&Address], deadline: Instant) -> Vec<Result<Limits, String>> {
        let Some(table) = &self.table else { return self.usual_limits(mailboxes.len()) };
        let keys: Vec<&str> = mailboxes.iter().map(|mailbox| mailbox.as_str()).collect();
        let Ok(answers) = timeout_at(deadline.into(), table.lookup(&keys)).await else {
            return vec![Err(format!("table '{}' did not answer in time", table.name())); mailboxes.len()];
        };
        let limits = |(mailbox, answer): (&&Address, Answer)| match answer {
            // Some tables split a text with commas into several values.
            Answer::Found(values) if !values.is_empty() => {
                let wrong = |error: NoLimits| format!("table '{}': {mailbox}: {error}", table.name());
                values.join(",").parse().map_err(wrong)
            }
            Answer::Found(_) | Answer::NotFound => Ok(self.usual),
            Answer::Unavailable(why) | Answer::Unconfirmed(why) => Err(why),
        };
        mailboxes.iter().zip(answers).map(limits).collect()
    }

    /// The same without a table.
    pub fn usual_limits(&self, count: usize) -> Vec<Result<Limits, String>> {
        vec![Ok(self.usual); count]
    }

    /// Checks each message against the quota of its mailbox, assuming that those before it are
    /// delivered. Waits for the disk, and until the deadline for counts.
    pub fn seats(&self, letters: &[Letter<'_>], now: SystemTime, deadline: Instant) -> Vec<Quota> {
        let mut accounts: HashMap<&Path, Account> = HashMap::new();
        for (folder, limits, octets) in letters.iter().filter_map(Letter::limited) {
            let account = accounts.entry(folder).or_insert_with(|| Account::new(limits));
            account.wanted = account.wanted + Usage::message(octets);
        }
        self.open(&mut accounts, now, deadline);
        let mut seat = |letter: &Letter<'_>| match letter.limited().and_then(|(folder, ..)| accounts.get_mut(folder)) {
            Some(account) => account.seat(letter.octets),
            // If the limits are unknown there may be a quota, so the usage is updated.
            None if letter.limits.is_none() => Quota::Counted,
            None => Quota::None,
        };
        let seats = letters.iter().map(&mut seat).collect();
        self.counter.add(accounts.iter().map(|(folder, account)| (*folder, account.added)));
        seats
    }

    /// Gets the usage of the Maildirs; those that must be counted are counted in parallel.
    fn open(&self, accounts: &mut HashMap<&Path, Account>, now: SystemTime, deadline: Instant) {
        let (sender, counted) = mpsc::channel();
        let mut awaited: HashMap<PathBuf, Instant> = HashMap::new();
        for (folder, account) in accounts.iter_mut() {
            // An unreadable file is treated as missing.
            match recorded(folder, account.limits, now).ok().flatten() {
                Some(standing) if standing.decides(account.limits, account.wanted) => {
                    account.used = Some(standing.usage);
                }
                _ => {
                    let (sender, whose) = (sender.clone(), folder.to_path_buf());
                    // The receiver is gone if the count took too long.
                    let done = move |usage| drop(sender.send((whose, usage)));
                    let since = self.counter.recount(folder.to_path_buf(), account.limits, Box::new(done));
                    awaited.insert(folder.to_path_buf(), deadline.min(since + PATIENCE));
                }
            }
        }
        while let Some(latest) = awaited.values().max() {
            let left = latest.saturating_duration_since(Instant::now());
            let Ok((folder, usage)) = counted.recv_timeout(left) else { return };
            awaited.remove(&folder);
            if let Some(account) = accounts.get_mut(&*folder) {
                account.used = usage;
            }
        }
    }
}

impl Letter<'_> {
    /// The mailbox and its limits, if it has any.
    fn limited(&self) -> Option<(&Path, Limits, u64)> {
        let limits = self.limits.filter(|limits| !limits.is_none())?;
        Some((self.folder?, limits, self.octets))
    }
}

impl Account {
    fn new(limits: Limits) -> Self {
        Account { limits, wanted: Usage::default(), used: None, added: Usage::default() }
    }

    fn seat(&mut self, octets: u64) -> Quota {
        let letter = Usage::message(octets);
        if let Some(used) = self.used {
            if !self.limits.allow(used + letter) {
                return Quota::Full;
            }
            self.used = Some(used + letter);
        }
        self.added = self.added + letter;
        Quota::Counted
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use lookup::Answers;
    use lookup::fixed::Fixed;

    use super::*;

    const LIMITS: Limits = Limits { bytes: 100, messages: 0 };

    /// A table whose server does not answer.
    pub(super) struct Silent;

    impl Table for Silent {
        fn name(&self) -> &str {
            "silent"
        }

        fn lookup<'a>(&'a self, _: &'a [&'a str]) -> Answers<'a> {
            Box::pin(std::future::pending())
        }
    }

    pub(super) fn allowance(table: Option<Arc<dyn Table>>) -> Allowance {
        Allowance { usual: LIMITS, table, when_full: WhenFull::Defer, counter: Counter::start().unwrap() }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn letters_of_a_turn_share_the_room_and_a_smaller_one_may_still_fit() {
        let root = tempfile::tempdir().unwrap();
        let (full, free) = (root.path().join("full"), root.path().join("free"));
        for folder in [&full, &free] {
            ["tmp", "new", "cur"].iter().for_each(|part| fs::create_dir_all(folder.join(part)).unwrap());
        }
        fs::write(full.join("new/1.a.mx"), [0; 50]).unwrap();
        let letter = |folder, octets| Letter { folder: Some(folder), limits: Some(LIMITS), octets };
        let letters = [
            letter(&*full, 30),
            letter(&*free, 100),
            letter(&*full, 30),
            letter(&*full, 20),
            letter(&*full, 1),
            Letter { limits: Some(Limits::default()), ..letter(&*full, 1000) },
            Letter { limits: None, ..letter(&*full, 1000) },
        ];
        use Quota::{Counted, Full};
        let expected = [Counted, Counted, Full, Counted, Full, Quota::None, Counted];
        let allowance = allowance(None);
        assert_eq!(allowance.seats(&letters, SystemTime::now(), soon()), expected);
        // The second time from the files instead of counting.
        assert!(full.join("maildirsize").exists());
        assert_eq!(allowance.seats(&letters, SystemTime::now(), soon()), expected);
    }

    #[tokio::test]
    async fn a_table_says_what_single_mailboxes_may_hold() {
        let bob: Address = "bob@example.org".parse().unwrap();
        for (values, expected) in [
            (vec!["1KiB"], Ok(Limits { bytes: 1024, messages: 0 })),
            (vec!["10S", "2C"], Ok(Limits { bytes: 10, messages: 2 })),
            (vec!["0"], Ok(Limits::default())),
            (vec![], Ok(LIMITS)),
        ] {
            let values: Vec<String> = values.into_iter().map(str::to_owned).collect();
            let table: Arc<dyn Table> = Arc::new(Fixed::new("quotas", values));
            assert_eq!(allowance(Some(table)).limits(&[&bob], soon()).await, [expected]);
        }
        let table: Arc<dyn Table> = Arc::new(Fixed::new("quotas", vec!["much".to_owned()]));
        let limits = allowance(Some(table)).limits(&[&bob], soon()).await;
        assert!(limits[0].as_ref().is_err_and(|why| why.contains("bob@example.org")), "{limits:?}");
    }

    /// Regression: a silent table delayed the mail for all mailboxes of a transport.
    #[tokio::test]
    async fn a_table_that_does_not_answer_holds_nobody_up() {
        let bob: Address = "bob@example.org".parse().unwrap();
        let allowance = allowance(Some(Arc::new(Silent)));
        let twice = [&bob, &bob];
        let limits = allowance.limits(&twice, Instant::now() + Duration::from_millis(10));
        let limits = tokio::time::timeout(Duration::from_secs(5), limits).await.unwrap();
        assert_eq!(limits, vec![Err("table 'silent' did not answer in time".to_owned()); 2]);
    }

    #[test]
    fn what_a_count_that_took_long_has_found_limits_letters_and_they_count_with_it() {
        let folder = Path::new("/nowhere/that/is");
        let letter = |octets| Letter { folder: Some(folder), limits: Some(LIMITS), octets };
        let allowance = allowance(None);
        allowance.counter.recall(folder, Usage { bytes: 50, messages: 1 });
        let seats = |octets: &[u64]| {
            let letters: Vec<_> = octets.iter().map(|octets| letter(*octets)).collect();
            allowance.seats(&letters, SystemTime::now(), soon())
        };
        assert_eq!(seats(&[30, 30]), [Quota::Counted, Quota::Full]);
        assert_eq!(seats(&[30, 20, 1]), [Quota::Full, Quota::Counted, Quota::Full]);
    }

    /// Regression: each batch waited again for a count that takes long.
    #[test]
    fn a_count_holds_mail_up_once() {
        let (counter, _jobs) = Counter::stuck();
        let allowance = Allowance { counter, ..allowance(None) };
        let letters = [Letter { folder: Some(Path::new("/nowhere/that/is")), limits: Some(LIMITS), octets: 1000 }];
        let deadline = soon();
        assert_eq!(allowance.seats(&letters, SystemTime::now(), deadline), [Quota::Counted]);
        let begun_at = Instant::now();
        assert_eq!(allowance.seats(&letters, SystemTime::now(), deadline), [Quota::Counted]);
        assert!(begun_at.elapsed() < PATIENCE / 2);
    }
}
