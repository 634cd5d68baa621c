//! Any bytes as the `maildirsize` of a Maildir, which other programs write too: no panic, and what is added to a file that
//! says something is a part of what it says then. Its limits, and any text as limits, come back as they were written.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

use libfuzzer_sys::fuzz_target;
use mailbox::quota::{self, Limits, Usage};

const ADDED: Usage = Usage { bytes: 1310, messages: 1 };
/// A file that is not less is counted anew.
const FILE_OCTETS_MAX: usize = 5120;

/// A Maildir without letters, in memory where there is a folder for that: a file is written for each input.
static MAILDIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
    let folder = memory.unwrap_or_else(std::env::temp_dir).join(format!("fuzz-maildir-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a writable folder");
    folder
});

fuzz_target!(|bytes: &[u8]| {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let limits = str::from_utf8(first).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
    assert_eq!(Limits::to_string(&limits).parse(), Ok(limits), "limits come back");
    std::fs::write(MAILDIR.join("maildirsize"), bytes).expect("a writable folder");
    let Some(before) = says(&MAILDIR, limits) else { return };
    assert!(bytes.len() < FILE_OCTETS_MAX, "it is to be counted anew");
    quota::add(&MAILDIR, ADDED).expect("a writable file");
    // What somebody is still writing is made whole by what is added, and may be anything then.
    let after = says(&MAILDIR, limits).filter(|_| bytes.ends_with(b"\n"));
    assert!(after.is_none_or(|after| after == before + ADDED), "{before:?}, then {after:?}");
});

fn says(maildir: &Path, limits: Limits) -> Option<Usage> {
    let standing = quota::recorded(maildir, limits, SystemTime::now()).expect("a readable file")?;
    let _ = standing.decides(limits, Usage { bytes: u64::MAX, messages: u64::MAX });
    Some(standing.usage)
}
