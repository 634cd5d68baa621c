//! Tables in memory: regular expressions, fixed answers, and chains.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lookup::chain::ChainedTable;
use lookup::fixed::StaticTable;
use lookup::regexp::{RegexpLineError, RegexpTable, RegexpTableError};
use lookup::{LookupAnswer, LookupFuture, Table, TableLayer, TraceFuture, TracedAnswer, text};

/// The result of a future that must be ready.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a table in memory must not wait"),
    }
}

fn answer(table: &dyn Table, key: &str) -> LookupAnswer {
    ready(table.lookup(&[key])).pop().unwrap()
}

fn found(values: &[&str]) -> LookupAnswer {
    LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
}

fn load(text: &[u8]) -> Result<RegexpTable, RegexpTableError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    fs::write(&path, text).unwrap();
    RegexpTable::load("rules", &path)
}

fn regexp(text: &str) -> RegexpTable {
    load(text.as_bytes()).unwrap()
}

fn mistake(text: &str) -> (usize, RegexpLineError) {
    match load(text.as_bytes()) {
        Err(RegexpTableError::Line { line, mistake, .. }) => (line, mistake),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn the_first_pattern_that_matches_counts() {
    let table = regexp(
        "# rules\n\n/^bob@/ first@example.org\n/^bob@|^carol@/ second@example.org, third@example.org\n/^dave@example\\.org$/\n",
    );
    assert_eq!(table.name(), "rules");
    let keys = ["carol@example.org", "BOB@example.org", "erin@example.org", "dave@example.org"];
    let expected = [
        found(&["second@example.org", "third@example.org"]),
        found(&["first@example.org"]),
        LookupAnswer::NotFound,
        found(&[]),
    ];
    assert_eq!(ready(table.lookup(&keys)), expected);
    assert_eq!(ready(table.trace("bob@x")).layer, TableLayer::Memory);
}

#[test]
fn groups_are_filled_into_values() {
    for (rule, key, expected) in [
        (
            "/^(.+)-(owner|request)@(.+)$/ lists+$2=${1}@$(3)",
            "dev-owner@example.org",
            &["lists+owner=dev@example.org"][..],
        ),
        ("/^(a)(b)?@/ $1x$2y", "a@x", &["axy"]),
        ("/^(a)(b)?@/ $2, c", "a@x", &["c"]),
        ("/^a@/ $$1, costs 5$$", "a@x", &["$1", "costs 5$"]),
        ("/^(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)/ $10.${1}0", "abcdefghij@x", &["j.a0"]),
        ("/^(.*)$/ x$1y", "über@x", &["xüber@xy"]),
        ("/(é)(.)/ $2$1", "aéßz", &["ßé"]),
    ] {
        assert_eq!(answer(&regexp(rule), key), found(expected), "{rule}");
    }
}

#[test]
fn no_key_makes_two_values_of_one_or_a_group_of_its_text() {
    let table = regexp("/^(.*)@example.org$/ $1@example.net\n");
    assert_eq!(answer(&table, "\"a,b\"@example.org"), found(&["\"a,b\"@example.net"]));
    assert_eq!(answer(&table, "evil@x,b@example.org"), found(&["evil@x,b@example.net"]));
    assert_eq!(answer(&table, "$1$$@example.org"), found(&["$1$$@example.net"]));
}

#[test]
fn conditions_hold_for_the_lines_within_them() {
    let table = regexp(
        "if /@old\\.example$/\n/^postmaster@/ admin@x\nif !/^sales/\n/^a/ inner@x\nendif\n!/^z/ rest@x\nEndIf\n/^z/ last@x\n",
    );
    for (key, expected) in [
        ("postmaster@old.example", found(&["admin@x"])),
        ("anna@old.example", found(&["inner@x"])),
        ("sales-a@old.example", found(&["rest@x"])),
        ("zoe@old.example", found(&["last@x"])),
        ("zoe@new.example", found(&["last@x"])),
        ("anna@new.example", LookupAnswer::NotFound),
        ("postmaster@new.example", LookupAnswer::NotFound),
    ] {
        assert_eq!(answer(&table, key), expected, "{key}");
    }
    let table = regexp("if /a/\nif /b/\nendif\nendif\nif !/c/\n/./ x\nendif\n");
    assert_eq!(answer(&table, "ab"), found(&["x"]));
    assert_eq!(answer(&table, "abc"), LookupAnswer::NotFound);
}

#[test]
fn a_flag_turns_a_default_around() {
    for (rule, key, expected) in [
        ("/BOB/ x", "bob", true),
        ("/BOB/i x", "bob", false),
        ("/bob/i x", "BOB", true),
        ("/a.b/ x", "a\nb", true),
        ("/a.b/s x", "a\nb", false),
        ("/^b$/ x", "a\nb", false),
        ("/^b$/m x", "a\nb", true),
        ("/a b #c/x x", "ab", true),
        ("/a b/ x", "ab", false),
        ("!/^a/ x", "b", true),
        ("! /^a/ x", "a", false),
        ("if!/^a/\n/./ x\nendif", "b", true),
        ("#/^a/ x", "a", false),
        ("%^a/b\\%c$%i x", "a/b%c", true),
        ("/^a\\/b$/ x", "a/b", true),
        ("/a\\\\/ x", "a\\", true),
    ] {
        let expected = if expected { found(&["x"]) } else { LookupAnswer::NotFound };
        assert_eq!(answer(&regexp(rule), key), expected, "{rule}");
    }
    assert_eq!(answer(&regexp("/^(a+)/U $1"), "aaa"), found(&["a"]));
    assert_eq!(answer(&regexp("/^(a+)/ $1"), "aaa"), found(&["aaa"]));
}

#[test]
fn a_mistake_in_a_rule_is_told_with_its_line() {
    for (text, expected) in [
        ("/a/ b\n  /c/ d\n", (2, RegexpLineError::Indented)),
        ("bob@example.org carol\n", (1, RegexpLineError::Form)),
        ("!\n", (1, RegexpLineError::Form)),
        ("ifx /a/\n", (1, RegexpLineError::Form)),
        ("if\n", (1, RegexpLineError::Form)),
        ("/a b\n", (1, RegexpLineError::UnclosedPattern('/'))),
        ("/a\\/ b\n", (1, RegexpLineError::UnclosedPattern('/'))),
        ("/a/g b\n", (1, RegexpLineError::Flag('g'))),
        ("if /a/ b\nendif\n", (1, RegexpLineError::TrailingText)),
        ("if /a/\nendif /a/\n", (2, RegexpLineError::TrailingText)),
        ("/a/ b\nendif\n", (2, RegexpLineError::EndifWithoutIf)),
        ("if /a/\nif /b/\nendif\n", (1, RegexpLineError::IfWithoutEndif)),
        ("/a/ b,,c\n", (1, RegexpLineError::Values(text::TextLineError::EmptyValue))),
        ("/a/ \"b\n", (1, RegexpLineError::Values(text::TextLineError::Quote))),
        ("/(a)/ $2\n", (1, RegexpLineError::Group { group: 2, groups: 1 })),
        ("/(a)/ $0\n", (1, RegexpLineError::Group { group: 0, groups: 1 })),
        ("!/(a)/ $1\n", (1, RegexpLineError::NegatedGroup)),
        ("/(a)/ 5$\n", (1, RegexpLineError::Dollar)),
        ("/(a)/ ${1\n", (1, RegexpLineError::Dollar)),
        ("/(a)/ ${name}\n", (1, RegexpLineError::Dollar)),
        ("/(a)/ $99999999999999999999\n", (1, RegexpLineError::Dollar)),
    ] {
        assert_eq!(mistake(text), expected, "{text}");
    }
    assert!(matches!(
        load(b"/a/ b\n/\xff/ c\n"),
        Err(RegexpTableError::Line { line: 2, mistake: RegexpLineError::Encoding, .. })
    ));
}

#[test]
fn a_wrong_pattern_is_told_in_one_line() {
    for (text, expected) in [
        ("/(a/ b", "unclosed group"),
        ("/a(?=b)/ c", "look-around, including look-ahead and look-behind, is not supported"),
        ("/(a{1000}){1000}/ c", "exceeds size limit"),
    ] {
        let (line, mistake) = mistake(text);
        let told = mistake.to_string();
        assert!(line == 1 && told.contains(expected) && !told.contains('\n'), "{text}: {told}");
    }
    let error = RegexpTable::load("t", Path::new("/proc/no such file")).unwrap_err().to_string();
    assert!(error.starts_with("/proc/no such file: "), "{error}");
}

#[test]
fn a_fixed_table_answers_everything_alike() {
    let table = StaticTable::new("all", vec!["a@x".into(), "b@x".into()]);
    assert_eq!(table.name(), "all");
    assert_eq!(ready(table.lookup(&["one", "TWO"])), [found(&["a@x", "b@x"]), found(&["a@x", "b@x"])]);
    assert_eq!(ready(table.lookup(&[])), []);
    assert_eq!(answer(&StaticTable::new("none", Vec::new()), "x"), found(&[]));
}

/// Has the keys that begin with its letter, is unavailable for those that begin with '?', and
/// records its keys.
struct RecordingTable {
    letter: char,
    asked: Mutex<Vec<Vec<String>>>,
}

impl RecordingTable {
    fn new(letter: char) -> Arc<Self> {
        Arc::new(RecordingTable { letter, asked: Mutex::default() })
    }

    fn asked(&self) -> Vec<Vec<String>> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn answer(&self, key: &str) -> LookupAnswer {
        match key.chars().next() {
            Some(first) if first == self.letter => found(&[&self.letter.to_string()]),
            Some('?') => LookupAnswer::Unavailable(format!("{} is down", self.letter)),
            _ => LookupAnswer::NotFound,
        }
    }
}

impl Table for RecordingTable {
    fn name(&self) -> &str {
        "witness"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        self.asked.lock().unwrap().push(keys.iter().map(|&key| key.to_owned()).collect());
        Box::pin(std::future::ready(keys.iter().map(|key| self.answer(key)).collect()))
    }

    fn trace<'a>(&'a self, key: &'a str) -> TraceFuture<'a> {
        let layer =
            if self.letter == 'b' { TableLayer::Backend } else { TableLayer::Cache { age: Duration::from_secs(1) } };
        Box::pin(std::future::ready(TracedAnswer { answer: self.answer(key), layer }))
    }
}

#[test]
fn the_first_table_of_a_chain_that_has_a_key_speaks_for_it() {
    let (first, second) = (RecordingTable::new('a'), RecordingTable::new('b'));
    let chain = ChainedTable::new("all", vec![first.clone(), second.clone()]);
    assert_eq!(chain.name(), "all");
    let keys = ["b1", "a1", "?", "c", "a2", "b2"];
    let unavailable = LookupAnswer::Unavailable("a is down".into());
    let expected = [found(&["b"]), found(&["a"]), unavailable, LookupAnswer::NotFound, found(&["a"]), found(&["b"])];
    assert_eq!(ready(chain.lookup(&keys)), expected);
    assert_eq!(first.asked(), [keys]);
    assert_eq!(second.asked(), [["b1", "c", "b2"]], "only open keys, in one lookup");
    assert_eq!(ready(chain.lookup(&["a"])), [found(&["a"])]);
    assert_eq!((first.asked().len(), second.asked().len()), (1, 0), "no key is open");
    assert_eq!(ready(chain.lookup(&[])), []);
    assert_eq!(chain.stats(), None);
}

#[test]
fn a_chain_tells_the_layer_of_the_table_that_decided() {
    let chain = ChainedTable::new("all", vec![RecordingTable::new('a'), RecordingTable::new('b')]);
    let cache = TableLayer::Cache { age: Duration::from_secs(1) };
    assert_eq!(ready(chain.trace("a")), TracedAnswer { answer: found(&["a"]), layer: cache });
    assert_eq!(ready(chain.trace("b")), TracedAnswer { answer: found(&["b"]), layer: TableLayer::Backend });
    assert_eq!(ready(chain.trace("c")), TracedAnswer { answer: LookupAnswer::NotFound, layer: TableLayer::Backend });
    let unavailable = LookupAnswer::Unavailable("a is down".into());
    assert_eq!(ready(chain.trace("?")), TracedAnswer { answer: unavailable, layer: cache });
}

#[test]
fn a_chain_of_nothing_has_no_key() {
    let chain = ChainedTable::new("none", Vec::new());
    assert_eq!(answer(&chain, "a"), LookupAnswer::NotFound);
    assert_eq!(ready(chain.trace("a")), TracedAnswer { answer: LookupAnswer::NotFound, layer: TableLayer::Memory });
}

/// Returns no answers at all.
struct SilentTable;

impl Table for SilentTable {
    fn name(&self) -> &str {
        "mute"
    }

    fn lookup<'a>(&'a self, _: &'a [&'a str]) -> LookupFuture<'a> {
        Box::pin(std::future::ready(Vec::new()))
    }
}

