//! The format of `dovecot-uidlist`: which file of a Maildir has which UID. Pure functions.
//!
//! ```text
//! 3 V1763000000 N4 G0123456789abcdef0123456789abcdef
//! 1 :1763000001.M1P7.mx,S=40,W=41
//! 3 W52 Pold-uidl :1763000002.M2P7.mx
//! ```
//!
//! Version 3 has a header with fields (V: UIDVALIDITY, N: next UID, G: GUID of the mailbox) and lines
//! with a UID, fields (W: size with CRLF line ends, P: POP3 UIDL, O: POP3 order, G: GUID), and a
//! colon with the file name without flags. Version 1 has `1 UIDVALIDITY NEXT` and `UID NAME`; it is
//! read and never written. Fields that are not known here are kept.
//!
//! UIDs ascend. A line without a line feed is still being written and not read. Anything else that
//! is not understood makes the whole file damaged: a UID must never be given to a second message, so
//! nothing may be guessed.

use std::ops::Range;

/// The longest line, as Dovecot reads them.
const LINE_OCTETS_MAX: usize = 4096;
/// The longest value of a field that is used, in bytes.
const VALUE_OCTETS_MAX: usize = 255;
/// The octets of a GUID in hexadecimal digits.
const GUID_OCTETS: usize = 32;

/// A parsed file. The text stays as it was read; records refer to it.
#[derive(Debug)]
pub(super) struct UidList {
    text: Vec<u8>,
    pub(super) header: UidListHeader,
    pub(super) records: Vec<UidRecord>,
    /// Whether lines can be appended to the file as it is.
    pub(super) is_appendable: bool,
}

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UidListHeader {
    /// Not 0.
    pub(super) uid_validity: u32,
    /// The UID of the next new message; higher than those of all records.
    pub(super) next_uid: u32,
    pub(super) guid: Option<[u8; GUID_OCTETS]>,
    /// Other fields, each with the space before it.
    pub(super) others: Vec<u8>,
}

/// The place of one line in the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct UidRecord {
    pub(super) uid: u32,
    /// Where its fields begin.
    fields: u32,
    /// Where its name begins.
    name: u32,
    /// Where its name ends.
    end: u32,
}

/// The fields of a line that are used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UidFields<'a> {
    /// W: the size with CRLF line ends.
    pub(super) octets: Option<u64>,
    /// P: the unique-id; empty if it is the file name.
    pub(super) uidl: Option<&'a [u8]>,
    /// O: messages with a lower one come first, those without come last.
    pub(super) order: Option<u32>,
    /// G: the GUID of the message.
    pub(super) guid: Option<&'a [u8]>,
}

/// What is wrong with a file, and in which line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub(super) struct UidListDamage {
    pub(super) line: usize,
    pub(super) what: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UidListVersion {
    One,
    Three,
}

impl UidList {
    /// Parses the bytes of a file of less than 4 GiB.
    pub(super) fn parse(mut text: Vec<u8>) -> Result<UidList, UidListDamage> {
        let whole = memchr::memrchr(b'\n', &text).map_or(0, |end| end + 1);
        let is_whole = whole == text.len();
        text.truncate(whole);
        let first = memchr::memchr(b'\n', &text).ok_or(UidListDamage { line: 1, what: "no header" })?;
        let (version, mut header) =
            parse_header(without_cr(&text[..first])).map_err(|what| UidListDamage { line: 1, what })?;
        let records = parse_records(&text, first + 1, version)?;
        if let Some(last) = records.last() {
            if version == UidListVersion::One && last.uid >= header.next_uid {
                return Err(UidListDamage { line: records.len() + 1, what: "a UID that is not below the next UID" });
            }
            header.next_uid = header.next_uid.max(last.uid + 1);
        }
        let is_appendable = is_whole && version == UidListVersion::Three && header.guid.is_some();
        Ok(UidList { text, header, records, is_appendable })
    }

    /// The file name without flags.
    pub(super) fn name(&self, record: &UidRecord) -> &[u8] {
        &self.text[record.name as usize..record.end as usize]
    }

