//! Messages of random parts, converted to 7 bits: an independent parser (`mail-parser`) finds the
//! same content in the result, which has 7 bits and short lines, wherever the input was split. And
//! random octets, which are no MIME message at all, are converted without losing their text.

use std::sync::Arc;

use mail_parser::{MessageParser, MessagePart, PartType};
use proptest::prelude::*;
use protocol::mime::seven_bit::{SevenBitConverter, SevenBitScan, to_seven_bit};

/// A part of a message that is to be made.
#[derive(Clone, Debug)]
enum Part {
    Leaf { fields: String, content: Vec<u8> },
    Multipart(Vec<Part>),
    Message(Box<Part>),
}

fn leaf() -> impl Strategy<Value = Part> {
    let kinds = prop_oneof![
        Just("Content-Type: text/plain; charset=iso-8859-1\r\n"),
        Just("Content-Type: TEXT/html;\r\n charset=\"iso-8859-1\"\r\n"),
        Just("Content-Type: application/octet-stream\r\n"),
        Just("Content-Disposition: attachment\r\nContent-Type: image/png; name=\"a;b=c\"\r\n"),
    ];
    let encodings = prop_oneof![
        Just(""),
        Just("Content-Transfer-Encoding: 8bit\r\n"),
        Just("content-transfer-encoding:\r\n Binary\r\n"),
        Just("Content-Transfer-Encoding: 7bit\r\n"),
    ];
    (kinds, encodings, content())
        .prop_map(|(kind, encoding, content)| Part::Leaf { fields: format!("{kind}{encoding}"), content })
}

/// Lines with CRLF, and what is special in them.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => "[ -~]{0,60}".prop_map(String::into_bytes),
        2 => prop::collection::vec(128_u8.., 1..20),
        1 => Just(b"--".to_vec()),
        1 => Just(b"--boundary".to_vec()),
        1 => Just(b"From . ..=E4 = \t".to_vec()),
        1 => (900_usize..3000, b'!'..=b'~').prop_map(|(count, octet)| vec![octet; count]),
        3 => Just(b"\r\n".to_vec()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| [pieces.concat(), b"x".to_vec()].concat())
}

fn part() -> impl Strategy<Value = Part> {
    leaf().prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 1..4).prop_map(Part::Multipart),
            // The parser fails at a message that is nothing but another message.
            1 => inner.prop_map(|part| match part {
                Part::Message(_) => part,
                part => Part::Message(Box::new(part)),
            }),
        ]
    })
}

