//! Connections in memory: each input also in pieces, with the same output.

use std::time::Duration;

use super::*;

/// 1994-11-06 08:49:37.
const NOW: Timestamp = Timestamp(784_111_777_000);
const FILE_OCTETS: u64 = 1000;
const VALIDATORS: &str = "ETag: \"v1\"\r\nLast-Modified: Sat, 05 Nov 1994 01:46:40 GMT\r\n";
const COMMON: &str = "Accept-Ranges: bytes\r\nX-Content-Type-Options: nosniff\r\n";

/// A driver with a few resources.
struct Driver {
    server: HttpServer,
    output: Vec<u8>,
    requests: Vec<HttpRequest>,
    /// The client accepts so much at once.
    sent_max: usize,
}

fn file_octet(place: u64) -> u8 {
    (place % 251) as u8
}

fn resource(content: Content) -> HttpResponse {
    HttpResponse::Resource(Arc::new(plain_text(content)))
}

fn plain_text(content: Content) -> Resource {
    Resource::new(content, "v1", Timestamp(784_000_000_999), "text/plain")
}

impl Driver {
    fn new(limits: HttpServerLimits, sent_max: usize) -> Driver {
        let config = HttpServerConfig { realm: "the \"realm\"".into(), limits, ..HttpServerConfig::default() };
        let server = HttpServer::new(Arc::new(config), NOW, 6);
        Driver { server, output: Vec::new(), requests: Vec::new(), sent_max }
    }

    fn respond(request: &HttpRequest) -> HttpResponse {
        match &*request.path {
            b"/" => resource(Content::Bytes(b"hello world".as_slice().into())),
            b"/file" => resource(Content::File { octets: FILE_OCTETS }),
            b"/empty" => resource(Content::Bytes(Box::default())),
            b"/folder" => HttpResponse::Moved("/folder/".to_owned()),
            b"/stream" => HttpResponse::Stream { content_type: "text/event-stream" },
            b"/folder/" => {
                HttpResponse::Page { html: b"<p>list".as_slice().into(), fields: "Cache-Control: private\r\n" }
            }
            b"/part" => {
                let part = plain_text(Content::Bytes(b"a part".as_slice().into()));
                let part = part.with_field("Content-Disposition", "attachment\r\nSet-Cookie: x\u{85}");
                HttpResponse::Resource(Arc::new(part.with_field("Cache-Control", "private")))
            }
            b"/secret" if request.authorization.is_none() => HttpResponse::Error(ErrorStatus::Unauthorized),
            b"/secret" => HttpResponse::Error(ErrorStatus::Unavailable),
            _ => HttpResponse::Error(ErrorStatus::NotFound),
        }
    }

    fn work(&mut self) {
        let date = HttpDate::new(NOW);
        loop {
            while let Some(request) = self.server.poll_request(NOW, &date) {
                let response = Driver::respond(&request);
                self.requests.push(request);
                self.server.handle_response(NOW, &date, response);
            }
            while let Some(sent) = self.send() {
                self.server.handle_sent(NOW, sent);
            }
            if !self.server.has_work() {
                break;
            }
        }
        // Between requests there is no buffer.
        if self.server.backlog.is_empty() && matches!(self.server.state, State::Head { .. }) {
            assert_eq!(self.server.backlog.capacity(), 0);
        }
    }

    fn send(&mut self) -> Option<usize> {
        let before = self.output.len();
        match self.server.output() {
            HttpOutput::Bytes(bytes) | HttpOutput::Head(bytes) => self.output.extend(bytes.iter().take(self.sent_max)),
            HttpOutput::Pair(first, second) => {
                assert!(!first.is_empty() && !second.is_empty());
                self.output.extend(first.iter().chain(second).take(self.sent_max));
            }
            HttpOutput::File { offset, octets } => {
                assert!(octets > 0 && offset + octets <= FILE_OCTETS);
                self.output.extend((offset..offset + octets).map(file_octet).take(self.sent_max));
            }
        }
        (self.output.len() > before).then(|| self.output.len() - before)
    }

    fn handle(&mut self, input: &[u8]) {
        self.server.handle_input(NOW, input);
        self.work();
    }
}

