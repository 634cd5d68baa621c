//! Local domains: those named in the configuration and those whose names are in tables.
//!
//! A [`DomainLookup`] holds the results for one address. It asks each table at most once for a
//! name, with all new names together, and never for a domain in the configuration.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::{LocalDomain, TableUnavailable};
use crate::{LookupAnswer, Table, fold_key};

/// Local domains whose names are in a table and which share their settings.
#[derive(Clone)]
pub struct LocalDomainTable {
    /// The names, in lower case and A-labels (RFC 5890).
    pub names: Arc<dyn Table>,
    /// The settings; `name` in it is ignored.
    pub settings: LocalDomain,
}

/// All local domains.
pub(super) struct LocalDomains {
    /// By name in A-labels.
    configured: HashMap<Box<str>, LocalDomain>,
    /// The first table that has a name applies.
    from_tables: Vec<LocalDomainTable>,
}

impl LocalDomains {
    pub(super) fn new(domains: Vec<LocalDomain>) -> Self {
        let configured =
            domains.into_iter().map(|domain| (to_a_labels(&fold_key(&domain.name)).into(), domain)).collect();
        LocalDomains { configured, from_tables: Vec::new() }
    }

    pub(super) fn add_tables(&mut self, tables: Vec<LocalDomainTable>) {
        self.from_tables.extend(tables);
    }

    pub(super) fn configured(&self, name: &str) -> Option<&LocalDomain> {
        self.configured.get(&*to_a_labels(name))
    }
}

/// The results of looking up domains for one address.
pub(super) struct DomainLookup<'a> {
    domains: &'a LocalDomains,
    /// What the tables of names answered, by name in A-labels.
    found: HashMap<Box<str>, Option<LocalDomain>>,
    /// Names for which a table was unavailable, and the reason.
    unavailable: HashMap<Box<str>, String>,
}

impl<'a> DomainLookup<'a> {
    pub(super) fn new(domains: &'a LocalDomains) -> Self {
        DomainLookup { domains, found: HashMap::new(), unavailable: HashMap::new() }
    }

    /// The local domain with this name. The name must have been looked up.
    pub(super) fn domain(&self, name: &str) -> Option<&LocalDomain> {
        self.domains.configured(name).or_else(|| self.found.get(&*to_a_labels(name))?.as_ref())
    }

    /// The local domain with this name, taking it out of the results.
    pub(super) fn into_domain(mut self, name: &str) -> Option<Cow<'a, LocalDomain>> {
        match self.domains.configured(name) {
            Some(domain) => Some(Cow::Borrowed(domain)),
            None => self.found.remove(&*to_a_labels(name)).flatten().map(Cow::Owned),
        }
    }

    /// Why it is unknown whether this name is local.
    pub(super) fn error_for(&self, name: &str) -> Option<&str> {
        self.unavailable.get(&*to_a_labels(name)).map(String::as_str)
    }

    /// Looks up all these names. Fails if a table is unavailable.
    pub(super) async fn look_up(&mut self, names: impl Iterator<Item = &str>) -> Result<(), TableUnavailable> {
        self.look_up_available(names).await;
        self.unavailable.values().next().map_or(Ok(()), |why| Err(TableUnavailable(why.clone())))
    }

    /// Looks up these names as far as tables are available.
    pub(super) async fn look_up_available(&mut self, names: impl Iterator<Item = &str>) {
        let domains = self.domains;
        if domains.from_tables.is_empty() {
            return;
        }
        let names = names.filter(|name| domains.configured(name).is_none()).map(to_a_labels);
        let mut open: Vec<Box<str>> = names.filter(|name| !self.found.contains_key(&**name)).map(Into::into).collect();
        open.sort_unstable();
        open.dedup();
        for table in &domains.from_tables {
            if open.is_empty() {
                break;
            }
            open = self.look_up_in(table, open).await;
        }
        self.found.extend(open.into_iter().map(|name| (name, None)));
    }

    /// Looks up the names in one table and returns those it does not have.
    async fn look_up_in(&mut self, table: &LocalDomainTable, names: Vec<Box<str>>) -> Vec<Box<str>> {
        let keys: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let answers = table.names.lookup(&keys).await;
        let mut left = Vec::new();
        for (name, answer) in names.into_iter().zip(answers) {
            match answer {
                LookupAnswer::Found(_) => {
                    let domain = LocalDomain { name: name.clone(), ..table.settings.clone() };
                    self.found.insert(name, Some(domain));
                }
                LookupAnswer::NotFound => left.push(name),
                LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why) => {
                    drop(self.unavailable.insert(name, why))
                }
            }
        }
        left
    }
}

/// A domain name in A-labels, so that both of its forms compare equal. Invalid names stay
/// unchanged.
pub(super) fn to_a_labels(domain: &str) -> Cow<'_, str> {
    match domain.is_ascii() {
        true => Cow::Borrowed(domain),
        false => idna::domain_to_ascii(domain).map_or(Cow::Borrowed(domain), Cow::Owned),
    }
}

/// The other form of an internationalized domain in lower case: A-labels (RFC 5890) for Unicode,
/// Unicode for A-labels. None for other domains.
pub fn other_idn_form(domain: &str) -> Option<String> {
    if !domain.is_ascii() {
        return idna::domain_to_ascii(domain).ok();
    }
    if !domain.split('.').any(|label| label.starts_with("xn--")) {
        return None;
    }
    let (letters, sound) = idna::domain_to_unicode(domain);
    sound.is_ok().then_some(letters)
}
