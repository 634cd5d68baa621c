//! Values of the kernel that change for the time of a measurement, under the journal of [`apply`](crate::apply): they
//! are put back at the end, and after a kill by the next command that takes the journal.

use std::path::Path;
use std::sync::Arc;

use crate::apply::{ApplyError, Change, ChangeKind, Files, RealFiles, TemporaryChanges};
use crate::trial::HostChanges;

/// Values of the running host.
pub struct LiveValues(TemporaryChanges);

impl LiveValues {
    /// Takes the lock of `tune apply` for the time of the measurement.
    ///
    /// # Errors
    ///
    /// Another command has the lock, or this process lacks rights.
    pub fn begin() -> Result<LiveValues, ApplyError> {
        let opened = RealFiles::below(Path::new("/"));
        LiveValues::in_files(Arc::new(opened.map_err(|source| ApplyError::Io { doing: "opening /".into(), source })?))
    }

    fn in_files(files: Arc<dyn Files>) -> Result<LiveValues, ApplyError> {
        TemporaryChanges::begin(files).map(LiveValues)
    }
}

impl HostChanges for LiveValues {
    fn set(&mut self, files: &[String], value: &str) -> Result<(), String> {
        let change = |path: &String| Change { path: path.clone(), kind: ChangeKind::Value(value.to_owned()) };
        self.0.make(&files.iter().map(change).collect::<Vec<_>>()).map_err(|error| error.to_string())
    }

    fn put_back(self: Box<Self>) -> Result<(), String> {
        self.0.put_back().map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn values_are_put_back_at_the_end_and_when_the_measurement_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let (file, path) = (folder.path().join("proc/sys/vm/swappiness"), "/proc/sys/vm/swappiness".to_owned());
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::create_dir_all(folder.path().join("var/lib")).unwrap();
        fs::write(&file, "60\n").unwrap();
        let begin = || LiveValues::in_files(Arc::new(RealFiles::below(folder.path()).unwrap())).unwrap();
        let read = || fs::read_to_string(&file).unwrap().trim().to_owned();
        let mut values = begin();
        values.set(std::slice::from_ref(&path), "10").unwrap();
        values.set(std::slice::from_ref(&path), "20").unwrap();
        assert_eq!(read(), "20");
        Box::new(values).put_back().unwrap();
        assert_eq!(read(), "60");
        let mut values = begin();
        values.set(std::slice::from_ref(&path), "10").unwrap();
        assert_eq!(read(), "10");
        drop(values);
        assert_eq!(read(), "60");
        assert!(begin().set(&["/proc/sys/vm/missing".to_owned()], "1").is_err());
    }
}
