//! What happens to an accepted connection before its protocol begins, the same for all protocols.
//!
//! | step | ends the connection |
//! |---|---|
//! | the PROXY header, if the client must send one | no slot for the wait, no valid header, a stop |
//! | admission: overload, then the limits of the client | with a reply in clear text |
//! | the delay before the greeting, if the service has one | the client is gone, a stop |
//! | the service's own check | with a reply in clear text, closed gracefully; a stop |
//! | the TLS handshake, if TLS is implicit | it failed, it answered a certificate authority, there is no TLS server, a stop |
//!
//! Then a [`ConnectionHandler`] of the service has the connection ([`drive_connection`]). What is
//! rare is boxed, so that an idle session is small.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use mail::{Networks, TlsInfo};
use tokio::net::TcpStream;

use crate::drive::{close_gracefully, discard_input, drive_connection};
use crate::greeting_delay::{DelayOutcome, GreetingDelay};
use crate::proxy::receive_proxy_header;
use crate::{
    ConnectionHandler, ConnectionLimiter, ConnectionRefusal, FirstHandshake, ProxyHeader, ServerStream, SessionPermit,
    StopReceiver, TlsServer,
};

/// A protocol behind a listener, on one thread. Each connection has a clone of its own, so it
/// consists of references.
///
/// With implicit TLS no reply is sent before the handshake, whatever the methods return.
pub trait Service: Sized + Send + Sync + 'static {
    /// What the handler needs to know of [`Service::check_client`].
    type Checked: Send;

    /// Clients that must send a PROXY header before anything else.
    fn proxy_networks(&self) -> &Networks;
    /// Counts sessions, and enforces the limits of single clients.
    fn connection_limiter(&self) -> &Arc<ConnectionLimiter>;
    /// Whether the client is exempt from the limits of single clients.
    fn is_trusted(&self, client: IpAddr) -> bool;
    /// For TLS from the first byte; the handshakes of upgrades are the handler's.
    fn tls_server(&self) -> Option<Arc<TlsServer>>;
    /// Whether connections use TLS from the first byte. Without a TLS server they are then closed.
    fn has_implicit_tls(&self) -> bool;

    /// Whether the load is too high for this client. Asked for each connection.
    fn is_overloaded_for(&self, client: IpAddr) -> bool;
    /// How long the client must be silent before the check. None: it need not.
    fn greeting_delay(&self, _client: IpAddr) -> Option<GreetingDelay> {
        None
    }
    /// The client was admitted: the service's own check. Its port is 0 if it is unknown. `is_early_talker`: it talked during the delay.
    /// The error is the reply that refuses it. None: `stop` came while the check waited.
    fn check_client(
        &self,
        client: SocketAddr,
        is_early_talker: bool,
        stop: &StopReceiver,
    ) -> impl Future<Output = Option<Result<Self::Checked, Vec<u8>>>> + Send;
    /// The session of an admitted client begins.
    fn open(self, client: AdmittedClient, checked: Self::Checked) -> impl ConnectionHandler + Send;

    /// The reply to a client that is not admitted.
    fn refusal_reply(&self, reason: AdmissionRefusal) -> Vec<u8>;
    /// A client was not admitted, and has its reply.
    fn handle_refused(&self, client: IpAddr, reason: AdmissionRefusal);
    /// The PROXY header of this proxy was missing or invalid.
    fn handle_proxy_error(&self, proxy: IpAddr, error: &io::Error);
    /// The handshake of implicit TLS succeeded.
    fn handle_tls_established(&self, security: TlsInfo);
    /// The handshake of implicit TLS failed.
    fn handle_handshake_failed(&self, client: IpAddr, error: &io::Error);
}

/// Why a client is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionRefusal {
    /// The load is too high.
    Overload,
    /// A limit on connections was reached.
    Limit(ConnectionRefusal),
}

impl fmt::Display for AdmissionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AdmissionRefusal::Overload => "the load of the machine is too high",
            AdmissionRefusal::Limit(ConnectionRefusal::Full) => "too many sessions",
            AdmissionRefusal::Limit(ConnectionRefusal::ClientFull) => "too many sessions of this client",
            AdmissionRefusal::Limit(ConnectionRefusal::ClientTooOften) => "the client connects too often",
        })
    }
}

/// What is known of a client whose session begins. Addresses are canonical: an IPv4 address is
/// never written as IPv6.
#[derive(Debug)]
pub struct AdmittedClient {
    /// The client; behind a proxy, the one that the proxy named.
    pub address: IpAddr,
    /// The port that it connected from.
    pub port: u16,
    /// The address that it connected to; None if the system cannot tell.
    pub local_address: Option<IpAddr>,
    /// It is exempt from the limits of single clients.
    pub trusted: bool,
    /// To be kept until the session ends.
    pub permit: SessionPermit,
    /// The parameters of implicit TLS.
    pub security: Option<TlsInfo>,
}

/// The addresses of both ends of a connection.
#[derive(Clone, Copy)]
struct ConnectionAddresses {
    client: IpAddr,
    client_port: u16,
    local_address: Option<IpAddr>,
}

