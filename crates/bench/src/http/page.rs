//! A page to request: its address, the bytes of the request, and the digest of its first content.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::http::Method;
use protocol::http::client::{Persistence, Request};

use super::Options;
use crate::{Fault, Ownership, Target};

/// The default port of `http` URLs.
const PORT: u16 = 80;
/// Set in a digest that is present.
const SEEN: u64 = 1 << 32;

/// One page.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) url: String,
    pub(super) address: SocketAddr,
    request: Request,
    /// For the last request on a connection.
    last_request: Request,
    /// Digest of the first content; 0 until then.
    first: AtomicU64,
}

impl Page {
    /// The request to send.
    pub(super) fn request(&self, persistence: Persistence) -> &Request {
        match persistence {
            Persistence::Keep => &self.request,
            Persistence::Close => &self.last_request,
        }
    }

    /// Whether this digest equals that of the first content. The first call sets it.
    pub(super) fn is_as_first(&self, digest: u32) -> bool {
        let digest = SEEN | u64::from(digest);
        match self.first.load(Ordering::Relaxed) {
            0 => self
                .first
                .compare_exchange(0, digest, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|first| first == digest, |_| true),
            first => first == digest,
        }
    }
}

/// Reads all pages that the options name.
pub(super) fn all(options: &Options, ownership: &Ownership) -> Result<Vec<Page>, Fault> {
    let mut urls = options.targets.clone();
    if let Some(path) = &options.urls {
        let text = fs::read_to_string(path).map_err(Fault::system(path.display()))?;
        urls.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
    }
    let mut targets = HashMap::new();
    urls.into_iter().map(|url| page(url, options.method(), ownership, &mut targets)).collect()
}

fn page(
    url: String,
    method: Method,
    ownership: &Ownership,
    targets: &mut HashMap<String, SocketAddr>,
) -> Result<Page, Fault> {
    let usage = |why: &str| Fault::Usage(format!("{url}: {why}"));
    let Place { authority, host_and_port, target } = Place::of(&url).map_err(usage)?;
    let address = match targets.get(&host_and_port) {
        Some(&address) => address,
        None => {
            let address = Target::resolve(&host_and_port, ownership)?.address;
            targets.insert(host_and_port, address);
            address
        }
    };
    let request = |persistence| {
        Request::new(method, authority, &target, persistence).map_err(|unsendable| usage(&unsendable.to_string()))
    };
    let (request, last_request) = (request(Persistence::Keep)?, request(Persistence::Close)?);
    Ok(Page { url, address, request, last_request, first: AtomicU64::new(0) })
}

/// The parts of a URL.
#[derive(Debug, PartialEq, Eq)]
struct Place<'a> {
    /// As in the Host field.
    authority: &'a str,
    host_and_port: String,
    /// Path and query.
    target: String,
}

impl Place<'_> {
    fn of(url: &str) -> Result<Place<'_>, &'static str> {
        let rest = url.strip_prefix("http://").ok_or("expected http://HOST:PORT/PATH")?;
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("a URL with a user or password is not supported");
        }
        // The colons of an IPv6 address are within brackets.
        let after_host = authority.rfind(']').map_or(authority, |bracket| &authority[bracket..]);
        let host_and_port = if after_host.contains(':') { authority.to_owned() } else { format!("{authority}:{PORT}") };
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(Place { authority, host_and_port, target: format!("{slash}{path}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_whom_to_ask_for_what() {
        for (url, authority, host_and_port, target) in [
            ("http://127.0.0.1:8080/page?q=/", "127.0.0.1:8080", "127.0.0.1:8080", "/page?q=/"),
            ("http://localhost", "localhost", "localhost:80", "/"),
            ("http://[::1]/a#b?c", "[::1]", "[::1]:80", "/a"),
            ("http://[::1]:81?x", "[::1]:81", "[::1]:81", "/?x"),
        ] {
            let host_and_port = host_and_port.to_owned();
            assert_eq!(Place::of(url), Ok(Place { authority, host_and_port, target: target.to_owned() }), "{url}");
        }
        for url in ["https://localhost/", "localhost:80", "http://me:secret@localhost/"] {
            assert!(Place::of(url).is_err(), "{url}");
        }
    }

    #[test]
    fn the_first_content_is_what_all_others_are_held_against() {
        let url = "http://127.0.0.1/".to_owned();
        let page = page(url, Method::Get, &Ownership::default(), &mut HashMap::new()).unwrap();
        assert!(page.is_as_first(0) && page.is_as_first(0) && !page.is_as_first(1));
    }

    #[test]
    fn a_url_can_smuggle_nothing() {
        for url in ["http://127.0.0.1/a b", "http://127.0.0.1/\u{fc}", "http://127.0.0.1/\r\nX: y"] {
            assert!(page(url.to_owned(), Method::Get, &Ownership::default(), &mut HashMap::new()).is_err(), "{url}");
        }
    }
}
