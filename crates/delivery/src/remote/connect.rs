//! Opens a session with a next hop: tries its hosts in the order of [`AddressRotation`], each with
//! connect, banner, EHLO and STARTTLS. If a host cannot be reached or refuses the session, the next
//! one is tried.
//!
//! | event | next step |
//! |---|---|
//! | no connection, lost, silent, not SMTP | next host |
//! | login not possible | next host; says nothing about the next hop if senders have logins of their own |
//! | login refused with 5xx | none: the others would count one more guess of the password; otherwise the same |
//! | out of files, memory or ports here | next host; says nothing about the next hop |
//! | session refused, 4xx or 5xx | next host |
//! | optional TLS fails | same host in clear text (RFC 7435 section 3), then next host |
//! | the host does not prove what it must ([`HostTls`]) | next host; says nothing about the next hop |
//! | no hosts left | failed only if all were tried and all refused with 5xx |

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mail::{EnhancedCode, HostTls, Outcome, Reply, StsTest, TlsFailure, TlsProof, VerifiedBy};
use net::{Endpoint, OutboundConnection, TlsClient, TrustedRootsError};
use protocol::smtp::client::{
    self, CloseReason, MissingCapability, SmtpClientEvent, SmtpCredentials, SmtpStage, SmtpViolation, TlsPolicy,
};
use rustix::io::Errno;
use tokio::time::Instant;

use super::address_rotation::{AddressChoice, AddressRotation};
use super::connection::{ConnectionEvent, RemoteConnection, SlowDetector, close_reason, server_name};
use super::login::{self, LoginSecurity};
use super::outcome::{local_error_reply, login_failed_reply, lost_reply, tls_failed_reply, unreachable_reply};
use super::{NextHop, NextHopFeedback, RemoteDeliveryConfig, RemotePeer};

/// Where servers speak TLS from the first byte (RFC 8314 section 3.3).
const SUBMISSIONS_PORT: u16 = 465;

/// Octets of the text of an error that are kept.
const ERROR_OCTETS_MAX: usize = 500;

/// Why no session could be opened.
#[derive(Debug)]
pub(super) struct ConnectFailure {
    pub(super) outcome: Outcome,
    pub(super) feedback: NextHopFeedback,
    /// The host that refused.
    pub(super) peer: Option<RemotePeer>,
}

/// Why no session could be opened with one host.
#[derive(Debug)]
enum HostFailure {
    /// It did not answer, or not in SMTP.
    Unreachable(Reply),
    /// It refused the session.
    Refused(Reply),
    /// The TLS handshake failed.
    TlsFailed(Reply, TlsFailure),
    /// It refused the login, or gets none.
    LoginFailed(LoginFailure),
    /// It does not prove what the policy of the destination demands. Other destinations may demand
    /// less of the same host, so this is not held against the next hop.
    Unproved(Reply, TlsFailure),
    /// It was not contacted: a resource is missing on this host.
    LocalError(Reply),
}

/// A login that failed.
#[derive(Debug)]
struct LoginFailure {
    reply: Reply,
    /// Other senders have logins of their own.
    is_of_sender: bool,
    /// The server knows the user and the password to be wrong.
    is_refused: bool,
}

