//! Sends the bytes of a message to a server, continuing after the last byte sent.
//!
//! | body | method |
//! |---|---|
//! | large, stored in the form to be sent | `sendfile`, together with the commands, and a rewritten header, before it |
//! | converted to 7 bits, for this server | piece by piece ([`super::seven_bit`]) |
//! | other | copied through a window shared by all connections of the thread |
//!
//! A window is sent in one system call together with the commands before it and the end mark after
//! it. Extra dots are separate pieces of that call, so nothing is copied again.
//!
//! A body that fits in one window is checked against its digest before any of it is sent. If the
//! bytes are not in memory, the result is [`SendStep::NotInMemory`], and [`ContentSender::fetch`]
//! waits for the disk on another thread.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::task::{Context, Poll, ready};

use mail::{Body, BodyError};
use memchr::memmem;
use net::{FileRange, OutboundConnection, is_cached, prefetch_from_disk, read_from_disk, read_if_cached};
use protocol::smtp::client::{self, DotStuffing, SmtpClientOutput};

use super::seven_bit::{SevenBitContent, UnconvertedMessage};

/// The window: how many octets of a body are read and sent at once.
const WINDOW_OCTETS: usize = 64 << 10;
/// How many octets of a file are checked at once for being in memory.
const FILE_WINDOW_OCTETS: u64 = 1 << 20;
/// The maximum number of dot-stuffed lines in one call.
const DOTS_MAX: usize = 30;
/// Head, tail, and for each dot the piece before it and the dot itself.
const PIECES_MAX: usize = 2 * DOTS_MAX + 3;
/// The CRLF before a dot shows that the dot begins a line.
const CONTEXT_OCTETS: u64 = 2;

thread_local! {
    static WINDOW: RefCell<Vec<u8>> = RefCell::new(vec![0; WINDOW_OCTETS]);
}

/// The result of one attempt to send.
#[derive(Debug)]
pub(super) enum SendStep {
    /// This many octets of the output were sent.
    Sent(u64),
    /// The bytes are not in memory.
    NotInMemory,
    /// The bytes cannot be read, or differ from those stored.
    Damaged(BodyError),
}

/// The bytes of one message, and how many were sent in the current transaction.
#[derive(Debug)]
pub(super) struct ContentSender {
    body: Body,
    method: SendMethod,
    /// How many octets of the body were sent.
    sent: u64,
    /// The extra dot before the next octet was sent.
    dot_sent: bool,
    /// The window at `sent`, with its context, if it had to be read from disk.
    fetched: Option<Vec<u8>>,
    /// The file is in memory up to this offset.
    in_memory_until: u64,
    conversion: Conversion,
}

