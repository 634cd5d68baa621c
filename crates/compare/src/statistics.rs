//! Medians, and intervals that hold the true median with 95 % confidence.
//!
//! Runs are paired: only ratios within one round mean something, since the machine drifts. Nothing here
//! draws random numbers, so the same figures always give the same interval.

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
