//! What a letter says to people: its header, and its first part, plain and short: which address, what was answered,
//! what to do.

use mail::{Enhanced, Recipient, Return};

use super::letter::Occasion;
use super::report::{Entry, Fate, Kind, Report};
use super::status::failure_status;
use super::text::{Charset, Text, clean};

/// The weightiest first: what a person must act upon.
const KINDS: [Kind; 4] = [Kind::Failed, Kind::Delayed, Kind::Relayed, Kind::Delivered];

/// The header fields that are not MIME's.
pub(super) fn write_header(text: &mut Text, report: &Report<'_>, occasion: &Occasion<'_>) {
    let hostname = clean(occasion.hostname, Charset::Ascii);
    text.line(format_args!("Date: {}", occasion.now.rfc5322_date()));
    text.line(format_args!("From: \"Mail Delivery System\" <mailer-daemon@{hostname}>"));
    text.line(format_args!("To: <{}>", report.to));
    text.line(format_args!("Subject: {}", subject(report)));
    text.line(format_args!("Message-ID: <{}@{hostname}>", occasion.id));
    // RFC 3834 section 5: nobody's machine is to answer this.
    text.line(format_args!("Auto-Submitted: auto-replied"));
}

fn subject(report: &Report<'_>) -> &'static str {
    match report.kind() {
        Kind::Failed if report.is_double_bounce() => "A message without a sender could not be delivered",
        Kind::Failed => "Your message could not be delivered",
        Kind::Delayed => "Your message has not been delivered yet",
        Kind::Relayed => "Your message was handed on",
        Kind::Delivered => "Your message was delivered",
    }
}

/// The first part of the letter.
pub(super) fn explanation(report: &Report<'_>, occasion: &Occasion<'_>, portion: Return) -> String {
    let mut text = Text::default();
    text.wrapped("This is the mail server", "", &clean(&format!("{}.", occasion.hostname), Charset::Ascii));
    for kind in KINDS {
        let entries: Vec<_> = report.entries.iter().filter(|entry| entry.fate.kind() == kind).collect();
        if !entries.is_empty() {
            let these = if entries.len() == 1 { "this address" } else { "these addresses" };
            text.empty_line();
            text.wrapped("", "", &heading(kind, these, report.is_double_bounce()));
        }
        for entry in entries {
            text.empty_line();
            explain(&mut text, entry, report.is_double_bounce());
        }
    }
    text.empty_line();
    text.wrapped("", "", "Other recipients of the message, if it had any, are not concerned.");
    text.empty_line();
    text.wrapped("", "", &ending(report, occasion, portion));
    text.into_string()
}

fn heading(kind: Kind, these: &str, is_double_bounce: bool) -> String {
    match kind {
        Kind::Failed if is_double_bounce => format!(
            "A message without a sender, as notices of failures are, could not be delivered to {these}. It will not \
             be tried again, and nobody else is told:"
        ),
        Kind::Failed => format!("Your message could not be delivered to {these}, and it will not be tried again:"),
        Kind::Delayed => format!(
            "Your message has not been delivered to {these} yet. We keep trying, and there is no need to send it \
             again:"
        ),
        Kind::Relayed => format!(
            "Your message to {these} was handed on to another mail server, which does not report deliveries. You will \
             hear no more of it from us:"
        ),
        Kind::Delivered => format!("Your message was delivered to {these}:"),
    }
}

fn explain(text: &mut Text, entry: &Entry<'_>, is_double_bounce: bool) {
    let Recipient { address, original, .. } = entry.recipient;
    match original {
        Some(original) if original != address => {
            text.line(format_args!("<{original}>"));
            text.wrapped("    which stands for", "        ", &format!("<{address}>"));
        }
        _ => text.line(format_args!("<{address}>")),
    }
    if let Some(reply) = entry.fate.reply() {
        match entry.peer {
            Some(peer) => text.wrapped("    The answer of", "    ", &format!("{} was:", clean(peer, Charset::Ascii))),
            None => text.line(format_args!("    The answer was:")),
        }
        text.wrapped("       ", "        ", &clean(&reply.to_string(), Charset::Utf8));
    }
    match entry.fate {
        Fate::Failed(reply) if !is_double_bounce => text.wrapped("   ", "    ", advice(failure_status(reply))),
        Fate::Delayed { until, .. } => {
            text.wrapped("   ", "    ", &format!("We try until {}.", until.rfc5322_date()));
        }
        _ => {}
    }
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

fn ending(report: &Report<'_>, occasion: &Occasion<'_>, portion: Return) -> String {
    let what = match (portion, report.is_double_bounce()) {
        (Return::Full, false) => "your message",
        (Return::Headers, false) => "the header of your message",
        (Return::Full, true) => "the message",
        (Return::Headers, true) => "the header of the message",
    };
    let arrival_date = report.envelope.accepted_at.rfc5322_date();
    let number = occasion.original_id;
    format!(
        "We took the message in on {arrival_date} under the number {number}. Below are a report for mail programs, \
         and {what}."
    )
}
