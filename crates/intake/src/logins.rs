//! Logins of users: checks passwords, and which sender addresses a user may use.
//!
//! Passwords are checked by the [`CredentialChecker`], which do no computation on this thread.
//! Passwords are never logged; every login attempt is logged with its user, client and result.

use std::net::IpAddr;
use std::sync::Arc;

use credentials::{self, CredentialChecker, PendingLogin};
use lookup::Table;
use mail::{Address, MailEvent, Reply};
use protocol::sasl::{Mechanism, Nonce, PasswordVerdict, SaslOutcome, SaslRefusal, ScramKeysAnswer};
use protocol::smtp::server::{LoginRequest, ScramKeysRequest, SessionAnswer};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::session_checks::UNKNOWN_CLIENT;
use crate::{IntakeContext, replies};

/// Who may log in, and with what rights. Clones share the credentials.
#[derive(Clone)]
pub struct LoginPolicy {
    /// The users and their passwords.
    pub credentials: CredentialChecker,
    /// The senders each user may use in MAIL: addresses, and domains with or without `@` for all
    /// addresses in them. None: any.
    pub senders: Option<Arc<dyn Table>>,
    /// Whether Received lines contain the user name.
    pub in_received_line: bool,
}

/// Why a user may not use a sender.
enum NotOwned {
    No,
    Unknown(String),
}

impl IntakeContext {
    /// Checks a password.
    pub(crate) async fn verify_password(&self, request: &LoginRequest, client: Option<IpAddr>) -> SessionAnswer {
        let Some(logins) = &self.logins else { return SessionAnswer::Verdict(PasswordVerdict::Unavailable) };
        let password = request.password.reveal();
        let verdict = logins.credentials.verify_password(&request.user, password, counted_address(client)).await;
        SessionAnswer::Verdict(match verdict {
            credentials::LoginResult::Accepted { user } => PasswordVerdict::Accepted { user },
            credentials::LoginResult::Refused => PasswordVerdict::Refused,
            credentials::LoginResult::Unusable(why) => {
                self.report_unverified(&request.user, &why);
                PasswordVerdict::Refused
            }
            credentials::LoginResult::Throttled => PasswordVerdict::Throttled,
            credentials::LoginResult::Unavailable(why) => {
                self.report_unverified(&request.user, &why);
                PasswordVerdict::Unavailable
            }
        })
    }

    /// The stored SCRAM keys of the user, and where to report the result of the proof.
    pub(crate) async fn scram_keys(
        &self,
        request: &ScramKeysRequest,
        client: Option<IpAddr>,
    ) -> (SessionAnswer, Option<PendingLogin>) {
        let (keys, pending) = match &self.logins {
            None => (ScramKeysAnswer::Unavailable, None),
            Some(logins) => match logins.credentials.find_scram_keys(&request.user, counted_address(client)).await {
                credentials::ScramLookupResult::Found { user, keys, pending } => {
                    (ScramKeysAnswer::Found { user, keys }, Some(pending))
                }
                credentials::ScramLookupResult::Unknown { iterations, unusable, pending } => {
                    unusable.iter().for_each(|why| self.report_unverified(&request.user, why));
                    (ScramKeysAnswer::Unknown { iterations }, Some(pending))
                }
                credentials::ScramLookupResult::Throttled => (ScramKeysAnswer::Throttled, None),
                credentials::ScramLookupResult::Unavailable(why) => {
                    self.report_unverified(&request.user, &why);
                    (ScramKeysAnswer::Unavailable, None)
                }
            },
        };
        let mut octets = [0; Nonce::OCTETS];
        match getrandom(&mut octets, GetRandomFlags::empty()) {
            Ok(_) => (SessionAnswer::Keys { keys, nonce: Nonce::from_random(octets) }, pending),
            Err(error) => {
                self.report_unverified(&request.user, &error.to_string());
                (SessionAnswer::Refuse(replies::DIRECTORY_UNAVAILABLE), pending)
            }
        }
    }

    fn report_unverified(&self, user: &str, why: &str) {
        self.operator_log.log_line(format_args!("cannot check the password of user {user:?}: {why}"));
    }

    /// Logs a login attempt. Its result agrees with the counters of the credentials, if the attempt
    /// reached them.
    pub(crate) fn log_login(
        &self,
        client: Option<IpAddr>,
        helo: &str,
        mechanism: Mechanism,
        user: Box<str>,
        outcome: &SaslOutcome,
    ) {
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
        let event = MailEvent::Login { client, helo: helo.into(), user, mechanism: mechanism.name(), result };
        self.event_log.write(event);
    }

    /// Whether the user may use this sender. The null sender is allowed for everyone.
    pub(crate) async fn check_sender(&self, user: &str, sender: Option<&Address>) -> Result<(), Reply> {
        let table = self.logins.as_ref().and_then(|logins| logins.senders.as_ref());
        let (Some(table), Some(sender)) = (table, sender) else { return Ok(()) };
        match owns(&**table, user, sender).await {
            Ok(()) => Ok(()),
            Err(NotOwned::No) => Err(replies::not_owned(sender, user)),
            Err(NotOwned::Unknown(why)) => {
                self.operator_log.log_line(format_args!("cannot look up the senders of user {user:?}: {why}"));
                Err(replies::DIRECTORY_UNAVAILABLE)
            }
        }
    }
}

async fn owns(table: &dyn Table, user: &str, sender: &Address) -> Result<(), NotOwned> {
    match table.lookup(&[user]).await.pop() {
        Some(lookup::LookupAnswer::Found(values)) if values.iter().any(|value| matches_sender(value, sender)) => Ok(()),
        Some(lookup::LookupAnswer::Found(_) | lookup::LookupAnswer::NotFound) => Err(NotOwned::No),
        Some(lookup::LookupAnswer::Unavailable(why) | lookup::LookupAnswer::Unconfirmed(why)) => {
            Err(NotOwned::Unknown(why))
        }
        None => Err(NotOwned::Unknown(format!("table '{}': no answer", table.name()))),
    }
}

/// Whether a value is this address or its domain.
fn matches_sender(value: &str, sender: &Address) -> bool {
    let (local, domain) = match value.rsplit_once('@') {
        Some(("", domain)) => (None, domain),
        None => (None, value),
        Some((local, domain)) => (Some(local), domain),
    };
    // Parsing normalises addresses, so that they can be compared.
    let allowed = if local.is_some() { value.parse() } else { Address::new("x", domain) };
    let Ok(allowed) = allowed else { return false };
    let same_box = || allowed.unquoted_local_part().to_lowercase() == sender.unquoted_local_part().to_lowercase();
    allowed.domain().eq_ignore_ascii_case(sender.domain()) && (local.is_none() || same_box())
}

/// The address under which a client is counted.
fn counted_address(client: Option<IpAddr>) -> IpAddr {
    client.unwrap_or(UNKNOWN_CLIENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_an_address_or_a_domain_and_has_no_case() {
        let sender: Address = "Bob@example.org".parse().unwrap();
        for value in ["bob@example.org", "BOB@Example.ORG", "@example.org", "Example.org", "\"bob\"@example.org"] {
            assert!(matches_sender(value, &sender), "{value}");
        }
        for value in ["bob@sub.example.org", "alice@example.org", "@org", "sub.example.org", "", "@", "bob", "*"] {
            assert!(!matches_sender(value, &sender), "{value}");
        }
    }
}
