//! The summary as text: tables with the largest rows first. Empty lists are omitted.

use std::time::Duration;

use super::count::{DelayHistogram, DestinationCounts, HourCounts, LogSummary};
use super::top::TopCounter;
use control::columns::{Align, ColumnTable};
use server_log::MailEventKind;

/// With more hours, each row is a day.
const HOURS_SHOWN_MAX: usize = 48;
/// `2026-11-20`.
const DAY_OCTETS: usize = 10;

/// The whole summary, with at most `top` rows per list.
pub(super) fn render(summary: &LogSummary, top: usize) -> String {
    let mut page = TextReport { text: String::new(), top };
    page.text.push_str(&totals(summary));
    page.delays(summary);
    page.amounts("Senders", &summary.received.senders);
    page.amounts("Clients", &summary.received.clients);
    page.amounts("Users", &summary.received.users);
    page.destinations("Recipient domains", &summary.domains);
    page.destinations("Next hops", &summary.next_hops);
    page.counts("Refused: stage and reply", &summary.refused.reasons);
    page.counts("Refused: clients", &summary.refused.clients);
    page.counts("Refused: access rules", &summary.refused.rules);
    page.counts("Deferred: reasons", &summary.deferred);
    page.counts("Bounced: reasons", &summary.bounced);
    page.counts("Logins: results", &summary.logins);
    page.counts("Logins: clients with failures", &summary.login_failures);
    page.counts("Warnings and errors", &summary.warnings);
    page.hours(summary);
    page.text
}

fn totals(summary: &LogSummary) -> String {
    let span = summary.span.as_ref().map_or(String::new(), |(first, last)| format!(", {first} to {last}"));
    let (open, unfollowed) = summary.open();
    let mut table = ColumnTable::new(&[("", Align::Left), ("", Align::Right), ("", Align::Left)]);
    let mut row = |what: &str, count: u64, more: String| table.row(vec![what.into(), count.to_string(), more]);
    let (received, delivered) = (&summary.received, &summary.delivered);
    row(
        "received",
        summary.event(MailEventKind::Received),
        format!("messages, {}, for {} recipients", format_bytes(received.octets), received.recipients),
    );
    row(
        "delivered",
        summary.event(MailEventKind::Delivered),
        format!("recipients, {}", format_bytes(delivered.octets)),
    );
    row("deferred", summary.event(MailEventKind::Deferred), "attempts".into());
    row("bounced", summary.event(MailEventKind::Bounced), "recipients".into());
    row("open", open, "recipients without a final outcome in this log".into());
    row("refused", summary.refused.temporarily, "replies with 4xx".into());
    row("", summary.refused.permanently, "replies with 5xx".into());
    let others = [
        (MailEventKind::Discarded, "messages"),
        (MailEventKind::Held, "recipients"),
        (MailEventKind::Released, "recipients"),
        (MailEventKind::Removed, "recipients"),
        (MailEventKind::Insecure, "TLS handshakes failed"),
        (MailEventKind::SetAside, "damaged records"),
    ];
    for (event, what) in others {
        if summary.event(event) > 0 {
            row(event.name(), summary.event(event), what.into());
        }
    }
    let notes = [
        (summary.unreadable, "lines were ignored: not in the format of this log"),
        (delivered.without_size, "deliveries have no size, because the log does not contain the start of the message"),
        (unfollowed, "recipients were not tracked to the end: too many concurrent messages"),
    ];
    let notes = notes.iter().filter(|(count, _)| *count > 0).map(|(count, text)| format!("{count} {text}\n"));
    // The heading is empty.
    let rows = table.lines().skip(1).map(|line| format!("  {line}\n"));
    [format!("{} lines{span}\n\n", summary.lines)].into_iter().chain(rows).chain(notes).collect()
}

struct TextReport {
    text: String,
    top: usize,
}

impl TextReport {
    fn add_table(&mut self, title: &str, table: &ColumnTable) {
        self.text.push_str(&format!("\n{title}\n"));
        table.lines().for_each(|line| self.text.push_str(&format!("  {line}\n")));
    }

    fn counts(&mut self, title: &str, list: &TopCounter<()>) {
        let mut table = ColumnTable::new(&[("COUNT", Align::Right), ("WHAT", Align::Left)]);
        list.top(self.top).into_iter().for_each(|(name, row)| table.row(vec![row.count.to_string(), name.into()]));
        if !list.is_empty() {
            self.add_table(title, &table);
        }
    }

    fn amounts(&mut self, title: &str, list: &TopCounter<u64>) {
        let mut table = ColumnTable::new(&[("MESSAGES", Align::Right), ("OCTETS", Align::Right), ("WHO", Align::Left)]);
        for (name, row) in list.top(self.top) {
            table.row(vec![row.count.to_string(), format_bytes(row.detail), name.into()]);
        }
        if !list.is_empty() {
            self.add_table(title, &table);
        }
    }

