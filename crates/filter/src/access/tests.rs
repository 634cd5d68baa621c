//! Rules as a session evaluates them: their order, tables and DNS lists, and outages.

mod names;
mod table_actions;

use std::sync::Mutex;

use lookup::{LookupAnswer, LookupFuture};

use super::*;

/// A table with fixed answers that records its queries.
struct RecordingTable {
    answers: Vec<(&'static str, LookupAnswer)>,
    asked: Mutex<Vec<Vec<String>>>,
}

/// Keeps the lines.
#[derive(Default)]
struct RecordingLog(Arc<Mutex<Vec<String>>>);

impl OperatorLog for RecordingLog {
    fn log_line(&self, line: fmt::Arguments<'_>) {
        self.0.lock().unwrap().push(line.to_string());
    }
}

impl RecordingTable {
    fn new(answers: &[(&'static str, &str)]) -> Arc<RecordingTable> {
        let answer = |(key, value): &(&'static str, &str)| match *value {
            "?" => (*key, LookupAnswer::Unavailable("no cable".into())),
            value => (*key, LookupAnswer::Found(vec![value.to_owned()])),
        };
        Arc::new(RecordingTable { answers: answers.iter().map(answer).collect(), asked: Mutex::default() })
    }

    fn questions(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl Table for RecordingTable {
    fn name(&self) -> &str {
        "told"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        self.asked.lock().unwrap().push(keys.iter().map(|&key| key.to_owned()).collect());
        let answer = |key: &&str| {
            let found = self.answers.iter().find(|(own, _)| own == key);
            found.map_or(LookupAnswer::NotFound, |(_, answer)| answer.clone())
        };
        Box::pin(std::future::ready(keys.iter().map(answer).collect()))
    }
}

fn rule(name: &str, stage: Stage, tests: Vec<ConditionMatcher>, action: RuleAction) -> CompiledRule {
    let conditions = tests.into_iter().map(|test| AccessCondition { text: "it".into(), test }).collect();
    CompiledRule {
        name: name.into(),
        list: None,
        class: None,
        stage,
        applies_to_users: true,
        chooses_filters: false,
        conditions,
        action,
    }
}

/// A test for a client with this address.
fn client_is(client: &'static str) -> ConditionMatcher {
    ConditionMatcher::Client(client.parse().unwrap())
}

fn listed(table: &Arc<RecordingTable>, codes: &[(&str, &str)]) -> ConditionMatcher {
    let codes = codes.iter().map(|(first, last)| first.parse().unwrap()..=last.parse().unwrap()).collect();
    ConditionMatcher::Dnsbl(DnsblCheck { name: "list.example".into(), table: table.clone(), codes })
}

const CLIENT: &str = "192.0.2.1";

/// The verdict on [`CLIENT`], and what was logged.
fn judge(access: &AccessRules, stage: Stage) -> (AccessStageResult, Vec<String>) {
    judge_as(access, stage, false)
}

fn judge_as(access: &AccessRules, stage: Stage, is_user: bool) -> (AccessStageResult, Vec<String>) {
    let (sender, recipient) = ("a@x.example".parse().unwrap(), "b@y.example".parse().unwrap());
    let info = SessionInfo {
        client: CLIENT.parse().ok(),
        is_user,
        helo: Some("mx.x.example"),
        sender: Some(Some(&sender)),
        recipient: Some(&recipient),
        ..SessionInfo::default()
    };
    let log_lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = log_lines.clone();
    let log = RecordingLog(sink);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let verdict = runtime.block_on(access.evaluate(stage, &info, &log));
    let log_lines = log_lines.lock().unwrap().clone();
    (verdict, log_lines)
}

fn decided(access: &AccessRules, stage: Stage) -> String {
    match judge(access, stage).0 {
        AccessStageResult { decision: Some(AccessDecision::Accept), .. } => "accept".into(),
        AccessStageResult { decision: Some(AccessDecision::Refuse { reply, .. }), .. } => reply.to_string(),
        AccessStageResult { held: true, .. } => "hold".into(),
        _ => "nothing".into(),
    }
}

fn access(rules: Vec<CompiledRule>) -> AccessRules {
    AccessRules::new(rules).unwrap()
}

#[test]
fn no_rules_make_no_access_rules() {
    assert!(AccessRules::new(Vec::new()).is_none());
}

#[test]
fn the_first_rule_that_matches_decides_at_its_stage() {
    let all = access(vec![
        rule("other", Stage::Connect, vec![client_is("192.0.2.9")], RuleAction::Refuse(None)),
        rule("ours", Stage::Connect, vec![client_is(CLIENT)], RuleAction::Accept),
        rule("all", Stage::Connect, vec![], RuleAction::Refuse(None)),
        rule("later", Stage::Rcpt, vec![], RuleAction::Defer(None)),
    ]);
    assert_eq!(decided(&all, Stage::Connect), "accept");
    assert_eq!(decided(&all, Stage::Helo), "nothing");
    assert_eq!(decided(&all, Stage::Rcpt), "450 4.7.1 Access temporarily denied, try again later");
    assert_eq!(all.match_counts().collect::<Vec<_>>(), [("other", 0), ("ours", 1), ("all", 0), ("later", 1)]);
    assert!(all.has_rules_at(Stage::Rcpt) && !all.has_rules_at(Stage::Mail));
}

/// A rule that accepted ended the evaluation of all rules, so that an allowlist bypassed every
/// other list.
#[test]
fn accept_in_a_list_skips_only_that_list() {
    let of = |list: &'static str, rule: CompiledRule| CompiledRule { list: Some(list.into()), ..rule };
    let friends = RecordingTable::new(&[("a@x.example", "OK")]);
    let ours = || {
        of(
            "sender",
            rule(
                "ours",
                Stage::Rcpt,
                vec![ConditionMatcher::Table(RuleSubject::Sender, friends.clone())],
                RuleAction::Table,
            ),
        )
    };
    let others = || of("sender", rule("others", Stage::Rcpt, vec![], RuleAction::Refuse(None)));
    let here = |action| of("client", rule("here", Stage::Rcpt, vec![client_is(CLIENT)], action));
    let all = access(vec![ours(), others(), here(RuleAction::Defer(None))]);
    assert_eq!(decided(&all, Stage::Rcpt), "450 4.7.1 Access temporarily denied, try again later");
    let all = access(vec![
        ours(),
        others(),
        here(RuleAction::Accept),
        of("client", rule("no", Stage::Rcpt, vec![], RuleAction::Hold)),
    ]);
    assert_eq!(decided(&all, Stage::Rcpt), "nothing");
    assert_eq!(all.match_counts().collect::<Vec<_>>(), [("ours", 1), ("others", 0), ("here", 1), ("no", 0)]);
    let all = access(vec![others(), ours(), here(RuleAction::Accept)]);
    assert_eq!(decided(&all, Stage::Rcpt), "550 5.7.1 Access denied");
}

/// A class is entered where a table names it, and its rules stand in for the value.
#[test]
fn rules_of_a_class_apply_after_a_table_has_named_it() {
    let of_class = |rule: CompiledRule| CompiledRule { class: Some("insiders".into()), ..rule };
    let in_list = |rule: CompiledRule| CompiledRule { list: Some("l".into()), ..rule };
    let named = |value| {
        let table = RecordingTable::new(&[("b@y.example", value)]);
        let test = ConditionMatcher::Table(RuleSubject::Recipient, table);
        in_list(rule("table", Stage::Rcpt, vec![test], RuleAction::Table))
    };
    let rules = |value, client| {
        access(vec![
            named(value),
            of_class(in_list(rule("inside", Stage::Rcpt, vec![client_is(client)], RuleAction::Accept))),
            of_class(in_list(rule("others", Stage::Rcpt, vec![], RuleAction::Refuse(None)))),
            in_list(rule("rest", Stage::Rcpt, vec![], RuleAction::Hold)),
        ])
    };
    for (value, client, expected) in [
        ("insiders", "192.0.2.9", "550 5.7.1 Access denied"),
        ("insiders", CLIENT, "nothing"),
        ("DUNNO", CLIENT, "hold"),
        ("outsiders", CLIENT, "451 4.3.0 Access rules unavailable, try again later"),
    ] {
        let all = rules(value, client);
        assert_eq!(decided(&all, Stage::Rcpt), expected, "{value} {client}");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let recipient = "b@y.example".parse().unwrap();
        let info = SessionInfo { client: CLIENT.parse().ok(), recipient: Some(&recipient), ..SessionInfo::default() };
        let explained = runtime.block_on(all.explain(Stage::Rcpt, &info));
        assert_eq!(explained.iter().any(|one| &*one.rule == "inside"), value == "insiders", "{value}");
    }
}

/// It decided nothing, and what its rules refuse at another stage, or before the table, was let in.
#[test]
fn a_class_without_later_rules_at_the_stage_lets_nobody_in() {
    let of_class = |stage| CompiledRule {
        class: Some("strangers".into()),
        ..rule("strangers", stage, vec![], RuleAction::Refuse(None))
    };
    let table = || {
        let table = RecordingTable::new(&[("b@y.example", "strangers")]);
        rule("table", Stage::Rcpt, vec![ConditionMatcher::Table(RuleSubject::Recipient, table)], RuleAction::Table)
    };
    let unavailable = "451 4.3.0 Access rules unavailable, try again later";
    for (rules, expected) in [
        (vec![table(), of_class(Stage::Rcpt)], "550 5.7.1 Access denied"),
        (vec![table(), of_class(Stage::Connect)], unavailable),
        (vec![of_class(Stage::Rcpt), table()], unavailable),
    ] {
        let all = access(rules);
        assert_eq!(decided(&all, Stage::Rcpt), expected, "{all:?}");
    }
}

/// A counter that starts again from zero looks like a restart of the server.
#[test]
fn replaced_rules_keep_the_counts_of_their_names() {
    let all = |name| rule(name, Stage::Connect, vec![], RuleAction::Refuse(None));
    let before = access(vec![all("a"), all("b")]);
    decided(&before, Stage::Connect);
    let after = access(vec![all("c"), all("a")]).with_counters_from(Some(&before));
    assert_eq!(after.match_counts().collect::<Vec<_>>(), [("c", 0), ("a", 1)]);
    // A session that still uses the old rules.
    decided(&before, Stage::Connect);
    decided(&after, Stage::Connect);
    assert_eq!(after.match_counts().collect::<Vec<_>>(), [("c", 1), ("a", 2)]);
    assert_eq!(access(vec![all("a")]).with_counters_from(None).match_counts().collect::<Vec<_>>(), [("a", 0)]);
}

#[test]
fn all_conditions_of_a_rule_have_to_hold() {
    let helo = |name: &'static str| ConditionMatcher::Helo(Arc::new(move |helo: &str| helo == name));
    let both =
        |name| access(vec![rule("both", Stage::Helo, vec![client_is(CLIENT), helo(name)], RuleAction::Refuse(None))]);
    assert_eq!(decided(&both("mx.x.example"), Stage::Helo), "550 5.7.1 Access denied");
    assert_eq!(decided(&both("mx.y.example"), Stage::Helo), "nothing");
}

/// `EHLO a.DYNAMIC.test` and `EHLO a.dynamic.test.` evaded a rule for `*.dynamic.test`.
#[test]
fn helo_names_compare_without_case_or_trailing_dot() {
    let table = RecordingTable::new(&[(".dynamic.test", "REJECT")]);
    let all = access(vec![
        rule(
            "named",
            Stage::Helo,
            vec![ConditionMatcher::Helo(Arc::new(|helo: &str| helo == "b.dynamic.test"))],
            RuleAction::Refuse(None),
        ),
        rule("tabled", Stage::Helo, vec![ConditionMatcher::Table(RuleSubject::Helo, table)], RuleAction::Table),
    ]);
    let log = RecordingLog::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for helo in ["a.dynamic.test", "A.DYNAMIC.test", "a.dynamic.test.", "b.dynamic.test", "B.dynamic.test."] {
        let info = SessionInfo { helo: Some(helo), ..SessionInfo::default() };
        let verdict = runtime.block_on(all.evaluate(Stage::Helo, &info, &log));
        assert!(matches!(verdict.decision, Some(AccessDecision::Refuse { .. })), "{helo}");
    }
}

#[test]
fn a_hold_does_not_keep_the_rules_behind_it_from_refusing() {
    let hold = || rule("hold", Stage::Mail, vec![], RuleAction::Hold);
    assert_eq!(decided(&access(vec![hold()]), Stage::Mail), "hold");
    let both = access(vec![hold(), rule("no", Stage::Mail, vec![], RuleAction::Refuse(None))]);
    assert_eq!(decided(&both, Stage::Mail), "550 5.7.1 Access denied");
    assert!(judge(&both, Stage::Mail).0.held);
}

#[test]
fn defer_if_reject_makes_a_later_refusal_a_deferral() {
    let table = RecordingTable::new(&[("b@y.example", "DEFER_IF_REJECT 4.7.0 soon")]);
    let softens = || {
        let test = ConditionMatcher::Table(RuleSubject::Recipient, table.clone());
        rule("softens", Stage::Rcpt, vec![test], RuleAction::Table)
    };
    let end = |action| rule("end", Stage::Rcpt, vec![], action);
    let soft = || Some(("softens".into(), "450 4.7.0 soon".parse().unwrap()));
    let alone = judge(&access(vec![softens()]), Stage::Rcpt).0;
    assert_eq!((alone.deferral, alone.decision), (soft(), None), "the server or a filter may still refuse");
    assert_eq!(decided(&access(vec![softens(), end(RuleAction::Accept)]), Stage::Rcpt), "accept");
    let refused = access(vec![softens(), end(RuleAction::Refuse(None))]);
    assert_eq!(decided(&refused, Stage::Rcpt), "450 4.7.0 soon");
    let own = RuleAction::Defer(Some("451 4.3.0 no".parse().unwrap()));
    assert_eq!(decided(&access(vec![softens(), end(own)]), Stage::Rcpt), "451 4.3.0 no");
    let before = access(vec![end(RuleAction::Refuse(None)), softens()]);
    assert_eq!(decided(&before, Stage::Rcpt), "550 5.7.1 Access denied");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let recipient = "b@y.example".parse().unwrap();
    let info = SessionInfo { recipient: Some(&recipient), ..SessionInfo::default() };
    let explained = runtime.block_on(refused.explain(Stage::Rcpt, &info));
    let findings: Vec<_> = explained.into_iter().map(|one| one.verdict).collect();
    let reply: Reply = "450 4.7.0 soon".parse().unwrap();
    assert_eq!(findings, [RuleFinding::DeferIfReject(reply.clone()), RuleFinding::Reject(reply)]);
}

#[test]
fn a_table_speaks_by_its_most_special_key() {
    let table = RecordingTable::new(&[("@y.example", "REJECT no mail here"), ("y.example", "OK")]);
    let speaks = access(vec![rule(
        "t",
        Stage::Rcpt,
        vec![ConditionMatcher::Table(RuleSubject::Recipient, table)],
        RuleAction::Table,
    )]);
    assert_eq!(decided(&speaks, Stage::Rcpt), "550 5.7.1 no mail here");
    let dunno = RecordingTable::new(&[("b@y.example", "DUNNO"), ("y.example", "REJECT")]);
    let passes = access(vec![
        rule("t", Stage::Rcpt, vec![ConditionMatcher::Table(RuleSubject::Recipient, dunno)], RuleAction::Table),
        rule("end", Stage::Rcpt, vec![], RuleAction::Accept),
    ]);
    assert_eq!(decided(&passes, Stage::Rcpt), "accept");
}

#[test]
fn all_rules_of_a_stage_ask_a_table_once() {
    let table = RecordingTable::new(&[("mx.x.example", "x")]);
    let ask = |name, subject| {
        rule(name, Stage::Rcpt, vec![ConditionMatcher::Table(subject, table.clone())], RuleAction::Hold)
    };
    let all = access(vec![ask("a", RuleSubject::Client), ask("b", RuleSubject::Helo), ask("c", RuleSubject::Sender)]);
    assert_eq!(decided(&all, Stage::Rcpt), "hold");
    assert_eq!(table.questions(), 1);
    assert_eq!(all.match_counts().map(|(_, count)| count).collect::<Vec<_>>(), [0, 1, 0]);
}

#[test]
fn tables_are_not_queried_for_rules_that_cannot_decide() {
    let table = RecordingTable::new(&[]);
    let asks = || ConditionMatcher::Table(RuleSubject::Client, table.clone());
    let all = access(vec![
        rule("other", Stage::Connect, vec![asks(), client_is("192.0.2.9")], RuleAction::Refuse(None)),
        rule("ours", Stage::Connect, vec![client_is(CLIENT)], RuleAction::Accept),
        rule("behind", Stage::Connect, vec![asks()], RuleAction::Refuse(None)),
    ]);
    assert_eq!(decided(&all, Stage::Connect), "accept");
    assert_eq!(table.questions(), 0);
}

#[test]
fn an_unavailable_table_defers_clients_it_could_decide_on() {
    let down = RecordingTable::new(&[("192.0.2.1", "?"), ("192.0.2", "OK")]);
    let asks = || vec![ConditionMatcher::Table(RuleSubject::Client, down.clone())];
    for action in [RuleAction::Accept, RuleAction::Refuse(None), RuleAction::Hold, RuleAction::Table] {
        let one = access(vec![rule("one", Stage::Connect, asks(), action)]);
        assert_eq!(decided(&one, Stage::Connect), "451 4.3.0 Access rules unavailable, try again later");
        assert_eq!(judge(&one, Stage::Connect).1, ["access rule 'one' cannot be evaluated: no cable"]);
    }
    let before = access(vec![
        rule("ours", Stage::Connect, vec![client_is(CLIENT)], RuleAction::Accept),
        rule("one", Stage::Connect, asks(), RuleAction::Refuse(None)),
    ]);
    assert_eq!(decided(&before, Stage::Connect), "accept");
}

#[test]
fn a_dnsbl_matches_by_its_codes_and_never_while_it_is_unavailable() {
    let refuse = |test| access(vec![rule("list", Stage::Connect, vec![test], RuleAction::Refuse(None))]);
    let table = RecordingTable::new(&[(CLIENT, "127.0.0.4")]);
    let told = "554 5.7.1 192.0.2.1 is listed by list.example";
    for (codes, expected) in [
        (&[][..], told),
        (&[("127.0.0.2", "127.0.0.4")][..], told),
        (&[("127.0.0.2", "127.0.0.3"), ("127.0.0.5", "127.0.0.255")][..], "nothing"),
    ] {
        assert_eq!(decided(&refuse(listed(&table, codes)), Stage::Connect), expected);
    }
    let down = refuse(listed(&RecordingTable::new(&[(CLIENT, "?")]), &[]));
    let (verdict, log_lines) = judge(&down, Stage::Connect);
    assert_eq!((verdict, down.unanswered_dnsbl_queries()), (AccessStageResult::default(), 1));
    assert_eq!(log_lines, ["access rule 'list' ignores an unavailable DNS list: no cable"]);
}

/// Users send from addresses listed because of other clients; an unavailable list must not delay
/// them either.
#[test]
fn users_skip_rules_that_do_not_apply_to_them() {
    let table = RecordingTable::new(&[(CLIENT, "127.0.0.2")]);
    let strangers = CompiledRule {
        applies_to_users: false,
        ..rule("list", Stage::Rcpt, vec![listed(&table, &[])], RuleAction::Refuse(None))
    };
    let all = access(vec![strangers, rule("all", Stage::Rcpt, vec![], RuleAction::Hold)]);
    assert_eq!(judge_as(&all, Stage::Rcpt, true).0, AccessStageResult { held: true, ..AccessStageResult::default() });
    assert_eq!(table.questions(), 0);
    assert_eq!(decided(&all, Stage::Rcpt), "550 5.7.1 192.0.2.1 is listed by list.example");
}

#[test]
fn an_explanation_lists_every_rule_up_to_the_deciding_one() {
    let all = access(vec![
        rule("other", Stage::Connect, vec![client_is("192.0.2.9")], RuleAction::Refuse(None)),
        rule("all", Stage::Connect, vec![client_is(CLIENT)], RuleAction::Refuse(None)),
        rule("never", Stage::Connect, vec![], RuleAction::Accept),
    ]);
    let info = SessionInfo { client: CLIENT.parse().ok(), ..SessionInfo::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let explanations = runtime.block_on(all.explain(Stage::Connect, &info));
    let found: Vec<_> =
        explanations.iter().map(|told| (&*told.rule, &told.conditions[..], told.verdict.clone())).collect();
    let (fails, holds) = ([("it".into(), ConditionFinding::Fails)], [("it".into(), ConditionFinding::Holds)]);
    let refused = RuleFinding::Reject(crate::replies::CLIENT_DENIED);
    assert_eq!(found, [("other", &fails[..], RuleFinding::NoMatch), ("all", &holds[..], refused)]);
    assert!(explanations[1].decides && !explanations[1].accepts);
    assert_eq!(all.match_counts().map(|(_, count)| count).sum::<u64>(), 0);
}

#[test]
fn rules_about_verdicts_are_asked_of_what_was_found() {
    use crate::check::Finding;
    let spf = ConditionMatcher::Verdict { method: "spf", results: ["fail", "softfail"].into() };
    let signed = ConditionMatcher::SignedBy(Arc::new(|domain: &str| domain == "a.example"));
    let access = access(vec![
        rule("signed", Stage::Message, vec![signed], RuleAction::Accept),
        rule("spf", Stage::Message, vec![spf], RuleAction::Hold),
    ]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let found = |method, result, domain: Option<&str>| Finding { method, result, domain: domain.map(Into::into) };
    for (findings, expected) in [
        (vec![found("spf", "softfail", None)], (true, None)),
        (vec![found("spf", "pass", None)], (false, None)),
        (vec![], (false, None)),
        (vec![found("dkim", "fail", Some("a.example")), found("spf", "fail", None)], (true, None)),
        (vec![found("dkim", "pass", Some("b.example"))], (false, None)),
        (
            vec![found("dkim", "pass", Some("b.example")), found("dkim", "pass", Some("a.example"))],
            (false, Some(AccessDecision::Accept)),
        ),
    ] {
        let info = SessionInfo { findings: &findings, ..SessionInfo::default() };
        let log = RecordingLog(Arc::default());
        let result = runtime.block_on(access.evaluate(Stage::Message, &info, &log));
        assert_eq!((result.held, result.decision), expected, "{findings:?}");
    }
}
