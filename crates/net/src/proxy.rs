//! The PROXY protocol, versions 1 and 2 (haproxy's proxy-protocol.txt): a proxy announces the
//! client it connects for, before anything else is sent, TLS included.
//!
//! [`parse_proxy_header`] parses the header; [`receive_proxy_header`] reads it from a connection,
//! and not one byte more. Anything else is an error, and the connection is unusable: the client is
//! unknown.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The time limit for receiving the header.
pub(crate) const PROXY_HEADER_TIME_MAX: Duration = Duration::from_secs(5);
/// The longest header of version 1, with its CRLF.
const V1_OCTETS_MAX: usize = 107;
/// The longest header of version 2 that is accepted, with its optional fields.
const V2_OCTETS_MAX: usize = 4096;
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const V2_FIXED_OCTETS: usize = 16;

/// The two ends of the proxied connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// The proxy speaks for itself (LOCAL) or does not give an address (UNKNOWN, UNSPEC): the
    /// addresses of the connection apply.
    Local,
    /// The proxy speaks for a client.
    Proxied {
        /// The client's address.
        client: SocketAddr,
        /// The address that the client connected to.
        own: SocketAddr,
    },
}

/// The bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// They do not begin like a header.
    #[error("PROXY header missing")]
    Absent,
    /// An invalid header of version 1.
    #[error("invalid PROXY header of version 1")]
    InvalidV1,
    /// An invalid header of version 2.
    #[error("invalid PROXY header of version 2")]
    InvalidV2,
    /// The header exceeds its limit.
    #[error("PROXY header too long")]
    TooLong,
}

/// Parses the header at the start of `bytes`; returns it with its length in octets. None if more
/// bytes are needed.
///
/// # Errors
///
/// The bytes are not the beginning of a valid header.
pub fn parse_proxy_header(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyError> {
    match bytes.first() {
        None => Ok(None),
        Some(b'P') => parse_v1(bytes),
        Some(b'\r') => parse_v2(bytes),
        Some(_) => Err(ProxyError::Absent),
    }
}

fn parse_v1(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyError> {
    const WORD: &[u8] = b"PROXY ";
    let known = bytes.len().min(WORD.len());
    if bytes[..known] != WORD[..known] {
        return Err(ProxyError::Absent);
    }
    let window = &bytes[..bytes.len().min(V1_OCTETS_MAX)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < V1_OCTETS_MAX { Ok(None) } else { Err(ProxyError::TooLong) };
    };
    let text = str::from_utf8(&window[WORD.len()..end]).map_err(|_| ProxyError::InvalidV1)?;
    let proxied = parse_v1_addresses(text).ok_or(ProxyError::InvalidV1)?;
    Ok(Some((proxied, end + 2)))
}

/// `TCP4 192.0.2.1 192.0.2.2 56324 25`, `TCP6 ...`, or `UNKNOWN` followed by anything.
fn parse_v1_addresses(text: &str) -> Option<ProxyHeader> {
    let mut words = text.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(ProxyHeader::Local);
    }
    let address = |word: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => word.parse::<Ipv4Addr>().ok().map(IpAddr::from),
            "TCP6" => word.parse::<Ipv6Addr>().ok().map(IpAddr::from),
            _ => None,
        }
    };
    let (client, own) = (address(words.next()?)?, address(words.next()?)?);
    let mut port = || words.next().filter(|word| word.bytes().all(|b| b.is_ascii_digit()))?.parse::<u16>().ok();
    let (client, own) = (SocketAddr::new(client, port()?), SocketAddr::new(own, port()?));
    words.next().is_none().then_some(ProxyHeader::Proxied { client, own })
}

