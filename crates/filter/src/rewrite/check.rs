//! Rewrites the sender and the addresses in the header at the end of a message, after the content rules
//! and before signatures.

use std::sync::Arc;

use mail::{Address, EnhancedCode, OperatorLog, Reply};

use super::header_addresses::{HeaderAddress, header_addresses};
use super::{AddressClass, AddressRewriter, RewriteSettings};
use crate::check::{
    Check, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, Decision, Origin, Refusal, SessionInfo, Submitter,
    Verdict,
};
use crate::edit::{Edit, ReplacedOctets};
use crate::header;
use crate::stage::{Stage, Stages};

const UNAVAILABLE: Reply =
    Reply::constant(451, EnhancedCode(4, 3, 0), "Address rewriting unavailable, try again later");
/// The name of the refusal in the log.
const BY: &str = "rewrite";
/// Addresses in the header of one message that are rewritten; others stay as they are.
const ADDRESSES_MAX: usize = 1000;

/// Rewrites what is known at the end of a message: makes the [`Check`]s of sessions, which keep nothing
/// of them.
pub struct HeaderRewriting {
    /// What rewrites.
    pub rewriter: Arc<AddressRewriter>,
    /// Whose messages.
    pub settings: RewriteSettings,
    /// Where unavailable tables are logged.
    pub log: Arc<dyn OperatorLog>,
}

impl HeaderRewriting {
    async fn check(&self, session: &SessionInfo<'_>, message: &mut dyn CheckedMessage) -> Verdict {
        match self.edits(session, message).await {
            Ok(edits) => Verdict { edits, ..Verdict::default() },
            Err(why) => {
                let id = session.id.map(|id| id.to_string()).unwrap_or_default();
                self.log.log_line(format_args!("cannot rewrite the addresses of {id}: {why}"));
                Decision::Refuse(Refusal { by: BY.into(), reply: UNAVAILABLE }).into()
            }
        }
    }

    async fn edits(&self, session: &SessionInfo<'_>, message: &mut dyn CheckedMessage) -> Result<Vec<Edit>, String> {
        let sender = message.sender().cloned();
        let found = if self.includes_header(session) { self.header_addresses(message).await? } else { Vec::new() };
        let mut addresses: Vec<(Address, AddressClass)> =
            found.iter().map(|(found, class)| (found.address.clone(), *class)).collect();
        addresses.extend(sender.clone().map(|sender| (sender, AddressClass::EnvelopeSender)));
        self.rewriter.rewrite_all(&mut addresses).await?;
        let mut edits = Vec::new();
        if let Some(sender) = sender
            && let Some((rewritten, _)) = addresses.pop()
            && rewritten != sender
        {
            edits.push(Edit::ChangeSender(Some(rewritten)));
        }
        let is_changed = |(found, new): &(HeaderAddress, Address)| found.is_completed || found.address != *new;
        let changes = found.into_iter().zip(addresses).map(|((found, _), (new, _))| (found, new)).filter(is_changed);
        let changes: Box<[ReplacedOctets]> =
            changes.map(|(found, new)| (found.place, new.as_str().as_bytes().to_vec())).collect();
        edits.extend((!changes.is_empty()).then_some(Edit::ReplaceOctets { changes }));
        Ok(edits)
    }

    /// Whether addresses in the header are rewritten: never those of strangers, unless a setting names
    /// their network.
    fn includes_header(&self, session: &SessionInfo<'_>) -> bool {
        match session.submitter {
            Submitter::LocalProgram => true,
            Submitter::User(_) if self.settings.header_users => true,
            _ => session.client.is_some_and(|client| self.settings.header_clients.contains(client)),
        }
    }

    async fn header_addresses(
        &self,
        message: &mut dyn CheckedMessage,
    ) -> Result<Vec<(HeaderAddress, AddressClass)>, String> {
        let header = header::read_as_far_as_allowed(message).await.map_err(|error| error.to_string())?;
        let mut found = header_addresses(&header, &self.rewriter.origin);
        found.truncate(ADDRESSES_MAX);
        Ok(found)
    }
}

impl CheckFactory for HeaderRewriting {
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

impl Check for Arc<HeaderRewriting> {
    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        Box::pin(self.check(session, message))
    }
}