/// Whether the message is converted to 7 bits.
#[derive(Debug)]
enum Conversion {
    /// No server needed it so far.
    Unprepared,
    /// It would change nothing.
    Needless,
    /// Some server needs it; whether the current one does.
    Prepared { content: Box<SevenBitContent>, is_used: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendMethod {
    /// By sendfile.
    Sendfile,
    /// Through the window, unchanged.
    Copied,
    /// Through the window, dot-stuffed.
    DotStuffed,
    /// Converted to 7 bits.
    Converted,
}

impl ContentSender {
    pub(super) fn new(body: Body) -> Self {
        ContentSender {
            body,
            method: SendMethod::Copied,
            sent: 0,
            dot_sent: false,
            fetched: None,
            in_memory_until: 0,
            conversion: Conversion::Unprepared,
        }
    }

    /// Starts again from the first byte, in this form. Uses sendfile if the body has more octets
    /// than `sendfile_above` and nothing prevents it.
    pub(super) fn rewind(&mut self, form: DotStuffing, outbound: &OutboundConnection, sendfile_above: Option<u64>) {
        let stored = self.body.len() - self.body.start().len() as u64;
        let is_large = sendfile_above.is_some_and(|octets| stored > octets);
        let mut conversion = std::mem::replace(&mut self.conversion, Conversion::Unprepared);
        let method = match form {
            _ if conversion.rewind(form) => SendMethod::Converted,
            DotStuffing::Stuffed if self.body.flags().dot_lines => SendMethod::DotStuffed,
            _ if is_large && outbound.supports_sendfile() && self.body.file_range().is_some() => SendMethod::Sendfile,
            _ => SendMethod::Copied,
        };
        *self = ContentSender { method, conversion, ..ContentSender::new(self.body.clone()) };
    }

    /// What the client needs to know to send the body converted to 7 bits, in any form. The next
    /// [`rewind`](ContentSender::rewind) starts with that.
    pub(super) async fn describe_seven_bit(
        &mut self,
        form: DotStuffing,
    ) -> Result<client::ContentSize, UnconvertedMessage> {
        if let Conversion::Unprepared = self.conversion {
            self.conversion = match SevenBitContent::prepare(&self.body).await? {
                Some(content) => Conversion::Prepared { content, is_used: true },
                None => Conversion::Needless,
            };
        }
        match &mut self.conversion {
            Conversion::Prepared { content, is_used } => {
                *is_used = true;
                Ok(content.size())
            }
            Conversion::Needless | Conversion::Unprepared => Ok(self.describe(form).await?),
        }
    }

    /// What the client needs to know to send the body in this form.
    pub(super) async fn describe(&mut self, form: DotStuffing) -> io::Result<client::ContentSize> {
        if let Conversion::Prepared { is_used, .. } = &mut self.conversion {
            *is_used = false;
        }
        let flags = self.body.flags();
        let dot_lines = match form {
            DotStuffing::Stuffed if flags.dot_lines => self.count_dots().await?,
            _ => 0,
        };
        Ok(client::ContentSize { octets: self.body.len(), dot_lines, ends_in_crlf: flags.ends_in_crlf })
    }

    async fn count_dots(&self) -> io::Result<u64> {
        let (mut count, mut place) = (0, 0);
        while place < self.body.len() {
            let (start, octets) = self.window(place);
            let counted = WINDOW.with_borrow_mut(|window| {
                let window = &mut window[..octets];
                Ok::<_, io::Error>(read_if_cached(&self.body, window, start)?.then(|| count_dots(window, start, place)))
            })?;
            count += match counted {
                Some(found) => found,
                None => count_dots(&read_from_disk(&self.body, start, octets).await?, start, place),
            };
            place = start + octets as u64;
        }
        Ok(count)
    }

    /// The start and length of the window whose new octets begin at `place`.
    fn window(&self, place: u64) -> (u64, usize) {
        let start = place.saturating_sub(CONTEXT_OCTETS);
        (start, (self.body.len() - start).min(WINDOW_OCTETS as u64) as usize)
    }

    /// Sends some of the output, which includes content.
    pub(super) fn poll_send(
        &mut self,
        outbound: &mut OutboundConnection,
        output: &SmtpClientOutput<'_>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<SendStep>> {
        ready!(outbound.poll_writable(context))?;
        match self.method {
            SendMethod::Sendfile => return self.poll_send_file(outbound, output, context),
            SendMethod::Converted => return self.poll_send_converted(outbound, output, context),
            SendMethod::Copied | SendMethod::DotStuffed => {}
        }
        let fetched = self.fetched.take();
        let sent = match &fetched {
            Some(window) => self.poll_send_window(outbound, output, window, context),
            None => WINDOW.with_borrow_mut(|window| {
                let (start, octets) = self.window(self.sent);
                let window = &mut window[..octets];
                match read_if_cached(&self.body, window, start) {
                    Ok(true) => self.poll_send_window(outbound, output, window, context),
                    Ok(false) => Poll::Ready(Ok(SendStep::NotInMemory)),
                    Err(error) => Poll::Ready(Ok(SendStep::Damaged(error.into()))),
                }
            }),
        };
        if sent.is_pending() {
            self.fetched = fetched;
        }
        sent
    }

    /// Reads the bytes that were missing.
    pub(super) async fn fetch(&mut self) -> Result<(), BodyError> {
        if self.method == SendMethod::Sendfile {
            let range = self.file_window();
            prefetch_from_disk(&self.body, range.start, range.end - range.start).await?;
            self.in_memory_until = range.end;
        } else {
            let (start, octets) = match &self.conversion {
                Conversion::Prepared { content, is_used: true } => content.needed_input(&self.body),
                _ => self.window(self.sent),
            };
            self.fetched = Some(read_from_disk(&self.body, start, octets).await?);
        }
        Ok(())
    }

    /// The next octets of the body that are in the file.
    fn file_window(&self) -> Range<u64> {
        let start = self.sent.max(self.body.start().len() as u64);
        start..self.body.len().min(start + FILE_WINDOW_OCTETS)
    }

    fn poll_send_file(
        &mut self,
        outbound: &mut OutboundConnection,
        output: &SmtpClientOutput<'_>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<SendStep>> {
        let window = self.file_window();
        if self.in_memory_until <= window.start {
            match is_cached(&self.body, window.start, window.end - window.start) {
                Ok(true) => self.in_memory_until = window.end,
                Ok(false) => return Poll::Ready(Ok(SendStep::NotInMemory)),
                Err(error) => return Poll::Ready(Ok(SendStep::Damaged(error.into()))),
            }
        }
        let (file, offset) = self.body.file_range().expect("only a body in a file is sent by sendfile");
        let start = self.body.start();
        let range = FileRange {
            file,
            offset: offset + window.start - start.len() as u64,
            octets: self.in_memory_until - window.start,
        };
        let head = match start.get(self.sent as usize..) {
            None | Some([]) => Cow::Borrowed(output.head),
            Some(unsent) => Cow::Owned([output.head, unsent].concat()),
        };
        match ready!(outbound.poll_send_file(&head, range, context)) {
            Ok(sent) => {
                self.sent += sent.saturating_sub(output.head.len()) as u64;
                Poll::Ready(Ok(SendStep::Sent(sent as u64)))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Poll::Ready(Ok(SendStep::Damaged(error.into())))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// The pieces must have the length that was declared: a body that changed since then is damaged.
    fn poll_send_converted(
        &mut self,
        outbound: &mut OutboundConnection,
        output: &SmtpClientOutput<'_>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<SendStep>> {
        let Conversion::Prepared { content, .. } = &mut self.conversion else {
            return Poll::Ready(Err(io::Error::other("the message was not converted")));
        };
        while let ([], false) = content.unsent() {
            match convert_next(&self.body, content, self.fetched.take()) {
                Ok(true) => {}
                Ok(false) => return Poll::Ready(Ok(SendStep::NotInMemory)),
                Err(error) => return Poll::Ready(Ok(SendStep::Damaged(error.into()))),
            }
        }
        let (octets, is_last) = content.unsent();
        let (unsent, expected) = (octets.len() as u64, output.content.end - output.content.start);
        if unsent > expected || (is_last && unsent < expected) {
            let changed = io::Error::new(io::ErrorKind::InvalidData, "the message changed while it was converted");
            return Poll::Ready(Ok(SendStep::Damaged(changed.into())));
        }
        let tail = if is_last { output.tail } else { b"" };
        let pieces = [IoSlice::new(output.head), IoSlice::new(octets), IoSlice::new(tail)];
        let sent = ready!(outbound.poll_send(&pieces, context))?;
        content.handle_sent(sent.saturating_sub(output.head.len()).min(unsent as usize));
        Poll::Ready(Ok(SendStep::Sent(sent as u64)))
    }

    fn poll_send_window(
        &mut self,
        outbound: &mut OutboundConnection,
        output: &SmtpClientOutput<'_>,
        window: &[u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<SendStep>> {
        if window.len() as u64 == self.body.len() && self.sent == 0 {
            let (found, expected) = (crc32c::crc32c(window), self.body.digest());
            if found != expected {
                return Poll::Ready(Ok(SendStep::Damaged(BodyError::Digest { found, expected })));
            }
        }
        let start = self.window(self.sent).0;
        let run = match self.method {
            SendMethod::DotStuffed => WindowSlice::stuffed(window, start, self.sent, self.dot_sent),
            SendMethod::Copied | SendMethod::Sendfile | SendMethod::Converted => {
                WindowSlice::plain(window, start, self.sent)
            }
        };
        let is_last = start + run.end as u64 == self.body.len();
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let count = run.write_pieces(window, output, is_last, &mut pieces);
        let sent = ready!(outbound.poll_send(&pieces[..count], context))? as u64;
        let content = sent.saturating_sub(output.head.len() as u64).min(output.content.end - output.content.start);
        let (place, dot_sent) = run.after(content);
        (self.sent, self.dot_sent) = (start + place as u64, dot_sent);
        Poll::Ready(Ok(SendStep::Sent(sent)))
    }
}

impl Conversion {
    /// Starts again from the first octet, if the message is converted.
    fn rewind(&mut self, form: DotStuffing) -> bool {
        match self {
            Conversion::Prepared { content, is_used: true } => {
                content.rewind(form);
                true
            }
            _ => false,
        }
    }
}

/// Converts the next octets of the body, which may have been read before; false if they are not in
/// memory.
fn convert_next(body: &Body, content: &mut SevenBitContent, fetched: Option<Vec<u8>>) -> io::Result<bool> {
    if let Some(octets) = fetched {
        content.handle_input(body, &octets);
        return Ok(true);
    }
    WINDOW.with_borrow_mut(|window| {
        let (start, octets) = content.needed_input(body);
        let window = &mut window[..octets];
        let is_cached = read_if_cached(body, window, start)?;
        if is_cached {
            content.handle_input(body, window);
        }
        Ok(is_cached)
    })
}

/// The part of a window to be sent: a range, with an extra dot before some of its dots.
struct WindowSlice {
    begin: usize,
    end: usize,
    dots: [usize; DOTS_MAX],
    dots_count: usize,
    /// The extra dot before the first octet was sent.
    dot_sent: bool,
}

impl WindowSlice {
    fn plain(window: &[u8], start: u64, done: u64) -> WindowSlice {
        WindowSlice {
            begin: (done - start) as usize,
            end: window.len(),
            dots: [0; DOTS_MAX],
            dots_count: 0,
            dot_sent: false,
        }
    }

    fn stuffed(window: &[u8], start: u64, done: u64, dot_sent: bool) -> WindowSlice {
        let mut run = WindowSlice { dot_sent, ..WindowSlice::plain(window, start, done) };
        for place in dots_at_line_start(window, start, done) {
            if place == run.begin && dot_sent {
                continue;
            }
            if run.dots_count == DOTS_MAX {
                run.end = place;
                break;
            }
            run.dots[run.dots_count] = place;
            run.dots_count += 1;
        }
        run
    }

    /// The ranges of the window between the extra dots.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let dots = &self.dots[..self.dots_count];
        let begins = std::iter::once(self.begin).chain(dots.iter().copied());
        begins.zip(dots.iter().copied().chain([self.end])).map(|(begin, end)| begin..end)
    }

    /// Fills in the pieces and returns their number.
    fn write_pieces<'a>(
        &self,
        window: &'a [u8],
        output: &SmtpClientOutput<'a>,
        is_last: bool,
        pieces: &mut [IoSlice<'a>; PIECES_MAX],
    ) -> usize {
        let mut count = 0;
        let mut add = |piece: &'a [u8]| {
            if !piece.is_empty() {
                pieces[count] = IoSlice::new(piece);
                count += 1;
            }
        };
        add(output.head);
        for (number, stretch) in self.ranges().enumerate() {
            if number > 0 {
                add(b".");
            }
            add(&window[stretch]);
        }
        if is_last {
            add(output.tail);
        }
        count
    }

    /// The position of the next octet, and whether its extra dot was sent, after this many octets
    /// were sent.
    fn after(&self, mut octets: u64) -> (usize, bool) {
        let (mut place, mut dot_sent) = (self.begin, self.dot_sent);
        for (number, stretch) in self.ranges().enumerate() {
            if number > 0 {
                if octets == 0 {
                    return (place, dot_sent);
                }
                octets -= 1;
                dot_sent = true;
            }
            let step = octets.min(stretch.len() as u64);
            octets -= step;
            place = stretch.start + step as usize;
            dot_sent &= step == 0;
            if step < stretch.len() as u64 {
                return (place, dot_sent);
            }
        }
        (place, dot_sent)
    }
}

/// The positions in the window of dots at the start of a line, from `done` on; the window begins at
/// `start`.
fn dots_at_line_start(window: &[u8], start: u64, done: u64) -> impl Iterator<Item = usize> {
    let first_new = (done - start) as usize;
    let first = (start == 0 && first_new == 0 && window.starts_with(b".")).then_some(0);
    let others = memmem::find_iter(window, b"\r\n.").map(|place| place + 2).filter(move |place| *place >= first_new);
    first.into_iter().chain(others)
}

fn count_dots(window: &[u8], start: u64, done: u64) -> u64 {
    dots_at_line_start(window, start, done).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a text through windows of `octets` octets; each call takes `taken` octets.
    fn send(text: &[u8], octets: usize, taken: u64) -> Vec<u8> {
        let (mut sent, mut done, mut dot_sent) = (Vec::new(), 0, false);
        let head = SmtpClientOutput { head: b"", content: 0..0, form: DotStuffing::Stuffed, tail: b"" };
        while done < text.len() as u64 {
            let start = done.saturating_sub(CONTEXT_OCTETS);
            let window = &text[start as usize..text.len().min(start as usize + octets)];
            let run = WindowSlice::stuffed(window, start, done, dot_sent);
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let count = run.write_pieces(window, &head, false, &mut pieces);
            let bytes = pieces[..count].iter().flat_map(|piece| piece.iter().copied());
            let before = sent.len();
            sent.extend(bytes.take(taken as usize));
            let (place, dot) = run.after((sent.len() - before) as u64);
            (done, dot_sent) = (start + place as u64, dot);
        }
        sent
    }

    #[test]
    fn dots_are_doubled_wherever_windows_and_sockets_part_the_text() {
        let many = b".\r\n".repeat(3 * DOTS_MAX);
        for text in [&b".a\r\n..\r\n\r\n.b\r\n.\r.\n.c.\r\n."[..], b"....", b"a\r\n.b", b".", b"", &many] {
            for (octets, taken) in [(3, 1), (4, 1), (4, 2), (5, 3), (7, 100), (1000, 1), (1000, 2), (1000, 1000)] {
                let expected = client::stuff_dots(text);
                assert_eq!(send(text, octets, taken), &*expected, "{} by {octets}, {taken}", text.escape_ascii());
                let counted = (0..text.len() as u64).map(|done| {
                    let start = done.saturating_sub(CONTEXT_OCTETS);
                    count_dots(&text[start as usize..=done as usize], start, done)
                });
                assert_eq!(counted.sum::<u64>(), (expected.len() - text.len()) as u64);
            }
        }
    }
}
