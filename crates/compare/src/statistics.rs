//! Medians, and intervals that hold the true median with 95 % confidence; ratios of rounds, and what
//! they decide.
//!
//! Runs are paired: only ratios within one round mean something, since the machine drifts. An interval for one check
//! is not one for many: [`InterimChecks`] says which a measurement needs, and it is decided and published by the same one.
//! Nothing here draws random numbers, so the same figures always give the same interval.

use crate::result::{Case, Comparison, Figure, Run};
use crate::sequential;

/// The chance that the true median is outside an interval is at most this.
const CHANCE_OUTSIDE_MAX: f64 = 0.05;

/// The median; None without values.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// The two values between which the true median lies with 95 % confidence, from the order of the values
/// (binomial distribution); None with fewer than six, which cannot say so.
#[must_use]
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let sorted = sorted(values);
    let rank = interval_rank(sorted.len());
    (rank > 0).then(|| (sorted[rank - 1], sorted[sorted.len() - rank]))
}

/// How far from both ends the interval's ends are, from 1; 0 with too few values.
fn interval_rank(count: usize) -> usize {
    let mut chance_of_rank = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut chance_outside = 0.0;
    for rank in 0..count / 2 {
        chance_outside += 2.0 * chance_of_rank;
        if chance_outside > CHANCE_OUTSIDE_MAX {
            return rank;
        }
        chance_of_rank *= (count - rank) as f64 / (rank + 1) as f64;
    }
    count / 2
}

/// How often the intervals of a measurement may end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterimChecks {
    /// The number of rounds is fixed, and the intervals are computed once.
    Never,
    /// After every round. Each check is another chance for noise, so the intervals are wider.
    AfterEveryRound,
}

impl InterimChecks {
    /// The interval that holds the true median with 95 % confidence, at all checks together.
    #[must_use]
    pub fn interval(self, values: &[f64]) -> Option<(f64, f64)> {
        match self {
            InterimChecks::Never => median_interval(values),
            InterimChecks::AfterEveryRound => sequential::median_interval(values, CHANCE_OUTSIDE_MAX),
        }
    }

    /// The fewest values that have an interval.
    #[must_use]
    pub fn values_min(self) -> u32 {
        match self {
            InterimChecks::Never => 6,
            InterimChecks::AfterEveryRound => 8,
        }
    }
}

/// A ratio to compute, and what is aimed at.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedRatio {
    /// What is compared.
    pub figure: Figure,
    /// The system in the numerator.
    pub over: String,
    /// The system in the denominator; the same one to compare two cases.
    pub under: String,
    /// The label of the case; empty if nothing is varied.
    pub case: String,
    /// The label of the case of the denominator, if it is another one.
    pub under_case: Option<String>,
    /// The least ratio that is aimed at.
    pub at_least: Option<f64>,
    /// The greatest ratio that is aimed at.
    pub at_most: Option<f64>,
}

impl WantedRatio {
    /// The comparison over all rounds that have both runs; None if there is none, or if a figure is
    /// not known.
    #[must_use]
    pub fn compare(&self, cases: &[Case], interim_checks: InterimChecks) -> Option<Comparison> {
        let ratios = self.ratios(cases);
        let ratio = median(&ratios)?;
        Some(Comparison {
            figure: self.figure,
            over: self.over.clone(),
            under: self.under.clone(),
            case: self.case.clone(),
            under_case: self.under_case.clone(),
            ratio,
            interval: interim_checks.interval(&ratios),
            aim: self.aim(),
            is_met: self.aim().map(|_| self.is_met_by(ratio)),
        })
    }

    /// Whether more rounds cannot be expected to change the answer: the interval is on one side of the
    /// aim or, without one, does not contain 1, or lies within `margin` of it (0.02 is 2 %); or a figure is not known
    /// of these systems. Asking this after every
    /// round is what [`InterimChecks::AfterEveryRound`] is for.
    #[must_use]
    pub fn is_decided(&self, cases: &[Case], margin: f64) -> bool {
        let ratios = self.ratios(cases);
        if ratios.is_empty() {
            return true;
        }
        let Some((low, high)) = InterimChecks::AfterEveryRound.interval(&ratios) else { return false };
        match self.aim() {
            Some(_) => self.is_met_by(low) == self.is_met_by(high) && !self.is_aim_within(low, high),
            None => low > 1.0 || high < 1.0 || (low >= 1.0 - margin && high <= 1.0 + margin),
        }
    }

