//! Two tiny programs are compared, without sockets: a load asks by a file, and the system works until
//! it has removed it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use compare::engine::{self, CompareOptions, Observer, Step};
use compare::error::CompareError;
use compare::file::CompareFile;
use compare::interrupt::Interrupt;
use compare::result::{Comparison, Figure, ResultFile, Run};
use compare::result_text;

/// `fast` counts to 20,000 for each request, `slow` to 200,000, and both write what they did.
const FILE: &str = r#"
[compare]
name  = "tiny"
title = "Two tiny programs"
rest  = "0s"
notes = ["A note."]

[[system]]
name    = "slow"
version = "echo 1.0"
start   = ["sh", "{folder}/serve", "1000000"]
ready   = { log = "ready" }
arrives = { command = "cat {folder}/done | wc -l", within = "60s" }
[[system.file]]
path = "serve"
text = """
cd {folder}
touch done
echo ready
while :; do
  if [ -e request ]; then
    i=0; while [ $i -lt $1 ]; do i=$((i+1)); done
    cat request >>done
    rm request
  fi
  sleep 0.01
done
"""

[[system]]
name    = "fast"
start   = ["sh", "{folder}/serve", "20000"]
ready   = { log = "ready" }
arrives = { command = "cat {folder}/done | wc -l", within = "60s" }
[[system.file]]
path = "serve"
text = """
cd {folder}
touch done
echo ready
while :; do
  if [ -e request ]; then
    i=0; while [ $i -lt $1 ]; do i=$((i+1)); done
    cat request >>done
    rm request
  fi
  sleep 0.01
done
"""

[[system]]
name  = "absent"
needs = ["no-such-program-anywhere"]
start = "false"

[[scenario]]
name = "counting"
unit = "request"
load = """
seq {value} >{folder}/new && mv {folder}/new {folder}/request
while [ -e {folder}/request ]; do sleep 0.01; done
echo '{"done": {value}, "seconds": 0.5, "latency": {"p50_us": 1, "p90_us": 2, "p99_us": 3, "p999_us": 4, "max_us": 5}}'
"""
values = [10]
value_name = "lines"

[[scenario.comparison]]
over     = "slow"
under    = "fast"
figure   = "cpu_per_thousand"
at_least = 2

[[scenario.comparison]]
over   = "slow"
under  = "absent"
figure = "rate"
"#;

#[derive(Default)]
struct Notes {
    runs: Vec<(String, u32)>,
    ratios: usize,
}

impl Observer for Notes {
    fn ended(&mut self, step: &Step<'_>, _run: &Run) {
        self.runs.push((step.system.to_owned(), step.round));
    }

    fn compared(&mut self, comparisons: &[Comparison]) {
        self.ratios += comparisons.len();
    }
}

fn options(folder: &Path, rounds: u32) -> CompareOptions {
    CompareOptions {
        mailrace: PathBuf::from("/bin/true"),
        version: "test".to_owned(),
        command: "mailrace bench compare".to_owned(),
        folder: folder.to_owned(),
        rounds: Some(rounds),
        shrink: 1,
        rest: None,
        time_max: None,
        owned: Vec::new(),
    }
}

fn run(
    text: &str,
    options: &CompareOptions,
    interrupt: &Interrupt,
    notes: &mut Notes,
) -> Result<ResultFile, CompareError> {
    let file = CompareFile::parse(text, "tiny.toml").unwrap();
    engine::compare(&file, &file.scenarios[0], options, interrupt, notes)
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn two_programs_take_turns_and_their_cpu_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let mut notes = Notes::default();
    let result = run(FILE, &options(folder.path(), 2), &Interrupt::default(), &mut notes).unwrap();
    let order: Vec<(&str, u32)> = notes.runs.iter().map(|(name, round)| (name.as_str(), *round)).collect();
    assert_eq!(order, [("slow", 1), ("fast", 1), ("fast", 2), ("slow", 2)]);
    assert_eq!(notes.ratios, 2, "one ratio after each round");
    assert_eq!((result.name.as_str(), result.is_trial, result.cases.len()), ("counting", true, 1));
    assert_eq!(result.reduced.as_deref(), Some("fewer rounds than the 6 that an interval takes"));
    assert_eq!((result.cases[0].label.as_str(), result.cases[0].value), ("10", Some(10.0)));
    let run = &result.cases[0].rounds[0]["slow"];
    assert_eq!((run.count, run.seconds, run.latency_seconds["99"]), (10, 0.5, 3e-6));
    assert!(
        run.cpu_seconds > Some(0.0) && run.resident_bytes > Some(0) && run.machine_cpu_seconds.is_some(),
        "{run:?}"
    );
    let [ratio] = &result.comparisons[..] else { panic!("{:?}", result.comparisons) };
    assert_eq!((ratio.figure, ratio.is_met), (Figure::CpuPerThousand, Some(true)), "{ratio:?}");
    assert_eq!(result.systems[0].version.as_deref(), Some("1.0"));
    assert!(result.systems[0].configuration.as_deref().unwrap().contains("cd FOLDER"));
    assert!(result.notes.iter().any(|note| note.contains("no-such-program-anywhere")), "{:?}", result.notes);
    assert!(is_empty(folder.path()), "the folders of the runs are removed");
    let text = result_text(&result, 160);
    assert!(text.contains("at least 2") && text.contains("lines 10"), "{text}");
}

