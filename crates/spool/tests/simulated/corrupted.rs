//! Corrupted segment files: opening never panics, and only returns mail that was accepted.

use std::sync::OnceLock;

use proptest::prelude::*;
use sim::Random;
use spool::RecipientState;

use crate::harness::{SEED, SpoolHarness, close, config, open_damaged};
use crate::promises::RecoveredMessages;

/// One corruption of a file.
#[derive(Clone, Debug)]
enum Corruption {
    Set { at: usize, byte: u8 },
    Noise { at: usize, len: usize, seed: u64 },
    Copy { from: usize, to: usize, len: usize },
    Cut { len: usize },
    Zero { at: usize, len: usize },
}

impl Corruption {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let clip = |at: usize, len: usize| (at % bytes.len())..(at % bytes.len() + len).min(bytes.len());
        match *self {
            Corruption::Set { at, byte } => {
                let place = clip(at, 1).start;
                bytes[place] = byte;
            }
            Corruption::Noise { at, len, seed } => {
                let range = clip(at, len);
                Random::new(seed).fill(&mut bytes[range]);
            }
            Corruption::Copy { from, to, len } => {
                let (from, to) = (clip(from, len), clip(to, len));
                let len = from.len().min(to.len());
                bytes.copy_within(from.start..from.start + len, to.start);
            }
            Corruption::Cut { len } => bytes.truncate(len % bytes.len()),
            Corruption::Zero { at, len } => {
                let range = clip(at, len);
                bytes[range].fill(0);
            }
        }
    }
}

fn corruption() -> impl Strategy<Value = Corruption> {
    let place = || prop_oneof![0usize..32768, (0usize..64).prop_map(|sector| sector * 512), 0usize..9000];
    let len = || prop_oneof![1usize..64, Just(512usize), Just(4096usize)];
    prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, byte)| Corruption::Set { at, byte }),
        (place(), len(), any::<u64>()).prop_map(|(at, len, seed)| Corruption::Noise { at, len, seed }),
        (place(), place(), len()).prop_map(|(from, to, len)| Corruption::Copy { from, to, len }),
        place().prop_map(|len| Corruption::Cut { len }),
        (place(), len()).prop_map(|(at, len)| Corruption::Zero { at, len }),
    ]
}

/// A disk with mail in a sealed segment, in an open one and in a body file, and all mail that was
/// ever on it.
fn valid_disk() -> (sim::Disk, RecoveredMessages) {
    static MADE: OnceLock<(sim::Disk, RecoveredMessages)> = OnceLock::new();
    let (image, found) = MADE.get_or_init(make_valid_disk);
    (image.crash(0), found.clone())
}

fn make_valid_disk() -> (sim::Disk, RecoveredMessages) {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).expect("the disk has no faults");
    for size in [700, 5000, 900, 300, 2000, 1200] {
        let id = harness.accept(size, 2).expect("the disk has no faults");
        harness.settle(id, &[(0, RecipientState::Delivered)]).expect("the disk has no faults");
    }
    harness.accept_spilled(1000, 1).expect("the disk has no faults");
    let found = harness.recovered();
    let image = disk.crash(0);
    harness.close();
    (image, found)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_corrupted_log_gives_only_accepted_mail(corruptions in prop::collection::vec((0usize..8, corruption()), 1..6)) {
        let (disk, original) = valid_disk();
        let names = disk.names();
        for (file, corruption) in corruptions {
            let name = &names[file % names.len()];
            let mut bytes = disk.content(name).unwrap();
            corruption.apply(&mut bytes);
            disk.put(name, bytes);
        }
        if let Ok((spool, found, _)) = open_damaged(&disk, config(32 << 10)) {
            for (id, message) in found {
                // A spool whose id cannot be read gets a new one; the rest must be unchanged.
                let known = original.iter().find(|(known, _)| known.sequence() == id.sequence());
                let (_, known) = known.expect("the message was accepted before");
                prop_assert_eq!((&message.bytes, &message.envelope), (&known.bytes, &known.envelope));
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