    /// The ratios of the rounds that have both runs.
    fn ratios(&self, cases: &[Case]) -> Vec<f64> {
        let case_of = |label: &str| cases.iter().find(|case| case.label == label);
        let over = case_of(&self.case);
        let under = self.under_case.as_deref().map_or(over, case_of);
        let (Some(over), Some(under)) = (over, under) else { return Vec::new() };
        let figure = |run: Option<&Run>| run?.figure(self.figure);
        let rounds = over.rounds.iter().zip(&under.rounds);
        let pairs = rounds.filter_map(|(a, b)| Some((figure(a.get(&self.over))?, figure(b.get(&self.under))?)));
        pairs.map(|(over, under)| over / under).filter(|ratio| ratio.is_finite()).collect()
    }

    fn aim(&self) -> Option<String> {
        let least = self.at_least.map(|least| format!("at least {least}"));
        let most = self.at_most.map(|most| format!("at most {most}"));
        let bounds: Vec<String> = least.into_iter().chain(most).collect();
        (!bounds.is_empty()).then(|| bounds.join(" and "))
    }

    fn is_met_by(&self, ratio: f64) -> bool {
        self.at_least.is_none_or(|least| ratio >= least) && self.at_most.is_none_or(|most| ratio <= most)
    }

    /// Whether a bound is between these: both ends may miss an aim that the middle meets.
    fn is_aim_within(&self, low: f64, high: f64) -> bool {
        self.at_least.into_iter().chain(self.at_most).any(|bound| low < bound && bound < high)
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_value_or_the_mean_of_two() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    /// Rounds of the systems `a` and `b`, whose rates are the ratio and 1.
    fn case(label: &str, ratios: &[f64]) -> Case {
        let run = |rate: f64| Run { count: 1000, seconds: 1000.0 / rate, cpu_seconds: Some(1.0), ..Run::default() };
        let round = |ratio: &f64| [("a".to_owned(), run(*ratio)), ("b".to_owned(), run(1.0))].into();
        Case { label: label.to_owned(), value: None, rounds: ratios.iter().map(round).collect() }
    }

    fn wanted(at_least: Option<f64>, at_most: Option<f64>) -> WantedRatio {
        let [over, under, case] = ["a", "b", ""].map(str::to_owned);
        WantedRatio { figure: Figure::Rate, over, under, case, under_case: None, at_least, at_most }
    }

    #[test]
    fn a_comparison_has_the_median_ratio_of_the_rounds_and_whether_it_is_as_wanted() {
        let cases = [case("", &[2.0, 8.0, 4.0])];
        let found = wanted(Some(4.0), Some(5.0)).compare(&cases, InterimChecks::Never).unwrap();
        assert!((found.ratio - 4.0).abs() < 1e-9 && found.interval.is_none(), "{found:?}");
        assert_eq!((found.aim.as_deref(), found.is_met), (Some("at least 4 and at most 5"), Some(true)));
        assert_eq!(wanted(Some(4.5), None).compare(&cases, InterimChecks::Never).unwrap().is_met, Some(false));
        assert_eq!(wanted(None, None).compare(&cases, InterimChecks::Never).unwrap().is_met, None);
        let unknown = WantedRatio { figure: Figure::ResidentBytes, ..wanted(None, None) };
        assert_eq!(unknown.compare(&cases, InterimChecks::Never), None);
    }

    #[test]
    fn two_cases_of_one_system_are_compared_round_by_round() {
        let cases = [case("1", &[2.0, 3.0, 4.0]), case("2", &[1.0, 1.0, 1.0])];
        let of_a = || "a".to_owned();
        let wanted = WantedRatio {
            over: of_a(),
            under: of_a(),
            case: "1".to_owned(),
            under_case: Some("2".to_owned()),
            ..wanted(None, None)
        };
        assert!((wanted.compare(&cases, InterimChecks::Never).unwrap().ratio - 3.0).abs() < 1e-9);
        assert_eq!(WantedRatio { case: "3".to_owned(), ..wanted }.compare(&cases, InterimChecks::Never), None);
    }

    #[test]
    fn an_interval_decides_on_one_side_of_an_aim_or_clear_of_or_close_to_1() {
        let eight = |low: f64, high: f64| [case("", &[low, high, low, high, low, high, low, high])];
        let decided = |least, most, low, high| wanted(least, most).is_decided(&eight(low, high), 0.02);
        assert!(decided(None, None, 1.1, 1.5) && decided(None, None, 0.99, 1.01));
        assert!(!decided(None, None, 0.9, 1.01));
        assert!(decided(Some(1.2), None, 1.3, 1.5) && decided(Some(1.2), None, 1.0, 1.1));
        assert!(!decided(Some(1.2), None, 1.1, 1.3));
        assert!(!decided(Some(1.2), Some(1.3), 1.1, 1.4), "both ends miss, and the middle does not");
        assert!(!wanted(None, None).is_decided(&[case("", &[2.0; 7])], 0.02), "seven rounds have no interval");
        let unknown = WantedRatio { figure: Figure::ResidentBytes, ..wanted(None, None) };
        assert!(unknown.is_decided(&eight(0.5, 2.0), 0.02), "no round can make it known");
    }

    /// The interval for one check excludes a true median in one of eight measurements that may go on until it does.
    #[test]
    fn a_measurement_that_ends_when_an_interval_decides_is_wrong_in_5_percent_at_most() {
        const ROUNDS: usize = 60;
        assert!(chance_of_excluding_the_median(InterimChecks::AfterEveryRound, ROUNDS) <= 0.05);
        assert!(chance_of_excluding_the_median(InterimChecks::Never, ROUNDS) > 0.15);
    }

    #[test]
    fn what_is_published_is_what_was_decided_by() {
        let cases = [case("", &[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.5])];
        let published = wanted(None, None).compare(&cases, InterimChecks::AfterEveryRound).unwrap();
        assert_eq!(published.interval, Some((0.5, 2.0)));
        assert!(!wanted(None, None).is_decided(&cases, 0.02));
        let least = |interim_checks: InterimChecks| interim_checks.values_min() as usize;
        for interim_checks in [InterimChecks::Never, InterimChecks::AfterEveryRound] {
            assert_eq!(interim_checks.interval(&vec![1.0; least(interim_checks) - 1]), None);
            assert!(interim_checks.interval(&vec![1.0; least(interim_checks)]).is_some());
        }
    }

    /// Exactly: `chances[above]` is the chance of so many ratios above a true median of 1, without an interval that
    /// excluded it.
    fn chance_of_excluding_the_median(interim_checks: InterimChecks, rounds: usize) -> f64 {
        let mut chances = vec![1.0];
        let mut excluded = 0.0;
        for round in 1..=rounds {
            let mut next = vec![0.0; round + 1];
            for (above, chance) in chances.iter().enumerate() {
                next[above] += chance / 2.0;
                next[above + 1] += chance / 2.0;
            }
            for (above, chance) in next.iter_mut().enumerate() {
                let ratios = [vec![0.5; round - above], vec![2.0; above]].concat();
                if interim_checks.interval(&ratios).is_some_and(|(low, high)| low > 1.0 || high < 1.0) {
                    excluded += std::mem::take(chance);
                }
            }
            chances = next;
        }
        excluded
    }

    #[test]
    fn five_values_give_no_interval_and_six_give_their_range() {
        assert_eq!(median_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]), None);
        assert_eq!(median_interval(&[6.0, 1.0, 2.0, 3.0, 4.0, 5.0]), Some((1.0, 6.0)));
    }

    #[test]
    fn fifteen_values_give_the_fourth_and_the_twelfth() {
        let values: Vec<f64> = (1..=15).map(f64::from).collect();
        assert_eq!(median_interval(&values), Some((4.0, 12.0)));
    }
}
