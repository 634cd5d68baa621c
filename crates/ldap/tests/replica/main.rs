//! A replica and its server, from the first load through outages and restarts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod master;

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ldap::replica::{LdapReplica, ReplicaConfig, ReplicaError};
use ldap::{GroupMembersConfig, LdapBindMethod, LdapConfig, LdapConnectionConfig, SearchScope};
use lookup::{LookupAnswer, LookupFuture, ReplicaStats, Table, TableEvent, TableLayer};
use master::{Master, add, cookie, delete, done, present, refreshed};

/// The table without a copy; records the keys it is asked for.
#[derive(Default)]
struct DirectTable(Mutex<Vec<String>>);

impl Table for DirectTable {
    fn name(&self) -> &str {
        "direct"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        self.0.lock().unwrap().extend(keys.iter().map(|&key| key.to_owned()));
        Box::pin(std::future::ready(keys.iter().map(|_| LookupAnswer::Found(vec!["direct".to_owned()])).collect()))
    }
}

struct Fixture {
    folder: tempfile::TempDir,
    master: Master,
    replica: Option<LdapReplica>,
    direct: Arc<DirectTable>,
    events: Receiver<TableEvent>,
}

fn config(url: &str, file: PathBuf) -> ReplicaConfig {
    let servers = LdapConnectionConfig {
        urls: vec![url.parse().unwrap()],
        starttls: false,
        ca_file: None,
        bind: LdapBindMethod::Anonymous,
        connect_timeout: LdapConnectionConfig::CONNECT_TIMEOUT,
        timeout: LdapConnectionConfig::TIMEOUT,
    };
    let ldap = LdapConfig {
        servers,
        base: "dc=example,dc=org".into(),
        scope: SearchScope::Sub,
        filter: "(&(objectClass=person)(mail={key}))".parse().unwrap(),
        results: vec!["description".parse().unwrap()],
        members: None,
        values_max: 10,
        entries_max: None,
        referrals: false,
    };
    ReplicaConfig { ldap, file, poll_interval: Duration::from_millis(100), removals_max: 0.1 }
}

impl Fixture {
    fn new(offers_sync: bool) -> Self {
        let (folder, master) = (tempfile::tempdir().unwrap(), Master::start(offers_sync));
        let mut fixture = Fixture { folder, master, replica: None, direct: Arc::default(), events: mpsc::channel().1 };
        fixture.start();
        fixture
    }

    /// A copy of entries 0 to `count`, and the running search.
    fn loaded(count: u8) -> (Self, master::Search) {
        let fixture = Fixture::new(true);
        let search = fixture.master.search();
        (0..count).for_each(|number| search.send(&[add(number, "v")]));
        search.send(&[refreshed(true, "c1")]);
        assert!(matches!(fixture.event(), TableEvent::ReplicaLoaded { entries, .. } if entries == u64::from(count)));
        (fixture, search)
    }

    fn start(&mut self) {
        let (sender, events) = mpsc::channel();
        let tell = Arc::new(Mutex::new(sender));
        let config = config(&self.master.url, self.folder.path().join("copy"));
        let events_to = Arc::new(move |event| drop(tell.lock().unwrap().send(event)));
        self.replica = Some(LdapReplica::start("t", config, self.direct.clone(), events_to).unwrap());
        self.events = events;
    }

    fn replica(&self) -> &LdapReplica {
        self.replica.as_ref().unwrap()
    }

    fn event(&self) -> TableEvent {
        self.events.recv_timeout(Duration::from_secs(20)).expect("an event arrives")
    }

    fn copy(&self) -> ReplicaStats {
        self.replica().stats().unwrap().replica.unwrap()
    }

    fn ask(&self, key: &str) -> LookupAnswer {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.replica().lookup(&[key])).remove(0)
    }

    /// Waits for this answer for one entry.
    fn wait_for_answer(&self, number: u8, answer: &LookupAnswer) {
        self.wait_until(|| self.ask(&format!("uSER{number}@example.org")) == *answer);
    }

    fn wait_until(&self, is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < end, "{:?}", self.copy());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn found(value: &str) -> LookupAnswer {
    LookupAnswer::Found(vec![value.to_owned()])
}

