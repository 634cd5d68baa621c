//! The smallest value of a parameter that gives nearly the best rate: the knee of its curve.
//!
//! 1. Climb: one run of the value in force, then of each value from the lowest on, each a step larger. It ends at the
//!    upper bound, or earlier if several steps in a row gained nothing and the value in force is no better, so a flat or
//!    falling curve costs few runs.
//! 2. Repeat: the same values again, downwards, then upwards, since machines drift.
//! 3. Refine: the value in the middle between the knee and the one below it, together with these, the best, the largest
//!    and the one in force, several times.
//! 4. Confirm: the knee, the best, the largest and the value in force, until there are enough pairs for intervals of
//!    their ratios.
//!
//! Every value of a pass is run once in it, so values are compared within passes. A value is recommended only if it beat
//! the one in force. The number of runs and the time are limited; what is known then is the result, and it says so.

pub(crate) mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use compare::result::{Figure, Run};
use compare::statistics::{median, median_interval};

use crate::trial::{Deadline, Trial, TrialError, Watch};

/// The passes over all values of the climb, the climb included.
const PASSES: usize = 3;
/// The values that are tried between the knee and the one below it.
const REFINEMENTS: usize = 2;
/// The passes for each of them.
const PASSES_OF_REFINEMENT: usize = 3;
/// Passes with both the knee and the largest value; with fewer, their ratio has no interval.
const PAIRS_MIN: usize = 6;
/// The climb ends after this many steps in a row without a gain.
const STEPS_WITHOUT_GAIN: usize = 3;

/// What to search, and when to end.
#[derive(Clone, Debug)]
pub struct SearchPlan {
    /// The lowest value; at least 1.
    pub low: u64,
    /// The highest value; at least `low`.
    pub high: u64,
    /// The value in force, which is run whether or not it is within these bounds; None if it is no number.
    pub in_force: Option<u64>,
    /// Each value of the climb is this many times the one before; more than 1.
    pub step: f64,
    /// A rate that is this much below the best is as good: 0.05 is 5 %.
    pub tolerance: f64,
    /// The most runs.
    pub runs_max: usize,
    /// Ends before a run that would probably end later.
    pub time_max: Duration,
}

/// A curve and its knee.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The plan.
    pub plan: SearchPlan,
    /// The values by size, with their runs by the number of the pass.
    pub points: BTreeMap<u64, BTreeMap<usize, Run>>,
    /// The number of passes.
    pub passes: usize,
    /// Why it ended.
    pub end: SearchEnd,
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchEnd {
    /// Everything was run.
    Complete,
    /// The plan's runs or its time were over.
    LimitReached,
}

/// What a curve looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Larger values than the knee gave no more.
    Saturated,
    /// The largest values gave clearly less than the best.
    Peaked,
    /// The lowest value gave as much as any other.
    Flat,
    /// Only the largest value gave the best rate: the knee may be above the bound.
    Rising,
}

/// The rate with one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateAt {
    /// The value.
    pub value: u64,
    /// The median of its runs.
    pub rate: f64,
    /// The interval of the median; None with fewer than six runs.
    pub interval: Option<(f64, f64)>,
    /// The number of runs.
    pub runs: usize,
}

/// Runs the system with different values until the knee of the rate is found, or a limit of the plan is reached.
///
/// # Errors
///
/// The first one of a run. What was measured until then is lost.
pub fn search(plan: SearchPlan, trial: &mut dyn Trial, watch: &mut dyn Watch) -> Result<Curve, TrialError> {
    let deadline = Deadline::new(plan.time_max);
    let curve = Curve { plan, points: BTreeMap::new(), passes: 0, end: SearchEnd::Complete };
    let mut searcher = Searcher { curve, deadline, runs: 0, trial, watch };
    searcher.climb()?;
    let climbed: Vec<u64> = searcher.curve.points.keys().copied().collect();
    for _ in 1..PASSES {
        searcher.pass(&climbed)?;
    }
    for _ in 0..REFINEMENTS {
        let Some(values) = searcher.curve.refinement() else { break };
        for _ in 0..PASSES_OF_REFINEMENT {
            searcher.pass(&values)?;
        }
    }
    while let Some(values) = searcher.curve.unconfirmed() {
        searcher.pass(&values)?;
    }
    Ok(searcher.curve)
}

