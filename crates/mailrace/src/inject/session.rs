//! SMTP on standard input: `-bs` for programs that talk to a child process, `-bS` for files of
//! commands without replies. Messages are accepted as in the other modes. Recipients are not looked
//! up here; unknown ones result in a bounce.

use std::io::{self, Read, Write};
use std::sync::Arc;

use mail::{Recipient, Reply};
use protocol::smtp::Flavor;
use protocol::smtp::server::{self as smtp, Action, Answer, MailRequest, Peer, Question, RcptRequest, Session};

use super::header::Draft;
use super::text::TextError;
use super::{Clerk, Refused, now};
use crate::config::Config;
use crate::exit::{self, Exit};
use crate::maildrop::Parcel;
use crate::plan;
use crate::say::say;

const READ_OCTETS: usize = 64 * 1024;
/// The CHUNKING line of the EHLO reply (RFC 3030).
const CHUNKING: &[u8] = b"250-CHUNKING\r\n";

/// `-bs`.
pub(super) fn converse(config: &Config, clerk: &Clerk) -> anyhow::Result<()> {
    Conversation::new(config, clerk).run(io::stdin().lock(), io::stdout().lock()).map(drop)
}

/// `-bS`: refusals appear on standard error and in the exit code.
pub(super) fn obey(config: &Config, clerk: &Clerk) -> anyhow::Result<()> {
    let Tally { kept, refused, transient } = batch(config, clerk, io::stdin().lock())?;
    match (kept, refused) {
        (_, 0) => Ok(()),
        (0, _) if transient => Err(Exit { code: exit::TEMPFAIL, text: "no message was accepted".into() }.into()),
        _ => {
            Err(Exit { code: exit::DATA, text: format!("{kept} messages accepted, {refused} commands refused") }.into())
        }
    }
}

/// Runs a batch of commands, which has no EHLO.
fn batch(config: &Config, clerk: &Clerk, input: impl Read) -> anyhow::Result<Tally> {
    let mut conversation = Conversation::new(config, clerk);
    conversation.complains = true;
    conversation.hear(b"EHLO localhost\r\n");
    conversation.run(input, io::sink())
}

/// The totals of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    kept: usize,
    refused: usize,
    /// The last refusal was temporary.
    transient: bool,
}

struct Conversation<'a> {
    clerk: &'a Clerk,
    session: Session,
    transaction: Option<(MailRequest, Vec<Recipient>)>,
    body: Vec<u8>,
    complains: bool,
    tally: Tally,
    newlines: Newlines,
    /// A message has started and its end was not seen yet.
    is_within: bool,
}

/// The line endings of the input, determined by its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newlines {
    /// No line end seen yet; whether the last byte was a CR.
    Unknown(bool),
    /// CRLF, as in SMTP. Nothing is changed: a bare LF is not a line end.
    Crlf,
    /// LF, as in files. Whether the last byte was a CR.
    Lf(bool),
}

impl<'a> Conversation<'a> {
    fn new(config: &Config, clerk: &'a Clerk) -> Self {
        let limits = smtp::Limits {
            commands_max: u32::MAX,
            errors_max: u32::MAX,
            recipients_max: clerk.recipients_max,
            ..plan::session_limits(config)
        };
        let machine = smtp::Config {
            hostname: config.hostname.clone(),
            flavor: Flavor::Smtp,
            limits,
            tls: smtp::Tls::Never,
            auth: None,
            tolerance: plan::session_tolerance(config),
        };
        let peer = Peer { address: None, normalise_bare_newlines: true, may_relay: true };
        let session = Session::new(Arc::new(machine), peer, now());
        Conversation {
            clerk,
            session,
            transaction: None,
            body: Vec::new(),
            complains: false,
            tally: Tally::default(),
            newlines: Newlines::Unknown(false),
            is_within: false,
        }
    }

