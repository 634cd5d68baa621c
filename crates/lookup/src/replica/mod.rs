//! A local copy of what a table asks of a directory, which answers on the caller's thread and outlives outages and
//! restarts.
//!
//! A thread follows the directory: by the Sync Operation (RFC 4533), whose changes arrive as they are made, or, where the
//! server does not offer it, by fetching everything every so often. The copy is in a file (LMDB) that this process alone
//! opens; another one gets [`StoreError::InUse`] and has to do without. Answers come from a table in memory that is made
//! of it.
//!
//! | state      | answers                                                                                         |
//! |------------|-------------------------------------------------------------------------------------------------|
//! | loading    | all keys are asked of the directory itself: half a copy may know half the values of a key          |
//! | complete   | from the copy, NotFound included, whether the directory is there or not                          |
//!
//! Keys that a copy cannot hold (longer than 480 octets, or not of printable ASCII, for which servers have rules of their
//! own) are asked of the directory itself at all times.
//!
//! A refresh that would remove too much is held back ([`Config::removals_max`]).

mod answers;
mod batch;
mod content;
mod copy;
mod follow;
mod marks;
mod poll;
mod record;
mod refresh;
mod removals;
mod server;
mod shared;
mod store;
mod sync;
mod sys;
mod teller;
mod walk;
mod worker;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::answers::Said;
use self::content::Content;
use self::shared::Shared;
use self::store::Store;
pub use self::store::StoreError;
use self::worker::Worker;
use crate::ldap::connection::Connector;
use crate::ldap::schema::Rule;
use crate::ldap::{self, LdapError};
use crate::{Answer, Answers, Event, Events, Layer, Stats, Table, Trace, Tracing, fold};

/// What is copied, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What would be asked of the directory, key by key.
    pub ldap: ldap::Config,
    /// The file of the copy, which is made if it is not there. LMDB has another one beside it, with `-lock` behind its name.
    pub file: PathBuf,
    /// How often everything is fetched from a server that does not tell of changes.
    pub poll_every: Duration,
    /// The share of the entries that may go within an hour, from 0 to 1; ten may go in any case. More are held back until
    /// the operator accepts it or the directory has them again. 1: all may go.
    pub removals_max: f64,
}

impl Config {
    /// Time between two fetches, unless the configuration says otherwise.
    pub const POLL_EVERY: Duration = Duration::from_secs(300);
    /// Share of entries, unless the configuration says otherwise.
    pub const REMOVALS_MAX: f64 = 0.1;

    /// Whether a copy could answer what is asked of a directory in this way.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Filter`], [`ReplicaError::Members`] or [`ReplicaError::Referrals`] where it could not.
    pub fn check(ldap: &ldap::Config) -> Result<(), ReplicaError> {
        Content::new(ldap).map(drop)
    }
}

/// A copy that cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// A filter of which a copy could not tell what it finds.
    #[error(
        "a replica cannot answer the filter '{0}': expected an equality (attribute={{key}}) or an OR of such, alone or in \
         an AND with parts that do not depend on the key"
    )]
    Filter(Box<str>),
    /// Members of groups are elsewhere in the directory.
    #[error("a replica cannot follow the members of groups: use the direct mode for them")]
    Members,
    /// What references lead to is on other servers, which do not tell of changes.
    #[error("a replica cannot follow references to other servers: use the direct mode for them")]
    Referrals,
    /// The configuration of the directory cannot work.
    #[error(transparent)]
    Ldap(#[from] LdapError),
    /// The file cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The thread cannot be started.
    #[error("cannot start the thread of a replica: {0}")]
    Thread(std::io::Error),
}

/// A copy, and the thread that follows the directory. Dropped, it ends the thread within a second.
pub struct Replica {
    shared: Arc<Shared>,
    direct: Arc<dyn Table>,
    values_max: usize,
    thread: Option<JoinHandle<()>>,
}

