//! The names of clients and greetings in the DNS, as conditions ask for them. A name that several
//! conditions of a stage need is looked up once, and none that no condition needs.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::join3;
use lookup::directory::other_idn_form;

use super::condition_result::ConditionResult;
use super::keys::client_name_keys;
use super::{ClientNameKey, ClientNameTable, CompiledRule, ConditionMatcher, RhsblSubject};
use crate::check::SessionInfo;

/// The name of this machine as a client, which needs no DNS.
pub(crate) const LOCALHOST: &str = "localhost";
const NO_CLIENT_NAME: &str = "the DNS does not answer for the client's name";

/// An answer to come.
pub type HostNameFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Asks the DNS about names, within a time of its own.
pub trait HostNames: Send + Sync {
    /// The name of a client.
    fn reverse_name(&self, client: IpAddr) -> HostNameFuture<'_, ReverseName>;

    /// Whether a host name, in lower case, has an address or an MX. None: the DNS does not answer.
    fn exists<'a>(&'a self, name: &'a str) -> HostNameFuture<'a, Option<bool>>;

    /// Whether a domain, in lower case, has an address or an MX, and does not say that it accepts no mail
    /// (RFC 7505). None: the DNS does not answer.
    fn accepts_mail<'a>(&'a self, domain: &'a str) -> HostNameFuture<'a, Option<bool>>;
}

/// The name of a client, in lower case and without a trailing dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReverseName {
    /// This name has the client's address (RFC 8601 section 3).
    Confirmed(Box<str>),
    /// It has names, this one first, but none has its address.
    Unconfirmed(Box<str>),
    /// It has none.
    Missing,
    /// The DNS does not answer.
    Unanswered,
}

/// A state that a rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReverseNameState {
    /// The client has no name.
    Missing,
    /// It has names, but none has its address.
    Unconfirmed,
}

impl ReverseNameState {
    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            ReverseNameState::Missing => "missing",
            ReverseNameState::Unconfirmed => "unconfirmed",
        }
    }
}

/// What the conditions of a stage need to know. None: nothing, or nothing is known.
#[derive(Debug, Default)]
pub(super) struct KnownNames {
    client: Option<ReverseName>,
    helo_exists: Option<bool>,
    sender_accepts_mail: Option<bool>,
}

/// Looks up what pending conditions of these rules need.
pub(super) async fn find_names(
    rules: &[&CompiledRule],
    results: &[Vec<ConditionResult>],
    info: &SessionInfo<'_>,
) -> KnownNames {
    let possible = rules.iter().zip(results).filter(|(_, results)| !results.contains(&ConditionResult::Fails));
    let pending = possible.flat_map(|(rule, results)| rule.conditions.iter().zip(results));
    let pending = pending.filter(|(_, result)| **result == ConditionResult::Pending).map(|(condition, _)| condition);
    let tests: Vec<&ConditionMatcher> = pending.map(|condition| &condition.test).collect();
    let of_client = tests.iter().find_map(|test| names_for_client(test)).zip(info.client);
    let of_client = of_client.filter(|(_, client)| !client.is_loopback());
    let of_helo = tests.iter().find_map(|test| match test {
        ConditionMatcher::HeloFault(faults) => Some((&faults.names, faults.host_to_ask(info)?)),
        _ => None,
    });
    let of_sender = tests.iter().find_map(|test| match test {
        ConditionMatcher::SenderFault(faults) => Some((&faults.names, faults.domain_to_ask(info)?)),
        _ => None,
    });
    let client = async {
        let (names, client) = of_client?;
        Some(names.reverse_name(client).await)
    };
    let helo_exists = async {
        let (names, name) = of_helo?;
        names.exists(&name).await
    };
    let sender_accepts_mail = async {
        let (names, domain) = of_sender?;
        names.accepts_mail(&domain).await
    };
    let (client, helo_exists, sender_accepts_mail) = join3(client, helo_exists, sender_accepts_mail).await;
    KnownNames { client, helo_exists, sender_accepts_mail }
}

fn names_for_client(test: &ConditionMatcher) -> Option<&Arc<dyn HostNames>> {
    match test {
        ConditionMatcher::ReverseName(names, _) => Some(names),
        ConditionMatcher::Rhsbl(list) if list.needs_client_name() => Some(&list.names),
        ConditionMatcher::ClientName(table) => Some(&table.names),
        _ => None,
    }
}

