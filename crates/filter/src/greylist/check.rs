//! Asks the greylist about a recipient.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use lookup::fold_key;
use mail::{Address, EnhancedCode, Reply};

use super::Greylist;
use super::file::seconds_since_1970;
use super::state::{GreylistVerdict, Triplet};
use crate::check::{Check, CheckFuture, Decision, Refusal, SessionInfo, Submitter, Verdict};
use crate::key_digest::KeyDigest;

impl Check for Arc<Greylist> {
    fn rcpt<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(async move { self.check(session, seconds_since_1970(SystemTime::now())) })
    }
}

impl Greylist {
    fn check(&self, session: &SessionInfo<'_>, now: u64) -> Verdict {
        let Some(triplet) = self.triplet(session) else { return Verdict::default() };
        let (verdict, wait) = self.memory.state.lock().check(triplet, &self.settings, now);
        self.memory.counts[verdict as usize].fetch_add(1, Relaxed);
        match verdict {
            GreylistVerdict::Deferred => Decision::Refuse(Refusal { by: "greylist".into(), reply: reply(wait) }).into(),
            GreylistVerdict::Passed | GreylistVerdict::Known | GreylistVerdict::Unrecorded => Verdict::default(),
        }
    }

    /// None: the recipient need not wait.
    fn triplet(&self, session: &SessionInfo<'_>) -> Option<Triplet> {
        let (client, recipient, listener) = (session.client?, session.recipient?, session.listener?);
        let is_listener = self.settings.listeners.is_empty() || self.settings.listeners.contains(&listener);
        let is_stranger = session.submitter == Submitter::Stranger && !session.is_user;
        let is_exempt = self.settings.exempt.contains(client) || (self.exempt_recipients)(recipient);
        (is_listener && is_stranger && !is_exempt).then(|| self.triplet_of(client, session.sender.flatten(), recipient))
    }

    fn triplet_of(&self, client: IpAddr, sender: Option<&Address>, recipient: &Address) -> Triplet {
        let network = self.settings.prefixes.network(client).to_string();
        let (sender, recipient) = (sender.map_or_else(String::new, stable_form), fold_key(recipient.as_str()));
        Triplet { key: KeyDigest::of(&[&network, &sender, &recipient]), client: KeyDigest::of(&[&network]) }
    }
}

/// A sender without its tag, and with each number in its local part replaced by `#`: lists and senders of
/// bulk mail use an address of its own for each message (VERP).
fn stable_form(sender: &Address) -> String {
    let local = sender.local_part();
    let untagged = local.split_once('+').map_or(local, |(before, _)| before);
    let mut form = String::new();
    for c in untagged.chars() {
        match c.is_ascii_digit() {
            true if form.ends_with('#') => {}
            true => form.push('#'),
            false => form.push(c),
        }
    }
    fold_key(&format!("{form}@{}", sender.domain()))
}

fn reply(wait: u64) -> Reply {
    Reply::new(450, EnhancedCode(4, 7, 1), format!("Greylisted, try again in {wait} seconds"))
}

#[cfg(test)]
mod tests {
    use super::super::{GreylistMemory, GreylistSettings};
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn greylist() -> Greylist {
        let exempt = "192.0.2.0/28".parse().unwrap();
        Greylist {
            settings: GreylistSettings { exempt, ..GreylistSettings::default() },
            exempt_recipients: Arc::new(|recipient: &Address| recipient.local_part() == "postmaster"),
            memory: Arc::new(GreylistMemory::default()),
        }
    }

    fn try_mail(greylist: &Greylist, client: &str, sender: &str, recipient: &str, now: u64) -> String {
        let (sender, recipient): (Option<Address>, Address) = (sender.parse().ok(), recipient.parse().unwrap());
        let session = SessionInfo {
            client: client.parse().ok(),
            listener: "127.0.0.1:25".parse().ok(),
            sender: Some(sender.as_ref()),
            recipient: Some(&recipient),
            ..SessionInfo::default()
        };
        match greylist.check(&session, now).decision {
            Decision::Refuse(refusal) => refusal.reply.to_string(),
            _ => "passed".to_owned(),
        }
    }

    #[test]
    fn an_unknown_sender_waits_whichever_host_of_its_network_tries_again() {
        let greylist = greylist();
        let send = |client, after| try_mail(&greylist, client, "a@a.example", "bob@example.org", NOW + after);
        assert_eq!(send("192.0.2.77", 0), "450 4.7.1 Greylisted, try again in 300 seconds");
        assert_eq!(send("192.0.2.78", 100), "450 4.7.1 Greylisted, try again in 200 seconds");
        assert_eq!(send("198.51.100.1", 300), "450 4.7.1 Greylisted, try again in 300 seconds");
        assert_eq!(send("192.0.2.79", 300), "passed");
        let stats = greylist.memory.stats();
        assert_eq!(stats.results, [("deferred", 3), ("passed", 1), ("known", 0), ("unrecorded", 0)]);
        assert_eq!(stats.entries, [("waiting", 1), ("passed", 1), ("clients", 1)]);
    }

    #[test]
    fn an_address_for_each_message_is_one_sender() {
        let greylist = greylist();
        let send = |sender, after| try_mail(&greylist, "192.0.2.77", sender, "bob@example.org", NOW + after);
        assert!(send("list-bounce-123+x@a.example", 0).starts_with("450"));
        assert!(send("list-other-123@a.example", 300).starts_with("450"));
        assert_eq!(send("List-Bounce-98765+y@A.example", 300), "passed");
        assert!(send("", 300).starts_with("450"), "the null sender");
    }

    #[test]
    fn exempt_clients_recipients_and_users_do_not_wait() {
        let greylist = greylist();
        assert_eq!(try_mail(&greylist, "192.0.2.1", "a@a.example", "bob@example.org", NOW), "passed");
        assert_eq!(try_mail(&greylist, "192.0.2.77", "a@a.example", "postmaster@example.org", NOW), "passed");
        let recipient: Address = "bob@example.org".parse().unwrap();
        for submitter in [Submitter::User("bob"), Submitter::RelayNetwork] {
            let session = SessionInfo {
                client: "192.0.2.77".parse().ok(),
                listener: "127.0.0.1:25".parse().ok(),
                recipient: Some(&recipient),
                submitter,
                ..SessionInfo::default()
            };
            assert_eq!(greylist.check(&session, NOW), Verdict::default());
        }
    }
}
