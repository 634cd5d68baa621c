//! What the keys of limits have used on this node, until the others are told of it: summed, and sent
//! twice a second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::NodeShared;
use crate::jetstream::NodeBroadcast;

/// How often the others are told.
const TELL_INTERVAL: Duration = Duration::from_millis(500);
/// Keys between two of these times. The use of further ones counts only here.
const KEYS_MAX: usize = 20_000;
/// Keys in one message: less than 200 KB.
const KEYS_PER_MESSAGE: usize = 1000;

/// What a key of a limit has used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitUse {
    /// The name of the limit.
    pub limit: String,
    /// The word for what it limits.
    pub quantity: String,
    /// The digest of the key, in hexadecimal digits.
    pub key: String,
    /// How much.
    pub cost: u64,
}

/// The name of a limit, what it limits, and the digest of a key.
type LimitKey = (Box<str>, &'static str, u128);

/// The use since the others were told.
#[derive(Debug, Default)]
pub(super) struct UsageBuffer(Mutex<HashMap<LimitKey, u64>>);

impl UsageBuffer {
    pub(super) fn add(&self, limit: &str, quantity: &'static str, key: u128, cost: u64) {
        let mut used = self.0.lock();
        let key = (limit.into(), quantity, key);
        if used.len() < KEYS_MAX || used.contains_key(&key) {
            let sum: &mut u64 = used.entry(key).or_default();
            *sum = sum.saturating_add(cost);
        }
    }

    /// Everything, and from now on nothing.
    fn take(&self) -> Vec<LimitUse> {
        let used = std::mem::take(&mut *self.0.lock());
        let of_key = |((limit, quantity, key), cost): (LimitKey, u64)| LimitUse {
            limit: limit.into(),
            quantity: quantity.into(),
            key: format!("{key:032x}"),
            cost,
        };
        used.into_iter().map(of_key).collect()
    }
}

/// Tells the others, for ever.
pub(super) async fn tell_others(shared: Arc<NodeShared>, usage: Arc<UsageBuffer>) {
    loop {
        for part in usage.take().chunks(KEYS_PER_MESSAGE) {
            shared.connection.announce(NodeBroadcast::LimitUse(part.into())).await;
        }
        sleep(TELL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_use_of_a_key_is_summed_and_told_once() {
        let usage = UsageBuffer::default();
        usage.add("a", "messages", 7, 2);
        usage.add("a", "messages", 7, 3);
        usage.add("a", "bytes", 7, 100);
        let mut told = usage.take();
        told.sort_by_key(|it| it.cost);
        assert_eq!(
            told.iter().map(|it| (it.quantity.as_str(), it.cost)).collect::<Vec<_>>(),
            [("messages", 5), ("bytes", 100)]
        );
        assert_eq!((u128::from_str_radix(&told[0].key, 16), usage.take()), (Ok(7), vec![]));
    }

    #[test]
    fn more_keys_than_the_limit_count_only_here() {
        let usage = UsageBuffer::default();
        (0..KEYS_MAX as u128 + 5).for_each(|key| usage.add("a", "messages", key, 1));
        usage.add("a", "messages", 0, 1);
        assert_eq!(usage.take().iter().map(|it| it.cost).sum::<u64>(), KEYS_MAX as u64 + 1);
    }
}
