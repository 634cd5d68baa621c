//! SMTP on standard input: `-bs` for programs that talk to a child process, `-bS` for files of
//! commands without replies. Messages are accepted as in the other modes. Recipients are not looked
//! up here; unknown ones result in a bounce.

use std::io::{self, Read, Write};
use std::sync::Arc;

use intake::drop_folder::DropFile;
use mail::Reply;
use protocol::smtp::MailProtocol;
use protocol::smtp::server::{
    self as smtp, MailRequest, RcptRequest, SessionAction, SessionAnswer, SessionQuestion, SmtpPeer, SmtpSession,
};

use super::header::MessageHeader;
use super::text::TextError;
use super::{InjectError, Injector, now};
use crate::exit::{self, ExitError};
use crate::from_config;
use crate::stderr::print_stderr;
use config::Config;

const READ_OCTETS: usize = 64 * 1024;
/// The CHUNKING line of the EHLO reply (RFC 3030).
const CHUNKING: &[u8] = b"250-CHUNKING\r\n";

/// `-bs`.
pub(super) fn run_interactive(config: &Config, injector: &Injector) -> anyhow::Result<()> {
    StdioSession::new(config, injector).run(io::stdin().lock(), io::stdout().lock()).map(drop)
}

/// `-bS`: refusals appear on standard error and in the exit code.
pub(super) fn run_batch(config: &Config, injector: &Injector) -> anyhow::Result<()> {
    let SessionTotals { kept, refused, transient } = process_batch(config, injector, io::stdin().lock())?;
    match (kept, refused) {
        (_, 0) => Ok(()),
        (0, _) if transient => Err(ExitError { code: exit::TEMPFAIL, text: "no message was accepted".into() }.into()),
        _ => Err(ExitError { code: exit::DATA, text: format!("{kept} messages accepted, {refused} commands refused") }
            .into()),
    }
}

/// Runs a batch of commands, which has no EHLO.
fn process_batch(config: &Config, injector: &Injector, input: impl Read) -> anyhow::Result<SessionTotals> {
    let mut stdio_session = StdioSession::new(config, injector);
    stdio_session.reports_refusals = true;
    stdio_session.handle_input(b"EHLO localhost\r\n");
    stdio_session.run(input, io::sink())
}

/// The totals of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SessionTotals {
    kept: usize,
    refused: usize,
    /// The last refusal was temporary.
    transient: bool,
}

struct StdioSession<'a> {
    injector: &'a Injector,
    session: SmtpSession,
    transaction: Option<(Box<MailRequest>, Vec<RcptRequest>)>,
    body: Vec<u8>,
    reports_refusals: bool,
    totals: SessionTotals,
    line_endings: LineEndings,
    /// A message has started and its end was not seen yet.
    is_in_message: bool,
}

/// The line endings of the input, determined by its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEndings {
    /// No line end seen yet; whether the last byte was a CR.
    Unknown(bool),
    /// CRLF, as in SMTP. Nothing is changed: a bare LF is not a line end.
    Crlf,
    /// LF, as in files. Whether the last byte was a CR.
    Lf(bool),
}

impl<'a> StdioSession<'a> {
    fn new(config: &Config, injector: &'a Injector) -> Self {
        let limits = smtp::SessionLimits {
            commands_max: u32::MAX,
            errors_max: u32::MAX,
            recipients_max: injector.recipients_max,
            ..config.limits.session.clone()
        };
        let machine = smtp::SmtpServerConfig {
            hostname: config.hostname.clone(),
            flavor: MailProtocol::Smtp,
            limits,
            tls: protocol::TlsMode::Never,
            auth: None,
            tolerance: from_config::session_tolerance(config),
        };
        let peer = SmtpPeer { address: None, normalise_bare_newlines: true, may_relay: true };
        let session = SmtpSession::new(Arc::new(machine), peer, now());
        StdioSession {
            injector,
            session,
            transaction: None,
            body: Vec::new(),
            reports_refusals: false,
            totals: SessionTotals::default(),
            line_endings: LineEndings::Unknown(false),
            is_in_message: false,
        }
    }

