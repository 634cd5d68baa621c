//! What operators redirect: the mail for a next hop or a destination to another next hop, until they end
//! it. Redirects are kept in a file in the data folder, so a restart keeps them.
//!
//! | the file | the server |
//! |---|---|
//! | is missing | has no redirects |
//! | is damaged | does not start: mail must not go where the operator does not want it |
//! | cannot be written | refuses the act, and nothing changes |
//! | is written, and its folder cannot be synced | follows the new redirects, and says that a power failure may undo that |

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dispatch::{RedirectSource, RedirectTable, Redirects};
use parking_lot::Mutex;
use route::{FixedHop, RouteKey};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::state_file::{self, NotSynced, ReplaceError};

/// The name of the file, in the folder of the server's data.
pub const REDIRECT_FILE: &str = "redirects.json";
/// Octets of a name or next hop.
const NAME_OCTETS_MAX: usize = 1024;
/// The transport of a redirect that names none.
const SMTP: &str = "smtp";

/// The mail that is redirected, by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RedirectedName {
    /// That for a next hop, as `mailrace queue list --by next-hop` shows it.
    NextHop(String),
    /// That for a destination, in all queues.
    Destination(String),
}

/// A redirect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Redirect {
    /// The mail that is redirected.
    pub from: RedirectedName,
    /// Where it goes: `host:port` or `[address]:port`, `mx:domain`, or `unix:/path`.
    pub to: String,
    /// The transport, which delivers by SMTP or LMTP; `smtp` if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub transport: Option<String>,
}

/// What is no redirect; the text is for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct InvalidRedirect(String);

/// A redirect to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EndRedirectRequest {
    /// The mail that was redirected.
    pub from: RedirectedName,
}

impl RedirectedName {
    /// Destinations are in lower case.
    pub(crate) fn folded(self) -> RedirectedName {
        match self {
            RedirectedName::NextHop(name) => RedirectedName::NextHop(name),
            RedirectedName::Destination(name) => RedirectedName::Destination(name.to_lowercase()),
        }
    }

    fn source(&self) -> RedirectSource {
        match self {
            RedirectedName::NextHop(name) => RedirectSource::NextHop(name.as_str().into()),
            RedirectedName::Destination(name) => RedirectSource::Destination(name.as_str().into()),
        }
    }

    fn text(&self) -> &str {
        let (RedirectedName::NextHop(name) | RedirectedName::Destination(name)) = self;
        name
    }
}

impl Redirect {
    pub(crate) fn transport(&self) -> &str {
        self.transport.as_deref().unwrap_or(SMTP)
    }

    fn key(&self) -> Result<RouteKey, InvalidRedirect> {
        let (name, to) = (self.from.text(), &self.to);
        if [name, to].iter().any(|text| text.is_empty() || text.len() > NAME_OCTETS_MAX) {
            return Err(InvalidRedirect(format!("expected names of 1 to {NAME_OCTETS_MAX} bytes")));
        }
        match to.parse::<FixedHop>().map_err(|error| InvalidRedirect(format!("{to:?}: {error}")))? {
            FixedHop::Reply(_) => {
                Err(InvalidRedirect(format!("{to:?} is a reply and no next hop: bounce the mail instead")))
            }
            hop => Ok(RouteKey::new(self.transport(), Some(&hop))),
        }
    }
}

/// The redirects in force, and their file.
pub struct RedirectStore {
    path: PathBuf,
    redirects: Redirects,
    /// As the operator has given them.
    listed: Mutex<BTreeMap<RedirectedName, Redirect>>,
}

