//! Server responses, whole and split at every byte: the result must be the same.

use proptest::prelude::*;

use super::*;

/// A response as a driver receives it, or the error.
#[derive(Debug, PartialEq)]
struct ReceivedResponse {
    head: Option<ResponseHead>,
    body: Vec<u8>,
    ends: usize,
    fault: Option<HttpViolation>,
    is_idle: bool,
}

/// The result of the pieces and, if `ends`, of the end of the connection.
fn gather(method: Method, limits: HttpResponseLimits, pieces: &[&[u8]], ends: bool) -> ReceivedResponse {
    let mut client = HttpClient::new(limits);
    client.handle_request_sent(method);
    let mut gathered = ReceivedResponse { head: None, body: Vec::new(), ends: 0, fault: None, is_idle: false };
    for mut input in pieces.iter().copied() {
        loop {
            match client.handle_input(&mut input) {
                Ok(None) => break assert!(input.is_empty(), "unused input"),
                Ok(Some(event)) => gathered.take(event),
                Err(fault) => return ReceivedResponse { fault: Some(fault), ..gathered },
            }
        }
    }
    if ends {
        match client.handle_disconnect() {
            Ok(event) => event.into_iter().for_each(|event| gathered.take(event)),
            Err(fault) => gathered.fault = Some(fault),
        }
    }
    ReceivedResponse { is_idle: client.is_idle(), ..gathered }
}

impl ReceivedResponse {
    fn take(&mut self, event: HttpEvent<'_>) {
        match event {
            HttpEvent::Head(head) => assert_eq!(self.head.replace(head), None, "a second head"),
            HttpEvent::Body(piece) => {
                assert!(!piece.is_empty());
                self.body.extend_from_slice(piece);
            }
            HttpEvent::End => self.ends += 1,
        }
    }
}

/// Checks that the result is the same for whole input and any split.
fn check(method: Method, input: &[u8], ends: bool) -> ReceivedResponse {
    let limits = HttpResponseLimits { body_octets_max: 1000 };
    let whole = gather(method, limits, &[input], ends);
    for cut in 0..=input.len() {
        let cut_once = gather(method, limits, &[&input[..cut], &input[cut..]], ends);
        assert_same(&whole, &cut_once, &format!("{} cut at {cut}", input.escape_ascii()));
    }
    let bytes = gather(method, limits, &input.chunks(1).collect::<Vec<_>>(), ends);
    assert_same(&whole, &bytes, &format!("{} byte by byte", input.escape_ascii()));
    whole
}

/// How much of a body comes before a violation found behind it depends on the split.
fn assert_same(one: &ReceivedResponse, other: &ReceivedResponse, what: &str) {
    assert_eq!(
        (&one.head, one.ends, &one.fault, one.is_idle),
        (&other.head, other.ends, &other.fault, other.is_idle),
        "{what}"
    );
    assert!(one.fault.is_some() || one.body == other.body, "{what}");
}

fn sound(method: Method, input: &[u8], body: &[u8], is_kept: bool) {
    let gathered = check(method, input, false);
    assert_eq!((gathered.fault, gathered.ends, gathered.is_idle), (None, 1, is_kept), "{}", input.escape_ascii());
    assert_eq!(gathered.body, body);
}

fn faulty(input: &[u8], fault: HttpViolation) {
    let gathered = check(Method::Get, input, true);
    assert_eq!((gathered.fault, gathered.is_idle), (Some(fault), false), "{}", input.escape_ascii());
}

