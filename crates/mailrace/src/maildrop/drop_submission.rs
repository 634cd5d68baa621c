//! Submits messages from the drop folder to the spool: what `intake` does for a connected client,
//! for one that has gone. Recipients that cannot get the message are reported in a notice to the
//! sender, committed together with the message. These notices are not limited, since the sender is
//! a local user.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};

use delivery::bounce::{DsnAction, DsnComposeInput, DsnReport, ORIGINAL_OCTETS_MAX, RecipientResult, SubmittedNotice};
use lookup::directory::{AddressResolution, ResolvedRecipient};
use mail::{
    Address, ClientInfo, DsnNotify, EnhancedCode, Envelope, EventLog, LoggedHeader, MailEvent, QueueId, Recipient,
    Reply, Timestamp,
};
use spool::{CommitError, Spool, SpoolEntry, SubmittedBody};
use tokio::runtime::Runtime;

use crate::log::Log;
use crate::maildrop::DropFile;
use config::NulPolicy;

/// The protocol of these messages in Received lines and in the log.
const PROTOCOL: &str = "local";

/// Submits messages from the drop folder.
pub struct DropSubmitter {
    /// The context that sessions use: directory, spool, limits.
    pub intake: Arc<intake::IntakeContext>,
    /// Runs lookups; the scanner's thread waits for them.
    pub runtime: Runtime,
    /// Messages larger than this many bytes go to a file of their own.
    pub spill_above: u64,
    /// The most Received lines of a message; one with more is in a mail loop.
    pub received_max: u32,
    /// How to treat NUL in a message, as in sessions.
    pub nul: NulPolicy,
    /// Gets notices for messages without a sender.
    pub double_bounces_to: Option<Address>,
    /// The log.
    pub log: Arc<Log>,
}

/// The message is in the spool.
pub struct Submitted;

/// Why it is not.
pub enum DropSubmitError {
    /// A later try may succeed.
    Temporary(String),
    /// No try will.
    Permanent(String),
}

/// Recipients after the directory lookup.
#[derive(Default)]
struct DropRecipients {
    accepted: Vec<Recipient>,
    /// At most one for each named recipient.
    refused: Vec<(Recipient, Reply)>,
    /// The addresses of the accepted recipients.
    seen: HashSet<Address>,
}

impl DropSubmitter {
    /// Submits a message. On success it is durable in the spool. It is not there if the lookup of
    /// any recipient fails, if the server stops meanwhile, or if neither message nor notice has a
    /// recipient.
    pub fn submit(
        &self,
        mut drop_file: DropFile,
        uid: u32,
        now: Timestamp,
        stopping: &AtomicBool,
    ) -> Result<Submitted, DropSubmitError> {
        if self.intake.load.restrictions().shortage.is_some() {
            return Err(DropSubmitError::Temporary("disk space or memory is low".into()));
        }
        if self.nul == NulPolicy::Strip {
            drop_file.content.retain(|octet| *octet != 0);
        }
        let mut flags = drop_file.body_flags();
        let DropFile { sender, recipients, ret, envid, body_type, smtputf8, content } = drop_file;
        let DropRecipients { accepted, refused, .. } = match self.refusal(&content) {
            Some(reply) => refuse_all(recipients, &reply),
            None => self.resolve_recipients(recipients, stopping)?,
        };
        let international =
            sender.iter().chain(accepted.iter().map(|to| &to.address)).any(|address| !address.is_ascii());
        let id = self.intake.spool.new_id();
        let client = ClientInfo { address: None, helo: format!("uid-{uid}").into(), trusted: true };
        let envelope = Envelope {
            sender,
            recipients: accepted,
            accepted_at: now,
            client,
            body_type,
            smtputf8: smtputf8 || international,
            ret,
            envid,
        };
        let notice = self.notice(id, &envelope, &refused, &content, now)?;
        if let (true, None, [(to, reply), ..]) = (envelope.recipients.is_empty(), &notice, &*refused) {
            return Err(DropSubmitError::Permanent(format!(
                "no valid recipient, and no notice can be sent: <{}>: {reply}",
                to.address
            )));
        }
        let header = mail::find_logged_header(&content, self.intake.logs_subjects);
        let (size, mut entries) = (content.len() as u64, Vec::new());
        if !envelope.recipients.is_empty() {
            let mut stored = self.received_line(id, uid, &envelope, now).into_bytes();
            flags.eight_bit |= !stored.is_ascii();
            stored.extend_from_slice(&content);
            drop(content);
            let content = self.content(id, stored)?;
            entries.push(SpoolEntry::Message { id, envelope: envelope.clone(), content, flags });
        }
        let (submitted_notice, notice) = notice.unzip();
        entries.extend(notice);
        self.commit(entries)?;
        self.log_submitted(id, envelope, refused, submitted_notice, size, header);
        Ok(Submitted)
    }

