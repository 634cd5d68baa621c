//! Any records of two domains, and any explanation: no panic, and a result within the limits of
//! queries, names and text. Lines of the input are the two records and the explanation.

#![no_main]

mod dns_answers;

use dns_answers::{Answers, run};
use libfuzzer_sys::fuzz_target;
use sender_auth::spf::{SpfClient, check_helo, check_mail_from};

fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.splitn(3, |&byte| byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let record = |terms: &[u8]| [b"v=spf1 ", terms].concat();
    let answers = Answers::new([("a.example", record(line())), ("b.example", record(line()))], line().to_vec());
    let (address, sender) = ([192, 0, 2, 1].into(), "bob+tag@a.example".parse().ok());
    let client = SpfClient { address, helo: "b.example", hostname: "mx.receiver.example" };
    for check in [
        run(check_helo(&answers, &client)),
        run(check_mail_from(&answers, &client, sender.as_ref())),
        run(check_mail_from(&answers, &SpfClient { address: [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(), ..client }, None)),
    ] {
        let text = check.explanation.unwrap_or_default();
        assert!(text.len() <= 255 && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '));
        assert!(answers.take_query_count() <= 123);
    }
});
