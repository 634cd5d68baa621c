//! The inbox of a lane, and the size of what waits in it, without a disk. `tests/simulated` tests lanes on a
//! disk.

use std::time::Instant;

use mail::{Address, BodyFlags, BodyType, ClientInfo, DsnNotify, Envelope, Recipient, SpoolId, Timestamp};

use super::*;
use crate::DiskSpace;
use crate::disk::DiskFile;

/// A disk that is never asked.
struct NoDisk;

fn unused<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

impl Disk for NoDisk {
    fn lock(&self) -> io::Result<()> {
        unused()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        unused()
    }

    fn create(&self, _name: &str, _size: u64) -> io::Result<Arc<dyn DiskFile>> {
        unused()
    }

    fn open(&self, _name: &str) -> io::Result<Arc<dyn DiskFile>> {
        unused()
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        unused()
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        unused()
    }

    fn sync_folder(&self) -> io::Result<()> {
        unused()
    }

    fn space(&self) -> io::Result<DiskSpace> {
        unused()
    }
}

/// A lane in whose inbox submissions wait.
fn lane(waiting: usize) -> Lane {
    let lane_id = LaneId { spool: SpoolId::new(1), number: 0 };
    let context = LaneContext { config: Config::default(), random: 0, step_bytes: Arc::default() };
    let lane = Lane::new(Arc::new(NoDisk), (lane_id, 1), &context, MessageIndex::default(), 1);
    (0..waiting).for_each(|_| lane.submit(submission()));
    lane
}

fn submission() -> Submission {
    Submission { records: Vec::new(), permit: None, done: Box::new(|_| {}) }
}

/// How many submissions were taken, and after what time; the shortest of some tries, because a busy machine
/// makes any of them longer.
fn take(waiting: usize, gather_count: usize, closed: bool) -> (usize, Duration) {
    let tries = (0..20).map(|_| {
        let lane = lane(waiting);
        if closed {
            lane.close_inbox();
        }
        let start = Instant::now();
        let taken = lane.take_submissions(gather_count, || None).map_or(0, |taken| taken.len());
        (taken, start.elapsed())
    });
    tries.min_by_key(|(_, took)| *took).expect("there are tries")
}

#[test]
fn a_busy_writer_waits_a_moment_for_as_many_submissions_as_it_expects() {
    let (taken, took) = take(2, 3, false);
    assert!(taken == 2 && took >= GATHER_MAX, "{took:?}");
    for (waiting, gather_count, closed) in [(2, 2, false), (3, 2, false), (2, 0, false), (2, 3, true)] {
        let (taken, took) = take(waiting, gather_count, closed);
        assert!(taken == waiting && took < GATHER_MAX, "{waiting} of {gather_count}, closed: {closed}: {took:?}");
    }
}

#[test]
fn a_writer_without_submissions_gets_none_after_its_idle_time_and_an_end_when_the_lane_is_closed() {
    let lane = lane(0);
    assert_eq!(lane.take_submissions(0, || Some(Duration::ZERO)).map(|taken| taken.len()), Some(0));
    lane.close_inbox();
    assert!(lane.take_submissions(0, || Some(Duration::ZERO)).is_none());
}

/// A copy is measured when it joins a batch, and gets the newest states when the batch is written.
#[test]
fn a_copy_has_space_for_a_new_state_of_each_recipient_and_hardly_more() {
    for recipients in [1, 2, 3, 100] {
        let mut head = message(recipients);
        let draft = head.draft().with_body(b"body".to_vec());
        let mut copy = PendingRecord {
            draft,
            index_update: IndexUpdate::Relocate(head.clone()),
            spilled: None,
            is_restored: false,
        };
        let (span_max, head_max) = copy.size_max();
        let waiting = RecipientState::Waiting { attempts: 1, until: Timestamp(1) };
        head.merge((0..recipients as u32).map(|ordinal| (ordinal, waiting)).collect());
        copy.draft.set_head(|out| head.write(out));
        let unused = span_max - copy.draft.span().unwrap();
        assert!(unused < 2 * RECORD_ALIGN, "{unused} bytes for {recipients} recipients");
        // In the index, a position comes before each head.
        assert_eq!(head_max, 4 + copy.draft.record.len() as u64 + RECORD_ALIGN);
    }
}

#[test]
fn other_records_do_not_grow() {
    let head = message(3);
    let draft = head.draft().with_body(vec![0; 1001]);
    let record = PendingRecord { draft, index_update: IndexUpdate::Insert(head), spilled: None, is_restored: false };
    let expected = (record.draft.span().unwrap(), 4 + record.draft.record.len() as u64);
    assert_eq!(record.size_max(), expected);
}

fn message(recipients: usize) -> MessageHead {
    let address: Address = "a@example.org".parse().unwrap();
    let recipient = Recipient {
        address: address.clone(),
        original: None,
        notify: DsnNotify::UNSET,
        orcpt: None,
        is_forwarded: false,
    };
    let envelope = Envelope {
        recipients: vec![recipient; recipients],
        sender: Some(address),
        accepted_at: Timestamp(0),
        client: ClientInfo { address: None, helo: "client".into(), trusted: true },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
        content_filter: false,
    };
    MessageHead { sequence: 5, flags: BodyFlags::default(), prefix_len: 0, spilled: None, states: Vec::new(), envelope }
}
