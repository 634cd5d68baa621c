//! The format of unique-ids (RFC 1939 section 7), in the syntax of Dovecot's `pop3_uidl_format`.
//!
//! | variable | value |
//! |---|---|
//! | `%u` | the message's UID |
//! | `%v` | the mailbox's UIDVALIDITY |
//! | `%f` | the file name without flags |
//! | `%g` | the GUID in `dovecot-uidlist`, else the file name without flags |
//!
//! Between `%` and the letter: a width (padded on the left with zeros if it begins with 0, otherwise
//! cut off), `X` for hexadecimal numbers, `L` and `U` for lower and upper case. `%m` is the checksum
//! of an mbox message; a Maildir has none.

use std::io::Write;
use std::str::FromStr;
use std::sync::Arc;

/// The longest format, in bytes.
const FORMAT_OCTETS_MAX: usize = 256;
/// The widest number.
const WIDTH_MAX: usize = 64;

/// A parsed format; cheap to clone. The default is Dovecot's: `%08Xu%08Xv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UidFormat {
    pieces: Arc<[UidPiece]>,
}

/// Why a format is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUidFormat {
    /// The format names no property of the message, so all messages would have the same unique-id.
    #[error("the format has neither %u nor %f nor %g, so all messages would have the same unique-id")]
    SameForAll,
    /// A variable that messages in a Maildir do not have, or that does not exist.
    #[error("unknown variable {0:?}: use %u, %v, %f or %g")]
    UnknownVariable(Box<str>),
    /// The format, or a width in it, is too long.
    #[error("too long: at most 256 bytes, and widths up to 64")]
    TooLong,
    /// A byte that a unique-id cannot contain.
    #[error("a unique-id consists of printable ASCII characters without spaces")]
    NotPrintable,
    /// `X` can only be used with numbers.
    #[error("X is only for the numbers %u and %v")]
    NotANumber,
}

