//! The commit step: who waits for it, what it is told, and what remains of a message that it
//! refuses, also after a crash.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use mail::{BodyFlags, QueueId};
use parking_lot::{Condvar, Mutex};
use sim::{EIO, OperationKind};
use spool::{
    BatchDraft, CommitError, CommitStep, CommitStepConfig, Config, DraftBody, EntryDraft, LaneId, OutcomesStored,
    RecipientState, RestoredMessage, SpoolEntry, StepAnswer, SubmittedBody,
};

use crate::crash::crash_everywhere;
use crate::harness::{RecordedEvents, SEED, SpoolHarness, close, config, envelope, message_entry, open};

const WAIT: Duration = Duration::from_secs(20);
const DELIVERED: [(u32, RecipientState); 1] = [(0, RecipientState::Delivered)];

/// The message, its new states and its bounce.
type SeenOutcome = (QueueId, Vec<(u32, RecipientState)>, Option<QueueId>);

/// A step that answers when the test says so.
#[derive(Clone, Default)]
struct ScriptedStep(Arc<StepScript>);

#[derive(Default)]
struct StepScript {
    state: Mutex<StepState>,
    started: Condvar,
}

#[derive(Default)]
struct StepState {
    /// The answer to every batch, within the call; None holds them.
    answer: Option<Result<(), String>>,
    held: Vec<(Vec<EntryDraft>, StepAnswer)>,
    /// It refuses the mail of every batch, and has its outcomes.
    refuses_mail: bool,
    /// The outcomes of all batches.
    outcomes: Vec<SeenOutcome>,
}

impl CommitStep for ScriptedStep {
    fn start(&self, batch: BatchDraft, answer: StepAnswer) {
        let mut state = self.0.state.lock();
        for entry in &batch.entries {
            if let EntryDraft::Outcome { id, recipients, bounce } = entry {
                state.outcomes.push((*id, recipients.clone(), *bounce));
            }
        }
        if state.refuses_mail {
            drop(state);
            answer.refuse_mail("full".into()).into_iter().for_each(OutcomesStored::send);
            return;
        }
        match state.answer.clone() {
            None => state.held.push((batch.entries, answer)),
            Some(result) => {
                drop(state);
                answer.send(result);
            }
        }
        self.0.started.notify_all();
    }
}

impl ScriptedStep {
    /// The oldest batch that waits.
    fn take(&self) -> (Vec<EntryDraft>, StepAnswer) {
        let mut state = self.0.state.lock();
        let timeout = self.0.started.wait_while_for(&mut state, |state| state.held.is_empty(), WAIT);
        assert!(!timeout.timed_out(), "no batch was passed to the step");
        state.held.remove(0)
    }

    /// Answers all batches that wait, and all later ones.
    fn answer_all(&self, result: Result<(), String>) {
        let held = {
            let mut state = self.0.state.lock();
            state.answer = Some(result.clone());
            std::mem::take(&mut state.held)
        };
        held.into_iter().for_each(|(_, answer)| answer.send(result.clone()));
    }

    fn refuse_mail(&self) {
        self.0.state.lock().refuses_mail = true;
    }

    fn outcomes(&self) -> Vec<SeenOutcome> {
        self.0.state.lock().outcomes.clone()
    }
}

/// Answers within the call: an error if a body in the batch has an odd length.
struct OddFails;

impl CommitStep for OddFails {
    fn start(&self, batch: BatchDraft, answer: StepAnswer) {
        let len = |entry: &EntryDraft| match entry {
            EntryDraft::Message { content: DraftBody::Memory { prefix, body }, .. } => prefix.len() + body.len(),
            EntryDraft::Message { content: DraftBody::Spilled { content, .. }, .. } => content.len() as usize,
            EntryDraft::Outcome { .. } => 0,
        };
        let fails = batch.entries.iter().any(|entry| len(entry) % 2 == 1);
        answer.send(if fails { Err("odd".into()) } else { Ok(()) });
    }
}

fn with_step(step: impl CommitStep + 'static, waiting_bytes_max: u64, config: Config) -> Config {
    let commit_step = CommitStepConfig { step: Arc::new(step), waiting_bytes_max, close_wait: Duration::ZERO };
    Config { commit_step: Some(commit_step), ..config }
}

fn failed(what: &str) -> CommitError {
    CommitError::StepFailed(what.into())
}