    /// Why the message is refused for all recipients.
    fn refusal(&self, content: &[u8]) -> Option<Reply> {
        if count_received_lines(content) > self.received_max as usize {
            return Some(failure(EnhancedCode(5, 4, 6), "Mail loop detected: too many Received lines"));
        }
        let has_nul = self.nul == NulPolicy::Refuse && content.contains(&0);
        has_nul.then(|| failure(EnhancedCode(5, 6, 0), "The message contains NUL"))
    }

    /// Looks up the recipients. A failing lookup holds up the whole message.
    fn resolve_recipients(
        &self,
        recipients: Vec<Recipient>,
        stopping: &AtomicBool,
    ) -> Result<DropRecipients, DropSubmitError> {
        let (mut resolved, mut named) = (DropRecipients::default(), HashSet::new());
        for recipient in recipients {
            if stopping.load(Relaxed) {
                return Err(DropSubmitError::Temporary("the server is stopping".into()));
            }
            if !named.insert(recipient.address.clone()) {
                continue;
            }
            let (asked, resolution) = self.resolve(&recipient.address);
            let finals = match resolution {
                AddressResolution::Local(finals) => finals,
                AddressResolution::Remote(address) => {
                    let only = ResolvedRecipient { address, original: None, local: false };
                    resolved.add(vec![only], recipient, self.intake.expanded_recipients_max);
                    continue;
                }
                AddressResolution::Unavailable(why) => {
                    return Err(DropSubmitError::Temporary(format!("cannot look up <{asked}>: {why}")));
                }
                AddressResolution::Unknown => {
                    resolved.refused.push((recipient, failure(EnhancedCode(5, 1, 1), "No such user here")));
                    continue;
                }
                AddressResolution::TooDeep => {
                    resolved.refused.push((recipient, failure(EnhancedCode(5, 4, 6), "Alias loop")));
                    continue;
                }
                AddressResolution::TooMany => {
                    resolved
                        .refused
                        .push((recipient, failure(EnhancedCode(5, 5, 3), "Too many addresses after alias expansion")));
                    continue;
                }
            };
            resolved.add(finals, recipient, self.intake.expanded_recipients_max);
        }
        Ok(resolved)
    }

    /// The notice for the sender, if it can be sent.
    fn notice(
        &self,
        id: QueueId,
        envelope: &Envelope,
        refused: &[(Recipient, Reply)],
        content: &[u8],
        now: Timestamp,
    ) -> Result<Option<(SubmittedNotice, SpoolEntry)>, DropSubmitError> {
        let failed = Envelope { recipients: refused.iter().map(|(to, _)| to.clone()).collect(), ..envelope.clone() };
        let findings = (0..).zip(refused).map(|(ordinal, (_, reply))| RecipientResult {
            ordinal,
            action: DsnAction::Failed(reply),
            peer: None,
        });
        let Some(report) = DsnReport::build(&failed, self.double_bounces_to.as_ref(), findings) else {
            return Ok(None);
        };
        let recipients = self.notice_recipients(report.notified_address())?;
        if recipients.is_empty() {
            return Ok(None);
        }
        let notice_id = self.intake.spool.new_id_in_lane_of(id);
        let start = &content[..content.len().min(ORIGINAL_OCTETS_MAX as usize)];
        let original = returned_content(start, self.nul);
        let dsn = report.compose(&DsnComposeInput {
            hostname: &self.intake.hostname,
            id: notice_id,
            now,
            original_id: id,
            attempted_at: Some(now),
            octets: (content.len() - (start.len() - original.len())) as u64,
            original: &original,
        });
        let envelope = dsn.envelope(&self.intake.hostname, now, recipients);
        let submitted_notice = SubmittedNotice::new(&dsn, notice_id, Vec::new(), &envelope);
        let (content, flags) = (SubmittedBody::Memory(dsn.content), dsn.flags);
        Ok(Some((submitted_notice, SpoolEntry::Message { id: notice_id, envelope, content, flags })))
    }

