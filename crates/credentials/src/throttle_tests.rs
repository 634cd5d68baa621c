//! The throttle with simulated time.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Duration {
    SECOND * u32::try_from(seconds).unwrap()
}

fn settings() -> ThrottleSettings {
    let bound = |failures, delay_max| ThrottleLimit { failures, delay: SECOND, delay_max: at(delay_max) };
    ThrottleSettings {
        window: at(600),
        pair: bound(3, 60),
        client: bound(10, 60),
        user: bound(20, 5),
        known_for: at(86_400),
        pair_concurrency: 4,
        client_concurrency: 8,
        counters_max: 4096,
        shared_clients: Networks::default(),
    }
}

fn address(number: u32) -> IpAddr {
    IpAddr::V4((0x0a00_0000 + number).into())
}

/// Whether an attempt is admitted; it ends as given.
fn attempt(throttle: &mut Throttle, now: Duration, user: &str, client: IpAddr, end: LoginAttemptOutcome) -> bool {
    let attempt = throttle.admit_attempt(now, user, client);
    if let Some(attempt) = attempt {
        throttle.finish_attempt(now, attempt, end);
    }
    attempt.is_some()
}

fn fails(throttle: &mut Throttle, now: Duration, user: &str, client: IpAddr) -> bool {
    attempt(throttle, now, user, client, LoginAttemptOutcome::Failed)
}

#[test]
fn failures_on_other_servers_count_and_are_not_reported_again() {
    let (mut here, mut there) = (Throttle::new(settings()), Throttle::new(settings()));
    for mark in 0..3 {
        let attempt = here.admit_attempt(at(0), "bob", address(1)).unwrap();
        assert!(here.finish_attempt(at(0), attempt, LoginAttemptOutcome::WrongPassword(mark)));
        there.count_failure_elsewhere(at(0), "bob", address(1));
    }
    assert!(!fails(&mut there, at(0), "bob", address(1)), "three failures elsewhere");
    assert!(fails(&mut there, at(0), "bob", address(2)));
    let attempt = there.admit_attempt(at(0), "eve", address(3)).unwrap();
    assert!(!there.finish_attempt(at(0), attempt, LoginAttemptOutcome::Succeeded));
}

#[test]
fn delays_begin_after_so_many_failures_and_double_up_to_a_maximum() {
    let mut throttle = Throttle::new(settings());
    for _ in 0..3 {
        assert!(fails(&mut throttle, at(0), "bob", address(1)));
    }
    let mut now = at(0);
    for delay in [1, 2, 4, 8, 16, 32, 60, 60] {
        let end = now + at(delay);
        assert!(!fails(&mut throttle, end - Duration::from_millis(1), "bob", address(1)), "{delay}");
        assert!(fails(&mut throttle, end, "bob", address(1)), "{delay}");
        now = end;
    }
    // Another user on the client, and this user on another client.
    assert!(fails(&mut throttle, now, "carol", address(2)));
    assert!(fails(&mut throttle, now, "bob", address(2)));
}

#[test]
fn failures_are_forgotten_after_the_window_and_those_with_delays_after_a_window_without_any() {
    let mut throttle = Throttle::new(settings());
    // Two in each window, more than allowed in one.
    for now in [0, 599, 600, 1199, 1200, 1799] {
        assert!(fails(&mut throttle, at(now), "bob", address(1)), "{now}");
    }
    let mut throttle = Throttle::new(settings());
    (0..3).for_each(|_| assert!(fails(&mut throttle, at(0), "bob", address(1))));
    assert!(fails(&mut throttle, at(1), "bob", address(1)));
    // The third delay still applies.
    assert!(fails(&mut throttle, at(500), "bob", address(1)));
    assert!(!fails(&mut throttle, at(503), "bob", address(1)));
    assert!(fails(&mut throttle, at(504 + 600), "bob", address(1)));
    assert!(fails(&mut throttle, at(504 + 600), "bob", address(1)));
}

#[test]
fn the_right_password_resets_the_pair_and_nothing_else() {
    let mut throttle = Throttle::new(settings());
    for _ in 0..4 {
        assert!(fails(&mut throttle, at(0), "bob", address(1)));
        assert!(fails(&mut throttle, at(0), "bob", address(1)));
        assert!(attempt(&mut throttle, at(0), "bob", address(1), LoginAttemptOutcome::Succeeded));
    }
    assert!(fails(&mut throttle, at(0), "carol", address(1)));
    assert!(fails(&mut throttle, at(0), "carol", address(1)));
    // Ten failures of this client, over all users.
    assert!(!fails(&mut throttle, at(0), "dave", address(1)));
    assert!(
        attempt(&mut throttle, at(0), "bob", address(1), LoginAttemptOutcome::Succeeded),
        "bob is known on this client"
    );
}

