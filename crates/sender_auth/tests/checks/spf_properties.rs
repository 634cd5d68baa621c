//! Whatever records say, a check ends with a result, within its limits. The zone of the tests
//! refuses names that cannot be queried.

use proptest::prelude::*;
use sender_auth::spf::{SpfClient, check_helo, check_mail_from};

use crate::zone::{Zone, ip};

/// Terms that are mostly right.
fn term() -> impl Strategy<Value = String> {
    let domain = prop_oneof![
        Just("a.example".to_owned()),
        Just("b.example".to_owned()),
        Just("mx.example".to_owned()),
        Just("broken.example".to_owned()),
        "%\\{[slodipvhcrtSLODIPVHx][0-9]{0,3}r?[-.+,/_=]{0,3}\\}(\\.example)?",
        "[a-z%{}.:/]{0,40}",
    ];
    let name =
        prop_oneof!["include:", "a:", "mx:", "ptr:", "exists:", "redirect=", "exp=", "unknown=", "[a-z]{0,9}[:=]"];
    let lengths = "(/[0-9]{1,3})?(//[0-9]{1,3})?";
    prop_oneof![
        4 => ("[-+~?]?", name, domain, lengths).prop_map(|(sign, name, domain, lengths)| sign + &name + &domain + &lengths),
        1 => Just("a".to_owned()),
        1 => Just("mx".to_owned()),
        1 => Just("ptr".to_owned()),
        1 => "[-~?]all",
        1 => "ip[46]:[0-9a-f.:]{1,20}(/[0-9]{1,3})?",
        1 => "\\PC{0,20}",
    ]
}

fn record() -> impl Strategy<Value = String> {
    prop::collection::vec(term(), 0..14).prop_map(|terms| format!("v=spf1 {}", terms.join(" ")))
}

proptest! {
    #[test]
    fn any_records_give_a_result_within_the_limits(
        a in record(),
        b in record(),
        text in "([ -~]|%\\{[a-zA-Z][0-9]{0,2}r?[-.+]?\\}){0,60}",
        local in "[a-z+=.-]{1,20}|jürgen",
        helo in "b\\.example|[!-~]{1,30}",
        client in prop_oneof![Just("192.0.2.1"), Just("2001:db8::1"), Just("::ffff:192.0.2.1")],
    ) {
        let zone = Zone::parse([
            &*format!("a.example TXT {}", a.replace('\\', "/")),
            &format!("b.example TXT {}", b.replace('\\', "/")),
            &format!("text.example TXT {}", text.replace('\\', "/")),
            "a.example MX 10 mx.example",
            "a.example A 192.0.2.77",
            "mx.example AAAA 2001:db8::77",
            "mx.example A 192.0.2.1",
            "broken.example ! SERVFAIL",
            "1.2.0.192.in-addr.arpa PTR mx.example",
        ]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let client = SpfClient { address: ip(client), helo: &helo, hostname: "mx.receiver.example" };
        let sender = format!("{local}@a.example").parse().ok();
        let checks = runtime.block_on(async {
            [check_helo(&zone, &client).await, check_mail_from(&zone, &client, sender.as_ref()).await]
        });
        for check in checks {
            let explanation = check.explanation.unwrap_or_default();
            prop_assert!(explanation.len() <= 255 && explanation.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        }
        prop_assert!(zone.queries().len() <= 2 * 123);
    }
}
