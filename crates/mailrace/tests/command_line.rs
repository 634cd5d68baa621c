//! The command line as its users see it: help, exit codes, and what goes where.

use std::path::Path;
use std::process::{Command, Output};

fn mailrace(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mailrace"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("COLUMNS")
        .output()
        .expect("the binary starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn help_says_what_can_be_done() {
    let folder = tempfile::tempdir().unwrap();
    for (name, arguments) in [
        ("help", &["--help"][..]),
        ("help_table", &["table", "--help"]),
        ("help_table_build", &["table", "build", "--help"]),
        ("help_queue_list", &["queue", "list", "--help"]),
        ("help_spool_verify", &["spool", "verify", "--help"]),
    ] {
        let output = mailrace(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(0));
        let help = stdout(&output);
        insta::assert_snapshot!(name, help);
    }
}

#[test]
fn a_wrong_command_line_is_64() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["serv"][..], &["table"], &["check", "--colour"], &["spool", "verify", "--lane", "a", "-c", "b"]]
    {
        assert_eq!(mailrace(folder.path(), arguments).status.code(), Some(64), "{arguments:?}");
    }
}

#[test]
fn check_sums_up_a_configuration_without_faults() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("full.toml"), include_str!("full.toml")).unwrap();
    let output = mailrace(folder.path(), &["check", "--config", "full.toml"]);
    assert_eq!(output.status.code(), Some(0));
    let summary = stdout(&output);
    insta::assert_snapshot!(summary);
    assert!(std::fs::read_dir(folder.path()).unwrap().count() == 1, "check makes nothing");
}

#[test]
fn faults_of_the_configuration_are_78() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mailrace.toml"), "hostnam = \"x\"\n").unwrap();
    let output = mailrace(folder.path(), &["check"]);
    assert_eq!(output.status.code(), Some(78));
    let told = stderr(&output);
    insta::assert_snapshot!(told);
    std::fs::write(folder.path().join("mailrace.toml"), b"hostname = \"\xff\"\n").unwrap();
    let output = mailrace(folder.path(), &["check"]);
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("mailrace.toml is not UTF-8"));
}

#[test]
fn a_configuration_that_cannot_be_read_is_74() {
    let folder = tempfile::tempdir().unwrap();
    let output = mailrace(folder.path(), &["-c", "missing.toml", "check"]);
    assert_eq!(output.status.code(), Some(74));
    assert!(stderr(&output).starts_with("mailrace: reading the configuration missing.toml"));
}