    pub(super) fn fields(&self, record: &UidRecord) -> UidFields<'_> {
        let mut found = UidFields::default();
        for field in self.valid_fields(record) {
            let value = &field[1..];
            match field[0] {
                b'W' => found.octets = parse_number(value),
                b'O' => found.order = parse_number(value).and_then(|order| order.try_into().ok()),
                b'P' if value.len() <= VALUE_OCTETS_MAX => found.uidl = Some(value),
                b'G' if (1..=VALUE_OCTETS_MAX).contains(&value.len()) => found.guid = Some(value),
                _ => {}
            }
        }
        found
    }

    /// Appends the line of a record; with a size, that becomes its field W.
    pub(super) fn write_record(&self, record: &UidRecord, octets: Option<u64>, out: &mut Vec<u8>) {
        out.extend_from_slice(record.uid.to_string().as_bytes());
        let kept = self.valid_fields(record).filter(|field| octets.is_none() || field[0] != b'W');
        for field in kept {
            out.push(b' ');
            out.extend_from_slice(field);
        }
        write_end(octets, self.name(record), out);
    }

    /// The fields, each with its key. Dovecot also drops those with other keys than letters.
    fn valid_fields(&self, record: &UidRecord) -> impl Iterator<Item = &[u8]> {
        // Without the colon before the name; empty in version 1.
        let fields = &self.text[record.fields as usize..(record.name as usize).max(record.fields as usize)];
        let fields = fields.strip_suffix(b":").unwrap_or(fields);
        fields.split(|&byte| byte == b' ').filter(|field| field.first().is_some_and(u8::is_ascii_uppercase))
    }
}

impl UidListHeader {
    /// Appends the header line.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("3 V{} N{}", self.uid_validity, self.next_uid).as_bytes());
        if let Some(guid) = &self.guid {
            out.extend_from_slice(b" G");
            out.extend_from_slice(guid);
        }
        out.extend_from_slice(&self.others);
        out.push(b'\n');
    }
}

/// Appends the line of a new message; `octets` unless the name has its size.
pub(super) fn write_new(uid: u32, octets: Option<u64>, name: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(uid.to_string().as_bytes());
    write_end(octets, name, out);
}

fn write_end(octets: Option<u64>, name: &[u8], out: &mut Vec<u8>) {
    if let Some(octets) = octets {
        out.extend_from_slice(format!(" W{octets}").as_bytes());
    }
    out.extend_from_slice(b" :");
    out.extend_from_slice(name);
    out.push(b'\n');
}

fn parse_header(line: &[u8]) -> Result<(UidListVersion, UidListHeader), &'static str> {
    let (version, header) = match line {
        [b'1', b' ', numbers @ ..] => (UidListVersion::One, parse_numbers(numbers)),
        [b'3', b' ', fields @ ..] => (UidListVersion::Three, parse_header_fields(fields)?),
        _ => return Err("not version 1 or 3"),
    };
    if header.uid_validity == 0 || header.next_uid == 0 {
        return Err("no UIDVALIDITY or no next UID");
    }
    Ok((version, header))
}

/// The header of version 1; with 0 for what is not there.
fn parse_numbers(numbers: &[u8]) -> UidListHeader {
    let mut numbers = numbers.split(|&byte| byte == b' ').filter(|number| !number.is_empty()).map(parse_u32);
    let mut number = || numbers.next().flatten().unwrap_or(0);
    UidListHeader { uid_validity: number(), next_uid: number(), guid: None, others: Vec::new() }
}

fn parse_header_fields(fields: &[u8]) -> Result<UidListHeader, &'static str> {
    let mut header = UidListHeader { uid_validity: 0, next_uid: 0, guid: None, others: Vec::new() };
    for field in fields.split(|&byte| byte == b' ') {
        match field {
            [] => {}
            [b'V', value @ ..] => header.uid_validity = parse_u32(value).unwrap_or(0),
            [b'N', value @ ..] => header.next_uid = parse_u32(value).unwrap_or(0),
            [b'G', value @ ..] => {
                let is_hex = value.iter().all(u8::is_ascii_hexdigit);
                header.guid = Some(value.try_into().ok().filter(|_| is_hex).ok_or("not a GUID")?);
            }
            other => {
                header.others.push(b' ');
                header.others.extend_from_slice(other);
            }
        }
    }
    Ok(header)
}

