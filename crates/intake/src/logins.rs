//! Logins of users: checks passwords, and which sender addresses a user may use.
//!
//! Passwords are checked by the [`Credentials`], which do no computation on this thread. Passwords
//! are never logged; every login attempt is logged with its user, client and result.

use std::net::IpAddr;
use std::sync::Arc;

use lookup::Table;
use lookup::credentials::{self, Credentials, Pending};
use mail::{Address, Fact, Reply};
use protocol::sasl::{Keys, Mechanism, Nonce, Outcome, Refusal, Verdict};
use protocol::smtp::server::{Answer, KeysRequest, LoginRequest};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::standing::UNKNOWN_CLIENT;
use crate::{Desk, replies};

/// Who may log in, and with what rights. Clones share the credentials.
#[derive(Clone)]
pub struct Logins {
    /// The users and their passwords.
    pub credentials: Credentials,
    /// The senders each user may use in MAIL: addresses, and domains with or without `@` for all
    /// addresses in them. None: any.
    pub senders: Option<Arc<dyn Table>>,
    /// Whether Received lines contain the user name.
    pub traced: bool,
}

/// Why a user may not use a sender.
enum NotOwned {
    No,
    Unknown(String),
}

impl Desk {
    /// Checks a password.
    pub(crate) async fn verify(&self, request: &LoginRequest, client: Option<IpAddr>) -> Answer {
        let Some(logins) = &self.logins else { return Answer::Verdict(Verdict::Unavailable) };
        let password = request.password.reveal();
        let verdict = logins.credentials.verify(&request.user, password, address(client)).await;
        Answer::Verdict(match verdict {
            credentials::Verdict::Accepted { user } => Verdict::Accepted { user },
            credentials::Verdict::Refused => Verdict::Refused,
            credentials::Verdict::Unusable(why) => {
                self.report_unverified(&request.user, &why);
                Verdict::Refused
            }
            credentials::Verdict::Throttled => Verdict::Throttled,
            credentials::Verdict::Unavailable(why) => {
                self.report_unverified(&request.user, &why);
                Verdict::Unavailable
            }
        })
    }

    /// The stored SCRAM keys of the user, and where to report the result of the proof.
    pub(crate) async fn keys(&self, request: &KeysRequest, client: Option<IpAddr>) -> (Answer, Option<Pending>) {
        let (keys, pending) = match &self.logins {
            None => (Keys::Unavailable, None),
            Some(logins) => match logins.credentials.scram(&request.user, address(client)).await {
                credentials::Scram::Found { user, keys, pending } => (Keys::Found { user, keys }, Some(pending)),
                credentials::Scram::Unknown { iterations, unusable, pending } => {
                    unusable.iter().for_each(|why| self.report_unverified(&request.user, why));
                    (Keys::Unknown { iterations }, Some(pending))
                }
                credentials::Scram::Throttled => (Keys::Throttled, None),
                credentials::Scram::Unavailable(why) => {
                    self.report_unverified(&request.user, &why);
                    (Keys::Unavailable, None)
                }
            },
        };
        let mut octets = [0; Nonce::OCTETS];
        match getrandom(&mut octets, GetRandomFlags::empty()) {
            Ok(_) => (Answer::Keys { keys, nonce: Nonce::from_random(octets) }, pending),
            Err(error) => {
                self.report_unverified(&request.user, &error.to_string());
                (Answer::Refuse(replies::DIRECTORY_DOWN), pending)
            }
        }
    }

    fn report_unverified(&self, user: &str, why: &str) {
        self.troubles.report(format_args!("cannot check the password of user {user:?}: {why}"));
    }

    /// Logs a login attempt. Its result agrees with the counters of the credentials, if the attempt
    /// reached them.
    pub(crate) fn tell_login(
        &self,
        client: Option<IpAddr>,
        helo: &str,
        mechanism: Mechanism,
        user: Box<str>,
        outcome: &Outcome,
    ) {
        let result = match outcome {
            Outcome::Accepted { .. } => "ok",
            Outcome::Refused(Refusal::Throttled) => "throttled",
            Outcome::Refused(Refusal::Unavailable) => "unavailable",
            Outcome::Refused(Refusal::Cancelled) => "cancelled",
            Outcome::Refused(Refusal::Credentials) => "refused",
            Outcome::Refused(
                Refusal::Malformed
                | Refusal::TooLong
                | Refusal::LineTooLong
                | Refusal::Unprepared
                | Refusal::Authzid
                | Refusal::Unsupported,
            ) => "malformed",
        };
        let fact = Fact::Login { client, helo: helo.into(), user, mechanism: mechanism.name(), result };
        self.journal.write(fact);
    }

    /// Whether the user may use this sender. The null sender is allowed for everyone.
    pub(crate) async fn check_sender(&self, user: &str, sender: Option<&Address>) -> Result<(), Reply> {
        let table = self.logins.as_ref().and_then(|logins| logins.senders.as_ref());
        let (Some(table), Some(sender)) = (table, sender) else { return Ok(()) };
        match owns(&**table, user, sender).await {
            Ok(()) => Ok(()),
            Err(NotOwned::No) => Err(replies::not_owned(sender, user)),
            Err(NotOwned::Unknown(why)) => {
                self.troubles.report(format_args!("cannot look up the senders of user {user:?}: {why}"));
                Err(replies::DIRECTORY_DOWN)
            }
        }
    }
}

async fn owns(table: &dyn Table, user: &str, sender: &Address) -> Result<(), NotOwned> {
    match table.lookup(&[user]).await.pop() {
        Some(lookup::Answer::Found(values)) if values.iter().any(|value| is_meant(value, sender)) => Ok(()),
        Some(lookup::Answer::Found(_) | lookup::Answer::NotFound) => Err(NotOwned::No),
        Some(lookup::Answer::Unavailable(why) | lookup::Answer::Unconfirmed(why)) => Err(NotOwned::Unknown(why)),
        None => Err(NotOwned::Unknown(format!("table '{}': no answer", table.name()))),
    }
}

/// Whether a value is this address or its domain.
fn is_meant(value: &str, sender: &Address) -> bool {
    let (local, domain) = match value.rsplit_once('@') {
        Some(("", domain)) => (None, domain),
        None => (None, value),
        Some((local, domain)) => (Some(local), domain),
    };
    // Parsing normalises addresses, so that they can be compared.
    let meant = if local.is_some() { value.parse() } else { Address::new("x", domain) };
    let Ok(meant) = meant else { return false };
    let same_box = || meant.mailbox_name().to_lowercase() == sender.mailbox_name().to_lowercase();
    meant.domain().eq_ignore_ascii_case(sender.domain()) && (local.is_none() || same_box())
}

/// The address under which a client is counted.
fn address(client: Option<IpAddr>) -> IpAddr {
    client.unwrap_or(UNKNOWN_CLIENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_an_address_or_a_domain_and_has_no_case() {
        let sender: Address = "Bob@example.org".parse().unwrap();
        for value in ["bob@example.org", "BOB@Example.ORG", "@example.org", "Example.org", "\"bob\"@example.org"] {
            assert!(is_meant(value, &sender), "{value}");
        }
        for value in ["bob@sub.example.org", "alice@example.org", "@org", "sub.example.org", "", "@", "bob", "*"] {
            assert!(!is_meant(value, &sender), "{value}");
        }
    }
}
