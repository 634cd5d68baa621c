//! Converts what the tables of Postfix in databases and directories have in common: `domain`,
//! `result_format` and `expansion_limit`.

use super::Conversion;
use super::config_draft::{TomlSection, quoted, quoted_list};
use super::lookups::MapRef;
use super::map_text::TableUse;
use super::placeholders::result_format;
use super::words::list;

impl Conversion<'_> {
    /// Adds the rules of a map to its table. Fails if lookups would find something else without
    /// them.
    pub(super) fn add_table_rules(
        &mut self,
        block: &mut TomlSection,
        map_ref: &MapRef,
        of_use: TableUse,
        value: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        if of_use == TableUse::Access && self.access_keys_match_subdomains() {
            block.set("match_subdomains", "true".into(), "parent_domain_matches_subdomains");
        }
        let local = matches!(of_use, TableUse::LocalAliases | TableUse::LocalUsers);
        if let Some(domains) = value("domain").filter(|domains| !domains.is_empty()) {
            if local {
                return Err("its `domain` excludes names without a domain".into());
            }
            self.add_domains(block, map_ref, &domains);
        }
        // Also without a format: Postfix finds no entry whose values are all empty.
        let format = value("result_format").or_else(|| value("result_filter")).unwrap_or_else(|| "%s".into());
        let is_needed = format != "%s" || map_ref.kind != "ldap";
        if is_needed {
            block.set("result_format", quoted(&result_format(&format, local)?), "result_format");
        }
        if matches!(of_use, TableUse::Aliases | TableUse::LocalAliases) {
            block.set("separator", quoted(","), "");
        }
        let limit = value("expansion_limit").and_then(|limit| limit.parse::<u32>().ok()).filter(|limit| *limit > 0);
        if let Some(limit) = limit {
            block.set("values_max", limit.to_string(), "expansion_limit");
        }
        Ok(())
    }

    /// Whether a domain in access tables also stands for its subdomains.
    pub(super) fn access_keys_match_subdomains(&self) -> bool {
        let lists = list(&self.values.value("parent_domain_matches_subdomains"));
        lists.iter().any(|name| name == "smtpd_access_maps")
    }

    /// `domain`: names, files of names, and tables whose keys are names.
    fn add_domains(&mut self, block: &mut TomlSection, map_ref: &MapRef, domains: &str) {
        let mut names = Vec::new();
        for element in list(domains) {
            let listed = match MapRef::parse(&element) {
                Some(table) => self.entries(&table, false).map(|entries| entries.into_iter().map(|it| it.0).collect()),
                None if element.starts_with('/') => self.read_file(element.as_ref()).map(|text| list(&text)),
                None => Some(vec![element.clone()]),
            };
            match listed {
                Some(listed) => names.extend(listed),
                None => {
                    return self.draft.add_unsupported(
                        format!("{}: domain = {domains}", map_ref.text()),
                        format!("{element} cannot be read, so addresses of all domains are looked up"),
                    );
                }
            }
        }
        block.set("domains", quoted_list(names.iter().map(String::as_str)), "domain");
    }
}
