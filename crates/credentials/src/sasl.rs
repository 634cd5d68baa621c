//! Answers the questions of SASL exchanges ([`protocol::sasl`]), for every protocol in which users
//! log in. Passwords are never logged; causes that clients are not told go to the operator's log.

use std::net::{IpAddr, Ipv4Addr};

use mail::{MailEvent, OperatorLog};
use protocol::sasl::{Mechanism, Nonce, PasswordVerdict, SaslOutcome, SaslRefusal, ScramKeysAnswer, Secret};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{CredentialChecker, LoginResult, PendingLogin, ScramLookupResult};

/// The address under which all clients without a known one are counted. No host has it.
pub const UNKNOWN_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The answer to a question about SCRAM keys.
pub struct ScramChallenge {
    /// The stored keys.
    pub keys: ScramKeysAnswer,
    /// A nonce from fresh random octets.
    pub nonce: Nonce,
    /// To be passed to [`finish_proof`] when the exchange ends. Counts as failed if dropped.
    pub pending: Option<PendingLogin>,
}

impl CredentialChecker {
    /// Answers [`protocol::sasl::CredentialQuestion::Verify`].
    pub async fn answer_password(
        &self,
        user: &str,
        password: &Secret,
        client: Option<IpAddr>,
        log: &dyn OperatorLog,
    ) -> PasswordVerdict {
        match self.verify_password(user, password.reveal(), client.unwrap_or(UNKNOWN_CLIENT)).await {
            LoginResult::Accepted { user } => PasswordVerdict::Accepted { user },
            LoginResult::Refused => PasswordVerdict::Refused,
            LoginResult::Unusable(why) => {
                report_unverified(log, user, &why);
                PasswordVerdict::Refused
            }
            LoginResult::Throttled => PasswordVerdict::Throttled,
            LoginResult::Unavailable(why) => {
                report_unverified(log, user, &why);
                PasswordVerdict::Unavailable
            }
        }
    }

    /// Answers [`protocol::sasl::CredentialQuestion::Credentials`].
    pub async fn answer_scram_keys(&self, user: &str, client: Option<IpAddr>, log: &dyn OperatorLog) -> ScramChallenge {
        let mut octets = [0; Nonce::OCTETS];
        let has_nonce = getrandom(&mut octets, GetRandomFlags::empty());
        let nonce = Nonce::from_random(octets);
        if let Err(error) = has_nonce {
            report_unverified(log, user, &error.to_string());
            return ScramChallenge { keys: ScramKeysAnswer::Unavailable, nonce, pending: None };
        }
        let (keys, pending) = match self.find_scram_keys(user, client.unwrap_or(UNKNOWN_CLIENT)).await {
            ScramLookupResult::Found { user, keys, pending } => (ScramKeysAnswer::Found { user, keys }, Some(pending)),
            ScramLookupResult::Unknown { iterations, unusable, pending } => {
                unusable.iter().for_each(|why| report_unverified(log, user, why));
                (ScramKeysAnswer::Unknown { iterations }, Some(pending))
            }
            ScramLookupResult::Throttled => (ScramKeysAnswer::Throttled, None),
            ScramLookupResult::Unavailable(why) => {
                report_unverified(log, user, &why);
                (ScramKeysAnswer::Unavailable, None)
            }
        };
        ScramChallenge { keys, nonce, pending }
    }
}

/// Settles the proof of an exchange that has ended, which counts like a password check.
pub fn finish_proof(pending: Option<PendingLogin>, mechanism: Mechanism, outcome: &SaslOutcome) {
    match (pending, outcome) {
        (Some(pending), SaslOutcome::Accepted { .. }) if mechanism == Mechanism::ScramSha256 => {
            pending.record_success()
        }
        (Some(pending), SaslOutcome::Refused(SaslRefusal::Credentials)) => pending.record_failure(),
        // A dropped proof counts as failed, but not as a wrong password.
        _ => {}
    }
}

/// The log event of a login attempt. Its result agrees with the counters of the checker, if the
/// attempt reached it.
pub fn login_event(
    client: Option<IpAddr>,
    helo: &str,
    mechanism: Mechanism,
    user: Box<str>,
    outcome: &SaslOutcome,
) -> MailEvent {
    let result = match outcome {
        SaslOutcome::Accepted { .. } => "ok",
        SaslOutcome::Refused(SaslRefusal::Throttled) => "throttled",
        SaslOutcome::Refused(SaslRefusal::Unavailable) => "unavailable",
        SaslOutcome::Refused(SaslRefusal::Cancelled) => "cancelled",
        SaslOutcome::Refused(SaslRefusal::Credentials) => "refused",
        SaslOutcome::Refused(
            SaslRefusal::Malformed
            | SaslRefusal::TooLong
            | SaslRefusal::LineTooLong
            | SaslRefusal::InvalidText
            | SaslRefusal::Authzid
            | SaslRefusal::Unsupported,
        ) => "malformed",
    };
    MailEvent::Login { client, helo: helo.into(), user, mechanism: mechanism.name(), result }
}

fn report_unverified(log: &dyn OperatorLog, user: &str, why: &str) {
    log.log_line(format_args!("cannot check the password of user {user:?}: {why}"));
}
