//! Asks the limits at the stages of a session, and words their refusals.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mail::{EnhancedCode, Reply, Shortfall};

use super::{LimitSubject, Quantity, RateLimits, RunningLimit};
use crate::check::{Check, CheckFuture, CheckedMessage, Decision, Refusal, SessionInfo, Verdict};
use crate::key_digest::KeyDigest;

impl Check for Arc<RateLimits> {
    fn mail<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(async move { self.check_mail(session, Instant::now()) })
    }

    fn rcpt<'a>(&'a mut self, session: &'a SessionInfo<'a>) -> CheckFuture<'a> {
        Box::pin(async move { self.count(session, Quantity::Recipients, 1, Instant::now()) })
    }

    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        let octets = message.prefix().len() as u64 + message.content_len();
        Box::pin(async move { self.count(session, Quantity::Bytes, octets, Instant::now()) })
    }
}

impl RateLimits {
    /// The size that the client declares is not counted yet: the message may be shorter.
    fn check_mail(&self, session: &SessionInfo<'_>, now: Instant) -> Verdict {
        let octets = session.mail.and_then(|mail| mail.size).unwrap_or(0).max(1);
        match self.check(session, Quantity::Bytes, octets, now) {
            Ok(_) => self.count(session, Quantity::Messages, 1, now),
            Err(refusal) => Decision::Refuse(refusal).into(),
        }
    }

    /// Counts the cost in all limits that apply, or in none.
    fn count(&self, session: &SessionInfo<'_>, quantity: Quantity, cost: u64, now: Instant) -> Verdict {
        match self.check(session, quantity, cost, now) {
            Ok(keys) => {
                for (limit, key) in keys {
                    limit.count(key, quantity, cost, now);
                    let shared = self.shared.get().into_iter();
                    shared.for_each(|others| others.count(&limit.settings.name, quantity, key.0, cost));
                }
                Verdict::default()
            }
            Err(refusal) => Decision::Refuse(refusal).into(),
        }
    }

    /// The limits that apply, with their keys.
    ///
    /// # Errors
    ///
    /// One of them does not allow the cost.
    fn check(
        &self,
        session: &SessionInfo<'_>,
        quantity: Quantity,
        cost: u64,
        now: Instant,
    ) -> Result<Vec<(&RunningLimit, KeyDigest)>, Refusal> {
        let limits = self.limits.iter().filter(|limit| limit.allowance(quantity).is_some());
        let applying = limits.filter_map(|limit| Some((limit, limit.settings.key(session)?)));
        applying.map(|(limit, key)| limit.check(key, quantity, cost, now).map(|()| (limit, key))).collect()
    }
}

impl RunningLimit {
    fn check(&self, key: KeyDigest, quantity: Quantity, cost: u64, now: Instant) -> Result<(), Refusal> {
        let Some(allowance) = self.allowance(quantity) else { return Ok(()) };
        let checked = self.usage(quantity).lock().check(key, allowance, cost, now);
        checked.map(drop).map_err(|shortfall| {
            self.count_refusal(quantity);
            Refusal { by: format!("limit {}", self.settings.name).into(), reply: self.reply(quantity, shortfall) }
        })
    }

    pub(super) fn count(&self, key: KeyDigest, quantity: Quantity, cost: u64, now: Instant) {
        if let Some(allowance) = self.allowance(quantity) {
            self.usage(quantity).lock().count(key, allowance, cost, self.settings.keys_max, now);
        }
    }

    fn reply(&self, quantity: Quantity, shortfall: Shortfall) -> Reply {
        let (name, what) = (&self.settings.name, quantity.name());
        let whose = match self.settings.subject {
            LimitSubject::User => "by this user",
            LimitSubject::Sender => "from this sender",
            LimitSubject::SenderDomain => "from this domain",
            LimitSubject::Client(_) => "from your network",
            LimitSubject::Listener => "at once",
        };
        let wait = match shortfall {
            Shortfall::Never => {
                return Reply::new(552, EnhancedCode(5, 3, 4), format!("Message larger than limit {name} ever allows"));
            }
            Shortfall::Wait(wait) => whole_seconds(wait),
        };
        let code = if quantity == Quantity::Messages { 450 } else { 452 };
        let text = format!("Too many {what} {whose} (limit {name}), try again in {wait} seconds");
        Reply::new(code, EnhancedCode(4, 7, 1), text)
    }
}

