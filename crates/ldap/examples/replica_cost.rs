//! Measures a replica: time of the first load, memory, and time per lookup.
//!
//! `replica_cost URL BASE FILE COUNT [KEY]` copies the `mail` and `description` of entries
//! `user{i}@virt.test` with `i` below COUNT, looks up a million of them, and then prints each
//! change of KEY until standard input has a line.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ldap::replica::{LdapReplica, ReplicaConfig};
use ldap::{LdapBindMethod, LdapConfig, LdapConnectionConfig, SearchScope};
use lookup::{LookupAnswer, LookupFuture, Table, TableEvent, TableEventHandler};

const LOOKUPS: u64 = 1_000_000;

/// A stand-in for the direct table, which is not measured.
struct Nobody;

impl Table for Nobody {
    fn name(&self) -> &str {
        "nobody"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        let answer = LookupAnswer::Unavailable("only the copy is measured".to_owned());
        Box::pin(std::future::ready(vec![answer; keys.len()]))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, base, file, count, key @ ..] = &arguments[..] else {
        return Err("expected URL BASE FILE COUNT [KEY]".into());
    };
    let (sender, events) = mpsc::channel();
    let tell: TableEventHandler = Arc::new(move |event| {
        println!("{event:?}");
        let _ = sender.send(event);
    });
    let began = Instant::now();
    let replica = LdapReplica::start("people", config(url, base, file)?, Arc::new(Nobody), tell)?;
    let complete = replica.stats().and_then(|stats| stats.replica).is_some_and(|copy| copy.complete);
    println!("opened after {:?}, complete: {complete}", began.elapsed());
    if !complete {
        while !matches!(events.recv()?, TableEvent::ReplicaLoaded { .. }) {}
        println!("loaded after {:?}; {}", began.elapsed(), memory());
    }
    let count = count.parse()?;
    measure("replica", &replica, count);
    println!("{:?}; {}", replica.stats().and_then(|stats| stats.replica), memory());
    compare(Path::new(file), count)?;
    if let [key] = key {
        watch(&replica, key);
    }
    let began = Instant::now();
    drop(replica);
    println!("ended within {:?}", began.elapsed());
    Ok(())
}

fn config(url: &str, base: &str, file: &str) -> Result<ReplicaConfig, Box<dyn Error>> {
    let servers = LdapConnectionConfig {
        urls: vec![url.parse()?],
        starttls: false,
        ca_file: None,
        bind: LdapBindMethod::Anonymous,
        connect_timeout: LdapConnectionConfig::CONNECT_TIMEOUT,
        timeout: LdapConnectionConfig::TIMEOUT,
    };
    let ldap = LdapConfig {
        servers,
        base: base.into(),
        scope: SearchScope::Sub,
        filter: "(mail={key})".parse()?,
        results: vec!["description".parse()?],
        members: None,
        values_max: LdapConfig::VALUES_MAX,
        entries_max: None,
        referrals: false,
    };
    let (poll_every, removals_max) = (Duration::from_secs(5), ReplicaConfig::REMOVALS_MAX);
    Ok(ReplicaConfig { ldap, file: file.into(), poll_interval: poll_every, removals_max })
}

fn measure(name: &str, table: &dyn Table, count: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers starts");
    let keys: Vec<String> = (0..LOOKUPS).map(|i| format!("user{}@virt.test", i * 7_919 % count)).collect();
    let began = Instant::now();
    let found = runtime.block_on(async {
        let mut found = 0;
        for key in &keys {
            found += u64::from(matches!(black_box(&table.lookup(&[key]).await[..]), [LookupAnswer::Found(_)]));
        }
        found
    });
    let each = began.elapsed().as_nanos() as u64 / LOOKUPS;
    println!("{name}: {each} ns a lookup, {found} of {LOOKUPS} found");
}

/// The same keys in a cdb in memory.
fn compare(file: &Path, count: u64) -> Result<(), Box<dyn Error>> {
    let (text, cdb) = (file.with_extension("txt"), file.with_extension("cdb"));
    let lines: String = (0..count).map(|i| format!("user{i}@virt.test virt.test/user{i}/\n")).collect();
    std::fs::write(&text, lines)?;
    lookup::cdb::build(&text, &cdb)?;
    measure("cdb", &lookup::cdb::Cdb::open("cdb", &cdb)?, count);
    std::fs::remove_file(&text)?;
    Ok(std::fs::remove_file(&cdb)?)
}

fn watch(replica: &LdapReplica, key: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers starts");
    let mut last = None;
    let reader = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    while !reader.is_finished() {
        let answer = runtime.block_on(replica.trace(key));
        let held = replica.stats().and_then(|stats| stats.replica).and_then(|copy| copy.held_back);
        if last.as_ref() != Some(&(answer.answer.clone(), held)) {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            println!("{:.3} {answer:?} held back: {held:?}", now.as_secs_f64());
            last = Some((answer.answer, held));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The memory of this process, from `/proc`.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let wanted = ["VmHWM", "VmRSS", "RssAnon", "RssFile"];
    let lines = status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
}