    /// Runs to the end of the input, or to QUIT.
    fn run(mut self, mut input: impl Read, mut output: impl Write) -> anyhow::Result<Tally> {
        let (mut buffer, mut wire, mut last) = (vec![0; READ_OCTETS], Vec::new(), b'\n');
        loop {
            self.send(&mut output)?;
            if self.session.wants_close() {
                return Ok(self.tally);
            }
            let count = input.read(&mut buffer)?;
            if count == 0 {
                if self.is_within || self.transaction.is_some() || last != b'\n' {
                    let whole = "the input ends within a message or a command";
                    self.count("end", None, &Reply::new(554, mail::Enhanced(5, 5, 0), whole));
                }
                return Ok(self.tally);
            }
            last = buffer[count - 1];
            wire.clear();
            self.newlines.bring(&buffer[..count], &mut wire);
            self.hear(&wire);
        }
    }

    fn hear(&mut self, wire: &[u8]) {
        self.session.handle_input(now(), wire, &mut self.body);
        self.work();
    }

    fn send(&mut self, output: &mut impl Write) -> io::Result<()> {
        let words = self.session.output();
        match words.windows(CHUNKING.len()).position(|window| window == CHUNKING) {
            // BDAT states the size of chunks in bytes, which is wrong once line ends are converted.
            Some(place) if matches!(self.newlines, Newlines::Lf(_)) => {
                output.write_all(&words[..place])?;
                output.write_all(&words[place + CHUNKING.len()..])?;
            }
            _ => output.write_all(words)?,
        }
        let count = words.len();
        self.session.handle_sent(count);
        output.flush()
    }

    fn work(&mut self) {
        while let Some(action) = self.session.poll_action() {
            match action {
                Action::Ask(question) => {
                    let answer = self.answer(question);
                    self.session.handle_answer(now(), answer, &mut self.body);
                }
                Action::Abandon => self.forget(),
                // Local programs do not log in.
                Action::Login { .. } => {}
                Action::Refused { stage, address, reply } => self.count(stage, address.as_ref(), &reply),
            }
        }
    }

    fn count(&mut self, stage: &str, address: Option<&mail::Address>, reply: &Reply) {
        self.is_within &= !matches!(stage, "message" | "DATA" | "BDAT");
        self.tally.refused += 1;
        self.tally.transient = reply.is_transient();
        if self.complains {
            let address = address.map(|address| format!(" <{address}>")).unwrap_or_default();
            say(format_args!("mailrace: {stage}{address}: {reply}"));
        }
    }

    fn forget(&mut self) {
        self.transaction = None;
        self.body = Vec::new();
    }

    fn answer(&mut self, question: Question) -> Answer {
        match question {
            Question::Mail(request) => {
                self.is_within = false;
                self.transaction = Some((request, Vec::new()));
            }
            Question::Recipient(RcptRequest { address, notify, orcpt }) => {
                if let Some((_, recipients)) = &mut self.transaction {
                    recipients.push(Recipient { address, original: None, notify, orcpt });
                }
            }
            Question::Data => {
                self.is_within = true;
                self.body.clear();
            }
            // Not asked in this mode.
            Question::Hello(_) | Question::Identity(_) => {}
            Question::Message(_) => {
                self.is_within = false;
                return Answer::Done(self.keep());
            }
            // AUTH is not offered.
            Question::Login(_) | Question::Keys(_) => {}
        }
        Answer::Accept
    }

    fn keep(&mut self) -> Reply {
        let body = std::mem::take(&mut self.body);
        let Some((mail, recipients)) = self.transaction.take() else { return Reply::plain(451, "No transaction") };
        let parcel = Parcel {
            sender: mail.sender,
            recipients,
            ret: mail.ret,
            envid: mail.envid,
            body_type: mail.body_type,
            smtputf8: mail.smtputf8,
            content: Vec::new(),
        };
        // The last line of a chunk may lack its line end.
        let body = if body.ends_with(b"\r\n") { body } else { super::text::wire(&body) };
        match self.clerk.keep(parcel, &Draft::new(&body), now()) {
            Ok(_) => {
                self.tally.kept += 1;
                Reply::new(250, mail::Enhanced(2, 0, 0), "Accepted")
            }
            Err(refused) => reply(&refused),
        }
    }
}