/// Rounded up, so that a client that waits so long is not too early.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use mail::{Address, Allowance};
    use protocol::smtp::server::MailRequest;

    use super::*;
    use crate::check::Submitter;
    use crate::key_digest::ClientPrefixes;
    use crate::limits::{KEYS_MAX, LimitSettings};

    const HOUR: Duration = Duration::from_secs(3600);

    fn limit(subject: LimitSubject, amounts: [u64; 3]) -> LimitSettings {
        let allowance = |amount| (amount > 0).then_some(Allowance { amount, per: HOUR });
        LimitSettings {
            name: "l".into(),
            subject,
            allowances: amounts.map(allowance),
            listeners: Vec::new(),
            exempt: "192.0.2.128/25".parse().unwrap(),
            exempt_users: vec!["News".into()],
            users: true,
            keys_max: KEYS_MAX,
        }
    }

    fn limits(limits: &[LimitSettings]) -> RateLimits {
        RateLimits::new(limits, None).unwrap()
    }

    fn session<'a>(client: &str, submitter: Submitter<'a>, sender: Option<&'a Address>) -> SessionInfo<'a> {
        let listener: SocketAddr = "127.0.0.1:25".parse().unwrap();
        let (client, listener) = (client.parse().ok(), Some(listener));
        SessionInfo { client, listener, submitter, sender: Some(sender), ..SessionInfo::default() }
    }

    fn reply(verdict: &Verdict) -> String {
        match &verdict.decision {
            Decision::Refuse(refusal) => format!("{}: {}", refusal.by, refusal.reply),
            _ => String::new(),
        }
    }

    #[test]
    fn what_is_used_on_another_server_counts_here() {
        struct Other(RateLimits, Instant);
        impl super::super::SharedUsage for Other {
            fn count(&self, limit: &str, quantity: Quantity, key: [u8; 16], cost: u64) {
                self.0.count_elsewhere(limit, quantity, key, cost, self.1);
            }
        }
        let now = Instant::now();
        let (here, other) =
            (limits(&[limit(LimitSubject::User, [2, 0, 0])]), limits(&[limit(LimitSubject::User, [2, 0, 0])]));
        let other = Arc::new(Other(other, now));
        here.share_usage(other.clone());
        let bob = session("192.0.2.1", Submitter::User("bob"), None);
        assert_eq!(reply(&here.count(&bob, Quantity::Messages, 2, now)), "");
        assert!(reply(&other.0.count(&bob, Quantity::Messages, 1, now)).contains("Too many messages"));
        let eve = session("192.0.2.1", Submitter::User("eve"), None);
        assert_eq!(reply(&other.0.count(&eve, Quantity::Messages, 1, now)), "");
    }

    #[test]
    fn a_user_has_an_allowance_whatever_the_client_and_the_spelling() {
        let (limits, now) = (limits(&[limit(LimitSubject::User, [2, 0, 0])]), Instant::now());
        let send = |client, user| reply(&limits.check_mail(&session(client, Submitter::User(user), None), now));
        assert_eq!([send("192.0.2.1", "bob"), send("192.0.2.2", "BOB")], ["", ""]);
        let refused = send("192.0.2.3", "bob");
        assert_eq!(refused, "limit l: 450 4.7.1 Too many messages by this user (limit l), try again in 1800 seconds");
        assert_eq!([send("192.0.2.200", "bob"), send("192.0.2.3", "eve")], ["", ""]);
        assert!((0..9).all(|_| send("192.0.2.3", "news").is_empty()), "an exempt user is limited");
        let stranger = session("192.0.2.1", Submitter::Stranger, None);
        assert!((0..9).all(|_| reply(&limits.check_mail(&stranger, now)).is_empty()));
    }

    #[test]
    fn a_network_and_a_sender_have_theirs() {
        let now = Instant::now();
        let prefixes = ClientPrefixes { v4: 24, v6: 48 };
        let networks = limits(&[limit(LimitSubject::Client(prefixes), [0, 1, 0])]);
        let add = |client| {
            let session = session(client, Submitter::Stranger, None);
            reply(&networks.count(&session, Quantity::Recipients, 1, now))
        };
        assert_eq!([add("192.0.2.1"), add("192.0.3.1"), add("2001:db8::1")], ["", "", ""]);
        assert!(add("192.0.2.2").contains("452 4.7.1 Too many recipients from your network"));
        assert!(add("2001:db8:0:ffff::2").contains("4.7.1"));
        let senders = limits(&[limit(LimitSubject::SenderDomain, [1, 0, 0])]);
        let send = |sender: Option<&Address>| {
            reply(&senders.check_mail(&session("192.0.2.1", Submitter::Stranger, sender), now))
        };
        let (bob, eve): (Address, Address) = ("bob@a.example".parse().unwrap(), "eve@A.example".parse().unwrap());
        assert_eq!([send(Some(&bob)), send(None), send(None)], ["", "", ""]);
        assert!(send(Some(&eve)).contains("from this domain"));
    }

    /// A stranger who claimed to be bob kept him from sending, and bob had more with each tag.
    #[test]
    fn strangers_use_up_nothing_of_users_and_tags_give_users_nothing() {
        let now = Instant::now();
        for subject in [LimitSubject::Sender, LimitSubject::SenderDomain] {
            let limits = limits(&[limit(subject, [2, 0, 0])]);
            let send = |submitter, sender: &str| {
                let sender: Address = sender.parse().unwrap();
                reply(&limits.check_mail(&session("192.0.2.1", submitter, Some(&sender)), now)).is_empty()
            };
            let stranger = || (0..3).map(|_| send(Submitter::Stranger, "bob@a.example")).collect::<Vec<_>>();
            assert_eq!(stranger(), [true, true, false], "{subject:?}");
            let bob = |sender| send(Submitter::User("bob"), sender);
            assert_eq!([bob("bob+a@a.example"), bob("Bob@A.example"), bob("bob+b@a.example")], [true, true, false]);
            assert!(!send(Submitter::RelayNetwork, "bob@a.example"), "{subject:?}");
        }
    }

    #[test]
    fn bytes_are_promised_at_mail_and_counted_at_the_end() {
        let (limits, now) = (limits(&[limit(LimitSubject::Listener, [0, 0, 1000])]), Instant::now());
        let send = |size| {
            let mail = MailRequest {
                sender: None,
                size: Some(size),
                body_type: Default::default(),
                smtputf8: false,
                ret: None,
                envid: None,
                auth: None,
            };
            let session = SessionInfo { mail: Some(&mail), ..session("192.0.2.1", Submitter::Stranger, None) };
            let promised = reply(&limits.check_mail(&session, now));
            if promised.is_empty() { reply(&limits.count(&session, Quantity::Bytes, size, now)) } else { promised }
        };
        assert_eq!([send(600), send(400)], ["", ""]);
        assert!(send(400).contains("452 4.7.1 Too many bytes"), "{}", send(400));
        assert_eq!(send(1001), "limit l: 552 5.3.4 Message larger than limit l ever allows");
    }

    #[test]
    fn what_one_limit_refuses_counts_in_none() {
        let narrow = limit(LimitSubject::User, [1, 0, 0]);
        let wide = LimitSettings { name: "w".into(), ..limit(LimitSubject::Listener, [3, 0, 0]) };
        let (limits, now) = (limits(&[wide, narrow]), Instant::now());
        let send = |user| reply(&limits.check_mail(&session("192.0.2.1", Submitter::User(user), None), now));
        assert_eq!(send("bob"), "");
        assert!((0..5).all(|_| send("bob").contains("limit l")));
        assert_eq!([send("eve"), send("joe")], ["", ""]);
        assert!(send("ann").contains("limit w"));
        let refused: Vec<_> = limits.stats().iter().map(|stats| (stats.keys, stats.refused)).collect();
        assert_eq!(refused, [(1, 1), (3, 5)]);
    }

    #[test]
    fn a_reload_keeps_what_is_used_under_the_same_name() {
        let (first, now) = (limits(&[limit(LimitSubject::Listener, [2, 0, 0])]), Instant::now());
        let stranger = session("192.0.2.1", Submitter::Stranger, None);
        (0..2).for_each(|_| assert_eq!(reply(&first.check_mail(&stranger, now)), ""));
        let second = RateLimits::new(&[limit(LimitSubject::Listener, [2, 0, 0])], Some(&first)).unwrap();
        assert!(reply(&second.check_mail(&stranger, now)).contains("450 4.7.1"));
        let other = LimitSettings { name: "other".into(), ..limit(LimitSubject::Listener, [2, 0, 0]) };
        let third = RateLimits::new(&[other], Some(&second)).unwrap();
        assert_eq!(reply(&third.check_mail(&stranger, now)), "");
        assert!(RateLimits::new(&[], Some(&third)).is_none());
    }
}
