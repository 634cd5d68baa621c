//! The recipients of a transaction after alias expansion, without duplicates and up to a limit. One
//! RCPT may expand to a thousand recipients, so they have a limit of their own beside the one on
//! RCPT commands.

use std::collections::HashSet;

use lookup::directory::ResolvedRecipient;
use mail::{Address, Recipient};
use protocol::smtp::server::RcptRequest;

/// The recipients so far.
#[derive(Default)]
pub(crate) struct RecipientList {
    list: Vec<Recipient>,
    /// The addresses in the list; empty while the list has at most one, the usual case.
    seen: HashSet<Address>,
}

/// The limit would be exceeded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyRecipients;

impl RecipientList {
    /// Adds the new recipients: all of them, or none if that exceeds `count_max`.
    pub(crate) fn add(
        &mut self,
        resolved: Vec<ResolvedRecipient>,
        request: &RcptRequest,
        count_max: usize,
    ) -> Result<(), TooManyRecipients> {
        let before = self.list.len();
        let only = before == 0 && resolved.len() == 1;
        for found in resolved {
            if only || self.insert_seen(&found.address) {
                self.list.push(recipient(found, request));
            }
        }
        if self.list.len() <= count_max {
            return Ok(());
        }
        self.truncate(before);
        Err(TooManyRecipients)
    }

    /// Removes the recipients that were added last, from this number on.
    pub(crate) fn truncate(&mut self, count: usize) {
        for removed in self.list.drain(count.min(self.list.len())..) {
            self.seen.remove(&removed.address);
        }
    }

    /// The number of recipients.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The addresses that were given, before alias expansion.
    pub(crate) fn named(&self) -> Vec<&Address> {
        let mut named: Vec<&Address> = Vec::new();
        for recipient in &self.list {
            let given = recipient.original.as_ref().unwrap_or(&recipient.address);
            // An alias has its recipients one after another.
            if named.last() != Some(&given) {
                named.push(given);
            }
        }
        named
    }

    /// Whether the address is new.
    fn insert_seen(&mut self, address: &Address) -> bool {
        if self.seen.is_empty() {
            self.seen.extend(self.list.iter().map(|recipient| recipient.address.clone()));
        }
        self.seen.insert(address.clone())
    }

    /// The recipient, if there is exactly one.
    pub(crate) fn only(&self) -> Option<&Recipient> {
        match self.list.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Removes an address with all that it resolved to.
    pub(crate) fn remove(&mut self, address: &Address) {
        self.list.retain(|recipient| recipient.address != *address && recipient.original.as_ref() != Some(address));
        self.seen.clear();
    }

    /// The recipients, in the order in which they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Recipient> {
        self.list.iter()
    }

    /// All recipients, in the order in which they were added. Those outside our domains are marked as
    /// forwarded.
    pub(crate) fn into_list(self) -> Vec<Recipient> {
        self.list
    }
}

fn recipient(found: ResolvedRecipient, request: &RcptRequest) -> Recipient {
    Recipient {
        address: found.address,
        original: found.original,
        notify: request.notify,
        orcpt: request.orcpt.clone(),
        is_forwarded: !found.local,
    }
}

#[cfg(test)]
mod tests {
    use mail::DsnNotify;

    use super::*;

    fn add(recipients: &mut RecipientList, names: &[&str]) -> Result<(), TooManyRecipients> {
        let address = |name: &&str| format!("{name}@example.org").parse::<Address>().unwrap();
        let resolved =
            names.iter().map(|name| ResolvedRecipient { address: address(name), original: None, local: true });
        let request = RcptRequest { address: address(&names[0]), notify: DsnNotify::UNSET, orcpt: None };
        recipients.add(resolved.collect(), &request, 3)
    }

    fn names(recipients: RecipientList) -> Vec<String> {
        recipients.into_list().iter().map(|recipient| recipient.address.local_part().to_owned()).collect()
    }

    #[test]
    fn nobody_is_in_it_twice() {
        let mut recipients = RecipientList::default();
        assert_eq!(add(&mut recipients, &["a"]), Ok(()));
        assert!(recipients.seen.is_empty());
        assert_eq!(add(&mut recipients, &["a"]), Ok(()));
        assert_eq!(add(&mut recipients, &["b", "a"]), Ok(()));
        assert_eq!(names(recipients), ["a", "b"]);
    }

    #[test]
    fn those_beyond_the_bound_leave_it_as_it_was() {
        let mut recipients = RecipientList::default();
        assert_eq!(add(&mut recipients, &["a"]), Ok(()));
        assert_eq!(add(&mut recipients, &["b", "a", "c", "d"]), Err(TooManyRecipients));
        assert!(recipients.only().is_some());
        assert_eq!(add(&mut recipients, &["b", "d", "a"]), Ok(()));
        assert_eq!(names(recipients), ["a", "b", "d"]);
    }
}
