//! Any bytes as the server's side of an HTTP connection with several requests: no panic, and the
//! result is the same whether they arrive whole or in pieces. The last byte chooses the method,
//! whether the connection ends, and the size of the pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::http::Method;
use protocol::http::client::{HttpClient, HttpEvent, HttpResponseLimits, HttpViolation, ResponseHead};

const BODY_OCTETS_MAX: u64 = 1000;

/// The result of an input.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    heads: Vec<ResponseHead>,
    bodies: Vec<u8>,
    ends: usize,
    fault: Option<HttpViolation>,
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_last() else { return };
    let whole = play(choice, bytes, usize::MAX);
    let mut cut = play(choice, bytes, 1 + usize::from(choice >> 2));
    assert!(whole.bodies.len() <= bytes.len());
    if whole.fault.is_some() {
        // How much of a body is returned before a later protocol violation depends on the pieces.
        cut.bodies.clone_from(&whole.bodies);
    }
    assert_eq!(whole, cut);
});

fn play(choice: u8, bytes: &[u8], size: usize) -> Outcome {
    let method = if choice & 1 == 0 { Method::Get } else { Method::Head };
    let mut client = HttpClient::new(HttpResponseLimits { body_octets_max: BODY_OCTETS_MAX });
    let mut outcome = Outcome::default();
    for mut input in bytes.chunks(size) {
        while !input.is_empty() && outcome.fault.is_none() {
            client.handle_request_sent(method);
            outcome.take(client.handle_input(&mut input));
        }
    }
    while outcome.fault.is_none() && outcome.take(client.handle_input(&mut &[][..])) {}
    if choice & 2 != 0 && outcome.fault.is_none() {
        outcome.take(client.handle_disconnect());
        assert!(!client.is_idle());
    }
    outcome
}

impl Outcome {
    /// Adds an event; returns whether there was one.
    fn take(&mut self, taken: Result<Option<HttpEvent<'_>>, HttpViolation>) -> bool {
        match taken {
            Ok(Some(HttpEvent::Head(head))) => self.heads.push(head),
            Ok(Some(HttpEvent::Body(piece))) => self.bodies.extend_from_slice(piece),
            Ok(Some(HttpEvent::End)) => self.ends += 1,
            Ok(None) => return false,
            Err(fault) => self.fault = Some(fault),
        }
        true
    }
}