#[test]
fn until_the_first_load_is_complete_the_directory_itself_is_asked() {
    let fixture = Fixture::new(true);
    let search = fixture.master.search();
    assert!(search.is_sync && search.cookie.is_none());
    search.send(&[add(1, "one")]);
    assert_eq!(fixture.ask("user1@example.org"), found("direct"));
    assert_eq!(fixture.ask("nobody@example.org"), found("direct"));
    search.send(&[add(2, "two"), refreshed(true, "c1")]);
    assert!(matches!(fixture.event(), TableEvent::ReplicaLoaded { entries: 2, changed: 2, removed: 0, .. }));
    assert_eq!(fixture.ask("USER1@example.org"), found("one"));
    assert_eq!(fixture.ask("nobody@example.org"), LookupAnswer::NotFound);
    assert_eq!(fixture.ask("n\u{fc}body@example.org"), found("direct"));
    assert_eq!(fixture.direct.0.lock().unwrap().len(), 3);
    let stats = fixture.replica().stats().unwrap();
    assert_eq!((stats.found, stats.not_found), (1, 1));
    fixture.wait_until(|| fixture.copy().live);
}

#[test]
fn changes_arrive_as_they_are_made() {
    let (fixture, search) = Fixture::loaded(3);
    search.send(&[add(1, "new"), delete(2), add(3, "three"), cookie("c2")]);
    fixture.wait_for_answer(1, &found("new"));
    fixture.wait_for_answer(2, &LookupAnswer::NotFound);
    fixture.wait_for_answer(3, &found("three"));
    fixture.wait_for_answer(0, &found("v"));
}

#[test]
fn a_copy_answers_during_an_outage_and_resumes_from_its_cookie() {
    let (mut fixture, search) = Fixture::loaded(3);
    search.send(&[add(1, "new"), cookie("c2")]);
    fixture.wait_for_answer(1, &found("new"));
    search.hang_up();
    assert!(matches!(fixture.event(), TableEvent::ReplicaDisconnected { .. }));
    fixture.wait_for_answer(1, &found("new"));
    let search = fixture.master.search();
    assert_eq!(search.cookie.as_deref(), Some("c2"));
    // An interrupted present phase removes nothing.
    search.send(&[present(0), add(4, "four")]);
    search.hang_up();
    let search = fixture.master.search();
    assert_eq!(search.cookie.as_deref(), Some("c2"));
    fixture.wait_for_answer(2, &found("v"));
    search.send(&[present(0), present(1), add(4, "four"), refreshed(false, "c3")]);
    assert!(matches!(fixture.event(), TableEvent::ReplicaLoaded { entries: 3, changed: 1, removed: 1, .. }));
    fixture.wait_for_answer(2, &LookupAnswer::NotFound);
    fixture.replica = None;
    drop(search);
    fixture.start();
    let trace = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let trace = trace.block_on(fixture.replica().trace("user4@example.org"));
    assert!(matches!(trace.layer, TableLayer::Replica { .. }));
    assert_eq!(trace.answer, found("four"));
    assert_eq!(fixture.master.search().cookie.as_deref(), Some("c3"));
}

#[test]
fn a_cookie_that_is_not_known_any_more_leads_to_a_whole_refresh() {
    let (fixture, search) = Fixture::loaded(20);
    search.send(&[done(4096)]);
    let search = fixture.master.search();
    assert_eq!(search.cookie, None);
    search.send(&[add(1, "new")]);
    (2..20).for_each(|number| search.send(&[add(number, "v")]));
    fixture.wait_for_answer(0, &found("v"));
    search.send(&[refreshed(true, "c9")]);
    fixture.wait_for_answer(0, &LookupAnswer::NotFound);
    fixture.wait_for_answer(1, &found("new"));
    // The same if the server reports an entry that the copy does not have.
    search.hang_up();
    let search = fixture.master.search();
    assert_eq!(search.cookie.as_deref(), Some("c9"));
    search.send(&[present(77)]);
    assert_eq!(fixture.master.search().cookie, None);
}

#[test]
fn a_refresh_that_would_remove_too_much_waits_for_the_operator() {
    let (fixture, search) = Fixture::loaded(20);
    assert!(!fixture.replica().accept_removals());
    search.hang_up();
    assert!(matches!(fixture.event(), TableEvent::ReplicaDisconnected { .. }));
    let search = fixture.master.search();
    search.send(&[present(0), add(30, "new"), refreshed(false, "c2")]);
    assert_eq!(fixture.event(), TableEvent::RemovalsHeldBack { table: "t".into(), removals: 19, entries: 21 });
    fixture.wait_for_answer(30, &found("new"));
    fixture.wait_for_answer(19, &found("v"));
    fixture.wait_until(|| fixture.copy().live);
    assert_eq!(fixture.copy().held_back, Some(19));
    // Though it is live, its age counts from before.
    assert!(fixture.copy().age.is_some_and(|age| age > Duration::ZERO));
    assert!(fixture.replica().accept_removals());
    fixture.wait_for_answer(19, &LookupAnswer::NotFound);
    fixture.wait_until(|| fixture.copy().held_back.is_none());
    assert_eq!((fixture.copy().entries, fixture.copy().age), (2, Some(Duration::ZERO)));
}

