//! Rates: `100/s`, `30/m`, `1000/h`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of events per time span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The number of events; at least 1 if it was parsed.
    pub count: u32,
    /// The time span; a second, a minute or an hour if it was parsed.
    pub per: Duration,
}

const UNITS: [(&str, Duration); 3] =
    [("s", Duration::from_secs(1)), ("m", Duration::from_secs(60)), ("h", Duration::from_secs(3600))];

/// The text is not a valid [`Rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a rate")]
pub struct InvalidRate;

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let (digits, unit) = text.split_once('/').ok_or(InvalidRate)?;
        let (_, per) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or(InvalidRate)?;
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(InvalidRate);
        }
        let count = digits.parse().ok().filter(|count| *count > 0).ok_or(InvalidRate)?;
        Ok(Rate { count, per })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, per)| *per == self.per) {
            Some((unit, _)) => write!(f, "{}/{unit}", self.count),
            None => write!(f, "{} in {:?}", self.count, self.per),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_and_a_unit_of_time() {
        for (text, count, secs) in [("100/s", 100, 1), ("1/m", 1, 60), ("4294967295/h", u32::MAX, 3600)] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate, Rate { count, per: Duration::from_secs(secs) });
            assert_eq!(rate.to_string(), text);
        }
        for text in
            ["", "5", "/s", "0/s", "-1/s", "+1/s", "1.5/s", "1 /s", "1/ s", "1/d", "1/S", "4294967296/s", "1/s/s"]
        {
            assert_eq!(text.parse::<Rate>(), Err(InvalidRate), "{text}");
        }
    }
}
