//! `bench login`: simulates users who log in by POP3 or IMAP, and out again, as those do who look for
//! new mail. It measures servers that do little else, such as proxies.
//!
//! Each ticket is a session: connect, log in with the protocol's own commands, log out, wait for the
//! reply and the end of the connection. Then it is done.

#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::sync::Arc;

use net::{OutboundConnection, TlsClient};
use protocol::backend_login::{
    BackendLogin, BackendLoginMethod, BackendLoginOutcome, BackendLoginRequest, BackendProtocol,
};
use protocol::sasl::Secret;
use tokio::time::Instant;

use crate::dial::{DialPhases, dial_secured, error_text};
use crate::engine::{self, LoadRun, Worker, Workload};
use crate::order::SelectionOrder;
use crate::pop3::{Account, Accounts, Pop3AccountOptions};
use crate::report::{self, RunVerdict};
use crate::summary::LoadLabels;
use crate::tally::normalize_reply;
use crate::{BenchError, LoadOptions, LoadSummary, TargetServer};

const PHASES: &[&str] = &["connect", "TLS", "login", "logout"];
const DIAL_PHASES: DialPhases = DialPhases { connect: 0, tls: 1 };
const LOGIN: usize = 2;
const LOGOUT: usize = 3;

/// What users log in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LoginProtocol {
    /// USER and PASS, then QUIT.
    Pop3,
    /// LOGIN, then LOGOUT.
    Imap,
}

/// Options of `bench login`.
#[derive(Clone, Debug, clap::Args)]
pub struct LoginOptions {
    /// Server to log in to; connections use several in turn
    #[arg(long = "target", value_name = "HOST:PORT", required = true)]
    pub targets: Vec<String>,
    /// Protocol of the server
    #[arg(long, value_enum, value_name = "PROTOCOL", default_value_t = LoginProtocol::Pop3)]
    pub protocol: LoginProtocol,
    /// Use TLS from the first byte, as on ports 995 and 993; any certificate is accepted
    #[arg(long)]
    pub tls: bool,
    /// The users.
    #[command(flatten)]
    pub accounts: Pop3AccountOptions,
    /// Order in which users log in
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = SelectionOrder::Turn)]
    pub order: SelectionOrder,
    /// The amount of load.
    #[command(flatten)]
    pub load: LoadOptions,
    /// End after this many sessions
    #[arg(long, value_name = "N")]
    pub sessions: Option<u64>,
}

/// Runs the load and prints the summary.
pub fn run(options: &LoginOptions) -> Result<RunVerdict, BenchError> {
    let summary = run_load(options)?;
    report::print(&summary, options.load.json)?;
    Ok(summary.verdict())
}

fn run_load(options: &LoginOptions) -> Result<LoadSummary, BenchError> {
    let targets = options.targets.iter().map(|name| TargetServer::resolve(name, &options.load.ownership));
    let load = LoginLoad {
        targets: targets.collect::<Result<_, _>>()?,
        protocol: options.protocol.into(),
        accounts: Accounts::from_options(&options.accounts)?,
        tls: options.tls.then(TlsClient::unverified),
        order: options.order,
    };
    let title = format!("login {}", options.targets.join(" "));
    engine::run(LoadRun { title, options: &options.load, count: options.sessions, stop: None }, &Arc::new(load))
}

impl From<LoginProtocol> for BackendProtocol {
    fn from(protocol: LoginProtocol) -> BackendProtocol {
        match protocol {
            LoginProtocol::Pop3 => BackendProtocol::Pop3,
            LoginProtocol::Imap => BackendProtocol::Imap,
        }
    }
}

/// What all connections share.
struct LoginLoad {
    targets: Vec<TargetServer>,
    protocol: BackendProtocol,
    accounts: Accounts,
    /// None: in clear text.
    tls: Option<TlsClient>,
    order: SelectionOrder,
}

impl Workload for LoginLoad {
    const LABELS: LoadLabels = LoadLabels { unit: "sessions", part: "logins", phases: PHASES };

    async fn run_connection(self: Arc<Self>, mut worker: Worker) {
        while let Some(ticket) = worker.next().await {
            let account = self.accounts.account(self.order.choose(ticket, &mut worker.random, self.accounts.len()));
            match self.run_session(&worker, account).await {
                Ok(()) => worker.tally.lock().record_done(ticket.due, Instant::now()),
                Err(text) => worker.fail_ticket(text).await,
            }
        }
    }
}

impl LoginLoad {
    /// Runs one session. The error is a text for the list of errors.
    async fn run_session(&self, worker: &Worker, account: Account) -> Result<(), String> {
        let target = &self.targets[worker.number % self.targets.len()];
        let mut connection = dial_secured(target, self.tls.as_ref(), worker, DIAL_PHASES).await?;
        let begun = Instant::now();
        self.log_in(&mut connection, account, worker.deadline()).await.map_err(|why| format!("login: {why}"))?;
        let logged_in_at = Instant::now();
        {
            let mut tally = worker.tally.lock();
            tally.counts.parts += 1;
            tally.record_phase(LOGIN, logged_in_at - begun);
        }
        self.log_out(&mut connection, worker.deadline()).await.map_err(|why| format!("logout: {why}"))?;
        worker.tally.lock().record_phase(LOGOUT, logged_in_at.elapsed());
        Ok(())
    }

    /// From the greeting to the reply to the login.
    async fn log_in(
        &self,
        connection: &mut OutboundConnection,
        account: Account,
        deadline: Instant,
    ) -> Result<(), String> {
        let mut machine = BackendLogin::new(BackendLoginRequest {
            protocol: self.protocol,
            starts_tls: false,
            method: BackendLoginMethod::Login,
            authzid: None,
            user: account.user.into(),
            password: Secret::new(account.password),
            client: None,
        });
        loop {
            let output = machine.take_output();
            send(connection, &output, deadline).await.map_err(|error| error_text(&error))?;
            match machine.outcome() {
                Some(BackendLoginOutcome::Accepted(_)) => return Ok(()),
                Some(BackendLoginOutcome::Refused(refusal)) => return Err(normalize_reply(&refusal.text)),
                Some(BackendLoginOutcome::Failed(fault)) => return Err(fault.to_string()),
                None => {}
            }
            let received = connection.receive(deadline, |input| match input {
                [] => machine.handle_disconnect(),
                // What follows the last reply is not looked at.
                input => {
                    machine.handle_input(input);
                }
            });
            received.await.map_err(|error| error_text(&error))?;
        }
    }

    /// Says goodbye and waits for the reply and the end of the connection.
    async fn log_out(&self, connection: &mut OutboundConnection, deadline: Instant) -> Result<(), String> {
        let command: &[u8] = match self.protocol {
            BackendProtocol::Pop3 => b"QUIT\r\n",
            BackendProtocol::Imap => b"Q LOGOUT\r\n",
        };
        send(connection, command, deadline).await.map_err(|error| error_text(&error))?;
        let mut is_answered = false;
        while connection.receive(deadline, |input| !input.is_empty()).await.map_err(|error| error_text(&error))? {
            is_answered = true;
        }
        is_answered.then_some(()).ok_or_else(|| "no reply".to_owned())
    }
}

async fn send(connection: &mut OutboundConnection, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = connection.send(&[IoSlice::new(bytes)], deadline).await?;
        bytes = &bytes[sent..];
    }
    Ok(())
}
