//! Converts what the tables of Postfix in databases and directories have in common: `domain`,
//! `result_format` and `expansion_limit`.

use super::Conversion;
use super::config_draft::{TomlSection, quoted, quoted_list};
use super::lookups::MapRef;
use super::map_text::TableUse;
use super::words::list;

/// Names of the parts of a key in our queries, by the letters of Postfix's.
pub(super) fn key_part(letter: char, local: bool) -> Result<Option<String>, String> {
    Ok(Some(match letter {
        's' | 'S' if local => "local".into(),
        's' | 'S' => "key".into(),
        'u' | 'U' => "local".into(),
        // Postfix looks up names without a domain, and so never asks.
        'd' | 'D' | '1'..='9' if local => return Err(format!("%{letter} is never there in names without a domain")),
        'd' | 'D' => "domain".into(),
        '1'..='9' => format!("label{letter}"),
        _ => return Ok(None),
    }))
}

/// `result_format` with our placeholders. `local`: Postfix looks up names without a domain.
pub(super) fn result_format(format: &str, local: bool) -> Result<String, String> {
    let mut made = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match c {
            '{' | '}' => made.extend([c, c]),
            '%' => {
                let letter = chars.next().unwrap_or(' ');
                let part = match letter {
                    '%' => {
                        made.push('%');
                        continue;
                    }
                    's' => Some("value".to_owned()),
                    'u' => Some("value_local".to_owned()),
                    'd' => Some("value_domain".to_owned()),
                    _ => key_part(letter, local)?,
                };
                let part = part.ok_or_else(|| format!("%{letter} in result_format is not a known placeholder"))?;
                made.push_str(&format!("{{{part}}}"));
            }
            _ => made.push(c),
        }
    }
    Ok(made)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_take_our_placeholders() {
        for (format, local, expected) in [
            ("%s", false, "{value}"),
            ("smtp:[%s]", false, "smtp:[{value}]"),
            ("%d/%u/", false, "{value_domain}/{value_local}/"),
            ("%S %U %D %1 %9 100%% {x}", false, "{key} {local} {domain} {label1} {label9} 100% {{x}}"),
            ("%s-%S", true, "{value}-{local}"),
        ] {
            assert_eq!(result_format(format, local).as_deref(), Ok(expected), "{format}");
        }
        for (format, local) in [("%x", false), ("%", false), ("%D", true), ("%0", false)] {
            assert!(result_format(format, local).is_err(), "{format}");
        }
    }
}
