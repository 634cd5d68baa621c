//! Senders and recipients: from patterns in which `{}` is a number, or from a file; at random, or
//! in turn.
//!
//! All input is checked before anything is sent: invalid addresses, and fewer addresses than
//! recipients of a message. After that, drawing cannot fail.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use mail::Address;

use crate::BenchError;

/// Random draws for each recipient of a message before all addresses are searched for ones that the
/// message does not have yet.
const DRAWS_PER_RECIPIENT_MAX: usize = 8;

/// An address, or many: each `{}` stands for a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressTemplate {
    /// One address.
    Address(Address),
    /// The texts before, between and after the numbers.
    Numbered(Vec<String>),
}

impl AddressTemplate {
    fn address(&self, number: u64) -> Address {
        match self {
            AddressTemplate::Address(address) => address.clone(),
            AddressTemplate::Numbered(texts) => {
                numbered(texts, number).expect("a pattern is valid with any number, since it is with the longest")
            }
        }
    }
}

fn numbered(texts: &[String], number: u64) -> Result<Address, String> {
    let text = texts.join(&number.to_string());
    text.parse().map_err(|error| format!("<{text}>: {error}"))
}

impl FromStr for AddressTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<AddressTemplate, String> {
        let texts: Vec<String> = text.split("{}").map(str::to_owned).collect();
        let longest = numbered(&texts, u64::MAX)?;
        Ok(if texts.len() == 1 { AddressTemplate::Address(longest) } else { AddressTemplate::Numbered(texts) })
    }
}

/// The addresses to choose from.
#[derive(Clone, Debug)]
pub(super) enum AddressPool {
    /// From patterns, with numbers from 1 to `users`.
    Patterns { patterns: Vec<AddressTemplate>, users: u64 },
    /// From a list.
    Listed(Vec<Address>),
}

impl AddressPool {
    /// Reads one address from each line; empty lines are ignored.
    pub(super) fn read(path: &Path) -> Result<AddressPool, BenchError> {
        let text = fs::read_to_string(path).map_err(BenchError::system(path.display()))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let addresses = lines.map(|(place, line)| {
            let fault = |error| BenchError::Data(format!("{}:{}: {line}: {error}", path.display(), place + 1));
            line.trim().parse().map_err(fault)
        });
        let addresses: Vec<Address> = addresses.collect::<Result<_, _>>()?;
        if addresses.is_empty() {
            return Err(BenchError::Data(format!("{}: no addresses", path.display())));
        }
        Ok(AddressPool::Listed(addresses))
    }

    /// Draws one address.
    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> Address {
        match self {
            AddressPool::Listed(addresses) => addresses[random.usize(..addresses.len())].clone(),
            AddressPool::Patterns { patterns, users } => {
                let pattern = &patterns[random.usize(..patterns.len())];
                pattern.address(random.u64(1..=*users))
            }
        }
    }

    /// Draws distinct addresses. [`AddressPool::check_distinct`] has checked that there are enough.
    pub(super) fn draw_distinct(&self, count: usize, random: &mut fastrand::Rng) -> Vec<Address> {
        if count == 1 {
            return vec![self.draw(random)];
        }
        let (mut seen, mut drawn) = (HashSet::with_capacity(count), Vec::with_capacity(count));
        let draws = std::iter::repeat_with(|| self.draw(random)).take(count * DRAWS_PER_RECIPIENT_MAX);
        for address in draws.chain(self.all()) {
            if drawn.len() == count {
                break;
            }
            if seen.insert(address.clone()) {
                drawn.push(address);
            }
        }
        drawn
    }

    /// Distinct addresses for the message with this number (from 0). Each message continues where
    /// the previous one ended, so that no address repeats before all were used.
    pub(super) fn addresses_of_message(&self, number: u64, count: usize) -> Vec<Address> {
        let places = self.turns();
        let first = u128::from(number) * count as u128 % places;
        let mut seen = HashSet::with_capacity(count);
        let turns = (0..places).map(|step| self.at((first + step) % places));
        turns.filter(|address| seen.insert(address.clone())).take(count).collect()
    }

