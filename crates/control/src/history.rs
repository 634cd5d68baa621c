//! What the server did in the last hour and the last day, for charts. The sampler reads the counters every few
//! seconds; a series keeps what happened between two readings. Both series are bounded, and begin
//! with the process.
//!
//! | series | a sample every | samples |
//! |---|---|---|
//! | hour | 10 s | 360 |
//! | day | 4 min | 360 |

use std::collections::VecDeque;
use std::time::Duration;

use load::policy::Gauge;
use mail::{Histogram, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::metrics::MetricsSnapshot;

/// Samples of a series.
const SAMPLES_MAX: usize = 360;
const HOUR_STEP: Duration = Duration::from_secs(10);
const DAY_STEP: Duration = Duration::from_secs(240);

/// What the server did between two readings, and its state at the later one.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct HistorySample {
    /// The time of the later reading, in seconds since 1970.
    pub time: u64,
    /// Messages accepted each second.
    pub accepted: f64,
    /// Recipients delivered or relayed each second.
    pub delivered: f64,
    /// Attempts deferred each second, by recipients.
    pub deferred: f64,
    /// Recipients failed each second.
    pub failed: f64,
    /// Clients refused each second for lack of resources.
    pub refused: f64,
    /// Recipients in the queue.
    pub queued: usize,
    /// Those that are held.
    pub held: usize,
    /// Messages in the spool.
    pub messages: u64,
    /// Seconds since the oldest message was accepted; null without messages.
    pub oldest_seconds: Option<u64>,
    /// Open sessions of clients that send mail.
    pub sessions: usize,
    /// Half of the commits took at most this many milliseconds; null without any.
    pub commit_p50_ms: Option<f64>,
    /// 99 % of the commits took at most this many milliseconds.
    pub commit_p99_ms: Option<f64>,
    /// 99 % of the writes with their sync took at most this many milliseconds.
    pub sync_p99_ms: Option<f64>,
    /// The load average; null if it is not known.
    pub load: Option<f64>,
    /// How many limits by load are in force.
    pub limits_in_force: usize,
}

/// A part of the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HistorySpan {
    /// The last hour.
    #[default]
    Hour,
    /// The last day.
    Day,
}

/// The samples of a span.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct HistoryAnswer {
    /// The usual time between two samples in seconds.
    pub step_seconds: u64,
    /// The oldest first; empty at the start of the server.
    pub samples: Vec<HistorySample>,
}

/// The counters at one time.
#[derive(Clone, Debug)]
pub(crate) struct ServerCounters {
    at: Timestamp,
    accepted: u64,
    delivered: u64,
    deferred: u64,
    failed: u64,
    refused: u64,
    commit_micros: Histogram,
    sync_micros: Histogram,
    queued: usize,
    held: usize,
    messages: u64,
    oldest_accepted_at: Option<Timestamp>,
    sessions: usize,
    load: Option<f64>,
    limits_in_force: usize,
}

impl ServerCounters {
    /// Reads them from a snapshot of all metrics.
    pub(crate) fn read(snapshot: &MetricsSnapshot, oldest_accepted_at: Option<Timestamp>, at: Timestamp) -> Self {
        let outcome = |name| snapshot.outcomes.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count);
        let load = snapshot.load.sample.readings.iter().find(|reading| reading.gauge == Gauge::LoadAverage);
        let (queued, held) = snapshot.queues.depth();
        ServerCounters {
            at,
            accepted: snapshot.spool.messages_committed,
            delivered: outcome("delivered") + outcome("relayed"),
            deferred: outcome("deferred"),
            failed: outcome("failed"),
            refused: snapshot.refusals.iter().map(|(_, count)| count).sum(),
            commit_micros: snapshot.commit_micros.clone(),
            sync_micros: snapshot.spool.sync_micros.clone(),
            queued,
            held,
            messages: snapshot.spool.messages_live,
            oldest_accepted_at,
            sessions: snapshot.sessions,
            load: load.and_then(|reading| reading.value),
            limits_in_force: snapshot.load.state.active.len(),
        }
    }

    /// What happened since an earlier reading.
    fn since(&self, earlier: &ServerCounters) -> HistorySample {
        let seconds = self.at.since(earlier.at).as_secs_f64().max(0.001);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let millis = |micros: Option<f64>| micros.map(|micros| micros / 1000.0);
        let commits = self.commit_micros.since(&earlier.commit_micros);
        HistorySample {
            time: self.at.0 / 1000,
            accepted: rate(self.accepted, earlier.accepted),
            delivered: rate(self.delivered, earlier.delivered),
            deferred: rate(self.deferred, earlier.deferred),
            failed: rate(self.failed, earlier.failed),
            refused: rate(self.refused, earlier.refused),
            queued: self.queued,
            held: self.held,
            messages: self.messages,
            oldest_seconds: self.oldest_accepted_at.map(|oldest| self.at.since(oldest).as_secs()),
            sessions: self.sessions,
            commit_p50_ms: millis(commits.quantile(0.5)),
            commit_p99_ms: millis(commits.quantile(0.99)),
            sync_p99_ms: millis(self.sync_micros.since(&earlier.sync_micros).quantile(0.99)),
            load: self.load,
            limits_in_force: self.limits_in_force,
        }
    }
}