/// The bytes of a message as the step gets them.
fn content_of(entry: &EntryDraft) -> (QueueId, Vec<u8>, usize) {
    let EntryDraft::Message { id, content, digest, envelope: sent, .. } = entry else {
        panic!("not a message: {entry:?}");
    };
    let (bytes, prefix_len) = match content {
        DraftBody::Memory { prefix, body } => ([&prefix[..], body].concat(), prefix.len()),
        DraftBody::Spilled { content, prefix_len } => {
            let mut bytes = vec![0; content.len() as usize];
            content.read_at(&mut bytes, 0).expect("the file is open");
            (bytes, *prefix_len as usize)
        }
    };
    assert_eq!((crc32c::crc32c(&bytes), sent), (*digest, &envelope(sent.recipients.len())));
    (*id, bytes, prefix_len)
}

/// After that, maintenance has nothing more to do that a test could mistake for its own operations.
fn finish_first_message(harness: &mut SpoolHarness, step: &ScriptedStep) {
    let (id, ticket) = harness.start_accept(100, 1);
    step.take().1.send(Ok(()));
    harness.wait(ticket).expect("the disk has no faults");
    harness.settle(id, &DELIVERED).expect("the disk has no faults");
    step.take().1.send(Ok(()));
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
}

fn batches(harness: &SpoolHarness) -> u64 {
    harness.spool.stats().batch_records.count()
}

/// Each message is a batch of its own, and the step holds the first one until all are written.
#[test]
fn batches_are_written_and_synced_while_the_first_one_waits_for_the_step() {
    const MESSAGES: u64 = 30;
    let (disk, events, step) = (sim::Disk::new(SEED), RecordedEvents::default(), ScriptedStep::default());
    let config = with_step(step.clone(), 1 << 20, events.record_from(config(64 << 10)));
    let mut harness = SpoolHarness::open(&disk, config).unwrap();
    let mut waiting = Vec::new();
    for n in 0..MESSAGES {
        waiting.push(harness.start_accept(300 + 97 * n as usize, 2));
        harness.wait_until("a batch waits for the step of another one", |harness| batches(harness) == n + 1);
    }
    assert!(waiting.iter().all(|(_, ticket)| ticket.try_result().is_none()), "acknowledged before the step");
    assert_eq!((events.committed(), harness.spool.stats().messages_committed), (Vec::new(), 0));
    let mut started: Vec<_> = (0..MESSAGES).map(|_| step.take()).collect();
    for ((entries, _), (id, _)) in started.iter().zip(&waiting) {
        let message = harness.promises.message(*id);
        assert_eq!(
            entries.iter().map(content_of).collect::<Vec<_>>(),
            [(*id, message.bytes.clone(), message.prefix_len)]
        );
    }
    // A step may answer in any order.
    while let Some((_, answer)) = started.pop() {
        answer.send(Ok(()));
        let (id, ticket) = waiting.pop().unwrap();
        harness.wait(ticket).unwrap();
        harness
            .wait_until("its commit is not reported", |_| events.committed().last().is_some_and(|last| last.0 == id));
    }
    assert_eq!(harness.spool.stats().messages_committed, MESSAGES);
    harness.promises.check(&harness.recovered()).unwrap();
    harness.close();
}

#[test]
fn a_message_that_the_step_refuses_is_never_reported_and_is_dead_after_a_restart() {
    let (disk, events, step) = (sim::Disk::new(SEED), RecordedEvents::default(), ScriptedStep::default());
    let settings = with_step(step.clone(), 1 << 20, events.record_from(config(64 << 10)));
    let mut harness = SpoolHarness::open(&disk, settings).unwrap();
    let refused = harness.start_accept(500, 3);
    step.take().1.send(Err("no second copy".into()));
    assert_eq!(harness.wait(refused.1), Err(failed("no second copy")));
    // The outcome of the message; then a lost answer, which is a failure too.
    drop(step.take());
    let forgotten = harness.start_accept(500, 1);
    drop(step.take());
    assert_eq!(harness.wait(forgotten.1), Err(failed("the step gave no answer")));
    step.answer_all(Err("gone".into()));
    assert_eq!(harness.accept_spilled(700, 1), Err(failed("gone")));
    harness.wait_until("a refused message stays", |harness| harness.spool.ids().is_empty());
    harness.wait_until("its body stays", |_| disk.names().iter().all(|name| !name.starts_with("body-")));
    let withdrawn = (0..3).map(|ordinal| (ordinal, RecipientState::Withdrawn)).collect();
    assert_eq!(step.outcomes()[0], (refused.0, withdrawn, None));
    assert_eq!((events.committed(), harness.spool.stats().messages_committed), (Vec::new(), 0));
    let running = disk.crash_harshly(0);
    harness.close();
    for image in [running, disk.crash(0)] {
        let (spool, found) = open(&image, config(64 << 10)).unwrap();
        assert!(found.is_empty(), "{found:?}");
        close(spool, &image);
    }
}

