//! Any bytes as what a backend says to a proxy that logs in: no panic, the result is the same whether
//! they arrive whole or in pieces, a line of the outcome has no control characters, and nothing after
//! the end is used. The last byte chooses the protocol, the method, STARTTLS, and the size of the
//! pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::backend_login::{
    BackendLogin, BackendLoginMethod, BackendLoginOutcome, BackendLoginRequest, BackendProtocol,
};
use protocol::sasl::Secret;

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_last() else { return };
    let request = BackendLoginRequest {
        protocol: if choice & 1 == 0 { BackendProtocol::Imap } else { BackendProtocol::Pop3 },
        starts_tls: choice & 4 != 0,
        method: if choice & 2 == 0 { BackendLoginMethod::Plain } else { BackendLoginMethod::Login },
        authzid: None,
        user: "b\"b".into(),
        password: Secret::new("pässword".into()),
        client: (choice & 8 != 0).then(|| [192, 0, 2, 1].into()),
    };
    let whole = play(&request, std::iter::once(bytes));
    assert_eq!(whole, play(&request, bytes.chunks(1 + usize::from(choice >> 4))));
    let (used, _, outcome) = whole;
    assert!(used <= bytes.len());
    let is_clean = |text: &str| !text.chars().any(char::is_control);
    match outcome {
        Some(BackendLoginOutcome::Accepted(acceptance)) => {
            assert!(is_clean(&acceptance.text) && acceptance.capability_line.as_deref().is_none_or(is_clean));
        }
        Some(BackendLoginOutcome::Refused(refusal)) => assert!(is_clean(&refusal.text)),
        Some(BackendLoginOutcome::Failed(_)) => {}
        None => assert_eq!(used, bytes.len()),
    }
});

/// The number of bytes used, what was sent, and the outcome.
fn play<'a>(
    request: &BackendLoginRequest,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (usize, Vec<u8>, Option<BackendLoginOutcome>) {
    let mut login = BackendLogin::new(request.clone());
    let used = pieces.map(|piece| login.handle_input(piece)).sum();
    (used, login.take_output().to_vec(), login.outcome().cloned())
}
