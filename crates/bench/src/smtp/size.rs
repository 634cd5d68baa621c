//! The sizes of messages: one size, a range, or a histogram.
//!
//! A size is that of the body before dot-stuffing. The largest determines how much text is kept in
//! memory, so it is limited to [`BODY_OCTETS_MAX`].

use std::fs;
use std::str::FromStr;

use crate::options::octets;

/// The largest body. Its text is kept in memory.
pub(super) const BODY_OCTETS_MAX: u64 = 1 << 30;

/// Sizes of bodies in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodySizeDistribution {
    /// Uniform from the first to the second; `--size 6000` has equal bounds.
    Between(u64, u64),
    /// Each size with the sum of its weight and those before it.
    Histogram(Vec<(u64, u64)>),
}

impl BodySizeDistribution {
    /// Draws a size. A body that is not empty ends with CR LF, so it has at least two bytes.
    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> u64 {
        let drawn = match self {
            BodySizeDistribution::Between(min, max) => random.u64(*min..=*max),
            BodySizeDistribution::Histogram(steps) => {
                let total = steps.last().map_or(1, |(_, weight)| *weight);
                let mark = random.u64(0..total);
                let step = steps.iter().find(|(_, weight)| mark < *weight);
                step.map_or(0, |(octets, _)| *octets)
            }
        };
        if drawn == 1 { 2 } else { drawn }
    }

    /// The largest size.
    pub(super) fn max(&self) -> u64 {
        match self {
            BodySizeDistribution::Between(_, max) => *max,
            BodySizeDistribution::Histogram(steps) => steps.iter().map(|(octets, _)| *octets).max().unwrap_or(0),
        }
        .max(2)
    }
}

impl FromStr for BodySizeDistribution {
    type Err = String;

    fn from_str(text: &str) -> Result<BodySizeDistribution, String> {
        let sizes = match text.strip_prefix('@') {
            Some(path) => histogram(&fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?)?,
            None => {
                let (min, max) = text.split_once("..").unwrap_or((text, text));
                BodySizeDistribution::Between(octets(min)?, octets(max)?)
            }
        };
        match sizes {
            BodySizeDistribution::Between(min, max) if min > max => Err(format!("{min} is more than {max}")),
            sizes if sizes.max() > BODY_OCTETS_MAX => Err(format!("more than {BODY_OCTETS_MAX} bytes")),
            sizes => Ok(sizes),
        }
    }
}

/// Lines of "bytes weight"; '#' begins a comment.
fn histogram(text: &str) -> Result<BodySizeDistribution, String> {
    let mut steps: Vec<(u64, u64)> = Vec::new();
    let mut total = 0_u64;
    for (place, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let fault = || format!("line {}: expected \"bytes weight\": {line}", place + 1);
        let (size, weight) = line.split_once(char::is_whitespace).ok_or_else(fault)?;
        let weight: u64 = weight.trim().parse().map_err(|_| fault())?;
        total = total.checked_add(weight).ok_or_else(fault)?;
        steps.push((octets(size).map_err(|_| fault())?, total));
    }
    if total == 0 { Err("all weights are 0".to_owned()) } else { Ok(BodySizeDistribution::Histogram(steps)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_fixed_or_between_bounds() {
        let mut random = fastrand::Rng::with_seed(1);
        assert_eq!("6000".parse(), Ok(BodySizeDistribution::Between(6000, 6000)));
        assert_eq!("1KiB..64KiB".parse(), Ok(BodySizeDistribution::Between(1024, 65536)));
        assert_eq!("0".parse::<BodySizeDistribution>().unwrap().draw(&mut random), 0);
        assert_eq!("1".parse::<BodySizeDistribution>().unwrap().draw(&mut random), 2);
        for text in ["", "..", "9..1", "6 kilos", "-1", "2GiB", "@/nonexistent"] {
            assert!(text.parse::<BodySizeDistribution>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_histogram_is_drawn_by_its_weights() {
        let sizes = histogram("# size weight\n2KiB 3\n\n10000 1 # big\n").unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let small = (0..4000).filter(|_| sizes.draw(&mut random) == 2048).count();
        assert!((2800..3200).contains(&small), "{small}");
        for text in ["", "5", "5 x", "5 0"] {
            assert!(histogram(text).is_err(), "{text}");
        }
    }
}
