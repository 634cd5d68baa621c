//! Simulated systems for tests: a rate for each value, noise from a seed, and a clock that only counts.

use std::time::Duration;

use compare::result::Run;

use crate::trial::{Trial, TrialError, Watch};

/// A system whose runs take no time.
pub(crate) struct Simulated {
    random: fastrand::Rng,
    rate: fn(f64) -> f64,
    /// The logarithm of what the rate is multiplied by.
    noise: fn(&mut fastrand::Rng) -> f64,
    /// The values of all runs.
    pub(crate) values: Vec<String>,
    /// Which runs, by number, are slower.
    pub(crate) is_slower: fn(usize) -> bool,
    /// No run is possible with this value.
    pub(crate) fails_with: Option<&'static str>,
    /// The first run with this value fails.
    pub(crate) fails_once_with: Option<&'static str>,
}

impl Simulated {
    pub(crate) fn new(seed: u64, rate: fn(f64) -> f64, noise: fn(&mut fastrand::Rng) -> f64) -> Simulated {
        let random = fastrand::Rng::with_seed(seed);
        let (values, fails_with, fails_once_with) = (Vec::new(), None, None);
        Simulated { random, rate, noise, values, is_slower: |_| false, fails_with, fails_once_with }
    }
}

impl Trial for Simulated {
    fn run(&mut self, value: &str) -> Result<Run, TrialError> {
        if self.fails_with == Some(value) || self.fails_once_with.take_if(|once| *once == value).is_some() {
            return Err(TrialError::Failed(format!("no run with {value}")));
        }
        let number = self.values.len();
        self.values.push(value.to_owned());
        let slower = if (self.is_slower)(number) { 0.9 } else { 1.0 };
        let value = value.parse().expect("simulated values are numbers");
        let rate = (self.rate)(value) * (self.noise)(&mut self.random).exp() * slower;
        Ok(run_at(rate))
    }
}

/// A run of 1,000 messages at this rate, of which the server's CPU is half the time.
pub(crate) fn run_at(rate: f64) -> Run {
    Run { count: 1000, seconds: 1000.0 / rate, cpu_seconds: Some(500.0 / rate), ..Run::default() }
}

/// A number with the standard normal distribution (Box and Muller).
pub(crate) fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// A clock that goes on when it is looked at, and the lines that were shown.
#[derive(Default)]
pub(crate) struct Clock {
    pub(crate) second_per_look: u64,
    /// None: nobody watches.
    pub(crate) lines: Option<Vec<String>>,
    pub(crate) seconds: u64,
}

impl Watch for Clock {
    fn elapsed(&mut self) -> Duration {
        self.seconds += self.second_per_look;
        Duration::from_secs(self.seconds)
    }

    fn show(&mut self, line: &dyn Fn() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(line());
        }
    }
}
