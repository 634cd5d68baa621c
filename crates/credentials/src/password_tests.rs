//! Stored passwords of every format, made by other programs: Dovecot 2's doveadm, openssl, glibc's
//! crypt(3), the reference implementation of Argon2.

use proptest::prelude::*;

use super::*;

const LONG: &str = "pässwörd with a longer text than one block of sha512 has, which is one hundred and twenty-eight octets, and so it goes on and on";
/// Made by Dovecot from the password `tanstaaf`.
const SCRAM: &str = "{SCRAM-SHA-256}4096,slOxosY9m7BNgx3JnE2Tlg==,UPCnX994kWO6BpTlEkr0PVwixRiVIIgRkSANWb6j1b4=,cKCeOLJkwGvL7Ht3lksYK1W8LalDUs3l7ObMjm3NvdI=";

fn is_right(stored: &str, password: &str) -> bool {
    StoredPassword::parse(stored).unwrap().verify(password).unwrap()
}

#[test]
fn passwords_stored_by_other_programs_verify() {
    let stored = [
        (
            "$6$saltsalt$JfDkfKepJJ8OUWRByLbPk38gXHsXisVEzfbhJNOdQONUSHJpsMS04wE7S46k63uzhSh1G0j2QJ1gqfWqZChQE.",
            "tanstaaf",
        ),
        ("$5$saltsalt$AHEKnDWlz30naxZICwx9iP.q/8kkh.5vY4KFHIo4Rn8", "tanstaaf"),
        ("{BLF-CRYPT}$2y$05$FjJfATBNG9R6w2Mk1F29IuiojR5pHuugxI1Z7CUrTJQAF3eF2dfNK", "tanstaaf"),
        (
            "{SHA512-CRYPT}$6$9hN0nrvCEb5XPiNl$7OcqPiAAZUFNWlIVm1D26yPU.m5mtLkzITk4guFd0ceMoPo/SU1.jTszhkJfQo2JA.WeTrwroi0/pn7sgjrZx1",
            "tanstaaf",
        ),
        ("{SHA256-CRYPT}$5$AuTgMSslFaAW/JE6$X0F8wHYzQ5ITEB7VlTO4wKxoWqOocyRrYNAvvcb8tWD", "tanstaaf"),
        ("{SSHA}zOdC8N52MwSafj2ThLEwR3Kgw5/I7XUo", "tanstaaf"),
        ("{SSHA256}fs/CaiDu1O2hHm8vNE4GbdV9tdUCwglZv6AXfc2AdfZGeE6K", "tanstaaf"),
        (
            "{SSHA512}nJr9ktTW7iINjNc7YJkR88PLSfMHp5m5mPefs9WgkZv7GnskkpruXroov7MIa6DeUd3b5XqY7K6yUGrJt6dGOgeQlJY=",
            "tanstaaf",
        ),
        (
            "{SCRAM-SHA-256}4096,slOxosY9m7BNgx3JnE2Tlg==,UPCnX994kWO6BpTlEkr0PVwixRiVIIgRkSANWb6j1b4=,cKCeOLJkwGvL7Ht3lksYK1W8LalDUs3l7ObMjm3NvdI=",
            "tanstaaf",
        ),
        ("{PLAIN}tanstaaf", "tanstaaf"),
        (
            "{SHA512-CRYPT}$6$rounds=1000$xzrLR40kyeH4Ad3i$cdkWol9U3B0BqQAcwbBELomVxh9CEyVfYG5DMegLw18L.8QIhv/Vk5zhDmS5EwC6Lx/4lNPzgZc8STaJt1DHM.",
            LONG,
        ),
        ("{SHA256-CRYPT}$5$rounds=77777$WKHBUBmlCBNEUouT$vSxkEHdjYakeUQ2CAu8D6uI5.23P8/i522e0QMiM/I2", "pässwörd"),
        ("{BLF-CRYPT}$2y$04$tHoZL5Fxqj4jJ5XwGEqtq.oaYv6HjiIGOehUR5zskOuT4xBnfCnOm", "pässwörd"),
        ("$2y$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG", "tanstaaf"),
        ("$2a$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG", "tanstaaf"),
        ("$2b$04$abcdefghijklmnopqrstuubzadhGtS2zEF.gu0yd0opP6cVzb.e0i", &"x".repeat(100)),
        (
            "$6$rounds=1000$averylongsaltstr$szkJ6PzkEpTEx981mQrb12mrqEmc7dHOco.1MHtkXcVJhPJTAcKsM2xStGZem02KC8hoPhZQLXq5wNBYscsW91",
            "tanstaaf",
        ),
        ("$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4", "password"),
        ("{ARGON2ID}$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4", "password"),
        ("{argon2}$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4", "password"),
        (
            "{CRYPT}$6$saltsalt$JfDkfKepJJ8OUWRByLbPk38gXHsXisVEzfbhJNOdQONUSHJpsMS04wE7S46k63uzhSh1G0j2QJ1gqfWqZChQE.",
            "tanstaaf",
        ),
        ("{cleartext}pass {word}$,x", "pass {word}$,x"),
        ("{Plain}!not locked", "!not locked"),
        (" {SSHA}zOdC8N52MwSafj2ThLEwR3Kgw5/I7XUo ", "tanstaaf"),
    ];
    for (stored, password) in stored {
        assert!(is_right(stored, password), "{stored}");
        assert!(!is_right(stored, &password.replacen(['t', 'p', 'x'], "y", 1)), "{stored}");
        assert!(!is_right(stored, ""), "{stored}");
        assert!(!is_right(stored, &format!("{password}\0")), "{stored}");
    }
}