#[test]
fn a_key_without_an_answer_is_not_taken_for_one_that_is_not_there() {
    let chain = ChainedTable::new("all", vec![Arc::new(SilentTable), Arc::new(StaticTable::new("all", Vec::new()))]);
    assert!(matches!(answer(&chain, "a"), LookupAnswer::Unavailable(_)));
}

/// Unconfirmed for all keys.
struct UnconfirmedTable;

impl Table for UnconfirmedTable {
    fn name(&self) -> &str {
        "away"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        Box::pin(std::future::ready(vec![LookupAnswer::Unconfirmed("it is down".into()); keys.len()]))
    }
}

#[test]
fn what_a_table_does_not_confirm_may_hide_what_those_behind_have() {
    let behind = Arc::new(StaticTable::new("all", Vec::new()));
    let first = ChainedTable::new("all", vec![Arc::new(UnconfirmedTable), behind.clone()]);
    assert_eq!(answer(&first, "a"), LookupAnswer::Unavailable("it is down".into()));
    assert_eq!(ready(first.trace("a")).answer, LookupAnswer::Unavailable("it is down".into()));
    let last = ChainedTable::new("all", vec![Arc::new(UnconfirmedTable)]);
    assert_eq!(answer(&last, "a"), LookupAnswer::Unconfirmed("it is down".into()));
}
