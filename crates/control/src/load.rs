//! The load of the machine: the gauges and their sources; the limits, which are in force and why, and
//! which cannot work; and how many clients were refused.

use intake::{RefusalCounters, ResourceRefusal};
use load::LoadReport;
use load::policy::{Gauge, LoadLimit, Threshold};
use mail::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The load, and what it has led to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LoadStatus {
    /// When the gauges were read (RFC 3339).
    pub sampled: String,
    /// Seconds since then.
    pub age_seconds: u64,
    /// The gauges.
    pub gauges: Vec<GaugeStatus>,
    /// The configured limits.
    pub limits: Vec<LimitStatus>,
    /// Clients refused since the start.
    pub refused: Vec<RefusedClients>,
}

/// A gauge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GaugeStatus {
    /// Its name.
    pub gauge: String,
    /// The unit of its value.
    pub unit: GaugeUnit,
    /// Its value; null if it is absent.
    pub value: Option<f64>,
    /// Where it was read.
    pub source: String,
}

/// The unit of a gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GaugeUnit {
    /// Tasks that run or wait for a processor or a disk.
    Tasks,
    /// Percent of the time.
    Percent,
    /// Bytes.
    Bytes,
    /// Files that can be made.
    Inodes,
}

/// A configured limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitStatus {
    /// The gauge that it depends on.
    pub gauge: String,
    /// The unit of the gauge.
    pub unit: GaugeUnit,
    /// It is in force above this value.
    pub above: Option<f64>,
    /// It is in force below this value.
    pub below: Option<f64>,
    /// What happens while it is in force.
    pub effect: String,
    /// Whether it is in force.
    pub state: LimitState,
    /// When it came into force (RFC 3339).
    pub since: Option<String>,
    /// Seconds since then.
    pub since_seconds: Option<u64>,
    /// The latest value of the gauge, if the limit is in force.
    pub value: Option<f64>,
}

/// Whether a limit is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LimitState {
    /// It is.
    InForce,
    /// It is not.
    NotInForce,
    /// It cannot be: its gauge is absent.
    GaugeAbsent,
}

/// Clients that were refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedClients {
    /// The resource that was short.
    pub resource: String,
    /// How many.
    pub clients: u64,
}

/// The status of a report.
pub(super) fn load_status(report: &LoadReport, refusals: &RefusalCounters, now: Timestamp) -> LoadStatus {
    let gauge = |reading: &load::policy::GaugeReading| GaugeStatus {
        gauge: reading.gauge.to_string(),
        unit: unit(&reading.gauge),
        value: reading.value,
        source: reading.source.to_owned(),
    };
    let refused = |refusal: ResourceRefusal| RefusedClients {
        resource: refusal.name().to_owned(),
        clients: refusals.count_of(refusal),
    };
    LoadStatus {
        sampled: report.sample.at.to_rfc3339(),
        age_seconds: now.since(report.sample.at).as_secs(),
        gauges: report.sample.readings.iter().map(gauge).collect(),
        limits: report.limits.iter().map(|limit| limit_status(report, limit, now)).collect(),
        refused: ResourceRefusal::ALL.map(refused).into(),
    }
}

fn limit_status(report: &LoadReport, limit: &LoadLimit, now: Timestamp) -> LimitStatus {
    let active = report.state.active.iter().find(|reason| reason.limit == *limit);
    let (above, below) = match limit.threshold {
        Threshold::Above(most) => (Some(most), None),
        Threshold::Below(least) => (None, Some(least)),
    };
    LimitStatus {
        gauge: limit.gauge.to_string(),
        unit: unit(&limit.gauge),
        above,
        below,
        effect: limit.restriction.to_string(),
        state: match active {
            Some(_) => LimitState::InForce,
            None if report.limits_without_gauge().any(|blind| blind == limit) => LimitState::GaugeAbsent,
            None => LimitState::NotInForce,
        },
        since: active.map(|reason| reason.since.to_rfc3339()),
        since_seconds: active.map(|reason| now.since(reason.since).as_secs()),
        value: active.map(|reason| reason.value),
    }
}

fn unit(gauge: &Gauge) -> GaugeUnit {
    match gauge {
        Gauge::LoadAverage => GaugeUnit::Tasks,
        Gauge::Pressure(_) => GaugeUnit::Percent,
        Gauge::MemoryAvailable | Gauge::FreeSpace(_) => GaugeUnit::Bytes,
        Gauge::FreeInodes(_) => GaugeUnit::Inodes,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use load::policy::{ActiveLimits, LoadLimits, LoadSample};
    use load::{PressureResource, policy};

    use super::*;

    /// A report with a limit in force and one that cannot work.
    pub(crate) fn report(now: Timestamp) -> LoadReport {
        let reading = |gauge, source, value| policy::GaugeReading { gauge, source, value };
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
}
