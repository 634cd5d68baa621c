//! Spools of every format, as files in `tests/golden`: those of the present one are read, the others
//! are refused.
//!
//! `cargo test -p spool --test simulated write_the_golden_spool -- --ignored` writes the present one,
//! once for each format.

use std::path::PathBuf;
use std::sync::Arc;

use mail::QueueId;
use spool::{Disk, OpenError, RecipientState, inspect};

use crate::harness::{SEED, SpoolHarness, close, config, open};
use crate::promises::PromiseLog;

const SEGMENT_BYTES: u64 = 24 << 10;
const FORMAT_VERSION: u32 = 2;

fn folder(version: u32) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", &format!("format-{version}")].iter().collect()
}

fn golden(version: u32) -> sim::Disk {
    let files = std::fs::read_dir(folder(version)).expect("the disk has no faults").map(|file| {
        let file = file.expect("the disk has no faults");
        (
            file.file_name().into_string().expect("the disk has no faults"),
            std::fs::read(file.path()).expect("the disk has no faults"),
        )
    });
    sim::Disk::with_files(SEED, files)
}

/// Sealed segments and an open one, a body file, an outcome and a bounce. What is on the disk while
/// the spool is open is what is kept.
fn write_mail(disk: &sim::Disk) -> SpoolHarness {
    let mut harness = SpoolHarness::open(disk, config(SEGMENT_BYTES)).expect("the disk has no faults");
    let ids: Vec<QueueId> =
        [300, 2000, 700].map(|size| harness.accept(size, 2).expect("the disk has no faults")).into();
    harness.settle(ids[0], &[(1, RecipientState::Delivered)]).expect("the disk has no faults");
    harness.accept_spilled(1500, 1).expect("the disk has no faults");
    harness.bounce(ids[1], 0, 500).expect("the disk has no faults");
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 4);
    harness
}

/// The mail that the golden spool contains.
fn promises() -> PromiseLog {
    write_mail(&sim::Disk::new(SEED)).close().0
}

#[test]
#[ignore = "writes the files that the tests below read"]
fn write_the_golden_spool() {
    let (disk, folder) = (sim::Disk::new(SEED), folder(FORMAT_VERSION));
    let harness = write_mail(&disk);
    std::fs::create_dir(&folder).unwrap();
    for name in disk.names() {
        std::fs::write(folder.join(&name), disk.content(&name).unwrap()).unwrap();
    }
    harness.close();
}

#[test]
fn the_golden_spool_of_the_present_format_is_read() {
    let (disk, promises) = (golden(FORMAT_VERSION), promises());
    let (spool, found) = open(&disk, config(SEGMENT_BYTES)).unwrap();
    promises.check(&found).unwrap();
    assert_eq!(found.len(), 5);
    close(spool, &disk);
}

/// A reader of another program relies on every field, also on those that this one hardly needs.
#[test]
fn the_present_format_is_written_as_it_was() {
    let (disk, expected) = (sim::Disk::new(SEED), golden(FORMAT_VERSION));
    let harness = write_mail(&disk);
    assert_eq!(disk.names(), expected.names());
    for name in disk.names() {
        assert!(disk.content(&name) == expected.content(&name), "{name} differs");
    }
    harness.close();
}

#[test]
fn a_spool_of_version_1_is_refused_with_what_to_do() {
    const TEXT: &str = "segment-000000 has version 1 of the spool format, but this program only reads version 2: \
                        start the version of Mailrace that wrote it with 'mailrace serve --drain-only' until its \
                        queue is empty, then remove the files of the spool, or use a new folder";
    let disk = golden(1);
    let before: Vec<_> = disk.names().iter().map(|name| disk.content(name)).collect();
    let refused = open(&disk, config(SEGMENT_BYTES)).err().unwrap();
    assert_eq!(refused.to_string(), TEXT);
    assert!(matches!(inspect(&disk, true), Err(OpenError::Version { version: 1, .. })));
    let own = sim::Disk::new(SEED);
    let (spool, _) = open(&own, config(SEGMENT_BYTES)).unwrap();
    let adopted = spool.adopt(Arc::new(disk.clone()), &mut |_| panic!("a message of version 1 was read"));
    assert_eq!(adopted.err().unwrap().to_string(), TEXT);
    close(spool, &own);
    let after: Vec<_> = disk.names().iter().map(|name| disk.content(name)).collect();
    assert_eq!(after, before, "the files were changed");
    disk.lock().expect("a refused lane is not locked");
}

/// The use of a segment is also known from its first record. The head of a message of version 1 must
/// not be taken for one of version 2.
#[test]
fn records_of_version_1_without_a_readable_header_are_refused() {
    let disk = golden(1);
    let mut bytes = disk.content("segment-000000").unwrap();
    bytes[..8192].fill(0xee);
    let disk = sim::Disk::with_files(SEED, [("segment-000000".to_owned(), bytes)]);
    assert!(matches!(open(&disk, config(SEGMENT_BYTES)), Err(OpenError::UnknownRecord { kind: 1 })));
}

#[test]
fn a_spool_of_a_later_version_is_refused_with_what_to_do() {
    let disk = sim::Disk::new(SEED);
    close(open(&disk, config(SEGMENT_BYTES)).unwrap().0, &disk);
    let mut bytes = disk.content("segment-000000").unwrap();
    bytes[4096 + 8] = 3;
    let crc = crc32c::crc32c(&bytes[4096..4096 + 60]);
    bytes[4096 + 60..4096 + 64].copy_from_slice(&crc.to_le_bytes());
    disk.put("segment-000000", bytes);
    let refused = open(&disk, config(SEGMENT_BYTES)).err().unwrap().to_string();
    assert!(refused.ends_with("reads version 2: use the version of Mailrace that wrote it"), "{refused}");
}
