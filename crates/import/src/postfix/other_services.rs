//! Restrictions of services other than the first one: rules for their listeners alone.
//!
//! The rules of the first service apply to all listeners. A list of another service that has a restriction
//! which the first service does not have is converted as a whole, for the listeners of that service.

use super::Conversion;
use super::access::{ImportedRule, LATE_LISTS, ListScope, NOT_NEEDED};
use super::late_restrictions::LATE_RESTRICTIONS;
use super::restrictions::{self, LISTS, Restriction, RestrictionLists};

/// Restrictions that say who may relay, or are at the end of nearly every list.
const EXPECTED: [&str; 5] =
    ["permit", "permit_mynetworks", "permit_sasl_authenticated", "reject", "permit_auth_destination"];

impl Conversion<'_> {
    /// Converts the lists that only other services have. `front`: those of the first service.
    pub(super) fn other_services(&mut self, front: &RestrictionLists, rules: &mut Vec<ImportedRule>) {
        let of_front = self.main_inbound_service().map(|front| self.late_lists(&front.main)).unwrap_or_default();
        for (number, inbound) in self.inbound_services.clone().iter().enumerate() {
            if inbound.is_from_filter || self.written_listeners(&inbound.addresses).is_empty() {
                continue;
            }
            let late = self.late_lists(&inbound.main);
            let own = LISTS.into_iter().zip(&inbound.lists.0).zip(&front.0).enumerate();
            let own = own.map(|(place, ((name, list), front))| (place, name, list, front));
            let late = LATE_RESTRICTIONS.into_iter().zip(&late).zip(&of_front).enumerate();
            let late = late.map(|(place, ((name, list), front))| (LATE_LISTS + place, name, list, front));
            for (list, name, elements, front) in own.chain(late) {
                if elements.iter().any(|element| !front.contains(element) && decides(element)) {
                    self.service_list(number, list, &format!("{}: {name}", inbound.description), elements, rules);
                }
            }
        }
    }

    fn late_lists(&self, main: &super::main_cf::MainCf) -> Vec<Vec<Restriction>> {
        let values = self.values.with_main_cf(main);
        LATE_RESTRICTIONS.iter().map(|name| restrictions::parse_list(&values, name)).collect()
    }

    fn service_list(
        &mut self,
        service: usize,
        list: usize,
        name: &str,
        elements: &[Restriction],
        rules: &mut Vec<ImportedRule>,
    ) {
        self.dropped_permit = false;
        let (name, lists) = (name.to_owned(), self.inbound_services[service].lists.clone());
        let scope = ListScope { list, name, class: None, excludes_users: false, depth: 0, service: Some(service) };
        self.collect_elements(&scope, elements, &lists, rules);
    }
}

/// Whether it may refuse mail by more than who sends it.
fn decides(element: &Restriction) -> bool {
    let is_expected = EXPECTED.contains(&element.rule.as_str());
    !is_expected && element.no_effect.is_none() && !NOT_NEEDED.iter().any(|(known, _)| *known == element.rule)
}