/// Writes a part; each multipart has a boundary of its own, and one begins like another.
fn write(part: &Part, number: &mut usize, out: &mut Vec<u8>) {
    match part {
        Part::Leaf { fields, content } => {
            out.extend_from_slice(fields.as_bytes());
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(content);
        }
        Part::Message(inner) => {
            out.extend_from_slice(b"Content-Type: message/rfc822\r\n\r\nSubject: inner\r\n");
            write(inner, number, out);
        }
        Part::Multipart(parts) => {
            *number += 1;
            let boundary = format!("=_b{}_{number}", "x".repeat(*number % 3));
            out.extend_from_slice(format!("Content-Type: multipart/mixed; boundary=\"{boundary}\"\r\n\r\n").as_bytes());
            for part in parts {
                out.extend_from_slice(format!("--{boundary}\r\n").as_bytes());
                write(part, number, out);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        }
    }
}

fn message(part: &Part) -> Vec<u8> {
    let mut out = b"From: a@example.org\r\nMIME-Version: 1.0\r\n".to_vec();
    write(part, &mut 0, &mut out);
    out.extend_from_slice(b"\r\n");
    out
}

/// The contents of all leaves, decoded.
fn contents(message: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    collect(&MessageParser::new().parse(message).expect("it has a header"), &mut found);
    found
}

fn collect(message: &mail_parser::Message<'_>, found: &mut Vec<Vec<u8>>) {
    let decoded = |part: &MessagePart<'_>| part.contents().to_vec();
    for part in &message.parts {
        match &part.body {
            PartType::Message(inner) => collect(inner, found),
            PartType::Multipart(_) => {}
            _ => found.push(decoded(part)),
        }
    }
}

fn converted_in_pieces(message: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut pieces = Vec::new();
    let mut rest = message;
    for cut in cuts {
        let (piece, left) = rest.split_at((*cut).min(rest.len()));
        pieces.push(piece);
        rest = left;
    }
    pieces.push(rest);
    let mut scan = SevenBitScan::new();
    pieces.iter().for_each(|piece| scan.handle_input(piece));
    let mut converter = SevenBitConverter::new(Arc::new(scan.finish().expect("few parts")));
    let mut out = Vec::new();
    pieces.iter().for_each(|piece| converter.handle_input(piece, &mut out));
    converter.finish(&mut out);
    out
}

fn is_seven_bit(message: &[u8]) -> bool {
    message.is_ascii() && message.split(|octet| *octet == b'\n').all(|line| line.len() <= 999)
}

proptest! {
    #[test]
    fn an_independent_parser_finds_the_same_contents(part in part()) {
        let message = message(&part);
        let converted = to_seven_bit(&message).unwrap();
        prop_assert!(is_seven_bit(&converted), "{}", converted.escape_ascii());
        prop_assert_eq!(contents(&converted), contents(&message), "{}", converted.escape_ascii());
        prop_assert_eq!(&*to_seven_bit(&converted).unwrap(), &*converted);
    }

    #[test]
    fn the_result_does_not_depend_on_how_the_input_is_split(
        part in part(),
        cuts in prop::collection::vec(0_usize..200, 0..30),
    ) {
        let message = message(&part);
        prop_assert_eq!(&converted_in_pieces(&message, &cuts), &*to_seven_bit(&message).unwrap());
    }

    /// Damaged messages, and converted ones, which need no conversion any more.
    #[test]
    fn damaged_messages_are_converted_once(
        part in part(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_usize..4), 1..8),
        cuts in prop::collection::vec(0_usize..200, 0..30),
    ) {
        let mut message = message(&part);
        for (place, octet, removed) in edits {
            let start = place.index(message.len());
            let end = (start + removed).min(message.len());
            message.splice(start..end, [octet]);
        }
        let converted = to_seven_bit(&message).unwrap();
        prop_assert_eq!(&converted_in_pieces(&message, &cuts), &*converted);
        prop_assert_eq!(&*to_seven_bit(&converted).unwrap(), &*converted, "{}", message.escape_ascii());
    }

    /// Headers stay as they are, whatever is in them; of the rest, all text is there.
    #[test]
    fn octets_that_are_no_message_lose_nothing(
        header in "([A-Za-z-]{1,8}: ?[ -~]{0,30}\r\n|Content-Type: [a-z]{0,9}/?[a-z]{0,5}; ?boundary=[a-c]?\r\n|[ -~]{0,9}\r\n){0,6}",
        body in prop::collection::vec(
            prop_oneof![
                Just(b"\r\n".to_vec()), Just(b"--a".to_vec()), Just(b"--".to_vec()), Just(b"\r".to_vec()), Just(b"\n".to_vec()),
                "[a-z]{1,8}".prop_map(String::into_bytes), prop::collection::vec(128_u8.., 1..4),
            ],
            0..40,
        ),
        cuts in prop::collection::vec(0_usize..20, 0..30),
    ) {
        let message = [header.into_bytes(), b"\r\n".to_vec(), body.concat()].concat();
        let converted = to_seven_bit(&message).unwrap();
        prop_assert_eq!(&converted_in_pieces(&message, &cuts), &*converted);
        let is_encoded = memchr::memmem::find(&converted, b"base64").is_some();
        let letters = |text: &[u8]| text.iter().filter(|octet| octet.is_ascii_lowercase()).count();
        prop_assert!(is_encoded || letters(&converted) >= letters(&message), "{}", converted.escape_ascii());
    }
}

/// The result for every place where a message can be split once.
#[test]
fn a_message_may_be_split_anywhere() {
    let message = b"Content-Type: multipart/mixed; boundary=a\r\n\r\npre \xe4\r\n--a\r\nContent-Transfer-Encoding: 8bit\r\n\r\n\
        \xe4 \r\n\r\n--ab\r\n--a\r\nContent-Type: x/y\r\n\r\n\xff\r\n--a\r\nContent-Type: message/rfc822\r\n\r\nA: b\r\n\r\n\xe4\r\n--a--\r\n\xe4\r\n";
    let whole = to_seven_bit(message).unwrap().into_owned();
    for place in 0..=message.len() {
        assert_eq!(converted_in_pieces(message, &[place]), whole, "split at {place}");
    }
}
