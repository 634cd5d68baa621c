//! Tags of local parts, as in bob+lists. In Exim each router has its own `local_part_suffix`; here a domain has one
//! `delimiter`. So an address with a tag that only a router without a suffix knows would be accepted here: a list of
//! rules refuses it.

use std::collections::BTreeSet;

use super::Conversion;
use super::sections::Driver;
use super::statements::escaped;
use crate::config_draft::{TomlSection, quoted};

/// The name of the list of rules, and of its table.
const LIST: &str = "tags";

/// The tables of addresses that exist with a tag, and of those that do not.
#[derive(Clone, Debug, Default)]
pub(super) struct TagScope {
    tagged: BTreeSet<String>,
    untagged: BTreeSet<String>,
    delimiters: BTreeSet<String>,
}

impl TagScope {
    /// Notes the table of a router.
    pub(super) fn add(&mut self, router: &Driver, table: &str) {
        let list = if router.value("local_part_suffix").is_some() { &mut self.tagged } else { &mut self.untagged };
        list.insert(table.to_owned());
    }

    /// Adds what was noted for a domain with this delimiter.
    pub(super) fn extend(&mut self, delimiter: &str, other: &TagScope) {
        if !delimiter.is_empty() {
            self.tagged.extend(other.tagged.iter().cloned());
            self.untagged.extend(other.untagged.iter().cloned());
            self.delimiters.insert(delimiter.to_owned());
        }
    }
}

/// The delimiter of a router's suffix: the first of ours.
pub(super) fn delimiter(router: &Driver) -> Option<String> {
    let suffix = router.value("local_part_suffix")?.trim_start();
    suffix.chars().next().filter(|c| "+-".contains(*c)).map(String::from)
}

impl Conversion<'_> {
    /// Tells of suffixes that differ from the delimiter of ours.
    pub(super) fn tell_of_suffixes(&mut self, router: &Driver) {
        let Some(suffix) = router.value("local_part_suffix") else { return };
        let ours = delimiter(router).map(|it| format!("{it}*"));
        if ours.as_deref() != Some(suffix.trim()) {
            self.draft.add_behavior_change(format!(
                "Mail to addresses with a tag other than {} is refused: local_part_suffix of router {} is {suffix}, and a \
                 domain has one `delimiter`.",
                ours.unwrap_or_else(|| "none".into()),
                router.name
            ));
        }
    }

    /// Refuses addresses with a tag that are only in tables of routers without a suffix.
    pub(super) fn write_tag_rules(&mut self, scope: &TagScope) {
        let untagged: Vec<&String> = scope.untagged.difference(&scope.tagged).collect();
        let (Some(delimiter), false) = (scope.delimiters.first(), untagged.is_empty()) else { return };
        if scope.delimiters.len() > 1 {
            self.draft.add_behavior_change(
                "Mail to aliases with a tag is accepted: routers differ in local_part_suffix. See `delimiter` of [[domain]].",
            );
            return;
        }
        let mut text = format!("/^[^{delimiter}]+@/ x\n");
        for line in untagged.iter().filter_map(|table| self.text_of(table)).flat_map(str::lines) {
            let key = line.split_whitespace().next().unwrap_or_default();
            let Some((local, domain)) = key.split_once('@') else { continue };
            if local.is_empty() {
                // All addresses of the domain exist.
                text.push_str(&format!("/@{}$/ x\n", escaped(domain)));
            } else if local.contains(delimiter.as_str()) {
                text.push_str(&format!("/^{}$/ x\n", escaped(key)));
            }
        }
        let table = self.add_text_table(LIST, "regexp", text, "Addresses that are no others with a tag.");
        let rule = |table: &str, action: &str| {
            let block = TomlSection::new("[[access]]").key("name", quoted(&format!("{LIST}: {table}")), "");
            let block = block.key("list", quoted(LIST), "").key("stage", quoted("rcpt"), "");
            let block = block.key("recipients_in", quoted(table), "local_part_suffix");
            let block = block.key("action", quoted(action), "");
            if action == "refuse" { block.key("reply", quoted("550 5.1.1 Unrouteable address"), "") } else { block }
        };
        // Each is put before all others.
        let refused = untagged.into_iter().map(|table| rule(table, "refuse"));
        let accepted = scope.tagged.iter().chain([&table]).map(|table| rule(table, "accept"));
        refused.chain(accepted).for_each(|rule| self.add_first_rule(rule));
    }
}
