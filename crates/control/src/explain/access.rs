//! What the access rules do with a client: at each stage the rules that apply, in order, what each
//! found, and the result; and whether the client may relay. Nothing is counted.

use std::net::IpAddr;

use filter::access::{AccessRules, ConditionFinding, RuleExplanation, RuleFinding};
use filter::{Edit, SessionInfo, Stage};

use crate::explanation::{
    AccessConditionExplanation, AccessRuleExplanation, AccessVerdict, ConditionResult, RelayPermission,
    StageExplanation, StageResult,
};

/// The stages of a session up to the one that decides; none without rules.
pub(in super::super) async fn explain_stages(
    access: Option<&AccessRules>,
    session: &SessionInfo<'_>,
) -> Vec<StageExplanation> {
    let (Some(access), mut stages) = (access, Vec::new()) else { return Vec::new() };
    for stage in Stage::ALL {
        let explained = explain_stage(access, stage, session).await;
        let ends = matches!(explained.result, StageResult::Accepted | StageResult::Decided);
        stages.push(explained);
        if ends {
            break;
        }
    }
    stages
}

async fn explain_stage(access: &AccessRules, stage: Stage, session: &SessionInfo<'_>) -> StageExplanation {
    let unchecked = |result| StageExplanation { stage: stage.name().to_owned(), rules: Vec::new(), result };
    if stage == Stage::Helo && session.helo.is_none() && access.has_rules_at(stage) {
        return unchecked(StageResult::NeedsHelo);
    }
    if stage == Stage::Message && access.has_rules_at(stage) {
        return unchecked(StageResult::NeedsMessage);
    }
    let rules = access.explain(stage, session).await;
    let result = match rules.last() {
        None => StageResult::NoRules,
        Some(last) if last.accepts => StageResult::Accepted,
        Some(last) if last.decides => StageResult::Decided,
        Some(_) => StageResult::Continues,
    };
    StageExplanation { rules: rules.into_iter().map(explained_rule).collect(), ..unchecked(result) }
}

/// Whether a client without login may send to other domains, by `networks` and `others` of
/// `[relay]`.
pub(in super::super) fn explain_relaying(client: IpAddr, is_in_networks: bool, is_deferred: bool) -> RelayPermission {
    let codes = if is_deferred { "454 4.7.1" } else { "550 5.7.1" };
    RelayPermission { client: client.to_string(), refusal: (!is_in_networks).then(|| codes.to_owned()) }
}

fn explained_rule(rule: RuleExplanation) -> AccessRuleExplanation {
    let condition = |(condition, finding): (Box<str>, ConditionFinding)| AccessConditionExplanation {
        condition: condition.into(),
        result: condition_result(finding),
    };
    AccessRuleExplanation {
        rule: rule.rule.into(),
        conditions: rule.conditions.into_iter().map(condition).collect(),
        verdict: match rule.verdict {
            RuleFinding::NoMatch => AccessVerdict::NoMatch,
            RuleFinding::Accept => AccessVerdict::Accept,
            RuleFinding::AcceptInList => AccessVerdict::AcceptInList,
            RuleFinding::Hold => AccessVerdict::Hold,
            RuleFinding::Discard => AccessVerdict::Discard,
            RuleFinding::DiscardInList => AccessVerdict::DiscardInList,
            RuleFinding::Edit(Edit::AddRecipient { address, .. }) => {
                AccessVerdict::Copy { address: address.to_string() }
            }
            RuleFinding::Edit(Edit::Redirect(address)) => AccessVerdict::Redirect { address: address.to_string() },
            RuleFinding::Edit(Edit::PrependField(field)) => AccessVerdict::Prepend { field: field.to_string() },
            RuleFinding::Edit(_) => AccessVerdict::Edit,
            RuleFinding::Log(text) => AccessVerdict::Log { text: text.into() },
            RuleFinding::Enter(class) => AccessVerdict::EnterClass { class: class.into() },
            RuleFinding::DeferIfReject(reply) => AccessVerdict::DeferIfRefused { reply: reply.to_string() },
            RuleFinding::Reject(reply) if reply.is_permanent() => AccessVerdict::Refuse { reply: reply.to_string() },
            RuleFinding::Reject(reply) => AccessVerdict::Defer { reply: reply.to_string() },
        },
    }
}

