//! Limits over time: how many messages, recipients and bytes a user, a sender, a client or a listener
//! may send in a time span. Each quantity of each limit is an [`Allowance`] for every key.
//!
//! | stage | what is counted | without an allowance |
//! |---|---|---|
//! | MAIL | a message, once no access rule refuses it | 450 4.7.1 |
//! | MAIL | nothing: would the size that the client declares fit? | 452 4.7.1, 552 5.3.4 |
//! | RCPT | a recipient, once it is admitted | 452 4.7.1 |
//! | end of data | the bytes of the message, with the fields before it | 452 4.7.1, 552 5.3.4 |
//!
//! What is refused later stays counted, so trying is not free. All limits must allow a step before any
//! of them counts it; threads that ask at the same moment may both be allowed the last one.
//!
//! The number of keys of a quantity is limited. When it is reached, the key that has used least is
//! forgotten: a flood of new keys gives nobody back what they have used up. A key whose allowance is full
//! again is forgotten too. A reload keeps what is used, by the name of the limit; a restart does not.

mod check;
mod usage;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use mail::{Address, Allowance, Networks};
use parking_lot::Mutex;

use crate::check::{Check, CheckFactory, CheckOrder, Origin, SessionInfo, Submitter};
use crate::key_digest::{ClientPrefixes, KeyDigest};
use crate::stage::{Stage, Stages};
use lookup::fold_key;

use usage::KeyUsage;

/// The default number of keys of each quantity; they take about 7 MB.
pub const KEYS_MAX: usize = 65_536;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// Messages.
    Messages,
    /// Recipients.
    Recipients,
    /// Bytes of messages.
    Bytes,
}

impl Quantity {
    /// All of them.
    pub const ALL: [Quantity; 3] = [Quantity::Messages, Quantity::Recipients, Quantity::Bytes];

    /// The key in the configuration, and the word in metrics and replies.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Messages => "messages",
            Quantity::Recipients => "recipients",
            Quantity::Bytes => "bytes",
        }
    }
}

/// Who has an allowance of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSubject {
    /// Each user who has logged in. Nobody else is limited.
    User,
    /// Each sender, except the null sender. Strangers, who may claim to be anybody, use up nothing of what users
    /// and relay networks have.
    Sender,
    /// Each domain of senders, also apart for strangers.
    SenderDomain,
    /// Each client, or each network of clients.
    Client(ClientPrefixes),
    /// Each listener.
    Listener,
}

/// A limit in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    /// Its name, which is unique.
    pub name: Box<str>,
    /// Who has an allowance.
    pub subject: LimitSubject,
    /// For each of [`Quantity::ALL`]; None: no limit.
    pub allowances: [Option<Allowance>; 3],
    /// Only sessions on these listeners, by the address in the configuration; empty: all.
    pub listeners: Vec<SocketAddr>,
    /// But not clients in these networks.
    pub exempt: Networks,
    /// And not these users.
    pub exempt_users: Vec<Box<str>>,
    /// Also clients that have logged in.
    pub users: bool,
    /// Keys of each quantity.
    pub keys_max: usize,
}

/// A limit with its state.
struct RunningLimit {
    settings: LimitSettings,
    usage: Arc<LimitUsage>,
}

/// What the keys of a limit have used, over reloads.
#[derive(Debug, Default)]
struct LimitUsage {
    /// For each of [`Quantity::ALL`].
    quantities: [Mutex<KeyUsage>; 3],
    refused: [AtomicU64; 3],
}

/// The numbers of a quantity of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitStats {
    /// The name of the limit.
    pub limit: Box<str>,
    /// The word for the quantity.
    pub quantity: &'static str,
    /// Refusals since the start.
    pub refused: u64,
    /// Keys that have used something.
    pub keys: usize,
    /// Keys that were forgotten because there were too many.
    pub forgotten: u64,
}

/// Takes what is used here, to count it on other servers too. It must not wait.
pub trait SharedUsage: Send + Sync {
    /// A key of a limit has used this much. The key is a digest.
    fn count(&self, limit: &str, quantity: Quantity, key: [u8; 16], cost: u64);
}

/// All limits: makes the [`Check`]s of sessions, which keep nothing.
pub struct RateLimits {
    limits: Vec<RunningLimit>,
    shared: OnceLock<Arc<dyn SharedUsage>>,
}

impl RateLimits {
    /// The limits, with what was used under the same names before. None: there are none.
    pub fn new(settings: &[LimitSettings], before: Option<&RateLimits>) -> Option<RateLimits> {
        let used: HashMap<&str, &Arc<LimitUsage>> = before
            .into_iter()
            .flat_map(|before| &before.limits)
            .map(|limit| (&*limit.settings.name, &limit.usage))
            .collect();
        let limit = |settings: &LimitSettings| RunningLimit {
            usage: used.get(&*settings.name).map(|usage| Arc::clone(usage)).unwrap_or_default(),
            settings: settings.clone(),
        };
        (!settings.is_empty())
            .then(|| RateLimits { limits: settings.iter().map(limit).collect(), shared: OnceLock::new() })
    }