fn reply(refused: &Refused) -> Reply {
    let (code, enhanced) = match refused {
        Refused::Text(TextError::TooLarge(_)) => (552, mail::Enhanced(5, 3, 4)),
        Refused::TooMany(_) => (452, mail::Enhanced(4, 5, 3)),
        Refused::Envelope(_) => (554, mail::Enhanced(5, 5, 0)),
        _ => (451, mail::Enhanced(4, 3, 0)),
    };
    let text: String = refused.to_string().chars().filter(|c| c.is_ascii() && !c.is_ascii_control()).collect();
    Reply::new(code, enhanced, text)
}

impl Newlines {
    /// Appends the input with the line ends that the session expects.
    fn bring(&mut self, mut input: &[u8], wire: &mut Vec<u8>) {
        if let Newlines::Unknown(after_cr) = *self {
            let Some(place) = input.iter().position(|byte| *byte == b'\n') else {
                *self = Newlines::Unknown(input.last().map_or(after_cr, |last| *last == b'\r'));
                return wire.extend_from_slice(input);
            };
            let is_crlf = if place == 0 { after_cr } else { input[place - 1] == b'\r' };
            *self = if is_crlf { Newlines::Crlf } else { Newlines::Lf(false) };
            wire.extend_from_slice(&input[..place]);
            input = &input[place..];
        }
        match self {
            Newlines::Lf(after_cr) => *after_cr = with_cr(input, *after_cr, wire),
            _ => wire.extend_from_slice(input),
        }
    }
}

/// Appends lines that end in LF with CRLF. Returns whether the last byte was a CR.
fn with_cr(input: &[u8], mut after_cr: bool, wire: &mut Vec<u8>) -> bool {
    for byte in input {
        if *byte == b'\n' && !after_cr {
            wire.push(b'\r');
        }
        wire.push(*byte);
        after_cr = *byte == b'\r';
    }
    after_cr
}

#[cfg(test)]
mod tests {
    use super::super::options::Options;
    use super::*;
    use crate::config::DEFAULT;

    /// The replies, the totals, and the messages in the drop folder.
    fn talk(input: &str) -> (String, Tally, Vec<Parcel>) {
        let mut output = Vec::new();
        let (tally, parcels) =
            kept(|config, clerk| Conversation::new(config, clerk).run(input.as_bytes(), &mut output).unwrap());
        (String::from_utf8(output).unwrap(), tally, parcels)
    }

    fn kept(work: impl FnOnce(&Config, &Clerk) -> Tally) -> (Tally, Vec<Parcel>) {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::parse(DEFAULT, "default", "here.example").unwrap();
        config.data_dir = folder.path().to_owned();
        let drop = crate::maildrop::folder(folder.path());
        std::fs::create_dir(&drop).unwrap();
        let clerk = Clerk::new(&config, Options::default()).unwrap();
        let tally = work(&config, &clerk);
        let mut files: Vec<_> = std::fs::read_dir(drop).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let parcels = files.iter().map(|file| Parcel::decode(&std::fs::read(file).unwrap(), 1000).unwrap());
        (tally, parcels.collect())
    }

