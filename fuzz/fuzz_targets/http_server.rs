//! Any bytes as the client's side of an HTTP connection: no panic, and the output is the same whether
//! they arrive whole or in pieces. Paths are in one spelling, and a response never has more octets of
//! a resource than the whole, except for what separates its parts. The last byte chooses the size of
//! the pieces.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use mail::Timestamp;
use protocol::http::server::{
    Content, ErrorStatus, HttpDate, HttpOutput, HttpRequest, HttpResponse, HttpServer, HttpServerConfig,
    HttpServerLimits, Resource,
};

const NOW: Timestamp = Timestamp(784_111_777_000);
const OCTETS: u64 = 1000;

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_last() else { return };
    let takes_content = choice > 127;
    assert_eq!(play(bytes, usize::MAX, takes_content), play(bytes, 1 + usize::from(choice), takes_content));
});

/// The output, the requests, and whether the connection ended.
fn play(bytes: &[u8], size: usize, takes_content: bool) -> (Vec<u8>, Vec<HttpRequest>, bool) {
    let limits = HttpServerLimits { head_octets_max: 1000, body_octets_max: 100, ..HttpServerLimits::default() };
    let config = HttpServerConfig { realm: "x".into(), takes_content, limits, ..HttpServerConfig::default() };
    let mut server = HttpServer::new(Arc::new(config), NOW, 0);
    let (mut output, mut requests) = (Vec::new(), Vec::new());
    for input in bytes.chunks(size) {
        server.handle_input(NOW, input);
        answer(&mut server, size, &mut output, &mut requests);
    }
    let ended = server.wants_close();
    server.handle_timeout(NOW + limits.head_time_max + limits.idle_time_max);
    answer(&mut server, size, &mut output, &mut requests);
    assert!(server.wants_close());
    (output, requests, ended)
}

fn answer(server: &mut HttpServer, size: usize, output: &mut Vec<u8>, requests: &mut Vec<HttpRequest>) {
    let date = HttpDate::new(NOW);
    loop {
        while let Some(request) = server.poll_request(NOW, &date) {
            server.handle_response(NOW, &date, respond(&request));
            requests.push(request);
        }
        let before = output.len();
        match server.output() {
            HttpOutput::Bytes(bytes) | HttpOutput::Head(bytes) => output.extend(bytes.iter().take(size)),
            HttpOutput::Pair(first, second) => output.extend(first.iter().chain(second).take(size)),
            HttpOutput::File { offset, octets } => {
                assert!(octets > 0 && offset + octets <= OCTETS);
                output.extend((offset..offset + octets).map(|place| place as u8).take(size));
            }
        }
        server.handle_sent(NOW, output.len() - before);
        if output.len() == before && !server.has_work() {
            return;
        }
    }
}

fn respond(request: &HttpRequest) -> HttpResponse {
    let path = &*request.path;
    assert!(path.starts_with(b"/") && !path.iter().any(u8::is_ascii_control));
    let mut names: Vec<&[u8]> = path[1..].split(|octet| *octet == b'/').collect();
    names.pop_if(|last| last.is_empty());
    assert!(names.iter().all(|name| !matches!(*name, b"" | b"." | b"..")), "{request:?}");
    let resource = |content| HttpResponse::Resource(Arc::new(Resource::new(content, "v1", NOW, "text/plain")));
    match path.len() % 4 {
        0 => resource(Content::Bytes(vec![b'x'; OCTETS as usize].into())),
        1 => resource(Content::File { octets: OCTETS }),
        2 => HttpResponse::Page { html: path.into(), fields: "" },
        _ => HttpResponse::Error(ErrorStatus::Unauthorized),
    }
}
