//! Complete exchanges: the examples of the RFCs, and every input that is refused.

use proptest::prelude::*;

use super::*;

const CONFIG: SaslConfig = SaslConfig { secret: [7; 32] };
const UNKNOWN: ScramKeysAnswer = ScramKeysAnswer::Unknown { iterations: 4096 };

fn nonce() -> Nonce {
    Nonce::from_text("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
}

fn begin(mechanism: Mechanism, initial: Option<&str>) -> SaslExchange {
    SaslExchange::begin(mechanism, initial.map(str::as_bytes), &CONFIG)
}

fn challenge(text: &str) -> Option<SaslAction> {
    Some(SaslAction::Challenge(text.as_bytes().into()))
}

fn refused(refusal: SaslRefusal) -> Option<SaslAction> {
    Some(SaslAction::Done(SaslOutcome::Refused(refusal)))
}

fn accepted(user: &str) -> Option<SaslAction> {
    Some(SaslAction::Done(SaslOutcome::Accepted { user: user.into() }))
}

fn verify(user: &str, password: &str) -> Option<SaslAction> {
    let password = Secret::new(password.to_owned());
    Some(SaslAction::Ask(CredentialQuestion::Verify { user: user.into(), password }))
}

fn array(base64: &str) -> [u8; 32] {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(base64).unwrap().try_into().unwrap()
}

/// The stored keys for the password `pencil` of RFC 7677 section 3.
fn pencil() -> ScramKeys {
    ScramKeys {
        salt: decode(b"W22ZaJ0SNY7soEsUEjb6gQ==").unwrap().as_slice().into(),
        iterations: 4096,
        stored_key: array("WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="),
        server_key: array("wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="),
    }
}

const FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const PROOF: &str =
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";

/// An exchange up to where the proof is expected.
fn until_proof(keys: ScramKeysAnswer) -> (SaslExchange, SaslAction) {
    let mut exchange = begin(Mechanism::ScramSha256, Some(FIRST));
    let asked = Some(SaslAction::Ask(CredentialQuestion::Credentials { user: "user".into() }));
    assert_eq!(exchange.poll_action(), asked);
    assert_eq!(exchange.poll_action(), None);
    exchange.handle_scram_keys(keys, &nonce());
    let challenge = exchange.poll_action().unwrap();
    (exchange, challenge)
}

#[test]
fn plain_has_the_user_and_the_password_in_one_message() {
    // RFC 4616 section 4, with and without an authorization identity.
    let mut exchange = begin(Mechanism::Plain, Some("\0tim\0tanstaaftanstaaf"));
    assert_eq!(exchange.poll_action(), verify("tim", "tanstaaftanstaaf"));
    exchange.handle_password_verdict(PasswordVerdict::Accepted { user: "tim".into() });
    assert_eq!(exchange.poll_action(), accepted("tim"));
    let mut exchange = begin(Mechanism::Plain, None);
    assert_eq!(exchange.poll_action(), challenge(""));
    exchange.handle_response(b"Ursel\0Kurt\0xipj3plmq");
    assert_eq!(exchange.poll_action(), refused(SaslRefusal::Authzid));
    assert_eq!(exchange.poll_action(), None);
    let mut exchange = begin(Mechanism::Plain, Some("Kurt\0kurt\0x y"));
    assert_eq!(exchange.poll_action(), verify("kurt", "x y"));
}

#[test]
fn login_asks_for_one_and_then_the_other() {
    let mut exchange = begin(Mechanism::Login, None);
    assert_eq!(exchange.poll_action(), challenge("Username:"));
    exchange.handle_response(b"tim");
    assert_eq!(exchange.poll_action(), challenge("Password:"));
    exchange.handle_response(b"secret");
    assert_eq!(exchange.poll_action(), verify("tim", "secret"));
    exchange.handle_password_verdict(PasswordVerdict::Refused);
    assert_eq!(exchange.poll_action(), refused(SaslRefusal::Credentials));
    let mut exchange = begin(Mechanism::Login, Some("tim"));
    assert_eq!(exchange.poll_action(), challenge("Password:"));
}

#[test]
fn scram_goes_as_in_the_example_of_the_rfc() {
    let (mut exchange, first) = until_proof(ScramKeysAnswer::Found { user: "user@x.org".into(), keys: pencil() });
    let expected = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    assert_eq!(Some(first), challenge(expected));
    exchange.handle_response(PROOF.as_bytes());
    assert_eq!(exchange.poll_action(), challenge("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="));
    assert_eq!(exchange.poll_action(), None);
    exchange.handle_response(b"");
    assert_eq!(exchange.poll_action(), accepted("user@x.org"));
}

#[test]
fn a_proof_that_differs_in_anything_is_refused() {
    let changed = [
        ("c=biws", "c=eSws", SaslRefusal::Credentials),
        ("%hvY", "%hvZ", SaslRefusal::Credentials),
        ("p=dHzb", "p=dHzc", SaslRefusal::Credentials),
        ("ndVQ=", "ndVQ", SaslRefusal::Malformed),
        (",p=d", ",p=dHzbd", SaslRefusal::Malformed),
        (",p=", ",q=", SaslRefusal::Malformed),
        ("c=biws,", "", SaslRefusal::Malformed),
        (",p=", ",m=1,p=", SaslRefusal::Malformed),
        // The proof covers extensions too.
        (",p=", ",x=1,p=", SaslRefusal::Credentials),
    ];
    for (from, to, refusal) in changed {
        let (mut exchange, _) = until_proof(ScramKeysAnswer::Found { user: "user".into(), keys: pencil() });
        exchange.handle_response(PROOF.replacen(from, to, 1).as_bytes());
        assert_eq!(exchange.poll_action(), refused(refusal), "{from} {to}");
        assert_eq!(exchange.poll_action(), None);
    }
}

/// The final message of a client that knows the password `pencil`, with any other content.
fn proven(without_proof: &str) -> String {
    let key = |proof: [u8; 32], without_proof: &str| {
        let first = "n=user,r=rOprNGfwEbeRWgbNEkqO";
        let challenge = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let messages = [first, challenge, without_proof].join(",");
        let signature = scram::hmac(&pencil().stored_key, &[messages.as_bytes()]);
        std::array::from_fn::<u8, 32, _>(|place| proof[place] ^ signature[place])
    };
    let (rfc, proof) = PROOF.split_once(",p=").unwrap();
    format!("{without_proof},p={}", encode(&key(key(array(proof), rfc), without_proof)))
}

#[test]
fn a_right_proof_of_another_channel_or_another_exchange_is_refused() {
    let (rfc, _) = PROOF.split_once(",p=").unwrap();
    assert_eq!(proven(rfc), PROOF);
    let with_extension = format!("{rfc},x=1");
    let finals = [
        (with_extension.clone(), true),
        (with_extension.replace("c=biws", "c=eSws"), false),
        (rfc.replace("c=biws", "c=biw="), false),
        (rfc.replace("k0", "k1"), false),
        (rfc.replace("$k0", ""), false),
    ];
    for (without_proof, is_right) in finals {
        let (mut exchange, _) = until_proof(ScramKeysAnswer::Found { user: "user".into(), keys: pencil() });
        exchange.handle_response(proven(&without_proof).as_bytes());
        let action = exchange.poll_action();
        assert_eq!(matches!(action, Some(SaslAction::Challenge(_))), is_right, "{without_proof}");
        assert_eq!(action == refused(SaslRefusal::Credentials), !is_right, "{without_proof}");
    }
}

#[test]
fn an_unknown_user_looks_like_any_other_until_the_proof() {
    let (mut exchange, first) = until_proof(UNKNOWN);
    let (_, again) = until_proof(UNKNOWN);
    assert_eq!(first, again);
    let SaslAction::Challenge(challenge) = first else { panic!("{first:?}") };
    let text = String::from_utf8(challenge.into()).unwrap();
    assert!(text.starts_with("r=rOprNGfwEbeRWgbNEkqO%hvY") && text.ends_with(",i=4096"), "{text}");
    let salt = text.split(",s=").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    assert_eq!(decode(salt.as_bytes()).unwrap().len(), 16);
    exchange.handle_response(PROOF.as_bytes());
    assert_eq!(exchange.poll_action(), refused(SaslRefusal::Credentials));
    // Another server, or another user, gets another salt.
    let other = SaslConfig { secret: [8; 32] };
    for (config, first) in [(&other, FIRST), (&CONFIG, "n,,n=resu,r=rOprNGfwEbeRWgbNEkqO")] {
        let mut exchange = SaslExchange::begin(Mechanism::ScramSha256, Some(first.as_bytes()), config);
        exchange.poll_action();
        exchange.handle_scram_keys(UNKNOWN, &nonce());
        assert_ne!(exchange.poll_action(), Some(SaslAction::Challenge(text.as_bytes().into())));
    }
    // A name that differs only in case gets the same salt, as in case-insensitive tables.
    let mut exchange = begin(Mechanism::ScramSha256, Some(&FIRST.replace("user", "USER")));
    exchange.poll_action();
    exchange.handle_scram_keys(UNKNOWN, &nonce());
    assert_eq!(exchange.poll_action(), Some(SaslAction::Challenge(text.as_bytes().into())));
}

#[test]
fn the_keys_of_an_unknown_user_accept_nobody() {
    let first = ClientFirst::read(FIRST.as_bytes()).ok().unwrap();
    let mut scram = ScramExchange::known(first, &nonce(), "user".into(), pencil());
    scram.forget_user();
    assert_eq!(scram.prove(PROOF.as_bytes()), Err(SaslRefusal::Credentials));
}

#[test]
fn a_final_response_that_is_not_empty_is_refused() {
    let (mut exchange, _) = until_proof(ScramKeysAnswer::Found { user: "user".into(), keys: pencil() });
    exchange.handle_response(PROOF.as_bytes());
    exchange.poll_action();
    exchange.handle_response(b"thanks");
    assert_eq!(exchange.poll_action(), refused(SaslRefusal::Malformed));
}

#[test]
fn the_first_message_of_scram_is_read_as_it_is_defined() {
    let taken = [
        ("y,,n=user,r=abc", "user"),
        ("n,a=user,n=user,r=abc", "user"),
        ("n,a=USER,n=user,r=abc", "user"),
        ("n,,n=a=2Cb=3Dc,r=abc", "a,b=c"),
        ("n,,n=user,r=abc,x=ext", "user"),
        ("n,,n=\u{2168},r=abc", "IX"),
        ("n,,n=us\u{ad}er@x.org,r=abc", "user@x.org"),
    ];
    for (message, user) in taken {
        let asked = Some(SaslAction::Ask(CredentialQuestion::Credentials { user: user.into() }));
        assert_eq!(begin(Mechanism::ScramSha256, Some(message)).poll_action(), asked, "{message}");
    }
}

#[test]
fn malformed_messages_are_refused() {
    use Mechanism::{Login, Plain, ScramSha256};
    let (long_name, long_password) = (format!("\0{}\0x", "n".repeat(321)), format!("\0u\0{}", "p".repeat(513)));
    let long_nonce = format!("n,,n=user,r={}", "r".repeat(257));
    // Each of these characters (U+FDFA) becomes eighteen by NFKC.
    let swelling = format!("\0{}\0x", "\u{fdfa}".repeat(100));
    let refusals = [
        (Plain, "", SaslRefusal::Malformed),
        (Plain, "tim\0secret", SaslRefusal::Malformed),
        (Plain, "\0tim\0secret\0more", SaslRefusal::Malformed),
        (Plain, "\0\0secret", SaslRefusal::InvalidText),
        (Plain, "\0tim\0", SaslRefusal::InvalidText),
        (Plain, "\0ti\u{7}m\0secret", SaslRefusal::InvalidText),
        (Plain, "\0tim\0sec\nret", SaslRefusal::InvalidText),
        (Plain, "\0\u{ad}\0secret", SaslRefusal::InvalidText),
        (Plain, "root\0tim\0secret", SaslRefusal::Authzid),
        (Plain, "\u{7}\0tim\0secret", SaslRefusal::Authzid),
        (Plain, &long_name, SaslRefusal::TooLong),
        (Plain, &long_password, SaslRefusal::TooLong),
        (Plain, &swelling, SaslRefusal::TooLong),
        (Login, "", SaslRefusal::InvalidText),
        (Login, "a\0b", SaslRefusal::InvalidText),
        (ScramSha256, "", SaslRefusal::Malformed),
        (ScramSha256, "p=tls-exporter,,n=user,r=abc", SaslRefusal::Unsupported),
        (ScramSha256, "p=tls-unique,,n=user,r=abc", SaslRefusal::Unsupported),
        (ScramSha256, "q,,n=user,r=abc", SaslRefusal::Malformed),
        (ScramSha256, "n,,m=1,n=user,r=abc", SaslRefusal::Unsupported),
        (ScramSha256, "n,,n=user,m=1,r=abc", SaslRefusal::Malformed),
        (ScramSha256, "n,,n=user,r=abc,m=1", SaslRefusal::Malformed),
        (ScramSha256, "n,,n=user", SaslRefusal::Malformed),
        (ScramSha256, "n,,n=user,r=", SaslRefusal::Malformed),
        (ScramSha256, "n,,n=user,r=a b", SaslRefusal::Malformed),
        (ScramSha256, &long_nonce, SaslRefusal::Malformed),
        (ScramSha256, "n,,n=us=er,r=abc", SaslRefusal::Malformed),
        (ScramSha256, "n,,n=us=2cer,r=abc", SaslRefusal::Malformed),
        (ScramSha256, "n,,n=,r=abc", SaslRefusal::InvalidText),
        (ScramSha256, "n,a=root,n=user,r=abc", SaslRefusal::Authzid),
        (ScramSha256, "n,root,n=user,r=abc", SaslRefusal::Malformed),
        (ScramSha256, "n,n=user,r=abc", SaslRefusal::Malformed),
    ];
    for (mechanism, message, refusal) in refusals {
        let mut exchange = begin(mechanism, Some(message));
        assert_eq!(exchange.poll_action(), refused(refusal), "{mechanism} {message:?}");
        assert_eq!(exchange.poll_action(), None);
        exchange.handle_response(message.as_bytes());
        assert_eq!(exchange.poll_action(), None, "input after the end was handled");
    }
    for octets in [&b"\0tim\0\xff"[..], b"\0\xff\0secret", b"\xff\0tim\0secret"] {
        let mut exchange = SaslExchange::begin(Plain, Some(octets), &CONFIG);
        assert_eq!(exchange.poll_action(), refused(SaslRefusal::Malformed));
    }
}

#[test]
fn an_unavailable_answer_differs_from_a_wrong_password() {
    let verdicts = [
        (PasswordVerdict::Throttled, SaslRefusal::Throttled),
        (PasswordVerdict::Unavailable, SaslRefusal::Unavailable),
    ];
    for (verdict, refusal) in verdicts {
        let mut exchange = begin(Mechanism::Plain, Some("\0tim\0secret"));
        exchange.poll_action();
        exchange.handle_password_verdict(verdict);
        assert_eq!(exchange.poll_action(), refused(refusal));
        assert_eq!(refusal.reply().to_string().split(' ').take(2).collect::<Vec<_>>(), ["454", "4.7.0"]);
    }
    for (keys, refusal) in
        [(ScramKeysAnswer::Throttled, SaslRefusal::Throttled), (ScramKeysAnswer::Unavailable, SaslRefusal::Unavailable)]
    {
        let mut exchange = begin(Mechanism::ScramSha256, Some(FIRST));
        exchange.poll_action();
        exchange.handle_scram_keys(keys, &nonce());
        assert_eq!(exchange.poll_action(), refused(refusal));
    }
    assert_eq!(SaslRefusal::Credentials.reply().code, 535);
    assert_eq!(SaslOutcome::Accepted { user: "tim".into() }.reply().code, 235);
}

#[test]
fn a_client_may_cancel_at_any_time_but_only_once() {
    let mut exchange = begin(Mechanism::Login, None);
    exchange.handle_cancel(SaslRefusal::Cancelled);
    assert_eq!(exchange.poll_action(), refused(SaslRefusal::Cancelled));
    exchange.handle_cancel(SaslRefusal::Cancelled);
    exchange.handle_password_verdict(PasswordVerdict::Accepted { user: "tim".into() });
    exchange.handle_scram_keys(UNKNOWN, &nonce());
    assert_eq!(exchange.poll_action(), None);
}

#[test]
fn an_unexpected_answer_accepts_no_client() {
    let mut exchange = begin(Mechanism::Plain, None);
    exchange.poll_action();
    exchange.handle_password_verdict(PasswordVerdict::Accepted { user: "tim".into() });
    exchange.handle_scram_keys(ScramKeysAnswer::Found { user: "user".into(), keys: pencil() }, &nonce());
    assert_eq!(exchange.poll_action(), None);
    exchange.handle_response(b"\0tim\0secret");
    exchange.handle_response(b"\0root\0secret");
    assert_eq!(exchange.poll_action(), verify("tim", "secret"));
    assert_eq!(exchange.poll_action(), None, "a second message before the verdict was handled");
}

#[test]
fn a_password_is_never_shown() {
    let mut exchange = begin(Mechanism::Plain, Some("\0tim\0verysecret"));
    let shown = format!("{exchange:?} {:?}", exchange.poll_action());
    assert!(shown.contains("tim") && !shown.contains("verysecret"), "{shown}");
}

#[test]
fn lines_are_decoded_strictly_and_within_their_limit() {
    assert_eq!(decode(b"AHRpbQBzZWNyZXQ=").unwrap().as_slice(), b"\0tim\0secret");
    assert_eq!(decode(b"").unwrap().as_slice(), b"");
    assert_eq!(decode_initial(b"=").unwrap().as_slice(), b"");
    assert_eq!(decode(b"="), Err(DecodeError::Malformed));
    assert_eq!(decode(b"*"), Err(DecodeError::Cancelled));
    for line in [&b"AHRpbQBzZWNyZXQ"[..], b"AHRp bQ==", b"AHRpbR==", b"AHRpbQ==\r\n", b"\xff\xff\xff\xff", b"QUJD*"] {
        assert_eq!(decode(line), Err(DecodeError::Malformed), "{line:?}");
    }
    assert_eq!(decode(&[b'A'; LINE_OCTETS_MAX - 4]).unwrap().len(), (LINE_OCTETS_MAX - 4) / 4 * 3);
    assert_eq!(decode(&[b'A'; LINE_OCTETS_MAX]), Err(DecodeError::TooLong));
    assert_eq!(encode(b"Username:"), "VXNlcm5hbWU6");
}

#[test]
fn mechanisms_have_their_names_in_any_case() {
    for name in ["PLAIN", "LOGIN", "SCRAM-SHA-256"] {
        assert_eq!(Mechanism::from_name(&name.to_lowercase()).unwrap().to_string(), name);
    }
    for name in ["", "SCRAM-SHA-256-PLUS", "SCRAM-SHA-1", "CRAM-MD5", "XOAUTH2", "OAUTHBEARER"] {
        assert_eq!(Mechanism::from_name(name), None);
    }
}

fn mechanisms() -> impl Strategy<Value = Mechanism> {
    proptest::sample::select(Mechanism::ADVERTISED.to_vec())
}

fn messages() -> impl Strategy<Value = Vec<u8>> {
    let pieces =
        ["n,,", "y,", "p=x", "a=", "n=user", ",r=abc", ",", "=2C", "=", "\0", "\u{1}", "c=biws", ",p=", "é", "AAAA"];
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..80),
        proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 0..8)
            .prop_map(|it| it.concat().into_bytes()),
    ]
}

proptest! {
    #[test]
    fn no_input_is_accepted_without_a_verdict(
        mechanism in mechanisms(),
        initial in proptest::option::of(messages()),
        responses in proptest::collection::vec(messages(), 0..4),
        keys in proptest::sample::select(vec![UNKNOWN, ScramKeysAnswer::Found { user: "user".into(), keys: pencil() }]),
    ) {
        let mut exchange = SaslExchange::begin(mechanism, initial.as_deref(), &CONFIG);
        let mut ends = 0;
        for response in responses {
            exchange.handle_response(&response);
            exchange.handle_scram_keys(keys.clone(), &nonce());
            while let Some(action) = exchange.poll_action() {
                let is_accepted = matches!(action, SaslAction::Done(SaslOutcome::Accepted { .. }));
                prop_assert!(!is_accepted, "{:?}", action);
                ends += usize::from(matches!(action, SaslAction::Done(_)));
            }
        }
        prop_assert!(ends <= 1);
    }

    #[test]
    fn no_line_makes_decoding_panic(line in proptest::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(octets) = decode(&line) {
            prop_assert_eq!(encode(&octets).into_bytes(), line);
        }
    }
}
