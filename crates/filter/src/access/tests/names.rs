//! Conditions on names of clients, greetings and senders, with a DNS that counts its questions.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::*;

/// What the DNS says of every client, and of every host name.
struct FixedNames {
    client: ReverseName,
    exists: Option<bool>,
    asked: AtomicUsize,
}

impl FixedNames {
    fn new(client: ReverseName, exists: Option<bool>) -> Arc<FixedNames> {
        Arc::new(FixedNames { client, exists, asked: AtomicUsize::new(0) })
    }

    fn questions(&self) -> usize {
        self.asked.load(Relaxed)
    }
}

impl HostNames for FixedNames {
    fn reverse_name(&self, _client: IpAddr) -> HostNameFuture<'_, ReverseName> {
        self.asked.fetch_add(1, Relaxed);
        Box::pin(std::future::ready(self.client.clone()))
    }

    fn exists<'a>(&'a self, _name: &'a str) -> HostNameFuture<'a, Option<bool>> {
        self.asked.fetch_add(1, Relaxed);
        Box::pin(std::future::ready(self.exists))
    }

    fn accepts_mail<'a>(&'a self, domain: &'a str) -> HostNameFuture<'a, Option<bool>> {
        self.exists(domain)
    }
}

fn named(states: &[ReverseNameState], names: &Arc<FixedNames>) -> ConditionMatcher {
    ConditionMatcher::ReverseName(names.clone(), states.into())
}

fn faulty(faults: &[HeloFault], names: &Arc<FixedNames>) -> ConditionMatcher {
    let (faults, own_name) = (faults.into(), "mx.here.example".into());
    ConditionMatcher::HeloFault(HeloFaults { faults, own_name, names: names.clone() })
}

fn rhsbl(table: &Arc<RecordingTable>, subjects: &[RhsblSubject], names: &Arc<FixedNames>) -> ConditionMatcher {
    let list = DnsblCheck { name: "list.example".into(), table: table.clone(), codes: Vec::new() };
    ConditionMatcher::Rhsbl(RhsblCheck { list, subjects: subjects.into(), names: names.clone() })
}

fn refuse(stage: Stage, test: ConditionMatcher) -> AccessRules {
    access(vec![rule("names", stage, vec![test], RuleAction::Refuse(None))])
}

#[test]
fn a_client_is_refused_for_its_missing_or_unconfirmed_name() {
    use ReverseNameState::*;
    let unavailable = "451 4.3.0 Access rules unavailable, try again later";
    for (client, states, expected) in [
        (ReverseName::Missing, &[Missing][..], "554 5.7.1 Access denied"),
        (ReverseName::Missing, &[Unconfirmed], "nothing"),
        (ReverseName::Unconfirmed("a.example".into()), &[Missing, Unconfirmed], "554 5.7.1 Access denied"),
        (ReverseName::Unconfirmed("a.example".into()), &[Missing], "nothing"),
        (ReverseName::Confirmed("a.example".into()), &[Missing, Unconfirmed], "nothing"),
        (ReverseName::Unanswered, &[Missing], unavailable),
    ] {
        let names = FixedNames::new(client.clone(), None);
        assert_eq!(decided(&refuse(Stage::Connect, named(states, &names)), Stage::Connect), expected, "{client:?}");
    }
}

#[test]
fn a_name_is_looked_up_once_for_all_rules_and_not_for_rules_that_fail_anyway() {
    let names = FixedNames::new(ReverseName::Missing, Some(false));
    let unconfirmed = || named(&[ReverseNameState::Unconfirmed], &names);
    let rules = access(vec![
        rule("a", Stage::Connect, vec![unconfirmed()], RuleAction::Refuse(None)),
        rule("b", Stage::Connect, vec![unconfirmed()], RuleAction::Refuse(None)),
    ]);
    assert_eq!((decided(&rules, Stage::Connect), names.questions()), ("nothing".into(), 1));
    let others = vec![client_is("198.51.100.1"), unconfirmed()];
    let rules = access(vec![rule("others", Stage::Connect, others, RuleAction::Refuse(None))]);
    assert_eq!((decided(&rules, Stage::Connect), names.questions()), ("nothing".into(), 1));
}