impl KnownNames {
    /// The result of a pending condition that is about names; None: it is not.
    pub(super) fn result(&self, test: &ConditionMatcher, info: &SessionInfo<'_>) -> Option<ConditionResult> {
        match test {
            ConditionMatcher::ClientName(table) if self.client_keys(table, info).is_none() => {
                Some(ConditionResult::TableUnavailable(NO_CLIENT_NAME.into()))
            }
            ConditionMatcher::ReverseName(_, states) => Some(self.reverse_name_result(states)),
            ConditionMatcher::HeloFault(_) => Some(unknown_name_result(self.helo_exists, "the HELO name")),
            ConditionMatcher::SenderFault(_) => {
                Some(unknown_name_result(self.sender_accepts_mail, "the domain of the sender"))
            }
            _ => None,
        }
    }

    /// The keys of a table that has names of clients. None: the DNS does not answer.
    pub(super) fn client_keys(&self, table: &ClientNameTable, info: &SessionInfo<'_>) -> Option<Vec<String>> {
        let name = match (&self.client, info.client) {
            (_, Some(client)) if client.is_loopback() => &ReverseName::Confirmed(LOCALHOST.into()),
            (Some(ReverseName::Unanswered), _) => return None,
            (Some(name), _) => name,
            (None, _) => &ReverseName::Missing,
        };
        let (name, client) = match table.key {
            ClientNameKey::ConfirmedNameOrAddress => (name.confirmed_or_unknown(), info.client),
            ClientNameKey::ReverseName => (name.reverse_or_unknown(), None),
        };
        Some(client_name_keys(name, client, table.table.whole_keys_only()))
    }

    /// The name that a DNS list is asked for, in A-labels and printable. None: it is unknown, or no domain.
    pub(super) fn rhsbl_key(&self, subject: RhsblSubject, info: &SessionInfo<'_>) -> Option<String> {
        let name = match (subject, &self.client) {
            (RhsblSubject::Sender, _) => info.sender??.domain(),
            (RhsblSubject::Recipient, _) => info.recipient?.domain(),
            (RhsblSubject::Helo, _) => info.helo?,
            (RhsblSubject::ClientName | RhsblSubject::ReverseName, Some(ReverseName::Confirmed(name)))
            | (RhsblSubject::ReverseName, Some(ReverseName::Unconfirmed(name))) => &**name,
            (RhsblSubject::ClientName | RhsblSubject::ReverseName, _) => return None,
        };
        let name = name.trim_end_matches('.').to_lowercase();
        let name = if name.is_ascii() { name } else { other_idn_form(&name)? };
        let is_domain = name.bytes().all(|b| b.is_ascii_graphic() && b != b'[') && name.parse::<IpAddr>().is_err();
        is_domain.then_some(name)
    }

    fn reverse_name_result(&self, states: &[ReverseNameState]) -> ConditionResult {
        let state = match self.client {
            Some(ReverseName::Missing) => ReverseNameState::Missing,
            Some(ReverseName::Unconfirmed(_)) => ReverseNameState::Unconfirmed,
            Some(ReverseName::Confirmed(_)) => return ConditionResult::Fails,
            Some(ReverseName::Unanswered) | None => {
                return ConditionResult::TableUnavailable(NO_CLIENT_NAME.into());
            }
        };
        if states.contains(&state) { ConditionResult::Holds } else { ConditionResult::Fails }
    }
}

/// The result of a condition on names that the DNS does not know.
fn unknown_name_result(is_known: Option<bool>, what: &str) -> ConditionResult {
    match is_known {
        Some(true) => ConditionResult::Fails,
        Some(false) => ConditionResult::Holds,
        None => ConditionResult::TableUnavailable(format!("the DNS does not answer for {what}")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A DNS that is never asked.
    pub(in super::super) struct NoNames;

    impl HostNames for NoNames {
        fn reverse_name(&self, _client: IpAddr) -> HostNameFuture<'_, ReverseName> {
            Box::pin(std::future::ready(ReverseName::Unanswered))
        }

        fn exists<'a>(&'a self, _name: &'a str) -> HostNameFuture<'a, Option<bool>> {
            Box::pin(std::future::ready(None))
        }

        fn accepts_mail<'a>(&'a self, _domain: &'a str) -> HostNameFuture<'a, Option<bool>> {
            Box::pin(std::future::ready(None))
        }
    }
}