/// The output for an input in pieces of this size, without Date fields, and whether the connection
/// ended.
fn play_in(limits: HttpServerLimits, input: &[u8], size: usize) -> (String, bool) {
    let mut driver = Driver::new(limits, size);
    input.chunks(size).for_each(|piece| driver.handle(piece));
    let output = driver.output.iter().map(|octet| char::from(*octet)).collect::<String>();
    (output.replace("Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n", ""), driver.server.wants_close())
}

/// Plays the input whole and in pieces.
fn play_with(limits: HttpServerLimits, input: &str) -> (String, bool) {
    let whole = play_in(limits, input.as_bytes(), usize::MAX);
    for size in [1, 2, 3, 7, 64] {
        assert_eq!(play_in(limits, input.as_bytes(), size), whole, "{input:?} in pieces of {size}");
    }
    whole
}

/// The output for an input after which the connection is kept.
fn play(input: &str) -> String {
    let (output, ended) = play_with(HttpServerLimits::default(), input);
    assert!(!ended, "{input:?}: {output:?}");
    output
}

/// The status line of a response after which the connection ends.
fn refused(input: &str) -> String {
    let (output, ended) = play_with(HttpServerLimits::default(), input);
    assert!(ended && output.contains("Connection: close\r\n"), "{input:?}: {output:?}");
    output.lines().next().unwrap().to_owned()
}

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n")
}

fn whole() -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: 11\r\nContent-Type: text/plain\r\n{COMMON}{VALIDATORS}\r\nhello world")
}

fn file_range(first: u64, end: u64) -> String {
    (first..end).map(|place| char::from(file_octet(place))).collect()
}

#[test]
fn a_resource_is_sent_with_its_fields() {
    assert_eq!(play(&get("/", "")), whole());
    let head = whole().replace("hello world", "");
    assert_eq!(play("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"), head);
    let file = play(&get("/file", ""));
    assert!(file.ends_with(&format!("\r\n\r\n{}", file_range(0, FILE_OCTETS))), "{file}");
    assert!(play(&get("/empty", "")).contains("Content-Length: 0\r\n"));
    let mut driver = Driver::new(HttpServerLimits::default(), usize::MAX);
    driver.handle(get("/", "").as_bytes());
    assert!(String::from_utf8_lossy(&driver.output).contains("\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"));
}

#[test]
fn an_added_field_is_in_all_responses_with_the_resource() {
    let added = "Content-Disposition: attachmentSet-Cookie: x\r\nCache-Control: private\r\n";
    for (fields, status) in [
        ("", "200 OK"),
        ("Range: bytes=0-1\r\n", "206 Partial Content"),
        ("Range: bytes=0-0,2-3\r\n", "206 Partial Content"),
        ("If-None-Match: *\r\n", "304 Not Modified"),
    ] {
        let response = play(&get("/part", fields));
        let is_found = response.contains(&format!("{VALIDATORS}{added}"));
        assert!(response.starts_with(&format!("HTTP/1.1 {status}\r\n")) && is_found, "{response}");
    }
}

#[test]
fn requests_are_answered_in_order() {
    let three = [get("/", ""), get("/none", ""), "\r\n".to_owned(), get("/", "")].concat();
    let output = play(&three);
    let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 72\r\n";
    let page = "<!DOCTYPE html>\n<title>404 Not Found</title>\n<h1>404 Not Found</h1>\n";
    assert!(output.starts_with(&(whole() + "HTTP/1.1 404 Not Found\r\n")), "{output}");
    assert!(output.ends_with(&(page.to_owned() + &whole())), "{output}");
    assert!(output.contains(&missing.replace("72", &page.len().to_string())));
}