    fn destinations(&mut self, title: &str, list: &TopCounter<DestinationCounts>) {
        let numbers = ["DELIVERED", "OCTETS", "DEFERRED", "BOUNCED", "MEAN DELAY"].map(|name| (name, Align::Right));
        let mut table = ColumnTable::new(&[&numbers[..], &[("WHERE", Align::Left)]].concat());
        for (name, row) in list.top(self.top) {
            let DestinationCounts { delivered, octets: size, deferred, bounced, delay_ms } = &row.detail;
            let delay = delay_ms.checked_div(*delivered).map_or("-".into(), format_duration);
            let numbers =
                [delivered.to_string(), format_bytes(*size), deferred.to_string(), bounced.to_string(), delay];
            table.row(numbers.into_iter().chain([name.into()]).collect());
        }
        if !list.is_empty() {
            self.add_table(title, &table);
        }
    }

    fn delays(&mut self, summary: &LogSummary) {
        let names = ["RECIPIENTS", "P50", "P90", "P99", "MAX"].map(|name| (name, Align::Right));
        let mut table = ColumnTable::new(&[&names[..], &[("TO", Align::Left)]].concat());
        let (local, relayed) = (&summary.delivered.local, &summary.delivered.relayed);
        let known = [(local, "local mailboxes"), (relayed, "other hosts")];
        for (delays, to) in known.into_iter().filter(|(delays, _)| delays.count() > 0) {
            table.row(delay_row(delays, to));
        }
        if local.count() + relayed.count() > 0 {
            self.add_table("Delay from received to delivered", &table);
        }
    }

    fn hours(&mut self, summary: &LogSummary) {
        let (title, rows) = by_time(summary);
        let names = ["RECEIVED", "DELIVERED", "DEFERRED", "BOUNCED", "REFUSED"].map(|name| (name, Align::Right));
        let mut table = ColumnTable::new(&[&[("TIME", Align::Left)], &names[..]].concat());
        for (time, HourCounts { received, delivered, deferred, bounced, refused }) in &rows {
            let numbers = [received, delivered, deferred, bounced, refused].map(u64::to_string);
            table.row([(*time).to_owned()].into_iter().chain(numbers).collect());
        }
        if !rows.is_empty() {
            self.add_table(title, &table);
        }
    }
}

fn delay_row(delays: &DelayHistogram, to: &str) -> Vec<String> {
    let percentiles = [50.0, 90.0, 99.0].map(|percent| format_duration(delays.percentile(percent)));
    let first = [delays.count().to_string()].into_iter();
    first.chain(percentiles).chain([format_duration(delays.max()), to.to_owned()]).collect()
}

/// By hour, or by day if there are many hours.
fn by_time(summary: &LogSummary) -> (&'static str, Vec<(&str, HourCounts)>) {
    if summary.hours.len() <= HOURS_SHOWN_MAX {
        return ("By hour (UTC)", summary.hours.iter().map(|(hour, counts)| (&**hour, *counts)).collect());
    }
    let mut days: Vec<(&str, HourCounts)> = Vec::new();
    for (hour, counts) in &summary.hours {
        let day = &hour[..DAY_OCTETS];
        match days.last_mut() {
            Some((known, sum)) if *known == day => sum.add(counts),
            _ => days.push((day, *counts)),
        }
    }
    ("By day (UTC)", days)
}

/// The size in a unit that needs few digits.
fn format_bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let (mut value, mut unit) = (count as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// The duration, from milliseconds.
fn format_duration(ms: u64) -> String {
    let span = Duration::from_millis(ms);
    match span.as_secs() {
        0 => format!("{ms} ms"),
        1..120 => format!("{:.1} s", span.as_secs_f64()),
        120..7200 => format!("{} min", span.as_secs() / 60),
        7200..172_800 => format!("{} h", span.as_secs() / 3600),
        _ => format!("{} d", span.as_secs() / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use server_log::parse_line;

    #[test]
    fn units_are_those_in_which_there_are_few_digits() {
        assert_eq!(
            [0, 1023, 1536, 5 << 30, u64::MAX].map(format_bytes),
            ["0 B", "1023 B", "1.5 KiB", "5.0 GiB", "16777216.0 TiB"]
        );
        let spans = [0, 999, 1500, 119_999, 120_000, 7_200_000, 172_800_000].map(format_duration);
        assert_eq!(spans, ["0 ms", "999 ms", "1.5 s", "120.0 s", "2 min", "2 h", "2 d"]);
    }

    #[test]
    fn many_hours_are_shown_as_days_and_controls_as_escapes() {
        let mut summary = LogSummary::default();
        for hour in 0..100 {
            let time = format!("2026-11-{:02}T{:02}:00:00.000Z", 10 + hour / 24, hour % 24);
            let line = format!("{time} refused client=192.0.2.1 helo=x stage=RCPT reply=\"550 \\u001b[2J\"");
            summary.count(&parse_line(&line).unwrap());
        }
        let page = render(&summary, 3);
        assert!(page.contains("\n  2026-11-10         0          0         0        0       24\n"), "{page}");
        assert!(page.contains("RCPT 550 \\u001b[NJ\n"), "{page}");
    }
}
