//! Commits messages from many threads, each waiting for its own, and prints the rate.
//!
//! `cargo run --release -p spool --example commit_rate FOLDER MESSAGES WAITING BYTES`

use std::sync::{Arc, mpsc};
use std::time::Instant;

use mail::{BodyFlags, BodyType, ClientInfo, DsnNotify, Envelope, Recipient, Timestamp};
use spool::{FolderDisk, SpoolEntry, SubmittedBody};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, messages, waiting, bytes] = arguments.as_slice() else {
        return Err("usage: commit_rate FOLDER MESSAGES WAITING BYTES".into());
    };
    let (messages, waiting, bytes): (usize, usize, usize) = (messages.parse()?, waiting.parse()?, bytes.parse()?);
    let disk = Arc::new(FolderDisk::open(folder.as_ref())?);
    let spool = spool::open(vec![disk], spool::Config::default(), 1, &mut |_| {})?;
    let (tell, told) = mpsc::channel();
    let submit = || -> Result<(), Box<dyn std::error::Error>> {
        let tell = tell.clone();
        let entry = SpoolEntry::Message {
            id: spool.new_id(),
            envelope: envelope()?,
            content: SubmittedBody::Memory { prefix: Vec::new(), body: vec![b'x'; bytes] },
            flags: BodyFlags::default(),
        };
        spool.submit(vec![entry], Box::new(move |result| drop(tell.send(result))));
        Ok(())
    };
    let start = Instant::now();
    for _ in 0..waiting.min(messages) {
        submit()?;
    }
    for done in 0..messages {
        told.recv()??;
        if done + waiting < messages {
            submit()?;
        }
    }
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    let stats = spool.stats();
    let (batches, micros) = (stats.batch_records.count(), stats.sync_micros.sum);
    println!("{rate:.0} messages/s, {batches} batches, {:.0} us per sync", micros as f64 / batches as f64);
    Ok(())
}

fn envelope() -> Result<Envelope, mail::AddressError> {
    Ok(Envelope {
        sender: Some("sender@example.org".parse()?),
        recipients: vec![Recipient {
            address: "user@example.org".parse()?,
            original: None,
            notify: DsnNotify::UNSET,
            orcpt: None,
            is_forwarded: false,
        }],
        accepted_at: Timestamp(0),
        client: ClientInfo { address: None, helo: "localhost".into(), trusted: true },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
        content_filter: false,
    })
}
