//! A local copy of the part of an LDAP directory that a table needs. It answers on the caller's
//! thread and survives outages and restarts.
//!
//! A thread follows the server with the Sync Operation (RFC 4533), which reports changes as they
//! happen. If the server does not offer it, the thread fetches everything at intervals. The copy is
//! in an LMDB file that only one process can open; another one gets [`StoreError::InUse`] and runs
//! without a copy. Lookups use an index in memory.
//!
//! | state      | answers                                                                                         |
//! |------------|-------------------------------------------------------------------------------------------------|
//! | loading    | all from the LDAP server, because an incomplete copy may lack values                            |
//! | complete   | from the copy, including NotFound, even during an outage                                        |
//!
//! Keys that a copy cannot hold are always looked up on the LDAP server: those over 480 octets, and
//! those beyond printable ASCII, for which servers have their own rules. A refresh that would
//! remove too much is held back ([`ReplicaConfig::removals_max`]).

mod answer_index;
mod batch;
mod content;
mod copy;
mod entry_set;
mod event_reporter;
mod file_check;
mod follow;
mod poll;
mod record;
mod removal_limit;
mod server_info;
mod shared;
mod store;
mod sync_messages;
mod sync_operation;
mod sys;
mod worker;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::answer_index::CopyAnswer;
use self::content::ReplicaContent;
use self::shared::Shared;
use self::store::CopyStore;
pub use self::store::StoreError;
use self::worker::ReplicaWorker;
use crate::connection::Connector;
use crate::schema::EqualityRule;
use crate::{LdapConfig, LdapConfigError};
use lookup::{
    LookupAnswer, LookupFuture, LookupStats, Table, TableEvent, TableEventHandler, TableLayer, TraceFuture,
    TracedAnswer, fold_key,
};

/// Configuration of a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaConfig {
    /// The LDAP table to copy.
    pub ldap: LdapConfig,
    /// The file of the copy, created if missing. LMDB adds a lock file with the suffix `-lock`.
    pub file: PathBuf,
    /// How often to fetch everything from a server without the Sync Operation.
    pub poll_interval: Duration,
    /// The share of entries that may be removed within an hour, from 0 to 1; ten removals are
    /// always allowed. Further ones are held back until the operator accepts them or the entries
    /// return. 1 means no limit.
    pub removals_max: f64,
}

impl ReplicaConfig {
    /// The default of `poll_interval`.
    pub const POLL_INTERVAL: Duration = Duration::from_secs(300);
    /// The default of `removals_max`.
    pub const REMOVALS_MAX: f64 = 0.1;

    /// Checks whether a copy can answer the lookups of this table.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Filter`], [`ReplicaError::Members`] or [`ReplicaError::Referrals`] if it
    /// cannot.
    pub fn check_ldap_config(ldap: &LdapConfig) -> Result<(), ReplicaError> {
        ReplicaContent::new(ldap).map(drop)
    }
}

/// Why a replica cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// A copy cannot decide what this filter matches.
    #[error(
        "a replica cannot answer the filter '{0}': expected an equality (attribute={{key}}) or an OR of such, alone or in \
         an AND with parts that do not depend on the key"
    )]
    Filter(Box<str>),
    /// Group members may be outside the copied content.
    #[error("a replica cannot follow the members of groups: use the direct mode for them")]
    Members,
    /// A copy does not count the entries of a key.
    #[error("a replica does not count the entries of a key: use the direct mode for that")]
    EntriesMax,
    /// Referrals lead to other servers, which the replica does not follow.
    #[error("a replica cannot follow referrals: remove them, or set mode = \"direct\"")]
    Referrals,
    /// The LDAP configuration cannot work.
    #[error(transparent)]
    Ldap(#[from] LdapConfigError),
    /// The file cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The thread cannot be started.
    #[error("cannot start the thread of a replica: {0}")]
    Thread(std::io::Error),
}

/// A replica. Dropping it stops its thread within a second.
pub struct LdapReplica {
    shared: Arc<Shared>,
    direct: Arc<dyn Table>,
    values_max: usize,
    thread: Option<JoinHandle<()>>,
}

