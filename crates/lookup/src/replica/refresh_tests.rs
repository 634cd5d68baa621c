//! Transcripts of Sync Operations: messages of the server and the resulting actions.

use super::*;

const A: Uuid = [0xa; 16];
const B: Uuid = [0xb; 16];
const C: Uuid = [0xc; 16];

fn cookie(name: &str) -> Option<Vec<u8>> {
    (!name.is_empty()).then(|| name.as_bytes().to_vec())
}

fn entry(state: State, uuid: Uuid, name: &str) -> Message {
    Message::Entry { state, uuid, cookie: cookie(name) }
}

fn present_end(name: &str, done: bool) -> Message {
    Message::RefreshPresent { cookie: cookie(name), done }
}

fn delete_end(name: &str, done: bool) -> Message {
    Message::RefreshDelete { cookie: cookie(name), done }
}

fn id_set(deletes: bool, uuids: &[Uuid], name: &str) -> Message {
    Message::IdSet { cookie: cookie(name), deletes, uuids: uuids.to_vec() }
}

fn done(code: u32, deletes: bool, name: &str) -> Message {
    Message::Done { code, cookie: cookie(name), deletes }
}

/// Checks the actions after each message.
fn play(with_cookie: bool, transcript: &[(Message, &[Act])]) -> Refresh {
    let mut refresh = Refresh::new(with_cookie);
    for (message, expected) in transcript {
        refresh.handle_message(message.clone());
        let acts: Vec<Act> = std::iter::from_fn(|| refresh.poll_act()).collect();
        assert_eq!(&acts[..], *expected, "after {message:?}");
    }
    refresh
}

fn agreed(name: &str) -> Act {
    Act::Agreed(cookie(name))
}

#[test]
fn initial_content_ends_with_what_it_did_not_mention_being_gone_whichever_way_it_ends() {
    for end in [present_end("c1", true), delete_end("c1", true)] {
        let refresh = play(
            false,
            &[
                (entry(State::Add, A, ""), &[Act::Put(A)]),
                (entry(State::Add, B, ""), &[Act::Put(B)]),
                (end, &[Act::GoneUnmentioned, agreed("c1")]),
            ],
        );
        assert!(refresh.is_live());
    }
}

#[test]
fn in_a_present_phase_what_is_not_mentioned_is_gone() {
    let refresh = play(
        true,
        &[
            (entry(State::Add, A, ""), &[Act::Put(A)]),
            (entry(State::Present, B, ""), &[Act::Keep(B)]),
            (id_set(false, &[C], ""), &[Act::Keep(C)]),
            (present_end("c2", true), &[Act::GoneUnmentioned, agreed("c2")]),
        ],
    );
    assert!(refresh.is_live());
}

#[test]
fn in_a_delete_phase_what_is_named_is_gone_and_nothing_else() {
    let refresh = play(
        true,
        &[
            (entry(State::Add, A, ""), &[Act::Put(A)]),
            (entry(State::Delete, B, ""), &[Act::Gone(B)]),
            (id_set(true, &[C], ""), &[Act::Gone(C)]),
            (delete_end("c2", true), &[agreed("c2")]),
        ],
    );
    assert!(refresh.is_live());
}

#[test]
fn a_present_phase_may_go_before_a_delete_phase() {
    let mut refresh = play(
        true,
        &[
            (id_set(false, &[A, B], ""), &[Act::Keep(A), Act::Keep(B)]),
            (present_end("c2", false), &[Act::GoneUnmentioned]),
            (entry(State::Delete, B, ""), &[Act::Gone(B)]),
        ],
    );
    assert!(!refresh.is_live());
    refresh.handle_message(delete_end("", true));
    assert_eq!(refresh.poll_act(), Some(agreed("c2")));
    assert!(refresh.is_live());
}

#[test]
fn a_cookie_waits_for_the_end_of_the_refresh_and_the_last_one_counts() {
    play(
        true,
        &[
            (entry(State::Add, A, "c2"), &[Act::Put(A)]),
            (Message::NewCookie(b"c3".to_vec()), &[]),
            (id_set(false, &[B], "c4"), &[Act::Keep(B)]),
            (present_end("", true), &[Act::GoneUnmentioned, agreed("c4")]),
        ],
    );
}

