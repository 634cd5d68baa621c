//! Restrictions: names of Postfix's checks that a policy service may answer instead of an action, several
//! in a row.
//!
//! Those have a meaning here that ask nothing of a table or of the DNS beyond the client's name. A list with
//! another one is invalid as a whole: a part of it could let in what the rest refuses.

use std::str::FromStr;

/// Restrictions of one answer.
const RESTRICTIONS_MAX: usize = 20;

/// A restriction that the mail server evaluates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyRestriction {
    /// permit.
    Permit,
    /// permit_mynetworks.
    PermitNetworks,
    /// permit_sasl_authenticated.
    PermitUsers,
    /// permit_auth_destination.
    PermitAuthDestination,
    /// reject.
    Reject,
    /// defer.
    Defer,
    /// reject_unauth_destination and defer_unauth_destination.
    RejectUnauthDestination,
    /// reject_unknown_client_hostname.
    RejectUnknownClient,
    /// reject_unknown_reverse_client_hostname.
    RejectUnknownReverseClient,
    /// warn_if_reject: if the next one refuses, that is only logged.
    WarnIfReject,
    /// The rules of a class, as one of Postfix's smtpd_restriction_classes.
    Class(Box<str>),
}

impl FromStr for PolicyRestriction {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Ok(match &*name.to_ascii_lowercase() {
            "permit" => PolicyRestriction::Permit,
            "permit_mynetworks" => PolicyRestriction::PermitNetworks,
            "permit_sasl_authenticated" => PolicyRestriction::PermitUsers,
            "permit_auth_destination" => PolicyRestriction::PermitAuthDestination,
            "reject" => PolicyRestriction::Reject,
            "defer" => PolicyRestriction::Defer,
            "reject_unauth_destination" | "defer_unauth_destination" => PolicyRestriction::RejectUnauthDestination,
            "reject_unknown_client_hostname" | "reject_unknown_client" => PolicyRestriction::RejectUnknownClient,
            "reject_unknown_reverse_client_hostname" => PolicyRestriction::RejectUnknownReverseClient,
            "warn_if_reject" => PolicyRestriction::WarnIfReject,
            _ => return Err(()),
        })
    }
}

/// Reads a list, separated by blanks or commas. None: it is empty, too long, or has a name without a meaning.
pub(super) fn parse_list(text: &str, is_class: &dyn Fn(&str) -> bool) -> Option<Box<[PolicyRestriction]>> {
    let names = text.split([' ', '\t', ',']).filter(|name| !name.is_empty());
    let restriction = |name: &str| match is_class(name) {
        true => Some(PolicyRestriction::Class(name.into())),
        false => name.parse().ok(),
    };
    let list: Option<Vec<PolicyRestriction>> = names.map(restriction).collect();
    list.filter(|list| (1..=RESTRICTIONS_MAX).contains(&list.len())).map(Vec::into_boxed_slice)
}
