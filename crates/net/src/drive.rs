//! One connection and its conversation: bytes in, work, bytes out, and the deadline beside them.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use mail::Timestamp;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::Stop;

/// Bytes that one read takes at the most.
const READ_BYTES: usize = 64 * 1024;
/// A peer that takes no byte of a reply for so long is gone.
const WRITE_TIME_MAX: Duration = Duration::from_secs(5 * 60);
/// How long a closing connection listens for the peer's last bytes: closing over unread input would reset it,
/// and the peer might never see the last reply.
const LINGER: Duration = Duration::from_secs(2);

thread_local! {
    static INPUT: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// A protocol machine together with whoever answers its questions.
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
}

/// What a connection woke up for.
enum Event {
    Input,
    End,
    Broken,
    Deadline,
    Stop,
}

/// Carries a conversation until one side ends it. Whatever happens to the connection, the conversation hears
/// of its end.
pub async fn drive(mut stream: TcpStream, mut stop: Stop, conversation: &mut (impl Conversation + Send)) {
    let mut stopping = pin!(stop.requested());
    let mut stop_is_known = false;
    let mut timer = pin!(sleep(until_deadline(conversation)));
    loop {
        conversation.work().await;
        if send(&mut stream, conversation).await.is_err() {
            conversation.handle_end(now());
            return conversation.work().await;
        }
        if conversation.wants_close() {
            return close(stream).await;
        }
        let event = poll_fn(|context| {
            if !stop_is_known && stopping.as_mut().poll(context).is_ready() {
                return Poll::Ready(Event::Stop);
            }
            if timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(Event::Deadline);
            }
            poll_input(&mut stream, conversation, context)
        });
        match event.await {
            Event::Input => {}
            Event::End => {
                conversation.handle_end(now());
                conversation.work().await;
                let _ = send(&mut stream, conversation).await;
                return;
            }
            Event::Broken => {
                conversation.handle_end(now());
                return conversation.work().await;
            }
            Event::Deadline => rearm(timer.as_mut(), conversation),
            Event::Stop => {
                stop_is_known = true;
                conversation.handle_stop(now());
            }
        }
    }
}

/// The timer is not moved at every command: it goes off at an early deadline and looks what the deadline is now.
fn rearm(mut timer: Pin<&mut Sleep>, conversation: &mut impl Conversation) {
    conversation.handle_timeout(now());
    timer.as_mut().reset(tokio::time::Instant::now() + until_deadline(conversation));
}

fn until_deadline(conversation: &impl Conversation) -> Duration {
    const NONE: Duration = Duration::from_secs(60);
    // A millisecond more: the machine's clock has whole ones.
    conversation.deadline().map_or(NONE, |deadline| deadline.since(now()) + Duration::from_millis(1))
}

fn poll_input(stream: &mut TcpStream, conversation: &mut impl Conversation, context: &mut Context<'_>) -> Poll<Event> {
    INPUT.with_borrow_mut(|input| {
        let mut buffer = ReadBuf::new(input);
        Poll::Ready(match ready!(Pin::new(stream).poll_read(context, &mut buffer)) {
            Err(_) => Event::Broken,
            Ok(()) if buffer.filled().is_empty() => Event::End,
            Ok(()) => {
                conversation.handle_input(now(), buffer.filled());
                Event::Input
            }
        })
    })
}

/// Sends all output. Nearly always the socket takes it at once.
async fn send(stream: &mut TcpStream, conversation: &mut impl Conversation) -> io::Result<()> {
    while !conversation.output().is_empty() {
        let sent = match stream.try_write(conversation.output()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::timeout(WRITE_TIME_MAX, stream.writable()).await??;
                continue;
            }
            sent => sent?,
        };
        conversation.handle_sent(sent);
    }
    Ok(())
}

/// Ends the connection so that the peer gets the last reply.
async fn close(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    // Reading so counts against the task's turn, so that a peer that never stops sending does not keep the thread.
    let drained = poll_fn(|context| {
        INPUT.with_borrow_mut(|input| {
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

fn now() -> Timestamp {
    SystemTime::now().into()
}
