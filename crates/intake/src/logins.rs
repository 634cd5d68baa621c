//! Logins of users: who may log in, and which sender addresses a user may use.
//!
//! Passwords are checked by the [`CredentialChecker`], which does no computation on this thread.
//! Every login attempt is logged with its user, client and result.

use std::net::IpAddr;
use std::sync::Arc;

use credentials::{CredentialChecker, PendingLogin};
use lookup::Table;
use mail::{Address, Reply};
use protocol::sasl::PasswordVerdict;
use protocol::smtp::server::{LoginRequest, ScramKeysRequest, SessionAnswer};

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

impl LoginPolicy {
    /// Whether the user may write as this address.
    ///
    /// # Errors
    ///
    /// The table does not say now. Holds the reason, for the log.
    pub async fn may_use_address(&self, user: &str, address: &Address) -> Result<bool, String> {
        match &self.senders {
            Some(table) => owns(&**table, user, address).await,
            None => Ok(true),
        }
    }
}

impl IntakeContext {
    /// Checks a password.
    pub(crate) async fn verify_password(&self, request: &LoginRequest, client: Option<IpAddr>) -> SessionAnswer {
        let Some(logins) = &self.logins else { return SessionAnswer::Verdict(PasswordVerdict::Unavailable) };
        let LoginRequest { user, password } = request;
        let verdict = logins.credentials.answer_password(user, password, client, &*self.operator_log).await;
        SessionAnswer::Verdict(verdict)
    }

    /// The stored SCRAM keys of the user, and where to report the result of the proof.
    pub(crate) async fn scram_keys(
        &self,
        request: &ScramKeysRequest,
        client: Option<IpAddr>,
    ) -> (SessionAnswer, Option<PendingLogin>) {
        // Without logins, no listener offers AUTH.
        let Some(logins) = &self.logins else { return (SessionAnswer::Refuse(replies::DIRECTORY_UNAVAILABLE), None) };
        let challenge = logins.credentials.answer_scram_keys(&request.user, client, &*self.operator_log).await;
        (SessionAnswer::Keys { keys: challenge.keys, nonce: challenge.nonce }, challenge.pending)
    }

    /// Whether the user may use this sender. The null sender is allowed for everyone.
    pub(crate) async fn check_sender(&self, user: &str, sender: Option<&Address>) -> Result<(), Reply> {
        let (Some(logins), Some(sender)) = (&self.logins, sender) else { return Ok(()) };
        match logins.may_use_address(user, sender).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(replies::not_owned(sender, user)),
            Err(why) => {
                self.operator_log.log_line(format_args!("cannot look up the senders of user {user:?}: {why}"));
                Err(replies::DIRECTORY_UNAVAILABLE)
            }
        }
    }
}

async fn owns(table: &dyn Table, user: &str, sender: &Address) -> Result<bool, String> {
    match table.lookup(&[user]).await.pop() {
        Some(lookup::LookupAnswer::Found(values)) => Ok(values.iter().any(|value| matches_sender(value, sender))),
        Some(lookup::LookupAnswer::NotFound) => Ok(false),
        Some(lookup::LookupAnswer::Unavailable(why) | lookup::LookupAnswer::Unconfirmed(why)) => Err(why),
        None => Err(format!("table '{}': no answer", table.name())),
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
