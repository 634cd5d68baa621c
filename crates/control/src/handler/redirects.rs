//! Redirects: kept in their file, and then followed by all routes.

use super::{ControlError, ControlHandler, ControlResult, now};
use crate::redirects::{EndRedirectRequest, InvalidRedirect, Redirect};
use crate::request::ControlRequest;

/// Redirects at a time.
const REDIRECTS_MAX: usize = 1000;

impl From<InvalidRedirect> for ControlError {
    fn from(error: InvalidRedirect) -> Self {
        ControlError::Refused(error.to_string())
    }
}

impl ControlHandler {
    /// The redirects in force.
    pub(crate) fn redirects(&self) -> Vec<Redirect> {
        self.shared.redirects.list()
    }

    /// Begins a redirect, or changes one that is in force.
    pub(crate) fn redirect(&self, caller: &str, request: Redirect) -> ControlResult<()> {
        let order = ControlRequest::Redirect(request.clone());
        self.logged_as_done(caller, &order, || {
            let redirect = Redirect { from: request.from.folded(), ..request };
            if !self.parts.explainer.is_remote_transport(redirect.transport()) {
                let text = format!("no transport {:?} that delivers by SMTP or LMTP", redirect.transport());
                return Err(ControlError::Refused(text));
            }
            let kept = self.shared.redirects.change(|listed| {
                if listed.len() >= REDIRECTS_MAX && !listed.contains_key(&redirect.from) {
                    let text = format!("{REDIRECTS_MAX} redirects are in force: end some of them first");
                    return Err(ControlError::Refused(text));
                }
                listed.insert(redirect.from.clone(), redirect);
                Ok::<_, ControlError>(())
            })?;
            self.use_new_routes()?;
            kept.map_err(ControlError::NotKept)
        })
    }

    /// Ends a redirect.
    pub(crate) fn end_redirect(&self, caller: &str, request: EndRedirectRequest) -> ControlResult<()> {
        let order = ControlRequest::EndRedirect(request.clone());
        self.logged_as_done(caller, &order, || {
            let from = request.from.folded();
            let kept = self.shared.redirects.change(|listed| match listed.remove(&from) {
                Some(_) => Ok(()),
                None => Err(ControlError::NotFound("it is not redirected: see `mailrace queue redirects`".into())),
            })?;
            self.use_new_routes()?;
            kept.map_err(ControlError::NotKept)
        })
    }

    /// All routes are resolved again, and mail that goes elsewhere now is due.
    fn use_new_routes(&self) -> ControlResult<()> {
        self.with_queues(|queues| queues.invalidate_routes(now()))
    }
}
