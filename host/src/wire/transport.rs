//! Settings of HTTP/2 connections that both ends share.

use std::time::Duration;

/// HTTP/2 pings: a peer that vanished without closing is noticed after interval plus timeout.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// How long a ping may stay unanswered.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Flow-control window of one stream, in bytes: a tensor chunk must never wait for a window update.
pub const STREAM_WINDOW_BYTES: u32 = 16 << 20;

/// Flow-control window of one connection, in bytes.
pub const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;

/// Largest HTTP/2 frame, in bytes. The default of 16 KiB costs 20 to 80 % of the throughput of large tensors.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;

/// Largest header or trailer list, in bytes: room for the longest error detail, see `status`.
pub const HEADER_LIST_BYTES_MAX: u32 = 64 << 10;

/// Largest message, in bytes: tensors travel in chunks of at most 1 MiB, so no more is ever needed.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
