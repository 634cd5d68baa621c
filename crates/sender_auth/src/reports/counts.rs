//! The counts of a day, in memory: by subject and row, within limits. Pure.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use mail::Timestamp;
use serde::Serialize;

use super::counters::DroppedObservation;
use super::observation::{Observation, ReportRow, ReportSubject};
use crate::dmarc::record::PublishedPolicy;

/// Limits of what is counted in a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountLimits {
    /// Domains, each kind of report for itself.
    pub domains_max: usize,
    /// Rows of a domain.
    pub rows_max: usize,
    /// Octets of all rows and policies, as they are in the file.
    pub octets_max: u64,
}

impl Default for CountLimits {
    fn default() -> Self {
        CountLimits { domains_max: 5000, rows_max: 5000, octets_max: 32 << 20 }
    }
}

/// The counts of a day.
#[derive(Debug, Default)]
pub struct DayCounts {
    subjects: BTreeMap<ReportSubject, SubjectCounts>,
    octets: u64,
}

/// The counts of one report.
#[derive(Debug, Default)]
pub(super) struct SubjectCounts {
    pub(super) policy: Option<PublishedPolicy>,
    pub(super) rows: BTreeMap<ReportRow, RowCount>,
    /// What was observed before this second is reported; None: nothing is.
    pub(super) reported_until: Option<u64>,
    /// The report could not be sent, and is not tried before.
    pub(super) retry_at: Option<Timestamp>,
    /// The policy in the file is another one.
    pub(super) policy_unwritten: bool,
}

/// How often a row was observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowCount {
    pub(super) total: u64,
    /// Those that are not in the file.
    pub(super) unwritten: u64,
}

/// A report's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectedReport {
    /// What it is about.
    pub subject: ReportSubject,
    /// For DMARC, the policy record that was seen last.
    pub policy: Option<PublishedPolicy>,
    /// The rows and how often each was observed.
    pub rows: Vec<(ReportRow, u64)>,
    /// The first second of the period, since 1970.
    pub begin: u64,
    /// The last one.
    pub end: u64,
}

impl CollectedReport {
    /// What tells it from all other reports of this server about the domain: within an address of it, this
    /// is an identifier.
    pub fn local_id(&self) -> String {
        format!("{}.{}.{}", self.begin, self.subject.kind.as_str(), self.subject.domain)
    }

    /// The number of observations.
    pub fn total(&self) -> u64 {
        self.rows.iter().map(|(_, count)| count).sum()
    }
}

impl DayCounts {
    /// Counts an observation.
    ///
    /// # Errors
    ///
    /// It is not counted, by this limit.
    pub fn add(&mut self, observation: Observation, limits: &CountLimits) -> Result<(), DroppedObservation> {
        let Observation { subject, policy, row } = observation;
        let (kind, is_new) = (subject.kind, !self.subjects.contains_key(&subject));
        if is_new && self.subjects.keys().filter(|known| known.kind == kind).count() >= limits.domains_max {
            return Err(DroppedObservation::Domains);
        }
        if is_new && self.octets >= limits.octets_max {
            return Err(DroppedObservation::Octets);
        }
        let octets = row_octets(&subject, &row);
        let counts = self.subjects.entry(subject).or_default();
        if let Some(policy) = policy.filter(|policy| counts.policy.as_ref() != Some(policy)) {
            // Another policy of the same domain replaces this one, so its octets count once.
            self.octets += if counts.policy.is_none() { json_octets(&policy) } else { 0 };
            (counts.policy, counts.policy_unwritten) = (Some(policy), true);
        }
        let rows_max = counts.rows.len() >= limits.rows_max;
        match counts.rows.entry(row) {
            Entry::Occupied(known) => known.into_mut().add(1),
            Entry::Vacant(_) if rows_max => return Err(DroppedObservation::Rows),
            Entry::Vacant(new) => {
                if self.octets + octets > limits.octets_max {
                    return Err(DroppedObservation::Octets);
                }
                self.octets += octets;
                new.insert(RowCount::default()).add(1);
            }
        }
        Ok(())
    }

    /// Takes back what the file says: so many observations of a row.
    pub(super) fn restore_row(&mut self, subject: ReportSubject, row: ReportRow, count: u64) {
        let octets = row_octets(&subject, &row);
        let counts = self.subjects.entry(subject).or_default();
        let known = counts.rows.entry(row).or_insert_with(|| {
            self.octets += octets;
            RowCount::default()
        });
        known.total = known.total.saturating_add(count);
    }

    /// Takes back the policy in the file.
    pub(super) fn restore_policy(&mut self, subject: ReportSubject, policy: PublishedPolicy) {
        let counts = self.subjects.entry(subject).or_default();
        self.octets += if counts.policy.is_none() { json_octets(&policy) } else { 0 };
        counts.policy = Some(policy);
    }

    /// Takes back that a report was sent.
    pub(super) fn restore_sent(&mut self, subject: ReportSubject, until: u64) {
        let counts = self.subjects.entry(subject.clone()).or_default();
        let freed: u64 = counts.rows.keys().map(|row| row_octets(&subject, row)).sum();
        self.octets -= freed.min(self.octets);
        counts.rows.clear();
        counts.reported_until = Some(until);
    }

