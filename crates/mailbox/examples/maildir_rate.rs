//! How fast messages become durable in Maildirs: `maildir_rate FOLDER MESSAGES MAILBOXES BATCH
//! [THREADS]`.
//!
//! Delivers MESSAGES messages of 6 KB to MAILBOXES mailboxes under FOLDER, BATCH messages at a
//! time, from THREADS threads in parallel. Prints messages per second and CPU seconds per 1,000
//! messages (of this process; the kernel's writeback threads come on top). The mailboxes stay; a
//! second run with the same FOLDER reuses them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use mail::{Body, BodyFlags, QueueId, SpoolId, Timestamp};
use mailbox::{LineEnds, MaildirMessage, MaildirWriter, MaildirWriterConfig, QuotaState};

const BODY_OCTETS: usize = 6000;

struct RunOptions {
    folder: PathBuf,
    messages: u64,
    folders: u64,
    batch: u64,
    threads: u64,
    body: Body,
    spool: SpoolId,
    started: Timestamp,
}

fn main() -> Result<(), String> {
    let load = parse().ok_or("usage: maildir_rate FOLDER MESSAGES MAILBOXES BATCH [THREADS]")?;
    let start = Instant::now();
    let failed: u64 = std::thread::scope(|scope| {
        let load = &load;
        let wheels: Vec<_> = (0..load.threads).map(|lane| scope.spawn(move || deliver(load, lane))).collect();
        wheels.into_iter().map(|wheel| wheel.join().expect("the delivery thread does not panic")).sum()
    });
    let elapsed = start.elapsed();
    let rate = load.messages as f64 / elapsed.as_secs_f64();
    let cpu = cpu_time().as_secs_f64() * 1000.0 / load.messages as f64;
    println!("{} messages, {failed} failed, {:.2} s", load.messages, elapsed.as_secs_f64());
    println!("{rate:.0} messages/s, {cpu:.4} CPU seconds per 1,000 messages");
    Ok(())
}

fn parse() -> Option<RunOptions> {
    let mut args = std::env::args_os().skip(1);
    let folder = args.next()?.into();
    let mut numbers = args.map(|arg| arg.to_str().and_then(|text| text.parse().ok()).filter(|&number| number > 0));
    let mut number = || numbers.next().flatten();
    let line = [vec![b'x'; 78], b"\r\n".to_vec()].concat();
    let text = line.repeat(BODY_OCTETS / line.len());
    let digest = crc32c::crc32c(&text);
    let now = Timestamp::from(SystemTime::now());
    Some(RunOptions {
        folder,
        messages: number()?,
        folders: number()?,
        batch: number()?,
        threads: number().unwrap_or(1),
        body: Body::new(Arc::new(text.clone()), 0, text.len() as u64, digest, BodyFlags::default()),
        spool: SpoolId::new(now.millis()),
        started: now,
    })
}

/// Delivers one thread's share; returns how many messages failed.
fn deliver(load: &RunOptions, lane: u64) -> u64 {
    let mut maildirs =
        MaildirWriter::new(MaildirWriterConfig { host: "mx.example.org".into(), line_ends: LineEnds::Crlf });
    let mut numbers = (lane..load.messages).step_by(load.threads as usize).peekable();
    let mut failed = 0;
    while numbers.peek().is_some() || !maildirs.is_idle() {
        let messages = numbers.by_ref().take(load.batch as usize).map(|number| message(load, number)).collect();
        failed += maildirs.deliver_batch(messages).iter().filter(|(_, result)| result.is_err()).count() as u64;
    }
    failed
}

fn message(load: &RunOptions, number: u64) -> MaildirMessage<()> {
    // A prime step, so that messages close in time are not close on the disk.
    let mailbox = number.wrapping_mul(7919) % load.folders;
    MaildirMessage {
        ticket: (),
        folder: load.folder.join(format!("example.org/user{mailbox}")),
        id: QueueId::new(load.spool, 0, number),
        ordinal: 0,
        accepted_at: load.started,
        header: format!("Return-Path: <sender@example.com>\r\nDelivered-To: user{mailbox}@example.org\r\n").into(),
        body: load.body.clone(),
        recovered: false,
        quota: QuotaState::None,
    }
}

/// User and system time of this process so far: fields 14 and 15 of its stat file, in ticks of 10
/// ms.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string(Path::new("/proc/self/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
