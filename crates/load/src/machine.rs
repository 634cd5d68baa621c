//! The gauges of this machine, read by the monitor through handles that stay open: load average,
//! pressure, memory, and the free space of each disk. A missing gauge is still listed, without a
//! value.

use std::path::Path;
use std::sync::Arc;

use crate::average::LoadAverageReader;
use crate::memory::{AvailableMemoryReader, PROC_MEMINFO};
use crate::monitor::GaugeReader;
use crate::policy::{Gauge, GaugeReading};
use crate::pressure::{PressureReader, PressureResource};
use crate::space::FreeSpaceReader;

const RESOURCES: [PressureResource; 3] = [PressureResource::Cpu, PressureResource::Memory, PressureResource::Io];
const STATVFS: &str = "fstatvfs";

/// The open gauges of the machine.
#[derive(Debug)]
pub struct MachineGaugeReader {
    load_average: LoadAverageReader,
    pressures: [Option<PressureReader>; 3],
    memory: Option<AvailableMemoryReader>,
    disks: Vec<FileSystemGauge>,
}

/// The file system that contains a path.
#[derive(Debug)]
struct FileSystemGauge {
    path: Arc<Path>,
    /// None until the path can be opened: the directory may be created or mounted later.
    space: Option<FreeSpaceReader>,
}

impl MachineGaugeReader {
    /// Opens the gauges of the machine and of the file systems that contain these paths. Each file
    /// system is listed once, under the first of its paths.
    pub fn open(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> MachineGaugeReader {
        let mut disks: Vec<FileSystemGauge> = Vec::new();
        for path in paths {
            let disk = FileSystemGauge::open(path.as_ref());
            if !disks.iter().any(|other| other.is_same_file_system(&disk)) {
                disks.push(disk);
            }
        }
        MachineGaugeReader {
            load_average: LoadAverageReader::open(),
            pressures: RESOURCES.map(PressureReader::open),
            memory: AvailableMemoryReader::open().ok(),
            disks,
        }
    }
}

impl GaugeReader for MachineGaugeReader {
    fn read(&mut self) -> Vec<GaugeReading> {
        let load_average = self.load_average.sample().ok().map(|averages| averages.one_min);
        let memory = self.memory.as_mut().and_then(|memory| memory.sample().ok());
        let mut readings = vec![GaugeReading {
            gauge: Gauge::LoadAverage,
            source: self.load_average.source_name(),
            value: load_average,
        }];
        readings.extend(RESOURCES.into_iter().zip(&mut self.pressures).map(|(resource, pressure)| GaugeReading {
            gauge: Gauge::Pressure(resource),
            source: resource.path(),
            value: pressure.as_mut().and_then(|pressure| pressure.recent_stall_percent().ok()),
        }));
        readings.push(GaugeReading {
            gauge: Gauge::MemoryAvailable,
            source: PROC_MEMINFO,
            value: memory.map(|memory| memory.available_bytes as f64),
        });
        readings.extend(self.disks.iter_mut().flat_map(FileSystemGauge::read));
        readings
    }
}

impl FileSystemGauge {
    fn open(path: &Path) -> FileSystemGauge {
        FileSystemGauge { path: path.into(), space: FreeSpaceReader::open(path).ok() }
    }

    fn is_same_file_system(&self, other: &FileSystemGauge) -> bool {
        match (&self.space, &other.space) {
            (Some(space), Some(other)) => space.file_system() == other.file_system(),
            _ => self.path == other.path,
        }
    }

    fn read(&mut self) -> [GaugeReading; 2] {
        if self.space.is_none() {
            self.space = FreeSpaceReader::open(&self.path).ok();
        }
        let space = self.space.as_ref().and_then(|room| room.sample().ok());
        let reading =
            |gauge, value: Option<u64>| GaugeReading { gauge, source: STATVFS, value: value.map(|n| n as f64) };
        [
            reading(Gauge::FreeSpace(self.path.clone()), space.map(|space| space.free_bytes)),
            reading(Gauge::FreeInodes(self.path.clone()), space.and_then(|space| space.free_inodes)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_load_memory_and_disk_space() {
        let folder = tempfile::tempdir().unwrap();
        let readings = MachineGaugeReader::open([folder.path()]).read();
        assert_eq!(readings.len(), 7);
        let value = |wanted: &Gauge| readings.iter().find(|reading| reading.gauge == *wanted).unwrap().value;
        assert!(value(&Gauge::LoadAverage).is_some());
        assert!(value(&Gauge::MemoryAvailable).unwrap() > 0.0);
        assert!(value(&Gauge::FreeSpace(folder.path().into())).unwrap() > 0.0);
    }

    #[test]
    fn a_file_system_is_listed_once_and_a_missing_folder_later() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b, later) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("later"));
        std::fs::create_dir(&a).unwrap();
        std::fs::create_dir(&b).unwrap();
        let mut machine = MachineGaugeReader::open([&a, &b, &later, &later]);
        let disks = |readings: Vec<GaugeReading>| -> Vec<(Gauge, bool)> {
            let spaces = readings.into_iter().filter(|reading| matches!(reading.gauge, Gauge::FreeSpace(_)));
            spaces.map(|reading| (reading.gauge, reading.value.is_some())).collect()
        };
        let (first, second) = (Gauge::FreeSpace(a.as_path().into()), Gauge::FreeSpace(later.as_path().into()));
        assert_eq!(disks(machine.read()), [(first.clone(), true), (second.clone(), false)]);
        std::fs::create_dir(&later).unwrap();
        assert_eq!(disks(machine.read()), [(first, true), (second, true)]);
    }
}
