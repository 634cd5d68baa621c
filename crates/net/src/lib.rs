//! Sockets for protocol machines: listening, session limits, timeouts, shutdown. A [`Conversation`]
//! speaks the protocol; this crate transfers its bytes.
//!
//! An idle connection costs a task and a socket, but no buffer: all connections of a thread share
//! one for reading.

mod acceptor;
mod certificate;
mod clock;
mod drive;
mod endpoint;
mod gate;
mod inherited;
mod input;
mod listen;
mod proxy;
mod shelf;
mod stop;
mod stream;
mod tls;
mod wire;

pub use acceptor::{Acceptor, AcceptorError, TlsVersion};
pub use certificate::{Certificate, CertificateError, CertificateFiles, Doubt};
pub use clock::{instant_of, steady_now};
pub use drive::{Conversation, close, discard_input, drive};
pub use endpoint::Endpoint;
pub use gate::{Gate, GateLimits, Pass, RATED_CLIENTS_MAX, Rate, Turned};
pub use inherited::{Inherited, InheritedError};
pub use listen::{accept, bind, set_backlog};
pub use proxy::{PROXY_HEADER_TIME_MAX, Proxied, ProxyError, parse_proxy_header, receive_proxy_header};
pub use shelf::{DISK_READS_MAX, bring_from_disk, is_at_hand, read_at_once, read_from_disk};
pub use stop::{Stop, Stopper};
pub use stream::Stream;
pub use tls::Trust;
pub use wire::{FileRange, Moved, Wire};
