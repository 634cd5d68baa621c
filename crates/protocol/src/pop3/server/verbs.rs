//! One function for each verb, and the `match` that dispatches to them. A verb checks its argument
//! and whether it is allowed now, and then asks the driver or replies; an error is the refusal.

use super::command::{self, Verb};
use super::listing::{ListingCursor, ListingKind};
use super::maildrop::OpenMaildrop;
use super::{PendingQuestion, Pop3Question, Pop3Server, Refusal, Step, replies};
use crate::TlsMode;

impl Pop3Server {
    /// Runs a command line, or refuses it.
    pub(super) fn run_command_line(&mut self, line: &[u8]) {
        let (verb, argument) = command::split(line);
        if let Err(refusal) = self.dispatch(verb, argument) {
            self.refuse(refusal);
        }
    }

    fn dispatch(&mut self, verb: Verb, argument: &[u8]) -> Result<(), Refusal> {
        match verb {
            Verb::Capa => no_argument(argument).map(|()| self.capa()),
            Verb::Lang => self.lang(argument),
            Verb::Quit => no_argument(argument).map(|()| self.quit()),
            Verb::User | Verb::Pass | Verb::Auth | Verb::Stls | Verb::Utf8 if self.maildrop.is_some() => {
                Err(replies::LOGGED_IN_ALREADY)
            }
            Verb::User => self.user_command(argument),
            Verb::Pass => self.pass(argument),
            Verb::Auth => self.auth(argument),
            Verb::Stls => no_argument(argument).and_then(|()| self.stls()),
            Verb::Utf8 => no_argument(argument).map(|()| self.utf8()),
            Verb::Stat => no_argument(argument).and_then(|()| self.stat()),
            Verb::List => self.list(ListingKind::Sizes, argument),
            Verb::Uidl => self.list(ListingKind::Uids, argument),
            Verb::Retr => self.retr(argument),
            Verb::Top => self.top(argument),
            Verb::Dele => self.dele(argument),
            Verb::Noop => no_argument(argument).and_then(|()| self.noop()),
            Verb::Rset => no_argument(argument).and_then(|()| self.rset()),
            Verb::Unknown => Err(replies::UNKNOWN_COMMAND),
        }
    }

    /// RFC 2449 section 5. UTF8 (RFC 6856) is accepted and changes nothing: messages are sent as
    /// they are stored, with or without it.
    fn capa(&mut self) {
        if !self.count_idle_command() {
            return;
        }
        self.send_line(replies::CAPABILITIES);
        self.send_login_capabilities();
        if self.maildrop.is_none() && self.offers_tls() {
            self.send_line("STLS");
        }
        self.send_line(".");
    }

    fn utf8(&mut self) {
        self.send_idle_reply(replies::UTF8_OK);
    }

    fn offers_tls(&self) -> bool {
        matches!(self.config.tls, TlsMode::Offered | TlsMode::Required) && !self.secured
    }

    /// RFC 6856 section 3. The only language is English; a language range is matched by lookup (RFC
    /// 4647 section 3.4), which shortens it.
    fn lang(&mut self, argument: &[u8]) -> Result<(), Refusal> {
        let argument = argument.trim_ascii();
        let begins_with = |tag: &[u8]| argument.get(..tag.len()).is_some_and(|head| head.eq_ignore_ascii_case(tag));
        let reply = match argument {
            b"" => replies::LANGUAGES,
            b"*" => replies::DEFAULT_LANGUAGE,
            _ if argument.eq_ignore_ascii_case(b"i-default") => replies::DEFAULT_LANGUAGE,
            _ if argument.eq_ignore_ascii_case(b"en") || begins_with(b"en-") => replies::ENGLISH,
            _ => return Err(replies::UNKNOWN_LANGUAGE),
        };
        self.send_idle_reply(reply);
        Ok(())
    }

    /// After a login, the maildrop is updated and unlocked before the reply (RFC 1939 section 6).
    fn quit(&mut self) {
        match self.maildrop.take() {
            Some(maildrop) => {
                let deleted = maildrop.deleted();
                self.ask(PendingQuestion::Update, Pop3Question::Update { deleted });
            }
            None => {
                self.send_line(replies::QUIT_OK);
                self.end();
            }
        }
    }

