//! The use of the machine during a run, to find the bottleneck: processors, this process, disk,
//! pressure, load average, memory.
//!
//! [`MachineUsage::begin`] reads all gauges and returns a [`UsageMeter`]; [`UsageMeter::end`] reads
//! them again and returns the differences. A gauge that is missing or fails is left out. Only a
//! disk path that does not exist is a fault, so that a typing error is noticed. A megabyte is
//! 1,000,000 bytes.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use load::{
    AvailableMemory, AvailableMemoryReader, CpuTimes, CpuTimesReader, DiskStats, DiskStatsReader, FreeSpace,
    LoadAverage, LoadAverageReader, PressureReader, PressureResource, PressureTotals, ProcessCpuTime,
};
use serde::Serialize;

use crate::BenchError;

/// The megabyte of all reports.
pub(crate) const BYTES_PER_MB: f64 = 1e6;
const BYTES_PER_GB: f64 = 1e9;

/// The use between two moments. Shares are percentages of the time between them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineUsage {
    /// The time between them.
    pub seconds: f64,
    /// The processors of the machine.
    pub cpu: Option<CpuUsage>,
    /// The CPU time of this process.
    pub own_cpu: Option<ProcessCpuUsage>,
    /// The disk of the given path, if it has a gauge.
    pub disk: Option<DiskUsage>,
    /// Free bytes at the end on the file system of the given path.
    pub disk_free_bytes: Option<u64>,
    /// Time that tasks waited for a processor.
    pub cpu_pressure: Option<PressureUsage>,
    /// Time that tasks waited for memory.
    pub memory_pressure: Option<PressureUsage>,
    /// Time that tasks waited for a disk.
    pub io_pressure: Option<PressureUsage>,
    /// Available memory at the end.
    pub memory_available_bytes: Option<u64>,
    /// Load average at the end.
    pub load_average: Option<LoadAverages>,
}

/// All processors together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuUsage {
    /// The number of processors.
    pub processors: usize,
    /// Share of user, system and interrupt time.
    pub busy_percent: f64,
    /// Time in programs.
    pub user_seconds: f64,
    /// Time in the kernel for programs.
    pub system_seconds: f64,
    /// Time in hard and soft interrupts.
    pub irq_seconds: f64,
    /// Idle time while a disk request was open.
    pub iowait_seconds: f64,
    /// Time taken by the hypervisor.
    pub steal_seconds: f64,
}

/// The CPU time of this process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessCpuUsage {
    /// In the program.
    pub user_seconds: f64,
    /// In the kernel.
    pub system_seconds: f64,
}

/// The use of a disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiskUsage {
    /// The kernel's name of the disk.
    pub name: String,
    /// Share of the time with requests in progress.
    pub busy_percent: f64,
    /// Mean time of a request, queueing included. None if there were no requests.
    pub await_ms: Option<f64>,
    /// Completed reads.
    pub reads_per_second: f64,
    /// Completed writes.
    pub writes_per_second: f64,
    /// Flushes of the disk's cache. None if the kernel does not count them.
    pub flushes_per_second: Option<f64>,
    /// Megabytes read.
    pub read_mb_per_second: f64,
    /// Megabytes written.
    pub written_mb_per_second: f64,
}

/// The time that tasks waited for a resource (PSI).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PressureUsage {
    /// At least one task waited.
    pub some_percent: f64,
    /// All runnable tasks waited.
    pub full_percent: Option<f64>,
}

/// Load averages, in tasks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadAverages {
    /// How they were read.
    pub source: String,
    /// Over one minute.
    pub one_minute: f64,
    /// Over five minutes.
    pub five_minutes: f64,
    /// Over fifteen minutes.
    pub fifteen_minutes: f64,
}

/// The gauges and their first sample.
#[derive(Debug)]
pub struct UsageMeter {
    gauges: UsageGauges,
    first: UsageSample,
}

#[derive(Debug)]
struct UsageGauges {
    processors: Option<CpuTimesReader>,
    disk: Option<DiskStatsReader>,
    disk_path: Option<PathBuf>,
    pressures: [Option<PressureReader>; 3],
    memory: Option<AvailableMemoryReader>,
    load_average: LoadAverageReader,
}

/// A sample of all gauges.
#[derive(Clone, Debug)]
struct UsageSample {
    at: Instant,
    processors: Option<CpuTimes>,
    own: Option<ProcessCpuTime>,
    disk: Option<DiskStats>,
    disk_space: Option<FreeSpace>,
    pressures: [Option<PressureTotals>; 3],
    memory: Option<AvailableMemory>,
    load_average: Option<LoadAverage>,
}

impl MachineUsage {
    /// Opens and reads the gauges, without a disk.
    pub fn begin() -> UsageMeter {
        UsageGauges::open(None).begin()
    }

