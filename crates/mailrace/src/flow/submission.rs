//! Submits messages from the drop folder to the spool: what `intake` does for a connected client,
//! for one that has gone. Recipients that cannot get the message are reported in a notice to the
//! sender, committed together with the message. These notices are not limited, since the sender is
//! a local user.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};

use delivery::bounce::{Fate, Finding, ORIGINAL_OCTETS_MAX, Occasion, Report};
use lookup::directory::{Final, Resolution};
use mail::{
    Address, Client, Enhanced, Envelope, Fact, Journal, LoggedHeader, Notify, QueueId, Recipient, Reply, Timestamp,
};
use spool::{CommitError, Content, Entry, Spool};
use tokio::runtime::Runtime;

use super::Told;
use crate::config::NulPolicy;
use crate::log::Log;
use crate::maildrop::Parcel;

/// The protocol of these messages in Received lines and in the log.
const PROTOCOL: &str = "local";

/// Submits messages from the drop folder.
pub struct Desk {
    /// The context that sessions use: directory, spool, limits.
    pub desk: Arc<intake::Desk>,
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
pub struct Kept;

/// Why it is not.
pub enum Unkept {
    /// A later try may succeed.
    Later(String),
    /// No try will.
    Never(String),
}

/// Recipients after the directory lookup.
#[derive(Default)]
struct Sorted {
    good: Vec<Recipient>,
    /// At most one for each named recipient.
    bad: Vec<(Recipient, Reply)>,
    /// The addresses of the accepted recipients.
    seen: HashSet<Address>,
}

impl Desk {
    /// Submits a message. On success it is durable in the spool. It is not there if the lookup of
    /// any recipient fails, if the server stops meanwhile, or if neither message nor notice has a
    /// recipient.
    pub fn submit(&self, mut parcel: Parcel, uid: u32, now: Timestamp, stopping: &AtomicBool) -> Result<Kept, Unkept> {
        if self.desk.load.measures().shortage.is_some() {
            return Err(Unkept::Later("disk space or memory is low".into()));
        }
        if self.nul == NulPolicy::Strip {
            parcel.content.retain(|octet| *octet != 0);
        }
        let mut flags = parcel.flags();
        let Parcel { sender, recipients, ret, envid, body_type, smtputf8, content } = parcel;
        let Sorted { good, bad, .. } = match self.fault(&content) {
            Some(reply) => refused(recipients, &reply),
            None => self.sort(recipients, stopping)?,
        };
        let international = sender.iter().chain(good.iter().map(|to| &to.address)).any(|address| !address.is_ascii());
        let id = self.desk.spool.begin();
        let client = Client { address: None, helo: format!("uid-{uid}").into(), trusted: true };
        let envelope = Envelope {
            sender,
            recipients: good,
            accepted_at: now,
            client,
            body_type,
            smtputf8: smtputf8 || international,
            ret,
            envid,
        };
        let notice = self.notice(id, &envelope, &bad, &content, now)?;
        if let (true, None, [(to, reply), ..]) = (envelope.recipients.is_empty(), &notice, &*bad) {
            return Err(Unkept::Never(format!(
                "no valid recipient, and no notice can be sent: <{}>: {reply}",
                to.address
            )));
        }
        let header = intake::logged_header(&content, self.desk.logs_subjects);
        let (size, mut entries) = (content.len() as u64, Vec::new());
        if !envelope.recipients.is_empty() {
            let mut stored = self.trace(id, uid, &envelope, now).into_bytes();
            flags.eight_bit |= !stored.is_ascii();
            stored.extend_from_slice(&content);
            drop(content);
            let content = self.content(id, stored)?;
            entries.push(Entry::Message { id, envelope: envelope.clone(), content, flags });
        }
        let (told, notice) = notice.unzip();
        entries.extend(notice);
        self.commit(entries)?;
        self.tell(id, envelope, bad, told, size, header);
        Ok(Kept)
    }

    /// Why the message is refused for all recipients.
    fn fault(&self, content: &[u8]) -> Option<Reply> {
        if received_lines(content) > self.received_max as usize {
            return Some(failure(Enhanced(5, 4, 6), "Mail loop detected: too many Received lines"));
        }
        let has_nul = self.nul == NulPolicy::Refuse && content.contains(&0);
        has_nul.then(|| failure(Enhanced(5, 6, 0), "The message contains NUL"))
    }

