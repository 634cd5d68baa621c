//! Messages and what becomes of them.

use super::*;
use crate::mime::{DEPTH_MAX, PARTS_MAX};

/// Lines of text with CRLF; `\xe4` and the like stand for octets, the rest is as in Rust.
fn message(text: &[u8]) -> Vec<u8> {
    let lines: Vec<&[u8]> = text.split(|octet| *octet == b'\n').collect();
    lines.join(&b"\r\n"[..])
}

/// The converted message, with LF; the input may be split anywhere.
fn converted(text: &[u8]) -> String {
    let message = message(text);
    let whole = to_seven_bit(&message).unwrap().into_owned();
    for octets in [1, 2, 3, 5, 7, 100] {
        assert_eq!(converted_by(&message, octets), whole, "pieces of {octets}");
    }
    String::from_utf8(whole).unwrap().replace("\r\n", "\n")
}

fn converted_by(message: &[u8], octets: usize) -> Vec<u8> {
    let mut scan = SevenBitScan::new();
    message.chunks(octets).for_each(|piece| scan.handle_input(piece));
    let mut converter = SevenBitConverter::new(Arc::new(scan.finish().unwrap()));
    let mut out = Vec::new();
    message.chunks(octets).for_each(|piece| converter.handle_input(piece, &mut out));
    converter.finish(&mut out);
    out
}

fn is_unchanged(text: &[u8]) -> bool {
    let message = message(text);
    assert_eq!(converted_by(&message, 1) == message, to_seven_bit(&message).unwrap() == message);
    matches!(to_seven_bit(&message), Ok(Cow::Borrowed(_)))
}

#[test]
fn text_becomes_quoted_printable() {
    let found = converted(
        b"Subject: x\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding:\n 8bit\nTo: y\n\n\
        caf\xc3\xa9 = 1 \n\n.dot\n",
    );
    assert_eq!(
        found,
        "Subject: x\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
        Content-Transfer-Encoding: quoted-printable\nTo: y\n\ncaf=C3=A9 =3D 1=20\n\n.dot\n"
    );
}

/// Each such line may be a delimiter of the multipart whose header it is in.
#[test]
fn lines_with_hyphens_in_a_header_do_not_read_its_fields_again() {
    let field = format!("Content-Type: multipart/mixed\n {}\n", ";".repeat(8000));
    let lines = "--x\n".repeat(1000);
    let text = format!("{field} ;boundary=a\n{lines}Content-Transfer-Encoding: 8bit\n{lines}\n--a\n\n\u{e4}\n--a--\n");
    let mut scan = SevenBitScan::new();
    scan.handle_input(&message(text.as_bytes()));
    assert!(scan.finish().is_ok());
    // At most once after each of the two fields, and for the part.
    let parsed = crate::mime::content_type::tests::PARSED.get();
    assert!((1..=3).contains(&parsed), "{parsed} times");
}

/// Readers that understand the boundary find the parts, and their encodings.
#[test]
fn a_multipart_whose_boundary_is_not_understood_is_not_changed() {
    let long = format!("boundary={}", "x".repeat(300));
    for parameter in ["boundary*0=\"=_a\"; boundary*1=\"bc\"", "boundary*=us-ascii''%3D_abc", &long] {
        let text = format!(
            "MIME-Version: 1.0\nContent-Type: multipart/mixed; {parameter}\nContent-Transfer-Encoding: 8bit\n\n\
            --=_abc\nContent-Transfer-Encoding: 8bit\n\n\u{e4}\n--=_abc--\n"
        );
        assert!(is_unchanged(text.as_bytes()), "{parameter}");
    }
}

#[test]
fn an_encoding_may_have_a_comment_before_it() {
    let head = "MIME-Version: 1.0\nContent-Type: text/plain\nContent-Transfer-Encoding:";
    let found = converted(format!("{head} (x (y)) base64 (z)\n\nYWJj\u{e4}\n").as_bytes());
    assert!(found.contains(" (x (y)) base64 (z)\n") && !found.contains("quoted-printable"), "{found}");
}

#[test]
fn a_message_without_mime_gets_the_fields_at_the_end_of_its_header() {
    assert_eq!(
        converted(b"Subject: x\n\n\xe4"),
        "Subject: x\nMIME-Version: 1.0\nContent-Type: text/plain; charset=unknown-8bit\n\
        Content-Transfer-Encoding: quoted-printable\n\n=E4"
    );
    // A line that is no field may end the header for some readers.
    assert_eq!(
        converted(b"Content-Type: text/plain\nno field\nB: c\n\n\xe4\n"),
        "Content-Type: text/plain\nMIME-Version: 1.0\nContent-Transfer-Encoding: quoted-printable\nno field\nB: c\n\n=E4\n"
    );
}

