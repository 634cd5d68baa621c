//! The queue on a virtual clock, against a plain model of what it should hold.
//!
//! A [`World`] admits seeded random mail, ends attempts at random moments with outcomes that depend on the attempt
//! alone, and checks at every step: the cap holds, every attempt is legal, the next deadline is exact. A failing case
//! prints its seed. The tests then ask for what only time shows: order, fairness, an end for everything, restarts.

use std::collections::BTreeMap;
use std::time::Duration;

use mail::{Enhanced, Outcome, QueueId, Reply, SpoolId, Timestamp};
use proptest::prelude::*;
use queue::{Admission, Attempt, Config, Destination, Pending, Progress, Queue, Retry, Verdict};

const START: Timestamp = Timestamp(1_700_000_000_000);

/// SplitMix64: the same seed, the same world.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Waiting or ready.
    Due(Timestamp),
    InFlight,
    Delivered,
    Failed,
}

/// What the spool would know of a recipient.
#[derive(Clone, Debug)]
struct Known {
    domain: String,
    attempts: u16,
    state: State,
}

struct Mail {
    sender: u64,
    accepted_at: Timestamp,
    recipients: Vec<Known>,
}

/// (message, ordinal, number of the attempt, verdict as text): the story of a world.
type Story = BTreeMap<(u64, u32, u16), String>;

struct World {
    queue: Queue,
    seed: u64,
    retry: Retry,
    now: Timestamp,
    random: Random,
    mail: Vec<Mail>,
    flights: BTreeMap<(Timestamp, u64), Attempt>,
    /// Messages in the order of their first attempts.
    order: Vec<u64>,
    story: Story,
    /// Of 100 attempts so many are deferred, and so many fail.
    deferred_of_100: u64,
    failed_of_100: u64,
}

impl World {
    fn new(seed: u64, concurrency: usize, recipients_per_attempt_max: usize, retry: Retry) -> Self {
        let config = Config { name: "standard".into(), concurrency, retry: retry.clone(), recipients_per_attempt_max };
        World {
            queue: Queue::new(config, seed),
            seed,
            retry,
            now: START,
            random: Random(seed),
            mail: Vec::new(),
            flights: BTreeMap::new(),
            order: Vec::new(),
            story: Story::new(),
            deferred_of_100: 30,
            failed_of_100: 5,
        }
    }

    fn admit(&mut self, sender: u64, domains: impl IntoIterator<Item = String>) -> u64 {
        let known = |domain| Known { domain, attempts: 0, state: State::Due(self.now) };
        let recipients = domains.into_iter().map(known).collect();
        let number = self.mail.len() as u64;
        self.mail.push(Mail { sender, accepted_at: self.now, recipients });
        self.hand_over(number, false);
        number
    }

    fn admit_random(&mut self) {
        let sender = self.random.below(4);
        let count = if self.random.below(10) == 0 { self.random.below(40) } else { 1 + self.random.below(2) };
        let domains: Vec<String> = (0..count).map(|_| format!("{}.example", self.random.below(5))).collect();
        self.admit(sender, domains);
    }

    /// Admits what the model knows to be pending of a message.
    fn hand_over(&mut self, number: u64, recovered: bool) {
        let mail = &self.mail[number as usize];
        let mut recipients = Vec::new();
        for (ordinal, known) in (0..).zip(&mail.recipients) {
            if let State::Due(due) = known.state {
                let destination = self.queue.destination(&known.domain);
                recipients.push(Pending { ordinal, destination, attempts: known.attempts, due });
            }
        }
        let (sender, accepted_at) = (mail.sender, mail.accepted_at);
        self.queue.admit(self.now, &Admission { id: id(number), sender, accepted_at, recovered, recipients });
    }

    /// The process dies and comes back: flights are lost, all that is pending is admitted again.
    fn restart(&mut self) {
        for attempt in std::mem::take(&mut self.flights).into_values() {
            for &ordinal in &attempt.recipients {
                self.known(&attempt, ordinal).state = State::Due(START);
            }
        }
        self.queue = Queue::new(self.queue.config().clone(), self.seed);
        (0..self.mail.len() as u64).for_each(|number| self.hand_over(number, true));
        self.check();
    }

    fn known(&mut self, attempt: &Attempt, ordinal: u32) -> &mut Known {
        &mut self.mail[attempt.id.sequence() as usize].recipients[ordinal as usize]
    }

