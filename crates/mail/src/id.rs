//! Message identifiers. A [`QueueId`] is assigned when a transaction begins, never changes and is
//! never reused.

use std::fmt;
use std::str::FromStr;

/// The random 48-bit identifier that a spool gets when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpoolId(u64);

impl SpoolId {
    /// Takes the low 48 bits of `random`.
    pub fn new(random: u64) -> Self {
        SpoolId(random & ((1 << 48) - 1))
    }

    /// The 48 bits.
    pub fn bits(self) -> u64 {
        self.0
    }
}

/// Spool, lane and sequence number: identifies a message uniquely, on any machine and at any time.
///
/// As text it is `SPOOL-LANE-SEQUENCE`, each part in Crockford's base 32, which has no I, L, O or U
/// and can be read out over the telephone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(u128);

impl QueueId {
    /// Combines the parts.
    pub fn new(spool: SpoolId, lane: u16, sequence: u64) -> Self {
        QueueId(u128::from(spool.bits()) << 80 | u128::from(lane) << 64 | u128::from(sequence))
    }

    /// The spool that assigned the id.
    pub fn spool(self) -> SpoolId {
        SpoolId((self.0 >> 80) as u64)
    }

    /// The lane of that spool whose log contains the message.
    pub fn lane(self) -> u16 {
        (self.0 >> 64) as u16
    }

    /// The number of the message within its lane.
    pub fn sequence(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_base32(f, self.spool().bits())?;
        f.write_str("-")?;
        write_base32(f, u64::from(self.lane()))?;
        f.write_str("-")?;
        write_base32(f, self.sequence())
    }
}

impl fmt::Debug for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a [`QueueId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a queue id: expected SPOOL-LANE-SEQUENCE, as 'mailrace queue list' prints it")]
pub struct QueueIdError(String);

impl FromStr for QueueId {
    type Err = QueueIdError;

    fn from_str(text: &str) -> Result<Self, QueueIdError> {
        let error = || QueueIdError(text.to_owned());
        let mut parts = text.split('-').map(read_base32);
        let mut part = || parts.next().flatten().ok_or_else(error);
        let (spool, lane, sequence) = (part()?, part()?, part()?);
        let lane = u16::try_from(lane).map_err(|_| error())?;
        if parts.next().is_some() || spool >> 48 != 0 {
            return Err(error());
        }
        Ok(QueueId::new(SpoolId::new(spool), lane, sequence))
    }
}

const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Writes all digits at once, since each message writes its id several times.
fn write_base32(f: &mut fmt::Formatter<'_>, mut number: u64) -> fmt::Result {
    let mut digits = [0; 64_usize.div_ceil(5)];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = DIGITS[(number & 31) as usize];
        number >>= 5;
        if number == 0 {
            return f.write_str(str::from_utf8(&digits[start..]).expect("the digits are ASCII"));
        }
    }
}

fn read_base32(text: &str) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.bytes().try_fold(0u64, |number, byte| {
        let digit = DIGITS.iter().position(|&d| d == byte.to_ascii_uppercase())?;
        Some(number.checked_mul(32)? | digit as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_id_reads_back_as_the_id() {
        for (spool, lane, sequence) in [(0, 0, 0), (u64::MAX, u16::MAX, u64::MAX), (77, 3, 1 << 36)] {
            let id = QueueId::new(SpoolId::new(spool), lane, sequence);
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!(id.to_string().to_lowercase().parse(), Ok(id));
        }
    }

    #[test]
    fn invalid_ids_are_refused() {
        for text in ["", "1-2", "1-2-3-4", "1--3", "U-0-1", "ZZZZZZZZZZZZ-0-1", "1-ZZZZ-1", "0-0-ZZZZZZZZZZZZZZ"] {
            assert!(text.parse::<QueueId>().is_err(), "{text}");
        }
    }
}
