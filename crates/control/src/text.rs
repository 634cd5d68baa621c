//! Values that have the same text form on the command line and in JSON: one notation, one parser.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

/// A value that is written and read as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SerdeAsText<T>(pub T);

impl<T: FromStr> FromStr for SerdeAsText<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        text.parse().map(SerdeAsText)
    }
}

impl<T: fmt::Display> Serialize for SerdeAsText<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for SerdeAsText<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(SerdeAsText).map_err(de::Error::custom)
    }
}

/// A duration: `90s`, `2h`, `5d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationArg(pub Duration);

/// The text is not a [`DurationArg`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a duration: 90s, 30m, 2h, 5d")]
pub struct InvalidDuration;

impl FromStr for DurationArg {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        mail::units::parse_duration(text).map(DurationArg).ok_or(InvalidDuration)
    }
}

impl fmt::Display for DurationArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_millis())
    }
}

/// A size in bytes: `100kB`, `10MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeArg(pub u64);

/// The text is not a [`SizeArg`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a size: 500B, 100kB, 10MiB")]
pub struct InvalidSize;

impl FromStr for SizeArg {
    type Err = InvalidSize;

    fn from_str(text: &str) -> Result<Self, InvalidSize> {
        mail::units::parse_size(text).map(SizeArg).ok_or(InvalidSize)
    }
}

impl fmt::Display for SizeArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B", self.0)
    }
}

/// A duration in its largest unit, for people: `45s`, `12m`, `3h`, `2d`. Below two of a unit, the
/// smaller one is used.
pub fn short_duration(span: Duration) -> String {
    let seconds = span.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "m")];
    match units.into_iter().find(|(unit, _)| seconds >= 2 * unit) {
        Some((unit, name)) => format!("{}{name}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

/// A count with its noun: `1 message`, `2 messages`.
pub fn plural(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_sizes_read_back_as_they_were_written() {
        let span: SerdeAsText<DurationArg> = "90s".parse().unwrap();
        let size: SerdeAsText<SizeArg> = "10kB".parse().unwrap();
        let written = serde_json::to_string(&(&span, &size)).unwrap();
        assert_eq!(written, r#"["90000ms","10000B"]"#);
        assert_eq!(
            serde_json::from_str::<(SerdeAsText<DurationArg>, SerdeAsText<SizeArg>)>(&written).unwrap(),
            (span, size)
        );
        assert!(
            serde_json::from_str::<SerdeAsText<DurationArg>>("\"soon\"")
                .unwrap_err()
                .to_string()
                .contains("expected a duration")
        );
    }

    #[test]
    fn a_brief_span_has_one_unit() {
        let told =
            [0, 119, 120, 7199, 7200, 172_799, 172_800].map(|seconds| short_duration(Duration::from_secs(seconds)));
        assert_eq!(told, ["0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
    }
}