#[test]
fn a_body_of_a_length_keeps_the_connection() {
    sound(Method::Get, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello", true);
    sound(Method::Get, b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nX: y\r\n\r\n", b"", true);
    sound(Method::Get, b"HTTP/1.1 200\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", b"x", true);
    let head = check(Method::Get, b"HTTP/1.1 503 No\r\nContent-Length: 5\r\n\r\nhello", false).head;
    assert_eq!(head, Some(ResponseHead { status: 503, length: Some(5), is_kept: true }));
}

#[test]
fn the_server_may_want_to_close() {
    sound(Method::Get, b"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nab", b"ab", false);
    sound(Method::Get, b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", b"ab", false);
    sound(Method::Get, b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nab", b"ab", true);
    // Bytes after the last response are ignored.
    sound(Method::Get, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nabcde", b"ab", false);
}

#[test]
fn some_replies_have_no_body_whatever_they_say() {
    sound(Method::Head, b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", b"", true);
    sound(Method::Head, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"", true);
    sound(Method::Get, b"HTTP/1.1 204 None\r\n\r\n", b"", true);
    sound(Method::Get, b"HTTP/1.1 304 Same\r\nContent-Length: 7\r\n\r\n", b"", true);
}

#[test]
fn chunks_are_put_together() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n";
    for (chunks, body) in [
        ("0\r\n\r\n", ""),
        ("5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("00a;x=\"y\"\r\n0123456789\r\n1 \r\nx\r\n000\r\n\r\n", "0123456789x"),
        ("2\r\n\r\n\r\n0\r\nX: y\r\nZ: 0\r\n\r\n", "\r\n"),
    ] {
        sound(Method::Get, format!("{HEAD}{chunks}").as_bytes(), body.as_bytes(), true);
    }
    for chunks in
        ["\r\n", ";x\r\n", "g\r\n", "1\nx", "1\r\nxy", "1\r\nx\r\n\r\n", "0\r\n\n", "0\r\nX\n", "-1\r\n", "1;\n"]
    {
        faulty(format!("{HEAD}{chunks}").as_bytes(), HttpViolation::Chunk);
    }
    faulty(format!("{HEAD}{}\r\n", "f".repeat(16)).as_bytes(), HttpViolation::Chunk);
    faulty(format!("{HEAD}3e9\r\n{}\r\n0\r\n\r\n", "x".repeat(0x3e9)).as_bytes(), HttpViolation::BodyTooLong);
    faulty(format!("{HEAD}5\r\nhel").as_bytes(), HttpViolation::ConnectionClosed);
    let many = format!("{HEAD}{}0\r\n\r\n", "1\r\nx\r\n".repeat(FRAMING_OCTETS_MAX));
    let gathered = gather(Method::Get, HttpResponseLimits::default(), &[many.as_bytes()], false);
    assert_eq!((gathered.fault, gathered.body.len()), (None, FRAMING_OCTETS_MAX));
    for endless in ["1;", "0\r\n"] {
        let input = format!("{HEAD}{endless}{}", "x: y".repeat(FRAMING_OCTETS_MAX / 4));
        let gathered = gather(Method::Get, HttpResponseLimits::default(), &[input.as_bytes()], false);
        assert_eq!(gathered.fault, Some(HttpViolation::Chunk));
    }
}

#[test]
fn a_body_without_a_length_ends_with_the_connection() {
    const INPUT: &[u8] = b"HTTP/1.1 200 OK\r\n\r\nhello";
    let gathered = check(Method::Get, INPUT, true);
    assert_eq!((gathered.body.as_slice(), gathered.ends, gathered.fault), (&b"hello"[..], 1, None));
    assert_eq!(gathered.head, Some(ResponseHead { status: 200, length: None, is_kept: false }));
    assert_eq!(check(Method::Get, INPUT, false).ends, 0);
    faulty(&[INPUT, &[b'x'; 996]].concat(), HttpViolation::BodyTooLong);
}

#[test]
fn interim_replies_are_passed_over_but_not_for_ever() {
    const INTERIM: &[u8] = b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n";
    const LAST: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
    sound(Method::Get, &[INTERIM, LAST].concat(), b"x", true);
    let many = INTERIM.repeat(INTERIM_HEADS_MAX as usize);
    assert_eq!(gather(Method::Get, HttpResponseLimits::default(), &[&many, LAST], false).fault, None);
    let too_many = gather(Method::Get, HttpResponseLimits::default(), &[&many, INTERIM, LAST], false);
    assert_eq!(too_many.fault, Some(HttpViolation::TooManyInterim));
    faulty(b"HTTP/1.1 101 Switching\r\n\r\n", HttpViolation::Upgrade);
}

#[test]
fn a_length_that_could_be_read_in_two_ways_is_refused() {
    for fields in [
        "Content-Length: 1\r\nContent-Length: 2",
        "Content-Length: 1\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: identity",
        "Content-Length: +1",
        "Content-Length: 1, 1",
        "Content-Length: -1",
        "Content-Length:",
        "Content-Length: 18446744073709551616",
    ] {
        faulty(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n").as_bytes(), HttpViolation::Length);
    }
    faulty(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", HttpViolation::Length);
    faulty(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", HttpViolation::BodyTooLong);
}

#[test]
fn invalid_heads_are_violations() {
    for input in [
        "\r\n\r\n",
        "SSH-2.0-x\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 600 OK\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA B: c\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\n\nsmuggled\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n",
    ] {
        faulty(input.as_bytes(), HttpViolation::NoHead);
    }
    let fields = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(count));
    assert!(
        gather(Method::Head, HttpResponseLimits::default(), &[fields(FIELDS_MAX).as_bytes()], false).head.is_some()
    );
    faulty(fields(FIELDS_MAX + 1).as_bytes(), HttpViolation::NoHead);
    faulty(b"", HttpViolation::ConnectionClosed);
    faulty(b"HTTP/1.1 200 OK\r\n", HttpViolation::ConnectionClosed);
}

#[test]
fn a_head_has_a_limit() {
    let head = |octets: usize| {
        let rest = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: \r\n\r\n".len();
        format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: {}\r\n\r\n", "x".repeat(octets - rest))
    };
    for pieces in [1000, usize::MAX] {
        let fault = |octets| {
            let head = head(octets);
            let pieces: Vec<_> = head.as_bytes().chunks(pieces).collect();
            gather(Method::Get, HttpResponseLimits::default(), &pieces, false).fault
        };
        assert_eq!(fault(HEAD_OCTETS_MAX), None);
        assert_eq!(fault(HEAD_OCTETS_MAX + 1), Some(HttpViolation::HeadTooLong));
    }
    let endless = gather(Method::Get, HttpResponseLimits::default(), &[&[b'x'; 1000][..]; 1000], false);
    assert_eq!(endless.fault, Some(HttpViolation::HeadTooLong));
}

#[test]
fn unsolicited_bytes_are_violations() {
    let mut client = HttpClient::new(HttpResponseLimits::default());
    assert_eq!(client.handle_input(&mut &b""[..]), Ok(None));
    assert_eq!(client.handle_input(&mut &b"HTTP/1.1 408 Late\r\n\r\n"[..]), Err(HttpViolation::Unsolicited));
    assert!(!client.is_idle());
    faulty(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy", HttpViolation::Unsolicited);
    let mut idle = HttpClient::new(HttpResponseLimits::default());
    assert_eq!(idle.handle_disconnect(), Ok(None));
    assert!(!idle.is_idle());
}

#[test]
fn a_kept_connection_serves_one_request_after_the_other() {
    let mut client = HttpClient::new(HttpResponseLimits::default());
    for round in 0..3 {
        client.handle_request_sent(Method::Get);
        let mut input = &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"[..];
        let place = input[38..].as_ptr();
        assert!(matches!(client.handle_input(&mut input), Ok(Some(HttpEvent::Head(_)))), "round {round}");
        let body = client.handle_input(&mut input);
        assert!(
            matches!(body, Ok(Some(HttpEvent::Body(piece))) if std::ptr::eq(piece.as_ptr(), place)),
            "the body was copied"
        );
        assert_eq!(client.handle_input(&mut input), Ok(Some(HttpEvent::End)));
        assert_eq!(client.handle_input(&mut input), Ok(None));
        assert!(client.is_idle());
    }
}

#[test]
fn a_request_carries_no_other_one() {
    let get = |host, target| HttpRequest::new(Method::Get, host, target, Persistence::Keep);
    let request = get("a.example:80", "/x?y").unwrap();
    assert_eq!(request.as_bytes(), b"GET /x?y HTTP/1.1\r\nHost: a.example:80\r\n\r\n");
    let last = HttpRequest::new(Method::Head, "a", "/", Persistence::Close).unwrap();
    assert_eq!(last.as_bytes(), b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    for host in ["", "a b", "a\r\nX: y", "a/b", "\u{fc}"] {
        assert_eq!(get(host, "/"), Err(InvalidHttpRequest::Host), "{host:?}");
    }
    for target in ["", "x", "/ HTTP/1.1", "/\r\n", "/\u{fc}", &format!("/{}", "x".repeat(TARGET_OCTETS_MAX))] {
        assert_eq!(get("a", target), Err(InvalidHttpRequest::Target), "{target:?}");
    }
}

proptest! {
    #[test]
    fn garbage_is_the_same_garbage_however_it_is_cut(
        input in "(HTTP/1.1 [1-3]0[0-4] OK\r\n)?((Content-Length: [0-9]|Transfer-Encoding: chunked|Connection: close)\r\n){0,2}\
                  (\r\n)?[0-3a\r\n;x]{0,40}",
        ends: bool,
    ) {
        check(Method::Get, input.as_bytes(), ends);
    }
}