#[test]
#[ignore = "takes seconds without optimisation"]
fn dovecots_default_argon2_verifies() {
    assert!(is_right(
        "{ARGON2ID}$argon2id$v=19$m=65536,t=3,p=1$32FlzOtrFz19AIkk3VNlsg$B1blG9mLrbS1yS6aw5/IGiRLVYsAOmDkXETG99tajRk",
        "tanstaaf"
    ));
}

#[test]
fn malformed_passwords_are_refused() {
    let scram = SCRAM.to_owned();
    let refused = [
        ("", StoredPasswordError::NoScheme),
        ("secret", StoredPasswordError::NoScheme),
        ("{PLAIN", StoredPasswordError::NoScheme),
        ("{sec ret}x", StoredPasswordError::NoScheme),
        ("$secret", StoredPasswordError::NoScheme),
        ("{MD5-CRYPT}$1$abc$def", StoredPasswordError::UnknownScheme("{MD5-CRYPT}")),
        ("$1$abc$def", StoredPasswordError::UnknownScheme("$1$")),
        ("$2x$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG", StoredPasswordError::UnknownScheme("$2x$")),
        ("{smd5}x", StoredPasswordError::UnknownScheme("{SMD5}")),
        // Plain-text passwords that look like scheme names.
        ("$ecret$x", StoredPasswordError::NoScheme),
        ("{sec-ret}x", StoredPasswordError::NoScheme),
        ("!", StoredPasswordError::Locked),
        ("!!$6$salt$x", StoredPasswordError::Locked),
        (" *LK*", StoredPasswordError::Locked),
        ("{Crypt}*", StoredPasswordError::Locked),
        ("{SHA512-CRYPT}!$6$salt$x", StoredPasswordError::Locked),
        ("{ARGON2ID}!", StoredPasswordError::Locked),
        ("{ssha}*", StoredPasswordError::Locked),
        ("{SCRAM-SHA-256}!4096,x", StoredPasswordError::Locked),
        ("{CRYPT}abJnggxhB/yWI", StoredPasswordError::NoScheme),
        ("{PLAIN}", StoredPasswordError::Malformed("PLAIN")),
        ("{BLF-CRYPT}$6$salt$x", StoredPasswordError::Malformed("bcrypt")),
        ("{SHA512-CRYPT}$2y$04$x", StoredPasswordError::Malformed("SHA-crypt")),
        ("{ARGON2ID}$6$salt$x", StoredPasswordError::Malformed("Argon2")),
        ("$2y$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qI", StoredPasswordError::Malformed("bcrypt")),
        ("$2y$03$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG", StoredPasswordError::Malformed("bcrypt")),
        ("$6$salt$", StoredPasswordError::Malformed("SHA-crypt")),
        ("$5$saltsalt$AHEKnDWlz30naxZICwx9iP.q/8kkh.5vY4KFHIo4Rn", StoredPasswordError::Malformed("SHA-crypt")),
        (
            "$5$rounds=999$saltsalt$AHEKnDWlz30naxZICwx9iP.q/8kkh.5vY4KFHIo4Rn8",
            StoredPasswordError::Malformed("SHA-crypt"),
        ),
        (
            "$5$rounds=x$saltsalt$AHEKnDWlz30naxZICwx9iP.q/8kkh.5vY4KFHIo4Rn8",
            StoredPasswordError::Malformed("SHA-crypt"),
        ),
        ("{SSHA}AAAA", StoredPasswordError::Malformed("SSHA")),
        ("{SSHA256}zOdC8N52MwSafj2ThLEwR3Kgw5/I7XUo", StoredPasswordError::Malformed("SSHA256")),
        ("{SSHA}?", StoredPasswordError::Malformed("SSHA")),
        (&scram.replace("4096", "0"), StoredPasswordError::Malformed("SCRAM-SHA-256")),
        (&scram.replace("4096,", ""), StoredPasswordError::Malformed("SCRAM-SHA-256")),
        (&scram.replace("b4=", ""), StoredPasswordError::Malformed("SCRAM-SHA-256")),
        (
            "$argon2id$v=19$m=256,t=2$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
            StoredPasswordError::Malformed("Argon2"),
        ),
        (
            "$argon2id$v=19$m=256,t=2,p=1,x=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEg",
            StoredPasswordError::Malformed("Argon2"),
        ),
        (
            "$argon2id$v=19$m=256,t=2,p=1$c29t$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
            StoredPasswordError::Malformed("Argon2"),
        ),
        ("$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EA", StoredPasswordError::Malformed("Argon2")),
        ("$argon2id$v=19$m=256,t=2,p=100$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEg", StoredPasswordError::Malformed("Argon2")),
        ("$argon2id$v=20$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEg", StoredPasswordError::Malformed("Argon2")),
    ];
    for (stored, error) in refused {
        assert_eq!(StoredPassword::parse(stored).err(), Some(error), "{stored}");
    }
}

