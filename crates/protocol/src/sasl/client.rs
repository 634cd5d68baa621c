//! The client side of SASL (RFC 4422): logs in at another server.
//!
//! A [`SaslClient`] is one attempt with one mechanism. Challenges of the server, decoded from base64,
//! come in by [`handle_challenge`](SaslClient::handle_challenge), which returns the response. With
//! SCRAM it is not computed here, since that takes long: the caller computes a [`ScramWork`], and passes
//! the result to [`handle_proof`](SaslClient::handle_proof). Success is only true if
//! [`is_complete`](SaslClient::is_complete) says so: with SCRAM, the server proves that it knows the
//! password too.
//!
//! | mechanism     | defined by                 | responses                                            |
//! |---------------|----------------------------|------------------------------------------------------|
//! | PLAIN         | RFC 4616                   | user and password                                    |
//! | LOGIN         | draft-murchison-sasl-login | user; password                                       |
//! | SCRAM-SHA-256 | RFC 5802, RFC 7677         | user and nonce; proof; an empty one after the server's proof |
//! | XOAUTH2       | Google's documentation     | user and token; an empty one if the server sends an error |

mod scram;

use std::fmt;

use super::{Nonce, Secret};
use scram::{ScramClient, ServerProof};

pub use scram::{SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN, ScramProof, ScramWork};

/// How a client can log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoginMechanism {
    /// SCRAM-SHA-256, without channel binding.
    ScramSha256,
    /// PLAIN.
    Plain,
    /// LOGIN.
    Login,
    /// XOAUTH2: the secret is an access token.
    XOAuth2,
}

impl LoginMechanism {
    /// All mechanisms that use a password, the best first.
    pub const WITH_PASSWORD: [LoginMechanism; 3] =
        [LoginMechanism::ScramSha256, LoginMechanism::Plain, LoginMechanism::Login];

    /// The registered name (RFC 4422 section 3.1).
    pub fn name(self) -> &'static str {
        match self {
            LoginMechanism::ScramSha256 => "SCRAM-SHA-256",
            LoginMechanism::Plain => "PLAIN",
            LoginMechanism::Login => "LOGIN",
            LoginMechanism::XOAuth2 => "XOAUTH2",
        }
    }
}

impl fmt::Display for LoginMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a server violated its mechanism. The login is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SaslViolation {
    /// A challenge is not one of this mechanism, or one too many.
    #[error("an unexpected challenge")]
    Challenge,
    /// SCRAM: the proof would give the password away, or computing it would take too long.
    #[error(
        "SCRAM with fewer than {SCRAM_ITERATIONS_MIN} or more than {SCRAM_ITERATIONS_MAX} iterations demanded; \
         use other `mechanisms`"
    )]
    Iterations,
    /// SCRAM: the server did not prove that it knows the password. It is another one.
    #[error("the server did not prove that it knows the password")]
    Unproved,
}

/// What follows a challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaslStep {
    /// This response is sent.
    Respond(Vec<u8>),
    /// This is computed, and the result passed to [`SaslClient::handle_proof`].
    Compute(Box<ScramWork>),
}

/// One attempt to log in.
pub struct SaslClient(State);

enum State {
    LoginUser {
        user: Box<str>,
        password: Secret,
    },
    LoginPassword {
        password: Secret,
    },
    Scram(Box<ScramClient>),
    /// The caller computes the proof.
    Computing,
    ServerProof(ServerProof),
    /// A challenge describes an error, and must be answered.
    Token,
    Done,
}

impl fmt::Debug for SaslClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaslClient").finish_non_exhaustive()
    }
}

