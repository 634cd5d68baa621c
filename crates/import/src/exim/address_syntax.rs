//! Addresses that Exim takes for malformed, whoever sends them: its ACLs are not even asked about them.
//!
//! | address | here |
//! |---|---|
//! | with a final dot, or without a domain | `strict_addresses`, unless Exim lets some clients leave out the domain |
//! | at an IP address, such as bob@[192.0.2.1] | a rule, unless `allow_domain_literals` is set |
//! | with an underscore in the domain | a rule |

use super::Conversion;
use crate::config_draft::{TomlSection, quoted};

/// The rules for senders and for recipients: stage, key and name.
const STAGES: [(&str, &str, &str); 2] =
    [("mail", "senders_in", "malformed senders"), ("rcpt", "recipients_in", "malformed")];
/// Options for clients that may send addresses without a domain.
const UNQUALIFIED: [&str; 2] = ["sender_unqualified_hosts", "recipient_unqualified_hosts"];

impl Conversion<'_> {
    /// Refuses malformed addresses. These rules come before all others.
    pub(super) fn malformed_addresses(&mut self) {
        let is_set = |name: &&&str| !self.config.main.value(name).unwrap_or_default().trim().is_empty();
        match UNQUALIFIED.iter().find(is_set) {
            None => self.draft.section("[smtp]").set("strict_addresses", "true".into(), ""),
            Some(option) => {
                self.draft.add_behavior_change(format!(
                    "Addresses with a final dot are accepted, and addresses without a domain from clients that may relay \
                     ({option}): see `strict_addresses` of [smtp]."
                ));
                UNQUALIFIED.iter().for_each(|name| self.draft.mapped(name));
            }
        }
        let fault = "501 5.1.3 Bad address syntax";
        let mut text = format!("/@[^@]*_[^@]*$/ {fault}\n");
        if !self.config.main.is_set("allow_domain_literals") {
            text.push_str(&format!("/@\\[[^@]*\\]$/ {fault}\n"));
        }
        let table = self.add_text_table("malformed", "regexp", text, "Addresses that Exim takes for malformed.");
        for (stage, key, name) in STAGES {
            let block = TomlSection::new("[[access]]").key("name", quoted(name), "").key("stage", quoted(stage), "");
            self.draft.add(block.key(key, quoted(&table), "").key("action", quoted("table"), ""));
        }
    }
}
