//! Any bytes as the answer of a policy service: no panic, the result is the same whether they arrive
//! whole or in pieces, and a reply that it chooses is one. The last byte is the size of the pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::policy::{AnswerReader, PolicyAction, PolicyViolation};

fuzz_target!(|bytes: &[u8]| {
    let Some((&size, bytes)) = bytes.split_last() else { return };
    let whole = read(bytes, usize::MAX);
    // In pieces, an answer may be complete before what follows it comes.
    let cut = read(bytes, 1 + usize::from(size));
    assert!(whole == cut || whole == Err(PolicyViolation::Unsolicited) || whole.is_err() && cut.is_err());
    if let Ok(Some(action)) = whole
        && let Ok(PolicyAction::Refuse(reply) | PolicyAction::DeferIfPermit(reply)) = action.parse()
    {
        assert!((400..600).contains(&reply.code) && reply.text.bytes().all(|octet| (0x20..0x7f).contains(&octet)));
    }
});

fn read(bytes: &[u8], size: usize) -> Result<Option<String>, PolicyViolation> {
    let mut reader = AnswerReader::default();
    for piece in bytes.chunks(size) {
        let read = reader.handle_input(piece);
        if read != Ok(None) {
            return read;
        }
    }
    Ok(None)
}