    /// Starts all attempts that can be made now. Each ends at a random moment within `duration`.
    fn start_attempts(&mut self, duration: Duration) {
        while let Some(attempt) = self.queue.next(self.now) {
            self.check_attempt(&attempt);
            if attempt.number == 1 && !self.order.contains(&attempt.id.sequence()) {
                self.order.push(attempt.id.sequence());
            }
            let millis = self.random.below(duration.as_millis() as u64 + 1);
            let key = (self.now + Duration::from_millis(millis), self.random.next());
            self.flights.insert(key, attempt);
        }
        self.check();
    }

    /// An attempt is legal: one message and destination, everyone in it was due, none was in flight.
    fn check_attempt(&mut self, attempt: &Attempt) {
        let now = self.now;
        let domain = self.queue.domain(attempt.destination).to_owned();
        assert!(!attempt.recipients.is_empty());
        assert!(attempt.recipients.len() <= self.queue.config().recipients_per_attempt_max);
        for &ordinal in &attempt.recipients {
            let known = self.known(attempt, ordinal);
            assert_eq!((&known.domain, known.attempts + 1), (&domain, attempt.number));
            assert!(matches!(known.state, State::Due(due) if due <= now), "{known:?} at {now}");
            known.state = State::InFlight;
        }
    }

    /// The queue holds what the model holds, within the cap, and its deadline is exact.
    fn check(&mut self) {
        let states = || self.mail.iter().flat_map(|mail| &mail.recipients).map(|known| known.state);
        let in_flight = states().filter(|&state| state == State::InFlight).count();
        let soonest = states().filter_map(|state| if let State::Due(due) = state { Some(due) } else { None }).min();
        let pending = states().filter(|state| matches!(state, State::Due(_))).count();
        assert_eq!((self.queue.in_flight(), self.queue.len()), (in_flight, in_flight + pending));
        let held = in_flight >= self.queue.config().concurrency;
        match self.queue.next_deadline() {
            None => assert!(held || pending == 0, "no deadline, though {pending} wait"),
            Some(deadline) if deadline > self.now => {
                assert_eq!((held, Some(deadline)), (false, soonest));
                assert!(self.queue.next(Timestamp(deadline.millis() - 1)).is_none());
            }
            Some(_) => assert!(!held && soonest.is_some_and(|soonest| soonest <= self.now)),
        }
    }

    /// Told by the attempt alone, so that worlds with the same seed have the same outcomes in any order.
    fn outcome(&self, attempt: &Attempt, ordinal: u32) -> Outcome {
        let parts = [attempt.id.sequence(), u64::from(ordinal), u64::from(attempt.number)];
        let fate = parts.into_iter().fold(self.seed, |state, part| Random(state ^ part).next()) % 100;
        if fate < self.deferred_of_100 {
            Outcome::Deferred(Reply::new(451, Enhanced(4, 3, 0), "busy"))
        } else if fate < self.deferred_of_100 + self.failed_of_100 {
            Outcome::Failed(Reply::new(550, Enhanced(5, 1, 1), "no such user"))
        } else {
            Outcome::Delivered
        }
    }

    fn finish(&mut self, attempt: Attempt) {
        let mut verdicts = Vec::new();
        for &ordinal in &attempt.recipients {
            let verdict = self.queue.judge(self.now, &attempt, self.outcome(&attempt, ordinal));
            let state = match &verdict {
                Verdict::Delivered => State::Delivered,
                Verdict::Failed { .. } => State::Failed,
                Verdict::Deferred { until, .. } => State::Due(*until),
            };
            let known = self.known(&attempt, ordinal);
            (known.state, known.attempts) = (state, attempt.number);
            self.story.insert((attempt.id.sequence(), ordinal, attempt.number), format!("{verdict:?}"));
            verdicts.push(verdict);
        }
        self.queue.report(self.now, attempt, &verdicts);
        self.check();
    }

    /// Moves the clock to the next thing that happens: the end of an attempt, or the queue's deadline.
    fn step(&mut self, duration: Duration) -> bool {
        self.start_attempts(duration);
        let landing = self.flights.keys().next().copied();
        let deadline = self.queue.next_deadline();
        let Some(moment) = landing.map(|(at, _)| at).into_iter().chain(deadline).min() else { return false };
        self.now = self.now.max(moment);
        if let Some(key) = landing.filter(|&(at, _)| at <= self.now)
            && let Some(attempt) = self.flights.remove(&key)
        {
            self.finish(attempt);
        } else {
            assert!(self.queue.next_deadline().is_some_and(|deadline| deadline <= self.now));
            let before = self.flights.len();
            self.start_attempts(duration);
            assert!(self.flights.len() > before, "the deadline came and brought nothing");
        }
        true
    }

    fn run(&mut self, duration: Duration) {
        while self.step(duration) {}
    }

