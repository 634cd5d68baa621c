//! Senders and recipients: from patterns in which `{}` is a number, or from a file.
//!
//! Each is looked at before anything is sent: what is no address is refused, and so is asking for more recipients of a
//! message than there are. From then on drawing cannot fail.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use mail::Address;

use crate::Fault;

/// Draws in search of recipients that one message does not have yet, for each of them, before all that there are are
/// looked through.
const TRIES_PER_RECIPIENT: usize = 8;

/// An address, or many: each `{}` stands for a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Just one.
    Address(Address),
    /// What stands before, between and after the numbers.
    Numbered(Vec<String>),
}

impl Pattern {
    fn address(&self, number: u64) -> Address {
        match self {
            Pattern::Address(address) => address.clone(),
            Pattern::Numbered(texts) => {
                numbered(texts, number).expect("a pattern makes an address with any number, since the longest one does")
            }
        }
    }
}

fn numbered(texts: &[String], number: u64) -> Result<Address, String> {
    let text = texts.join(&number.to_string());
    text.parse().map_err(|error| format!("<{text}>: {error}"))
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        let texts: Vec<String> = text.split("{}").map(str::to_owned).collect();
        let longest = numbered(&texts, u64::MAX)?;
        Ok(if texts.len() == 1 { Pattern::Address(longest) } else { Pattern::Numbered(texts) })
    }
}

/// Where addresses are drawn from.
#[derive(Clone, Debug)]
pub(super) enum Addresses {
    /// By patterns, numbers going from 1 to `users`.
    Patterns { patterns: Vec<Pattern>, users: u64 },
    /// From a list.
    Listed(Vec<Address>),
}

impl Addresses {
    /// One address a line; empty lines do not count.
    pub(super) fn read(path: &Path) -> Result<Addresses, Fault> {
        let text = fs::read_to_string(path).map_err(Fault::system(path.display()))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let addresses = lines.map(|(place, line)| {
            let fault = |error| Fault::Data(format!("{}:{}: {line}: {error}", path.display(), place + 1));
            line.trim().parse().map_err(fault)
        });
        let addresses: Vec<Address> = addresses.collect::<Result<_, _>>()?;
        if addresses.is_empty() {
            return Err(Fault::Data(format!("{}: no addresses", path.display())));
        }
        Ok(Addresses::Listed(addresses))
    }

    /// Draws one.
    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> Address {
        match self {
            Addresses::Listed(addresses) => addresses[random.usize(..addresses.len())].clone(),
            Addresses::Patterns { patterns, users } => {
                let pattern = &patterns[random.usize(..patterns.len())];
                pattern.address(random.u64(1..=*users))
            }
        }
    }

    /// Draws so many that differ; [`Addresses::suffice_for`] has found that there are so many.
    pub(super) fn draw_distinct(&self, count: usize, random: &mut fastrand::Rng) -> Vec<Address> {
        if count == 1 {
            return vec![self.draw(random)];
        }
        let (mut seen, mut drawn) = (HashSet::with_capacity(count), Vec::with_capacity(count));
        let draws = std::iter::repeat_with(|| self.draw(random)).take(count * TRIES_PER_RECIPIENT);
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

    /// A fault if there are not so many that differ.
    pub(super) fn suffice_for(&self, count: u32) -> Result<(), Fault> {
        let mut found = HashSet::new();
        match count <= 1 || self.all().any(|address| found.insert(address) && found.len() == count as usize) {
            true => Ok(()),
            false => Err(Fault::Usage(format!("{count} recipients a message, and there are only {}", found.len()))),
        }
    }

    fn all(&self) -> Box<dyn Iterator<Item = Address> + '_> {
        match self {
            Addresses::Listed(addresses) => Box::new(addresses.iter().cloned()),
            Addresses::Patterns { patterns, users } => Box::new(patterns.iter().flat_map(|pattern| {
                let numbers = if matches!(pattern, Pattern::Address(_)) { 1 } else { *users };
                (1..=numbers).map(|number| pattern.address(number))
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_a_number_wherever_braces_stand() {
        let pattern: Pattern = "u{}@d{}.test".parse().unwrap();
        assert_eq!(pattern.address(7).as_str(), "u7@d7.test");
        let plain: Pattern = "you@localhost".parse().unwrap();
        assert_eq!(plain.address(7).as_str(), "you@localhost");
        for text in ["{}", "", "a b@x.test", "a\r\n@x.test"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn recipients_of_one_message_differ() {
        let patterns = vec!["user{}@virt.test".parse().unwrap()];
        let addresses = Addresses::Patterns { patterns, users: 5 };
        let mut random = fastrand::Rng::with_seed(1);
        assert_eq!(addresses.draw_distinct(3, &mut random).len(), 3);
        assert_eq!(addresses.draw_distinct(5, &mut random).len(), 5);
        assert!(addresses.suffice_for(5).is_ok());
        assert!(matches!(addresses.suffice_for(6), Err(Fault::Usage(_))));
    }
}
