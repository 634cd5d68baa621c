//! VERP sender addresses.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use mail::Address;

fn verp(sender: &str, recipient: &str) -> Option<String> {
    let [sender, recipient] = [sender, recipient].map(|text| text.parse::<Address>().unwrap());
    delivery::verp::sender_address(&sender, &recipient).map(|address| address.to_string())
}

#[test]
fn the_sender_names_the_recipient() {
    for (sender, recipient, expected) in [
        ("news@example.org", "bob@example.net", "news+bob=example.net@example.org"),
        ("news@example.org", "Bob.B+tag@Example.NET", "news+Bob.B+tag=example.net@example.org"),
        ("news+may@lists.example.org", "bob@example.net", "news+may+bob=example.net@lists.example.org"),
        ("news@example.org", "\"b b\"@example.net", "\"news+b b=example.net\"@example.org"),
        ("news@example.org", "bob@[192.0.2.1]", "\"news+bob=[192.0.2.1]\"@example.org"),
        ("news@example.org", "jürgen@müller.example", "news+jürgen=müller.example@example.org"),
    ] {
        assert_eq!(verp(sender, recipient).as_deref(), Some(expected));
        assert!(expected.parse::<Address>().is_ok());
    }
}

#[test]
fn a_local_part_over_64_octets_is_not_made() {
    let recipient = |octets: usize| format!("{}@example.net", "b".repeat(octets - "news+=example.net".len()));
    assert!(verp("news@example.org", &recipient(64)).is_some());
    assert_eq!(verp("news@example.org", &recipient(65)), None);
}
