//! Opens a session with a next hop: tries its hosts in the order of [`Rotation`], each with
//! connect, banner, EHLO and STARTTLS. If a host cannot be reached or refuses the session, the next
//! one is tried.
//!
//! | event | next step |
//! |---|---|
//! | no connection, lost, silent, not SMTP | next host |
//! | out of files, memory or ports here | next host; says nothing about the next hop |
//! | session refused, 4xx or 5xx | next host |
//! | optional TLS fails | same host in clear text (RFC 7435 section 3), then next host |
//! | no hosts left | failed only if all were tried and all refused with 5xx |

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mail::{Enhanced, Outcome, Reply};
use net::{Endpoint, Wire};
use protocol::smtp::client::{self, Closed, Event, Stage, Tls};
use rustix::io::Errno;
use tokio::time::Instant;

use super::dialogue::{Dialogue, Heard, Vigil, reason};
use super::rotation::{Choice, Rotation};
use super::verdict::{insecure, lost, ours, unreached};
use super::{Config, Contact, NextHop, Peer};

/// Why no session could be opened.
#[derive(Debug)]
pub(super) struct Unopened {
    pub(super) outcome: Outcome,
    pub(super) contact: Contact,
    /// The host that refused.
    pub(super) peer: Option<Peer>,
}

/// Why no session could be opened with one host.
#[derive(Debug)]
enum Miss {
    /// It did not answer, or not in SMTP.
    Silent(Reply),
    /// It refused the session.
    Refused(Reply),
    /// The TLS handshake failed.
    Insecure(Reply),
    /// It was not contacted: a resource is missing on this host.
    Unasked(Reply),
}

/// Opens a session with one of the hosts.
pub(super) async fn open(hop: &NextHop, rotation: &Rotation, vigil: &mut Vigil<'_>) -> Result<Box<Dialogue>, Unopened> {
    let choice = rotation.choose(hop);
    let mut so_far: Option<Unopened> = None;
    for target in &choice.targets {
        let peer = Peer(Arc::new((*target).clone()));
        let miss = match open_at(&hop.config, &peer, vigil).await {
            Ok(dialogue) => return Ok(dialogue),
            Err(miss) => miss,
        };
        so_far = Some(worse(so_far, miss, peer));
    }
    rotation.missed(hop, &choice);
    let Some(unopened) = so_far else {
        let reply = Reply::new(451, Enhanced(4, 4, 4), "the next hop has no address");
        return Err(Unopened { outcome: Outcome::Deferred(reply), contact: Contact::None, peer: None });
    };
    Err(if choice.targets.len() < choice.addresses { of_some(unopened, &choice) } else { unopened })
}

/// Not all addresses were tried: nothing fails for good, since the next attempt tries others, and
/// our own replies say so. Replies of a server stay unchanged.
fn of_some(mut unopened: Unopened, choice: &Choice<'_>) -> Unopened {
    let (tried, known) = (choice.targets.len(), choice.addresses);
    let counted = |reply: &mut Reply| {
        reply.text =
            format!("{} ({tried} of {known} addresses tried; the next attempt tries others)", reply.text).into();
    };
    if let (Outcome::Failed(reply), Some(peer)) = (&unopened.outcome, &unopened.peer) {
        unopened.outcome = Outcome::Deferred(unreached(format!("{peer}: {reply}")));
        unopened.peer = None;
    }
    if let (Outcome::Deferred(reply), None) = (&mut unopened.outcome, &unopened.peer) {
        counted(reply);
    }
    if let Contact::Failed(reply) = &mut unopened.contact {
        counted(reply);
    }
    unopened
}

/// Of two failures, the more hopeful one counts. A refusal says more about the next hop than
/// silence, and silence says nothing unless every host was contacted.
fn worse(so_far: Option<Unopened>, miss: Miss, peer: Peer) -> Unopened {
    let unopened = match miss {
        Miss::Refused(reply) => {
            let outcome = if reply.is_permanent() { Outcome::Failed(reply) } else { Outcome::Deferred(reply) };
            Unopened { outcome, contact: Contact::Busy, peer: Some(peer) }
        }
        Miss::Unasked(reply) => Unopened { outcome: Outcome::Deferred(reply), contact: Contact::None, peer: None },
        Miss::Silent(reply) | Miss::Insecure(reply) => {
            Unopened { outcome: Outcome::Deferred(reply.clone()), contact: Contact::Failed(reply), peer: None }
        }
    };
    let Some(before) = so_far else { return unopened };
    let weight = |unopened: &Unopened| match unopened.contact {
        Contact::Busy => 2,
        Contact::None => 1,
        Contact::Failed(_) | Contact::Interrupted(_) | Contact::Answered { .. } => 0,
    };
    let contact = if weight(&before) > weight(&unopened) { before.contact } else { unopened.contact };
    let (outcome, peer) = match (&before.outcome, &unopened.outcome) {
        (Outcome::Deferred(_), Outcome::Failed(_)) => (before.outcome, before.peer),
        _ => (unopened.outcome, unopened.peer),
    };
    Unopened { outcome, contact, peer }
}

