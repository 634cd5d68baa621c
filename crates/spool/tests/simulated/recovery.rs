//! Recovery and long runs: damaged segments, leases, reused segments, copies, ids, and mail that
//! imitates the log.

use mail::QueueId;
use sim::{EIO, OperationKind, SECTOR};
use spool::{CommitError, OpenError, ReadError, RecipientState, SpoolEntry};

use crate::harness::{
    RecordedEvents, SEED, SpoolHarness, close, config, envelope, message_entry, open, open_damaged, read_message,
    submit,
};
use crate::promises::{PromiseLog, RecoveredMessages};

/// A disk with a sealed segment and an open one, as after a power failure, and what must be on it.
fn two_segments() -> (sim::Disk, PromiseLog, RecoveredMessages) {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).expect("the disk has no faults");
    for size in [700, 5000, 900, 300, 2000, 1200] {
        harness.accept(size, 2).expect("the disk has no faults");
    }
    let found = harness.recovered();
    let image = disk.crash(0);
    let (promises, _) = harness.close();
    (image, promises, found)
}

/// Checks a disk with one damage: all messages but one must be complete, and the damaged one must
/// be complete or reported.
fn verify_damaged(disk: &sim::Disk, original: &RecoveredMessages, lost_max: usize) -> Result<(), String> {
    let events = RecordedEvents::default();
    let (spool, found, unreadable) =
        open_damaged(disk, events.record_from(config(32 << 10))).map_err(|error| format!("cannot open: {error}"))?;
    for (id, message) in &found {
        if original.get(id) != Some(message) {
            return Err(format!("{id} is not what was accepted"));
        }
    }
    let missing: Vec<_> = original.keys().filter(|id| !found.contains_key(id)).collect();
    let silent = missing.iter().any(|id| unreadable.iter().all(|(damaged, _)| damaged != *id));
    if missing.len() > lost_max || silent && events.set_aside().is_empty() {
        return Err(format!("missing: {missing:?}, unreadable: {unreadable:?}, reported: {:?}", events.set_aside()));
    }
    if original.contains_key(&spool.new_id()) {
        return Err("an id was reused".into());
    }
    close(spool, disk);
    Ok(())
}

/// Flips one bit in every eighth byte of the headers and of the start of every batch, and in some
/// of the bodies.
#[test]
fn a_flipped_bit_costs_one_message_at_most_and_is_reported() {
    let (image, _, original) = two_segments();
    for name in image.names().into_iter().filter(|name| name.starts_with("segment")) {
        let len = image.content(&name).unwrap().len() as u64;
        for byte in (0..len).filter(|byte| byte % 4096 < 256 && byte % 8 == 0 || byte % 509 == 0) {
            let disk = image.crash(0);
            disk.flip_bit(&name, byte * 8 + byte % 7);
            verify_damaged(&disk, &original, 1).unwrap_or_else(|what| panic!("{name}, byte {byte}: {what}"));
        }
    }
}

/// A message that a rule holds must not be delivered before the hold is known, nor after a crash.
#[test]
fn a_message_held_in_its_own_submission_is_reported_as_held() {
    const HELD: RecipientState = RecipientState::Held { attempts: 0 };
    let (disk, events) = (sim::Disk::new(SEED), RecordedEvents::default());
    let mut harness = SpoolHarness::open(&disk, events.record_from(config(64 << 10))).unwrap();
    // All in one batch, to test that messages in one batch are not confused.
    let hold = disk.hold(OperationKind::Sync);
    let first = harness.start_accept(100, 1);
    hold.wait_for(1);
    let before = harness.start_accept(200, 2);
    let id = harness.begin();
    let bytes = harness.bytes(300);
    let message = harness.message(id, bytes, 3);
    let held = SpoolEntry::Outcome { id, recipients: vec![(0, HELD), (2, HELD)], bounce: None };
    let both = harness.submit(vec![message, held]);
    let after = harness.start_accept(200, 2);
    let written = disk.crash(0);
    drop(hold);
    let expected = [(first.0, 1), (before.0, 2), (id, 3), (after.0, 2)].map(|(other, recipients)| match other == id {
        true => (id, vec![HELD, RecipientState::NEW, HELD]),
        false => (other, vec![RecipientState::NEW; recipients]),
    });
    [first.1, before.1, both, after.1].into_iter().for_each(|ticket| harness.wait(ticket).unwrap());
    harness.wait_until("not all commits are reported", |_| events.committed().len() == expected.len());
    assert_eq!(events.committed(), expected);
    // A crash before the sync leaves all or nothing; after it, all.
    for image in [written, disk.crash(1)] {
        let (spool, found) = open(&image, config(64 << 10)).unwrap();
        assert!(found.get(&id).is_none_or(|message| message.states == [HELD, RecipientState::NEW, HELD]));
        close(spool, &image);
    }
    let (promises, given) = harness.close();
    let harness = SpoolHarness::reopen(&disk, config(64 << 10), promises, given).unwrap();
    assert_eq!(read_message(&harness.spool, id).unwrap().states, [HELD, RecipientState::NEW, HELD]);
}

