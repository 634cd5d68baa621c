//! A connection of any kind: TCP, TLS or a Unix socket.

use tokio::io::{AsyncRead, AsyncWrite};

/// A connection of any kind.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}
