//! Reads every message of every mailbox, to search for delivered copies. Several mailboxes are read
//! at a time; none is changed. A mailbox that cannot be read is a fault, since the search would be
//! incomplete.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use net::OutboundConnection;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::session::{Pop3Error, Pop3Session};
use super::{Account, Accounts};
use crate::dial::error_text;
use crate::runtime::runtime;
use crate::{BenchError, StampCheckResult, TargetServer};

/// Mailboxes read at a time.
const READERS: usize = 16;
/// Time limit of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Messages that were read and not yet passed to the caller.
const MESSAGES_QUEUED_MAX: usize = 1024;

/// A message in a mailbox, or a fault.
type WalkItem = Result<(Arc<str>, Option<StampCheckResult>), BenchError>;

/// Calls `show` with each message: its mailbox, and the examined message or None if it has no
/// stamp.
pub(crate) fn walk(
    target: &TargetServer,
    accounts: &Arc<Accounts>,
    mut show: impl FnMut(&str, Option<StampCheckResult>),
) -> Result<(), BenchError> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let (sender, mut items) = channel(MESSAGES_QUEUED_MAX);
        let next = Arc::new(AtomicUsize::new(0));
        let mut readers = JoinSet::new();
        for _ in 0..READERS.min(accounts.len()) {
            readers.spawn(read_mailboxes(target.clone(), accounts.clone(), next.clone(), sender.clone()));
        }
        drop(sender);
        while let Some(item) = items.recv().await {
            let (mailbox, seen) = item?;
            show(&mailbox, seen);
        }
        while let Some(ended) = readers.join_next().await {
            ended
                .map_err(|_| BenchError::Unavailable(format!("{}: a reader of mailboxes panicked", target.address)))?;
        }
        Ok(())
    })
}

/// Reads mailboxes until none are left or the receiver is gone.
async fn read_mailboxes(
    target: TargetServer,
    accounts: Arc<Accounts>,
    next: Arc<AtomicUsize>,
    items: Sender<WalkItem>,
) {
    loop {
        let place = next.fetch_add(1, Ordering::Relaxed);
        if place >= accounts.len() {
            return;
        }
        let account = accounts.account(place);
        if let Err(Pop3Error::Refused(text) | Pop3Error::Broken(text)) = read_mailbox(&target, &account, &items).await {
            let fault = BenchError::Unavailable(format!("{}, mailbox {}: {text}", target.address, account.user));
            // A failed send means that the search has ended.
            let _ = items.send(Err(fault)).await;
            return;
        }
    }
}

async fn read_mailbox(target: &TargetServer, account: &Account, items: &Sender<WalkItem>) -> Result<(), Pop3Error> {
    let wire = OutboundConnection::connect(target.address, None, Instant::now() + STEP_TIMEOUT).await;
    let wire = wire.map_err(|error| Pop3Error::Broken(format!("connect: {}", error_text(&error))))?;
    let mut session = Pop3Session::new(wire, STEP_TIMEOUT);
    session.banner().await?;
    session.log_in(account).await?;
    let mailbox: Arc<str> = account.user.as_str().into();
    for number in 1..=session.list().await? {
        let message = session.retrieve(number).await?;
        if items.send(Ok((mailbox.clone(), message.seen))).await.is_err() {
            return Ok(());
        }
    }
    session.quit().await
}
