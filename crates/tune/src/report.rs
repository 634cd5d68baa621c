//! A report as a table for people, and as JSON. Text from files of the host is escaped in both.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use mail::printable;
use serde_json::{Value, json};

use crate::check::{CheckReport, KnobResult, Verdict};
use crate::knob::{ABSENT_ON_FREEBSD, Sureness};
use crate::probe::SyncTimes;
use crate::resolver::ResolverTimes;

/// Sessions that wait for the disk at the same time, in the estimate of a rate with group commit.
const SESSIONS_IN_ESTIMATE: f64 = 100.0;

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Probes {
    /// Syncs in the folder of each lane.
    pub syncs: Vec<SyncTimes>,
    /// Questions to the name server.
    pub resolver: Option<ResolverTimes>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
}

/// The report as text. Without `all` only findings are in the table. `width` is that of the terminal, in columns.
pub fn render_text(report: &CheckReport, probes: &Probes, all: bool, width: u16) -> String {
    let shown: Vec<&KnobResult> = shown(report, all).collect();
    let mut text = String::new();
    if !shown.is_empty() {
        text = table(&shown, width).lines().map(|line| format!("{}\n", line.trim_end())).collect();
        text.push('\n');
    }
    let resolver = probes.resolver.iter().map(resolver_sentence);
    let failures = probes.failures.iter().map(|failure| format!("not measured: {}\n", printable(failure)));
    let sentences = probes.syncs.iter().map(sync_sentence).chain(resolver).chain(failures);
    sentences.for_each(|sentence| text.push_str(&sentence));
    text + &summary(report, all) + "\n"
}

/// The report as one JSON object. Without `all` only findings are in it.
pub fn render_json(report: &CheckReport, probes: &Probes, all: bool) -> String {
    let findings = report.findings().count();
    let object = json!({
        "knobs": report.knobs,
        "findings": findings,
        "unknown": report.unknown(),
        "results": shown(report, all).map(result).collect::<Vec<_>>(),
        "syncs": probes.syncs.iter().map(sync_json).collect::<Vec<_>>(),
        "resolver": probes.resolver.as_ref().map(resolver_json),
        "failed_probes": probes.failures,
    });
    format!("{object:#}").lines().map(|line| format!("{}\n", printable(line))).collect()
}

fn shown(report: &CheckReport, all: bool) -> impl Iterator<Item = &KnobResult> {
    report.results.iter().filter(move |result| all || result.verdict == Verdict::Finding)
}

fn table(results: &[&KnobResult], width: u16) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    table.set_header(["KNOB\n(ON FREEBSD)", "VALUE", "WANTED", "SURE", "WHY", "HOW TO CHANGE"]);
    table.add_rows(results.iter().map(|result| row(result)));
    // Names and commands are copied, so their words should not be cut, and a sentence needs room.
    if results.iter().any(|result| result.verdict == Verdict::Finding) {
        let room = ColumnConstraint::LowerBoundary(Width::Fixed(width / 4));
        table.column_iter_mut().skip(4).for_each(|column| _ = column.set_constraint(room));
    }
    let name_width = |result: &&&KnobResult| names(result).lines().map(|line| line.chars().count()).max();
    if results.iter().filter_map(|result| name_width(&result)).all(|columns| columns < usize::from(width / 4)) {
        table.column_iter_mut().take(1).for_each(|column| _ = column.set_constraint(ColumnConstraint::ContentWidth));
    }
    table
}

fn row(result: &KnobResult) -> [String; 6] {
    let is_finding = result.verdict == Verdict::Finding;
    let value = result.value.as_deref().unwrap_or(result.verdict.name());
    [
        names(result),
        printable(value).into_owned(),
        printable(&result.wanted).into_owned(),
        if is_finding { result.sureness.name() } else { result.verdict.name() }.to_owned(),
        explanation(result),
        if is_finding { printable(&result.how).into_owned() } else { String::new() },
    ]
}

