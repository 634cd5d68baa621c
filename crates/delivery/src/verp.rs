//! Variable envelope return paths: a sender that names the recipient, so that whoever gets a bounce back knows of
//! whom it is without reading it. `news@example.org` to `bob@example.net` becomes
//! `news+bob=example.net@example.org`, with the delimiters that Postfix has by default. Our own bounces go there as well as
//! those of other servers, so that the sender need not read any of them.

use mail::Address;

/// The sender for this recipient alone. None where the local part would be too long (RFC 5321 section 4.5.3.1.1):
/// then the message leaves with the sender that it has.
pub fn address(sender: &Address, recipient: &Address) -> Option<Address> {
    let local = format!("{}+{}={}", sender.mailbox_name(), recipient.mailbox_name(), recipient.domain());
    Address::new(&local, sender.domain()).ok()
}
