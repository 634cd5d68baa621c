//! `mailrace log summary`: the amounts of mail by sender and recipient, delays, and the reasons for
//! refusals, deferrals and bounces.
//!
//! It reads the log once, line by line, in memory that does not depend on the size of the log:
//! [`top::TopCounter`] tracks a bounded number of names, [`count::LogSummary`] a bounded number of
//! messages. Unknown lines are counted and ignored. Only a file that cannot be read is an error.

mod count;
mod json;
mod text;
mod top;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use crate::exit::{self, ExitError};
use crate::log_lines::{LINE_OCTETS_MAX, next_line};
use crate::output::output;
use count::LogSummary;

/// The first bytes of a file compressed with gzip (RFC 1952 section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Options of `log summary`.
#[derive(Args, Debug)]
pub struct Options {
    /// Log files in text or JSON; none, or "-": standard input
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Maximum number of lines in each list
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Reads the files and prints their summary.
///
/// # Errors
///
/// A file cannot be read, or is compressed.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut summary = LogSummary::default();
    if options.files.is_empty() {
        read(&mut io::stdin().lock(), &mut summary).context("reading standard input")?;
    }
    options.files.iter().try_for_each(|path| read_file(path, &mut summary))?;
    let shown = match options.json {
        true => format!("{:#}\n", json::render(&summary, options.top)),
        false => text::render(&summary, options.top),
    };
    Ok(output().write_all(shown.as_bytes())?)
}

fn read_file(path: &Path, summary: &mut LogSummary) -> anyhow::Result<()> {
    if path == Path::new("-") {
        return Ok(read(&mut io::stdin().lock(), summary)?);
    }
    let named = || format!("reading {}", path.display());
    let mut file = BufReader::with_capacity(LINE_OCTETS_MAX, File::open(path).with_context(named)?);
    if file.fill_buf().with_context(named)?.starts_with(&GZIP) {
        let text = format!("{0} is compressed: use zcat {0} | mailrace log summary", path.display());
        return Err(ExitError { code: exit::DATA, text }.into());
    }
    read(&mut file, summary).with_context(named)
}

