//! A page to request: its address, the bytes of the request, and the digest of its first content.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::http::Method;
use protocol::http::client::{HttpRequest, Persistence};

use super::HttpOptions;
use crate::{BenchError, OwnedTargetOptions, TargetServer};

/// The default port of `http` URLs.
const PORT_DEFAULT: u16 = 80;
/// Set in a digest that is present.
const DIGEST_PRESENT: u64 = 1 << 32;

/// One page.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) url: String,
    pub(super) address: SocketAddr,
    request: HttpRequest,
    /// For the last request on a connection.
    last_request: HttpRequest,
    /// Digest of the first content; 0 until then.
    first_digest: AtomicU64,
}

impl Page {
    /// The request to send.
    pub(super) fn request(&self, persistence: Persistence) -> &HttpRequest {
        match persistence {
            Persistence::Keep => &self.request,
            Persistence::Close => &self.last_request,
        }
    }

    /// Whether this digest equals that of the first content. The first call sets it.
    pub(super) fn matches_first(&self, digest: u32) -> bool {
        let digest = DIGEST_PRESENT | u64::from(digest);
        match self.first_digest.load(Ordering::Relaxed) {
            0 => self
                .first_digest
                .compare_exchange(0, digest, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|first| first == digest, |_| true),
            first => first == digest,
        }
    }
}

/// Reads all pages that the options name.
pub(super) fn read_pages(options: &HttpOptions, ownership: &OwnedTargetOptions) -> Result<Vec<Page>, BenchError> {
    let mut urls = options.targets.clone();
    if let Some(path) = &options.urls {
        let text = fs::read_to_string(path).map_err(BenchError::system(path.display()))?;
        urls.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
    }
    let mut targets = HashMap::new();
    urls.into_iter().map(|url| parse_page(url, options.method(), ownership, &mut targets)).collect()
}

fn parse_page(
    url: String,
    method: Method,
    ownership: &OwnedTargetOptions,
    targets: &mut HashMap<String, SocketAddr>,
) -> Result<Page, BenchError> {
    let usage = |why: &str| BenchError::Usage(format!("{url}: {why}"));
    let ParsedUrl { authority, host_and_port, target } = ParsedUrl::parse(&url).map_err(usage)?;
    let address = match targets.get(&host_and_port) {
        Some(&address) => address,
        None => {
            let address = TargetServer::resolve(&host_and_port, ownership)?.address;
            targets.insert(host_and_port, address);
            address
        }
    };
    let request = |persistence| {
        HttpRequest::new(method, authority, &target, persistence).map_err(|unsendable| usage(&unsendable.to_string()))
    };
    let (request, last_request) = (request(Persistence::Keep)?, request(Persistence::Close)?);
    Ok(Page { url, address, request, last_request, first_digest: AtomicU64::new(0) })
}

/// The parts of a URL.
#[derive(Debug, PartialEq, Eq)]
struct ParsedUrl<'a> {
    /// As in the Host field.
    authority: &'a str,
    host_and_port: String,
    /// Path and query.
    target: String,
}

impl ParsedUrl<'_> {
    fn parse(url: &str) -> Result<ParsedUrl<'_>, &'static str> {
        let rest = url.strip_prefix("http://").ok_or("expected http://HOST:PORT/PATH")?;
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("a URL with a user or password is not supported");
        }
        // The colons of an IPv6 address are within brackets.
        let after_host = authority.rfind(']').map_or(authority, |bracket| &authority[bracket..]);
        let host_and_port =
            if after_host.contains(':') { authority.to_owned() } else { format!("{authority}:{PORT_DEFAULT}") };
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(ParsedUrl { authority, host_and_port, target: format!("{slash}{path}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_into_host_port_and_path() {
        for (url, authority, host_and_port, target) in [
            ("http://127.0.0.1:8080/page?q=/", "127.0.0.1:8080", "127.0.0.1:8080", "/page?q=/"),
            ("http://localhost", "localhost", "localhost:80", "/"),
            ("http://[::1]/a#b?c", "[::1]", "[::1]:80", "/a"),
            ("http://[::1]:81?x", "[::1]:81", "[::1]:81", "/?x"),
        ] {
            let host_and_port = host_and_port.to_owned();
            assert_eq!(
                ParsedUrl::parse(url),
                Ok(ParsedUrl { authority, host_and_port, target: target.to_owned() }),
                "{url}"
            );
        }
        for url in ["https://localhost/", "localhost:80", "http://me:secret@localhost/"] {
            assert!(ParsedUrl::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn later_content_is_compared_with_the_first() {
        let url = "http://127.0.0.1/".to_owned();
        let page = parse_page(url, Method::Get, &OwnedTargetOptions::default(), &mut HashMap::new()).unwrap();
        assert!(page.matches_first(0) && page.matches_first(0) && !page.matches_first(1));
    }

    #[test]
    fn a_url_cannot_inject_header_fields() {
        for url in ["http://127.0.0.1/a b", "http://127.0.0.1/\u{fc}", "http://127.0.0.1/\r\nX: y"] {
            assert!(
                parse_page(url.to_owned(), Method::Get, &OwnedTargetOptions::default(), &mut HashMap::new()).is_err(),
                "{url}"
            );
        }
    }
}
