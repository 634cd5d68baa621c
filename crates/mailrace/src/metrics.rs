//! What the server counts of itself, in the text format of Prometheus. No label's values come from outside.

use std::fmt::Write;

use spool::{Histogram, Stats};

/// What the metrics tell, read at one moment.
pub struct Reading {
    /// Sessions.
    pub sessions: usize,
    /// Recipients that wait or are in flight.
    pub recipients: usize,
    /// Log lines that were lost.
    pub log_lines_dropped: u64,
    /// A 250 does not wait for the disk.
    pub relaxed: bool,
    /// What the spool counts.
    pub spool: Stats,
}

/// All metrics.
pub fn text(reading: &Reading) -> String {
    let mut out = Text(String::new());
    out.gauge("mailrace_sessions", "Sessions now", reading.sessions as u64);
    out.gauge("mailrace_queue_recipients", "Recipients that wait or are in flight", reading.recipients as u64);
    out.counter("mailrace_log_lines_dropped_total", "Log lines that were lost", reading.log_lines_dropped);
    out.gauge("mailrace_spool_relaxed", "Whether a power loss may take accepted mail", u64::from(reading.relaxed));
    out.spool(&reading.spool);
    out.0
}

struct Text(String);

impl Text {
    fn spool(&mut self, stats: &Stats) {
        self.gauge("mailrace_spool_messages", "Messages with recipients left", stats.messages_live);
        self.counter("mailrace_spool_committed_total", "Messages accepted", stats.messages_committed);
        self.counter("mailrace_spool_copied_total", "Messages copied forward", stats.messages_copied);
        self.counter("mailrace_spool_set_aside_total", "Damaged places set aside", stats.set_aside);
        self.counter("mailrace_spool_batches_failed_total", "Batches that failed", stats.batches_failed);
        self.gauge("mailrace_spool_segments", "Segment files", stats.segments);
        self.gauge("mailrace_spool_segments_free", "Segment files that are free", stats.segments_free);
        self.histogram("mailrace_spool_batch_records", "Records in a batch", &stats.batch_records, 1.0);
        self.histogram("mailrace_spool_sync_seconds", "Time to write and sync a batch", &stats.sync_micros, 1e6);
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.single(name, help, "gauge", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.single(name, help, "counter", value);
    }

    fn single(&mut self, name: &str, help: &str, kind: &str, value: u64) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"));
    }

    /// Values are stored in units of which `scale` make one of the metric's.
    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram, scale: f64) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} histogram"));
        let mut below = 0;
        for (power, count) in histogram.buckets[..Histogram::BUCKETS - 1].iter().enumerate() {
            below += count;
            let bound = (1u64 << power) as f64 / scale;
            self.line(format_args!("{name}_bucket{{le=\"{bound}\"}} {below}"));
        }
        let (count, sum) = (histogram.count(), histogram.sum as f64 / scale);
        self.line(format_args!("{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let mut batch_records = Histogram { sum: 9, ..Histogram::default() };
        (batch_records.buckets[0], batch_records.buckets[3]) = (1, 1);
        let mut sync_micros = Histogram { sum: 20_001_500, ..Histogram::default() };
        (sync_micros.buckets[11], sync_micros.buckets[Histogram::BUCKETS - 1]) = (1, 1);
        let spool = Stats {
            messages_live: 4,
            messages_committed: 5,
            batch_records,
            sync_micros,
            batches_failed: 6,
            segments: 7,
            segments_free: 8,
            messages_copied: 9,
            set_aside: 10,
        };
        let reading = Reading { sessions: 1, recipients: 2, log_lines_dropped: 3, relaxed: true, spool };
        insta::assert_snapshot!(text(&reading));
    }
}
