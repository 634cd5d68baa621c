//! One login at a backend: connects, and lets [`BackendLogin`] speak.

use std::io::{self, IoSlice};
use std::sync::Arc;

use net::OutboundConnection;
use protocol::backend_login::{
    BackendAcceptance, BackendLogin, BackendLoginOutcome, BackendLoginRequest, BackendRefusal,
};
use tokio::time::Instant;

use super::backend_hosts::BackendTarget;
use super::{BackendHosts, BackendTls};

/// A connection on which the user is logged in.
pub(super) struct LoggedIn {
    pub(super) connection: OutboundConnection,
    pub(super) acceptance: BackendAcceptance,
    /// What the backend has sent after that.
    pub(super) rest: Vec<u8>,
}

/// Why there is no such connection.
pub(super) enum BackendLoginFailure {
    /// The backend is down, which is in the log already, or has too many clients.
    Busy,
    /// The backend said no.
    Refused(BackendRefusal),
    /// Something else; for the log.
    Failed(String),
}

/// A login in progress.
struct Dialogue {
    connection: OutboundConnection,
    machine: BackendLogin,
    rest: Vec<u8>,
}

/// Logs in. A backend that does not greet is down from then on.
pub(super) async fn log_in(
    hosts: &Arc<BackendHosts>,
    target: &BackendTarget,
    request: BackendLoginRequest,
) -> Result<LoggedIn, BackendLoginFailure> {
    let deadline = Instant::now() + hosts.limits.connect_time_max;
    let state = hosts.state(&target.address).ok_or(BackendLoginFailure::Busy)?;
    let permit = state.permit(deadline).await.ok_or(BackendLoginFailure::Busy)?;
    let greeted = match hosts.connect(target, deadline).await {
        Ok(connection) => {
            Dialogue { connection, machine: BackendLogin::new(request), rest: Vec::new() }.greet(deadline).await
        }
        Err(error) => Err(error.to_string()),
    };
    let dialogue = match greeted {
        Ok(dialogue) => dialogue,
        Err(why) => {
            hosts.mark_down(&state, target, &why);
            return Err(BackendLoginFailure::Failed(why));
        }
    };
    drop(permit);
    dialogue.finish(target, Instant::now() + hosts.limits.login_time_max).await
}

impl Dialogue {
    /// Waits for the greeting. The error is the reason why the host is down.
    async fn greet(mut self, deadline: Instant) -> Result<Dialogue, String> {
        let run = self.run_until(deadline, BackendLogin::is_greeted).await;
        run.map_err(|error| error.to_string())?;
        match self.machine.outcome() {
            Some(BackendLoginOutcome::Failed(fault)) if !self.machine.is_greeted() => Err(fault.to_string()),
            _ => Ok(self),
        }
    }

    async fn finish(mut self, target: &BackendTarget, deadline: Instant) -> Result<LoggedIn, BackendLoginFailure> {
        let failed = |error: io::Error| BackendLoginFailure::Failed(error.to_string());
        loop {
            self.run_until(deadline, BackendLogin::wants_handshake).await.map_err(failed)?;
            match self.machine.outcome() {
                Some(BackendLoginOutcome::Accepted(acceptance)) => {
                    let acceptance = acceptance.clone();
                    return Ok(LoggedIn { connection: self.connection, acceptance, rest: self.rest });
                }
                Some(BackendLoginOutcome::Refused(refusal)) => {
                    return Err(BackendLoginFailure::Refused(refusal.clone()));
                }
                Some(BackendLoginOutcome::Failed(fault)) => return Err(BackendLoginFailure::Failed(fault.to_string())),
                None => {}
            }
            if let BackendTls::StartTls(client) = &target.tls {
                let secured = self.connection.start_tls(client, &target.address.host, deadline).await;
                self.connection = secured.map_err(failed)?;
                self.machine.handle_tls_established();
            }
        }
    }

    /// Sends and receives until this is true, or the login has ended.
    async fn run_until(&mut self, deadline: Instant, is_reached: fn(&BackendLogin) -> bool) -> io::Result<()> {
        loop {
            let output = self.machine.take_output();
            let mut sent = 0;
            while sent < output.len() {
                sent += self.connection.send(&[IoSlice::new(&output[sent..])], deadline).await?;
            }
            if is_reached(&self.machine) || self.machine.outcome().is_some() {
                return Ok(());
            }
            let machine = &mut self.machine;
            let receive = self.connection.receive(deadline, |input| {
                if input.is_empty() {
                    machine.handle_disconnect();
                }
                let used = machine.handle_input(input);
                input[used..].to_vec()
            });
            self.rest = receive.await?;
        }
    }
}
