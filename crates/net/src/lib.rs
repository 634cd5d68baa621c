//! Sockets for protocol machines: listening, PROXY, session limits, TLS, timeouts, shutdown.
//!
//! A [`Service`] is a protocol behind a [`BoundListener`]. [`SessionWorkers`] accept its
//! connections; for each client that is admitted, its [`ConnectionHandler`] speaks the protocol,
//! and this crate transfers its bytes.
//!
//! An idle connection costs a task and a socket, but no buffer: all connections of a thread share
//! one for reading.

mod body_read;
mod certificate;
mod certificate_chain;
mod challenges;
mod clock;
mod connection_limits;
mod dane;
mod disk_read;
mod drive;
mod endpoint;
mod file_range;
mod greeting_delay;
mod inherited;
mod input;
mod listen;
mod outbound;
mod pipe_pool;
mod proxy;
mod server_stream;
mod server_verifier;
mod service;
mod stop;
mod tls_client;
mod tls_handshakes;
mod tls_server;
mod trusted_roots;
mod workers;

pub use body_read::{is_cached, prefetch_from_disk, read_from_disk, read_if_cached};
pub use certificate::{Certificate, CertificateError, CertificateFiles, CertificateWarning, ChainError};
pub use challenges::{CHALLENGES_MAX, ChallengeError, ChallengeStore, HTTP_CHALLENGE_PATH, PendingChallenge};
pub use clock::{steady_instant, steady_now};
pub use connection_limits::{ConnectionLimiter, ConnectionLimits, ConnectionRefusal, RATED_CLIENTS_MAX, SessionPermit};
pub use dane::meets_dane_policy;
pub use disk_read::{DISK_READS_MAX, run_on_disk_thread};
pub use drive::{ConnectionHandler, OutputPiece, Tunnel, TunnelEnd, TunnelEndReason, drive_connection};
pub use endpoint::Endpoint;
pub use file_range::FileRange;
pub use greeting_delay::{GreetingDelay, GreetingDelays};
pub use inherited::{InheritedSocketError, InheritedSockets};
pub use listen::{ListenerOpener, ListenerSocket, accept_connections, bind};
pub use outbound::{OutboundConnection, SentOrReceived};
pub use proxy::{ProxyError, ProxyHeader, parse_proxy_header};
pub use server_stream::ServerStream;
pub use service::{AdmissionRefusal, AdmittedClient, Service, serve_connection};
pub use stop::{StopReceiver, StopSender};
pub use tls_client::{TlsClient, tls_failure};
pub use tls_handshakes::TlsHandshakeCounters;
pub use tls_server::{CertificateSource, FirstHandshake, TlsServer, TlsServerError, TlsVersion};
pub use trusted_roots::{TrustedRoots, TrustedRootsError};
pub use workers::{BoundListener, SessionWorkers, session_runtime};