#[test]
fn an_unreadable_sector_only_loses_its_own_content() {
    let (image, _, original) = two_segments();
    for name in image.names().into_iter().filter(|name| name.starts_with("segment")) {
        let len = image.content(&name).unwrap().len() as u64;
        for start in (0..len).step_by(1024) {
            let disk = image.crash(0);
            disk.make_unreadable(&name, start..start + SECTOR);
            // The sector may hold the end of one message and the start of the next.
            verify_damaged(&disk, &original, 2).unwrap_or_else(|what| panic!("{name}, sector at {start}: {what}"));
        }
    }
}

/// The index has copies of all frames. When its own frame was torn off, recovery took the copies
/// for records with garbage as bodies.
#[test]
fn a_torn_index_is_not_taken_for_records() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    for n in 0..40 {
        harness.accept(100 + n, 1).unwrap();
    }
    let (promises, _) = harness.close();
    for seed in 0..200 {
        let after = disk.crash_harshly(seed);
        let (spool, found) = open(&after, config(64 << 10)).unwrap();
        promises.check(&found).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        close(spool, &after);
    }
}

/// A client may send the bytes of a log record. If the record around them is torn or damaged, they
/// must not become mail, because no policy checked their sender and recipients.
#[test]
fn a_record_inside_a_body_never_becomes_mail() {
    let life = |bodies: Vec<Vec<u8>>| {
        let disk = sim::Disk::new(SEED);
        let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
        for bytes in bodies {
            let id = harness.begin();
            let entry = harness.message(id, bytes, 1);
            let ticket = harness.submit(vec![entry]);
            harness.wait(ticket).unwrap();
        }
        let image = disk.crash(0);
        (image, harness.close().0)
    };
    let wanted = b"You never sent this.\r\n".repeat(30);
    let (model, _) = life(vec![b"first".to_vec(), wanted.clone()]);
    let bytes = model.content("segment-000000").unwrap();
    let start = bytes[..bytes.windows(wanted.len()).position(|window| window == wanted).unwrap()]
        .windows(4)
        .rposition(|window| window == b"MRec")
        .unwrap();
    let record = &bytes[start..start + 1024];
    // At every alignment, because the client does not know the offset of its body.
    let forged: Vec<u8> = (0..8).flat_map(|shift| [&b" ".repeat(8 + shift), record].concat()).collect();
    let (image, promises) = life(vec![b"first".to_vec(), forged]);
    let bytes = image.content("segment-000000").unwrap();
    let frame = bytes.windows(4).enumerate().filter(|(_, window)| *window == b"MRec").map(|(place, _)| place).nth(2);
    image.flip_bit("segment-000000", frame.unwrap() as u64 * 8);
    let (spool, found, _) = open_damaged(&image, config(64 << 10)).unwrap();
    assert!(found.values().all(|message| message.bytes != wanted), "the forged message is in the queue");
    let known = found.keys().all(|id| promises.message(*id).bytes == found[id].bytes);
    assert!(known, "an unknown message is in the queue");
    close(spool, &image);
}