impl SaslClient {
    /// Begins an attempt, and returns the initial response too (RFC 4954 section 4), if the mechanism
    /// has one. None: SCRAM needs a nonce, which was never used before.
    pub fn begin(
        mechanism: LoginMechanism,
        user: &str,
        secret: &Secret,
        nonce: Option<&Nonce>,
    ) -> Option<(SaslClient, Option<Vec<u8>>)> {
        let (state, initial) = match mechanism {
            // An empty authorization identity: that of the user.
            LoginMechanism::Plain => (State::Done, Some(["\0", user, "\0", secret.reveal()].concat().into())),
            LoginMechanism::Login => (State::LoginUser { user: user.into(), password: secret.clone() }, None),
            LoginMechanism::ScramSha256 => {
                let scram = ScramClient::new(user, secret.clone(), nonce?);
                let first = scram.first_message();
                (State::Scram(Box::new(scram)), Some(first))
            }
            LoginMechanism::XOAuth2 => {
                let response = format!("user={user}\x01auth=Bearer {}\x01\x01", secret.reveal());
                (State::Token, Some(response.into()))
            }
        };
        Some((SaslClient(state), initial))
    }

    /// What follows a challenge. LOGIN does not look at it, since servers put anything there.
    pub fn handle_challenge(&mut self, challenge: &[u8]) -> Result<SaslStep, SaslViolation> {
        let (state, response) = match std::mem::replace(&mut self.0, State::Done) {
            State::LoginUser { user, password } => (State::LoginPassword { password }, user.as_bytes().to_vec()),
            State::LoginPassword { password } => (State::Done, password.reveal().as_bytes().to_vec()),
            State::Scram(scram) => {
                let work = scram.begin_answer(challenge)?;
                self.0 = State::Computing;
                return Ok(SaslStep::Compute(Box::new(work)));
            }
            State::ServerProof(proof) if proof.is_proved_by(challenge) => (State::Done, Vec::new()),
            State::ServerProof(_) => return Err(SaslViolation::Unproved),
            State::Token => (State::Done, Vec::new()),
            State::Computing | State::Done => return Err(SaslViolation::Challenge),
        };
        self.0 = state;
        Ok(SaslStep::Respond(response))
    }

    /// The result of [`SaslStep::Compute`]; returns the response. None: nothing was to be computed.
    pub fn handle_proof(&mut self, proof: ScramProof) -> Option<Vec<u8>> {
        if !matches!(self.0, State::Computing) {
            return None;
        }
        let ScramProof { response, server } = proof;
        self.0 = State::ServerProof(server);
        Some(response)
    }