#[test]
fn a_connection_is_kept_as_the_client_wants() {
    let ends = |input: &str| play_with(HttpServerLimits::default(), input);
    let (output, ended) = ends(&[get("/", "Connection: x, Close\r\n"), get("/", "")].concat());
    assert!(ended && output.matches("200 OK").count() == 1 && output.contains("Connection: close\r\n"));
    let (output, ended) = ends("GET / HTTP/1.0\r\n\r\n");
    assert!(ended && output.contains("Connection: close\r\n"));
    let (output, ended) = ends("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
    assert!(!ended && output.contains("Connection: keep-alive\r\n"));
    let limits = HttpServerLimits { requests_max: 2, ..HttpServerLimits::default() };
    let (output, ended) = play_with(limits, &get("/", "").repeat(3));
    assert!(ended && output.matches("200 OK").count() == 2 && output.matches("Connection: close").count() == 1);
}

#[test]
fn other_methods_are_refused_and_their_bodies_skipped() {
    for body in [
        "Content-Length: 5\r\n\r\nGET /",
        "Transfer-Encoding: Chunked\r\n\r\n4;x=y\r\nGET \r\n1\r\n/\r\n0\r\nA: b\r\n\r\n",
    ] {
        let input = format!("POST / HTTP/1.1\r\nHost: x\r\n{body}{}", get("/", ""));
        let output = play(&input);
        assert!(output.starts_with("HTTP/1.1 405 Method Not Allowed\r\n") && output.ends_with(&whole()), "{output}");
        assert!(output.contains("Allow: GET, HEAD, OPTIONS\r\n"));
        assert_eq!(play(&input.replace("POST /", "GET /")), whole().repeat(2));
    }
    let allowed = "HTTP/1.1 204 No Content\r\nAllow: GET, HEAD, OPTIONS\r\n\r\n";
    assert_eq!(play("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\nOPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n"), allowed.repeat(2));
    assert!(play("CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 405 "));
}

#[test]
fn a_client_that_expects_100_gets_it() {
    let output = play(&get("/", "Expect: 100-Continue\r\nContent-Length: 3\r\n").replace("\r\n\r\n", "\r\n\r\nabc"));
    assert_eq!(output, format!("HTTP/1.1 100 Continue\r\n\r\n{}", whole()));
    assert_eq!(play(&get("/", "Expect: 100-continue\r\n")), whole());
    assert_eq!(refused(&get("/", "Expect: coffee\r\n")), "HTTP/1.1 417 Expectation Failed");
    assert_eq!(
        refused(&get("/", "Expect: 100-continue\r\nContent-Length: 65537\r\n")),
        "HTTP/1.1 413 Content Too Large"
    );
}

#[test]
fn ambiguous_requests_close_the_connection() {
    for head in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\na",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\na",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\na",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\na",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length : 1\r\n\r\na",
        "GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
        "GET / HTTP/1.1\r\n A: b\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        "GET / HTTP/1.1\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n\n\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nA\0: b\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /../a HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET * HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /\r\n\r\n",
        "\r\n\r\n\r\n\r\n",
        "\u{16}\u{3}\u{1}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nx",
        "GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab",
    ] {
        // Whatever follows is not taken for a request.
        assert_eq!(refused(&(head.to_owned() + &get("/", ""))), "HTTP/1.1 400 Bad Request", "{head:?}");
    }
    let coded = get("/", "Transfer-Encoding: gzip, chunked\r\n");
    assert_eq!(refused(&coded), "HTTP/1.1 501 Not Implemented");
    assert_eq!(refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "HTTP/1.1 505 HTTP Version Not Supported");
}

#[test]
fn what_is_too_large_closes_the_connection() {
    let limits = HttpServerLimits { head_octets_max: 100, body_octets_max: 10, ..HttpServerLimits::default() };
    let status = |input: &str| {
        let (output, ended) = play_with(limits, input);
        (output.lines().next().unwrap_or_default().to_owned(), ended)
    };
    let padded = |octets: usize| {
        let empty = get("/", "A: \r\n");
        get("/", &format!("A: {}\r\n", "a".repeat(octets - empty.len())))
    };
    assert_eq!(status(&padded(100)), ("HTTP/1.1 200 OK".to_owned(), false));
    let too_large = ("HTTP/1.1 431 Request Header Fields Too Large".to_owned(), true);
    assert_eq!(status(&padded(101)), too_large);
    assert_eq!(status(&"a".repeat(100)), too_large);
    assert_eq!(status(&"a".repeat(99)), (String::new(), false));
    let many = get("/", &"A: b\r\n".repeat(FIELDS_MAX));
    assert_eq!(refused(&many), too_large.0);
    let too_long = ("HTTP/1.1 413 Content Too Large".to_owned(), true);
    assert_eq!(status(&get("/", "Content-Length: 11\r\n")), too_long);
    assert_eq!(status(&(get("/", "Content-Length: 10\r\n") + "0123456789")), ("HTTP/1.1 200 OK".to_owned(), false));
    let chunked = get("/", "Transfer-Encoding: chunked\r\n");
    assert_eq!(status(&(chunked.clone() + "0;1234\r\n\r\n")), ("HTTP/1.1 200 OK".to_owned(), false));
    assert_eq!(status(&(chunked.clone() + "0;12345\r\n\r\n")), too_long);
    // The first octet too many is also the first wrong one.
    assert_eq!(status(&(chunked + "5\r\n12345\r\nx")).0, "HTTP/1.1 400 Bad Request");
}

