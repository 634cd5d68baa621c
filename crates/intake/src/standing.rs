//! The results of the access rules in a session, and their evaluation. Without rules, nothing is
//! evaluated or allocated.

use std::net::{IpAddr, Ipv4Addr};

use mail::{Address, Reply};
use net::Stop;
use protocol::smtp::server::{Identity, MailRequest};

use crate::access::{Access, Decision, Stage, Visit};
use crate::conversation::Intake;
use crate::{Desk, Networks, Refusal};

/// The address under which all clients are counted whose address the proxy does not know. No host
/// has it.
pub(crate) const UNKNOWN_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The lasting result of the rules of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// No later rules are evaluated.
    pub(crate) accepted: bool,
    /// The mail is held.
    pub(crate) held: bool,
}

/// A rule refused or deferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    /// The name of the rule.
    pub(crate) rule: Box<str>,
    /// The reply to the client.
    pub(crate) reply: Reply,
}

/// The sender and recipient without their address tags, if they have some.
pub struct Tags {
    sender: Option<Address>,
    recipient: Option<Address>,
}

impl Tags {
    /// The same session, with these addresses filled in.
    pub fn told<'a>(&'a self, visit: &Visit<'a>) -> Visit<'a> {
        Visit { sender_untagged: self.sender.as_ref(), recipient_untagged: self.recipient.as_ref(), ..*visit }
    }
}

impl Denied {
    /// The reply to the client. The rule is kept for the log.
    pub(crate) fn told(self, denied_by: &mut Option<Box<str>>) -> Reply {
        *denied_by = Some(self.rule);
        self.reply
    }
}

impl Desk {
    /// Removes the address tags, which only the directory can recognise. While it is unavailable, no
    /// tags are removed.
    pub async fn tags(&self, visit: &Visit<'_>) -> Tags {
        Tags { sender: self.untagged(visit.sender.flatten()).await, recipient: self.untagged(visit.recipient).await }
    }

    async fn untagged(&self, address: Option<&Address>) -> Option<Address> {
        self.directory.untagged(address?).await
    }

    /// Connect: evaluates the rules for a client. None: the server is stopping and no longer waits
    /// for tables and DNS lists.
    pub(crate) async fn judge_client(
        &self,
        client: IpAddr,
        must_log_in: bool,
        stop: &Stop,
    ) -> Option<Result<Standing, Denied>> {
        let Some(access) = self.rules_at(Stage::Connect) else { return Some(Ok(Standing::default())) };
        let visit = Visit { client: Some(client), is_user: must_log_in, ..Visit::default() };
        let mut stop = stop.clone();
        // Boxed, to keep sessions without rules small.
        let judged = async move {
            tokio::select! {
                judged = self.ask_rules(access, Stage::Connect, &visit) => Some(judged),
                () = stop.requested() => None,
            }
        };
        Box::pin(judged).await
    }

    /// Evaluates the rules of a stage; a refusal is the error.
    pub(crate) async fn judge(&self, stage: Stage, visit: &Visit<'_>) -> Result<Standing, Denied> {
        let Some(access) = self.rules_at(stage) else { return Ok(Standing::default()) };
        // Boxed, to keep sessions without rules small.
        Box::pin(self.ask_rules(access, stage, visit)).await
    }

    fn rules_at(&self, stage: Stage) -> Option<&Access> {
        self.access.as_ref().filter(|access| access.asks_at(stage))
    }

    async fn ask_rules(&self, access: &Access, stage: Stage, visit: &Visit<'_>) -> Result<Standing, Denied> {
        let tags = self.tags(visit).await;
        let verdict = access.judge(stage, &tags.told(visit), &self.troubles).await;
        match verdict.decision {
            Some(Decision::Refuse { rule, reply }) => Err(Denied { rule, reply }),
            decision => Ok(Standing { accepted: decision.is_some(), held: verdict.held }),
        }
    }
}

impl Intake {
    /// HELO: checks the client's name.
    pub(crate) async fn greet(&mut self, name: &str) -> Result<(), Reply> {
        let judged = match self.visitor.connected.accepted {
            true => Ok(Standing::default()),
            false => self.desk.judge(Stage::Helo, &Visit { helo: Some(name), ..self.visit() }).await,
        };
        self.visitor.greeted = self.heard(judged)?;
        Ok(())
    }

    /// MAIL: checks the sender.
    pub(crate) async fn judge_sender(&mut self, mail: &MailRequest) -> Result<Standing, Reply> {
        if self.is_accepted() {
            return Ok(Standing { accepted: true, held: false });
        }
        let judged = self.desk.judge(Stage::Mail, &Visit { sender: Some(mail.sender.as_ref()), ..self.visit() }).await;
        self.heard(judged)
    }

    /// RCPT: checks a recipient, after normalisation, of mail from this sender.
    pub(crate) async fn judge_recipient(
        &self,
        sender: Option<&Address>,
        recipient: &Address,
    ) -> Result<Standing, Denied> {
        let visit = Visit { sender: Some(sender), recipient: Some(recipient), ..self.visit() };
        self.desk.judge(Stage::Rcpt, &visit).await
    }

    /// XCLIENT: treats the client named by the peer as if it had connected itself.
    pub(crate) async fn become_client(&mut self, identity: &Identity) -> Result<(), Reply> {
        let client: Option<IpAddr> = identity.address.unwrap_or(self.session.peer().address);
        let is_of = |networks: &Networks| client.is_some_and(|client| networks(client));
        let trusted = is_of(&self.desk.relays);
        let counted = client.unwrap_or(UNKNOWN_CLIENT);
        self.desk.pass_on(&mut self.visitor.pass, counted, trusted).map_err(Refusal::reply)?;
        if is_of(&self.desk.proxies) {
            self.session.trust_client();
        }
        if is_of(&self.desk.normalised) {
            self.session.normalise_for_client();
        }
        if trusted {
            self.session.let_client_relay();
        }
        self.visitor.trusted = trusted;
        self.visitor.own_address = identity.own_address.unwrap_or(self.visitor.own_address);
        self.visitor.greeted = Standing::default();
        // A login belongs to the previous client.
        let visit = Visit { client, is_user: self.visitor.must_log_in, ..Visit::default() };
        let judged = self.desk.judge(Stage::Connect, &visit).await;
        self.visitor.connected = self.heard(judged)?;
        Ok(())
    }

    fn heard(&mut self, judged: Result<Standing, Denied>) -> Result<Standing, Reply> {
        judged.map_err(|denied| denied.told(&mut self.denied_by))
    }

    /// Whether a rule has accepted the client.
    fn is_accepted(&self) -> bool {
        self.visitor.connected.accepted || self.visitor.greeted.accepted
    }

    /// Whether all mail of the session is held.
    pub(crate) fn is_held(&self) -> bool {
        self.visitor.connected.held || self.visitor.greeted.held
    }

    fn visit(&self) -> Visit<'_> {
        let helo = Some(self.session.helo()).filter(|helo| !helo.is_empty());
        let is_user = self.visitor.must_log_in || self.session.user().is_some();
        Visit { client: self.session.peer().address, is_user, helo, ..Visit::default() }
    }
}