    /// The report about a subject, from `begin`, or the end of the last one, to `end`. None if nothing was
    /// observed.
    pub fn report(&self, subject: &ReportSubject, begin: u64, end: u64) -> Option<CollectedReport> {
        let counts = self.subjects.get(subject).filter(|counts| !counts.rows.is_empty())?;
        let begin = counts.reported_until.map_or(begin, |until| until.max(begin));
        Some(CollectedReport {
            subject: subject.clone(),
            policy: counts.policy.clone(),
            rows: counts.rows.iter().map(|(row, count)| (row.clone(), count.total)).collect(),
            begin,
            end: end.max(begin),
        })
    }

    /// Takes what a report says out of the counts. What was observed since it was made stays.
    pub fn subtract(&mut self, report: &CollectedReport) {
        let Some(counts) = self.subjects.get_mut(&report.subject) else { return };
        for (row, reported) in &report.rows {
            let Entry::Occupied(mut known) = counts.rows.entry(row.clone()) else { continue };
            let left = known.get().total.saturating_sub(*reported);
            *known.get_mut() = RowCount { total: left, unwritten: left };
            if left == 0 {
                self.octets -= row_octets(&report.subject, row).min(self.octets);
                known.remove();
            }
        }
        counts.reported_until = Some(report.end + 1);
        counts.retry_at = None;
    }

    /// The subjects about which something was observed.
    pub(super) fn unreported(&self) -> impl Iterator<Item = (&ReportSubject, &SubjectCounts)> {
        self.subjects.iter().filter(|(_, counts)| !counts.rows.is_empty())
    }

    /// Everything.
    pub(super) fn subjects_mut(&mut self) -> impl Iterator<Item = (&ReportSubject, &mut SubjectCounts)> {
        self.subjects.iter_mut()
    }

    pub(super) fn subject_mut(&mut self, subject: &ReportSubject) -> Option<&mut SubjectCounts> {
        self.subjects.get_mut(subject)
    }

    /// The octets of all rows and policies in a file.
    pub(super) fn octets(&self) -> u64 {
        self.octets
    }
}

impl RowCount {
    fn add(&mut self, count: u64) {
        self.total = self.total.saturating_add(count);
        self.unwritten = self.unwritten.saturating_add(count);
    }
}

/// The octets of a row in the file.
fn row_octets(subject: &ReportSubject, row: &ReportRow) -> u64 {
    json_octets(&(subject, row))
}

/// The octets of a value in the file.
fn json_octets(value: &impl Serialize) -> u64 {
    serde_json::to_string(value).map_or(0, |text| text.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reports::{ReportKind, TlsRow};

    const DAY: (u64, u64) = (86_400, 172_799);

    fn subject(domain: &str) -> ReportSubject {
        ReportSubject { kind: ReportKind::Tls, domain: domain.into() }
    }

    fn observation(domain: &str, host: &str) -> Observation {
        let row = ReportRow::Tls(TlsRow {
            policy_type: "sts".into(),
            policy_strings: Vec::new(),
            mx_host: host.into(),
            receiving_ip: None,
            failure: None,
            reason: None,
        });
        Observation { subject: subject(domain), policy: None, row }
    }

    #[test]
    fn equal_rows_are_counted_together() {
        let (mut counts, limits) = (DayCounts::default(), CountLimits::default());
        for host in ["mx1", "mx2", "mx1"] {
            counts.add(observation("a.example", host), &limits).unwrap();
        }
        let report = counts.report(&subject("a.example"), DAY.0, DAY.1).unwrap();
        assert_eq!(report.rows.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [2, 1]);
        assert_eq!((report.total(), report.begin, report.end), (3, 86_400, 172_799));
        assert_eq!(counts.report(&subject("b.example"), DAY.0, DAY.1), None);
    }

    #[test]
    fn what_was_observed_while_a_report_was_sent_is_in_the_next_one() {
        let (mut counts, limits) = (DayCounts::default(), CountLimits::default());
        counts.add(observation("a.example", "mx1"), &limits).unwrap();
        let report = counts.report(&subject("a.example"), DAY.0, 90_000).unwrap();
        counts.add(observation("a.example", "mx1"), &limits).unwrap();
        counts.add(observation("a.example", "mx2"), &limits).unwrap();
        counts.subtract(&report);
        let next = counts.report(&subject("a.example"), DAY.0, DAY.1).unwrap();
        assert_eq!((next.begin, next.end, next.total(), next.rows.len()), (90_001, DAY.1, 2, 2));
        counts.subtract(&next);
        assert_eq!((counts.report(&subject("a.example"), DAY.0, DAY.1), counts.octets()), (None, 0));
    }

    #[test]
    fn each_limit_drops_what_exceeds_it_and_keeps_the_rest() {
        let mut counts = DayCounts::default();
        let limits = CountLimits { domains_max: 2, rows_max: 2, octets_max: 1 << 20 };
        for (domain, host, expected) in [
            ("a.example", "mx1", Ok(())),
            ("b.example", "mx1", Ok(())),
            ("c.example", "mx1", Err(DroppedObservation::Domains)),
            ("a.example", "mx2", Ok(())),
            ("a.example", "mx3", Err(DroppedObservation::Rows)),
            ("a.example", "mx1", Ok(())),
        ] {
            assert_eq!(counts.add(observation(domain, host), &limits), expected, "{domain} {host}");
        }
        let full = CountLimits { octets_max: counts.octets(), ..CountLimits::default() };
        assert_eq!(counts.add(observation("a.example", "mx4"), &full), Err(DroppedObservation::Octets));
        assert_eq!(counts.add(observation("d.example", "mx1"), &full), Err(DroppedObservation::Octets));
        assert_eq!(counts.add(observation("a.example", "mx1"), &full), Ok(()));
    }
}
