//! Any bytes as the answers of Dovecot's authentication server: no panic, the same events whether they arrive
//! whole or in pieces, verdicts only after the handshake, and never more kept than a line. The last byte is
//! the size of the pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::dovecot_auth::{AuthClient, AuthEvent, AuthProtocolError};

fuzz_target!(|bytes: &[u8]| {
    let Some((&size, bytes)) = bytes.split_last() else { return };
    let (whole, error) = read(bytes, usize::MAX);
    let (cut, cut_error) = read(bytes, 1 + usize::from(size));
    // What came before an error in the same piece is not told.
    assert!(cut.starts_with(&whole) && error.is_some() == cut_error.is_some(), "{whole:?} {cut:?}");
    if error.is_none() {
        assert_eq!(whole, cut);
    }
    let ready = cut.iter().position(|event| *event == AuthEvent::Ready);
    assert!(cut.is_empty() || ready == Some(0), "{cut:?}");
    assert_eq!(cut.iter().filter(|event| **event == AuthEvent::Ready).count(), usize::from(!cut.is_empty()));
});

/// The events up to an error, if there is one.
fn read(bytes: &[u8], size: usize) -> (Vec<AuthEvent>, Option<AuthProtocolError>) {
    let (mut client, greeting) = AuthClient::begin(1);
    assert!(greeting.ends_with("\n"));
    let mut events = Vec::new();
    for piece in bytes.chunks(size) {
        match client.handle_input(piece) {
            Ok(more) => events.extend(more),
            Err(error) => return (events, Some(error)),
        }
    }
    (events, None)
}