impl LdapReplica {
    /// Opens the copy of the table `name` and starts following the server. `direct` is the same
    /// table without a copy, for lookups that the copy cannot answer. A damaged file is renamed and
    /// reported as [`TableEvent::Failed`].
    pub fn start(
        name: &str,
        config: ReplicaConfig,
        direct: Arc<dyn Table>,
        events: TableEventHandler,
    ) -> Result<LdapReplica, ReplicaError> {
        let content = ReplicaContent::new(&config.ldap)?;
        let connector = Connector::new(config.ldap.servers.clone())?;
        let answers = Arc::default();
        let (store, aside) = CopyStore::open(&config.file, &content.identity(), &answers)?;
        if let Some(aside) = aside {
            events(TableEvent::Failed { table: name.into(), error: aside.to_string().into(), left_out: 0 });
        }
        let values_max = config.ldap.values_max;
        let shared = Arc::new(Shared::new(name, store, answers));
        let worker = ReplicaWorker::new(config, content, connector, shared.clone(), events);
        let thread = thread::Builder::new().name(format!("replica {name}")).spawn(move || worker.run());
        let thread = Some(thread.map_err(ReplicaError::Thread)?);
        Ok(LdapReplica { shared, direct, values_max, thread })
    }

    /// The answers of the copy, and the indexes of keys that only the LDAP server can answer; their
    /// answers are placeholders.
    fn answers_from_copy(&self, keys: &[&str]) -> (Vec<LookupAnswer>, Vec<usize>) {
        let mut answers = Vec::with_capacity(keys.len());
        let mut open = Vec::new();
        let asked = self.shared.read_answers(|copy| {
            for key in keys {
                let answer = self.answer_of(copy.find(&normalized_key(key), self.values_max));
                if answer.is_none() {
                    open.push(answers.len());
                }
                answers.push(answer.unwrap_or(UNANSWERED));
            }
        });
        if asked.is_none() {
            return (vec![UNANSWERED; keys.len()], (0..keys.len()).collect());
        }
        let of_copy = answers.iter().enumerate().filter(|(place, _)| !open.contains(place));
        of_copy.for_each(|(_, answer)| self.shared.count(answer));
        (answers, open)
    }

    fn answer_of(&self, said: CopyAnswer) -> Option<LookupAnswer> {
        match said {
            CopyAnswer::Found(values) => Some(LookupAnswer::Found(values)),
            CopyAnswer::NotFound => Some(LookupAnswer::NotFound),
            CopyAnswer::TooMany => {
                let too_many = format!("table '{}': more than {} values", self.shared.name, self.values_max);
                Some(LookupAnswer::Unavailable(too_many))
            }
            CopyAnswer::AskServer => None,
        }
    }
}

impl Table for LdapReplica {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        let (mut answers, open) = self.answers_from_copy(keys);
        if open.is_empty() {
            return Box::pin(std::future::ready(answers));
        }
        Box::pin(async move {
            let asked: Vec<&str> = open.iter().map(|&place| keys[place]).collect();
            let mut direct = self.direct.lookup(&asked).await.into_iter();
            let missing = || LookupAnswer::Unavailable(format!("table '{}': no answer", self.shared.name));
            for place in open {
                answers[place] = direct.next().unwrap_or_else(missing);
            }
            answers
        })
    }

    fn trace<'a>(&'a self, key: &'a str) -> TraceFuture<'a> {
        match self.answers_from_copy(&[key]) {
            (mut answers, open) if open.is_empty() => {
                let layer = TableLayer::Replica { age: self.shared.age().unwrap_or_default() };
                let answer = answers.pop().unwrap_or(UNANSWERED);
                Box::pin(std::future::ready(TracedAnswer { answer, layer }))
            }
            _ => self.direct.trace(key),
        }
    }

    fn accept_removals(&self) -> bool {
        self.shared.accept_removals()
    }

    /// A key is counted either here or by the direct table.
    fn stats(&self) -> Option<LookupStats> {
        let mut stats = self.direct.stats().unwrap_or_default();
        self.shared.add_to(&mut stats);
        Some(stats)
    }
}

impl Drop for LdapReplica {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended the process, or a test that fails anyway.
            let _ = thread.join();
        }
    }
}

/// A placeholder for a missing answer.
const UNANSWERED: LookupAnswer = LookupAnswer::Unavailable(String::new());

/// The normalized form of a key. Most keys already have it.
fn normalized_key(key: &str) -> Cow<'_, str> {
    match key.bytes().all(|octet| octet.is_ascii_graphic() && !octet.is_ascii_uppercase()) {
        true => Cow::Borrowed(key),
        false => Cow::Owned(EqualityRule::IgnoreCase.normalize(&fold_key(key)).into_owned()),
    }
}
