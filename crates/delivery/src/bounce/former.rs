//! The entry points as they were before there were reports of delays and successes, for a caller that has not moved
//! to [`super::Report`] yet. The two share nothing, so that this file can go as it is.

use std::fmt;

use mail::{Address, BodyFlags, Enhanced, Envelope, QueueId, Recipient, Reply, Return};

use super::letter::ORIGINAL_OCTETS_MAX;

/// Our own lines are wrapped here (RFC 5322 section 2.1.1 recommends 78).
const LINE_OCTETS: usize = 76;
/// A word that is longer is cut: RFC 5322 section 2.1.1 allows 998 octets in a line.
const WORD_OCTETS_MAX: usize = 900;
/// What is repeated of one text that a stranger wrote.
const TEXT_CHARS_MAX: usize = 2000;

/// What is to be told to whom. It exists only where there is somebody to tell, and something.
#[derive(Debug)]
pub struct Undelivered<'a> {
    sender: &'a Address,
    envelope: &'a Envelope,
    failures: Vec<Failure<'a>>,
}

/// A recipient that does not get the message, whose sender wants to know.
#[derive(Debug)]
struct Failure<'a> {
    ordinal: u32,
    recipient: &'a Recipient,
    reason: &'a Reply,
}

/// What a bounce is made of.
#[derive(Debug)]
pub struct Notice<'a> {
    /// Our name, as the reporting MTA.
    pub hostname: &'a str,
    /// The bounce's own name.
    pub id: QueueId,
    /// The bounce's date, as RFC 5322 section 3.3 has it.
    pub date: &'a str,
    /// The name of the message that failed.
    pub original_id: QueueId,
    /// When we accepted that message, in the form of `date`.
    pub arrival_date: &'a str,
    /// Who is told what.
    pub undelivered: &'a Undelivered<'a>,
    /// How much of the message comes back: what [`Undelivered::portion`] said.
    pub portion: Return,
    /// The message, or as much of it as holds its header.
    pub original: &'a [u8],
}

/// A bounce, to be kept like any message and sent to [`Undelivered::sender`] with a null reverse-path.
#[derive(Debug, PartialEq, Eq)]
pub struct Bounce {
    /// Header and body.
    pub content: Vec<u8>,
    /// What is known of `content`. With `eight_bit` the envelope says BODY=8BITMIME.
    pub flags: BodyFlags,
    /// It has headers or a report in UTF-8: the envelope says SMTPUTF8.
    pub smtputf8: bool,
}

impl<'a> Undelivered<'a> {
    /// Sorts out who is told: nobody where the sender is null (RFC 5321 section 4.5.5), and nothing of recipients
    /// with NOTIFY=NEVER or without FAILURE (RFC 3461 section 4.1). `failed` has ordinals of the envelope.
    pub fn new(envelope: &'a Envelope, failed: impl IntoIterator<Item = (u32, &'a Reply)>) -> Option<Self> {
        let sender = envelope.sender.as_ref()?;
        let failures: Vec<_> = failed
            .into_iter()
            .filter_map(|(ordinal, reason)| {
                let recipient = envelope.recipients.get(ordinal as usize)?;
                recipient.notify.wants_failure().then_some(Failure { ordinal, recipient, reason })
            })
            .collect();
        (!failures.is_empty()).then_some(Undelivered { sender, envelope, failures })
    }

    /// Who gets the bounce.
    pub fn sender(&self) -> &'a Address {
        self.sender
    }

    /// Whether the bounce tells of this recipient.
    pub fn tells_of(&self, ordinal: u32) -> bool {
        self.failures.iter().any(|failure| failure.ordinal == ordinal)
    }

    /// How much of a message of so many octets comes back: all, unless RET=HDRS was asked for or it is too large.
    pub fn portion(&self, octets: u64) -> Return {
        match self.envelope.ret {
            Some(Return::Headers) => Return::Headers,
            _ if octets > ORIGINAL_OCTETS_MAX => Return::Headers,
            _ => Return::Full,
        }
    }

    /// Whether an address that the report names is not ASCII.
    fn is_international(&self) -> bool {
        let recipients = self.failures.iter().map(|failure| failure.recipient);
        let is_plain = |recipient: &Recipient| {
            recipient.address.is_ascii()
                && recipient.original.as_ref().is_none_or(Address::is_ascii)
                && recipient.orcpt.as_deref().is_none_or(str::is_ascii)
        };
        !self.sender.is_ascii() || !recipients.into_iter().all(is_plain)
    }
}