/// Opens a session with one of the hosts. `tell_tls` gets to know how TLS went with each that was tried.
pub(super) async fn open_session(
    next_hop: &NextHop,
    rotation: &AddressRotation,
    slow_detector: &mut SlowDetector<'_>,
    tell_tls: &dyn Fn(&RemotePeer, Option<TlsFailure>),
) -> Result<Box<RemoteConnection>, ConnectFailure> {
    let choice = rotation.choose_addresses(next_hop);
    let mut so_far: Option<ConnectFailure> = None;
    for target in &choice.targets {
        let peer = RemotePeer(Arc::new((*target).clone()));
        let mut tls_failure = None;
        let opened = open_session_with(&next_hop.config, &peer, slow_detector, &mut tls_failure).await;
        let failure = match opened {
            Ok(dialogue) => {
                // Without our own authorities nothing can be said about the host.
                if let Ok(failure) = observed_failure(&next_hop.config, &dialogue, tls_failure).await {
                    tell_tls(&peer, failure);
                }
                return Ok(dialogue);
            }
            Err(failure) => failure,
        };
        if let HostFailure::TlsFailed(_, why) | HostFailure::Unproved(_, why) = &failure {
            tell_tls(&peer, Some(*why));
        }
        let is_refused = matches!(&failure, HostFailure::LoginFailed(login) if login.is_refused);
        let merged = merge_failure(so_far, failure, peer);
        if is_refused {
            return Err(merged);
        }
        so_far = Some(merged);
    }
    rotation.advance(next_hop, &choice);
    let Some(failure) = so_far else {
        let reply = Reply::new(451, EnhancedCode(4, 4, 4), "the next hop has no address");
        return Err(ConnectFailure {
            outcome: Outcome::Deferred(reply),
            feedback: NextHopFeedback::Unknown,
            peer: None,
        });
    };
    Err(if choice.targets.len() < choice.addresses { mark_as_partial(failure, &choice) } else { failure })
}

/// Why an open session is not as the policy of the domain wants it. An MTA-STS policy in mode `testing` demands
/// nothing, so its demands are checked here (RFC 8461 section 5).
async fn observed_failure(
    config: &RemoteDeliveryConfig,
    dialogue: &RemoteConnection,
    tls_failure: Option<TlsFailure>,
) -> Result<Option<TlsFailure>, TrustedRootsError> {
    if dialogue.proof() == TlsProof::Clear {
        return Ok(Some(tls_failure.unwrap_or(TlsFailure::NotSupported)));
    }
    match dialogue.peer().sts_test() {
        Some(StsTest::Named) => dialogue.certificate_failure(&config.trusted_roots).await,
        Some(StsTest::NotNamed) => Ok(Some(TlsFailure::HostNotNamed)),
        None => Ok(None),
    }
}

/// Not all addresses were tried: nothing fails for good, since the next attempt tries others, and
/// our own replies say so. Replies of a server stay unchanged.
fn mark_as_partial(mut failure: ConnectFailure, choice: &AddressChoice<'_>) -> ConnectFailure {
    let (tried, known) = (choice.targets.len(), choice.addresses);
    let counted = |reply: &mut Reply| {
        reply.text =
            format!("{} ({tried} of {known} addresses tried; the next attempt tries others)", reply.text).into();
    };
    if let (Outcome::Failed(reply), Some(peer)) = (&failure.outcome, &failure.peer) {
        failure.outcome = Outcome::Deferred(unreachable_reply(format!("{peer}: {reply}")));
        failure.peer = None;
    }
    if let (Outcome::Deferred(reply), None) = (&mut failure.outcome, &failure.peer) {
        counted(reply);
    }
    if let NextHopFeedback::Failed(reply) = &mut failure.feedback {
        counted(reply);
    }
    failure
}

