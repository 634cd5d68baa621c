//! The pages of a mailbox in HTML. All text from messages is escaped, and isolated: it cannot change
//! the direction of what follows.

use std::fmt::Write as _;

use protocol::http::server::encode_path;

use super::PAGE_MESSAGES_MAX;
use super::message_head::MessageHead;
use super::parts::MessageParts;
use crate::http::html::escape;

/// A page of messages, newest first: the UID, size and head of each. `page` is counted from 1, and
/// `total` is the number of all messages.
pub(super) fn messages(user: &str, page: usize, total: usize, rows: &[(u32, u64, MessageHead)]) -> String {
    let mut html = begin(&format!("Mailbox of {user}"));
    let _ = writeln!(html, "<p>Messages: {total}</p>");
    html.push_str("<table>\n<tr><th>Date</th><th>From</th><th>Subject</th><th>Octets</th><th></th></tr>\n");
    for (uid, octets, head) in rows {
        let subject = if head.subject.trim().is_empty() { "(no subject)" } else { &head.subject };
        let (date, from, subject) = (text(&head.date), text(&head.from), text(subject));
        let _ = writeln!(
            html,
            "<tr><td>{date}</td><td>{from}</td><td><a href=\"/{uid}/\">{subject}</a></td><td>{octets}</td>\
             <td><a href=\"/{uid}.eml\">download</a></td></tr>"
        );
    }
    html.push_str("</table>\n");
    if page > 1 {
        let _ = writeln!(html, "<p><a href=\"/?page={}\">Newer messages</a></p>", page - 1);
    }
    if page.saturating_mul(PAGE_MESSAGES_MAX) < total {
        let _ = writeln!(html, "<p><a href=\"/?page={}\">Older messages</a></p>", page + 1);
    }
    html
}

/// What is shown of one message.
pub(super) struct MessagePage {
    pub(super) uid: u32,
    /// The length of its file.
    pub(super) octets: u64,
    pub(super) head: MessageHead,
    /// None if the message is too large.
    pub(super) parts: Option<MessageParts>,
}

impl MessagePage {
    /// The page.
    pub(super) fn to_html(&self) -> String {
        let MessagePage { uid, octets, head, parts } = self;
        let mut html = begin(&format!("Message {uid}"));
        html.push_str("<p><a href=\"/\">All messages</a></p>\n<table>\n");
        let fields = [
            ("Date", &head.date),
            ("From", &head.from),
            ("To", &head.to),
            ("Cc", &head.cc),
            ("Subject", &head.subject),
        ];
        for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(html, "<tr><th>{name}</th><td>{}</td></tr>", text(value));
        }
        let _ = writeln!(html, "</table>\n<p><a href=\"/{uid}.eml\">The whole message</a>, {octets} octets</p>");
        match parts {
            Some(parts) => write_parts(*uid, parts, &mut html),
            None => html.push_str("<p>The message is too large for its parts to be listed.</p>\n"),
        }
        html
    }
}

fn write_parts(uid: u32, parts: &MessageParts, html: &mut String) {
    html.push_str("<table>\n<tr><th>Part</th><th>Name</th><th>Type</th><th>Octets, encoded</th></tr>\n");
    for (index, part) in parts.parts.iter().enumerate() {
        let (number, octets) = (index + 1, part.encoded_octets());
        let (link, name, kind) = (encode_path(part.name.as_bytes()), text(&part.name), text(&part.content_type));
        let _ = writeln!(
            html,
            "<tr><td>{number}</td><td><a href=\"/{uid}/{number}/{link}\">{name}</a></td><td>{kind}</td>\
             <td>{octets}</td></tr>"
        );
    }
    html.push_str("</table>\n");
    if parts.is_cut {
        html.push_str("<p>There are more parts, which are not listed.</p>\n");
    }
}

/// Writing to a string, here and above, cannot fail.
fn begin(title: &str) -> String {
    let title = escape(title.as_bytes());
    format!("<!DOCTYPE html>\n<html lang=\"en\">\n<title>{title}</title>\n<h1>{title}</h1>\n")
}

/// Text from outside.
fn text(text: &str) -> String {
    format!("<bdi>{}</bdi>", escape(text.as_bytes()))
}
