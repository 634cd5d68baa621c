//! How it stands with recipients: what outcomes have said of those of a message so far, by ordinal. Nearly all messages have few recipients, and a
//! sorted list of a few bytes each; of one with many, most of whom are settled in the end, the states stand in a row by
//! ordinal, so that each of a hundred thousand outcomes costs no more than the first.

use mail::Timestamp;

/// A list that grows longer becomes a row.
const LISTED_MAX: usize = 64;
/// No envelope has as many recipients: of an ordinal beyond, nothing is kept.
const ORDINALS_MAX: u32 = 1 << 24;

/// How it stands with one recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// To be attempted.
    Waiting {
        /// How often it was tried.
        attempts: u16,
        /// Not before this.
        until: Timestamp,
    },
    /// Not to be attempted until the operator says so.
    Held {
        /// How often it was tried.
        attempts: u16,
    },
    /// Done.
    Delivered,
    /// Given up, the sender told if there is one, or taken out by the operator.
    Failed,
    /// The bytes could not be read back; what was left of them is in a file beside the log.
    SetAside,
}

impl State {
    /// How every recipient begins.
    pub const NEW: State = State::Waiting { attempts: 0, until: Timestamp(0) };

    /// Whether nothing is left to do.
    pub fn is_final(self) -> bool {
        !matches!(self, State::Waiting { .. } | State::Held { .. })
    }
}

/// States that are not [`State::NEW`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum States {
    /// By rising ordinal.
    Listed(Vec<(u32, State)>),
    /// The state of every ordinal up to the last one that is known; the others are new.
    Row(Vec<State>),
}

impl Default for States {
    fn default() -> Self {
        States::Listed(Vec::new())
    }
}

impl From<Vec<(u32, State)>> for States {
    /// Of a list by rising ordinal.
    fn from(listed: Vec<(u32, State)>) -> Self {
        let mut states = States::default();
        states.merge(listed);
        states
    }
}

impl States {
    /// Takes newer states over older ones. What is final stays final, but for a message that is set aside. Returns how
    /// many became so.
    pub(crate) fn merge(&mut self, newer: impl IntoIterator<Item = (u32, State)>) -> u32 {
        newer.into_iter().map(|(ordinal, state)| u32::from(self.take(ordinal, state))).sum()
    }

    /// Those that are not new, by rising ordinal.
    pub(crate) fn listed(&self) -> Vec<(u32, State)> {
        match self {
            States::Listed(listed) => listed.clone(),
            States::Row(row) => {
                let known = |(_, state): &(u32, State)| *state != State::NEW;
                (0..).zip(row.iter().copied()).filter(known).collect()
            }
        }
    }

    /// How many are final.
    pub(crate) fn finished(&self) -> usize {
        match self {
            States::Listed(listed) => listed.iter().filter(|(_, state)| state.is_final()).count(),
            States::Row(row) => row.iter().filter(|state| state.is_final()).count(),
        }
    }

    /// Whether the state became final.
    fn take(&mut self, ordinal: u32, state: State) -> bool {
        if ordinal >= ORDINALS_MAX {
            return false;
        }
        let place = self.place(ordinal);
        if place.is_final() && state != State::SetAside {
            return false;
        }
        *place = state;
        state.is_final()
    }

    fn place(&mut self, ordinal: u32) -> &mut State {
        if let States::Listed(listed) = self
            && listed.len() >= LISTED_MAX
        {
            let mut row = vec![State::NEW; listed.last().map_or(0, |(last, _)| *last as usize + 1)];
            listed.iter().for_each(|(ordinal, state)| row[*ordinal as usize] = *state);
            *self = States::Row(row);
        }
        match self {
            States::Listed(listed) => {
                let found = listed.binary_search_by_key(&ordinal, |(known, _)| *known);
                let place = found.unwrap_or_else(|place| {
                    listed.insert(place, (ordinal, State::NEW));
                    place
                });
                &mut listed[place].1
            }
            States::Row(row) => {
                let place = ordinal as usize;
                if row.len() <= place {
                    row.resize(place + 1, State::NEW);
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
        let mut states = States::from(vec![(0, State::Delivered)]);
        assert_eq!(states.merge([(2, State::Failed), (0, State::NEW), (1, State::Held { attempts: 1 })]), 1);
        let expected = [(0, State::Delivered), (1, State::Held { attempts: 1 }), (2, State::Failed)];
        assert_eq!((states.listed(), states.finished()), (expected.to_vec(), 2));
        assert_eq!(states.merge([(0, State::SetAside)]), 1);
    }

    #[test]
    fn a_row_says_what_a_list_would() {
        let ordinals = || (0..1000u32).map(|n| n.wrapping_mul(2_654_435_761) % 997);
        let mut states = States::default();
        let finished: u32 = ordinals().map(|ordinal| states.merge([(ordinal, State::Delivered)])).sum();
        assert!(matches!(states, States::Row(_)));
        let mut expected: Vec<u32> = ordinals().collect();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(finished as usize, expected.len());
        assert_eq!(states.finished(), expected.len());
        assert!(states.listed().into_iter().eq(expected.into_iter().map(|ordinal| (ordinal, State::Delivered))));
    }
}
