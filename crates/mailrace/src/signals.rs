//! Commands to the main thread of the server, and the signals that become such commands. SIGTERM and SIGINT stop the
//! server; a second one, or one during the start, ends the process at once. SIGHUP reloads the configuration, SIGUSR1
//! opens the log again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use control::ReloadRequest;
use net::session_runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::exit;
use crate::stderr::print_stderr;

/// A command to the main thread.
pub(crate) enum ServerCommand {
    Stop,
    /// Only this many messages are left, which are held.
    StopDrained {
        held: usize,
    },
    /// Take nothing in, deliver for this time, and stop.
    Drain {
        within: Duration,
    },
    /// Nothing else can be delivered in that time; this many messages are left.
    StopIdle {
        left: usize,
    },
    /// With the caller that waits for the answer, if any.
    Reload(Option<ReloadRequest>),
    OpenLog,
}

/// Handles signals on a thread and a runtime of their own: the main ones may be busy or hang.
pub(crate) fn start_signal_thread(
    is_serving: Arc<AtomicBool>,
    commands: UnboundedSender<ServerCommand>,
) -> io::Result<()> {
    let runtime = session_runtime()?;
    let signals = runtime.block_on(async { Signals::install() })?;
    let forward = move || runtime.block_on(signals.forward(&is_serving, &commands));
    thread::Builder::new().name("signals".into()).spawn(forward)?;
    Ok(())
}

/// Waits for a signal, or for a reload request on the control socket.
pub(crate) async fn next_command(
    commands: &mut UnboundedReceiver<ServerCommand>,
    reload_requests: &mut UnboundedReceiver<ReloadRequest>,
) -> ServerCommand {
    tokio::select! {
        Some(command) = commands.recv() => command,
        Some(request) = reload_requests.recv() => ServerCommand::Reload(Some(request)),
        // Never happens: the signal thread does not end, and the control socket holds a sender.
        else => ServerCommand::Stop,
    }
}

/// The signals that the server handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user: Signal,
}

impl Signals {
    /// From here on these signals do not end the process by themselves.
    fn install() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user: signal(SignalKind::user_defined1())?,
        })
    }

    /// Waits for a signal. SIGHUP also reopens the log, as log rotation expects.
    async fn next(&mut self) -> ServerCommand {
        tokio::select! {
            _ = self.terminate.recv() => ServerCommand::Stop,
            _ = self.interrupt.recv() => ServerCommand::Stop,
            _ = self.hangup.recv() => ServerCommand::Reload(None),
            _ = self.user.recv() => ServerCommand::OpenLog,
        }
    }

    /// Forwards signals, forever. A second stop ends the process at once, and so does one during
    /// the start, when nothing has to be finished.
    async fn forward(mut self, is_serving: &AtomicBool, commands: &UnboundedSender<ServerCommand>) {
        let mut is_stopping = false;
        loop {
            let command = self.next().await;
            if matches!(command, ServerCommand::Stop) {
                if !is_serving.load(Relaxed) {
                    print_stderr("mailrace: stopped during the start");
                    std::process::exit(0);
                }
                if is_stopping {
                    print_stderr("mailrace: stopped by a second signal");
                    std::process::exit(i32::from(exit::SOFTWARE));
                }
                is_stopping = true;
            }
            // Only fails at shutdown.
            drop(commands.send(command));
        }
    }
}
