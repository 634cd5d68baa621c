//! One client session of a sink: the SMTP server machine asks, rules may answer, and everything
//! else is accepted.
//!
//! When a rule ends the connection, its output (possibly empty) replaces that of the machine.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use mail::{Address, Enhanced, Reply, Timestamp};
use net::Conversation;
use protocol::smtp::server::{Action as Ask, Answer, BodySink, Peer, Question, Session};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::house::Counter;
use super::rule::{Action, Rule, Stage};
use crate::Examiner;

/// The receive buffer for a slow rule. The system treats it as a hint and has a minimum.
const SLOW_BUFFER_OCTETS: usize = 4096;
/// Bytes that are not SMTP.
const GARBAGE_OCTETS: usize = 256;
/// Capacity for recipients that is kept between messages.
const RECIPIENTS_KEPT: usize = 16;

/// A session and its transaction.
pub(super) struct Guest {
    counter: Arc<Counter>,
    session: Session,
    random: fastrand::Rng,
    /// Only set if a rule may slow the session down.
    socket: Option<OwnedFd>,
    octets_per_second: Option<u64>,
    /// How long to wait so that the rate is not exceeded.
    rest: Duration,
    has_come: bool,
    has_greeted: bool,
    /// Of the transaction.
    recipients: Vec<Address>,
    /// The rules that apply at DATA or at the end of the message, because of the recipients.
    touched: u64,
    examiner: Option<Examiner>,
    ending: Option<Ending>,
}

/// The last output of a connection that a rule ends.
struct Ending {
    octets: Vec<u8>,
    sent: usize,
}

/// Passes the decoded body to the examiner.
struct Body<'a>(Option<&'a mut Examiner>);

impl BodySink for Body<'_> {
    fn append(&mut self, bytes: &[u8]) {
        if let Some(examiner) = &mut self.0 {
            examiner.append(bytes);
        }
    }
}

impl Guest {
    /// A session that has just connected.
    pub(super) fn new(counter: Arc<Counter>, peer: Peer, stream: &TcpStream) -> Guest {
        let random = counter.enter();
        let session = Session::new(counter.house.machine(), peer, net::steady_now());
        let may_be_slow = counter.house.has_slow_rules();
        // Without the handle the buffer stays large, and the first bytes are read too fast.
        let socket = may_be_slow.then(|| stream.as_fd().try_clone_to_owned().ok()).flatten();
        Guest {
            counter,
            session,
            random,
            socket,
            octets_per_second: None,
            rest: Duration::ZERO,
            has_come: false,
            has_greeted: false,
            recipients: Vec::new(),
            touched: 0,
            examiner: None,
            ending: None,
        }
    }

    async fn answer(&mut self, question: Question) -> Answer {
        let refusal = match &question {
            Question::Mail(_) => self.meet(Stage::Mail, None).await,
            Question::Recipient(request) => self.meet(Stage::Rcpt, Some(request.address.domain())).await,
            // These are not asked by a sink.
            Question::Hello(_) | Question::Identity(_) => None,
            Question::Data => self.meet(Stage::Data, None).await,
            Question::Message(_) => self.meet(Stage::Message, None).await,
            // A sink offers no AUTH.
            Question::Login(_) | Question::Keys(_) => None,
        };
        match (refusal, question) {
            (Some(reply), Question::Message(_)) => {
                self.forget();
                return Answer::Done(reply);
            }
            (Some(reply), _) => return Answer::Refuse(reply),
            (
                None,
                Question::Hello(_) | Question::Identity(_) | Question::Mail(_) | Question::Login(_) | Question::Keys(_),
            ) => {}
            (None, Question::Recipient(request)) => self.add(request.address),
            (None, Question::Data) => self.examiner = self.counter.house.verifies().then(Examiner::default),
            (None, Question::Message(end)) => self.receive(end.octets),
        }
        Answer::Accept
    }

    fn add(&mut self, recipient: Address) {
        self.touched |= self.counter.house.rules_touched(recipient.domain());
        self.recipients.push(recipient);
    }

    fn receive(&mut self, octets: u64) {
        self.counter.receive(&self.recipients, octets);
        if let Some(examiner) = self.examiner.take() {
            self.counter.see(examiner.finish(), &self.recipients);
        }
        self.forget();
    }

    /// Ends the transaction.
    fn forget(&mut self) {
        self.recipients.clear();
        self.recipients.shrink_to(RECIPIENTS_KEPT);
        self.touched = 0;
        self.examiner = None;
    }