#[test]
fn lost_mail_is_an_error_and_the_evidence_stays() {
    let folder = tempfile::tempdir().unwrap();
    let losing =
        FILE.replace("cat request >>done", "head -n 9 request >>done").replace("within = \"60s\"", "within = \"0s\"");
    let error = run(&losing, &options(folder.path(), 1), &Interrupt::default(), &mut Notes::default()).unwrap_err();
    assert!(error.to_string().contains("10 messages were acknowledged, and 9 arrived"), "{error}");
    assert!(!is_empty(folder.path()));
}

#[test]
fn the_rounds_that_fit_into_the_time_are_a_trial_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let time_max = Duration::from_secs(12);
    let quick = CompareOptions { time_max: Some(time_max), ..options(folder.path(), 99) };
    let begun = std::time::Instant::now();
    let light = FILE.replace("1000000", "20000");
    let result = run(&light, &quick, &Interrupt::default(), &mut Notes::default()).unwrap();
    let done = result.cases[0].rounds.len();
    // Each of two runs rests for a second, so all rounds would take twice as long.
    assert!(begun.elapsed() < Duration::from_secs(99) && done < 99, "{done} rounds in {:?}", begun.elapsed());
    let late = format!("the time, 12 s, over after {done} of at most 99 rounds");
    let reduced = result.reduced.clone().unwrap_or_default();
    assert!(result.is_trial && reduced.contains(&late), "{reduced}");
    let text = result_text(&result, 100);
    assert!(text.contains("a trial") && text.contains(&late), "{text}");
    assert!(is_empty(folder.path()));
}

#[test]
fn a_signal_or_the_end_of_the_time_ends_the_run_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let waiting = FILE.replace("rm request", ":");
    let late = CompareOptions { time_max: Some(Duration::from_secs(2)), ..options(folder.path(), 9) };
    let error = run(&waiting, &late, &Interrupt::default(), &mut Notes::default()).unwrap_err();
    assert!(matches!(error, CompareError::TimeOver), "{error}");
    let flag = Arc::new(AtomicBool::new(false));
    let interrupt = Interrupt::from_flag(flag.clone());
    std::thread::scope(|scope| {
        let place = folder.path();
        let running = scope.spawn(move || run(&waiting, &options(place, 9), &interrupt, &mut Notes::default()));
        let is_loaded = || {
            let found = std::fs::read_dir(place).unwrap().flatten().next();
            found.is_some_and(|work| work.path().join("1-slow-10/request").exists())
        };
        while !is_loaded() {
            assert!(!running.is_finished());
            std::thread::yield_now();
        }
        flag.store(true, Relaxed);
        assert!(matches!(running.join().unwrap(), Err(CompareError::Interrupted)));
    });
    assert!(is_empty(folder.path()));
}

#[test]
fn load_goes_to_other_machines_only_if_they_are_owned() {
    let folder = tempfile::tempdir().unwrap();
    let remote = FILE.replace("ready   = { log = \"ready\" }", "address = \"192.0.2.1\"");
    let error = run(&remote, &options(folder.path(), 1), &Interrupt::default(), &mut Notes::default()).unwrap_err();
    assert!(matches!(&error, CompareError::Usage(text) if text.contains("--i-own-this-target")), "{error}");
}

/// A system that runs already. Its process is started by `prepare`, and by none of its commands' groups.
const RUNNING: &str = r#"
[compare]
name  = "running"
title = "A running system"
rest  = "0s"

