//! Reads every message of every mailbox, to search for delivered copies. Several mailboxes are read
//! at a time; none is changed. A mailbox that cannot be read is a fault, since the search would be
//! incomplete.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use net::Wire;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::session::{Session, Trouble};
use super::{Account, Accounts};
use crate::dial::plainly;
use crate::runtime::runtime;
use crate::{Fault, Seen, Target};

/// Mailboxes read at a time.
const WALKERS: usize = 16;
/// Time limit of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Messages that were read and not yet passed to the caller.
const AHEAD_MAX: usize = 1024;

/// A message in a mailbox, or a fault.
type Sight = Result<(Arc<str>, Option<Seen>), Fault>;

/// Calls `show` with each message: its mailbox, and the examined message or None if it has no
/// stamp.
pub(crate) fn walk(
    target: &Target,
    accounts: &Arc<Accounts>,
    mut show: impl FnMut(&str, Option<Seen>),
) -> Result<(), Fault> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let (sender, mut sights) = channel(AHEAD_MAX);
        let next = Arc::new(AtomicUsize::new(0));
        let mut walkers = JoinSet::new();
        for _ in 0..WALKERS.min(accounts.len()) {
            walkers.spawn(read_in_turn(target.clone(), accounts.clone(), next.clone(), sender.clone()));
        }
        drop(sender);
        while let Some(sight) = sights.recv().await {
            let (mailbox, seen) = sight?;
            show(&mailbox, seen);
        }
        while let Some(ended) = walkers.join_next().await {
            ended.map_err(|_| Fault::Unavailable(format!("{}: a reader of mailboxes panicked", target.address)))?;
        }
        Ok(())
    })
}

/// Reads mailboxes until none are left or the receiver is gone.
async fn read_in_turn(target: Target, accounts: Arc<Accounts>, next: Arc<AtomicUsize>, sights: Sender<Sight>) {
    loop {
        let place = next.fetch_add(1, Ordering::Relaxed);
        if place >= accounts.len() {
            return;
        }
        let account = accounts.account(place);
        if let Err(Trouble::Refused(text) | Trouble::Broken(text)) = read_mailbox(&target, &account, &sights).await {
            let fault = Fault::Unavailable(format!("{}, mailbox {}: {text}", target.address, account.user));
            // A failed send means that the search has ended.
            let _ = sights.send(Err(fault)).await;
            return;
        }
    }
}

async fn read_mailbox(target: &Target, account: &Account, sights: &Sender<Sight>) -> Result<(), Trouble> {
    let wire = Wire::connect(target.address, None, Instant::now() + STEP_TIMEOUT).await;
    let wire = wire.map_err(|error| Trouble::Broken(format!("connect: {}", plainly(&error))))?;
    let mut session = Session::new(wire, STEP_TIMEOUT);
    session.banner().await?;
    session.log_in(account).await?;
    let mailbox: Arc<str> = account.user.as_str().into();
    for number in 1..=session.list().await? {
        let message = session.retrieve(number).await?;
        if sights.send(Ok((mailbox.clone(), message.seen))).await.is_err() {
            return Ok(());
        }
    }
    session.quit().await
}
