//! Reads the parameters of Postfix that name domains: their words, files, tables and exclusions. Domains of a table that
//! can be read become names, unless there are many; a table that cannot be read, or from which domains are excluded,
//! defers their mail.

use std::path::Path;

use mail::Address;

use super::Conversion;
use super::lookups::MapRef;
use super::map_text::TableUse;
use super::words::list;

/// Domains in a text that become separate sections; more stay in a table.
const NAMED_DOMAINS_MAX: usize = 100;
/// The same for relay domains, which may have different next hops.
const RELAY_DOMAINS_MAX: usize = 2000;

/// The elements of a parameter that names domains.
#[derive(Debug, Default)]
pub(super) struct DomainList {
    pub(super) names: Vec<String>,
    pub(super) tables: Vec<String>,
    /// Elements after a `!`: later elements do not include them. `.example.org` means its
    /// subdomains.
    pub(super) excluded: Vec<String>,
    /// Excluded names also exclude their subdomains.
    pub(super) for_subdomains: bool,
    /// An excluded element is unknown, so nothing after it is included.
    pub(super) is_incomplete: bool,
    /// Domains whose subdomains alone are in the list: `.example.org`.
    pub(super) dotted: Vec<String>,
    /// Tables of subdomains, and a name in each that is routed as all of them.
    pub(super) subdomains: Vec<(String, String)>,
}

impl DomainList {
    fn excludes(&self, domain: &str) -> bool {
        let below = |hole: &str| domain.len() > hole.len() && domain.ends_with(hole);
        self.excluded.iter().any(|hole| match hole.starts_with('.') {
            true => !self.for_subdomains && below(hole),
            false => hole == domain || self.for_subdomains && below(&format!(".{hole}")),
        })
    }

    fn add(&mut self, name: String, negated: bool) {
        match negated {
            true => self.excluded.push(name),
            false if !self.excludes(&name) && !self.names.contains(&name) => self.names.push(name),
            false => {}
        }
    }
}

impl Conversion<'_> {
    /// The domains in a parameter, its files and its tables.
    pub(super) fn domain_names(&mut self, parameter: &str) -> DomainList {
        let styles = list(&self.values.value("parent_domain_matches_subdomains"));
        let mut named = DomainList { for_subdomains: styles.iter().any(|it| it == parameter), ..DomainList::default() };
        for element in list(&self.values.value(parameter)) {
            self.domain_element(parameter, &element, false, &mut named, 0);
        }
        named
    }

    fn domain_element(&mut self, parameter: &str, element: &str, negated: bool, named: &mut DomainList, depth: usize) {
        let bare = element.trim_start_matches('!');
        let negated = negated ^ ((element.len() - bare.len()) % 2 == 1);
        if named.is_incomplete {
            return self.draft.add_unsupported(format!("{parameter}: {element}"), "an exclusion before it is unknown");
        }
        if bare.starts_with('/') && depth == 0 {
            return self.domain_file(parameter, bare, negated, named);
        }
        if is_domain(bare) || negated && bare.strip_prefix('.').is_some_and(is_domain) {
            return named.add(bare.to_lowercase(), negated);
        }
        if let Some(parent) = bare.strip_prefix('.').filter(|parent| is_domain(parent))
            && parameter == "relay_domains"
            && !named.for_subdomains
        {
            return named.dotted.push(parent.to_lowercase());
        }
        if let Some(table) = MapRef::parse(bare) {
            return self.domain_table(parameter, table, negated, named);
        }
        match negated {
            true => self
                .draft
                .add_unsupported(format!("{parameter}: {element}"), "it is not a domain name, and excludes nothing"),
            false => self.reject_domain_name(parameter, element),
        }
    }

    fn reject_domain_name(&mut self, parameter: &str, element: &str) {
        self.draft
            .add_behavior_change(format!("Mail to \"{element}\" in {parameter} gets 550: it is not a domain name."));
        self.draft.add_unsupported(format!("{parameter}: {element}"), "expected a domain name or a table");
    }

    fn domain_file(&mut self, parameter: &str, path: &str, negated: bool, named: &mut DomainList) {
        let Some(text) = self.read_file(Path::new(path)) else {
            let file = MapRef { kind: "file".into(), name: path.to_owned() };
            named.tables.extend(self.defer_domains(&file, "the file cannot be read"));
            named.is_incomplete |= negated;
            return;
        };
        let lines = super::main_cf::logical_lines(&text).join(" ");
        list(&lines).iter().for_each(|element| self.domain_element(parameter, element, negated, named, 1));
    }

    /// Exclusions cannot be applied to a table that is queried at run time: then all its mail is
    /// deferred.
    fn domain_table(&mut self, parameter: &str, table: MapRef, negated: bool, named: &mut DomainList) {
        let keys = self.domain_keys(&table, negated);
        let most = if parameter == "relay_domains" { RELAY_DOMAINS_MAX } else { NAMED_DOMAINS_MAX };
        match keys {
            Some(keys) if negated => keys.into_iter().for_each(|key| named.add(key, true)),
            Some(keys) if keys.len() <= most => {
                for key in keys {
                    match is_domain(&key) {
                        true => named.add(key, false),
                        false => self.reject_domain_name(parameter, &key),
                    }
                }
            }
            None if negated => {
                let why = format!("it lists exclusions of {parameter}, and cannot be read");
                named.tables.extend(self.defer_domains(&table, &why));
                named.is_incomplete = true;
            }
            _ if named.excluded.is_empty() => named.tables.extend(self.convert_chain(vec![table], TableUse::Domains)),
            _ => {
                let why = format!("{parameter} excludes {} from it", named.excluded.join(", "));
                named.tables.extend(self.defer_domains(&table, &why));
            }
        }
    }

    /// The keys of a table that are domains, in lower case. In a table of addresses, a word without
    /// a dot is a user.
    fn domain_keys(&mut self, table: &MapRef, negated: bool) -> Option<Vec<String>> {
        let addresses = ["virtual_alias_maps", "virtual_mailbox_maps"].map(|name| list(&self.values.value(name)));
        let has_addresses = !negated && addresses.iter().flatten().any(|it| MapRef::parse(it).as_ref() == Some(table));
        let is_domain = |key: &String| !key.contains('@') && (key.contains('.') || !has_addresses);
        let entries = self.entries(table, false)?;
        Some(entries.into_iter().map(|(key, _)| key.to_lowercase()).filter(is_domain).collect())
    }

    /// A table that defers mail to all domains without a section, one for each reason.
    fn defer_domains(&mut self, table: &MapRef, why: &str) -> Option<String> {
        let reason = MapRef { kind: "!".into(), name: why.to_owned() };
        let key = (vec![table.clone(), reason], TableUse::Domains);
        if let Some(made) = self.converted_tables.get(&key) {
            return made.clone();
        }
        let made = self.unavailable_table(table, TableUse::Domains, why);
        self.converted_tables.insert(key, made.clone());
        made
    }
}

fn is_domain(text: &str) -> bool {
    Address::new("postmaster", text).is_ok()
}
