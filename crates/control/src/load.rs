//! `mailrace load`: the gauges and their sources; the limits, which are in force and why, and which
//! cannot work; and how many clients were refused.

use std::fmt::{self, Write};

use intake::{RefusalCounters, ResourceRefusal};
use load::LoadReport;
use load::policy::{Gauge, GaugeReading, LoadLimit, Threshold};
use mail::Timestamp;

use super::text::short_duration;

/// The whole report as text.
pub(super) fn report_text(report: &LoadReport, refusals: &RefusalCounters, now: Timestamp) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write(report, refusals, now, &mut out);
    out
}

fn write(report: &LoadReport, refusals: &RefusalCounters, now: Timestamp, out: &mut String) -> fmt::Result {
    let sample = &report.sample;
    let age = short_duration(now.since(sample.at));
    writeln!(out, "gauges, as of {} ({age} ago)", sample.at.to_rfc3339())?;
    sample.readings.iter().try_for_each(|reading| writeln!(out, "  {}", gauge_line(reading)))?;
    writeln!(out, "limits")?;
    for limit in &report.limits {
        writeln!(out, "  {}: {}", limit_text(limit), limit_state(report, limit, now))?;
    }
    if report.limits.is_empty() {
        writeln!(out, "  none")?;
    }
    writeln!(out, "refused since the start")?;
    for refusal in ResourceRefusal::ALL {
        writeln!(out, "  {:<18} {}", refusal.name(), refusals.count_of(refusal))?;
    }
    Ok(())
}

/// `load average: 0.52, from /proc/loadavg`.
fn gauge_line(reading: &GaugeReading) -> String {
    let value = reading.value.map_or("absent".into(), |value| value_text(&reading.gauge, value));
    format!("{}: {value}, from {}", reading.gauge, reading.source)
}

/// `load average above 20.00, only the reserved networks are let in`.
fn limit_text(limit: &LoadLimit) -> String {
    let bound = match limit.threshold {
        Threshold::Above(most) => format!("above {}", value_text(&limit.gauge, most)),
        Threshold::Below(least) => format!("below {}", value_text(&limit.gauge, least)),
    };
    format!("{} {bound}, {}", limit.gauge, limit.restriction)
}

/// Whether a limit is in force, since when and why; or that it cannot work.
fn limit_state(report: &LoadReport, limit: &LoadLimit, now: Timestamp) -> String {
    if let Some(reason) = report.state.active.iter().find(|reason| reason.limit == *limit) {
        let (since, ago) = (reason.since.to_rfc3339(), short_duration(now.since(reason.since)));
        return format!("IN FORCE since {since} ({ago} ago), at {}", value_text(&limit.gauge, reason.value));
    }
    match report.limits_without_gauge().any(|blind| blind == limit) {
        true => "cannot work: its gauge is absent".into(),
        false => "not in force".into(),
    }
}

/// A value in the unit of its gauge.
fn value_text(gauge: &Gauge, value: f64) -> String {
    match gauge {
        Gauge::LoadAverage => format!("{value:.2}"),
        Gauge::Pressure(_) => format!("{value:.2} %"),
        Gauge::MemoryAvailable | Gauge::FreeSpace(_) => bytes(value),
        Gauge::FreeInodes(_) => format!("{value:.0}"),
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
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use load::policy::{ActiveLimits, LoadLimits, LoadSample};
    use load::{PressureResource, policy};

    use super::*;

    fn report(now: Timestamp) -> LoadReport {
        let reading = |gauge, source, value| GaugeReading { gauge, source, value };
        let disk: Arc<Path> = Path::new("/var/spool").into();
        let sample = LoadSample {
            at: now - Duration::from_secs(1),
            readings: vec![
                reading(Gauge::LoadAverage, "/proc/loadavg", Some(21.3)),
                reading(Gauge::Pressure(PressureResource::Io), "/proc/pressure/io", None),
                reading(Gauge::MemoryAvailable, "/proc/meminfo", Some(3.5e9)),
                reading(Gauge::FreeSpace(disk.clone()), "statvfs", Some(1000.0)),
                reading(Gauge::FreeInodes(disk), "statvfs", Some(1e6)),
            ],
        };
        let limits = LoadLimits { refuse_above: Some(20.0), io_pressure_max: Some(50.0), ..LoadLimits::default() };
        let state = ActiveLimits::default()
            .after_sample(&LoadSample { at: now - Duration::from_secs(300), ..sample.clone() }, &limits);
        let of_each: Vec<policy::LoadLimit> =
            sample.readings.iter().flat_map(|one| limits.for_gauge(&one.gauge)).collect();
        LoadReport { sample, limits: of_each, state }
    }

    #[test]
    fn the_report_tells_what_is_in_force_and_what_cannot_be() {
        let now = super::super::sample::NOW;
        let told = [
            report_text(&report(now), &RefusalCounters::default(), now),
            report_text(&LoadReport::default(), &RefusalCounters::default(), now),
        ];
        insta::assert_snapshot!("load", told.join("\n"));
    }
}
