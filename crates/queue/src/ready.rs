//! The ready recipients, in fair order.
//!
//! Four levels. The first three take turns in [`RoundRobin`], the last one is a chain:
//!
//! | level | holds | a turn costs |
//! |---|---|---|
//! | rounds of a queue | hop queues | as many rounds as recipients leave |
//! | hop queue | domain queues: destinations | as many rounds as recipients leave |
//! | domain queue | sender queues | one round |
//! | sender queue | recipients | first in, first out |
//!
//! Above them, single messages go before bulk mail by their share ([`HopQueues::next_hop_queue`]).
//! A domain queue whose destination has no valid route is in no hop queue: mail gathers there until
//! it has one. Empty queues are in no rounds.

use std::collections::BTreeMap;

use crate::QueueNumber;
use crate::destinations::DestinationId;
use crate::hop_queue::HopQueues;
use crate::intrusive_list::{IntrusiveList, NONE};
use crate::pages::{Pages, Slab};
use crate::recipient::{QueuedRecipient, split_group};
use crate::round_robin::{HasRoundNode, RoundNode, RoundRobin};
use crate::senders::{MessageClass, SenderClassifier};

/// All ready recipients.
pub(crate) struct ReadyQueues {
    pub(crate) hop_queues: HopQueues,
    /// Two per destination, by its number: single messages and bulk mail.
    domain_queues: Pages<DomainQueue>,
    sender_queues: Slab<SenderQueue>,
    /// Finds the sender queue. Ordered, not hashed: no rehashing pause, and no choice of
    /// senders makes it slow.
    sender_queue_ids: BTreeMap<(DestinationId, MessageClass, u64), u32>,
    classifier: SenderClassifier,
}

/// The senders of one class at a destination.
struct DomainQueue {
    sender_queues: RoundRobin,
    round_node: RoundNode,
    /// [`NONE`] while there is no route.
    hop_queue: u32,
}

/// The recipients of one sender at one destination in one class. It exists while it is not empty.
struct SenderQueue {
    recipients: IntrusiveList,
    sender: u64,
    round_node: RoundNode,
    destination: DestinationId,
    class: MessageClass,
}

/// The sender and home queue of a recipient that becomes ready.
#[derive(Clone, Copy)]
pub(crate) struct ReadyOrigin {
    pub(crate) queue: QueueNumber,
    pub(crate) sender: u64,
    /// Whether the message is bulk mail by its own size.
    pub(crate) is_bulk: bool,
}

impl HasRoundNode for DomainQueue {
    fn round_node(&mut self) -> &mut RoundNode {
        &mut self.round_node
    }
}

impl HasRoundNode for SenderQueue {
    fn round_node(&mut self) -> &mut RoundNode {
        &mut self.round_node
    }
}

impl ReadyQueues {
    pub(crate) fn new(queues: usize, bulk_above: usize, single_share: u32) -> Self {
        ReadyQueues {
            hop_queues: HopQueues::new(queues, single_share),
            domain_queues: Pages::new(),
            sender_queues: Slab::new(),
            sender_queue_ids: BTreeMap::new(),
            classifier: SenderClassifier::new(bulk_above),
        }
    }

    /// Applies new settings. The number of queues never shrinks.
    pub(crate) fn reconfigure(&mut self, queues: usize, bulk_above: usize, single_share: u32) {
        self.hop_queues.reconfigure(queues, single_share);
        self.classifier.reconfigure(bulk_above);
    }

    /// Adds a recipient to the back of its sender queue. Returns the next hop if its hop queue in
    /// this class was empty before.
    pub(crate) fn push(
        &mut self,
        recipients: &mut Slab<QueuedRecipient>,
        index: u32,
        origin: ReadyOrigin,
    ) -> Option<u32> {
        let destination = recipients[index].destination;
        let class = self.classify(origin);
        let sender_queue = match self.sender_queue_ids.get(&(destination, class, origin.sender)) {
            Some(&sender_queue) => sender_queue,
            None => return self.create_sender_queue(recipients, index, origin, class),
        };
        self.sender_queues[sender_queue].recipients.push_back(recipients, index);
        None
    }

    /// The first recipient in a hop queue, which must be scheduled.
    pub(crate) fn front(&self, hop_queue: u32) -> u32 {
        let (_, sender_queue) = self.front_sender_queue(hop_queue);
        self.sender_queues[sender_queue].recipients.front().expect("a sender queue is removed when it is empty")
    }

