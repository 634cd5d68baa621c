//! One function for each verb, and the `match` that dispatches to them. A verb parses its
//! arguments, checks whether it is allowed now, and then asks the driver or replies; an error is
//! the refusal.

use mail::{Address, EnhancedCode, Reply};

use super::command::{self, Chunk, Verb};
use super::parameters::{MailParameters, RcptParameters};
use super::path::{PathError, SmtpPath};
use super::{
    GreetingKind, MailProtocol, MailRequest, PendingQuestion, RcptRequest, SessionQuestion, SmtpServerConfig,
    SmtpSession, State, Transaction, replies, xclient,
};
use crate::TlsMode;

impl SmtpSession {
    /// Runs a command line, or refuses it. `has_more`: bytes after the line have already arrived.
    pub(super) fn run_command_line(&mut self, line: &[u8], has_more: bool) {
        let (verb, arguments) = command::split(line);
        let result = if self.config.tls == TlsMode::Required && !self.secured && !verb.needs_no_tls() {
            self.refuse_without_tls(verb, arguments)
        } else {
            self.dispatch(line, verb, arguments)
        };
        match result {
            Err(_) if verb == Verb::Data && self.breaks_sync(has_more) => self.close_out_of_sync(),
            Err(reply) => self.refuse(verb.stage(), None, reply),
            Ok(()) => {}
        }
    }

    fn dispatch(&mut self, line: &[u8], verb: Verb, arguments: &[u8]) -> Result<(), Reply> {
        match verb {
            Verb::Helo => utf8_argument(arguments).and_then(|name| self.helo_or_ehlo(name, GreetingKind::Helo)),
            Verb::Ehlo => utf8_argument(arguments).and_then(|name| self.helo_or_ehlo(name, GreetingKind::Extended)),
            Verb::Lhlo => utf8_argument(arguments).and_then(|name| self.lhlo(name)),
            Verb::Mail => utf8_argument(arguments).and_then(|request| self.mail(request)),
            Verb::Rcpt => utf8_argument(arguments).and_then(|request| self.rcpt(request)),
            Verb::Data => no_arguments(arguments).and_then(|()| self.data()),
            Verb::Bdat => {
                self.bdat(arguments);
                Ok(())
            }
            Verb::Rset => no_arguments(arguments).and_then(|()| self.rset()),
            Verb::Noop => self.noop(),
            Verb::Starttls => self.starttls(arguments),
            Verb::Auth => self.auth(arguments),
            Verb::Xclient => utf8_argument(arguments).and_then(|attributes| self.xclient(attributes)),
            Verb::Quit => no_arguments(arguments).and_then(|()| self.quit()),
            Verb::Help => self.help(),
            Verb::Vrfy => self.vrfy(arguments),
            Verb::Unimplemented => self.unknown_command(line, replies::NOT_IMPLEMENTED),
            Verb::Unknown => self.unknown_command(line, replies::UNKNOWN_COMMAND),
        }
    }

    fn unknown_command(&mut self, line: &[u8], reply: Reply) -> Result<(), Reply> {
        if !self.checks_unknown_commands {
            return Err(reply);
        }
        self.ask(PendingQuestion::UnknownCommand(reply), SessionQuestion::UnknownCommand(line.into()));
        Ok(())
    }

    /// The bytes of a chunk follow in any case, and must not be taken for commands.
    fn refuse_without_tls(&mut self, verb: Verb, arguments: &[u8]) -> Result<(), Reply> {
        if verb != Verb::Bdat {
            return Err(replies::MUST_SECURE);
        }
        match Chunk::parse(arguments) {
            Some(chunk) => self.discard_chunk(chunk, replies::MUST_SECURE, 1),
            None => self.close(verb.stage(), replies::BDAT_SYNTAX),
        }
        Ok(())
    }

    fn helo_or_ehlo(&mut self, name: &str, greeting: GreetingKind) -> Result<(), Reply> {
        match self.config.flavor {
            MailProtocol::Smtp => self.greet(name, greeting),
            MailProtocol::Lmtp => Err(replies::SAY_LHLO),
        }
    }

    fn lhlo(&mut self, name: &str) -> Result<(), Reply> {
        match self.config.flavor {
            MailProtocol::Smtp => Err(replies::SAY_EHLO),
            MailProtocol::Lmtp => self.greet(name, GreetingKind::Extended),
        }
    }

    /// A second greeting acts like RSET (RFC 5321 section 4.1.4).
    fn greet(&mut self, name: &str, greeting: GreetingKind) -> Result<(), Reply> {
        let name: Box<str> = command::parse_host(name).ok_or(replies::BAD_HOST)?.into();
        let name = self.xclient_helo.clone().unwrap_or(name);
        if self.checks_hello {
            self.ask(PendingQuestion::Hello { name: name.clone(), greeting }, SessionQuestion::Hello(name));
        } else {
            self.accept_greeting(name, greeting);
        }
        Ok(())
    }