    /// Opens and reads the gauges, with the disk that holds `path`.
    ///
    /// # Errors
    ///
    /// Returns [`BenchError::Usage`] if the path does not exist.
    pub fn begin_with_disk(path: &Path) -> Result<UsageMeter, BenchError> {
        let there = fs::metadata(path);
        there.map_err(|error| BenchError::Usage(format!("cannot watch the disk of {}: {error}", path.display())))?;
        Ok(UsageGauges::open(Some(path)).begin())
    }

    fn from_samples(first: &UsageSample, last: &UsageSample, average_source: String) -> MachineUsage {
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        let [cpu_pressure, memory_pressure, io_pressure] =
            [0, 1, 2].map(|of| Some(PressureUsage::between(first.pressures[of]?, last.pressures[of]?, seconds)));
        MachineUsage {
            seconds,
            cpu: first.processors.zip(last.processors).map(|(first, last)| CpuUsage::between(first, last)),
            own_cpu: first.own.zip(last.own).map(|(first, last)| ProcessCpuUsage::between(first, last)),
            disk: first.disk.as_ref().zip(last.disk.as_ref()).map(|(a, b)| DiskUsage::between(a, b, seconds)),
            disk_free_bytes: last.disk_space.map(|space| space.free_bytes),
            cpu_pressure,
            memory_pressure,
            io_pressure,
            memory_available_bytes: last.memory.map(|memory| memory.available_bytes),
            load_average: last.load_average.map(|tasks| LoadAverages {
                source: average_source,
                one_minute: tasks.one_min,
                five_minutes: tasks.five_min,
                fifteen_minutes: tasks.fifteen_min,
            }),
        }
    }
}

impl UsageMeter {
    /// Reads the gauges again.
    pub fn end(mut self) -> MachineUsage {
        let last = self.gauges.read();
        MachineUsage::from_samples(&self.first, &last, self.gauges.load_average.to_string())
    }
}

impl UsageGauges {
    fn open(disk_path: Option<&Path>) -> UsageGauges {
        UsageGauges {
            processors: CpuTimesReader::open().ok(),
            disk: disk_path.and_then(|path| DiskStatsReader::for_path(path).ok()),
            disk_path: disk_path.map(Path::to_owned),
            pressures: [PressureResource::Cpu, PressureResource::Memory, PressureResource::Io]
                .map(PressureReader::open),
            memory: AvailableMemoryReader::open().ok(),
            load_average: LoadAverageReader::open(),
        }
    }

    fn begin(mut self) -> UsageMeter {
        let first = self.read();
        UsageMeter { gauges: self, first }
    }

    fn read(&mut self) -> UsageSample {
        UsageSample {
            at: Instant::now(),
            processors: self.processors.as_mut().and_then(|source| source.sample().ok()),
            own: ProcessCpuTime::sample().ok(),
            disk: self.disk.as_mut().and_then(|source| source.sample().ok()),
            disk_space: self.disk_path.as_deref().and_then(|path| FreeSpace::of(path).ok()),
            pressures: self.pressures.each_mut().map(|source| source.as_mut()?.sample().ok()),
            memory: self.memory.as_mut().and_then(|source| source.sample().ok()),
            load_average: self.load_average.sample().ok(),
        }
    }
}

impl CpuUsage {
    fn between(first: CpuTimes, last: CpuTimes) -> CpuUsage {
        // The kernel's counters of idle time and iowait may decrease slightly.
        let spent = |of: fn(&CpuTimes) -> f64| (of(&last) - of(&first)).max(0.0);
        let [user, system, irq] = [spent(|p| p.user_secs), spent(|p| p.system_secs), spent(|p| p.irq_secs)];
        let [iowait, steal, idle] = [spent(|p| p.iowait_secs), spent(|p| p.steal_secs), spent(|p| p.idle_secs)];
        let busy = user + system + irq;
        CpuUsage {
            processors: last.count,
            busy_percent: percent(busy, busy + iowait + steal + idle),
            user_seconds: user,
            system_seconds: system,
            irq_seconds: irq,
            iowait_seconds: iowait,
            steal_seconds: steal,
        }
    }
}

impl ProcessCpuUsage {
    fn between(first: ProcessCpuTime, last: ProcessCpuTime) -> ProcessCpuUsage {
        ProcessCpuUsage {
            user_seconds: last.user_secs - first.user_secs,
            system_seconds: last.system_secs - first.system_secs,
        }
    }
}

