//! The Date field.

use mail::Timestamp;

/// The present, as the Date field has it. It is formatted once a second, however many responses
/// have it.
#[derive(Clone, Debug)]
pub struct HttpDate {
    second: u64,
    text: String,
}

impl HttpDate {
    /// This time of the wall clock.
    pub fn new(wall: Timestamp) -> HttpDate {
        HttpDate { second: wall.seconds(), text: wall.to_http_date() }
    }

    /// Makes it this time of the wall clock.
    pub fn advance(&mut self, wall: Timestamp) {
        if self.second != wall.seconds() {
            *self = HttpDate::new(wall);
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Seconds since 1970.
    pub(super) fn seconds(&self) -> u64 {
        self.second
    }
}