/// Samples at regular intervals.
pub(crate) struct Series {
    step: Duration,
    samples_max: usize,
    last: Option<ServerCounters>,
    samples: VecDeque<HistorySample>,
}

impl Series {
    /// An empty series.
    pub(crate) fn new(step: Duration, samples_max: usize) -> Series {
        Series { step, samples_max, last: None, samples: VecDeque::new() }
    }

    /// Takes a reading. Returns the sample that it completes.
    pub(crate) fn add(&mut self, counters: &ServerCounters) -> Option<&HistorySample> {
        let sample = match &self.last {
            // A clock that was set back begins anew.
            Some(last) if last.at <= counters.at => {
                // A reading comes a little early at times.
                if counters.at.since(last.at) + Duration::from_secs(1) < self.step {
                    return None;
                }
                Some(counters.since(last))
            }
            _ => None,
        };
        self.last = Some(counters.clone());
        self.samples.push_back(sample?);
        if self.samples.len() > self.samples_max {
            self.samples.pop_front();
        }
        self.samples.back()
    }
}

/// The series of a server.
pub(crate) struct History {
    hour: Series,
    day: Series,
}

impl Default for History {
    fn default() -> History {
        History { hour: Series::new(HOUR_STEP, SAMPLES_MAX), day: Series::new(DAY_STEP, SAMPLES_MAX) }
    }
}

impl History {
    /// Takes a reading into all series.
    pub(crate) fn add(&mut self, counters: &ServerCounters) {
        self.hour.add(counters);
        self.day.add(counters);
    }

    /// The samples of a span.
    pub(crate) fn answer(&self, span: HistorySpan) -> HistoryAnswer {
        let series = match span {
            HistorySpan::Hour => &self.hour,
            HistorySpan::Day => &self.day,
        };
        HistoryAnswer { step_seconds: series.step.as_secs(), samples: series.samples.iter().cloned().collect() }
    }
}

#[cfg(test)]
mod tests {
    use mail::HistogramRecorder;

    use super::*;

    fn counters(seconds: u64, accepted: u64) -> ServerCounters {
        let commits = HistogramRecorder::default();
        (0..accepted).for_each(|_| commits.record(3000));
        ServerCounters {
            at: Timestamp(seconds * 1000),
            accepted,
            delivered: accepted * 2,
            deferred: 0,
            failed: 0,
            refused: 0,
            commit_micros: commits.read(),
            sync_micros: Histogram::default(),
            queued: 7,
            held: 1,
            messages: 5,
            oldest_accepted_at: Some(Timestamp(1000)),
            sessions: 3,
            load: Some(0.5),
            limits_in_force: 0,
        }
    }

    #[test]
    fn a_sample_has_what_happened_since_the_one_before() {
        let mut series = Series::new(HOUR_STEP, 2);
        assert_eq!(series.add(&counters(100, 10)), None);
        assert_eq!(series.add(&counters(105, 30)), None);
        let sample = series.add(&counters(110, 60)).unwrap();
        assert_eq!((sample.time, sample.accepted, sample.delivered), (110, 5.0, 10.0));
        assert_eq!((sample.queued, sample.oldest_seconds), (7, Some(109)));
        assert!((2.048..=4.096).contains(&sample.commit_p99_ms.unwrap()));
        assert_eq!(sample.sync_p99_ms, None);
        assert_eq!(series.add(&counters(120, 60)).unwrap().commit_p50_ms, None);
        series.add(&counters(130, 60));
        assert_eq!(series.samples.iter().map(|sample| sample.time).collect::<Vec<_>>(), [120, 130]);
    }

    #[test]
    fn a_clock_that_goes_back_starts_a_series_anew() {
        let mut series = Series::new(HOUR_STEP, 9);
        series.add(&counters(100, 10));
        assert_eq!(series.add(&counters(20, 20)), None);
        assert_eq!(series.add(&counters(30, 40)).unwrap().accepted, 2.0);
    }

    #[test]
    fn an_hour_and_a_day_are_kept() {
        let mut history = History::default();
        (0..=360).for_each(|ten| history.add(&counters(1000 + ten * 10, ten)));
        let (hour, day) = (history.answer(HistorySpan::Hour), history.answer(HistorySpan::Day));
        assert_eq!((hour.samples.len(), hour.step_seconds), (360, 10));
        assert_eq!((day.samples.len(), day.step_seconds), (15, 240));
    }
}
