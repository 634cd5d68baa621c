//! `virtual_mailbox_limit` and `mailbox_size_limit` limit one file: a whole mailbox in mbox format,
//! or one message in a Maildir. Here all mailboxes are Maildirs, and a quota limits the whole
//! mailbox; it is written for those that were mbox files.

use super::Conversion;
use super::config_draft::quoted;
use super::lookups::{MapRef, file_name};
use super::words::list;

const MAILBOX_FILES_ONLY: &str =
    "it limits one file of a Maildir, see `message` of [limits]; `quota` of the transport limits the whole Maildir";

impl Conversion<'_> {
    pub(super) fn quotas(&mut self) {
        self.virtual_quota();
        self.local_quota();
    }

    /// The limit in bytes; None for no limit, which is reported.
    fn size_limit(&mut self, parameter: &str) -> Option<u64> {
        let value = self.values.explicit_value(parameter)?;
        match value.parse::<u64>() {
            Ok(0) => self.draft.not_needed(parameter, "mailboxes have no quota, unless their transport has `quota`"),
            Ok(octets) => return Some(octets),
            Err(_) => self.draft.unsupported(parameter, "this number is not valid here"),
        }
        None
    }

    fn local_quota(&mut self) {
        let parameter = "mailbox_size_limit";
        let Some(octets) = self.size_limit(parameter) else { return };
        let own_transport = self.draft.sections.iter().filter(|block| block.header == "[[domain]]").any(|block| {
            let has =
                |key: &str, from: &str| block.keys.iter().any(|it| it.0 == key && (from.is_empty() || it.2 == from));
            (has("name", "mydestination") || has("names", "mydestination")) && !has("transport", "")
        });
        let is_maildir = self.values.value("home_mailbox").ends_with('/');
        match (own_transport, is_maildir) {
            (false, _) => self.draft.unsupported(parameter, "mail of system users is not stored here"),
            (true, true) => self.draft.unsupported(parameter, MAILBOX_FILES_ONLY),
            (true, false) => self.set_quota("[transport.maildir]", octets, parameter),
        }
    }

    fn set_quota(&mut self, transport: &str, octets: u64, from: &str) {
        self.draft.set(transport, "quota", format!("{{ bytes = {octets} }}"), from);
        self.draft.section(transport).set("quota_full", quoted("refuse"), "");
    }

    fn virtual_quota(&mut self) {
        let parameter = "virtual_mailbox_limit";
        let Some(octets) = self.size_limit(parameter) else { return };
        let is_ours = |key: &(String, String, String)| key.0 == "places" && key.2 == "virtual_mailbox_maps";
        let transport = self.draft.sections.iter().find(|block| block.keys.iter().any(is_ours));
        let Some(transport) = transport.map(|block| block.header.clone()) else {
            return self.draft.unsupported(parameter, "mail of virtual_mailbox_domains is not stored here");
        };
        let tables: Vec<Option<MapRef>> =
            list(&self.values.value("virtual_mailbox_maps")).iter().map(|it| MapRef::parse(it)).collect();
        let mut boxes: Vec<(String, String)> = Vec::new();
        for table in tables {
            match table.and_then(|table| self.entries(&table, false)) {
                Some(entries) => boxes.extend(entries),
                None => {
                    self.draft.add_behavior_change(format!(
                        "Mail to full mailboxes is accepted: {parameter} did not become a quota, because it is \
                         unknown which mailboxes in a table were mbox files."
                    ));
                    return self.draft.unsupported(
                        parameter,
                        "it is unknown which mailboxes were mbox files: for these, set `quota` of their transport",
                    );
                }
            }
        }
        let (maildirs, files): (Vec<_>, Vec<_>) = boxes.into_iter().partition(|(_, place)| place.ends_with('/'));
        match (maildirs.is_empty(), files.is_empty()) {
            (_, true) => self.draft.unsupported(parameter, MAILBOX_FILES_ONLY),
            (true, false) => self.set_quota(&transport, octets, parameter),
            (false, false) => {
                let files: Vec<(String, String)> =
                    files.into_iter().map(|(address, _)| (address, octets.to_string())).collect();
                let table = self.quota_table(&files);
                self.draft.set(&transport, "quota_table", quoted(&table), parameter);
                self.draft.section(&transport).set("quota_full", quoted("refuse"), "");
            }
        }
    }

    /// A table of limits for mailboxes that were mbox files.
    fn quota_table(&mut self, boxes: &[(String, String)]) -> String {
        let text = super::map_text::convert_entries(boxes, super::map_text::TableUse::Mailboxes, &self.site).text;
        let path = self.add_file("quotas", "", text, false);
        let name = file_name(&path);
        let block = super::config_draft::TomlSection::new("[[table]]")
            .comment("Mailboxes that were mbox files, and their limits.");
        let block = block.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        name
    }
}