fn parse_v2(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyError> {
    let known = bytes.len().min(V2_SIGNATURE.len());
    if bytes[..known] != V2_SIGNATURE[..known] {
        return Err(ProxyError::Absent);
    }
    let Some((head, rest)) = bytes.split_at_checked(V2_FIXED_OCTETS) else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    if V2_FIXED_OCTETS + length > V2_OCTETS_MAX {
        return Err(ProxyError::TooLong);
    }
    let is_local = match head[12] {
        0x20 => true,
        0x21 => false,
        _ => return Err(ProxyError::InvalidV2),
    };
    let Some(fields) = rest.get(..length) else { return Ok(None) };
    let proxied = match head[13] {
        _ if is_local => ProxyHeader::Local,
        0x11 => parse_v2_addresses::<4>(fields)?,
        0x21 => parse_v2_addresses::<16>(fields)?,
        // No address, or unix sockets, whose paths are of no use here.
        0x00 | 0x31 => ProxyHeader::Local,
        _ => return Err(ProxyError::InvalidV2),
    };
    Ok(Some((proxied, V2_FIXED_OCTETS + length)))
}

/// Both addresses, then both ports. Further fields (TLVs) are skipped.
fn parse_v2_addresses<const OCTETS: usize>(fields: &[u8]) -> Result<ProxyHeader, ProxyError>
where
    IpAddr: From<[u8; OCTETS]>,
{
    let address = |place: usize| {
        let octets: [u8; OCTETS] = fields.get(place..place + OCTETS)?.try_into().ok()?;
        Some(IpAddr::from(octets))
    };
    let port = |place: usize| Some(u16::from_be_bytes(fields.get(place..place + 2)?.try_into().ok()?));
    let end = |number: usize| Some(SocketAddr::new(address(number * OCTETS)?, port(2 * OCTETS + 2 * number)?));
    match (end(0), end(1)) {
        (Some(client), Some(own)) => Ok(ProxyHeader::Proxied { client, own }),
        _ => Err(ProxyError::InvalidV2),
    }
}

/// Reads the header from a connection, and nothing after it. [`io::ErrorKind::InvalidData`] wraps a
/// [`ProxyError`]; [`io::ErrorKind::TimedOut`] means [`PROXY_HEADER_TIME_MAX`] has passed.
pub(crate) async fn receive_proxy_header(stream: &mut TcpStream) -> io::Result<ProxyHeader> {
    let received = tokio::time::timeout(PROXY_HEADER_TIME_MAX, receive(stream)).await;
    received.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for the PROXY header")))
}

async fn receive(stream: &mut TcpStream) -> io::Result<ProxyHeader> {
    let (mut header, mut peeked) = (Vec::new(), vec![0; V2_OCTETS_MAX]);
    loop {
        let before = header.len();
        let count = stream.peek(&mut peeked).await?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed before the PROXY header"));
        }
        header.extend_from_slice(&peeked[..count]);
        let parsed = parse_proxy_header(&header).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        // If the header is incomplete, all the bytes so far belong to it.
        let own = parsed.map_or(count, |(_, length)| length - before);
        stream.read_exact(&mut peeked[..own]).await?;
        if let Some((proxied, _)) = parsed {
            return Ok(proxied);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    fn proxied(client: &str, own: &str) -> ProxyHeader {
        ProxyHeader::Proxied { client: client.parse().unwrap(), own: own.parse().unwrap() }
    }

    fn v2(command: u8, family: u8, fields: &[u8]) -> Vec<u8> {
        let length = (fields.len() as u16).to_be_bytes();
        [&V2_SIGNATURE[..], &[command, family], &length, fields].concat()
    }

    const V4_FIELDS: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0, 25];

    #[test]
    fn lines_of_version_1_are_read() {
        for (line, expected) in [
            ("PROXY TCP4 192.0.2.1 198.51.100.2 56324 25\r\n", proxied("192.0.2.1:56324", "198.51.100.2:25")),
            ("PROXY TCP6 2001:db8::1 ::1 1 65535\r\n", proxied("[2001:db8::1]:1", "[::1]:65535")),
            ("PROXY UNKNOWN\r\n", ProxyHeader::Local),
            ("PROXY UNKNOWN ffff:f...f:ffff a b c\r\n", ProxyHeader::Local),
        ] {
            let with_more = format!("{line}EHLO x\r\n");
            assert_eq!(parse_proxy_header(with_more.as_bytes()), Ok(Some((expected, line.len()))), "{line}");
        }
    }

    #[test]
    fn blocks_of_version_2_are_read_and_what_they_have_more_is_skipped() {
        let with_tlv = [&V4_FIELDS[..], &[0x04, 0, 2, 7, 7]].concat();
        let client = proxied("192.0.2.1:56324", "198.51.100.2:25");
        let mut v6 = [0; 36];
        v6[15] = 1;
        v6[31] = 2;
        v6[35] = 25;
        for (header, expected) in [
            (v2(0x21, 0x11, &V4_FIELDS), client),
            (v2(0x21, 0x11, &with_tlv), client),
            (v2(0x21, 0x21, &v6), proxied("[::1]:0", "[::2]:25")),
            (v2(0x20, 0x00, &[]), ProxyHeader::Local),
            (v2(0x20, 0x11, &V4_FIELDS), ProxyHeader::Local),
            (v2(0x21, 0x00, &[1, 2, 3]), ProxyHeader::Local),
            (v2(0x21, 0x31, &[0; 216]), ProxyHeader::Local),
        ] {
            let with_more = [&header[..], b"EHLO x\r\n"].concat();
            assert_eq!(parse_proxy_header(&with_more), Ok(Some((expected, header.len()))), "{header:?}");
        }
    }

    #[test]
    fn invalid_headers_are_refused() {
        use ProxyError::*;
        for (bytes, error) in [
            (b"EHLO x\r\n".to_vec(), Absent),
            (b"PROXX".to_vec(), Absent),
            (b"\r\nx".to_vec(), Absent),
            (b"PROXY \r\n".to_vec(), InvalidV1),
            (b"PROXY TCP4\r\n".to_vec(), InvalidV1),
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n".to_vec(), InvalidV1),
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n".to_vec(), InvalidV1),
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n".to_vec(), InvalidV1),
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n".to_vec(), InvalidV1),
            (b"PROXY TCP4 ::1 ::1 1 2\r\n".to_vec(), InvalidV1),
            (b"PROXY TCP6 192.0.2.1 ::1 1 2\r\n".to_vec(), InvalidV1),
            (b"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n".to_vec(), InvalidV1),
            (b"PROXY  TCP4 192.0.2.1 192.0.2.2 1 2\r\n".to_vec(), InvalidV1),
            ([&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat(), TooLong),
            (v2(0x11, 0x11, &V4_FIELDS), InvalidV2),
            (v2(0x22, 0x11, &V4_FIELDS), InvalidV2),
            (v2(0x21, 0x12, &V4_FIELDS), InvalidV2),
            (v2(0x21, 0x11, &V4_FIELDS[..11]), InvalidV2),
            (v2(0x21, 0x21, &V4_FIELDS), InvalidV2),
            (v2(0x21, 0x11, &[0; 4081]), TooLong),
        ] {
            assert_eq!(parse_proxy_header(&bytes), Err(error), "{}", bytes.escape_ascii());
        }
    }

    /// The declared length decides how much is awaited and taken, and the addresses must fit within
    /// it.
    #[test]
    fn the_declared_length_is_what_counts() {
        use ProxyError::*;
        let claiming = |length: u16, family: u8, fields: &[u8]| {
            [&V2_SIGNATURE[..], &[0x21, family], &length.to_be_bytes(), fields].concat()
        };
        let client = proxied("192.0.2.1:56324", "198.51.100.2:25");
        let longest = V2_OCTETS_MAX - V2_FIXED_OCTETS;
        let padded = |count: usize| [&V4_FIELDS[..], &vec![0; count]].concat();
        for (bytes, expected) in [
            (claiming(13, 0x11, &V4_FIELDS), Ok(None)),
            (claiming(13, 0x11, b"EHLO x\r\n"), Ok(None)),
            (claiming(12, 0x11, &padded(5)), Ok(Some((client, 28)))),
            (claiming(13, 0x11, &padded(5)), Ok(Some((client, 29)))),
            (claiming(11, 0x11, &V4_FIELDS), Err(InvalidV2)),
            (claiming(0, 0x11, &V4_FIELDS), Err(InvalidV2)),
            (claiming(35, 0x21, &padded(60)), Err(InvalidV2)),
            (claiming(0, 0x00, &V4_FIELDS), Ok(Some((ProxyHeader::Local, 16)))),
            (claiming(longest as u16, 0x11, &padded(0)), Ok(None)),
            (claiming(longest as u16, 0x11, &padded(longest - 12)), Ok(Some((client, V2_OCTETS_MAX)))),
            (claiming(longest as u16 + 1, 0x11, &[]), Err(TooLong)),
            (claiming(u16::MAX, 0x11, &V4_FIELDS), Err(TooLong)),
        ] {
            assert_eq!(parse_proxy_header(&bytes), expected, "{}", bytes.escape_ascii());
        }
    }

    fn header() -> impl Strategy<Value = Vec<u8>> {
        let word = prop::sample::select(vec!["TCP4", "TCP6", "UNKNOWN", "192.0.2.1", "::1", "25", "-1", "65536", ""]);
        let line =
            prop::collection::vec(word, 0..7).prop_map(|words| format!("PROXY {}\r\n", words.join(" ")).into_bytes());
        let block = (any::<u8>(), any::<u8>(), prop::collection::vec(any::<u8>(), 0..60))
            .prop_map(|(command, family, fields)| v2(0x20 | (command % 3), family % 0x40, &fields));
        prop_oneof![line, block, prop::collection::vec(any::<u8>(), 0..40)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// A header is parsed the same whatever follows it, and no prefix of it is a complete
        /// header or an error.
        #[test]
        fn a_header_is_parsed_independently_of_what_follows(header in header(), more in prop::collection::vec(any::<u8>(), 0..20)) {
            let whole = parse_proxy_header(&header);
            if let Ok(Some((_, length))) = whole {
                prop_assert!(length <= header.len());
                prop_assert_eq!(parse_proxy_header(&[&header[..], &more].concat()), whole);
                for end in 0..length {
                    prop_assert_eq!(parse_proxy_header(&header[..end]), Ok(None));
                }
            }
        }
    }

    #[tokio::test]
    async fn a_header_in_pieces_is_taken_off_and_nothing_else() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let bytes = [v2(0x21, 0x11, &V4_FIELDS), b"EHLO x\r\n".to_vec()].concat();
        let sent = tokio::spawn(async move {
            for piece in bytes.chunks(5) {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            client
        });
        assert_eq!(receive_proxy_header(&mut stream).await.unwrap(), proxied("192.0.2.1:56324", "198.51.100.2:25"));
        let mut rest = [0; 8];
        stream.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"EHLO x\r\n");
        drop(sent.await.unwrap());
        let ended = receive_proxy_header(&mut stream).await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// A client that sends one octet now and then does not extend the time limit.
    #[tokio::test(start_paused = true)]
    async fn a_header_that_does_not_come_in_time_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let begun = tokio::time::Instant::now();
        let slow = async {
            for octet in b"PROXY UNKNOWN and so on" {
                client.write_all(&[*octet]).await.unwrap();
                tokio::time::sleep(PROXY_HEADER_TIME_MAX / 10).await;
            }
        };
        let received = tokio::select! {
            received = receive_proxy_header(&mut stream) => received,
            () = slow => panic!("all of it was waited for"),
        };
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed(), PROXY_HEADER_TIME_MAX);
    }
}
