//! Room in mailboxes, for sessions at RCPT: which transport delivers to a mailbox, what that may hold, and whether a
//! message fits. What was found out is remembered for a few seconds, so that a crowd of messages for one mailbox costs one
//! look at its file.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use delivery::local::WhenFull;
use intake::{Fit, Room, Troubles};
use lookup::directory::{Directory, Store};
use mail::Address;
use mailbox::quota::{Limits, Standing, Usage};
use tokio::sync::oneshot;

use super::counter::Look;
use super::{Allowance, PATIENCE};
use crate::flow::{Places, Transport};

/// For so long what was found out counts.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// Mailboxes that are remembered.
const KNOWN_MAX: usize = 65_536;

/// Knows which mailboxes are full.
pub struct Rooms {
    directory: Arc<Directory>,
    /// Those of transports that have a quota.
    houses: HashMap<Box<str>, House>,
    /// Where the operator hears why nobody could say.
    troubles: Troubles,
    known: RwLock<HashMap<Box<str>, Known>>,
}

/// The mailboxes of a transport.
struct House {
    places: Places,
    allowance: Arc<Allowance>,
}

struct Known {
    at: Instant,
    what: Found,
}

/// What is known of a mailbox.
#[derive(Clone, Copy)]
enum Found {
    /// Nothing limits it.
    Free,
    /// It holds so much of what it may.
    Limited(Limits, Standing, WhenFull),
    /// Nobody can say.
    Unknown,
}

impl Rooms {
    /// Of these transports; None if none of them has a quota.
    pub fn of(transports: &[Transport], directory: &Arc<Directory>, troubles: Troubles) -> Option<Rooms> {
        let house = |transport: &Transport| {
            let house = House { places: transport.places.clone(), allowance: transport.allowance.clone()? };
            Some((transport.name.clone(), house))
        };
        let houses: HashMap<_, _> = transports.iter().filter_map(house).collect();
        let (directory, known) = (directory.clone(), RwLock::default());
        (!houses.is_empty()).then_some(Rooms { directory, houses, troubles, known })
    }

    /// For the operator: what the mailbox may hold and does hold; None where nothing limits it.
    pub async fn account(&self, mailbox: &Address) -> Option<String> {
        match self.looked_up(mailbox, Usage::default()).await {
            Ok(Found::Limited(limits, Standing { usage: Usage { bytes, messages }, .. }, _)) => {
                Some(format!("{limits}; the mailbox holds {bytes} bytes in {messages} messages"))
            }
            Ok(Found::Free | Found::Unknown) => None,
            Err(why) => Some(format!("nobody can say now: {why}")),
        }
    }

    async fn find(&self, mailbox: &Address, more: Usage) -> Found {
        match self.looked_up(mailbox, more).await {
            Ok(found) => found,
            Err(why) => {
                let what =
                    format_args!("mail for <{mailbox}> is taken, since nobody can say whether there is room: {why}");
                self.troubles.report(what);
                Found::Unknown
            }
        }
    }

    async fn looked_up(&self, mailbox: &Address, more: Usage) -> Result<Found, String> {
        let Some(house) = self.house(mailbox).await? else { return Ok(Found::Free) };
        let unanswered = || "no answer".to_owned();
        let limits = house.allowance.limits(&[mailbox]).await.pop().ok_or_else(unanswered)??;
        if limits.is_none() {
            return Ok(Found::Free);
        }
        let folder = house.places.of(&[mailbox]).await.pop().ok_or_else(unanswered)??;
        let (sender, told) = oneshot::channel();
        let done = Box::new(move |standing| {
            // Who asked may have lost patience.
            let _ = sender.send(standing);
        });
        house.allowance.counter.look(Look { folder, limits, more, done });
        match tokio::time::timeout(PATIENCE, told).await {
            Ok(Ok(Some(standing))) => Ok(Found::Limited(limits, standing, house.allowance.when_full)),
            Ok(_) => Err("it could not be counted".to_owned()),
            Err(_) => Err("it is still being counted".to_owned()),
        }
    }

    /// Where the mailbox is, if it is here and there are quotas.
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

    fn remember(&self, mailbox: &Address, what: Found, now: Instant) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.retain(|_, known| known.is_fresh(now));
        }
        if known.len() < KNOWN_MAX {
            known.insert(mailbox.as_str().into(), Known { at: now, what });
        }
    }
}

impl Room for Rooms {
    fn known(&self, mailbox: &Address, octets: u64, now: Instant) -> Option<Fit> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(mailbox.as_str()).filter(|known| known.is_fresh(now))?.what.fit(Usage::message(octets))
    }

    fn ask<'a>(&'a self, mailbox: &'a Address, octets: u64) -> Pin<Box<dyn Future<Output = Fit> + Send + 'a>> {
        Box::pin(async move {
            let more = Usage::message(octets);
            let found = self.find(mailbox, more).await;
            self.remember(mailbox, found, Instant::now());
            found.fit(more).unwrap_or(Fit::Unknown)
        })
    }
}

impl Known {
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < KNOWN_FOR
    }
}

impl Found {
    /// Whether so much fits; None where that has to be found out.
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
}