#[test]
fn a_leased_body_keeps_its_bytes_while_its_segment_waits_for_reuse() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let id = harness.accept(3000, 1).unwrap();
    let spilled = harness.accept_spilled(3000, 1).unwrap();
    let leases =
        [id, spilled].map(|id| (harness.spool.message(id).unwrap().body, harness.promises.message(id).bytes.clone()));
    for id in [id, spilled] {
        harness.settle(id, &[(0, RecipientState::Delivered)]).unwrap();
    }
    for _ in 0..30 {
        let id = harness.accept(4000, 1).unwrap();
        harness.settle(id, &[(0, RecipientState::Delivered)]).unwrap();
        for (body, bytes) in &leases {
            let mut read = vec![0; bytes.len()];
            body.read_at(&mut read, 0).unwrap();
            assert_eq!(read, *bytes, "\n{}", disk.log());
        }
    }
    drop(leases);
    let used = |log: &str| log.matches("Write segment-000000 at 8192").count();
    harness.wait_until("the segment is not reused", |harness| {
        let id = harness.accept(4000, 1).unwrap();
        harness.settle(id, &[(0, RecipientState::Delivered)]).unwrap();
        used(&disk.log()) > 1
    });
    harness.close();
}

#[test]
fn a_log_whose_mail_is_delivered_does_not_grow() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    for _ in 0..150 {
        let id = harness.accept(4000, 1).unwrap();
        harness.settle(id, &[(0, RecipientState::Delivered)]).unwrap();
    }
    harness.wait_until("dead segments are not freed", |harness| harness.spool.stats().segments <= 6);
    harness.close();
}

/// Many small live messages, as bulk mail to slow destinations leaves them.
#[test]
fn many_small_survivors_are_copied_forward() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(1 << 20)).unwrap();
    let survivors: Vec<_> = (0..60).map(|n| harness.accept(200 + n, 2).unwrap()).collect();
    for id in &survivors {
        harness.settle(*id, &[(1, RecipientState::Delivered)]).unwrap();
    }
    // The newest segments are skipped, because their messages may be delivered soon.
    for _ in 0..60 {
        let id = harness.accept(100_000, 1).unwrap();
        harness.settle(id, &[(0, RecipientState::Delivered)]).unwrap();
    }
    harness.wait_until("no message is copied", |harness| harness.spool.stats().messages_copied >= 60);
    harness.promises.check(&harness.recovered()).unwrap();
    let (promises, _) = harness.close();
    let after = disk.crash_harshly(1);
    let (spool, found) = open(&after, config(1 << 20)).unwrap();
    promises.check(&found).unwrap();
    close(spool, &after);
}

/// While messages are copied, mail arrives faster than segments are created.
#[test]
fn copying_forward_and_a_flood_do_not_wait_for_each_other() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(256 << 10)).unwrap();
    for round in 0..30 {
        let survivor = harness.accept(300, 2).unwrap();
        harness.settle(survivor, &[(0, RecipientState::Delivered)]).unwrap();
        let tickets: Vec<_> = (0..12).map(|n| harness.start_accept(30_000 + n, 1)).collect();
        for (id, ticket) in tickets {
            harness.wait(ticket).unwrap_or_else(|error| panic!("round {round}: {error}"));
            harness.settle(id, &[(0, RecipientState::Delivered)]).unwrap();
        }
    }
    harness.promises.check(&harness.recovered()).unwrap();
    harness.close();
}

#[test]
fn a_message_that_is_set_aside_leaves_the_queue_and_its_bytes_stay() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let damaged = harness.accept(2000, 1).unwrap();
    let other = harness.accept(2000, 1).unwrap();
    let bytes = harness.promises.message(damaged).bytes.clone();
    let log = disk.content("segment-000000").unwrap();
    let place = log.windows(bytes.len()).position(|window| window == bytes).unwrap();
    disk.flip_bit("segment-000000", place as u64 * 8 + 1);
    assert!(read_message(&harness.spool, damaged).is_err());
    let (tell, told) = std::sync::mpsc::channel();
    harness.spool.set_aside_damaged(damaged, "set aside by a test", Box::new(move |result| tell.send(result).unwrap()));
    assert_eq!(told.recv().unwrap(), Ok(()));
    for seed in 0..20 {
        let after = disk.crash(seed);
        let (spool, found) = open(&after, config(32 << 10)).unwrap();
        assert_eq!(found.into_keys().collect::<Vec<_>>(), [other]);
        let aside: Vec<_> = after.names().into_iter().filter(|name| name.starts_with("aside-")).collect();
        let kept = after.content(&aside[0]).unwrap();
        assert!(kept.windows(1000).any(|window| window == &bytes[1000..]), "the message's bytes are not in {aside:?}");
        close(spool, &after);
    }
    harness.close();
}

