//! Sizes and durations as people write them in configuration files and on the command line. Pure
//! functions of the text; they return None if it is invalid.

use std::time::Duration;

/// Parses a size such as `64MiB`, `10 MB` or `100B`; returns bytes.
pub fn parse_size(text: &str) -> Option<u64> {
    let (count, unit) = number_and_unit(text)?;
    let octets = match unit {
        "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    count.checked_mul(octets)
}

/// Parses a duration such as `500ms`, `30s`, `5m`, `2h` or `5d`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (count, unit) = number_and_unit(text)?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 3600 * 1000,
        "d" => 86_400 * 1000,
        _ => return None,
    };
    count.checked_mul(millis).map(Duration::from_millis)
}

fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start_matches(' ')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_have_a_number_and_a_unit() {
        assert_eq!(parse_size("50MiB"), Some(50 << 20));
        assert_eq!(parse_size("10 MB"), Some(10_000_000));
        assert_eq!(parse_size("0B"), Some(0));
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("5d"), Some(Duration::from_secs(5 * 86_400)));
        for text in [
            "",
            "5",
            "MiB",
            "-1B",
            "+1B",
            "1.5MiB",
            "1mib",
            "1 parsec",
            "99999999999999999999B",
            "18446744073709551615TiB",
        ] {
            assert_eq!(parse_size(text), None, "{text}");
        }
        for text in ["", "5", "s", "5M", "5 months", "18446744073709551615d", "１s"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
