//! One run: a load on a system that is ready, and what it cost the system, the load and the machine.
//!
//! CPU of the machine and the busy parts count from the beginning of the load to its end. CPU of the
//! system usually counts one second longer, so that work which it does after its last reply is
//! included.

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

/// Runs `load` against the processes of `group`, and counts their CPU for [`LATE_WORK_TIME`] longer.
/// `folder` is on the disk of the system.
///
/// # Errors
///
/// Those of `load`; the load did nothing; or the CPU of the group cannot be read, or is less than before.
pub fn measure_run(
    group: &CpuGroup,
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
    group: &CpuGroup,
    folder: &Path,
    interrupt: &Interrupt,
    late_work: Duration,
    load: impl FnOnce() -> Result<LoadOutcome, CompareError>,
) -> Result<Run, CompareError> {
    let threads = group.thread_times();
    let cpu = group.cpu_seconds()?;
    let machine = MachineMeter::begin(folder);
    let outcome = load()?;
    let machine = machine.end();
    let busiest_thread = group.thread_times().busiest_since(&threads);
    if outcome.count == 0 || outcome.seconds <= 0.0 {
        return Err(CompareError::Failed("the load did nothing, so there is nothing to compare".to_owned()));
    }
    interrupt.rest(late_work)?;
    let cpu_seconds = group.cpu_seconds()? - cpu;
    if cpu_seconds < 0.0 {
        let text = "a process of the system ended during the run, so its CPU is not known";
        return Err(CompareError::Failed(text.to_owned()));
    }
    let load_share = outcome.cpu_seconds / machine.seconds / f64::from(outcome.threads.max(1));
    let shares = Shares {
        processors: machine.processors,
        busiest_thread: Some(busiest_thread / machine.seconds),
        load: (outcome.threads > 0).then_some(load_share),
        disk: machine.disk,
        network: machine.network,
    };
    Ok(Run {
        count: outcome.count,
        seconds: outcome.seconds,
        cpu_seconds,
        load_cpu_seconds: Some(outcome.cpu_seconds),
        machine_cpu_seconds: machine.cpu_seconds,
        resident_bytes: Some(group.resident_bytes()),
        limit: limits::limit(&shares),
        latency_seconds: outcome.latency_seconds,
    })
}
