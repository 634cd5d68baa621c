//! Rewrite rules as canonical tables: `*@old.example $1@new.example`, one address to another, and Debian's lookup of
//! local users in a file. The file names all other rules.

use std::path::Path;

use mail::Address;

use super::Conversion;
use super::domains::{DomainGroup, Truth, applies, file_entries};
use super::expansion::Lookup;
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
            let is_for_senders = !flags.is_empty() && flags.chars().all(|flag| "Ffrsq".contains(flag));
            let entries = self.rewrite_entries(&pattern, &replacement);
            match entries {
                Some(entries) if is_for_senders => senders.push_str(&entries),
                Some(entries) if flags.is_empty() || flags.contains('E') || flags.contains('h') => others.push_str(&entries),
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
        let named = self.groups.iter().filter(|group| applies(&items, group) == Truth::Yes);
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
        let visible = text.split("$1@").nth(1).and_then(|rest| rest.split_whitespace().next()).map(str::to_owned);
        let Some(visible) = visible.filter(|domain| Address::new("x", domain).is_ok()) else {
            self.draft.add_behavior_change(format!(
                "Mail by transport {} keeps its addresses: headers_rewrite and return_path have no counterpart.",
                driver.name
            ));
            return;
        };
        let items = self.domain_items("+local_domains");
        let mut names: Vec<String> = vec![self.origin.clone()];
        names.extend(self.groups.iter().filter_map(|group| match group {
            DomainGroup::Name(name) if applies(&items, group) == Truth::Yes => Some(name.clone()),
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
