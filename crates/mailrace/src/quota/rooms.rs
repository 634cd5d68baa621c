//! Quota checks for sessions at RCPT: which transport delivers to a mailbox, its limits, and
//! whether a message fits. Results are cached for a few seconds, so that many messages for one
//! mailbox read its file once. No check takes longer than [`PATIENCE`].

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use delivery::local::WhenFull;
use intake::{Fit, Room, Troubles};
use lookup::directory::{Directory, Store};
use mail::Address;
use mailbox::quota::{Limits, Standing, Usage};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::counter::Look;
use super::{Allowance, PATIENCE};
use crate::flow::{Places, Transport};

/// How long a result is cached.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// The most cached mailboxes.
const KNOWN_MAX: usize = 65_536;
/// The minimum time between sweeps of a full cache: a sweep blocks all sessions.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// Checks the quotas of mailboxes.
pub struct Rooms {
    directory: Arc<Directory>,
    /// The transports with a quota.
    houses: HashMap<Box<str>, House>,
    /// Logs why a usage is unknown.
    troubles: Troubles,
    memory: RwLock<Memory>,
}

/// The mailboxes of a transport.
struct House {
    places: Places,
    allowance: Arc<Allowance>,
}

/// A mailbox and its limits.
struct Entry<'a> {
    allowance: &'a Allowance,
    limits: Limits,
    folder: PathBuf,
}

/// Recent results.
#[derive(Default)]
struct Memory {
    known: HashMap<Box<str>, Known>,
    swept_at: Option<Instant>,
}

struct Known {
    at: Instant,
    what: Found,
}

/// The state of a mailbox.
#[derive(Clone, Copy)]
enum Found {
    /// It has no limits.
    Free,
    /// Its limits and usage.
    Limited(Limits, Standing, WhenFull),
    /// Unknown.
    Unknown,
}

impl Rooms {
    /// For these transports; None if none of them has a quota.
    pub fn of(transports: &[Transport], directory: &Arc<Directory>, troubles: Troubles) -> Option<Rooms> {
        let house = |transport: &Transport| {
            let house = House { places: transport.places.clone(), allowance: transport.allowance.clone()? };
            Some((transport.name.clone(), house))
        };
        let houses: HashMap<_, _> = transports.iter().filter_map(house).collect();
        let (directory, memory) = (directory.clone(), RwLock::default());
        (!houses.is_empty()).then_some(Rooms { directory, houses, troubles, memory })
    }

    /// For the operator: the limits and usage of a mailbox; None if it has no limits.
    pub async fn account(&self, mailbox: &Address) -> Option<String> {
        match self.looked_up(mailbox, Usage::default()).await {
            Ok(Found::Limited(limits, Standing { usage: Usage { bytes, messages }, .. }, _)) => {
                Some(format!("{limits}; the mailbox holds {bytes} bytes in {messages} messages"))
            }
            Ok(Found::Free | Found::Unknown) => None,
            Err(why) => Some(format!("unknown now: {why}")),
        }
    }

    async fn find(&self, mailbox: &Address, more: Usage) -> Found {
        match self.looked_up(mailbox, more).await {
            Ok(found) => found,
            Err(why) => {
                let what = format_args!("cannot check the quota of <{mailbox}>, accepting mail for it: {why}");
                self.troubles.report(what);
                Found::Unknown
            }
        }
    }

    async fn looked_up(&self, mailbox: &Address, more: Usage) -> Result<Found, String> {
        let deadline = Instant::now() + PATIENCE;
        let untold = |_| "the tables did not answer in time".to_owned();
        let entry = timeout_at(deadline.into(), self.entry(mailbox, deadline)).await.map_err(untold)??;
        let Some(Entry { allowance, limits, folder }) = entry else { return Ok(Found::Free) };
        let (sender, told) = oneshot::channel();
        let done = Box::new(move |standing| {
            // The caller may have timed out.
            let _ = sender.send(standing);
        });
        allowance.counter.look(Look { folder, limits, more, done });
        match timeout_at(deadline.into(), told).await {
            Ok(Ok(Some(standing))) => Ok(Found::Limited(limits, standing, allowance.when_full)),
            Ok(_) => Err("cannot count the mailbox".to_owned()),
            Err(_) => Err("the mailbox is still being counted".to_owned()),
        }
    }

    /// The mailbox and its limits; None if it has none.
    async fn entry(&self, mailbox: &Address, deadline: Instant) -> Result<Option<Entry<'_>>, String> {
        let Some(House { places, allowance }) = self.house(mailbox).await? else { return Ok(None) };
        let unanswered = || "no answer".to_owned();
        let limits = allowance.limits(&[mailbox], deadline).await.pop().ok_or_else(unanswered)??;
        if limits.is_none() {
            return Ok(None);
        }
        let folder = places.of(&[mailbox]).await.pop().ok_or_else(unanswered)??;
        Ok(Some(Entry { allowance, limits, folder }))
    }

    /// The transport of the mailbox, if the mailbox is local and its transport has a quota.
    async fn house(&self, mailbox: &Address) -> Result<Option<&House>, String> {
        let Some(domain) = self.directory.domain(mailbox.domain()).await? else { return Ok(None) };
        let Some(house) = self.houses.get(&domain.transport) else { return Ok(None) };
        if domain.hosts.is_none() {
            return Ok(Some(house));
        }
        match self.directory.stores(std::slice::from_ref(mailbox)).await.pop() {
            Some(Store::Here) => Ok(Some(house)),
            Some(Store::Unavailable(why)) => Err(why),
            Some(Store::Onward | Store::At(_)) | None => Ok(None),
        }
    }
}

