//! What an inspection says of a lane, while nobody works on it.

use mail::QueueId;
use spool::{Disk, RecipientState, SegmentReport, inspect};

use crate::harness::{SEED, SpoolHarness, config};

const SEGMENT: &str = "segment-000000";
const DELIVERED: [(u32, RecipientState); 1] = [(0, RecipientState::Delivered)];

/// The damage in all segments.
fn damage(disk: &sim::Disk) -> Vec<String> {
    let inspection = inspect(disk, true).expect("the disk has no faults");
    inspection.segments.into_iter().flat_map(|segment| segment.damage).collect()
}

#[test]
fn an_inspection_counts_what_each_segment_holds_and_writes_nothing() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let id = harness.accept(3000, 2).unwrap();
    harness.accept(2000, 1).unwrap();
    harness.settle(id, &DELIVERED).unwrap();
    harness.bounce(id, 1, 500).unwrap();
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
    let running = disk.crash(0);
    harness.close();
    disk.put("aside-000001-000008192", b"damaged".to_vec());
    let steps = disk.steps();
    for (disk, is_sealed) in [(&running, false), (&disk, true)] {
        for bodies in [false, true] {
            let [first, next] = &inspect(disk, bodies).unwrap().segments[..] else { panic!("two segments") };
            let SegmentReport { name, number, sealed, messages, body_bytes, outcomes, damage } = first;
            assert_eq!((name.as_str(), *number, *sealed), (SEGMENT, Some(1), is_sealed));
            assert_eq!((*messages, *body_bytes, *outcomes), (3, 5500, 2));
            assert!(damage.is_empty() && next.damage.is_empty(), "{damage:?} {:?}", next.damage);
            assert_eq!((next.number, next.messages), (Some(2), 0));
        }
    }
    assert_eq!(inspect(&disk, false).unwrap().aside, ["aside-000001-000008192"]);
    assert_eq!(disk.steps(), steps);
}

#[test]
fn a_damaged_body_is_named_with_its_message() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let ids = [2000, 3000].map(|size| harness.accept(size, 1).unwrap());
    let bytes = harness.promises.message(ids[1]).bytes.clone();
    harness.close();
    let log = disk.content(SEGMENT).unwrap();
    let place = log.windows(bytes.len()).position(|window| window == bytes).unwrap();
    disk.flip_bit(SEGMENT, place as u64 * 8);
    let [damage] = &damage(&disk)[..] else { panic!("one body is damaged") };
    assert!(damage.starts_with(&format!("the body of message {:x} at byte ", ids[1].sequence())), "{damage}");
    assert_eq!(inspect(&disk, false).unwrap().segments[0].damage, Vec::<String>::new());
}

fn body_file(id: QueueId) -> String {
    format!("body-{:016x}", id.sequence())
}

#[test]
fn a_body_file_is_missed_and_verified_while_a_recipient_waits() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let finished = harness.accept_spilled(1000, 1).unwrap();
    harness.settle(finished, &DELIVERED).unwrap();
    harness.wait_until("its body stays", |_| disk.content(&body_file(finished)).is_none());
    // Longer than what is read at once.
    let [missing, short, spoilt, _good] = [1100, 1200, 1300, (1 << 20) + 5001].map(|size| {
        let id = harness.accept_spilled(size, 2).unwrap();
        harness.settle(id, &DELIVERED).unwrap();
        id
    });
    harness.close();
    assert_eq!(damage(&disk), Vec::<String>::new());
    disk.remove(&body_file(missing)).unwrap();
    let mut bytes = disk.content(&body_file(short)).unwrap();
    let len = bytes.len();
    bytes.pop();
    disk.put(&body_file(short), bytes);
    disk.flip_bit(&body_file(spoilt), (disk.content(&body_file(spoilt)).unwrap().len() as u64 - 1) * 8);
    let faults = [
        (missing, std::io::Error::from(std::io::ErrorKind::NotFound).to_string()),
        (short, format!("{} bytes, expected {len}", len - 1)),
        (spoilt, "wrong checksum".to_owned()),
    ];
    let text = |(id, fault): &(QueueId, String)| {
        format!("the body of message {:x} in {}: {fault}", id.sequence(), body_file(*id))
    };
    assert_eq!(damage(&disk), faults.iter().map(text).collect::<Vec<_>>());
}

/// The header of a segment is stored twice, and written alternately.
#[test]
fn a_damaged_header_is_reported_with_what_is_left_of_it() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    harness.wait_until("the segment is not used a second time", |harness| {
        let id = harness.accept(4000, 1).unwrap();
        harness.settle(id, &DELIVERED).unwrap();
        disk.log().matches("Write segment-000000 at 8192").count() > 1
    });
    // It lives, so that the segment is not freed.
    harness.accept(100, 1).unwrap();
    harness.close();
    assert_eq!(damage(&disk), Vec::<String>::new());
    // Written for the first use, then for the free segment, then for the second use.
    let (older, newer) = (0, 4096);
    let report = |slots: &[u64]| {
        let disk = disk.crash(0);
        slots.iter().for_each(|slot| disk.flip_bit(SEGMENT, (slot + 20) * 8));
        damage(&disk)
    };
    assert_eq!(report(&[older]), ["one copy of the header is unreadable"]);
    assert_eq!(report(&[newer]), ["the current copy of the header is unreadable"]);
    assert_eq!(report(&[older, newer]), ["both copies of the header are unreadable"]);
}
