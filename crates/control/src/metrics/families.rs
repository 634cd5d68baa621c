//! Metrics as values: families with their help, kind and samples. [`crate::metrics_text`] writes them in the
//! formats of Prometheus and OpenMetrics.

use mail::Histogram;
use serde::{Deserialize, Serialize};

/// A metric: its help, its kind and its samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricFamily {
    /// Its name.
    pub name: String,
    /// What it counts or measures.
    pub help: String,
    /// What kind of metric it is.
    pub kind: MetricKind,
    /// Its samples.
    pub samples: Vec<MetricSample>,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricKind {
    /// It only grows, from 0 at the start of the server.
    Counter,
    /// It may grow and shrink.
    Gauge,
    /// It counts values in buckets.
    Histogram,
}

/// A sample of a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricSample {
    /// The name of the metric, or, in a histogram, with `_bucket`, `_sum` or `_count`.
    pub name: String,
    /// Names and values.
    pub labels: Vec<(String, String)>,
    /// The value.
    pub value: MetricValue,
}

/// A value of a metric. Whole numbers keep all their digits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetricValue {
    /// A count.
    Whole(u64),
    /// A measure.
    Fraction(f64),
}

impl MetricValue {
    /// As programs take it.
    pub fn as_f64(self) -> f64 {
        match self {
            MetricValue::Whole(value) => value as f64,
            MetricValue::Fraction(value) => value,
        }
    }
}

impl From<u64> for MetricValue {
    fn from(value: u64) -> MetricValue {
        MetricValue::Whole(value)
    }
}

impl From<&u64> for MetricValue {
    fn from(value: &u64) -> MetricValue {
        MetricValue::Whole(*value)
    }
}

impl From<usize> for MetricValue {
    fn from(value: usize) -> MetricValue {
        MetricValue::Whole(value as u64)
    }
}

impl From<&usize> for MetricValue {
    fn from(value: &usize) -> MetricValue {
        MetricValue::Whole(*value as u64)
    }
}

impl From<u8> for MetricValue {
    fn from(value: u8) -> MetricValue {
        MetricValue::Whole(value.into())
    }
}

impl From<i64> for MetricValue {
    fn from(value: i64) -> MetricValue {
        u64::try_from(value).map_or(MetricValue::Fraction(value as f64), MetricValue::Whole)
    }
}

impl From<f64> for MetricValue {
    fn from(value: f64) -> MetricValue {
        MetricValue::Fraction(value)
    }
}

/// The metrics being gathered.
#[derive(Default)]
pub(super) struct MetricFamilies {
    /// The samples that follow belong to the last one.
    families: Vec<MetricFamily>,
}

impl MetricFamilies {
    /// Begins a metric.
    pub(super) fn family(&mut self, name: &str, help: &str, kind: MetricKind) {
        self.families.push(MetricFamily { name: name.to_owned(), help: help.to_owned(), kind, samples: Vec::new() });
    }

    /// Adds a sample of the current metric.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<MetricValue>) {
        self.part("", labels, value.into());
    }

    /// Adds a gauge without labels.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, help, MetricKind::Gauge);
        self.sample(&[], value);
    }

    /// Adds a counter without labels.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, help, MetricKind::Counter);
        self.sample(&[], value);
    }

    /// Adds a histogram without labels. `scale` stored units are one unit of the metric.
    pub(super) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram, scale: f64) {
        self.family(name, help, MetricKind::Histogram);
        self.distribution(&[], histogram, scale);
    }

    /// Adds the samples of a histogram to the current metric.
    pub(super) fn distribution(&mut self, labels: &[(&str, &str)], histogram: &Histogram, scale: f64) {
        let mut below = 0;
        for (power, count) in histogram.buckets[..Histogram::BUCKETS - 1].iter().enumerate() {
            below += count;
            let bound = ((1u64 << power) as f64 / scale).to_string();
            self.part("_bucket", &[labels, &[("le", &bound)]].concat(), below.into());
        }
        let (count, sum) = (histogram.count(), histogram.sum as f64 / scale);
        self.part("_bucket", &[labels, &[("le", "+Inf")]].concat(), count.into());
        self.part("_sum", labels, sum.into());
        self.part("_count", labels, count.into());
    }

    fn part(&mut self, suffix: &str, labels: &[(&str, &str)], value: MetricValue) {
        let Some(family) = self.families.last_mut() else { return };
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        family.samples.push(MetricSample { name: format!("{}{suffix}", family.name), labels, value });
    }
}

impl From<MetricFamilies> for Vec<MetricFamily> {
    fn from(families: MetricFamilies) -> Vec<MetricFamily> {
        families.families
    }
}