    /// Runs to the end of the input, or to QUIT.
    fn run(mut self, mut input: impl Read, mut output: impl Write) -> anyhow::Result<SessionTotals> {
        let (mut buffer, mut wire, mut last) = (vec![0; READ_OCTETS], Vec::new(), b'\n');
        loop {
            self.send_output(&mut output)?;
            if self.session.wants_close() {
                return Ok(self.totals);
            }
            let count = input.read(&mut buffer)?;
            if count == 0 {
                if self.is_in_message || self.transaction.is_some() || last != b'\n' {
                    let whole = "the input ends within a message or a command";
                    self.count_refusal("end", None, &Reply::new(554, mail::EnhancedCode(5, 5, 0), whole));
                }
                return Ok(self.totals);
            }
            last = buffer[count - 1];
            wire.clear();
            self.line_endings.convert(&buffer[..count], &mut wire);
            self.handle_input(&wire);
        }
    }

    fn handle_input(&mut self, wire: &[u8]) {
        self.session.handle_input(now(), wire, &mut self.body);
        self.handle_actions();
    }

    fn send_output(&mut self, output: &mut impl Write) -> io::Result<()> {
        let words = self.session.output();
        match words.windows(CHUNKING.len()).position(|window| window == CHUNKING) {
            // BDAT states the size of chunks in bytes, which is wrong once line ends are converted.
            Some(place) if matches!(self.line_endings, LineEndings::Lf(_)) => {
                output.write_all(&words[..place])?;
                output.write_all(&words[place + CHUNKING.len()..])?;
            }
            _ => output.write_all(words)?,
        }
        let count = words.len();
        self.session.handle_sent(count);
        output.flush()
    }

    fn handle_actions(&mut self) {
        while let Some(action) = self.session.poll_action() {
            match action {
                SessionAction::Ask(question) => {
                    let answer = self.answer(question);
                    self.session.handle_driver_answer(now(), answer, &mut self.body);
                }
                SessionAction::Abandon => self.reset_transaction(),
                // Local programs do not log in.
                SessionAction::Login { .. } => {}
                SessionAction::Refused { stage, address, reply } => self.count_refusal(stage, address.as_ref(), &reply),
            }
        }
    }

    fn count_refusal(&mut self, stage: &str, address: Option<&mail::Address>, reply: &Reply) {
        self.is_in_message &= !matches!(stage, "message" | "DATA" | "BDAT");
        self.totals.refused += 1;
        self.totals.transient = reply.is_transient();
        if self.reports_refusals {
            let address = address.map(|address| format!(" <{address}>")).unwrap_or_default();
            print_stderr(format_args!("mailrace: {stage}{address}: {reply}"));
        }
    }

    fn reset_transaction(&mut self) {
        self.transaction = None;
        self.body = Vec::new();
    }

    fn answer(&mut self, question: SessionQuestion) -> SessionAnswer {
        match question {
            SessionQuestion::Mail(request) => {
                self.is_in_message = false;
                self.transaction = Some((request, Vec::new()));
            }
            SessionQuestion::Recipient(request) => {
                if let Some((_, recipients)) = &mut self.transaction {
                    recipients.push(request);
                }
            }
            SessionQuestion::Data => {
                self.is_in_message = true;
                self.body.clear();
            }
            // Not asked in this mode.
            SessionQuestion::Hello(_) | SessionQuestion::UnknownCommand(_) | SessionQuestion::Identity(_) => {}
            SessionQuestion::Message(_) => {
                self.is_in_message = false;
                return SessionAnswer::Done(self.store_message());
            }
            // AUTH is not offered.
            SessionQuestion::Login(_) | SessionQuestion::Keys(_) => {}
        }
        SessionAnswer::Accept
    }

