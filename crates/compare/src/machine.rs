//! The machine of a measurement, as names and values for people: processor, memory, kernel, file
//! system, how CPU is counted. What cannot be read is left out.

use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use crate::cpu::{CpuGroup, CpuSource};
use crate::result::Property;

const GIBIBYTE_IN_KIB: f64 = 1_048_576.0;

/// Describes the machine. `folder` is where the systems keep their files; `mailrace` is the version of
/// this program.
#[must_use]
pub fn describe(folder: &Path, mailrace: &str, source: CpuSource) -> Vec<Property> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let kernel = ["ostype", "osrelease"].map(|name| read(&format!("/proc/sys/kernel/{name}")).trim().to_owned());
    let found = [
        ("processor", processor(&read("/proc/cpuinfo"))),
        ("memory", memory(&read("/proc/meminfo"))),
        ("kernel", Some(kernel.join(" ")).filter(|text| text.len() > 1)),
        ("file system", file_system(folder, &read("/proc/self/mounts"))),
        ("Mailrace", Some(mailrace.to_owned())),
        ("CPU read from", Some(source.name())),
    ];
    let known = found.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.map(|(name, value)| Property { name: name.to_owned(), value }).collect()
}

/// How CPU of started processes is counted on this machine.
#[must_use]
pub fn cpu_source() -> CpuSource {
    CpuGroup::create("probe").source()
}

fn processor(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let model = line.and_then(|line| line.split_once(':')).map_or("", |(_, model)| model.trim());
    let count = available_parallelism().ok()?;
    let cores = format!("{count} cores, shared by load and system");
    Some(if model.is_empty() { cores } else { format!("{model}, {cores}") })
}

fn memory(meminfo: &str) -> Option<String> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(format!("{:.1} GiB", kibibytes / GIBIBYTE_IN_KIB))
}

/// The type, place and options of the file system of a folder: that with the longest place above it.
/// The last one mounted there counts.
fn file_system(folder: &Path, mounts: &str) -> Option<String> {
    let folder = fs::canonicalize(folder).ok()?;
    let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<&str>>());
    let holding = words.filter(|words| words.len() > 3 && folder.starts_with(words[1]));
    let mount = holding.max_by_key(|words| words[1].len())?;
    let [_, place, kind, options, ..] = mount[..] else { return None };
    Some(format!("{kind} on {place} ({options})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_is_the_innermost_and_the_last_mounted_there() {
        let folder = tempfile::tempdir().unwrap();
        let inner = fs::canonicalize(folder.path()).unwrap();
        let mounts = format!("/dev/a / ext4 rw 0 0\nx {0} xfs rw 0 0\nx {0} tmpfs rw,size=1k 0 0\n", inner.display());
        assert_eq!(file_system(folder.path(), &mounts), Some(format!("tmpfs on {} (rw,size=1k)", inner.display())));
        assert_eq!(file_system(Path::new("/"), &mounts).as_deref(), Some("ext4 on / (rw)"));
    }

    #[test]
    fn memory_and_processor_are_found_in_the_kernels_text() {
        assert_eq!(memory("MemTotal:       8388608 kB\nMemFree: 1 kB\n").as_deref(), Some("8.0 GiB"));
        assert!(processor("processor : 0\nmodel name\t: Fast One\n").unwrap().starts_with("Fast One, "));
        let names: Vec<String> =
            describe(Path::new("/"), "1.0", CpuSource::ProcessTree).into_iter().map(|fact| fact.name).collect();
        assert!(["processor", "memory", "kernel", "Mailrace"].iter().all(|name| names.contains(&(*name).to_owned())));
    }
}