    /// Normalizes an address, and resolves it.
    fn resolve(&self, address: &Address) -> (Address, AddressResolution) {
        self.runtime.block_on(async {
            let asked = self.intake.normalize_address(address, None).await.into_owned();
            let resolution = self.intake.resolve_recipient(&asked).await;
            (asked, resolution)
        })
    }

    /// The recipients of a notice, as RCPT would resolve the sender. None if there is no such user;
    /// then the failure is only logged.
    fn notice_recipients(&self, sender: &Address) -> Result<Vec<Recipient>, DropSubmitError> {
        let recipient = |address, original| Recipient { address, original, notify: DsnNotify::NEVER, orcpt: None };
        match self.resolve(sender).1 {
            AddressResolution::Local(finals) => {
                Ok(finals.into_iter().map(|to| recipient(to.address, to.original)).collect())
            }
            AddressResolution::Remote(address) => Ok(vec![recipient(address, None)]),
            AddressResolution::Unavailable(why) => {
                Err(DropSubmitError::Temporary(format!("cannot look up the sender <{sender}>: {why}")))
            }
            AddressResolution::Unknown | AddressResolution::TooDeep | AddressResolution::TooMany => Ok(Vec::new()),
        }
    }

    /// The Received line (RFC 5321 section 4.4). The operating system tells the sender's user id.
    fn received_line(&self, id: QueueId, uid: u32, envelope: &Envelope, now: Timestamp) -> String {
        let recipient = match &*envelope.recipients {
            [only] => format!("\r\n\tfor <{}>", only.original.as_ref().unwrap_or(&only.address)),
            _ => String::new(),
        };
        let (hostname, date) = (&self.intake.hostname, now.rfc5322_date());
        format!(
            "Received: by {hostname} (Mailrace, from userid {uid})\r\n\twith {PROTOCOL} id {id}{recipient};\r\n\t{date}\r\n"
        )
    }

    fn content(&self, id: QueueId, bytes: Vec<u8>) -> Result<SubmittedBody, DropSubmitError> {
        if bytes.len() as u64 <= self.spill_above {
            return Ok(SubmittedBody::Memory(bytes));
        }
        let spilled = self.intake.spool.create_spill_file(id).and_then(|mut spill| {
            spill.append(&bytes)?;
            spill.finish()
        });
        spilled
            .map(SubmittedBody::Spilled)
            .map_err(|error| DropSubmitError::Temporary(format!("cannot write it to a file: {error}")))
    }

    fn commit(&self, entries: Vec<SpoolEntry>) -> Result<(), DropSubmitError> {
        if entries.is_empty() {
            return Ok(());
        }
        let (done, answer) = mpsc::channel();
        let spool: &Arc<Spool> = &self.intake.spool;
        // This thread waits for the answer.
        spool.submit(entries, Box::new(move |result| drop(done.send(result))));
        match answer.recv().unwrap_or(Err(CommitError::Closed)) {
            Ok(()) => Ok(()),
            Err(CommitError::TooLarge) => Err(DropSubmitError::Permanent(CommitError::TooLarge.to_string())),
            Err(error) => Err(DropSubmitError::Temporary(error.to_string())),
        }
    }