#[test]
fn ranges_are_sent_as_parts() {
    let head = "HTTP/1.1 206 Partial Content\r\nContent-Type: text/plain\r\n";
    let part = format!("{head}{COMMON}{VALIDATORS}Content-Length: 5\r\nContent-Range: bytes 6-10/11\r\n\r\nworld");
    assert_eq!(play(&get("/", "Range: bytes=6-\r\n")), part);
    let file = play(&get("/file", "Range: bytes=100-299\r\n"));
    assert!(file.contains("bytes 100-299/1000") && file.ends_with(&format!("\r\n\r\n{}", file_range(100, 300))));
    let nothing = play(&get("/", "Range: bytes=11-\r\n"));
    assert!(nothing.starts_with("HTTP/1.1 416 ") && nothing.contains("Content-Range: bytes */11\r\n"), "{nothing}");
    for ignored in ["bytes=1-0", "lines=1-2", "bytes=0-,0-,0-"] {
        assert_eq!(play(&get("/", &format!("Range: {ignored}\r\n"))), whole());
    }
    assert!(play("HEAD / HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\n\r\n").starts_with("HTTP/1.1 200 "));
}

#[test]
fn several_ranges_are_one_multipart_body() {
    for (path, one, two, octets) in
        [("/", "he", "world", 11), ("/file", &*file_range(0, 2), &*file_range(6, 11), FILE_OCTETS)]
    {
        let output = play(&get(path, "Range: bytes=0-1, 6-10\r\n"));
        let part = |range: &str, content: &str| {
            let range = format!("Content-Range: bytes {range}/{octets}");
            format!("\r\n--0000000000000007\r\nContent-Type: text/plain\r\n{range}\r\n\r\n{content}")
        };
        let body = part("0-1", one) + &part("6-10", two) + "\r\n--0000000000000007--\r\n";
        let kind = "Content-Type: multipart/byteranges; boundary=0000000000000007\r\n";
        let length = format!("Content-Length: {}\r\n", body.chars().count());
        assert_eq!(output, format!("HTTP/1.1 206 Partial Content\r\n{COMMON}{VALIDATORS}{kind}{length}\r\n{body}"));
    }
}

#[test]
fn conditions_select_the_response() {
    let status = |fields: &str| play(&get("/", fields))[9..12].to_owned();
    let (same, before, after) =
        ("Sat, 05 Nov 1994 01:46:40 GMT", "Sat, 05 Nov 1994 01:46:39 GMT", "Saturday, 05-Nov-94 01:46:41 GMT");
    for (fields, expected) in [
        ("If-None-Match: \"v1\"\r\n".to_owned(), "304"),
        ("If-None-Match: \"a,b\", W/\"v1\"\r\n".to_owned(), "304"),
        ("If-None-Match: \"a\"\r\nIf-None-Match: \"v1\"\r\n".to_owned(), "304"),
        ("If-None-Match: *\r\n".to_owned(), "304"),
        ("If-None-Match: \"v2\", v1\r\n".to_owned(), "200"),
        (format!("If-None-Match: \"v2\"\r\nIf-Modified-Since: {same}\r\n"), "200"),
        (format!("If-Modified-Since: {same}\r\n"), "304"),
        (format!("If-Modified-Since: {after}\r\n"), "304"),
        (format!("If-Modified-Since: {before}\r\n"), "200"),
        ("If-Modified-Since: yesterday\r\n".to_owned(), "200"),
        ("If-Match: \"v1\"\r\n".to_owned(), "200"),
        ("If-Match: *\r\n".to_owned(), "200"),
        ("If-Match: W/\"v1\"\r\n".to_owned(), "412"),
        ("If-Match: \"v2\"\r\n".to_owned(), "412"),
        (format!("If-Unmodified-Since: {before}\r\n"), "412"),
        (format!("If-Unmodified-Since: {same}\r\n"), "200"),
        (format!("If-Match: \"v1\"\r\nIf-Unmodified-Since: {before}\r\n"), "200"),
        ("If-Match: \"v1\"\r\nIf-None-Match: \"v1\"\r\n".to_owned(), "304"),
        ("Range: bytes=0-1\r\nIf-Range: \"v1\"\r\n".to_owned(), "206"),
        ("Range: bytes=0-1\r\nIf-Range: W/\"v1\"\r\n".to_owned(), "200"),
        ("Range: bytes=0-1\r\nIf-Range: \"v2\"\r\n".to_owned(), "200"),
        ("Range: bytes=0-1\r\nIf-Range: *\r\n".to_owned(), "200"),
        (format!("Range: bytes=0-1\r\nIf-Range: {same}\r\n"), "206"),
        (format!("Range: bytes=0-1\r\nIf-Range: {after}\r\n"), "200"),
        ("Range: bytes=0-1\r\nIf-None-Match: \"v1\"\r\n".to_owned(), "304"),
        ("Range: bytes=99-\r\nIf-Match: \"v2\"\r\n".to_owned(), "412"),
    ] {
        assert_eq!(status(&fields), expected, "{fields}");
    }
    assert_eq!(play(&get("/", "If-None-Match: *\r\n")), format!("HTTP/1.1 304 Not Modified\r\n{VALIDATORS}\r\n"));
}