#[test]
fn costly_passwords_are_refused_without_computing() {
    let costly = [
        (
            "$argon2id$v=19$m=4194304,t=1,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEg",
            "Argon2 memory in KiB is 4194304, at most 262144 allowed",
        ),
        ("$argon2id$v=19$m=65536,t=100,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEg", "is 6553600"),
        ("$argon2id$v=19$m=262144,t=4294967295,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEg", "times passes"),
        ("$2y$31$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG", "bcrypt cost is 31, at most 14 allowed"),
        ("$5$rounds=999999999$saltsalt$AHEKnDWlz30naxZICwx9iP.q/8kkh.5vY4KFHIo4Rn8", "SHA-crypt rounds"),
        (&SCRAM.replace("4096", "4294967295"), "SCRAM-SHA-256 iterations"),
        (&format!("{{PLAIN}}{}", "x".repeat(3000)), "text length"),
    ];
    for (stored, words) in costly {
        let error = StoredPassword::parse(stored).unwrap_err().to_string();
        assert!(error.contains(words), "{stored}: {error}");
    }
    assert!(!is_right("{PLAIN}x", &"x".repeat(PASSWORD_OCTETS_MAX + 1)));
}

#[test]
fn a_stored_password_split_at_commas_is_joined() {
    let values = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    let parts: Vec<&str> = SCRAM.split(',').collect();
    let scram = StoredPassword::parse_all(&values(&parts)).unwrap();
    assert!(scram.len() == 1 && scram[0].verify("tanstaaf") == Ok(true));
    let mut both = vec!["$argon2id$v=19$m=256", "t=2", "p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4"];
    both.extend(parts);
    assert_eq!(
        format!("{:?}", StoredPassword::parse_all(&values(&both)).unwrap()),
        "[Stored(Argon2), Stored(SCRAM-SHA-256)]"
    );
    // Plain-text passwords may contain commas, and the text after one does not continue other
    // formats.
    for parted in
        [["{PLAIN}a", "b"], ["$2y$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG", "x"], ["{PLAIN}a", "!"]]
    {
        assert_eq!(
            StoredPassword::parse_all(&values(&parted)).err(),
            Some(StoredPasswordError::NoScheme),
            "{parted:?}"
        );
    }
    assert_eq!(StoredPassword::parse_all(&values(&["!", "{PLAIN}x"])).err(), Some(StoredPasswordError::Locked));
    assert_eq!(StoredPassword::parse_all(&[]).err(), Some(StoredPasswordError::Count(0)));
    assert_eq!(StoredPassword::parse_all(&values(&["{PLAIN}x"; 5])).err(), Some(StoredPasswordError::Count(5)));
    assert_eq!(StoredPassword::parse_all(&values(&["{PLAIN}x", "$x"])).err(), Some(StoredPasswordError::NoScheme));
}

