//! A corrupted cdb file is refused or answers every key; nothing panics and every lookup ends. The
//! input is a list of edits: an offset of two bytes and the new byte. The rest is appended.

#![no_main]

use std::pin::pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use lookup::Table;
use lookup::cdb::{self, Cdb};

const EDITS_MAX: usize = 64;

/// A valid database with a few records, built once.
static SOUND: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = std::env::temp_dir();
    let (text, made) = (folder.join("fuzz.text"), folder.join(format!("fuzz-{}.cdb", std::process::id())));
    std::fs::write(&text, "bob bob@example.org\nall bob, eve\neve eve@example.org\n")
        .expect("the temporary folder is writable");
    cdb::build(&text, &made).expect("the text is valid");
    let bytes = std::fs::read(&made).expect("the file was just written");
    let _ = std::fs::remove_file(&made);
    bytes
});

fuzz_target!(|input: &[u8]| {
    let mut bytes = SOUND.clone();
    let edits = input.chunks_exact(3).take(EDITS_MAX);
    for edit in edits {
        let place = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % bytes.len();
        bytes[place] = edit[2];
    }
    bytes.extend_from_slice(input.get(EDITS_MAX * 3..).unwrap_or_default());
    let Ok(table) = Cdb::from_bytes("fuzz", bytes) else { return };
    let keys = ["bob", "all", "eve", "", "nobody"];
    match pin!(table.lookup(&keys)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answers) => assert_eq!(answers.len(), keys.len()),
        Poll::Pending => panic!("a table in memory never waits"),
    }
});
