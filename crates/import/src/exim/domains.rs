//! Lists of domains, and the domains that a configuration names. An ACL or a router applies to a domain, does
//! not apply, or may apply: what the import cannot read may be anything.

use std::collections::HashSet;
use std::path::Path;
use std::rc::Rc;

use mail::Address;

use super::Conversion;
use super::expansion::{Lookup, list};

/// Lists within lists.
const DEPTH_MAX: usize = 10;
/// Domains that become sections of the new file.
const GROUPS_MAX: usize = 5000;

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConditionOutcome {
    No,
    Maybe,
    Yes,
}

impl ConditionOutcome {
    pub(super) fn negated(self, negated: bool) -> ConditionOutcome {
        match (self, negated) {
            (ConditionOutcome::Yes, true) => ConditionOutcome::No,
            (ConditionOutcome::No, true) => ConditionOutcome::Yes,
            (same, _) => same,
        }
    }
}

impl From<bool> for ConditionOutcome {
    fn from(holds: bool) -> ConditionOutcome {
        if holds { ConditionOutcome::Yes } else { ConditionOutcome::No }
    }
}

/// A configuration names more domains than become sections.
#[derive(Debug)]
pub(super) struct TooManyDomains;

/// Domains that are handled alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum DomainGroup {
    Name(String),
    /// All subdomains of a domain.
    Subdomains(String),
    /// The domains that a database has.
    Lookup(Lookup),
    /// A domain that the configuration does not name.
    Foreign,
}

/// An element of a list.
#[derive(Clone, Debug)]
pub(super) struct DomainItem {
    negated: bool,
    pattern: DomainPattern,
}

#[derive(Clone, Debug)]
enum DomainPattern {
    Any,
    Group(DomainGroup),
    List(Vec<DomainItem>),
    /// What cannot be read.
    Unknown(String),
}

impl DomainPattern {
    fn has_lookup(&self) -> bool {
        match self {
            DomainPattern::Group(group) => matches!(group, DomainGroup::Lookup(_)),
            DomainPattern::List(items) => items.iter().any(|item| item.pattern.has_lookup()),
            DomainPattern::Any | DomainPattern::Unknown(_) => false,
        }
    }
}

impl From<DomainPattern> for DomainItem {
    fn from(pattern: DomainPattern) -> DomainItem {
        DomainItem { negated: false, pattern }
    }
}

/// The domains that are found by a key of a file. A key is a name and no pattern: `*` is found only where the
/// type says so, and `*.example.org` only by partial lookups, which also find example.org by it.
fn key_patterns(lookup: &Lookup, key: &str) -> Vec<DomainPattern> {
    let is_domain = |name: &&str| Address::new("postmaster", name).is_ok();
    match (key, key.strip_prefix("*.").filter(is_domain)) {
        ("*", _) if lookup.default.starts_with('*') => vec![DomainPattern::Any],
        (_, Some(parent)) if lookup.is_partial => {
            let parent = parent.to_lowercase();
            [DomainGroup::Name(parent.clone()), DomainGroup::Subdomains(parent)].map(DomainPattern::Group).into()
        }
        (name, _) if is_domain(&name) => vec![DomainPattern::Group(DomainGroup::Name(name.to_lowercase()))],
        _ => Vec::new(),
    }
}

impl DomainItem {
    fn applies(&self, group: &DomainGroup) -> ConditionOutcome {
        match &self.pattern {
            DomainPattern::Any => ConditionOutcome::Yes,
            DomainPattern::List(items) => applies(items, group),
            DomainPattern::Unknown(_) => ConditionOutcome::Maybe,
            DomainPattern::Group(DomainGroup::Subdomains(parent)) => match group {
                DomainGroup::Name(name) | DomainGroup::Subdomains(name) => {
                    let is_same = matches!(group, DomainGroup::Subdomains(_)) && name == parent;
                    ConditionOutcome::from(
                        is_same || name.strip_suffix(parent.as_str()).is_some_and(|it| it.ends_with('.')),
                    )
                }
                _ => ConditionOutcome::No,
            },
            DomainPattern::Group(known) => ConditionOutcome::from(known == group),
        }
    }
}

/// Whether a list contains these domains. If its last element is negated, it contains all that no element
/// matches.
pub(super) fn applies(items: &[DomainItem], group: &DomainGroup) -> ConditionOutcome {
    let mut is_open = false;
    for item in items {
        match item.applies(group) {
            ConditionOutcome::Yes if is_open => return ConditionOutcome::Maybe,
            ConditionOutcome::Yes => return ConditionOutcome::from(!item.negated),
            ConditionOutcome::Maybe => is_open = true,
            ConditionOutcome::No => {}
        }
    }
    match is_open {
        true => ConditionOutcome::Maybe,
        false => ConditionOutcome::from(items.last().is_some_and(|item| item.negated)),
    }
}

