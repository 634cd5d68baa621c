//! Addresses without their tags, as rules also see them.

use lookup::directory::RecipientDirectory;
use mail::Address;

use crate::check::SessionInfo;

/// The sender and recipient without their address tags, if they have some.
pub struct UntaggedAddresses {
    sender: Option<Address>,
    recipient: Option<Address>,
}

impl UntaggedAddresses {
    /// Removes the address tags, which only the directory can recognise. While it is unavailable,
    /// no tags are removed.
    pub async fn of_session(session: &SessionInfo<'_>, directory: &RecipientDirectory) -> UntaggedAddresses {
        UntaggedAddresses {
            sender: untagged(session.sender.flatten(), directory).await,
            recipient: untagged(session.recipient, directory).await,
        }
    }

    /// The same session, with these addresses filled in.
    pub fn add_to_session_info<'a>(&'a self, session: &SessionInfo<'a>) -> SessionInfo<'a> {
        SessionInfo { sender_untagged: self.sender.as_ref(), recipient_untagged: self.recipient.as_ref(), ..*session }
    }
}

async fn untagged(address: Option<&Address>, directory: &RecipientDirectory) -> Option<Address> {
    directory.strip_tag(address?).await
}
