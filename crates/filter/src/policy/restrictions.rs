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

/// The action that the list comes to, and the refusals before it that are only logged.
pub(super) fn evaluate(
    restrictions: &[PolicyRestriction],
    session: &SessionInfo<'_>,
    client_name: &ReverseName,
) -> (PolicyAction, Vec<PolicyRestriction>) {
    let (mut only_logged, mut warns) = (Vec::new(), false);
    for restriction in restrictions {
        let is_warning = std::mem::replace(&mut warns, *restriction == PolicyRestriction::WarnIfReject);
        match decide(*restriction, session, client_name) {
            PolicyAction::Dunno => {}
            PolicyAction::Refuse(_) if is_warning => only_logged.push(*restriction),
            decided => return (decided, only_logged),
        }
    }
    (PolicyAction::Dunno, only_logged)
}

fn decide(restriction: PolicyRestriction, session: &SessionInfo<'_>, client_name: &ReverseName) -> PolicyAction {
    let permit_if = |holds: bool| if holds { PolicyAction::Ok } else { PolicyAction::Dunno };
    let refuse_if = |holds: bool, reply| if holds { PolicyAction::Refuse(reply) } else { PolicyAction::Dunno };
    match restriction {
        PolicyRestriction::Permit => PolicyAction::Ok,
        PolicyRestriction::PermitNetworks => permit_if(session.submitter == Submitter::RelayNetwork),
        PolicyRestriction::PermitUsers => permit_if(matches!(session.submitter, Submitter::User(_))),
        PolicyRestriction::PermitAuthDestination => permit_if(session.recipient.is_some()),
        PolicyRestriction::Reject => PolicyAction::REJECT,
        PolicyRestriction::Defer => PolicyAction::DEFER,
        PolicyRestriction::RejectUnauthDestination | PolicyRestriction::WarnIfReject => PolicyAction::Dunno,
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
    fn the_first_restriction_that_decides_counts() {
        use PolicyRestriction as R;
        let user = SessionInfo { submitter: Submitter::User("ann"), ..SessionInfo::default() };
        let named = ReverseName::Unconfirmed("forged.test".into());
        let said = |list: &[R]| evaluate(list, &user, &named);
        assert_eq!(said(&[R::PermitNetworks, R::PermitUsers, R::Reject]), (PolicyAction::Ok, vec![]));
        assert_eq!(said(&[R::RejectUnauthDestination, R::PermitNetworks]), (PolicyAction::Dunno, vec![]));
        assert_eq!(said(&[R::RejectUnknownReverseClient, R::Defer]).0, PolicyAction::DEFER);
        assert_eq!(said(&[R::RejectUnknownClient]).0, PolicyAction::Refuse(NO_NAME));
        assert_eq!(said(&[R::WarnIfReject, R::RejectUnknownClient, R::Reject]).0, PolicyAction::REJECT);
        assert_eq!(said(&[R::WarnIfReject, R::Reject]), (PolicyAction::Dunno, vec![R::Reject]));
        assert_eq!(said(&[R::WarnIfReject, R::PermitNetworks, R::Reject]).0, PolicyAction::REJECT);
    }
}