/// Writes the bounce.
pub fn compose(notice: &Notice<'_>) -> Bounce {
    let returned = Returned::new(notice);
    let international = notice.undelivered.is_international();
    let explanation = explanation(notice);
    let report = report(notice, if international { Charset::Utf8 } else { Charset::Ascii });
    let report_type = if international { "global-delivery-status" } else { "delivery-status" };
    let eight_bit = [explanation.as_bytes(), report.as_bytes(), returned.bytes].iter().any(|part| !part.is_ascii());
    let boundary = boundary(notice.id, &[explanation.as_bytes(), report.as_bytes(), returned.bytes]);

    let mut text = Text::default();
    write_header(&mut text, notice);
    text.line(format_args!("MIME-Version: 1.0"));
    text.line(format_args!("Content-Type: multipart/report; report-type={report_type};"));
    text.line(format_args!("\tboundary=\"{boundary}\""));
    text.end_of_header(eight_bit);
    text.line(format_args!("--{boundary}"));
    let charset = if explanation.is_ascii() { "us-ascii" } else { "utf-8" };
    text.line(format_args!("Content-Type: text/plain; charset={charset}"));
    text.end_of_header(!explanation.is_ascii());
    text.0.push_str(&explanation);
    // The line end before a boundary belongs to it (RFC 2046 section 5.1.1), so each part gets one more.
    text.line(format_args!("\r\n--{boundary}"));
    text.line(format_args!("Content-Type: message/{report_type}"));
    text.end_of_header(!report.is_ascii());
    text.0.push_str(&report);
    text.line(format_args!("\r\n--{boundary}"));
    text.line(format_args!("Content-Type: {}", returned.media_type));
    text.end_of_header(!returned.bytes.is_ascii());

    let mut content = text.0.into_bytes();
    content.extend_from_slice(returned.bytes);
    content.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    let flags = BodyFlags { dot_lines: has_dot_lines(&content), eight_bit: !content.is_ascii(), ends_in_crlf: true };
    Bounce { content, flags, smtputf8: international || returned.international }
}

/// The third part.
struct Returned<'a> {
    bytes: &'a [u8],
    media_type: &'static str,
    /// The header is in UTF-8 (RFC 6532).
    international: bool,
}

impl<'a> Returned<'a> {
    fn new(notice: &Notice<'a>) -> Self {
        let header = header_of(notice.original);
        let international = notice.undelivered.envelope.smtputf8 && !header.is_ascii();
        let (bytes, media_type) = match (notice.portion, international) {
            (Return::Full, false) => (notice.original, "message/rfc822"),
            (Return::Full, true) => (notice.original, "message/global"),
            (Return::Headers, false) => (header, "text/rfc822-headers"),
            (Return::Headers, true) => (header, "message/global-headers"),
        };
        Returned { bytes, media_type, international }
    }
}

fn write_header(text: &mut Text, notice: &Notice<'_>) {
    let hostname = clean(notice.hostname, Charset::Ascii);
    text.line(format_args!("Date: {}", clean(notice.date, Charset::Ascii)));
    text.line(format_args!("From: \"Mail Delivery System\" <mailer-daemon@{hostname}>"));
    text.line(format_args!("To: <{}>", notice.undelivered.sender));
    text.line(format_args!("Subject: Your message could not be delivered"));
    text.line(format_args!("Message-ID: <{}@{hostname}>", notice.id));
    // RFC 3834 section 5: nobody's machine is to answer this.
    text.line(format_args!("Auto-Submitted: auto-replied"));
}

/// The first part: for people.
fn explanation(notice: &Notice<'_>) -> String {
    let failures = &notice.undelivered.failures;
    let these = if failures.len() == 1 { "this address" } else { "these addresses" };
    let mut text = Text::default();
    text.wrapped("This is the mail server", "", &clean(&format!("{}.", notice.hostname), Charset::Ascii));
    text.line(format_args!(""));
    text.wrapped("", "", &format!("Your message could not be delivered to {these}, and it will not be tried again:"));
    for failure in failures {
        text.line(format_args!(""));
        explain(&mut text, failure);
    }
    text.line(format_args!(""));
    text.wrapped("", "", "Other recipients of the message, if it had any, are not concerned.");
    text.line(format_args!(""));
    let what = match notice.portion {
        Return::Full => "your message",
        Return::Headers => "the header of your message",
    };
    let arrival_date = clean(notice.arrival_date, Charset::Ascii);
    let number = notice.original_id;
    let end = format!(
        "We took the message in on {arrival_date} under the number {number}. Below are a report for mail programs, \
         and {what}."
    );
    text.wrapped("", "", &end);
    text.0
}

