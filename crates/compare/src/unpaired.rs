//! The ratio of two sets of runs that were not made in the same rounds, and its interval.
//!
//! Both are those of Hodges and Lehmann, from the ordered ratios of every new run to every old one. The ratio is their
//! median. The interval inverts the test of Mann and Whitney: as many are cut off at both ends as 95 % confidence
//! allows, so it always holds the ratio. It assumes that both sets vary in the same way, and no distribution. Nothing
//! is random, so the same runs give the same interval.

use crate::statistics::median;

/// Further runs are left out, since the work grows with the cube.
const RUNS_MAX: usize = 200;
/// The chance that the true ratio is outside the interval is at most this.
const CHANCE_OUTSIDE_MAX: f64 = 0.05;

/// The ratio `new` / `old`; None without runs. Values must be positive and finite.
pub(crate) fn ratio(new: &[f64], old: &[f64]) -> Option<f64> {
    median(&ordered_ratios(first(new), first(old)))
}

/// The interval that holds the ratio `new` / `old` with 95 % confidence; None with so few runs that even all ratios
/// together do not reach 95 %: it takes four in each set, or three and five. Values must be positive and finite.
pub(crate) fn ratio_interval(new: &[f64], old: &[f64]) -> Option<(f64, f64)> {
    let (new, old) = (first(new), first(old));
    let cut = ratios_cut(new.len(), old.len())?;
    let ratios = ordered_ratios(new, old);
    Some((ratios[cut], ratios[ratios.len() - 1 - cut]))
}

fn first(runs: &[f64]) -> &[f64] {
    &runs[..runs.len().min(RUNS_MAX)]
}

fn ordered_ratios(new: &[f64], old: &[f64]) -> Vec<f64> {
    let mut ratios: Vec<f64> = new.iter().flat_map(|new| old.iter().map(move |old| new / old)).collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// How many ratios are cut off at each end; None if even none is too many.
fn ratios_cut(new: usize, old: usize) -> Option<usize> {
    let counts = arrangements(new, old);
    let all: f64 = counts.iter().sum();
    let mut chance_outside = 0.0;
    let allowed = counts.iter().take_while(|count| {
        chance_outside += 2.0 * *count / all;
        chance_outside <= CHANCE_OUTSIDE_MAX
    });
    // Ends beyond the statistic's value u are the ratios of rank u + 1 from both sides.
    allowed.count().checked_sub(1)
}

/// For each value of the statistic of Mann and Whitney, in how many orders of both sets it occurs: the coefficients
/// of the Gaussian binomial.
fn arrangements(new: usize, old: usize) -> Vec<f64> {
    let mut counts = vec![0.0; new * old + 1];
    counts[0] = 1.0;
    for number in 1..=new {
        for value in (number + old..counts.len()).rev() {
            counts[value] -= counts[value - number - old];
        }
        for value in number..counts.len() {
            counts[value] += counts[value - number];
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_counted() {
        assert_eq!(arrangements(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(arrangements(3, 5).iter().sum::<f64>(), 56.0);
    }

    #[test]
    fn as_many_ratios_are_cut_as_published_tables_say() {
        // Critical values of U, two-sided, 5 %.
        let table = [((4, 4), 0), ((5, 5), 2), ((6, 6), 5), ((5, 8), 6), ((10, 10), 23), ((20, 20), 127)];
        for ((new, old), critical) in table {
            assert_eq!(ratios_cut(new, old), Some(critical), "{new} and {old} runs");
        }
        assert_eq!(ratios_cut(3, 3), None);
        assert_eq!(ratios_cut(0, 9), None);
    }

    #[test]
    fn equal_sets_have_an_interval_around_one_and_twice_the_runs_one_around_two() {
        let old = [100.0, 104.0, 96.0, 101.0, 99.0];
        let (low, high) = ratio_interval(&old, &old).unwrap();
        assert!(low < 1.0 && high > 1.0, "{low} to {high}");
        let (low, high) = ratio_interval(&old.map(|value| value * 2.0), &old).unwrap();
        assert!(low > 1.9 && low < 2.0 && high > 2.0 && high < 2.2, "{low} to {high}");
    }

    /// The medians are 10 and 1, but only four of the nine ratios are 10 or more.
    #[test]
    fn the_ratio_is_the_median_of_all_ratios_and_inside_the_interval() {
        assert_eq!(ratio(&[8.0, 10.0, 16.0], &[1.0, 1.0, 2.0]), Some(8.0));
        assert_eq!(ratio(&[], &[1.0]), None);
        let (new, old) = ([3.0, 50.0, 60.0, 70.0], [1.0, 9.0, 10.0, 400.0]);
        let (low, high) = ratio_interval(&new, &old).unwrap();
        let middle = ratio(&new, &old).unwrap();
        assert!(low <= middle && middle <= high, "{low} to {high}: {middle}");
    }

    #[test]
    fn many_runs_take_no_longer_than_the_limit() {
        let many = vec![1.0; 100_000];
        assert_eq!(ratio_interval(&many, &many), Some((1.0, 1.0)));
    }
}
