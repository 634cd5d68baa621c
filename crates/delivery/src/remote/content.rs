//! Sends the bytes of a message to a server, continuing after the last byte sent.
//!
//! | body | method |
//! |---|---|
//! | large, stored in the form to be sent | `sendfile`, together with the commands before it |
//! | other | copied through a window shared by all connections of the thread |
//!
//! A window is sent in one system call together with the commands before it and the end mark after
//! it. Extra dots are separate pieces of that call, so nothing is copied again.
//!
//! A body that fits in one window is checked against its digest before any of it is sent. If the
//! bytes are not in memory, the result is [`Step::Miss`], and [`Content::fetch`] waits for the disk
//! on another thread.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::task::{Context, Poll, ready};

use mail::{Body, Damaged};
use memchr::memmem;
use net::{FileRange, Wire, bring_from_disk, is_at_hand, read_at_once, read_from_disk};
use protocol::smtp::client::{self, Form, Output};

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
pub(super) enum Step {
    /// This many octets of the output were sent.
    Sent(u64),
    /// The bytes are not in memory.
    Miss,
    /// The bytes cannot be read, or differ from those stored.
    Damaged(Damaged),
}

/// The bytes of one message, and how many were sent in the current transaction.
#[derive(Debug)]
pub(super) struct Content {
    body: Body,
    way: Way,
    /// How many octets of the body were sent.
    done: u64,
    /// The extra dot before the next octet was sent.
    dot_done: bool,
    /// The window at `done`, with its context, if it had to be read from disk.
    fetched: Option<Vec<u8>>,
    /// The file is in memory up to this offset.
    at_hand: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By sendfile.
    File,
    /// Through the window, unchanged.
    Plain,
    /// Through the window, dot-stuffed.
    Stuffed,
}

impl Content {
    pub(super) fn new(body: Body) -> Self {
        Content { body, way: Way::Plain, done: 0, dot_done: false, fetched: None, at_hand: 0 }
    }

    /// Starts again from the first byte, in this form. Uses sendfile if the body has more octets
    /// than `sendfile_above` and nothing prevents it.
    pub(super) fn rewind(&mut self, form: Form, wire: &Wire, sendfile_above: Option<u64>) {
        let is_large = sendfile_above.is_some_and(|octets| self.body.len() > octets);
        let way = match form {
            Form::Stuffed if self.body.flags().dot_lines => Way::Stuffed,
            _ if is_large && wire.sends_files() && self.body.file_range().is_some() => Way::File,
            _ => Way::Plain,
        };
        *self = Content { way, ..Content::new(self.body.clone()) };
    }

    /// What the client needs to know to send the body in this form.
    pub(super) async fn describe(&self, form: Form) -> io::Result<client::Content> {
        let flags = self.body.flags();
        let dot_lines = match form {
            Form::Stuffed if flags.dot_lines => self.count_dots().await?,
            _ => 0,
        };
        Ok(client::Content { octets: self.body.len(), dot_lines, ends_in_crlf: flags.ends_in_crlf })
    }

