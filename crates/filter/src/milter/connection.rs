//! A connection of one session to a milter: sends commands, and waits for answers with a limit on the
//! time. When it is dropped, the milter is told, and the connection may serve the next session.
//!
//! Parts of a message are sent ahead of the answers to earlier parts: a series costs one write, one wait
//! and one read instead of one for each. The milter sees the same commands in the same order. One that
//! answers early, or fails in a series, gets the following messages one command at a time.

use std::sync::Arc;
use std::time::Duration;

use protocol::milter::{MacroValues, MilterAnswer, MilterClient, MilterCommand, MilterEvent};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use super::failure::MilterFailure;
use super::{Milter, PROGRESS_TIME_MAX};
use crate::check::CheckedMessage;
use crate::service::{PooledConnection, ServiceStream};

/// Commands without answers wait for others up to this size.
const OUTPUT_OCTETS_MAX: usize = 64 << 10;
const INPUT_OCTETS: usize = 4 << 10;
/// Commands that are sent ahead of their answers. The answers must fit into the buffers of sockets, so that
/// neither side waits for the other one to read.
const UNANSWERED_MAX: usize = 64;

pub(super) struct MilterConnection {
    milter: Arc<Milter>,
    /// None only while it is dropped.
    open: Option<OpenConnection>,
}

struct OpenConnection {
    stream: ServiceStream,
    permit: OwnedSemaphorePermit,
    client: MilterClient,
}

impl MilterConnection {
    /// A connection that has negotiated.
    pub(super) async fn open(milter: &Arc<Milter>) -> Result<MilterConnection, MilterFailure> {
        let opened = timeout(milter.settings.connect_time_max, async {
            let PooledConnection { stream, state, permit } = milter.pool.connect().await?;
            let is_new = state.is_none();
            let client = state.unwrap_or_else(|| MilterClient::new(milter.limits));
            let mut open = OpenConnection { stream, permit, client };
            if is_new {
                open.event(None).await?;
            }
            Ok(MilterConnection { milter: milter.clone(), open: Some(open) })
        });
        opened.await.unwrap_or(Err(MilterFailure::NoConnection))
    }

    /// Sends a command, and waits for the answer if there will be one.
    pub(super) async fn ask(
        &mut self,
        command: &MilterCommand<'_>,
        macros: &dyn MacroValues,
    ) -> Result<MilterAnswer, MilterFailure> {
        let time_max = self.milter.settings.command_time_max;
        let Some(open) = &mut self.open else { return Err(MilterFailure::Closed) };
        if open.client.send(command, macros) {
            return open.answer(time_max, None).await;
        }
        open.send_if_large(time_max).await?;
        Ok(MilterAnswer::Continue)
    }

    /// Sends the end of the message, and waits for the changes and the answer. The new body uses memory of the
    /// message.
    pub(super) async fn ask_about_message(
        &mut self,
        message: &mut dyn CheckedMessage,
        macros: &dyn MacroValues,
    ) -> Result<MilterAnswer, MilterFailure> {
        let Some(open) = &mut self.open else { return Err(MilterFailure::Closed) };
        open.client.send(&MilterCommand::EndOfBody, macros);
        let mut memory = MessageMemory { message, reserved: 0 };
        open.answer(self.milter.settings.message_time_max, Some(&mut memory)).await
    }

    /// Sends a command, and perhaps leaves its answer to later calls: the answer here may be that to an
    /// earlier command. Only [`MilterConnection::settle`] must follow what is sent so.
    pub(super) async fn send_ahead(
        &mut self,
        command: &MilterCommand<'_>,
        macros: &dyn MacroValues,
    ) -> Result<MilterAnswer, MilterFailure> {
        let Some(open) = &mut self.open else { return Err(MilterFailure::Closed) };
        if !self.milter.sends_ahead() || !open.client.takes_commands_ahead() {
            return self.ask(command, macros).await;
        }
        open.client.send(command, macros);
        if open.client.unanswered() == 0 {
            open.send_if_large(self.milter.settings.command_time_max).await?;
            return Ok(MilterAnswer::Continue);
        }
        if open.client.unanswered() < UNANSWERED_MAX && open.client.output().len() <= OUTPUT_OCTETS_MAX {
            return Ok(MilterAnswer::Continue);
        }
        self.settle().await
    }

    /// Waits for the answers to all commands that were sent ahead. The answer is the first that is not to
    /// continue.
    pub(super) async fn settle(&mut self) -> Result<MilterAnswer, MilterFailure> {
        let Some(open) = &mut self.open else { return Err(MilterFailure::Closed) };
        let is_series = open.client.unanswered() > 1;
        let settled = open.answers(self.milter.settings.command_time_max).await;
        if is_series && settled.as_ref().map_or(true, |_| open.client.is_closed()) {
            self.milter.stop_sending_ahead();
        }
        settled
    }