#[test]
fn bytes_that_wait_for_the_step_are_limited() {
    let (disk, step) = (sim::Disk::new(SEED), ScriptedStep::default());
    let mut harness = SpoolHarness::open(&disk, with_step(step.clone(), 5000, config(64 << 10))).unwrap();
    let waiting = [harness.start_accept(4000, 1), harness.start_accept(4000, 1)];
    let refused = [harness.start_accept(1, 1), harness.start_accept_spilled(3000, 1).unwrap()];
    for (_, ticket) in refused {
        assert_eq!(ticket.try_result(), Some(Err(CommitError::StepBacklog)), "it is not refused at once");
    }
    assert!(disk.names().iter().all(|name| !name.starts_with("body-")), "a refused body stays");
    // Outcomes are never refused.
    harness.settle(waiting[0].0, &[(0, RecipientState::Held { attempts: 0 })]).unwrap();
    step.answer_all(Ok(()));
    waiting.into_iter().for_each(|(_, ticket)| harness.wait(ticket).unwrap());
    harness.accept(9000, 1).expect("a message larger than the limit passes when nothing waits");
    harness.accept_spilled(9000, 1).unwrap();
    harness.close();
}

#[test]
fn nothing_more_waits_for_the_step_when_the_limit_is_reached() {
    let (disk, step) = (sim::Disk::new(SEED), ScriptedStep::default());
    let mut harness = SpoolHarness::open(&disk, with_step(step.clone(), 5000, config(64 << 10))).unwrap();
    let waiting = [harness.start_accept(2000, 1), harness.start_accept_spilled(3000, 1).unwrap()];
    assert_eq!(harness.start_accept(1, 1).1.try_result(), Some(Err(CommitError::StepBacklog)));
    step.answer_all(Ok(()));
    waiting.into_iter().for_each(|(_, ticket)| harness.wait(ticket).unwrap());
    harness.close();
}

/// An outcome cannot be taken back, so neither it nor its bounce waits. A hold of a new message can.
#[test]
fn outcomes_do_not_wait_for_the_step_but_are_passed_to_it() {
    const HELD: (u32, RecipientState) = (0, RecipientState::Held { attempts: 0 });
    let (disk, events, step) = (sim::Disk::new(SEED), RecordedEvents::default(), ScriptedStep::default());
    let settings = with_step(step.clone(), 1 << 20, events.record_from(config(64 << 10)));
    let mut harness = SpoolHarness::open(&disk, settings).unwrap();
    let (id, accepted) = harness.start_accept(300, 2);
    step.take().1.send(Ok(()));
    harness.wait(accepted).unwrap();
    harness.settle(id, &[(1, RecipientState::Delivered)]).unwrap();
    let bounce = harness.bounce(id, 0, 200).unwrap();
    harness.wait_until("the bounce is not reported", |_| events.committed().iter().any(|live| live.0 == bounce));
    let expected =
        [(id, vec![(1, RecipientState::Delivered)], None), (id, vec![(0, RecipientState::Failed)], Some(bounce))];
    assert_eq!(step.outcomes(), expected);
    let held = harness.begin();
    let message = harness.message(held, b"held from the start".to_vec(), 1);
    let hold = SpoolEntry::Outcome { id: held, recipients: vec![HELD], bounce: None };
    let ticket = harness.submit(vec![message, hold]);
    harness.wait_until("it is not written", |harness| harness.spool.ids().contains(&held));
    assert!(ticket.try_result().is_none(), "acknowledged without the step");
    step.answer_all(Err("gone".into()));
    assert_eq!(harness.wait(ticket), Err(failed("gone")));
    harness.wait_until("it stays", |harness| harness.spool.ids() == [bounce]);
    assert_eq!(events.committed().len(), 2);
    harness.close();
}