#[test]
fn other_responses_of_the_driver_have_their_fields() {
    let moved = play(&get("/folder", ""));
    assert!(moved.starts_with("HTTP/1.1 301 ") && moved.contains("Location: /folder/\r\n"), "{moved}");
    let page = play(&get("/folder/", ""));
    assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n") && page.ends_with("\r\n\r\n<p>list"));
    let fields =
        "Content-Type: text/html; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nCache-Control: private\r\n";
    assert!(page.contains(fields), "{page}");
    let asked = play(&get("/secret", "Authorization: Bearer x\r\n"));
    assert!(asked.contains("WWW-Authenticate: Basic realm=\"the \\\"realm\\\"\", charset=\"UTF-8\"\r\n"), "{asked}");
    let unavailable = play(&get("/secret", "Authorization: Basic Ym9iOng=\r\n"));
    assert!(unavailable.starts_with("HTTP/1.1 503 ") && unavailable.contains("Retry-After: "), "{unavailable}");
}

#[test]
fn a_request_is_passed_on_decoded() {
    let mut driver = Driver::new(HttpServerLimits::default(), usize::MAX);
    driver.handle(get("http://other//a%20b?c=%20", "Authorization: basic Ym9iOng=\r\n").as_bytes());
    let request = &driver.requests[0];
    assert_eq!((&*request.path, request.query.as_deref()), (&b"/a b"[..], Some(&b"c=%20"[..])));
    let credentials = request.authorization.as_ref().unwrap();
    assert_eq!((&*credentials.user, credentials.password.reveal()), ("bob", "x"));
    assert_eq!(format!("{request:?}"), "GET /a b?c=%20 BasicCredentials { user: \"bob\", .. }");
}

#[test]
fn each_wait_has_its_limit() {
    let limits = HttpServerLimits::default();
    let after = |input: &str, wait: Duration| {
        let mut driver = Driver::new(limits, usize::MAX);
        driver.handle(input.as_bytes());
        assert_eq!(driver.server.deadline(), Some(NOW + wait), "{input:?}");
        driver.server.handle_timeout(NOW + wait - Duration::from_millis(1));
        assert!(!driver.server.wants_close());
        driver.output.clear();
        driver.server.handle_timeout(NOW + wait);
        driver.work();
        assert!(driver.server.wants_close());
        String::from_utf8_lossy(&driver.output).chars().take(12).collect::<String>()
    };
    assert_eq!(after("", limits.head_time_max), "");
    assert_eq!(after("GET", limits.head_time_max), "HTTP/1.1 408");
    assert_eq!(after(&get("/", ""), limits.idle_time_max), "");
    assert_eq!(after(&(get("/", "") + "G"), limits.head_time_max), "HTTP/1.1 408");
    assert_eq!(after(&get("/", "Content-Length: 1\r\n"), limits.body_time_max), "HTTP/1.1 408");
}

#[test]
fn the_time_of_a_head_begins_with_its_first_byte_and_is_not_extended() {
    let limits = HttpServerLimits::default();
    let mut driver = Driver::new(limits, usize::MAX);
    driver.handle(get("/", "").as_bytes());
    let begun = NOW + Duration::from_secs(50);
    driver.server.handle_input(begun, b"G");
    driver.server.handle_input(begun + Duration::from_secs(20), b"E");
    assert_eq!(driver.server.deadline(), Some(begun + limits.head_time_max));
}

