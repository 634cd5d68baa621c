//! Messages that may not be sent any more when a connection is open, or when the host waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use delivery::DeliveryResult;

use super::support::*;

#[test]
fn a_message_is_withheld_before_its_transaction_and_the_connection_is_kept() {
    run_test(async {
        let (seen, allowed) = (ServerActivity::default(), Arc::new(AtomicBool::new(false)));
        let hop = hop(config(), &[serve_all(&seen, PIPELINING).await]);
        let fence = allowed.clone();
        let mut sender = TestDelivery::with_fence(Box::new(move |_| fence.load(Relaxed)));
        sender.start(&hop, 1, body(TEXT));
        assert_eq!(sender.end().await.result, DeliveryResult::Withheld);
        allowed.store(true, Relaxed);
        sender.start(&hop, 2, body(TEXT));
        assert_eq!(summary(&sender.end().await), ["relayed"]);
        assert_eq!((seen.connections.get(), seen.messages.borrow().len()), (1, 1));
    });
}

/// Between the commands and the reply to DATA, minutes may pass.
#[test]
fn a_message_is_withheld_when_the_host_waits_for_it() {
    run_test(async {
        let seen = ServerActivity::default();
        let hop = hop(config(), &[serve_all(&seen, PIPELINING).await]);
        let asked = AtomicUsize::new(0);
        let mut sender = TestDelivery::with_fence(Box::new(move |_| asked.fetch_add(1, Relaxed) == 0));
        sender.start(&hop, 1, body(TEXT));
        assert_eq!(sender.end().await.result, DeliveryResult::Withheld);
        seen.until_quits(1).await;
        let received: Vec<Vec<u8>> = seen.messages.borrow().iter().map(|message| message.content.clone()).collect();
        assert_eq!(received, [b""], "the connection was closed without the message and its end");
    });
}
