//! Generic addresses: the addresses of a message are rewritten on the way out, for the transport that says so,
//! as Postfix's generic(5). The queue, notices and logs keep the original ones.
//!
//! The header is read, rewritten and then sent from memory; what follows it goes from its range. If an
//! address cannot be looked up, or the header is too long to be searched, nothing is sent.

use std::fmt;
use std::pin::Pin;

use mail::{Address, Body, EnhancedCode, Outcome, Reply};
use net::{read_from_disk, read_if_cached};
use protocol::mime::{HEADER_END, header_len_from};

use super::outcome::local_error_reply;

/// A message with a longer header is not sent: addresses behind this would not be rewritten.
const HEADER_OCTETS_MAX: usize = 1 << 20;
/// How many octets of a body are read at once.
const READ_OCTETS: usize = 16 << 10;

/// Rewrites the addresses of messages.
pub trait GenericRewriter: fmt::Debug + Send + Sync {
    /// What becomes of these addresses of the envelope, and of those in the header. The error defers the
    /// mail.
    fn rewrite<'a>(&'a self, envelope: &'a [Address], header: &'a [u8]) -> GenericFuture<'a>;
}

/// Resolves to the rewritten addresses.
pub type GenericFuture<'a> = Pin<Box<dyn Future<Output = Result<GenericAddresses, String>> + Send + 'a>>;

/// Rewritten addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenericAddresses {
    /// Those of the envelope, in the same order.
    pub envelope: Vec<Address>,
    /// The header with rewritten addresses; None: nothing changes.
    pub header: Option<Vec<u8>>,
    /// A rewritten address in the header is not ASCII (RFC 6531).
    pub needs_smtputf8: bool,
}

/// What a task sends instead of the addresses of its envelope; of most tasks, nothing.
#[derive(Debug, Default)]
pub(super) struct AddressChanges {
    pairs: Vec<(Address, Address)>,
    /// The header needs SMTPUTF8, whatever its sender asked for.
    pub(super) needs_smtputf8: bool,
}

impl AddressChanges {
    /// The address to send.
    pub(super) fn outgoing<'a>(&'a self, address: &'a Address) -> &'a Address {
        let changed = self.pairs.iter().find(|(original, _)| original == address);
        changed.map_or(address, |(_, rewritten)| rewritten)
    }
}

/// Rewrites these addresses of the envelope, and the header of the body. Err: the outcome for all
/// recipients.
pub(super) async fn rewrite(
    rewriter: &dyn GenericRewriter,
    envelope: &[Address],
    body: &Body,
) -> Result<(AddressChanges, Body), Outcome> {
    let header = read_header(body).await?;
    let rewritten = rewriter.rewrite(envelope, &header).await;
    let GenericAddresses { envelope: new, header: new_header, needs_smtputf8 } =
        rewritten.map_err(|why| Outcome::Deferred(local_error_reply(format!("unable to rewrite addresses: {why}"))))?;
    let pairs = envelope.iter().cloned().zip(new).filter(|(original, rewritten)| original != rewritten);
    let body = new_header.map_or_else(|| body.clone(), |new_header| with_header(body, &header, new_header));
    Ok((AddressChanges { pairs: pairs.collect(), needs_smtputf8 }, body))
}

/// The header without the empty line after it, or all of a message that has no such line.
async fn read_header(body: &Body) -> Result<Vec<u8>, Outcome> {
    let mut header = Vec::new();
    loop {
        let (done, searched) = (header.len(), header.len().saturating_sub(HEADER_END.len() - 1));
        let octets = (body.len() - done as u64).min(READ_OCTETS as u64) as usize;
        header.resize(done + octets, 0);
        let unreadable = |error: std::io::Error| Outcome::Deferred(local_error_reply(error.to_string()));
        if !read_if_cached(body, &mut header[done..], done as u64).map_err(unreadable)? {
            let read = read_from_disk(body, done as u64, octets).await.map_err(unreadable)?;
            header[done..].copy_from_slice(&read);
        }
        let is_whole = header.len() as u64 == body.len();
        let len = header_len_from(&header, searched, is_whole);
        if len.unwrap_or(header.len()) > HEADER_OCTETS_MAX {
            return Err(Outcome::Failed(too_long_reply()));
        }
        if let Some(len) = len {
            header.truncate(len);
            return Ok(header);
        }
    }
}

/// RFC 3463 section 3.7.
fn too_long_reply() -> Reply {
    let text = format!("the header is longer than {HEADER_OCTETS_MAX} octets: its addresses cannot be rewritten");
    Reply::new(554, EnhancedCode(5, 6, 0), text)
}

/// The message with another header. Its digest is that of the stored octets, carried over: damage to any of
/// them, those of the old header included, makes it wrong.
fn with_header(body: &Body, old: &[u8], new: Vec<u8>) -> Body {
    let rest = (body.len() - old.len() as u64) as usize;
    let digest_of_rest = body.digest() ^ crc32c::crc32c_combine(crc32c::crc32c(old), 0, rest);
    let digest = crc32c::crc32c_combine(crc32c::crc32c(&new), digest_of_rest, rest);
    body.with_start(old.len() as u64, new, digest)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mail::BodyFlags;

    use super::*;

    fn body(text: &[u8]) -> Body {
        Body::new(Arc::new(text.to_vec()), 0, text.len() as u64, crc32c::crc32c(text), BodyFlags::default())
    }

    fn header_of(text: &[u8]) -> Result<usize, Outcome> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read_header(&body(text))).map(|header| header.len())
    }

    #[test]
    fn the_header_is_read_as_far_as_it_goes() {
        let lines = |octets: usize| b"x: y\r\n".repeat(octets / 6);
        for len in [0, 6, READ_OCTETS - 4, READ_OCTETS, 3 * READ_OCTETS, HEADER_OCTETS_MAX] {
            let header = lines(len);
            let message = [&header[..], b"\r\nFrom: not the header\r\n\r\n"].concat();
            assert_eq!(header_of(&message), Ok(header.len()));
            // A message without the end of its header is all header.
            assert_eq!(header_of(&header), Ok(header.len()));
        }
        for text in [lines(HEADER_OCTETS_MAX + 6), [&lines(HEADER_OCTETS_MAX + 6)[..], b"\r\nbody"].concat()] {
            assert_eq!(header_of(&text), Err(Outcome::Failed(too_long_reply())));
        }
    }

    #[test]
    fn the_digest_of_a_message_with_another_header_still_shows_damage_anywhere() {
        let stored = b"From: a\r\n\r\nbody\r\n";
        for (old, rest) in [(9, "\r\nbody\r\n"), (stored.len(), ""), (0, "From: a\r\n\r\nbody\r\n")] {
            let changed = with_header(&body(stored), &stored[..old], b"From: bob\r\n".to_vec());
            let expected = ["From: bob\r\n", rest].concat();
            assert_eq!((changed.len(), changed.digest()), (expected.len() as u64, crc32c::crc32c(expected.as_bytes())));
        }
        for place in 0..stored.len() {
            let mut damaged = stored.to_vec();
            damaged[place] ^= 1;
            let body = Body::new(
                Arc::new(damaged.clone()),
                0,
                stored.len() as u64,
                crc32c::crc32c(stored),
                BodyFlags::default(),
            );
            let changed = with_header(&body, &damaged[..9], b"From: bob\r\n".to_vec());
            let sent = [b"From: bob\r\n", &damaged[9..]].concat();
            assert_ne!(crc32c::crc32c(&sent), changed.digest(), "damage at {place}");
        }
    }
}
