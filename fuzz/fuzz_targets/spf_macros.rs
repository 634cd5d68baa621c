//! Any macros with any values, in a domain and in an explanation: no panic, names that can be
//! queried, and a short printable text. Lines of the input are the macros, a local part and a HELO name.

#![no_main]

mod dns_answers;

use dns_answers::{Answers, run};
use libfuzzer_sys::fuzz_target;
use mail::Address;
use sender_auth::spf::{SpfClient, check_mail_from};

fuzz_target!(|text: &str| {
    let mut lines = text.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (macros, local_part, helo) = (line(), line(), line());
    let Ok(sender) = Address::new(local_part, "a.example") else { return };
    let record = format!("v=spf1 exists:{macros} a:{macros}.x exp=why.example -all");
    let answers = Answers::new([("a.example", record.into()), ("b.example", Vec::new())], macros.into());
    for address in ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"] {
        let client = SpfClient { address: address.parse().unwrap(), helo, hostname: "mx.receiver.example" };
        let explanation = run(check_mail_from(&answers, &client, Some(&sender))).explanation.unwrap_or_default();
        assert!(explanation.len() <= 255 && explanation.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '));
    }
});