/// The outcome "set aside" is stored for the first recipient. If that one already had a final
/// state, a restart ignored it, and the other recipient was attempted again.
#[test]
fn a_message_that_was_set_aside_after_a_first_delivery_does_not_come_back() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let id = harness.accept(2000, 2).unwrap();
    harness.settle(id, &[(0, RecipientState::Delivered)]).unwrap();
    assert_eq!(set_aside(&harness, id), Ok(()));
    assert!(harness.spool.ids().is_empty());
    let running = disk.crash(0);
    harness.close();
    for image in [running, disk.crash(0), disk.crash_harshly(1)] {
        let (spool, found, unreadable) = open_damaged(&image, config(32 << 10)).unwrap();
        assert!(found.is_empty() && unreadable.is_empty(), "the message came back: {:?}", image.names());
        close(spool, &image);
    }
}

/// The first try left some of the bytes under the final name, and the second took that file for the
/// complete one.
#[test]
fn setting_aside_that_failed_for_want_of_room_is_repeated_whole() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let id = harness.accept(2000, 1).unwrap();
    let bytes = harness.promises.message(id).bytes.clone();
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
    disk.set_bytes_free(100);
    assert_eq!(set_aside(&harness, id), Err(CommitError::Full));
    assert_eq!(harness.spool.ids(), [id], "the message stays in the queue until its bytes are safe");
    disk.set_bytes_free(1 << 20);
    assert_eq!(set_aside(&harness, id), Ok(()));
    assert!(harness.spool.ids().is_empty());
    let kept: Vec<_> = disk.names().into_iter().filter(|name| !name.starts_with("segment-")).collect();
    assert!(kept.len() == 1 && kept[0].starts_with("aside-"), "{kept:?}");
    let kept = disk.content(&kept[0]).unwrap();
    assert!(kept.windows(bytes.len()).any(|window| window == bytes), "{} bytes are kept", kept.len());
    harness.close();
}

/// The failure was ignored, and the next start removed the body as unreferenced.
#[test]
fn setting_aside_that_could_not_move_the_body_is_repeated_whole() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let id = harness.accept_spilled(2000, 1).unwrap();
    let bytes = harness.promises.message(id).bytes.clone();
    // The first rename is that of the record.
    disk.fail(OperationKind::Rename, 1..2, EIO);
    assert!(matches!(set_aside(&harness, id), Err(CommitError::Failed(_))));
    assert_eq!(
        read_message(&harness.spool, id).unwrap().bytes,
        bytes,
        "the message stays in the queue until its bytes are safe"
    );
    assert_eq!(set_aside(&harness, id), Ok(()));
    harness.close();
    for seed in 0..10 {
        let after = disk.crash(seed);
        let (spool, found) = open(&after, config(32 << 10)).unwrap();
        assert!(found.is_empty());
        close(spool, &after);
        let kept = |name: &String| name.starts_with("aside-body-") && after.content(name).unwrap().ends_with(&bytes);
        assert!(after.names().iter().any(kept), "seed {seed}: {:?}", after.names());
    }
}

fn set_aside(harness: &SpoolHarness, id: QueueId) -> Result<(), CommitError> {
    let (tell, told) = std::sync::mpsc::channel();
    harness.spool.set_aside_damaged(id, "set aside by a test", Box::new(move |result| drop(tell.send(result))));
    told.recv_timeout(std::time::Duration::from_secs(20)).expect("the callback is called")
}

