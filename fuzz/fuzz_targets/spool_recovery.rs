//! Any bytes as the files of a lane: opening returns an error or a queue, never panics, and a
//! message whose checksum is right is one that was committed.
//!
//! The first byte chooses. Even: the rest are the bytes of two segment files. Odd: the rest are
//! edits to a lane written by a real spool (two bytes of offset, one of length, one new value), so
//! that fuzzing starts with valid checksums.

#![no_main]

use std::sync::{Arc, OnceLock, mpsc};

use libfuzzer_sys::fuzz_target;
use mail::{BodyFlags, BodyType, ClientInfo, DsnNotify, Envelope, Recipient, Timestamp};
use spool::{Config, RecipientState, Spool, SpoolEntry, SubmittedBody};

const SEGMENT_BYTES: u64 = 32 << 10;
/// The first bytes of the body are submitted as its prefix.
const PREFIX_LEN: usize = 22;
const BODY: &[u8] = b"Subject: one of three\r\n\r\nThe same text in every message.\r\n";

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    let disk = if choice & 1 == 0 { foreign(rest) } else { edited(rest) };
    let mut ids = Vec::new();
    let Ok(spool) = open(&disk, &mut |live| ids.push(live.id)) else { return };
    for id in ids {
        let Ok(stored) = spool.message(id) else { continue };
        let mut body = vec![0; usize::try_from(stored.body.len()).unwrap_or(0).min(1 << 20)];
        if stored.body.read_at(&mut body, 0).is_ok() && crc32c::crc32c(&body) == stored.body.digest() {
            assert_eq!(body, BODY, "{id} was never committed");
            assert_eq!((stored.envelope, stored.prefix_len), (envelope(), PREFIX_LEN as u64));
        }
    }
});

fn open(disk: &sim::Disk, sink: &mut dyn FnMut(spool::LiveMessage)) -> Result<Spool, spool::OpenError> {
    let config = Config { segment_bytes: SEGMENT_BYTES, ..Config::default() };
    spool::open(vec![Arc::new(disk.clone())], config, 1, sink)
}

fn foreign(bytes: &[u8]) -> sim::Disk {
    let (one, two) = bytes.split_at(bytes.len() / 2);
    let files = [("segment-000000", one), ("segment-000001", two)];
    sim::Disk::with_files(1, files.map(|(name, bytes)| (name.to_owned(), bytes.to_vec())))
}

fn edited(edits: &[u8]) -> sim::Disk {
    static LANE: OnceLock<sim::Disk> = OnceLock::new();
    let disk = LANE.get_or_init(written).crash(0);
    let mut names = disk.names();
    // The body file begins with a hole.
    names.sort_by_key(|name| name.starts_with("body-"));
    let mut files: Vec<Vec<u8>> = names.iter().filter_map(|name| disk.content(name)).collect();
    let total: usize = files.iter().map(Vec::len).sum();
    for edit in edits.chunks_exact(4) {
        // Most of the relevant data is at the start of each block of 4,096 bytes.
        let place = usize::from(edit[0] & 31) * 4096 + usize::from(edit[1]) % 512;
        for place in place..place + usize::from(edit[2] % 16) + 1 {
            let mut place = place % total;
            for file in &mut files {
                match file.get_mut(place) {
                    Some(byte) => {
                        *byte = edit[3];
                        break;
                    }
                    None => place -= file.len(),
                }
            }
        }
    }
    sim::Disk::with_files(1, names.into_iter().zip(files))
}

/// A lane with three messages, one of them delivered in part and one with a body file.
fn written() -> sim::Disk {
    let disk = sim::Disk::new(1);
    let spool = open(&disk, &mut |_| {}).expect("an empty disk can be opened");
    for n in 0..3 {
        let id = spool.new_id();
        let content = if n == 2 {
            let mut spill = spool.create_spill_file(id).expect("the disk has space");
            spill.append(&BODY[PREFIX_LEN..]).expect("the disk has space");
            SubmittedBody::Spilled(spill.finish(&BODY[..PREFIX_LEN]).expect("the disk has space"))
        } else {
            SubmittedBody::Memory { prefix: BODY[..PREFIX_LEN].to_vec(), body: BODY[PREFIX_LEN..].to_vec() }
        };
        commit(&spool, SpoolEntry::Message { id, envelope: envelope(), content, flags: BodyFlags::default() });
        if n == 1 {
            commit(&spool, SpoolEntry::Outcome { id, recipients: vec![(0, RecipientState::Delivered)], bounce: None });
        }
    }
    disk.crash(0)
}

fn commit(spool: &Spool, entry: SpoolEntry) {
    let (tell, told) = mpsc::channel();
    spool.submit(vec![entry], Box::new(move |result| drop(tell.send(result))));
    told.recv().expect("the callback is called").expect("a disk without faults commits it");
}

fn envelope() -> Envelope {
    let recipient = |address: &str| Recipient {
        address: address.parse().expect("an address"),
        original: None,
        notify: DsnNotify::UNSET,
        orcpt: None,
        is_forwarded: false,
    };
    Envelope {
        sender: None,
        recipients: vec![recipient("one@example.org"), recipient("two@example.org")],
        accepted_at: Timestamp(1),
        client: ClientInfo { address: None, helo: "fuzz".into(), trusted: true },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
        content_filter: false,
    }
}
