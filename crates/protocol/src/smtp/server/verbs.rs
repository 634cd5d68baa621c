//! One function for each verb, and the `match` that dispatches to them. A verb parses its
//! arguments, checks whether it is allowed now, and then asks the driver or replies; an error is
//! the refusal.

use mail::{Address, Enhanced, Reply};

use super::command::{self, Chunk, Verb};
use super::parameters::{MailParameters, RcptParameters};
use super::path::{Path, PathError};
use super::{
    Asked, Config, Flavor, Greeting, MailRequest, Question, RcptRequest, Session, State, Tls, Transaction, replies,
    xclient,
};

impl Session {
    /// Runs a command line, or refuses it. `has_more`: bytes after the line have already arrived.
    pub(super) fn obey(&mut self, line: &[u8], has_more: bool) {
        let (verb, arguments) = command::split(line);
        let obeyed = if self.config.tls == Tls::Required && !self.secured && !verb.needs_no_tls() {
            self.demand_tls(verb, arguments)
        } else {
            self.obey_verb(verb, arguments)
        };
        match obeyed {
            Err(_) if verb == Verb::Data && self.breaks_sync(has_more) => self.close_out_of_sync(),
            Err(reply) => self.refuse(verb.stage(), None, reply),
            Ok(()) => {}
        }
    }

    fn obey_verb(&mut self, verb: Verb, arguments: &[u8]) -> Result<(), Reply> {
        match verb {
            Verb::Helo => text(arguments).and_then(|name| self.helo_or_ehlo(name, Greeting::Helo)),
            Verb::Ehlo => text(arguments).and_then(|name| self.helo_or_ehlo(name, Greeting::Extended)),
            Verb::Lhlo => text(arguments).and_then(|name| self.lhlo(name)),
            Verb::Mail => text(arguments).and_then(|request| self.mail(request)),
            Verb::Rcpt => text(arguments).and_then(|request| self.rcpt(request)),
            Verb::Data => nothing(arguments).and_then(|()| self.data()),
            Verb::Bdat => {
                self.bdat(arguments);
                Ok(())
            }
            Verb::Rset => nothing(arguments).and_then(|()| self.rset()),
            Verb::Noop => self.noop(),
            Verb::Starttls => self.starttls(arguments),
            Verb::Auth => self.auth(arguments),
            Verb::Xclient => text(arguments).and_then(|attributes| self.xclient(attributes)),
            Verb::Quit => nothing(arguments).and_then(|()| self.quit()),
            Verb::Help => self.help(),
            Verb::Vrfy => self.vrfy(arguments),
            Verb::Unimplemented => Err(replies::NOT_IMPLEMENTED),
            Verb::Unknown => Err(replies::UNKNOWN_COMMAND),
        }
    }

    /// The bytes of a chunk follow in any case, and must not be taken for commands.
    fn demand_tls(&mut self, verb: Verb, arguments: &[u8]) -> Result<(), Reply> {
        if verb != Verb::Bdat {
            return Err(replies::MUST_SECURE);
        }
        match Chunk::parse(arguments) {
            Some(chunk) => self.swallow_later(chunk, replies::MUST_SECURE, 1),
            None => self.close(verb.stage(), replies::BDAT_SYNTAX),
        }
        Ok(())
    }

    fn helo_or_ehlo(&mut self, name: &str, greeting: Greeting) -> Result<(), Reply> {
        match self.config.flavor {
            Flavor::Smtp => self.greet(name, greeting),
            Flavor::Lmtp => Err(replies::SAY_LHLO),
        }
    }

    fn lhlo(&mut self, name: &str) -> Result<(), Reply> {
        match self.config.flavor {
            Flavor::Smtp => Err(replies::SAY_EHLO),
            Flavor::Lmtp => self.greet(name, Greeting::Extended),
        }
    }

    /// A second greeting acts like RSET (RFC 5321 section 4.1.4).
    fn greet(&mut self, name: &str, greeting: Greeting) -> Result<(), Reply> {
        let name: Box<str> = command::host(name).ok_or(replies::BAD_HOST)?.into();
        let name = self.named.clone().unwrap_or(name);
        if self.asks_hello {
            self.ask(Asked::Hello { name: name.clone(), greeting }, Question::Hello(name));
        } else {
            self.be_greeted(name, greeting);
        }
        Ok(())
    }

    /// The session changes only here, after the greeting is accepted (RFC 5321 section 4.1.4).
    pub(super) fn be_greeted(&mut self, name: Box<str>, greeting: Greeting) {
        self.helo = name;
        self.abandon();
        self.greeting = Some(greeting);
        let Config { hostname, limits, .. } = &*self.config;
        let reply = match greeting {
            Greeting::Helo => format!("250 {hostname}\r\n"),
            Greeting::Extended => format!(
                "250-{hostname}\r\n250-PIPELINING\r\n250-SIZE {}\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250-CHUNKING\r\n\
                 250-ENHANCEDSTATUSCODES\r\n250-DSN\r\n{}{}{}250-LIMITS RCPTMAX={}\r\n250 HELP\r\n",
                limits.message_octets_max,
                if self.offers_tls() { "250-STARTTLS\r\n" } else { "" },
                self.offered_mechanisms().map(|auth| format!("250-{auth}\r\n")).unwrap_or_default(),
                if self.trusts_xclient { xclient::KEYWORD } else { "" },
                limits.recipients_max
            ),
        };
        self.say_idle(reply.as_bytes());
    }