/// A block that the device lost reads as zeros. A segment with a header of zeros was taken for one
/// whose creation was interrupted, and was removed.
#[test]
fn a_segment_whose_header_reads_as_zeros_keeps_its_mail() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    for _ in 0..3 {
        harness.accept(2000, 1).unwrap();
    }
    let (image, original) = (disk.crash(0), harness.recovered());
    harness.close();
    let mut bytes = image.content("segment-000000").unwrap();
    bytes[..8192].fill(0);
    image.put("segment-000000", bytes);
    verify_damaged(&image, &original, 0).unwrap();
}

/// The headers had the highest epoch. Now only the ids have it.
#[test]
fn ids_are_not_reused_if_all_headers_are_lost() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    for _ in 0..3 {
        let (promises, given) = harness.close();
        harness = SpoolHarness::reopen(&disk, config(32 << 10), promises, given).unwrap();
        harness.accept(2000, 1).unwrap();
    }
    let (image, original) = (disk.crash(0), harness.recovered());
    harness.close();
    for name in image.names() {
        let mut bytes = image.content(&name).unwrap();
        bytes[..8192].fill(0);
        image.put(&name, bytes);
    }
    verify_damaged(&image, &original, 0).unwrap();
}

#[test]
fn a_folder_with_segments_of_two_lanes_is_refused() {
    let [disk, other] = [sim::Disk::new(SEED), sim::Disk::new(SEED + 1)];
    SpoolHarness::open(&disk, config(32 << 10)).unwrap().close();
    SpoolHarness::create_other(&other, config(32 << 10)).unwrap().close();
    disk.put("segment-000077", other.content("segment-000000").unwrap());
    assert!(matches!(open(&disk, config(32 << 10)), Err(OpenError::MixedLanes)));
}

/// A segment may have only outcomes of messages in earlier ones. Without it these would come back.
#[test]
fn an_outcome_stays_while_its_message_is_in_the_log_also_after_a_restart() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    // Two fill a segment.
    let [done, _kept, later] = [6000; 3].map(|size| harness.accept(size, 1).unwrap());
    for id in [done, later] {
        harness.settle(id, &[(0, RecipientState::Delivered)]).unwrap();
    }
    harness.accept(6000, 1).unwrap();
    for _ in 0..3 {
        let (promises, given) = harness.close();
        harness = SpoolHarness::reopen(&disk, config(32 << 10), promises, given).unwrap();
    }
    harness.close();
}

/// A later version may add kinds of records, and say which of them may be skipped.
#[test]
fn a_record_of_an_unknown_kind_is_skipped_if_it_says_so_and_refused_otherwise() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let id = harness.accept(500, 2).unwrap();
    harness.settle(id, &[(0, RecipientState::Delivered)]).unwrap();
    let image = disk.crash(0);
    harness.close();
    let log = image.content("segment-000000").unwrap();
    let [_message, _commit, outcome, ..] = frames(&log)[..] else { panic!("the frames of two batches") };
    for (flags, is_skipped) in [(0, false), (1, true), (2, false), (3, true)] {
        let (image, mut log) = (image.crash(0), log.clone());
        log[outcome + 4..outcome + 6].copy_from_slice(&[9, flags]);
        let head_len = u32::from_le_bytes(log[outcome + 24..outcome + 28].try_into().unwrap()) as usize;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&log[outcome..outcome + 44]), &log[outcome + 48..][..head_len]);
        log[outcome + 44..outcome + 48].copy_from_slice(&crc.to_le_bytes());
        image.put("segment-000000", log);
        match open(&image, config(64 << 10)) {
            Ok((spool, found)) => {
                assert!(is_skipped && found[&id].states == [RecipientState::NEW; 2], "flags {flags}");
                close(spool, &image);
            }
            Err(error) => assert!(!is_skipped && matches!(error, OpenError::UnknownRecord { kind: 9 }), "{error}"),
        }
    }
}