#[test]
fn a_client_that_goes_through_many_users_is_stopped_and_so_are_its_neighbours_in_ipv6() {
    let mut throttle = Throttle::new(settings());
    let host = |low: u64| IpAddr::V6((0x2001_0db8_u128 << 96 | u128::from(low)).into());
    for number in 0..10 {
        assert!(fails(&mut throttle, at(0), &format!("user{number}"), host(number)));
    }
    assert!(!fails(&mut throttle, at(0), "other", host(77)));
    assert!(fails(&mut throttle, at(0), "other", "2001:db8:0:1::1".parse().unwrap()));
    // An IPv4 address and its IPv4-mapped form are the same.
    let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
    (0..3).for_each(|_| assert!(fails(&mut throttle, at(0), "bob", mapped)));
    assert!(!fails(&mut throttle, at(0), "bob", address(1)));
    assert!(fails(&mut throttle, at(0), "bob", "::ffff:10.0.0.2".parse().unwrap()));
}

#[test]
fn a_user_cannot_be_locked_out_of_known_clients() {
    let mut throttle = Throttle::new(settings());
    assert!(attempt(&mut throttle, at(0), "bob", address(1), LoginAttemptOutcome::Succeeded));
    for number in 0..20 {
        assert!(fails(&mut throttle, at(1), "bob", address(100 + number)));
    }
    assert!(!fails(&mut throttle, at(1), "bob", address(999)), "unknown clients wait");
    assert!(attempt(&mut throttle, at(1), "bob", address(1), LoginAttemptOutcome::Succeeded));
    // An unknown client gets through after the short delay, regardless of the number of failures.
    let mut now = at(1);
    for _ in 0..20 {
        now += at(5);
        assert!(fails(&mut throttle, now, "bob", address(2000 + u32::try_from(now.as_secs()).unwrap())));
    }
    assert!(attempt(&mut throttle, now + at(5), "bob", address(7777), LoginAttemptOutcome::Succeeded));
}

#[test]
fn no_more_are_let_through_at_once_than_may_fail() {
    let mut throttle = Throttle::new(settings());
    let mut under_way: Vec<_> = (0..4).map(|_| throttle.admit_attempt(at(0), "bob", address(1)).unwrap()).collect();
    assert_eq!(throttle.admit_attempt(at(0), "bob", address(1)), None);
    throttle.finish_attempt(at(0), under_way.pop().unwrap(), LoginAttemptOutcome::Failed);
    throttle.finish_attempt(at(0), under_way.pop().unwrap(), LoginAttemptOutcome::NotChecked);
    // Two more failures allowed, two attempts running.
    assert_eq!(throttle.admit_attempt(at(0), "bob", address(1)), None);
    throttle.finish_attempt(at(0), under_way.pop().unwrap(), LoginAttemptOutcome::NotChecked);
    assert!(throttle.admit_attempt(at(0), "bob", address(1)).is_some());
    let others: Vec<_> =
        (0..20).filter_map(|number| throttle.admit_attempt(at(0), &number.to_string(), address(2))).collect();
    assert_eq!(others.len(), 8);
}

#[test]
fn an_unchecked_password_is_no_failure() {
    let mut throttle = Throttle::new(settings());
    for _ in 0..100 {
        assert!(attempt(&mut throttle, at(0), "bob", address(1), LoginAttemptOutcome::NotChecked));
    }
    (0..3).for_each(|_| assert!(fails(&mut throttle, at(0), "bob", address(1))));
    for _ in 0..100 {
        assert!(!fails(&mut throttle, at(0), "bob", address(1)));
    }
    assert!(fails(&mut throttle, at(1), "bob", address(1)), "refused attempts do not extend the delay");
}

