//! What people read in a notice: its header and its first part, which says which address is
//! affected, what the server answered and what to do.

use mail::{DsnReturn, EnhancedCode, Recipient};

use super::dsn_input::DsnComposeInput;
use super::notice_writer::{Charset, NoticeWriter, sanitize_foreign_text};
use super::report::{DsnAction, DsnKind, DsnRecipient, DsnReport};
use super::status_part::failure_status;

/// The most important first: what a person has to act on.
const KINDS: [DsnKind; 4] = [DsnKind::Failed, DsnKind::Delayed, DsnKind::Relayed, DsnKind::Delivered];

/// The header fields, except those of MIME.
pub(super) fn write_header(text: &mut NoticeWriter, report: &DsnReport<'_>, context: &DsnComposeInput<'_>) {
    let hostname = sanitize_foreign_text(context.hostname, Charset::Ascii);
    text.line(format_args!("Date: {}", context.now.to_rfc5322()));
    text.line(format_args!("From: \"Mail Delivery System\" <mailer-daemon@{hostname}>"));
    text.line(format_args!("To: <{}>", report.to));
    text.line(format_args!("Subject: {}", subject(report)));
    text.line(format_args!("Message-ID: <{}@{hostname}>", context.id));
    // RFC 3834 section 5: automatic responders do not answer this.
    text.line(format_args!("Auto-Submitted: auto-replied"));
}

fn subject(report: &DsnReport<'_>) -> &'static str {
    match report.kind() {
        DsnKind::Failed if report.is_double_bounce() => "A message with an empty sender could not be delivered",
        DsnKind::Failed => "Your message could not be delivered",
        DsnKind::Delayed => "Your message has not been delivered yet",
        DsnKind::Relayed => "Your message was passed on to another server",
        DsnKind::Delivered => "Your message was delivered",
    }
}

/// The first part of the notice.
pub(super) fn text_part(report: &DsnReport<'_>, context: &DsnComposeInput<'_>, portion: DsnReturn) -> String {
    let mut text = NoticeWriter::default();
    text.wrapped_line(
        "This is the mail server at",
        "",
        &sanitize_foreign_text(&format!("{}.", context.hostname), Charset::Ascii),
    );
    for kind in KINDS {
        let entries: Vec<_> = report.entries.iter().filter(|entry| entry.action.kind() == kind).collect();
        if !entries.is_empty() {
            let these = if entries.len() == 1 { "this address" } else { "these addresses" };
            text.empty_line();
            text.wrapped_line("", "", &heading(kind, these, report.is_double_bounce()));
        }
        for entry in entries {
            text.empty_line();
            write_recipient(&mut text, entry, report.is_double_bounce());
        }
    }
    text.empty_line();
    text.wrapped_line("", "", "Any other recipients of the message are not affected.");
    text.empty_line();
    text.wrapped_line("", "", &closing(report, context, portion));
    text.into_string()
}

fn heading(kind: DsnKind, these: &str, is_double_bounce: bool) -> String {
    match kind {
        DsnKind::Failed if is_double_bounce => format!(
            "A message with an empty sender, such as a failure notice, could not be delivered to {these}. No further \
             attempt will be made, and no one else is notified:"
        ),
        DsnKind::Failed => {
            format!("Your message could not be delivered to {these}, and no further attempt will be made:")
        }
        DsnKind::Delayed => format!(
            "Your message has not been delivered to {these} yet. We will keep trying; you do not need to send it \
             again:"
        ),
        DsnKind::Relayed => format!(
            "Your message to {these} was passed on to another mail server, which does not report deliveries. You \
             will get no further notice about it from us:"
        ),
        DsnKind::Delivered => format!("Your message was delivered to {these}:"),
    }
}

fn write_recipient(text: &mut NoticeWriter, entry: &DsnRecipient<'_>, is_double_bounce: bool) {
    let Recipient { address, original, .. } = entry.recipient;
    match original {
        Some(original) if original != address => {
            text.line(format_args!("<{original}>"));
            text.wrapped_line("    which forwards to", "        ", &format!("<{address}>"));
        }
        _ => text.line(format_args!("<{address}>")),
    }
    if let Some(reply) = entry.action.reply() {
        match entry.peer {
            Some(peer) => {
                text.wrapped_line("   ", "    ", &format!("{} answered:", sanitize_foreign_text(peer, Charset::Ascii)))
            }
            None => text.line(format_args!("    Reason:")),
        }
        text.wrapped_line("       ", "        ", &sanitize_foreign_text(&reply.to_string(), Charset::Utf8));
    }
    match entry.action {
        DsnAction::Failed(reply) if !is_double_bounce => {
            text.wrapped_line("   ", "    ", advice(failure_status(reply)))
        }
        DsnAction::Delayed { until, .. } => {
            text.wrapped_line("   ", "    ", &format!("We will keep trying until {}.", until.to_rfc5322()));
        }
        _ => {}
    }
}

/// What a person can do, by the meaning of the status code (RFC 3463 section 3).
fn advice(status: EnhancedCode) -> &'static str {
    match (status.1, status.2) {
        (1, 2 | 10) | (4, 4) => {
            "No mail server was found for the domain (the part after the @). Please check the spelling of the address."
        }
        (1, 7 | 8) => "Your own address was rejected. Please contact your mail provider and show them this notice.",
        (1, _) => "This address does not exist. Please check its spelling.",
        (2, 2) => "The mailbox is full. Please try again later, or contact the recipient another way.",
        (2, 3) | (3, 4) => "The message is too large. Please send it without attachments, or in parts.",
        (2, _) => "The mailbox is not accepting mail at the moment. Please contact the recipient another way.",
        (4, 6) => "Mail to this address is caught in a loop. Please let the recipient know another way.",
        (4, 7) => {
            "We tried repeatedly, but could not deliver the message in time. Please send it again later, or contact \
             the recipient another way."
        }
        (6, _) => "The recipient's server cannot handle the format of the message. Please send it as plain text.",
        (7, _) => {
            "The recipient's server does not allow this message. Please contact the recipient another way, or show \
             this notice to your mail provider."
        }
        _ => "Please try again later. If the message comes back again, show this notice to your mail provider.",
    }
}

fn closing(report: &DsnReport<'_>, context: &DsnComposeInput<'_>, portion: DsnReturn) -> String {
    let what = match (portion, report.is_double_bounce()) {
        (DsnReturn::Full, false) => "your message",
        (DsnReturn::Headers, false) => "the header of your message",
        (DsnReturn::Full, true) => "the message",
        (DsnReturn::Headers, true) => "the header of the message",
    };
    let arrival_date = report.envelope.accepted_at.to_rfc5322();
    let number = context.original_id;
    format!(
        "We accepted the message on {arrival_date} with queue ID {number}. A report for mail programs and {what} \
         follow below."
    )
}
