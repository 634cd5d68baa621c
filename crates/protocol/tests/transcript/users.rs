//! Users in the transcripts of all protocols: mechanisms, and scripted answers to password checks.

use mail::ScramKeys;
use protocol::sasl::{self, Mechanism, PasswordVerdict, ScramKeysAnswer};

/// Mechanisms by their names.
pub(crate) fn mechanisms(names: &str) -> Box<[Mechanism]> {
    let mechanism = |name| Mechanism::from_name(name).expect("a registered SASL mechanism name");
    names.split_ascii_whitespace().map(mechanism).collect()
}

/// Accepts every password, with the user name in lower case, unless the script says otherwise:
/// refused, throttled or unavailable.
pub(crate) fn password_verdict(user: &str, scripted: Option<&str>) -> PasswordVerdict {
    match scripted {
        None => PasswordVerdict::Accepted { user: user.to_lowercase().into() },
        Some("refused") => PasswordVerdict::Refused,
        Some("throttled") => PasswordVerdict::Throttled,
        Some(_) => PasswordVerdict::Unavailable,
    }
}

/// Every user has the password of RFC 7677 section 3, with the same exceptions.
pub(crate) fn scram_keys(user: &str, scripted: Option<&str>) -> ScramKeysAnswer {
    match scripted {
        None => ScramKeysAnswer::Found { user: user.to_lowercase().into(), keys: pencil() },
        Some("refused") => ScramKeysAnswer::Unknown { iterations: 4096 },
        Some("throttled") => ScramKeysAnswer::Throttled,
        Some(_) => ScramKeysAnswer::Unavailable,
    }
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
