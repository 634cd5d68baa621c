//! Hop queues: the mail of one queue for one next hop in one class, and the rounds in which a queue
//! schedules them.
//!
//! | the hop queue has | its next hop | it is scheduled |
//! |---|---|---|
//! | no ready recipients | | nowhere: it costs nothing |
//! | ready recipients | has no capacity | nowhere: its queue does not see it |
//! | ready recipients | has capacity | in its class, by the queue that serves the next hop now |
//! | ready recipients | is dead, no probe due | for refusal, by that queue |

use crate::QueueNumber;
use crate::pages::Slab;
use crate::rounds::{Rounds, Seat, Seated};
use crate::senders::Class;

/// The destinations of one queue and class that share a next hop.
pub(crate) struct Berth {
    pub(crate) desks: Rounds,
    pub(crate) hop: u32,
    class: Class,
    seat: Seat,
    /// Where it is scheduled, or was last.
    stand: Stand,
    is_standing: bool,
}

/// The rounds of one class in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    pub(crate) queue: QueueNumber,
    pub(crate) row: Row,
}

/// What happens to recipients when it is their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Letters,
    Mailings,
    Refused,
}

impl Seated for Berth {
    fn seat(&mut self) -> &mut Seat {
        &mut self.seat
    }
}

impl From<Class> for Row {
    fn from(class: Class) -> Self {
        match class {
            Class::Letter => Row::Letters,
            Class::Mailing => Row::Mailings,
        }
    }
}

/// All hop queues, and the rounds of all queues.
pub(crate) struct Berths {
    berths: Slab<Berth>,
    lanes: Vec<Lane>,
    letters_share: u32,
}

/// The rounds of one queue.
struct Lane {
    rows: [Rounds; 3],
    /// Turns of single messages since the last turn of bulk mail, while bulk mail was ready.
    letters_in_a_row: u32,
}

impl Berths {
    pub(crate) fn new(queues: usize, letters_share: u32) -> Self {
        let mut berths = Berths { berths: Slab::new(), lanes: Vec::new(), letters_share: 1 };
        berths.change(queues, letters_share);
        berths
    }

    /// Sets the number of queues, which never shrinks, and the share of single messages.
    pub(crate) fn change(&mut self, queues: usize, letters_share: u32) {
        self.lanes.resize_with(queues, || Lane { rows: [Rounds::EMPTY; 3], letters_in_a_row: 0 });
        self.letters_share = letters_share.max(1);
    }

    pub(crate) fn open(&mut self, hop: u32, home: QueueNumber, class: Class) -> u32 {
        let stand = Stand { queue: home, row: class.into() };
        self.berths.insert(Berth { desks: Rounds::EMPTY, hop, class, seat: Seat::NEW, stand, is_standing: false })
    }

    /// Removes a hop queue, which must be empty.
    pub(crate) fn close(&mut self, berth: u32) {
        self.stand(berth, None);
        self.berths.remove(berth);
    }

    pub(crate) fn berth(&self, berth: u32) -> &Berth {
        &self.berths[berth]
    }

    pub(crate) fn berth_mut(&mut self, berth: u32) -> &mut Berth {
        &mut self.berths[berth]
    }

    /// The class of a hop queue whose next hop has capacity.
    pub(crate) fn row(&self, berth: u32) -> Row {
        self.berths[berth].class.into()
    }

    /// Schedules a hop queue, or removes it from all rounds. It keeps the rounds to skip only if
    /// it returns to the same place.
    pub(crate) fn stand(&mut self, index: u32, stand: Option<Stand>) {
        let berth = &self.berths[index];
        let (last, is_standing) = (berth.stand, berth.is_standing);
        if is_standing && stand != Some(last) {
            let (row, berths) = self.row_mut(last);
            row.leave(berths, index);
        }
        if let Some(stand) = stand {
            let (row, berths) = self.row_mut(stand);
            if stand != last {
                row.join(berths, index);
            } else if !is_standing {
                row.resume(berths, index);
            }
        }
        let berth = &mut self.berths[index];
        berth.is_standing = stand.is_some();
        berth.stand = stand.unwrap_or(last);
    }

    /// Ends the turn of a hop queue that took `cost` recipients; it is not scheduled now.
    pub(crate) fn take(&mut self, index: u32, cost: usize) {
        let stand = self.berths[index].stand;
        self.berths[index].is_standing = false;
        let (row, berths) = self.row_mut(stand);
        row.take(berths, index, cost);
    }

    /// The hop queue whose recipients are refused next.
    pub(crate) fn first_refused(&self, queue: QueueNumber) -> Option<u32> {
        self.lane(queue).rows[Row::Refused as usize].first()
    }

    /// The hop queue whose turn is next: single messages before bulk mail, by their share.
    pub(crate) fn first(&self, queue: QueueNumber) -> Option<u32> {
        let lane = self.lane(queue);
        let (letter, mailing) = (lane.rows[Row::Letters as usize].first(), lane.rows[Row::Mailings as usize].first());
        if lane.letters_in_a_row < self.letters_share { letter.or(mailing) } else { mailing.or(letter) }
    }

    /// Counts a turn for the shares.
    pub(crate) fn count(&mut self, berth: u32) {
        let Stand { queue, row } = self.berths[berth].stand;
        let lane = &mut self.lanes[usize::from(queue.0)];
        let mailings_wait = !lane.rows[Row::Mailings as usize].is_empty();
        let is_letter = row == Row::Letters;
        lane.letters_in_a_row = if is_letter && mailings_wait { lane.letters_in_a_row + 1 } else { 0 };
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.berths.bytes() + self.lanes.capacity() * size_of::<Lane>()
    }

    fn lane(&self, queue: QueueNumber) -> &Lane {
        &self.lanes[usize::from(queue.0)]
    }

    /// The rounds at a position, and the hop queues.
    fn row_mut(&mut self, stand: Stand) -> (&mut Rounds, &mut Slab<Berth>) {
        (&mut self.lanes[usize::from(stand.queue.0)].rows[stand.row as usize], &mut self.berths)
    }
}
