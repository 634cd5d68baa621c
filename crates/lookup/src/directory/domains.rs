//! Which domains are ours: those that the configuration names, and those whose names are in tables.
//!
//! A [`Known`] is what one question has found out so far. It asks each table of names at most once for a name, with all
//! new names together, and none for a domain that the configuration has.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::{Domain, Unavailable};
use crate::{Answer, Table, fold};

/// Domains of ours whose names are in a table. They have all settings in common.
#[derive(Clone)]
pub struct DomainTable {
    /// Their names, in lower case and A-labels (RFC 5890).
    pub names: Arc<dyn Table>,
    /// Their settings; the name in it means nothing.
    pub settings: Domain,
}

/// All domains of ours.
pub(super) struct Domains {
    /// By name in A-labels.
    configured: HashMap<Box<str>, Domain>,
    /// The first that has a name counts.
    tabled: Vec<DomainTable>,
}

impl Domains {
    pub(super) fn new(domains: Vec<Domain>) -> Self {
        let configured = domains.into_iter().map(|domain| (in_ascii(&fold(&domain.name)).into(), domain)).collect();
        Domains { configured, tabled: Vec::new() }
    }

    pub(super) fn add_tables(&mut self, tables: Vec<DomainTable>) {
        self.tabled.extend(tables);
    }

    pub(super) fn configured(&self, name: &str) -> Option<&Domain> {
        self.configured.get(&*in_ascii(name))
    }
}

/// The domains that one question has to do with.
pub(super) struct Known<'a> {
    domains: &'a Domains,
    /// By name in A-labels, what the tables of names said.
    learnt: HashMap<Box<str>, Option<Domain>>,
    /// Of which names a table could not say whose they are; why.
    untold: HashMap<Box<str>, String>,
}

impl<'a> Known<'a> {
    pub(super) fn new(domains: &'a Domains) -> Self {
        Known { domains, learnt: HashMap::new(), untold: HashMap::new() }
    }

    /// The domain of this name, if it is ours; only of a name that was learnt.
    pub(super) fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.configured(name).or_else(|| self.learnt.get(&*in_ascii(name))?.as_ref())
    }

    /// The same for one name, without the rest.
    pub(super) fn into_domain(mut self, name: &str) -> Option<Cow<'a, Domain>> {
        match self.domains.configured(name) {
            Some(domain) => Some(Cow::Borrowed(domain)),
            None => self.learnt.remove(&*in_ascii(name)).flatten().map(Cow::Owned),
        }
    }

    /// Why nobody can say whose this name is.
    pub(super) fn trouble(&self, name: &str) -> Option<&str> {
        self.untold.get(&*in_ascii(name)).map(String::as_str)
    }

    /// Finds out whose these names are, all of them.
    pub(super) async fn learn(&mut self, names: impl Iterator<Item = &str>) -> Result<(), Unavailable> {
        self.learn_most(names).await;
        self.untold.values().next().map_or(Ok(()), |why| Err(Unavailable(why.clone())))
    }

    /// Finds out whose these names are, as far as the tables can say it.
    pub(super) async fn learn_most(&mut self, names: impl Iterator<Item = &str>) {
        let domains = self.domains;
        if domains.tabled.is_empty() {
            return;
        }
        let names = names.filter(|name| domains.configured(name).is_none()).map(in_ascii);
        let mut open: Vec<Box<str>> = names.filter(|name| !self.learnt.contains_key(&**name)).map(Into::into).collect();
        open.sort_unstable();
        open.dedup();
        for table in &domains.tabled {
            if open.is_empty() {
                break;
            }
            open = self.learn_from(table, open).await;
        }
        self.learnt.extend(open.into_iter().map(|name| (name, None)));
    }

    /// Returns the names that the table has not.
    async fn learn_from(&mut self, table: &DomainTable, names: Vec<Box<str>>) -> Vec<Box<str>> {
        let keys: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let answers = table.names.lookup(&keys).await;
        let mut left = Vec::new();
        for (name, answer) in names.into_iter().zip(answers) {
            match answer {
                Answer::Found(_) => {
                    let domain = Domain { name: name.clone(), ..table.settings.clone() };
                    self.learnt.insert(name, Some(domain));
                }
                Answer::NotFound => left.push(name),
                Answer::Unavailable(why) | Answer::Unconfirmed(why) => drop(self.untold.insert(name, why)),
            }
        }
        left
    }
}

/// The name of a domain in A-labels, in which two spellings of one are equal. What is no such name stays as it is.
pub(super) fn in_ascii(domain: &str) -> Cow<'_, str> {
    match domain.is_ascii() {
        true => Cow::Borrowed(domain),
        false => idna::domain_to_ascii(domain).map_or(Cow::Borrowed(domain), Cow::Owned),
    }
}

/// The other spelling of a domain beyond ASCII, which has to be in lower case: in A-labels (RFC 5890) where it is in
/// letters, and in letters where it is in A-labels. None: there is no other.
pub fn other_spelling(domain: &str) -> Option<String> {
    if !domain.is_ascii() {
        return idna::domain_to_ascii(domain).ok();
    }
    if !domain.split('.').any(|label| label.starts_with("xn--")) {
        return None;
    }
    let (letters, sound) = idna::domain_to_unicode(domain);
    sound.is_ok().then_some(letters)
}
