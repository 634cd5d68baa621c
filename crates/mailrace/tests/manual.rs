//! Manual pages and completions, checked with man, mandoc and the shells, if they are installed.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

use mailrace::manual;

fn mailrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mailrace")).args(arguments).output().expect("the binary starts")
}

/// The complete output of a program; None if it is not installed.
fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).env("LC_ALL", "C.UTF-8").output() {
        Ok(output) => Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: {program} is not installed");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn each_command_has_a_page_that_tells_what_its_help_does() {
    let pages = manual::pages().unwrap();
    for (snapshot, name) in [("page_queue", "mailrace-queue.1"), ("page_spool_verify", "mailrace-spool-verify.1")] {
        let (_, page) = pages.iter().find(|(page, _)| page == name).unwrap();
        insta::assert_snapshot!(snapshot, page.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    }
    let root = &pages.iter().find(|(name, _)| name == "mailrace.1").unwrap().1;
    assert!(root.contains("Exit codes:\n   0  success\n"), "{root}");
    assert!(pages.iter().all(|(name, _)| !name.contains("help")));
}

/// The synopsis used to omit the values of options.
#[test]
fn a_synopsis_says_what_options_take_and_which_may_come_again() {
    let pages = manual::pages().unwrap();
    let synopsis = |name: &str| {
        let (_, page) = pages.iter().find(|(page, _)| page == name).unwrap();
        page.split(".SH ").find(|section| section.starts_with("SYNOPSIS")).unwrap().to_owned()
    };
    for (name, part) in [
        ("mailrace.1", r"[\fB\-c\fR|\fB\-\-config\fR\ \fIFILE\fR]"),
        ("mailrace-queue-list.1", r"[\fB\-\-id\fR\ \fIQUEUE\-ID\fR...]"),
        ("mailrace-queue-list.1", r"[\fB\-\-state\fR\ \fISTATE\fR]... "),
        ("mailrace-queue-list.1", r"[\fB\-\-json\fR] "),
        ("mailrace-bench-sink.1", r" \fB\-\-listen\fR\ \fIADDRESS:PORT\fR... "),
        ("mailrace-table-get.1", r" \fINAME\fR \fIKEY\fR"),
        ("mailrace-table-stats.1", r" [\fINAME\fR]"),
        ("mailrace-queue.1", r" \fICOMMAND\fR"),
    ] {
        assert!(synopsis(name).contains(part), "{name}: {}", synopsis(name));
    }
}

#[test]
fn pages_are_written_into_a_folder_that_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man");
    let output = mailrace(&["man", text(&pages)]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for page in ["mailrace.1", "mailrace-queue.1", "mailrace-queue-list.1", "mailrace.toml.5"] {
        assert!(pages.join(page).is_file(), "{page}");
    }
    std::fs::write(folder.path().join("file"), "").unwrap();
    assert_eq!(mailrace(&["man", text(&folder.path().join("file"))]).status.code(), Some(74));
}

#[test]
fn groff_and_mandoc_accept_the_pages() {
    let folder = tempfile::tempdir().unwrap();
    manual::write(folder.path()).unwrap();
    for (name, _) in manual::pages().unwrap() {
        let page = folder.path().join(&name);
        let groff = output_of("groff", &["-ww", "-man", "-Tutf8", "-z", text(&page)]).unwrap_or_default();
        assert!(groff.is_empty(), "{name}: {groff}");
        let mandoc = output_of("mandoc", &["-Tlint", "-Wwarning", text(&page)]).unwrap_or_default();
        // A page has a version, but no date that would change with every build.
        let told: Vec<&str> = mandoc.lines().filter(|line| !line.contains("missing date")).collect();
        assert!(told.is_empty(), "{name}: {told:?}");
    }
}

#[test]
fn shells_read_their_completions() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = mailrace(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0));
        let file = folder.path().join(shell);
        std::fs::write(&file, output.stdout).unwrap();
        let told = output_of(shell, &["-n", text(&file)]).unwrap_or_default();
        assert!(told.is_empty(), "{shell}: {told}");
    }
    assert_eq!(mailrace(&["completions", "tcsh"]).status.code(), Some(64));
}

#[test]
fn bash_completes_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mailrace");
    std::fs::write(&file, mailrace(&["completions", "bash"]).stdout).unwrap();
    let ask = format!(
        ". {}; COMP_WORDS=(mailrace queue rel); COMP_CWORD=2; _mailrace mailrace rel queue; echo \"${{COMPREPLY[@]}}\"",
        file.display()
    );
    if let Some(answer) = output_of("bash", &["-c", &ask]) {
        assert_eq!(answer, "release\n");
    }
}
