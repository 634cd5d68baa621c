//! Policies on disk: a file for each domain, with the name of the domain.
//!
//! A file is replaced as a whole: written under another name and then renamed. A file that is not
//! valid, or lost, costs nothing but a fetch, so nothing is synced. The number of files is limited;
//! beyond it the oldest gives way. All functions block on disk I/O.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::cached_policy::CachedPolicy;
use crate::fetch::POLICY_OCTETS_MAX;
use crate::policy::Policy;

/// Policies on disk; as many are kept in memory.
pub const POLICIES_MAX: usize = 10_000;
/// The longest file: the policy, its id and its time.
const FILE_OCTETS_MAX: u64 = 2 * POLICY_OCTETS_MAX as u64;
/// The name of a file that is being written. No domain begins with a dot.
const UNFINISHED: &str = ".unfinished";

/// The folder.
#[derive(Clone, Debug)]
pub(crate) struct PolicyStore {
    folder: PathBuf,
}

impl PolicyStore {
    /// The folder is created with the first policy.
    pub(crate) fn new(folder: &Path) -> Self {
        PolicyStore { folder: folder.to_owned() }
    }

    /// The policy of a domain, whether it has expired or not.
    pub(crate) fn load(&self, domain: &str) -> Option<CachedPolicy> {
        let path = self.path(domain)?;
        if fs::metadata(&path).ok()?.len() > FILE_OCTETS_MAX {
            return None;
        }
        parse_file(&fs::read_to_string(path).ok()?)
    }

    /// Replaces the policy of a domain.
    pub(crate) fn save(&self, domain: &str, policy: &CachedPolicy) -> io::Result<()> {
        let Some(path) = self.path(domain) else { return Ok(()) };
        fs::create_dir_all(&self.folder)?;
        if !path.exists() {
            self.make_room()?;
        }
        let seconds = policy.fetched_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let unfinished = self.folder.join(format!("{UNFINISHED}.{domain}"));
        fs::write(&unfinished, format!("id: {}\nfetched: {seconds}\n{}", policy.id, policy.policy))?;
        fs::rename(&unfinished, path)
    }

    /// The domains that have a file.
    pub(crate) fn domains(&self) -> Vec<Box<str>> {
        let names = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| is_file_name(name)).map(Into::into).collect()
    }

    /// Removes the files that were written first, if there are too many.
    fn make_room(&self) -> io::Result<()> {
        let domains = self.domains();
        if domains.len() < POLICIES_MAX {
            return Ok(());
        }
        let written_at = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
        let mut paths: Vec<PathBuf> = domains.iter().map(|domain| self.folder.join(&**domain)).collect();
        paths.sort_by_cached_key(written_at);
        paths.iter().take(domains.len() + 1 - POLICIES_MAX).try_for_each(fs::remove_file)
    }

    fn path(&self, domain: &str) -> Option<PathBuf> {
        is_file_name(domain).then(|| self.folder.join(domain))
    }
}

/// Whether a domain can be the name of a file, as all can that have MX records in practice.
fn is_file_name(domain: &str) -> bool {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    (1..=200).contains(&domain.len()) && !domain.starts_with('.') && domain.bytes().all(is_plain)
}

fn parse_file(text: &str) -> Option<CachedPolicy> {
    let (id, rest) = text.strip_prefix("id: ")?.split_once('\n')?;
    let (seconds, rest) = rest.strip_prefix("fetched: ")?.split_once('\n')?;
    let fetched_at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.parse().ok()?))?;
    Some(CachedPolicy { id: id.into(), fetched_at, policy: Policy::parse(rest.as_bytes()).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(id: &str) -> CachedPolicy {
        let policy = Policy::parse(b"version: STSv1\nmode: enforce\nmx: *.example.org\nmax_age: 86400\n").unwrap();
        let fetched_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_000_000);
        CachedPolicy { id: id.into(), fetched_at, policy }
    }

    #[test]
    fn a_policy_comes_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let store = PolicyStore::new(&folder.path().join("mta-sts"));
        assert_eq!(store.load("example.org"), None);
        for id in ["1", "2"] {
            store.save("example.org", &cached(id)).unwrap();
            assert_eq!(store.load("example.org"), Some(cached(id)));
        }
        assert_eq!(store.domains(), ["example.org".into()]);
    }

    #[test]
    fn no_domain_leads_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let store = PolicyStore::new(&folder.path().join("inner"));
        for domain in ["../x", "a/b", "..", ".", "", "a\0b", "A.example", &"a".repeat(201)] {
            store.save(domain, &cached("1")).unwrap();
            assert_eq!(store.load(domain), None, "{domain}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_cut_short_or_too_long_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let store = PolicyStore::new(folder.path());
        store.save("example.org", &cached("1")).unwrap();
        let text = fs::read_to_string(folder.path().join("example.org")).unwrap();
        for end in 0..text.trim_end().len() {
            fs::write(folder.path().join("example.org"), &text[..end]).unwrap();
            assert!(
                store.load("example.org").is_none_or(|found| found.policy.max_age < cached("1").policy.max_age),
                "{end}"
            );
        }
        fs::write(folder.path().join("example.org"), text + &" \n".repeat(POLICY_OCTETS_MAX + 1)).unwrap();
        assert_eq!(store.load("example.org"), None);
    }

    #[test]
    fn the_oldest_of_too_many_gives_way() {
        let folder = tempfile::tempdir().unwrap();
        let store = PolicyStore::new(folder.path());
        for number in 0..POLICIES_MAX {
            fs::write(folder.path().join(format!("d{number}.example")), "").unwrap();
        }
        let oldest = fs::File::options().write(true).open(folder.path().join("d77.example")).unwrap();
        oldest.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        store.save("new.example", &cached("1")).unwrap();
        assert_eq!(store.domains().len(), POLICIES_MAX);
        assert!(store.load("new.example").is_some() && !folder.path().join("d77.example").exists());
    }
}
