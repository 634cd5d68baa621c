//! The reply to the client that a milter chooses, from its text.

use std::borrow::Cow;

use mail::Reply;

use super::limits::MilterViolation;

/// Lines of a reply.
const LINES_MAX: usize = 32;

/// Parses a text with its final NUL: `550 5.7.1 no`, or several lines with the same code, separated
/// by CRLF. `%%` stands for a percent sign, as in libmilter. Only 4xx and 5xx are replies to a
/// refusal.
pub(super) fn parse(data: &[u8]) -> Result<Reply, MilterViolation> {
    let text = data.strip_suffix(b"\0").ok_or(MilterViolation::Reply)?;
    let text = printable(text);
    let mut lines = text.split('\n').map(|line| line.trim_end_matches('\r'));
    let mut reply = lines.next().ok_or(MilterViolation::Reply).and_then(parse_line)?;
    for (number, line) in lines.enumerate() {
        let next = parse_line(line)?;
        if next.code != reply.code || number + 1 >= LINES_MAX {
            return Err(MilterViolation::Reply);
        }
        reply.text = Cow::Owned(format!("{}\n{}", reply.text, next.text));
    }
    Ok(reply)
}

fn parse_line(line: &str) -> Result<Reply, MilterViolation> {
    // All lines but the last one have a hyphen after the code.
    let line = match line.as_bytes().get(3) {
        Some(b'-') => format!("{} {}", &line[..3], &line[4..]),
        _ => line.to_owned(),
    };
    let reply: Reply = line.parse().map_err(|_| MilterViolation::Reply)?;
    (reply.is_transient() || reply.is_permanent()).then_some(reply).ok_or(MilterViolation::Reply)
}

/// Clients get ASCII (RFC 5321 section 4.2).
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text).replace("%%", "%");
    text.chars().map(|c| if matches!(c, ' '..='~' | '\r' | '\n') { c } else { '?' }).collect()
}