/// Of two failures, the more hopeful one counts. A refusal says more about the next hop than
/// silence, and silence says nothing unless every host was contacted.
fn merge_failure(so_far: Option<ConnectFailure>, failure: HostFailure, peer: RemotePeer) -> ConnectFailure {
    let failure = match failure {
        HostFailure::Refused(reply) => {
            let outcome = if reply.is_permanent() { Outcome::Failed(reply) } else { Outcome::Deferred(reply) };
            ConnectFailure { outcome, feedback: NextHopFeedback::Busy, peer: Some(peer) }
        }
        HostFailure::LocalError(reply)
        | HostFailure::Unproved(reply, _)
        | HostFailure::LoginFailed(LoginFailure { reply, is_of_sender: true, .. }) => {
            ConnectFailure { outcome: Outcome::Deferred(reply), feedback: NextHopFeedback::Unknown, peer: None }
        }
        HostFailure::Unreachable(reply)
        | HostFailure::TlsFailed(reply, _)
        | HostFailure::LoginFailed(LoginFailure { reply, is_of_sender: false, .. }) => ConnectFailure {
            outcome: Outcome::Deferred(reply.clone()),
            feedback: NextHopFeedback::Failed(reply),
            peer: None,
        },
    };
    let Some(before) = so_far else { return failure };
    let weight = |failure: &ConnectFailure| match failure.feedback {
        NextHopFeedback::Busy => 2,
        NextHopFeedback::Unknown => 1,
        NextHopFeedback::Failed(_) | NextHopFeedback::Interrupted(_) | NextHopFeedback::Answered { .. } => 0,
    };
    let contact = if weight(&before) > weight(&failure) { before.feedback } else { failure.feedback };
    let (outcome, peer) = match (&before.outcome, &failure.outcome) {
        (Outcome::Deferred(_), Outcome::Failed(_)) => (before.outcome, before.peer),
        _ => (failure.outcome, failure.peer),
    };
    ConnectFailure { outcome, feedback: contact, peer }
}

/// Sets `tls_failure` if TLS fails and the session goes on in clear text.
async fn open_session_with(
    config: &RemoteDeliveryConfig,
    peer: &RemotePeer,
    slow_detector: &mut SlowDetector<'_>,
    tls_failure: &mut Option<TlsFailure>,
) -> Result<Box<RemoteConnection>, HostFailure> {
    let client = &config.client;
    if client.credentials.is_some() && !may_log_in(config, peer) {
        let why = "this host need not prove its name by TLS first (tls = \"verified\")";
        return Err(login_failure(why.to_owned(), config, peer));
    }
    if *peer.tls() != HostTls::Transport {
        let greeted = start_session(config, with_required_tls(client), peer, slow_detector).await;
        return greeted.map_err(|failure| failure.with_policy(peer));
    }
    if is_implicit_tls(config, peer) {
        // There is no clear text to fall back to.
        return start_session(config, client.clone(), peer, slow_detector).await;
    }
    let has_tls = config.tls_client.is_some() && matches!(peer.endpoint(), Endpoint::Tcp(_));
    if client.tls == TlsPolicy::Offered && !has_tls {
        return start_session(config, without_tls(client), peer, slow_detector).await;
    }
    match start_session(config, client.clone(), peer, slow_detector).await {
        Err(HostFailure::TlsFailed(_, why)) if client.tls == TlsPolicy::Offered => {
            *tls_failure = Some(why);
            start_session(config, without_tls(client), peer, slow_detector).await
        }
        greeted => greeted,
    }
}

/// Whether this host proves enough to get a login.
fn may_log_in(config: &RemoteDeliveryConfig, peer: &RemotePeer) -> bool {
    let is_verified = matches!(peer.tls(), HostTls::Verified(_) | HostTls::Dane(_));
    is_verified || config.logins.as_ref().is_none_or(|logins| logins.security != LoginSecurity::Verified)
}

/// Whether a connection to this host uses TLS from its first byte.
fn is_implicit_tls(config: &RemoteDeliveryConfig, peer: &RemotePeer) -> bool {
    let is_submissions = matches!(peer.endpoint(), Endpoint::Tcp(address) if address.port() == SUBMISSIONS_PORT);
    let wanted = config.connections.implicit_tls.unwrap_or(is_submissions && config.tls_client.is_some());
    wanted && config.client.tls != TlsPolicy::Never
}

fn without_tls(config: &client::SmtpClientConfig) -> Arc<client::SmtpClientConfig> {
    Arc::new(client::SmtpClientConfig { tls: TlsPolicy::Never, ..config.clone() })
}

fn with_required_tls(config: &client::SmtpClientConfig) -> Arc<client::SmtpClientConfig> {
    Arc::new(client::SmtpClientConfig { tls: TlsPolicy::Required, ..config.clone() })
}