/// What is durable here may be found, although it was never acknowledged.
#[test]
fn a_crash_before_the_answer_leaves_a_complete_message() {
    let (disk, step) = (sim::Disk::new(SEED), ScriptedStep::default());
    let mut harness = SpoolHarness::open(&disk, with_step(step, 1 << 20, config(64 << 10))).unwrap();
    let ids = [harness.start_accept(500, 2).0, harness.start_accept_spilled(700, 1).unwrap().0];
    harness.wait_until("it is not written", |harness| harness.spool.ids() == ids);
    for seed in 0..20 {
        let after = disk.crash_harshly(seed);
        let (spool, found) = open(&after, config(64 << 10)).unwrap();
        harness.promises.check(&found).unwrap();
        assert_eq!(found.into_keys().collect::<Vec<_>>(), ids, "what was synced is there");
        close(spool, &after);
    }
    harness.close();
}

#[test]
fn a_crash_before_the_withdrawal_is_durable_may_leave_the_message() {
    let (disk, step) = (sim::Disk::new(SEED), ScriptedStep::default());
    let mut harness = SpoolHarness::open(&disk, with_step(step.clone(), 1 << 20, config(64 << 10))).unwrap();
    finish_first_message(&mut harness, &step);
    let (id, refused) = harness.start_accept(500, 2);
    harness.wait_until("it is not written", |harness| harness.spool.ids() == [id]);
    let hold = disk.hold(OperationKind::Sync);
    step.answer_all(Err("gone".into()));
    assert_eq!(harness.wait(refused), Err(failed("gone")));
    hold.wait_for(1);
    let found_after = |seed| {
        let after = disk.crash(seed);
        let (spool, found) = open(&after, config(64 << 10)).unwrap();
        harness.promises.check(&found).unwrap();
        close(spool, &after);
        found.contains_key(&id)
    };
    let found: Vec<bool> = (0..40).map(found_after).collect();
    assert!(found.contains(&true) && found.contains(&false), "the outcome is not durable yet: {found:?}");
    drop(hold);
    harness.wait_until("it stays", |harness| harness.spool.ids().is_empty());
    assert!(!(0..40).any(|seed| {
        let after = disk.crash(seed);
        let (spool, found) = open(&after, config(64 << 10)).unwrap();
        close(spool, &after);
        found.contains_key(&id)
    }));
    harness.close();
}

/// The message would stay in the log forever: nobody knows of it.
#[test]
fn a_withdrawal_that_could_not_be_written_is_written_later() {
    let (disk, step) = (sim::Disk::new(SEED), ScriptedStep::default());
    let mut harness = SpoolHarness::open(&disk, with_step(step.clone(), 1 << 20, config(64 << 10))).unwrap();
    finish_first_message(&mut harness, &step);
    let (id, refused) = harness.start_accept(500, 2);
    harness.wait_until("it is not written", |harness| harness.spool.ids() == [id]);
    disk.fail(OperationKind::Sync, 0..1, EIO);
    step.answer_all(Err("gone".into()));
    assert_eq!(harness.wait(refused), Err(failed("gone")));
    harness.wait_until("it stays", |harness| harness.spool.ids().is_empty());
    assert_eq!(harness.spool.stats().batches_failed, 1);
    harness.close();
}

#[test]
fn a_batch_that_cannot_be_synced_fails_although_the_step_succeeds() {
    let (disk, events, step) = (sim::Disk::new(SEED), RecordedEvents::default(), ScriptedStep::default());
    let settings = with_step(step.clone(), 1 << 20, events.record_from(config(64 << 10)));
    let mut harness = SpoolHarness::open(&disk, settings).unwrap();
    finish_first_message(&mut harness, &step);
    step.answer_all(Ok(()));
    disk.fail(OperationKind::Sync, 0..1, EIO);
    let (refused, ticket) = harness.start_accept(500, 2);
    assert!(matches!(harness.wait(ticket), Err(CommitError::Failed(_))));
    assert!(events.committed().len() == 1 && harness.spool.ids().is_empty());
    // The step has it, and would deliver it although the client was told to send it again.
    let withdrawn = (0..2).map(|ordinal| (ordinal, RecipientState::Withdrawn)).collect();
    assert_eq!(step.outcomes().last(), Some(&(refused, withdrawn, None)));
    harness.accept(500, 1).unwrap();
    harness.close();
}

