//! Measures how fast one thread delivers messages to a next hop: `remote_rate ADDRESS [MESSAGES
//! [CONNECTIONS [OCTETS [copy]]]]`.
//!
//! It sends messages (by default 100,000 of 6,000 octets) from a file to the server at that
//! address, over up to CONNECTIONS connections (by default 20), and prints the rate and the CPU
//! time per message. With `copy`, large messages do not use sendfile.

use std::cell::Cell;
use std::error::Error;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use delivery::DeliveryResult;
use delivery::remote::{NextHop, NextHopAddress, RemoteDelivery, RemoteDeliveryConfig, RemoteEvent, RemoteTask};
use mail::{
    Body, BodyFlags, BodyType, ByteSource, ClientInfo, DsnNotify, Envelope, HostTls, Outcome, QueueId, Recipient,
    SpoolId,
};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use protocol::smtp::MailProtocol;
use protocol::smtp::client::{self, CommandArgument, TlsPolicy};
use tokio::sync::mpsc::unbounded_channel;

/// The number of messages in the file; they are sent repeatedly.
const MESSAGES_STORED: u64 = 1000;

struct Source(File);

impl ByteSource for Source {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn file(&self) -> Option<&File> {
        Some(&self.0)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("missing argument: ADDRESS")?.parse()?;
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse::<u64>());
    let (messages, connections, octets) = (number(100_000)?, number(20)?, number(6000)?);
    let sendfile_above = if arguments.next().is_some_and(|word| word == "copy") { None } else { Some(32 << 10) };
    let client = client::SmtpClientConfig {
        chunking: true,
        tls: TlsPolicy::Never,
        ..client::SmtpClientConfig::new(MailProtocol::Smtp, CommandArgument::new("rate.example")?)
    };
    let endpoint = net::Endpoint::Tcp(address);
    let target = NextHopAddress { host: "sink.example".into(), endpoint, tls: HostTls::Transport, sts: None };
    let mut config = RemoteDeliveryConfig::new(client);
    config.connections.sendfile_above = sendfile_above;
    let config = Arc::new(config);
    let hop = Arc::new(NextHop {
        name: "sink".into(),
        config_version: 0,
        is_configured: true,
        tiers: vec![vec![target]],
        config,
        tls_failures: Vec::new(),
    });
    let bodies = bodies(octets)?;
    let envelope = Arc::new(envelope()?);
    let task = move |ticket: u64| RemoteTask {
        ticket,
        id: QueueId::new(SpoolId::new(1), 0, ticket),
        envelope: envelope.clone(),
        recipients: vec![0],
        body: bodies[(ticket % MESSAGES_STORED) as usize].clone(),
        next_hop: hop.clone(),
        verp: false,
        forwarded_sender: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (begun, cpu_before) = (Instant::now(), cpu_time()?);
    let refused = tokio::task::LocalSet::new().block_on(&runtime, send_all(messages, connections, task));
    let (elapsed, cpu) = (begun.elapsed().as_secs_f64(), (cpu_time()? - cpu_before).as_secs_f64());
    let (rate, cost) = (messages as f64 / elapsed, cpu * 1e6 / messages as f64);
    println!("{rate:.0} messages/s, {cost:.1} µs of CPU each, {refused} not accepted");
    Ok(())
}

/// Keeps `connections` tasks running until all messages are sent. Returns how many were not
/// accepted.
async fn send_all(messages: u64, connections: u64, task: impl Fn(u64) -> RemoteTask<u64>) -> u64 {
    let (sender, mut ended) = unbounded_channel();
    let refused = Rc::new(Cell::new(0));
    let count = refused.clone();
    let remote = RemoteDelivery::new(move |report| {
        let RemoteEvent::Finished(end) = report else { return };
        let taken = |outcome: &Outcome| matches!(outcome, Outcome::Relayed { .. });
        if !matches!(end.result, DeliveryResult::Outcomes(outcomes) if outcomes.iter().all(taken)) {
            count.set(count.get() + 1);
        }
        let _ = sender.send(());
    });
    for ticket in 0..messages {
        if ticket >= connections {
            ended.recv().await;
        }
        remote.start_task(task(ticket));
    }
    for _ in 0..messages.min(connections) {
        ended.recv().await;
    }
    remote.close().await;
    refused.get()
}

fn bodies(octets: u64) -> io::Result<Vec<Body>> {
    let mut message = b"Subject: rate\r\n\r\n".to_vec();
    while (message.len() as u64) < octets {
        message.extend_from_slice(b"All work and no play makes Jack a dull boy.\r\n");
    }
    message.truncate(octets as usize - 2);
    message.extend_from_slice(b"\r\n");
    let mut file = tempfile::tempfile()?;
    (0..MESSAGES_STORED).try_for_each(|_| file.write_all(&message))?;
    let source: Arc<dyn ByteSource> = Arc::new(Source(file));
    let flags = BodyFlags { ends_in_crlf: true, ..BodyFlags::default() };
    let body = |number| Body::new(source.clone(), number * octets, octets, crc32c::crc32c(&message), flags);
    Ok((0..MESSAGES_STORED).map(body).collect())
}

fn envelope() -> Result<Envelope, Box<dyn Error>> {
    let recipient = Recipient {
        address: "bob@example.net".parse()?,
        original: None,
        notify: DsnNotify::UNSET,
        orcpt: None,
        is_forwarded: false,
    };
    Ok(Envelope {
        sender: Some("alice@example.org".parse()?),
        recipients: vec![recipient],
        accepted_at: net::steady_now(),
        client: ClientInfo { address: None, helo: "rate.example".into(), trusted: true },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
        content_filter: false,
    })
}

fn cpu_time() -> nix::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(micros.unsigned_abs()))
}
