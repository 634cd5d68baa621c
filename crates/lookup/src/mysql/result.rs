//! The answers to prepared statements (binary protocol). No I/O.
//!
//! Text is a value as it is, a number as text, NULL not at all. Dates, times and octets that are not
//! UTF-8 make the answer invalid.

use super::packet::{PacketReader, ProtocolError, ServerError};
use crate::LookupAnswer;

/// Maximum rows of one answer.
const ROWS_MAX: usize = 100_000;
/// Maximum octets of the values of one answer.
const OCTETS_MAX: usize = 64 * 1024 * 1024;
/// Maximum columns of a result.
const COLUMNS_MAX: usize = 1000;

const END_MARK: u8 = 0xfe;
/// Contents that begin with the mark and are longer are rows or lengths.
const END_OCTETS_MAX: usize = 9;
const MORE_RESULTS: u16 = 8;
const UNSIGNED: u16 = 0x20;

const TINY: u8 = 1;
const SHORT: u8 = 2;
const LONG: u8 = 3;
const FLOAT: u8 = 4;
const DOUBLE: u8 = 5;
const NULL: u8 = 6;
const TIMESTAMP: u8 = 7;
const LONGLONG: u8 = 8;
const INT24: u8 = 9;
const DATE: u8 = 10;
const TIME: u8 = 11;
const DATETIME: u8 = 12;
const YEAR: u8 = 13;

/// A prepared statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prepared {
    pub(super) statement: u32,
    pub(super) columns: usize,
    pub(super) parameters: usize,
}

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    name: Box<str>,
    kind: u8,
    is_unsigned: bool,
}

/// The first packet of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultStart {
    /// The descriptions of this many columns follow, and then rows.
    Columns(usize),
    /// There are no rows.
    NoRows { more: bool },
}

/// A packet after the columns.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RowOrEnd<'a> {
    /// The content of a row.
    Row(&'a [u8]),
    End {
        more: bool,
    },
}

/// Why an answer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("{0}")]
    Server(ServerError),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("the column '{column}' of the query holds {what}, not text{remedy}")]
    Column { column: Box<str>, what: &'static str, remedy: &'static str },
    #[error("more than {ROWS_MAX} rows in one answer")]
    TooManyRows,
    #[error("more than {} MiB in one answer", OCTETS_MAX / 1024 / 1024)]
    TooManyOctets,
}

impl Prepared {
    /// Reads the answer to a statement to prepare.
    pub(super) fn read(content: &[u8]) -> Result<Prepared, AnswerError> {
        let mut reader = PacketReader::new(content);
        match reader.u8()? {
            0 => {}
            ServerError::MARK => return Err(AnswerError::Server(ServerError::read(content)?)),
            _ => return Err(ProtocolError("not an answer to a statement").into()),
        }
        let (statement, columns, parameters) = (reader.u32()?, reader.u16()?, reader.u16()?);
        Ok(Prepared { statement, columns: columns.into(), parameters: parameters.into() })
    }
}

impl Column {
    /// Reads the description of a column.
    pub(super) fn read(content: &[u8]) -> Result<Column, ProtocolError> {
        let mut reader = PacketReader::new(content);
        for _ in ["catalog", "schema", "table", "original table"] {
            reader.string()?;
        }
        let name = String::from_utf8_lossy(reader.string()?).into();
        reader.string()?;
        // The length of what follows, the character set, and the width.
        reader.skip(1 + 2 + 4)?;
        Ok(Column { name, kind: reader.u8()?, is_unsigned: reader.u16()? & UNSIGNED != 0 })
    }

    /// A column without a name. For fuzzing.
    pub(super) fn of_kind(kind: u8) -> Column {
        Column { name: Box::default(), kind, is_unsigned: false }
    }

    /// Reads a value of this column, which is not NULL.
    fn value(&self, reader: &mut PacketReader<'_>) -> Result<Option<String>, AnswerError> {
        let invalid = |what, remedy| AnswerError::Column { column: self.name.clone(), what, remedy };
        let number = |signed: i64, unsigned: u64| match self.is_unsigned {
            true => unsigned.to_string(),
            false => signed.to_string(),
        };
        Ok(Some(match self.kind {
            NULL => return Ok(None),
            TINY => reader.u8().map(|n| number(i64::from(n as i8), n.into()))?,
            SHORT | YEAR => reader.u16().map(|n| number(i64::from(n as i16), n.into()))?,
            LONG | INT24 => reader.u32().map(|n| number(i64::from(n as i32), n.into()))?,
            LONGLONG => reader.array().map(u64::from_le_bytes).map(|n| number(n as i64, n))?,
            FLOAT => reader.array().map(f32::from_le_bytes)?.to_string(),
            DOUBLE => reader.array().map(f64::from_le_bytes)?.to_string(),
            DATE | DATETIME | TIME | TIMESTAMP => return Err(invalid("a date or time", "; write CAST(... AS CHAR)")),
            _ => {
                let text = str::from_utf8(reader.string()?);
                text.map_err(|_| invalid("octets that are not UTF-8", ""))?.to_owned()
            }
        }))
    }
}

