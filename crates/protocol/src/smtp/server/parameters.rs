//! The parameters of MAIL and RCPT: SIZE (RFC 1870), BODY (RFC 6152), SMTPUTF8 (RFC 6531), AUTH
//! (RFC 4954 section 5), and RET, ENVID, NOTIFY and ORCPT (RFC 3461). The command is refused if a
//! parameter is unknown, invalid or repeated.

use mail::{BodyType, DsnNotify, DsnReturn, Reply};

use super::command::number;
use super::replies::{BAD_PARAMETER, REPEATED_PARAMETER, UNKNOWN_PARAMETER};

/// RFC 3461 section 4.4.
const ENVID_OCTETS_MAX: usize = 100;
/// RFC 3461 section 4.2.
const ORCPT_OCTETS_MAX: usize = 500;
/// RFC 4954 section 5.
const AUTH_OCTETS_MAX: usize = 500;
/// RFC 1870 section 3.
const SIZE_DIGITS_MAX: usize = 20;

/// The parameters of MAIL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailParameters {
    /// SIZE, in octets.
    pub size: Option<u64>,
    /// BODY.
    pub body_type: Option<BodyType>,
    /// SMTPUTF8.
    pub smtputf8: Option<()>,
    /// RET.
    pub ret: Option<DsnReturn>,
    /// ENVID, in xtext.
    pub envid: Option<Box<str>>,
    /// AUTH=, the identity that the client asserts, decoded: `<>` or a mailbox (RFC 4954 section 5). Only
    /// filters see it.
    pub auth: Option<Box<str>>,
}

impl MailParameters {
    /// Parses what follows the path.
    ///
    /// # Errors
    ///
    /// A parameter is unknown, invalid or repeated.
    pub fn parse(text: &str) -> Result<Self, Reply> {
        let mut found = MailParameters::default();
        for (keyword, value) in words(text) {
            match keyword {
                _ if keyword.eq_ignore_ascii_case("SIZE") => set(&mut found.size, value.and_then(size)),
                _ if keyword.eq_ignore_ascii_case("BODY") => set(&mut found.body_type, value.and_then(body_type)),
                _ if keyword.eq_ignore_ascii_case("SMTPUTF8") => set(&mut found.smtputf8, absent(value)),
                _ if keyword.eq_ignore_ascii_case("RET") => set(&mut found.ret, value.and_then(ret)),
                _ if keyword.eq_ignore_ascii_case("ENVID") => set(&mut found.envid, value.and_then(envid)),
                _ if keyword.eq_ignore_ascii_case("AUTH") => set(&mut found.auth, value.and_then(auth)),
                _ => Err(UNKNOWN_PARAMETER),
            }?;
        }
        Ok(found)
    }
}

/// The parameters of RCPT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RcptParameters {
    /// NOTIFY.
    pub notify: Option<DsnNotify>,
    /// ORCPT, with its type.
    pub orcpt: Option<Box<str>>,
}

impl RcptParameters {
    /// Parses what follows the path.
    ///
    /// # Errors
    ///
    /// A parameter is unknown, invalid or repeated.
    pub fn parse(text: &str) -> Result<Self, Reply> {
        let mut found = RcptParameters::default();
        for (keyword, value) in words(text) {
            match keyword {
                _ if keyword.eq_ignore_ascii_case("NOTIFY") => set(&mut found.notify, value.and_then(notify)),
                _ if keyword.eq_ignore_ascii_case("ORCPT") => set(&mut found.orcpt, value.and_then(orcpt)),
                _ => Err(UNKNOWN_PARAMETER),
            }?;
        }
        Ok(found)
    }
}

fn words(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    text.split_ascii_whitespace().map(|word| match word.split_once('=') {
        Some((keyword, value)) => (keyword, Some(value)),
        None => (word, None),
    })
}

fn set<T>(place: &mut Option<T>, value: Option<T>) -> Result<(), Reply> {
    let value = value.ok_or(BAD_PARAMETER)?;
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(REPEATED_PARAMETER),
    }
}

fn absent(value: Option<&str>) -> Option<()> {
    value.is_none().then_some(())
}

