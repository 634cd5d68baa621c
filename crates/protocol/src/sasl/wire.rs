//! Base64 as the lines of an exchange have it (RFC 4954 section 4, RFC 4648 section 4).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The longest line of an exchange in octets, its CRLF included (RFC 4954 section 4).
pub const LINE_OCTETS_MAX: usize = 12_288;

/// A line is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It is longer than [`LINE_OCTETS_MAX`] (RFC 4954 section 4: 500 5.5.6).
    #[error("longer than {LINE_OCTETS_MAX} octets")]
    TooLong,
    /// It is no base64 (RFC 4954 section 4: 501 5.5.2).
    #[error("not base64")]
    Malformed,
    /// It is `*`: the client gives up (RFC 4954 section 4: 501).
    #[error("cancelled by the client")]
    Cancelled,
}

/// A response, from its line without the CRLF. An empty line is an empty response. Spaces, missing padding and bits
/// beyond the last octet are refused.
pub fn decode(line: &[u8]) -> Result<Zeroizing<Vec<u8>>, DecodeError> {
    match line {
        _ if line.len() + 2 > LINE_OCTETS_MAX => Err(DecodeError::TooLong),
        b"*" => Err(DecodeError::Cancelled),
        _ => {
            // Not by `decode`: where that fails in the middle it drops what it has, unwiped.
            let mut octets = Zeroizing::new(vec![0; base64::decoded_len_estimate(line.len())]);
            let length = STANDARD.decode_slice(line, &mut octets).map_err(|_| DecodeError::Malformed)?;
            octets.truncate(length);
            Ok(octets)
        }
    }
}

/// An initial response, the second argument of AUTH: as [`decode`], but `=` stands for an empty one, as nothing would be
/// no argument (RFC 4954 section 4).
pub fn decode_initial(argument: &[u8]) -> Result<Zeroizing<Vec<u8>>, DecodeError> {
    if argument == b"=" { Ok(Zeroizing::default()) } else { decode(argument) }
}

/// A challenge in base64.
pub fn encode(challenge: &[u8]) -> String {
    STANDARD.encode(challenge)
}