/// The step does not know that the message is finished. If the outcome were freed with its segment, it
/// would look as if the disk had lost the message.
#[test]
fn an_outcome_stays_in_the_log_until_the_step_has_confirmed_it() {
    let (disk, step) = (sim::Disk::new(SEED), ScriptedStep::default());
    let settings = || with_step(step.clone(), 1 << 20, config(64 << 10));
    let mut harness = SpoolHarness::open(&disk, settings()).unwrap();
    let (id, ticket) = harness.start_accept(500, 1);
    step.take().1.send(Ok(()));
    harness.wait(ticket).unwrap();
    harness.settle(id, &DELIVERED).unwrap();
    let outcome = step.take().1;
    step.answer_all(Err("gone".into()));
    let fill_segments = |harness: &mut SpoolHarness| {
        for _ in 0..20 {
            assert_eq!(harness.accept(9000, 1), Err(failed("gone")));
        }
    };
    fill_segments(&mut harness);
    let is_known_as_finished = |image: &sim::Disk| {
        let (spool, _) = open(image, settings()).unwrap();
        let finished = spool.take_finished(LaneId::of(id)).unwrap();
        close(spool, image);
        finished.unfinished_states(id, 1, Vec::new()).is_none()
    };
    let crashed = disk.crash_harshly(0);
    assert!(is_known_as_finished(&crashed));
    assert!(is_known_as_finished(&crashed.crash_harshly(0)), "a start does not know what the step has");
    outcome.send(Ok(()));
    step.answer_all(Ok(()));
    let last = harness.accept(500, 1).unwrap();
    harness.settle(last, &DELIVERED).unwrap();
    harness.wait_until("the outcome stays for ever", |_| !is_known_as_finished(&disk.crash_harshly(0)));
    harness.close();
}

/// Otherwise the log would grow for as long as the step takes no new mail.
#[test]
fn outcomes_are_freed_when_the_step_has_them_although_it_refuses_the_mail_of_their_batches() {
    let (disk, step) = (sim::Disk::new(SEED), ScriptedStep::default());
    let mut harness = SpoolHarness::open(&disk, with_step(step.clone(), 1 << 20, config(64 << 10))).unwrap();
    step.refuse_mail();
    for _ in 0..40 {
        assert_eq!(harness.accept(9000, 1), Err(failed("full")));
    }
    harness.wait_until("what was refused stays in the log", |harness| {
        let stats = harness.spool.stats();
        stats.segments - stats.segments_free <= 3
    });
    harness.close();
}

/// A step that can take nothing: what clients send again and again does not fill the disk.
struct AwayStep;

impl CommitStep for AwayStep {
    fn start(&self, _: BatchDraft, answer: StepAnswer) {
        answer.send(Err("away".into()));
    }

    fn takes_mail(&self, _: LaneId) -> bool {
        false
    }
}

#[test]
fn mail_that_the_step_cannot_take_is_refused_before_it_is_written() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, with_step(AwayStep, 1 << 20, config(64 << 10))).unwrap();
    let (_, ticket) = harness.start_accept(1000, 1);
    assert_eq!(ticket.try_result(), Some(Err(CommitError::StepAway)));
    assert_eq!(batches(&harness), 0);
    harness.close();
}

#[test]
fn a_message_that_only_the_step_has_is_restored_without_it() {
    let (disk, events, step) = (sim::Disk::new(SEED), RecordedEvents::default(), ScriptedStep::default());
    let settings = with_step(step.clone(), 1 << 20, events.record_from(config(64 << 10)));
    let (spool, _) = open(&disk, settings).unwrap();
    let lost = spool.new_id();
    let message = RestoredMessage {
        id: lost,
        envelope: envelope(2),
        states: vec![DELIVERED[0]],
        content: SubmittedBody::Memory { prefix: Vec::new(), body: b"lost".to_vec() },
        flags: BodyFlags::default(),
    };
    let (sender, result) = channel();
    spool.restore(message, Box::new(move |done| sender.send(done).unwrap_or_default()));
    assert_eq!(result.recv_timeout(WAIT), Ok(Ok(())));
    assert_eq!((spool.ids(), spool.states(lost)), (vec![lost], DELIVERED.to_vec()));
    close(spool, &disk);
    assert_eq!(events.committed(), [(lost, vec![RecipientState::Delivered, RecipientState::NEW])]);
    assert!(step.outcomes().is_empty() && step.0.state.lock().held.is_empty(), "the step has it already");
}