/// A number of 20 digits may exceed u64; it then exceeds any limit too.
fn size(value: &str) -> Option<u64> {
    let digits = (1..=SIZE_DIGITS_MAX).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| number(value).unwrap_or(u64::MAX))
}

fn body_type(value: &str) -> Option<BodyType> {
    match value {
        _ if value.eq_ignore_ascii_case("7BIT") => Some(BodyType::SevenBit),
        _ if value.eq_ignore_ascii_case("8BITMIME") => Some(BodyType::EightBitMime),
        _ => None,
    }
}

fn ret(value: &str) -> Option<DsnReturn> {
    match value {
        _ if value.eq_ignore_ascii_case("FULL") => Some(DsnReturn::Full),
        _ if value.eq_ignore_ascii_case("HDRS") => Some(DsnReturn::Headers),
        _ => None,
    }
}

fn envid(value: &str) -> Option<Box<str>> {
    let sound = (1..=ENVID_OCTETS_MAX).contains(&value.len()) && is_printable_xtext(value);
    sound.then(|| value.into())
}

/// `<>`, or a mailbox in xtext.
fn auth(value: &str) -> Option<Box<str>> {
    let sound = (1..=AUTH_OCTETS_MAX).contains(&value.len()) && is_printable_xtext(&ascii_placeholder(value));
    sound.then(|| decoded_xtext(value).into())
}

/// NEVER stands alone (RFC 3461 section 4.1).
fn notify(value: &str) -> Option<DsnNotify> {
    if value.eq_ignore_ascii_case("NEVER") {
        return Some(DsnNotify::NEVER);
    }
    value.split(',').try_fold(DsnNotify::UNSET, |all, word| match word {
        _ if word.eq_ignore_ascii_case("SUCCESS") => Some(all.with(DsnNotify::SUCCESS)),
        _ if word.eq_ignore_ascii_case("FAILURE") => Some(all.with(DsnNotify::FAILURE)),
        _ if word.eq_ignore_ascii_case("DELAY") => Some(all.with(DsnNotify::DELAY)),
        _ => None,
    })
}

/// An address type, a semicolon, and xtext. The type utf-8 may contain non-ASCII characters
/// directly (RFC 6533 section 3).
fn orcpt(value: &str) -> Option<Box<str>> {
    let (kind, address) = value.split_once(';')?;
    let is_atom = !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let sound = match kind.eq_ignore_ascii_case("utf-8") {
        true => !address.chars().any(char::is_control) && is_printable_xtext(&ascii_placeholder(address)),
        false => is_printable_xtext(address),
    };
    (is_atom && sound && !address.is_empty() && value.len() <= ORCPT_OCTETS_MAX).then(|| value.into())
}

/// The text with each non-ASCII character replaced by an ASCII letter.
fn ascii_placeholder(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii() { c } else { 'x' }).collect()
}

/// Whether the text is xtext (RFC 3461 section 4) that decodes to printable ASCII. It may be
/// decoded into a bounce, which must get no line ends or other control characters.
fn is_printable_xtext(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let sound = match byte {
            b'+' => matches!((bytes.next().and_then(hex), bytes.next().and_then(hex)),
                (Some(high), Some(low)) if (0x20..0x7f).contains(&(high * 16 + low))),
            _ => (0x21..0x7f).contains(&byte) && byte != b'=',
        };
        if !sound {
            return false;
        }
    }
    true
}

/// Decodes what [`is_printable_xtext`] has found valid.
fn decoded_xtext(text: &str) -> String {
    let mut decoded = String::with_capacity(text.len());
    let mut pieces = text.split('+');
    decoded.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let digits = piece.as_bytes().first_chunk().and_then(|&[high, low]| Some(hex(high)? * 16 + hex(low)?));
        decoded.extend(digits.map(char::from));
        decoded.push_str(piece.get(2..).unwrap_or_default());
    }
    decoded
}

