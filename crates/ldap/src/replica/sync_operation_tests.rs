//! Transcripts of Sync Operations: messages of the server and the resulting actions.

use super::*;

const A: EntryUuid = [0xa; 16];
const B: EntryUuid = [0xb; 16];
const C: EntryUuid = [0xc; 16];

fn cookie(name: &str) -> Option<Vec<u8>> {
    (!name.is_empty()).then(|| name.as_bytes().to_vec())
}

fn entry(state: EntryState, uuid: EntryUuid, name: &str) -> SyncMessage {
    SyncMessage::Entry { state, uuid, cookie: cookie(name) }
}

fn present_end(name: &str, done: bool) -> SyncMessage {
    SyncMessage::RefreshPresent { cookie: cookie(name), done }
}

fn delete_end(name: &str, done: bool) -> SyncMessage {
    SyncMessage::RefreshDelete { cookie: cookie(name), done }
}

fn id_set(deletes: bool, uuids: &[EntryUuid], name: &str) -> SyncMessage {
    SyncMessage::IdSet { cookie: cookie(name), deletes, uuids: uuids.to_vec() }
}

fn done(code: u32, deletes: bool, name: &str) -> SyncMessage {
    SyncMessage::Done { code, cookie: cookie(name), deletes }
}

/// Checks the actions after each message.
fn check_transcript(with_cookie: bool, transcript: &[(SyncMessage, &[SyncAction])]) -> SyncOperation {
    let mut refresh = SyncOperation::new(with_cookie);
    for (message, expected) in transcript {
        refresh.handle_message(message.clone());
        let acts: Vec<SyncAction> = std::iter::from_fn(|| refresh.poll_action()).collect();
        assert_eq!(&acts[..], *expected, "after {message:?}");
    }
    refresh
}

fn agreed(name: &str) -> SyncAction {
    SyncAction::RefreshDone(cookie(name))
}

#[test]
fn initial_content_ends_with_what_it_did_not_mention_being_gone_whichever_way_it_ends() {
    for end in [present_end("c1", true), delete_end("c1", true)] {
        let refresh = check_transcript(
            false,
            &[
                (entry(EntryState::Add, A, ""), &[SyncAction::Put(A)]),
                (entry(EntryState::Add, B, ""), &[SyncAction::Put(B)]),
                (end, &[SyncAction::GoneUnmentioned, agreed("c1")]),
            ],
        );
        assert!(refresh.is_live());
    }
}

#[test]
fn in_a_present_phase_what_is_not_mentioned_is_gone() {
    let refresh = check_transcript(
        true,
        &[
            (entry(EntryState::Add, A, ""), &[SyncAction::Put(A)]),
            (entry(EntryState::Present, B, ""), &[SyncAction::Keep(B)]),
            (id_set(false, &[C], ""), &[SyncAction::Keep(C)]),
            (present_end("c2", true), &[SyncAction::GoneUnmentioned, agreed("c2")]),
        ],
    );
    assert!(refresh.is_live());
}

#[test]
fn in_a_delete_phase_what_is_named_is_gone_and_nothing_else() {
    let refresh = check_transcript(
        true,
        &[
            (entry(EntryState::Add, A, ""), &[SyncAction::Put(A)]),
            (entry(EntryState::Delete, B, ""), &[SyncAction::Gone(B)]),
            (id_set(true, &[C], ""), &[SyncAction::Gone(C)]),
            (delete_end("c2", true), &[agreed("c2")]),
        ],
    );
    assert!(refresh.is_live());
}

#[test]
fn a_present_phase_may_go_before_a_delete_phase() {
    let mut refresh = check_transcript(
        true,
        &[
            (id_set(false, &[A, B], ""), &[SyncAction::Keep(A), SyncAction::Keep(B)]),
            (present_end("c2", false), &[SyncAction::GoneUnmentioned]),
            (entry(EntryState::Delete, B, ""), &[SyncAction::Gone(B)]),
        ],
    );
    assert!(!refresh.is_live());
    refresh.handle_message(delete_end("", true));
    assert_eq!(refresh.poll_action(), Some(agreed("c2")));
    assert!(refresh.is_live());
}

#[test]
fn a_cookie_waits_for_the_end_of_the_refresh_and_the_last_one_counts() {
    check_transcript(
        true,
        &[
            (entry(EntryState::Add, A, "c2"), &[SyncAction::Put(A)]),
            (SyncMessage::NewCookie(b"c3".to_vec()), &[]),
            (id_set(false, &[B], "c4"), &[SyncAction::Keep(B)]),
            (present_end("", true), &[SyncAction::GoneUnmentioned, agreed("c4")]),
        ],
    );
}

