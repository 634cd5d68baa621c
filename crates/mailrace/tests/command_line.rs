//! The command line as users see it: help, exit codes, and output streams.

use std::os::unix::fs::PermissionsExt;
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
        ("help_table_stats", &["table", "stats", "--help"]),
        ("help_queue", &["queue", "--help"]),
        ("help_queue_list", &["queue", "list", "--help"]),
        ("help_queue_remove", &["queue", "remove", "--help"]),
        ("help_explain", &["explain", "--help"]),
        ("help_dkim", &["dkim", "--help"]),
        ("help_dkim_generate", &["dkim", "generate", "--help"]),
        ("help_dkim_check", &["dkim", "check", "--help"]),
        ("help_reports_send", &["reports", "send", "--help"]),
        ("help_token_create", &["token", "create", "--help"]),
        ("help_spool_verify", &["spool", "verify", "--help"]),
        ("help_tune_check", &["tune", "check", "--help"]),
        ("help_tune_apply", &["tune", "apply", "--help"]),
        ("help_tune_revert", &["tune", "revert", "--help"]),
        ("help_bench", &["bench", "--help"]),
        ("help_bench_smtp", &["bench", "smtp", "--help"]),
    ] {
        let output = mailrace(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(0));
        let help = stdout(&output);
        insta::assert_snapshot!(name, help);
    }
}

#[test]
fn no_two_options_of_a_command_have_one_name() {
    <mailrace::cli::Cli as clap::CommandFactory>::command().debug_assert();
}

#[test]
fn a_wrong_command_line_is_64() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["serv"][..],
        &["table"],
        &["table", "accept"],
        &["check", "--colour"],
        &["spool", "verify", "--lane", "a", "-c", "b"],
        &["queue", "list", "--by", "colour"],
        &["queue", "list", "--by", "queue", "--count"],
        &["queue", "list", "--ages"],
        &["queue", "list", "--older-than", "soon"],
        &["queue", "hold"],
        &["queue", "remove", "--dry-run"],
        &["queue", "remove", "--all", "--queue", "lists"],
        &["queue", "bounce", "--sender", "bob"],
        &["queue", "retry", "--id"],
        &["queue", "pause"],
        &["explain", "bob"],
        &["dkim", "generate"],
        &["dkim", "generate", "a.example", "--bits", "1024"],
        &["dkim", "generate", "a.example", "--selector", "a b"],
        &["dkim", "generate", "a.example", "--algorithm", "ed25519", "--bits", "2048"],
        &["tune"],
        &["tune", "check", "--probe", "--root", "."],
        &["tune", "apply", "no.such.knob"],
        &["tune", "revert", "vm.swappiness"],
    ] {
        assert_eq!(mailrace(folder.path(), arguments).status.code(), Some(64), "{arguments:?}");
    }
}