fn explain(text: &mut Text, failure: &Failure<'_>) {
    let Recipient { address, original, .. } = failure.recipient;
    match original {
        Some(original) if original != address => {
            text.line(format_args!("<{original}>"));
            text.wrapped("    which stands for", "        ", &format!("<{address}>"));
        }
        _ => text.line(format_args!("<{address}>")),
    }
    text.line(format_args!("    The answer was:"));
    text.wrapped("       ", "        ", &clean(&failure.reason.to_string(), Charset::Utf8));
    text.wrapped("   ", "    ", advice(status(failure.reason)));
}

/// What a person can do, by the meaning of the status (RFC 3463 section 3).
fn advice(status: Enhanced) -> &'static str {
    match (status.1, status.2) {
        (1, 2 | 10) | (4, 4) => "There is no mail server for the part after the @. Please check how it is written.",
        (1, 7 | 8) => "Your own address was not accepted. Please ask your mail provider, and show them this letter.",
        (1, _) => "There is no such address. Please check how it is written.",
        (2, 2) => "The mailbox is full. Please try again later, or reach the recipient in another way.",
        (2, 3) | (3, 4) => "The message is too large. Please send it without attachments, or in parts.",
        (2, _) => "The mailbox does not take mail at present. Please reach the recipient in another way.",
        (4, 6) => "Mail to this address goes round in a circle. Please tell the recipient so, in another way.",
        (4, 7) => {
            "For all that time it could not be delivered. Please send it again later, or reach the recipient in \
             another way."
        }
        (6, _) => "The recipient's server cannot handle the form of the message. Please send it as plain text.",
        (7, _) => {
            "The recipient's server does not permit this message. Please reach the recipient in another way, or show \
             the answer to your mail provider."
        }
        _ => "Please try again later. If the message comes back again, show the answer to your mail provider.",
    }
}

/// The second part (RFC 3464 section 2).
fn report(notice: &Notice<'_>, charset: Charset) -> String {
    let mut text = Text::default();
    if let Some(envid) = &notice.undelivered.envelope.envid {
        text.wrapped("Original-Envelope-Id:", " ", &clean(&xtext(envid), Charset::Ascii));
    }
    text.line(format_args!("Reporting-MTA: dns; {}", clean(notice.hostname, Charset::Ascii)));
    text.line(format_args!("X-Mailrace-Queue-ID: {}", notice.original_id));
    text.line(format_args!("Arrival-Date: {}", clean(notice.arrival_date, Charset::Ascii)));
    for Failure { recipient, reason, .. } in &notice.undelivered.failures {
        text.line(format_args!(""));
        write_original_recipient(&mut text, recipient, charset);
        text.line(format_args!("Final-Recipient: {}", Typed(&recipient.address)));
        text.line(format_args!("Action: failed"));
        text.line(format_args!("Status: {}", status(reason)));
        text.wrapped("Diagnostic-Code: smtp;", " ", &clean(&reason.to_string(), charset));
    }
    text.0
}

/// Original-Recipient (RFC 3464 section 2.3.1) says what ORCPT said; without it, the address that an alias replaced.
fn write_original_recipient(text: &mut Text, recipient: &Recipient, charset: Charset) {
    let orcpt = recipient.orcpt.as_deref().and_then(|orcpt| orcpt.split_once(';'));
    match (orcpt, &recipient.original) {
        // RFC 6533 section 3: the type utf-8 has an encoding of its own, which is kept.
        (Some((kind, address)), _) if kind.eq_ignore_ascii_case("utf-8") => {
            text.wrapped("Original-Recipient: utf-8;", " ", &clean(address, charset));
        }
        (Some((kind, address)), _) if is_atom(kind) => {
            text.wrapped(&format!("Original-Recipient: {kind};"), " ", &clean(&xtext(address), charset));
        }
        (_, Some(original)) => text.line(format_args!("Original-Recipient: {}", Typed(original))),
        _ => {}
    }
}

