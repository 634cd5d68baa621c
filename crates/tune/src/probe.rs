//! Times syncs on the disk of the spool, as the spool makes them: an append, then fdatasync.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The size of each write.
const WRITE_BYTES: usize = 4 << 10;

/// How long syncs take, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncTimes {
    /// The folder of the file.
    pub folder: PathBuf,
    /// The number of syncs.
    pub count: usize,
    /// The shortest time.
    pub min_us: f64,
    /// The median.
    pub median_us: f64,
    /// The longest time.
    pub max_us: f64,
}

impl SyncTimes {
    /// The number of syncs of a measurement: a second on a slow disk.
    pub const COUNT: usize = 50;

    /// Appends [`SyncTimes::COUNT`] times 4 KiB to a file without a name in `folder`, with a sync after each.
    ///
    /// # Errors
    ///
    /// The file cannot be created or written.
    pub fn measure(folder: &Path) -> io::Result<SyncTimes> {
        // It never has a name, so nothing is left of it whatever happens.
        let mut file = tempfile::tempfile_in(folder)?;
        let mut times_us = Vec::with_capacity(SyncTimes::COUNT);
        for _ in 0..SyncTimes::COUNT {
            let begin = Instant::now();
            file.write_all(&[b'.'; WRITE_BYTES])?;
            file.sync_data()?;
            times_us.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        times_us.sort_by(f64::total_cmp);
        Ok(SyncTimes {
            folder: folder.to_owned(),
            count: times_us.len(),
            min_us: times_us[0],
            median_us: times_us[times_us.len() / 2],
            max_us: times_us[times_us.len() - 1],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let times = SyncTimes::measure(folder.path()).unwrap();
        assert_eq!(times.count, SyncTimes::COUNT);
        assert!(0.0 < times.min_us && times.min_us <= times.median_us && times.median_us <= times.max_us);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(SyncTimes::measure(&folder.path().join("missing")).is_err());
    }
}