#[test]
fn accepting_removals_covers_only_those_known_before() {
    let fixture = Fixture::new(false);
    let poll = |numbers: std::ops::Range<u8>| {
        let search = fixture.master.search();
        numbers.for_each(|number| search.send(&[add(number, "v")]));
        search
    };
    poll(0..60).send(&[done(0)]);
    assert!(matches!(fixture.event(), TableEvent::ReplicaLoaded { .. }));
    poll(0..30).send(&[done(0)]);
    assert!(matches!(fixture.event(), TableEvent::RemovalsHeldBack { removals: 30, .. }));
    let search = fixture.master.search();
    assert!(fixture.replica().accept_removals());
    search.send(&[done(0)]);
    assert!(matches!(fixture.event(), TableEvent::RemovalsHeldBack { removals: 30, entries: 30, .. }));
    fixture.master.search();
    assert_eq!((fixture.copy().entries, fixture.copy().held_back), (30, Some(30)));
}

#[test]
fn too_many_single_removals_wait_for_the_operator() {
    let (fixture, search) = Fixture::loaded(20);
    (0..15).for_each(|number| search.send(&[delete(number)]));
    assert!(matches!(fixture.event(), TableEvent::RemovalsHeldBack { .. }));
    fixture.wait_until(|| fixture.copy().held_back == Some(5));
    fixture.wait_for_answer(9, &LookupAnswer::NotFound);
    fixture.wait_for_answer(10, &found("v"));
}

#[test]
fn a_server_that_does_not_tell_of_changes_is_polled() {
    let fixture = Fixture::new(false);
    for (round, values) in [(0, ["a", "b"]), (1, ["a", "c"])] {
        let search = fixture.master.search();
        assert!(!search.is_sync);
        // The state control is ignored: entries are identified by DN here.
        search.send(&[add(1, values[0]), add(2, values[1]), done(0)]);
        if round == 0 {
            assert!(matches!(fixture.event(), TableEvent::ReplicaLoaded { entries: 2, .. }));
        }
        fixture.wait_for_answer(2, &found(values[1]));
    }
    fixture.master.search().send(&[add(2, "c"), done(0)]);
    fixture.wait_for_answer(1, &LookupAnswer::NotFound);
    assert!(!fixture.copy().live);
}

#[test]
fn a_server_that_refuses_the_operation_is_polled_too() {
    let fixture = Fixture::new(true);
    fixture.master.search().send(&[done(12)]);
    let search = fixture.master.search();
    assert!(!search.is_sync);
    search.send(&[add(1, "a"), done(0)]);
    assert!(matches!(fixture.event(), TableEvent::ReplicaLoaded { entries: 1, .. }));
}

#[test]
fn a_server_that_refuses_a_cookie_is_asked_without_one() {
    let (fixture, search) = Fixture::loaded(3);
    search.hang_up();
    let search = fixture.master.search();
    assert_eq!(search.cookie.as_deref(), Some("c1"));
    search.send(&[done(53)]);
    let search = fixture.master.search();
    assert!(search.is_sync && search.cookie.is_none());
    search.send(&[done(53)]);
    assert!(!fixture.master.search().is_sync);
}

#[test]
fn whatever_a_server_does_the_thread_ends_at_once() {
    let mut fixture = Fixture::new(true);
    let search = fixture.master.search();
    let began = Instant::now();
    fixture.replica = None;
    assert!(began.elapsed() < Duration::from_secs(1));
    drop(search);
}

#[test]
fn what_a_copy_could_not_answer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let start = |change: fn(&mut ReplicaConfig)| {
        let mut config = config("ldap://127.0.0.1:1", folder.path().join("copy"));
        change(&mut config);
        LdapReplica::start("t", config, Arc::new(DirectTable::default()), Arc::new(|_| {})).err()
    };
    let with_local = |config: &mut ReplicaConfig| config.ldap.filter = "(uid={local})".parse().unwrap();
    assert!(matches!(start(with_local), Some(ReplicaError::Filter(_))));
    let with_members = |config: &mut ReplicaConfig| {
        config.ldap.members = Some(GroupMembersConfig {
            attributes: vec!["member".into()],
            leaf_results: Vec::new(),
            terminal_results: Vec::new(),
            depth_max: 5,
        })
    };
    assert!(matches!(start(with_members), Some(ReplicaError::Members)));
    let with_entries = |config: &mut ReplicaConfig| config.ldap.entries_max = Some(1);
    assert!(matches!(start(with_entries), Some(ReplicaError::EntriesMax)));
    let with_referrals = |config: &mut ReplicaConfig| config.ldap.referrals = true;
    assert!(matches!(start(with_referrals), Some(ReplicaError::Referrals)));
    assert!(start(|_| {}).is_none());
}
