//! Values of the kernel that change for the time of a measurement, under the journal of [`apply`](crate::apply): they
//! are put back at the end, and after a kill by the next command that takes the journal. What is changed is what
//! `tune apply` would change: one word of several, all disks, and what the kernel changes with it.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use crate::apply::{ApplyError, Change, Files, KnobRequest, RealFiles, TemporaryChanges, live_changes};
use crate::check::{CheckReport, check};
use crate::host::Host;
use crate::settings::ServerSettings;
use crate::target::HostValue;
use crate::trial::HostChanges;

/// A value of the running host.
pub struct LiveValues {
    knob: String,
    host: Host,
    report: CheckReport,
    files: Arc<dyn Files>,
    changes: TemporaryChanges,
}

impl LiveValues {
    /// Takes the lock of `tune apply` for the time of the measurement.
    ///
    /// # Errors
    ///
    /// Another command has the lock, or this process lacks rights.
    pub fn begin(value: &HostValue, settings: &ServerSettings) -> Result<LiveValues, ApplyError> {
        let opened = RealFiles::below(Path::new("/"));
        let files = Arc::new(opened.map_err(|source| ApplyError::Io { doing: "opening /".into(), source })?);
        LiveValues::in_files(&value.knob, settings, Host::live(), files)
    }

    fn in_files(
        knob: &str,
        settings: &ServerSettings,
        host: Host,
        files: Arc<dyn Files>,
    ) -> Result<LiveValues, ApplyError> {
        let changes = TemporaryChanges::begin(files.clone()).map_err(|error| needs_root(knob, error))?;
        Ok(LiveValues { knob: knob.to_owned(), report: check(&host, settings), host, files, changes })
    }

    fn changes_to(&self, value: &str) -> Result<Vec<Change>, String> {
        let knob = KnobRequest { name: self.knob.clone(), value: Some(value.to_owned()) };
        live_changes(&self.host, &*self.files, &self.report, knob).map_err(|error| error.to_string())
    }
}

impl HostChanges for LiveValues {
    fn check(&self, value: &str) -> Result<(), String> {
        let missing = |change: &Change| {
            let error = self.files.check_right(&change.path).err()?;
            Some(format!("{} cannot be written: {error}; run it as root, and not where it is read-only", change.path))
        };
        self.changes_to(value)?.iter().find_map(missing).map_or(Ok(()), Err)
    }

    fn set(&mut self, value: &str) -> Result<(), String> {
        let changes = self.changes_to(value)?;
        if changes.is_empty() {
            return Ok(());
        }
        self.changes.make(&changes).map_err(|error| error.to_string())
    }

    fn put_back(self: Box<Self>) -> Result<(), String> {
        self.changes.put_back().map_err(|error| error.to_string())
    }
}

/// Who lacks the right to write the journal lacks that to change the value, too.
fn needs_root(knob: &str, error: ApplyError) -> ApplyError {
    match error {
        ApplyError::Io { doing, source } if source.kind() == ErrorKind::PermissionDenied => {
            ApplyError::MissingRights(format!("{knob} is a value of the kernel: run it as root ({doing}: {source})"))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    struct CopiedHost(TempDir);

    impl CopiedHost {
        fn new() -> CopiedHost {
            let host = CopiedHost(tempfile::tempdir().unwrap());
            host.write("proc/sys/vm/swappiness", "60\n");
            host.write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
            host.write("proc/sys/net/ipv4/tcp_mem", "44000\t60000\t90000\n");
            fs::create_dir_all(host.0.path().join("var/lib")).unwrap();
            host
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn read(&self, path: &str) -> String {
            fs::read_to_string(self.0.path().join("proc/sys").join(path)).unwrap()
        }

        fn begin(&self, knob: &str) -> LiveValues {
            let files = Arc::new(RealFiles::below(self.0.path()).unwrap());
            LiveValues::in_files(knob, &ServerSettings::default(), Host::below(self.0.path()), files).unwrap()
        }
    }

    #[test]
    fn values_are_put_back_at_the_end_and_when_the_measurement_is_dropped() {
        let host = CopiedHost::new();
        let mut values = host.begin("vm.swappiness");
        ["60", "10", "60", "20"].iter().for_each(|value| values.set(value).unwrap());
        assert_eq!(host.read("vm/swappiness"), "20\n");
        Box::new(values).put_back().unwrap();
        assert_eq!(host.read("vm/swappiness"), "60\n");
        let mut values = host.begin("vm.swappiness");
        values.set("10").unwrap();
        assert_eq!(host.read("vm/swappiness"), "10\n");
        drop(values);
        assert_eq!(host.read("vm/swappiness"), "60\n");
        assert!(!host.0.path().join("etc").exists(), "no file keeps the value");
    }

    /// The first word of tcp_rmem is the smallest buffer of every socket.
    #[test]
    fn a_value_that_is_one_word_of_several_leaves_the_others() {
        let host = CopiedHost::new();
        let mut values = host.begin("net.ipv4.tcp_rmem");
        values.set("1048576").unwrap();
        assert_eq!(host.read("net/ipv4/tcp_rmem"), "4096 131072 1048576\n");
        drop(values);
        assert_eq!(host.read("net/ipv4/tcp_rmem"), "4096\t131072\t6291456\n");
    }

    #[test]
    fn who_lacks_the_rights_is_told_to_be_root() {
        let denied = ApplyError::Io { doing: "making /var/lib/x".into(), source: ErrorKind::PermissionDenied.into() };
        let told = needs_root("vm.swappiness", denied);
        assert!(matches!(&told, ApplyError::MissingRights(text) if text.contains("run it as root")), "{told}");
        let full = ApplyError::Io { doing: "making /var/lib/x".into(), source: ErrorKind::StorageFull.into() };
        assert!(matches!(needs_root("vm.swappiness", full), ApplyError::Io { .. }));
    }

    #[test]
    fn a_pair_of_values_is_put_back_as_it_was() {
        let host = CopiedHost::new();
        host.write("proc/sys/vm/dirty_ratio", "20\n");
        host.write("proc/sys/vm/dirty_bytes", "0\n");
        let mut values = host.begin("vm.dirty_ratio");
        ["20", "10", "20", "40"].iter().for_each(|value| values.set(value).unwrap());
        assert_eq!(host.read("vm/dirty_ratio"), "40\n");
        drop(values);
        assert_eq!(["vm/dirty_ratio", "vm/dirty_bytes"].map(|name| host.read(name)), ["20\n", "0\n"]);
    }

    #[test]
    fn what_the_host_does_not_take_is_refused_before_anything_runs() {
        let host = CopiedHost::new();
        let check = |knob: &str, value: &str| host.begin(knob).check(value);
        assert_eq!(check("vm.swappiness", "10"), Ok(()));
        assert!(check("vm.swappiness", "many").unwrap_err().contains("a number"));
        assert!(check("net.ipv4.tcp_mem", "1 2").unwrap_err().contains("3 numbers"));
        assert!(check("net.core.somaxconn", "10").unwrap_err().contains("/proc/sys/net/core/somaxconn"));
        host.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        assert!(check("memory.huge_pages", "sometimes").unwrap_err().contains("does not offer"));
        assert_eq!(host.read("vm/swappiness"), "60\n");
    }
}
