//! Users in transcripts: the settings of AUTH, and scripted answers to password checks.

use mail::{Reply, ScramKeys};
use protocol::sasl::{self, Mechanism, Nonce, PasswordVerdict, ScramKeysAnswer};
use protocol::smtp::server::{AuthConfig, LoginRequest, ScramKeysRequest, SessionAnswer};

/// AUTH with these mechanisms, only within TLS, and optional.
pub(crate) fn auth(mechanisms: &str) -> AuthConfig {
    let mechanism = |name| Mechanism::from_name(name).expect("a registered SASL mechanism name");
    AuthConfig {
        mechanisms: mechanisms.split_ascii_whitespace().map(mechanism).collect(),
        clear_text: false,
        required: false,
        sasl: sasl::SaslConfig { secret: [7; 32] },
    }
}

/// Accepts every password, with the user name in lower case, unless the script says 535 (refused),
/// 454 (throttled) or anything else (unavailable).
pub(crate) fn verdict(request: &LoginRequest, reply: Option<&Reply>) -> SessionAnswer {
    SessionAnswer::Verdict(match reply.map(|reply| reply.code) {
        None => PasswordVerdict::Accepted { user: request.user.to_lowercase().into() },
        Some(535) => PasswordVerdict::Refused,
        Some(454) => PasswordVerdict::Throttled,
        Some(_) => PasswordVerdict::Unavailable,
    })
}

/// Every user has the password of RFC 7677 section 3, with the same exceptions.
pub(crate) fn keys(request: &ScramKeysRequest, reply: Option<&Reply>) -> SessionAnswer {
    let keys = match reply.map(|reply| reply.code) {
        None => ScramKeysAnswer::Found { user: request.user.to_lowercase().into(), keys: pencil() },
        Some(535) => ScramKeysAnswer::Unknown { iterations: 4096 },
        Some(454) => ScramKeysAnswer::Throttled,
        Some(_) => ScramKeysAnswer::Unavailable,
    };
    SessionAnswer::Keys { keys, nonce: Nonce::from_random([1; Nonce::OCTETS]) }
}

fn pencil() -> ScramKeys {
    let octets = |base64: &str| sasl::decode(base64.as_bytes()).expect("this is base64").to_vec();
    let key = |base64| octets(base64).try_into().expect("a key has 32 octets");
    ScramKeys {
        salt: octets("W22ZaJ0SNY7soEsUEjb6gQ==").into(),
        iterations: 4096,
        stored_key: key("WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="),
        server_key: key("wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="),
    }
}
