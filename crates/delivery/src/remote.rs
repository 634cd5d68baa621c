//! Delivery to other hosts by SMTP and LMTP. [`RemoteDelivery`] runs tasks, each a message for some
//! recipients of one next hop, over connections that it opens, reuses and closes. It reports the
//! end of every task exactly once, with an outcome for every recipient, whatever the server does:
//! if a message may have been accepted, it is deferred, never treated as lost or delivered. No
//! error here is fatal.
//!
//! A task takes the idle connection that was used last, and opens a new one only if none is idle. A
//! connection is closed right after QUIT, without waiting for the reply, so a next hop never has
//! more connections than it had tasks at one time. Each connection is a tokio task
//! ([`connection_task`]) with these states:
//!
//! | state | has a task | next state |
//! |---|---|---|
//! | Opening | yes | Sending; end, reported, if every host refuses or is silent |
//! | Sending | yes | Idle or QUIT, reported; Opening once, if a reused connection was stale |
//! | Idle | no | Sending on a task; QUIT on timeout, [`RemoteDelivery::close`] or input from the server |
//! | QUIT | no | end |
//!
//! At worst a message is delivered twice: if the connection is lost, or times out, after the last
//! byte was sent and before the reply arrives. The next attempt then sends it again.

mod address_rotation;
mod connect;
mod connection;
mod connection_task;
mod content;
mod generic;
mod login;
mod outcome;
mod pool;
mod seven_bit;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mail::{
    Address, Body, Envelope, HostTls, QueueId, Reply, StsRule, StsTest, TlsPolicyFailure, TlsProof, TlsSession,
};
use net::{Endpoint, TlsClient, TrustedRoots};
use protocol::smtp::client;

use crate::{DeliveryResult, MessageFence};
pub use generic::{GenericAddresses, GenericFuture, GenericRewriter};
pub use login::{LoginFuture, LoginSecurity, LoginSource, RelayLogins};
use pool::SmtpConnectionPool;

/// The configuration of one transport.
#[derive(Clone, Debug)]
pub struct RemoteDeliveryConfig {
    /// The protocol and its timeouts.
    pub client: Arc<client::SmtpClientConfig>,
    /// TLS for hosts that need not prove who they are. Without it there is no TLS with them.
    pub tls_client: Option<TlsClient>,
    /// The authorities for hosts that must have a verified certificate ([`HostTls::Verified`]).
    pub trusted_roots: TrustedRoots,
    /// How connections are made and used.
    pub connections: ConnectionConfig,
    /// The logins at its next hops, if it needs any.
    pub logins: Option<RelayLogins>,
    /// What rewrites the addresses of its mail on the way out, if anything does.
    pub generic: Option<Arc<dyn GenericRewriter>>,
    /// A server that takes longer than this for one reply is reported as slow:
    /// [`RemoteEvent::Slow`].
    pub slow_after: Duration,
}

/// How the connections of a transport are made and used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionConfig {
    /// The local address for connections to IPv4 addresses.
    pub source_v4: Option<Ipv4Addr>,
    /// The local address for connections to IPv6 addresses.
    pub source_v6: Option<Ipv6Addr>,
    /// Whether connections use TLS from their first byte (RFC 8314 section 3.3). None: those to port
    /// 465, unless the transport never uses TLS.
    pub implicit_tls: Option<bool>,
    /// The timeout for connecting to each address.
    pub connect_timeout: Duration,
    /// How long a connection may stay idle.
    pub idle_time_max: Duration,
    /// The maximum number of idle connections of one [`RemoteDelivery`]; any further one is closed.
    pub idle_connections_max: usize,
    /// Bodies larger than this are sent by sendfile; None: sendfile is not used.
    pub sendfile_above: Option<u64>,
    /// After this many messages a connection is closed.
    pub messages_per_connection_max: u32,
    /// How many addresses one task tries. If a next hop has more, later tasks try the others, and
    /// the best ones again.
    pub addresses_tried_max: usize,
    /// How 8-bit messages are sent to servers without 8BITMIME.
    pub eight_bit: EightBitPolicy,
}