/// Whether a database that a list excludes may have these domains, which another part of the configuration names.
/// `is_negated`: the list as a whole is excluded.
pub(super) fn may_be_excluded(items: &[DomainItem], is_negated: bool, group: &DomainGroup) -> bool {
    let is_named = matches!(group, DomainGroup::Name(_) | DomainGroup::Subdomains(_));
    if !is_named || !items.iter().any(|item| item.pattern.has_lookup()) {
        return false;
    }
    let mut before = items.iter().take_while(|item| item.applies(group) != ConditionOutcome::Yes);
    before.any(|item| item.negated != is_negated && item.pattern.has_lookup())
}

/// The elements that cannot be read.
fn unknown_items(items: &[DomainItem], found: &mut Vec<String>) {
    for item in items {
        match &item.pattern {
            DomainPattern::Unknown(text) => found.push(text.clone()),
            DomainPattern::List(items) => unknown_items(items, found),
            _ => {}
        }
    }
}

/// Adds the domains of a list to the others.
///
/// # Errors
///
/// There are more than `GROUPS_MAX`: the rest is left out.
pub(super) fn collect_groups(items: &[DomainItem], groups: &mut Vec<DomainGroup>) -> Result<(), TooManyDomains> {
    let mut all = Vec::new();
    named_groups(items, &mut all);
    let mut known: HashSet<DomainGroup> = groups.iter().cloned().collect();
    for group in all {
        if known.contains(group) {
            continue;
        }
        if groups.len() >= GROUPS_MAX {
            return Err(TooManyDomains);
        }
        known.insert(group.clone());
        groups.push(group.clone());
    }
    Ok(())
}

fn named_groups<'i>(items: &'i [DomainItem], found: &mut Vec<&'i DomainGroup>) {
    for item in items {
        match &item.pattern {
            DomainPattern::List(items) => named_groups(items, found),
            DomainPattern::Group(group) => found.push(group),
            _ => {}
        }
    }
}