impl HostFailure {
    /// The same failure at a host that must prove something. A transport that demands it does so for
    /// all mail of the next hop; any other policy is that of a destination.
    fn with_policy(self, peer: &RemotePeer) -> HostFailure {
        let HostFailure::TlsFailed(mut reply, why) = self else { return self };
        reply.text = format!("{} (TLS: {})", reply.text, peer.tls()).into();
        match peer.tls() {
            HostTls::Verified(verified) if verified.by == VerifiedBy::Transport => HostFailure::TlsFailed(reply, why),
            _ => HostFailure::Unproved(reply, why),
        }
    }
}

/// The TLS client for what the host must prove.
async fn tls_client_for(config: &RemoteDeliveryConfig, peer: &RemotePeer) -> Result<TlsClient, String> {
    match peer.tls() {
        HostTls::Transport | HostTls::Encrypted => {
            config.tls_client.clone().ok_or_else(|| "TLS is not available".to_owned())
        }
        HostTls::Verified(verified) => {
            let verified = TlsClient::verified(&config.trusted_roots, verified.names.clone()).await;
            verified.map_err(|error| error.to_string())
        }
        HostTls::Dane(policy) => Ok(TlsClient::dane(policy.clone())),
    }
}

/// Connects, and runs the session until it is ready for a message.
async fn start_session(
    config: &RemoteDeliveryConfig,
    client: Arc<client::SmtpClientConfig>,
    peer: &RemotePeer,
    slow_detector: &mut SlowDetector<'_>,
) -> Result<Box<RemoteConnection>, HostFailure> {
    let handshake_time = client.timeouts.command;
    let outbound = slow_detector.watch(connect(config, peer.endpoint())).await;
    let outbound = outbound.map_err(|error| connect_failure(&error, peer))?;
    let is_implicit = is_implicit_tls(config, peer);
    let outbound = match is_implicit {
        true => secured(config, outbound, peer, handshake_time, slow_detector).await?,
        false => outbound,
    };
    let mut dialogue = RemoteConnection::new(outbound, client, peer.clone(), is_implicit);
    loop {
        match dialogue.next_event(None, slow_detector, &|| true).await {
            ConnectionEvent::Session(SmtpClientEvent::Ready) => return Ok(dialogue),
            ConnectionEvent::Session(SmtpClientEvent::StartTls) => {
                let tls_client = tls_client_for(config, peer).await.map_err(|why| {
                    HostFailure::TlsFailed(tls_failed_reply(format!("{peer}: {why}")), TlsFailure::Other)
                })?;
                let secured = dialogue.start_tls(&tls_client, handshake_time, slow_detector).await;
                dialogue = secured.map_err(|error| handshake_failure(&error, peer))?;
            }
            ConnectionEvent::Session(SmtpClientEvent::ComputeProof(work)) => {
                let proof = slow_detector.watch(login::compute_proof(work)).await;
                dialogue.handle_proof(proof.map_err(|why| login_failure(why, config, peer))?);
            }
            ConnectionEvent::Session(SmtpClientEvent::Closed(closed)) => {
                dialogue.close().await;
                return Err(session_failure(closed, config, peer));
            }
            ConnectionEvent::Session(SmtpClientEvent::Replied { .. } | SmtpClientEvent::Finished(_))
            | ConnectionEvent::Damaged(_)
            | ConnectionEvent::Withheld => {}
        }
    }
}

/// Implicit TLS: the handshake comes first.
async fn secured(
    config: &RemoteDeliveryConfig,
    outbound: OutboundConnection,
    peer: &RemotePeer,
    timeout: Duration,
    slow_detector: &mut SlowDetector<'_>,
) -> Result<OutboundConnection, HostFailure> {
    let unavailable =
        |why: String| HostFailure::TlsFailed(tls_failed_reply(format!("{peer}: TLS: {why}")), TlsFailure::Other);
    let tls_client = tls_client_for(config, peer).await.map_err(unavailable)?;
    let handshake = outbound.start_tls(&tls_client, server_name(peer), Instant::now() + timeout);
    slow_detector.watch(handshake).await.map_err(|error| handshake_failure(&error, peer))
}

