//! `mailrace load`: the load for people.

use std::time::Duration;

use crate::load::{GaugeStatus, GaugeUnit, LimitState, LimitStatus, LoadStatus};
use crate::text::short_duration;

/// The lines.
pub fn lines(status: &LoadStatus) -> Vec<String> {
    let age = short_duration(Duration::from_secs(status.age_seconds));
    let mut lines = vec![format!("gauges, as of {} ({age} ago)", status.sampled)];
    lines.extend(status.gauges.iter().map(|gauge| format!("  {}", gauge_line(gauge))));
    lines.push("limits".to_owned());
    lines.extend(status.limits.iter().map(|limit| format!("  {}: {}", limit_text(limit), limit_state(limit))));
    if status.limits.is_empty() {
        lines.push("  none".to_owned());
    }
    lines.push("refused since the start".to_owned());
    lines.extend(status.refused.iter().map(|refused| format!("  {:<18} {}", refused.resource, refused.clients)));
    lines
}

/// `load average: 0.52, from /proc/loadavg`.
fn gauge_line(reading: &GaugeStatus) -> String {
    let value = reading.value.map_or("absent".into(), |value| value_text(reading.unit, value));
    format!("{}: {value}, from {}", reading.gauge, reading.source)
}

/// `load average above 20.00, only the reserved networks are let in`.
fn limit_text(limit: &LimitStatus) -> String {
    let bound = |word: &str, value: Option<f64>| value.map(|value| format!("{word} {}", value_text(limit.unit, value)));
    let bound = bound("above", limit.above).or_else(|| bound("below", limit.below)).unwrap_or_default();
    format!("{} {bound}, {}", limit.gauge, limit.effect)
}

/// Whether a limit is in force, since when and why; or that it cannot work.
fn limit_state(limit: &LimitStatus) -> String {
    match (limit.state, &limit.since) {
        (LimitState::InForce, Some(since)) => {
            let ago = short_duration(Duration::from_secs(limit.since_seconds.unwrap_or_default()));
            let value = value_text(limit.unit, limit.value.unwrap_or_default());
            format!("IN FORCE since {since} ({ago} ago), at {value}")
        }
        (LimitState::InForce, None) => "IN FORCE".to_owned(),
        (LimitState::GaugeAbsent, _) => "cannot work: its gauge is absent".to_owned(),
        (LimitState::NotInForce, _) => "not in force".to_owned(),
    }
}

/// A value in its unit.
fn value_text(unit: GaugeUnit, value: f64) -> String {
    match unit {
        GaugeUnit::Tasks => format!("{value:.2}"),
        GaugeUnit::Percent => format!("{value:.2} %"),
        GaugeUnit::Bytes => bytes(value),
        GaugeUnit::Inodes => format!("{value:.0}"),
    }
}

fn bytes(value: f64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, power)| value >= f64::from(1u32 << power)) {
        Some((unit, power)) => format!("{:.1} {unit}", value / f64::from(1u32 << power)),
        None => format!("{value:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use intake::RefusalCounters;
    use load::LoadReport;

    use super::*;
    use crate::load::{load_status, tests::report};
    use crate::sample::NOW;

    #[test]
    fn the_report_tells_what_is_in_force_and_what_cannot_be() {
        let told = |report: &LoadReport| {
            let status = load_status(report, &RefusalCounters::default(), NOW);
            let sent: LoadStatus = serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap();
            assert_eq!(sent, status);
            lines(&sent).join("\n") + "\n"
        };
        insta::assert_snapshot!("load", [told(&report(NOW)), told(&LoadReport::default())].join("\n"));
    }
}
