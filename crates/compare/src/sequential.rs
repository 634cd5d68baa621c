//! An interval of a median that may be looked at after every value, as often as one likes.
//!
//! An interval for one check is wrong more often if a measurement goes on until it says something: every check is
//! another chance for noise. This one comes from a bet (a test martingale). Whoever bets on each ratio being below
//! a number that is the true median plays a fair game. With all shares of values below held equally likely, `k` of
//! `n` values below turn a stake of 1 into `2^n / ((n + 1) * C(n, k))`. A fair game reaches `1 / chance` with at most
//! that chance, over all checks together (Ville's inequality). So numbers at which the stake grows that much are
//! outside of the interval. Nothing is assumed of the noise, except that rounds are independent and the ratio is as
//! often above its median as below.

/// The interval that holds the true median at all checks together, except with this chance. None while no number
/// can be excluded: with 5 %, up to seven values.
#[must_use]
pub fn median_interval(values: &[f64], chance_outside: f64) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let excluded = excluded_ranks(sorted.len(), chance_outside)?;
    Some((sorted[excluded], sorted[sorted.len() - 1 - excluded]))
}

/// How many values at each end are outside of the interval; None if nothing can be excluded.
fn excluded_ranks(count: usize, chance_outside: f64) -> Option<usize> {
    let needed = -chance_outside.ln();
    // The logarithm of 2^n / ((n + 1) * C(n, k)), which falls as k rises to n / 2.
    let mut stake = count as f64 * std::f64::consts::LN_2 - ((count + 1) as f64).ln();
    let mut excluded = None;
    for below in 0..count.div_ceil(2) {
        if stake < needed {
            break;
        }
        excluded = Some(below);
        stake -= ((count - below) as f64 / (below + 1) as f64).ln();
    }
    excluded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_values_of_one_side_are_the_first_that_exclude_a_number() {
        let values: Vec<f64> = (1..=8).map(f64::from).collect();
        assert_eq!(median_interval(&values[..7], 0.05), None);
        assert_eq!(median_interval(&values, 0.05), Some((1.0, 8.0)));
        assert_eq!(median_interval(&values, 0.025), None);
        assert_eq!(median_interval(&[], 0.05), None);
    }

    #[test]
    fn one_value_of_the_other_side_needs_twelve_and_two_need_sixteen() {
        assert_eq!([excluded_ranks(11, 0.05), excluded_ranks(12, 0.05)], [Some(0), Some(1)]);
        assert_eq!([excluded_ranks(15, 0.05), excluded_ranks(16, 0.05)], [Some(1), Some(2)]);
    }

    #[test]
    fn with_many_values_the_interval_is_narrow_and_around_the_middle() {
        let values: Vec<f64> = (0..=1000).map(f64::from).collect();
        let (low, high) = median_interval(&values, 0.05).unwrap();
        assert!(low > 430.0 && high < 570.0 && low + high == 1000.0, "{low} to {high}");
    }
}
