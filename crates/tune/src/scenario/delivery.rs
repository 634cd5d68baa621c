//! When the mail of a run is delivered, and how much of it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use compare::error::CompareError;
use compare::interrupt::Interrupt;

use super::{DOMAIN, QueueCounter};

/// Waits until no recipient is queued, or until `time_max` is over; returns the time from `begun` until then.
///
/// # Errors
///
/// The server does not answer, or the run is interrupted.
pub(super) fn await_empty_queue(
    queued: &QueueCounter,
    socket: &Path,
    begun: Instant,
    time_max: Duration,
    interrupt: &Interrupt,
) -> Result<Duration, CompareError> {
    // A message is in no queue while it is being classified, so the queue must be empty twice.
    let mut empty_at = None;
    let emptied = interrupt.wait_for(time_max, || {
        let is_empty = queued(socket).map_err(CompareError::Failed)? == 0;
        let earlier = empty_at;
        empty_at = is_empty.then(|| earlier.unwrap_or_else(|| begun.elapsed()));
        Ok(earlier.filter(|_| is_empty))
    })?;
    Ok(emptied.unwrap_or_else(|| begun.elapsed()))
}

/// The messages in the Maildirs below the data folder of a run.
///
/// # Errors
///
/// A folder cannot be read.
pub(super) fn delivered_messages(data: &Path) -> Result<u64, CompareError> {
    let domain = data.join("mail").join(DOMAIN);
    let count = || -> std::io::Result<u64> {
        let mut messages = 0;
        for mailbox in fs::read_dir(&domain)? {
            messages += fs::read_dir(mailbox?.path().join("new"))?.count() as u64;
        }
        Ok(messages)
    };
    count().map_err(CompareError::system(format!("counting the messages in {}", domain.display())))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_time_ends_when_the_queue_is_empty_for_the_first_of_two_times() {
        let counts = [3, 0, 1, 0, 0, 9];
        let looks = Cell::new(0);
        let seen: std::rc::Rc<Cell<Option<Instant>>> = std::rc::Rc::default();
        let noted = seen.clone();
        let queued: QueueCounter = Box::new(move |_| {
            let look = looks.replace(looks.get() + 1);
            if look == 3 {
                noted.set(Some(Instant::now()));
            }
            Ok(counts[look])
        });
        let begun = Instant::now();
        let long = Duration::from_secs(60);
        let time = await_empty_queue(&queued, Path::new("socket"), begun, long, &Interrupt::default()).unwrap();
        let first = seen.get().unwrap() - begun;
        assert!(time >= first && time < first + Duration::from_millis(15), "{time:?} after {first:?}");
    }

    #[test]
    fn a_queue_that_is_never_empty_ends_with_the_time() {
        let queued: QueueCounter = Box::new(|_| Ok(1));
        let short = Duration::from_millis(1);
        let time = await_empty_queue(&queued, Path::new("socket"), Instant::now(), short, &Interrupt::default());
        assert!(time.unwrap() >= short);
    }

    #[test]
    fn messages_are_counted_in_all_mailboxes() {
        let data = tempfile::tempdir().unwrap();
        for (mailbox, message) in [("user1", "a"), ("user1", "b"), ("user2", "c")] {
            let new = data.path().join("mail").join(DOMAIN).join(mailbox).join("new");
            fs::create_dir_all(&new).unwrap();
            fs::write(new.join(message), "").unwrap();
        }
        assert_eq!(delivered_messages(data.path()).unwrap(), 3);
        assert!(delivered_messages(Path::new("/nowhere")).is_err());
    }
}
