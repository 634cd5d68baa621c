//! The CPU cost of the client machine: one session sends many messages of 6,000 octets to one
//! recipient each, without sockets and message bytes. Prints nanoseconds of CPU per message, as
//! counted by Linux, including commands, replies and events.
//!
//! `cargo run --release -p protocol --example client_cost`

use std::hint::black_box;
use std::sync::Arc;

use mail::Timestamp;
use protocol::smtp::MailProtocol;
use protocol::smtp::client::{
    CommandArgument, ContentSize, SmtpClient, SmtpClientConfig, SmtpClientEvent, Transaction,
};

const MESSAGES: u64 = 500_000;
const MESSAGE_OCTETS: u64 = 6000;
const NOW: Timestamp = Timestamp(0);

const GREETING: &[u8] =
    b"250-mx.example.org\r\n250-PIPELINING\r\n250-SIZE 52428800\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n\
    250-CHUNKING\r\n250-ENHANCEDSTATUSCODES\r\n250-AUTH PLAIN LOGIN\r\n250 DSN\r\n";
const ENVELOPE: &[u8] = b"250 2.1.0 sender ok\r\n250 2.1.5 recipient ok\r\n354 end data with <CR><LF>.<CR><LF>\r\n";
const KEPT: &[u8] = b"250 2.0.0 OK queued as 4a7b9c1d2e3f\r\n";

fn main() {
    println!("a session: {} octets", size_of::<SmtpClient>());
    measure("DATA, pipelined", true, false, &[ENVELOPE, KEPT]);
    let one_by_one: Vec<&[u8]> = ENVELOPE.split_inclusive(|byte| *byte == b'\n').chain([KEPT]).collect();
    measure("DATA, one command at a time", false, false, &one_by_one);
    let envelope = &ENVELOPE[..ENVELOPE.len() - one_by_one[2].len()];
    measure("BDAT, pipelined", true, true, &[&[envelope, KEPT].concat()]);
}

fn measure(name: &str, pipelining: bool, chunking: bool, inputs: &[&[u8]]) {
    let mut client = greeted(config(pipelining, chunking));
    let transaction = transaction();
    let start = cpu_nanos();
    for _ in 0..MESSAGES {
        send(&mut client, &transaction, inputs);
    }
    println!("{name}: {} ns", (cpu_nanos() - start) / MESSAGES);
}

fn config(pipelining: bool, chunking: bool) -> Arc<SmtpClientConfig> {
    let helo = CommandArgument::new("client.example").expect("the name is a valid word");
    Arc::new(SmtpClientConfig { pipelining, chunking, ..SmtpClientConfig::new(MailProtocol::Smtp, helo) })
}

fn transaction() -> Transaction {
    let address = |text: &str| text.parse().expect("an address");
    let content = ContentSize { octets: MESSAGE_OCTETS, dot_lines: 0, ends_in_crlf: true };
    Transaction::new(Some(address("sender@client.example")), [address("recipient@example.org")], content)
}

fn greeted(config: Arc<SmtpClientConfig>) -> SmtpClient {
    let mut client = SmtpClient::new(config, NOW);
    take(&mut client, b"220 mx.example.org ESMTP\r\n");
    take(&mut client, GREETING);
    assert!(client.is_ready(), "the greeting is complete");
    client
}

fn send(client: &mut SmtpClient, transaction: &Transaction, inputs: &[&[u8]]) {
    client.begin_transaction(NOW, black_box(transaction)).expect("the session is ready");
    flush(client);
    for input in inputs {
        take(client, black_box(input));
    }
    assert!(client.is_ready(), "the message got its reply");
}

fn take(client: &mut SmtpClient, input: &[u8]) {
    client.handle_input(NOW, input);
    while let Some(event) = client.poll_event() {
        assert!(!matches!(black_box(event), SmtpClientEvent::Closed(_)), "the session has closed");
    }
    flush(client);
}

fn flush(client: &mut SmtpClient) {
    let octets = black_box(client.output()).octet_count();
    client.handle_sent(NOW, octets);
}

/// The CPU time of this process, which depends less on other load than the clock does.
fn cpu_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux provides schedstat");
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("the first number is nanoseconds")
}