    /// Applies the rules of a stage. A reply means refusal; it is unused if the rule closes the
    /// connection.
    async fn meet(&mut self, stage: Stage, domain: Option<&str>) -> Option<Reply> {
        if self.counter.house.rules().is_empty() {
            return None;
        }
        let house = self.counter.house.clone();
        for (number, rule) in house.rules_at(stage) {
            if !self.is_met_by(rule, number, domain) || !rule.draws(&mut self.random) {
                continue;
            }
            self.counter.tally().met[number] += 1;
            match &rule.action {
                Action::Delay(span) => sleep(*span).await,
                Action::Slow { octets_per_second } => self.slow_down(*octets_per_second),
                Action::Refuse(reply) => return Some(reply.clone()),
                Action::Drop => return Some(self.end(Vec::new())),
                Action::Garbage => {
                    let garbage = garbage(&mut self.random);
                    return Some(self.end(garbage));
                }
                Action::Stall(_) => {}
            }
        }
        None
    }

    fn is_met_by(&self, rule: &Rule, number: usize, domain: Option<&str>) -> bool {
        match domain {
            Some(domain) => rule.names(domain),
            None => rule.is_for_all() || self.touched & (1 << number) != 0,
        }
    }

    /// Like [`Guest::meet`] in a stage where the machine asks nothing: a refusal closes the
    /// connection.
    async fn meet_unasked(&mut self, stage: Stage) {
        if let Some(reply) = self.meet(stage, None).await
            && self.ending.is_none()
        {
            let mut wire = Vec::new();
            reply.write_wire(&mut wire);
            self.end(wire);
        }
    }

    /// Sends these bytes and closes. The returned reply tells the machine to close too; it is never
    /// sent.
    fn end(&mut self, octets: Vec<u8>) -> Reply {
        self.ending = Some(Ending { octets, sent: 0 });
        Reply::new(421, Enhanced(4, 3, 0), "ended by a rule")
    }

    fn slow_down(&mut self, octets_per_second: u64) {
        self.octets_per_second = Some(octets_per_second);
        if let Some(socket) = &self.socket {
            // With the default buffer the client only sends more before it has to wait.
            let _ = SockRef::from(socket).set_recv_buffer_size(SLOW_BUFFER_OCTETS);
        }
    }

    /// Performs the actions of the machine until a rule ends the connection.
    async fn obey(&mut self) {
        while self.ending.is_none()
            && let Some(action) = self.session.poll_action()
        {
            match action {
                Ask::Ask(question) => {
                    let answer = self.answer(question).await;
                    self.session.handle_answer(net::steady_now(), answer, &mut Body(self.examiner.as_mut()));
                }
                Ask::Abandon => self.forget(),
                Ask::Refused { .. } | Ask::Login { .. } => {}
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.counter.leave();
    }
}

impl Conversation for Guest {
    fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        if let Some(speed) = self.octets_per_second {
            self.rest += Duration::from_secs_f64(input.len() as f64 / speed as f64);
        }
        self.session.handle_input(now, input, &mut Body(self.examiner.as_mut()));
    }

    fn handle_end(&mut self, _now: Timestamp) {
        self.session.handle_end();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.session.handle_timeout(now);
    }

    fn handle_stop(&mut self, now: Timestamp) {
        self.session.handle_shutdown(now);
    }

    async fn work(&mut self) {
        self.counter.house.pass_stalls().await;
        if !self.has_come {
            self.has_come = true;
            self.meet_unasked(Stage::Connect).await;
        }
        if !self.has_greeted && !self.session.helo().is_empty() {
            self.has_greeted = true;
            self.meet_unasked(Stage::Helo).await;
        }
        self.obey().await;
        // An answer that a delay moved into a stall is sent after the stall.
        self.counter.house.pass_stalls().await;
        if !self.rest.is_zero() {
            sleep(std::mem::take(&mut self.rest)).await;
        }
    }

    fn output(&self) -> &[u8] {
        match &self.ending {
            Some(ending) => &ending.octets[ending.sent..],
            None => self.session.output(),
        }
    }

    fn handle_sent(&mut self, count: usize) {
        match &mut self.ending {
            Some(ending) => ending.sent += count,
            None => self.session.handle_sent(count),
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.session.poll_deadline()
    }

    fn wants_close(&self) -> bool {
        self.ending.is_some() || self.session.wants_close()
    }
}

/// No letters or digits, with a line end, so that it is read as a reply.
fn garbage(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut octets: Vec<u8> = (0..GARBAGE_OCTETS).map(|_| random.u8(0x80..)).collect();
    octets.extend_from_slice(b"\r\n");
    octets
}
