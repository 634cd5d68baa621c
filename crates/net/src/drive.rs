//! One connection and its conversation: bytes in, work, bytes out, and the deadline beside them.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mail::{Security, Timestamp};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep_until};

use crate::input::with_input;
use crate::stream::Stream;
use crate::{Acceptor, Stop, instant_of, steady_now as now};

/// How long a closing connection listens for the peer's last bytes: closing over unread input would reset it,
/// and the peer might never see the last reply.
const LINGER: Duration = Duration::from_secs(2);

/// A protocol machine together with whoever answers its questions. It is told the time by [`crate::steady_now`].
pub trait Conversation {
    /// Takes bytes of the peer.
    fn handle_input(&mut self, now: Timestamp, input: &[u8]);
    /// The peer sends no more.
    fn handle_end(&mut self, now: Timestamp);
    /// The deadline has passed.
    fn handle_timeout(&mut self, now: Timestamp);
    /// The server stops.
    fn handle_stop(&mut self, now: Timestamp);
    /// Does what the machine asks for until it asks for nothing. No input comes meanwhile.
    fn work(&mut self) -> impl Future<Output = ()> + Send;
    /// Bytes for the peer.
    fn output(&self) -> &[u8];
    /// So many of them went out.
    fn handle_sent(&mut self, count: usize);
    /// When to call [`Conversation::handle_timeout`].
    fn deadline(&self) -> Option<Timestamp>;
    /// Whether the connection is to be closed once the output is sent.
    fn wants_close(&self) -> bool;

    /// Who makes the handshake of TLS, where the conversation wants one as soon as the output is sent. What was read of the
    /// peer before that is the conversation's, what comes later the handshake's. Asked only while in clear text.
    fn wants_handshake(&self) -> Option<Arc<Acceptor>> {
        None
    }
    /// The handshake succeeded: from here on all bytes come and go over TLS.
    fn handle_secured(&mut self, _now: Timestamp, _security: Security) {}
    /// It failed; the end follows.
    fn handle_insecure(&mut self, _now: Timestamp, _error: &io::Error) {}
}

/// What a connection woke up for.
enum Event {
    Input,
    End,
    Broken,
    Writable,
    Deadline,
    Stop,
}

/// What may interrupt a connection that waits for its peer, whether to read or to write.
struct Watch<'a, S> {
    stopping: Pin<&'a mut S>,
    stop_is_known: bool,
    timer: Pin<&'a mut Sleep>,
    /// When the timer goes off.
    due: Timestamp,
}

impl<S: Future<Output = ()>> Watch<'_, S> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if !self.stop_is_known && self.stopping.as_mut().poll(context).is_ready() {
            self.stop_is_known = true;
            return Poll::Ready(Event::Stop);
        }
        self.timer.as_mut().poll(context).map(|()| Event::Deadline)
    }

    fn rearm(&mut self, due: Timestamp) {
        self.due = due;
        self.timer.as_mut().reset(instant_of(due));
    }

    /// Moves the timer where the deadline is sooner than it. One that is later costs nothing until the timer goes off.
    fn shorten_timer(&mut self, deadline: Option<Timestamp>) {
        if let Some(deadline) = deadline.filter(|deadline| *deadline < self.due) {
            self.rearm(deadline);
        }
    }
}

/// Carries a conversation until one side ends it. Whatever happens to the connection, the conversation hears
/// of its end.
pub async fn drive(mut stream: Stream, mut stop: Stop, conversation: &mut (impl Conversation + Send)) {
    let stopping = pin!(stop.requested());
    let due = deadline(conversation);
    let timer = pin!(sleep_until(instant_of(due)));
    let mut watch = Watch { stopping, stop_is_known: false, timer, due };
    loop {
        conversation.work().await;
        if send(&mut stream, &mut watch, conversation).await.is_err() {
            conversation.handle_end(now());
            return conversation.work().await;
        }
        if conversation.wants_close() {
            // The stop may have come while it was sending.
            conversation.work().await;
            return close(end(stream, &mut watch, conversation).await).await;
        }
        if let Stream::Plain(_) = stream
            && let Some(acceptor) = conversation.wants_handshake()
        {
            match secure(stream, acceptor, &mut watch).await {
                Ok(Some(secured)) => {
                    if let Some(security) = secured.security() {
                        conversation.handle_secured(now(), security);
                    }
                    stream = secured;
                    continue;
                }
                // Nobody's fault: it is the session that ends, and not the handshake that failed.
                Ok(None) => {
                    conversation.handle_stop(now());
                    conversation.handle_end(now());
                    return conversation.work().await;
                }
                Err(error) => {
                    conversation.handle_insecure(now(), &error);
                    conversation.handle_end(now());
                    return conversation.work().await;
                }
            }
        }
        watch.shorten_timer(conversation.deadline());
        let event = poll_fn(|context| match watch.poll(context) {
            Poll::Pending => poll_input(&mut stream, conversation, context),
            interrupted => interrupted,
        });
        match event.await {
            Event::Input | Event::Writable => {}
            Event::End => {
                conversation.handle_end(now());
                conversation.work().await;
                if send(&mut stream, &mut watch, conversation).await.is_ok() {
                    end(stream, &mut watch, conversation).await;
                }
                return;
            }
            Event::Broken => {
                conversation.handle_end(now());
                return conversation.work().await;
            }
            // The timer is not moved at every command: it goes off at an early deadline and looks what the
            // deadline is now.
            Event::Deadline => {
                read_pending_input(&mut stream, conversation).await;
                conversation.handle_timeout(now());
                watch.rearm(deadline(conversation));
            }
            Event::Stop => conversation.handle_stop(now()),
        }
    }
}

