//! Stored passwords of every format, made by other programs: Dovecot 2's doveadm, openssl, glibc's
//! crypt(3), the reference implementation of Argon2.

use proptest::prelude::*;

use super::*;

const LONG: &str = "pässwörd with a longer text than one block of sha512 has, which is one hundred and twenty-eight octets, and so it goes on and on";
/// Made by Dovecot from the password `tanstaaf`.
const SCRAM: &str = "{SCRAM-SHA-256}4096,slOxosY9m7BNgx3JnE2Tlg==,UPCnX994kWO6BpTlEkr0PVwixRiVIIgRkSANWb6j1b4=,cKCeOLJkwGvL7Ht3lksYK1W8LalDUs3l7ObMjm3NvdI=";

fn is_right(stored: &str, password: &str) -> bool {
    Stored::read(stored).unwrap().verify(password).unwrap()
}

#[test]
fn what_other_programs_store_is_understood() {
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
fn the_default_of_dovecot_for_argon2_is_understood() {
    assert!(is_right(
        "{ARGON2ID}$argon2id$v=19$m=65536,t=3,p=1$32FlzOtrFz19AIkk3VNlsg$B1blG9mLrbS1yS6aw5/IGiRLVYsAOmDkXETG99tajRk",
        "tanstaaf"
    ));
}

#[test]
fn what_is_malformed_is_refused() {
    let scram = SCRAM.to_owned();
    let refused = [
        ("", StoredError::NoScheme),
        ("secret", StoredError::NoScheme),
        ("{PLAIN", StoredError::NoScheme),
        ("{sec ret}x", StoredError::NoScheme),
        ("$secret", StoredError::NoScheme),
        ("{MD5-CRYPT}$1$abc$def", StoredError::UnknownScheme("{MD5-CRYPT}")),
        ("$1$abc$def", StoredError::UnknownScheme("$1$")),
        ("$2x$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG", StoredError::UnknownScheme("$2x$")),
        ("{smd5}x", StoredError::UnknownScheme("{SMD5}")),
        // Plain-text passwords that look like scheme names.
        ("$ecret$x", StoredError::NoScheme),
        ("{sec-ret}x", StoredError::NoScheme),
        ("!", StoredError::Locked),
        ("!!$6$salt$x", StoredError::Locked),
        (" *LK*", StoredError::Locked),
        ("{Crypt}*", StoredError::Locked),
        ("{SHA512-CRYPT}!$6$salt$x", StoredError::Locked),
        ("{ARGON2ID}!", StoredError::Locked),
        ("{ssha}*", StoredError::Locked),
        ("{SCRAM-SHA-256}!4096,x", StoredError::Locked),
        ("{CRYPT}abJnggxhB/yWI", StoredError::NoScheme),
        ("{PLAIN}", StoredError::Malformed("PLAIN")),
        ("{BLF-CRYPT}$6$salt$x", StoredError::Malformed("bcrypt")),
        ("{SHA512-CRYPT}$2y$04$x", StoredError::Malformed("SHA-crypt")),
        ("{ARGON2ID}$6$salt$x", StoredError::Malformed("Argon2")),
        ("$2y$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qI", StoredError::Malformed("bcrypt")),
        ("$2y$03$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG", StoredError::Malformed("bcrypt")),
        ("$6$salt$", StoredError::Malformed("SHA-crypt")),
        ("$5$saltsalt$AHEKnDWlz30naxZICwx9iP.q/8kkh.5vY4KFHIo4Rn", StoredError::Malformed("SHA-crypt")),
        ("$5$rounds=999$saltsalt$AHEKnDWlz30naxZICwx9iP.q/8kkh.5vY4KFHIo4Rn8", StoredError::Malformed("SHA-crypt")),
        ("$5$rounds=x$saltsalt$AHEKnDWlz30naxZICwx9iP.q/8kkh.5vY4KFHIo4Rn8", StoredError::Malformed("SHA-crypt")),
        ("{SSHA}AAAA", StoredError::Malformed("SSHA")),
        ("{SSHA256}zOdC8N52MwSafj2ThLEwR3Kgw5/I7XUo", StoredError::Malformed("SSHA256")),
        ("{SSHA}?", StoredError::Malformed("SSHA")),
        (&scram.replace("4096", "0"), StoredError::Malformed("SCRAM-SHA-256")),
        (&scram.replace("4096,", ""), StoredError::Malformed("SCRAM-SHA-256")),
        (&scram.replace("b4=", ""), StoredError::Malformed("SCRAM-SHA-256")),
        (
            "$argon2id$v=19$m=256,t=2$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
            StoredError::Malformed("Argon2"),
        ),
        ("$argon2id$v=19$m=256,t=2,p=1,x=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEg", StoredError::Malformed("Argon2")),
        (
            "$argon2id$v=19$m=256,t=2,p=1$c29t$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
            StoredError::Malformed("Argon2"),
        ),
        ("$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EA", StoredError::Malformed("Argon2")),
        ("$argon2id$v=19$m=256,t=2,p=100$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEg", StoredError::Malformed("Argon2")),
        ("$argon2id$v=20$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEg", StoredError::Malformed("Argon2")),
    ];
    for (stored, error) in refused {
        assert_eq!(Stored::read(stored).err(), Some(error), "{stored}");
    }
}

#[test]
fn what_would_cost_too_much_is_refused_before_it_costs_anything() {
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
        let error = Stored::read(stored).unwrap_err().to_string();
        assert!(error.contains(words), "{stored}: {error}");
    }
    assert!(!is_right("{PLAIN}x", &"x".repeat(PASSWORD_OCTETS_MAX + 1)));
}

