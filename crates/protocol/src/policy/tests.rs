//! Requests, answers whole and split at every octet, and all actions.

use mail::{EnhancedCode, Reply};

use super::*;

fn read(answer: &[u8], size: usize) -> Result<Option<String>, PolicyViolation> {
    let mut reader = AnswerReader::default();
    let mut last = Ok(None);
    for piece in answer.chunks(size) {
        last = reader.handle_input(piece);
        if last.is_err() {
            break;
        }
    }
    last
}

#[test]
fn a_value_cannot_add_attributes() {
    let mut request = PolicyRequest::default();
    request.push("helo_name", "a.test\naction=OK\r\n\0");
    request.push("sender", "");
    assert_eq!(request.into_wire(), b"request=smtpd_access_policy\nhelo_name=a.test?action=OK???\nsender=\n\n");
}

#[test]
fn answers_are_the_same_however_they_are_split() {
    for (answer, expected) in [
        (&b"action=DUNNO\n\n"[..], Ok(Some("DUNNO".to_owned()))),
        (b"x=y\naction = 450 4.7.1 later = soon \n\n", Ok(Some("450 4.7.1 later = soon".to_owned()))),
        (b"action=\n\n", Ok(Some(String::new()))),
        (b"action=OK\n", Ok(None)),
        (b"\n", Err(PolicyViolation::NoAction)),
        (b"OK\n\n", Err(PolicyViolation::NoAction)),
        (b"result=OK\n\n", Err(PolicyViolation::NoAction)),
        (b"action=\xff\n\n", Err(PolicyViolation::NoAction)),
    ] {
        for size in 1..=answer.len() {
            assert_eq!(read(answer, size), expected, "{answer:?} {size}");
        }
    }
    assert_eq!(read(b"action=OK\n\naction=OK\n\n", 99), Err(PolicyViolation::Unsolicited));
    assert_eq!(read(&b"x=y\n".repeat(3000), 999), Err(PolicyViolation::TooLong));
}

#[test]
fn every_action_is_understood() {
    let refuse = |code, enhanced, text: &'static str| PolicyAction::Refuse(Reply::new(code, enhanced, text));
    for (text, expected) in [
        ("DUNNO", PolicyAction::Dunno),
        ("", PolicyAction::Dunno),
        ("ok", PolicyAction::Ok),
        ("1", PolicyAction::Ok),
        ("REJECT", refuse(554, EnhancedCode(5, 7, 1), "Access denied")),
        ("reject not you", refuse(554, EnhancedCode(5, 7, 1), "not you")),
        ("REJECT 5.1.8 no such domain", refuse(554, EnhancedCode(5, 1, 8), "no such domain")),
        ("DEFER later", refuse(450, EnhancedCode(4, 7, 1), "later")),
        ("450 4.2.0 greylisted", refuse(450, EnhancedCode(4, 2, 0), "greylisted")),
        ("550", refuse(550, EnhancedCode(5, 7, 1), "Access denied")),
        ("550 n\u{f6}", refuse(550, EnhancedCode(5, 7, 1), "n?")),
        ("DEFER_IF_PERMIT soon", PolicyAction::DeferIfPermit(Reply::new(450, EnhancedCode(4, 7, 1), "soon"))),
        ("DEFER_IF_REJECT x", PolicyAction::DeferIfReject(Reply::new(450, EnhancedCode(4, 7, 1), "x"))),
        ("HOLD odd", PolicyAction::Hold),
        ("DISCARD", PolicyAction::Discard),
        ("PREPEND X-A: b c", PolicyAction::Prepend("X-A: b c".into())),
        ("REDIRECT a@b.test", PolicyAction::Redirect("a@b.test".into())),
        ("FILTER smtp:[127.0.0.1]:10025", PolicyAction::Filter("smtp:[127.0.0.1]:10025".into())),
        ("BCC a@b.test", PolicyAction::Bcc("a@b.test".into())),
        ("WARN look", PolicyAction::Log("look".into())),
        ("permit", PolicyAction::Restrictions([PolicyRestriction::Permit].into())),
        (
            "permit_mynetworks, warn_if_reject reject",
            PolicyAction::Restrictions(
                [PolicyRestriction::PermitNetworks, PolicyRestriction::WarnIfReject, PolicyRestriction::Reject].into(),
            ),
        ),
    ] {
        assert_eq!(text.parse(), Ok(expected), "{text}");
    }
    let with_classes = |text: &str| PolicyAction::parse(text, &|name| ["staff", "guests"].contains(&name));
    let class = |name: &str| PolicyRestriction::Class(name.into());
    for (text, expected) in [
        (" staff ", vec![class("staff")]),
        ("guests, permit_mynetworks staff", vec![class("guests"), PolicyRestriction::PermitNetworks, class("staff")]),
        ("warn_if_reject,staff", vec![PolicyRestriction::WarnIfReject, class("staff")]),
    ] {
        assert_eq!(with_classes(text), Ok(PolicyAction::Restrictions(expected.into())), "{text}");
    }
    assert_eq!(with_classes("REJECT staff"), "REJECT staff".parse());
    assert!(with_classes("staff, unknown").is_err());
    for text in [
        "staff",
        "FILTER",
        "FILTER amavis",
        "FILTER :[127.0.0.1]",
        "FILTER smtp:a b",
        "PREPEND",
        "REDIRECT",
        "REJECT 4.7.1 no",
        "450 5.7.1 no",
        "permit_mynetworks check_client_access",
        "reject_unauth_destination some text",
        ",",
    ] {
        assert!(text.parse::<PolicyAction>().is_err(), "{text}");
    }
}