    /// Tells other servers what is used from now on. Only the first call counts.
    pub fn share_usage(&self, shared: Arc<dyn SharedUsage>) {
        // A second one would be the same.
        let _ = self.shared.set(shared);
    }

    /// Counts what was used on another server, where a limit has the same name.
    pub fn count_elsewhere(&self, limit: &str, quantity: Quantity, key: [u8; 16], cost: u64, now: Instant) {
        let named = self.limits.iter().filter(|it| &*it.settings.name == limit);
        named.for_each(|limit| limit.count(KeyDigest(key), quantity, cost, now));
    }

    /// The numbers of all limits.
    pub fn stats(&self) -> Vec<LimitStats> {
        let of_limit = |limit: &RunningLimit| {
            let quantities = Quantity::ALL.into_iter().filter(|quantity| limit.allowance(*quantity).is_some());
            quantities.map(|quantity| limit.stats(quantity)).collect::<Vec<_>>()
        };
        self.limits.iter().flat_map(of_limit).collect()
    }

    fn limits_any(&self, quantity: Quantity) -> bool {
        self.limits.iter().any(|limit| limit.allowance(quantity).is_some())
    }
}

impl RunningLimit {
    fn allowance(&self, quantity: Quantity) -> Option<Allowance> {
        self.settings.allowances[quantity as usize]
    }

    fn usage(&self, quantity: Quantity) -> &Mutex<KeyUsage> {
        &self.usage.quantities[quantity as usize]
    }

    fn count_refusal(&self, quantity: Quantity) {
        self.usage.refused[quantity as usize].fetch_add(1, Relaxed);
    }

    fn stats(&self, quantity: Quantity) -> LimitStats {
        let usage = self.usage(quantity).lock();
        LimitStats {
            limit: self.settings.name.clone(),
            quantity: quantity.name(),
            refused: self.usage.refused[quantity as usize].load(Relaxed),
            keys: usage.len(),
            forgotten: usage.forgotten(),
        }
    }
}

impl LimitSettings {
    /// Whose allowance the transaction uses; None: the limit does not apply to it.
    fn key(&self, session: &SessionInfo<'_>) -> Option<KeyDigest> {
        let listener = session.listener?;
        let is_listener = self.listeners.is_empty() || self.listeners.contains(&listener);
        let is_exempt = session.client.is_some_and(|client| self.exempt.contains(client));
        let user = match session.submitter {
            Submitter::User(user) => Some(fold_key(user)),
            Submitter::Stranger | Submitter::RelayNetwork | Submitter::LocalProgram => None,
        };
        if !is_listener || is_exempt || user.as_ref().is_some_and(|user| self.spares_user(user)) {
            return None;
        }
        let claimed = |sender: String| match session.submitter {
            Submitter::Stranger => format!("{sender} of strangers"),
            Submitter::User(_) | Submitter::RelayNetwork | Submitter::LocalProgram => sender,
        };
        let key = match self.subject {
            LimitSubject::User => user?,
            LimitSubject::Sender if user.is_some() => claimed(untagged(session.sender??)),
            LimitSubject::Sender => claimed(fold_key(session.sender??.as_str())),
            LimitSubject::SenderDomain => claimed(fold_key(session.sender??.domain())),
            // All clients without a known address are one.
            LimitSubject::Client(prefixes) => {
                session.client.map_or_else(String::new, |client| prefixes.network(client).to_string())
            }
            LimitSubject::Listener => listener.to_string(),
        };
        Some(KeyDigest::of(&[&key]))
    }

    fn spares_user(&self, user: &str) -> bool {
        !self.users || self.exempt_users.iter().any(|exempt| fold_key(exempt) == user)
    }
}

/// The address without a tag: a user has any number of them.
fn untagged(sender: &Address) -> String {
    let local = sender.local_part();
    let bare = local.split_once('+').map_or(local, |(before, _)| before);
    fold_key(&format!("{bare}@{}", sender.domain()))
}

impl CheckFactory for RateLimits {
    fn order(&self) -> CheckOrder {
        CheckOrder::RateLimits
    }

    /// Programs on this machine are not limited.
    fn stages(&self, origin: Origin) -> Stages {
        let stages_of = |quantity| -> &'static [Stage] {
            match quantity {
                Quantity::Messages => &[Stage::Mail],
                Quantity::Recipients => &[Stage::Rcpt],
                Quantity::Bytes => &[Stage::Mail, Stage::Message],
            }
        };
        let limited = Quantity::ALL.into_iter().filter(|quantity| self.limits_any(*quantity));
        limited.filter(|_| origin == Origin::Client).flat_map(stages_of).copied().collect()
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(self)
    }
}