/// A hex digit of xtext: upper case only.
fn hex(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_mail_are_read_in_any_order_and_case() {
        let found =
            MailParameters::parse(" ret=hdrs SMTPUTF8 Size=0100 ENVID=a+2Bb body=8bitmime auth=e+3Dmc2@x").unwrap();
        let expected = MailParameters {
            size: Some(100),
            body_type: Some(BodyType::EightBitMime),
            smtputf8: Some(()),
            ret: Some(DsnReturn::Headers),
            envid: Some("a+2Bb".into()),
            auth: Some("e=mc2@x".into()),
        };
        assert_eq!(found, expected);
        assert_eq!(MailParameters::parse("SIZE=99999999999999999999").unwrap().size, Some(u64::MAX));
    }

    #[test]
    fn bad_unknown_and_repeated_mail_parameters_get_different_replies() {
        for (text, reply) in [
            ("FOO", UNKNOWN_PARAMETER),
            ("AUTH", BAD_PARAMETER),
            ("AUTH=", BAD_PARAMETER),
            ("AUTH=a+0Ab", BAD_PARAMETER),
            ("AUTH=<> AUTH=<>", REPEATED_PARAMETER),
            (&format!("AUTH={}", "x".repeat(501)), BAD_PARAMETER),
            ("SIZE=1 SIZE=1", REPEATED_PARAMETER),
            ("SMTPUTF8 SMTPUTF8", REPEATED_PARAMETER),
            ("SIZE", BAD_PARAMETER),
            ("SIZE=", BAD_PARAMETER),
            ("SIZE=+1", BAD_PARAMETER),
            ("SIZE=000000000000000000001", BAD_PARAMETER),
            ("BODY=BINARYMIME", BAD_PARAMETER),
            ("SMTPUTF8=YES", BAD_PARAMETER),
            ("RET=ALL", BAD_PARAMETER),
            ("ENVID=", BAD_PARAMETER),
            ("ENVID=a=b", BAD_PARAMETER),
            ("ENVID=a+0Ab", BAD_PARAMETER),
            ("ENVID=a+2", BAD_PARAMETER),
            ("ENVID=a+2b", BAD_PARAMETER),
            ("ENVID=\u{fc}", BAD_PARAMETER),
            (&format!("ENVID={}", "x".repeat(101)), BAD_PARAMETER),
        ] {
            assert_eq!(MailParameters::parse(text), Err(reply), "{text}");
        }
    }

    #[test]
    fn parameters_of_rcpt_are_kept_as_they_came() {
        let found = RcptParameters::parse("NOTIFY=success,DELAY ORCPT=rfc822;Bob+2Btag@example.org").unwrap();
        assert_eq!(found.notify, Some(DsnNotify::SUCCESS.with(DsnNotify::DELAY)));
        assert_eq!(found.orcpt.as_deref(), Some("rfc822;Bob+2Btag@example.org"));
        let found = RcptParameters::parse("ORCPT=UTF-8;b\u{fc}\\x{1F600}b@example.org NOTIFY=never").unwrap();
        assert_eq!(found.notify, Some(DsnNotify::NEVER));
        assert_eq!(found.orcpt.as_deref(), Some("UTF-8;b\u{fc}\\x{1F600}b@example.org"));
    }

    #[test]
    fn bad_parameters_of_rcpt_are_refused() {
        for (text, reply) in [
            ("SIZE=1", UNKNOWN_PARAMETER),
            ("NOTIFY=NEVER NOTIFY=NEVER", REPEATED_PARAMETER),
            ("NOTIFY=NEVER,DELAY", BAD_PARAMETER),
            ("NOTIFY=", BAD_PARAMETER),
            ("NOTIFY", BAD_PARAMETER),
            ("ORCPT=bob@example.org", BAD_PARAMETER),
            ("ORCPT=;bob", BAD_PARAMETER),
            ("ORCPT=rfc822;", BAD_PARAMETER),
            ("ORCPT=rfc822;b+0D+0Ab", BAD_PARAMETER),
            ("ORCPT=rfc822;b\u{fc}b", BAD_PARAMETER),
            ("ORCPT=utf-8;b\u{85}b", BAD_PARAMETER),
            (&format!("ORCPT=rfc822;{}", "x".repeat(500)), BAD_PARAMETER),
        ] {
            assert_eq!(RcptParameters::parse(text), Err(reply), "{text}");
        }
    }
}
