//! Whether other values of a knob are better or worse than its present one.
//!
//! A round runs the present value, each other value, and the present value again, in an order that the next round
//! reverses. Only ratios within one round count, since machines drift. The present value against itself is the
//! negative control: if it shows an effect, so could anything, and nothing else is to be believed.
//!
//! After each round the interval of each ratio is judged ([`EffectVerdict`]); a value that is decided is not run
//! again. A value with which runs fail is decided too, as long as those with the present value succeed. The interval allows
//! looking after every round ([`compare::sequential`]). With several values, each gets its share of the chance of error,
//! so at most one measurement in twenty sees an effect that is not there.

mod answer;
pub(crate) mod report;
pub(crate) mod result_file;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use compare::result::{Figure, Run};
use compare::sequential::median_interval;
use compare::statistics::median;

use crate::trial::{Deadline, Trial, TrialError, Watch};

/// The chance that a measurement sees an effect that is not there.
const CHANCE_OF_ERROR: f64 = 0.05;
/// A value with which this many runs failed is decided; one failure may have another cause.
const FAILURES_MIN: usize = 2;

/// What to measure, and when to end.
#[derive(Clone, Debug)]
pub struct MeasurePlan {
    /// The value that others are compared with.
    pub before: String,
    /// The other values; at least one.
    pub values: Vec<String>,
    /// What is compared: the rate, of which more is better, or another figure, of which less is better.
    pub figure: Figure,
    /// The smallest effect that matters: with 0.03, "no effect" is an interval from 0.97 to 1.03 or smaller.
    pub effect_min: f64,
    /// Asks only whether a value gains this much, 0.05 for 5 %, and not whether it differs; None: whether it differs.
    pub gain_min: Option<f64>,
    /// The most rounds.
    pub rounds_max: usize,
    /// Ends before a round that would probably end later.
    pub time_max: Duration,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The plan.
    pub plan: MeasurePlan,
    /// All rounds.
    pub rounds: Vec<MeasureRound>,
    /// One for each value of the plan.
    pub verdicts: Vec<EffectVerdict>,
    /// The present value against itself.
    pub control: EffectVerdict,
    /// Why it ended.
    pub end: MeasureEnd,
}

/// One round.
#[derive(Clone, Debug)]
pub struct MeasureRound {
    /// The present value.
    pub before: Run,
    /// One for each value of the plan; None if it was decided, or failed.
    pub after: Vec<Option<Run>>,
    /// One for each value of the plan: what happened, if its run failed.
    pub failures: Vec<Option<String>>,
    /// The present value again.
    pub before_again: Run,
}

/// What a value does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EffectVerdict {
    /// Better than before.
    Better(Effect),
    /// Worse than before.
    Worse(Effect),
    /// The interval is within the smallest effect that matters.
    NoEffect(Effect),
    /// The plan asks whether it gains that much: it gains less, or is worse.
    NoGain(Effect),
    /// The server does not start with it, or refuses or loses what the load sends, which it does not do before.
    Fails,
    /// Neither is sure. None before the first round.
    Undecided(Option<Effect>),
}

/// A ratio to the value before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// The median of the ratios of the rounds.
    pub ratio: f64,
    /// What holds the true median with 95 %, or more if several values share the chance of error; None with too few
    /// rounds.
    pub interval: Option<(f64, f64)>,
}

/// Why a measurement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureEnd {
    /// Every value is decided.
    Decided,
    /// The negative control shows an effect.
    ControlFailed,
    /// The plan's rounds are over.
    RoundsOver,
    /// The plan's time is over.
    TimeOver,
}

/// One run of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Before,
    After(usize),
    BeforeAgain,
}