#[test]
fn memory_is_bounded() {
    let mut throttle = Throttle::new(ThrottleSettings { counters_max: 64, ..settings() });
    for number in 0..10_000 {
        fails(&mut throttle, at(0), &number.to_string(), address(number));
    }
    for places in [&throttle.pairs, &throttle.clients, &throttle.users] {
        assert!(places.groups.iter().map(Vec::len).sum::<usize>() <= 64);
        assert!(places.groups.iter().all(|group| group.capacity() <= GROUP_SIZE_MAX));
    }
}

#[test]
fn an_open_exchange_blocks_no_other_client() {
    let mut throttle = Throttle::new(settings());
    // All but one of the user's free failures are used; the running attempt may use the last.
    for number in 0..19 {
        assert!(fails(&mut throttle, at(0), "bob", address(100 + number)));
    }
    let mut held = throttle.admit_attempt(at(0), "bob", address(1)).unwrap();
    assert_eq!(throttle.admit_attempt(at(0), "bob", address(2)), None);
    throttle.count_as_failed(at(0), &mut held);
    // It delays others as a failure does, and no longer.
    assert_eq!(throttle.admit_attempt(at(0), "bob", address(2)), None);
    assert!(attempt(&mut throttle, at(1), "bob", address(2), LoginAttemptOutcome::NotChecked));
    // A right proof is refunded, a wrong one is counted once.
    throttle.finish_attempt(at(1), held, LoginAttemptOutcome::Succeeded);
    let mut wrong = throttle.admit_attempt(at(1), "bob", address(3)).unwrap();
    throttle.count_as_failed(at(1), &mut wrong);
    throttle.finish_attempt(at(1), wrong, LoginAttemptOutcome::Failed);
    assert_eq!(throttle.users.groups.iter().flatten().map(|place| place.failures).collect::<Vec<_>>(), [20]);
    assert!(throttle.pairs.groups.iter().flatten().all(|place| place.in_flight == 0));
}

#[test]
fn a_charge_from_an_earlier_window_is_not_refunded() {
    let mut throttle = Throttle::new(settings());
    let mut held = throttle.admit_attempt(at(0), "bob", address(1)).unwrap();
    throttle.count_as_failed(at(0), &mut held);
    assert!(fails(&mut throttle, at(601), "bob", address(2)));
    throttle.finish_attempt(at(602), held, LoginAttemptOutcome::Succeeded);
    assert_eq!(throttle.users.groups.iter().flatten().map(|place| place.failures).collect::<Vec<_>>(), [1]);
}

#[test]
fn the_same_wrong_password_again_is_no_further_failure() {
    let mut throttle = Throttle::new(settings());
    for _ in 0..100 {
        assert!(attempt(&mut throttle, at(0), "bob", address(1), LoginAttemptOutcome::WrongPassword(7)));
    }
    assert!(attempt(&mut throttle, at(0), "bob", address(1), LoginAttemptOutcome::Succeeded), "the user can log in");
    assert!(attempt(&mut throttle, at(0), "bob", address(1), LoginAttemptOutcome::WrongPassword(7)));
    for mark in [8, 7, 8] {
        assert!(attempt(&mut throttle, at(0), "bob", address(1), LoginAttemptOutcome::WrongPassword(mark)), "{mark}");
    }
    assert!(
        !attempt(&mut throttle, at(0), "bob", address(1), LoginAttemptOutcome::WrongPassword(8)),
        "three failures with different passwords"
    );
    assert!(attempt(&mut throttle, at(1), "bob", address(1), LoginAttemptOutcome::WrongPassword(8)));
    assert!(
        attempt(&mut throttle, at(1), "bob", address(1), LoginAttemptOutcome::WrongPassword(8)),
        "a repetition adds no delay"
    );
}

/// Regression: repeated logins of invented users, each a bind, were never throttled and took up all
/// concurrent binds.
#[test]
fn a_repetition_that_costs_as_much_each_time_is_free_once_in_a_minute() {
    let mut throttle = Throttle::new(settings());
    let mut repeats =
        |now, user: &str| attempt(&mut throttle, now, user, address(1), LoginAttemptOutcome::WrongCostly(7));
    // The first failure, the free repetition, and two more failures.
    (0..4).for_each(|_| assert!(repeats(at(0), "bob")));
    assert!(!repeats(at(0), "bob"));
    assert!(repeats(at(1), "bob"));
    assert!(!repeats(at(2), "bob"), "the repetition counted as a failure");
    // A device that tries once a minute.
    (0..30).for_each(|minute| assert!(repeats(at(10 + 60 * minute), "carol"), "{minute}"));
    // Invented users: ten failures of the client are free, and their repetitions.
    let looked_at = [(); 4].map(|()| {
        let names = (0..6).map(|number| number.to_string());
        names
            .filter(|name| attempt(&mut throttle, at(0), name, address(2), LoginAttemptOutcome::WrongCostly(7)))
            .count()
    });
    assert_eq!(looked_at, [6, 6, 4, 0]);
}