fn handshake_failure(error: &io::Error, peer: &RemotePeer) -> HostFailure {
    let reply = tls_failed_reply(format!("{peer}: TLS: {}", without_errno(error)));
    HostFailure::TlsFailed(reply, net::tls_failure(error))
}

async fn connect(config: &RemoteDeliveryConfig, endpoint: &Endpoint) -> io::Result<OutboundConnection> {
    let source: Option<IpAddr> = match endpoint {
        Endpoint::Tcp(SocketAddr::V4(_)) => config.connections.source_v4.map(IpAddr::V4),
        Endpoint::Tcp(SocketAddr::V6(_)) => config.connections.source_v6.map(IpAddr::V6),
        Endpoint::Unix(_) => None,
    };
    OutboundConnection::connect(endpoint.clone(), source, Instant::now() + config.connections.connect_timeout).await
}

/// A lack of resources on this host is not the fault of the next hop.
fn connect_failure(error: &io::Error, peer: &RemotePeer) -> HostFailure {
    let text = format!("{peer}: {}", without_errno(error));
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL) => {
            HostFailure::LocalError(local_error_reply(text))
        }
        _ => HostFailure::Unreachable(unreachable_reply(text)),
    }
}

fn session_failure(closed: CloseReason, config: &RemoteDeliveryConfig, peer: &RemotePeer) -> HostFailure {
    match closed {
        CloseReason::Refused { stage: SmtpStage::Auth, reply } => {
            let is_refused = reply.is_permanent();
            HostFailure::LoginFailed(LoginFailure { is_refused, ..login_failed(&reply.to_string(), config, peer) })
        }
        CloseReason::Lacks(lack @ (MissingCapability::LoginTls | MissingCapability::Mechanism { .. })) => {
            login_failure(lack.to_string(), config, peer)
        }
        CloseReason::ProtocolViolation(violation @ SmtpViolation::Login(_)) => {
            login_failure(violation.to_string(), config, peer)
        }
        CloseReason::Shutdown(reply) | CloseReason::Refused { stage: SmtpStage::Banner | SmtpStage::Hello, reply } => {
            HostFailure::Refused(reply)
        }
        CloseReason::Refused { stage: stage @ SmtpStage::StartTls, reply } => {
            let reply = tls_failed_reply(format!("{peer}: {stage}: {reply}"));
            HostFailure::TlsFailed(reply, TlsFailure::NotSupported)
        }
        CloseReason::Refused { stage, reply } => {
            HostFailure::Unreachable(tls_failed_reply(format!("{peer}: {stage}: {reply}")))
        }
        CloseReason::Lacks(MissingCapability::StartTls) => {
            let reply = tls_failed_reply(format!("{peer}: {}", MissingCapability::StartTls));
            HostFailure::TlsFailed(reply, TlsFailure::NotSupported)
        }
        CloseReason::Ended(SmtpStage::StartTls) => {
            HostFailure::TlsFailed(tls_failed_reply(format!("{peer}: {}", close_reason(&closed))), TlsFailure::Other)
        }
        closed => HostFailure::Unreachable(lost_reply(format!("{peer}: {}", close_reason(&closed)))),
    }
}

/// The text of the error without the system's error number. An error of TLS may contain thousands of
/// names of a hostile certificate.
fn without_errno(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => {
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            mail::printable(&text[..text.floor_char_boundary(ERROR_OCTETS_MAX)]).into()
        }
    }
}

/// A login that fails is not the fault of the message. If each sender has a login of its own, it is
/// not that of the next hop either; otherwise nothing can be sent there, and one attempt at a time
/// shows when that changes.
fn login_failure(why: String, config: &RemoteDeliveryConfig, peer: &RemotePeer) -> HostFailure {
    HostFailure::LoginFailed(login_failed(&why, config, peer))
}