    /// Whether the attempt may succeed now.
    pub fn is_complete(&self) -> bool {
        matches!(self.0, State::Done | State::Token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(mechanism: LoginMechanism) -> (SaslClient, Option<String>) {
        let (nonce, password) = (Nonce::from_text("rOprNGfwEbeRWgbNEkqO"), Secret::new("pencil".into()));
        let (client, initial) = SaslClient::begin(mechanism, "user", &password, Some(&nonce)).unwrap();
        (client, initial.map(|initial| String::from_utf8(initial).unwrap()))
    }

    fn answer(client: &mut SaslClient, challenge: &str) -> Result<String, SaslViolation> {
        let response = match client.handle_challenge(challenge.as_bytes())? {
            SaslStep::Respond(response) => response,
            SaslStep::Compute(work) => client.handle_proof(work.compute()).unwrap(),
        };
        Ok(String::from_utf8(response).unwrap())
    }

    /// The example of RFC 7677 section 3.
    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const CLIENT_FINAL: &str =
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";

    #[test]
    fn scram_proves_both_sides() {
        let (mut client, initial) = begin(LoginMechanism::ScramSha256);
        assert_eq!(initial.as_deref(), Some("n,,n=user,r=rOprNGfwEbeRWgbNEkqO"));
        assert_eq!(answer(&mut client, SERVER_FIRST).as_deref(), Ok(CLIENT_FINAL));
        assert!(!client.is_complete());
        assert_eq!(answer(&mut client, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").as_deref(), Ok(""));
        assert!(client.is_complete());
        assert_eq!(answer(&mut client, ""), Err(SaslViolation::Challenge));
    }

    /// The iterations of a relay once held up all other mail of a thread.
    #[test]
    fn a_challenge_of_scram_is_not_computed_at_once() {
        let (mut client, _) = begin(LoginMechanism::ScramSha256);
        let Ok(SaslStep::Compute(work)) = client.handle_challenge(SERVER_FIRST.as_bytes()) else { panic!() };
        assert!(!client.is_complete() && !format!("{work:?}").contains("pencil"));
        let proof = work.compute();
        assert_eq!(client.handle_proof(proof.clone()).as_deref(), Some(CLIENT_FINAL.as_bytes()));
        assert_eq!(client.handle_proof(proof), None, "nothing is left to compute");
        let (mut client, _) = begin(LoginMechanism::ScramSha256);
        client.handle_challenge(SERVER_FIRST.as_bytes()).unwrap();
        assert_eq!(client.handle_challenge(b""), Err(SaslViolation::Challenge));
    }

    #[test]
    fn scram_needs_a_nonce() {
        assert!(SaslClient::begin(LoginMechanism::ScramSha256, "user", &Secret::new("x".into()), None).is_none());
    }

    #[test]
    fn a_server_without_the_password_does_not_log_anybody_in() {
        let (mut client, _) = begin(LoginMechanism::ScramSha256);
        assert!(!client.is_complete());
        answer(&mut client, SERVER_FIRST).unwrap();
        for proof in ["v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=", "v=", "", "e=other-error"] {
            let (mut client, _) = begin(LoginMechanism::ScramSha256);
            answer(&mut client, SERVER_FIRST).unwrap();
            assert_eq!(answer(&mut client, proof), Err(SaslViolation::Unproved), "{proof}");
        }
    }

    #[test]
    fn hostile_challenges_of_scram_are_refused() {
        for (challenge, expected) in [
            (SERVER_FIRST.replace("4096", "4294967295"), SaslViolation::Iterations),
            (SERVER_FIRST.replace("4096", "100001"), SaslViolation::Iterations),
            (SERVER_FIRST.replace("4096", "4095"), SaslViolation::Iterations),
            (SERVER_FIRST.replace("4096", "1"), SaslViolation::Iterations),
            (SERVER_FIRST.replace("4096", "0"), SaslViolation::Iterations),
            (SERVER_FIRST.replace("4096", "-1"), SaslViolation::Challenge),
            (SERVER_FIRST.replace("r=rO", "r=xO"), SaslViolation::Challenge),
            ("r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".to_owned(), SaslViolation::Challenge),
            (format!("m=x,{SERVER_FIRST}"), SaslViolation::Challenge),
            (SERVER_FIRST.replace("s=W22", "s=*"), SaslViolation::Challenge),
            (String::new(), SaslViolation::Challenge),
        ] {
            let (mut client, _) = begin(LoginMechanism::ScramSha256);
            assert_eq!(answer(&mut client, &challenge), Err(expected), "{challenge}");
        }
    }

    #[test]
    fn other_mechanisms_send_what_they_have() {
        let (client, initial) = begin(LoginMechanism::Plain);
        assert!(initial.as_deref() == Some("\0user\0pencil") && client.is_complete());
        let (mut client, initial) = begin(LoginMechanism::Login);
        assert!(initial.is_none() && !client.is_complete());
        assert_eq!(["", "any"].map(|challenge| answer(&mut client, challenge).unwrap()), ["user", "pencil"]);
        assert!(client.is_complete());
        let (mut client, initial) = begin(LoginMechanism::XOAuth2);
        assert_eq!(initial.as_deref(), Some("user=user\x01auth=Bearer pencil\x01\x01"));
        assert_eq!(answer(&mut client, "{\"status\":\"401\"}").as_deref(), Ok(""));
        assert_eq!(answer(&mut client, "again"), Err(SaslViolation::Challenge));
        assert_eq!(format!("{client:?}"), "SaslClient { .. }");
    }
}
