//! Reads message bodies without blocking on the disk: bytes in the page cache are read immediately,
//! others by one of a few blocking threads. A body without a file is in memory.

use std::io;

use mail::Body;

use crate::disk_read::read_blocking;
use crate::file_range::{self, FileRange};

/// Fills the buffer from `position` of the body if the bytes are cached; returns whether they were.
/// The body must have that many bytes from there.
pub fn read_if_cached(body: &Body, buffer: &mut [u8], position: u64) -> io::Result<bool> {
    let Some((file, offset)) = body.file_range() else {
        return body.read_at(buffer, position).map(|_| true);
    };
    let in_memory = body.read_start(buffer, position);
    let rest = &mut buffer[in_memory..];
    let offset = offset + position.saturating_sub(body.start().len() as u64);
    FileRange { file, offset, octets: rest.len() as u64 }.read_if_cached(rest)
}

/// Whether a range of the body can be read without waiting. A page may be evicted before it is
/// read; then one read waits.
pub fn is_cached(body: &Body, position: u64, octets: u64) -> io::Result<bool> {
    let Some((file, offset)) = body.file_range() else { return Ok(true) };
    let start = body.start().len() as u64;
    let in_memory = start.saturating_sub(position).min(octets);
    let offset = offset + position.saturating_sub(start);
    FileRange { file, offset, octets: octets - in_memory }.is_cached()
}

/// Reads a range of the body on a blocking thread.
pub async fn read_from_disk(body: &Body, position: u64, octets: usize) -> io::Result<Vec<u8>> {
    let read = move |body: &Body| {
        let mut bytes = vec![0; octets];
        match body.read_at(&mut bytes, position)? {
            count if count == octets => Ok(bytes),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    };
    read_blocking(|| Ok(body.clone()), read).await
}

/// Brings a range of the body into the page cache on a blocking thread.
pub async fn prefetch_from_disk(body: &Body, position: u64, octets: u64) -> io::Result<()> {
    let read = move |body: &Body| file_range::prefetch(|buffer, place| body.read_at(buffer, place), position, octets);
    read_blocking(|| Ok(body.clone()), read).await
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use mail::{BodyFlags, ByteSource};
    use rustix::fs::{Advice, fadvise};

    use super::*;

    struct FileSource(File);

    impl ByteSource for FileSource {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            std::os::unix::fs::FileExt::read_at(&self.0, buffer, offset)
        }

        fn file(&self) -> Option<&File> {
            Some(&self.0)
        }
    }

    /// How long the kernel may keep pages that it is busy with.
    const DROP_TIME_MAX: Duration = Duration::from_secs(20);
    const DROP_INTERVAL: Duration = Duration::from_millis(1);
    const OCTETS: usize = 300_000;

    /// A body that covers most of a file on disk, and the file.
    fn body_on_disk() -> (Body, Vec<u8>, File) {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..OCTETS + 20).map(|number| (number % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        let same = file.try_clone().unwrap();
        let body = Body::new(Arc::new(FileSource(file)), 10, OCTETS as u64, 0, BodyFlags::default());
        (body, bytes[10..OCTETS + 10].to_vec(), same)
    }

    fn drop_from_cache(file: &File) {
        fadvise(file, 0, None, Advice::DontNeed).unwrap();
    }

    /// Whether this is true right after the file was dropped from the page cache. Tried several
    /// times: the kernel keeps pages that it is busy with, and a question about a page that is not
    /// there makes it read ahead.
    fn holds_without_cache(file: &File, holds: impl Fn() -> bool) -> bool {
        let begun_at = Instant::now();
        while begun_at.elapsed() < DROP_TIME_MAX {
            drop_from_cache(file);
            if holds() {
                return true;
            }
            std::thread::sleep(DROP_INTERVAL);
        }
        false
    }

    #[tokio::test]
    async fn uncached_bytes_are_read_from_disk_and_then_cached() {
        let (body, bytes, file) = body_on_disk();
        drop_from_cache(&file);
        assert_eq!(read_from_disk(&body, 5, 1000).await.unwrap(), bytes[5..1005]);
        let octets = OCTETS as u64;
        prefetch_from_disk(&body, 0, octets).await.unwrap();
        let mut found = vec![0; OCTETS];
        // A file system that cannot tell says no to both.
        assert_eq!(is_cached(&body, 0, octets).unwrap(), read_if_cached(&body, &mut found, 0).unwrap());
        if is_cached(&body, 0, octets).unwrap() {
            assert_eq!(found, bytes);
        }
        assert_eq!(read_from_disk(&body, 1, OCTETS).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn cached_reads_do_not_wait_for_the_disk() {
        let (body, _, file) = body_on_disk();
        assert!(holds_without_cache(&file, || !is_cached(&body, 0, OCTETS as u64).unwrap()));
        assert!(holds_without_cache(&file, || !read_if_cached(&body, &mut [0; 100], 200_000).unwrap()));
    }

    #[test]
    fn a_start_in_memory_is_read_with_what_follows_it_in_the_file() {
        let (body, bytes, _) = body_on_disk();
        let body = body.with_start(7, b"new".to_vec(), 0);
        let expected = [b"new", &bytes[7..]].concat();
        for (first, count) in [(0, 3), (0, 10), (2, 1), (2, 5), (3, 5), (10, 0)] {
            let mut found = vec![0; count];
            assert!(is_cached(&body, first as u64, count as u64).unwrap());
            assert!(read_if_cached(&body, &mut found, first as u64).unwrap());
            assert_eq!(found, expected[first..first + count], "{count} from {first}");
        }
    }

    #[test]
    fn bytes_in_memory_are_always_cached() {
        let body = Body::new(Arc::new(b"0123456789".to_vec()), 2, 5, 0, BodyFlags::default());
        let mut found = [0; 3];
        assert!(is_cached(&body, 0, 5).unwrap() && read_if_cached(&body, &mut found, 1).unwrap());
        assert_eq!(&found, b"345");
    }
}
