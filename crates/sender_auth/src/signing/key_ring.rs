//! The keys of all domains: those of the configuration, which are in memory, and those that a table
//! names, whose files are read when a message first needs them and then kept until the next reload.
//!
//! A domain without keys of its own is signed by its nearest parent that has some (RFC 6376 section
//! 3.10; DMARC takes that as aligned, RFC 9989 section 4.4). At one domain, the configuration counts
//! before the table. A table that fails, or names what cannot be used, is an error: mail that should be
//! signed is not sent without a signature.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lookup::{LookupAnswer, Table};
use parking_lot::Mutex;

use super::private_key::PrivateKey;

/// Keys of one domain: one for each algorithm.
pub const KEYS_PER_DOMAIN_MAX: usize = 2;
/// The author's domain and its nearest parents, for which keys are searched.
const DOMAINS_MAX: usize = 8;
/// Keys of tables that are kept in memory.
const CACHED_KEYS_MAX: usize = 10_000;

/// A key and its name in the DNS.
#[derive(Clone, Debug)]
pub struct SigningKey {
    /// The selector (RFC 6376 section 3.1).
    pub selector: Box<str>,
    /// The key.
    pub key: Arc<PrivateKey>,
}

/// Who signs a message.
#[derive(Clone, Debug)]
pub struct SigningDomain {
    /// The domain of the author, or a parent of it.
    pub domain: Box<str>,
    /// Its keys, at least one.
    pub keys: Vec<SigningKey>,
}

/// The keys of all domains.
pub struct KeyRing {
    configured: HashMap<Box<str>, Vec<SigningKey>>,
    table: Option<Arc<dyn Table>>,
    cached: Mutex<HashMap<PathBuf, Arc<PrivateKey>>>,
}

/// The keys of a domain cannot be found now. Holds the reason, for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeysUnavailable(String);

impl KeyRing {
    /// Keys by domain, which is in lower case and has A-labels, and a table of others: its keys are
    /// domains, its values `selector:path`.
    pub fn new(configured: impl IntoIterator<Item = (Box<str>, SigningKey)>, table: Option<Arc<dyn Table>>) -> KeyRing {
        let mut by_domain: HashMap<Box<str>, Vec<SigningKey>> = HashMap::new();
        for (domain, key) in configured {
            by_domain.entry(domain).or_default().push(key);
        }
        KeyRing { configured: by_domain, table, cached: Mutex::default() }
    }

    /// Whether the same public keys are configured for the same domains and selectors.
    pub(super) fn has_same_configured(&self, other: &KeyRing) -> bool {
        let is_same_key = |a: &SigningKey, b: &SigningKey| {
            a.selector == b.selector && a.key.public_key().is_ok_and(|public| b.key.public_key().ok() == Some(public))
        };
        let has = |ring: &KeyRing, domain: &str, keys: &[SigningKey]| {
            let found = ring.configured.get(domain);
            found.is_some_and(|found| {
                found.len() == keys.len() && found.iter().zip(keys).all(|(a, b)| is_same_key(a, b))
            })
        };
        self.configured.len() == other.configured.len()
            && self.configured.iter().all(|(domain, keys)| has(other, domain, keys))
    }

    /// The keys for mail of an author in this domain; None: there are none.
    pub(super) async fn find(&self, author_domain: &str) -> Result<Option<SigningDomain>, KeysUnavailable> {
        let domains: Vec<&str> = with_parents(author_domain).collect();
        let mut answers = match &self.table {
            Some(table) => table.lookup(&domains).await.into_iter(),
            None => Vec::new().into_iter(),
        };
        for domain in domains {
            let answer = answers.next();
            if let Some(keys) = self.configured.get(domain) {
                return Ok(Some(SigningDomain { domain: domain.into(), keys: keys.clone() }));
            }
            let values = match answer {
                Some(LookupAnswer::Found(values)) if !values.is_empty() => values,
                Some(LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why)) => {
                    return Err(KeysUnavailable(why));
                }
                Some(LookupAnswer::Found(_) | LookupAnswer::NotFound) | None => continue,
            };
            let keys = self.load_named(domain, &values).await?;
            return Ok(Some(SigningDomain { domain: domain.into(), keys }));
        }
        Ok(None)
    }

    /// The keys that the values of the table name.
    async fn load_named(&self, domain: &str, values: &[String]) -> Result<Vec<SigningKey>, KeysUnavailable> {
        let fault = |what: String| KeysUnavailable(format!("the table of signing keys, {domain:?}: {what}"));
        if values.len() > KEYS_PER_DOMAIN_MAX {
            return Err(fault(format!("{} values; expected at most {KEYS_PER_DOMAIN_MAX}", values.len())));
        }
        let mut keys = Vec::with_capacity(values.len());
        for value in values {
            let (selector, path) = parse_table_value(value)
                .ok_or_else(|| fault(format!("found {value:?}, expected selector:/path/of/the/key")))?;
            let key = self.load(path).await.map_err(|why| fault(format!("{}: {why}", path.display())))?;
            keys.push(SigningKey { selector: selector.into(), key });
        }
        Ok(keys)
    }

    /// Reads on a blocking thread: a slow disk delays no signature but this one.
    async fn load(&self, path: &Path) -> Result<Arc<PrivateKey>, String> {
        if let Some(key) = self.cached.lock().get(path) {
            return Ok(key.clone());
        }
        let file = path.to_owned();
        let read =
            tokio::task::spawn_blocking(move || PrivateKey::load(&file)).await.map_err(|error| error.to_string())?;
        let key = Arc::new(read.map_err(|error| error.to_string())?);
        let mut cached = self.cached.lock();
        if cached.len() >= CACHED_KEYS_MAX {
            cached.clear();
        }
        cached.insert(path.to_owned(), key.clone());
        Ok(key)
    }
}