    /// Looks up the recipients. A failing lookup holds up the whole message.
    fn sort(&self, recipients: Vec<Recipient>, stopping: &AtomicBool) -> Result<Sorted, Unkept> {
        let (mut sorted, mut named) = (Sorted::default(), HashSet::new());
        for recipient in recipients {
            if stopping.load(Relaxed) {
                return Err(Unkept::Later("the server is stopping".into()));
            }
            if !named.insert(recipient.address.clone()) {
                continue;
            }
            let (asked, resolution) = self.resolve(&recipient.address);
            let finals = match resolution {
                Resolution::Local(finals) => finals,
                Resolution::Remote(address) => {
                    let only = Final { address, original: None, local: false };
                    sorted.add(vec![only], recipient, self.desk.expanded_recipients_max);
                    continue;
                }
                Resolution::Unavailable(why) => {
                    return Err(Unkept::Later(format!("cannot look up <{asked}>: {why}")));
                }
                Resolution::Unknown => {
                    sorted.bad.push((recipient, failure(Enhanced(5, 1, 1), "No such user here")));
                    continue;
                }
                Resolution::TooDeep => {
                    sorted.bad.push((recipient, failure(Enhanced(5, 4, 6), "Alias loop")));
                    continue;
                }
                Resolution::TooMany => {
                    sorted
                        .bad
                        .push((recipient, failure(Enhanced(5, 5, 3), "Too many addresses after alias expansion")));
                    continue;
                }
            };
            sorted.add(finals, recipient, self.desk.expanded_recipients_max);
        }
        Ok(sorted)
    }

    /// The notice for the sender, if it can be sent.
    fn notice(
        &self,
        id: QueueId,
        envelope: &Envelope,
        bad: &[(Recipient, Reply)],
        content: &[u8],
        now: Timestamp,
    ) -> Result<Option<(Told, Entry)>, Unkept> {
        let failed = Envelope { recipients: bad.iter().map(|(to, _)| to.clone()).collect(), ..envelope.clone() };
        let findings =
            (0..).zip(bad).map(|(ordinal, (_, reply))| Finding { ordinal, fate: Fate::Failed(reply), peer: None });
        let Some(report) = Report::of(&failed, self.double_bounces_to.as_ref(), findings) else { return Ok(None) };
        let recipients = self.address(report.to())?;
        if recipients.is_empty() {
            return Ok(None);
        }
        let notice_id = self.desk.spool.begin_beside(id);
        let start = &content[..content.len().min(ORIGINAL_OCTETS_MAX as usize)];
        let original = quoted(start, self.nul);
        let letter = report.compose(&Occasion {
            hostname: &self.desk.hostname,
            id: notice_id,
            now,
            original_id: id,
            attempted_at: Some(now),
            octets: (content.len() - (start.len() - original.len())) as u64,
            original: &original,
        });
        let envelope = letter.envelope(&self.desk.hostname, now, recipients);
        let told = Told::by(&letter, notice_id, Vec::new(), &envelope);
        let (content, flags) = (Content::Memory(letter.content), letter.flags);
        Ok(Some((told, Entry::Message { id: notice_id, envelope, content, flags })))
    }

    /// Normalizes an address, and resolves it.
    fn resolve(&self, address: &Address) -> (Address, Resolution) {
        self.runtime.block_on(async {
            let asked = self.desk.meant(address, None).await.into_owned();
            let resolution = self.desk.resolve(&asked).await;
            (asked, resolution)
        })
    }

    /// The recipients of a notice, as RCPT would resolve the sender. None if there is no such user;
    /// then the failure is only logged.
    fn address(&self, sender: &Address) -> Result<Vec<Recipient>, Unkept> {
        let recipient = |address, original| Recipient { address, original, notify: Notify::NEVER, orcpt: None };
        match self.resolve(sender).1 {
            Resolution::Local(finals) => Ok(finals.into_iter().map(|to| recipient(to.address, to.original)).collect()),
            Resolution::Remote(address) => Ok(vec![recipient(address, None)]),
            Resolution::Unavailable(why) => Err(Unkept::Later(format!("cannot look up the sender <{sender}>: {why}"))),
            Resolution::Unknown | Resolution::TooDeep | Resolution::TooMany => Ok(Vec::new()),
        }
    }

    /// The Received line (RFC 5321 section 4.4). The operating system tells the sender's user id.
    fn trace(&self, id: QueueId, uid: u32, envelope: &Envelope, now: Timestamp) -> String {
        let recipient = match &*envelope.recipients {
            [only] => format!("\r\n\tfor <{}>", only.original.as_ref().unwrap_or(&only.address)),
            _ => String::new(),
        };
        let (hostname, date) = (&self.desk.hostname, now.rfc5322_date());
        format!(
            "Received: by {hostname} (Mailrace, from userid {uid})\r\n\twith {PROTOCOL} id {id}{recipient};\r\n\t{date}\r\n"
        )
    }

    fn content(&self, id: QueueId, bytes: Vec<u8>) -> Result<Content, Unkept> {
        if bytes.len() as u64 <= self.spill_above {
            return Ok(Content::Memory(bytes));
        }
        let spilled = self.desk.spool.spill(id).and_then(|mut spill| {
            spill.append(&bytes)?;
            spill.finish()
        });
        spilled.map(Content::Spilled).map_err(|error| Unkept::Later(format!("cannot write it to a file: {error}")))
    }

