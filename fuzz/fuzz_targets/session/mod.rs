//! A session whose driver accepts everything except recipients that begin with `n`; its results can
//! be compared. Limits are low, so that short inputs reach them.

use std::sync::Arc;

use mail::{Reply, Timestamp};
use protocol::sasl::{self, Mechanism, Verdict};
use protocol::smtp::server::{
    Action, Answer, Auth, Config, Flavor, Limits, NulPolicy, Peer, Question, Session, Tls, Tolerance,
};

const NOW: Timestamp = Timestamp(0);

/// The result of an input.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    output: Vec<u8>,
    actions: Vec<Action>,
    messages: Vec<Vec<u8>>,
    closed: bool,
}

/// Runs a session with the pieces. The peer may use XCLIENT until it has named an address.
pub fn play<'a>(flavor: Flavor, mend: bool, nul: NulPolicy, pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let limits = Limits {
        command_line_octets_max: 200,
        commands_max: 20,
        recipients_max: 3,
        message_octets_max: 300,
        header_octets_max: 150,
        received_max: 2,
        ..Limits::default()
    };
    let config = Config {
        hostname: "mx.example.org".into(),
        flavor,
        tls: Tls::Offered,
        auth: Some(auth()),
        tolerance: Tolerance { nul, ..Tolerance::default() },
        limits,
    };
    let peer = Peer { normalise_bare_newlines: mend, ..Peer::default() };
    let mut session = Session::new(Arc::new(config), peer, NOW).trusting_xclient();
    let (mut outcome, mut body) = (Outcome::default(), Vec::new());
    for piece in pieces {
        session.handle_input(NOW, piece, &mut body);
        settle(&mut session, &mut outcome, &mut body);
    }
    session.handle_end();
    settle(&mut session, &mut outcome, &mut body);
    outcome.closed = session.wants_close();
    outcome
}

/// Runs a session with the bytes as a whole and in pieces of `size`, which must give the same
/// result; no message has a bare CR or LF, nor a NUL unless NULs are kept.
pub fn check(flavor: Flavor, mend: bool, nul: NulPolicy, bytes: &[u8], size: usize) {
    let whole = play(flavor, mend, nul, std::iter::once(bytes));
    assert_eq!(whole, play(flavor, mend, nul, bytes.chunks(size.max(1))));
    for message in &whole.messages {
        let bare = |pair: &[u8]| (pair[0] == b'\r') != (pair[1] == b'\n');
        let fenced = [b"x", &message[..], b"x"].concat();
        assert!(nul == NulPolicy::Keep || !message.contains(&0), "a NUL was passed on");
        assert!(!fenced.windows(2).any(bare), "a bare newline was passed on");
    }
}

/// All mechanisms, also without TLS.
fn auth() -> Auth {
    Auth {
        mechanisms: Mechanism::ADVERTISED.into(),
        clear_text: true,
        required: false,
        exchanges: sasl::Config { secret: [7; 32] },
    }
}

fn settle(session: &mut Session, outcome: &mut Outcome, body: &mut Vec<u8>) {
    while let Some(action) = session.poll_action() {
        match &action {
            Action::Ask(question) => {
                let answer = match question {
                    Question::Recipient(request) if request.address.as_str().starts_with('n') => {
                        Answer::Refuse(Reply::plain(550, "no such mailbox"))
                    }
                    Question::Message(_) => {
                        outcome.messages.push(std::mem::take(body));
                        Answer::Accept
                    }
                    Question::Login(request) => Answer::Verdict(Verdict::Accepted { user: request.user.clone() }),
                    _ => Answer::Accept,
                };
                session.handle_answer(NOW, answer, body);
            }
            Action::Abandon => body.clear(),
            Action::Refused { .. } | Action::Login { .. } => {}
        }
        outcome.actions.push(action);
    }
    outcome.output.extend_from_slice(session.output());
    session.handle_sent(session.output().len());
}
