//! The idle connections by next hop. A task gets the one used last, which is least likely to have
//! been closed by its server.
//!
//! An idle connection has a [`IdleConnection`] here. Taking it out means giving it a task or
//! telling it to close, so outside the pool it always has a command.
//!
//! Domains with the same hosts share a next hop, but not what these hosts must prove by TLS, and
//! senders may have logins of their own. A connection goes only to tasks with the same login, secret
//! included, for which its host must prove the same.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use protocol::smtp::client::SmtpCredentials;
use tokio::sync::Notify;

use super::address_rotation::AddressRotation;
use super::generic::AddressChanges;
use super::{NextHop, RemoteEvent, RemotePeer, RemoteTask};
use crate::MessageFence;

/// Next hops without idle connections are kept while there are fewer than this.
const IDLE_LISTS_MIN: usize = 100;

/// The idle connections, by the name of their next hop.
type IdleConnections<T> = HashMap<Arc<str>, Vec<IdleEntry<T>>>;

/// An idle connection, and the host that it leads to.
struct IdleEntry<T> {
    slot: Rc<IdleConnection<T>>,
    peer: RemotePeer,
}

pub(super) struct SmtpConnectionPool<T> {
    on_event: Box<dyn Fn(RemoteEvent<T>)>,
    /// Which messages may be sent.
    pub(super) fence: MessageFence,
    /// Which addresses to try next.
    pub(super) rotation: AddressRotation,
    idle: RefCell<IdleConnections<T>>,
    idle_count: Cell<usize>,
    /// The number of connections, including those being opened or closed.
    open_connections: Cell<usize>,
    closing: Cell<bool>,
    all_closed: Notify,
}

/// Through this an idle connection gets its next command.
pub(super) struct IdleConnection<T> {
    /// The version of the settings with which the connection was opened.
    config_version: u32,
    /// The login that it carries mail for.
    login: Option<SmtpCredentials>,
    command: Cell<Option<IdleCommand<T>>>,
    waker: Cell<Option<Waker>>,
}

/// A task that needs nothing more but a connection.
pub(super) struct PreparedTask<T> {
    /// With the login of its sender, and the header that is sent.
    pub(super) task: RemoteTask<T>,
    /// The addresses to send in place of others.
    pub(super) changes: AddressChanges,
}

/// What an idle connection does next.
enum IdleCommand<T> {
    Run(Box<PreparedTask<T>>),
    Close,
}

/// Counts a connection while it is open.
pub(super) struct ConnectionGuard<T>(Rc<SmtpConnectionPool<T>>);

impl<T> SmtpConnectionPool<T> {
    pub(super) fn new(reports: Box<dyn Fn(RemoteEvent<T>)>, fence: MessageFence) -> Self {
        SmtpConnectionPool {
            on_event: reports,
            fence,
            rotation: AddressRotation::default(),
            idle: RefCell::default(),
            idle_count: Cell::new(0),
            open_connections: Cell::new(0),
            closing: Cell::new(false),
            all_closed: Notify::new(),
        }
    }

    pub(super) fn report(&self, report: RemoteEvent<T>) {
        (self.on_event)(report);
    }

    pub(super) fn guard_connection(self: &Rc<Self>) -> ConnectionGuard<T> {
        self.open_connections.set(self.open_connections.get() + 1);
        ConnectionGuard(self.clone())
    }

    /// Gives the task to an idle connection, or returns it if there is none. Connections with other
    /// settings are closed; those with other logins, or whose host had to prove something else, stay.
    pub(super) fn assign(&self, prepared: Box<PreparedTask<T>>) -> Option<Box<PreparedTask<T>>> {
        let mut idle = self.idle.borrow_mut();
        let hop = &prepared.task.next_hop;
        let Some(entries) = idle.get_mut(&hop.name) else { return Some(prepared) };
        let usable = |entry: &IdleEntry<T>| {
            let is_same = entry.slot.login.as_ref() == hop.login() && hop.allows(&entry.peer);
            is_same || entry.slot.config_version != hop.config_version
        };
        while let Some(place) = entries.iter().rposition(usable) {
            let slot = entries.remove(place).slot;
            self.idle_count.set(self.idle_count.get() - 1);
            if slot.config_version == hop.config_version {
                slot.send_command(IdleCommand::Run(prepared));
                return None;
            }
            slot.send_command(IdleCommand::Close);
        }
        Some(prepared)
    }

    /// Adds an idle connection if there are fewer than `idle_max`. If there is no room, the
    /// connections already idle stay: with more next hops than room and mail for each of them in
    /// rotation, the one idle longest is the one needed next.
    pub(super) fn add_idle(
        &self,
        next_hop: &NextHop,
        slot: &Rc<IdleConnection<T>>,
        peer: &RemotePeer,
        idle_max: usize,
    ) -> bool {
        if self.closing.get() || self.idle_count.get() >= idle_max {
            return false;
        }
        self.idle_count.set(self.idle_count.get() + 1);
        let mut idle = self.idle.borrow_mut();
        // Most next hops soon have an idle connection again, so their empty lists are kept for now.
        if idle.len() >= IDLE_LISTS_MIN + 2 * self.idle_count.get() {
            idle.retain(|_, entries| !entries.is_empty());
        }
        idle.entry(next_hop.name.clone()).or_default().push(IdleEntry { slot: slot.clone(), peer: peer.clone() });
        true
    }

    /// Removes a connection that is no longer idle.
    pub(super) fn remove_idle(&self, next_hop: &NextHop, slot: &Rc<IdleConnection<T>>) {
        let mut idle = self.idle.borrow_mut();
        let Some(entries) = idle.get_mut(&next_hop.name) else { return };
        if let Some(place) = entries.iter().position(|entry| Rc::ptr_eq(&entry.slot, slot)) {
            entries.remove(place);
            self.idle_count.set(self.idle_count.get() - 1);
        }
        if entries.is_empty() {
            idle.remove(&next_hop.name);
        }
    }

    /// Closes all idle connections, accepts no more, and returns when no connection is left.
    pub(super) async fn close(&self) {
        self.closing.set(true);
        self.idle_count.set(0);
        self.idle.take().into_values().flatten().for_each(|entry| entry.slot.send_command(IdleCommand::Close));
        while self.open_connections.get() > 0 {
            // No connection can end between this check and the wait: everything runs on one thread.
            self.all_closed.notified().await;
        }
    }
}

impl<T> IdleConnection<T> {
    pub(super) fn new(next_hop: &NextHop) -> Rc<Self> {
        Rc::new(IdleConnection {
            config_version: next_hop.config_version,
            login: next_hop.login().cloned(),
            command: Cell::new(None),
            waker: Cell::new(None),
        })
    }

    fn send_command(&self, command: IdleCommand<T>) {
        self.command.set(Some(command));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Waits for a task. None: the connection should be closed, on command or because `poll_end` is
    /// ready.
    pub(super) async fn wait(
        &self,
        mut poll_end: impl FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Option<Box<PreparedTask<T>>> {
        poll_fn(|context| match self.command.take() {
            Some(IdleCommand::Run(task)) => Poll::Ready(Some(task)),
            Some(IdleCommand::Close) => Poll::Ready(None),
            None => {
                self.waker.set(Some(context.waker().clone()));
                poll_end(context).map(|()| None)
            }
        })
        .await
    }
}

impl<T> Drop for ConnectionGuard<T> {
    fn drop(&mut self) {
        let left = self.0.open_connections.get() - 1;
        self.0.open_connections.set(left);
        if left == 0 {
            self.0.all_closed.notify_waiters();
        }
    }
}
