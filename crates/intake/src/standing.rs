//! What access rules have said of a session so far, and the questions to them. Where there are no rules, nothing is
//! asked and nothing is allocated.

use std::net::IpAddr;

use mail::{Address, Reply};
use net::Stop;
use protocol::smtp::server::{Identity, MailRequest};

use crate::access::{Access, Decision, Stage, Visit};
use crate::conversation::Intake;
use crate::{Desk, Refusal};

/// What the rules of one stage said, as far as it lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// No rule is asked later.
    pub(crate) accepted: bool,
    /// Mail is held.
    pub(crate) held: bool,
}

/// A rule said no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    /// Its name.
    pub(crate) rule: Box<str>,
    /// What the client is told.
    pub(crate) reply: Reply,
}

impl Desk {
    /// Connect: what the rules say of a client, who has to log in or not. None: the server stops first, and nobody waits
    /// for tables and lists any more.
    pub(crate) async fn judge_client(
        &self,
        client: IpAddr,
        must_log_in: bool,
        stop: &Stop,
    ) -> Option<Result<Standing, Denied>> {
        let Some(access) = self.rules_at(Stage::Connect) else { return Some(Ok(Standing::default())) };
        let visit = Visit { client: Some(client), is_user: must_log_in, ..Visit::default() };
        let mut stop = stop.clone();
        // In a box: sessions without rules should not have room for it.
        let judged = async move {
            tokio::select! {
                judged = self.ask_rules(access, Stage::Connect, &visit) => Some(judged),
                () = stop.requested() => None,
            }
        };
        Box::pin(judged).await
    }

    /// What the rules of a stage say; a refusal is the error.
    pub(crate) async fn judge(&self, stage: Stage, visit: &Visit<'_>) -> Result<Standing, Denied> {
        let Some(access) = self.rules_at(stage) else { return Ok(Standing::default()) };
        // In a box: sessions without rules should not have room for it.
        Box::pin(self.ask_rules(access, stage, visit)).await
    }

    fn rules_at(&self, stage: Stage) -> Option<&Access> {
        self.access.as_ref().filter(|access| access.asks_at(stage))
    }

    async fn ask_rules(&self, access: &Access, stage: Stage, visit: &Visit<'_>) -> Result<Standing, Denied> {
        let verdict = access.judge(stage, visit, &self.troubles).await;
        match verdict.decision {
            Some(Decision::Refuse { rule, reply }) => Err(Denied { rule, reply }),
            decision => Ok(Standing { accepted: decision.is_some(), held: verdict.held }),
        }
    }
}

impl Intake {
    /// HELO: whether one may come in that calls itself so.
    pub(crate) async fn greet(&mut self, name: &str) -> Result<(), Reply> {
        let judged = match self.visitor.connected.accepted {
            true => Ok(Standing::default()),
            false => self.desk.judge(Stage::Helo, &Visit { helo: Some(name), ..self.visit() }).await,
        };
        self.visitor.greeted = self.heard(judged)?;
        Ok(())
    }

    /// MAIL: what rules say of the sender.
    pub(crate) async fn judge_sender(&mut self, mail: &MailRequest) -> Result<Standing, Reply> {
        if self.is_accepted() {
            return Ok(Standing { accepted: true, held: false });
        }
        let judged = self.desk.judge(Stage::Mail, &Visit { sender: Some(mail.sender.as_ref()), ..self.visit() }).await;
        self.heard(judged)
    }

    /// RCPT: what rules say of a recipient of mail from this sender.
    pub(crate) async fn judge_recipient(
        &self,
        sender: Option<&Address>,
        recipient: &Address,
    ) -> Result<Standing, Denied> {
        let visit = Visit { sender: Some(sender), recipient: Some(recipient), ..self.visit() };
        self.desk.judge(Stage::Rcpt, &visit).await
    }

    /// XCLIENT: the client for whom the peer speaks comes in as if it had connected itself.
    pub(crate) async fn become_client(&mut self, identity: &Identity) -> Result<(), Reply> {
        let client: Option<IpAddr> = identity.address.unwrap_or(self.session.peer().address);
        let trusted = client.is_some_and(|client| (self.desk.relays)(client));
        if let Some(client) = client {
            self.desk.pass_on(&mut self.visitor.pass, client, trusted).map_err(Refusal::reply)?;
        }
        self.visitor.trusted = trusted;
        self.visitor.own_address = identity.own_address.unwrap_or(self.visitor.own_address);
        self.visitor.greeted = Standing::default();
        // Whoever has logged in was another client.
        let visit = Visit { client, is_user: self.visitor.must_log_in, ..Visit::default() };
        let judged = self.desk.judge(Stage::Connect, &visit).await;
        self.visitor.connected = self.heard(judged)?;
        Ok(())
    }

    /// What is said to the client; which rule said no is kept for the log.
    pub(crate) fn heard(&mut self, judged: Result<Standing, Denied>) -> Result<Standing, Reply> {
        judged.map_err(|Denied { rule, reply }| {
            self.denied_by = Some(rule);
            reply
        })
    }

    /// Whether a rule has let the client pass.
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