#[test]
fn a_stored_password_that_a_table_took_apart_is_put_together() {
    let values = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    let parts: Vec<&str> = SCRAM.split(',').collect();
    let scram = Stored::read_all(&values(&parts)).unwrap();
    assert!(scram.len() == 1 && scram[0].verify("tanstaaf") == Ok(true));
    let mut both = vec!["$argon2id$v=19$m=256", "t=2", "p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4"];
    both.extend(parts);
    assert_eq!(format!("{:?}", Stored::read_all(&values(&both)).unwrap()), "[Stored(Argon2), Stored(SCRAM-SHA-256)]");
    // Plain-text passwords may contain commas, and the text after one does not continue other
    // formats.
    for parted in
        [["{PLAIN}a", "b"], ["$2y$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG", "x"], ["{PLAIN}a", "!"]]
    {
        assert_eq!(Stored::read_all(&values(&parted)).err(), Some(StoredError::NoScheme), "{parted:?}");
    }
    assert_eq!(Stored::read_all(&values(&["!", "{PLAIN}x"])).err(), Some(StoredError::Locked));
    assert_eq!(Stored::read_all(&[]).err(), Some(StoredError::Count(0)));
    assert_eq!(Stored::read_all(&values(&["{PLAIN}x"; 5])).err(), Some(StoredError::Count(5)));
    assert_eq!(Stored::read_all(&values(&["{PLAIN}x", "$x"])).err(), Some(StoredError::NoScheme));
}

#[test]
fn the_keys_of_scram_are_those_of_the_rfc_and_of_dovecot() {
    // The example of RFC 7677 section 3, for the password 'pencil'.
    let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
    let keys = Stored::read("{PLAIN}pencil").unwrap().scram_keys(&salt, 4096).unwrap();
    assert_eq!(STANDARD.encode(keys.stored_key), "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=");
    assert_eq!(STANDARD.encode(keys.server_key), "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=");
    let stored = Stored::read(SCRAM).unwrap().scram_keys(b"other", 1).unwrap();
    let made = Stored::read("{PLAIN}tanstaaf").unwrap().scram_keys(&stored.salt, 4096).unwrap();
    assert_eq!(stored, made);
    assert_eq!(Stored::read("{SSHA}zOdC8N52MwSafj2ThLEwR3Kgw5/I7XUo").unwrap().scram_keys(&salt, 4096), None);
}

#[test]
fn what_could_not_be_computed_is_not_called_wrong() {
    // A salt that is too short fails like a lack of memory.
    let params = Params::new(8, 1, 1, Some(16)).unwrap();
    let (salt, hash) = ([1; 4].into(), [0; 16].into());
    let argon = Argon { algorithm: Algorithm::Argon2id, version: Version::V0x13, params, salt, hash };
    let broken = Stored(Scheme::Argon2(Box::new(argon)));
    let error = broken.verify("x").unwrap_err();
    assert!(error.to_string().contains("cannot compute Argon2"), "{error}");
    let plain = Stored::read("{PLAIN}x").unwrap();
    assert_eq!(Stored::verify_any(&[broken.clone(), plain.clone()], "x"), Ok(true));
    assert_eq!(Stored::verify_any(&[broken, plain.clone()], "y"), Err(error));
    assert_eq!(Stored::verify_any(&[plain], "y"), Ok(false));
}

#[test]
fn what_is_in_the_clear_is_warned_against_and_not_shown() {
    let plain = Stored::read("{PLAIN}verysecret").unwrap();
    assert!(plain.warning().is_some() && !format!("{plain:?}").contains("secret"));
    assert!(Stored::read("{SSHA}zOdC8N52MwSafj2ThLEwR3Kgw5/I7XUo").unwrap().warning().is_some());
    assert!(Stored::read(SCRAM).unwrap().warning().is_none());
    assert_eq!(plain.decoy().verify("verysecret"), Ok(false));
}

#[test]
fn what_is_made_can_be_read() {
    let scram = super::super::make::scram_sha_256("tanstaaf", [7; 16]).unwrap();
    assert!(is_right(&scram, "tanstaaf") && !is_right(&scram, "tanstaax"));
    let argon = super::super::make::argon2id("tanstaaf", [7; 16]).unwrap();
    assert!(argon.starts_with("{ARGON2ID}$argon2id$v=19$m=19456,t=2,p=1$BwcHBwcHBwcHBwcHBwcHBw$"), "{argon}");
    assert!(is_right(&argon, "tanstaaf"));
    for unfit in ["", "a\0b", "a\nb", "\u{ad}\u{2060}", &"x".repeat(513)] {
        assert!(super::super::make::scram_sha_256(unfit, [7; 16]).is_err());
        assert!(super::super::make::argon2id(unfit, [7; 16]).is_err());
    }
}

proptest! {
    #[test]
    fn no_text_makes_reading_panic(text in "[{}$a-zA-Z0-9=,./+é -]{0,120}") {
        let _ = Stored::read(&text);
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
        let _ = Stored::read(&[&stored[..place], &by, &stored[place + 1..]].concat());
    }
}

#[test]
fn a_password_of_which_preparation_leaves_nothing_is_not_taken_for_an_empty_one() {
    let keys = |password| scram::keys(password, b"salt", 1);
    assert_ne!(keys("\u{ad}"), keys("\u{2060}"));
    assert_ne!(keys("\u{ad}"), keys(""));
    assert_eq!(keys("a\u{ad}"), keys("a"));
}
