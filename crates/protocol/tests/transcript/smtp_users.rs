//! Users in SMTP transcripts: the settings of AUTH, and answers that are scripted as replies.

use mail::Reply;
use protocol::sasl::{Nonce, SaslConfig};
use protocol::smtp::server::{AuthConfig, LoginRequest, ScramKeysRequest, SessionAnswer};

use super::users;

/// AUTH with these mechanisms, only within TLS, and optional.
pub(crate) fn auth(mechanisms: &str) -> AuthConfig {
    AuthConfig {
        mechanisms: users::mechanisms(mechanisms),
        clear_text: false,
        required: false,
        sasl: SaslConfig { secret: [7; 32] },
    }
}

/// The answer to a password check.
pub(crate) fn verdict(request: &LoginRequest, reply: Option<&Reply>) -> SessionAnswer {
    SessionAnswer::Verdict(users::password_verdict(&request.user, reply.map(scripted)))
}

/// The answer to a lookup of SCRAM keys.
pub(crate) fn keys(request: &ScramKeysRequest, reply: Option<&Reply>) -> SessionAnswer {
    let keys = users::scram_keys(&request.user, reply.map(scripted));
    SessionAnswer::Keys { keys, nonce: Nonce::from_random([1; Nonce::OCTETS]) }
}

fn scripted(reply: &Reply) -> &'static str {
    match reply.code {
        535 => "refused",
        454 => "throttled",
        _ => "unavailable",
    }
}