    /// The machine.
    pub(super) fn client(&mut self) -> Option<&mut MilterClient> {
        self.open.as_mut().map(|open| &mut open.client)
    }
}

/// When an answer is late. Reports of progress renew the time, but not for ever.
struct AnswerTime {
    time_max: Duration,
    last: Instant,
}

impl AnswerTime {
    /// An answer is awaited from now on.
    fn new(now: Instant, time_max: Duration) -> Self {
        AnswerTime { time_max, last: now + PROGRESS_TIME_MAX.max(time_max) }
    }

    /// The end of the time, if the milter has just reported.
    fn deadline(&self, now: Instant) -> Instant {
        self.last.min(now + self.time_max)
    }
}

impl OpenConnection {
    async fn answer(
        &mut self,
        time_max: Duration,
        mut memory: Option<&mut MessageMemory<'_>>,
    ) -> Result<MilterAnswer, MilterFailure> {
        let time = AnswerTime::new(Instant::now(), time_max);
        loop {
            let event = timeout_at(time.deadline(Instant::now()), self.event(memory.as_deref_mut()))
                .await
                .map_err(|_| MilterFailure::NoAnswer)??;
            match event {
                MilterEvent::Answer(MilterAnswer::Failed) => return Err(MilterFailure::SaidSo),
                MilterEvent::Answer(answer) => return Ok(answer),
                MilterEvent::Progress | MilterEvent::Negotiated => {}
            }
        }
    }

    async fn answers(&mut self, time_max: Duration) -> Result<MilterAnswer, MilterFailure> {
        while self.client.unanswered() > 0 {
            let answer = self.answer(time_max, None).await?;
            if answer != MilterAnswer::Continue {
                return Ok(answer);
            }
        }
        Ok(MilterAnswer::Continue)
    }

    async fn event(&mut self, mut memory: Option<&mut MessageMemory<'_>>) -> Result<MilterEvent, MilterFailure> {
        self.send().await?;
        let mut input = Vec::with_capacity(INPUT_OCTETS);
        loop {
            let event = self.client.poll_event()?;
            if let Some(memory) = memory.as_deref_mut() {
                memory.reserve(self.client.new_body_memory())?;
            }
            if let Some(event) = event {
                return Ok(event);
            }
            if self.stream.read(&mut input).await? == 0 {
                return Err(MilterFailure::Closed);
            }
            self.client.handle_input(&input);
            input.clear();
        }
    }

    async fn send_if_large(&mut self, time_max: Duration) -> Result<(), MilterFailure> {
        if self.client.output().len() > OUTPUT_OCTETS_MAX {
            timeout(time_max, self.send()).await.map_err(|_| MilterFailure::NoAnswer)??;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<(), MilterFailure> {
        while !self.client.output().is_empty() {
            let count = self.stream.write(self.client.output()).await?;
            self.client.handle_sent(count);
        }
        Ok(())
    }
}

/// The memory of a message that its new body uses.
struct MessageMemory<'a> {
    message: &'a mut dyn CheckedMessage,
    reserved: usize,
}

impl MessageMemory<'_> {
    fn reserve(&mut self, needed: usize) -> Result<(), MilterFailure> {
        if needed > self.reserved {
            if !self.message.reserve_memory(needed - self.reserved) {
                return Err(MilterFailure::NoMemory);
            }
            self.reserved = needed;
        }
        Ok(())
    }
}

impl Drop for MilterConnection {
    /// The last command is short, and fits into the socket unless the milter does not read; then it
    /// finds the connection closed.
    fn drop(&mut self) {
        let Some(OpenConnection { stream, permit, mut client }) = self.open.take() else { return };
        let is_kept = client.quit(self.milter.settings.reuses_connections);
        let sent = stream.try_write(client.output());
        if let (true, Ok(count)) = (is_kept, sent) {
            client.handle_sent(count);
            self.milter.pool.keep(stream, client, permit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_renews_the_time_for_an_answer_but_not_for_ever() {
        let (begin, minutes) = (Instant::now(), |count: u64| Duration::from_secs(60 * count));
        let ends = |time_max, reported| AnswerTime::new(begin, time_max).deadline(begin + reported) - begin;
        assert_eq!(ends(minutes(2), Duration::ZERO), minutes(2));
        assert_eq!(ends(minutes(2), minutes(1)), minutes(3));
        assert_eq!(ends(minutes(2), minutes(9)), PROGRESS_TIME_MAX);
        // A longer time for messages is not cut.
        assert_eq!(ends(minutes(20), Duration::ZERO), minutes(20));
        assert_eq!(ends(minutes(20), minutes(5)), minutes(20));
    }
}