[[system]]
name    = "running"
prepare = """
setsid sh -c 'echo $$ >{folder}/new && mv {folder}/new {folder}/pid && exec sleep 60' &
while [ ! -e {folder}/pid ]; do sleep 0.01; done
"""
port  = 9
ready = { command = "true" }
cpu   = { pidfile = "{folder}/pid" }

[[scenario]]
name = "nothing"
load = """
kill $(cat {folder}/pid)
while kill -0 $(cat {folder}/pid) && ! grep -q ') Z' /proc/$(cat {folder}/pid)/stat; do sleep 0.01; done
echo '{"done": 10, "seconds": 0.5}'
"""
"#;

fn failure(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    run(text, &options(folder.path(), 1), &Interrupt::default(), &mut Notes::default()).unwrap_err().to_string()
}

/// Its CPU would be 0: a system that costs nothing.
#[test]
fn a_pid_file_of_an_earlier_run_is_an_error() {
    // No process can have this id.
    let stale = RUNNING.replace("echo $$ >", "echo 4194304 >").replace("exec sleep 60", "true");
    let error = failure(&stale);
    assert!(error.contains("names process 4194304, which does not run"), "{error}");
}

#[test]
fn a_counted_process_that_ends_during_the_run_is_an_error() {
    let error = failure(RUNNING);
    assert!(error.contains("ended during the run, so its CPU is not known"), "{error}");
}

/// The load says 0.5 s, and its mail arrives at least a second after it has ended.
#[test]
fn the_rate_of_a_system_that_delivers_is_that_up_to_the_last_arrival() {
    let late = FILE
        .replace("while [ -e {folder}/request ]; do sleep 0.01; done\n", "")
        .replace("cat request >>done", "sleep 1; cat request >>done");
    let folder = tempfile::tempdir().unwrap();
    let result = run(&late, &options(folder.path(), 1), &Interrupt::default(), &mut Notes::default()).unwrap();
    let run = &result.cases[0].rounds[0]["fast"];
    assert!(run.seconds >= 1.25, "{run:?}");
}

/// The system works on the mail of the warm-up for longer than a run rests after it.
#[test]
fn mail_of_the_warm_up_is_not_counted_in_the_run() {
    let warm = r#"warm = """
seq 3 >{folder}/new && mv {folder}/new {folder}/request
echo '{"done": 3, "seconds": 0.1}'
"""
values = [10]"#;
    let warmed = FILE.replace("values = [10]", warm).replace("cat request >>done", "sleep 1.5; cat request >>done");
    let folder = tempfile::tempdir().unwrap();
    let result = run(&warmed, &options(folder.path(), 1), &Interrupt::default(), &mut Notes::default()).unwrap();
    assert_eq!(result.cases[0].rounds[0]["fast"].count, 10);
    let silent = warmed.replace("echo '{\"done\": 3, \"seconds\": 0.1}'", "");
    let error = failure(&silent);
    assert!(error.contains("the output of `warm` is not the JSON of a load"), "{error}");
}

/// Nothing is sent there: the load is an echo. A port to bind is only looked for on this machine.
#[test]
fn a_system_on_another_machine_has_a_rate_and_no_cpu() {
    let (begin, end) = (RUNNING.find("prepare").unwrap(), RUNNING.find("port  = 9").unwrap());
    let remote = RUNNING.replace(&RUNNING[begin..end], "address = \"192.0.2.1\"\n");
    let remote = remote.replace("cpu   = { pidfile = \"{folder}/pid\" }", "");
    let (begin, end) = (remote.find("kill $").unwrap(), remote.find("echo '{").unwrap());
    let remote = remote.replace(&remote[begin..end], "[ {target} = 192.0.2.1:9 ] && [ {port2} != {port} ] &&\n");
    let folder = tempfile::tempdir().unwrap();
    let owned = CompareOptions { owned: vec!["192.0.2.1".to_owned()], ..options(folder.path(), 1) };
    let result = run(&remote, &owned, &Interrupt::default(), &mut Notes::default()).unwrap();
    let run = &result.cases[0].rounds[0]["running"];
    assert_eq!((run.count, run.cpu_seconds, run.machine_cpu_seconds, run.resident_bytes), (10, None, None, None));
    assert_eq!(result.systems[0].commands[0].matches("192.0.2.1:PORT").count(), 1, "{:?}", result.systems);
}