/// Measures until every value is decided, or a limit of the plan is reached.
///
/// # Errors
///
/// The first one of a run with the present value. What was measured until then is lost.
pub fn measure(plan: MeasurePlan, trial: &mut dyn Trial, watch: &mut dyn Watch) -> Result<Measurement, TrialError> {
    let mut deadline = Deadline::new(plan.time_max);
    let mut measurement = Measurement::new(plan);
    loop {
        let has_time = deadline.allows_another(watch.elapsed());
        if let Some(end) = measurement.find_end(has_time) {
            return Ok(Measurement { end, ..measurement });
        }
        let round = measurement.run_round(trial, watch)?;
        measurement.add(round);
        deadline.end(watch.elapsed());
    }
}

impl Measurement {
    fn new(plan: MeasurePlan) -> Measurement {
        let verdicts = vec![EffectVerdict::Undecided(None); plan.values.len()];
        let control = EffectVerdict::Undecided(None);
        Measurement { plan, rounds: Vec::new(), verdicts, control, end: MeasureEnd::Decided }
    }

    fn find_end(&self, has_time: bool) -> Option<MeasureEnd> {
        if !self.is_trusted() {
            return Some(MeasureEnd::ControlFailed);
        }
        match self.verdicts.iter().any(EffectVerdict::is_undecided) {
            false => Some(MeasureEnd::Decided),
            true if self.rounds.len() >= self.plan.rounds_max => Some(MeasureEnd::RoundsOver),
            true => (!has_time).then_some(MeasureEnd::TimeOver),
        }
    }

    fn run_round(&self, trial: &mut dyn Trial, watch: &mut dyn Watch) -> Result<MeasureRound, TrialError> {
        let (mut before, mut before_again) = (None, None);
        let mut after = vec![None; self.plan.values.len()];
        let mut failures = vec![None; self.plan.values.len()];
        for slot in self.next_slots() {
            watch.show(&|| self.progress(slot));
            match (slot, trial.run(self.value(slot))) {
                (Slot::Before, run) => before = Some(run?),
                (Slot::BeforeAgain, run) => before_again = Some(run?),
                (Slot::After(index), Err(TrialError::Failed(text))) => failures[index] = Some(text),
                (Slot::After(index), run) => after[index] = Some(run?),
            }
        }
        let both = "each round has a run of the value before and one of the control";
        Ok(MeasureRound { before: before.expect(both), after, failures, before_again: before_again.expect(both) })
    }

    /// The order of the next round.
    fn next_slots(&self) -> Vec<Slot> {
        let undecided = (0..self.verdicts.len()).filter(|index| self.verdicts[*index].is_undecided());
        let mut slots = vec![Slot::Before];
        slots.extend(undecided.map(Slot::After));
        slots.push(Slot::BeforeAgain);
        if self.rounds.len() % 2 == 1 {
            slots.reverse();
        }
        slots
    }

    fn value(&self, slot: Slot) -> &str {
        match slot {
            Slot::Before | Slot::BeforeAgain => &self.plan.before,
            Slot::After(index) => &self.plan.values[index],
        }
    }

    fn add(&mut self, round: MeasureRound) {
        self.rounds.push(round);
        let chance = CHANCE_OF_ERROR / self.plan.values.len() as f64;
        let verdict = |index| match self.failures(index).count() >= FAILURES_MIN {
            true => EffectVerdict::Fails,
            false => judge(&self.ratios(index), &self.plan, self.plan.gain_min, chance),
        };
        self.verdicts = (0..self.plan.values.len()).map(verdict).collect();
        let control = self.rounds.iter().filter_map(|round| self.ratio(&round.before_again, &round.before));
        self.control = judge(&control.collect::<Vec<_>>(), &self.plan, None, CHANCE_OF_ERROR);
    }