    /// The session changes only here, after the greeting is accepted (RFC 5321 section 4.1.4).
    pub(super) fn accept_greeting(&mut self, name: Box<str>, greeting: GreetingKind) {
        self.helo = name;
        self.abandon();
        self.greeting = Some(greeting);
        let SmtpServerConfig { hostname, limits, .. } = &*self.config;
        let reply = match greeting {
            GreetingKind::Helo => format!("250 {hostname}\r\n"),
            GreetingKind::Extended => format!(
                "250-{hostname}\r\n250-PIPELINING\r\n250-SIZE {}\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250-CHUNKING\r\n\
                 250-ENHANCEDSTATUSCODES\r\n250-DSN\r\n{}{}{}250-LIMITS RCPTMAX={}\r\n250 HELP\r\n",
                limits.message_octets_max,
                if self.offers_tls() { "250-STARTTLS\r\n" } else { "" },
                self.auth_capability().map(|auth| format!("250-{auth}\r\n")).unwrap_or_default(),
                if self.trusts_xclient { xclient::KEYWORD } else { "" },
                limits.recipients_max
            ),
        };
        self.send_idle_reply(reply.as_bytes());
    }

    /// The verb of the greeting, for the log.
    pub(super) fn greeting_stage(&self, greeting: GreetingKind) -> &'static str {
        match (self.config.flavor, greeting) {
            (MailProtocol::Lmtp, _) => Verb::Lhlo.stage(),
            (MailProtocol::Smtp, GreetingKind::Helo) => Verb::Helo.stage(),
            (MailProtocol::Smtp, GreetingKind::Extended) => Verb::Ehlo.stage(),
        }
    }

    fn offers_tls(&self) -> bool {
        matches!(self.config.tls, TlsMode::Offered | TlsMode::Required) && !self.secured
    }

    /// The 220 is the last reply in clear text (RFC 3207 section 4). Counts as a command without
    /// progress.
    fn starttls(&mut self, arguments: &[u8]) -> Result<(), Reply> {
        if self.config.tls == TlsMode::Never {
            return Err(replies::NOT_IMPLEMENTED);
        }
        no_arguments(arguments)?;
        if self.secured {
            return Err(replies::SECURED_ALREADY);
        }
        if self.transaction.is_some() {
            return Err(replies::NOT_IN_TRANSACTION);
        }
        self.state = State::Securing;
        self.send_idle_reply(replies::READY_FOR_TLS);
        Ok(())
    }

    fn mail(&mut self, arguments: &str) -> Result<(), Reply> {
        let path = command::after_keyword(arguments, "FROM:").ok_or(replies::MAIL_SYNTAX)?;
        let grammar = self.grammar();
        let bad = |error| path_error_reply(error, EnhancedCode(5, 1, 7), replies::MAIL_SYNTAX);
        let (path, rest) = SmtpPath::parse(path, grammar).map_err(bad)?;
        let sender = match path {
            SmtpPath::Null => None,
            SmtpPath::Postmaster => Some(postmaster(grammar.origin.ok_or(replies::MAIL_SYNTAX)?)?),
            SmtpPath::Address(address) => Some(address),
        };
        let MailParameters { size, body_type, smtputf8, ret, envid, auth } = MailParameters::parse(rest)?;
        if auth.is_some() && self.config.auth.is_none() {
            return Err(replies::UNKNOWN_PARAMETER);
        }
        let smtputf8 = smtputf8.is_some();
        if self.greeting.is_none() {
            return Err(replies::GREET_FIRST);
        }
        if self.requires_login() {
            return Err(replies::AUTHENTICATION_REQUIRED);
        }
        if self.transaction.is_some() {
            return Err(replies::NESTED_MAIL);
        }
        if size.is_some_and(|size| size > self.config.limits.message_octets_max) {
            return Err(replies::MESSAGE_TOO_BIG);
        }
        if !smtputf8 && sender.as_ref().is_some_and(|sender| !sender.is_ascii()) {
            return Err(replies::NEEDS_SMTPUTF8);
        }
        let body_type = body_type.unwrap_or_default();
        let asked = PendingQuestion::Mail { sender: sender.clone(), smtputf8 };
        self.ask(
            asked,
            SessionQuestion::Mail(Box::new(MailRequest { sender, size, body_type, smtputf8, ret, envid, auth })),
        );
        Ok(())
    }

    fn rcpt(&mut self, arguments: &str) -> Result<(), Reply> {
        let path = command::after_keyword(arguments, "TO:").ok_or(replies::RCPT_SYNTAX)?;
        let bad = |error| path_error_reply(error, EnhancedCode(5, 1, 3), replies::RCPT_SYNTAX);
        let (path, rest) = SmtpPath::parse(path, self.grammar()).map_err(bad)?;
        let address = match path {
            SmtpPath::Null => return Err(replies::RCPT_SYNTAX),
            SmtpPath::Postmaster => postmaster(&self.config.hostname)?,
            SmtpPath::Address(address) => address,
        };
        let RcptParameters { notify, orcpt } = RcptParameters::parse(rest)?;
        let transaction = self.open_transaction()?;
        if !transaction.smtputf8 && !address.is_ascii() {
            return Err(replies::NEEDS_SMTPUTF8);
        }
        if transaction.recipients >= self.config.limits.recipients_max {
            self.refuse(Verb::Rcpt.stage(), Some(address), replies::TOO_MANY_RECIPIENTS);
            return Ok(());
        }
        let asked = PendingQuestion::Recipient(address.clone());
        let notify = notify.unwrap_or_default();
        self.ask(asked, SessionQuestion::Recipient(RcptRequest { address, notify, orcpt }));
        Ok(())
    }

    fn data(&mut self) -> Result<(), Reply> {
        if self.open_transaction()?.recipients == 0 {
            return Err(replies::NEED_RCPT);
        }
        self.ask(PendingQuestion::Data, SessionQuestion::Data);
        Ok(())
    }

    /// The bytes of the chunk follow whatever the reply, and must not be taken for commands (RFC
    /// 3030 section 2). If their number is unknown, the session ends.
    fn bdat(&mut self, arguments: &[u8]) {
        let Some(chunk) = Chunk::parse(arguments) else {
            return self.close(Verb::Bdat.stage(), replies::BDAT_SYNTAX);
        };
        let octets_max = self.config.limits.message_octets_max;
        match &mut self.transaction {
            None => self.discard_chunk(chunk, replies::NEED_MAIL, 1),
            Some(transaction) if transaction.recipients == 0 => self.discard_chunk(chunk, replies::NEED_RCPT, 1),
            Some(transaction) if transaction.content.octets().saturating_add(chunk.octets) > octets_max => {
                self.refuse_chunk_data(chunk, replies::MESSAGE_TOO_BIG);
            }
            Some(transaction) if transaction.chunks_begun && chunk.is_idle() => self.send_idle_reply(replies::CHUNK_OK),
            Some(transaction) if transaction.chunks_begun => self.state = State::Chunk(chunk),
            Some(_) => self.ask(PendingQuestion::FirstChunk(chunk), SessionQuestion::Data),
        }
    }

    fn rset(&mut self) -> Result<(), Reply> {
        self.abandon();
        self.send_idle_reply(replies::RSET_OK);
        Ok(())
    }

    fn noop(&mut self) -> Result<(), Reply> {
        self.send_idle_reply(replies::NOOP_OK);
        Ok(())
    }

    fn help(&mut self) -> Result<(), Reply> {
        self.send_idle_reply(match self.config.flavor {
            MailProtocol::Smtp => replies::HELP_SMTP,
            MailProtocol::Lmtp => replies::HELP_LMTP,
        });
        Ok(())
    }

    fn vrfy(&mut self, arguments: &[u8]) -> Result<(), Reply> {
        if arguments.is_empty() {
            return Err(replies::NEEDS_ARGUMENT);
        }
        self.send_idle_reply(replies::VRFY_OK);
        Ok(())
    }

    fn quit(&mut self) -> Result<(), Reply> {
        self.abandon();
        self.send_reply(replies::QUIT_OK);
        self.state = State::Closed;
        Ok(())
    }

    /// The open transaction, if it still takes recipients.
    fn open_transaction(&self) -> Result<&Transaction, Reply> {
        match &self.transaction {
            None if self.greeting.is_none() => Err(replies::GREET_FIRST),
            None => Err(replies::NEED_MAIL),
            Some(transaction) if transaction.chunks_begun => Err(replies::CHUNKS_BEGUN),
            Some(transaction) => Ok(transaction),
        }
    }
}

fn postmaster(domain: &str) -> Result<Address, Reply> {
    Address::new("postmaster", domain).map_err(|_| replies::RCPT_SYNTAX)
}

fn utf8_argument(arguments: &[u8]) -> Result<&str, Reply> {
    str::from_utf8(arguments).map_err(|_| replies::NOT_UTF8)
}

fn no_arguments(arguments: &[u8]) -> Result<(), Reply> {
    arguments.is_empty().then_some(()).ok_or(replies::NO_ARGUMENTS)
}

fn path_error_reply(error: PathError, enhanced: EnhancedCode, syntax: Reply) -> Reply {
    match error {
        PathError::Brackets => syntax,
        PathError::Address(error) => Reply::new(501, enhanced, error.to_string()),
    }
}
