//! What the access rules do with a client: at each stage the rules that apply, in order, what each
//! found, and the result; and whether the client may relay. Nothing is counted.

use std::fmt::Write as _;
use std::net::IpAddr;

use filter::access::{AccessRules, RuleExplanation};
use filter::{SessionInfo, Stage};

/// The whole text, one line each.
pub(in super::super) async fn explain_access(access: Option<&AccessRules>, session: &SessionInfo<'_>) -> String {
    let mut out = String::new();
    let Some(access) = access else { return "access: no rules\n".into() };
    for stage in Stage::ALL {
        // Writing to a String cannot fail.
        if stage == Stage::Helo && session.helo.is_none() && access.has_rules_at(stage) {
            let _ = writeln!(out, "{}: not checked: give --helo", stage.name());
            continue;
        }
        if stage == Stage::Message && access.has_rules_at(stage) {
            let _ = writeln!(out, "{}: not checked: it depends on the verdicts on a message", stage.name());
            continue;
        }
        let rules = access.explain(stage, session).await;
        for rule in &rules {
            let _ = writeln!(out, "{}", rule_line(stage, rule));
        }
        match rules.last() {
            None => drop(writeln!(out, "{}: no rules", stage.name())),
            Some(last) if last.accepts => {
                let _ = writeln!(out, "{}: accepted; later stages are skipped", stage.name());
                break;
            }
            Some(last) if last.decides => {
                let _ = writeln!(out, "{}: decided here", stage.name());
                break;
            }
            Some(_) => drop(writeln!(out, "{}: continues", stage.name())),
        }
    }
    out
}

/// Whether a client without login may send to other domains, by `networks` and `others` of
/// `[relay]`.
pub(in super::super) fn explain_relaying(client: IpAddr, is_in_networks: bool, is_deferred: bool) -> String {
    match (is_in_networks, is_deferred) {
        (true, _) => format!("relay: a client at {client} may relay, by relay.networks\n"),
        (false, false) => {
            format!("relay: a client at {client} may not relay without login: 550 5.7.1 at RCPT\n")
        }
        (false, true) => {
            format!("relay: a client at {client} may not relay without login: 454 4.7.1 at RCPT\n")
        }
    }
}

fn rule_line(stage: Stage, rule: &RuleExplanation) -> String {
    let conditions = if rule.conditions.is_empty() { "always".into() } else { rule.conditions.join("; ") };
    let says = rule.verdict.as_deref().unwrap_or("does not match");
    format!("{}: {:?} ({conditions}): {says}", stage.name(), rule.rule)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use filter::access::{AccessCondition, CompiledRule, ConditionMatcher, RuleAction};
    use mail::{Address, EnhancedCode, Reply};

    use super::*;

    #[test]
    fn relaying_shows_the_reply() {
        for (is_in_networks, is_deferred, told) in [
            (true, false, "192.0.2.1 may relay, by relay.networks"),
            (false, false, "192.0.2.1 may not relay without login: 550 5.7.1 at RCPT"),
            (false, true, "192.0.2.1 may not relay without login: 454 4.7.1 at RCPT"),
        ] {
            let line = explain_relaying("192.0.2.1".parse().unwrap(), is_in_networks, is_deferred);
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
            runtime.block_on(explain_access(access.as_ref(), &session))
        };
        let accounts = [told("10.1.2.3", None), told("192.0.2.1", Some("a.dynamic.example")), told("192.0.2.1", None)];
        insta::assert_snapshot!("access", accounts.join("---\n"));
        let nothing = runtime.block_on(super::explain_access(None, &SessionInfo::default()));
        assert_eq!(nothing, "access: no rules\n");
    }
}