impl DiskUsage {
    fn between(first: &DiskStats, last: &DiskStats, seconds: f64) -> DiskUsage {
        let done = |of: fn(&DiskStats) -> u64| of(last).saturating_sub(of(first)) as f64;
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let (reads, writes) = (done(|disk| disk.reads), done(|disk| disk.writes));
        let waited_ms = done(|disk| disk.reads_ms) + done(|disk| disk.writes_ms);
        DiskUsage {
            name: last.name.clone(),
            busy_percent: percent(done(|disk| disk.busy_ms) / 1e3, seconds),
            await_ms: (reads + writes > 0.0).then(|| waited_ms / (reads + writes)),
            reads_per_second: per_second(reads),
            writes_per_second: per_second(writes),
            flushes_per_second: last.flushes.zip(first.flushes).map(|(b, a)| per_second(b.saturating_sub(a) as f64)),
            read_mb_per_second: per_second(done(|disk| disk.read_bytes)) / BYTES_PER_MB,
            written_mb_per_second: per_second(done(|disk| disk.written_bytes)) / BYTES_PER_MB,
        }
    }
}

impl PressureUsage {
    fn between(first: PressureTotals, last: PressureTotals, seconds: f64) -> PressureUsage {
        let share = |first_us: u64, last_us: u64| percent(last_us.saturating_sub(first_us) as f64 / 1e6, seconds);
        PressureUsage {
            some_percent: share(first.some_us, last.some_us),
            full_percent: first.full_us.zip(last.full_us).map(|(first, last)| share(first, last)),
        }
    }
}

/// A percentage. The kernel's clocks differ slightly, so it is capped at 100.
fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (100.0 * part / whole).min(100.0) } else { 0.0 }
}

impl fmt::Display for MachineUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "use of the machine in {:.1} s:", self.seconds)?;
        write_line(f, "processors", self.cpu.as_ref())?;
        write_line(f, "this process", self.own_cpu.as_ref())?;
        write_line(f, "disk", self.disk.as_ref())?;
        write_line(f, "waited for cpu", self.cpu_pressure.as_ref())?;
        write_line(f, "waited for memory", self.memory_pressure.as_ref())?;
        write_line(f, "waited for io", self.io_pressure.as_ref())?;
        write_line(f, "load average", self.load_average.as_ref())?;
        write_line(f, "disk space left", self.disk_free_bytes.map(Gigabytes))?;
        write_line(f, "memory left", self.memory_available_bytes.map(Gigabytes))
    }
}

fn write_line(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| writeln!(f, "  {name:<18} {value}"))
}

struct Gigabytes(u64);

impl fmt::Display for Gigabytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} GB", self.0 as f64 / BYTES_PER_GB)
    }
}

impl fmt::Display for CpuUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} % of {} busy: user {:.1} s, ", self.busy_percent, self.processors, self.user_seconds)?;
        write!(f, "system {:.1} s, interrupts {:.1} s; ", self.system_seconds, self.irq_seconds)?;
        write!(f, "iowait {:.1} s, stolen {:.1} s", self.iowait_seconds, self.steal_seconds)
    }
}

impl fmt::Display for ProcessCpuUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {:.2} s, system {:.2} s", self.user_seconds, self.system_seconds)
    }
}

impl fmt::Display for DiskUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:.0} % busy, ", self.name, self.busy_percent)?;
        if let Some(await_ms) = self.await_ms {
            write!(f, "await {await_ms:.2} ms, ")?;
        }
        write!(f, "{:.0} reads/s ({:.1} MB/s), ", self.reads_per_second, self.read_mb_per_second)?;
        write!(f, "{:.0} writes/s ({:.1} MB/s)", self.writes_per_second, self.written_mb_per_second)?;
        self.flushes_per_second.map_or(Ok(()), |flushes| write!(f, ", {flushes:.0} flushes/s"))
    }
}

impl fmt::Display for PressureUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} % some", self.some_percent)?;
        self.full_percent.map_or(Ok(()), |full| write!(f, ", {full:.1} % all"))
    }
}