/// An address with its type (RFC 3464 section 2.1.2, RFC 6533 section 3).
struct Typed<'a>(&'a Address);

impl fmt::Display for Typed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", if self.0.is_ascii() { "rfc822" } else { "utf-8" }, self.0)
    }
}

/// The status of a failure: the reply's own if it says failure, else made of its code.
fn status(reason: &Reply) -> Enhanced {
    match reason.enhanced {
        Some(enhanced @ Enhanced(4 | 5, _, _)) => enhanced,
        _ if reason.is_transient() => Enhanced(4, 0, 0),
        _ => Enhanced(5, 0, 0),
    }
}

/// A line that is in none of the parts, not even as a piece of a line.
fn boundary(id: QueueId, parts: &[&[u8]]) -> String {
    let occurs = |boundary: &String| {
        let boundary = boundary.as_bytes();
        parts.iter().any(|part| part.windows(boundary.len()).any(|window| window == boundary))
    };
    let mut boundaries = (0u64..).map(|n| format!("=_{id}_{n}_="));
    boundaries.find(|boundary| !occurs(boundary)).expect("a text of finite length has finitely many boundaries in it")
}

/// The lines before the empty one; of a header that was cut off, the lines that are whole.
fn header_of(message: &[u8]) -> &[u8] {
    if message.starts_with(b"\r\n") {
        return &[];
    }
    let last_line_end = || message.iter().rposition(|&byte| byte == b'\n').map_or(0, |place| place + 1);
    let end = message.windows(4).position(|window| window == b"\r\n\r\n").map(|place| place + 2);
    &message[..end.unwrap_or_else(last_line_end)]
}

fn has_dot_lines(content: &[u8]) -> bool {
    content.windows(2).any(|window| window == b"\n.")
}

/// Decodes xtext (RFC 3461 section 4); what is not xtext stays as it is.
fn xtext(encoded: &str) -> String {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let pair = tail.first_chunk().filter(|_| byte == b'+').and_then(hex);
        bytes.push(pair.unwrap_or(byte));
        rest = if pair.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Two upper-case digits.
fn hex(pair: &[u8; 2]) -> Option<u8> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    Some(digit(pair[0])? << 4 | digit(pair[1])?)
}

fn is_atom(kind: &str) -> bool {
    !kind.is_empty() && kind.len() < 64 && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Which characters a place may hold.
#[derive(Clone, Copy, PartialEq)]
enum Charset {
    Ascii,
    Utf8,
}

/// A stranger's text as one line of harmless characters, of bounded length.
fn clean(text: &str, charset: Charset) -> String {
    let harmless = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() => '?',
        c if charset == Charset::Ascii && !c.is_ascii() => '?',
        c => c,
    };
    text.chars().take(TEXT_CHARS_MAX).map(harmless).collect()
}

/// Lines of ours.
#[derive(Default)]
struct Text(String);

impl Text {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = fmt::Write::write_fmt(&mut self.0, line);
        self.0.push_str("\r\n");
    }

    /// `lead`, then the words of `text`, each further line behind `indent`.
    fn wrapped(&mut self, lead: &str, indent: &str, text: &str) {
        let mut line = lead.to_owned();
        let mut starts = lead.is_empty();
        for word in text.split(' ').filter(|word| !word.is_empty()).flat_map(pieces) {
            if line.len() + 1 + word.len() > LINE_OCTETS && !line.trim_start().is_empty() {
                self.line(format_args!("{line}"));
                indent.clone_into(&mut line);
                starts = true;
            }
            if !starts {
                line.push(' ');
            }
            line.push_str(word);
            starts = false;
        }
        self.line(format_args!("{line}"));
    }

    /// Content-Transfer-Encoding (RFC 2045 section 6.1), for which 7bit is understood, and the empty line.
    fn end_of_header(&mut self, eight_bit: bool) {
        if eight_bit {
            self.line(format_args!("Content-Transfer-Encoding: 8bit"));
        }
        self.line(format_args!(""));
    }
}

/// A word in portions that fit into a line.
fn pieces(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let (piece, tail) = rest.split_at(rest.floor_char_boundary(WORD_OCTETS_MAX));
        rest = tail;
        (!piece.is_empty()).then_some(piece)
    })
}
