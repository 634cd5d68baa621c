//! What the operator's signals do to a command of the laboratory. In a process of its own, since it signals itself.

use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use bench::StopSignal;
use rustix::process::{Signal, getpid, kill_process};

/// Without a handler each of them ends the process at once, and leaves what it has started.
#[test]
fn a_closed_terminal_ends_a_run_as_ctrl_c_does() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    // Under nohup(1) it must not end the run.
    let ignores_hang_up = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1;
    for signal in [Signal::HUP, Signal::QUIT, Signal::INT, Signal::TERM] {
        if signal == Signal::HUP && ignores_hang_up {
            continue;
        }
        let flag = StopSignal::listen().unwrap().flag();
        assert!(!flag.load(Relaxed));
        kill_process(getpid(), signal).unwrap();
        let begun = Instant::now();
        while !flag.load(Relaxed) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{signal:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
