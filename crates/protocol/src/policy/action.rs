//! What a policy service decides: the actions of Postfix's access(5).

use std::borrow::Cow;
use std::str::FromStr;

use mail::{EnhancedCode, Reply};

use super::restriction::{self, PolicyRestriction};

const REJECT: u16 = 554;
const DEFER: u16 = 450;
const TEXT: &str = "Access denied";

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// DUNNO: nothing to say.
    Dunno,
    /// OK: accept, and ask no more.
    Ok,
    /// REJECT, DEFER, and replies of its own, 4xx or 5xx.
    Refuse(Reply),
    /// DEFER_IF_PERMIT: a deferral, unless the client is refused for another reason.
    DeferIfPermit(Reply),
    /// DEFER_IF_REJECT: a later refusal for another reason becomes this deferral.
    DeferIfReject(Reply),
    /// HOLD.
    Hold,
    /// DISCARD.
    Discard,
    /// PREPEND: a header field as text.
    Prepend(Box<str>),
    /// REDIRECT: all of the message goes to this address instead.
    Redirect(Box<str>),
    /// FILTER: the message goes to this content filter first, `transport:next hop`.
    Filter(Box<str>),
    /// BCC: this address gets the message too.
    Bcc(Box<str>),
    /// INFO and WARN: a text for the log.
    Log(Box<str>),
    /// Names of restrictions, of which the first that decides counts.
    Restrictions(Box<[PolicyRestriction]>),
}

/// The text is no action that this server has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("answered {0:?}, which is not an action of this server")]
pub struct InvalidPolicyAction(Box<str>);

impl PolicyAction {
    /// REJECT without a text.
    pub const REJECT: PolicyAction = PolicyAction::Refuse(Reply::constant(REJECT, EnhancedCode(5, 7, 1), TEXT));
    /// DEFER without a text.
    pub const DEFER: PolicyAction = PolicyAction::Refuse(Reply::constant(DEFER, EnhancedCode(4, 7, 1), TEXT));
}

impl FromStr for PolicyAction {
    type Err = InvalidPolicyAction;

    fn from_str(action: &str) -> Result<Self, InvalidPolicyAction> {
        PolicyAction::parse(action, &|_| false)
    }
}

impl PolicyAction {
    /// Reads an action. A class of rules, as `is_class` knows them, is a restriction, alone or among others.
    ///
    /// # Errors
    ///
    /// The text is no action, or names a restriction without a meaning here.
    pub fn parse(action: &str, is_class: &dyn Fn(&str) -> bool) -> Result<PolicyAction, InvalidPolicyAction> {
        let invalid = || InvalidPolicyAction(action.into());
        let restrictions = || restriction::parse_list(action, is_class).map(PolicyAction::Restrictions);
        if is_class(action.trim()) {
            return restrictions().ok_or_else(invalid);
        }
        let (word, rest) = action.split_once([' ', '\t']).unwrap_or((action, ""));
        let rest = rest.trim();
        let named = || if rest.is_empty() { Err(invalid()) } else { Ok(rest.into()) };
        Ok(match &*word.to_ascii_uppercase() {
            "" | "DUNNO" => PolicyAction::Dunno,
            "OK" => PolicyAction::Ok,
            "REJECT" => PolicyAction::Refuse(reply(REJECT, rest).ok_or_else(invalid)?),
            "DEFER" => PolicyAction::Refuse(reply(DEFER, rest).ok_or_else(invalid)?),
            "DEFER_IF_PERMIT" => PolicyAction::DeferIfPermit(reply(DEFER, rest).ok_or_else(invalid)?),
            "DEFER_IF_REJECT" => PolicyAction::DeferIfReject(reply(DEFER, rest).ok_or_else(invalid)?),
            "HOLD" => PolicyAction::Hold,
            "DISCARD" => PolicyAction::Discard,
            "PREPEND" => PolicyAction::Prepend(named()?),
            "REDIRECT" => PolicyAction::Redirect(named()?),
            "FILTER" => PolicyAction::Filter(filter_destination(rest).ok_or_else(invalid)?),
            "BCC" => PolicyAction::Bcc(named()?),
            "INFO" | "WARN" => PolicyAction::Log(rest.into()),
            number if number.bytes().all(|octet| octet.is_ascii_digit()) => match number.parse() {
                Ok(code @ 400..600) => PolicyAction::Refuse(reply(code, rest).ok_or_else(invalid)?),
                _ => PolicyAction::Ok,
            },
            _ => restrictions().ok_or_else(invalid)?,
        })
    }
}

/// A destination needs the name of a transport.
fn filter_destination(text: &str) -> Option<Box<str>> {
    let (transport, _) = text.split_once(':')?;
    let is_name = !transport.is_empty() && text.bytes().all(|octet| octet.is_ascii_graphic());
    is_name.then(|| text.into())
}

/// The reply with this code, whose text may begin with an enhanced code of its class.
fn reply(code: u16, text: &str) -> Option<Reply> {
    // Clients get ASCII (RFC 5321 section 4.2).
    let text: String = text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect();
    let mut reply: Reply = format!("{code} {text}").parse().ok()?;
    reply.enhanced = reply.enhanced.or(Some(EnhancedCode((code / 100) as u8, 7, 1)));
    if reply.text.is_empty() {
        reply.text = Cow::Borrowed(TEXT);
    }
    Some(reply)
}