    fn store_message(&mut self) -> Reply {
        let body = std::mem::take(&mut self.body);
        let Some((mail, recipients)) = self.transaction.take() else {
            return Reply::without_enhanced_code(451, "No transaction");
        };
        let drop_file = DropFile {
            sender: mail.sender,
            recipients,
            ret: mail.ret,
            envid: mail.envid,
            body_type: mail.body_type,
            smtputf8: mail.smtputf8,
            content: Vec::new(),
        };
        // The last line of a chunk may lack its line end.
        let body = if body.ends_with(b"\r\n") { body } else { super::text::to_wire(&body) };
        match self.injector.store(drop_file, &MessageHeader::new(&body), now()) {
            Ok(_) => {
                self.totals.kept += 1;
                Reply::new(250, mail::EnhancedCode(2, 0, 0), "Accepted")
            }
            Err(refused) => reply(&refused),
        }
    }
}

fn reply(refused: &InjectError) -> Reply {
    let (code, enhanced) = match refused {
        InjectError::Text(TextError::TooLarge(_)) => (552, mail::EnhancedCode(5, 3, 4)),
        InjectError::TooMany(_) => (452, mail::EnhancedCode(4, 5, 3)),
        InjectError::Envelope(_) => (554, mail::EnhancedCode(5, 5, 0)),
        _ => (451, mail::EnhancedCode(4, 3, 0)),
    };
    let text: String = refused.to_string().chars().filter(|c| c.is_ascii() && !c.is_ascii_control()).collect();
    Reply::new(code, enhanced, text)
}

impl LineEndings {
    /// Appends the input with the line ends that the session expects.
    fn convert(&mut self, mut input: &[u8], wire: &mut Vec<u8>) {
        if let LineEndings::Unknown(after_cr) = *self {
            let Some(place) = input.iter().position(|byte| *byte == b'\n') else {
                *self = LineEndings::Unknown(input.last().map_or(after_cr, |last| *last == b'\r'));
                return wire.extend_from_slice(input);
            };
            let is_crlf = if place == 0 { after_cr } else { input[place - 1] == b'\r' };
            *self = if is_crlf { LineEndings::Crlf } else { LineEndings::Lf(false) };
            wire.extend_from_slice(&input[..place]);
            input = &input[place..];
        }
        match self {
            LineEndings::Lf(after_cr) => *after_cr = push_with_crlf(input, *after_cr, wire),
            _ => wire.extend_from_slice(input),
        }
    }
}