    /// The number of turns until the first one repeats.
    fn turns(&self) -> u128 {
        match self {
            AddressPool::Listed(addresses) => addresses.len() as u128,
            AddressPool::Patterns { patterns, users } => patterns.len() as u128 * u128::from(*users),
        }
    }

    fn at(&self, place: u128) -> Address {
        match self {
            AddressPool::Listed(addresses) => addresses[place as usize].clone(),
            AddressPool::Patterns { patterns, .. } => {
                let kinds = patterns.len() as u128;
                patterns[(place % kinds) as usize].address((place / kinds) as u64 + 1)
            }
        }
    }

    /// A fault if there are fewer distinct addresses than `count`.
    pub(super) fn check_distinct(&self, count: u32) -> Result<(), BenchError> {
        let mut found = HashSet::new();
        match count <= 1 || self.all().any(|address| found.insert(address) && found.len() == count as usize) {
            true => Ok(()),
            false => Err(BenchError::Usage(format!(
                "{count} recipients in each message, but only {} addresses",
                found.len()
            ))),
        }
    }

    fn all(&self) -> Box<dyn Iterator<Item = Address> + '_> {
        match self {
            AddressPool::Listed(addresses) => Box::new(addresses.iter().cloned()),
            AddressPool::Patterns { patterns, users } => Box::new(patterns.iter().flat_map(|pattern| {
                let numbers = if matches!(pattern, AddressTemplate::Address(_)) { 1 } else { *users };
                (1..=numbers).map(|number| pattern.address(number))
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_braces_in_a_pattern_becomes_the_number() {
        let pattern: AddressTemplate = "u{}@d{}.test".parse().unwrap();
        assert_eq!(pattern.address(7).as_str(), "u7@d7.test");
        let plain: AddressTemplate = "you@localhost".parse().unwrap();
        assert_eq!(plain.address(7).as_str(), "you@localhost");
        for text in ["{}", "", "a b@x.test", "a\r\n@x.test"] {
            assert!(text.parse::<AddressTemplate>().is_err(), "{text}");
        }
    }

    #[test]
    fn recipients_of_one_message_differ() {
        let patterns = vec!["user{}@virt.test".parse().unwrap()];
        let addresses = AddressPool::Patterns { patterns, users: 5 };
        let mut random = fastrand::Rng::with_seed(1);
        assert_eq!(addresses.draw_distinct(3, &mut random).len(), 3);
        assert_eq!(addresses.draw_distinct(5, &mut random).len(), 5);
        assert!(addresses.check_distinct(5).is_ok());
        assert!(matches!(addresses.check_distinct(6), Err(BenchError::Usage(_))));
    }

    #[test]
    fn in_turn_no_address_repeats_before_all_were_used() {
        let patterns = vec!["a{}@x.test".parse().unwrap(), "b{}@x.test".parse().unwrap()];
        let addresses = AddressPool::Patterns { patterns, users: 3 };
        let turns: Vec<_> = (0..4).map(|number| addresses.addresses_of_message(number, 2)).collect();
        let texts = |turn: usize| turns[turn].iter().map(Address::as_str).collect::<Vec<_>>();
        assert_eq!([texts(0), texts(1)], [["a1@x.test", "b1@x.test"], ["a2@x.test", "b2@x.test"]]);
        assert_eq!(turns[..3].concat().into_iter().collect::<HashSet<_>>().len(), 6);
        assert_eq!(turns[3], turns[0]);
        let far = addresses.addresses_of_message(u64::MAX, 5);
        assert_eq!(far.into_iter().collect::<HashSet<_>>().len(), 5);
        let listed =
            AddressPool::Listed(["a@x.test", "a@x.test", "b@x.test"].map(|text| text.parse().unwrap()).to_vec());
        assert_eq!(listed.addresses_of_message(0, 2).len(), 2);
    }
}
