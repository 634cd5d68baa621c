//! Delivery to programs. A message goes to the standard input of a program, and its exit status and
//! output say what became of it ([`exit_status`]).
//!
//! The server starts no program itself. A small process does, the [`launcher`]: it is started before
//! the server drops its privileges, and knows all programs and their users. The server only sends it
//! a name, addresses, and two ends of pipes.
//!
//! ```text
//! PipeDelivery ---- run: name, addresses, two file descriptors ----> launcher --- fork, exec --> program
//!      |      <--------------------- exited, killed -------------------'                          ^  |
//!      '---- the message -------------------------------------------------------------------------'  |
//!      ^---- its output -----------------------------------------------------------------------------'
//! ```
//!
//! | limit | when it is reached |
//! |---|---|
//! | [`PipeConfig::time_max`] | the program and its process group are killed, and mail is deferred |
//! | [`PipeConfig::output_octets_max`] | further output is read and dropped |
//!
//! A program is also killed when the server ends. What it leaves running in its process group is killed
//! when it ends itself.

mod arguments;
mod content;
mod exit_status;
pub mod launcher;
mod launcher_handle;
mod messages;
mod run_request;

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mail::{Address, Body, EnhancedCode, Envelope, Outcome, QueueId, Reply};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::DeliveryResult;

pub use arguments::{ArgumentTemplate, InvalidArgument};
pub use content::{AddedFields, ProgramLineEnds};
pub use launcher_handle::LauncherSocket;
pub use messages::ProgramDefinition;

use content::{Content, FeedError};
use launcher_handle::LauncherHandle;
use messages::ProgramEnd;
use run_request::RunRequest;

/// After a program has ended, output that it left in the pipe is read for this long.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);
/// After this long without an answer to a kill, the program is given up.
const KILL_TIME_MAX: Duration = Duration::from_secs(5);
/// The most recipients that one run can have: all are arguments of the program.
pub const RECIPIENTS_MAX: usize = 100;

/// How messages are passed to a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipeConfig {
    /// The transport, by whose name the launcher knows the program.
    pub transport: Box<str>,
    /// The fields that are put before the message.
    pub fields: AddedFields,
    /// The line ends of the message.
    pub line_ends: ProgramLineEnds,
    /// A program may take this long.
    pub time_max: Duration,
    /// The first bytes of the output, which may become part of a notice.
    pub output_octets_max: usize,
}

/// A message for some recipients of one run.
pub struct PipeTask {
    /// The queue ID of the message.
    pub id: QueueId,
    /// Its envelope.
    pub envelope: Arc<Envelope>,
    /// The ordinals of the recipients; at most [`RECIPIENTS_MAX`].
    pub recipients: Vec<u32>,
    /// Its content.
    pub body: Body,
    /// How it is passed.
    pub config: Arc<PipeConfig>,
}

/// What became of a task.
#[derive(Debug)]
pub struct PipeResult {
    /// The result for each recipient.
    pub result: DeliveryResult,
    /// Set if no program can be started, whatever the message: all mail of the transport waits.
    pub unavailable: Option<Reply>,
}

/// Runs programs through the launcher. Must be used on a `LocalSet`. The default has no launcher, and all
/// mail is deferred.
#[derive(Clone, Default)]
pub struct PipeDelivery(Option<LauncherHandle>);

impl PipeDelivery {
    /// With the socket of the launcher; None: there is none.
    ///
    /// # Errors
    ///
    /// The socket cannot be used.
    pub fn new(launcher: Option<LauncherSocket>) -> io::Result<Self> {
        Ok(PipeDelivery(launcher.map(LauncherHandle::new).transpose()?))
    }

    /// Runs the program for the recipients of the task. If the future is dropped, the launcher kills
    /// the program only when the server ends.
    pub async fn deliver(&self, task: PipeTask) -> PipeResult {
        let recipients = task.recipients.len();
        let ending = match &self.0 {
            Some(launcher) => run(launcher, task).await.unwrap_or_else(|error| RunEnd::Unstarted(error.to_string())),
            None => RunEnd::Unstarted("the transport was added after the server started: restart it".into()),
        };
        let everybody = |outcome: Outcome| DeliveryResult::Outcomes(vec![outcome; recipients]);
        match ending {
            RunEnd::Ended(outcome) => PipeResult { result: everybody(outcome), unavailable: None },
            RunEnd::Damaged(what) => PipeResult { result: DeliveryResult::Damaged(what), unavailable: None },
            RunEnd::Unstarted(why) => {
                let text = exit_status::printable_line(&format!("cannot run the program: {why}"));
                let reply = Reply::new(451, EnhancedCode(4, 3, 5), text);
                PipeResult { result: everybody(Outcome::Deferred(reply.clone())), unavailable: Some(reply) }
            }
        }
    }
}

