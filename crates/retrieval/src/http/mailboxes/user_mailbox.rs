//! The mailbox of a user in a session: where it is, and its messages, which are listed again after a
//! short time only. So a browser that sends many requests does not have the folder read for each.

use std::sync::Arc;

use mail::Timestamp;
use mailbox::maildrop::MaildropView;
use net::run_on_disk_thread;
use protocol::http::server::ErrorStatus;

use super::MailboxSettings;
use crate::{MailboxHome, RetrievalContext};

/// The mailbox of one user.
pub(in crate::http) struct UserMailbox {
    /// The name of the user as a table key.
    user: Box<str>,
    recent: Option<RecentListing>,
}

/// A listing that may be used again.
struct RecentListing {
    view: Arc<MaildropView>,
    until: Timestamp,
}

impl UserMailbox {
    /// The user has logged in, under this name as a table key.
    pub(in crate::http) fn new(user: Box<str>) -> UserMailbox {
        UserMailbox { user, recent: None }
    }

    pub(super) fn user(&self) -> &str {
        &self.user
    }

    /// When to call [`expire`](UserMailbox::expire): an idle session has no listing.
    pub(in crate::http) fn expiry(&self) -> Option<Timestamp> {
        self.recent.as_ref().map(|recent| recent.until)
    }

    /// Forgets the listing when its time is over.
    pub(in crate::http) fn expire(&mut self, now: Timestamp) {
        self.recent.take_if(|recent| recent.until <= now);
    }

    /// The messages.
    pub(super) async fn view(
        &mut self,
        settings: &MailboxSettings,
        now: Timestamp,
        context: &RetrievalContext,
    ) -> Result<Arc<MaildropView>, ErrorStatus> {
        self.expire(now);
        if let Some(recent) = &self.recent {
            return Ok(Arc::clone(&recent.view));
        }
        let view = Arc::new(self.list(settings, context).await?);
        let until = net::steady_now() + settings.limits.listing_time;
        self.recent = Some(RecentListing { view: Arc::clone(&view), until });
        Ok(view)
    }

    async fn list(&self, settings: &MailboxSettings, context: &RetrievalContext) -> Result<MaildropView, ErrorStatus> {
        let (user, log) = (&*self.user, &context.operator_log);
        let folder = match context.mailboxes.locate(user).await {
            MailboxHome::Here(folder) => folder,
            MailboxHome::OtherHost(_) => return Err(ErrorStatus::Forbidden),
            MailboxHome::Unknown => return Err(ErrorStatus::NotFound),
            MailboxHome::Unavailable(why) => {
                log.log_line(format_args!("cannot look up the mailbox of user {user:?}: {why}"));
                return Err(ErrorStatus::Unavailable);
            }
        };
        let lock_timeout = settings.lock_timeout;
        let listed = run_on_disk_thread(move || MaildropView::open(&folder, lock_timeout)).await;
        let view = listed.flatten().map_err(|error| {
            log.log_line(format_args!("cannot open the mailbox of user {user:?}: {error}"));
            ErrorStatus::Unavailable
        })?;
        for warning in view.warnings() {
            log.log_line(format_args!("mailbox of user {user:?}: {warning}"));
        }
        Ok(view)
    }
}