#[test]
fn who_stops_within_a_refresh_has_been_given_no_cookie() {
    let transcript = [
        (entry(State::Add, A, "c2"), vec![Act::Put(A)]),
        (id_set(false, &[B], "c3"), vec![Act::Keep(B)]),
        (present_end("c4", false), vec![Act::GoneUnmentioned]),
        (entry(State::Delete, C, "c5"), vec![Act::Gone(C)]),
        (delete_end("c6", true), vec![agreed("c6")]),
    ];
    for cut in 0..transcript.len() {
        let mut refresh = Refresh::new(true);
        transcript[..cut].iter().for_each(|(message, _)| refresh.handle_message(message.clone()));
        let acts: Vec<Act> = std::iter::from_fn(|| refresh.poll_act()).collect();
        assert!(!acts.iter().any(|act| matches!(act, Act::Cookie(_) | Act::Agreed(_))), "{acts:?}");
    }
}

#[test]
fn in_the_persist_stage_each_change_is_done_at_once_and_its_cookie_behind_it() {
    play(
        true,
        &[
            (delete_end("c1", true), &[agreed("c1")]),
            (entry(State::Add, A, "c2"), &[Act::Put(A), Act::Cookie(b"c2".to_vec())]),
            (entry(State::Modify, B, ""), &[Act::Put(B)]),
            (entry(State::Delete, C, "c3"), &[Act::Remove(C), Act::Cookie(b"c3".to_vec())]),
            (id_set(true, &[A, B], "c4"), &[Act::Remove(A), Act::Remove(B), Act::Cookie(b"c4".to_vec())]),
            (Message::NewCookie(b"c5".to_vec()), &[Act::Cookie(b"c5".to_vec())]),
            (entry(State::Present, A, ""), &[]),
            (delete_end("c6", true), &[Act::Cookie(b"c6".to_vec())]),
        ],
    );
}

#[test]
fn a_cookie_that_the_server_does_not_know_leads_to_a_restart_without_one() {
    play(
        true,
        &[
            (entry(State::Add, A, ""), &[Act::Put(A)]),
            (done(REFRESH_REQUIRED, false, "c9"), &[Act::Restart, Act::Ended(REFRESH_REQUIRED)]),
            (entry(State::Add, B, ""), &[]),
        ],
    );
    play(
        false,
        &[
            (delete_end("c1", true), &[Act::GoneUnmentioned, agreed("c1")]),
            (done(REFRESH_REQUIRED, false, ""), &[Act::Restart, Act::Ended(REFRESH_REQUIRED)]),
        ],
    );
    // Restarting without a cookie again would loop.
    play(false, &[(done(REFRESH_REQUIRED, false, ""), &[Act::Ended(REFRESH_REQUIRED)])]);
}

#[test]
fn an_end_with_success_ends_the_refresh_too() {
    play(
        true,
        &[
            (id_set(false, &[A], ""), &[Act::Keep(A)]),
            (done(SUCCESS, false, "c2"), &[Act::GoneUnmentioned, agreed("c2"), Act::Ended(SUCCESS)]),
        ],
    );
    play(true, &[(done(SUCCESS, true, "c2"), &[agreed("c2"), Act::Ended(SUCCESS)])]);
}

#[test]
fn an_end_with_an_error_is_no_agreement_and_its_cookie_counts_in_the_persist_stage_alone() {
    const UNAVAILABLE: u32 = 52;
    play(
        false,
        &[(entry(State::Add, A, ""), &[Act::Put(A)]), (done(UNAVAILABLE, false, "c9"), &[Act::Ended(UNAVAILABLE)])],
    );
    play(
        true,
        &[
            (delete_end("c1", true), &[agreed("c1")]),
            (done(UNAVAILABLE, true, "c2"), &[Act::Cookie(b"c2".to_vec()), Act::Ended(UNAVAILABLE)]),
        ],
    );
}
