//! Any bytes as the server's side of a POP3 session: no panic, the result is the same whether they
//! arrive whole or in pieces, and there is never more content than input. The last byte chooses the
//! first command and the size of the pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::pop3::client::{Pop3Client, Pop3Command, Pop3Event, Pop3ResponseLimits, Pop3Violation};

const MESSAGE_OCTETS_MAX: u64 = 1000;
const COMMANDS: [Pop3Command<'static>; 8] = [
    Pop3Command::User("user"),
    Pop3Command::Pass("secret"),
    Pop3Command::Stat,
    Pop3Command::List,
    Pop3Command::Uidl,
    Pop3Command::Retr(1),
    Pop3Command::Capa,
    Pop3Command::Quit,
];

/// The result of an input.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// All events except content.
    events: Vec<String>,
    content: Vec<u8>,
    fault: Option<Pop3Violation>,
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_last() else { return };
    let whole = play(choice, bytes, usize::MAX);
    let mut cut = play(choice, bytes, 1 + usize::from(choice >> 3));
    assert!(whole.content.len() <= bytes.len());
    if whole.fault.is_some() {
        // How much of a message is returned before a later protocol violation depends on the
        // pieces.
        cut.content.clone_from(&whole.content);
    }
    assert_eq!(whole, cut);
});

fn play(choice: u8, bytes: &[u8], size: usize) -> Outcome {
    let mut client = Pop3Client::new(Pop3ResponseLimits { message_octets_max: MESSAGE_OCTETS_MAX });
    let mut outcome = Outcome::default();
    let mut commands = COMMANDS.iter().cycle().skip(usize::from(choice & 7));
    for mut input in bytes.chunks(size) {
        while !input.is_empty() && outcome.fault.is_none() {
            if client.is_ready() {
                let command = commands.next().expect("a cycle never ends");
                client.send(*command, &mut Vec::new()).expect("the client is ready");
            }
            outcome.take(client.handle_input(&mut input));
        }
    }
    outcome
}

impl Outcome {
    fn take(&mut self, taken: Result<Option<Pop3Event<'_>>, Pop3Violation>) {
        match taken {
            Ok(Some(Pop3Event::Content(piece))) => self.content.extend_from_slice(piece),
            Ok(Some(event)) => self.events.push(format!("{event:?}")),
            Ok(None) => {}
            Err(fault) => self.fault = Some(fault),
        }
    }
}
