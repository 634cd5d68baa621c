//! The changes that a milter asks for, as edits of the message.

use mail::{Address, AddressError};
use protocol::milter::{MilterEdit, MilterEdits};
use protocol::smtp::server::{MailParameters, RcptParameters};

use super::failure::MilterFailure;
use crate::edit::{Edit, Field, InvalidField, has_bare_newline, without_brackets};

/// The edits, in order. `hides_received`: the first Received field was not shown to the milter.
/// `origin` completes addresses without a domain.
pub(super) fn into_edits(edits: MilterEdits, hides_received: bool, origin: &str) -> Result<Vec<Edit>, MilterFailure> {
    let mut made = Vec::with_capacity(edits.edits.len());
    for edit in edits.edits {
        into_edit(edit, hides_received, origin, &mut made)?;
    }
    made.extend(edits.body.map(|body| Edit::ReplaceBody(with_crlf(body))));
    Ok(made)
}

fn into_edit(edit: MilterEdit, hides_received: bool, origin: &str, made: &mut Vec<Edit>) -> Result<(), MilterFailure> {
    let made_last = match edit {
        MilterEdit::AddField { name, value } => Edit::AppendField(field(&name, &value)?),
        MilterEdit::InsertField { index, name, value } => {
            Edit::InsertField { index: index as usize, field: field(&name, &value)? }
        }
        MilterEdit::ChangeField { index, name, value } => {
            let hidden = usize::from(hides_received && name.eq_ignore_ascii_case("Received"));
            let field = if value.is_empty() { None } else { Some(field(&name, &value)?) };
            Edit::ReplaceField { occurrence: (index as usize).max(1) + hidden, name, field }
        }
        MilterEdit::ChangeSender { path, parameters } => {
            if !parameters.is_empty() {
                let MailParameters { ret, envid, .. } =
                    MailParameters::parse(&parameters).map_err(MilterFailure::Parameters)?;
                made.push(Edit::ChangeNoticeRequest { ret, envid });
            }
            Edit::ChangeSender(address(&path, origin)?)
        }
        MilterEdit::AddRecipient { path, parameters } => {
            let RcptParameters { notify, orcpt } =
                RcptParameters::parse(&parameters).map_err(MilterFailure::Parameters)?;
            Edit::AddRecipient { address: recipient(&path, origin)?, notify: notify.unwrap_or_default(), orcpt }
        }
        MilterEdit::RemoveRecipient(path) => Edit::RemoveRecipient(recipient(&path, origin)?),
    };
    made.push(made_last);
    Ok(())
}

/// None is the null sender.
fn address(path: &str, origin: &str) -> Result<Option<Address>, AddressError> {
    let bare = without_brackets(path);
    if bare.is_empty() { Ok(None) } else { Address::parse_lenient(bare, Some(origin)).map(Some) }
}

fn recipient(path: &str, origin: &str) -> Result<Address, AddressError> {
    address(path, origin)?.ok_or(AddressError::NoDomain)
}

/// Milters separate lines by LF or CRLF, and some forget to fold.
fn field(name: &str, value: &str) -> Result<Field, InvalidField> {
    let value = value.strip_prefix(' ').unwrap_or(value);
    let mut folded = String::with_capacity(value.len());
    for line in value.split('\n').map(|line| line.replace(['\r', '\0'], "")) {
        if folded.is_empty() {
            folded = line;
        } else if !line.trim().is_empty() {
            let fold = if line.starts_with([' ', '\t']) { "\r\n" } else { "\r\n\t" };
            folded.extend([fold, line.as_str()]);
        }
    }
    Field::new(name, &folded)
}

/// Bare CR and LF become CRLF: a body must not be taken for several messages. One without them is not
/// copied.
fn with_crlf(body: Vec<u8>) -> Vec<u8> {
    if !has_bare_newline(&body) {
        return body;
    }
    let mut lines = Vec::with_capacity(body.len());
    let mut previous = 0;
    for &octet in &body {
        match octet {
            b'\n' if previous == b'\r' => {}
            b'\r' | b'\n' => lines.extend_from_slice(b"\r\n"),
            octet => lines.push(octet),
        }
        previous = octet;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_no_bare_newlines() {
        for (body, expected) in [("a\nb\r\nc\rd", "a\r\nb\r\nc\r\nd"), ("\r\r\n\n", "\r\n\r\n\r\n"), ("", "")] {
            assert_eq!(with_crlf(body.into()), expected.as_bytes(), "{body:?}");
        }
    }

    #[test]
    fn a_field_is_folded_and_cannot_add_another_one() {
        let wire = |value| field("X-Test", value).unwrap().wire().to_owned();
        assert_eq!(wire(" one\n\ttwo\nthree\n"), "X-Test: one\r\n\ttwo\r\n\tthree\r\n");
        assert_eq!(wire("one\r\n\r\n\r\nBcc: x"), "X-Test: one\r\n\tBcc: x\r\n");
        assert_eq!(wire("  two"), "X-Test:  two\r\n");
        assert!(field("X Test", "one").is_err());
    }

    #[test]
    fn edits_keep_their_order_and_know_of_the_hidden_field() {
        let edits = MilterEdits {
            edits: vec![
                MilterEdit::ChangeField { index: 1, name: "received".into(), value: "".into() },
                MilterEdit::ChangeSender { path: "<>".into(), parameters: "RET=HDRS ENVID=x".into() },
                MilterEdit::AddRecipient { path: "<bob>".into(), parameters: "NOTIFY=NEVER".into() },
            ],
            body: Some(b"x\n".to_vec()),
            ..MilterEdits::default()
        };
        let edits = into_edits(edits, true, "mx.test").unwrap();
        let expected = [
            Edit::ReplaceField { name: "received".into(), occurrence: 2, field: None },
            Edit::ChangeNoticeRequest { ret: Some(mail::DsnReturn::Headers), envid: Some("x".into()) },
            Edit::ChangeSender(None),
            Edit::AddRecipient { address: "bob@mx.test".parse().unwrap(), notify: mail::DsnNotify::NEVER, orcpt: None },
            Edit::ReplaceBody(b"x\r\n".to_vec()),
        ];
        assert_eq!(edits, expected);
    }
}