#[test]
fn check_sums_up_a_configuration_without_faults() {
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("../../config/tests/full.toml")
        .replace("/etc/mailrace/", "")
        .replace("{data_dir}/people", "people")
        .replace("{data_dir}/nats.creds", "nats.creds")
        .replace("/etc/srs", "srs.new")
        .replace("{data_dir}/srs.old", "srs.old");
    // On some machines a server listens on this socket.
    let text = text.replace("/run/dovecot/", "/nowhere/");
    std::fs::write(folder.path().join("full.toml"), text).unwrap();
    std::fs::write(folder.path().join("people"), "bob@example.org\n").unwrap();
    for secret in ["srs.new", "srs.old", "nats.creds"] {
        let path = folder.path().join(secret);
        std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    }
    mailrace(folder.path(), &["table", "build", "people", "aliases.cdb"]);
    let output = mailrace(folder.path(), &["check", "--config", "full.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let summary = stdout(&output);
    insta::assert_snapshot!(summary);
    assert!(std::fs::read_dir(folder.path()).unwrap().count() == 6, "check creates no files");
}

#[test]
fn tune_check_ends_with_1_if_there_are_findings() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let tune = |arguments: &[&str]| mailrace(folder.path(), &[&["tune", "check"], arguments].concat());
    let output = tune(&["--root", "empty"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("configuration: the built-in default (no ./mailrace.toml, "));
    assert!(stdout(&output).ends_with("; 0 findings (0 sure, 0 likely, 0 depending on the load)\n"));
    let config = "spool = { durability = \"relaxed\" }\ndns = { servers = [\"127.0.0.1:1\"] }\n";
    std::fs::write(folder.path().join("mailrace.toml"), config).unwrap();
    let output = tune(&["--root", "empty"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("spool.durability"));
    assert!(stdout(&output).starts_with("configuration: ./mailrace.toml\n"), "{}", stdout(&output));
    assert_eq!(tune(&["--root", "missing"]).status.code(), Some(74));
    let output = tune(&["--probe"]);
    assert_eq!(output.status.code(), Some(1), "there is no spool yet, but a report: {}", stderr(&output));
    assert!(stdout(&output).contains("not measured: syncs in ") && stdout(&output).contains("spool.durability"));
    std::fs::create_dir_all(folder.path().join("mailrace-data/spool")).unwrap();
    let output = tune(&["--probe", "--all", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&found["syncs"][0]["count"], &found["resolver"]["server"]), (&50.into(), &"127.0.0.1:1".into()));
    assert_eq!(std::fs::read_dir(folder.path().join("mailrace-data/spool")).unwrap().count(), 0);
}

#[test]
fn tune_measure_and_search_say_what_cannot_be_measured_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], part: &str| {
        let output = mailrace(folder.path(), &[&["tune"], arguments].concat());
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{arguments:?}: {}", stderr(&output));
    };
    let one = ["--scenario", "accept-one"];
    refused(&[&["measure", "no.such"], &one[..]].concat(), "no.such: there is no such setting");
    refused(&[&["measure", "env.MAILRACE_NOTHING"], &one[..]].concat(), "this variable is not set");
    let missing = ["--values", "2", "--before", "1", "--folder", "missing"];
    refused(&[&["measure", "threads"], &missing[..], &one[..]].concat(), "missing: No such file");
    refused(&["search", "threads", "--scenario", "lookup"], "the configuration has no [[table]]");
    let table = "[[table]]\nname = \"people\"\ntype = \"ldap\"\nurl = \"ldap://127.0.0.1:1\"\nbase = \"o=x\"\n\
                 filter = \"(mail={key})\"\n[[domain]]\nname = \"a.example\"\nmailboxes = \"people\"\n";
    std::fs::write(folder.path().join("mailrace.toml"), table).unwrap();
    let lookup = ["--scenario", "lookup", "--recipients-from"];
    refused(&[&["search", "batch"], &lookup[..], &["missing"]].concat(), "--recipients-from missing: No such file");
    // The present value is the default of such tables, and only the other one is wrong.
    let wrong = [&["measure", "table.people.batch", "--values", "0"], &lookup[..], &["mailrace.toml"]].concat();
    refused(&wrong, "the configuration of a run with 0");
}

/// A script took an exit code of 0 for a change.
#[test]
fn tune_apply_ends_with_1_if_it_does_not_change_a_knob_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let apply = |knobs: &[&str]| mailrace(folder.path(), &[&["tune", "apply", "--root", "empty"], knobs].concat());
    let output = apply(&["mount.atime=noatime"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("not changed by this command: mount.atime"), "{}", stderr(&output));
    for wrong in [&["vm.swappiness=1", "vm.swappiness=2"][..], &["vm.swappinness=1"]] {
        assert_eq!(apply(wrong).status.code(), Some(64), "{wrong:?}");
    }
    assert_eq!(apply(&[]).status.code(), Some(0), "there is nothing to change");
}

#[test]
fn bench_report_ends_with_1_if_something_is_worse_and_replaces_only_pages() {
    let folder = tempfile::tempdir().unwrap();
    let report = |arguments: &[&str]| mailrace(folder.path(), &[&["bench", "report"], arguments].concat());
    let sample = include_str!("../../compare/tests/data/full.json");
    let mut slower: serde_json::Value = serde_json::from_str(sample).unwrap();
    for round in slower["cases"][0]["rounds"].as_array_mut().unwrap() {
        round["Mailrace"]["seconds"] = (round["Mailrace"]["seconds"].as_f64().unwrap() * 2.0).into();
    }
    std::fs::write(folder.path().join("old.json"), sample).unwrap();
    std::fs::write(folder.path().join("new.json"), slower.to_string()).unwrap();
    std::fs::write(folder.path().join("broken.json"), "{\n\"format\": 1,\n]").unwrap();
    assert_eq!(stdout(&report(&["old.json"])), "page.html: 1 result\n");
    assert_eq!(report(&["old.json", "--against", "old.json"]).status.code(), Some(0));
    let output = report(&["new.json", "--against", "old.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).ends_with("0 better, 1 worse, 11 without a notable difference\n"), "{}", stdout(&output));
    assert_eq!(report(&["new.json", "--output", "old.json"]).status.code(), Some(64));
    assert_eq!(std::fs::read_to_string(folder.path().join("old.json")).unwrap(), sample);
    let output = report(&["."]);
    assert_eq!(output.status.code(), Some(65));
    assert_eq!(stderr(&output), "mailrace: ./broken.json:3: not a file of results: key must be a string\n");
    assert_eq!(report(&["missing.json"]).status.code(), Some(74));
    let other = sample.replacen("\"accept-by-connections\"", "\"other\"", 1);
    std::fs::write(folder.path().join("other.json"), other).unwrap();
    let output = report(&["old.json", "--against", "other.json"]);
    assert_eq!(output.status.code(), Some(65));
    assert!(stderr(&output).ends_with(": accept-by-connections (new), other (old)\n"), "{}", stderr(&output));
    let output = report(&["old.json", "--against", "old.json", "other.json"]);
    assert!(stdout(&output).contains("Only in the new results, so not compared: other\n"), "{}", stdout(&output));
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("Only in the new results, so not compared: other."));
}

#[test]
fn check_tells_of_every_table_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let table =
        |name: &str, kind: &str| format!("[[table]]\nname = \"{name}\"\ntype = \"{kind}\"\npath = \"{name}\"\n");
    let text = [table("people", "text"), table("others", "cdb")].concat();
    std::fs::write(folder.path().join("mailrace.toml"), text).unwrap();
    std::fs::write(folder.path().join("people"), "bob: carol\n").unwrap();
    let output = mailrace(folder.path(), &["check"]);
    assert_eq!(output.status.code(), Some(65));
    let told = stderr(&output);
    insta::assert_snapshot!(told);
}

#[test]
fn a_table_is_made_of_a_text_and_answers() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[[table]]\nname = \"aliases\"\ntype = \"cdb\"\npath = \"aliases.cdb\"\n";
    std::fs::write(folder.path().join("mailrace.toml"), config).unwrap();
    std::fs::write(folder.path().join("aliases"), "sales@example.org bob@example.org, carol@example.org\n").unwrap();
    let built = mailrace(folder.path(), &["table", "build", "aliases", "aliases.cdb"]);
    assert_eq!((built.status.code(), &*stdout(&built)), (Some(0), "aliases.cdb: 1 key\n"));
    let get = |name, key| {
        let output = mailrace(folder.path(), &["table", "get", name, key]);
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let (code, values, told) = get("aliases", "Sales@example.org");
    assert_eq!((code, &*values), (Some(0), "bob@example.org\ncarol@example.org\n"));
    let said =
        "mailrace: configuration: ./mailrace.toml\naliases: no running server, queried directly: found in memory; ";
    assert!(told.starts_with(said) && told.ends_with("s\n"), "{told}");
    let (code, values, told) = get("aliases", "dave@example.org");
    assert_eq!((code, &*values), (Some(1), ""));
    assert!(told.contains("\"dave@example.org\" is not in the table \"aliases\""));
    let (code, _, told) = get("alias", "dave@example.org");
    assert_eq!(code, Some(64));
    assert!(told.contains("expected one of: aliases"));
    for of_the_server in [&["table", "stats"][..], &["table", "accept", "aliases"]] {
        let output = mailrace(folder.path(), of_the_server);
        assert_eq!(output.status.code(), Some(69));
        assert!(stderr(&output).contains("cannot connect to the server at "));
    }
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
