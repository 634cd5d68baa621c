//! Rules that can never match because an earlier rule matches everything: access rules, and the
//! domains and clients of queues. For routes this is an error in the configuration. Partial
//! overlaps are not reported.

use filter::Stage;
use filter::access::RuleAction;

use config::{AccessRule, Config, DomainPattern, EnvelopePattern};
use mail::Network;

/// A warning for each such rule.
pub(super) fn unreachable_rules(config: &Config) -> Vec<String> {
    let mut told = shadowed_access_rules(&config.access);
    told.extend(shadowed_queue_rules(config));
    told
}

fn shadowed_access_rules(rules: &[AccessRule]) -> Vec<String> {
    let place =
        |(number, rule): (usize, &AccessRule)| (Stage::ALL.iter().position(|stage| *stage == rule.stage), number);
    let mut asked: Vec<(usize, &AccessRule)> = rules.iter().enumerate().collect();
    asked.sort_by_key(|rule| place(*rule));
    let mut told = Vec::new();
    for (at, (_, rule)) in asked.iter().enumerate() {
        let before = asked[..at].iter().map(|(_, before)| *before);
        let mut ends =
            before.filter(|before| is_terminal(before) && matches_all(before) && (before.users || !rule.users));
        if let Some(before) = ends.next() {
            told.push(format!(
                "the access rule {:?} never matches: {:?} comes first and decides about all mail",
                rule.name, before.name
            ));
        }
    }
    told
}

/// Whether no rule is checked after it (`docs/access.md`).
fn is_terminal(rule: &AccessRule) -> bool {
    matches!(rule.action, RuleAction::Accept | RuleAction::Refuse(_) | RuleAction::Defer(_))
}

/// Whether it has no conditions, or only ones that always hold.
fn matches_all(rule: &AccessRule) -> bool {
    let any = |who: &EnvelopePattern| *who == EnvelopePattern::Domain(DomainPattern::Any);
    let senders =
        rule.senders.is_empty() || rule.senders.iter().any(any) && rule.senders.contains(&EnvelopePattern::Null);
    let recipients = rule.recipients.is_empty() || rule.recipients.iter().any(any);
    let helos = rule.helos.is_empty() || rule.helos.contains(&DomainPattern::Any);
    // Clients on a unix socket have no address, so no list of networks matches all clients.
    rule.listeners.is_empty()
        && rule.clients.is_empty()
        && rule.tables().next().is_none()
        && rule.dns_lists().next().is_none()
        && rule.reverse_name.is_empty()
        && rule.helo_faults.is_empty()
        && rule.sender_faults.is_empty()
        && !rule.early_talker
        && rule.recipients_min.is_none()
        && rule.verdicts.is_empty()
        && rule.dkim_domains.is_empty()
        && senders
        && recipients
        && helos
}

/// Queues are checked in the order of the configuration: `local`, `standard` and `lame` first.
fn shadowed_queue_rules(config: &Config) -> Vec<String> {
    let mut told = Vec::new();
    let domains =
        config.queues.iter().flat_map(|queue| queue.rules.domains.iter().map(|domain| (&*queue.name, domain)));
    for (queue, domain) in domains.clone().skip_while(|(_, domain)| **domain != DomainPattern::Any).skip(1) {
        let first = domains.clone().find(|(_, domain)| **domain == DomainPattern::Any).map_or("", |(queue, _)| queue);
        told.push(format!(
            "{domain} in `domains` of the queue {queue:?} never matches: the queue {first:?} comes first and has \"*\""
        ));
    }
    let clients =
        config.queues.iter().flat_map(|queue| queue.rules.clients.iter().map(|network| (&*queue.name, network)));
    for (at, (queue, network)) in clients.clone().enumerate() {
        let covers = |other: &Network| other.contains_family_of(network);
        if let Some((first, other)) = clients.clone().take(at).find(|(_, other)| covers(other)) {
            told.push(format!(
                "{network} in `clients` of the queue {queue:?} never matches: the queue {first:?} comes first and has {other}"
            ));
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(text: &str) -> Vec<String> {
        unreachable_rules(&Config::parse(text, "text", "mx.here").unwrap_or_else(|faults| panic!("{faults}")))
    }

    fn access(rules: &[&str]) -> Vec<String> {
        let rule = |(number, rule): (usize, &&str)| format!("[[access]]\nname = \"{number}\"\n{rule}\n");
        warnings(&rules.iter().enumerate().map(rule).collect::<String>())
    }

    #[test]
    fn a_rule_behind_one_for_all_is_told() {
        let all = "action = \"refuse\"";
        let never = "the access rule \"1\" never matches: \"0\" comes first and decides about all mail";
        for (rules, shadowed) in [
            ([all, "clients = [\"10.0.0.0/8\"]\naction = \"accept\""], true),
            ([all, "recipients = [\"@a.example\"]\naction = \"hold\""], true),
            (["recipients = [\"@*\"]\naction = \"accept\"", "recipients = [\"@a.example\"]\naction = \"hold\""], true),
            (
                ["senders = [\"@*\", \"<>\"]\naction = \"defer\"", "recipients = [\"@a.example\"]\naction = \"hold\""],
                true,
            ),
            // It comes first, whatever the order in the text.
            (["recipients = [\"@*\"]\naction = \"accept\"", "clients = [\"10.0.0.0/8\"]\naction = \"hold\""], false),
            (["senders = [\"@*\"]\naction = \"refuse\"", "recipients = [\"@a.example\"]\naction = \"hold\""], false),
            (["action = \"hold\"", "clients = [\"10.0.0.0/8\"]\naction = \"accept\""], false),
            (["users = false\naction = \"refuse\"", "clients = [\"10.0.0.0/8\"]\naction = \"accept\""], false),
            (
                ["clients = [\"0.0.0.0/0\"]\naction = \"accept\"", "clients = [\"10.0.0.0/8\"]\naction = \"hold\""],
                false,
            ),
        ] {
            let expected: &[&str] = if shadowed { &[never] } else { &[] };
            assert_eq!(access(&rules), expected, "{rules:?}");
        }
    }

    #[test]
    fn a_rule_of_a_queue_behind_one_for_all_is_told() {
        let text = "[[queue]]\nname = \"a\"\ndomains = [\"a.example\"]\nclients = [\"10.0.0.0/8\"]\n\
                    [[queue]]\nname = \"standard\"\ndomains = [\"*\"]\nclients = [\"::/0\", \"0.0.0.0/0\"]\n";
        assert_eq!(
            warnings(text),
            [
                "a.example in `domains` of the queue \"a\" never matches: the queue \"standard\" comes first and has \"*\"",
                "10.0.0.0/8 in `clients` of the queue \"a\" never matches: the queue \"standard\" comes first and has 0.0.0.0/0",
            ]
        );
    }
}