impl ResultStart {
    /// Reads the first packet of a result.
    pub(super) fn read(content: &[u8]) -> Result<ResultStart, AnswerError> {
        let mut reader = PacketReader::new(content);
        match content.first() {
            Some(0) => {
                reader.skip(1)?;
                // The rows it has changed, and the last id.
                reader.length()?;
                reader.length()?;
                Ok(ResultStart::NoRows { more: reader.u16()? & MORE_RESULTS != 0 })
            }
            Some(&ServerError::MARK) => Err(AnswerError::Server(ServerError::read(content)?)),
            // 0xfb would ask us for a local file.
            Some(0xfb) | None => Err(ProtocolError("not a result").into()),
            Some(_) => match reader.length()? {
                columns if columns <= COLUMNS_MAX => Ok(ResultStart::Columns(columns)),
                _ => Err(ProtocolError("too many columns").into()),
            },
        }
    }
}

/// Reads a packet after the columns.
pub(super) fn row_or_end(content: &[u8]) -> Result<RowOrEnd<'_>, AnswerError> {
    match content {
        [0, row @ ..] => Ok(RowOrEnd::Row(row)),
        [END_MARK, end @ ..] if content.len() < END_OCTETS_MAX => {
            let mut reader = PacketReader::new(end);
            reader.skip(2)?;
            Ok(RowOrEnd::End { more: reader.u16()? & MORE_RESULTS != 0 })
        }
        [ServerError::MARK, ..] => Err(AnswerError::Server(ServerError::read(content)?)),
        _ => Err(ProtocolError("not a row").into()),
    }
}

/// Answers, collected row by row.
pub(super) struct RowCollector {
    found: Vec<Option<Vec<String>>>,
    /// Whether the first column is the number of the key, and not a value.
    is_numbered: bool,
    rows: usize,
    octets: usize,
}

impl RowCollector {
    /// No rows yet. With several keys, the first column is the number of the key.
    pub(super) fn new(keys: usize) -> Self {
        RowCollector { found: vec![None; keys], is_numbered: keys > 1, rows: 0, octets: 0 }
    }

    /// Adds the content of a row.
    pub(super) fn add(&mut self, columns: &[Column], row: &[u8]) -> Result<(), AnswerError> {
        self.rows += 1;
        if self.rows > ROWS_MAX {
            return Err(AnswerError::TooManyRows);
        }
        let mut reader = PacketReader::new(row);
        // The first two bits are reserved.
        let nulls = reader.take((columns.len() + 2).div_ceil(8))?;
        let is_null = |place: usize| nulls[(place + 2) / 8] & 1 << ((place + 2) % 8) != 0;
        let mut number = (!self.is_numbered).then_some(0);
        let mut values = Vec::new();
        for (place, column) in columns.iter().enumerate() {
            let value = if is_null(place) { None } else { column.value(&mut reader)? };
            match number {
                Some(_) => values.extend(value),
                None => number = Some(self.key_number(value)?),
            }
        }
        self.octets += values.iter().map(String::len).sum::<usize>();
        if self.octets > OCTETS_MAX {
            return Err(AnswerError::TooManyOctets);
        }
        let number = number.ok_or(ProtocolError("a row without columns"))?;
        self.found[number].get_or_insert_default().extend(values);
        Ok(())
    }

    fn key_number(&self, value: Option<String>) -> Result<usize, ProtocolError> {
        let number = value.and_then(|value| value.parse().ok()).filter(|number| *number < self.found.len());
        number.ok_or(ProtocolError("a row of no key"))
    }