struct Searcher<'a> {
    curve: Curve,
    deadline: Deadline,
    runs: usize,
    trial: &'a mut dyn Trial,
    watch: &'a mut dyn Watch,
}

impl Searcher<'_> {
    /// One run of each value, upwards, until nothing is gained and the value in force is no better.
    fn climb(&mut self) -> Result<(), TrialError> {
        let SearchPlan { in_force, tolerance, .. } = self.curve.plan;
        in_force.map_or(Ok(()), |value| self.run(value))?;
        let rate_in_force = self.curve.in_force().map_or(0.0, |point| point.rate);
        let mut rates = Vec::new();
        for value in self.curve.plan.values() {
            if in_force != Some(value) {
                self.run(value)?;
            }
            let Some(point) = self.curve.rate_at(value) else { break };
            rates.push(point.rate);
            if gains_nothing(&rates, tolerance) && rates.iter().any(|rate| *rate >= rate_in_force * (1.0 - tolerance)) {
                break;
            }
        }
        self.curve.passes += 1;
        Ok(())
    }

    /// One run of each value; every other pass is downwards.
    fn pass(&mut self, values: &[u64]) -> Result<(), TrialError> {
        if self.curve.end == SearchEnd::LimitReached {
            return Ok(());
        }
        let is_downwards = self.curve.passes % 2 == 1;
        let mut ordered = values.to_vec();
        ordered.sort_by_key(|value| if is_downwards { u64::MAX - value } else { *value });
        ordered.into_iter().try_for_each(|value| self.run(value))?;
        self.curve.passes += 1;
        Ok(())
    }

    /// One run, unless a limit is reached.
    fn run(&mut self, value: u64) -> Result<(), TrialError> {
        let has_time = self.deadline.allows_another(self.watch.elapsed());
        if !has_time || self.runs >= self.curve.plan.runs_max {
            self.curve.end = SearchEnd::LimitReached;
            return Ok(());
        }
        let (curve, number) = (&self.curve, self.runs + 1);
        self.watch.show(&|| curve.progress(number, value));
        let run = self.trial.run(&value.to_string())?;
        self.runs += 1;
        self.curve.points.entry(value).or_default().insert(self.curve.passes, run);
        self.deadline.end(self.watch.elapsed());
        Ok(())
    }
}

/// Whether none of the last steps was better than everything before them.
fn gains_nothing(rates: &[f64], tolerance: f64) -> bool {
    let Some(earlier) = rates.len().checked_sub(STEPS_WITHOUT_GAIN) else { return false };
    let (before, steps) = rates.split_at(earlier);
    let best = before.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    steps.iter().all(|rate| *rate <= best * (1.0 + tolerance))
}

impl SearchPlan {
    /// The values of the climb: from the lowest to the highest.
    fn values(&self) -> Vec<u64> {
        let mut values = vec![self.low];
        let mut next = self.low as f64;
        while let Some(&last) = values.last().filter(|last| **last < self.high) {
            next *= self.step;
            values.push((next.round() as u64).clamp(last + 1, self.high));
        }
        values
    }
}

impl Curve {
    /// The smallest value whose rate is as good as the best; None before the first run.
    #[must_use]
    pub fn knee(&self) -> Option<RateAt> {
        let enough = self.best()?.rate * (1.0 - self.plan.tolerance);
        self.rates().find(|point| point.rate >= enough)
    }

    /// The value with the best rate.
    #[must_use]
    pub fn best(&self) -> Option<RateAt> {
        self.rates().max_by(|one, other| one.rate.total_cmp(&other.rate))
    }

    /// The value in force.
    #[must_use]
    pub fn in_force(&self) -> Option<RateAt> {
        self.rate_at(self.plan.in_force?)
    }

