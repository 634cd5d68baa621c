//! One client session of a sink: the SMTP server machine asks, rules may answer, and everything
//! else is accepted.
//!
//! When a rule ends the connection, its output (possibly empty) replaces that of the machine.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use mail::{Address, EnhancedCode, Reply, Timestamp};
use net::{ConnectionHandler, OutputPiece};
use protocol::smtp::server::{BodySink, SessionAction as Ask, SessionAnswer, SessionQuestion, SmtpPeer, SmtpSession};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::rule::{RuleAction, RuleStage, SinkRule};
use super::state::ThreadContext;
use crate::StampChecker;

/// The receive buffer for a slow rule. The system treats it as a hint and has a minimum.
const SLOW_BUFFER_OCTETS: usize = 4096;
/// Bytes that are not SMTP.
const GARBAGE_OCTETS: usize = 256;
/// Capacity for recipients that is kept between messages.
const RECIPIENTS_CAPACITY_KEPT: usize = 16;

/// A session and its transaction.
pub(super) struct SinkSession {
    context: Arc<ThreadContext>,
    session: SmtpSession,
    random: fastrand::Rng,
    /// Only set if a rule may slow the session down.
    socket: Option<OwnedFd>,
    octets_per_second: Option<u64>,
    /// How long to wait so that the rate is not exceeded.
    throttle_delay: Duration,
    connect_rules_applied: bool,
    helo_rules_applied: bool,
    /// Of the transaction.
    recipients: Vec<Address>,
    /// The rules that apply at DATA or at the end of the message, because of the recipients.
    matching_rules: u64,
    examiner: Option<StampChecker>,
    final_output: Option<FinalOutput>,
}

/// The last output of a connection that a rule ends.
struct FinalOutput {
    octets: Vec<u8>,
    sent: usize,
}

/// Passes the decoded body to the examiner.
struct BodyExaminer<'a>(Option<&'a mut StampChecker>);

impl BodySink for BodyExaminer<'_> {
    fn append(&mut self, bytes: &[u8]) {
        if let Some(examiner) = &mut self.0 {
            examiner.append(bytes);
        }
    }
}

impl SinkSession {
    /// A session that has just connected.
    pub(super) fn new(context: Arc<ThreadContext>, peer: SmtpPeer, stream: &TcpStream) -> SinkSession {
        let random = context.session_started();
        let session = SmtpSession::new(context.state.protocol_config(), peer, net::steady_now());
        let may_be_slow = context.state.has_slow_rules();
        // Without the handle the buffer stays large, and the first bytes are read too fast.
        let socket = may_be_slow.then(|| stream.as_fd().try_clone_to_owned().ok()).flatten();
        SinkSession {
            context,
            session,
            random,
            socket,
            octets_per_second: None,
            throttle_delay: Duration::ZERO,
            connect_rules_applied: false,
            helo_rules_applied: false,
            recipients: Vec::new(),
            matching_rules: 0,
            examiner: None,
            final_output: None,
        }
    }

    async fn answer(&mut self, question: SessionQuestion) -> SessionAnswer {
        let refusal = match &question {
            SessionQuestion::Mail(_) => self.apply_rules(RuleStage::Mail, None).await,
            SessionQuestion::Recipient(request) => {
                self.apply_rules(RuleStage::Rcpt, Some(request.address.domain())).await
            }
            // These are not asked by a sink.
            SessionQuestion::Hello(_) | SessionQuestion::UnknownCommand(_) | SessionQuestion::Identity(_) => None,
            SessionQuestion::Data => self.apply_rules(RuleStage::Data, None).await,
            SessionQuestion::Message(_) => self.apply_rules(RuleStage::Message, None).await,
            // A sink offers no AUTH.
            SessionQuestion::Login(_) | SessionQuestion::Keys(_) => None,
        };
        match (refusal, question) {
            (Some(reply), SessionQuestion::Message(_)) => {
                self.reset_transaction();
                return SessionAnswer::Done(reply);
            }
            (Some(reply), _) => return SessionAnswer::Refuse(reply),
            (
                None,
                SessionQuestion::Hello(_)
                | SessionQuestion::UnknownCommand(_)
                | SessionQuestion::Identity(_)
                | SessionQuestion::Mail(_)
                | SessionQuestion::Login(_)
                | SessionQuestion::Keys(_),
            ) => {}
            (None, SessionQuestion::Recipient(request)) => self.add_recipient(request.address),
            (None, SessionQuestion::Data) => self.examiner = self.context.state.verifies().then(StampChecker::default),
            (None, SessionQuestion::Message(end)) => self.accept_message(end.octets),
        }
        SessionAnswer::Accept
    }

    fn add_recipient(&mut self, recipient: Address) {
        self.matching_rules |= self.context.state.rules_matching(recipient.domain());
        self.recipients.push(recipient);
    }

    fn accept_message(&mut self, octets: u64) {
        self.context.message_accepted(&self.recipients, octets);
        if let Some(examiner) = self.examiner.take() {
            self.context.message_examined(examiner.finish(), &self.recipients);
        }
        self.reset_transaction();
    }

    /// Ends the transaction.
    fn reset_transaction(&mut self) {
        self.recipients.clear();
        self.recipients.shrink_to(RECIPIENTS_CAPACITY_KEPT);
        self.matching_rules = 0;
        self.examiner = None;
    }