fn login_failed(why: &str, config: &RemoteDeliveryConfig, peer: &RemotePeer) -> LoginFailure {
    let user = config.client.credentials.as_ref().map_or("", SmtpCredentials::user);
    let reply = login_failed_reply(format!("{peer}: login as {user:?}: {why}"));
    let is_of_sender = config.logins.as_ref().is_some_and(|logins| logins.source.depends_on_sender());
    LoginFailure { reply, is_of_sender, is_refused: false }
}

#[cfg(test)]
mod tests {
    use super::super::NextHopAddress;
    use super::*;

    #[test]
    fn the_text_of_a_hostile_error_is_short_and_printable() {
        let hostile = format!("not valid for a\r\n\u{1b}[2J{}", "b, ".repeat(100_000));
        let text = without_errno(&io::Error::other(hostile));
        assert!(text.len() < 2 * ERROR_OCTETS_MAX && !text.contains(char::is_control), "{text:?}");
    }

    #[test]
    fn port_465_alone_selects_implicit_tls_unless_the_settings_say_otherwise() {
        let command = client::CommandArgument::new("client.example").unwrap();
        let plain = RemoteDeliveryConfig::new(client::SmtpClientConfig::new(client::MailProtocol::Smtp, command));
        for (port, setting, tls, has_client, expected) in [
            (465, None, TlsPolicy::Offered, true, true),
            (465, None, TlsPolicy::Required, true, true),
            (465, None, TlsPolicy::Never, true, false),
            (465, None, TlsPolicy::Offered, false, false),
            (465, Some(false), TlsPolicy::Required, true, false),
            (25, None, TlsPolicy::Required, true, false),
            (587, None, TlsPolicy::Required, true, false),
            (4650, None, TlsPolicy::Required, true, false),
            (587, Some(true), TlsPolicy::Required, true, true),
        ] {
            let endpoint = Endpoint::Tcp(SocketAddr::from(([192, 0, 2, 1], port)));
            let target = NextHopAddress { host: "mx".into(), endpoint, tls: HostTls::Transport, sts: None };
            let mut config = plain.clone();
            config.client = Arc::new(client::SmtpClientConfig { tls, ..(*plain.client).clone() });
            config.tls_client = has_client.then(TlsClient::unverified);
            config.connections.implicit_tls = setting;
            let is_implicit = is_implicit_tls(&config, &RemotePeer(Arc::new(target)));
            assert_eq!(is_implicit, expected, "{port} {setting:?} {tls:?} {has_client}");
        }
    }

    #[test]
    fn what_we_lack_is_not_held_against_the_next_hop() {
        let endpoint = Endpoint::Tcp(SocketAddr::from(([192, 0, 2, 1], 25)));
        let target = NextHopAddress { host: "mx".into(), endpoint, tls: HostTls::Transport, sts: None };
        let peer = RemotePeer(Arc::new(target));
        let contact = |errnos: &[Errno]| {
            let failures = errnos.iter().map(|errno| connect_failure(&io::Error::from(*errno), &peer));
            failures.fold(None, |so_far, failure| Some(merge_failure(so_far, failure, peer.clone()))).unwrap().feedback
        };
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL] {
            assert_eq!(contact(&[errno]), NextHopFeedback::Unknown);
            assert_eq!(contact(&[Errno::CONNREFUSED, errno]), NextHopFeedback::Unknown);
            assert_eq!(contact(&[errno, Errno::CONNREFUSED]), NextHopFeedback::Unknown);
        }
        assert!(matches!(contact(&[Errno::CONNREFUSED]), NextHopFeedback::Failed(_)));
        let outcome = merge_failure(None, connect_failure(&Errno::MFILE.into(), &peer), peer.clone()).outcome;
        assert!(
            matches!(outcome, Outcome::Deferred(reply) if (reply.code, reply.enhanced) == (451, Some(EnhancedCode(4, 3, 0))))
        );
    }
}