impl fmt::Display for LoadAverages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} {:.2} {:.2} at the end ", self.one_minute, self.five_minutes, self.fifteen_minutes)?;
        write!(f, "({})", self.source)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn processors(busy_secs: f64, idle_secs: f64) -> CpuTimes {
        let (user_secs, system_secs, irq_secs) = (busy_secs / 2.0, busy_secs / 4.0, busy_secs / 4.0);
        CpuTimes { count: 2, user_secs, system_secs, irq_secs, iowait_secs: 1.0, steal_secs: 0.5, idle_secs }
    }

    fn disk(reads: u64, writes: u64) -> DiskStats {
        DiskStats {
            name: "vda".to_owned(),
            reads,
            read_bytes: reads * 4096,
            reads_ms: reads * 2,
            writes,
            written_bytes: writes * 10_000,
            writes_ms: writes * 4,
            busy_ms: writes * 5,
            flushes: Some(writes / 2),
        }
    }

    fn pressure(total_us: u64) -> PressureTotals {
        PressureTotals { some_us: total_us, full_us: Some(total_us / 2) }
    }

    fn two_samples() -> (UsageSample, UsageSample) {
        let first = UsageSample {
            at: Instant::now(),
            processors: Some(processors(100.0, 1000.0)),
            own: Some(ProcessCpuTime { user_secs: 1.0, system_secs: 2.0 }),
            disk: Some(disk(100, 1000)),
            disk_space: None,
            pressures: [Some(pressure(7_000_000)), None, Some(pressure(0))],
            memory: None,
            load_average: None,
        };
        let last = UsageSample {
            at: first.at + Duration::from_secs(10),
            processors: Some(processors(116.0, 1004.0)),
            own: Some(ProcessCpuTime { user_secs: 4.0, system_secs: 2.5 }),
            disk: Some(disk(200, 2000)),
            disk_space: Some(FreeSpace { free_bytes: 5_000_000_000, free_inodes: None }),
            pressures: [Some(pressure(9_000_000)), Some(pressure(1)), Some(pressure(0))],
            memory: Some(AvailableMemory { available_bytes: 23_200_000_000 }),
            load_average: Some(LoadAverage { one_min: 1.5, five_min: 1.25, fifteen_min: 1.0 }),
        };
        (first, last)
    }

    #[test]
    fn counts_become_shares_and_rates() {
        let (first, last) = two_samples();
        let usage = MachineUsage::from_samples(&first, &last, "test".to_owned());
        let cpu = usage.cpu.unwrap();
        assert_eq!((cpu.processors, cpu.busy_percent, cpu.user_seconds), (2, 80.0, 8.0));
        assert_eq!(usage.own_cpu, Some(ProcessCpuUsage { user_seconds: 3.0, system_seconds: 0.5 }));
        let disk = usage.disk.unwrap();
        assert_eq!((disk.busy_percent, disk.reads_per_second, disk.writes_per_second), (50.0, 10.0, 100.0));
        assert_eq!((disk.flushes_per_second, disk.written_mb_per_second), (Some(50.0), 1.0));
        assert!((disk.await_ms.unwrap() - 4200.0 / 1100.0).abs() < 1e-9);
        assert_eq!(usage.cpu_pressure, Some(PressureUsage { some_percent: 20.0, full_percent: Some(10.0) }));
        assert_eq!(usage.memory_pressure, None, "a gauge that failed at the beginning is left out");
    }

    #[test]
    fn the_text_has_a_line_for_each_gauge() {
        let (first, last) = two_samples();
        insta::assert_snapshot!(MachineUsage::from_samples(&first, &last, "/proc/loadavg".to_owned()), @"
        use of the machine in 10.0 s:
          processors         80 % of 2 busy: user 8.0 s, system 4.0 s, interrupts 4.0 s; iowait 0.0 s, stolen 0.0 s
          this process       user 3.00 s, system 0.50 s
          disk               vda 50 % busy, await 3.82 ms, 10 reads/s (0.0 MB/s), 100 writes/s (1.0 MB/s), 50 flushes/s
          waited for cpu     20.0 % some, 10.0 % all
          waited for io      0.0 % some, 0.0 % all
          load average       1.50 1.25 1.00 at the end (/proc/loadavg)
          disk space left    5.0 GB
          memory left        23.2 GB
        ");
    }

    #[test]
    fn an_idle_disk_has_no_await_and_no_time_gives_no_rates() {
        let (mut first, _) = two_samples();
        first.disk = Some(disk(0, 0));
        let disk = MachineUsage::from_samples(&first, &first, String::new()).disk.unwrap();
        assert_eq!((disk.await_ms, disk.writes_per_second, disk.busy_percent), (None, 0.0, 0.0));
    }

    #[test]
    fn this_machine_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let usage = MachineUsage::begin_with_disk(folder.path()).unwrap().end();
        assert!(usage.cpu.is_some() && usage.own_cpu.is_some() && usage.load_average.is_some(), "{usage:?}");
        assert!(usage.disk_free_bytes.is_some(), "{usage:?}");
    }

    /// A typing error in `--disk` used to give a report without a disk and no message.
    #[test]
    fn a_missing_disk_path_is_a_fault_and_a_disk_without_a_gauge_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let fault = MachineUsage::begin_with_disk(&folder.path().join("typo")).unwrap_err();
        assert!(matches!(&fault, BenchError::Usage(text) if text.contains("typo")), "{fault}");
        assert_eq!(MachineUsage::begin_with_disk(Path::new("/proc")).unwrap().end().disk, None);
    }
}