    /// Applies the rules of a stage. A reply means refusal; it is unused if the rule closes the
    /// connection.
    async fn apply_rules(&mut self, stage: RuleStage, domain: Option<&str>) -> Option<Reply> {
        if self.context.state.rules().is_empty() {
            return None;
        }
        let state = self.context.state.clone();
        for (number, rule) in state.rules_at(stage) {
            if !self.rule_applies(rule, number, domain) || !rule.is_sampled(&mut self.random) {
                continue;
            }
            self.context.tally.lock().rule_hits[number] += 1;
            match &rule.action {
                RuleAction::Delay(span) => sleep(*span).await,
                RuleAction::Slow { octets_per_second } => self.throttle(*octets_per_second),
                RuleAction::Refuse(reply) => return Some(reply.clone()),
                RuleAction::Drop => return Some(self.close_with(Vec::new())),
                RuleAction::Garbage => {
                    let garbage = garbage(&mut self.random);
                    return Some(self.close_with(garbage));
                }
                RuleAction::Stall(_) => {}
            }
        }
        None
    }

    fn rule_applies(&self, rule: &SinkRule, number: usize, domain: Option<&str>) -> bool {
        match domain {
            Some(domain) => rule.matches_domain(domain),
            None => rule.matches_all() || self.matching_rules & (1 << number) != 0,
        }
    }

    /// Like [`SinkSession::apply_rules`] in a stage where the machine asks nothing: a refusal
    /// closes the connection.
    async fn apply_rules_or_close(&mut self, stage: RuleStage) {
        if let Some(reply) = self.apply_rules(stage, None).await
            && self.final_output.is_none()
        {
            let mut wire = Vec::new();
            reply.write_wire(&mut wire);
            self.close_with(wire);
        }
    }

    /// Sends these bytes and closes. The returned reply tells the machine to close too; it is never
    /// sent.
    fn close_with(&mut self, octets: Vec<u8>) -> Reply {
        self.final_output = Some(FinalOutput { octets, sent: 0 });
        Reply::new(421, EnhancedCode(4, 3, 0), "ended by a rule")
    }

    fn throttle(&mut self, octets_per_second: u64) {
        self.octets_per_second = Some(octets_per_second);
        if let Some(socket) = &self.socket {
            // With the default buffer the client only sends more before it has to wait.
            let _ = SockRef::from(socket).set_recv_buffer_size(SLOW_BUFFER_OCTETS);
        }
    }

    /// Performs the actions of the machine until a rule ends the connection.
    async fn run_actions(&mut self) {
        while self.final_output.is_none()
            && let Some(action) = self.session.poll_action()
        {
            match action {
                Ask::Ask(question) => {
                    let answer = self.answer(question).await;
                    self.session.handle_driver_answer(
                        net::steady_now(),
                        answer,
                        &mut BodyExaminer(self.examiner.as_mut()),
                    );
                }
                Ask::Abandon => self.reset_transaction(),
                Ask::Refused { .. } | Ask::Login { .. } => {}
            }
        }
    }
}

impl Drop for SinkSession {
    fn drop(&mut self) {
        self.context.session_ended();
    }
}

impl ConnectionHandler for SinkSession {
    fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        if let Some(speed) = self.octets_per_second {
            self.throttle_delay += Duration::from_secs_f64(input.len() as f64 / speed as f64);
        }
        self.session.handle_input(now, input, &mut BodyExaminer(self.examiner.as_mut()));
    }

    fn handle_disconnect(&mut self, _now: Timestamp) {
        self.session.handle_disconnect();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.session.handle_timeout(now);
    }

    fn handle_stop(&mut self, now: Timestamp) {
        self.session.handle_shutdown(now);
    }

    async fn work(&mut self) {
        self.context.state.wait_out_stalls().await;
        if !self.connect_rules_applied {
            self.connect_rules_applied = true;
            self.apply_rules_or_close(RuleStage::Connect).await;
        }
        if !self.helo_rules_applied && !self.session.helo().is_empty() {
            self.helo_rules_applied = true;
            self.apply_rules_or_close(RuleStage::Helo).await;
        }
        self.run_actions().await;
        // An answer that a delay moved into a stall is sent after the stall.
        self.context.state.wait_out_stalls().await;
        if !self.throttle_delay.is_zero() {
            sleep(std::mem::take(&mut self.throttle_delay)).await;
        }
    }

    fn output(&self) -> OutputPiece<'_> {
        OutputPiece::Bytes(match &self.final_output {
            Some(final_output) => &final_output.octets[final_output.sent..],
            None => self.session.output(),
        })
    }

    fn handle_sent(&mut self, count: usize) {
        match &mut self.final_output {
            Some(final_output) => final_output.sent += count,
            None => self.session.handle_sent(count),
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.session.poll_deadline()
    }

    fn wants_close(&self) -> bool {
        self.final_output.is_some() || self.session.wants_close()
    }
}

/// No letters or digits, with a line end, so that it is read as a reply.
fn garbage(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut octets: Vec<u8> = (0..GARBAGE_OCTETS).map(|_| random.u8(0x80..)).collect();
    octets.extend_from_slice(b"\r\n");
    octets
}