fn parse_records(text: &[u8], start: usize, version: UidListVersion) -> Result<Vec<UidRecord>, UidListDamage> {
    // About as many as there are, in most Maildirs; it grows if not.
    let mut records: Vec<UidRecord> = Vec::with_capacity(text.len() / 64);
    let (mut at, mut last_uid) = (start, 0);
    for end in memchr::memchr_iter(b'\n', &text[start..]).map(|end| start + end) {
        let damage = |what| UidListDamage { line: records.len() + 2, what };
        let record = parse_record(text, at..end, version).map_err(damage)?;
        if record.uid <= last_uid {
            return Err(damage("UIDs do not ascend"));
        }
        last_uid = record.uid;
        records.push(record);
        at = end + 1;
    }
    Ok(records)
}

/// The line at this place of the text, given without its line feed.
fn parse_record(text: &[u8], place: Range<usize>, version: UidListVersion) -> Result<UidRecord, &'static str> {
    if place.len() > LINE_OCTETS_MAX {
        return Err("longer than 4096 bytes");
    }
    let line = without_cr(&text[place.clone()]);
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let uid = parse_u32(&line[..digits]).filter(|&uid| uid > 0 && uid < u32::MAX).ok_or("not a UID")?;
    let spaces = line[digits..].iter().take_while(|&&byte| byte == b' ').count();
    if spaces == 0 {
        return Err("no space after the UID");
    }
    let fields = digits + spaces;
    let name = match version {
        UidListVersion::One => fields,
        UidListVersion::Three => find_name(line, fields).ok_or("no file name")?,
    };
    let full_name = &line[name..];
    // Older versions of Dovecot wrote flags too.
    let name_octets = memchr::memchr2(b':', b'/', full_name).unwrap_or(full_name.len());
    if name_octets == 0 || memchr::memchr(b'/', full_name).is_some() {
        return Err("not a file name");
    }
    let at = |offset: usize| u32::try_from(place.start + offset).map_err(|_| "beyond 4 GiB");
    Ok(UidRecord { uid, fields: at(fields)?, name: at(name)?, end: at(name + name_octets)? })
}

/// Where the name begins: after the colon that begins a word.
fn find_name(line: &[u8], mut at: usize) -> Option<usize> {
    while *line.get(at)? != b':' {
        at += memchr::memchr(b' ', &line[at..])?;
        at += line[at..].iter().take_while(|&&byte| byte == b' ').count();
    }
    Some(at + 1)
}

/// Dovecot takes CRLF for a line end too.
fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn parse_u32(digits: &[u8]) -> Option<u32> {
    parse_number(digits)?.try_into().ok()
}

