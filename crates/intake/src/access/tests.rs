//! Rules as a session evaluates them: their order, tables and DNS lists, and outages.

use std::sync::Mutex;

use lookup::{Answer, Answers};

use super::*;

/// A table with fixed answers that records its queries.
struct Told {
    answers: Vec<(&'static str, Answer)>,
    asked: Mutex<Vec<Vec<String>>>,
}

impl Told {
    fn new(answers: &[(&'static str, &str)]) -> Arc<Told> {
        let answer = |(key, value): &(&'static str, &str)| match *value {
            "?" => (*key, Answer::Unavailable("no cable".into())),
            value => (*key, Answer::Found(vec![value.to_owned()])),
        };
        Arc::new(Told { answers: answers.iter().map(answer).collect(), asked: Mutex::default() })
    }

    fn questions(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl Table for Told {
    fn name(&self) -> &str {
        "told"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> Answers<'a> {
        self.asked.lock().unwrap().push(keys.iter().map(|&key| key.to_owned()).collect());
        let answer = |key: &&str| {
            let found = self.answers.iter().find(|(own, _)| own == key);
            found.map_or(Answer::NotFound, |(_, answer)| answer.clone())
        };
        Box::pin(std::future::ready(keys.iter().map(answer).collect()))
    }
}

fn rule(name: &str, stage: Stage, tests: Vec<Test>, action: Action) -> Rule {
    let conditions = tests.into_iter().map(|test| Condition { text: "it".into(), test }).collect();
    Rule { name: name.into(), list: None, stage, asks_users: true, conditions, action }
}

/// A test for a client with this address.
fn from(client: &'static str) -> Test {
    Test::Client(Arc::new(move |address| address.to_string() == client))
}

fn listed(table: &Arc<Told>, codes: &[(&str, &str)]) -> Test {
    let codes = codes.iter().map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap())).collect();
    Test::Listed(Zone { name: "list.example".into(), table: table.clone(), codes })
}

const CLIENT: &str = "192.0.2.1";

/// The verdict on [`CLIENT`], and what was logged.
fn judge(access: &Access, stage: Stage) -> (Verdict, Vec<String>) {
    judge_one(access, stage, false)
}

fn judge_one(access: &Access, stage: Stage, is_user: bool) -> (Verdict, Vec<String>) {
    let (sender, recipient) = ("a@x.example".parse().unwrap(), "b@y.example".parse().unwrap());
    let visit = Visit {
        client: CLIENT.parse().ok(),
        is_user,
        helo: Some("mx.x.example"),
        sender: Some(Some(&sender)),
        recipient: Some(&recipient),
        ..Visit::default()
    };
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let ears = heard.clone();
    let troubles = Troubles::new(move |what, _| ears.lock().unwrap().push(what.to_owned()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let verdict = runtime.block_on(access.judge(stage, &visit, &troubles));
    let heard = heard.lock().unwrap().clone();
    (verdict, heard)
}

fn decided(access: &Access, stage: Stage) -> String {
    match judge(access, stage).0 {
        Verdict { decision: Some(Decision::Accept), .. } => "accept".into(),
        Verdict { decision: Some(Decision::Refuse { reply, .. }), .. } => reply.to_string(),
        Verdict { held: true, .. } => "hold".into(),
        _ => "nothing".into(),
    }
}

fn access(rules: Vec<Rule>) -> Access {
    Access::new(rules).unwrap()
}

#[test]
fn no_rules_are_nothing_to_ask() {
    assert!(Access::new(Vec::new()).is_none());
}

#[test]
fn the_first_rule_that_matches_decides_at_its_stage() {
    let all = access(vec![
        rule("other", Stage::Connect, vec![from("192.0.2.9")], Action::Refuse(None)),
        rule("ours", Stage::Connect, vec![from(CLIENT)], Action::Accept),
        rule("all", Stage::Connect, vec![], Action::Refuse(None)),
        rule("later", Stage::Rcpt, vec![], Action::Defer(None)),
    ]);
    assert_eq!(decided(&all, Stage::Connect), "accept");
    assert_eq!(decided(&all, Stage::Helo), "nothing");
    assert_eq!(decided(&all, Stage::Rcpt), "450 4.7.1 Access temporarily denied, try again later");
    assert_eq!(all.counted().collect::<Vec<_>>(), [("other", 0), ("ours", 1), ("all", 0), ("later", 1)]);
    assert!(all.asks_at(Stage::Rcpt) && !all.asks_at(Stage::Mail));
}

/// A rule that accepted ended the evaluation of all rules, so that an allowlist bypassed every
/// other list.
#[test]
fn to_accept_in_a_list_passes_over_that_list_alone() {
    let of = |list: &'static str, rule: Rule| Rule { list: Some(list.into()), ..rule };
    let friends = Told::new(&[("a@x.example", "OK")]);
    let ours =
        || of("sender", rule("ours", Stage::Rcpt, vec![Test::Table(Subject::Sender, friends.clone())], Action::Table));
    let others = || of("sender", rule("others", Stage::Rcpt, vec![], Action::Refuse(None)));
    let here = |action| of("client", rule("here", Stage::Rcpt, vec![from(CLIENT)], action));
    let all = access(vec![ours(), others(), here(Action::Defer(None))]);
    assert_eq!(decided(&all, Stage::Rcpt), "450 4.7.1 Access temporarily denied, try again later");
    let all = access(vec![
        ours(),
        others(),
        here(Action::Accept),
        of("client", rule("no", Stage::Rcpt, vec![], Action::Hold)),
    ]);
    assert_eq!(decided(&all, Stage::Rcpt), "nothing");
    assert_eq!(all.counted().collect::<Vec<_>>(), [("ours", 1), ("others", 0), ("here", 1), ("no", 0)]);
    let all = access(vec![others(), ours(), here(Action::Accept)]);
    assert_eq!(decided(&all, Stage::Rcpt), "550 5.7.1 Access denied");
}

/// A counter that starts again from zero looks like a restart of the server.
#[test]
fn rules_that_replace_others_go_on_with_the_counts_of_their_names() {
    let all = |name| rule(name, Stage::Connect, vec![], Action::Refuse(None));
    let before = access(vec![all("a"), all("b")]);
    decided(&before, Stage::Connect);
    let after = access(vec![all("c"), all("a")]).counting_on(Some(&before));
    assert_eq!(after.counted().collect::<Vec<_>>(), [("c", 0), ("a", 1)]);
    // A session that still uses the old rules.
    decided(&before, Stage::Connect);
    decided(&after, Stage::Connect);
    assert_eq!(after.counted().collect::<Vec<_>>(), [("c", 1), ("a", 2)]);
    assert_eq!(access(vec![all("a")]).counting_on(None).counted().collect::<Vec<_>>(), [("a", 0)]);
}

#[test]
fn all_conditions_of_a_rule_have_to_hold() {
    let helo = |name: &'static str| Test::Helo(Arc::new(move |helo: &str| helo == name));
    let both = |name| access(vec![rule("both", Stage::Helo, vec![from(CLIENT), helo(name)], Action::Refuse(None))]);
    assert_eq!(decided(&both("mx.x.example"), Stage::Helo), "550 5.7.1 Access denied");
    assert_eq!(decided(&both("mx.y.example"), Stage::Helo), "nothing");
}

/// `EHLO a.DYNAMIC.test` and `EHLO a.dynamic.test.` evaded a rule for `*.dynamic.test`.
#[test]
fn who_spells_its_name_otherwise_has_the_same_name() {
    let table = Told::new(&[(".dynamic.test", "REJECT")]);
    let all = access(vec![
        rule(
            "named",
            Stage::Helo,
            vec![Test::Helo(Arc::new(|helo: &str| helo == "b.dynamic.test"))],
            Action::Refuse(None),
        ),
        rule("tabled", Stage::Helo, vec![Test::Table(Subject::Helo, table)], Action::Table),
    ]);
    let troubles = Troubles::new(|_, _| {});
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for helo in ["a.dynamic.test", "A.DYNAMIC.test", "a.dynamic.test.", "b.dynamic.test", "B.dynamic.test."] {
        let visit = Visit { helo: Some(helo), ..Visit::default() };
        let verdict = runtime.block_on(all.judge(Stage::Helo, &visit, &troubles));
        assert!(matches!(verdict.decision, Some(Decision::Refuse { .. })), "{helo}");
    }
}

#[test]
fn a_hold_does_not_keep_the_rules_behind_it_from_refusing() {
    let hold = || rule("hold", Stage::Mail, vec![], Action::Hold);
    assert_eq!(decided(&access(vec![hold()]), Stage::Mail), "hold");
    let both = access(vec![hold(), rule("no", Stage::Mail, vec![], Action::Refuse(None))]);
    assert_eq!(decided(&both, Stage::Mail), "550 5.7.1 Access denied");
    assert!(judge(&both, Stage::Mail).0.held);
}

#[test]
fn a_table_speaks_by_its_most_special_key() {
    let table = Told::new(&[("@y.example", "REJECT no mail here"), ("y.example", "OK")]);
    let speaks = access(vec![rule("t", Stage::Rcpt, vec![Test::Table(Subject::Recipient, table)], Action::Table)]);
    assert_eq!(decided(&speaks, Stage::Rcpt), "550 5.7.1 no mail here");
    let dunno = Told::new(&[("b@y.example", "DUNNO"), ("y.example", "REJECT")]);
    let passes = access(vec![
        rule("t", Stage::Rcpt, vec![Test::Table(Subject::Recipient, dunno)], Action::Table),
        rule("end", Stage::Rcpt, vec![], Action::Accept),
    ]);
    assert_eq!(decided(&passes, Stage::Rcpt), "accept");
}

#[test]
fn all_rules_of_a_stage_ask_a_table_once() {
    let table = Told::new(&[("mx.x.example", "x")]);
    let ask = |name, subject| rule(name, Stage::Rcpt, vec![Test::Table(subject, table.clone())], Action::Hold);
    let all = access(vec![ask("a", Subject::Client), ask("b", Subject::Helo), ask("c", Subject::Sender)]);
    assert_eq!(decided(&all, Stage::Rcpt), "hold");
    assert_eq!(table.questions(), 1);
    assert_eq!(all.counted().map(|(_, count)| count).collect::<Vec<_>>(), [0, 1, 0]);
}

#[test]
fn nobody_is_asked_for_a_rule_that_does_not_match_or_stands_behind_one_that_does() {
    let table = Told::new(&[]);
    let asks = || Test::Table(Subject::Client, table.clone());
    let all = access(vec![
        rule("other", Stage::Connect, vec![asks(), from("192.0.2.9")], Action::Refuse(None)),
        rule("ours", Stage::Connect, vec![from(CLIENT)], Action::Accept),
        rule("behind", Stage::Connect, vec![asks()], Action::Refuse(None)),
    ]);
    assert_eq!(decided(&all, Stage::Connect), "accept");
    assert_eq!(table.questions(), 0);
}

#[test]
fn a_table_that_cannot_say_puts_off_whom_it_could_decide_on() {
    let down = Told::new(&[("192.0.2.1", "?"), ("192.0.2", "OK")]);
    let asks = || vec![Test::Table(Subject::Client, down.clone())];
    for action in [Action::Accept, Action::Refuse(None), Action::Hold, Action::Table] {
        let one = access(vec![rule("one", Stage::Connect, asks(), action)]);
        assert_eq!(decided(&one, Stage::Connect), "451 4.3.0 Access rules unavailable, try again later");
        assert_eq!(judge(&one, Stage::Connect).1, ["access rule 'one' cannot be evaluated: no cable"]);
    }
    let before = access(vec![
        rule("ours", Stage::Connect, vec![from(CLIENT)], Action::Accept),
        rule("one", Stage::Connect, asks(), Action::Refuse(None)),
    ]);
    assert_eq!(decided(&before, Stage::Connect), "accept");
}

#[test]
fn a_list_lists_by_its_codes_and_nobody_while_it_cannot_say() {
    let refuse = |test| access(vec![rule("list", Stage::Connect, vec![test], Action::Refuse(None))]);
    let table = Told::new(&[(CLIENT, "127.0.0.4")]);
    let told = "554 5.7.1 192.0.2.1 is listed by list.example";
    for (codes, expected) in [
        (&[][..], told),
        (&[("127.0.0.2", "127.0.0.4")][..], told),
        (&[("127.0.0.2", "127.0.0.3"), ("127.0.0.5", "127.0.0.255")][..], "nothing"),
    ] {
        assert_eq!(decided(&refuse(listed(&table, codes)), Stage::Connect), expected);
    }
    let down = refuse(listed(&Told::new(&[(CLIENT, "?")]), &[]));
    let (verdict, heard) = judge(&down, Stage::Connect);
    assert_eq!((verdict, down.unanswered()), (Verdict::default(), 1));
    assert_eq!(heard, ["access rule 'list' ignores an unavailable DNS list: no cable"]);
}

/// Users send from addresses listed because of other clients; an unavailable list must not delay
/// them either.
#[test]
fn users_pass_rules_that_are_not_for_them() {
    let table = Told::new(&[(CLIENT, "127.0.0.2")]);
    let strangers =
        Rule { asks_users: false, ..rule("list", Stage::Rcpt, vec![listed(&table, &[])], Action::Refuse(None)) };
    let all = access(vec![strangers, rule("all", Stage::Rcpt, vec![], Action::Hold)]);
    assert_eq!(judge_one(&all, Stage::Rcpt, true).0, Verdict { held: true, decision: None });
    assert_eq!(table.questions(), 0);
    assert_eq!(decided(&all, Stage::Rcpt), "550 5.7.1 192.0.2.1 is listed by list.example");
}

#[test]
fn an_account_has_every_rule_up_to_the_one_that_decides() {
    let all = access(vec![
        rule("other", Stage::Connect, vec![from("192.0.2.9")], Action::Refuse(None)),
        rule("all", Stage::Connect, vec![from(CLIENT)], Action::Refuse(None)),
        rule("never", Stage::Connect, vec![], Action::Accept),
    ]);
    let visit = Visit { client: CLIENT.parse().ok(), ..Visit::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let told = runtime.block_on(all.explain(Stage::Connect, &visit));
    let lines: Vec<_> = told.iter().map(|told| (&*told.rule, told.conditions.join(", "), told.says.clone())).collect();
    let says = Some("refuse: 554 5.7.1 Access denied".to_owned());
    assert_eq!(lines, [("other", "it: no".to_owned(), None), ("all", "it: yes".to_owned(), says)]);
    assert!(told[1].decides && !told[1].accepts);
    assert_eq!(all.counted().map(|(_, count)| count).sum::<u64>(), 0);
}