#[test]
fn parts_are_converted_by_their_type_and_others_stay() {
    let found = converted(
        b"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"b c\"\nContent-Transfer-Encoding: 8bit\n\npreamble\n\
        --b c\nContent-Type: text/html\n\n<p>\xe4\n\n--b c \n\nplain text=\n\
        --b c\nContent-Type: image/png\nContent-Transfer-Encoding: binary\n\n\x89PNG\n\n--b c\nContent-Transfer-Encoding: 8bit\n\nascii\n\
        --b c--\nepilogue\n",
    );
    assert_eq!(
        found,
        "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"b c\"\nContent-Transfer-Encoding: 7bit\n\npreamble\n\
        --b c\nContent-Type: text/html\nContent-Transfer-Encoding: quoted-printable\n\n<p>=E4\n\n--b c \n\nplain text=\n\
        --b c\nContent-Type: image/png\nContent-Transfer-Encoding: base64\n\niVBORw0K\n--b c\nContent-Transfer-Encoding: 7bit\n\nascii\n\
        --b c--\nepilogue\n"
    );
}

#[test]
fn what_fits_into_seven_bits_stays_as_it_is() {
    for text in [
        &b"Subject: x\n\nascii\n"[..],
        b"",
        b"Subject: \xe4\n\n",
        b"Subject: \xe4",
        b"Subject: \xe4\n\nascii",
        b"Content-Type: multipart/mixed; boundary=a\n\n--a\nContent-Disposition: inline; filename=\xe4\n\nx\n--a--\n",
        b"Content-Type: multipart/mixed; boundary=a\n\nno part",
        b"Content-Transfer-Encoding: quoted-printable\n\n=E4\n",
    ] {
        assert!(is_unchanged(text), "{}", text.escape_ascii());
    }
}