#[test]
fn a_greeting_is_looked_up_only_if_nothing_else_is_wrong_with_it() {
    for (exists, expected) in [
        (Some(true), "nothing"),
        (Some(false), "550 5.7.1 Access denied"),
        (None, "451 4.3.0 Access rules unavailable, try again later"),
    ] {
        let names = FixedNames::new(ReverseName::Missing, exists);
        let rules = refuse(Stage::Helo, faulty(&[HeloFault::Invalid, HeloFault::Unknown], &names));
        assert_eq!((decided(&rules, Stage::Helo), names.questions()), (expected.into(), 1));
        let rules = refuse(Stage::Helo, faulty(&[HeloFault::Invalid, HeloFault::NotQualified], &names));
        assert_eq!((decided(&rules, Stage::Helo), names.questions()), ("nothing".into(), 1));
    }
}

/// The sender is in x.example.
#[test]
fn a_sender_is_refused_for_a_domain_without_mail_hosts() {
    let of = |faults: &[SenderFault], names: &Arc<FixedNames>| {
        ConditionMatcher::SenderFault(SenderFaults { faults: faults.into(), names: names.clone() })
    };
    for (exists, expected) in [
        (Some(true), "nothing"),
        (Some(false), "550 5.7.1 Access denied"),
        (None, "451 4.3.0 Access rules unavailable, try again later"),
    ] {
        let names = FixedNames::new(ReverseName::Missing, exists);
        let rules = refuse(Stage::Mail, of(&SenderFault::ALL, &names));
        assert_eq!((decided(&rules, Stage::Mail), names.questions()), (expected.into(), 1));
        let rules = refuse(Stage::Mail, of(&[SenderFault::NotQualified], &names));
        assert_eq!((decided(&rules, Stage::Mail), names.questions()), ("nothing".into(), 1));
    }
}

#[test]
fn a_list_of_domains_is_asked_for_the_names_of_the_rule() {
    let confirmed = || FixedNames::new(ReverseName::Confirmed("a.example".into()), None);
    let unconfirmed = || FixedNames::new(ReverseName::Unconfirmed("a.example".into()), None);
    for (listed, subjects, names, expected) in [
        ("x.example", &[RhsblSubject::Sender][..], confirmed(), "550 5.7.1 x.example is listed by list.example"),
        ("mx.x.example", &[RhsblSubject::Sender], confirmed(), "nothing"),
        (
            "mx.x.example",
            &[RhsblSubject::Sender, RhsblSubject::Helo],
            confirmed(),
            "550 5.7.1 mx.x.example is listed by list.example",
        ),
        ("a.example", &[RhsblSubject::ClientName], confirmed(), "550 5.7.1 a.example is listed by list.example"),
        ("a.example", &[RhsblSubject::ClientName], unconfirmed(), "nothing"),
        ("a.example", &[RhsblSubject::ReverseName], unconfirmed(), "550 5.7.1 a.example is listed by list.example"),
    ] {
        let table = RecordingTable::new(&[(listed, "127.0.1.2")]);
        let rules = refuse(Stage::Mail, rhsbl(&table, subjects, &names));
        assert_eq!(decided(&rules, Stage::Mail), expected, "{listed} {subjects:?}");
    }
}

#[test]
fn a_list_of_domains_that_does_not_answer_lists_nothing() {
    let names = FixedNames::new(ReverseName::Missing, None);
    let table = RecordingTable::new(&[("x.example", "?")]);
    let rules = refuse(Stage::Mail, rhsbl(&table, &[RhsblSubject::Sender], &names));
    assert_eq!(decided(&rules, Stage::Mail), "nothing");
    assert_eq!((rules.unanswered_dnsbl_queries(), names.questions()), (1, 0));
    let table = RecordingTable::new(&[("x.example", "?"), ("mx.x.example", "127.0.1.2")]);
    let rules = refuse(Stage::Mail, rhsbl(&table, &[RhsblSubject::Sender, RhsblSubject::Helo], &names));
    assert!(decided(&rules, Stage::Mail).contains("mx.x.example is listed"));
}

#[test]
fn an_early_talker_is_known_at_every_stage() {
    let rules = refuse(Stage::Rcpt, ConditionMatcher::EarlyTalker);
    assert_eq!(decided(&rules, Stage::Rcpt), "nothing");
    let info = SessionInfo { client: CLIENT.parse().ok(), is_early_talker: true, ..SessionInfo::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let result = runtime.block_on(rules.evaluate(Stage::Rcpt, &info, &RecordingLog::default()));
    assert!(matches!(result.decision, Some(AccessDecision::Refuse { .. })));
}