#[test]
fn the_keys_of_scram_are_those_of_the_rfc_and_of_dovecot() {
    // The example of RFC 7677 section 3, for the password 'pencil'.
    let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
    let keys = StoredPassword::parse("{PLAIN}pencil").unwrap().scram_keys(&salt, 4096).unwrap();
    assert_eq!(STANDARD.encode(keys.stored_key), "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=");
    assert_eq!(STANDARD.encode(keys.server_key), "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=");
    let stored = StoredPassword::parse(SCRAM).unwrap().scram_keys(b"other", 1).unwrap();
    let made = StoredPassword::parse("{PLAIN}tanstaaf").unwrap().scram_keys(&stored.salt, 4096).unwrap();
    assert_eq!(stored, made);
    assert_eq!(StoredPassword::parse("{SSHA}zOdC8N52MwSafj2ThLEwR3Kgw5/I7XUo").unwrap().scram_keys(&salt, 4096), None);
}

#[test]
fn a_failed_computation_is_not_a_wrong_password() {
    // A salt that is too short fails like a lack of memory.
    let params = Params::new(8, 1, 1, Some(16)).unwrap();
    let (salt, hash) = ([1; 4].into(), [0; 16].into());
    let argon = Argon2Hash { algorithm: Algorithm::Argon2id, version: Version::V0x13, params, salt, hash };
    let broken = StoredPassword(Scheme::Argon2(Box::new(argon)));
    let error = broken.verify("x").unwrap_err();
    assert!(error.to_string().contains("cannot compute Argon2"), "{error}");
    let plain = StoredPassword::parse("{PLAIN}x").unwrap();
    assert_eq!(StoredPassword::verify_any(&[broken.clone(), plain.clone()], "x"), Ok(true));
    assert_eq!(StoredPassword::verify_any(&[broken, plain.clone()], "y"), Err(error));
    assert_eq!(StoredPassword::verify_any(&[plain], "y"), Ok(false));
}

#[test]
fn plain_text_passwords_give_a_warning_and_are_not_shown() {
    let plain = StoredPassword::parse("{PLAIN}verysecret").unwrap();
    assert!(plain.weak_password_warning().is_some() && !format!("{plain:?}").contains("secret"));
    assert!(StoredPassword::parse("{SSHA}zOdC8N52MwSafj2ThLEwR3Kgw5/I7XUo").unwrap().weak_password_warning().is_some());
    assert!(StoredPassword::parse(SCRAM).unwrap().weak_password_warning().is_none());
    assert_eq!(plain.unmatched().verify("verysecret"), Ok(false));
}

#[test]
fn generated_passwords_can_be_parsed() {
    let scram = super::super::generate::hash_scram_sha_256("tanstaaf", [7; 16]).unwrap();
    assert!(is_right(&scram, "tanstaaf") && !is_right(&scram, "tanstaax"));
    let argon = super::super::generate::hash_argon2id("tanstaaf", [7; 16]).unwrap();
    assert!(argon.starts_with("{ARGON2ID}$argon2id$v=19$m=19456,t=2,p=1$BwcHBwcHBwcHBwcHBwcHBw$"), "{argon}");
    assert!(is_right(&argon, "tanstaaf"));
    for unfit in ["", "a\0b", "a\nb", "\u{ad}\u{2060}", &"x".repeat(513)] {
        assert!(super::super::generate::hash_scram_sha_256(unfit, [7; 16]).is_err());
        assert!(super::super::generate::hash_argon2id(unfit, [7; 16]).is_err());
    }
}

proptest! {
    #[test]
    fn no_text_makes_reading_panic(text in "[{}$a-zA-Z0-9=,./+é -]{0,120}") {
        let _ = StoredPassword::parse(&text);
    }

    #[test]
    fn no_change_of_a_stored_password_makes_reading_panic(
        which in 0usize..4, place in any::<proptest::sample::Index>(), by in "[$,={}a0é]{0,3}",
    ) {
        let stored = [
            SCRAM,
            "$2y$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG",
            "$5$rounds=1000$saltsalt$AHEKnDWlz30naxZICwx9iP.q/8kkh.5vY4KFHIo4Rn8",
            "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
        ][which];
        let place = place.index(stored.len());
        let _ = StoredPassword::parse(&[&stored[..place], &by, &stored[place + 1..]].concat());
    }
}

#[test]
fn a_password_that_saslprep_empties_is_not_an_empty_one() {
    let keys = |password| scram::keys(password, b"salt", 1);
    assert_ne!(keys("\u{ad}"), keys("\u{2060}"));
    assert_ne!(keys("\u{ad}"), keys(""));
    assert_eq!(keys("a\u{ad}"), keys("a"));
}
