//! Evaluates the rules as a session does, and explains each one. Nothing is counted, and nothing is text for
//! people: whoever shows an explanation words it.

use mail::Reply;

use super::condition_result::ConditionResult;
use super::conditions;
use super::rule_verdict::{self, RuleVerdict};
use super::{AccessRules, CompiledRule, EvaluationState};
use crate::check::SessionInfo;
use crate::edit::Edit;
use crate::stage::Stage;

/// The result of one rule, with the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleExplanation {
    /// The name of the rule.
    pub rule: Box<str>,
    /// Each condition as configured, with its result.
    pub conditions: Vec<(Box<str>, ConditionFinding)>,
    /// What the rule does.
    pub verdict: RuleFinding,
    /// The following rules of this stage are not evaluated.
    pub decides: bool,
    /// The rules of later stages are not evaluated.
    pub accepts: bool,
}

/// What was found about a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionFinding {
    /// It holds.
    Holds,
    /// It holds: the DNS list has this name.
    Listed(String),
    /// It holds: the table has the subject, with this value.
    Value {
        /// The value; never empty.
        value: String,
        /// Whether it is an action or a class.
        is_known: bool,
    },
    /// It does not hold.
    Fails,
    /// The table is unavailable; the reason.
    TableUnavailable(String),
    /// The DNS list is unavailable and lists nothing; the reason.
    DnsblUnavailable(String),
    /// It was not asked: another condition fails already.
    NotAsked,
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleFinding {
    /// It does not match.
    NoMatch,
    /// It accepts.
    Accept,
    /// It accepts, but for the rules of its list only.
    AcceptInList,
    /// It holds the message.
    Hold,
    /// It drops the message.
    Discard,
    /// It drops the message, but accepts for the rules of its list only.
    DiscardInList,
    /// It changes the message.
    Edit(Edit),
    /// It writes this to the log.
    Log(Box<str>),
    /// The rules of this class apply, too.
    Enter(Box<str>),
    /// It refuses or defers, with this reply.
    Reject(Reply),
    /// A later refusal becomes this deferral.
    DeferIfReject(Reply),
}

impl AccessRules {
    /// Explains the rules of a stage, up to the one that decides. Conditions on unknown properties
    /// do not match.
    pub async fn explain(&self, stage: Stage, info: &SessionInfo<'_>) -> Vec<RuleExplanation> {
        let at_stage = self.rules.iter().enumerate().filter(|(_, rule)| rule.applies_at(stage, info));
        let (places, rules): (Vec<usize>, Vec<&CompiledRule>) = at_stage.unzip();
        let known = rules.iter().map(|rule| conditions::check_in_memory(rule, info)).collect();
        let results = conditions::evaluate_conditions(&rules, known, info).await;
        let (mut all, mut state, mut deferral) = (Vec::new(), EvaluationState::default(), None);
        for ((place, rule), results) in places.into_iter().zip(rules).zip(results) {
            if state.skips(rule) {
                continue;
            }
            let may_enter = |class: &str| self.may_enter(class, stage, place);
            let said = rule_verdict::rule_verdict(rule, &results, info.client, &may_enter);
            if let Some(RuleVerdict::Enter(class)) = &said {
                state.entered.push(class.clone());
            }
            let mut explanation = explain_rule(rule, &results, said);
            if explanation.accepts && !state.accept(rule) {
                (explanation.decides, explanation.accepts) = (false, false);
                explanation.verdict = match explanation.verdict {
                    RuleFinding::Discard => RuleFinding::DiscardInList,
                    _ => RuleFinding::AcceptInList,
                };
            }
            match (&mut explanation.verdict, &deferral) {
                (RuleFinding::Reject(reply), Some(deferral)) if reply.is_permanent() => *reply = Reply::clone(deferral),
                (RuleFinding::DeferIfReject(reply), None) => deferral = Some(reply.clone()),
                _ => {}
            }
            let decides = explanation.decides;
            all.push(explanation);
            if decides {
                break;
            }
        }
        all
    }
}

fn explain_rule(rule: &CompiledRule, results: &[ConditionResult], said: Option<RuleVerdict>) -> RuleExplanation {
    let enters = matches!(said, Some(RuleVerdict::Enter(_)));
    let conditions = rule.conditions.iter().zip(results);
    let is_known = |value: &str| enters || rule_verdict::is_understood(value, rule.chooses_filters);
    let conditions =
        conditions.map(|(condition, result)| (condition.text.clone(), condition_finding(result, &is_known)));
    RuleExplanation {
        rule: rule.name.clone(),
        conditions: conditions.collect(),
        decides: matches!(said, Some(RuleVerdict::Accept | RuleVerdict::Discard | RuleVerdict::Reject(_))),
        accepts: matches!(said, Some(RuleVerdict::Accept | RuleVerdict::Discard)),
        verdict: match said {
            None => RuleFinding::NoMatch,
            Some(RuleVerdict::Accept) => RuleFinding::Accept,
            Some(RuleVerdict::Hold) => RuleFinding::Hold,
            Some(RuleVerdict::Discard) => RuleFinding::Discard,
            Some(RuleVerdict::Edit(edit)) => RuleFinding::Edit(edit),
            Some(RuleVerdict::Log(text)) => RuleFinding::Log(text),
            Some(RuleVerdict::Enter(class)) => RuleFinding::Enter(class),
            Some(RuleVerdict::Reject(reply)) => RuleFinding::Reject(reply),
            Some(RuleVerdict::DeferIfReject(reply)) => RuleFinding::DeferIfReject(reply),
        },
    }
}

/// `is_known`: whether the value of a table is an action or the name of a class.
fn condition_finding(result: &ConditionResult, is_known: &dyn Fn(&str) -> bool) -> ConditionFinding {
    match result {
        ConditionResult::Value(value) if !value.is_empty() => {
            ConditionFinding::Value { value: value.clone(), is_known: is_known(value) }
        }
        ConditionResult::Holds | ConditionResult::Value(_) => ConditionFinding::Holds,
        ConditionResult::Listed(name) => ConditionFinding::Listed(name.clone()),
        ConditionResult::Fails => ConditionFinding::Fails,
        ConditionResult::TableUnavailable(why) => ConditionFinding::TableUnavailable(why.clone()),
        ConditionResult::DnsblUnavailable(why) => ConditionFinding::DnsblUnavailable(why.clone()),
        ConditionResult::Pending => ConditionFinding::NotAsked,
    }
}
