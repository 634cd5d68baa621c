//! Bodies in files of their own: reading one back before it is submitted, and the prefix before it.

use mail::QueueId;
use sim::OperationKind;
use spool::{Disk, FolderDisk, PREFIX_BYTES_MAX, SpillError, SpoolEntry, SubmittedBody, inspect};

use crate::harness::{SEED, SpoolHarness, close, config, envelope, flags_of, open_damaged, read_message};

#[test]
fn a_body_can_be_read_back_before_it_is_complete() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let id = harness.begin();
    let mut spill = harness.spool.create_spill_file(id).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(spill.read_at(&mut buffer, 0).unwrap(), 0);
    spill.append(b"0123456789").unwrap();
    assert_eq!((spill.read_at(&mut buffer, 0).unwrap(), &buffer), (8, b"01234567"));
    assert_eq!((spill.read_at(&mut buffer, 7).unwrap(), &buffer[..3]), (3, &b"789"[..]));
    spill.append(b"abc").unwrap();
    assert_eq!((spill.read_at(&mut buffer, 9).unwrap(), &buffer[..4]), (4, &b"9abc"[..]));
    for behind in [13, 14, u64::MAX] {
        assert_eq!(spill.read_at(&mut buffer, behind).unwrap(), 0);
    }
    drop(spill);
    harness.close();
}

/// More than what is copied at once is kept, some of it, and nothing.
#[test]
fn the_start_of_a_body_is_replaced_and_the_rest_is_kept() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let body = harness.bytes(200_000);
    for (count, start) in [(0, &b"a new start"[..]), (5, b""), (199_000, b"a new start"), (200_000, b"all is new")] {
        let id = harness.begin();
        let mut spill = harness.spool.create_spill_file(id).unwrap();
        assert!(spill.is_empty());
        spill.append(&body).unwrap();
        let spill = spill.replace_start(count, start).unwrap();
        let expected = [start, &body[count as usize..]].concat();
        assert_eq!((spill.len(), spill.is_empty()), (expected.len() as u64, false));
        let mut read = vec![0; expected.len()];
        assert_eq!(spill.read_at(&mut read, 0).unwrap(), expected.len());
        assert_eq!(read, expected);
        drop(spill);
        assert!(disk.names().iter().all(|name| !name.starts_with("body-")), "{:?}", disk.names());
    }
    harness.close();
}

/// A message with this prefix and body, read back; and its id.
fn stored(harness: &mut SpoolHarness, prefix: &[u8], body: &[u8]) -> (QueueId, Vec<u8>, u64) {
    let id = harness.begin();
    let mut spill = harness.spool.create_spill_file(id).expect("the disk has no faults");
    spill.append(body).expect("the disk has no faults");
    let content = SubmittedBody::Spilled(spill.finish(prefix).expect("the disk has no faults"));
    let entry = SpoolEntry::Message { id, envelope: envelope(1), content, flags: flags_of(body) };
    let (tell, told) = std::sync::mpsc::channel();
    harness.spool.submit(vec![entry], Box::new(move |result| tell.send(result).expect("the disk has no faults")));
    told.recv().expect("the disk has no faults").expect("the disk has no faults");
    let message = read_message(&harness.spool, id).expect("the disk has no faults");
    (id, message.bytes, message.prefix_len as u64)
}

/// Prefixes and bodies from empty ones up to the limit, on a disk that reports damage.
#[test]
fn prefix_and_body_are_one_range_of_the_file() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    for prefix in [0, 1, 300, PREFIX_BYTES_MAX as usize] {
        for body in [0, 1, 100_000] {
            let (prefix, body) = (vec![b'p'; prefix], vec![b'b'; body]);
            let (_, bytes, prefix_len) = stored(&mut harness, &prefix, &body);
            assert_eq!((bytes, prefix_len), ([&prefix[..], &body].concat(), prefix.len() as u64));
        }
    }
    let inspection = inspect(&disk, true).unwrap();
    assert!(inspection.segments.iter().all(|segment| segment.damage.is_empty()), "{inspection:?}");
    harness.close();
}

#[test]
fn a_prefix_that_does_not_fit_is_refused_and_leaves_no_file() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let id = harness.begin();
    let mut spill = harness.spool.create_spill_file(id).unwrap();
    spill.append(b"body").unwrap();
    let long = vec![0; PREFIX_BYTES_MAX as usize + 1];
    let error = spill.finish(&long).err().unwrap();
    assert!(matches!(error, SpillError::PrefixTooLong { bytes } if bytes == long.len()), "{error}");
    assert!(disk.names().iter().all(|name| !name.starts_with("body-")), "{:?}", disk.names());
    harness.close();
}

/// A body file whose last bytes are lost, or any of whose bytes changed, is reported.
#[test]
fn damage_in_the_prefix_or_the_body_is_found() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let (id, ..) = stored(&mut harness, &[b'p'; 40], &[b'b'; 900]);
    let name = format!("body-{:016x}", id.sequence());
    let image = disk.crash(0);
    harness.close();
    let bytes = image.content(&name).unwrap();
    for place in [PREFIX_BYTES_MAX - 40, PREFIX_BYTES_MAX - 1, PREFIX_BYTES_MAX, bytes.len() as u64 - 1] {
        let disk = image.crash(0);
        disk.flip_bit(&name, place * 8);
        assert_eq!(inspect(&disk, true).unwrap().segments.iter().flat_map(|segment| &segment.damage).count(), 1);
        let (spool, _, unreadable) = open_damaged(&disk, config(64 << 10)).unwrap();
        assert_eq!(unreadable.len(), 1, "byte {place}");
        close(spool, &disk);
    }
    image.put(&name, bytes[..bytes.len() - 1].to_vec());
    assert_eq!(inspect(&image, true).unwrap().segments.iter().flat_map(|segment| &segment.damage).count(), 1);
}

/// The body is one write and the prefix another; the hole before them is never written.
#[test]
fn the_hole_takes_no_space() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let disk = std::sync::Arc::new(FolderDisk::open(folder.path()).unwrap());
    let spool = spool::open(vec![disk.clone()], config(64 << 10), SEED, &mut |_| {}).unwrap();
    let id = spool.new_id();
    let mut spill = spool.create_spill_file(id).unwrap();
    spill.append(b"body").unwrap();
    let spilled = spill.finish(b"prefix").unwrap();
    let name = disk.list().unwrap().into_iter().find(|name| name.starts_with("body-")).unwrap();
    let file = std::fs::metadata(folder.path().join(name)).unwrap();
    assert_eq!(file.len(), PREFIX_BYTES_MAX + 4);
    // Two blocks of data; some file systems count their metadata too.
    assert!(file.blocks() * 512 < PREFIX_BYTES_MAX / 2, "{} blocks", file.blocks());
    drop(spilled);
    spool.close();
    let simulated = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&simulated, config(64 << 10)).unwrap();
    harness.accept(100, 1).unwrap();
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
    simulated.set_bytes_free(2000);
    harness.accept_spilled(1900, 1).expect("a simulated disk does not count the hole either");
    assert!(simulated.count(OperationKind::Write) > 0);
    harness.close();
}
