//! One request and its response: the HTTP client on a connection, with timing.
//!
//! A request is one send; a response that arrives whole is one receive. The content is digested in
//! the receive buffer. All times count from right before the request is sent.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use net::OutboundConnection;
use protocol::http::client::{HttpClient, HttpEvent, HttpResponseLimits, HttpViolation, Persistence};
use tokio::time::Instant;

use super::page::Page;
use crate::dial::{dial, error_text};
use crate::engine::Worker;
use crate::tally::LoadTally;

/// The timed phases.
pub(super) const PHASES: &[&str] = &["connect", "first byte", "whole"];
const CONNECT: usize = 0;
const FIRST_BYTE: usize = 1;
const WHOLE: usize = 2;

/// A connection and how many requests it may still carry.
#[derive(Debug)]
pub(super) struct HttpConnection {
    wire: OutboundConnection,
    client: HttpClient,
    to: SocketAddr,
    requests_left: u64,
}

/// A complete response.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: u16,
    pub(super) octets: u64,
    /// Digest of the content; 0 if it is not compared.
    pub(super) digest: u32,
    pub(super) whole_at: Instant,
    asked_at: Instant,
    first_byte_at: Instant,
}

/// Why a request has no response.
#[derive(Debug)]
pub(super) struct FetchError {
    /// For the list of errors.
    pub(super) text: String,
    /// The connection ended before any byte of the response.
    pub(super) was_idle: bool,
}

impl From<String> for FetchError {
    fn from(text: String) -> FetchError {
        FetchError { text, was_idle: false }
    }
}

impl HttpConnection {
    /// Connects to the server of this page, for this number of requests.
    pub(super) async fn open(page: &Page, requests: u64, worker: &Worker) -> Result<HttpConnection, FetchError> {
        let wire = dial(page.address, worker, CONNECT).await?;
        Ok(HttpConnection {
            wire,
            client: HttpClient::new(HttpResponseLimits::default()),
            to: page.address,
            requests_left: requests,
        })
    }

    /// Whether this connection leads to the page's server.
    pub(super) fn connects_to(&self, page: &Page) -> bool {
        self.to == page.address
    }

    /// Whether another request may be sent.
    pub(super) fn is_reusable(&self) -> bool {
        self.client.is_idle() && self.requests_left > 0
    }

    /// Requests the page and waits for the whole response.
    pub(super) async fn fetch_page(
        &mut self,
        worker: &Worker,
        page: &Page,
        digested: bool,
    ) -> Result<HttpResponse, FetchError> {
        self.requests_left -= 1;
        let request = page.request(if self.requests_left > 0 { Persistence::Keep } else { Persistence::Close });
        let asked_at = Instant::now();
        let deadline = asked_at + worker.timeout;
        let mut response = PartialResponse { digested, ..PartialResponse::default() };
        self.client.handle_request_sent(request.method());
        self.send(request.as_bytes(), deadline).await.map_err(|error| response.io_error(&error))?;
        let mut first_byte_at = None;
        loop {
            let client = &mut self.client;
            let received = self.wire.receive(deadline, |input| response.handle_received(client, input)).await;
            received.map_err(|error| response.io_error(&error))??;
            let now = Instant::now();
            let first_byte_at = *first_byte_at.get_or_insert(now);
            if response.is_whole {
                let PartialResponse { status, octets, digest, .. } = response;
                return Ok(HttpResponse { status, octets, digest, whole_at: now, asked_at, first_byte_at });
            }
        }
    }

    async fn send(&mut self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = self.wire.send(&[IoSlice::new(bytes)], deadline).await?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }
}

impl HttpResponse {
    /// Records the times of this response.
    pub(super) fn record_times(&self, tally: &mut LoadTally) {
        tally.record_phase(FIRST_BYTE, self.first_byte_at - self.asked_at);
        tally.record_phase(WHOLE, self.whole_at - self.asked_at);
    }
}

/// A response received in part.
#[derive(Debug, Default)]
struct PartialResponse {
    digested: bool,
    has_begun: bool,
    status: u16,
    octets: u64,
    digest: u32,
    is_whole: bool,
}

impl PartialResponse {
    /// Handles received bytes; none mean the end of the connection.
    fn handle_received(&mut self, client: &mut HttpClient, mut input: &[u8]) -> Result<(), FetchError> {
        if input.is_empty() {
            let ended = client.handle_disconnect().map_err(|misbehaviour| self.protocol_error(misbehaviour))?;
            self.is_whole = ended.is_some();
            return if self.is_whole { Ok(()) } else { Err(self.protocol_error(HttpViolation::ConnectionClosed)) };
        }
        self.has_begun = true;
        while let Some(event) = client.handle_input(&mut input).map_err(|fault| self.protocol_error(fault))? {
            match event {
                HttpEvent::Head(head) => self.status = head.status,
                HttpEvent::Body(piece) => {
                    self.octets += piece.len() as u64;
                    if self.digested {
                        self.digest = crc32c::crc32c_append(self.digest, piece);
                    }
                }
                HttpEvent::End => self.is_whole = true,
            }
        }
        Ok(())
    }

    fn protocol_error(&self, misbehaviour: HttpViolation) -> FetchError {
        let was_idle = !self.has_begun && misbehaviour == HttpViolation::ConnectionClosed;
        FetchError { text: misbehaviour.to_string(), was_idle }
    }

    fn io_error(&self, error: &io::Error) -> FetchError {
        let was_idle = !self.has_begun && error.kind() != io::ErrorKind::TimedOut;
        FetchError { text: error_text(error), was_idle }
    }
}