    /// The verb of the greeting, for the log.
    pub(super) fn stage_of(&self, greeting: Greeting) -> &'static str {
        match (self.config.flavor, greeting) {
            (Flavor::Lmtp, _) => Verb::Lhlo.stage(),
            (Flavor::Smtp, Greeting::Helo) => Verb::Helo.stage(),
            (Flavor::Smtp, Greeting::Extended) => Verb::Ehlo.stage(),
        }
    }

    fn offers_tls(&self) -> bool {
        matches!(self.config.tls, Tls::Offered | Tls::Required) && !self.secured
    }

    /// The 220 is the last reply in clear text (RFC 3207 section 4). Counts as a command without
    /// progress.
    fn starttls(&mut self, arguments: &[u8]) -> Result<(), Reply> {
        if self.config.tls == Tls::Never {
            return Err(replies::NOT_IMPLEMENTED);
        }
        nothing(arguments)?;
        if self.secured {
            return Err(replies::SECURED_ALREADY);
        }
        if self.transaction.is_some() {
            return Err(replies::NOT_IN_TRANSACTION);
        }
        self.state = State::Securing;
        self.say_idle(replies::READY_FOR_TLS);
        Ok(())
    }

    fn mail(&mut self, arguments: &str) -> Result<(), Reply> {
        let path = command::after_keyword(arguments, "FROM:").ok_or(replies::MAIL_SYNTAX)?;
        let grammar = self.grammar();
        let bad = |error| bad_path(error, Enhanced(5, 1, 7), replies::MAIL_SYNTAX);
        let (path, rest) = Path::parse(path, grammar).map_err(bad)?;
        let sender = match path {
            Path::Null => None,
            Path::Postmaster => Some(postmaster(grammar.origin.ok_or(replies::MAIL_SYNTAX)?)?),
            Path::Address(address) => Some(address),
        };
        let MailParameters { size, body_type, smtputf8, ret, envid, auth } = MailParameters::parse(rest)?;
        if auth.is_some() && self.config.auth.is_none() {
            return Err(replies::UNKNOWN_PARAMETER);
        }
        let smtputf8 = smtputf8.is_some();
        if self.greeting.is_none() {
            return Err(replies::GREET_FIRST);
        }
        if self.lacks_login() {
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
        let asked = Asked::Mail { sender: sender.clone(), smtputf8 };
        self.ask(asked, Question::Mail(MailRequest { sender, size, body_type, smtputf8, ret, envid }));
        Ok(())
    }

    fn rcpt(&mut self, arguments: &str) -> Result<(), Reply> {
        let path = command::after_keyword(arguments, "TO:").ok_or(replies::RCPT_SYNTAX)?;
        let bad = |error| bad_path(error, Enhanced(5, 1, 3), replies::RCPT_SYNTAX);
        let (path, rest) = Path::parse(path, self.grammar()).map_err(bad)?;
        let address = match path {
            Path::Null => return Err(replies::RCPT_SYNTAX),
            Path::Postmaster => postmaster(&self.config.hostname)?,
            Path::Address(address) => address,
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
        let asked = Asked::Recipient(address.clone());
        let notify = notify.unwrap_or_default();
        self.ask(asked, Question::Recipient(RcptRequest { address, notify, orcpt }));
        Ok(())
    }

    fn data(&mut self) -> Result<(), Reply> {
        if self.open_transaction()?.recipients == 0 {
            return Err(replies::NEED_RCPT);
        }
        self.ask(Asked::Data, Question::Data);
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
            None => self.swallow_later(chunk, replies::NEED_MAIL, 1),
            Some(transaction) if transaction.recipients == 0 => self.swallow_later(chunk, replies::NEED_RCPT, 1),
            Some(transaction) if transaction.content.octets().saturating_add(chunk.octets) > octets_max => {
                self.refuse_chunk(chunk, replies::MESSAGE_TOO_BIG);
            }
            Some(transaction) if transaction.chunks_begun && chunk.is_idle() => self.say_idle(replies::CHUNK_OK),
            Some(transaction) if transaction.chunks_begun => self.state = State::Chunk(chunk),
            Some(_) => self.ask(Asked::FirstChunk(chunk), Question::Data),
        }
    }

    fn rset(&mut self) -> Result<(), Reply> {
        self.abandon();
        self.say_idle(replies::RSET_OK);
        Ok(())
    }

    fn noop(&mut self) -> Result<(), Reply> {
        self.say_idle(replies::NOOP_OK);
        Ok(())
    }

    fn help(&mut self) -> Result<(), Reply> {
        self.say_idle(match self.config.flavor {
            Flavor::Smtp => replies::HELP_SMTP,
            Flavor::Lmtp => replies::HELP_LMTP,
        });
        Ok(())
    }

    fn vrfy(&mut self, arguments: &[u8]) -> Result<(), Reply> {
        if arguments.is_empty() {
            return Err(replies::NEEDS_ARGUMENT);
        }
        self.say_idle(replies::VRFY_OK);
        Ok(())
    }

    fn quit(&mut self) -> Result<(), Reply> {
        self.abandon();
        self.say(replies::QUIT_OK);
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

fn text(arguments: &[u8]) -> Result<&str, Reply> {
    str::from_utf8(arguments).map_err(|_| replies::NOT_UTF8)
}

fn nothing(arguments: &[u8]) -> Result<(), Reply> {
    arguments.is_empty().then_some(()).ok_or(replies::NO_ARGUMENTS)
}

fn bad_path(error: PathError, enhanced: Enhanced, syntax: Reply) -> Reply {
    match error {
        PathError::Brackets => syntax,
        PathError::Address(error) => Reply::new(501, enhanced, error.to_string()),
    }
}
