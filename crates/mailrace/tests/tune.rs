//! `mailrace tune measure` and `tune search` with real servers: short runs on a free port, in a folder of the test.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use compare::result::ResultFile;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const WAIT_MAX: Duration = Duration::from_secs(60);
/// A rate of half the best is good enough, so a search of two values ends when it has enough pairs of them. A shorter
/// load might be over before a busy machine lets it begin.
const TWO_VALUES: &str = "--tolerance 50 --run 400ms --json --output result.json";

fn tune(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mailrace"));
    command.arg("tune").args(arguments.split(' ')).current_dir(folder).stdin(Stdio::null());
    command
}

fn ran(folder: &Path, arguments: &str) -> (Output, Value) {
    let output = tune(folder, arguments).output().unwrap();
    let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output, value)
}

fn result_file(folder: &Path) -> ResultFile {
    serde_json::from_slice(&fs::read(folder.join("result.json")).unwrap()).unwrap()
}

/// By chance, the control of one measurement in a hundred shows an effect, so a second one is made then.
#[test]
fn a_setting_that_hurts_is_worse_and_the_same_value_twice_shows_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mailrace.toml"), "allow_root = true\n").unwrap();
    let measure = || {
        let values = "transport.smtp.rate --before 100000/s --values 10/s";
        let options = "--scenario relay --run 300ms --sessions 20 --json --output result.json";
        ran(folder.path(), &format!("measure {values} {options}"))
    };
    let (output, found) = Some(measure()).filter(|(_, found)| found["trusted"] == true).unwrap_or_else(measure);
    assert_eq!(output.status.code(), Some(0), "{found:#}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((&found["before"], &found["values"][0]["verdict"]), (&"100000/s".into(), &"worse".into()), "{found:#}");
    assert!(found["control"]["verdict"] == "undecided" || found["control"]["verdict"] == "no effect", "{found:#}");
    let file = result_file(folder.path());
    assert!(file.cases[0].rounds.len() >= 8 && file.checks[0].is_met == Some(true), "{file:?}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "only the configuration and the result are left: {left:?}");
}

#[test]
fn a_search_draws_a_curve_within_its_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let options = "--min 2 --max 8 --runs-max 8 --scenario accept-many --run 400ms --json --output result.json";
    let (output, found) = ran(folder.path(), &format!("search sessions {options}"));
    assert_eq!(output.status.code(), Some(1), "{found:#}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(found["complete"], false, "8 runs are too few");
    let values: Vec<u64> = result_file(folder.path()).cases.iter().map(|case| case.label.parse().unwrap()).collect();
    assert_eq!(values, [2, 4, 8]);
    assert!(found["knee"]["rate"].as_f64().unwrap() > 0.0, "{found:#}");
}

/// Between 8 and 9 there is no value to refine the knee with, whichever of them it is.
#[test]
fn a_search_of_sessions_goes_on_until_its_answer_is_confirmed() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mailrace.toml"), "allow_root = true\n").unwrap();
    let (output, found) =
        ran(folder.path(), &format!("search sessions --min 8 --max 9 --scenario accept-many {TWO_VALUES}"));
    assert_complete(&output, &found);
    let runs: Vec<usize> = result_file(folder.path()).cases.iter().map(|case| case.rounds.len()).collect();
    assert!(runs.len() == 2 && runs.iter().all(|count| *count >= 6), "{runs:?}");
}

#[test]
fn a_search_of_batch_asks_the_first_table_and_knows_its_default() {
    let folder = tempfile::tempdir().unwrap();
    let (port, asked) = serve_keys();
    let configuration = format!(
        "allow_root = true\n[[table]]\nname = \"people\"\ntype = \"redis\"\nurl = \"redis://127.0.0.1:{port}\"\n\
         key = \"{{key}}\"\n[[domain]]\nname = \"example.org\"\nmailboxes = \"people\"\n"
    );
    fs::write(folder.path().join("mailrace.toml"), configuration).unwrap();
    let addresses: String = (0..10_000).map(|number| format!("user{number}@example.org\n")).collect();
    fs::write(folder.path().join("addresses"), addresses).unwrap();
    let options = format!("--scenario lookup --recipients-from addresses --sessions 20 {TWO_VALUES}");
    let (output, found) = ran(folder.path(), &format!("search batch --min 16 --max 64 --step 4 {options}"));
    assert_complete(&output, &found);
    assert_eq!(found["in_force"]["value"], 64, "{found:#}");
    let file = result_file(folder.path());
    assert!(file.notes[0].contains("table.people.batch in mailrace.toml"), "{:?}", file.notes);
    assert!(asked.load(Ordering::Relaxed) > 100, "the runs ask the table: {asked:?}");
}

/// A search has ended by itself. On a busy machine, the largest value may by chance be more than twice as good as the
/// other: then the exit code says that a larger one might be better still.
fn assert_complete(output: &Output, found: &Value) {
    let expected = i32::from(found["shape"] == "rising");
    assert_eq!(output.status.code(), Some(expected), "{found:#}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(found["complete"], true, "{found:#}");
}

/// A stand-in for Redis, in which every key exists; also returns the number of keys that it was asked.
fn serve_keys() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let count = count.clone();
            thread::spawn(move || answer_keys(&stream, &count));
        }
    });
    (port, asked)
}

