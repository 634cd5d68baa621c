//! Local domains: those named in the configuration and those whose names are in tables.
//!
//! A [`Known`] holds the results for one address. It asks each table at most once for a name, with
//! all new names together, and never for a domain in the configuration.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::{Domain, Unavailable};
use crate::{Answer, Table, fold};

/// Local domains whose names are in a table and which share their settings.
#[derive(Clone)]
pub struct DomainTable {
    /// The names, in lower case and A-labels (RFC 5890).
    pub names: Arc<dyn Table>,
    /// The settings; `name` in it is ignored.
    pub settings: Domain,
}

/// All local domains.
pub(super) struct Domains {
    /// By name in A-labels.
    configured: HashMap<Box<str>, Domain>,
    /// The first table that has a name applies.
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

/// The results of looking up domains for one address.
pub(super) struct Known<'a> {
    domains: &'a Domains,
    /// What the tables of names answered, by name in A-labels.
    learnt: HashMap<Box<str>, Option<Domain>>,
    /// Names for which a table was unavailable, and the reason.
    untold: HashMap<Box<str>, String>,
}

impl<'a> Known<'a> {
    pub(super) fn new(domains: &'a Domains) -> Self {
        Known { domains, learnt: HashMap::new(), untold: HashMap::new() }
    }

    /// The local domain with this name. The name must have been looked up.
    pub(super) fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.configured(name).or_else(|| self.learnt.get(&*in_ascii(name))?.as_ref())
    }

    /// The local domain with this name, taking it out of the results.
    pub(super) fn into_domain(mut self, name: &str) -> Option<Cow<'a, Domain>> {
        match self.domains.configured(name) {
            Some(domain) => Some(Cow::Borrowed(domain)),
            None => self.learnt.remove(&*in_ascii(name)).flatten().map(Cow::Owned),
        }
    }

    /// Why it is unknown whether this name is local.
    pub(super) fn trouble(&self, name: &str) -> Option<&str> {
        self.untold.get(&*in_ascii(name)).map(String::as_str)
    }

    /// Looks up all these names. Fails if a table is unavailable.
    pub(super) async fn learn(&mut self, names: impl Iterator<Item = &str>) -> Result<(), Unavailable> {
        self.learn_most(names).await;
        self.untold.values().next().map_or(Ok(()), |why| Err(Unavailable(why.clone())))
    }

    /// Looks up these names as far as tables are available.
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

    /// Looks up the names in one table and returns those it does not have.
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

/// A domain name in A-labels, so that both of its forms compare equal. Invalid names stay
/// unchanged.
pub(super) fn in_ascii(domain: &str) -> Cow<'_, str> {
    match domain.is_ascii() {
        true => Cow::Borrowed(domain),
        false => idna::domain_to_ascii(domain).map_or(Cow::Borrowed(domain), Cow::Owned),
    }
}

/// The other form of an internationalized domain in lower case: A-labels (RFC 5890) for Unicode,
/// Unicode for A-labels. None for other domains.
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