/// Appends lines that end in LF with CRLF. Returns whether the last byte was a CR.
fn push_with_crlf(input: &[u8], mut after_cr: bool, wire: &mut Vec<u8>) -> bool {
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
    use config::DEFAULT;

    /// The replies, the totals, and the messages in the drop folder.
    fn run_session(input: &str) -> (String, SessionTotals, Vec<DropFile>) {
        let mut output = Vec::new();
        let (totals, drop_files) = run_with_drop_folder(|config, injector| {
            StdioSession::new(config, injector).run(input.as_bytes(), &mut output).unwrap()
        });
        (String::from_utf8(output).unwrap(), totals, drop_files)
    }

    fn run_with_drop_folder(work: impl FnOnce(&Config, &Injector) -> SessionTotals) -> (SessionTotals, Vec<DropFile>) {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::parse(DEFAULT, "default", "here.example").unwrap();
        config.data_dir = folder.path().to_owned();
        let drop = intake::drop_folder::drop_folder_path(folder.path());
        std::fs::create_dir(&drop).unwrap();
        let injector = Injector::new(&config, Options::default()).unwrap();
        let totals = work(&config, &injector);
        let mut files: Vec<_> = std::fs::read_dir(drop).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let drop_files = files.iter().map(|file| DropFile::decode(&std::fs::read(file).unwrap(), 1000).unwrap());
        (totals, drop_files.collect())
    }

    #[test]
    fn each_message_of_a_session_is_kept_with_its_envelope() {
        let (output, tally, drop_files) = run_session(
            "EHLO me\r\nMAIL FROM:<a@b> RET=HDRS ENVID=x\r\nRCPT TO:<c@d> NOTIFY=NEVER\r\nRCPT TO:<e@f>\r\nDATA\r\n\
             Subject: x\r\n\r\n..dot\r\n.\r\nMAIL FROM:<>\r\nRCPT TO:<c@d>\r\nDATA\r\n\r\ntwo\r\n.\r\nQUIT\r\n",
        );
        assert_eq!(tally, SessionTotals { kept: 2, refused: 0, transient: false }, "{output}");
        assert!(output.contains("\r\n250 2.0.0 Accepted\r\n") && output.contains("\r\n221 "), "{output}");
        // Names of files from the same instant have no order.
        let (sent, bounced): (Vec<_>, Vec<_>) = drop_files.iter().partition(|file| file.sender.is_some());
        let ([sent], [_]) = (&sent[..], &bounced[..]) else { panic!("{drop_files:?}") };
        let names: Vec<_> = sent.recipients.iter().map(|to| (to.address.as_str(), to.notify.bits())).collect();
        assert_eq!((names, sent.envid.as_deref()), (vec![("c@d", 1), ("e@f", 0)], Some("x")));
        assert!(sent.content.ends_with(b"Subject: x\r\n\r\n.dot\r\n"));
    }

    #[test]
    fn a_file_of_commands_may_end_its_lines_in_lf() {
        let (_, tally, drop_files) =
            run_session("HELO me\nMAIL FROM:<a@b>\nRCPT TO:<c@d>\nDATA\nSubject: x\n\nbody\n.\nRCPT TO:<x@y>\n");
        assert_eq!((tally.kept, tally.refused), (1, 1));
        assert!(drop_files[0].content.ends_with(b"Subject: x\r\n\r\nbody\r\n"));
    }

    #[test]
    fn the_first_line_decides_how_lines_end() {
        let smuggled = "EHLO me\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n\r\nx\n.\nMAIL FROM:<e@f>\r\n.\r\n";
        let (output, tally, drop_files) = run_session(smuggled);
        assert_eq!((tally.kept, tally.refused), (1, 0), "{output}");
        assert!(drop_files[0].content.ends_with(b"x\r\n.\r\nMAIL FROM:<e@f>\r\n"));
        assert!(output.contains("CHUNKING"));
        let (output, tally, drop_files) =
            run_session("EHLO me\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nBDAT 4 LAST\r\n\nx\r\n");
        assert_eq!((tally.kept, tally.refused), (1, 0), "{output}");
        assert!(drop_files[0].content.ends_with(b"\r\nx\r\n"));
        let (output, ..) = run_session("EHLO me\nQUIT\n");
        assert!(!output.contains("CHUNKING") && output.contains("250-DSN\r\n"), "{output}");
    }

    #[test]
    fn an_incomplete_batch_fails() {
        let message = "MAIL FROM:<a@b>\nRCPT TO:<c@d>\nDATA\nSubject: x\n\nx\n.\n";
        for (input, tally) in [
            (message.to_owned(), (1, 0)),
            (message.replace(".\n", ""), (0, 1)),
            (message.replace("x\n.\n", "x"), (0, 1)),
            (format!("{message}MAIL FROM:<a@b>\n"), (1, 1)),
            (format!("{message}QUI"), (1, 1)),
            (format!("{message}RSET\n"), (1, 0)),
        ] {
            let (found, drop_files) =
                run_with_drop_folder(|config, injector| process_batch(config, injector, input.as_bytes()).unwrap());
            assert_eq!(((found.kept, found.refused), drop_files.len()), (tally, tally.0), "{input}");
        }
    }

    #[test]
    fn what_the_server_would_set_aside_is_not_kept() {
        let envelope = "EHLO me\r\nMAIL FROM:<a@b> SMTPUTF8\r\nRCPT TO:<j\u{fc}@d> ORCPT=utf-8;j\u{fc}@d\r\n";
        let (output, tally, drop_files) =
            run_session(&format!("{envelope}DATA\r\nSubject: x\r\n\r\nx\r\n.\r\nQUIT\r\n"));
        assert_eq!((tally.kept, tally.refused), (1, 0), "{output}");
        assert!(drop_files[0].smtputf8 && drop_files[0].recipients[0].orcpt.is_some());
    }

    #[test]
    fn a_message_without_its_end_is_not_kept() {
        let (_, tally, drop_files) = run_session("HELO me\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nhalf");
        assert_eq!((tally.kept, drop_files.len()), (0, 0));
    }
}