#[test]
fn a_client_that_accepts_nothing_is_cut_off() {
    let limits = HttpServerLimits::default();
    let mut driver = Driver::new(limits, 0);
    driver.handle(get("/file", "").as_bytes());
    assert_eq!(driver.server.deadline(), Some(NOW + limits.send_time_max));
    let later = NOW + Duration::from_secs(10);
    driver.server.handle_sent(later, 1);
    assert_eq!(driver.server.deadline(), Some(later + limits.send_time_max));
    driver.server.handle_timeout(later + limits.send_time_max);
    assert!(driver.server.wants_close() && driver.server.deadline().is_none());
    assert_eq!(driver.server.output(), HttpOutput::Bytes(&[]));
}

#[test]
fn a_stop_ends_the_connection_after_the_present_response() {
    let mut idle = Driver::new(HttpServerLimits::default(), usize::MAX);
    idle.handle(get("/", "").as_bytes());
    idle.server.handle_stop();
    assert!(idle.server.wants_close());

    let mut asked = Driver::new(HttpServerLimits::default(), usize::MAX);
    asked.server.handle_input(NOW, get("/", "").repeat(2).as_bytes());
    asked.server.handle_stop();
    assert!(!asked.server.wants_close());
    asked.work();
    let output = String::from_utf8_lossy(&asked.output).into_owned();
    assert!(asked.server.wants_close() && output.matches("Connection: close").count() == 1, "{output}");
}

#[test]
fn an_end_of_input_ends_the_connection() {
    let mut driver = Driver::new(HttpServerLimits::default(), 0);
    driver.handle(get("/", "").as_bytes());
    driver.server.handle_disconnect();
    assert!(driver.server.wants_close());
    driver.server.handle_input(NOW, b"GET");
    assert_eq!(driver.server.output(), HttpOutput::Bytes(&[]));
}

/// The requests and the output of an input for a driver that takes content, whole and in pieces.
fn play_content(input: &str) -> (Vec<HttpRequest>, String) {
    let play = |size: usize| {
        let mut driver = Driver::new(HttpServerLimits { body_octets_max: 100, ..HttpServerLimits::default() }, size);
        let config = HttpServerConfig {
            takes_content: true,
            allowed_methods: Some(|path| match path {
                b"/" => Some("Allow: GET, HEAD, POST, OPTIONS\r\n"),
                b"/read" => Some("Allow: GET, HEAD, OPTIONS\r\n"),
                _ => None,
            }),
            response_fields: "X-Frame-Options: DENY\r\n",
            ..(*driver.server.config).clone()
        };
        driver.server = HttpServer::new(Arc::new(config), NOW, 6);
        input.as_bytes().chunks(size).for_each(|piece| driver.handle(piece));
        (driver.requests, String::from_utf8(driver.output).unwrap())
    };
    let whole = play(usize::MAX);
    for size in [1, 3, 64] {
        assert_eq!(play(size), whole, "{input:?} in pieces of {size}");
    }
    whole
}

#[test]
fn a_driver_that_takes_content_gets_it_with_its_fields() {
    let fields = "Authorization: Bearer abc\r\nContent-Type: application/json\r\n";
    let plain = format!("POST /a?b HTTP/1.1\r\nHost: h:1\r\n{fields}Content-Length: 2\r\n\r\n{{}}");
    let chunked = format!(
        "POST /a HTTP/1.1\r\nHost: h\r\n{fields}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n1;x=y\r\n}}\r\n0\r\n\r\n"
    );
    let (requests, output) = play_content(&[plain, chunked, get("/", "")].concat());
    assert_eq!(
        requests.iter().map(|request| request.method).collect::<Vec<_>>(),
        [Method::Post, Method::Post, Method::Get]
    );
    let contents: Vec<_> = requests.into_iter().map(|request| *request.content.unwrap()).collect();
    assert_eq!(contents[0].octets, b"{}");
    assert_eq!(contents[1].octets, b"{}");
    assert_eq!((contents[0].host.as_deref(), contents[2].host.as_deref()), (Some("h:1"), Some("x")));
    assert_eq!(contents[0].content_type.as_deref(), Some("application/json"));
    assert_eq!(contents[0].bearer_token.as_ref().map(|token| token.reveal()), Some("abc"));
    assert_eq!(contents[2], RequestContent { host: Some("x".into()), ..RequestContent::default() });
    assert_eq!(output.matches("X-Frame-Options: DENY\r\n").count(), 3, "{output}");
}