/// The handshake, in a box: sessions that make none should not have room for it. None: a stop of the server ended it.
async fn secure(
    stream: Stream,
    acceptor: Arc<Acceptor>,
    watch: &mut Watch<'_, impl Future<Output = ()>>,
) -> io::Result<Option<Stream>> {
    let Stream::Plain(socket) = stream else { return Ok(Some(stream)) };
    let mut handshake = Box::pin(async move { acceptor.accept(socket).await });
    poll_fn(|context| {
        if let Poll::Ready(made) = handshake.as_mut().poll(context) {
            return Poll::Ready(made.map(Some));
        }
        if !watch.stop_is_known && watch.stopping.as_mut().poll(context).is_ready() {
            watch.stop_is_known = true;
            return Poll::Ready(Ok(None));
        }
        Poll::Pending
    })
    .await
}

/// Where it has none, a moment at which to look again.
fn deadline(conversation: &impl Conversation) -> Timestamp {
    const NONE: Duration = Duration::from_secs(60);
    conversation.deadline().unwrap_or_else(|| now() + NONE)
}

fn poll_input(stream: &mut Stream, conversation: &mut impl Conversation, context: &mut Context<'_>) -> Poll<Event> {
    with_input(|input| {
        let mut buffer = ReadBuf::new(input);
        Poll::Ready(match ready!(stream.poll_read(context, &mut buffer)) {
            Err(_) => Event::Broken,
            Ok(()) if buffer.filled().is_empty() => Event::End,
            Ok(()) => {
                conversation.handle_input(now(), buffer.filled());
                Event::Input
            }
        })
    })
}

/// What came before a deadline counts, also where the server had no time to read it. An end or a fault comes again.
async fn read_pending_input(stream: &mut Stream, conversation: &mut impl Conversation) {
    poll_fn(|context| {
        let _ = poll_input(stream, conversation, context);
        Poll::Ready(())
    })
    .await;
}

/// Sends all output. Nearly always the socket takes it at once; a peer that does not read has until the
/// conversation's deadline, and only a moment once the conversation is over.
async fn send(
    stream: &mut Stream,
    watch: &mut Watch<'_, impl Future<Output = ()>>,
    conversation: &mut impl Conversation,
) -> io::Result<()> {
    while !conversation.output().is_empty() || stream.has_unsent() {
        match stream.try_send(conversation.output()) {
            Ok(sent) => conversation.handle_sent(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_until_writable(stream, watch, conversation).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn wait_until_writable(
    stream: &Stream,
    watch: &mut Watch<'_, impl Future<Output = ()>>,
    conversation: &mut impl Conversation,
) -> io::Result<()> {
    let event = poll_fn(|context| match watch.poll(context) {
        Poll::Pending => stream.poll_writable(context).map_ok(|()| Event::Writable),
        interrupted => interrupted.map(Ok),
    });
    match event.await? {
        Event::Deadline => {
            conversation.handle_timeout(now());
            if conversation.deadline().is_none() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            watch.rearm(deadline(conversation));
        }
        Event::Stop => {
            conversation.handle_stop(now());
            // A conversation that is over has no deadline any more; this one is all that is left to wait.
            watch.rearm(deadline(conversation).min(now() + LINGER));
        }
        Event::Input | Event::End | Event::Broken | Event::Writable => {}
    }
    Ok(())
}

/// Tells the peer over TLS that nothing more comes, whichever side ends first: a client that is not told takes the end
/// for a truncation (RFC 8446 section 6.1). It goes out as output does.
async fn end(
    mut stream: Stream,
    watch: &mut Watch<'_, impl Future<Output = ()>>,
    conversation: &mut impl Conversation,
) -> TcpStream {
    stream.announce_end();
    while stream.has_unsent() {
        let sent = match stream.try_send(&[]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_until_writable(&stream, watch, conversation).await
            }
            sent => sent.map(drop),
        };
        if sent.is_err() {
            break;
        }
    }
    stream.into_socket()
}

/// Takes what the peer has sent by now, off a connection that is dropped without waiting: it would be reset over unread
/// input too, and the peer might never see what it was told.
pub fn discard_input(stream: &TcpStream) {
    // Where nothing can be read nothing is left unread.
    let _ = with_input(|input| stream.try_read(input));
}

/// Ends the connection so that the peer gets the last reply. Nearly always there is nothing unread, and then the
/// kernel does the rest: closing over unread bytes alone would reset the connection. Else it takes up to two seconds.
pub async fn close(mut stream: TcpStream) {
    let unread = with_input(|input| stream.try_read(input));
    if !unread.is_ok_and(|count| count > 0) || stream.shutdown().await.is_err() {
        return;
    }
    // Reading so counts against the task's turn, so that a peer that never stops sending does not keep the thread.
    let drained = poll_fn(|context| {
        with_input(|input| {
            loop {
                let mut buffer = ReadBuf::new(input);
                match ready!(Pin::new(&mut stream).poll_read(context, &mut buffer)) {
                    Ok(()) if !buffer.filled().is_empty() => {}
                    _ => return Poll::Ready(()),
                }
            }
        })
    });
    // Whoever keeps talking is cut off.
    let _ = tokio::time::timeout(LINGER, drained).await;
}
