//! The login: the server's greeting, our response, and the proof of the password. No I/O.
//!
//! | method                  | proof                                                                  |
//! |-------------------------|------------------------------------------------------------------------|
//! | `mysql_native_password` | a digest of the password and the greeting                              |
//! | `caching_sha2_password` | the same; if the server does not know the user yet, the password itself, only by TLS or a Unix socket |
//!
//! Other methods are refused: they would send the password, or the server could choose what is
//! sent. The server's public key is never asked for, because anybody could answer with theirs.

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::packet::{PACKET_OCTETS_MAX, PacketReader, ProtocolError, ServerError};

/// Octets of the server's challenge.
pub(super) const CHALLENGE_OCTETS: usize = 20;

const LONG_PASSWORD: u32 = 1;
const LONG_FLAG: u32 = 1 << 2;
const CONNECT_WITH_DB: u32 = 1 << 3;
const PROTOCOL_41: u32 = 1 << 9;
const TLS: u32 = 1 << 11;
const TRANSACTIONS: u32 = 1 << 13;
const SECURE_CONNECTION: u32 = 1 << 15;
const MULTI_RESULTS: u32 = 1 << 17;
const PREPARED_MULTI_RESULTS: u32 = 1 << 18;
const PLUGIN_AUTH: u32 = 1 << 19;
/// What we can do.
const CLIENT: u32 = LONG_PASSWORD
    | LONG_FLAG
    | PROTOCOL_41
    | TRANSACTIONS
    | SECURE_CONNECTION
    | MULTI_RESULTS
    | PREPARED_MULTI_RESULTS
    | PLUGIN_AUTH;
/// What the server must be able to do.
const NEEDED: u32 = PROTOCOL_41 | SECURE_CONNECTION;
/// `utf8mb4_general_ci`, for all texts on the connection.
const UTF8MB4: u8 = 45;

/// The server's greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// The number of the connection, by which it can be killed.
    pub(super) connection: u32,
    pub(super) challenge: [u8; CHALLENGE_OCTETS],
    /// Whether it offers TLS.
    pub(super) has_tls: bool,
    capabilities: u32,
    method: AuthMethod,
}

/// How the password is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthMethod {
    Native,
    CachingSha2,
}

/// Why a login cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("{0}")]
    Server(ServerError),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("the server speaks an older protocol than that of MySQL 4.1")]
    TooOld,
    #[error(
        "the server wants the authentication method '{0}', which is not supported: use mysql_native_password or caching_sha2_password"
    )]
    Method(Box<str>),
    #[error("the server wants the password itself, which is only sent by TLS or a Unix socket")]
    NotPrivate,
}

/// A step of the login that the server asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AuthStep {
    /// The login has succeeded.
    Done,
    /// Nothing to send: the result follows.
    Wait,
    /// Prove the password by this method and challenge.
    Prove(AuthMethod, [u8; CHALLENGE_OCTETS]),
    /// Send the password.
    SendPassword,
}

impl Greeting {
    /// Reads the server's first packet.
    pub(super) fn read(content: &[u8]) -> Result<Greeting, HandshakeError> {
        let mut reader = PacketReader::new(content);
        match reader.u8()? {
            10 => {}
            ServerError::MARK => return Err(HandshakeError::Server(ServerError::read(content)?)),
            _ => return Err(ProtocolError("not a greeting of MySQL").into()),
        }
        reader.until_nul();
        let connection = reader.u32()?;
        let first: [u8; 8] = reader.array()?;
        reader.skip(1)?;
        let low = reader.u16()?;
        if reader.is_empty() {
            return Err(HandshakeError::TooOld);
        }
        reader.skip(3)?;
        let capabilities = u32::from(low) | u32::from(reader.u16()?) << 16;
        if capabilities & NEEDED != NEEDED {
            return Err(HandshakeError::TooOld);
        }
        let challenge_octets = usize::from(reader.u8()?);
        reader.skip(10)?;
        let second = reader.take(challenge_octets.saturating_sub(8).max(13))?;
        let mut challenge = [0; CHALLENGE_OCTETS];
        challenge[..8].copy_from_slice(&first);
        challenge[8..].copy_from_slice(&second[..12]);
        // Another default method of the server is that of other users: we start with our own.
        let method = match reader.until_nul() {
            b"caching_sha2_password" if capabilities & PLUGIN_AUTH != 0 => AuthMethod::CachingSha2,
            _ => AuthMethod::Native,
        };
        Ok(Greeting { connection, challenge, has_tls: capabilities & TLS != 0, capabilities, method })
    }