/// Its damage could not be set aside, so it stays for the next start.
#[test]
fn a_segment_whose_damage_could_not_be_copied_is_not_used_again() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let ids = [900, 1000, 1100].map(|size| harness.accept(size, 1).unwrap());
    let bytes = harness.promises.message(ids[1]).bytes.clone();
    let image = disk.crash(0);
    harness.close();
    let log = image.content("segment-000000").unwrap();
    let place = log.windows(bytes.len()).position(|window| window == bytes).unwrap();
    image.flip_bit("segment-000000", place as u64 * 8);
    image.fail(OperationKind::Create, 0..1, EIO);
    let (spool, found, _) = open_damaged(&image, config(32 << 10)).unwrap();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [ids[0], ids[2]]);
    let deliver = |id| {
        let recipients = vec![(0, RecipientState::Delivered)];
        submit(&spool, vec![SpoolEntry::Outcome { id, recipients, bounce: None }]).unwrap();
    };
    found.into_keys().for_each(deliver);
    // Other segments are used several times meanwhile.
    for _ in 0..40 {
        let id = spool.new_id();
        submit(&spool, vec![message_entry(id, envelope(1), &[b'x'; 6000])]).unwrap();
        deliver(id);
    }
    close(spool, &image);
    assert!(image.names().iter().all(|name| !name.starts_with("aside-")));
    close(open(&image, config(32 << 10)).unwrap().0, &image);
    let aside = image.names().into_iter().find(|name| name.starts_with("aside-")).expect("the damage is kept");
    assert!(image.content(&aside).unwrap().windows(900).any(|window| window == &bytes[1..901]));
}

/// Neither a body with a wrong checksum nor one whose frame is lost costs the others of its batch.
#[test]
fn a_damaged_message_costs_no_other_one_of_its_batch() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let old = harness.accept(300, 2).unwrap();
    let messages = [500, 600, 700].map(|size| (harness.begin(), harness.bytes(size)));
    let entries = messages.each_ref().map(|(id, bytes)| harness.message(*id, bytes.clone(), 1));
    let outcome = SpoolEntry::Outcome { id: old, recipients: vec![(0, RecipientState::Delivered)], bounce: None };
    let ticket = harness.submit(entries.into_iter().chain([outcome]).collect());
    harness.wait(ticket).unwrap();
    harness.accept(100, 1).unwrap();
    let (image, original) = (disk.crash(0), harness.recovered());
    harness.close();
    let log = image.content("segment-000000").unwrap();
    let body = log.windows(600).position(|window| window == messages[1].1).unwrap();
    let [_old, _commit, _first, second, ..] = frames(&log)[..] else { panic!("the frames of two batches") };
    for place in [body, second] {
        let image = image.crash(0);
        image.flip_bit("segment-000000", place as u64 * 8);
        verify_damaged(&image, &original, 1).unwrap_or_else(|what| panic!("byte {place}: {what}"));
    }
}

/// The recipient has failed, but the sender was never told.
#[test]
fn an_outcome_whose_bounce_is_damaged_does_not_count() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let id = harness.accept(500, 1).unwrap();
    let bounce = harness.bounce(id, 0, 700).unwrap();
    let bytes = harness.promises.message(bounce).bytes.clone();
    harness.accept(100, 1).unwrap();
    let image = disk.crash(0);
    harness.close();
    let log = image.content("segment-000000").unwrap();
    let place = log.windows(bytes.len()).position(|window| window == bytes).unwrap();
    image.flip_bit("segment-000000", place as u64 * 8);
    let (spool, found, _) = open_damaged(&image, config(64 << 10)).unwrap();
    assert_eq!(found[&id].states, [RecipientState::NEW]);
    close(spool, &image);
}

#[test]
fn a_shortage_is_no_damage() {
    const ENOMEM: i32 = 12;
    const EMFILE: i32 = 24;
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let id = harness.accept(1000, 1).unwrap();
    for errno in [ENOMEM, EMFILE] {
        disk.fail(OperationKind::Read, 0..2, errno);
        assert!(matches!(read_message(&harness.spool, id), Err(ReadError::Unavailable(_))), "errno {errno}");
    }
    disk.fail(OperationKind::Read, 0..2, EIO);
    assert!(matches!(read_message(&harness.spool, id), Err(ReadError::Damaged { .. })));
    disk.fail(OperationKind::Read, 0..1, EIO);
    read_message(&harness.spool, id).expect("it is read a second time");
    let spilled = harness.accept_spilled(1000, 1).unwrap();
    disk.fail(OperationKind::Open, 0..1, EMFILE);
    assert!(matches!(read_message(&harness.spool, spilled), Err(ReadError::Unavailable(_))));
    spool::Disk::remove(&disk, &format!("body-{:016x}", spilled.sequence())).unwrap();
    assert!(matches!(read_message(&harness.spool, spilled), Err(ReadError::Damaged { .. })));
    harness.close();
}

