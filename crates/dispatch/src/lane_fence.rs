//! Whether the mail of a lane may be delivered by this server now. It is asked before each attempt, and again
//! before the message is passed on, since an attempt can wait long for a connection, a table or the disk:
//! where several servers can take over a lane from one another, only its owner may deliver from it.
//!
//! An attempt that is refused goes back to the queue and does not count as one. The longer a lane is
//! refused, the later its mail is tried again: a long queue must not circle while its lane is away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mail::{QueueId, Timestamp};
use spool::LaneId;

/// A refused attempt is tried again after this time, or after as long as its lane has been refused.
const RETRY_DELAY_MIN: Duration = Duration::from_secs(2);
/// It is never tried again later than that, so mail moves soon after its lane is back.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);

/// Says whether this server owns a lane. Called on the threads of the scheduler and of the deliverers, often:
/// it must not wait.
pub trait LaneFence: Send + Sync {
    /// Whether an attempt to deliver a message of `lane` may start now.
    fn may_attempt(&self, lane: LaneId) -> bool;
}

/// Which messages may be delivered. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct AttemptFence(pub(super) Option<Arc<dyn LaneFence>>);

impl AttemptFence {
    /// Whether the message may be delivered now.
    pub(super) fn may_attempt(&self, id: QueueId) -> bool {
        self.0.as_ref().is_none_or(|fence| fence.may_attempt(LaneId::of(id)))
    }
}

/// The lanes that are refused, and since when.
#[derive(Default)]
pub(super) struct RefusedLanes(BTreeMap<LaneId, Timestamp>);

impl RefusedLanes {
    /// The lane is allowed.
    pub(super) fn allow(&mut self, lane: LaneId) {
        self.0.remove(&lane);
    }