/// Answers commands, each an array of words with a line before each word, until the connection ends.
fn answer_keys(stream: &TcpStream, asked: &AtomicUsize) -> Option<()> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    loop {
        let words: usize = lines.next()?.strip_prefix('*')?.parse().ok()?;
        let command: Vec<String> = lines.by_ref().take(2 * words).collect();
        let is_key = command.get(1).is_some_and(|name| name == "GET");
        asked.fetch_add(usize::from(is_key), Ordering::Relaxed);
        let mut stream = stream;
        stream.write_all(if is_key { b"$1\r\nx\r\n" } else { b"+OK\r\n" }).ok()?;
    }
}

#[test]
fn a_run_that_fails_says_what_the_server_answered() {
    let folder = tempfile::tempdir().unwrap();
    let options = "--before 2 --values 20 --scenario accept-many --run 2s --sessions 10";
    let (output, _) = ran(folder.path(), &format!("measure limits.sessions {options}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(70), "{said}");
    assert!(said.contains("a run with 2 failed") && said.contains("421"), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_signal_ends_a_measurement_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = tune(folder.path(), "measure threads --values 1,2 --before 3 --scenario accept-one --run 60s")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let load_started = || {
        let mut folders = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        folders.any(|runs| runs.join("run/load.out").exists())
    };
    await_that(load_started);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(end(&mut child), Some(69));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn what_cannot_be_measured_is_a_wrong_command_line() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, part) in [
        ("measure limits.sessions", "--scenario"),
        ("measure limits.sessions --scenario send", "accept-many, accept-one"),
        ("measure limits.session --values 1 --before 2 --scenario relay", "sessions"),
        ("measure limits.sessions --values 10000 --scenario relay", "appears twice"),
        ("measure no.such --scenario relay", "--before"),
        ("measure net.core.somaxconn --values 64 --scenario relay", "--yes"),
        ("measure vm.swappiness --values 64 --scenario relay --yes", "--yes --whole-machine"),
        ("measure mount.atime --values 64 --scenario relay", "not a value of the kernel"),
        ("search batch --scenario relay", "use lookup"),
        ("search sessions --max 20000 --scenario relay", "limits.sessions is 10000"),
        ("search threads --min 9 --max 8 --scenario relay", "--min is 9"),
    ] {
        let (output, _) = ran(folder.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{arguments}: {said}");
        assert!(said.contains(part), "{arguments}: {said}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

fn await_that(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_MAX, "not within {WAIT_MAX:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The exit code.
fn end(child: &mut Child) -> Option<i32> {
    let mut status = None;
    await_that(|| {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.and_then(|status| status.code())
}
