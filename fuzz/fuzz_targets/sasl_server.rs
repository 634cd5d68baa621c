//! Any bytes as the client's side of a SASL exchange: no panic, one action after each event, one
//! end, questions within their limits, and success only with a password that the driver accepted.
//!
//! The first byte chooses the mechanism, the driver's answers, and whether the client sends an
//! initial response; the second, whether the rest is base64, as on the wire, or decoded. Line feeds
//! separate the client's responses.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mail::ScramKeys;
use protocol::sasl::{
    CredentialQuestion, Mechanism, Nonce, PASSWORD_OCTETS_MAX, PasswordVerdict, SaslAction, SaslConfig, SaslExchange,
    SaslOutcome, SaslRefusal, ScramKeysAnswer, USER_OCTETS_MAX, decode, decode_initial, encode,
};

const MECHANISMS: [Mechanism; 3] = [Mechanism::Plain, Mechanism::Login, Mechanism::ScramSha256];
/// The user that the driver accepts.
const USER: &str = "user";

fuzz_target!(|bytes: &[u8]| {
    let [choice, form, said @ ..] = bytes else { return };
    let mechanism = MECHANISMS[usize::from(*choice) % MECHANISMS.len()];
    let answers = choice / 3;
    let (is_encoded, speaks_first) = (form & 1 == 0, form & 2 == 0);
    let mut turns = said.split(|byte| *byte == b'\n');
    let config = SaslConfig { secret: [7; 32] };
    let initial = match speaks_first.then(|| turns.next()).flatten() {
        None => None,
        Some(initial) if is_encoded => match decode_initial(initial) {
            Ok(initial) => Some(initial.to_vec()),
            Err(_) => return,
        },
        Some(initial) => Some(initial.to_vec()),
    };
    let mut exchange = SaslExchange::begin(mechanism, initial.as_deref(), &config);
    let mut let_in = false;
    while let Some(action) = exchange.poll_action() {
        assert_eq!(exchange.poll_action(), None, "one action at a time");
        match action {
            SaslAction::Challenge(challenge) => {
                let sent = decode(encode(&challenge).as_bytes());
                assert!(sent.is_ok_and(|sent| **sent == *challenge), "a challenge survives base64");
                respond(&mut exchange, turns.next(), is_encoded);
            }
            SaslAction::Ask(question) => let_in = answer(&mut exchange, question, answers),
            SaslAction::Done(outcome) => return end(&mut exchange, &outcome, let_in),
        }
    }
    panic!("no action, and no end");
});

/// A client that sends no more has disconnected, which cancels the exchange.
fn respond(exchange: &mut SaslExchange, turn: Option<&[u8]>, is_encoded: bool) {
    match turn {
        None => exchange.handle_cancel(SaslRefusal::Cancelled),
        Some(turn) if is_encoded => match decode(turn) {
            Ok(response) => exchange.handle_response(&response),
            Err(_) => exchange.handle_cancel(SaslRefusal::Malformed),
        },
        Some(turn) => exchange.handle_response(turn),
    }
}

/// Answers a question; returns whether the client was accepted.
fn answer(exchange: &mut SaslExchange, question: CredentialQuestion, answers: u8) -> bool {
    let is_sound = |user: &str| (1..=USER_OCTETS_MAX).contains(&user.len()) && !user.chars().any(char::is_control);
    match question {
        CredentialQuestion::Verify { user, password } => {
            assert!(is_sound(&user), "{user:?}");
            let password = password.reveal();
            assert!((1..=PASSWORD_OCTETS_MAX).contains(&password.len()) && !password.contains('\0'));
            let verdicts = [PasswordVerdict::Refused, PasswordVerdict::Throttled, PasswordVerdict::Unavailable];
            let refused = verdicts.into_iter().nth(usize::from(answers % 4));
            let let_in = refused.is_none();
            exchange.handle_password_verdict(refused.unwrap_or(PasswordVerdict::Accepted { user: USER.into() }));
            let_in
        }
        CredentialQuestion::Credentials { user } => {
            assert!(is_sound(&user), "{user:?}");
            // No client knows a client key that matches these keys.
            let keys = ScramKeys { salt: [1; 16].into(), iterations: 4096, stored_key: [0; 32], server_key: [0; 32] };
            let keys = match answers % 4 {
                0 => ScramKeysAnswer::Found { user: USER.into(), keys },
                1 => ScramKeysAnswer::Unknown { iterations: 4096 },
                2 => ScramKeysAnswer::Throttled,
                _ => ScramKeysAnswer::Unavailable,
            };
            exchange.handle_scram_keys(keys, &Nonce::from_random([3; Nonce::OCTETS]));
            false
        }
    }
}

/// Events after the end are ignored.
fn end(exchange: &mut SaslExchange, outcome: &SaslOutcome, let_in: bool) {
    let accepted = SaslOutcome::Accepted { user: USER.into() };
    assert_eq!(*outcome == accepted, let_in, "{outcome:?}");
    assert!(let_in || matches!(outcome, SaslOutcome::Refused(_)), "{outcome:?}");
    exchange.handle_response(b"");
    exchange.handle_password_verdict(PasswordVerdict::Accepted { user: USER.into() });
    exchange.handle_cancel(SaslRefusal::Cancelled);
    assert_eq!(exchange.poll_action(), None);
}
