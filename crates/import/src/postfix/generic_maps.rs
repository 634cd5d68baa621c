//! Generic maps, as `generic` of transports.

use super::Conversion;
use super::config_draft::{TomlSection, quoted};
use super::map_text::TableUse;
use super::words::list;

/// The types of transports, and their parameters.
const MAPS: [(&str, &str); 2] = [("smtp", "smtp_generic_maps"), ("lmtp", "lmtp_generic_maps")];
const KEY: &str = "generic";
/// Stands for the empty list of a service, until the lists of main.cf are set.
const NO_TABLE: &str = "\"\"";

impl Conversion<'_> {
    /// The key and the value that a setting of a service in master.cf becomes, if it is its list of generic maps.
    pub(super) fn own_generic_maps(&mut self, command: &str, name: &str, value: &str) -> Option<(String, String)> {
        MAPS.contains(&(command, name)).then(|| {
            let table = self.convert_maps(value, TableUse::Generic);
            (KEY.to_owned(), table.map_or_else(|| NO_TABLE.to_owned(), |table| quoted(&table)))
        })
    }

    /// Sets the lists of main.cf in all transports without a list of their own.
    pub(super) fn generic_maps(&mut self) {
        for (kind, parameter) in MAPS {
            let Some(value) = self.values.explicit_value(parameter) else { continue };
            if kind == "smtp" {
                self.draft.section("[transport.smtp]");
            }
            if !self.draft.sections.iter().any(|block| transport_kind(block) == Some(kind)) {
                self.draft.not_needed(parameter, "no transport uses LMTP");
            } else if let Some(table) = self.convert_maps(&value, TableUse::Generic) {
                self.draft.mapped(parameter);
                let of_kind = |block: &&mut TomlSection| transport_kind(block) == Some(kind);
                for block in self.draft.sections.iter_mut().filter(of_kind) {
                    if !block.keys.iter().any(is_generic) {
                        block.set(KEY, quoted(&table), parameter);
                    }
                }
                self.report_generic_tags(parameter);
            } else {
                self.draft.not_needed(parameter, "the list is empty");
            }
        }
        for block in &mut self.draft.sections {
            block.keys.retain(|key| !is_generic(key) || key.1 != NO_TABLE);
        }
    }

    /// Reports that rewritten addresses lose tags.
    fn report_generic_tags(&mut self, parameter: &str) {
        let classes = self.values.explicit_value("propagate_unmatched_extensions").unwrap_or_default();
        let is_kept = list(&classes).iter().any(|class| class == "generic");
        if is_kept && !self.values.value("recipient_delimiter").is_empty() {
            self.draft.add_behavior_change(format!(
                "An address with a tag loses it if {parameter} has the address without it \
                 (propagate_unmatched_extensions)."
            ));
        }
    }
}

fn is_generic((key, ..): &(String, String, String)) -> bool {
    key == KEY
}

/// `smtp` or `lmtp`, of a section of such a transport.
fn transport_kind(block: &TomlSection) -> Option<&'static str> {
    let of_type = |kind: &&str| block.keys.iter().any(|(key, value, _)| key == "type" && *value == quoted(kind));
    let is_transport = block.header.starts_with("[transport.");
    let is_default = block.header == "[transport.smtp]";
    let kind = MAPS.map(|(kind, _)| kind).into_iter().find(of_type).or(is_default.then_some("smtp"));
    kind.filter(|_| is_transport)
}