/// Counts all lines of a log.
fn read(log: &mut dyn BufRead, summary: &mut LogSummary) -> io::Result<()> {
    let mut octets = Vec::new();
    while next_line(log, &mut octets)? {
        match str::from_utf8(&octets).ok().and_then(server_log::parse_line) {
            Some(line) => summary.count(&line),
            None => summary.count_unreadable(),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mail::{Address, EnhancedCode, LoggedHeader, MailEvent, QueueId, Reply, SpoolId, Timestamp};

    use super::*;
    use mail::LogLevel;
    use server_log::{LogEntry, LogFormat};

    const START: u64 = 1_795_196_776_123;

    fn id(n: u64) -> QueueId {
        QueueId::new(SpoolId::new(77), 0, n)
    }

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn received(n: u64, from: &str, size: u64, recipients: usize) -> MailEvent {
        MailEvent::Received {
            id: id(n),
            client: Some("192.0.2.1".parse().unwrap()),
            helo: "mx.example.net".into(),
            sender: (!from.is_empty()).then(|| address(from)),
            recipients,
            size,
            protocol: "ESMTP",
            security: None,
            user: None,
            header: LoggedHeader { message_id: Some("<1@\"x\" y>".into()), subject: None },
            auth: None,
        }
    }

    fn delivered(n: u64, to: &str, relay: Option<&str>, delay_ms: u64) -> MailEvent {
        MailEvent::Delivered {
            id: id(n),
            sender: None,
            recipient: address(to),
            transport: "maildir".into(),
            relay: relay.map(|host| (host.into(), Reply::without_enhanced_code(250, "ok"))),
            tls: None,
            delay: Duration::from_millis(delay_ms),
        }
    }

    fn deferred(n: u64, to: &str, text: &str) -> MailEvent {
        MailEvent::Deferred {
            id: id(n),
            sender: None,
            recipient: address(to),
            transport: "smtp".into(),
            relay: None,
            reason: Reply::new(450, EnhancedCode(4, 2, 0), text.to_owned()),
            until: Timestamp(START),
        }
    }

    fn bounced(n: u64, to: &str) -> MailEvent {
        MailEvent::Bounced {
            id: id(n),
            sender: None,
            recipient: address(to),
            transport: "smtp".into(),
            relay: Some("mx.example.com[192.0.2.25]:25".into()),
            reason: Reply::new(550, EnhancedCode(5, 1, 1), "no \"such\" user"),
            bounce: None,
        }
    }

    fn refused(stage: &'static str, rule: Option<&str>, reply: Reply) -> MailEvent {
        let (client, helo) = (Some("198.51.100.9".parse().unwrap()), "x".into());
        MailEvent::Refused { client, helo, stage, address: None, rule: rule.map(Into::into), reply }
    }

    fn login(result: &'static str) -> MailEvent {
        let (client, helo) = (Some("198.51.100.9".parse().unwrap()), "x".into());
        MailEvent::Login { client, helo, user: "bob".into(), mechanism: "PLAIN", result }
    }

    /// A log as the server writes it: one line every half hour.
    fn log(format: LogFormat) -> String {
        let facts = [
            received(1, "a@example.net", 6000, 2),
            delivered(1, "bob@example.org", None, 12),
            delivered(1, "carol@example.com", Some("mx.example.com[192.0.2.25]:25"), 1500),
            received(2, "a@example.net", 500, 1),
            deferred(2, "dora@slow.example", "greylisted <dora@slow.example>, wait 300 s"),
            deferred(2, "dora@slow.example", "greylisted <dora@slow.example>, wait 17 s"),
            received(3, "", 100, 1),
            bounced(3, "nobody@example.com"),
            refused("RCPT", None, Reply::new(550, EnhancedCode(5, 7, 1), "Relaying denied")),
            refused("connect", Some("listed"), Reply::new(554, EnhancedCode(5, 7, 1), "Access denied")),
            refused("MAIL", None, Reply::new(452, EnhancedCode(4, 3, 1), "Not enough memory")),
            login("refused"),
            login("ok"),
            MailEvent::TlsFailed { client: None, helo: "".into(), reason: "eof".into() },
            delivered(9, "bob@example.org", None, 100_000),
        ];
        let mut out = String::new();
        let mut write =
            |n: u64, line| server_log::write_line(&mut out, format, Timestamp(START + n * 1_800_000), &line);
        (0..).zip(facts).for_each(|(n, fact)| write(n, LogEntry::Mail(fact)));
        write(15, LogEntry::Server { level: LogLevel::Warning, text: "a table is down".into(), fields: Vec::new() });
        out
    }

    fn summed_up(log: &str) -> LogSummary {
        let mut summary = LogSummary::default();
        read(&mut log.as_bytes(), &mut summary).unwrap();
        summary
    }

    #[test]
    fn a_log_is_summed_up_for_people() {
        insta::assert_snapshot!(text::render(&summed_up(&log(LogFormat::Text)), 10));
    }

    #[test]
    fn a_log_is_summed_up_as_json_whatever_its_format_is() {
        let [text, json] = [LogFormat::Text, LogFormat::Json].map(|format| json::render(&summed_up(&log(format)), 10));
        assert_eq!(text, json);
        insta::assert_snapshot!(format!("{text:#}"));
    }

    #[test]
    fn an_empty_log_has_a_summary() {
        insta::assert_snapshot!(text::render(&LogSummary::default(), 10));
    }

    #[test]
    fn prefixes_of_syslog_and_the_journal_make_no_difference() {
        let log = log(LogFormat::Text);
        let expected = json::render(&summed_up(&log), 10);
        for prefix in ["Nov 20 17:46:16 mx1 mailrace[12]: ", "2026-11-20T17:46:16.123456+00:00 mx1 mailrace[1]: "] {
            let prefixed: String = log.lines().map(|line| format!("{prefix}{line}\r\n")).collect();
            assert_eq!(json::render(&summed_up(&prefixed), 10), expected, "{prefix}");
        }
    }

    #[test]
    fn what_is_none_of_ours_is_counted_and_stops_nothing() {
        let log = log(LogFormat::Text);
        let long = "x".repeat(3 * LINE_OCTETS_MAX);
        let noise = ["", "{", "{}", "2026-11-20T17:46:16.123Z", "2026-11-20T17:46:16.123Z delivered id=\"1", &long];
        let mut octets = b"\xff\n".to_vec();
        octets.extend(noise.iter().flat_map(|line| [line, "\n"]).flat_map(str::bytes));
        octets.extend_from_slice(log.as_bytes());
        octets.extend_from_slice(b"2026-11-20T17:46:16.123Z rece");
        let mut summary = LogSummary::default();
        read(&mut &*octets, &mut summary).unwrap();
        let (found, plain) = (json::render(&summary, 10), json::render(&summed_up(&log), 10));
        assert_eq!(found["unreadable_lines"], 8);
        assert_eq!((&found["received"], &found["by_hour"]), (&plain["received"], &plain["by_hour"]));
    }

    #[test]
    fn every_cut_of_a_log_can_be_read() {
        let log = log(LogFormat::Json);
        (0..log.len()).filter(|at| log.is_char_boundary(*at)).for_each(|at| drop(summed_up(&log[at..])));
    }
}
