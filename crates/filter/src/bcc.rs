//! Blind copies: recipients that get all mail, the mail of certain senders, or the mail to certain
//! recipients, as Postfix's always_bcc, sender_bcc_maps and recipient_bcc_maps.
//!
//! Copies are made once, after address rewriting: a recipient that gets a copy brings no further copies. No
//! notice is sent about a copy. If a table is unavailable, or the recipient of a copy cannot be looked up, the
//! message is deferred; if there is no such recipient, it is refused.

use std::sync::Arc;

use lookup::directory::RecipientDirectory;
use lookup::{LookupAnswer, Table};
use mail::{Address, DsnNotify, EnhancedCode, OperatorLog, Reply};

use crate::address_keys::AddressKeys;
use crate::check::{
    Check, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, Decision, Origin, Refusal, SessionInfo, Verdict,
};
use crate::edit::Edit;
use crate::stage::{Stage, Stages};

const UNAVAILABLE: Reply = Reply::constant(451, EnhancedCode(4, 3, 0), "Table of copies unavailable, try again later");
/// The name of the refusal in the log.
const BY: &str = "bcc";

/// Who gets copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BccSettings {
    /// Gets a copy of all mail.
    pub always: Option<Address>,
    /// The table of senders; the value gets the copy.
    pub sender_table: Option<Box<str>>,
    /// The table of recipients before alias expansion.
    pub recipient_table: Option<Box<str>>,
}

/// Makes blind copies: makes the [`Check`]s of sessions, which keep nothing of them.
pub struct BlindCopies {
    always: Option<Address>,
    senders: Option<Arc<dyn Table>>,
    recipients: Option<Arc<dyn Table>>,
    /// Recognises address tags.
    directory: Arc<RecipientDirectory>,
    /// The domain of addresses without one.
    origin: Box<str>,
    log: Arc<dyn OperatorLog>,
}

impl BlindCopies {
    /// Finds the tables by name. None: nobody gets copies.
    pub fn new<'t>(
        settings: &BccSettings,
        find_table: impl Fn(&str) -> Option<&'t Arc<dyn Table>>,
        directory: Arc<RecipientDirectory>,
        origin: Box<str>,
        log: Arc<dyn OperatorLog>,
    ) -> Option<BlindCopies> {
        let table = |name: &Option<Box<str>>| name.as_deref().and_then(&find_table).cloned();
        let (senders, recipients) = (table(&settings.sender_table), table(&settings.recipient_table));
        let is_used = *settings != BccSettings::default();
        let always = settings.always.clone();
        is_used.then_some(BlindCopies { always, senders, recipients, directory, origin, log })
    }

    async fn check(&self, session: &SessionInfo<'_>, message: &mut dyn CheckedMessage) -> Verdict {
        let sender: Vec<&Address> = message.sender().into_iter().collect();
        let mut copies: Vec<Address> = self.always.iter().cloned().collect();
        for (table, addresses) in [(&self.senders, sender), (&self.recipients, message.named_recipients())] {
            let Some(table) = table else { continue };
            match self.copies_of(&**table, addresses).await {
                Ok(found) => copies.extend(found),
                Err(why) => {
                    let id = session.id.map(|id| id.to_string()).unwrap_or_default();
                    self.log.log_line(format_args!("cannot find who gets a copy of {id}: {why}"));
                    return Decision::Refuse(Refusal { by: BY.into(), reply: UNAVAILABLE }).into();
                }
            }
        }
        let add = |address| Edit::AddRecipient { address, notify: DsnNotify::NEVER, orcpt: None };
        Verdict { edits: copies.into_iter().map(add).collect(), ..Verdict::default() }
    }

    /// Who gets a copy by this table. Values that are no address are skipped.
    async fn copies_of(&self, table: &dyn Table, addresses: Vec<&Address>) -> Result<Vec<Address>, String> {
        let mut keys = Vec::with_capacity(addresses.len());
        for address in addresses {
            keys.push(AddressKeys::of(address, table, &self.directory).await);
        }
        let texts: Vec<&str> = keys.iter().flat_map(|keys| keys.texts.iter().map(String::as_str)).collect();
        let mut answers = table.lookup(&texts).await.into_iter();
        let mut copies = Vec::new();
        for keys in &keys {
            let mut own = answers.by_ref().take(keys.texts.len()).filter(|answer| *answer != LookupAnswer::NotFound);
            let first = own.next();
            own.for_each(drop);
            match first {
                None | Some(LookupAnswer::NotFound) => {}
                Some(LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why)) => return Err(why),
                Some(LookupAnswer::Found(values)) => {
                    let address = |value: &String| Address::parse_lenient(value.trim(), Some(&self.origin)).ok();
                    copies.extend(values.iter().filter_map(address));
                }
            }
        }
        Ok(copies)
    }
}

impl CheckFactory for BlindCopies {
    fn order(&self) -> CheckOrder {
        CheckOrder::ContentRules
    }

    fn stages(&self, _: Origin) -> Stages {
        [Stage::Message].into_iter().collect()
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(self)
    }
}

impl Check for Arc<BlindCopies> {
    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        Box::pin(self.check(session, message))
    }
}