    async fn count_dots(&self) -> io::Result<u64> {
        let (mut count, mut place) = (0, 0);
        while place < self.body.len() {
            let (start, octets) = self.window(place);
            let counted = WINDOW.with_borrow_mut(|window| {
                let window = &mut window[..octets];
                Ok::<_, io::Error>(read_at_once(&self.body, window, start)?.then(|| count_dots(window, start, place)))
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
        wire: &mut Wire,
        output: &Output<'_>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Step>> {
        ready!(wire.poll_writable(context))?;
        if self.way == Way::File {
            return self.poll_send_file(wire, output, context);
        }
        let fetched = self.fetched.take();
        let sent = match &fetched {
            Some(window) => self.poll_send_window(wire, output, window, context),
            None => WINDOW.with_borrow_mut(|window| {
                let (start, octets) = self.window(self.done);
                let window = &mut window[..octets];
                match read_at_once(&self.body, window, start) {
                    Ok(true) => self.poll_send_window(wire, output, window, context),
                    Ok(false) => Poll::Ready(Ok(Step::Miss)),
                    Err(error) => Poll::Ready(Ok(Step::Damaged(error.into()))),
                }
            }),
        };
        if sent.is_pending() {
            self.fetched = fetched;
        }
        sent
    }

    /// Reads the bytes that were missing.
    pub(super) async fn fetch(&mut self) -> Result<(), Damaged> {
        if self.way == Way::File {
            let octets = self.file_window();
            bring_from_disk(&self.body, self.done, octets).await?;
            self.at_hand = self.done + octets;
        } else {
            let (start, octets) = self.window(self.done);
            self.fetched = Some(read_from_disk(&self.body, start, octets).await?);
        }
        Ok(())
    }

    fn file_window(&self) -> u64 {
        (self.body.len() - self.done).min(FILE_WINDOW_OCTETS)
    }

    fn poll_send_file(
        &mut self,
        wire: &mut Wire,
        output: &Output<'_>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Step>> {
        if self.at_hand <= self.done {
            let octets = self.file_window();
            match is_at_hand(&self.body, self.done, octets) {
                Ok(true) => self.at_hand = self.done + octets,
                Ok(false) => return Poll::Ready(Ok(Step::Miss)),
                Err(error) => return Poll::Ready(Ok(Step::Damaged(error.into()))),
            }
        }
        let (file, offset) = self.body.file_range().expect("only a body in a file is sent by sendfile");
        let range = FileRange { file, offset: offset + self.done, octets: (self.at_hand - self.done) as usize };
        match ready!(wire.poll_send_file(output.head, range, context)) {
            Ok(sent) => {
                self.done += sent.saturating_sub(output.head.len()) as u64;
                Poll::Ready(Ok(Step::Sent(sent as u64)))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(Step::Damaged(error.into()))),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_send_window(
        &mut self,
        wire: &mut Wire,
        output: &Output<'_>,
        window: &[u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Step>> {
        if window.len() as u64 == self.body.len() && self.done == 0 {
            let (found, expected) = (crc32c::crc32c(window), self.body.digest());
            if found != expected {
                return Poll::Ready(Ok(Step::Damaged(Damaged::Digest { found, expected })));
            }
        }
        let start = self.window(self.done).0;
        let run = match self.way {
            Way::Stuffed => Run::stuffed(window, start, self.done, self.dot_done),
            Way::Plain | Way::File => Run::plain(window, start, self.done),
        };
        let is_last = start + run.end as u64 == self.body.len();
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let count = run.write_pieces(window, output, is_last, &mut pieces);
        let sent = ready!(wire.poll_send(&pieces[..count], context))? as u64;
        let content = sent.saturating_sub(output.head.len() as u64).min(output.content.end - output.content.start);
        let (place, dot_done) = run.after(content);
        (self.done, self.dot_done) = (start + place as u64, dot_done);
        Poll::Ready(Ok(Step::Sent(sent)))
    }
}

/// The part of a window to be sent: a range, with an extra dot before some of its dots.
struct Run {
    begin: usize,
    end: usize,
    dots: [usize; DOTS_MAX],
    dots_count: usize,
    /// The extra dot before the first octet was sent.
    dot_done: bool,
}

impl Run {
    fn plain(window: &[u8], start: u64, done: u64) -> Run {
        Run { begin: (done - start) as usize, end: window.len(), dots: [0; DOTS_MAX], dots_count: 0, dot_done: false }
    }

    fn stuffed(window: &[u8], start: u64, done: u64, dot_done: bool) -> Run {
        let mut run = Run { dot_done, ..Run::plain(window, start, done) };
        for place in dots(window, start, done) {
            if place == run.begin && dot_done {
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
    fn stretches(&self) -> impl Iterator<Item = Range<usize>> {
        let dots = &self.dots[..self.dots_count];
        let begins = std::iter::once(self.begin).chain(dots.iter().copied());
        begins.zip(dots.iter().copied().chain([self.end])).map(|(begin, end)| begin..end)
    }

    /// Fills in the pieces and returns their number.
    fn write_pieces<'a>(
        &self,
        window: &'a [u8],
        output: &Output<'a>,
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
        for (number, stretch) in self.stretches().enumerate() {
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
        let (mut place, mut dot_done) = (self.begin, self.dot_done);
        for (number, stretch) in self.stretches().enumerate() {
            if number > 0 {
                if octets == 0 {
                    return (place, dot_done);
                }
                octets -= 1;
                dot_done = true;
            }
            let step = octets.min(stretch.len() as u64);
            octets -= step;
            place = stretch.start + step as usize;
            dot_done &= step == 0;
            if step < stretch.len() as u64 {
                return (place, dot_done);
            }
        }
        (place, dot_done)
    }
}

/// The positions in the window of dots at the start of a line, from `done` on; the window begins at
/// `start`.
fn dots(window: &[u8], start: u64, done: u64) -> impl Iterator<Item = usize> {
    let news = (done - start) as usize;
    let first = (start == 0 && news == 0 && window.starts_with(b".")).then_some(0);
    let others = memmem::find_iter(window, b"\r\n.").map(|place| place + 2).filter(move |place| *place >= news);
    first.into_iter().chain(others)
}

fn count_dots(window: &[u8], start: u64, done: u64) -> u64 {
    dots(window, start, done).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a text through windows of `octets` octets; each call takes `taken` octets.
    fn send(text: &[u8], octets: usize, taken: u64) -> Vec<u8> {
        let (mut sent, mut done, mut dot_done) = (Vec::new(), 0, false);
        let head = Output { head: b"", content: 0..0, form: Form::Stuffed, tail: b"" };
        while done < text.len() as u64 {
            let start = done.saturating_sub(CONTEXT_OCTETS);
            let window = &text[start as usize..text.len().min(start as usize + octets)];
            let run = Run::stuffed(window, start, done, dot_done);
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let count = run.write_pieces(window, &head, false, &mut pieces);
            let bytes = pieces[..count].iter().flat_map(|piece| piece.iter().copied());
            let before = sent.len();
            sent.extend(bytes.take(taken as usize));
            let (place, dot) = run.after((sent.len() - before) as u64);
            (done, dot_done) = (start + place as u64, dot);
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
