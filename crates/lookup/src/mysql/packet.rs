//! Packets of the MySQL protocol and the types in them. No I/O: lengths are checked against what is
//! there, so that any octets are either read or refused.
//!
//! A packet is a length of three octets, a sequence number, and that many octets. Longer contents
//! would continue in further packets; such contents exceed our limit and are refused.

/// Octets before the content of a packet.
pub(super) const HEADER_OCTETS: usize = 4;
/// Maximum octets of a packet, and so of a row.
pub(super) const PACKET_OCTETS_MAX: usize = 4 * 1024 * 1024;

/// Octets that do not follow the protocol, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected answer of the server: {0}")]
pub(super) struct ProtocolError(pub(super) &'static str);

/// The length of the content, and the sequence number, of the packet with this header.
pub(super) fn read_header(header: [u8; HEADER_OCTETS]) -> Result<(usize, u8), ProtocolError> {
    let length = usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
    match length <= PACKET_OCTETS_MAX {
        true => Ok((length, header[3])),
        false => Err(ProtocolError("a packet of more than 4 MiB")),
    }
}

/// A packet with this content, which is shorter than our limit.
pub(super) fn packet(sequence: u8, content: &[u8]) -> Vec<u8> {
    let mut octets = Vec::with_capacity(HEADER_OCTETS + content.len());
    octets.extend_from_slice(&(content.len() as u32).to_le_bytes()[..3]);
    octets.push(sequence);
    octets.extend_from_slice(content);
    octets
}

/// Reads the content of a packet from its start.
#[derive(Clone, Copy)]
pub(super) struct PacketReader<'a> {
    rest: &'a [u8],
}

impl<'a> PacketReader<'a> {
    pub(super) fn new(content: &'a [u8]) -> Self {
        PacketReader { rest: content }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Everything that is left.
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn take(&mut self, octets: usize) -> Result<&'a [u8], ProtocolError> {
        let (taken, rest) = self.rest.split_at_checked(octets).ok_or(ProtocolError("a packet is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn skip(&mut self, octets: usize) -> Result<(), ProtocolError> {
        self.take(octets).map(drop)
    }

    /// An integer of `N` octets.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let taken = self.take(N)?;
        Ok(std::array::from_fn(|place| taken[place]))
    }

    pub(super) fn u8(&mut self) -> Result<u8, ProtocolError> {
        self.array::<1>().map(|[octet]| octet)
    }

    pub(super) fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.array().map(u32::from_le_bytes)
    }

    /// An integer whose first octet tells its length.
    pub(super) fn length(&mut self) -> Result<usize, ProtocolError> {
        let octets = match self.u8()? {
            small @ 0..=0xfa => return Ok(small.into()),
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            _ => return Err(ProtocolError("an invalid length")),
        };
        let number = self.take(octets)?.iter().rev().fold(0u64, |number, octet| number << 8 | u64::from(*octet));
        usize::try_from(number).map_err(|_| ProtocolError("an invalid length"))
    }

    /// Octets after their length.
    pub(super) fn string(&mut self) -> Result<&'a [u8], ProtocolError> {
        let octets = self.length()?;
        self.take(octets)
    }

    /// Octets before a NUL, or all that are left.
    pub(super) fn until_nul(&mut self) -> &'a [u8] {
        match self.rest.iter().position(|octet| *octet == 0) {
            Some(end) => {
                let taken = &self.rest[..end];
                self.rest = &self.rest[end + 1..];
                taken
            }
            None => std::mem::take(&mut self.rest),
        }
    }
}

/// Appends octets after their length.
pub(super) fn push_string(content: &mut Vec<u8>, octets: &[u8]) {
    match octets.len() {
        length @ 0..=0xfa => content.push(length as u8),
        length @ 0xfb..=0xffff => {
            content.push(0xfc);
            content.extend_from_slice(&(length as u16).to_le_bytes());
        }
        length => {
            content.push(0xfe);
            content.extend_from_slice(&(length as u64).to_le_bytes());
        }
    }
    content.extend_from_slice(octets);
}

/// An error of the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (error {code}, SQLSTATE {state})")]
pub(super) struct ServerError {
    pub(super) code: u16,
    pub(super) state: Box<str>,
    pub(super) message: Box<str>,
}

impl ServerError {
    /// The first octet of its packet.
    pub(super) const MARK: u8 = 0xff;

    /// Reads its packet. Before the login, servers leave out the SQLSTATE.
    pub(super) fn read(content: &[u8]) -> Result<ServerError, ProtocolError> {
        let mut reader = PacketReader::new(content);
        reader.skip(1)?;
        let code = reader.u16()?;
        let mut with_state = reader;
        let state = match with_state.take(6) {
            Ok([b'#', state @ ..]) => {
                reader = with_state;
                String::from_utf8_lossy(state)
            }
            _ => "HY000".into(),
        };
        let message = String::from_utf8_lossy(reader.rest());
        Ok(ServerError { code, state: state.into(), message: message.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_strings_are_read_as_they_are_written() {
        for octets in [0, 1, 0xfa, 0xfb, 0xffff, 0x1_0000] {
            let text = vec![b'x'; octets];
            let mut content = Vec::new();
            push_string(&mut content, &text);
            let mut reader = PacketReader::new(&content);
            assert!(reader.string().is_ok_and(|read| *read == text) && reader.is_empty());
            assert!(PacketReader::new(&content[..content.len() - 1]).string().is_err() || octets == 0);
        }
        assert_eq!(PacketReader::new(&[0xfd, 1, 2, 3]).length(), Ok(0x03_0201));
        assert!(PacketReader::new(&[0xfb]).length().is_err());
    }

    #[test]
    fn a_header_tells_the_length_and_the_number() {
        let written = packet(7, &[1; 300]);
        assert_eq!(read_header([written[0], written[1], written[2], written[3]]), Ok((300, 7)));
        assert!(read_header([0xff, 0xff, 0xff, 0]).is_err());
    }

    #[test]
    fn errors_are_read_with_and_without_a_state() {
        let error = ServerError::read(b"\xff\x15\x04#28000Access denied").unwrap();
        assert_eq!(error.to_string(), "Access denied (error 1045, SQLSTATE 28000)");
        let early = ServerError::read(b"\xff\x10\x04Too many connections").unwrap();
        assert_eq!(early.to_string(), "Too many connections (error 1040, SQLSTATE HY000)");
        assert!(ServerError::read(b"\xff\x10").is_err());
    }
}