/// What becomes of a message with 8-bit octets that a server does not accept, as it lacks 8BITMIME
/// (RFC 6152 section 3). Messages that need SMTPUTF8 are never converted, and notices never bounce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EightBitPolicy {
    /// It is converted to 7 bits ([`protocol::mime::seven_bit`]).
    #[default]
    Convert,
    /// It is sent as it is.
    Send,
    /// It bounces.
    Bounce,
}

impl RemoteDeliveryConfig {
    /// The default values.
    pub fn new(client: client::SmtpClientConfig) -> Self {
        RemoteDeliveryConfig {
            client: Arc::new(client),
            tls_client: None,
            trusted_roots: TrustedRoots::of_system(),
            connections: ConnectionConfig::default(),
            logins: None,
            generic: None,
            slow_after: Duration::from_secs(10),
        }
    }
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        ConnectionConfig {
            source_v4: None,
            source_v6: None,
            implicit_tls: None,
            connect_timeout: Duration::from_secs(30),
            idle_time_max: Duration::from_secs(5),
            idle_connections_max: 2000,
            // Smaller bodies are copied: one write together with their commands costs less.
            sendfile_above: Some(32 << 10),
            messages_per_connection_max: 1000,
            addresses_tried_max: 8,
            eight_bit: EightBitPolicy::Convert,
        }
    }
}

/// A set of hosts, any of which may accept a message.
#[derive(Clone, Debug)]
pub struct NextHop {
    /// Identifies the next hop: connections are reused for the same name and version of the
    /// settings, which implies the same hosts, and only if the host must prove the same
    /// ([`NextHopAddress::tls`]).
    pub name: Arc<str>,
    /// Incremented when the settings change: connections opened with other settings are not reused.
    pub config_version: u32,
    /// Whether the operator named the hosts. Otherwise the recipient's address did, and no login is
    /// sent to them.
    pub is_configured: bool,
    /// The hosts by preference. Those in the same tier are tried in random order.
    pub tiers: Vec<Vec<NextHopAddress>>,
    /// The configuration of its transport.
    pub config: Arc<RemoteDeliveryConfig>,
    /// Why policies about TLS of the domain cannot be met, told with each session:
    /// [`RemoteEvent::Tls`].
    pub tls_failures: Vec<TlsPolicyFailure>,
}

impl NextHop {
    /// Whether mail for this next hop may go over a connection to that host.
    fn allows(&self, peer: &RemotePeer) -> bool {
        self.tiers.iter().flatten().any(|target| target.host == peer.0.host && target.tls == peer.0.tls)
    }
}

/// One address of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHopAddress {
    /// The name of the host, for TLS and for messages to people.
    pub host: Box<str>,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// What the host must prove.
    pub tls: HostTls,
    /// What the MTA-STS policy of the domain says of it. Connections are reused whatever it says.
    pub sts: Option<StsRule>,
}

/// A message for some recipients of one next hop.
#[derive(Clone, Debug)]
pub struct RemoteTask<T> {
    /// Opaque to this module; returned with the result.
    pub ticket: T,
    /// The queue ID of the message.
    pub id: QueueId,
    /// The envelope of the message.
    pub envelope: Arc<Envelope>,
    /// The indexes of the recipients to deliver to; at least one.
    pub recipients: Vec<u32>,
    /// The content of the message.
    pub body: Body,
    /// The next hop to deliver to.
    pub next_hop: Arc<NextHop>,
    /// Use a VERP sender address ([`crate::verp`]); the task then has only one recipient.
    pub verp: bool,
    /// The sender for recipients with [`mail::Recipient::is_forwarded`]. None: that of the envelope.
    pub forwarded_sender: Option<Address>,
}

