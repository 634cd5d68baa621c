//! A message to send: its envelope, the properties of its content, and the resulting commands.

use std::borrow::Cow;
use std::io::Write as _;

use mail::{Address, BodyType, DsnNotify, DsnReturn};
use memchr::memmem;

use super::{BeginTransactionError, CommandArgument, Extensions, ForwardedClient};

/// One message to some recipients at one server. The client keeps none of it once it has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The reverse-path; None is the null sender `<>`.
    pub sender: Option<Address>,
    /// The recipients.
    pub recipients: Vec<TransactionRecipient>,
    /// The properties of the message content.
    pub content: ContentSize,
    /// BODY= (RFC 6152). An 8-bit message declared as 7BIT is sent unchanged.
    pub body_type: BodyType,
    /// Requests SMTPUTF8 (RFC 6531).
    pub smtputf8: bool,
    /// RET= (RFC 3461). All DSN parameters are omitted if the server lacks DSN.
    pub ret: Option<DsnReturn>,
    /// ENVID= (RFC 3461), in xtext.
    pub envid: Option<CommandArgument>,
    /// The client to tell of by XFORWARD, if the server offers it.
    pub client: Option<Box<ForwardedClient>>,
}

/// A recipient of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionRecipient {
    /// The forward-path.
    pub address: Address,
    /// NOTIFY= (RFC 3461).
    pub notify: DsnNotify,
    /// ORCPT= (RFC 3461): a type, a semicolon, xtext. A non-ASCII one (RFC 6533 section 3) is
    /// omitted unless the transaction requests SMTPUTF8: an incomplete notification is better than
    /// no message.
    pub orcpt: Option<CommandArgument>,
}

impl From<Address> for TransactionRecipient {
    fn from(address: Address) -> Self {
        TransactionRecipient { address, notify: DsnNotify::UNSET, orcpt: None }
    }
}

/// The properties of a message; the driver has the bytes. The driver must ensure that lines end in
/// CRLF, and that there is no bare CR or LF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentSize {
    /// Octets of the message, before dot-stuffing.
    pub octets: u64,
    /// Lines that begin with a dot. DATA sends that many more octets.
    pub dot_lines: u64,
    /// Whether the last two octets are CRLF; true for an empty message.
    pub ends_in_crlf: bool,
}

/// The form in which a message is sent. Both are the same without lines that begin with a dot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DotStuffing {
    /// Unchanged, for BDAT.
    #[default]
    Plain,
    /// Dot-stuffed (RFC 5321 section 4.5.2), for DATA.
    Stuffed,
}

impl ContentSize {
    /// Determines the properties of a message.
    pub fn from_message(message: &[u8]) -> Self {
        let dot_lines = dot_lines(message).count() as u64;
        let ends_in_crlf = message.is_empty() || message.ends_with(b"\r\n");
        ContentSize { octets: message.len() as u64, dot_lines, ends_in_crlf }
    }

    /// The number of octets to send in this form.
    pub fn encoded_len(&self, form: DotStuffing) -> u64 {
        match form {
            DotStuffing::Plain => self.octets,
            DotStuffing::Stuffed => self.octets + self.dot_lines,
        }
    }

    /// The size to declare, with the CRLF that DATA would have to add (RFC 1870 section 3).
    fn declared_octets(&self) -> u64 {
        self.octets + if self.ends_in_crlf { 0 } else { 2 }
    }
}

/// Dot-stuffs a message for DATA ([`DotStuffing::Stuffed`]).
pub fn stuff_dots(message: &[u8]) -> Cow<'_, [u8]> {
    let mut stuffed = Vec::new();
    let mut done = 0;
    for place in dot_lines(message) {
        stuffed.extend_from_slice(&message[done..place]);
        stuffed.push(b'.');
        done = place;
    }
    if done == 0 && stuffed.is_empty() {
        return Cow::Borrowed(message);
    }
    stuffed.extend_from_slice(&message[done..]);
    Cow::Owned(stuffed)
}

/// The positions of the dots that begin a line.
fn dot_lines(message: &[u8]) -> impl Iterator<Item = usize> {
    let first = message.starts_with(b".").then_some(0);
    first.into_iter().chain(memmem::find_iter(message, b"\r\n.").map(|place| place + 2))
}

