//! Any bytes as a message that is converted to 7 bits: no panic, bounded output, the same result
//! whether it arrives whole or in pieces, and nothing left to convert in the result. The last byte
//! chooses the size of the pieces.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use protocol::mime::seven_bit::{SevenBitConverter, SevenBitScan, to_seven_bit};

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, message)) = bytes.split_last() else { return };
    let Ok(whole) = to_seven_bit(message) else { return };
    assert_eq!(&*whole, convert(message, 1 + usize::from(choice)));
    assert!(whole.len() <= 4 * message.len() + 200 * (1 + message.len() / 4));
    assert_eq!(to_seven_bit(&whole).as_deref(), Ok(&*whole), "a result needs no conversion");
});

fn convert(message: &[u8], size: usize) -> Vec<u8> {
    let mut scan = SevenBitScan::new();
    message.chunks(size).for_each(|piece| scan.handle_input(piece));
    let plan = scan.finish().expect("the whole message was converted");
    let (mut converter, mut out) = (SevenBitConverter::new(Arc::new(plan)), Vec::new());
    message.chunks(size).for_each(|piece| converter.handle_input(piece, &mut out));
    converter.finish(&mut out);
    out
}
