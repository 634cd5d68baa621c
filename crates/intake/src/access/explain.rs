//! Evaluates the rules as a session does, and explains each one to people. Nothing is counted.

use super::action::{self, Said};
use super::find::{self, Finding};
use super::{Access, Passed, Rule, Stage, Visit};

/// The result of one rule, with the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The name of the rule.
    pub rule: Box<str>,
    /// Each condition with its result.
    pub conditions: Vec<String>,
    /// What the rule does; None: it does not match.
    pub says: Option<String>,
    /// The following rules of this stage are not evaluated.
    pub decides: bool,
    /// The rules of later stages are not evaluated.
    pub accepts: bool,
}

impl Access {
    /// Explains the rules of a stage, up to the one that decides. Conditions on unknown properties
    /// do not match.
    pub async fn explain(&self, stage: Stage, visit: &Visit<'_>) -> Vec<Told> {
        let rules: Vec<&Rule> = self.rules.iter().filter(|rule| rule.is_asked_at(stage, visit)).collect();
        let at_hand = rules.iter().map(|rule| find::at_hand(rule, visit)).collect();
        let findings = find::find(&rules, at_hand, visit).await;
        let (mut all, mut passed) = (Vec::new(), Passed::default());
        for (rule, findings) in rules.into_iter().zip(findings) {
            if passed.has(rule) {
                continue;
            }
            let mut told = told(rule, &findings, visit);
            if told.accepts && !passed.pass(rule) {
                (told.decides, told.accepts) = (false, false);
                told.says = Some("accept, for the rules of its list only".into());
            }
            let decides = told.decides;
            all.push(told);
            if decides {
                break;
            }
        }
        all
    }
}

fn told(rule: &Rule, findings: &[Finding], visit: &Visit<'_>) -> Told {
    let said = action::said(rule, findings, visit.client);
    let conditions = rule.conditions.iter().zip(findings);
    let says = match &said {
        None => None,
        Some(Said::Pass) => Some("accept".into()),
        Some(Said::Hold) => Some("hold".into()),
        Some(Said::No(reply)) if reply.is_permanent() => Some(format!("refuse: {reply}")),
        Some(Said::No(reply)) => Some(format!("defer: {reply}")),
    };
    Told {
        rule: rule.name.clone(),
        conditions: conditions.map(|(condition, finding)| format!("{}: {}", condition.text, word(finding))).collect(),
        says,
        decides: matches!(said, Some(Said::Pass | Said::No(_))),
        accepts: said == Some(Said::Pass),
    }
}

fn word(finding: &Finding) -> String {
    match finding {
        Finding::Holds => "yes".into(),
        Finding::Says(value) if value.is_empty() => "yes".into(),
        Finding::Says(value) if action::is_understood(value) => format!("yes, {value:?}"),
        Finding::Says(value) => format!("yes, {value:?}, which is not a known action"),
        Finding::Not => "no".into(),
        Finding::Unknown(why) => format!("unknown: {why}"),
        Finding::Unlisted(why) => format!("no, the list is unavailable: {why}"),
        Finding::Asked => "not asked".into(),
    }
}
