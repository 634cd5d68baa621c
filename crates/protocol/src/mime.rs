//! The structure of MIME messages (RFC 2045, 2046), as far as a mail server changes it.

pub mod seven_bit;
