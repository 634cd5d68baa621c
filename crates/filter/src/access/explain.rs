//! Evaluates the rules as a session does, and explains each one to people. Nothing is counted.

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
    /// Each condition with its result.
    pub conditions: Vec<String>,
    /// What the rule does; None: it does not match.
    pub verdict: Option<String>,
    /// The following rules of this stage are not evaluated.
    pub decides: bool,
    /// The rules of later stages are not evaluated.
    pub accepts: bool,
}

impl AccessRules {
    /// Explains the rules of a stage, up to the one that decides. Conditions on unknown properties
    /// do not match.
    pub async fn explain(&self, stage: Stage, info: &SessionInfo<'_>) -> Vec<RuleExplanation> {
        let rules: Vec<&CompiledRule> = self.rules.iter().filter(|rule| rule.applies_at(stage, info)).collect();
        let known = rules.iter().map(|rule| conditions::check_in_memory(rule, info)).collect();
        let results = conditions::evaluate_conditions(&rules, known, info).await;
        let (mut all, mut state) = (Vec::new(), EvaluationState::default());
        for (rule, results) in rules.into_iter().zip(results) {
            if state.skips(rule) {
                continue;
            }
            let said = rule_verdict::rule_verdict(rule, &results, info.client, &self.classes);
            if let Some(RuleVerdict::Enter(class)) = &said {
                state.entered.push(class.clone());
            }
            let mut explanation = explain_rule(rule, &results, said);
            if explanation.accepts && !state.accept(rule) {
                (explanation.decides, explanation.accepts) = (false, false);
                let what = explanation.verdict.unwrap_or_default();
                explanation.verdict = Some(format!("{what}, for the rules of its list only"));
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
    let is_understood = |value: &str| enters || rule_verdict::is_understood(value, rule.chooses_filters);
    let says = match &said {
        None => None,
        Some(RuleVerdict::Accept) => Some("accept".into()),
        Some(RuleVerdict::Hold) => Some("hold".into()),
        Some(RuleVerdict::Discard) => Some("discard".into()),
        Some(RuleVerdict::Edit(edit)) => Some(describe_edit(edit)),
        Some(RuleVerdict::Log(text)) => Some(format!("log {text:?}")),
        Some(RuleVerdict::Enter(class)) => Some(format!("the rules of class {class:?}")),
        Some(RuleVerdict::Reject(reply)) if reply.is_permanent() => Some(format!("refuse: {reply}")),
        Some(RuleVerdict::Reject(reply)) => Some(format!("defer: {reply}")),
    };
    RuleExplanation {
        rule: rule.name.clone(),
        conditions: conditions
            .map(|(condition, result)| format!("{}: {}", condition.text, describe_result(result, &is_understood)))
            .collect(),
        verdict: says,
        decides: matches!(said, Some(RuleVerdict::Accept | RuleVerdict::Discard | RuleVerdict::Reject(_))),
        accepts: matches!(said, Some(RuleVerdict::Accept | RuleVerdict::Discard)),
    }
}

fn describe_edit(edit: &Edit) -> String {
    match edit {
        Edit::PrependField(field) => format!("prepend {field}"),
        Edit::AddRecipient { address, .. } => format!("copy to {address}"),
        Edit::Redirect(address) => format!("redirect to {address}"),
        other => format!("{other:?}"),
    }
}

/// `is_understood`: whether the value of a table is an action or the name of a class.
fn describe_result(result: &ConditionResult, is_understood: &dyn Fn(&str) -> bool) -> String {
    match result {
        ConditionResult::Holds => "yes".into(),
        ConditionResult::Listed(name) => format!("yes, {name}"),
        ConditionResult::Value(value) if value.is_empty() => "yes".into(),
        ConditionResult::Value(value) if is_understood(value) => format!("yes, {value:?}"),
        ConditionResult::Value(value) => format!("yes, {value:?}, which is not a known action"),
        ConditionResult::Fails => "no".into(),
        ConditionResult::TableUnavailable(why) => format!("unknown: {why}"),
        ConditionResult::DnsblUnavailable(why) => format!("no, the list is unavailable: {why}"),
        ConditionResult::Pending => "not asked".into(),
    }
}