    /// The best of the values that are not in force.
    #[must_use]
    pub fn best_other(&self) -> Option<RateAt> {
        let others = self.rates().filter(|point| Some(point.value) != self.plan.in_force);
        others.max_by(|one, other| one.rate.total_cmp(&other.rate))
    }

    /// The value to set: the knee, or else the best, if it beat the one in force, which otherwise is to be kept.
    #[must_use]
    pub fn recommended(&self) -> Option<RateAt> {
        let Some(in_force) = self.in_force() else { return self.knee() };
        let beats = |point: &RateAt| {
            let interval = median_interval(&self.ratios(point.value, in_force.value));
            interval.is_some_and(|(low, _)| low > 1.0)
        };
        [self.knee(), self.best_other()].into_iter().flatten().find(beats).or(Some(in_force))
    }

    /// The largest value that was run.
    #[must_use]
    pub fn largest(&self) -> Option<RateAt> {
        self.rates().next_back()
    }

    /// All rates, by rising value.
    pub fn rates(&self) -> impl DoubleEndedIterator<Item = RateAt> {
        self.points.keys().filter_map(|value| self.rate_at(*value))
    }

    /// What it looks like; None before the first run.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        let (knee, best, largest) = (self.knee()?, self.best()?, self.largest()?);
        let falls = largest.rate < best.rate * (1.0 - self.plan.tolerance);
        Some(if falls {
            Shape::Peaked
        } else if knee.value == largest.value {
            Shape::Rising
        } else if knee.value == self.plan.low {
            Shape::Flat
        } else {
            Shape::Saturated
        })
    }

    /// The ratios of the rate of a value to that of another one, within each pass that ran both.
    pub(crate) fn ratios(&self, over: u64, under: u64) -> Vec<f64> {
        let (Some(over), Some(under)) = (self.points.get(&over), self.points.get(&under)) else { return Vec::new() };
        let pairs = over.iter().filter_map(|(pass, run)| Some((run, under.get(pass)?)));
        pairs.filter_map(|(over, under)| Some(over.figure(Figure::Rate)? / under.figure(Figure::Rate)?)).collect()
    }

    /// What runs, what is left, and the knee so far.
    fn progress(&self, number: usize, value: u64) -> String {
        let line = format!("run {number} of at most {}, with {value}", self.plan.runs_max);
        match self.knee() {
            Some(knee) => format!("{line}; so far {} gave {:.0} a second", knee.value, knee.rate),
            None => line,
        }
    }

    fn rate_at(&self, value: u64) -> Option<RateAt> {
        let runs = self.points.get(&value)?.values();
        let rates: Vec<f64> = runs.filter_map(|run| run.figure(Figure::Rate)).collect();
        Some(RateAt { value, rate: median(&rates)?, interval: median_interval(&rates), runs: rates.len() })
    }

    /// The values of the next refinement: the middle between the knee and the one below it, and what is compared. None
    /// if there is nothing between them.
    fn refinement(&self) -> Option<Vec<u64>> {
        let knee = self.knee()?.value;
        let below = *self.points.range(..knee).next_back()?.0;
        let middle = ((below as f64 * knee as f64).sqrt().round() as u64).max(below + 1);
        (middle < knee).then(|| distinct(self.compared().chain([below, middle]).collect()))
    }

    /// What is compared in the end, while there are too few pairs of it.
    fn unconfirmed(&self) -> Option<Vec<u64>> {
        let knee = self.knee()?.value;
        let in_force = self.plan.in_force.unwrap_or(knee);
        let pairs = [(self.largest()?.value, knee), (knee, in_force), (self.best_other()?.value, in_force)];
        let is_unconfirmed = pairs.iter().any(|(over, under)| self.ratios(*over, *under).len() < PAIRS_MIN);
        (is_unconfirmed && self.end == SearchEnd::Complete).then(|| distinct(self.compared().collect()))
    }

    /// The knee, the best values, the largest, and the one in force.
    fn compared(&self) -> impl Iterator<Item = u64> {
        let points = [self.knee(), self.best(), self.best_other(), self.largest(), self.in_force()];
        points.into_iter().flatten().map(|point| point.value)
    }
}

fn distinct(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    values.dedup();
    values
}
