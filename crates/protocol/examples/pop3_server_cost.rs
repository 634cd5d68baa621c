//! The CPU cost of the POP3 server machine: one session retrieves many messages of 6,000 octets in
//! lines of 78, ten with each input, without sockets, credentials and files. Prints nanoseconds of
//! CPU per message, as counted by Linux, including the command and the copy into the output.
//!
//! `cargo run --release -p protocol --example pop3_server_cost`

use std::hint::black_box;
use std::sync::Arc;

use mail::Timestamp;
use protocol::TlsMode;
use protocol::pop3::server::{
    Content, MaildropListing, Pop3Action, Pop3AuthConfig, Pop3Limits, Pop3Output, Pop3Question, Pop3Server,
    Pop3ServerConfig,
};
use protocol::sasl::{Mechanism, PasswordVerdict, SaslConfig};

const MESSAGES: u64 = 500_000;
const MESSAGES_PER_INPUT: u64 = 10;
const MESSAGE_OCTETS: usize = 6000;
const NOW: Timestamp = Timestamp(0);

/// Messages of the same size.
struct SameMessages;

impl MaildropListing for SameMessages {
    fn message_count(&self) -> usize {
        1
    }

    fn octets(&self, _message: usize) -> u64 {
        MESSAGE_OCTETS as u64
    }

    fn write_uid(&self, _message: usize, out: &mut Vec<u8>) {
        out.push(b'a');
    }
}

fn main() {
    let with = |line_end: &str| format!("{}{line_end}", "x".repeat(78 - line_end.len())).repeat(MESSAGE_OCTETS / 78);
    measure("CRLF", with("\r\n").as_bytes());
    measure("LF", with("\n").as_bytes());
    measure("CRLF, each line begins with a dot", with("\r\n").replace("\nx", "\n.").as_bytes());
}

fn measure(name: &str, message: &[u8]) {
    let auth = Pop3AuthConfig {
        mechanisms: [Mechanism::Plain].into(),
        clear_text: true,
        sasl: SaslConfig { secret: [7; 32] },
    };
    let hostname = "mx.example.org".into();
    let config = Pop3ServerConfig { hostname, tls: TlsMode::Never, auth, limits: Pop3Limits::default() };
    let mut server = Pop3Server::new(Arc::new(config), NOW);
    take(&mut server, b"USER bob\r\nPASS secret\r\n", message);
    let input = b"RETR 1\r\n".repeat(MESSAGES_PER_INPUT as usize);
    let start = cpu_nanos();
    for _ in 0..MESSAGES / MESSAGES_PER_INPUT {
        take(&mut server, black_box(&input), message);
    }
    println!("{name}: {} ns", (cpu_nanos() - start) / MESSAGES);
}

fn take(server: &mut Pop3Server, input: &[u8], message: &[u8]) {
    server.handle_input(NOW, input);
    while let Some(action) = server.poll_action() {
        match action {
            Pop3Action::Ask(Pop3Question::Password { user, .. }) => {
                server.handle_password_verdict(NOW, PasswordVerdict::Accepted { user });
            }
            Pop3Action::Ask(Pop3Question::Open { .. }) => server.handle_opened(NOW, Ok(Arc::new(SameMessages))),
            Pop3Action::Ask(Pop3Question::Retrieve { .. }) => {
                server.handle_content(NOW, Content::Whole(black_box(message)));
            }
            _ => {}
        }
    }
    if let Pop3Output::Bytes(bytes) = black_box(server.output()) {
        server.handle_sent(NOW, bytes.len());
    }
}

/// The CPU time of this process, which depends less on other load than the clock does.
fn cpu_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux provides schedstat");
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("the first number is nanoseconds")
}
