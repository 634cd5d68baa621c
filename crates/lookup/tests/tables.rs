//! Text tables and cdb files, also in exchange with tinycdb.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::pin;
use std::process::{Command, Output};
use std::task::{Context, Poll, Waker};

use lookup::cdb::{self, Cdb, CdbDamage, CdbError};
use lookup::text::{TextLineError, TextTable, TextTableError};
use lookup::{LookupAnswer, Table};

const PEOPLE: &str = "Bob@Example.org carol@example.net, dave@example.net\nerin@example.org\n";

/// The answers of a table that must be ready.
fn answers(table: &dyn Table, keys: &[&str]) -> Vec<LookupAnswer> {
    match pin!(table.lookup(keys)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answers) => answers,
        Poll::Pending => panic!("a local table must not wait"),
    }
}

fn found(values: &[&str]) -> LookupAnswer {
    LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
}

fn write(folder: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn both_kinds_of_table_give_the_same_answers_in_the_order_of_the_keys() {
    let folder = tempfile::tempdir().unwrap();
    let text = write(folder.path(), "people", PEOPLE);
    let made = folder.path().join("people.cdb");
    assert_eq!(cdb::build(&text, &made).unwrap(), 2);
    let tables: [Box<dyn Table>; 2] =
        [Box::new(TextTable::load("people", &text).unwrap()), Box::new(Cdb::open("people", &made).unwrap())];
    for table in tables {
        assert_eq!(table.name(), "people");
        let keys = ["erin@example.org", "nobody@example.org", "BOB@example.ORG"];
        let expected = [found(&[]), LookupAnswer::NotFound, found(&["carol@example.net", "dave@example.net"])];
        assert_eq!(answers(&*table, &keys), expected);
        assert_eq!(answers(&*table, &[]), []);
    }
}

#[test]
fn a_mistake_in_a_text_names_the_file_and_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = write(folder.path(), "people", "a b\na: c\n");
    let error = TextTable::load("people", &text).unwrap_err();
    assert!(matches!(error, TextTableError::Line { line: 2, mistake: TextLineError::Colon, .. }));
    assert_eq!(error.to_string(), format!("{}:2: the key ends in a colon; write 'key value'", text.display()));
    let made = folder.path().join("people.cdb");
    assert!(matches!(cdb::build(&text, &made), Err(CdbError::Text(TextTableError::Line { line: 2, .. }))));
    assert!(!made.exists());
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let path = Path::new("/proc/no such file");
    assert!(TextTable::load("t", path).unwrap_err().to_string().starts_with("/proc/no such file: "));
    assert!(Cdb::open("t", path).err().unwrap().to_string().starts_with("/proc/no such file: "));
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "short", "abc");
    assert!(matches!(Cdb::open("t", &path), Err(CdbError::Damaged { damage: CdbDamage::Length(3), .. })));
    let path = write(folder.path(), "text", &PEOPLE.repeat(100));
    assert!(matches!(Cdb::open("t", &path), Err(CdbError::Damaged { damage: CdbDamage::Pointer(_), .. })));
}

#[test]
fn an_open_database_stays_what_it_was_while_its_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("t.cdb");
    cdb::build(&write(folder.path(), "t", "key old"), &made).unwrap();
    let old = Cdb::open("t", &made).unwrap();
    cdb::build(&write(folder.path(), "t", "key new"), &made).unwrap();
    assert_eq!(answers(&old, &["key"]), [found(&["old"])]);
    assert_eq!(answers(&Cdb::open("t", &made).unwrap(), &["key"]), [found(&["new"])]);
    fs::write(&made, "").unwrap();
    assert_eq!(answers(&old, &["key"]), [found(&["old"])]);
}

#[test]
fn a_database_is_as_private_as_its_text_and_leaves_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = write(folder.path(), "t", "key value");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o440)).unwrap();
    let made = folder.path().join("t.cdb");
    cdb::build(&text, &made).unwrap();
    assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o440);
    assert_eq!(folder.path().read_dir().unwrap().count(), 2);
}

#[test]
fn a_database_that_cannot_be_put_in_place_leaves_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = write(folder.path(), "t", "key value");
    fs::create_dir(folder.path().join("t.cdb")).unwrap();
    assert!(matches!(cdb::build(&text, &folder.path().join("t.cdb")), Err(CdbError::Io { .. })));
    assert_eq!(folder.path().read_dir().unwrap().count(), 2);
}

/// Runs tinycdb. Prints a message and returns None if it is not installed.
fn tinycdb(arguments: &[&str]) -> Option<Output> {
    let output = Command::new("cdb").args(arguments).output();
    if output.is_err() {
        println!("skipped: the command cdb (Debian package tinycdb) is not installed");
    }
    output.ok()
}

#[test]
fn tinycdb_reads_what_we_make() {
    let folder = tempfile::tempdir().unwrap();
    let many: String = (0..500).map(|number| format!("user{number}@example.org box{number}, copy{number}\n")).collect();
    let made = folder.path().join("t.cdb");
    cdb::build(&write(folder.path(), "t", &many), &made).unwrap();
    let made = made.to_str().unwrap();
    for number in [0, 77, 499] {
        let Some(output) = tinycdb(&["-q", made, &format!("user{number}@example.org")]) else { return };
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("box{number}, copy{number}"));
    }
    let output = tinycdb(&["-q", made, "user500@example.org"]).unwrap();
    assert_eq!(output.status.code(), Some(100), "{output:?}");
    let statistics = String::from_utf8(tinycdb(&["-s", made]).unwrap().stdout).unwrap();
    assert!(statistics.contains("number of records: 500"), "{statistics}");
}

#[test]
fn we_read_what_tinycdb_makes() {
    let folder = tempfile::tempdir().unwrap();
    let many: String = (0..500).map(|number| format!("user{number}@example.org box{number}\n")).collect();
    let text = write(folder.path(), "t", &(many + "user7@example.org second\n"));
    let made = folder.path().join("t.cdb");
    let Some(output) = tinycdb(&["-c", "-m", made.to_str().unwrap(), text.to_str().unwrap()]) else { return };
    assert!(output.status.success(), "{output:?}");
    let table = Cdb::open("t", &made).unwrap();
    let keys = ["user0@example.org", "USER499@example.org", "user7@example.org", "user500@example.org"];
    let expected = [found(&["box0"]), found(&["box499"]), found(&["box7", "second"]), LookupAnswer::NotFound];
    assert_eq!(answers(&table, &keys), expected);
}
