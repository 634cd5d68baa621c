//! Any bytes are a database that answers every key, or are refused; nothing panics and every lookup ends.

#![no_main]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use lookup::Table;
use lookup::cdb::Cdb;

fuzz_target!(|bytes: &[u8]| {
    let Ok(table) = Cdb::from_bytes("fuzz", bytes.to_vec()) else { return };
    // The first record's key, where a seed has it, so that changes to its tables are searched.
    let first = bytes.get(2056..2059).and_then(|key| str::from_utf8(key).ok()).unwrap_or_default();
    let keys = [first, "", "key"];
    match pin!(table.lookup(&keys)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answers) => assert_eq!(answers.len(), keys.len()),
        Poll::Pending => panic!("a table in memory must not wait"),
    }
});