impl RedirectStore {
    /// Reads the redirects in the folder of the server's data.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn open(data_dir: &Path) -> io::Result<RedirectStore> {
        let path = data_dir.join(REDIRECT_FILE);
        let listed: Vec<Redirect> = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let listed = listed.into_iter().map(|redirect| (redirect.from.clone(), redirect)).collect();
        let redirects = Redirects::new(table(&listed).map_err(io::Error::other)?);
        Ok(RedirectStore { path, redirects, listed: Mutex::new(listed) })
    }

    /// What the deliveries follow.
    pub fn redirects(&self) -> Redirects {
        self.redirects.clone()
    }

    /// All redirects, by name.
    pub(crate) fn list(&self) -> Vec<Redirect> {
        self.listed.lock().values().cloned().collect()
    }

    /// Changes the redirects: first the file, then those in force. With an error, nothing changes. Otherwise they are
    /// in force, and with [`NotSynced`] a power failure may undo that.
    pub(crate) fn change<E: From<InvalidRedirect> + From<io::Error>>(
        &self,
        change: impl FnOnce(&mut BTreeMap<RedirectedName, Redirect>) -> Result<(), E>,
    ) -> Result<Result<(), NotSynced>, E> {
        self.change_by(state_file::replace, change)
    }

    /// The same, with what replaces the file.
    fn change_by<E: From<InvalidRedirect> + From<io::Error>>(
        &self,
        replace: impl FnOnce(&Path, &[u8]) -> Result<(), ReplaceError>,
        change: impl FnOnce(&mut BTreeMap<RedirectedName, Redirect>) -> Result<(), E>,
    ) -> Result<Result<(), NotSynced>, E> {
        let mut listed = self.listed.lock();
        let mut changed = listed.clone();
        change(&mut changed)?;
        let table = table(&changed)?;
        let rows: Vec<&Redirect> = changed.values().collect();
        let text = serde_json::to_vec_pretty(&rows).map_err(io::Error::from)?;
        let kept = match replace(&self.path, &text) {
            Ok(()) => Ok(()),
            Err(ReplaceError::NotSynced(not_synced)) => Err(not_synced),
            Err(ReplaceError::Unchanged(error)) => return Err(error.into()),
        };
        self.redirects.replace(table);
        *listed = changed;
        Ok(kept)
    }
}

fn table(listed: &BTreeMap<RedirectedName, Redirect>) -> Result<RedirectTable, InvalidRedirect> {
    let route = |redirect: &Redirect| Ok((redirect.from.source(), redirect.key()?));
    listed.values().map(route).collect::<Result<_, InvalidRedirect>>().map(RedirectTable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::ControlError;

    fn redirect(from: RedirectedName, to: &str) -> Redirect {
        Redirect { from, to: to.to_owned(), transport: None }
    }

    fn insert(store: &RedirectStore, redirect: Redirect) -> Result<(), ControlError> {
        let kept = store.change(|listed| {
            listed.insert(redirect.from.clone(), redirect);
            Ok::<_, ControlError>(())
        })?;
        kept.map_err(ControlError::NotKept)
    }

    #[test]
    fn redirects_are_kept_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let store = RedirectStore::open(folder.path()).unwrap();
        assert!(store.list().is_empty());
        let names =
            [RedirectedName::NextHop("smtp:mx.a.example".into()), RedirectedName::Destination("b.example".into())];
        for name in &names {
            insert(&store, redirect(name.clone(), "[192.0.2.1]:2525")).unwrap();
        }
        let again = RedirectStore::open(folder.path()).unwrap();
        assert_eq!((again.list(), again.redirects().current()), (store.list(), store.redirects().current()));
        assert_eq!(again.list().len(), 2);
        let removed = again.change(|listed| listed.remove(&names[0]).map(drop).ok_or(ControlError::Stopping));
        removed.unwrap().unwrap();
        assert_eq!(RedirectStore::open(folder.path()).unwrap().list(), again.list());
        fs::write(folder.path().join(REDIRECT_FILE), "[{").unwrap();
        assert!(RedirectStore::open(folder.path()).is_err());
    }

    /// It was refused, and was there after the next start.
    #[test]
    fn a_redirect_whose_folder_cannot_be_synced_is_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let store = RedirectStore::open(folder.path()).unwrap();
        let replace = |path: &Path, text: &[u8]| {
            state_file::replace_and_sync(path, text, |_| Err(io::Error::other("input/output error")))
        };
        let name = RedirectedName::Destination("b.example".into());
        let kept = store.change_by(replace, |listed| {
            listed.insert(name.clone(), redirect(name.clone(), "[192.0.2.1]:2525"));
            Ok::<_, ControlError>(())
        });
        let not_synced = kept.unwrap().unwrap_err().to_string();
        assert!(not_synced.starts_with("the change is in force") && not_synced.ends_with("input/output error"));
        let again = RedirectStore::open(folder.path()).unwrap();
        assert_eq!((store.list().len(), store.list()), (1, again.list()));
        assert_eq!(store.redirects().current(), again.redirects().current());
    }

    #[test]
    fn what_is_no_next_hop_is_refused_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = RedirectStore::open(folder.path()).unwrap();
        for to in ["", "550 5.1.1 no", "[x]", "host:0", "unix:relative"] {
            let refused = insert(&store, redirect(RedirectedName::Destination("b.example".into()), to));
            assert!(matches!(refused, Err(ControlError::Refused(_))), "{to}");
        }
        assert!(store.list().is_empty() && !folder.path().join(REDIRECT_FILE).exists());
    }
}