/// Only the body of a large message has to be opened.
#[test]
fn a_message_in_the_log_is_read_without_waiting() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let [id, spilled] = [harness.accept(1000, 2), harness.accept_spilled(1000, 1)].map(Result::unwrap);
    harness.settle(id, &[(1, RecipientState::Delivered)]).unwrap();
    let message = harness.spool.message_if_cached(id).unwrap().expect("a simulated disk never has to wait");
    let mut bytes = vec![0; message.body.len() as usize];
    message.body.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, harness.promises.message(id).bytes);
    assert_eq!(message.states, [RecipientState::NEW, RecipientState::Delivered]);
    assert!(harness.spool.message_if_cached(spilled).unwrap().is_none());
    disk.fail(OperationKind::Read, 0..1, EIO);
    assert!(harness.spool.message_if_cached(id).unwrap().is_none());
    let unknown = harness.begin();
    assert_eq!(harness.spool.message_if_cached(unknown).err(), Some(ReadError::Unknown));
    harness.close();
}

/// Where records begin in a log: those in the batches, then those in the index.
fn frames(log: &[u8]) -> Vec<usize> {
    (8192..log.len()).step_by(8).filter(|place| log[*place..].starts_with(b"MRec")).collect()
}

/// The batch after it proves that it was acknowledged: only the last one can be torn.
#[test]
fn a_lost_block_of_the_second_to_last_batch_is_reported() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    for _ in 0..3 {
        harness.accept(1000, 1).unwrap();
    }
    let (image, original) = (disk.crash(0), harness.recovered());
    harness.close();
    for lost in [0, 0xee] {
        let damaged = image.crash(0);
        let mut bytes = damaged.content("segment-000000").unwrap();
        bytes[8192 + 4096..8192 + 8192].fill(lost);
        damaged.put("segment-000000", bytes);
        verify_damaged(&damaged, &original, 1).unwrap();
    }
}

/// Nobody was told of a batch without its commit record, so what a power failure tore off its first
/// record is no damage to report, not even at the start of the log.
#[test]
fn a_torn_first_batch_is_no_damage() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let entries = (0..3).map(|_| {
        let (id, bytes) = (harness.begin(), harness.bytes(500));
        harness.message(id, bytes, 1)
    });
    let entries = entries.collect();
    let ticket = harness.submit(entries);
    harness.wait(ticket).unwrap();
    let image = disk.crash(0);
    harness.close();
    let mut bytes = image.content("segment-000000").unwrap();
    let [first, _, _, commit, ..] = frames(&bytes)[..] else { panic!("the frames of a batch") };
    [first, commit].into_iter().for_each(|torn| bytes[torn..torn + 8].fill(0));
    image.put("segment-000000", bytes);
    let events = RecordedEvents::default();
    let (spool, found, _) = open_damaged(&image, events.record_from(config(64 << 10))).unwrap();
    assert_eq!((found.len(), events.set_aside()), (2, Vec::<String>::new()));
    close(spool, &image);
}

