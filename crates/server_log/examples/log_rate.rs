//! The cost of a log line for the thread that logs it, at full speed and at 25,000 lines a second.
//!
//! `cargo run --release -p server_log --example log_rate -- FILE`

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use mail::{EventLog, LoggedHeader, MailEvent, QueueId, ServerLog, SpoolId, Timestamp};
use server_log::{Log, LogSettings, LogTarget};

const LINES: u64 = 100_000;
const LINES_PER_MS: u64 = 25;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("name a file to log to")?;
    for paced in [false, true] {
        let log = Log::open(&LogSettings { to: LogTarget::File(file.clone().into()), ..LogSettings::default() })?;
        let begin = Instant::now();
        let spent = run(&log, paced)?;
        let elapsed = begin.elapsed();
        log.close();
        let (pace, each) = (if paced { "paced" } else { "full speed" }, spent.as_nanos() / u128::from(LINES));
        println!(
            "{pace}: {LINES} lines in {elapsed:.2?}, {each} ns a line in the caller, {} dropped",
            log.lines_dropped()
        );
    }
    Ok(())
}

/// The time spent in calls of the log.
fn run(log: &Log, paced: bool) -> Result<Duration, Box<dyn Error>> {
    let mut spent = Duration::ZERO;
    for burst in 0..LINES / LINES_PER_MS {
        let facts = (0..LINES_PER_MS).map(|n| fact(burst * LINES_PER_MS + n)).collect::<Result<Vec<_>, _>>()?;
        let begin = Instant::now();
        facts.into_iter().for_each(|fact| log.write(fact));
        spent += begin.elapsed();
        if paced {
            thread::sleep(Duration::from_millis(1).saturating_sub(begin.elapsed()));
        }
    }
    Ok(spent)
}

fn fact(sequence: u64) -> Result<MailEvent, Box<dyn Error>> {
    Ok(MailEvent::Received {
        id: QueueId::new(SpoolId::new(Timestamp::from(SystemTime::now()).millis()), 0, sequence),
        client: Some("192.0.2.1".parse()?),
        helo: "mx.example.net".into(),
        sender: Some("news-bounces@example.org".parse()?),
        recipients: 1,
        size: 6000,
        protocol: "ESMTP",
        security: None,
        user: None,
        header: LoggedHeader { message_id: Some("<20261122.1234567@news.example.org>".into()), subject: None },
        auth: None,
    })
}
