//! From the next hop to a session that is ready: hosts in the order that [`Rotation`] gives, each by connect, banner, EHLO,
//! STARTTLS. A host that cannot be reached, or refuses the session, leads to the next one.
//!
//! | what happens                            | then                                                              |
//! |-----------------------------------------|-------------------------------------------------------------------|
//! | no connection, lost, silent, garbage    | the next host                                                     |
//! | we lack files, memory, ports            | the next host; says nothing of those that were not asked          |
//! | the session refused, 4xx or 5xx         | the next host                                                     |
//! | the handshake fails, TLS only offered   | once more in clear text (RFC 7435 section 3), then the next host  |
//! | no host left                            | failed only if all refused the session by 5xx, and all were tried |

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

/// Why there is no session.
#[derive(Debug)]
pub(super) struct Unopened {
    pub(super) outcome: Outcome,
    pub(super) contact: Contact,
    /// Whoever refused.
    pub(super) peer: Option<Peer>,
}

/// Why there is none with one host.
#[derive(Debug)]
enum Miss {
    /// It has not said anything of use.
    Silent(Reply),
    /// It does not want us.
    Refused(Reply),
    /// The handshake failed.
    Insecure(Reply),
    /// It was not asked: we lack something.
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

/// There are more addresses than were tried: nothing fails for good, as the next attempt tries others, and our own words
/// say so. Those of a server stay as they are.
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

/// Of two misses the one that leaves more hope counts. A refusal says more of the next hop than silence, and silence
/// nothing where not every host was asked.
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

/// Connects, and goes on until a message may be sent.
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
                    trust.ok_or_else(|| Miss::Insecure(insecure(format!("{peer}: no trusted certificates are configured"))))?;
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

/// The next hop is not to blame for what we lack.
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
        // The message is not to blame for a password that does not fit.
        Closed::Refused { stage, reply } => Miss::Silent(insecure(format!("{peer}: {stage}: {reply}"))),
        Closed::Lacks(lack) => Miss::Silent(insecure(format!("{peer}: {lack}"))),
        Closed::Ended(Stage::StartTls) => Miss::Insecure(insecure(format!("{peer}: {}", reason(&closed)))),
        closed => Miss::Silent(lost(format!("{peer}: {}", reason(&closed)))),
    }
}

/// Without the number that the system has for it.
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