/// Why a finding is one, or why a value is unknown; else what the knob is.
fn explanation(result: &KnobResult) -> String {
    let knob = &result.knob;
    match (result.verdict, &result.value) {
        (Verdict::Finding, _) => format!("{} ({})", knob.why, knob.source),
        (Verdict::Unknown, None) => {
            let place = ["{disk}", "{ssd}", "{hdd}"]
                .iter()
                .fold(knob.linux.clone(), |place, word| place.replace(word, &printable(&result.subject)));
            format!("{}: nothing could be read from {place}", knob.title)
        }
        (Verdict::Unknown, Some(_)) => format!("{}: whether this is well cannot be seen. {}", knob.title, knob.why),
        (Verdict::Well | Verdict::Absent, _) => knob.title.clone(),
    }
}

/// The name, and below it that of the same on FreeBSD.
fn names(result: &KnobResult) -> String {
    let knob = &result.knob;
    let name = match result.subject.is_empty() {
        true => knob.name.clone(),
        false => format!("{} {}", knob.name, printable(&result.subject)),
    };
    if knob.freebsd == ABSENT_ON_FREEBSD { name } else { format!("{name}\n({})", knob.freebsd) }
}

fn summary(report: &CheckReport, all: bool) -> String {
    let count = |sureness| report.findings().filter(|finding| finding.sureness == sureness).count();
    let findings = report.findings().count();
    format!(
        "{} knobs looked at, {} unknown{}; {findings} {} ({} sure, {} likely, {} depending on the load)",
        report.knobs,
        report.unknown(),
        if all || report.unknown() == 0 { "" } else { " (--all says why)" },
        if findings == 1 { "finding" } else { "findings" },
        count(Sureness::Sure),
        count(Sureness::Likely),
        count(Sureness::Depends),
    )
}

fn sync_sentence(probe: &SyncTimes) -> String {
    let (single, shared) = rates(probe);
    format!(
        "{}: {} writes of 4 KiB, each with a sync: {:.2} ms in the median, {:.2} at best, {:.2} at worst. This allows \
         {single:.0} messages a second with a sync for each, and up to {shared:.0} if {SESSIONS_IN_ESTIMATE} sessions \
         share each sync\n",
        printable(&probe.folder.display().to_string()),
        probe.count,
        probe.median_us / 1e3,
        probe.min_us / 1e3,
        probe.max_us / 1e3,
    )
}

fn resolver_sentence(probe: &ResolverTimes) -> String {
    let ResolverTimes { server, count, median_us } = probe;
    match median_us {
        Some(median_us) => format!(
            "{server}: {count} questions, {:.2} ms in the median. A caching resolver on this host takes less than 1 ms\n",
            median_us / 1e3,
        ),
        None => format!("{server}: no answer within {} s\n", ResolverTimes::WAIT_MAX.as_secs()),
    }
}

/// Messages a second with a sync for each, and with a sync for all sessions together.
fn rates(probe: &SyncTimes) -> (f64, f64) {
    let single = 1e6 / probe.median_us.max(1.0);
    (single, single * SESSIONS_IN_ESTIMATE)
}

fn resolver_json(probe: &ResolverTimes) -> Value {
    json!({ "server": probe.server.to_string(), "count": probe.count, "median_us": probe.median_us })
}

fn sync_json(probe: &SyncTimes) -> Value {
    let (single, shared) = rates(probe);
    json!({
        "folder": probe.folder.display().to_string(),
        "count": probe.count,
        "min_us": probe.min_us,
        "median_us": probe.median_us,
        "max_us": probe.max_us,
        "messages_per_second": single,
        "messages_per_second_of_100_sessions": shared,
    })
}

fn result(result: &KnobResult) -> Value {
    let knob = &result.knob;
    json!({
        "name": knob.name,
        "title": knob.title,
        "group": knob.group,
        "subject": result.subject,
        "verdict": result.verdict.name(),
        "value": result.value,
        "wanted": result.wanted,
        "sure": result.sureness,
        "why": knob.why,
        "source": knob.source,
        "how": result.how,
        "live": knob.live,
        "linux": knob.linux,
        "freebsd": knob.freebsd,
    })
}