    #[test]
    fn each_message_of_a_session_is_kept_with_its_envelope() {
        let (output, tally, parcels) = talk(
            "EHLO me\r\nMAIL FROM:<a@b> RET=HDRS ENVID=x\r\nRCPT TO:<c@d> NOTIFY=NEVER\r\nRCPT TO:<e@f>\r\nDATA\r\n\
             Subject: x\r\n\r\n..dot\r\n.\r\nMAIL FROM:<>\r\nRCPT TO:<c@d>\r\nDATA\r\n\r\ntwo\r\n.\r\nQUIT\r\n",
        );
        assert_eq!(tally, Tally { kept: 2, refused: 0, transient: false }, "{output}");
        assert!(output.contains("\r\n250 2.0.0 Accepted\r\n") && output.contains("\r\n221 "), "{output}");
        let names: Vec<_> = parcels[0].recipients.iter().map(|to| (to.address.as_str(), to.notify.bits())).collect();
        assert_eq!((names, parcels[0].envid.as_deref()), (vec![("c@d", 1), ("e@f", 0)], Some("x")));
        assert!(parcels[0].content.ends_with(b"Subject: x\r\n\r\n.dot\r\n"));
        assert_eq!(parcels[1].sender, None);
    }

    #[test]
    fn a_file_of_commands_may_end_its_lines_in_lf() {
        let (_, tally, parcels) =
            talk("HELO me\nMAIL FROM:<a@b>\nRCPT TO:<c@d>\nDATA\nSubject: x\n\nbody\n.\nRCPT TO:<x@y>\n");
        assert_eq!((tally.kept, tally.refused), (1, 1));
        assert!(parcels[0].content.ends_with(b"Subject: x\r\n\r\nbody\r\n"));
    }

    #[test]
    fn the_first_line_decides_how_lines_end() {
        let smuggled = "EHLO me\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n\r\nx\n.\nMAIL FROM:<e@f>\r\n.\r\n";
        let (output, tally, parcels) = talk(smuggled);
        assert_eq!((tally.kept, tally.refused), (1, 0), "{output}");
        assert!(parcels[0].content.ends_with(b"x\r\n.\r\nMAIL FROM:<e@f>\r\n"));
        assert!(output.contains("CHUNKING"));
        let (output, tally, parcels) = talk("EHLO me\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nBDAT 4 LAST\r\n\nx\r\n");
        assert_eq!((tally.kept, tally.refused), (1, 0), "{output}");
        assert!(parcels[0].content.ends_with(b"\r\nx\r\n"));
        let (output, ..) = talk("EHLO me\nQUIT\n");
        assert!(!output.contains("CHUNKING") && output.contains("250-DSN\r\n"), "{output}");
    }

    #[test]
    fn a_batch_that_is_cut_is_not_all_right() {
        let message = "MAIL FROM:<a@b>\nRCPT TO:<c@d>\nDATA\nSubject: x\n\nx\n.\n";
        for (input, tally) in [
            (message.to_owned(), (1, 0)),
            (message.replace(".\n", ""), (0, 1)),
            (message.replace("x\n.\n", "x"), (0, 1)),
            (format!("{message}MAIL FROM:<a@b>\n"), (1, 1)),
            (format!("{message}QUI"), (1, 1)),
            (format!("{message}RSET\n"), (1, 0)),
        ] {
            let (found, parcels) = kept(|config, clerk| batch(config, clerk, input.as_bytes()).unwrap());
            assert_eq!(((found.kept, found.refused), parcels.len()), (tally, tally.0), "{input}");
        }
    }

    #[test]
    fn what_the_server_would_set_aside_is_not_kept() {
        let envelope = "EHLO me\r\nMAIL FROM:<a@b> SMTPUTF8\r\nRCPT TO:<j\u{fc}@d> ORCPT=utf-8;j\u{fc}@d\r\n";
        let (output, tally, parcels) = talk(&format!("{envelope}DATA\r\nSubject: x\r\n\r\nx\r\n.\r\nQUIT\r\n"));
        assert_eq!((tally.kept, tally.refused), (1, 0), "{output}");
        assert!(parcels[0].smtputf8 && parcels[0].recipients[0].orcpt.is_some());
    }

    #[test]
    fn a_message_without_its_end_is_not_kept() {
        let (_, tally, parcels) = talk("HELO me\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nhalf");
        assert_eq!((tally.kept, parcels.len()), (0, 0));
    }
}
