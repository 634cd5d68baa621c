//! Restrictions as values of access tables, such as the names in `smtpd_restriction_classes`, as classes
//! of rules: each value of a table becomes a class, whose rules follow the rule of the table.
//!
//! A permit in a class accepts, and skips the rest of its list, as with Postfix.

use super::Conversion;
use super::access::{CLASS_DEPTH_MAX, ConvertedRestriction, ImportedRule, ListScope, RuleCondition, is_supported};
use super::access_table::{AccessAction, AccessTableContent};
use super::restrictions::{LISTS, Restriction, RestrictionLists, parse_text};

/// The longest name of a class.
const NAME_CHARS_MAX: usize = 40;

impl Conversion<'_> {
    /// Names a class for each value that consists of restrictions; the names and the restrictions.
    pub(super) fn name_classes(
        &mut self,
        scope: &ListScope,
        content: &mut AccessTableContent,
    ) -> Vec<(String, String)> {
        let mut classes: Vec<(String, String)> = Vec::new();
        if scope.depth >= CLASS_DEPTH_MAX {
            return classes;
        }
        for action in content.actions_mut() {
            let AccessAction::Restrictions(text) = action else { continue };
            let elements = parse_text(&self.values, LISTS[0], text);
            // Otherwise the value defers.
            if elements.is_empty() || !elements.iter().all(is_supported_in_class) {
                continue;
            }
            let known = classes.iter().find(|(_, known)| known == text).map(|(name, _)| name.clone());
            let name = known.unwrap_or_else(|| {
                let name = self.free_name(&class_name(text));
                classes.push((name.clone(), text.clone()));
                name
            });
            *action = AccessAction::Class(name);
        }
        classes
    }

    /// Converts the restrictions of a class.
    pub(super) fn collect_class(
        &mut self,
        scope: &ListScope,
        text: &str,
        lists: &RestrictionLists,
        rules: &mut Vec<ImportedRule>,
    ) {
        let name = LISTS.get(scope.list).copied().unwrap_or_default();
        let elements = parse_text(&self.values, name, text);
        self.collect_elements(scope, &elements, lists, rules);
    }

    /// Converts a restriction of a class.
    pub(super) fn convert_in_class(&mut self, scope: &ListScope, element: &Restriction) -> ConvertedRestriction {
        match element.rule.as_str() {
            "permit" if element.no_effect.is_none() => ConvertedRestriction::Rule(RuleCondition::All("accept")),
            _ => self.convert_restriction(scope.list, element),
        }
    }
}

/// Whether rules of a class can do what a restriction does.
fn is_supported_in_class(element: &Restriction) -> bool {
    let rule = element.rule.as_str();
    let is_about_others = ["permit_auth_destination", "check_policy_service"].contains(&rule);
    element.no_effect.is_some() || !is_about_others && is_supported(rule)
}

/// A name for restrictions: the class itself, or its words. A table alone, such as `:`, may have none.
fn class_name(text: &str) -> String {
    let is_sound = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: Vec<&str> = text.split(|c| !is_sound(c)).filter(|word| !word.is_empty()).collect();
    let name: String = words.join("-").chars().take(NAME_CHARS_MAX).collect();
    if name.is_empty() { "class".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_a_name() {
        assert_eq!(class_name("permit_mynetworks, reject"), "permit_mynetworks-reject");
        // A table of any type, whose file has no name: a configuration with an empty name was refused.
        assert_eq!(class_name(":"), "class");
    }
}