    /// Takes the next group from a hop queue, `limit` recipients at most, of one message at one
    /// destination. The hop queue is not scheduled afterwards.
    pub(crate) fn take_group(
        &mut self,
        recipients: &mut Slab<QueuedRecipient>,
        hop_queue: u32,
        limit: usize,
    ) -> (IntrusiveList, usize) {
        let (domain_queue, sender_queue) = self.front_sender_queue(hop_queue);
        let (group, count) = split_group(&mut self.sender_queues[sender_queue].recipients, recipients, limit);
        self.domain_queues[domain_queue].sender_queues.take(&mut self.sender_queues, sender_queue, 1);
        self.hop_queues.get_mut(hop_queue).domain_queues.take(&mut self.domain_queues, domain_queue, count);
        self.hop_queues.finish_turn(hop_queue, count);
        if self.sender_queues[sender_queue].recipients.is_empty() {
            self.drop_sender_queue(sender_queue);
        } else {
            self.domain_queues[domain_queue].sender_queues.reinsert(&mut self.sender_queues, sender_queue);
        }
        if !self.domain_queues[domain_queue].sender_queues.is_empty() {
            self.hop_queues.get_mut(hop_queue).domain_queues.reinsert(&mut self.domain_queues, domain_queue);
        }
        (group, count)
    }

    /// Moves the first sender queue of a hop queue to the back of its domain queue, and that to the
    /// back of the hop queue.
    pub(crate) fn move_to_back(&mut self, hop_queue: u32) {
        let (domain_queue, sender_queue) = self.front_sender_queue(hop_queue);
        self.domain_queues[domain_queue].sender_queues.take(&mut self.sender_queues, sender_queue, 1);
        self.domain_queues[domain_queue].sender_queues.reinsert(&mut self.sender_queues, sender_queue);
        let domain_queues = &mut self.hop_queues.get_mut(hop_queue).domain_queues;
        domain_queues.take(&mut self.domain_queues, domain_queue, 1);
        domain_queues.reinsert(&mut self.domain_queues, domain_queue);
    }

    /// Moves the first message of a hop queue to the back of its sender queue. Returns false if
    /// that holds no other message.
    pub(crate) fn move_message_to_back(&mut self, recipients: &mut Slab<QueuedRecipient>, hop_queue: u32) -> bool {
        let (_, sender_queue) = self.front_sender_queue(hop_queue);
        let message = recipients[self.front(hop_queue)].message;
        let chain = &mut self.sender_queues[sender_queue].recipients;
        let mut passed = IntrusiveList::EMPTY;
        while let Some(front) = chain.front().filter(|&front| recipients[front].message == message) {
            chain.pop_front(recipients);
            passed.push_back(recipients, front);
        }
        let has_others = !chain.is_empty();
        chain.append(recipients, passed);
        has_others
    }

    /// Whether the first sender queue of a hop queue is its only one.
    pub(crate) fn is_only_sender_queue(&self, hop_queue: u32) -> bool {
        let domain_queues = &self.hop_queues.get(hop_queue).domain_queues;
        let is_alone = |domain_queue: u32| {
            self.domain_queues[domain_queue]
                .sender_queues
                .is_single(|sender_queue| self.sender_queues[sender_queue].round_node)
        };
        domain_queues.is_single(|domain_queue| self.domain_queues[domain_queue].round_node)
            && domain_queues.first().is_some_and(is_alone)
    }

    /// Counts `count` ready recipients fewer for the sender.
    pub(crate) fn remove(&mut self, origin: ReadyOrigin, count: usize) {
        if !origin.is_bulk {
            self.classifier.remove(origin.queue, origin.sender, count);
        }
    }

    /// Sets the hop queues of a destination; [`NONE`] detaches it.
    pub(crate) fn set_hop_queues(&mut self, destination: DestinationId, hop_queues: [u32; 2]) {
        for (class, new) in [MessageClass::Single, MessageClass::Bulk].into_iter().zip(hop_queues) {
            let domain_queue = self.domain_queue(destination, class);
            let old = std::mem::replace(&mut self.domain_queues[domain_queue].hop_queue, new);
            if self.domain_queues[domain_queue].sender_queues.is_empty() || old == new {
                continue;
            }
            self.detach(domain_queue, old);
            if new != NONE {
                self.hop_queues.get_mut(new).domain_queues.insert(&mut self.domain_queues, domain_queue);
            }
        }
    }

    /// Keeps the recipients for which `keep` returns true, in one pass over all sender queues.
    pub(crate) fn retain(&mut self, recipients: &mut Slab<QueuedRecipient>, keep: impl Fn(&QueuedRecipient) -> bool) {
        let all: Vec<u32> = self.sender_queues.entries().map(|(sender_queue, _)| sender_queue).collect();
        for sender_queue in all {
            let mut chain = std::mem::replace(&mut self.sender_queues[sender_queue].recipients, IntrusiveList::EMPTY);
            while let Some(index) = chain.pop_front(recipients) {
                if keep(&recipients[index]) {
                    self.sender_queues[sender_queue].recipients.push_back(recipients, index);
                }
            }
            if self.sender_queues[sender_queue].recipients.is_empty() {
                self.remove_empty(sender_queue);
            }
        }
    }