impl Transaction {
    /// A transaction without any extensions.
    pub fn new(sender: Option<Address>, recipients: impl IntoIterator<Item = Address>, content: ContentSize) -> Self {
        Transaction {
            sender,
            recipients: recipients.into_iter().map(TransactionRecipient::from).collect(),
            content,
            body_type: BodyType::SevenBit,
            smtputf8: false,
            ret: None,
            envid: None,
            client: None,
        }
    }

    /// Whether a server with these extensions can accept it.
    pub(super) fn check(&self, extensions: &Extensions) -> Result<(), BeginTransactionError> {
        let octets_max = extensions.size.filter(|size| *size > 0).unwrap_or(u64::MAX);
        if self.recipients.is_empty() {
            Err(BeginTransactionError::NoRecipients)
        } else if self.content.declared_octets() > octets_max {
            Err(BeginTransactionError::TooBig { octets_max })
        } else if if self.smtputf8 { !extensions.smtputf8 } else { !self.is_ascii() } {
            Err(BeginTransactionError::Smtputf8)
        } else if self.body_type == BodyType::EightBitMime && !extensions.eight_bit_mime {
            Err(BeginTransactionError::EightBit)
        } else {
            Ok(())
        }
    }

    fn is_ascii(&self) -> bool {
        self.sender.as_ref().is_none_or(Address::is_ascii)
            && self.envid.as_ref().is_none_or(|envid| envid.as_str().is_ascii())
            && self.recipients.iter().all(|recipient| recipient.address.is_ascii())
    }

    /// The lines of MAIL and each RCPT. Every text in them is an [`Address`] or a
    /// [`CommandArgument`], so none can end a line early.
    pub(super) fn envelope_lines(&self, extensions: &Extensions) -> Vec<u8> {
        const LINE_OCTETS_EXPECTED: usize = 64;
        let mut lines = Vec::with_capacity(LINE_OCTETS_EXPECTED * (2 + self.recipients.len()));
        self.write_mail(extensions, &mut lines);
        for recipient in &self.recipients {
            recipient.write_rcpt(extensions, self.smtputf8, &mut lines);
        }
        lines
    }

    fn write_mail(&self, extensions: &Extensions, out: &mut Vec<u8>) {
        let sender = self.sender.as_ref().map_or("", Address::as_str);
        write_all(out, &["MAIL FROM:<", sender, ">"]);
        if extensions.size.is_some() {
            // Writing to a Vec cannot fail.
            let _ = write!(out, " SIZE={}", self.content.declared_octets());
        }
        if self.body_type == BodyType::EightBitMime {
            write_all(out, &[" BODY=8BITMIME"]);
        }
        if self.smtputf8 {
            write_all(out, &[" SMTPUTF8"]);
        }
        if extensions.dsn {
            match self.ret {
                Some(DsnReturn::Full) => write_all(out, &[" RET=FULL"]),
                Some(DsnReturn::Headers) => write_all(out, &[" RET=HDRS"]),
                None => {}
            }
            if let Some(envid) = &self.envid {
                write_all(out, &[" ENVID=", envid.as_str()]);
            }
        }
        write_all(out, &["\r\n"]);
    }
}

impl TransactionRecipient {
    fn write_rcpt(&self, extensions: &Extensions, smtputf8: bool, out: &mut Vec<u8>) {
        write_all(out, &["RCPT TO:<", self.address.as_str(), ">"]);
        if extensions.dsn {
            self.write_notify(out);
            if let Some(orcpt) = self.orcpt.as_ref().filter(|orcpt| smtputf8 || orcpt.as_str().is_ascii()) {
                write_all(out, &[" ORCPT=", orcpt.as_str()]);
            }
        }
        write_all(out, &["\r\n"]);
    }

    /// RFC 3461 section 4.1: NEVER stands alone.
    fn write_notify(&self, out: &mut Vec<u8>) {
        if self.notify.contains(DsnNotify::NEVER) {
            return write_all(out, &[" NOTIFY=NEVER"]);
        }
        let mut mark = " NOTIFY=";
        for (wish, name) in
            [(DsnNotify::SUCCESS, "SUCCESS"), (DsnNotify::FAILURE, "FAILURE"), (DsnNotify::DELAY, "DELAY")]
        {
            if self.notify.contains(wish) {
                write_all(out, &[mark, name]);
                mark = ",";
            }
        }
    }
}

fn write_all(out: &mut Vec<u8>, texts: &[&str]) {
    for text in texts {
        out.extend_from_slice(text.as_bytes());
    }
}
