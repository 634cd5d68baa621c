//! Corrupted segment files: opening never panics, and only returns mail that was accepted.

use std::sync::OnceLock;

use proptest::prelude::*;
use sim::Random;
use spool::State;

use crate::book::Found;
use crate::rig::{Rig, SEED, close, config, open_damaged};

/// One corruption of a file.
#[derive(Clone, Debug)]
enum Wound {
    Set { at: usize, byte: u8 },
    Noise { at: usize, len: usize, seed: u64 },
    Copy { from: usize, to: usize, len: usize },
    Cut { len: usize },
    Zero { at: usize, len: usize },
}

impl Wound {
    fn inflict(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let clip = |at: usize, len: usize| (at % bytes.len())..(at % bytes.len() + len).min(bytes.len());
        match *self {
            Wound::Set { at, byte } => {
                let place = clip(at, 1).start;
                bytes[place] = byte;
            }
            Wound::Noise { at, len, seed } => {
                let range = clip(at, len);
                Random::new(seed).fill(&mut bytes[range]);
            }
            Wound::Copy { from, to, len } => {
                let (from, to) = (clip(from, len), clip(to, len));
                let len = from.len().min(to.len());
                bytes.copy_within(from.start..from.start + len, to.start);
            }
            Wound::Cut { len } => bytes.truncate(len % bytes.len()),
            Wound::Zero { at, len } => {
                let range = clip(at, len);
                bytes[range].fill(0);
            }
        }
    }
}

fn wound() -> impl Strategy<Value = Wound> {
    let place = || prop_oneof![0usize..32768, (0usize..64).prop_map(|sector| sector * 512), 0usize..9000];
    let len = || prop_oneof![1usize..64, Just(512usize), Just(4096usize)];
    prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, byte)| Wound::Set { at, byte }),
        (place(), len(), any::<u64>()).prop_map(|(at, len, seed)| Wound::Noise { at, len, seed }),
        (place(), place(), len()).prop_map(|(from, to, len)| Wound::Copy { from, to, len }),
        place().prop_map(|len| Wound::Cut { len }),
        (place(), len()).prop_map(|(at, len)| Wound::Zero { at, len }),
    ]
}

/// A disk with mail in a sealed segment, in an open one and in a body file, and all mail that was
/// ever on it.
fn healthy() -> (sim::Disk, Found) {
    static MADE: OnceLock<(sim::Disk, Found)> = OnceLock::new();
    let (image, found) = MADE.get_or_init(make_healthy);
    (image.crash(0), found.clone())
}

fn make_healthy() -> (sim::Disk, Found) {
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config(32 << 10)).expect("the disk has no faults");
    for size in [700, 5000, 900, 300, 2000, 1200] {
        let id = rig.accept(size, 2).expect("the disk has no faults");
        rig.settle(id, &[(0, State::Delivered)]).expect("the disk has no faults");
    }
    rig.accept_spilled(1000, 1).expect("the disk has no faults");
    let found = rig.found();
    let image = disk.crash(0);
    rig.close();
    (image, found)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_wounded_log_gives_only_mail_that_was_accepted(wounds in prop::collection::vec((0usize..8, wound()), 1..6)) {
        let (disk, original) = healthy();
        let names = disk.names();
        for (file, wound) in wounds {
            let name = &names[file % names.len()];
            let mut bytes = disk.content(name).unwrap();
            wound.inflict(&mut bytes);
            disk.put(name, bytes);
        }
        if let Ok((spool, found, _)) = open_damaged(&disk, config(32 << 10)) {
            for (id, letter) in found {
                // A spool whose id cannot be read gets a new one; the rest must be unchanged.
                let known = original.iter().find(|(known, _)| known.sequence() == id.sequence());
                let (_, known) = known.expect("the message was accepted before");
                prop_assert_eq!((&letter.bytes, &letter.envelope), (&known.bytes, &known.envelope));
            }
            close(spool, &disk);
        }
    }

    #[test]
    fn any_bytes_are_opened_or_refused(files in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20_000), 1..3)) {
        let named = files.into_iter().enumerate().map(|(n, bytes)| (format!("segment-{n:06}"), bytes));
        let disk = sim::Disk::with_files(SEED, named);
        if let Ok((spool, found, unreadable)) = open_damaged(&disk, config(32 << 10)) {
            prop_assert!(found.is_empty() && unreadable.is_empty());
            close(spool, &disk);
        }
    }
}
