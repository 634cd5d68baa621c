//! The CPU cost of the server machine: one session receives many messages of 6,000 octets in lines
//! of 80, without sockets, spool and lookups. Prints nanoseconds of CPU per message, as counted by
//! Linux, including commands, replies and the copy into the sink.
//!
//! `cargo run --release -p protocol --example server_cost`

use std::hint::black_box;
use std::sync::Arc;

use mail::Timestamp;
use protocol::TlsMode;
use protocol::smtp::server::{
    MailProtocol, SessionAction, SessionAnswer, SessionLimits, SmtpPeer, SmtpServerConfig, SmtpSession, TolerancePolicy,
};

const MESSAGES: u64 = 500_000;
const MESSAGE_OCTETS: usize = 6000;
const NOW: Timestamp = Timestamp(0);

fn main() {
    let line = [vec![b'x'; 78], b"\r\n".to_vec()].concat();
    let text = line.repeat(MESSAGE_OCTETS / line.len());
    let headed = [b"Subject: x\r\n\r\n", &text[..]].concat();
    let envelope = b"MAIL FROM:<sender@client.example>\r\nRCPT TO:<recipient@example.org>\r\n";
    let by_data = |text: &[u8]| [[&envelope[..], b"DATA\r\n"].concat(), [text, b".\r\n"].concat()];
    let chunk = format!("BDAT {} LAST\r\n", headed.len()).into_bytes();
    measure("DATA", &by_data(&headed));
    measure("DATA, all of it header", &by_data(&text));
    measure("DATA, empty", &by_data(b""));
    measure("BDAT, in one piece with its commands", &[[&envelope[..], &chunk, &headed].concat()]);
}

fn measure(name: &str, inputs: &[Vec<u8>]) {
    let config = SmtpServerConfig {
        hostname: "mx.example.org".into(),
        flavor: MailProtocol::Smtp,
        tls: TlsMode::Never,
        auth: None,
        tolerance: TolerancePolicy::default(),
        limits: SessionLimits::default(),
    };
    let peer = SmtpPeer::default();
    let mut session = SmtpSession::new(Arc::new(config), peer, NOW);
    let mut body = Vec::with_capacity(2 * MESSAGE_OCTETS);
    take(&mut session, b"EHLO client.example\r\n", &mut body);
    let start = cpu_nanos();
    for _ in 0..MESSAGES {
        body.clear();
        for input in inputs {
            take(&mut session, black_box(input), &mut body);
        }
    }
    println!("{name}: {} ns", (cpu_nanos() - start) / MESSAGES);
}

fn take(session: &mut SmtpSession, input: &[u8], body: &mut Vec<u8>) {
    session.handle_input(NOW, input, body);
    while let Some(action) = session.poll_action() {
        if let SessionAction::Ask(_) = black_box(action) {
            session.handle_driver_answer(NOW, SessionAnswer::Accept, body);
        }
    }
    session.handle_sent(black_box(session.output()).len());
}

/// The CPU time of this process, which depends less on other load than the clock does.
fn cpu_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux provides schedstat");
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("the first number is nanoseconds")
}
