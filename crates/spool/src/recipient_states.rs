//! The states of a message's recipients, by ordinal. Nearly all messages have few recipients, and a
//! short sorted list of outcomes. If a message has many, the states are stored as an array by
//! ordinal, so that each of a hundred thousand outcomes costs no more than the first.

use mail::Timestamp;

/// A longer list becomes an array.
const LISTED_MAX: usize = 64;
/// Ordinals beyond this are ignored; no envelope has as many recipients.
const ORDINALS_MAX: u32 = 1 << 24;

/// The state of a recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecipientState {
    /// An attempt follows.
    Waiting {
        /// The number of attempts made so far.
        attempts: u16,
        /// Not before this time.
        until: Timestamp,
    },
    /// No attempt until the operator releases it.
    Held {
        /// The number of attempts made so far.
        attempts: u16,
    },
    /// Delivered, or relayed to another server.
    Delivered,
    /// Failed, with a bounce if there is a sender, or removed by the operator.
    Failed,
    /// The message could not be read; what was readable is in a file beside the log.
    SetAside,
    /// The commit step failed: the client was told that the message was not accepted, so nobody is
    /// told anything else.
    Withdrawn,
}

impl RecipientState {
    /// The initial state of every recipient.
    pub const NEW: RecipientState = RecipientState::Waiting { attempts: 0, until: Timestamp(0) };

    /// Whether no attempt follows.
    pub fn is_final(self) -> bool {
        !matches!(self, RecipientState::Waiting { .. } | RecipientState::Held { .. })
    }
}

/// The states that differ from [`RecipientState::NEW`].
#[derive(Clone, Debug, PartialEq)]
pub enum RecipientStates {
    /// By ascending ordinal.
    Sparse(Vec<(u32, RecipientState)>),
    /// The states of all ordinals up to the last known one.
    Dense(Vec<RecipientState>),
}

impl Default for RecipientStates {
    fn default() -> Self {
        RecipientStates::Sparse(Vec::new())
    }
}

impl From<Vec<(u32, RecipientState)>> for RecipientStates {
    /// From a list by ascending ordinal.
    fn from(listed: Vec<(u32, RecipientState)>) -> Self {
        let mut states = RecipientStates::default();
        states.merge(listed);
        states
    }
}

impl RecipientStates {
    /// Merges newer states. A final state stays final, unless the message is set aside. Returns how
    /// many became final.
    pub fn merge(&mut self, newer: impl IntoIterator<Item = (u32, RecipientState)>) -> u32 {
        newer.into_iter().map(|(ordinal, state)| u32::from(self.take(ordinal, state))).sum()
    }

    /// The states that are not new, by ascending ordinal.
    pub fn listed(&self) -> Vec<(u32, RecipientState)> {
        match self {
            RecipientStates::Sparse(listed) => listed.clone(),
            RecipientStates::Dense(row) => {
                let known = |(_, state): &(u32, RecipientState)| *state != RecipientState::NEW;
                (0..).zip(row.iter().copied()).filter(known).collect()
            }
        }
    }

    /// The state of a recipient.
    pub fn state(&self, ordinal: u32) -> RecipientState {
        let known = match self {
            RecipientStates::Sparse(listed) => {
                let found = listed.binary_search_by_key(&ordinal, |(known, _)| *known);
                found.ok().map(|place| listed[place].1)
            }
            RecipientStates::Dense(row) => row.get(ordinal as usize).copied(),
        };
        known.unwrap_or(RecipientState::NEW)
    }

    /// The number of final states.
    pub fn finished(&self) -> usize {
        match self {
            RecipientStates::Sparse(listed) => listed.iter().filter(|(_, state)| state.is_final()).count(),
            RecipientStates::Dense(row) => row.iter().filter(|state| state.is_final()).count(),
        }
    }

    /// Sets a state; returns whether it became final.
    fn take(&mut self, ordinal: u32, state: RecipientState) -> bool {
        if ordinal >= ORDINALS_MAX {
            return false;
        }
        let place = self.place(ordinal);
        if place.is_final() && state != RecipientState::SetAside {
            return false;
        }
        *place = state;
        state.is_final()
    }

    fn place(&mut self, ordinal: u32) -> &mut RecipientState {
        if let RecipientStates::Sparse(listed) = self
            && listed.len() >= LISTED_MAX
        {
            let mut row = vec![RecipientState::NEW; listed.last().map_or(0, |(last, _)| *last as usize + 1)];
            listed.iter().for_each(|(ordinal, state)| row[*ordinal as usize] = *state);
            *self = RecipientStates::Dense(row);
        }
        match self {
            RecipientStates::Sparse(listed) => {
                let found = listed.binary_search_by_key(&ordinal, |(known, _)| *known);
                let place = found.unwrap_or_else(|place| {
                    listed.insert(place, (ordinal, RecipientState::NEW));
                    place
                });
                &mut listed[place].1
            }
            RecipientStates::Dense(row) => {
                let place = ordinal as usize;
                if row.len() <= place {
                    row.resize(place + 1, RecipientState::NEW);
                }
                &mut row[place]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_final_stays_final() {
        let mut states = RecipientStates::from(vec![(0, RecipientState::Delivered)]);
        assert_eq!(
            states.merge([
                (2, RecipientState::Failed),
                (0, RecipientState::NEW),
                (1, RecipientState::Held { attempts: 1 })
            ]),
            1
        );
        let expected =
            [(0, RecipientState::Delivered), (1, RecipientState::Held { attempts: 1 }), (2, RecipientState::Failed)];
        assert_eq!((states.listed(), states.finished()), (expected.to_vec(), 2));
        assert_eq!(states.merge([(0, RecipientState::SetAside)]), 1);
    }

    /// A row is as long as the highest ordinal, however few states it holds.
    #[test]
    fn a_few_states_are_a_list_whatever_their_ordinals_are() {
        let mut states = RecipientStates::default();
        let ordinals = (0..LISTED_MAX as u32).map(|n| ORDINALS_MAX - LISTED_MAX as u32 + n);
        states.merge(ordinals.map(|ordinal| (ordinal, RecipientState::Delivered)));
        assert!(matches!(&states, RecipientStates::Sparse(listed) if listed.len() == LISTED_MAX));
    }

    #[test]
    fn a_dense_array_gives_the_same_states_as_a_list() {
        let ordinals = || (0..1000u32).map(|n| n.wrapping_mul(2_654_435_761) % 997);
        let mut states = RecipientStates::default();
        let finished: u32 = ordinals().map(|ordinal| states.merge([(ordinal, RecipientState::Delivered)])).sum();
        assert!(matches!(states, RecipientStates::Dense(_)));
        let mut expected: Vec<u32> = ordinals().collect();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(finished as usize, expected.len());
        assert_eq!(states.finished(), expected.len());
        assert!(
            states.listed().into_iter().eq(expected.into_iter().map(|ordinal| (ordinal, RecipientState::Delivered)))
        );
    }
}
