//! The progress of a load: a progress bar on a terminal, and a line in postal's format each minute.
//!
//! The progress bar goes to standard error if that is a terminal. The line goes to standard output,
//! as postal's does, or to standard error if the report is JSON.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use crate::Fault;
use crate::tally::{Counts, Tally};

/// The progress bar. Nothing is drawn if standard error is not a terminal.
pub(crate) struct View {
    bar: ProgressBar,
    unit: &'static str,
    /// The time limit, if the run has no count.
    duration: Option<Duration>,
    begun: Instant,
    seen: Counts,
    seen_at: Instant,
}

impl View {
    pub(crate) fn new(count: Option<u64>, duration: Option<Duration>, unit: &'static str) -> View {
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
        View { bar, unit, duration, begun: now, seen: Counts::default(), seen_at: now }
    }

    /// Draws the current state. `sum` is only called if the bar is visible.
    pub(crate) fn show(&mut self, sum: impl Fn() -> Tally) {
        if self.bar.is_hidden() {
            return;
        }
        let (tally, now) = (sum(), Instant::now());
        let seconds = (now - self.seen_at).as_secs_f64().max(1e-3);
        let rate = (tally.counts.done - self.seen.done) as f64 / seconds;
        (self.seen, self.seen_at) = (tally.counts, now);
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
    pub(crate) fn above<T>(&self, write: impl FnOnce() -> T) -> T {
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
    aside: bool,
    titled: bool,
    before: Counts,
}

impl MinuteLines {
    pub(crate) fn new(aside: bool) -> MinuteLines {
        MinuteLines { aside, titled: false, before: Counts::default() }
    }

    /// Writes the line for the time since the last one.
    pub(crate) fn write(&mut self, counts: &Counts) -> Result<(), Fault> {
        let line = self.line(&wall_clock(), counts);
        let written = if self.aside {
            io::stderr().write_all(line.as_bytes())
        } else {
            io::stdout().write_all(line.as_bytes()).and_then(|()| io::stdout().flush())
        };
        written.map_err(Fault::system("writing the line of the minute"))
    }

    /// The line, the first time with its header.
    fn line(&mut self, time: &str, counts: &Counts) -> String {
        let title = if self.titled { "" } else { "time,messages,data(K),errors,connections,SSL connections\n" };
        let before = std::mem::replace(&mut self.before, *counts);
        self.titled = true;
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
    fn each_minutes_line_has_what_that_minute_brought_in_postals_order() {
        let mut lines = MinuteLines::new(false);
        let first =
            Counts { done: 10, octets: 20_480, errors: 1, connections: 4, tls_connections: 2, ..Counts::default() };
        let title = "time,messages,data(K),errors,connections,SSL connections\n";
        assert_eq!(lines.line("09:59", &first), format!("{title}09:59,10,20,1,4,2\n"));
        let second = Counts { done: 15, octets: 30_720, errors: 1, connections: 9, tls_connections: 5, ..first };
        assert_eq!(lines.line("10:00", &second), "10:00,5,10,0,5,3\n");
    }
}
