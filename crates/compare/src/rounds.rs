//! Rounds: each runs everything that is compared once, in turns, so that drift of the machine affects
//! all of it. The order is reversed in every other round.

use crate::error::CompareError;
use crate::result::Run;
use crate::statistics::InterimChecks;

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundCount {
    /// After this many.
    Fixed(u32),
    /// When the intervals decide, with the first of them ([`RoundCount::least`]) at the earliest, and after this many
    /// at the latest.
    UntilDecided(u32),
}

impl RoundCount {
    /// The most rounds.
    #[must_use]
    pub fn most(self) -> u32 {
        match self {
            RoundCount::Fixed(count) | RoundCount::UntilDecided(count) => count,
        }
    }

    /// The fewest with which a ratio can have an interval.
    #[must_use]
    pub fn least(self) -> u32 {
        self.interim_checks().values_min()
    }

    /// How often the intervals may end it.
    #[must_use]
    pub fn interim_checks(self) -> InterimChecks {
        match self {
            RoundCount::Fixed(_) => InterimChecks::Never,
            RoundCount::UntilDecided(_) => InterimChecks::AfterEveryRound,
        }
    }

    fn is_enough(self, done: u32, is_decided: impl FnOnce() -> bool) -> bool {
        match self {
            RoundCount::Fixed(count) => done >= count,
            RoundCount::UntilDecided(most) => done >= most || (done >= self.least() && is_decided()),
        }
    }
}

/// What a measurement of several turns decides and does.
pub trait Rounds<T> {
    /// Runs one turn. `round` counts from 0.
    ///
    /// # Errors
    ///
    /// The run failed; then there is no result.
    fn run(&mut self, round: u32, turn: &T) -> Result<Run, CompareError>;

    /// Whether the intervals decide: each round has a run of each turn, in the order of the turns.
    fn is_decided(&mut self, rounds: &[Vec<Run>]) -> bool;

    /// A round has ended; these are all so far.
    fn round_ended(&mut self, _rounds: &[Vec<Run>]) {}

    /// Whether there is time for another round after these; at least one round always runs.
    fn has_time(&mut self, _rounds: &[Vec<Run>]) -> bool {
        true
    }
}

/// Runs all turns in rounds. In the result, each round has a run of each turn, in the order of `turns`.
///
/// # Errors
///
/// The first error of a run. If that is [`CompareError::TimeOver`], earlier rounds are the result.
pub fn run_rounds<T>(
    turns: &[T],
    count: RoundCount,
    measurement: &mut impl Rounds<T>,
) -> Result<Vec<Vec<Run>>, CompareError> {
    let mut rounds: Vec<Vec<Run>> = Vec::new();
    for round in 0..count.most() {
        let is_reversed = round % 2 == 1;
        let in_order: Box<dyn Iterator<Item = &T>> =
            if is_reversed { Box::new(turns.iter().rev()) } else { Box::new(turns.iter()) };
        let runs: Result<Vec<Run>, CompareError> = in_order.map(|turn| measurement.run(round, turn)).collect();
        let mut runs = match runs {
            Err(CompareError::TimeOver) if round > 0 => break,
            runs => runs?,
        };
        if is_reversed {
            runs.reverse();
        }
        rounds.push(runs);
        measurement.round_ended(&rounds);
        if !measurement.has_time(&rounds) || count.is_enough(round + 1, || measurement.is_decided(&rounds)) {
            break;
        }
    }
    Ok(rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes the order, and decides after some rounds.
    struct Script {
        order: Vec<char>,
        decided_after: usize,
        time_for: usize,
        /// The round in which the time is over.
        late_in: Option<u32>,
    }

    impl Rounds<char> for Script {
        fn run(&mut self, round: u32, turn: &char) -> Result<Run, CompareError> {
            self.order.push(*turn);
            if self.late_in == Some(round) {
                return Err(CompareError::TimeOver);
            }
            Ok(run(u64::from(round) * 10 + u64::from(*turn as u32 - 'a' as u32)))
        }

        fn is_decided(&mut self, rounds: &[Vec<Run>]) -> bool {
            rounds.len() >= self.decided_after
        }

        fn has_time(&mut self, rounds: &[Vec<Run>]) -> bool {
            rounds.len() < self.time_for
        }
    }

    fn run(count: u64) -> Run {
        Run { count, seconds: 1.0, cpu_seconds: Some(1.0), ..Run::default() }
    }

    fn rounds(count: RoundCount, decided_after: usize, time_for: usize) -> (Vec<Vec<u64>>, String) {
        let mut script = Script { order: Vec::new(), decided_after, time_for, late_in: None };
        let rounds = run_rounds(&['a', 'b'], count, &mut script).unwrap();
        let counts = rounds.iter().map(|runs| runs.iter().map(|run| run.count).collect()).collect();
        (counts, script.order.into_iter().collect())
    }

    #[test]
    fn the_order_is_reversed_in_every_other_round_and_the_result_is_in_the_order_of_the_turns() {
        let (counts, order) = rounds(RoundCount::Fixed(3), 1, 99);
        assert_eq!(order, "abbaab");
        assert_eq!(counts, [[0, 1], [10, 11], [20, 21]]);
    }

    #[test]
    fn rounds_end_with_a_decision_after_eight_at_the_earliest_or_with_the_time() {
        assert_eq!(rounds(RoundCount::UntilDecided(20), 1, 99).0.len(), 8);
        assert_eq!(rounds(RoundCount::UntilDecided(20), 9, 99).0.len(), 9);
        assert_eq!(rounds(RoundCount::UntilDecided(20), 99, 99).0.len(), 20);
        assert_eq!(rounds(RoundCount::UntilDecided(20), 99, 2).0.len(), 2);
        assert_eq!(rounds(RoundCount::Fixed(20), 1, 0).0.len(), 1);
    }

    #[test]
    fn the_end_of_the_time_leaves_whole_rounds() {
        let late = |round| Script { order: Vec::new(), decided_after: 99, time_for: 99, late_in: Some(round) };
        let rounds = run_rounds(&['a', 'b'], RoundCount::Fixed(9), &mut late(2));
        assert_eq!(rounds.unwrap().len(), 2);
        let rounds = run_rounds(&['a', 'b'], RoundCount::Fixed(9), &mut late(0));
        assert!(matches!(rounds, Err(CompareError::TimeOver)));
    }
}