    /// An attempt of the lane is refused. Returns when it is tried again.
    pub(super) fn refuse(&mut self, lane: LaneId, now: Timestamp) -> Timestamp {
        let since = *self.0.entry(lane).or_insert(now);
        now + now.since(since).clamp(RETRY_DELAY_MIN, RETRY_DELAY_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::mpsc::channel;

    use delivery::DeliveryResult;
    use delivery::pipe::{AddedFields, LauncherSocket, PipeConfig, ProgramDefinition, ProgramLineEnds, launcher};
    use mail::{BodyFlags, BodyType, ClientInfo, DsnNotify, Envelope, Outcome, Recipient, SpoolId};
    use mailbox::{LineEnds, MailboxPathResolver};
    use queue::{
        AdmittedMessage, NextHopLimits, NextHopRoute, PendingRecipient, QueueConfig, QueueNumber, Queues,
        SchedulerConfig,
    };
    use spool::{FolderDisk, Spool, SpoolEntry, SubmittedBody};
    use tempfile::TempDir;

    use super::*;
    use crate::local_deliverer::{LocalDeliverer, LocalTransport};
    use crate::message_cache::MessageCache;
    use crate::pipe_deliverer::{PipeDeliverer, PipeJob};
    use crate::{Attempt, DeliveryRoute, OutcomeCounters, SchedulerMsg, SchedulerReceiver, scheduler_channel};

    /// How long an attempt may take on a busy machine.
    const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(60);

    #[test]
    fn mail_of_a_refused_lane_is_tried_later_and_later_until_the_lane_is_back() {
        let lane = |number| LaneId { spool: SpoolId::new(1), number };
        let (mut refused, start) = (RefusedLanes::default(), Timestamp(1_000_000));
        let at = |seconds| start + Duration::from_secs(seconds);
        for (now, until) in [(0, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 62), (62, 92)] {
            assert_eq!(refused.refuse(lane(0), at(now)), at(until), "{now}");
        }
        assert_eq!(refused.refuse(lane(1), at(62)), at(64), "another lane");
        refused.allow(lane(0));
        assert_eq!(refused.refuse(lane(0), at(92)), at(94), "it was back");
    }

    /// A lane that another server may have taken over meanwhile.
    #[derive(Default)]
    struct SwitchedFence(AtomicBool);

    impl LaneFence for SwitchedFence {
        fn may_attempt(&self, _lane: LaneId) -> bool {
            self.0.load(Relaxed)
        }
    }

    /// A spool with one message, its cache, and a fence that refuses it at first.
    struct FencedMessage {
        home: TempDir,
        id: QueueId,
        messages: MessageCache,
        fence: Arc<SwitchedFence>,
        ended: SchedulerReceiver,
        scheduler: crate::SchedulerHandle,
    }

    impl FencedMessage {
        fn new() -> FencedMessage {
            let home = tempfile::tempdir().unwrap();
            let disk = Arc::new(FolderDisk::open(&home.path().join("spool")).unwrap());
            let spool = spool::open(vec![disk], spool::Config::default(), 7, &mut |_| {}).unwrap();
            let id = accept(&spool);
            let (scheduler, ended) = scheduler_channel();
            let messages = MessageCache::new(Arc::new(spool));
            FencedMessage { home, id, messages, fence: Arc::default(), ended, scheduler }
        }

        fn parts(&self) -> (MessageCache, AttemptFence) {
            (self.messages.clone(), AttemptFence(Some(self.fence.clone())))
        }

        /// What becomes of the next attempt.
        fn result(&self) -> DeliveryResult {
            match self.ended.0.recv_timeout(ATTEMPT_TIME_MAX).unwrap() {
                SchedulerMsg::Ended(mut ended) => ended.pop().unwrap().ending,
                _ => panic!("the attempt has not ended"),
            }
        }

        fn attempt(&self) -> Attempt {
            attempt(self.id)
        }

        fn file(&self, name: &str) -> std::path::PathBuf {
            self.home.path().join(name)
        }
    }

    fn accept(spool: &Spool) -> QueueId {
        let recipient = Recipient {
            address: "bob@example.net".parse().unwrap(),
            original: None,
            notify: DsnNotify::UNSET,
            orcpt: None,
            is_forwarded: false,
        };
        let envelope = Envelope {
            sender: Some("alice@example.org".parse().unwrap()),
            recipients: vec![recipient],
            accepted_at: Timestamp(1_700_000_000_000),
            client: ClientInfo { address: None, helo: "test".into(), trusted: true },
            body_type: BodyType::SevenBit,
            smtputf8: false,
            ret: None,
            envid: None,
            content_filter: false,
        };
        let (id, (tell, told)) = (spool.new_id(), channel());
        let content = SubmittedBody::Memory { prefix: Vec::new(), body: b"Subject: x\r\n\r\nHello.\r\n".to_vec() };
        let entry = SpoolEntry::Message { id, envelope, content, flags: BodyFlags::default() };
        spool.submit(vec![entry], Box::new(move |result| drop(tell.send(result))));
        told.recv_timeout(ATTEMPT_TIME_MAX).unwrap().unwrap();
        id
    }

    /// A queue makes attempts, so one with this message alone makes it.
    fn attempt(id: QueueId) -> Attempt {
        let config = SchedulerConfig { queues: vec![QueueConfig::default()], ..SchedulerConfig::default() };
        let (mut queues, now) = (Queues::new(config, 7), Timestamp(1_700_000_000_000));
        let destination = queues.intern_destination(QueueNumber(0), "example.net");
        let recipient = PendingRecipient { ordinal: 0, destination, attempts: 0, due: now, held: false };
        let admission = AdmittedMessage {
            id,
            sender: 1,
            accepted_at: now,
            recovered: false,
            separate_attempts: false,
            recipients: vec![recipient],
        };
        queues.admit(now, &admission);
        let routed = NextHopRoute {
            next_hop: "example.net".into(),
            route: Arc::new(DeliveryRoute::HostUnknown),
            limits: NextHopLimits::default(),
            until: now + Duration::from_secs(60),
            transient: false,
        };
        queues.set_route(now, destination, routed);
        queues.next_attempt(now).unwrap()
    }

    #[test]
    fn a_message_of_a_lost_lane_is_not_written_to_a_maildir() {
        let message = FencedMessage::new();
        let root = message.file("bob");
        let folder = root.clone();
        let transport = LocalTransport {
            name: "local".into(),
            mailbox_paths: MailboxPathResolver { pattern: Arc::new(move |_| folder.clone()), table: None },
            line_ends: LineEnds::Lf,
            quota: None,
        };
        let counters = (channel().0, Arc::<OutcomeCounters>::default());
        let started = LocalDeliverer::start(transport, "mx", message.parts(), message.scheduler.clone(), counters);
        let (_, attempts) = started.unwrap();
        attempts.send(message.attempt()).unwrap();
        assert_eq!(message.result(), DeliveryResult::Withheld);
        assert!(!root.exists(), "nothing is written");
        message.fence.0.store(true, Relaxed);
        attempts.send(message.attempt()).unwrap();
        assert_eq!(message.result(), DeliveryResult::Outcomes(vec![Outcome::Delivered]));
        assert_eq!(std::fs::read_dir(root.join("new")).unwrap().count(), 1);
    }

    #[test]
    fn a_message_of_a_lost_lane_is_not_passed_to_a_program() {
        let message = FencedMessage::new();
        let output = message.file("output");
        let launcher = Some(launch(&output));
        let deliverer =
            PipeDeliverer::start(launcher, message.parts(), message.scheduler.clone(), channel().0).unwrap();
        let send = || assert!(deliverer.send(PipeJob { attempt: message.attempt(), pipe: pipe() }).is_none());
        send();
        assert_eq!(message.result(), DeliveryResult::Withheld);
        assert!(!output.exists(), "the program is not run");
        message.fence.0.store(true, Relaxed);
        send();
        assert_eq!(message.result(), DeliveryResult::Outcomes(vec![Outcome::Delivered]));
        assert!(output.exists());
    }

    /// The launcher of a program that writes what it gets to a file, in a thread.
    fn launch(output: &Path) -> LauncherSocket {
        let (ours, theirs) = LauncherSocket::pair().unwrap();
        let command = format!("cat > {}", output.display());
        // The temporary folder belongs to the user of this process.
        let owner = output.parent().unwrap().metadata().unwrap();
        let program = ProgramDefinition {
            name: "pipe".into(),
            user: (owner.uid(), owner.gid()),
            folder: "/".into(),
            null_sender: "MAILER-DAEMON".into(),
            delimiter: None,
            arguments: ["/bin/sh", "-c", command.as_str()].map(|text| text.parse().unwrap()).into(),
        };
        std::thread::spawn(move || launcher::serve(theirs));
        ours.define(&[program]).unwrap();
        ours
    }

    fn pipe() -> Arc<PipeConfig> {
        Arc::new(PipeConfig {
            transport: "pipe".into(),
            fields: AddedFields::default(),
            line_ends: ProgramLineEnds::Lf,
            time_max: ATTEMPT_TIME_MAX,
            output_octets_max: 4096,
        })
    }
}
