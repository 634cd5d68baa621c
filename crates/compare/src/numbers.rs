//! Figures as people read them: three digits that count, or all of a whole number, with thousands separated.
//!
//! What is not a number is shown as [`ABSENT`].

/// Shown instead of a figure that was not measured or is not finite.
pub(crate) const ABSENT: &str = "–";

/// Above this, labels of axes are in millions.
const MILLION: f64 = 1e6;

/// A figure with three digits that count; from 1,000 on with all digits of its whole part.
pub(crate) fn short(value: f64) -> String {
    if !value.is_finite() {
        return ABSENT.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{value:.2e}");
    let exponent: i32 = scientific.split_once('e').and_then(|(_, digits)| digits.parse().ok()).unwrap_or(0);
    if !(-5..15).contains(&exponent) {
        return scientific;
    }
    let decimals = usize::try_from(2 - exponent).unwrap_or(0);
    separated(&format!("{value:.decimals$}"))
}

/// Both ends of an interval, as `15.4 to 17.0`.
pub(crate) fn range((low, high): (f64, f64)) -> String {
    format!("{} to {}", short(low), short(high))
}

/// A whole number.
pub(crate) fn whole(value: u64) -> String {
    separated(&value.to_string())
}

/// The label of a tick of an axis whose ticks are `step` apart.
pub(crate) fn tick(value: f64, step: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let exponent = exponent(step);
    if exponent < -4 || value.abs() >= 1e12 {
        return format!("{value:.1e}");
    }
    let (value, exponent, suffix) =
        if value.abs() >= MILLION { (value / MILLION, exponent - 6, " M") } else { (value, exponent, "") };
    let decimals = usize::try_from(-exponent).unwrap_or(0);
    separated(&format!("{value:.decimals$}")) + suffix
}

/// The power of ten at or below a positive number.
pub(crate) fn exponent(value: f64) -> i32 {
    // The logarithm of 0.001 may be just below -3.
    (value.log10() + 1e-9).floor() as i32
}

/// Separates thousands in the whole part of a decimal number.
fn separated(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (whole, fraction) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let mut out = String::from(sign);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count_and_thousands_are_separated() {
        let cases = [
            (16.0912, "16.1"),
            (0.045_06, "0.0451"),
            (99.96, "100"),
            (999.6, "1,000"),
            (21_688.4, "21,688"),
            (1_234_567.0, "1,234,567"),
            (-1_381.2, "-1,381"),
            (1.0, "1.00"),
            (0.0, "0"),
            (1.234e-7, "1.23e-7"),
            (1.234e18, "1.23e18"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        assert_eq!(whole(100_000), "100,000");
        assert_eq!(range((15.42, 17.0)), "15.4 to 17.0");
    }

    #[test]
    fn ticks_have_as_many_decimals_as_their_step() {
        let cases = [
            (0.25, 0.05, "0.25"),
            (0.2, 0.05, "0.20"),
            (0.003, 0.001, "0.003"),
            (20_000.0, 5_000.0, "20,000"),
            (2_500_000.0, 500_000.0, "2.5 M"),
            (0.0, 5.0, "0"),
            (2e-7, 1e-7, "2.0e-7"),
            (5e13, 1e13, "5.0e13"),
        ];
        for (value, step, text) in cases {
            assert_eq!(tick(value, step), text);
        }
    }
}
