//! SRS in the running server: with the clock, with secrets that a reload replaces, and with counters.
//!
//! Nothing that leads back into the domain of the rewritten addresses is followed: senders there are
//! not rewritten, unless somebody has forged one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use mail::{Address, ReturnRefusal, SenderRewriter};
use parking_lot::RwLock;

use super::{Srs, SrsError};

/// Rewrites senders, and finds them again.
pub struct SrsRewriter {
    srs: RwLock<Srs>,
    counters: Arc<SrsCounters>,
}

/// How often senders were rewritten and looked up.
#[derive(Debug, Default)]
pub struct SrsCounters {
    rewritten: AtomicU64,
    too_long: AtomicU64,
    returned: AtomicU64,
    forged: AtomicU64,
    expired: AtomicU64,
}

impl SrsCounters {
    /// Each result with its name in metrics.
    pub fn by_result(&self) -> [(&'static str, u64); 5] {
        [
            ("rewritten", &self.rewritten),
            ("too_long", &self.too_long),
            ("returned", &self.returned),
            ("forged", &self.forged),
            ("expired", &self.expired),
        ]
        .map(|(result, count)| (result, count.load(Relaxed)))
    }
}

impl SrsRewriter {
    /// Goes on with `counters`.
    pub fn new(srs: Srs, counters: Arc<SrsCounters>) -> SrsRewriter {
        SrsRewriter { srs: RwLock::new(srs), counters }
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Arc<SrsCounters> {
        &self.counters
    }

    /// Goes on with other secrets. Returns whether they are others.
    pub fn replace(&self, srs: Srs) -> bool {
        let mut current = self.srs.write();
        let differs = *current != srs;
        *current = srs;
        differs
    }
}

impl SenderRewriter for SrsRewriter {
    fn forward(&self, sender: &Address) -> Option<Address> {
        let rewritten = self.srs.read().forward(sender, SystemTime::now().into()).ok();
        let counter = if rewritten.is_some() { &self.counters.rewritten } else { &self.counters.too_long };
        counter.fetch_add(1, Relaxed);
        rewritten
    }

    fn reverse(&self, recipient: &Address) -> Option<Result<Address, ReturnRefusal>> {
        let srs = self.srs.read();
        if recipient.domain() != &*srs.domain {
            return None;
        }
        let (found, counter) = match srs.reverse(recipient, SystemTime::now().into()) {
            Err(SrsError::NotRewritten) => return None,
            Ok(sender) if sender.domain() != &*srs.domain => (Ok(sender), &self.counters.returned),
            Err(SrsError::Expired) => (Err(ReturnRefusal::Expired), &self.counters.expired),
            Ok(_) | Err(SrsError::Forged | SrsError::TooLong) => (Err(ReturnRefusal::Forged), &self.counters.forged),
        };
        counter.fetch_add(1, Relaxed);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use mail::Timestamp;
    use zeroize::Zeroizing;

    use super::*;

    fn srs(secret: &str) -> Srs {
        Srs::new("us.example", vec![Zeroizing::new(secret.repeat(8).into_bytes())], 21).unwrap()
    }

    fn rewriter() -> SrsRewriter {
        SrsRewriter::new(srs("1111"), Arc::default())
    }

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_forwarded_returns_and_everything_is_counted() {
        let rewriter = rewriter();
        let sender = address("bob@a.example");
        let ours = rewriter.forward(&sender).unwrap();
        assert_eq!(rewriter.reverse(&ours), Some(Ok(sender.clone())));
        assert_eq!(rewriter.reverse(&sender), None, "another domain");
        assert_eq!(rewriter.reverse(&address("bob@us.example")), None, "not a rewritten address");
        assert_eq!(rewriter.reverse(&address(&ours.as_str().replace("bob", "eve"))), Some(Err(ReturnRefusal::Forged)));
        let old = srs("1111").forward(&sender, Timestamp(0)).unwrap();
        assert_eq!(rewriter.reverse(&old), Some(Err(ReturnRefusal::Expired)));
        assert_eq!(rewriter.forward(&Address::new(&"x".repeat(60), "a.example").unwrap()), None);
        let counts = [("rewritten", 1), ("too_long", 1), ("returned", 1), ("forged", 1), ("expired", 1)];
        assert_eq!(rewriter.counters().by_result(), counts);
    }

    #[test]
    fn nothing_leads_back_into_the_domain_of_rewritten_addresses() {
        let rewriter = rewriter();
        for sender in ["SRS0=aaaaaaaa=aa=victim.example=eve@us.example", "root@us.example"] {
            let again = rewriter.forward(&address(sender)).unwrap();
            assert_eq!(rewriter.reverse(&again), Some(Err(ReturnRefusal::Forged)), "{again}");
        }
    }

    #[test]
    fn other_secrets_apply_at_once() {
        let rewriter = rewriter();
        let ours = rewriter.forward(&address("bob@a.example")).unwrap();
        assert!(!rewriter.replace(srs("1111")), "they are the same");
        assert!(rewriter.replace(srs("2222")));
        assert_eq!(rewriter.reverse(&ours), Some(Err(ReturnRefusal::Forged)));
    }
}
