//! The progress of a load: a progress bar on a terminal, and a line in postal's format each minute.
//!
//! The progress bar goes to standard error if that is a terminal. The line goes to standard output,
//! as postal's does, or to standard error if the report is JSON.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use crate::BenchError;
use crate::tally::{LoadCounts, LoadTally};

/// The progress bar. Nothing is drawn if standard error is not a terminal.
pub(crate) struct ProgressView {
    bar: ProgressBar,
    unit: &'static str,
    /// The time limit, if the run has no count.
    duration: Option<Duration>,
    begun: Instant,
    last_counts: LoadCounts,
    last_shown_at: Instant,
}

impl ProgressView {
    pub(crate) fn new(count: Option<u64>, duration: Option<Duration>, unit: &'static str) -> ProgressView {
        let length = count.or(duration.map(|duration| duration.as_millis() as u64));
        let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let drawn = if length.is_some() {
            "[{elapsed_precise}] {bar:24} {percent}% {wide_msg}"
        } else {
            "[{elapsed_precise}] {wide_msg}"
        };
        bar.set_style(ProgressStyle::with_template(drawn).expect("the template is well-formed"));
        let now = Instant::now();
        let duration = duration.filter(|_| count.is_none());
        ProgressView { bar, unit, duration, begun: now, last_counts: LoadCounts::default(), last_shown_at: now }
    }

    /// Draws the current state. `sum` is only called if the bar is visible.
    pub(crate) fn show(&mut self, sum: impl Fn() -> LoadTally) {
        if self.bar.is_hidden() {
            return;
        }
        let (tally, now) = (sum(), Instant::now());
        let seconds = (now - self.last_shown_at).as_secs_f64().max(1e-3);
        let rate = (tally.counts.done - self.last_counts.done) as f64 / seconds;
        (self.last_counts, self.last_shown_at) = (tally.counts, now);
        let ended = tally.counts.done + tally.counts.failed;
        self.bar.set_position(if self.duration.is_some() { (now - self.begun).as_millis() as u64 } else { ended });
        self.bar.set_message(format!(
            "{} {}, {rate:.0}/s, {} in flight, p50 {:.1} ms, p99 {:.1} ms, {} errors",
            tally.counts.done,
            self.unit,
            tally.counts.in_flight(),
            tally.latency.value_at_quantile(0.5) as f64 / 1e3,
            tally.latency.value_at_quantile(0.99) as f64 / 1e3,
            tally.counts.errors,
        ));
    }

    /// Runs `write` without disturbing the bar.
    pub(crate) fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }

    /// Removes the bar from the terminal.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Writes a line each minute with the counts of that minute, in the format of postal.
pub(crate) struct MinuteLines {
    /// Standard output is reserved for a JSON report.
    to_stderr: bool,
    is_title_written: bool,
    last_counts: LoadCounts,
}

impl MinuteLines {
    pub(crate) fn new(to_stderr: bool) -> MinuteLines {
        MinuteLines { to_stderr, is_title_written: false, last_counts: LoadCounts::default() }
    }

    /// Writes the line for the time since the last one.
    pub(crate) fn write(&mut self, counts: &LoadCounts) -> Result<(), BenchError> {
        let line = self.line(&wall_clock(), counts);
        let written = if self.to_stderr {
            io::stderr().write_all(line.as_bytes())
        } else {
            io::stdout().write_all(line.as_bytes()).and_then(|()| io::stdout().flush())
        };
        written.map_err(BenchError::system("writing the line of the minute"))
    }

    /// The line, the first time with its header.
    fn line(&mut self, time: &str, counts: &LoadCounts) -> String {
        let title =
            if self.is_title_written { "" } else { "time,messages,data(K),errors,connections,SSL connections\n" };
        let before = std::mem::replace(&mut self.last_counts, *counts);
        self.is_title_written = true;
        format!(
            "{title}{time},{},{},{},{},{}\n",
            counts.done - before.done,
            (counts.octets - before.octets) / 1024,
            counts.errors - before.errors,
            counts.connections - before.connections,
            counts.tls_connections - before.tls_connections,
        )
    }
}

/// Hours and minutes, UTC.
fn wall_clock() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let minutes = since.as_secs() / 60;
    format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_the_counts_of_its_minute_in_the_order_of_postal() {
        let mut lines = MinuteLines::new(false);
        let first = LoadCounts {
            done: 10,
            octets: 20_480,
            errors: 1,
            connections: 4,
            tls_connections: 2,
            ..LoadCounts::default()
        };
        let title = "time,messages,data(K),errors,connections,SSL connections\n";
        assert_eq!(lines.line("09:59", &first), format!("{title}09:59,10,20,1,4,2\n"));
        let second = LoadCounts { done: 15, octets: 30_720, errors: 1, connections: 9, tls_connections: 5, ..first };
        assert_eq!(lines.line("10:00", &second), "10:00,5,10,0,5,3\n");
    }
}