    fn front_sender_queue(&self, hop_queue: u32) -> (u32, u32) {
        let domain_queue =
            self.hop_queues.get(hop_queue).domain_queues.first().expect("a hop queue in the schedule is not empty");
        let sender_queue =
            self.domain_queues[domain_queue].sender_queues.first().expect("a domain queue in a hop queue is not empty");
        (domain_queue, sender_queue)
    }

    fn classify(&mut self, origin: ReadyOrigin) -> MessageClass {
        if origin.is_bulk { MessageClass::Bulk } else { self.classifier.add(origin.queue, origin.sender) }
    }

    /// Creates a sender queue. When a sender becomes bulk, its ready single messages at the
    /// destination move to the new queue, so that their order is kept.
    fn create_sender_queue(
        &mut self,
        recipients: &mut Slab<QueuedRecipient>,
        index: u32,
        origin: ReadyOrigin,
        class: MessageClass,
    ) -> Option<u32> {
        let destination = recipients[index].destination;
        let ReadyOrigin { sender, is_bulk, .. } = origin;
        let mut chain = IntrusiveList::EMPTY;
        if class == MessageClass::Bulk
            && !is_bulk
            && let Some(&singles) = self.sender_queue_ids.get(&(destination, MessageClass::Single, sender))
        {
            chain = self.sender_queues[singles].recipients;
            self.remove_empty(singles);
        }
        chain.push_back(recipients, index);
        let sender_queue = self.sender_queues.insert(SenderQueue {
            recipients: chain,
            sender,
            round_node: RoundNode::NEW,
            destination,
            class,
        });
        self.sender_queue_ids.insert((destination, class, sender), sender_queue);
        self.enqueue(sender_queue)
    }

    /// Adds a sender queue to its domain queue, and that to its hop queue if it was empty. Returns
    /// the next hop if the hop queue was empty too.
    fn enqueue(&mut self, sender_queue: u32) -> Option<u32> {
        let &SenderQueue { destination, class, .. } = &self.sender_queues[sender_queue];
        let domain_queue = self.domain_queue(destination, class);
        let DomainQueue { sender_queues, hop_queue, .. } = &mut self.domain_queues[domain_queue];
        let (was_empty, hop_queue) = (sender_queues.is_empty(), *hop_queue);
        sender_queues.insert(&mut self.sender_queues, sender_queue);
        if !was_empty || hop_queue == NONE {
            return None;
        }
        let was_empty = self.hop_queues.get(hop_queue).domain_queues.is_empty();
        self.hop_queues.get_mut(hop_queue).domain_queues.insert(&mut self.domain_queues, domain_queue);
        was_empty.then(|| self.hop_queues.get(hop_queue).hop)
    }

    /// Removes an empty sender queue, and its domain queue from the hop queue if that is empty now.
    fn remove_empty(&mut self, sender_queue: u32) {
        let &SenderQueue { destination, class, .. } = &self.sender_queues[sender_queue];
        let domain_queue = self.domain_queue(destination, class);
        self.domain_queues[domain_queue].sender_queues.remove(&mut self.sender_queues, sender_queue);
        self.drop_sender_queue(sender_queue);
        if self.domain_queues[domain_queue].sender_queues.is_empty() {
            self.detach(domain_queue, self.domain_queues[domain_queue].hop_queue);
        }
    }

    /// Removes a domain queue from its hop queue, if it has one.
    fn detach(&mut self, domain_queue: u32, hop_queue: u32) {
        if hop_queue == NONE {
            return;
        }
        self.hop_queues.get_mut(hop_queue).domain_queues.remove(&mut self.domain_queues, domain_queue);
        if self.hop_queues.get(hop_queue).domain_queues.is_empty() {
            self.hop_queues.set_position(hop_queue, None);
        }
    }

    fn drop_sender_queue(&mut self, sender_queue: u32) {
        let sender_queue = self.sender_queues.remove(sender_queue);
        self.sender_queue_ids.remove(&(sender_queue.destination, sender_queue.class, sender_queue.sender));
    }

    fn domain_queue(&mut self, destination: DestinationId, class: MessageClass) -> u32 {
        let domain_queue = destination.0 * 2 + class as u32;
        while self.domain_queues.len() <= domain_queue {
            self.domain_queues.push(DomainQueue {
                sender_queues: RoundRobin::EMPTY,
                round_node: RoundNode::NEW,
                hop_queue: NONE,
            });
        }
        domain_queue
    }
}