/// Serves one connection, from the first byte to the end.
pub async fn serve_connection<S: Service>(service: S, mut stream: TcpStream, client: SocketAddr, stop: StopReceiver) {
    let local_address = stream.local_addr().ok().map(|address| address.ip());
    let mut addresses = ConnectionAddresses {
        client: client.ip().to_canonical(),
        client_port: client.port(),
        local_address: local_address.map(|own| own.to_canonical()),
    };
    let mut permit = None;
    if service.proxy_networks().contains(addresses.client) {
        // While waiting for the header, the connection counts as a session, but not as one of its
        // client, which is unknown yet.
        match service.connection_limiter().admit(addresses.client, true, Instant::now()) {
            Ok(taken) => permit = Some(taken),
            Err(refused) => return refuse(&service, &stream, addresses.client, AdmissionRefusal::Limit(refused)),
        }
        match Box::pin(read_proxy_header(&service, &mut stream, addresses, stop.clone())).await {
            Some(named) => addresses = named,
            None => return,
        }
    }
    let ConnectionAddresses { client, client_port: port, local_address } = addresses;
    let trusted = service.is_trusted(client);
    let permit = match admit(&service, permit, client, trusted) {
        Ok(permit) => permit,
        Err(reason) => return refuse(&service, &stream, client, reason),
    };
    let is_early_talker = match service.greeting_delay(client) {
        // Boxed, so that sessions without a delay do not reserve memory for it.
        Some(delay) => match Box::pin(delay.wait_for(&stream, stop.clone())).await {
            DelayOutcome::Ended => return,
            outcome => outcome == DelayOutcome::Early,
        },
        None => false,
    };
    let checked = match service.check_client(SocketAddr::new(client, port), is_early_talker, &stop).await {
        Some(Ok(checked)) => checked,
        Some(Err(reply)) => {
            send_reply(&service, &stream, &reply);
            // It keeps its permit until then.
            return Box::pin(close_gracefully(stream)).await;
        }
        None => return,
    };
    let stream = if service.has_implicit_tls() {
        match Box::pin(accept_tls(&service, stream, client, stop.clone())).await {
            Some(secured) => secured,
            None => return,
        }
    } else {
        ServerStream::from(stream)
    };
    let client = AdmittedClient { address: client, port, local_address, trusted, permit, security: stream.tls_info() };
    let mut handler = service.open(client, checked);
    drive_connection(stream, stop, &mut handler).await;
}

/// Reads the PROXY header. A stop interrupts it. Without a header there is no session, since the
/// client is unknown.
async fn read_proxy_header(
    service: &impl Service,
    stream: &mut TcpStream,
    addresses: ConnectionAddresses,
    mut stop: StopReceiver,
) -> Option<ConnectionAddresses> {
    let received = tokio::select! {
        received = receive_proxy_header(stream) => received,
        () = stop.wait_for_stop() => return None,
    };
    match received {
        Ok(ProxyHeader::Local) => Some(addresses),
        Ok(ProxyHeader::Proxied { client, own }) => Some(ConnectionAddresses {
            client: client.ip().to_canonical(),
            client_port: client.port(),
            local_address: Some(own.ip().to_canonical()),
        }),
        Err(error) => {
            service.handle_proxy_error(addresses.client, &error);
            None
        }
    }
}

/// Checks the load, and then the limits of the client. A permit from waiting for a PROXY header is
/// transferred to the client.
fn admit(
    service: &impl Service,
    waiting: Option<SessionPermit>,
    client: IpAddr,
    trusted: bool,
) -> Result<SessionPermit, AdmissionRefusal> {
    if service.is_overloaded_for(client) {
        return Err(AdmissionRefusal::Overload);
    }
    let admitted = match waiting {
        Some(mut permit) => permit.transfer_to_client(client, trusted, Instant::now()).map(|()| permit),
        None => service.connection_limiter().admit(client, trusted, Instant::now()),
    };
    admitted.map_err(AdmissionRefusal::Limit)
}

/// Refuses a client for lack of resources. The connection is closed without waiting for input, so a
/// client that has sent more than has arrived by now may be reset before it sees the reply.
fn refuse(service: &impl Service, stream: &TcpStream, client: IpAddr, reason: AdmissionRefusal) {
    send_reply(service, stream, &service.refusal_reply(reason));
    discard_input(stream);
    service.handle_refused(client, reason);
}

/// Writing a few bytes to an empty socket never blocks. With implicit TLS nothing is sent: there
/// are no resources for a handshake.
fn send_reply(service: &impl Service, stream: &TcpStream, reply: &[u8]) {
    if !service.has_implicit_tls() {
        // If the client is gone, the reply is not needed.
        let _ = stream.try_write(reply);
    }
}

/// Performs the TLS handshake before the first byte of a session. A stop interrupts it.
async fn accept_tls(
    service: &impl Service,
    stream: TcpStream,
    client: IpAddr,
    mut stop: StopReceiver,
) -> Option<ServerStream> {
    // Without a TLS server the session ends: it must not continue in clear text.
    let tls_server = service.tls_server()?;
    let made = tokio::select! {
        made = tls_server.accept_first(stream) => made,
        () = stop.wait_for_stop() => return None,
    };
    match made {
        Ok(FirstHandshake::Client(secured)) => {
            secured.tls_info().into_iter().for_each(|security| service.handle_tls_established(security));
            Some(secured)
        }
        Ok(FirstHandshake::Authority(stream)) => {
            close_gracefully(stream).await;
            None
        }
        Err(error) => {
            service.handle_handshake_failed(client, &error);
            None
        }
    }
}