    /// Whether a verdict may be believed: the negative control shows nothing.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        !matches!(self.control, EffectVerdict::Better(_) | EffectVerdict::Worse(_))
    }

    /// The ratios of a value of the plan, by its index.
    fn ratios(&self, index: usize) -> Vec<f64> {
        let ratio = |round: &MeasureRound| self.ratio(round.after[index].as_ref()?, &round.before);
        self.rounds.iter().filter_map(ratio).collect()
    }

    /// What happened in the runs of a value that failed.
    fn failures(&self, index: usize) -> impl Iterator<Item = &str> {
        self.rounds.iter().filter_map(move |round| round.failures[index].as_deref())
    }

    /// None if a run has no such figure.
    fn ratio(&self, over: &Run, under: &Run) -> Option<f64> {
        let ratio = over.figure(self.plan.figure)? / under.figure(self.plan.figure)?;
        (ratio.is_finite() && ratio > 0.0).then_some(ratio)
    }

    /// What runs, what is left, and the ratios so far.
    fn progress(&self, slot: Slot) -> String {
        let round = format!("round {} of at most {}", self.rounds.len() + 1, self.plan.rounds_max);
        let runs = match slot {
            Slot::After(index) => format!("with {}", self.plan.values[index]),
            Slot::Before | Slot::BeforeAgain => format!("with {} (before)", self.plan.before),
        };
        let so_far = self.plan.values.iter().zip(&self.verdicts).filter_map(|(value, verdict)| {
            let effect = verdict.effect()?;
            Some(format!("{value}: {effect}"))
        });
        std::iter::once(format!("{round}, {runs}")).chain(so_far).collect::<Vec<_>>().join("; ")
    }
}

/// With `gain_min`, whether the value gains this much; otherwise whether it differs.
fn judge(ratios: &[f64], plan: &MeasurePlan, gain_min: Option<f64>, chance_outside: f64) -> EffectVerdict {
    let Some(ratio) = median(ratios) else { return EffectVerdict::Undecided(None) };
    let interval = median_interval(ratios, chance_outside);
    let effect = Effect { ratio, interval };
    let Some((low, high)) = interval else { return EffectVerdict::Undecided(Some(effect)) };
    let more_is_better = plan.figure == Figure::Rate;
    if let Some(gain_min) = gain_min {
        let (least, most) = if more_is_better { (low, high) } else { (1.0 / high, 1.0 / low) };
        return match (least > 1.0 + gain_min, most < 1.0 + gain_min) {
            (true, _) => EffectVerdict::Better(effect),
            (_, true) => EffectVerdict::NoGain(effect),
            _ => EffectVerdict::Undecided(Some(effect)),
        };
    }
    if low > 1.0 || high < 1.0 {
        let is_better = (low > 1.0) == more_is_better;
        return if is_better { EffectVerdict::Better(effect) } else { EffectVerdict::Worse(effect) };
    }
    match low >= 1.0 - plan.effect_min && high <= 1.0 + plan.effect_min {
        true => EffectVerdict::NoEffect(effect),
        false => EffectVerdict::Undecided(Some(effect)),
    }
}

impl EffectVerdict {
    /// Whether more rounds are needed.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        matches!(self, EffectVerdict::Undecided(_))
    }

    /// The ratio; None before the first round.
    #[must_use]
    pub fn effect(&self) -> Option<Effect> {
        match self {
            EffectVerdict::Better(effect)
            | EffectVerdict::Worse(effect)
            | EffectVerdict::NoEffect(effect)
            | EffectVerdict::NoGain(effect) => Some(*effect),
            EffectVerdict::Undecided(effect) => *effect,
            EffectVerdict::Fails => None,
        }
    }

    /// The word in JSON.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            EffectVerdict::Better(_) => "better",
            EffectVerdict::Worse(_) => "worse",
            EffectVerdict::NoEffect(_) => "no effect",
            EffectVerdict::NoGain(_) => "no gain",
            EffectVerdict::Fails => "fails",
            EffectVerdict::Undecided(_) => "undecided",
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.ratio)?;
        self.interval.map_or(Ok(()), |(low, high)| write!(f, " ({low:.3} to {high:.3})"))
    }
}
