//! Compares every knob with what is wanted.

use crate::host::Host;
use crate::knob::{Knob, KnobGroup, Sureness, knobs};
use crate::read::readings;
use crate::rule::judge;
use crate::settings::ServerSettings;
use crate::survey::{Observed, Reading, Survey};

/// What a check found, in the order in which it is printed: findings first, the surest before the others.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// One result for each value of each knob. Knobs that apply to nothing on this host have none.
    pub results: Vec<KnobResult>,
    /// The number of knobs in the table.
    pub knobs: usize,
}

/// A value of a knob, compared with what is wanted.
#[derive(Clone, Debug)]
pub struct KnobResult {
    /// The knob.
    pub knob: Knob,
    /// The disk, file system, folder or table; empty if the knob has only one value.
    pub subject: String,
    /// The value as it is printed; None if it is unknown or absent.
    pub value: Option<String>,
    /// What is wanted, as it is printed; empty if the value is unknown or absent.
    pub wanted: String,
    /// The result.
    pub verdict: Verdict,
    /// How sure it is that a value other than the wanted one is worse.
    pub sureness: Sureness,
    /// How to change it.
    pub how: String,
    /// The value that `tune apply` sets if the operator names none; None: it only advises.
    pub target: Option<String>,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The value is not as wanted.
    Finding,
    /// The value could not be read or judged.
    Unknown,
    /// The value is as wanted.
    Well,
    /// The host lacks what the knob controls.
    Absent,
}

impl Verdict {
    /// The word in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Finding => "finding",
            Verdict::Unknown => "unknown",
            Verdict::Well => "well",
            Verdict::Absent => "absent",
        }
    }
}

impl CheckReport {
    /// The values that are not as wanted.
    pub fn findings(&self) -> impl Iterator<Item = &KnobResult> {
        self.results.iter().filter(|result| result.verdict == Verdict::Finding)
    }

    /// This report with the results of `former` for the settings of the server: what its host needs once they have changed
    /// is in this one.
    pub fn with_settings_of(mut self, former: &CheckReport) -> CheckReport {
        let is_setting = |result: &&KnobResult| result.knob.group == KnobGroup::Server;
        self.results.retain(|result| !is_setting(&result));
        self.results.extend(former.results.iter().filter(is_setting).cloned());
        self.results.sort_by_key(|result| (result.verdict, result.sureness));
        self
    }

    /// The number of knobs with a value that is unknown.
    pub fn unknown(&self) -> usize {
        let unknown = self.results.iter().filter(|result| result.verdict == Verdict::Unknown);
        let mut names: Vec<_> = unknown.map(|result| &result.knob.name).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }
}

/// Looks at all knobs of a host, for a server with these settings. Changes nothing.
pub fn check(host: &Host, settings: &ServerSettings) -> CheckReport {
    let survey = Survey::new(host, settings);
    let knobs = knobs();
    let each =
        |knob: &Knob| readings(knob, &survey).into_iter().map(|it| compare(knob, it, &survey)).collect::<Vec<_>>();
    let mut results: Vec<KnobResult> = knobs.iter().flat_map(each).collect();
    results.sort_by_key(|result| (result.verdict, result.sureness));
    CheckReport { results, knobs: knobs.len() }
}

fn compare(knob: &Knob, reading: Reading, survey: &Survey<'_>) -> KnobResult {
    let unjudged = |verdict, value| KnobResult {
        knob: knob.clone(),
        subject: reading.subject.clone(),
        value,
        wanted: String::new(),
        verdict,
        sureness: knob.sure,
        how: instruction(knob, &reading, ""),
        target: knob.value_to_apply(""),
    };
    let value = match &reading.observed {
        Observed::Value(value) => value,
        Observed::Absent => return unjudged(Verdict::Absent, None),
        Observed::Unknown => return unjudged(Verdict::Unknown, None),
    };
    let display = value.display(knob.kind);
    let Some(judgement) = judge(knob, value, survey.settings, survey.numbers) else {
        return unjudged(Verdict::Unknown, Some(display));
    };
    let by_hand = instruction(knob, &reading, &judgement.target);
    let target = knob.value_to_apply(&judgement.target);
    KnobResult {
        wanted: judgement.wanted,
        verdict: if judgement.is_met { Verdict::Well } else { Verdict::Finding },
        sureness: judgement.sureness.unwrap_or(knob.sure),
        how: match target {
            Some(_) => format!("mailrace tune apply {}, or: {by_hand}", knob.name),
            None => by_hand,
        },
        target,
        ..unjudged(Verdict::Well, Some(display))
    }
}

/// How to change the value, with the placeholders filled in.
fn instruction(knob: &Knob, reading: &Reading, target: &str) -> String {
    let subject = if reading.subject.is_empty() { "SUBJECT" } else { &reading.subject };
    let device = if reading.device.is_empty() { "DEVICE" } else { &reading.device };
    let target = if target.is_empty() { "VALUE" } else { target };
    knob.how.replace("{wanted}", target).replace("{subject}", subject).replace("{device}", device)
}