/// The domain, and its parents without the top-level domain.
fn with_parents(domain: &str) -> impl Iterator<Item = &str> {
    let parents = domain.match_indices('.').map(|(dot, _)| &domain[dot + 1..]).filter(|parent| parent.contains('.'));
    std::iter::once(domain).chain(parents).take(DOMAINS_MAX)
}

/// `selector:path`, with an absolute path.
fn parse_table_value(value: &str) -> Option<(&str, &Path)> {
    let (selector, path) = value.split_once(':')?;
    let path = Path::new(path);
    (is_selector(selector) && path.is_absolute()).then_some((selector, path))
}

/// Whether this is a selector (RFC 6376 section 3.1): labels of letters, digits, hyphens and
/// underscores, which many selectors have.
pub fn is_selector(text: &str) -> bool {
    const OCTETS_MAX: usize = 63;
    let is_label = |label: &str| {
        let is_letter = |octet: u8| octet.is_ascii_alphanumeric() || octet == b'-' || octet == b'_';
        !label.is_empty() && label.bytes().all(is_letter) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= OCTETS_MAX && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use lookup::LookupFuture;

    use super::*;

    /// RFC 8463 appendix A.2.
    const KEY: &str = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";

    struct TestTable(HashMap<&'static str, LookupAnswer>);

    impl Table for TestTable {
        fn name(&self) -> &str {
            "keys"
        }

        fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
            let answer = |key: &&str| self.0.get(key).cloned().unwrap_or(LookupAnswer::NotFound);
            Box::pin(std::future::ready(keys.iter().map(answer).collect()))
        }
    }

    fn configured(domain: &str, selector: &str) -> (Box<str>, SigningKey) {
        let key = Arc::new(PrivateKey::parse(KEY.as_bytes()).unwrap());
        (domain.into(), SigningKey { selector: selector.into(), key })
    }

    async fn found(ring: &KeyRing, domain: &str) -> Result<String, KeysUnavailable> {
        let found = ring.find(domain).await?;
        Ok(found.map_or_else(String::new, |found| {
            let selectors: Vec<_> = found.keys.iter().map(|key| &*key.selector).collect();
            format!("{} {}", found.domain, selectors.join(" "))
        }))
    }

    #[tokio::test]
    async fn the_nearest_domain_with_keys_signs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, KEY).unwrap();
        let value = |selector: &str, path: &Path| format!("{selector}:{}", path.display());
        let table = TestTable(HashMap::from([
            ("tabled.example", LookupAnswer::Found(vec![value("a", &path), value("b", &path)])),
            ("configured.example", LookupAnswer::Found(vec![value("of-table", &path)])),
            ("gone.example", LookupAnswer::Found(vec![value("a", Path::new("/does/not/exist"))])),
            ("relative.example", LookupAnswer::Found(vec!["a:key".into()])),
            ("many.example", LookupAnswer::Found(vec![value("a", &path); 3])),
            ("none.example", LookupAnswer::Found(Vec::new())),
            ("down.example", LookupAnswer::Unavailable("no answer".into())),
        ]));
        let keys = [
            configured("configured.example", "one"),
            configured("configured.example", "two"),
            configured("sub.tabled.example", "nearer"),
        ];
        let ring = KeyRing::new(keys, Some(Arc::new(table)));
        for (domain, expected) in [
            ("configured.example", "configured.example one two"),
            ("a.b.configured.example", "configured.example one two"),
            ("tabled.example", "tabled.example a b"),
            ("x.tabled.example", "tabled.example a b"),
            ("x.sub.tabled.example", "sub.tabled.example nearer"),
            ("none.example", ""),
            ("example", ""),
            ("configured.example.evil.example", ""),
            ("xconfigured.example", ""),
        ] {
            assert_eq!(found(&ring, domain).await.unwrap(), expected, "{domain}");
        }
        for (domain, fault) in [
            ("gone.example", "unable to read the key"),
            ("relative.example", "expected selector:/path/of/the/key"),
            ("many.example", "3 values; expected at most 2"),
            ("x.down.example", "no answer"),
        ] {
            let error = found(&ring, domain).await.unwrap_err().to_string();
            assert!(error.contains(fault), "{domain}: {error}");
        }
        // Read once: the file may be gone until the next reload.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found(&ring, "tabled.example").await.unwrap(), "tabled.example a b");
    }

    #[test]
    fn a_selector_is_a_name_without_surprises() {
        for selector in ["mail", "2026-11", "a.b", "s_1"] {
            assert!(is_selector(selector), "{selector}");
        }
        for selector in ["", ".", "a..b", "a b", "a;d=x", "-a", "a-", "m\u{e4}il", &"x".repeat(64)] {
            assert!(!is_selector(selector), "{selector}");
        }
    }
}