impl Replica {
    /// Opens the copy of the table `name`, and begins to follow the directory. `direct` is the same table without a copy,
    /// for what the copy cannot say. A damaged file gets another name, which is told as [`Event::Failed`].
    pub fn start(name: &str, config: Config, direct: Arc<dyn Table>, events: Events) -> Result<Replica, ReplicaError> {
        let content = Content::new(&config.ldap)?;
        let connector = Connector::new(config.ldap.servers.clone())?;
        let answers = Arc::default();
        let (store, aside) = Store::open(&config.file, &content.identity(), &answers)?;
        if let Some(aside) = aside {
            events(Event::Failed { table: name.into(), error: aside.to_string().into(), left_out: 0 });
        }
        let values_max = config.ldap.values_max;
        let shared = Arc::new(Shared::new(name, store, answers));
        let worker = Worker::new(config, content, connector, shared.clone(), events);
        let thread = thread::Builder::new().name(format!("replica {name}")).spawn(move || worker.run());
        let thread = Some(thread.map_err(ReplicaError::Thread)?);
        Ok(Replica { shared, direct, values_max, thread })
    }

    /// The answers of the copy, and the places of those that only the directory has: what stands there is none.
    fn answers_now(&self, keys: &[&str]) -> (Vec<Answer>, Vec<usize>) {
        let mut answers = Vec::with_capacity(keys.len());
        let mut open = Vec::new();
        let asked = self.shared.ask(|copy| {
            for key in keys {
                let answer = self.answer_of(copy.say(&form(key), self.values_max));
                if answer.is_none() {
                    open.push(answers.len());
                }
                answers.push(answer.unwrap_or(NONE_YET));
            }
        });
        if asked.is_none() {
            return (vec![NONE_YET; keys.len()], (0..keys.len()).collect());
        }
        let of_copy = answers.iter().enumerate().filter(|(place, _)| !open.contains(place));
        of_copy.for_each(|(_, answer)| self.shared.count(answer));
        (answers, open)
    }

    fn answer_of(&self, said: Said) -> Option<Answer> {
        match said {
            Said::Found(values) => Some(Answer::Found(values)),
            Said::NotFound => Some(Answer::NotFound),
            Said::TooMany => {
                let too_many = format!("table '{}': more than {} values", self.shared.name, self.values_max);
                Some(Answer::Unavailable(too_many))
            }
            Said::Elsewhere => None,
        }
    }
}

impl Table for Replica {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a> {
        let (mut answers, open) = self.answers_now(keys);
        if open.is_empty() {
            return Box::pin(std::future::ready(answers));
        }
        Box::pin(async move {
            let asked: Vec<&str> = open.iter().map(|&place| keys[place]).collect();
            let mut direct = self.direct.lookup(&asked).await.into_iter();
            let missing = || Answer::Unavailable(format!("table '{}': no answer", self.shared.name));
            for place in open {
                answers[place] = direct.next().unwrap_or_else(missing);
            }
            answers
        })
    }

    fn trace<'a>(&'a self, key: &'a str) -> Tracing<'a> {
        match self.answers_now(&[key]) {
            (mut answers, open) if open.is_empty() => {
                let layer = Layer::Replica { age: self.shared.age().unwrap_or_default() };
                let answer = answers.pop().unwrap_or(NONE_YET);
                Box::pin(std::future::ready(Trace { answer, layer }))
            }
            _ => self.direct.trace(key),
        }
    }

    fn accept_removals(&self) -> bool {
        self.shared.accept_removals()
    }

    /// Keys are counted here or by the table that was asked for them, never by both.
    fn stats(&self) -> Option<Stats> {
        let mut stats = self.direct.stats().unwrap_or_default();
        self.shared.add_to(&mut stats);
        Some(stats)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // Its panic has ended the process, or is somebody's test that fails by itself.
            let _ = thread.join();
        }
    }
}

/// Where an answer is to come.
const NONE_YET: Answer = Answer::Unavailable(String::new());

/// The form in which a copy has a key. Most keys come in it.
fn form(key: &str) -> Cow<'_, str> {
    match key.bytes().all(|octet| octet.is_ascii_graphic() && !octet.is_ascii_uppercase()) {
        true => Cow::Borrowed(key),
        false => Cow::Owned(Rule::IgnoreCase.form(&fold(key)).into_owned()),
    }
}