/// What a unique-id is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct UidSource<'a> {
    pub(super) uid: u32,
    pub(super) uid_validity: u32,
    /// The file name without flags.
    pub(super) base: &'a [u8],
    pub(super) guid: &'a [u8],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum UidPiece {
    Text(Box<[u8]>),
    Variable { variable: UidVariable, width: UidWidth, is_hex: bool, case: Option<LetterCase> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UidVariable {
    Uid,
    UidValidity,
    FileName,
    Guid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UidWidth {
    Any,
    /// Zeros are put before a shorter value.
    ZeroPadded(usize),
    /// A longer value is cut off.
    CutOff(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LetterCase {
    Lower,
    Upper,
}

impl UidFormat {
    /// Appends the unique-id. Bytes that a unique-id cannot contain (a file name may have them)
    /// become `_`.
    pub(super) fn write(&self, source: UidSource<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        for piece in &*self.pieces {
            match piece {
                UidPiece::Text(text) => out.extend_from_slice(text),
                UidPiece::Variable { variable, width, is_hex, case } => {
                    let begun_at = out.len();
                    variable.write(source, *is_hex, out);
                    if let Some(case) = case {
                        case.apply(&mut out[begun_at..]);
                    }
                    width.apply(begun_at, out);
                }
            }
        }
        make_printable(&mut out[start..]);
    }
}

/// Replaces bytes that a unique-id cannot contain.
pub(super) fn make_printable(uid: &mut [u8]) {
    for byte in uid.iter_mut().filter(|byte| !byte.is_ascii_graphic()) {
        *byte = b'_';
    }
}

impl Default for UidFormat {
    fn default() -> Self {
        let hex = |variable| UidPiece::Variable { variable, width: UidWidth::ZeroPadded(8), is_hex: true, case: None };
        UidFormat { pieces: [hex(UidVariable::Uid), hex(UidVariable::UidValidity)].into() }
    }
}

impl FromStr for UidFormat {
    type Err = InvalidUidFormat;

    fn from_str(text: &str) -> Result<UidFormat, InvalidUidFormat> {
        if text.len() > FORMAT_OCTETS_MAX {
            return Err(InvalidUidFormat::TooLong);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidUidFormat::NotPrintable);
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let piece;
            (piece, rest) = parse_piece(rest)?;
            pieces.push(piece);
        }
        let differs = |piece: &UidPiece| matches!(piece, UidPiece::Variable { variable, .. } if *variable != UidVariable::UidValidity);
        if !pieces.iter().any(differs) {
            return Err(InvalidUidFormat::SameForAll);
        }
        Ok(UidFormat { pieces: pieces.into() })
    }
}

/// The first piece of a format that is not empty, and the rest of it.
fn parse_piece(format: &str) -> Result<(UidPiece, &str), InvalidUidFormat> {
    let literal = |text: &str| UidPiece::Text(text.as_bytes().into());
    let Some(after) = format.strip_prefix('%') else {
        let end = format.find('%').unwrap_or(format.len());
        return Ok((literal(&format[..end]), &format[end..]));
    };
    if let Some(rest) = after.strip_prefix('%') {
        return Ok((literal("%"), rest));
    }
    let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (digits, after) = after.split_at(digits);
    let width = parse_width(digits)?;
    let modifiers = after.len() - after.trim_start_matches(['X', 'L', 'U']).len();
    let (modifiers, after) = after.split_at(modifiers);
    let (variable, rest) = parse_variable(after)?;
    let is_hex = modifiers.contains('X');
    if is_hex && !variable.is_number() {
        return Err(InvalidUidFormat::NotANumber);
    }
    // Modifiers apply in order, and the letters of a number are those that X makes.
    let case = modifiers.rsplit('X').next().and_then(|last| last.chars().next_back()).map(|letter| match letter {
        'L' => LetterCase::Lower,
        _ => LetterCase::Upper,
    });
    Ok((UidPiece::Variable { variable, width, is_hex, case }, rest))
}

fn parse_width(digits: &str) -> Result<UidWidth, InvalidUidFormat> {
    if digits.trim_start_matches('0').is_empty() {
        return Ok(UidWidth::Any);
    }
    let width = digits.parse().ok().filter(|&width| width <= WIDTH_MAX).ok_or(InvalidUidFormat::TooLong)?;
    Ok(if digits.starts_with('0') { UidWidth::ZeroPadded(width) } else { UidWidth::CutOff(width) })
}

fn parse_variable(text: &str) -> Result<(UidVariable, &str), InvalidUidFormat> {
    let (name, rest) = text.split_at(text.len().min(1));
    let variable = match name {
        "u" => UidVariable::Uid,
        "v" => UidVariable::UidValidity,
        "f" => UidVariable::FileName,
        "g" => UidVariable::Guid,
        other => return Err(InvalidUidFormat::UnknownVariable(format!("%{other}").into())),
    };
    Ok((variable, rest))
}

impl UidVariable {
    fn is_number(self) -> bool {
        matches!(self, UidVariable::Uid | UidVariable::UidValidity)
    }

    fn write(self, source: UidSource<'_>, is_hex: bool, out: &mut Vec<u8>) {
        let number = match self {
            UidVariable::Uid => source.uid,
            UidVariable::UidValidity => source.uid_validity,
            UidVariable::FileName => return out.extend_from_slice(source.base),
            UidVariable::Guid => return out.extend_from_slice(source.guid),
        };
        let written = if is_hex { write!(out, "{number:x}") } else { write!(out, "{number}") };
        written.expect("writing to memory does not fail");
    }
}

impl LetterCase {
    fn apply(self, text: &mut [u8]) {
        match self {
            LetterCase::Lower => text.make_ascii_lowercase(),
            LetterCase::Upper => text.make_ascii_uppercase(),
        }
    }
}

impl UidWidth {
    fn apply(self, start: usize, out: &mut Vec<u8>) {
        let octets = out.len() - start;
        match self {
            UidWidth::Any => {}
            UidWidth::CutOff(width) => out.truncate(start + octets.min(width)),
            UidWidth::ZeroPadded(width) => {
                let missing = width.saturating_sub(octets);
                out.resize(out.len() + missing, b'0');
                out[start..].rotate_right(missing);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOURCE: UidSource<'_> = UidSource { uid: 27, uid_validity: 0x5f3a_9c01, base: b"1.Ab.mx,S=5", guid: b"9f0e" };

    fn write(format: &str) -> String {
        let mut out = b"1 ".to_vec();
        format.parse::<UidFormat>().unwrap().write(SOURCE, &mut out);
        String::from_utf8(out).unwrap()[2..].to_owned()
    }

    /// As Dovecot 2.3 expands them.
    #[test]
    fn formats_are_written_as_dovecot_writes_them() {
        for (format, uid) in [
            ("%08Xu%08Xv", "0000001b5f3a9c01"),
            ("%v.%u", "1597676545.27"),
            ("%08XUu%08UXu", "0000001B0000001b"),
            ("%f", "1.Ab.mx,S=5"),
            ("%Lf", "1.ab.mx,s=5"),
            ("%4f", "1.Ab"),
            ("%g", "9f0e"),
            ("%%%1u%03u", "%2027"),
            ("UID%u-%v", "UID27-1597676545"),
        ] {
            assert_eq!(write(format), uid, "{format}");
        }
        let mut out = Vec::new();
        UidFormat::default().write(SOURCE, &mut out);
        assert_eq!(UidFormat::default(), "%08Xu%08Xv".parse().unwrap());
        assert_eq!(out, b"0000001b5f3a9c01");
    }

    #[test]
    fn formats_that_cannot_work_are_refused() {
        let error = |format: &str| format.parse::<UidFormat>().unwrap_err();
        for format in ["", "%v", "text", "%%u"] {
            assert_eq!(error(format), InvalidUidFormat::SameForAll, "{format}");
        }
        for format in ["%m", "%u%", "%8", "%{uid}", "%é"] {
            assert!(
                matches!(error(format), InvalidUidFormat::UnknownVariable(_) | InvalidUidFormat::NotPrintable),
                "{format}"
            );
        }
        assert_eq!(error("%u %v"), InvalidUidFormat::NotPrintable);
        assert_eq!(error("%Xf"), InvalidUidFormat::NotANumber);
        assert_eq!(error("%099999999999999999999u"), InvalidUidFormat::TooLong);
        assert_eq!(error(&"u".repeat(257)), InvalidUidFormat::TooLong);
    }

    #[test]
    fn a_unique_id_is_printable_whatever_the_file_is_called() {
        let mut out = Vec::new();
        "%f".parse::<UidFormat>().unwrap().write(UidSource { base: b"1 \xff\x01.~", ..SOURCE }, &mut out);
        assert_eq!(out, b"1___.~");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(format in "[%0-9a-zXLU{}.é ]{0,20}") {
            if let Ok(format) = format.parse::<UidFormat>() {
                format.write(SOURCE, &mut Vec::new());
            }
        }
    }
}
