//! The report of a sink, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::rule::SinkRule;
use super::{SinkResult, SinkTally};
use crate::machine_usage::{BYTES_PER_MB, MachineUsage};
use crate::verify::{Comparer, Comparison, PlaceKind};
use crate::{AcknowledgedMessages, RunVerdict};

/// Domains in the text; JSON has all of them.
const DOMAINS_SHOWN: usize = 20;

/// The summary of a sink.
#[derive(Debug, Serialize)]
pub(super) struct SinkSummary {
    messages: u64,
    /// A copy for each recipient of each message.
    recipients: u64,
    octets: u64,
    connections: u64,
    /// The most at a time.
    connections_peak: u64,
    /// From the first connection to the end of the last message.
    seconds: f64,
    /// Messages per second.
    rate: f64,
    /// Recipients by domain, for the first domains.
    domains: BTreeMap<String, u64>,
    /// Recipients in other domains.
    domains_other: u64,
    rules: Vec<RuleCount>,
    /// Only without a ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    seen: Option<CopyCounts>,
    /// Only with a ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Comparison>,
    machine: MachineUsage,
}

/// How often a rule was applied.
#[derive(Debug, Serialize)]
struct RuleCount {
    rule: String,
    met: u64,
}

/// Copies by their state.
#[derive(Debug, Serialize)]
struct CopyCounts {
    sound: u64,
    damaged: u64,
    doubled: u64,
    foreign: u64,
}

impl SinkSummary {
    pub(super) fn of(
        received: &SinkResult,
        rules: &[SinkRule],
        acknowledged: Option<&AcknowledgedMessages>,
        machine: MachineUsage,
    ) -> SinkSummary {
        let SinkResult { tally, sessions_peak: guests_peak, verified, .. } = received;
        let seconds = tally.first_at.zip(tally.last_at).map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        let held = acknowledged.map(|acknowledged| compare(tally, acknowledged));
        let domains = tally.domains.named.iter().map(|(domain, &count)| (domain.to_string(), count));
        let met = |(rule, &met): (&SinkRule, &u64)| RuleCount { rule: rule.to_string(), met };
        SinkSummary {
            messages: tally.messages,
            recipients: tally.recipients,
            octets: tally.octets,
            connections: tally.connections,
            connections_peak: *guests_peak,
            seconds,
            rate: if seconds > 0.0 { tally.messages as f64 / seconds } else { 0.0 },
            domains: domains.collect(),
            domains_other: tally.domains.others,
            rules: rules.iter().zip(&tally.rule_hits).map(met).collect(),
            seen: (*verified && held.is_none()).then(|| CopyCounts::of(&compare_without_ledger(tally))),
            held,
            machine,
        }
    }

    /// Bad if an examined message is damaged or doubled, or one of the ledger never arrived.
    pub(super) fn verdict(&self) -> RunVerdict {
        let seen = self.seen.as_ref().is_none_or(|seen| seen.damaged == 0 && seen.doubled == 0);
        let held = self.held.as_ref().is_none_or(|held| held.verdict() == RunVerdict::Good);
        RunVerdict::from_soundness(seen && held)
    }
}

impl CopyCounts {
    fn of(held: &Comparison) -> CopyCounts {
        let Comparison { copies, damaged, doubled, foreign, .. } = *held;
        CopyCounts { sound: copies - damaged, damaged, doubled, foreign }
    }
}

fn compare(tally: &SinkTally, acknowledged: &AcknowledgedMessages) -> Comparison {
    let mut comparer = Comparer::new(acknowledged, PlaceKind::Recipients);
    tally.copies.add_to(&mut comparer);
    comparer.finish()
}

/// Without a ledger each copy is expected once.
fn compare_without_ledger(tally: &SinkTally) -> Comparison {
    compare(tally, &AcknowledgedMessages::default())
}

impl fmt::Display for SinkSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SinkSummary { messages, recipients, seconds, rate, .. } = self;
        let megabytes = self.octets as f64 / BYTES_PER_MB;
        writeln!(
            f,
            "{messages} messages ({recipients} recipients) in {seconds:.2} s: {rate:.1} a second, {megabytes:.1} MB"
        )?;
        writeln!(f, "{} connections, {} at a time", self.connections, self.connections_peak)?;
        self.write_domains(f)?;
        for RuleCount { rule, met } in &self.rules {
            writeln!(f, "{met:>10}  applied: {rule}")?;
        }
        if let Some(CopyCounts { sound, damaged, doubled, foreign }) = &self.seen {
            writeln!(f, "\n{sound} sound, {damaged} damaged, {doubled} doubled, {foreign} foreign")?;
        }
        if let Some(held) = &self.held {
            write!(f, "\n{held}")?;
        }
        write!(f, "\n{}", self.machine)
    }
}

impl SinkSummary {
    /// Writes the domains, after an empty line if domains or rules follow.
    fn write_domains(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut domains: Vec<_> = self.domains.iter().collect();
        domains.sort_by_key(|&(_, &count)| std::cmp::Reverse(count));
        let shown = domains.len().min(DOMAINS_SHOWN);
        if shown + self.rules.len() > 0 {
            writeln!(f)?;
        }
        domains[..shown].iter().try_for_each(|(domain, count)| writeln!(f, "{count:>10}  {domain}"))?;
        match domains[shown..].iter().map(|&(_, &count)| count).sum::<u64>() + self.domains_other {
            0 => Ok(()),
            more => writeln!(f, "{more:>10}  other domains"),
        }
    }
}