    /// The request to start TLS, after which the response follows.
    pub(super) fn tls_request(&self, has_database: bool) -> Vec<u8> {
        response_start(self.client_capabilities(has_database) | TLS)
    }

    /// The response: who we are, the proof of the password, and the database.
    pub(super) fn response(&self, has_tls: bool, user: &str, password: &str, database: Option<&str>) -> Vec<u8> {
        let tls = if has_tls { TLS } else { 0 };
        let mut content = response_start(self.client_capabilities(database.is_some()) | tls);
        push_nul_terminated(&mut content, user);
        let proof = self.method.proof(password, &self.challenge);
        content.push(proof.len() as u8);
        content.extend_from_slice(&proof);
        if let Some(database) = database {
            push_nul_terminated(&mut content, database);
        }
        if self.capabilities & PLUGIN_AUTH != 0 {
            push_nul_terminated(&mut content, self.method.name());
        }
        content
    }

    fn client_capabilities(&self, has_database: bool) -> u32 {
        CLIENT & self.capabilities | if has_database { CONNECT_WITH_DB } else { 0 }
    }
}

/// The part that a request for TLS and a response have in common.
fn response_start(capabilities: u32) -> Vec<u8> {
    let mut content = Vec::with_capacity(128);
    content.extend_from_slice(&capabilities.to_le_bytes());
    content.extend_from_slice(&(PACKET_OCTETS_MAX as u32).to_le_bytes());
    content.push(UTF8MB4);
    content.extend_from_slice(&[0; 23]);
    content
}

/// The configuration has no NUL in names; a name with one would end there.
fn push_nul_terminated(content: &mut Vec<u8>, text: &str) {
    content.extend(text.bytes().filter(|octet| *octet != 0));
    content.push(0);
}

impl AuthMethod {
    fn named(name: &[u8]) -> Result<AuthMethod, HandshakeError> {
        match name {
            b"mysql_native_password" => Ok(AuthMethod::Native),
            b"caching_sha2_password" => Ok(AuthMethod::CachingSha2),
            other => Err(HandshakeError::Method(String::from_utf8_lossy(other).into())),
        }
    }

    fn name(self) -> &'static str {
        match self {
            AuthMethod::Native => "mysql_native_password",
            AuthMethod::CachingSha2 => "caching_sha2_password",
        }
    }

    /// The proof that we know the password; nothing for an empty one.
    pub(super) fn proof(self, password: &str, challenge: &[u8; CHALLENGE_OCTETS]) -> Vec<u8> {
        if password.is_empty() {
            return Vec::new();
        }
        let xor = |left: &[u8], right: &[u8]| left.iter().zip(right).map(|(left, right)| left ^ right).collect();
        match self {
            AuthMethod::Native => {
                let once = Sha1::digest(password);
                let stored = Sha1::digest(once);
                xor(&once, &Sha1::new().chain_update(challenge).chain_update(stored).finalize())
            }
            AuthMethod::CachingSha2 => {
                let once = Sha256::digest(password);
                let stored = Sha256::digest(once);
                xor(&once, &Sha256::new().chain_update(stored).chain_update(challenge).finalize())
            }
        }
    }
}

