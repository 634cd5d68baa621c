//! Rewrite rules as canonical tables: `*@old.example $1@new.example`, one address to another, and Debian's lookup of
//! local users in a file. The file names all other rules.

use std::path::Path;

use mail::Address;

use super::Conversion;
use super::domains::{ConditionOutcome, DomainGroup, applies, file_entries};
use super::expansion::{Lookup, list};
use super::sections::Driver;
use crate::config_draft::{quoted, quoted_list};

impl Conversion<'_> {
    /// The section `rewrite`.
    pub(super) fn rewriting(&mut self) {
        let (mut senders, mut others) = (String::new(), String::new());
        for line in &self.config.rewrite {
            let Some((pattern, replacement, flags)) = rule_parts(line) else {
                self.draft.add_unsupported(format!("rewrite: {line}"), "this form has no counterpart");
                continue;
            };
            let entries = self.rewrite_entries(&pattern, &replacement);
            match (entries, AddressClasses::of_flags(&flags)) {
                (Some(entries), Some(AddressClasses::Senders)) => senders.push_str(&entries),
                (Some(entries), Some(AddressClasses::All)) => others.push_str(&entries),
                _ => self.draft.add_behavior_change(format!(
                    "Addresses stay as they are, since this rewrite rule has no counterpart: {pattern} {replacement} {flags}"
                )),
            }
        }
        for (key, text) in [("sender_canonical", senders), ("canonical", others)] {
            if !text.is_empty() {
                self.add_canonical(key, text);
            }
        }
    }

    fn add_canonical(&mut self, key: &str, text: String) {
        let mut seen = std::collections::BTreeSet::new();
        let is_new = |line: &&str| seen.insert(line.split(' ').next().unwrap_or_default().to_lowercase());
        let text = text.lines().filter(is_new).map(|line| format!("{line}\n")).collect();
        let table = self.add_text_table(&key.replace('_', "-"), "text", text, "From begin rewrite.");
        self.draft.section("[rewrite]").set(key, quoted(&table), "begin rewrite");
    }

    /// Lines of a canonical table; None if there are none for such a rule.
    fn rewrite_entries(&self, pattern: &str, replacement: &str) -> Option<String> {
        let (local, domains) = pattern.split_once('@')?;
        let items = self.domain_items(domains);
        let named = self.groups.iter().filter(|group| applies(&items, group) == ConditionOutcome::Yes);
        let mut names: Vec<String> = named
            .filter_map(|group| match group {
                DomainGroup::Name(name) => Some(name.clone()),
                _ => None,
            })
            .collect();
        if Address::new("x", domains).is_ok() && !names.contains(&domains.to_owned()) {
            names.push(domains.to_owned());
        }
        let replacement = self.expander.resolved(replacement);
        if let Some(lookup) = Lookup::parse(&replacement) {
            return self.entries_of_lookup(&lookup, &names).filter(|_| local == "*");
        }
        let target = replacement.strip_prefix("$1@").or_else(|| replacement.strip_prefix("${1}@"));
        let line = |name: &String| match (local, target) {
            ("*", Some(domain)) => Address::new("x", domain).is_ok().then(|| format!("@{name} @{domain}\n")),
            _ => {
                let from = Address::new(local, name).is_ok() && !local.contains('*');
                (from && replacement.parse::<Address>().is_ok()).then(|| format!("{local}@{name} {replacement}\n"))
            }
        };
        if names.is_empty() {
            return None;
        }
        names.iter().map(line).collect()
    }

    /// The users of a file, in each of these domains.
    fn entries_of_lookup(&self, lookup: &Lookup, names: &[String]) -> Option<String> {
        let is_plain = lookup.kind == "lsearch" && matches!(lookup.key.as_str(), "$local_part" | "${local_part}");
        if !is_plain || !lookup.gives_value() {
            return None;
        }
        // Without the file nothing is rewritten.
        let text = self.files.text(Path::new(&lookup.source)).unwrap_or_default();
        let mut lines = String::new();
        for (user, address) in file_entries(&text) {
            for name in names {
                if Address::new(&user, name).is_ok() && address.parse::<Address>().is_ok() {
                    lines.push_str(&format!("{user}@{name} {address}\n"));
                }
            }
        }
        Some(lines)
    }

    /// `headers_rewrite` and `return_path` of the transport for other domains, if they hide our domains behind one.
    pub(super) fn rewrite_on_the_way_out(&mut self, driver: &Driver) {
        if driver.value("headers_rewrite").is_none() && driver.value("return_path").is_none() {
            return;
        }
        let text = self.expander.resolved(driver.value("headers_rewrite").unwrap_or_default());
        let Some(visible) = visible_domain(&text) else {
            self.draft.add_behavior_change(format!(
                "Mail by transport {} keeps its addresses: headers_rewrite and return_path have no counterpart.",
                driver.name
            ));
            return;
        };
        let items = self.domain_items("+local_domains");
        let mut names: Vec<String> = vec![self.origin.clone()];
        names.extend(self.groups.iter().filter_map(|group| match group {
            DomainGroup::Name(name) if applies(&items, group) == ConditionOutcome::Yes => Some(name.clone()),
            _ => None,
        }));
        names.sort();
        names.dedup();
        let text: String = names.iter().filter(|it| **it != visible).map(|it| format!("@{it} @{visible}\n")).collect();
        self.draft.add_review_note(format!("senders become addresses of {visible} in mail that stays here, too"));
        let table = self.add_text_table("visible-name", "text", text, "From headers_rewrite.");
        let classes = quoted_list(["envelope_sender", "header_sender"]);
        let block = self.draft.section("[rewrite]");
        block.set("canonical", quoted(&table), "headers_rewrite");
        block.set("canonical_classes", classes, "");
    }
}

