//! One run: a load on a system that is ready, and what it cost the system, the load and the machine.
//!
//! The busy parts count from the beginning of the load to its end. CPU, of the system and of the machine,
//! usually counts one second longer, so that work which is done after the last reply is included.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::cpu::CpuGroup;
use crate::error::CompareError;
use crate::interrupt::Interrupt;
use crate::limits::{self, Shares};
use crate::machine_meter::MachineMeter;
use crate::result::Run;

/// How long after the last reply work of the system still counts.
pub const LATE_WORK_TIME: Duration = Duration::from_secs(1);

/// What a load did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadOutcome {
    /// Units that succeeded.
    pub count: u64,
    /// From the first connection to the last reply, or to the last arrival if the system delivers.
    pub seconds: f64,
    /// Its CPU.
    pub cpu_seconds: f64,
    /// Its threads; 0 if they are not known.
    pub threads: u32,
    /// Latency in seconds by percentile.
    pub latency_seconds: BTreeMap<String, f64>,
}

/// Syncs all disks and rests, so that a run does not pay for earlier ones.
///
/// # Errors
///
/// [`CompareError::Interrupted`].
pub fn settle(rest: Duration, interrupt: &Interrupt) -> Result<(), CompareError> {
    rustix::fs::sync();
    interrupt.rest(rest)
}

/// Runs `load` against the processes of `group`, and counts their CPU and that of the machine for [`LATE_WORK_TIME`] longer. Without a group
/// the system is on another machine, so neither its CPU and memory are known nor those of its machine. `folder` is on
/// the disk of the system.
///
/// # Errors
///
/// Those of `load`; the load did nothing; or the CPU of the group cannot be read, or is less than before.
pub fn measure_run(
    group: Option<&CpuGroup>,
    folder: &Path,
    interrupt: &Interrupt,
    load: impl FnOnce() -> Result<LoadOutcome, CompareError>,
) -> Result<Run, CompareError> {
    measure_run_with_late_work(group, folder, interrupt, LATE_WORK_TIME, load)
}

/// The same with another time for late work, for systems that have none, or only a known one.
///
/// # Errors
///
/// Those of [`measure_run`].
pub fn measure_run_with_late_work(
    group: Option<&CpuGroup>,
    folder: &Path,
    interrupt: &Interrupt,
    late_work: Duration,
    load: impl FnOnce() -> Result<LoadOutcome, CompareError>,
) -> Result<Run, CompareError> {
    let threads = group.map(CpuGroup::thread_times);
    let cpu_before = group.map(CpuGroup::cpu_seconds).transpose()?;
    let mut meter = MachineMeter::begin(folder);
    let outcome = load()?;
    let machine = meter.look();
    let busiest_thread = group.zip(threads).map(|(group, before)| group.thread_times().busiest_since(&before));
    if outcome.count == 0 || outcome.seconds <= 0.0 {
        return Err(CompareError::Failed("the load did nothing, so there is nothing to compare".to_owned()));
    }
    interrupt.rest(late_work)?;
    let machine_cpu_seconds = meter.look().cpu_seconds.filter(|_| group.is_some());
    let cpu_after = group.map(CpuGroup::cpu_seconds).transpose()?;
    let cpu_seconds = cpu_after.zip(cpu_before).map(|(after, before)| after - before);
    if cpu_seconds.is_some_and(|spent| spent < 0.0) {
        let text = "a process of the system ended during the run, so its CPU is not known";
        return Err(CompareError::Failed(text.to_owned()));
    }
    let load_share = outcome.cpu_seconds / machine.seconds / f64::from(outcome.threads.max(1));
    let load_share = (outcome.threads > 0).then_some(load_share);
    let shares = match busiest_thread {
        Some(thread) => Shares {
            processors: machine.processors,
            busiest_thread: Some(thread / machine.seconds),
            load: load_share,
            disk: machine.disk,
            network: machine.network,
        },
        None => Shares { load: load_share, network: machine.network, ..Shares::default() },
    };
    Ok(Run {
        count: outcome.count,
        seconds: outcome.seconds,
        cpu_seconds,
        load_cpu_seconds: Some(outcome.cpu_seconds),
        machine_cpu_seconds,
        resident_bytes: group.map(CpuGroup::resident_bytes),
        limit: limits::limit(&shares),
        latency_seconds: outcome.latency_seconds,
    })
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Otherwise a system that puts work off would cost the machine less than itself.
    #[test]
    fn late_work_counts_for_the_machine_too() {
        const LATE: Duration = Duration::from_millis(500);
        let load = || {
            thread::spawn(|| {
                let begun = Instant::now();
                while begun.elapsed() < LATE {
                    std::hint::spin_loop();
                }
            });
            Ok(LoadOutcome { count: 1, seconds: 1e-3, ..LoadOutcome::default() })
        };
        let group = CpuGroup::watching();
        let run = measure_run_with_late_work(Some(&group), Path::new("/"), &Interrupt::default(), LATE, load).unwrap();
        assert!(run.machine_cpu_seconds.unwrap() > 0.25, "{run:?}");
    }
}