fn condition_result(finding: ConditionFinding) -> ConditionResult {
    match finding {
        ConditionFinding::Holds => ConditionResult::Holds,
        ConditionFinding::Listed(name) => ConditionResult::Listed { name },
        ConditionFinding::Value { value, is_known } => ConditionResult::Value { value, is_known },
        ConditionFinding::Fails => ConditionResult::Fails,
        ConditionFinding::TableUnavailable(reason) => ConditionResult::TableUnavailable { reason },
        ConditionFinding::DnsblUnavailable(reason) => ConditionResult::ListUnavailable { reason },
        ConditionFinding::NotAsked => ConditionResult::NotAsked,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use filter::access::{AccessCondition, CompiledRule, ConditionMatcher, RuleAction};
    use mail::{Address, EnhancedCode, Reply};

    use super::*;
    use crate::explanation::{AccessExplanation, AddressExplanation, DirectoryFinding};
    use crate::explanation_text::address_text;

    /// What the command prints about a client, without what it prints about the address.
    fn access_text(stages: Vec<StageExplanation>, relaying: Option<RelayPermission>) -> String {
        let text = address_text(&AddressExplanation {
            address: String::new(),
            normalized: String::new(),
            access: Some(AccessExplanation { stages, relaying }),
            directory: DirectoryFinding::Mailbox,
            forwarded_sender: None,
            recipients: Vec::new(),
            omitted: 0,
        });
        text.strip_suffix(": a local mailbox\n").unwrap().to_owned()
    }

    #[test]
    fn relaying_shows_the_reply() {
        for (is_in_networks, is_deferred, told) in [
            (true, false, "192.0.2.1 may relay, by relay.networks"),
            (false, false, "192.0.2.1 may not relay without login: 550 5.7.1 at RCPT"),
            (false, true, "192.0.2.1 may not relay without login: 454 4.7.1 at RCPT"),
        ] {
            let permission = explain_relaying("192.0.2.1".parse().unwrap(), is_in_networks, is_deferred);
            let line = access_text(Vec::new(), Some(permission));
            assert!(line.contains(told) && line.ends_with('\n'), "{line}");
        }
    }

    #[test]
    fn stages_are_listed_until_a_rule_decides() {
        let rule = |name: &str, stage, conditions, action| CompiledRule {
            name: name.into(),
            list: None,
            class: None,
            stage,
            applies_to_users: true,
            chooses_filters: false,
            conditions,
            action,
        };
        let condition = |text: &str, test| AccessCondition { text: text.into(), test };
        let clients = ConditionMatcher::Client("10.0.0.0/8".parse().unwrap());
        let helos = ConditionMatcher::Helo(Arc::new(|helo: &str| helo.ends_with(".dynamic.example")));
        let senders = ConditionMatcher::Sender(Arc::new(|sender: Option<&Address>| sender.is_none()));
        let recipients =
            ConditionMatcher::Recipient(Arc::new(|recipient: &Address| recipient.domain() == "old.example"));
        let from_dynamic = vec![condition("helos *.dynamic.example", helos), condition("senders <>", senders)];
        let moved = Reply::new(550, EnhancedCode(5, 1, 6), "moved".to_owned());
        let access = AccessRules::new(vec![
            rule("ours", Stage::Connect, vec![condition("clients 10.0.0.0/8", clients)], RuleAction::Accept),
            rule("rule 2", Stage::Mail, from_dynamic, RuleAction::Hold),
            rule(
                "rule 3",
                Stage::Rcpt,
                vec![condition("recipients @old.example", recipients)],
                RuleAction::Refuse(Some(moved)),
            ),
        ]);
        let recipient = "bob@old.example".parse().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let told = |client: &str, helo| {
            let client = client.parse().ok();
            let session =
                SessionInfo { client, helo, sender: Some(None), recipient: Some(&recipient), ..SessionInfo::default() };
            access_text(runtime.block_on(explain_stages(access.as_ref(), &session)), None)
        };
        let accounts = [told("10.1.2.3", None), told("192.0.2.1", Some("a.dynamic.example")), told("192.0.2.1", None)];
        insta::assert_snapshot!("access", accounts.join("---\n"));
        let nothing = runtime.block_on(explain_stages(None, &SessionInfo::default()));
        assert_eq!(access_text(nothing, None), "access: no rules\n");
    }
}
