//! Variable envelope return paths: a sender address that contains the recipient, so that a bounce
//! shows by its address which recipient it is about. For mail from `news@example.org` to
//! `bob@example.net` it is `news+bob=example.net@example.org`, with Postfix's default delimiters.
//! Our own bounces go to that address too, like those of other servers.

use mail::Address;

/// The sender address for this recipient. None if the local part would be too long (RFC 5321
/// section 4.5.3.1.1): the message then keeps its sender.
pub fn sender_address(sender: &Address, recipient: &Address) -> Option<Address> {
    let local = format!("{}+{}={}", sender.unquoted_local_part(), recipient.unquoted_local_part(), recipient.domain());
    Address::new(&local, sender.domain()).ok()
}