    fn is_resolved(&self) -> bool {
        let mut all = self.mail.iter().flat_map(|mail| &mail.recipients);
        all.all(|known| matches!(known.state, State::Delivered | State::Failed))
    }
}

fn id(number: u64) -> QueueId {
    QueueId::new(SpoolId::new(1), 0, number)
}

/// Short, so that a world of a few hundred steps sees every rule.
fn brisk() -> Retry {
    Retry {
        first: Duration::from_secs(10),
        longest: Duration::from_secs(120),
        lifetime: Duration::from_secs(900),
        ..Retry::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Caps, legal attempts and exact deadlines at every step, while mail comes in and the cap is moved about.
    #[test]
    fn everything_resolves_within_the_rules(seed: u64, concurrency in 1usize..30, portion in 1usize..12) {
        let mut world = World::new(seed, concurrency, portion, brisk());
        for _ in 0..60 {
            world.admit_random();
            if world.random.below(8) == 0 {
                let concurrency = world.random.below(30) as usize;
                world.queue.set_concurrency(concurrency);
            }
            for _ in 0..world.random.below(6) {
                world.step(Duration::from_secs(20));
            }
        }
        world.queue.set_concurrency(concurrency);
        world.run(Duration::from_secs(20));
        prop_assert!(world.is_resolved());
        prop_assert_eq!((world.queue.len(), world.queue.messages(), world.queue.destinations()), (0, 0, 0));
    }

    /// What is always deferred fails at the end of its lifetime, not earlier, and no later than its last attempt takes.
    #[test]
    fn what_never_succeeds_ends_with_its_lifetime(seed: u64) {
        let mut world = World::new(seed, 1000, 100, brisk());
        world.deferred_of_100 = 100;
        (0..20).for_each(|_| world.admit_random());
        world.run(Duration::ZERO);
        prop_assert!(world.is_resolved());
        prop_assert_eq!(world.now, START + world.retry.lifetime);
    }

    /// At a quiet moment the process is replaced, and nobody could tell from what happens afterwards.
    #[test]
    fn a_restart_between_attempts_changes_nothing(seed: u64, steps in 0usize..60) {
        let story = |restart: bool| {
            let mut world = World::new(seed, usize::MAX, 100, brisk());
            (0..20).for_each(|_| world.admit_random());
            for step in 0..=steps {
                let quiet = world.flights.is_empty();
                if restart && quiet && step * 2 >= steps {
                    world.restart();
                }
                world.step(Duration::ZERO);
            }
            world.run(Duration::ZERO);
            assert!(world.is_resolved());
            world.story
        };
        prop_assert_eq!(story(false), story(true));
    }

    /// A crash with attempts in flight repeats those and loses nothing.
    #[test]
    fn a_crash_loses_nobody(seed: u64, steps in 0usize..200) {
        let mut world = World::new(seed, 10, 3, brisk());
        (0..30).for_each(|_| world.admit_random());
        (0..steps).for_each(|_| _ = world.step(Duration::from_secs(30)));
        world.restart();
        world.run(Duration::from_secs(30));
        prop_assert!(world.is_resolved());
    }

    /// First attempts at one destination leave in the order of admission, sender by sender.
    #[test]
    fn order_holds_within_a_sender(seed: u64, concurrency in 1usize..8) {
        let mut world = World::new(seed, concurrency, 100, brisk());
        for _ in 0..80 {
            let sender = world.random.below(3);
            world.admit(sender, ["one.example".to_owned()]);
            (0..world.random.below(3)).for_each(|_| _ = world.step(Duration::from_secs(5)));
        }
        world.run(Duration::from_secs(5));
        for sender in 0..3 {
            let own = |number: &&u64| world.mail[**number as usize].sender == sender;
            prop_assert!(world.order.iter().filter(own).is_sorted());
        }
    }

    /// While the cap is 0 nothing leaves; what was in flight ends; the release starts what is due at once.
    #[test]
    fn a_hold_keeps_and_a_release_starts(seed: u64) {
        let mut world = World::new(seed, 5, 2, brisk());
        (0..20).for_each(|_| world.admit_random());
        (0..10).for_each(|_| _ = world.step(Duration::from_secs(5)));
        world.queue.set_concurrency(0);
        world.run(Duration::from_secs(5));
        prop_assert_eq!(world.queue.in_flight(), 0);
        world.now = world.now + Duration::from_secs(3600);
        prop_assert!(world.queue.next(world.now).is_none());
        world.queue.set_concurrency(5);
        prop_assert_eq!(world.queue.next_deadline().is_some(), !world.queue.is_empty());
        world.run(Duration::from_secs(5));
        prop_assert!(world.is_resolved());
    }
}

/// Delivers attempts one at a time until `wanted` leaves; returns how many recipients left before it.
fn recipients_before(queue: &mut Queue, wanted: u64) -> usize {
    let mut before = 0;
    while let Some(attempt) = queue.next(START) {
        if attempt.id == id(wanted) {
            return before;
        }
        before += attempt.recipients.len();
        let verdicts = vec![Verdict::Delivered; attempt.recipients.len()];
        queue.report(START, attempt, &verdicts);
    }
    panic!("message {wanted} never left");
}

fn fair_queue() -> Queue {
    let config =
        Config { name: "standard".into(), concurrency: 400, retry: Retry::default(), recipients_per_attempt_max: 100 };
    Queue::new(config, 1)
}

fn message(number: u64, sender: u64, destinations: impl IntoIterator<Item = Destination>) -> Admission {
    let pending = |(ordinal, destination)| Pending { ordinal, destination, attempts: 0, due: START };
    let recipients = (0..).zip(destinations).map(pending).collect();
    Admission { id: id(number), sender, accepted_at: START, recovered: false, recipients }
}

#[test]
fn a_letter_beside_a_mailing_of_100_000_to_the_same_domain_waits_for_one_attempt() {
    let mut queue = fair_queue();
    let destination = queue.destination("large.example");
    queue.admit(START, &message(0, 1, std::iter::repeat_n(destination, 100_000)));
    queue.admit(START, &message(1, 2, [destination]));
    assert!(recipients_before(&mut queue, 1) <= 100);
}

#[test]
fn a_letter_beside_100_000_single_messages_to_the_same_domain_waits_for_one_of_them() {
    let mut queue = fair_queue();
    let destination = queue.destination("large.example");
    (0..100_000).for_each(|number| queue.admit(START, &message(number, 1, [destination])));
    queue.admit(START, &message(100_000, 2, [destination]));
    assert!(recipients_before(&mut queue, 100_000) <= 1);
}

#[test]
fn a_letter_beside_a_mailing_to_a_thousand_domains_waits_for_one_round() {
    let mut queue = fair_queue();
    let domains: Vec<_> = (0..1000).map(|n| queue.destination(&format!("{n}.example"))).collect();
    (0..100_000).for_each(|number| queue.admit(START, &message(number, 1, [domains[number as usize % 1000]])));
    let alone = queue.destination("alone.example");
    queue.admit(START, &message(100_000, 2, [alone]));
    assert!(recipients_before(&mut queue, 100_000) <= 1000);
}

#[test]
fn destinations_get_equal_shares_of_recipients_whatever_the_size_of_their_messages() {
    let mut queue = fair_queue();
    let domains: Vec<_> = ["a", "b", "c"].iter().map(|name| queue.destination(name)).collect();
    for number in 0..3000 {
        let n = number as usize;
        let count = [1, 7, 100][n % 3];
        queue.admit(START, &message(number, 1, std::iter::repeat_n(domains[n % 3], count)));
    }
    let mut shares = BTreeMap::new();
    while shares.values().sum::<usize>() < 1500 {
        let attempt = queue.next(START).unwrap();
        *shares.entry(attempt.destination).or_default() += attempt.recipients.len();
        let verdicts = vec![Verdict::Delivered; attempt.recipients.len()];
        queue.report(START, attempt, &verdicts);
    }
    assert!(shares.values().all(|share| (400..=600).contains(share)), "{shares:?}");
}

#[test]
fn a_listing_shows_everyone_once_with_what_they_wait_for() {
    let mut world = World::new(11, 7, 2, brisk());
    (0..20).for_each(|_| world.admit_random());
    (0..40).for_each(|_| _ = world.step(Duration::from_secs(5)));
    let mut listed: Vec<_> = world.queue.entries().collect();
    listed.sort_by_key(|entry| (entry.id, entry.ordinal));
    listed.dedup_by_key(|entry| (entry.id, entry.ordinal));
    assert_eq!(listed.len(), world.queue.len());
    for entry in listed {
        let known = &world.mail[entry.id.sequence() as usize].recipients[entry.ordinal as usize];
        assert_eq!((world.queue.domain(entry.destination), entry.attempts), (&*known.domain, known.attempts));
        match entry.progress {
            Progress::InFlight => assert_eq!(known.state, State::InFlight),
            Progress::Waiting(until) => assert_eq!(known.state, State::Due(until)),
            Progress::Ready => assert!(matches!(known.state, State::Due(due) if due <= world.now)),
        }
    }
}