    /// The reply is the last one in clear text (RFC 2595 section 4).
    fn stls(&mut self) -> Result<(), Refusal> {
        if self.secured {
            return Err(replies::SECURED_ALREADY);
        }
        if !self.offers_tls() {
            return Err(replies::TLS_NOT_OFFERED);
        }
        self.step = Step::Securing;
        self.send_line(replies::READY_FOR_TLS);
        Ok(())
    }

    fn stat(&mut self) -> Result<(), Refusal> {
        let maildrop = self.open_maildrop()?;
        let reply = format!("+OK {} {}", maildrop.messages_left(), maildrop.octets_left());
        self.send_idle_reply(&reply);
        Ok(())
    }

    fn list(&mut self, kind: ListingKind, argument: &[u8]) -> Result<(), Refusal> {
        let maildrop = self.open_maildrop()?;
        if argument.trim_ascii().is_empty() {
            let head = format!("+OK {} messages", maildrop.messages_left());
            if self.send_idle_reply(&head) {
                self.step = Step::Listing(ListingCursor { kind, next: 0 });
            }
            return Ok(());
        }
        let message = message_number(maildrop, argument)?;
        let mut line = b"+OK ".to_vec();
        kind.write(maildrop, message, &mut line);
        line.extend_from_slice(b"\r\n");
        self.commands = 0;
        self.output.extend_from_slice(&line);
        Ok(())
    }

    fn retr(&mut self, argument: &[u8]) -> Result<(), Refusal> {
        let message = message_number(self.open_maildrop()?, argument)?;
        self.retrieve(message, None);
        Ok(())
    }

    fn top(&mut self, argument: &[u8]) -> Result<(), Refusal> {
        let maildrop = self.open_maildrop()?;
        let mut words = command::words(argument);
        let (Some(message), Some(lines), None) = (words.next(), words.next(), words.next()) else {
            return Err(replies::TOP_SYNTAX);
        };
        let message = message_number(maildrop, message)?;
        let lines = command::number(lines).ok_or(replies::TOP_SYNTAX)?;
        self.retrieve(message, Some(lines));
        Ok(())
    }

    fn dele(&mut self, argument: &[u8]) -> Result<(), Refusal> {
        let message = message_number(self.open_maildrop()?, argument)?;
        if let Some(maildrop) = &mut self.maildrop {
            maildrop.mark_deleted(message);
        }
        self.commands = 0;
        self.send_line(replies::DELETED);
        Ok(())
    }

    fn noop(&mut self) -> Result<(), Refusal> {
        self.open_maildrop()?;
        self.send_idle_reply(replies::NOOP_OK);
        Ok(())
    }

    fn rset(&mut self) -> Result<(), Refusal> {
        let maildrop = self.maildrop.as_mut().ok_or(replies::LOG_IN_FIRST)?;
        maildrop.reset();
        let reply = format!("+OK {} messages ({} octets)", maildrop.messages_left(), maildrop.octets_left());
        self.send_idle_reply(&reply);
        Ok(())
    }

    fn open_maildrop(&self) -> Result<&OpenMaildrop, Refusal> {
        self.maildrop.as_deref().ok_or(replies::LOG_IN_FIRST)
    }
}

fn no_argument(argument: &[u8]) -> Result<(), Refusal> {
    argument.trim_ascii().is_empty().then_some(()).ok_or(replies::NO_ARGUMENTS)
}

/// The message with this number, which is not marked as deleted, counted from 0.
fn message_number(maildrop: &OpenMaildrop, argument: &[u8]) -> Result<usize, Refusal> {
    let number = command::number(argument.trim_ascii()).ok_or(replies::MESSAGE_SYNTAX)?;
    let message = (number as usize).checked_sub(1).ok_or(replies::NO_SUCH_MESSAGE)?;
    if message >= maildrop.listing().message_count() {
        return Err(replies::NO_SUCH_MESSAGE);
    }
    if maildrop.is_deleted(message) { Err(replies::IS_DELETED) } else { Ok(message) }
}