/// The one domain that all rules of `headers_rewrite` put in place of whole domains, if they are for senders.
fn visible_domain(rules: &str) -> Option<String> {
    let parsed: Option<Vec<_>> = list(rules).iter().map(|rule| rule_parts(rule)).collect();
    let parsed = parsed.filter(|rules| !rules.is_empty())?;
    let (_, first, _) = parsed.first()?;
    let domain = first.strip_prefix("$1@").filter(|domain| Address::new("x", domain).is_ok())?;
    let is_alike = |(pattern, replacement, flags): &(String, String, String)| {
        pattern.starts_with("*@")
            && replacement == first
            && flags.contains('f')
            && flags.chars().all(|it| "frs".contains(it))
    };
    parsed.iter().all(is_alike).then(|| domain.to_owned())
}

/// Which addresses a rule rewrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressClasses {
    /// The sender, in the envelope and in the header.
    Senders,
    All,
}

impl AddressClasses {
    /// Those of the flags of a rule. None: only some of these addresses, which tables cannot say.
    fn of_flags(flags: &str) -> Option<AddressClasses> {
        let has = |all: &str| all.chars().all(|flag| flags.contains(flag));
        let flags_are_in = |known: &str| flags.chars().all(|flag| known.contains(flag));
        // `q` only ends the list of rules.
        match () {
            () if flags_are_in("q") || has("Eh") && flags_are_in("EFTbcfhrstq") => Some(AddressClasses::All),
            () if has("Ff") && flags_are_in("Ffrsq") => Some(AddressClasses::Senders),
            () => None,
        }
    }
}

/// The pattern, the replacement and the flags of a rule.
fn rule_parts(line: &str) -> Option<(String, String, String)> {
    let (pattern, rest) = line.split_once(char::is_whitespace)?;
    let rest = rest.trim();
    let (replacement, flags) = match rest.strip_prefix('"') {
        Some(inside) => inside.rsplit_once('"')?,
        None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
    };
    Some((pattern.to_owned(), replacement.trim().to_owned(), flags.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_name_some_addresses_only_have_no_counterpart() {
        for (flags, expected) in [
            ("", Some(AddressClasses::All)),
            ("Eh", Some(AddressClasses::All)),
            ("Ffrs", Some(AddressClasses::Senders)),
            ("Ffrsq", Some(AddressClasses::Senders)),
            ("F", None),
            ("h", None),
            ("Tt", None),
            ("S", None),
        ] {
            assert_eq!(AddressClasses::of_flags(flags), expected, "{flags}");
        }
    }
}
