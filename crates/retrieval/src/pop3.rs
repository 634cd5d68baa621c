//! POP3: users read and delete the messages of their Maildirs.
//!
//! [`Pop3Protocol`] is the protocol behind a listener. Its sessions answer the questions of the
//! machine ([`protocol::pop3::server`]) with the credentials, the locator of mailboxes, and a
//! [`mailbox::maildrop`].
//!
//! | message | sent |
//! |---|---|
//! | up to [`SMALL_MESSAGE_OCTETS_MAX`] | read at once; if it is in the page cache, on the session's thread |
//! | larger, with CRLF line ends | as ranges of its file, around the lines that begin with a dot |
//! | larger, with other line ends, for TOP, or without sendfile | read and encoded in chunks |
//!
//! A maildrop is locked from the login to QUIT, which unlocks it before the reply, or to the end of
//! the connection. What may wait for the disk, also unlocking, runs on the threads for disk work.

mod maildrop;
mod message;
mod session;

use std::sync::Arc;

use mailbox::maildrop::{DotLineCache, MaildropSettings};
use net::{AdmissionRefusal, AdmittedClient, ConnectionHandler};
use protocol::pop3::server::Pop3ServerConfig;

use crate::{RetrievalListener, RetrievalProtocol};

pub use message::SMALL_MESSAGE_OCTETS_MAX;

use session::Pop3Session;

/// POP3 with the settings of a listener. Clones share them.
#[derive(Clone)]
pub struct Pop3Protocol {
    config: Arc<Pop3ServerConfig>,
    settings: Arc<Pop3Settings>,
}

/// Settings of a listener besides those of the protocol.
pub struct Pop3Settings {
    /// How maildrops are opened.
    pub maildrop: MaildropSettings,
    /// Whether large messages are sent as ranges of their files. If not, all are read and sent as
    /// bytes.
    pub sendfile: bool,
    /// Where the lines of large messages begin with a dot; all listeners should share it.
    pub dot_lines: Arc<DotLineCache>,
}

impl Pop3Protocol {
    /// The protocol with these settings.
    pub fn new(config: Pop3ServerConfig, settings: Pop3Settings) -> Pop3Protocol {
        Pop3Protocol { config: Arc::new(config), settings: Arc::new(settings) }
    }
}

impl RetrievalProtocol for Pop3Protocol {
    fn refusal_reply(&self, reason: AdmissionRefusal) -> Vec<u8> {
        format!("-ERR [SYS/TEMP] {reason}, try again later\r\n").into_bytes()
    }

    fn open(listener: RetrievalListener<Self>, client: AdmittedClient) -> impl ConnectionHandler + Send {
        Pop3Session::new(listener, client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what a function with four arguments returns.
    fn size_of_result<A, B, C, D, R>(_function: impl FnOnce(A, B, C, D) -> R) -> usize {
        size_of::<R>()
    }

    #[test]
    fn an_idle_session_is_small() {
        let octets = size_of_result(net::serve_connection::<RetrievalListener<Pop3Protocol>>);
        assert!(octets <= 2048, "{octets} octets; a server has thousands of sessions");
    }
}
