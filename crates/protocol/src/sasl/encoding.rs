//! Base64 for the lines of an exchange (RFC 4954 section 4, RFC 4648 section 4).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Octets of a line of an exchange, including its CRLF (RFC 4954 section 4).
pub const LINE_OCTETS_MAX: usize = 12_288;

/// Why a line is not a valid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It exceeds [`LINE_OCTETS_MAX`] (RFC 4954 section 4: 500 5.5.6).
    #[error("longer than {LINE_OCTETS_MAX} octets")]
    TooLong,
    /// It is not base64 (RFC 4954 section 4: 501 5.5.2).
    #[error("not base64")]
    Malformed,
    /// It is `*`: the client cancels (RFC 4954 section 4: 501).
    #[error("cancelled by the client")]
    Cancelled,
}

/// Decodes a line without its CRLF. An empty line is an empty response. Spaces, missing padding and
/// bits beyond the last octet are errors.
pub fn decode(line: &[u8]) -> Result<Zeroizing<Vec<u8>>, DecodeError> {
    match line {
        _ if line.len() + 2 > LINE_OCTETS_MAX => Err(DecodeError::TooLong),
        b"*" => Err(DecodeError::Cancelled),
        _ => {
            // `decode` would drop a partial result without wiping it.
            let mut octets = Zeroizing::new(vec![0; base64::decoded_len_estimate(line.len())]);
            let length = STANDARD.decode_slice(line, &mut octets).map_err(|_| DecodeError::Malformed)?;
            octets.truncate(length);
            Ok(octets)
        }
    }
}

/// Decodes an initial response, the second argument of AUTH. Like [`decode`], but `=` is an empty
/// response, since an empty argument is not possible (RFC 4954 section 4).
pub fn decode_initial(argument: &[u8]) -> Result<Zeroizing<Vec<u8>>, DecodeError> {
    if argument == b"=" { Ok(Zeroizing::default()) } else { decode(argument) }
}

/// Encodes a challenge in base64.
pub fn encode(challenge: &[u8]) -> String {
    STANDARD.encode(challenge)
}