/// Behind the last batch there is old mail of an earlier use, and a client may have filled it with
/// frames that claim to be large. Each was read to its claimed length, and the start took minutes.
#[test]
fn a_tail_full_of_forged_frames_costs_few_reads() {
    const READS_MAX: u64 = 60;
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(1 << 20)).unwrap();
    for _ in 0..3 {
        harness.accept(1000, 1).unwrap();
    }
    let (image, original) = (disk.crash(0), harness.recovered());
    harness.close();
    let bytes = image.content("segment-000000").unwrap();
    // Magic and kind; then 200,000, whatever field of a frame is at the third word.
    let blunt = |_: u64| [&b"MRec\x06\0\0\0"[..], &200_000u32.to_le_bytes(), &[0; 4]].concat();
    // Everything a client can guess is right: number, batch, position. The salt is not.
    let clever = |place: u64| {
        let mut frame = b"MRec\x06\0\0\0\x01\0\0\0\0\0\0\0\x04\0\0\0".to_vec();
        frame.extend_from_slice(&((place / 8) as u32).to_le_bytes());
        frame.extend_from_slice(&200_000u32.to_le_bytes());
        frame.resize(48, 0);
        frame
    };
    for forged in [&blunt as &dyn Fn(u64) -> Vec<u8>, &clever] {
        let (after, mut log) = (image.crash(0), bytes[..8192 + 3 * 4096].to_vec());
        while log.len() < bytes.len() {
            log.extend(forged(log.len() as u64));
        }
        log.truncate(bytes.len());
        after.put("segment-000000", log);
        let (spool, found) = open(&after, config(1 << 20)).unwrap();
        assert_eq!(found, original);
        assert!(after.count(OperationKind::Read) <= READS_MAX, "{} reads", after.count(OperationKind::Read));
        close(spool, &after);
    }
}

#[test]
fn what_does_not_fit_a_segment_is_refused_and_nothing_else_suffers() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    for _ in 0..10 {
        assert_eq!(harness.accept(40_000, 1).err(), Some(CommitError::TooLarge));
        harness.accept(500, 1).unwrap();
    }
    harness.promises.check(&harness.recovered()).unwrap();
    assert!(harness.spool.stats().segments < 6, "every refusal uses a segment: {:?}", harness.spool.stats());
    harness.close();
}

/// Its size was not synced when the power failed, its header was not written, or the size was lost
/// after that.
#[test]
fn a_segment_whose_creation_was_cut_short_does_no_harm() {
    let disk = sim::Disk::new(SEED);
    drop(SpoolHarness::open(&disk, config(32 << 10)).unwrap());
    let made = disk.content("segment-000000").unwrap();
    for len in [0, 1, 4096, 8192, 8193, 12_288, 16_384, 32_767, 32_768] {
        for content in [&vec![0; len], &made[..len]] {
            let disk = sim::Disk::with_files(SEED, [("segment-000000".to_owned(), content.to_vec())]);
            let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
            for n in 0..20 {
                let id = harness.accept(5000, 1).unwrap_or_else(|error| panic!("{len} bytes, message {n}: {error}"));
                harness.settle(id, &[(0, RecipientState::Delivered)]).unwrap();
            }
            harness.close();
        }
    }
}

#[test]
fn two_lanes_recover_side_by_side() {
    use std::sync::Arc;
    let disks = [sim::Disk::new(1), sim::Disk::new(2)];
    let lanes = |disks: &[sim::Disk]| -> Vec<Arc<dyn spool::Disk>> {
        disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn spool::Disk>).collect()
    };
    let spool = spool::open(lanes(&disks), config(32 << 10), SEED, &mut |_| {}).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let mut ids: Vec<_> = (0..10).map(|_| spool.new_id()).collect();
    for id in &ids {
        let entry = message_entry(*id, envelope(1), id.to_string().as_bytes());
        let tell = tell.clone();
        spool.submit(vec![entry], Box::new(move |result| tell.send(result).unwrap()));
    }
    assert!((0..10).all(|_| told.recv().unwrap().is_ok()));
    assert!(disks.iter().all(|disk| disk.count(OperationKind::Sync) > 1), "both lanes are used");
    // The folders come in another order, as in a changed configuration.
    let after = [disks[1].crash(3), disks[0].crash(4)];
    let mut found = Vec::new();
    let again = spool::open(lanes(&after), config(32 << 10), SEED + 1, &mut |live| found.push(live.id)).unwrap();
    found.sort_unstable();
    ids.sort_unstable();
    assert_eq!(found, ids);
    for id in ids {
        assert_eq!(read_message(&again, id).unwrap().bytes, id.to_string().into_bytes());
    }
    close(spool, &disks[0]);
    close(again, &after[0]);
}
