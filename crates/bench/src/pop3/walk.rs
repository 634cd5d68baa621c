//! Every message of every mailbox, for those who look for what arrived. Several mailboxes are read at a time and none
//! is changed. What cannot be read is a fault, and so is a reader that panics: a search with holes finds nothing out.

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

/// Mailboxes that are read at a time.
const WALKERS: usize = 16;
/// How long a server may take for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Messages that were read and not yet shown.
const AHEAD_MAX: usize = 1024;

/// A message in a mailbox, or why one cannot be read.
type Sight = Result<(Arc<str>, Option<Seen>), Fault>;

/// Shows each message to `show`: the mailbox that it is in, and what was found of it; None for one without a stamp.
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

/// Reads one mailbox after the other until there are none left, or nobody listens.
async fn read_in_turn(target: Target, accounts: Arc<Accounts>, next: Arc<AtomicUsize>, sights: Sender<Sight>) {
    loop {
        let place = next.fetch_add(1, Ordering::Relaxed);
        if place >= accounts.len() {
            return;
        }
        let account = accounts.account(place);
        if let Err(Trouble::Refused(text) | Trouble::Broken(text)) = read_mailbox(&target, &account, &sights).await {
            let fault = Fault::Unavailable(format!("{}, mailbox {}: {text}", target.address, account.user));
            // A failed send is a search that was given up.
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