    fn commit(&self, entries: Vec<Entry>) -> Result<(), Unkept> {
        if entries.is_empty() {
            return Ok(());
        }
        let (done, answer) = mpsc::channel();
        let spool: &Arc<Spool> = &self.desk.spool;
        // This thread waits for the answer.
        spool.submit(entries, Box::new(move |result| drop(done.send(result))));
        match answer.recv().unwrap_or(Err(CommitError::Closed)) {
            Ok(()) => Ok(()),
            Err(CommitError::TooLarge) => Err(Unkept::Never(CommitError::TooLarge.to_string())),
            Err(error) => Err(Unkept::Later(error.to_string())),
        }
    }

    fn tell(
        &self,
        id: QueueId,
        envelope: Envelope,
        bad: Vec<(Recipient, Reply)>,
        notice: Option<Told>,
        size: u64,
        header: LoggedHeader,
    ) {
        let bounce = notice.as_ref().map(|told| told.id);
        notice.into_iter().for_each(|told| self.log.write(told.received(&self.desk.hostname)));
        let sender = envelope.sender.clone();
        self.log.write(Fact::Received {
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
        for (Recipient { address: recipient, .. }, reason) in bad {
            let (sender, transport) = (sender.clone(), "none".into());
            self.log.write(Fact::Bounced { id, sender, recipient, transport, relay: None, reason, bounce });
        }
    }
}

impl Sorted {
    /// Adds the addresses that a recipient resolves to, without duplicates: all of them, or none if
    /// that exceeds `count_max`.
    fn add(&mut self, finals: Vec<Final>, recipient: Recipient, count_max: usize) {
        let before = self.good.len();
        for Final { address, original, .. } in finals {
            if self.seen.insert(address.clone()) {
                self.good.push(Recipient { address, original, ..recipient.clone() });
            }
        }
        if self.good.len() > count_max {
            for refused in self.good.drain(before..) {
                self.seen.remove(&refused.address);
            }
            self.bad.push((recipient, failure(Enhanced(5, 5, 3), "Too many recipients after alias expansion")));
        }
    }
}

fn refused(recipients: Vec<Recipient>, reply: &Reply) -> Sorted {
    let bad = recipients.into_iter().map(|recipient| (recipient, reply.clone())).collect();
    Sorted { bad, ..Sorted::default() }
}

fn failure(enhanced: Enhanced, text: &'static str) -> Reply {
    Reply::new(550, enhanced, text)
}

/// The part of a message that a notice returns. If NULs are refused, the notice contains none
/// either.
fn quoted(original: &[u8], nul: NulPolicy) -> Cow<'_, [u8]> {
    if nul == NulPolicy::Refuse && original.contains(&0) {
        return Cow::Owned(original.iter().copied().filter(|octet| *octet != 0).collect());
    }
    Cow::Borrowed(original)
}

/// Counts the Received lines of the header.
fn received_lines(message: &[u8]) -> usize {
    let lines = message.split_inclusive(|byte| *byte == b'\n').take_while(|line| *line != b"\r\n");
    let is_trace = |line: &&[u8]| line.get(..9).is_some_and(|name| name.eq_ignore_ascii_case(b"received:"));
    lines.filter(is_trace).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_it_twice_and_those_beyond_the_bound_are_refused() {
        let address = |name: &str| format!("{name}@example.org").parse::<Address>().unwrap();
        let mut sorted = Sorted::default();
        for (name, finals) in [("a", "a b"), ("c", "a c"), ("many", "a d e"), ("e", "e"), ("again", "a b")] {
            let finals =
                finals.split(' ').map(|name| Final { address: address(name), original: None, local: true }).collect();
            let recipient = Recipient { address: address(name), original: None, notify: Notify::UNSET, orcpt: None };
            sorted.add(finals, recipient, 4);
        }
        let names: Vec<_> = sorted.good.iter().map(|to| to.address.local()).collect();
        assert_eq!(names, ["a", "b", "c", "e"]);
        let [(to, reply)] = &*sorted.bad else { panic!("one is refused") };
        assert_eq!((to.address.local(), reply.to_string().contains("5.5.3")), ("many", true));
    }

    #[test]
    fn a_notice_quotes_no_nul_where_these_are_refused() {
        let content = b"Subject: \0x\r\n\r\na\0b\0\r\n";
        assert_eq!(*quoted(content, NulPolicy::Refuse), *b"Subject: x\r\n\r\nab\r\n");
        assert_eq!(*quoted(content, NulPolicy::Keep), *content);
    }

    #[test]
    fn received_lines_of_the_header_are_counted() {
        let message = b"Received: a\r\n b\r\nRECEIVED:\r\nSubject: Received:\r\n\r\nReceived: c\r\n";
        assert_eq!(received_lines(message), 2);
        assert_eq!(received_lines(b""), 0);
    }
}