async fn open_at(config: &Config, peer: &Peer, vigil: &mut Vigil<'_>) -> Result<Box<Dialogue>, Miss> {
    let client = &config.client;
    let has_tls = config.trust.is_some() && matches!(peer.endpoint(), Endpoint::Tcp(_));
    if client.tls == Tls::Offered && !has_tls {
        return greet(config, in_clear(client), peer, vigil).await;
    }
    match greet(config, client.clone(), peer, vigil).await {
        Err(Miss::Insecure(_)) if client.tls == Tls::Offered => greet(config, in_clear(client), peer, vigil).await,
        greeted => greeted,
    }
}

fn in_clear(config: &client::Config) -> Arc<client::Config> {
    Arc::new(client::Config { tls: Tls::Never, ..config.clone() })
}

/// Connects, and runs the session until it is ready for a message.
async fn greet(
    config: &Config,
    client: Arc<client::Config>,
    peer: &Peer,
    vigil: &mut Vigil<'_>,
) -> Result<Box<Dialogue>, Miss> {
    let handshake_time = client.timeouts.command;
    let wire = vigil.watch(connect(config, peer.endpoint())).await;
    let wire = wire.map_err(|error| unconnected(&error, peer))?;
    let mut dialogue = Dialogue::new(wire, client, peer.clone());
    loop {
        match dialogue.hear(None, vigil).await {
            Heard::Event(Event::Ready) => return Ok(dialogue),
            Heard::Event(Event::StartTls) => {
                let trust = config.trust.as_ref();
                let trust =
                    trust.ok_or_else(|| Miss::Insecure(insecure(format!("{peer}: no trusted certificates"))))?;
                let secured = dialogue.secure(trust, handshake_time, vigil).await;
                dialogue =
                    secured.map_err(|error| Miss::Insecure(insecure(format!("{peer}: TLS: {}", plainly(&error)))))?;
            }
            Heard::Event(Event::Closed(closed)) => {
                dialogue.hang_up().await;
                return Err(miss(closed, peer));
            }
            Heard::Event(Event::Replied { .. } | Event::Finished(_)) | Heard::Damaged(_) => {}
        }
    }
}

async fn connect(config: &Config, endpoint: &Endpoint) -> io::Result<Wire> {
    let source: Option<IpAddr> = match endpoint {
        Endpoint::Tcp(SocketAddr::V4(_)) => config.source_v4.map(IpAddr::V4),
        Endpoint::Tcp(SocketAddr::V6(_)) => config.source_v6.map(IpAddr::V6),
        Endpoint::Unix(_) => None,
    };
    Wire::connect(endpoint.clone(), source, Instant::now() + config.connect_timeout).await
}

/// A lack of resources on this host is not the fault of the next hop.
fn unconnected(error: &io::Error, peer: &Peer) -> Miss {
    let text = format!("{peer}: {}", plainly(error));
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL) => {
            Miss::Unasked(ours(text))
        }
        _ => Miss::Silent(unreached(text)),
    }
}

fn miss(closed: Closed, peer: &Peer) -> Miss {
    match closed {
        Closed::Shutdown(reply) | Closed::Refused { stage: Stage::Banner | Stage::Hello, reply } => {
            Miss::Refused(reply)
        }
        // A wrong password is not the fault of the message.
        Closed::Refused { stage, reply } => Miss::Silent(insecure(format!("{peer}: {stage}: {reply}"))),
        Closed::Lacks(lack) => Miss::Silent(insecure(format!("{peer}: {lack}"))),
        Closed::Ended(Stage::StartTls) => Miss::Insecure(insecure(format!("{peer}: {}", reason(&closed)))),
        closed => Miss::Silent(lost(format!("{peer}: {}", reason(&closed)))),
    }
}

/// The text of the error without the system's error number.
fn plainly(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => {
            let text = error.to_string();
            text.split(" (os error").next().unwrap_or_default().to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Target;
    use super::*;

    #[test]
    fn what_we_lack_is_not_held_against_the_next_hop() {
        let endpoint = Endpoint::Tcp(SocketAddr::from(([192, 0, 2, 1], 25)));
        let peer = Peer(Arc::new(Target { host: "mx".into(), endpoint }));
        let contact = |errnos: &[Errno]| {
            let misses = errnos.iter().map(|errno| unconnected(&io::Error::from(*errno), &peer));
            misses.fold(None, |so_far, miss| Some(worse(so_far, miss, peer.clone()))).unwrap().contact
        };
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL] {
            assert_eq!(contact(&[errno]), Contact::None);
            assert_eq!(contact(&[Errno::CONNREFUSED, errno]), Contact::None);
            assert_eq!(contact(&[errno, Errno::CONNREFUSED]), Contact::None);
        }
        assert!(matches!(contact(&[Errno::CONNREFUSED]), Contact::Failed(_)));
        let outcome = worse(None, unconnected(&Errno::MFILE.into(), &peer), peer.clone()).outcome;
        assert!(
            matches!(outcome, Outcome::Deferred(reply) if (reply.code, reply.enhanced) == (451, Some(Enhanced(4, 3, 0))))
        );
    }
}
