//! Evaluates the restrictions that a policy service names instead of an action.
//!
//! Policy services are asked last, about recipients that exist and that the client may send to: a recipient
//! without the right to be relayed to never gets here.

use mail::{EnhancedCode, Reply};
use protocol::policy::{PolicyAction, PolicyRestriction};

use crate::access::ReverseName;
use crate::check::{SessionInfo, Submitter};

/// As in Postfix: the name may only be missing for a while.
const NO_NAME: Reply = Reply::constant(450, EnhancedCode(4, 7, 25), "Client host rejected: cannot find your hostname");
const NO_REVERSE_NAME: Reply =
    Reply::constant(450, EnhancedCode(4, 7, 25), "Client host rejected: cannot find your reverse hostname");

/// What a restriction comes to. Those that only others give a meaning to come to nothing.
pub(super) fn decide(
    restriction: &PolicyRestriction,
    session: &SessionInfo<'_>,
    client_name: &ReverseName,
) -> PolicyAction {
    let permit_if = |holds: bool| if holds { PolicyAction::Ok } else { PolicyAction::Dunno };
    let refuse_if = |holds: bool, reply| if holds { PolicyAction::Refuse(reply) } else { PolicyAction::Dunno };
    match restriction {
        PolicyRestriction::Permit => PolicyAction::Ok,
        PolicyRestriction::PermitNetworks => permit_if(session.submitter == Submitter::RelayNetwork),
        PolicyRestriction::PermitUsers => permit_if(matches!(session.submitter, Submitter::User(_))),
        PolicyRestriction::PermitAuthDestination => permit_if(session.recipient.is_some()),
        PolicyRestriction::Reject => PolicyAction::REJECT,
        PolicyRestriction::Defer => PolicyAction::DEFER,
        PolicyRestriction::RejectUnauthDestination | PolicyRestriction::WarnIfReject | PolicyRestriction::Class(_) => {
            PolicyAction::Dunno
        }
        PolicyRestriction::RejectUnknownClient => refuse_if(!matches!(client_name, ReverseName::Confirmed(_)), NO_NAME),
        PolicyRestriction::RejectUnknownReverseClient => {
            let is_unknown = matches!(client_name, ReverseName::Missing | ReverseName::Unanswered);
            refuse_if(is_unknown, NO_REVERSE_NAME)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restrictions_know_the_session() {
        use PolicyRestriction as R;
        let user = SessionInfo { submitter: Submitter::User("ann"), ..SessionInfo::default() };
        let named = ReverseName::Unconfirmed("forged.test".into());
        for (restriction, expected) in [
            (R::Permit, PolicyAction::Ok),
            (R::PermitNetworks, PolicyAction::Dunno),
            (R::PermitUsers, PolicyAction::Ok),
            (R::PermitAuthDestination, PolicyAction::Dunno),
            (R::Reject, PolicyAction::REJECT),
            (R::Defer, PolicyAction::DEFER),
            (R::RejectUnauthDestination, PolicyAction::Dunno),
            (R::RejectUnknownClient, PolicyAction::Refuse(NO_NAME)),
            (R::RejectUnknownReverseClient, PolicyAction::Dunno),
        ] {
            assert_eq!(decide(&restriction, &user, &named), expected, "{restriction:?}");
        }
    }
}