#[test]
fn an_interrupted_refresh_gives_no_cookie() {
    let transcript = [
        (entry(EntryState::Add, A, "c2"), vec![SyncAction::Put(A)]),
        (id_set(false, &[B], "c3"), vec![SyncAction::Keep(B)]),
        (present_end("c4", false), vec![SyncAction::GoneUnmentioned]),
        (entry(EntryState::Delete, C, "c5"), vec![SyncAction::Gone(C)]),
        (delete_end("c6", true), vec![agreed("c6")]),
    ];
    for cut in 0..transcript.len() {
        let mut refresh = SyncOperation::new(true);
        transcript[..cut].iter().for_each(|(message, _)| refresh.handle_message(message.clone()));
        let acts: Vec<SyncAction> = std::iter::from_fn(|| refresh.poll_action()).collect();
        assert!(!acts.iter().any(|act| matches!(act, SyncAction::Cookie(_) | SyncAction::RefreshDone(_))), "{acts:?}");
    }
}

#[test]
fn in_the_persist_stage_each_change_comes_before_its_cookie() {
    check_transcript(
        true,
        &[
            (delete_end("c1", true), &[agreed("c1")]),
            (entry(EntryState::Add, A, "c2"), &[SyncAction::Put(A), SyncAction::Cookie(b"c2".to_vec())]),
            (entry(EntryState::Modify, B, ""), &[SyncAction::Put(B)]),
            (entry(EntryState::Delete, C, "c3"), &[SyncAction::Remove(C), SyncAction::Cookie(b"c3".to_vec())]),
            (
                id_set(true, &[A, B], "c4"),
                &[SyncAction::Remove(A), SyncAction::Remove(B), SyncAction::Cookie(b"c4".to_vec())],
            ),
            (SyncMessage::NewCookie(b"c5".to_vec()), &[SyncAction::Cookie(b"c5".to_vec())]),
            (entry(EntryState::Present, A, ""), &[]),
            (delete_end("c6", true), &[SyncAction::Cookie(b"c6".to_vec())]),
        ],
    );
}

#[test]
fn a_cookie_that_the_server_does_not_know_leads_to_a_restart_without_one() {
    check_transcript(
        true,
        &[
            (entry(EntryState::Add, A, ""), &[SyncAction::Put(A)]),
            (done(REFRESH_REQUIRED, false, "c9"), &[SyncAction::Restart, SyncAction::Ended(REFRESH_REQUIRED)]),
            (entry(EntryState::Add, B, ""), &[]),
        ],
    );
    check_transcript(
        false,
        &[
            (delete_end("c1", true), &[SyncAction::GoneUnmentioned, agreed("c1")]),
            (done(REFRESH_REQUIRED, false, ""), &[SyncAction::Restart, SyncAction::Ended(REFRESH_REQUIRED)]),
        ],
    );
    // Restarting without a cookie again would loop.
    check_transcript(false, &[(done(REFRESH_REQUIRED, false, ""), &[SyncAction::Ended(REFRESH_REQUIRED)])]);
}

#[test]
fn an_end_with_success_ends_the_refresh_too() {
    check_transcript(
        true,
        &[
            (id_set(false, &[A], ""), &[SyncAction::Keep(A)]),
            (done(SUCCESS, false, "c2"), &[SyncAction::GoneUnmentioned, agreed("c2"), SyncAction::Ended(SUCCESS)]),
        ],
    );
    check_transcript(true, &[(done(SUCCESS, true, "c2"), &[agreed("c2"), SyncAction::Ended(SUCCESS)])]);
}

#[test]
fn an_end_with_an_error_is_no_agreement_and_its_cookie_counts_in_the_persist_stage_alone() {
    const UNAVAILABLE: u32 = 52;
    check_transcript(
        false,
        &[
            (entry(EntryState::Add, A, ""), &[SyncAction::Put(A)]),
            (done(UNAVAILABLE, false, "c9"), &[SyncAction::Ended(UNAVAILABLE)]),
        ],
    );
    check_transcript(
        true,
        &[
            (delete_end("c1", true), &[agreed("c1")]),
            (done(UNAVAILABLE, true, "c2"), &[SyncAction::Cookie(b"c2".to_vec()), SyncAction::Ended(UNAVAILABLE)]),
        ],
    );
}
