//! Any bytes as the client's side of a session: no panic, and the result is the same whether they
//! arrive whole or in pieces. The last byte chooses the protocol, the treatment of bare newlines
//! and NULs, and the size of the pieces.

#![no_main]

mod session;

use libfuzzer_sys::fuzz_target;
use protocol::smtp::server::{MailProtocol, NulPolicy};

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_last() else { return };
    let flavor = if choice & 1 == 0 { MailProtocol::Smtp } else { MailProtocol::Lmtp };
    let nul = match choice >> 2 & 3 {
        0 => NulPolicy::Strip,
        1 => NulPolicy::Refuse,
        _ => NulPolicy::Keep,
    };
    session::check(flavor, choice & 2 != 0, nul, bytes, usize::from(choice >> 4));
});
