//! Converts `smtpd_data_restrictions` and `smtpd_end_of_data_restrictions` to rules of the stages `data` and
//! `message`, and the policy services in them.
//!
//! These rules are about a message with all its recipients. Postfix tells them the recipient if there is only
//! one, so a table of recipients has no counterpart there.

use super::Conversion;
use super::access::{ConvertedRestriction, ImportedRule, LATE_LISTS};
use super::restrictions::{self, Restriction, RestrictionLists};

/// The lists, in their order.
pub(super) const LATE_RESTRICTIONS: [&str; 2] = ["smtpd_data_restrictions", "smtpd_end_of_data_restrictions"];
/// Their stages for policy services.
const STAGES: [&str; 2] = ["data", "message"];

impl Conversion<'_> {
    /// Converts the lists of the first service for other servers.
    pub(super) fn late_restrictions(&mut self, lists: &RestrictionLists, rules: &mut Vec<ImportedRule>) {
        let front = self.main_inbound_service().map(|front| front.main.clone());
        let main = front.as_ref().unwrap_or(self.main);
        for (place, name) in LATE_RESTRICTIONS.into_iter().enumerate() {
            let elements = restrictions::parse_list(&self.values.with_main_cf(main), name);
            match elements.is_empty() {
                true => self.draft.not_needed(name, "the list is empty"),
                false => self.draft.not_needed(name, "see above for each restriction"),
            }
            self.collect_list(LATE_LISTS + place, name, &elements, lists, rules);
        }
        self.draft.not_needed("smtpd_etrn_restrictions", "there is no ETRN");
    }

    /// A policy service that is asked after RCPT. `late`: the number of its list.
    pub(super) fn late_policy_service(&mut self, element: &Restriction, late: usize) -> ConvertedRestriction {
        let argument = element.argument.clone().unwrap_or_default();
        match self.policy_section(&argument) {
            Ok(block) => {
                self.add_policy_section(block.key("stages", super::config_draft::quoted_list([STAGES[late]]), ""));
                ConvertedRestriction::Same(super::filters::ASKED)
            }
            Err(outcome) => outcome,
        }
    }
}
