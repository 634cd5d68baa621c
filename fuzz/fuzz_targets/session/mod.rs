//! A session whose driver accepts everything except recipients that begin with `n`; its results can
//! be compared. SessionLimits are low, so that short inputs reach them.

use std::sync::Arc;

use mail::{Reply, Timestamp};
use protocol::TlsMode;
use protocol::sasl::{self, Mechanism, PasswordVerdict};
use protocol::smtp::server::{
    AuthConfig, MailProtocol, NulPolicy, SessionAction, SessionAnswer, SessionLimits, SessionQuestion, SmtpPeer,
    SmtpServerConfig, SmtpSession, TolerancePolicy,
};

const NOW: Timestamp = Timestamp(0);

/// The result of an input.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    output: Vec<u8>,
    actions: Vec<SessionAction>,
    messages: Vec<Vec<u8>>,
    closed: bool,
}

/// Runs a session with the pieces. The peer may use XCLIENT until it has named an address.
pub fn play<'a>(flavor: MailProtocol, mend: bool, nul: NulPolicy, pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let limits = SessionLimits {
        command_line_octets_max: 200,
        commands_max: 20,
        recipients_max: 3,
        message_octets_max: 300,
        header_octets_max: 150,
        received_max: 2,
        ..SessionLimits::default()
    };
    let config = SmtpServerConfig {
        hostname: "mx.example.org".into(),
        flavor,
        tls: TlsMode::Offered,
        auth: Some(auth()),
        tolerance: TolerancePolicy { nul, ..TolerancePolicy::default() },
        limits,
    };
    let peer = SmtpPeer { normalise_bare_newlines: mend, ..SmtpPeer::default() };
    let mut session = SmtpSession::new(Arc::new(config), peer, NOW).with_xclient();
    let (mut outcome, mut body) = (Outcome::default(), Vec::new());
    for piece in pieces {
        session.handle_input(NOW, piece, &mut body);
        settle(&mut session, &mut outcome, &mut body);
    }
    session.handle_disconnect();
    settle(&mut session, &mut outcome, &mut body);
    outcome.closed = session.wants_close();
    outcome
}

/// Runs a session with the bytes as a whole and in pieces of `size`, which must give the same
/// result; no message has a bare CR or LF, nor a NUL unless NULs are kept.
pub fn check(flavor: MailProtocol, mend: bool, nul: NulPolicy, bytes: &[u8], size: usize) {
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
fn auth() -> AuthConfig {
    AuthConfig {
        mechanisms: Mechanism::ADVERTISED.into(),
        clear_text: true,
        required: false,
        sasl: sasl::SaslConfig { secret: [7; 32] },
    }
}

fn settle(session: &mut SmtpSession, outcome: &mut Outcome, body: &mut Vec<u8>) {
    while let Some(action) = session.poll_action() {
        match &action {
            SessionAction::Ask(question) => {
                let answer = match question {
                    SessionQuestion::Recipient(request) if request.address.as_str().starts_with('n') => {
                        SessionAnswer::Refuse(Reply::without_enhanced_code(550, "no such mailbox"))
                    }
                    SessionQuestion::Message(_) => {
                        outcome.messages.push(std::mem::take(body));
                        SessionAnswer::Accept
                    }
                    SessionQuestion::Login(request) => {
                        SessionAnswer::Verdict(PasswordVerdict::Accepted { user: request.user.clone() })
                    }
                    _ => SessionAnswer::Accept,
                };
                session.handle_driver_answer(NOW, answer, body);
            }
            SessionAction::Abandon => body.clear(),
            SessionAction::Refused { .. } | SessionAction::Login { .. } => {}
        }
        outcome.actions.push(action);
    }
    outcome.output.extend_from_slice(session.output());
    session.handle_sent(session.output().len());
}