    fn log_submitted(
        &self,
        id: QueueId,
        envelope: Envelope,
        refused: Vec<(Recipient, Reply)>,
        notice: Option<SubmittedNotice>,
        size: u64,
        header: LoggedHeader,
    ) {
        let bounce = notice.as_ref().map(|submitted_notice| submitted_notice.id);
        notice
            .into_iter()
            .for_each(|submitted_notice| self.log.write(submitted_notice.received_event(&self.intake.hostname)));
        let sender = envelope.sender.clone();
        self.log.write(MailEvent::Received {
            id,
            client: None,
            helo: envelope.client.helo,
            sender: envelope.sender,
            recipients: envelope.recipients.len(),
            size,
            protocol: PROTOCOL,
            security: None,
            user: None,
            header,
        });
        for (Recipient { address: recipient, .. }, reason) in refused {
            let (sender, transport) = (sender.clone(), "none".into());
            self.log.write(MailEvent::Bounced { id, sender, recipient, transport, relay: None, reason, bounce });
        }
    }
}

impl DropRecipients {
    /// Adds the addresses that a recipient resolves to, without duplicates: all of them, or none if
    /// that exceeds `count_max`.
    fn add(&mut self, finals: Vec<ResolvedRecipient>, recipient: Recipient, count_max: usize) {
        let before = self.accepted.len();
        for ResolvedRecipient { address, original, .. } in finals {
            if self.seen.insert(address.clone()) {
                self.accepted.push(Recipient { address, original, ..recipient.clone() });
            }
        }
        if self.accepted.len() > count_max {
            for refused in self.accepted.drain(before..) {
                self.seen.remove(&refused.address);
            }
            self.refused.push((recipient, failure(EnhancedCode(5, 5, 3), "Too many recipients after alias expansion")));
        }
    }
}

fn refuse_all(recipients: Vec<Recipient>, reply: &Reply) -> DropRecipients {
    let refused = recipients.into_iter().map(|recipient| (recipient, reply.clone())).collect();
    DropRecipients { refused, ..DropRecipients::default() }
}

fn failure(enhanced: EnhancedCode, text: &'static str) -> Reply {
    Reply::new(550, enhanced, text)
}

/// The part of a message that a notice returns. If NULs are refused, the notice contains none
/// either.
fn returned_content(original: &[u8], nul: NulPolicy) -> Cow<'_, [u8]> {
    if nul == NulPolicy::Refuse && original.contains(&0) {
        return Cow::Owned(original.iter().copied().filter(|octet| *octet != 0).collect());
    }
    Cow::Borrowed(original)
}

/// Counts the Received lines of the header.
fn count_received_lines(message: &[u8]) -> usize {
    let lines = message.split_inclusive(|byte| *byte == b'\n').take_while(|line| *line != b"\r\n");
    let is_trace = |line: &&[u8]| line.get(..9).is_some_and(|name| name.eq_ignore_ascii_case(b"received:"));
    lines.filter(is_trace).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_dropped_and_excess_recipients_refused() {
        let address = |name: &str| format!("{name}@example.org").parse::<Address>().unwrap();
        let mut resolved = DropRecipients::default();
        for (name, finals) in [("a", "a b"), ("c", "a c"), ("many", "a d e"), ("e", "e"), ("again", "a b")] {
            let finals = finals
                .split(' ')
                .map(|name| ResolvedRecipient { address: address(name), original: None, local: true })
                .collect();
            let recipient = Recipient { address: address(name), original: None, notify: DsnNotify::UNSET, orcpt: None };
            resolved.add(finals, recipient, 4);
        }
        let names: Vec<_> = resolved.accepted.iter().map(|to| to.address.local_part()).collect();
        assert_eq!(names, ["a", "b", "c", "e"]);
        let [(to, reply)] = &*resolved.refused else { panic!("one is refused") };
        assert_eq!((to.address.local_part(), reply.to_string().contains("5.5.3")), ("many", true));
    }

    #[test]
    fn a_notice_omits_nuls_if_they_are_refused() {
        let content = b"Subject: \0x\r\n\r\na\0b\0\r\n";
        assert_eq!(*returned_content(content, NulPolicy::Refuse), *b"Subject: x\r\n\r\nab\r\n");
        assert_eq!(*returned_content(content, NulPolicy::Keep), *content);
    }

    #[test]
    fn received_lines_of_the_header_are_counted() {
        let message = b"Received: a\r\n b\r\nRECEIVED:\r\nSubject: Received:\r\n\r\nReceived: c\r\n";
        assert_eq!(count_received_lines(message), 2);
        assert_eq!(count_received_lines(b""), 0);
    }
}
