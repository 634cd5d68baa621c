//! Actions in tables that do something to the message, tables with names of clients, scores of DNS lists,
//! and the number of recipients.

use std::net::IpAddr;

use super::*;
use crate::edit::Field;

/// The client and what the DNS says of it.
struct OneName(ReverseName);

impl HostNames for OneName {
    fn reverse_name(&self, _client: IpAddr) -> HostNameFuture<'_, ReverseName> {
        Box::pin(std::future::ready(self.0.clone()))
    }

    fn exists<'a>(&'a self, _name: &'a str) -> HostNameFuture<'a, Option<bool>> {
        Box::pin(std::future::ready(None))
    }

    fn accepts_mail<'a>(&'a self, _domain: &'a str) -> HostNameFuture<'a, Option<bool>> {
        Box::pin(std::future::ready(None))
    }
}

/// A rule whose table has this value for the sender.
fn sender_rule(name: &str, value: &str) -> CompiledRule {
    let table = RecordingTable::new(&[("a@x.example", value)]);
    let test = ConditionMatcher::Table(RuleSubject::Sender, table);
    CompiledRule { chooses_filters: true, ..rule(name, Stage::Rcpt, vec![test], RuleAction::Table) }
}

#[test]
fn values_that_change_a_message_leave_the_decision_to_later_rules() {
    let rules = access(vec![
        sender_rule("mark", "PREPEND X-Seen: yes"),
        sender_rule("copy", "BCC copy@y.example"),
        sender_rule("away", "FILTER amavis:[127.0.0.1]:10024"),
        sender_rule("log", "WARN look at it"),
        CompiledRule { list: Some("list".into()), ..sender_rule("drop", "DISCARD") },
        CompiledRule { list: Some("list".into()), ..rule("skipped", Stage::Rcpt, vec![], RuleAction::Hold) },
        rule("last", Stage::Rcpt, vec![], RuleAction::Defer(None)),
    ]);
    let (result, log_lines) = judge(&rules, Stage::Rcpt);
    let field = |name, value| Edit::PrependField(Field::new(name, value).unwrap());
    assert_eq!(
        result.edits,
        [
            field("X-Seen", "yes"),
            Edit::add_recipient("copy@y.example".parse().unwrap()),
            field(mail::FILTER_FIELD, "amavis:[127.0.0.1]:10024"),
        ]
    );
    assert_eq!((result.discarded_by.as_deref(), result.held), (Some("drop"), false));
    assert!(matches!(result.decision, Some(AccessDecision::Refuse { .. })));
    assert_eq!(log_lines, ["access rule 'log': look at it (client 192.0.2.1, from <a@x.example>, to <b@y.example>)"]);
}

#[test]
fn a_client_is_found_by_its_confirmed_name_or_its_address() {
    let (confirmed, reverse) = (ClientNameKey::ConfirmedNameOrAddress, ClientNameKey::ReverseName);
    let (bad, forged) =
        (ReverseName::Confirmed("mx.bad.example".into()), ReverseName::Unconfirmed("mx.bad.example".into()));
    let unavailable = "451 4.3.0 Access rules unavailable, try again later";
    for (name, key, entry, expected) in [
        (&bad, confirmed, "mx.bad.example", "hold"),
        (&bad, confirmed, ".bad.example", "hold"),
        (&bad, confirmed, "192.0.2", "hold"),
        (&bad, confirmed, "unknown", "nothing"),
        (&forged, confirmed, "mx.bad.example", "nothing"),
        (&forged, confirmed, "unknown", "hold"),
        (&forged, reverse, "mx.bad.example", "hold"),
        (&forged, reverse, "192.0.2", "nothing"),
        (&ReverseName::Missing, reverse, "unknown", "hold"),
        (&ReverseName::Unanswered, reverse, "unknown", unavailable),
    ] {
        let (table, names) = (RecordingTable::new(&[(entry, "HOLD")]), Arc::new(OneName(name.clone())));
        let test = ConditionMatcher::ClientName(ClientNameTable { table, key, names });
        let rules = access(vec![rule("named", Stage::Rcpt, vec![test], RuleAction::Table)]);
        assert_eq!(decided(&rules, Stage::Rcpt), expected, "{name:?} {key:?} {entry}");
    }
}

/// The client is on three lists, and one does not answer.
#[test]
fn the_weights_of_dns_lists_add_up() {
    let list = |code: &str| DnsblCheck {
        name: "list.example".into(),
        table: RecordingTable::new(&[(CLIENT, code)]),
        codes: vec![Ipv4Addr::new(127, 0, 0, 2)..=Ipv4Addr::new(127, 0, 0, 3)],
    };
    for (weights, score_min, expected) in [
        (vec![("127.0.0.2", 2), ("127.0.0.3", 1)], 3, "hold"),
        (vec![("127.0.0.2", 2), ("127.0.0.3", 1)], 4, "nothing"),
        (vec![("127.0.0.2", 2), ("127.0.0.9", 2)], 4, "nothing"),
        (vec![("127.0.0.2", 3), ("127.0.0.2", -1)], 3, "nothing"),
        (vec![("127.0.0.2", 3), ("?", -1)], 3, "hold"),
        (vec![("127.0.0.2", 2), ("?", 1)], 3, "nothing"),
    ] {
        let lists = weights.iter().map(|(code, weight)| (list(code), *weight)).collect();
        let test = ConditionMatcher::DnsblScore(DnsblScore { lists, score_min });
        let rules = access(vec![rule("score", Stage::Rcpt, vec![test], RuleAction::Hold)]);
        assert_eq!(decided(&rules, Stage::Rcpt), expected, "{weights:?} {score_min}");
    }
}

#[test]
fn a_rule_is_for_its_listeners() {
    let listener: SocketAddr = "192.0.2.25:587".parse().unwrap();
    let test = ConditionMatcher::Listener([listener].into());
    let rules = access(vec![rule("submission", Stage::Connect, vec![test], RuleAction::Refuse(None))]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (listener, is_refused) in [(Some(listener), true), ("192.0.2.25:25".parse().ok(), false), (None, false)] {
        let info = SessionInfo { listener, ..SessionInfo::default() };
        let result = runtime.block_on(rules.evaluate(Stage::Connect, &info, &RecordingLog::default()));
        assert_eq!(result.decision.is_some(), is_refused, "{listener:?}");
    }
}

#[test]
fn a_message_is_refused_for_the_number_of_its_recipients() {
    let rules =
        access(vec![rule("many", Stage::Data, vec![ConditionMatcher::RecipientsMin(2)], RuleAction::Refuse(None))]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (recipients, is_refused) in [(1, false), (2, true)] {
        let info = SessionInfo { recipients, ..SessionInfo::default() };
        let result = runtime.block_on(rules.evaluate(Stage::Data, &info, &RecordingLog::default()));
        assert_eq!(result.decision.is_some(), is_refused, "{recipients}");
    }
}