#[test]
fn known_clients_are_evicted_last_and_empty_counters_first() {
    let mut throttle = Throttle::new(ThrottleSettings { counters_max: GROUP_SIZE_MAX, ..settings() });
    for _ in 0..2 {
        assert!(fails(&mut throttle, at(0), "eve", address(1)));
    }
    assert!(attempt(&mut throttle, at(1), "bob", address(2), LoginAttemptOutcome::Succeeded));
    for number in 0..100 {
        assert!(attempt(
            &mut throttle,
            at(2),
            &number.to_string(),
            address(10 + number),
            LoginAttemptOutcome::NotChecked
        ));
    }
    assert_eq!(throttle.users.groups[0].len(), 1, "unchecked passwords leave no counter");
    assert_eq!(throttle.pairs.groups[0].iter().map(|place| place.failures).max(), Some(2), "failures are kept");
    for number in 0..100 {
        assert!(fails(&mut throttle, at(3), &number.to_string(), address(1000 + number)));
    }
    assert!(throttle.pairs.groups[0].iter().any(|place| place.known_until > at(3)), "bob is still known");
}

#[test]
fn a_client_that_many_share_is_not_bound() {
    let shared_clients = "10.0.0.1".parse().unwrap();
    let mut throttle = Throttle::new(ThrottleSettings { shared_clients, ..settings() });
    let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
    for number in 0..50 {
        assert!(fails(&mut throttle, at(0), &number.to_string(), mapped));
    }
    let under_way: Vec<_> =
        (0..50).map(|number| throttle.admit_attempt(at(0), &format!("u{number}"), address(1))).collect();
    assert!(under_way.iter().all(Option::is_some));
    (0..3).for_each(|_| assert!(fails(&mut throttle, at(0), "bob", address(1))));
    assert!(!fails(&mut throttle, at(0), "bob", address(1)), "the limit of the pair applies");
}

proptest! {
    #[test]
    fn of_one_pair_no_more_fail_than_the_bound_and_the_delays_allow(
        steps in proptest::collection::vec((0u64..5000, any::<bool>()), 1..200),
    ) {
        let mut throttle = Throttle::new(settings());
        let (mut now, mut failed) = (Duration::ZERO, 0u64);
        for (millis, is_failure) in steps {
            now += Duration::from_millis(millis);
            let end = if is_failure { LoginAttemptOutcome::Failed } else { LoginAttemptOutcome::NotChecked };
            if attempt(&mut throttle, now, "bob", address(1), end) && is_failure {
                failed += 1;
            }
        }
        // Three are free in each window, and the delays add up to 2^n - 1 seconds until they reach
        // a minute.
        let windows = now.as_secs() / 600 + 1;
        prop_assert!(failed <= windows * (3 + 7 + 600 / 60), "{} in {:?}", failed, now);
    }

    #[test]
    fn every_pair_is_admitted_again_after_the_longest_delay(
        steps in proptest::collection::vec((0u64..100, 0u32..3, 0u32..3, 0u8..5), 0..100),
    ) {
        let mut throttle = Throttle::new(settings());
        let mut now = Duration::ZERO;
        let mut under_way = Vec::new();
        for (seconds, user, client, what) in steps {
            now += at(seconds);
            under_way.extend(throttle.admit_attempt(now, &user.to_string(), address(client)));
            let ends = [LoginAttemptOutcome::Succeeded, LoginAttemptOutcome::Failed, LoginAttemptOutcome::NotChecked, LoginAttemptOutcome::WrongCostly(0)];
            if let (Some(end), false) = (ends.get(usize::from(what)), under_way.is_empty()) {
                throttle.finish_attempt(now, under_way.swap_remove(0), *end);
            }
        }
        for attempt in under_way.drain(..) {
            throttle.finish_attempt(now, attempt, LoginAttemptOutcome::Failed);
        }
        now += at(61);
        prop_assert!(throttle.admit_attempt(now, "0", address(0)).is_some());
    }
}