/// What the server's answer to a proof asks for. `is_private`: nobody else can read the connection.
pub(super) fn next_step(content: &[u8], is_private: bool) -> Result<AuthStep, HandshakeError> {
    match content {
        [0x00, ..] => Ok(AuthStep::Done),
        [ServerError::MARK, ..] => Err(HandshakeError::Server(ServerError::read(content)?)),
        [0x01, 0x03] => Ok(AuthStep::Wait),
        [0x01, 0x04] if is_private => Ok(AuthStep::SendPassword),
        [0x01, 0x04] => Err(HandshakeError::NotPrivate),
        [0xfe] => Err(HandshakeError::Method("mysql_old_password".into())),
        [0xfe, rest @ ..] => {
            let mut reader = PacketReader::new(rest);
            let method = AuthMethod::named(reader.until_nul())?;
            Ok(AuthStep::Prove(method, reader.array()?))
        }
        _ => Err(ProtocolError("an unknown step of the login").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A greeting with these capabilities and this method.
    fn greeting(capabilities: u32, method: &str) -> Vec<u8> {
        let mut content = b"\x0a5.5.5-10.11.6-MariaDB\0\x07\0\0\0abcdefgh\0".to_vec();
        content.extend_from_slice(&(capabilities as u16).to_le_bytes());
        content.extend_from_slice(&[45, 2, 0]);
        content.extend_from_slice(&((capabilities >> 16) as u16).to_le_bytes());
        content.push(21);
        content.extend_from_slice(&[0; 10]);
        content.extend_from_slice(b"ijklmnopqrst\0");
        content.extend_from_slice(method.as_bytes());
        content.push(0);
        content
    }

    fn hex(octets: &[u8]) -> String {
        octets.iter().map(|octet| format!("{octet:02x}")).collect()
    }

    #[test]
    fn a_greeting_is_answered() {
        let read = Greeting::read(&greeting(CLIENT | TLS, "caching_sha2_password")).unwrap();
        assert_eq!((read.connection, &read.challenge, read.has_tls), (7, b"abcdefghijklmnopqrst", true));
        assert_eq!(read.method, AuthMethod::CachingSha2);
        let response = read.response(false, "mail", "", Some("people"));
        assert_eq!(response[..4], (CLIENT | CONNECT_WITH_DB).to_le_bytes());
        assert!(response.ends_with(b"mail\0\0people\0caching_sha2_password\0"));
        let request = read.tls_request(true);
        assert_eq!((request.len(), &request[..4]), (32, &(CLIENT | CONNECT_WITH_DB | TLS).to_le_bytes()[..]));
        let other = Greeting::read(&greeting(CLIENT, "auth_gssapi_client")).unwrap();
        assert!(!other.has_tls && other.method == AuthMethod::Native);
    }

    #[test]
    fn a_greeting_cut_anywhere_is_refused() {
        let whole = greeting(CLIENT, "");
        for length in 0..whole.len() - 1 {
            assert!(Greeting::read(&whole[..length]).is_err(), "{length}");
        }
        assert_eq!(Greeting::read(&greeting(PROTOCOL_41, "")), Err(HandshakeError::TooOld));
        let refused = Greeting::read(b"\xff\x69\x04Host 'a' is not allowed").unwrap_err();
        assert_eq!(refused.to_string(), "Host 'a' is not allowed (error 1129, SQLSTATE HY000)");
    }

    /// Computed with Python's hashlib as the protocol's documentation says.
    #[test]
    fn proofs_are_those_of_the_protocol() {
        let challenge = b"abcdefghijklmnopqrst";
        assert_eq!(hex(&AuthMethod::Native.proof("s3cret", challenge)), NATIVE_PROOF);
        assert_eq!(hex(&AuthMethod::CachingSha2.proof("s3cret", challenge)), SHA2_PROOF);
        assert!(AuthMethod::Native.proof("", challenge).is_empty());
    }

    const NATIVE_PROOF: &str = "8510605a5ec0d3d958058636e0a2ebdfcf34be4c";
    const SHA2_PROOF: &str = "5661ac17cec0e6001d3747b3aaa0d0c1927fdc43c56deeab05d4c42d73b2b642";

    #[test]
    fn the_password_is_sent_only_in_private() {
        assert_eq!(next_step(&[0], false), Ok(AuthStep::Done));
        assert_eq!(next_step(&[1, 3], false), Ok(AuthStep::Wait));
        assert_eq!(next_step(&[1, 4], true), Ok(AuthStep::SendPassword));
        assert_eq!(next_step(&[1, 4], false), Err(HandshakeError::NotPrivate));
        let switch = |name: &str| [b"\xfe", name.as_bytes(), b"\0abcdefghijklmnopqrst\0"].concat();
        let prove = AuthStep::Prove(AuthMethod::Native, *b"abcdefghijklmnopqrst");
        assert_eq!(next_step(&switch("mysql_native_password"), false), Ok(prove));
        for method in ["mysql_clear_password", "mysql_old_password", "dialog"] {
            assert_eq!(next_step(&switch(method), true), Err(HandshakeError::Method(method.into())));
        }
        for odd in [&b""[..], b"\x01", b"\x01\x05", b"\xfe", b"\xfemysql_native_password\0short", b"\x07"] {
            assert!(next_step(odd, true).is_err(), "{odd:?}");
        }
    }
}