/// The end of one run.
enum RunEnd {
    Ended(Outcome),
    /// The stored message is damaged; the program was killed.
    Damaged(String),
    /// The program could not be started.
    Unstarted(String),
}

async fn run(launcher: &LauncherHandle, task: PipeTask) -> io::Result<RunEnd> {
    let (input_end, input) = io::pipe()?;
    let (output, output_end) = io::pipe()?;
    let input = Sender::from_owned_fd(OwnedFd::from(input))?;
    let output = Receiver::from_owned_fd(OwnedFd::from(output))?;
    let config = task.config.clone();
    let request = request(&task);
    let content = Content::new(&task.envelope, &task.recipients, task.body, &config);
    let mut program = launcher.run(request, [OwnedFd::from(input_end), OwnedFd::from(output_end)]).await?;
    // Both end with this function, whatever holds the pipes open.
    let (mut feeding, mut reading) = (JoinSet::new(), JoinSet::new());
    feeding.spawn_local(content.feed(input));
    let captured = Rc::new(RefCell::new(Vec::new()));
    reading.spawn_local(read_output(output, captured.clone(), config.output_octets_max));
    let ended = timeout(config.time_max, end_of_run(&mut program.ended, &mut feeding)).await;
    let end = match ended {
        Ok(Ok(end)) => end,
        Ok(Err(FeedError::Damaged(what))) => {
            launcher.kill(program.number).await;
            return Ok(RunEnd::Damaged(what));
        }
        Ok(Err(FeedError::Unreadable(why))) => {
            launcher.kill(program.number).await;
            return Ok(RunEnd::Ended(Outcome::Deferred(Reply::new(451, EnhancedCode(4, 3, 0), why))));
        }
        Err(_) => {
            launcher.kill(program.number).await;
            drop(timeout(KILL_TIME_MAX, &mut program.ended).await);
            return Ok(RunEnd::Ended(exit_status::timed_out(config.time_max, &captured.take())));
        }
    };
    drop(timeout(OUTPUT_GRACE, reading.join_next()).await);
    let output = captured.take();
    Ok(match end {
        ProgramEnd::Exited(code) => RunEnd::Ended(exit_status::outcome(code, &output)),
        ProgramEnd::Killed(signal) => RunEnd::Ended(exit_status::killed(signal, &output)),
        ProgramEnd::Unstarted(why) => RunEnd::Unstarted(why),
        ProgramEnd::Refused(why) => RunEnd::Ended(exit_status::refused(&why)),
    })
}

/// Waits until the program ends, whether it has read all of the message or not; or until the message
/// turns out to be unreadable.
async fn end_of_run(
    ended: &mut oneshot::Receiver<ProgramEnd>,
    feeding: &mut JoinSet<Result<(), FeedError>>,
) -> Result<ProgramEnd, FeedError> {
    let lost = || ProgramEnd::Unstarted("the launcher has ended: restart the server".into());
    tokio::select! {
        end = &mut *ended => return Ok(end.unwrap_or_else(|_| lost())),
        fed = feeding.join_next() => if let Some(Ok(Err(error))) = fed { return Err(error) },
    }
    Ok(ended.await.unwrap_or_else(|_| lost()))
}

/// Reads until the pipe is closed, and keeps the first `octets_max` bytes.
async fn read_output(mut output: Receiver, captured: Rc<RefCell<Vec<u8>>>, octets_max: usize) {
    let mut buffer = vec![0; OUTPUT_READ_OCTETS];
    while let Ok(read @ 1..) = output.read(&mut buffer).await {
        let mut captured = captured.borrow_mut();
        let room = octets_max.saturating_sub(captured.len());
        captured.extend_from_slice(&buffer[..read.min(room)]);
    }
}

/// The size of one read of the output.
const OUTPUT_READ_OCTETS: usize = 8 << 10;

fn request(task: &PipeTask) -> RunRequest {
    let recipient = |ordinal: &u32| task.envelope.recipients[*ordinal as usize].address.as_str().to_owned();
    RunRequest {
        program: task.config.transport.to_string(),
        queue_id: task.id.to_string(),
        size: task.body.len(),
        client_address: task.envelope.client.address.map(|address| address.to_string()).unwrap_or_default(),
        sender: task.envelope.sender.as_ref().map(Address::as_str).unwrap_or_default().to_owned(),
        recipients: task.recipients.iter().map(recipient).collect(),
    }
}