/// A step that does not answer must not keep the process from stopping; clients will send the mail
/// again, so it must not come back.
#[test]
fn closing_fails_what_the_step_does_not_answer_in_time() {
    let (disk, step) = (sim::Disk::new(SEED), ScriptedStep::default());
    let mut harness = SpoolHarness::open(&disk, with_step(step.clone(), 1 << 20, config(64 << 10))).unwrap();
    let waiting = [harness.start_accept(500, 2).1, harness.start_accept_spilled(700, 1).unwrap().1];
    harness.close();
    for ticket in waiting {
        assert_eq!(ticket.try_result(), Some(Err(CommitError::Closed)));
    }
    let (spool, found) = open(&disk, config(64 << 10)).unwrap();
    assert!(found.is_empty(), "{found:?}");
    close(spool, &disk);
    // The answers come too late.
    step.answer_all(Ok(()));
}

#[test]
fn closing_waits_for_the_answers_that_come_in_time() {
    let (disk, step) = (sim::Disk::new(SEED), ScriptedStep::default());
    let mut settings = with_step(step.clone(), 1 << 20, config(64 << 10));
    settings.commit_step.as_mut().unwrap().close_wait = WAIT;
    let mut harness = SpoolHarness::open(&disk, settings).unwrap();
    let (id, ticket) = harness.start_accept(500, 2);
    let (tell, told) = channel();
    let closing = std::thread::spawn(move || {
        harness.close();
        tell.send(()).unwrap();
    });
    // Without the wait, closing takes much less.
    assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "closing does not wait");
    assert!(ticket.try_result().is_none());
    step.answer_all(Ok(()));
    closing.join().unwrap();
    assert_eq!(ticket.try_result(), Some(Ok(())));
    let (spool, found) = open(&disk, config(64 << 10)).unwrap();
    assert!(found.contains_key(&id));
    close(spool, &disk);
}

/// Nobody waits for the answer.
#[test]
fn closing_does_not_wait_for_the_step_of_a_batch_that_failed_here() {
    let (disk, step) = (sim::Disk::new(SEED), ScriptedStep::default());
    let mut settings = with_step(step.clone(), 1 << 20, config(64 << 10));
    settings.commit_step.as_mut().unwrap().close_wait = Duration::from_secs(3600);
    let mut harness = SpoolHarness::open(&disk, settings).unwrap();
    finish_first_message(&mut harness, &step);
    disk.fail(OperationKind::Sync, 0..1, EIO);
    assert!(matches!(harness.accept(500, 1), Err(CommitError::Failed(_))));
    harness.close();
}

/// What follows from the answer has to be written before the log is sealed.
#[test]
fn closing_waits_while_an_answer_is_passed_on() {
    let (disk, step) = (sim::Disk::new(SEED), ScriptedStep::default());
    let (spool, _) = open(&disk, with_step(step.clone(), 1 << 20, config(64 << 10))).unwrap();
    let (id, (tell, told), (release, released)) = (spool.new_id(), channel(), channel::<()>());
    let done = move |result| {
        tell.send(result).unwrap();
        let _ = released.recv_timeout(WAIT);
    };
    spool.submit(vec![message_entry(id, envelope(1), b"a message")], Box::new(done));
    let (_, answer) = step.take();
    while spool.ids().is_empty() {
        std::thread::yield_now();
    }
    let answering = std::thread::spawn(move || answer.send(Err("gone".into())));
    assert_eq!(told.recv_timeout(WAIT), Ok(Err(failed("gone"))));
    let (tell, told) = channel();
    let closing = std::thread::spawn(move || {
        spool.close();
        tell.send(()).unwrap();
    });
    // Without the wait, closing takes much less.
    assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "closing does not wait");
    release.send(()).unwrap();
    closing.join().unwrap();
    answering.join().unwrap();
}

#[test]
fn mail_of_which_the_step_refuses_a_part_survives_a_crash_at_every_step() {
    crash_everywhere(&with_step(OddFails, 1 << 20, config(32 << 10)), |harness| {
        for size in [1000, 3001, 4000, 1501, 700] {
            match harness.accept(size, 2) {
                Ok(id) => harness.settle(id, &DELIVERED)?,
                Err(CommitError::StepFailed(_)) if size % 2 == 1 => {}
                Err(error) => return Err(error),
            }
            let spilled = harness.accept_spilled(size, 1);
            assert!(spilled.is_err() || size % 2 == 0);
        }
        let id = harness.accept(600, 2)?;
        harness.bounce(id, 1, 901).map(drop)
    });
}
