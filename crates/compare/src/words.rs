//! What figures, units, cases and limits are called.

use crate::result::{Case, Comparison, Figure, Limit, ResultFile, Run};

/// The plural of a unit: messages, queries, batches. An abbreviation such as MB has none.
pub(crate) fn plural(unit: &str) -> String {
    let before_y = unit.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u']));
    match before_y {
        _ if !unit.contains(char::is_lowercase) => unit.to_owned(),
        Some(stem) => format!("{stem}ies"),
        None if ["s", "x", "ch", "sh"].iter().any(|ending| unit.ends_with(ending)) => format!("{unit}es"),
        None => format!("{unit}s"),
    }
}

/// What a figure is, with its unit as it is shown.
pub(crate) fn figure_name(figure: Figure, unit: &str) -> String {
    let units = plural(unit);
    match figure {
        Figure::Rate => format!("{units} a second"),
        Figure::CpuPerThousand => format!("CPU seconds for 1,000 {units}"),
        Figure::LoadCpuPerThousand => format!("CPU seconds of the load for 1,000 {units}"),
        Figure::MachineCpuPerThousand => format!("CPU seconds of the machine for 1,000 {units}"),
        Figure::ResidentBytes => "memory, MB".to_owned(),
    }
}

/// By what a figure is multiplied to be shown in the unit of its name.
pub(crate) fn shown_scale(figure: Figure) -> f64 {
    if figure == Figure::ResidentBytes { 1e-6 } else { 1.0 }
}

/// A case, as "connections 400"; empty if nothing is varied.
pub(crate) fn case_text(file: &ResultFile, label: &str) -> String {
    match &file.case_name {
        Some(name) if !label.is_empty() => format!("{name} {label}"),
        _ => label.to_owned(),
    }
}

/// Both systems of a comparison, with the case where it differs: "Mailrace / Postfix".
pub(crate) fn systems_compared(file: &ResultFile, comparison: &Comparison) -> String {
    let Comparison { over, under, case, under_case, .. } = comparison;
    match under_case {
        None => format!("{over} / {under}"),
        Some(under_case) => {
            format!("{over} ({}) / {under} ({})", case_text(file, case), case_text(file, under_case))
        }
    }
}

/// With a capital letter at the start.
pub(crate) fn sentence_case(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// What limited a run, in a word.
pub(crate) fn limit_name(limit: Limit) -> &'static str {
    match limit {
        Limit::Processor => "processors",
        Limit::Thread => "one thread",
        Limit::Disk => "disk",
        Limit::Network => "network",
        Limit::Load => "load",
        Limit::Waiting => "waiting",
    }
}

/// What limited most of the runs of a system, and in how many of those of which it is known, if not in all. If several
/// did as often, the first in the order in which they are shown. None if nothing is known.
pub(crate) fn usual_limit(case: &Case, system: &str) -> Option<String> {
    let limits: Vec<Limit> = case.runs(system).filter_map(|run| run.limit).collect();
    let count = |limit: Limit| limits.iter().filter(|other| **other == limit).count();
    // Of equal ones the last counts.
    let most = Limit::ALL.into_iter().rev().max_by_key(|limit| count(*limit))?;
    match count(most) {
        0 => None,
        all if all == limits.len() => Some(limit_name(most).to_owned()),
        part => Some(format!("{} ({part} of {})", limit_name(most), limits.len())),
    }
}

impl Case {
    /// The runs of a system, in the order of the rounds.
    pub(crate) fn runs<'a>(&'a self, system: &'a str) -> impl Iterator<Item = &'a Run> {
        self.rounds.iter().filter_map(move |round| round.get(system))
    }

    /// A figure of every run of a system. Runs without it, or with one that is not finite, are left out.
    pub(crate) fn figures(&self, system: &str, figure: Figure) -> Vec<f64> {
        self.runs(system).filter_map(|run| run.figure(figure)).filter(|value| value.is_finite()).collect()
    }
}

impl ResultFile {
    /// The systems in their order, then those that only runs name, by name.
    pub(crate) fn system_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        let listed = self.systems.iter().map(|system| system.name.as_str());
        let mut found: Vec<&str> = self
            .cases
            .iter()
            .flat_map(|case| &case.rounds)
            .flat_map(|round| round.keys().map(String::as_str))
            .collect();
        found.sort_unstable();
        for name in listed.chain(found) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_limit_is_the_most_frequent_and_of_equal_ones_the_first() {
        let usual = |limits: &[Option<Limit>]| {
            let round = |limit: &Option<Limit>| [("a".to_owned(), Run { limit: *limit, ..Run::default() })].into();
            let rounds = limits.iter().map(round).collect();
            usual_limit(&Case { label: String::new(), value: None, rounds }, "a")
        };
        let [disk, load] = [Some(Limit::Disk), Some(Limit::Load)];
        assert_eq!(usual(&[disk, disk]).unwrap(), "disk");
        assert_eq!(usual(&[load, disk, disk, None]).unwrap(), "disk (2 of 3)");
        assert_eq!(usual(&[load, disk, disk, load]).unwrap(), "disk (2 of 4)");
        assert_eq!(usual(&[None, None]), None);
    }

    #[test]
    fn units_have_plurals() {
        let plurals = ["message", "query", "day", "batch", "mailbox", "MB"].map(plural);
        assert_eq!(plurals, ["messages", "queries", "days", "batches", "mailboxes", "MB"]);
    }
}
