//! Any bytes as the `maildirsize` file of a Maildir, which other programs also write: no panic, and
//! usage added to a readable file is part of its usage afterwards. Its limits, and any text as
//! limits, parse to themselves.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

use libfuzzer_sys::fuzz_target;
use mailbox::quota::{self, QuotaLimits, Usage};

const ADDED: Usage = Usage { bytes: 1310, messages: 1 };
/// A file of this size or larger is recalculated.
const FILE_OCTETS_MAX: usize = 5120;

/// An empty Maildir, in memory if possible: a file is written for each input.
static MAILDIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
    let folder = memory.unwrap_or_else(std::env::temp_dir).join(format!("fuzz-maildir-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder is writable");
    folder
});

fuzz_target!(|bytes: &[u8]| {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let limits = str::from_utf8(first).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
    assert_eq!(QuotaLimits::to_string(&limits).parse(), Ok(limits), "limits survive formatting");
    std::fs::write(MAILDIR.join("maildirsize"), bytes).expect("the folder is writable");
    let Some(before) = says(&MAILDIR, limits) else { return };
    assert!(bytes.len() < FILE_OCTETS_MAX, "a large file must be recalculated");
    quota::record_added_usage(&MAILDIR, ADDED).expect("the file is writable");
    // If the last line is incomplete, the addition completes it, with any result.
    let after = says(&MAILDIR, limits).filter(|_| bytes.ends_with(b"\n"));
    assert!(after.is_none_or(|after| after == before + ADDED), "{before:?}, then {after:?}");
});

fn says(maildir: &Path, limits: QuotaLimits) -> Option<Usage> {
    let estimate = quota::read_usage(maildir, limits, SystemTime::now()).expect("the file is readable")?;
    let _ = estimate.is_conclusive(limits, Usage { bytes: u64::MAX, messages: u64::MAX });
    Some(estimate.usage)
}