#[test]
fn signed_parts_are_opaque() {
    assert!(is_unchanged(b"Content-Type: multipart/signed; boundary=s\n\n--s\n\n\xe4\n--s--\n"));
    let found = to_seven_bit(
        b"Content-Type: multipart/mixed; boundary=a\r\nContent-Transfer-Encoding: 8bit\r\n\r\n--a\r\n\
        Content-Type: multipart/signed; boundary=s\r\n\r\n--s\r\n\r\n\xe4\r\n--s--\r\n--a\r\n\r\n\xfc\r\n--a--\r\n",
    );
    let expected = b"Content-Type: multipart/mixed; boundary=a\r\nContent-Transfer-Encoding: 8bit\r\nMIME-Version: 1.0\r\n\r\n--a\r\n\
        Content-Type: multipart/signed; boundary=s\r\n\r\n--s\r\n\r\n\xe4\r\n--s--\r\n--a\r\n\
        Content-Transfer-Encoding: quoted-printable\r\n\r\n=FC\r\n--a--\r\n";
    assert_eq!(found.unwrap().escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[test]
fn enclosed_messages_are_converted_inside() {
    assert_eq!(
        converted(
            b"MIME-Version: 1.0\nContent-Type: message/rfc822\nContent-Transfer-Encoding: 8bit\n\nSubject: in\n\n\xe4\n"
        ),
        "MIME-Version: 1.0\nContent-Type: message/rfc822\nContent-Transfer-Encoding: 7bit\n\nSubject: in\n\
        MIME-Version: 1.0\nContent-Type: text/plain; charset=unknown-8bit\nContent-Transfer-Encoding: quoted-printable\n\n=E4\n"
    );
    // In a digest, parts are messages; message/global may be encoded (RFC 6532 section 3.7).
    assert_eq!(
        converted(
            b"MIME-Version: 1.0\nContent-Type: multipart/digest; boundary=d\n\n--d\n\nMIME-Version: 1.0\nContent-Type: text/plain\n\n\xe4\n\
            --d\nContent-Type: message/global\n\nSubject: \xc3\xa4\n\n\xc3\xa4\n--d--\n"
        ),
        "MIME-Version: 1.0\nContent-Type: multipart/digest; boundary=d\n\n--d\n\nMIME-Version: 1.0\nContent-Type: text/plain\n\
        Content-Transfer-Encoding: quoted-printable\n\n=E4\n\
        --d\nContent-Type: message/global\nContent-Transfer-Encoding: quoted-printable\n\nSubject: =C3=A4\n\n=C3=A4\n--d--\n"
    );
}

#[test]
fn boundaries_are_compared_as_a_whole() {
    let found = converted(
        b"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=ab\n\n--ab\n\
        Content-Type: multipart/mixed; boundary=abc\n\n--abc\n\n--abcd \xe4\n--a\n--ab\n\n\xfc\n--ab--\n--ab\n\xf6\n",
    );
    assert_eq!(
        found,
        "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=ab\n\n--ab\n\
        Content-Type: multipart/mixed; boundary=abc\n\n--abc\nContent-Transfer-Encoding: quoted-printable\n\n--abcd =E4\n--a\n--ab\n\
        Content-Transfer-Encoding: quoted-printable\n\n=FC\n--ab--\n--ab\n=F6\n"
    );
}

#[test]
fn a_multipart_without_delimiters_is_text() {
    for value in ["multipart/mixed", "multipart/mixed; boundary=none"] {
        let text = [b"MIME-Version: 1.0\nContent-Type: ", value.as_bytes(), b"\n\n\xe4\n--other\n"].concat();
        let expected = format!(
            "MIME-Version: 1.0\nContent-Type: {value}\nContent-Transfer-Encoding: quoted-printable\n\n=E4\n--other\n"
        );
        assert_eq!(converted(&text), expected);
    }
}

#[test]
fn headers_that_a_delimiter_ends_are_complete() {
    let found = converted(
        b"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n--a\nContent-Type: text/x\n--a\nA: b\n\n\xe4\n--a--",
    );
    assert_eq!(
        found,
        "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=a\n--a\nContent-Type: text/x\n--a\nA: b\n\
        Content-Transfer-Encoding: quoted-printable\n\n=E4\n--a--"
    );
}

#[test]
fn wrong_octets_in_an_encoding_are_mended() {
    assert_eq!(
        converted(b"Content-Transfer-Encoding: Quoted-Printable\nMIME-Version: 1\n\n=C3=A4 \xc3\xa4=\n = \n"),
        "Content-Transfer-Encoding: Quoted-Printable\nMIME-Version: 1\n\n=C3=A4 =C3=A4=\n = \n"
    );
    assert_eq!(
        converted(b"Content-Transfer-Encoding: base64\nMIME-Version: 1\n\nYWJj\n\xc3\xa4\n"),
        "Content-Transfer-Encoding: base64\nMIME-Version: 1\n\nYWJj\n??\n"
    );
    for encoding in ["quoted-printable", "base64"] {
        let text = format!("Content-Transfer-Encoding: {encoding}\nMIME-Version: 1\n\n{}\n", "=41".repeat(1000));
        let found = converted(text.as_bytes());
        assert!(found.lines().all(|line| line.len() <= 998));
        let content = found.split_once("\n\n").unwrap().1.replace("=\n", "").replace('\n', "");
        assert_eq!(content, "=41".repeat(1000));
    }
}

#[test]
fn long_lines_and_nul_are_encoded_too() {
    let text = format!("MIME-Version: 1.0\n\n{}\n\0\n", "-".repeat(2000));
    let found = converted(text.as_bytes());
    let content = found.split_once("\n\n").unwrap().1;
    assert!(content.lines().all(|line| line.len() <= 76 && (!line.starts_with("--") || line.starts_with("---"))));
    assert_eq!(content.replace("=\n", "").replace("=2D", "-"), format!("{}\n=00\n", "-".repeat(2000)));
    // The first line begins with hyphens as before; a soft line break makes none.
    assert_eq!(content.lines().filter(|line| line.starts_with('-')).count(), 1);
    let fits = format!("{}\n", "x".repeat(998));
    assert!(is_unchanged(format!("\n{fits}").as_bytes()) && !is_unchanged(format!("\nx{fits}").as_bytes()));
}

#[test]
fn base64_has_lines_of_76_characters_and_one_line_end_at_the_end() {
    let text = |count| [b"MIME-Version: 1.0\nContent-Type: x/y\n\n".to_vec(), vec![0xff; count]].concat();
    let content = |count| converted(&text(count)).split_once("\n\n").unwrap().1.to_owned();
    assert_eq!(content(1), "/w==\n");
    assert_eq!(content(57), format!("{}\n", "////".repeat(19)));
    assert_eq!(content(58), format!("{}\n/w==\n", "////".repeat(19)));
}

#[test]
fn bare_newlines_are_kept() {
    let message = b"MIME-Version: 1.0\r\n\r\na\rb\nc \n\xe4\r\n";
    let expected = b"MIME-Version: 1.0\r\nContent-Type: text/plain; charset=unknown-8bit\r\n\
        Content-Transfer-Encoding: quoted-printable\r\n\r\na=0Db=0Ac=20=0A=E4\r\n";
    assert_eq!(to_seven_bit(message).unwrap().escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[test]
fn a_message_beyond_the_limits_is_not_converted() {
    let part = b"--a\r\n\r\n\xe4\r\n";
    let with = |parts| [b"Content-Type: multipart/x; boundary=a\r\n\r\n".to_vec(), part.repeat(parts)].concat();
    assert!(to_seven_bit(&with(PARTS_MAX - 1)).is_ok());
    assert_eq!(to_seven_bit(&with(PARTS_MAX)), Err(PartLimitError::TooManyParts));
    let nested = |depth| [b"Content-Type: message/rfc822\r\n\r\n".repeat(depth), b"\r\n\xe4\r\n".to_vec()].concat();
    assert!(to_seven_bit(&nested(DEPTH_MAX)).is_ok());
    assert_eq!(to_seven_bit(&nested(DEPTH_MAX + 1)), Err(PartLimitError::TooDeep));
}