impl Room for Rooms {
    fn known(&self, mailbox: &Address, octets: u64, now: Instant) -> Option<Fit> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        memory.known.get(mailbox.as_str()).filter(|known| known.is_fresh(now))?.what.fit(Usage::message(octets))
    }

    fn ask<'a>(&'a self, mailbox: &'a Address, octets: u64) -> Pin<Box<dyn Future<Output = Fit> + Send + 'a>> {
        Box::pin(async move {
            let more = Usage::message(octets);
            let found = self.find(mailbox, more).await;
            let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
            memory.keep(mailbox.as_str(), found, Instant::now());
            drop(memory);
            found.fit(more).unwrap_or(Fit::Unknown)
        })
    }
}

impl Memory {
    fn keep(&mut self, mailbox: &str, what: Found, now: Instant) {
        let is_rested = |at| now.saturating_duration_since(at) >= SWEEP_PAUSE;
        if self.known.len() >= KNOWN_MAX && self.swept_at.is_none_or(is_rested) {
            self.known.retain(|_, known| known.is_fresh(now));
            self.swept_at = Some(now);
        }
        if self.known.len() < KNOWN_MAX || self.known.contains_key(mailbox) {
            self.known.insert(mailbox.into(), Known { at: now, what });
        }
    }
}

impl Known {
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < KNOWN_FOR
    }
}

impl Found {
    /// Whether the message fits; None if this has to be counted.
    fn fit(self, more: Usage) -> Option<Fit> {
        match self {
            Found::Free => Some(Fit::Fits),
            Found::Unknown => Some(Fit::Unknown),
            Found::Limited(limits, standing, _) if limits.allow(standing.usage + more) => Some(Fit::Fits),
            Found::Limited(_, standing, when_full) => {
                standing.is_settled.then_some(Fit::Full { for_good: when_full == WhenFull::Refuse })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lookup::Table;
    use lookup::directory::{self, Domain};

    use crate::flow::PlaceTable;
    use crate::quota::tests::{Silent, allowance};

    use super::*;

    fn found(bytes: u64, is_settled: bool, when_full: WhenFull) -> Found {
        let standing = Standing { usage: Usage { bytes, messages: 1 }, is_settled };
        Found::Limited(Limits { bytes: 100, messages: 0 }, standing, when_full)
    }

    #[test]
    fn only_what_is_settled_refuses_and_a_smaller_message_may_fit() {
        let fit = |found: Found, bytes| found.fit(Usage::message(bytes));
        assert_eq!(fit(found(90, false, WhenFull::Defer), 10), Some(Fit::Fits));
        assert_eq!(fit(found(90, false, WhenFull::Defer), 11), None);
        assert_eq!(fit(found(90, true, WhenFull::Defer), 11), Some(Fit::Full { for_good: false }));
        assert_eq!(fit(found(90, true, WhenFull::Refuse), 11), Some(Fit::Full { for_good: true }));
        assert_eq!(fit(Found::Free, u64::MAX), Some(Fit::Fits));
        assert_eq!(fit(Found::Unknown, 1), Some(Fit::Unknown));
    }

    /// Quotas of the mailboxes of x.org, with tables for hosts, quotas and paths.
    fn rooms(hosts: Option<Silent>, quotas: Option<Silent>, places: Option<Silent>) -> Rooms {
        let table = |silent: Option<Silent>| silent.map(|silent| -> Arc<dyn Table> { Arc::new(silent) });
        let domain = Domain {
            name: "x.org".into(),
            mailboxes: None,
            aliases: None,
            catch_all: None,
            hosts: table(hosts),
            delimiter: None,
            transport: "maildir".into(),
            is_final: true,
        };
        let root = PathBuf::from("/nowhere/that/is");
        let places = Places {
            folders: Arc::new(|_: &Address| "/nowhere/that/is/bob".into()),
            table: table(places).map(|table| PlaceTable { table, root }),
        };
        let house = House { places, allowance: Arc::new(allowance(table(quotas))) };
        Rooms {
            directory: Arc::new(Directory::new(vec![domain], directory::Limits::default())),
            houses: [("maildir".into(), house)].into(),
            troubles: Troubles::new(|_, _| ()),
            memory: RwLock::default(),
        }
    }

    /// Regression: a session waited for a silent table; only counting had a time limit.
    #[tokio::test]
    async fn no_table_holds_a_session_up_for_long() {
        let bob: Address = "bob@x.org".parse().unwrap();
        let fit = async |rooms: Rooms| tokio::time::timeout(PATIENCE * 5, rooms.ask(&bob, 1)).await;
        let silent = || Some(Silent);
        let fits = tokio::join!(
            fit(rooms(silent(), None, None)),
            fit(rooms(None, silent(), None)),
            fit(rooms(None, None, silent())),
            fit(rooms(None, None, None)),
        );
        assert_eq!(fits, (Ok(Fit::Unknown), Ok(Fit::Unknown), Ok(Fit::Unknown), Ok(Fit::Fits)));
    }

    /// Regression: each new entry swept the whole cache even if no entry was old.
    #[test]
    fn a_full_memory_is_swept_once_a_second() {
        let (mut memory, start) = (Memory::default(), Instant::now());
        for number in 0..KNOWN_MAX {
            memory.keep(&number.to_string(), Found::Free, start);
        }
        let mut is_kept = |mailbox, after| {
            memory.keep(mailbox, Found::Free, start + after);
            memory.known.contains_key(mailbox)
        };
        let almost = KNOWN_FOR - Duration::from_millis(500);
        assert!(!is_kept("a", almost), "all are fresh");
        assert!(!is_kept("a", KNOWN_FOR), "there is no sweep so soon");
        assert!(is_kept("1", KNOWN_FOR), "it has an entry already");
        assert!(is_kept("a", almost + SWEEP_PAUSE));
        assert_eq!(memory.known.len(), 2);
    }
}
