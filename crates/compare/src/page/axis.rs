//! Axes: from figures to places, with round ticks.
//!
//! Figures must be drawable ([`is_drawable`]); then every place is a finite number.

use crate::numbers::{exponent, short, tick};

/// Beyond this, sums of figures could overflow.
const SIZE_MAX: f64 = 1e100;
/// Below this, quotients of figures could overflow; such figures are drawn as 0.
const SIZE_MIN: f64 = 1e-100;
/// So many ticks at the most, besides the first.
const TICKS_MAX: usize = 5;
/// Ticks within a power of ten.
const ROUND: [f64; 3] = [1.0, 2.0, 5.0];

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    /// Figures with their labels, in rising order.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From 0 to a round number that is not below any figure, or, if one is negative, from a round number below it.
    pub(super) fn from_zero(figures: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = bounds(figures).unwrap_or((0.0, 1.0));
        Axis::rounded(low.min(0.0), high.max(0.0))
    }

    /// Between round numbers around the figures, by powers if these lie closer to one another at the low end.
    pub(super) fn around(figures: &[f64]) -> Axis {
        let (low, high) = bounds(figures.iter().copied()).unwrap_or((0.0, 1.0));
        if is_better_logarithmic(figures) { Axis::powers(low, high) } else { Axis::rounded(low, high) }
    }

    /// With powers, around the figures, which must be positive, and 1.
    pub(super) fn around_one(figures: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = bounds(figures.filter(|figure| *figure >= SIZE_MIN)).unwrap_or((1.0, 1.0));
        Axis::powers(low.min(1.0), high.max(1.0))
    }

    /// With these ticks, in rising order, from the first to the last one.
    pub(super) fn through(ticks: Vec<(f64, String)>) -> Axis {
        let figures: Vec<f64> = ticks.iter().map(|tick| tick.0).collect();
        let (low, high) = bounds(figures.iter().copied()).unwrap_or((0.0, 1.0));
        Axis { low, high, is_logarithmic: is_better_logarithmic(&figures), ticks }
    }

    /// Where a figure is on the axis, from 0 to 1; figures beyond its ends are at the ends.
    pub(super) fn place(&self, figure: f64) -> f64 {
        let (low, high, figure) = match self.is_logarithmic {
            true => (self.low.log10(), self.high.log10(), figure.max(SIZE_MIN).log10()),
            false => (self.low, self.high, figure),
        };
        if high > low { ((figure - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 }
    }

    fn rounded(low: f64, high: f64) -> Axis {
        let high = if high - low > high.abs().max(low.abs()) * 1e-9 { high } else { low + low.abs().max(1.0) };
        let step = round_step((high - low) / TICKS_MAX as f64);
        let first = (low / step).floor();
        let count = ((high / step).ceil() - first).clamp(1.0, TICKS_MAX as f64 + 2.0) as usize;
        let figures = (0..=count).map(|index| (first + index as f64) * step);
        let ticks: Vec<(f64, String)> = figures.map(|figure| (figure, tick(figure, step))).collect();
        Axis { low: first * step, high: (first + count as f64) * step, is_logarithmic: false, ticks }
    }

    fn powers(low: f64, high: f64) -> Axis {
        let decades = exponent(low) - 1..=exponent(high) + 1;
        let round: Vec<f64> = decades.flat_map(|decade| ROUND.map(|factor| factor * 10_f64.powi(decade))).collect();
        let first = round.iter().rposition(|figure| *figure <= low).unwrap_or(0);
        let last = round.iter().position(|figure| *figure >= high).unwrap_or(round.len() - 1).max(first + 1);
        let shown: Vec<f64> = round[first..=last].to_vec();
        // Each third is a power of ten.
        let every = match shown.len() {
            0..=6 => 1,
            count => 3 * count.div_ceil(3 * TICKS_MAX),
        };
        let is_tick = |index: &usize| every == 1 || (first + index).is_multiple_of(every);
        let ticks = (0..shown.len()).filter(is_tick).map(|index| (shown[index], power_label(shown[index]))).collect();
        Axis { low: shown[0], high: shown[shown.len() - 1], is_logarithmic: true, ticks }
    }
}

/// Whether a figure can be drawn: it is finite, and not so large that sums overflow.
pub(super) fn is_drawable(figure: f64) -> bool {
    figure.is_finite() && figure.abs() <= SIZE_MAX
}

/// The least and the greatest figure; None without any.
fn bounds(figures: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let sizeable = figures.map(|figure| if figure.abs() < SIZE_MIN { 0.0 } else { figure });
    sizeable.fold(None, |found, figure| match found {
        None => Some((figure, figure)),
        Some((low, high)) => Some((figure.min(low), figure.max(high))),
    })
}

/// Whether half of the figures would share a fifth of a plain axis: 10, 100, 1,000.
fn is_better_logarithmic(figures: &[f64]) -> bool {
    let mut distinct = figures.to_vec();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    match (distinct.first(), distinct.last()) {
        (Some(low), Some(high)) => *low >= SIZE_MIN && distinct[distinct.len() / 2] < high / 5.0,
        _ => false,
    }
}

/// The least of 1, 2, 5, 10, 20, ... and their parts that is not below this.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powi(exponent(least));
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(steps[3])
}

fn power_label(figure: f64) -> String {
    if (1e-4..1e12).contains(&figure) { tick(figure, figure) } else { short(figure) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> String {
        axis.ticks.iter().map(|tick| tick.1.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round() {
        let from_zero = |figure| labels(&Axis::from_zero([figure].into_iter()));
        assert_eq!(from_zero(21_688.0), "0 5,000 10,000 15,000 20,000 25,000");
        assert_eq!(from_zero(1.37), "0 0.5 1.0 1.5");
        assert_eq!(from_zero(0.045), "0 0.01 0.02 0.03 0.04 0.05");
        assert_eq!(from_zero(0.0), "0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(from_zero(-3.0), "-3 -2 -1 0");
        assert_eq!(labels(&Axis::around(&[0.0, 30.0, 60.0, 300.0])), "0 100 200 300");
        assert_eq!(labels(&Axis::around(&[10.0, 100.0, 1000.0])), "10 100 1,000");
        assert_eq!(labels(&Axis::around_one([16.1, 0.045].into_iter())), "0.1 1 10");
        assert_eq!(labels(&Axis::around_one([1.5].into_iter())), "1 2");
    }

    #[test]
    fn places_are_between_the_ends() {
        let axis = Axis::through([10.0, 100.0, 1000.0].map(|figure| (figure, short(figure))).to_vec());
        assert_eq!([10.0, 100.0, 1000.0, 1e9].map(|figure| axis.place(figure)), [0.0, 0.5, 1.0, 1.0]);
        let axis = Axis::through(vec![(100.0, "100".to_owned()), (200.0, "200".to_owned())]);
        assert_eq!(axis.place(150.0), 0.5);
    }

    #[test]
    fn the_largest_and_the_smallest_figures_have_places() {
        let extremes = [SIZE_MAX, -SIZE_MAX, SIZE_MIN, 1e-300, 0.0, 5e-324, 1e99, 1e99 + 1e83];
        for low in extremes {
            for high in extremes {
                for axis in [
                    Axis::from_zero([low, high].into_iter()),
                    Axis::around(&[low, high]),
                    Axis::around_one([low, high].into_iter()),
                ] {
                    assert!((2..=TICKS_MAX + 3).contains(&axis.ticks.len()), "{axis:?}");
                    assert!([low, high].iter().all(|figure| axis.place(*figure).is_finite()), "{axis:?}");
                }
            }
        }
    }
}
