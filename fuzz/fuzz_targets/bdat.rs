//! Any bytes after an envelope in an LMTP session: chunks, and what looks like chunks. The last
//! byte chooses the treatment of bare newlines and NULs, and the size of the pieces.

#![no_main]

mod session;

use libfuzzer_sys::fuzz_target;
use protocol::smtp::server::{MailProtocol, NulPolicy};

const ENVELOPE: &[u8] = b"LHLO c\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\nRCPT TO:<e@f.example>\r\nBDAT ";

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_last() else { return };
    let nul = if choice & 2 == 0 { NulPolicy::Keep } else { NulPolicy::Strip };
    session::check(MailProtocol::Lmtp, choice & 1 != 0, nul, &[ENVELOPE, bytes].concat(), usize::from(choice >> 2));
});