#[test]
fn errors_of_a_driver_that_takes_content_are_problem_documents() {
    for (input, status) in [
        (format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n{}", "x".repeat(3)), "200 OK"),
        ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n".to_owned(), "413 Content Too Large"),
        ("PUT / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), "405 Method Not Allowed"),
        (get("/", "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"), "400 Bad Request"),
        (get("/", "Content-Type: a\r\nContent-Type: b\r\n"), "400 Bad Request"),
    ] {
        let output = play_content(&input).1;
        assert!(output.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{input:?}: {output}");
        let is_problem = output.contains("Content-Type: application/problem+json\r\n");
        assert_eq!(is_problem, status != "200 OK", "{output}");
    }
    let (_, output) = play_content("PUT / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(output.contains("Allow: GET, HEAD, POST, OPTIONS\r\n"), "{output}");
    let (_, output) =
        play_content("DELETE /read?x HTTP/1.1\r\nHost: h\r\n\r\nOPTIONS /read HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(output.matches("Allow: GET, HEAD, OPTIONS\r\n").count(), 2, "{output}");
    for method in ["PUT", "OPTIONS"] {
        let (_, output) = play_content(&format!("{method} /none HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert!(output.starts_with("HTTP/1.1 404 Not Found\r\n"), "{output}");
    }
    let (_, output) = play_content("PUT / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(
        output.ends_with("{\"type\":\"about:blank\",\"title\":\"Method Not Allowed\",\"status\":405}\n"),
        "{output}"
    );
}

#[test]
fn without_content_post_is_no_method() {
    let output = play("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}");
    assert!(output.starts_with("HTTP/1.1 405 Method Not Allowed\r\n") && output.contains("Allow: GET, HEAD, OPTIONS"));
}

#[test]
fn a_stream_has_parts_until_it_is_ended_and_takes_no_further_requests() {
    let stream = |method: &str, version: &str| {
        let mut driver = Driver::new(HttpServerLimits::default(), 5);
        driver.handle(format!("{method} /stream HTTP/{version}\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n").as_bytes());
        driver
    };
    for version in ["1.0", "1.1"] {
        let mut driver = stream("GET", version);
        driver.server.handle_part(NOW, b"one\n".to_vec());
        assert!(!driver.server.wants_part() && !driver.server.wants_close());
        driver.server.handle_part(NOW, b"lost\n".to_vec());
        driver.handle(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(driver.server.wants_part() && !driver.server.has_work());
        driver.server.handle_part(NOW, b"two\n".to_vec());
        driver.work();
        driver.server.end_stream();
        let output = String::from_utf8(driver.output).unwrap();
        assert!(output.ends_with("Connection: close\r\n\r\none\ntwo\n"), "{output}");
        assert!(!output.contains("Content-Length") && output.contains("Content-Type: text/event-stream\r\n"));
        assert!(driver.server.wants_close());
    }
    let mut driver = stream("HEAD", "1.1");
    assert!(!driver.server.wants_part() && driver.server.wants_close());
    driver.server.handle_part(NOW, b"lost\n".to_vec());
    assert!(driver.server.output() == HttpOutput::Bytes(b""));
}

#[test]
fn a_stream_ends_when_its_reader_is_slow_or_the_server_stops() {
    let open = || {
        let mut driver = Driver::new(HttpServerLimits::default(), usize::MAX);
        driver.handle(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
        driver.server
    };
    let mut server = open();
    let minute = Duration::from_secs(60);
    server.handle_timeout(NOW + minute * 59);
    assert!(server.wants_part());
    server.handle_part(NOW + minute * 59, b"part".to_vec());
    let deadline = server.deadline().unwrap();
    assert_eq!(deadline, NOW + minute * 59 + HttpServerLimits::default().send_time_max);
    server.handle_timeout(deadline);
    assert!(server.wants_close() && server.output() == HttpOutput::Bytes(b""));
    let mut server = open();
    server.handle_timeout(NOW + minute * 60);
    assert!(server.wants_close());
    let mut server = open();
    server.handle_stop();
    assert!(server.wants_close());
}
