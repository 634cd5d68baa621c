//! How busy the machine was between two moments: its processors, a disk, the network. The gauges are
//! those of crate `load`; one that is missing or fails is left out.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use load::{CpuTimes, CpuTimesReader, DiskStats, DiskStatsReader};

/// Interfaces of the machine; loopback has no speed.
const INTERFACES: &str = "/sys/class/net";

/// The gauges and their first sample.
#[derive(Debug)]
pub struct MachineMeter {
    processors: Option<CpuTimesReader>,
    disk: Option<DiskStatsReader>,
    first: Sample,
}

/// The use of the machine between the two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineUse {
    /// The time between them.
    pub seconds: f64,
    /// CPU seconds of all processes, with interrupts and stolen time, without idle and iowait.
    pub cpu_seconds: Option<f64>,
    /// The share of all processors that was busy, from 0 to 1.
    pub processors: Option<f64>,
    /// The share of the time in which the disk had requests, from 0 to 1.
    pub disk: Option<f64>,
    /// The use of the busiest direction of the busiest interface, of its speed, from 0 to 1.
    pub network: Option<f64>,
}

#[derive(Clone, Debug)]
struct Sample {
    at: Instant,
    processors: Option<CpuTimes>,
    disk: Option<DiskStats>,
    interfaces: HashMap<String, InterfaceOctets>,
}

/// What passed through an interface since boot.
#[derive(Clone, Copy, Debug)]
struct InterfaceOctets {
    received: u64,
    sent: u64,
    /// In bytes per second.
    speed: f64,
}

impl MachineMeter {
    /// Opens and reads the gauges. The disk is the one that contains `path`.
    #[must_use]
    pub fn begin(path: &Path) -> MachineMeter {
        let mut processors = CpuTimesReader::open().ok();
        let mut disk = DiskStatsReader::for_path(path).ok();
        let first = Sample::read(&mut processors, &mut disk);
        MachineMeter { processors, disk, first }
    }

    /// The use from the beginning until now.
    #[must_use]
    pub fn look(&mut self) -> MachineUse {
        let last = Sample::read(&mut self.processors, &mut self.disk);
        MachineUse::between(&self.first, &last)
    }
}

impl Sample {
    fn read(processors: &mut Option<CpuTimesReader>, disk: &mut Option<DiskStatsReader>) -> Sample {
        Sample {
            at: Instant::now(),
            processors: processors.as_mut().and_then(|gauge| gauge.sample().ok()),
            disk: disk.as_mut().and_then(|gauge| gauge.sample().ok()),
            interfaces: interfaces(Path::new(INTERFACES)),
        }
    }
}

impl MachineUse {
    fn between(first: &Sample, last: &Sample) -> MachineUse {
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        let share = |part: f64, whole: f64| if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
        let cpu = first.processors.zip(last.processors).map(|(first, last)| {
            // The kernel's counters of idle time and iowait may decrease slightly.
            let idle = |times: &CpuTimes| times.idle_secs + times.iowait_secs;
            (busy_seconds(&last) - busy_seconds(&first), (idle(&last) - idle(&first)).max(0.0))
        });
        let disk = first.disk.as_ref().zip(last.disk.as_ref());
        let networks = last.interfaces.iter().filter_map(|(name, last)| {
            let first = first.interfaces.get(name)?;
            let octets = (last.received.saturating_sub(first.received)).max(last.sent.saturating_sub(first.sent));
            Some(share(octets as f64, last.speed * seconds))
        });
        MachineUse {
            seconds,
            cpu_seconds: cpu.map(|(busy, _)| busy),
            processors: cpu.map(|(busy, idle)| share(busy, busy + idle)),
            disk: disk.map(|(first, last)| share(last.busy_ms.saturating_sub(first.busy_ms) as f64, seconds * 1e3)),
            network: networks.reduce(f64::max),
        }
    }
}

/// Interrupts count: in a server they are part of the work. Stolen time is work that took longer.
fn busy_seconds(times: &CpuTimes) -> f64 {
    times.user_secs + times.system_secs + times.irq_secs + times.steal_secs
}

/// The interfaces with a known speed.
fn interfaces(folder: &Path) -> HashMap<String, InterfaceOctets> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, interface(&entry.path())?))).collect()
}

fn interface(folder: &Path) -> Option<InterfaceOctets> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<i64>().ok();
    // Virtual interfaces have none, or -1.
    let megabits = number("speed").filter(|speed| *speed > 0)?;
    let octets = |name: &str| number(name)?.try_into().ok();
    Some(InterfaceOctets {
        received: octets("statistics/rx_bytes")?,
        sent: octets("statistics/tx_bytes")?,
        speed: megabits as f64 * 1e6 / 8.0,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(at: Instant, busy: f64, busy_ms: u64, sent: u64) -> Sample {
        let processors = CpuTimes {
            count: 2,
            user_secs: busy,
            system_secs: 0.0,
            irq_secs: 0.0,
            iowait_secs: 100.0 - busy,
            steal_secs: 0.0,
            idle_secs: 0.0,
        };
        let disk = DiskStats {
            name: "vda".to_owned(),
            reads: 0,
            read_bytes: 0,
            reads_ms: 0,
            writes: 0,
            written_bytes: 0,
            writes_ms: 0,
            busy_ms,
            flushes: None,
        };
        let interface = InterfaceOctets { received: 7, sent, speed: 1e6 };
        Sample {
            at,
            processors: Some(processors),
            disk: Some(disk),
            interfaces: HashMap::from([("eth0".to_owned(), interface)]),
        }
    }

    #[test]
    fn shares_are_of_the_time_and_of_the_speed() {
        let at = Instant::now();
        let first = sample(at, 0.0, 0, 0);
        let mut last = sample(at + Duration::from_secs(2), 3.0, 500, 1_500_000);
        if let Some(times) = &mut last.processors {
            times.iowait_secs = 101.0;
        }
        let used = MachineUse::between(&first, &last);
        let expected = MachineUse {
            seconds: 2.0,
            cpu_seconds: Some(3.0),
            processors: Some(0.75),
            disk: Some(0.25),
            network: Some(0.75),
        };
        assert_eq!(used, expected);
    }

    #[test]
    fn an_interface_without_a_speed_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        for (name, speed) in [("eth0", "1000"), ("veth0", "-1")] {
            let statistics = folder.path().join(name).join("statistics");
            fs::create_dir_all(&statistics).unwrap();
            fs::write(folder.path().join(name).join("speed"), speed).unwrap();
            fs::write(statistics.join("rx_bytes"), "5\n").unwrap();
            fs::write(statistics.join("tx_bytes"), "6\n").unwrap();
        }
        let found = interfaces(folder.path());
        assert_eq!(found.len(), 1);
        assert_eq!((found["eth0"].sent, found["eth0"].speed), (6, 125e6));
    }

    #[test]
    fn this_machine_has_processors() {
        let used = MachineMeter::begin(Path::new("/")).look();
        assert!(used.cpu_seconds.is_some() && used.processors.is_some(), "{used:?}");
    }
}
