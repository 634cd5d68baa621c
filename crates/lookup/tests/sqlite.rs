//! SQLite tables with real files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lookup::LookupAnswer;
use lookup::backend::{Backend, BackendFailure};
use lookup::sqlite::{Sqlite, SqliteConfig};
use rusqlite::Connection;
use tempfile::TempDir;

const BY_KEY: &str = "SELECT target FROM aliases WHERE address = :key ORDER BY rowid";

/// The result of a future that must be ready: SQLite blocks instead of waiting.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("SQLite must not wait"),
    }
}

fn ask(table: &Sqlite, keys: &[&str]) -> Result<Vec<LookupAnswer>, BackendFailure> {
    let keys: Vec<Box<str>> = keys.iter().map(|&key| key.into()).collect();
    ready(table.ask(&keys))
}

fn found(values: &[&str]) -> LookupAnswer {
    LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
}

fn make(path: &Path, target: &str) {
    let connection = Connection::open(path).unwrap();
    connection.execute_batch("CREATE TABLE aliases (address TEXT, target, second)").unwrap();
    let mut row = connection.prepare("INSERT INTO aliases VALUES (?, ?, ?)").unwrap();
    row.execute(("bob@x", target, "b2@x")).unwrap();
    row.execute(("bob@x", "c@x", None::<&str>)).unwrap();
    row.execute(("none@x", None::<&str>, None::<&str>)).unwrap();
    row.execute(("number@x", 7, 1.5)).unwrap();
    row.execute(("blob@x", b"x".as_slice(), None::<&str>)).unwrap();
}

/// A folder with a database.
fn database() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mail.db");
    make(&path, "b1@x");
    (folder, path)
}

fn table(path: &Path, query: &str) -> Sqlite {
    Sqlite::new(SqliteConfig { path: path.into(), query: query.into(), timeout: Duration::from_secs(10) })
}

#[test]
fn rows_are_found_and_their_columns_are_values() {
    let (_folder, path) = database();
    let one = table(&path, BY_KEY);
    let keys = ["nobody@x", "bob@x", "none@x", "number@x"];
    let expected = [LookupAnswer::NotFound, found(&["b1@x", "c@x"]), found(&[]), found(&["7"])];
    assert_eq!(ask(&one, &keys).unwrap(), expected);
    assert_eq!(ask(&one, &[]).unwrap(), []);
    let both = table(&path, "SELECT target, second FROM aliases WHERE address = :key ORDER BY rowid");
    assert_eq!(ask(&both, &["bob@x", "number@x"]).unwrap(), [found(&["b1@x", "b2@x", "c@x"]), found(&["7", "1.5"])]);
}

#[test]
fn a_query_may_use_the_parts_of_an_address() {
    let (_folder, path) = database();
    let parts = table(&path, "SELECT :local, :domain, :key, :local");
    let expected = [found(&["a@b", "c", "a@b@c", "a@b"]), LookupAnswer::NotFound, LookupAnswer::NotFound];
    assert_eq!(ask(&parts, &["a@b@c", "@x", "plain"]).unwrap(), expected);
    let label = table(&path, "SELECT :label2, :label1");
    assert_eq!(ask(&label, &["a@y.x", "a@x"]).unwrap(), [found(&["y", "x"]), LookupAnswer::NotFound]);
    let local = table(&path, "SELECT target FROM aliases WHERE address = :local || '@x' AND :domain = 'y'");
    assert_eq!(ask(&local, &["number@y", "number@x"]).unwrap(), [found(&["7"]), LookupAnswer::NotFound]);
}

#[test]
fn a_key_is_data_and_never_a_part_of_the_query() {
    let (_folder, path) = database();
    let keys = ["' OR '1'='1", "bob@x\0", "bob@x';--", "%", "bob@x"];
    let answers = ask(&table(&path, BY_KEY), &keys).unwrap();
    assert!(answers[..4].iter().all(|answer| *answer == LookupAnswer::NotFound));
    assert_eq!(answers[4], found(&["b1@x", "c@x"]));
}

#[test]
fn what_is_no_query_for_a_table_shows_before_the_first_mail() {
    let (folder, path) = database();
    for (query, expected) in [
        ("SELECT target FROM alias WHERE address = :key", "no such table: alias"),
        ("SELEKT :key", "near \"SELEKT\": syntax error"),
        ("SELECT target FROM aliases", "the query has no part of the key"),
        ("SELECT target FROM aliases WHERE address = :kex", "the unknown parameter ':kex'"),
        ("SELECT target FROM aliases WHERE address = ?", "the unknown parameter '?'"),
        ("DELETE FROM aliases WHERE address = :key", "would change the database"),
    ] {
        let failure = table(&path, query).check_query().unwrap_err();
        assert_eq!(*failure.at, *path.to_string_lossy());
        assert!(failure.what.contains(expected), "{query}: {failure}");
    }
    let missing = folder.path().join("missing");
    let failure = table(&missing, BY_KEY).check_query().unwrap_err();
    assert!(failure.what.contains("No such file"), "{failure}");
    assert!(!missing.exists());
    let text = folder.path().join("text");
    fs::write(&text, "bob@x carol@x\n".repeat(100)).unwrap();
    let failure = table(&text, BY_KEY).check_query().unwrap_err();
    assert!(failure.what.contains("file is not a database"), "{failure}");
    let good = table(&path, BY_KEY);
    good.check_query().unwrap();
    ready(good.probe()).unwrap();
}

