//! Logins against a scripted table, with a paused clock.

use std::net::Ipv4Addr;

use super::*;
use lookup::LookupFuture;

const SECRET: [u8; 32] = [9; 32];
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A table that answers by the beginning of the key.
struct FakeTable(Mutex<Vec<(&'static str, LookupAnswer)>>);

impl Table for FakeTable {
    fn name(&self) -> &str {
        "people"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        let rows = self.0.lock().clone();
        let answer = |key: &&str| rows.iter().find(|(name, _)| key.starts_with(name)).map(|(_, answer)| answer.clone());
        let answers = keys.iter().map(|key| answer(key).unwrap_or(LookupAnswer::NotFound)).collect();
        Box::pin(std::future::ready(answers))
    }
}

fn found(stored: &str) -> LookupAnswer {
    LookupAnswer::Found(vec![stored.to_owned()])
}

fn people() -> Arc<FakeTable> {
    Arc::new(FakeTable(Mutex::new(vec![
        ("bob", found("$2y$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG")),
        ("plain", found("{PLAIN}tanstaaf")),
        ("scram", found(&generate::hash_scram_sha_256("tanstaaf", [1; 16]).unwrap())),
        ("down", LookupAnswer::Unavailable("the directory is down".to_owned())),
        ("gone", LookupAnswer::Unconfirmed("was not there".to_owned())),
        ("costly", found("$2y$31$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG")),
        ("bare", LookupAnswer::Found(Vec::new())),
        ("locked", found("!$2y$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG")),
        ("shut", found("{BLF-CRYPT}!$2y$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG")),
    ])))
}

fn settings() -> CredentialCheckerSettings {
    CredentialCheckerSettings { threads: 1, ..CredentialCheckerSettings::default() }
}

fn credentials(table: &Arc<FakeTable>, settings: CredentialCheckerSettings) -> CredentialChecker {
    let credentials = CredentialChecker::new(CredentialSource::Table(table.clone()), settings, SECRET).unwrap();
    // The default hash for unknown users is slow without optimization.
    credentials.0.unknown_user_hashes.lock().fallback = StoredPassword::parse("{PLAIN}x").unwrap();
    credentials
}

fn accepted(user: &str) -> LoginResult {
    LoginResult::Accepted { user: user.into() }
}

#[tokio::test(start_paused = true)]
async fn the_right_password_is_accepted_and_everything_else_is_not() {
    let credentials = credentials(&people(), settings());
    assert_eq!(credentials.verify_password("Bob@X.org", "tanstaaf", HERE).await, accepted("bob@x.org"));
    assert_eq!(credentials.verify_password("bob@x.org", "tanstaax", HERE).await, LoginResult::Refused);
    assert_eq!(credentials.verify_password("nobody", "tanstaaf", HERE).await, LoginResult::Refused);
    for (user, password) in [("bob", ""), ("bob", "a\0b"), ("", "x"), ("a\0b", "x"), ("bob", &"x".repeat(513))] {
        assert_eq!(credentials.verify_password(user, password, HERE).await, LoginResult::Refused, "{user}");
    }
    let stats = credentials.stats();
    assert_eq!((stats.accepted, stats.refused, stats.remembered), (1, 7, 0));
    assert_eq!(credentials.weak_password_warning(), None);
    assert_eq!(credentials.verify_password("plain", "tanstaaf", HERE).await, accepted("plain"));
    assert!(credentials.weak_password_warning().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_name_with_extra_white_space_is_refused() {
    let credentials = credentials(&people(), settings());
    for user in ["bob ", "bob  b", "bob\u{3000} b", "bob\u{a0}"] {
        assert_eq!(credentials.verify_password(user, "tanstaaf", HERE).await, LoginResult::Refused, "{user:?}");
    }
    assert_eq!(credentials.verify_password("bob b", "tanstaaf", HERE).await, accepted("bob b"));
    for user in ["scram ", "scram  m"] {
        assert!(matches!(credentials.find_scram_keys(user, HERE).await, ScramLookupResult::Unknown { .. }), "{user:?}");
    }
    for user in [" bob", " ", "b  b", "b ", "\u{2003}b"] {
        assert!(!is_valid_user_name(user), "{user:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_table_is_no_failed_login() {
    let credentials = credentials(&people(), settings());
    for (user, words) in [("down", "the directory is down"), ("gone", "was not there")] {
        for number in 0..20 {
            match credentials.verify_password(user, &number.to_string(), HERE).await {
                LoginResult::Unavailable(why) => assert!(why.contains(words), "{why}"),
                other => panic!("{user}: {other:?}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unusable_entry_fails_like_an_unknown_user_and_gives_its_reason() {
    let credentials = credentials(&people(), settings());
    for (user, words) in [
        ("costly", "table 'people', user 'costly': stored password too costly to check"),
        ("bare", "0 stored passwords"),
    ] {
        for number in 0..5 {
            match credentials.verify_password(user, &number.to_string(), HERE).await {
                LoginResult::Unusable(why) => assert!(why.contains(words), "{why}"),
                other => panic!("{user}: {other:?}"),
            }
        }
        assert_eq!(credentials.verify_password(user, "x", HERE).await, LoginResult::Throttled, "{user}");
        match credentials.find_scram_keys(&format!("{user}2"), HERE).await {
            ScramLookupResult::Unknown { unusable: Some(why), .. } => {
                assert!(why.contains(&words[words.len() - 10..]), "{why}")
            }
            other => panic!("{user}: {other:?}"),
        }
    }
    assert_eq!(credentials.stats().refused, 10);
}

#[tokio::test(start_paused = true)]
async fn a_locked_user_is_refused_like_an_unknown_one() {
    let credentials = credentials(&people(), settings());
    for user in ["locked", "shut"] {
        for number in 0..5 {
            assert_eq!(
                credentials.verify_password(user, &number.to_string(), HERE).await,
                LoginResult::Refused,
                "{user}"
            );
        }
        assert_eq!(credentials.verify_password(user, "x", HERE).await, LoginResult::Throttled, "{user}");
        let scram = credentials.find_scram_keys(&format!("{user}2"), HERE).await;
        assert!(matches!(scram, ScramLookupResult::Unknown { unusable: None, .. }), "{user}: {scram:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn scram_is_offered_only_where_it_is_set() {
    let with = |scram| credentials(&people(), CredentialCheckerSettings { scram, ..settings() }).can_scram();
    assert!(with(true) && !with(CredentialCheckerSettings::default().scram));
}

#[tokio::test(start_paused = true)]
async fn a_success_is_remembered_for_a_minute_and_not_longer() {
    let table = people();
    let credentials = credentials(&table, settings());
    assert_eq!(credentials.verify_password("bob", "tanstaaf", HERE).await, accepted("bob"));
    table.0.lock().clear();
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(credentials.verify_password("BOB", "tanstaaf", HERE).await, accepted("bob"));
    assert_eq!(credentials.verify_password("bob", "tanstaax", HERE).await, LoginResult::Refused);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(credentials.verify_password("bob", "tanstaaf", HERE).await, LoginResult::Refused);
    assert_eq!(credentials.stats().remembered, 1);
}

#[tokio::test(start_paused = true)]
async fn a_recent_ttl_of_zero_caches_nothing() {
    let table = people();
    let credentials = credentials(&table, CredentialCheckerSettings { recent_ttl: Duration::ZERO, ..settings() });
    assert_eq!(credentials.verify_password("bob", "tanstaaf", HERE).await, accepted("bob"));
    table.0.lock().clear();
    assert_eq!(credentials.verify_password("bob", "tanstaaf", HERE).await, LoginResult::Refused);
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut recent = RecentSuccesses::new([0; 32], Duration::from_secs(60), 3);
    for number in 0..10 {
        recent.add(Duration::from_secs(number), &number.to_string(), "x", "u");
    }
    let now = Duration::from_secs(10);
    let kept: Vec<u64> = (0..10).filter(|number| recent.find(now, &number.to_string(), "x").is_some()).collect();
    assert_eq!(kept, [7, 8, 9]);
    assert_eq!(recent.find(now, "9", "y"), None);
}

#[tokio::test(start_paused = true)]
async fn after_too_many_failures_the_right_password_is_throttled_too() {
    let credentials = credentials(&people(), settings());
    assert_eq!(credentials.verify_password("bob", "tanstaaf", HERE).await, accepted("bob"));
    for wrong in ["1", "2", "3", "4", "5"] {
        assert_eq!(credentials.verify_password("bob", wrong, HERE).await, LoginResult::Refused);
    }
    // Even a cached success is throttled: otherwise guesses would be free while the user is logged
    // in.
    assert_eq!(credentials.verify_password("bob", "tanstaaf", HERE).await, LoginResult::Throttled);
    let elsewhere = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    assert_eq!(credentials.verify_password("bob", "tanstaaf", elsewhere).await, accepted("bob"));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(credentials.verify_password("bob", "tanstaaf", HERE).await, accepted("bob"));
    assert_eq!(credentials.stats().throttled, 1);
}

/// A configuration reload must not let throttled clients go on guessing.
#[tokio::test(start_paused = true)]
async fn a_successor_forgets_passwords_and_keeps_failures() {
    let (table, changed) = (people(), people());
    changed.0.lock().insert(0, ("plain", found("{PLAIN}another")));
    let first = credentials(&table, settings());
    assert_eq!(first.verify_password("plain", "tanstaaf", HERE).await, accepted("plain"));
    for number in 0..5 {
        assert_eq!(first.verify_password("bob", &number.to_string(), HERE).await, LoginResult::Refused);
    }
    tokio::time::advance(Duration::from_millis(500)).await;
    let follow = |keeps| first.create_successor(CredentialSource::Table(changed.clone()), settings(), keeps).unwrap();
    let second = follow(true);
    assert_eq!(second.verify_password("bob", "tanstaaf", HERE).await, LoginResult::Throttled);
    assert_eq!(second.verify_password("plain", "tanstaaf", HERE).await, LoginResult::Refused);
    assert_eq!(second.verify_password("plain", "another", HERE).await, accepted("plain"));
    // Logins in progress at the predecessor are counted here too.
    assert_eq!(first.verify_password("plain", "tanstaaf", HERE).await, accepted("plain"));
    assert_eq!((second.stats().accepted, second.stats().throttled), (3, 1));
    assert_eq!(follow(false).verify_password("bob", "tanstaaf", HERE).await, accepted("bob"));
}

#[tokio::test(start_paused = true)]
async fn a_device_with_an_old_password_does_not_lock_its_user_out() {
    let credentials = credentials(&people(), settings());
    for _ in 0..50 {
        assert_eq!(credentials.verify_password("bob", "old", HERE).await, LoginResult::Refused);
    }
    assert_eq!(credentials.verify_password("bob", "tanstaaf", HERE).await, accepted("bob"));
}

/// Blocks the only thread and fills the queue until the sender is dropped, so that every hash is
/// refused.
async fn occupy_workers(credentials: &CredentialChecker) -> std::sync::mpsc::Sender<()> {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let (one, other) = (credentials.clone(), credentials.clone());
    tokio::spawn(async move {
        let hold = move || {
            let _ = begin.send(());
            released.recv()
        };
        one.0.workers.run(hold).await
    });
    begun.await.unwrap();
    tokio::spawn(async move { other.0.workers.run(|| ()).await });
    while credentials.stats().waiting == 0 {
        tokio::task::yield_now().await;
    }
    release
}

#[tokio::test(start_paused = true)]
async fn a_repeated_wrong_password_is_not_hashed_again_for_known_and_unknown_users() {
    let credentials = credentials(&people(), CredentialCheckerSettings { waiting_max: 1, ..settings() });
    for user in ["bob", "nobody", "locked"] {
        assert_eq!(credentials.verify_password(user, "wrong", HERE).await, LoginResult::Refused, "{user}");
    }
    assert!(matches!(credentials.verify_password("costly", "wrong", HERE).await, LoginResult::Unusable(_)));
    assert_eq!(credentials.stats().repeated, 0);
    let held = occupy_workers(&credentials).await;
    for user in ["bob", "nobody", "locked"] {
        assert_eq!(credentials.verify_password(user, "wrong", HERE).await, LoginResult::Refused, "{user}");
    }
    match credentials.verify_password("costly", "wrong", HERE).await {
        LoginResult::Unusable(why) => assert!(why.contains("too costly"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(credentials.stats().repeated, 4);
    let elsewhere = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let needs_a_hash = LoginResult::Unavailable(workers::QueueFull.to_string());
    for (user, password, client) in [("bob", "other", HERE), ("nobody", "other", HERE), ("bob", "wrong", elsewhere)] {
        assert_eq!(credentials.verify_password(user, password, client).await, needs_a_hash, "{user}, {password}");
    }
    tokio::time::advance(WRONG_TTL).await;
    assert_eq!(credentials.verify_password("bob", "wrong", HERE).await, needs_a_hash);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_password_is_accepted_as_soon_as_the_table_has_it() {
    let table = people();
    let credentials = credentials(&table, settings());
    for user in ["bob", "new"] {
        assert_eq!(credentials.verify_password(user, "changed", HERE).await, LoginResult::Refused, "{user}");
    }
    for user in ["bob", "new"] {
        table.0.lock().insert(0, (user, found("{PLAIN}changed")));
        assert_eq!(credentials.verify_password(user, "changed", HERE).await, accepted(user));
    }
}

#[test]
fn recent_failures_are_bounded_and_depend_on_the_stored_values() {
    let mut wrong = RecentFailures::new([0; 32], WRONG_TTL, 3);
    let values = |all: &[&str]| all.iter().map(|&value| value.to_owned()).collect::<Vec<_>>();
    let entries = [&["a", "b"][..], &["ab"], &["a"], &[""], &[]].map(|all| wrong.entry_fingerprint(&values(all)));
    let marks = entries.map(|entry| wrong.fingerprint(HERE, "bob", &entry, "x"));
    marks.iter().for_each(|mark| wrong.add(Duration::ZERO, *mark));
    assert_eq!(marks.map(|mark| wrong.has(Duration::from_secs(1), &mark)), [false, false, true, true, true]);
    assert!(!wrong.has(WRONG_TTL, &marks[4]));
}

#[tokio::test(start_paused = true)]
async fn open_exchanges_do_not_block_other_users_of_the_client() {
    let mut settings = settings();
    settings.throttle.client_concurrency = 3;
    let credentials = credentials(&people(), settings);
    let mut held = Vec::new();
    for user in ["scram", "plain", "nobody"] {
        held.push(credentials.find_scram_keys(user, HERE).await);
    }
    assert_eq!(credentials.verify_password("bob", "tanstaaf", HERE).await, accepted("bob"));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_attempt_counts_as_failed() {
    let credentials = credentials(&people(), settings());
    for attempt in 0..5 {
        // A different password each time: if a check ends within its first poll, repeating it is
        // free.
        let password = format!("wrong {attempt}");
        let verifying = credentials.verify_password("bob", &password, HERE);
        let mut verifying = Box::pin(verifying);
        // Polled once and dropped, as when a client disconnects.
        std::future::poll_fn(|context| {
            let _ = verifying.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    }
    assert_eq!(credentials.verify_password("bob", "tanstaaf", HERE).await, LoginResult::Throttled);
}

#[tokio::test(start_paused = true)]
async fn scram_finds_the_keys_of_users_that_have_them() {
    let credentials = credentials(&people(), settings());
    let ScramLookupResult::Found { user, keys, pending } = credentials.find_scram_keys("Scram", HERE).await else {
        panic!()
    };
    assert_eq!((&*user, keys.iterations, &*keys.salt), ("scram", 4096, &[1; 16][..]));
    assert_eq!(keys, scram::keys("tanstaaf", &[1; 16], 4096));
    pending.record_success();
    let ScramLookupResult::Found { keys, pending, .. } = credentials.find_scram_keys("plain", HERE).await else {
        panic!()
    };
    assert_eq!(keys, scram::keys("tanstaaf", &keys.salt, 4096));
    drop(pending);
    let ScramLookupResult::Found { keys: again, .. } = credentials.find_scram_keys("plain", HERE).await else {
        panic!()
    };
    assert_eq!(keys, again, "the salt does not change");
    for user in ["bob", "nobody", "a\0b"] {
        assert!(matches!(credentials.find_scram_keys(user, HERE).await, ScramLookupResult::Unknown { .. }), "{user}");
    }
    assert!(matches!(credentials.find_scram_keys("down", HERE).await, ScramLookupResult::Unavailable(_)));
}

#[tokio::test(start_paused = true)]
async fn users_without_keys_get_iterations_that_other_users_have() {
    let table = people();
    let dovecot_keys = "{SCRAM-SHA-256}8192,W22ZaJ0SNY7soEsUEjb6gQ==,WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=,\
                    wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
    table.0.lock().insert(0, ("dovecot", found(dovecot_keys)));
    let credentials = credentials(&table, settings());
    let iterations = async |user: &str| match credentials.find_scram_keys(user, HERE).await {
        ScramLookupResult::Unknown { iterations, .. } => iterations,
        other => panic!("{other:?}"),
    };
    assert_eq!(iterations("nobody").await, 4096, "before any user was seen");
    assert!(matches!(credentials.find_scram_keys("dovecot", HERE).await, ScramLookupResult::Found { .. }));
    // Other stored passwords have no iterations.
    credentials.verify_password("bob", "x", HERE).await;
    for user in ["nobody", "bob", "somebody", "no1", "no2", "no3"] {
        assert_eq!(iterations(user).await, 8192, "{user}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_proofs_are_throttled_as_wrong_passwords_are() {
    let credentials = credentials(&people(), settings());
    for number in 0..5 {
        match credentials.find_scram_keys("nobody", HERE).await {
            ScramLookupResult::Unknown { pending, .. } if number % 2 == 0 => pending.record_failure(),
            ScramLookupResult::Unknown { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(credentials.find_scram_keys("nobody", HERE).await, ScramLookupResult::Throttled));
    assert_eq!(credentials.verify_password("nobody", "x", HERE).await, LoginResult::Throttled);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_user_costs_what_some_known_one_does_and_the_same_each_time() {
    let credentials = credentials(&people(), settings());
    let scheme = |user: &str| credentials.0.unknown_user_hashes(user)[0].scheme();
    assert_eq!(scheme("nobody"), "PLAIN", "before any user was seen");
    credentials.verify_password("bob", "x", HERE).await;
    assert_eq!(scheme("nobody"), "bcrypt");
    credentials.verify_password("scram", "x", HERE).await;
    let names: Vec<String> = (0..50).map(|number| format!("nobody{number}")).collect();
    let before: Vec<_> = names.iter().map(|name| scheme(name)).collect();
    assert!(before.contains(&"bcrypt") && before.contains(&"SCRAM-SHA-256"));
    for user in ["bob", "scram", "nobody", "bob"] {
        credentials.verify_password(user, "y", HERE).await;
        assert_eq!(names.iter().map(|name| scheme(name)).collect::<Vec<_>>(), before, "{user}");
    }
    // A real user's hash is computed, but its password does not match an unknown user.
    credentials.verify_password("scram", "x", HERE).await;
    assert_eq!(credentials.verify_password("nobody", "tanstaaf", HERE).await, LoginResult::Refused);
    let first_hash = StoredPassword::parse(FIRST_UNKNOWN_USER_HASH).unwrap();
    assert_eq!(first_hash.scheme(), "Argon2");
    let made = generate::hash_argon2id("nobody", [0; 16]).unwrap();
    let costs = |text: &str| text.trim_start_matches("{ARGON2ID}").split('$').take(5).collect::<Vec<_>>().join("$");
    assert_eq!(
        (costs(FIRST_UNKNOWN_USER_HASH), FIRST_UNKNOWN_USER_HASH.len()),
        (costs(&made), made.len() - "{ARGON2ID}".len())
    );
}

#[tokio::test]
async fn a_full_queue_refuses_immediately() {
    let workers = HashWorkers::start(1, 1).unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let mut busy = Box::pin(workers.run(move || {
        let _ = begin.send(());
        released.recv()
    }));
    let mut waits = Box::pin(workers.run(|| 7));
    tokio::select! {
        biased;
        _ = &mut busy => panic!("the job must not end"),
        begun = begun => begun.unwrap(),
    }
    assert!(futures_util::poll!(&mut waits).is_pending());
    assert_eq!(workers.waiting(), 1);
    assert_eq!(workers.run(|| 8).await, Err(workers::QueueFull));
    release.send(()).unwrap();
    assert_eq!((busy.await.unwrap(), waits.await), (Ok(()), Ok(7)));
}