impl Conversion<'_> {
    /// The elements of a list of domains.
    pub(super) fn domain_items(&self, text: &str) -> Rc<[DomainItem]> {
        if let Some(known) = self.known_items.borrow().get(text) {
            return known.clone();
        }
        let items: Rc<[DomainItem]> = self.domain_list(text, 0).into();
        self.known_items.borrow_mut().insert(text.to_owned(), items.clone());
        items
    }

    fn domain_list(&self, text: &str, depth: usize) -> Vec<DomainItem> {
        let text = self.expander.resolved(text);
        let known = |pattern| vec![DomainItem::from(pattern)];
        if depth > DEPTH_MAX {
            return known(DomainPattern::Unknown(text));
        }
        let item = |item: String| {
            let bare = item.trim_start_matches(['!', ' ']);
            let negated = item[..item.len() - bare.len()].matches('!').count() % 2 == 1;
            Some(DomainItem { negated, pattern: self.domain_pattern(bare, depth)? })
        };
        list(&text).into_iter().filter_map(item).collect()
    }

    fn domain_pattern(&self, text: &str, depth: usize) -> Option<DomainPattern> {
        let is_domain = |name: &str| Address::new("postmaster", name).is_ok();
        let unknown = || Some(DomainPattern::Unknown(text.to_owned()));
        Some(match text {
            // Addresses of this host in brackets are always ours.
            "" | "@[]" => return None,
            "*" => DomainPattern::Any,
            _ if text.starts_with('$') => match Lookup::parse(text) {
                Some(lookup) => self.domains_of_lookup(lookup, text),
                None => return unknown(),
            },
            "@" => DomainPattern::Group(DomainGroup::Name(self.hostname.to_lowercase())),
            _ if text.starts_with('+') => match self.config.list(&text[1..]) {
                Some(value) => DomainPattern::List(self.domain_list(value, depth + 1)),
                None => return unknown(),
            },
            // Exim allows no further files in a file.
            _ if text.starts_with('/') && depth < DEPTH_MAX => match self.files.text(Path::new(text)) {
                Ok(lines) => DomainPattern::List(self.domain_list(&file_items(&lines), DEPTH_MAX)),
                Err(_) => return unknown(),
            },
            _ if text.contains(';') => match Lookup::of_list_item(text, "$domain") {
                Some(lookup) => self.domains_of_lookup(lookup, text),
                None => return unknown(),
            },
            _ => match text.strip_prefix("*.") {
                Some(parent) if is_domain(parent) => {
                    DomainPattern::Group(DomainGroup::Subdomains(parent.to_lowercase()))
                }
                None if is_domain(text) => DomainPattern::Group(DomainGroup::Name(text.to_lowercase())),
                _ => return unknown(),
            },
        })
    }

    /// The domains in a file or a database.
    fn domains_of_lookup(&self, lookup: Lookup, text: &str) -> DomainPattern {
        if !matches!(lookup.key.as_str(), "" | "$domain" | "${domain}") {
            return DomainPattern::Unknown(text.to_owned());
        }
        let items = |key: String| key_patterns(&lookup, &key).into_iter().map(DomainItem::from);
        match lookup.kind.as_str() {
            "lsearch" => match self.files.text(Path::new(&self.expander.resolved(&lookup.source))) {
                Ok(text) => {
                    DomainPattern::List(file_entries(&text).into_iter().flat_map(|(key, _)| items(key)).collect())
                }
                Err(_) => DomainPattern::Unknown(text.to_owned()),
            },
            "dsearch" => match self.files.names(Path::new(&lookup.source)) {
                Ok(mut names) => {
                    names.sort();
                    DomainPattern::List(names.into_iter().flat_map(items).collect())
                }
                Err(_) => DomainPattern::Unknown(text.to_owned()),
            },
            "mysql" | "pgsql" | "sqlite" | "ldap" | "ldapm" | "cdb" => {
                DomainPattern::Group(DomainGroup::Lookup(lookup))
            }
            _ => DomainPattern::Unknown(text.to_owned()),
        }
    }

    /// Finds the domains that ACLs and routers name.
    pub(super) fn find_groups(&mut self) {
        let statements = self.config.acls.iter().flat_map(|acl| &acl.statements);
        let conditions = statements.flat_map(|it| &it.items).filter(|item| item.name == "domains");
        let conditions: Vec<&str> = conditions.map(|item| item.value.as_str()).collect();
        let routers = self.config.routers.iter().filter_map(|router| router.value("domains"));
        let mut unknown = Vec::new();
        let mut has_too_many = false;
        for text in conditions.into_iter().chain(routers) {
            let items = self.domain_items(text);
            has_too_many |= collect_groups(&items, &mut self.groups).is_err();
            unknown_items(&items, &mut unknown);
        }
        if has_too_many {
            self.tell_of_too_many_domains();
        }
        unknown.sort();
        unknown.dedup();
        for text in unknown {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            self.draft.add_behavior_change(format!(
                "Mail to the domains in `{text}` is refused, because they cannot be listed: add a [[domain]] for each."
            ));
        }
    }
}

impl Conversion<'_> {
    pub(super) fn tell_of_too_many_domains(&mut self) {
        self.draft.add_behavior_change(format!(
            "Domains after the first {GROUPS_MAX} are left out: mail to them is refused, routes to them are lost, and rules \
             do not name them. Put them into a table, see `names` of [[domain]]."
        ));
    }
}

/// Entries of a file that lsearch reads: `key: value` or `key value`, with lines that go on if the next one is
/// indented.
pub(super) fn file_entries(text: &str) -> Vec<(String, String)> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match lines.last_mut() {
            _ if line.trim().is_empty() || line.starts_with('#') => {}
            Some(last) if line.starts_with([' ', '\t']) => {
                last.push(' ');
                last.push_str(line.trim());
            }
            _ => lines.push(line.trim().to_owned()),
        }
    }
    let entry = |line: &String| {
        if let Some((key, value)) = line.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
            return (key.to_owned(), value.trim_start_matches([':', ' ', '\t']).trim().to_owned());
        }
        let end = line.find(|c: char| c == ':' || c.is_whitespace()).unwrap_or(line.len());
        let (key, value) = line.split_at(end);
        let value = value.trim_start();
        (key.to_owned(), value.strip_prefix(':').unwrap_or(value).trim().to_owned())
    };
    lines.iter().map(entry).collect()
}

/// The lines of a file that stands in a list, as a list.
pub(super) fn file_items(text: &str) -> String {
    let items = text.lines().map(|line| line.split_once('#').map_or(line, |(item, _)| item).trim());
    let items = items.filter(|item| !item.is_empty()).map(|item| item.replace(':', "::"));
    items.collect::<Vec<_>>().join(" : ")
}
