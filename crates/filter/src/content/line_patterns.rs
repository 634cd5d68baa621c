//! Which rules match a line: all their regular expressions are searched for in one pass.

use std::ops::Range;

use regex::{RegexSet, RegexSetBuilder};

use super::{ContentRule, InvalidPattern, LineScope, Pattern};

/// Memory of all compiled patterns together, in octets.
const SET_OCTETS_MAX: usize = 256 << 20;
/// Memory for the states of a search, in octets, for each thread that searches. Beyond it they are made
/// anew.
const SEARCH_OCTETS_MAX: usize = 8 << 20;

/// The patterns of the rules that look at some kind of line.
pub(super) struct LinePatterns {
    set: RegexSet,
    conditions: Vec<NumberedCondition>,
    /// A condition may hold for a line that no pattern matches.
    has_condition_without_match: bool,
}

/// The condition of a rule, with the numbers of its patterns in the set.
struct NumberedCondition {
    rule: usize,
    scopes: Vec<LineScope>,
    fields: Vec<Box<str>>,
    matches: Range<usize>,
    unless: Range<usize>,
}

impl LinePatterns {
    /// Of the rules that look at one of these scopes.
    ///
    /// # Errors
    ///
    /// The patterns are too large together.
    pub(super) fn new<'r>(
        rules: impl Iterator<Item = (usize, &'r ContentRule)>,
        scopes: &[LineScope],
    ) -> Result<LinePatterns, InvalidPattern> {
        let (mut patterns, mut conditions) = (Vec::new(), Vec::new());
        for (rule, lines) in rules.filter_map(|(number, rule)| Some((number, rule.lines.as_ref()?))) {
            if !lines.scopes.iter().any(|scope| scopes.contains(scope)) {
                continue;
            }
            let mut add = |added: &[Pattern]| {
                let first = patterns.len();
                patterns.extend(added.iter().map(|pattern| pattern.as_str().to_owned()));
                first..patterns.len()
            };
            let (matches, unless) = (add(&lines.matches), add(&lines.unless));
            let (scopes, fields) = (lines.scopes.clone(), lines.fields.clone());
            conditions.push(NumberedCondition { rule, scopes, fields, matches, unless });
        }
        let set = RegexSetBuilder::new(&patterns)
            .case_insensitive(true)
            .size_limit(SET_OCTETS_MAX)
            .dfa_size_limit(SEARCH_OCTETS_MAX)
            .build()
            .map_err(|_| InvalidPattern::too_large_together())?;
        let has_condition_without_match = conditions.iter().any(|condition| condition.matches.is_empty());
        Ok(LinePatterns { set, conditions, has_condition_without_match })
    }

    /// Whether no rule looks at such lines.
    pub(super) fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// The rules, in order, whose condition this line meets. `field` is the name of a field, as it was
    /// sent.
    pub(super) fn rules_of(&self, scopes: &[LineScope], field: Option<&str>, text: &str) -> Vec<usize> {
        if self.conditions.is_empty() {
            return Vec::new();
        }
        // Whether any pattern matches is found faster than which ones, and mostly none does.
        if !self.has_condition_without_match && !self.set.is_match(text) {
            return Vec::new();
        }
        let found = self.set.matches(text);
        let is_met = |condition: &&NumberedCondition| {
            condition.scopes.iter().any(|scope| scopes.contains(scope))
                && (condition.fields.is_empty()
                    || field.is_some_and(|name| condition.fields.iter().any(|own| own.eq_ignore_ascii_case(name))))
                && condition.matches.clone().all(|number| found.matched(number))
                && !condition.unless.clone().any(|number| found.matched(number))
        };
        self.conditions.iter().filter(is_met).map(|condition| condition.rule).collect()
    }
}
