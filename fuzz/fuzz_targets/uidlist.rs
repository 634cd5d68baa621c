//! Any bytes as the `dovecot-uidlist` of a Maildir, which other programs also write: no panic, and the
//! maildrop opens with all its messages, whose unique-ids stay the same the next time.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mailbox::maildrop::{Maildrop, MaildropSettings};

const NAMES: [&str; 3] = ["new/1.a,W=0", "cur/2.b,W=0:2,S", "cur/c,W=0:2,"];

/// A Maildir with some messages, in memory if possible: a file is written for each input.
static MAILDIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
    let folder = memory.unwrap_or_else(std::env::temp_dir).join(format!("fuzz-uidlist-{}", std::process::id()));
    for part in ["new", "cur"] {
        std::fs::create_dir_all(folder.join(part)).expect("the folder is writable");
    }
    NAMES.iter().for_each(|name| std::fs::write(folder.join(name), "").expect("the folder is writable"));
    folder
});

fuzz_target!(|bytes: &[u8]| {
    std::fs::write(MAILDIR.join("dovecot-uidlist"), bytes).expect("the folder is writable");
    let first = uids();
    assert_eq!(uids(), first, "unique-ids change");
});

fn uids() -> Vec<Vec<u8>> {
    let maildrop = Maildrop::open(&MAILDIR, &MaildropSettings::default()).expect("the Maildir is readable and writable");
    let uid = |message| {
        let mut uid = Vec::new();
        maildrop.write_uid(message, &mut uid);
        uid
    };
    assert_eq!(maildrop.len(), NAMES.len());
    (0..maildrop.len()).map(uid).collect()
}