/// Digits only.
pub(super) fn parse_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &digit| {
        let value = digit.checked_sub(b'0').filter(|&value| value <= 9)?;
        number.checked_mul(10)?.checked_add(value.into())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: &str = "3 V1763000000 N9 G0123456789abcdef0123456789ABCDEF\n";

    fn parse(text: &str) -> Result<UidList, UidListDamage> {
        UidList::parse(text.into())
    }

    fn rewrite(list: &UidList) -> String {
        let mut out = Vec::new();
        list.header.write(&mut out);
        list.records.iter().for_each(|record| list.write_record(record, None, &mut out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn version_3_is_parsed_and_written_back_unchanged() {
        let text = format!(
            "{}1 :a,S=1\n3 W52 Pold-uidl O7 Gaf Zunknown :b\n8 P :c\n",
            HEADER.replace('\n', " P%v.%u Xmore\n")
        );
        let list = parse(&text).unwrap();
        assert!(list.is_appendable);
        assert_eq!((list.header.uid_validity, list.header.next_uid), (1_763_000_000, 9));
        let names: Vec<_> = list.records.iter().map(|record| (record.uid, list.name(record))).collect();
        assert_eq!(names, [(1, &b"a,S=1"[..]), (3, b"b"), (8, b"c")]);
        let fields: Vec<_> = list.records.iter().map(|record| list.fields(record)).collect();
        assert_eq!(fields[0], UidFields::default());
        let expected = UidFields { octets: Some(52), uidl: Some(b"old-uidl"), order: Some(7), guid: Some(b"af") };
        assert_eq!(fields[1], expected);
        assert_eq!(fields[2].uidl, Some(&b""[..]));
        assert_eq!(rewrite(&list), text);
    }

    #[test]
    fn a_new_size_replaces_the_old_one() {
        let list = parse(&format!("{HEADER}3 W52 Pold :b\n4 :c\n")).unwrap();
        let mut out = Vec::new();
        list.records.iter().for_each(|record| list.write_record(record, Some(7), &mut out));
        write_new(5, Some(8), b"d", &mut out);
        write_new(6, None, b"e", &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "3 Pold W7 :b\n4 W7 :c\n5 W8 :d\n6 :e\n");
    }

    #[test]
    fn version_1_is_read() {
        let list = parse("1 1763000000 9\n1 a:2,S\n2 b c\n").unwrap();
        assert!(!list.is_appendable);
        let names: Vec<_> = list.records.iter().map(|record| (record.uid, list.name(record))).collect();
        assert_eq!(names, [(1, &b"a"[..]), (2, b"b c")]);
        assert_eq!(list.fields(&list.records[0]), UidFields::default());
        assert_eq!(rewrite(&list), "3 V1763000000 N9\n1 :a\n2 :b c\n");
    }

    #[test]
    fn what_cannot_be_appended_to_is_found_out() {
        let unfinished = parse(&format!("{HEADER}1 :a\n2 :unfinish")).unwrap();
        assert!(!unfinished.is_appendable);
        assert_eq!(unfinished.records.len(), 1);
        assert!(!parse("3 V1 N1\n").unwrap().is_appendable, "no GUID");
        let ahead = parse(&format!("{HEADER}20 :a\n")).unwrap();
        assert_eq!(ahead.header.next_uid, 21);
    }

    #[test]
    fn damage_is_named_with_its_line() {
        for text in
            ["", "3 V1 N1", "2 V1 N1\n", "3 V0 N1\n", "3 V1\n", "3 V1 N1 Gshort\n", "3 V99999999999 N1\n", "1 5\n"]
        {
            assert_eq!(parse(text).unwrap_err().line, 1, "{text:?}");
        }
        assert_eq!(parse("1 5 2\n2 a\n").unwrap_err().line, 2);
        let long = format!("1 :{}\n", "x".repeat(LINE_OCTETS_MAX));
        for (lines, line) in [
            ("1 a\n", 2),
            ("1 :a\n1 :b\n", 3),
            ("1 :a\n0 :b\n", 3),
            ("4294967295 :b\n", 2),
            ("1:b\n", 2),
            ("1 :\n", 2),
            ("1 :a/b\n", 2),
            ("\0\0\0\0\n", 2),
            ("\n", 2),
            (&*long, 2),
        ] {
            assert_eq!(parse(&format!("{HEADER}{lines}")).unwrap_err().line, line, "{lines:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = UidList::parse(bytes.clone());
            if let Ok(list) = UidList::parse([HEADER.as_bytes(), &bytes].concat()) {
                prop_assert!(list.records.iter().all(|record| record.uid < list.header.next_uid));
            }
        }

        #[test]
        fn what_is_written_is_parsed(
            lines in prop::collection::btree_map(
                1u32..u32::MAX,
                (prop::collection::vec("[A-Z][!-~]{0,8}", 0..4), "[^/:\\r\\n\\x00]{1,40}"),
                0..20,
            ),
        ) {
            let next_uid = lines.keys().next_back().map_or(1, |last| last + 1);
            let mut text = format!("3 V7 N{next_uid} G{}\n", "0f".repeat(16));
            for (uid, (fields, name)) in &lines {
                text.push_str(&uid.to_string());
                fields.iter().for_each(|field| text.push_str(&format!(" {field}")));
                text.push_str(&format!(" :{name}\n"));
            }
            let list = parse(&text).unwrap();
            prop_assert!(list.is_appendable);
            prop_assert_eq!(list.records.len(), lines.len());
            for (record, (uid, (_, name))) in list.records.iter().zip(&lines) {
                prop_assert_eq!((record.uid, list.name(record)), (*uid, name.as_bytes()));
            }
            prop_assert_eq!(rewrite(&list), text);
        }
    }
}