    /// The answers in the order of the keys.
    pub(super) fn into_answers(self) -> Vec<LookupAnswer> {
        self.found.into_iter().map(|values| values.map_or(LookupAnswer::NotFound, LookupAnswer::Found)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::packet::push_string;
    use super::*;

    const VAR_STRING: u8 = 253;

    fn column(name: &str, kind: u8, flags: u16) -> Column {
        let mut content = Vec::new();
        for text in ["def", "mail", "q", "alias", name, name] {
            push_string(&mut content, text.as_bytes());
        }
        content.extend_from_slice(&[0x0c, 45, 0, 0, 1, 0, 0, kind]);
        content.extend_from_slice(&flags.to_le_bytes());
        content.extend_from_slice(&[0, 0, 0]);
        Column::read(&content).unwrap()
    }

    fn found(values: &[&str]) -> LookupAnswer {
        LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
    }

    #[test]
    fn rows_belong_to_the_key_of_their_number() {
        let columns = [column("0", LONG, 0), column("goto", VAR_STRING, 0), column("quota", LONGLONG, UNSIGNED)];
        let mut rows = RowCollector::new(3);
        rows.add(&columns, b"\0\x02\0\0\0\x03a@x\xff\xff\xff\xff\xff\xff\xff\xff").unwrap();
        rows.add(&columns, b"\0\0\0\0\0\x01b\x07\0\0\0\0\0\0\0").unwrap();
        // Both values are NULL.
        rows.add(&columns, b"\x18\x02\0\0\0").unwrap();
        let expected = [found(&["b", "7"]), LookupAnswer::NotFound, found(&["a@x", "18446744073709551615"])];
        assert_eq!(rows.into_answers(), expected);
    }

    #[test]
    fn every_number_becomes_text() {
        for (kind, octets, expected) in [
            (TINY, &[0xff][..], "-1"),
            (SHORT, &[0, 0x80], "-32768"),
            (YEAR, &[0xea, 7], "2026"),
            (LONG, &[0xfe, 0xff, 0xff, 0xff], "-2"),
            (FLOAT, &1.5f32.to_le_bytes(), "1.5"),
            (DOUBLE, &0.25f64.to_le_bytes(), "0.25"),
            (246, b"\x041.50", "1.50"),
        ] {
            let mut rows = RowCollector::new(1);
            rows.add(&[column("n", kind, 0)], &[&[0], octets].concat()).unwrap();
            assert_eq!(rows.into_answers(), [found(&[expected])], "{kind}");
        }
    }

    #[test]
    fn what_is_no_text_is_told_with_its_column() {
        let add =
            |kind, row: &[u8]| RowCollector::new(1).add(&[column("since", kind, 0)], row).unwrap_err().to_string();
        assert!(add(DATETIME, b"\0\x04abcd").starts_with("the column 'since' of the query holds a date or time"));
        assert!(add(VAR_STRING, b"\0\x01\xff").contains("octets that are not UTF-8"));
        assert!(add(VAR_STRING, b"\0\x05a").contains("a packet is too short"));
        let numbered = [column("0", LONG, 0)];
        for row in [&b"\0\x02\0\0\0"[..], b"\0\xff\xff\xff\xff", b"\x04"] {
            assert!(RowCollector::new(2).add(&numbered, row).is_err(), "{row:?}");
        }
    }

    #[test]
    fn rows_are_counted() {
        let mut rows = RowCollector::new(1);
        let columns = [column("a", NULL, 0)];
        let added: Vec<_> = (0..=ROWS_MAX).map(|_| rows.add(&columns, &[0])).collect();
        assert_eq!(added.iter().position(Result::is_err), Some(ROWS_MAX));
        assert_eq!(added[ROWS_MAX], Err(AnswerError::TooManyRows));
    }

    #[test]
    fn starts_and_ends_are_recognized() {
        assert_eq!(ResultStart::read(b"\x03"), Ok(ResultStart::Columns(3)));
        assert_eq!(ResultStart::read(b"\0\0\0\x0a\0\0\0"), Ok(ResultStart::NoRows { more: true }));
        assert!(ResultStart::read(b"\xfb/etc/passwd").is_err() && ResultStart::read(b"").is_err());
        assert!(ResultStart::read(b"\xfc\xff\xff").is_err());
        assert_eq!(row_or_end(b"\xfe\0\0\x02\0"), Ok(RowOrEnd::End { more: false }));
        assert_eq!(row_or_end(b"\0\0"), Ok(RowOrEnd::Row(b"\0")));
        let error = row_or_end(b"\xff\x25\x05#70100killed").unwrap_err();
        assert_eq!(error.to_string(), "killed (error 1317, SQLSTATE 70100)");
        assert!(row_or_end(b"\x07").is_err() && row_or_end(b"\xfe\0").is_err());
    }

    proptest! {
        #[test]
        fn any_octets_are_read_or_refused(octets in proptest::collection::vec(any::<u8>(), 0..40)) {
            super::super::read_packet(&octets);
        }
    }
}