/// What [`RemoteDelivery`] reports, in the order in which it happens.
#[derive(Clone, Debug)]
pub enum RemoteEvent<T> {
    /// A task is finished.
    Finished(RemoteTaskResult<T>),
    /// A session was opened with a host that the domain of the recipients names, TLS with it failed, or a policy
    /// of the domain cannot be met.
    Tls(TlsSession),
    /// A task waits for one reply longer than [`RemoteDeliveryConfig::slow_after`], and continues.
    /// Sent once per task.
    Slow {
        /// The next hop it waits for.
        next_hop: Arc<NextHop>,
    },
}

/// A finished task.
#[derive(Clone, Debug)]
pub struct RemoteTaskResult<T> {
    /// The ticket of the task.
    pub ticket: T,
    /// The envelope of the task.
    pub envelope: Arc<Envelope>,
    /// The result.
    pub result: DeliveryResult,
    /// What the attempt says about the next hop.
    pub feedback: NextHopFeedback,
    /// The host that answered, if any did.
    pub peer: Option<RemotePeer>,
    /// How the connection to it was protected; None if no session was opened.
    pub proof: Option<TlsProof>,
}

/// What an attempt says about its next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextHopFeedback {
    /// It answered to the end.
    Answered {
        /// The longest wait for a reply.
        slowest: Duration,
    },
    /// It is busy: it sent 421 (RFC 5321 section 3.8, at any time) or refused the session.
    Busy,
    /// No session: the connection failed, or was lost, silent or not SMTP before the session was
    /// ready.
    Failed(Reply),
    /// The session was ready and then broke off during this message: lost, silent or not SMTP. The
    /// message may be the cause.
    Interrupted(Reply),
    /// Nothing: the message cannot be sent there, or anywhere.
    Unknown,
}

/// A host that answered. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePeer(Arc<NextHopAddress>);

impl RemotePeer {
    /// The name of the host.
    pub fn host(&self) -> &str {
        &self.0.host
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// What it must prove.
    pub fn tls(&self) -> &HostTls {
        &self.0.tls
    }

    /// What a policy says of it that is only tried out.
    fn sts_test(&self) -> Option<StsTest> {
        self.0.sts.as_ref()?.test
    }
}

/// `mx1.example.org[192.0.2.1]:25`, `mx1.example.org[2001:db8::1]:25` or `host[/path]`.
impl fmt::Display for RemotePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.endpoint {
            Endpoint::Tcp(address) => write!(f, "{}[{}]:{}", self.0.host, address.ip(), address.port()),
            Endpoint::Unix(path) => write!(f, "{}[{}]", self.0.host, path.display()),
        }
    }
}

/// Delivers to other hosts, on the thread that created it. After a drop, running tasks still
/// finish.
pub struct RemoteDelivery<T> {
    pool: Rc<SmtpConnectionPool<T>>,
}

impl<T: 'static> RemoteDelivery<T> {
    /// Starts without connections. `on_event` is called for every task; it may call
    /// [`start`](RemoteDelivery::start_task).
    pub fn new(on_event: impl Fn(RemoteEvent<T>) + 'static) -> Self {
        RemoteDelivery::with_fence(on_event, Box::new(|_| true))
    }

    /// The same, with messages that may be withheld ([`DeliveryResult::Withheld`]).
    pub fn with_fence(on_event: impl Fn(RemoteEvent<T>) + 'static, fence: MessageFence) -> Self {
        RemoteDelivery { pool: Rc::new(SmtpConnectionPool::new(Box::new(on_event), fence)) }
    }

    /// Starts a task. Must be called where [`tokio::task::spawn_local`] works.
    pub fn start_task(&self, task: RemoteTask<T>) {
        connection_task::start(&self.pool, task);
    }

    /// Closes all connections: idle ones immediately, others when their task is finished. Returns
    /// when no connection is left.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