#[test]
fn a_value_that_is_no_text_fails_with_its_column() {
    let (_folder, path) = database();
    let failure = ask(&table(&path, BY_KEY), &["bob@x", "blob@x"]).unwrap_err();
    assert!(failure.what.contains("the column 'target' of the query holds a blob"), "{failure}");
    let failure = ask(&table(&path, "SELECT CAST(x'ff' AS TEXT) AS t WHERE :key != ''"), &["a"]).unwrap_err();
    assert!(failure.what.contains("the column 't' of the query holds invalid UTF-8"), "{failure}");
}

#[test]
fn changes_are_seen_and_so_is_a_file_in_the_place_of_another() {
    let (folder, path) = database();
    let table = table(&path, BY_KEY);
    assert_eq!(ask(&table, &["bob@x"]).unwrap(), [found(&["b1@x", "c@x"])]);
    Connection::open(&path).unwrap().execute("DELETE FROM aliases WHERE target = 'c@x'", []).unwrap();
    assert_eq!(ask(&table, &["bob@x"]).unwrap(), [found(&["b1@x"])]);
    let other = folder.path().join("other");
    make(&other, "new@x");
    fs::rename(&other, &path).unwrap();
    assert_eq!(ask(&table, &["bob@x"]).unwrap(), [found(&["new@x", "c@x"])]);
}

#[test]
fn what_failed_works_again_when_it_can() {
    let (folder, path) = database();
    let table = table(&path, BY_KEY);
    assert_eq!(ask(&table, &["bob@x"]).unwrap(), [found(&["b1@x", "c@x"])]);
    let away = folder.path().join("away");
    fs::rename(&path, &away).unwrap();
    assert!(ask(&table, &["bob@x"]).unwrap_err().what.contains("No such file"));
    assert!(ready(table.probe()).is_err());
    fs::rename(&away, &path).unwrap();
    ready(table.probe()).unwrap();
    assert_eq!(ask(&table, &["bob@x"]).unwrap(), [found(&["b1@x", "c@x"])]);
}

#[test]
fn waiting_for_a_writer_ends_at_the_timeout() {
    let (_folder, path) = database();
    let writer = Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let timeout = Duration::from_millis(100);
    let table = Sqlite::new(SqliteConfig { path, query: BY_KEY.into(), timeout });
    let began = Instant::now();
    let failure = ask(&table, &["bob@x", "none@x"]).unwrap_err();
    assert!(failure.what.contains("database is locked"), "{failure}");
    // SQLite's own timeout would be five seconds.
    assert!((timeout..Duration::from_secs(4)).contains(&began.elapsed()), "{:?}", began.elapsed());
    writer.execute_batch("COMMIT").unwrap();
    assert_eq!(ask(&table, &["bob@x"]).unwrap(), [found(&["b1@x", "c@x"])]);
}

#[test]
fn a_query_that_does_not_end_is_broken_off_and_a_failure() {
    let (_folder, path) = database();
    let query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE :key = 'endless')
                 SELECT max(i) FROM n";
    let table = Sqlite::new(SqliteConfig { path, query: query.into(), timeout: Duration::from_millis(20) });
    let failure = ask(&table, &["endless", "fast"]).unwrap_err();
    assert!(failure.to_string().contains("longer than 20ms"), "{failure}");
    assert_eq!(ask(&table, &["fast"]).unwrap(), [found(&["1"])]);
}

#[test]
fn keys_behind_those_that_took_too_long_are_unavailable() {
    let (_folder, path) = database();
    let query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE :key = 'endless')
                 SELECT max(i) FROM n";
    let table = Sqlite::new(SqliteConfig { path, query: query.into(), timeout: Duration::from_millis(20) });
    let answers = ask(&table, &["fast", "endless", "fast"]).unwrap();
    assert_eq!(answers[0], found(&["1"]));
    for answer in &answers[1..] {
        assert!(matches!(answer, LookupAnswer::Unavailable(why) if why.contains("longer than 20ms")), "{answers:?}");
    }
}

#[test]
fn a_database_with_a_write_ahead_log_is_read_beside_its_writer() {
    let (_folder, path) = database();
    let writer = Connection::open(&path).unwrap();
    writer.pragma_update(None, "journal_mode", "WAL").unwrap();
    let table = table(&path, BY_KEY);
    writer.execute_batch("BEGIN IMMEDIATE; DELETE FROM aliases").unwrap();
    assert_eq!(ask(&table, &["bob@x"]).unwrap(), [found(&["b1@x", "c@x"])]);
    writer.execute_batch("COMMIT").unwrap();
    assert_eq!(ask(&table, &["bob@x"]).unwrap(), [LookupAnswer::NotFound]);
}
