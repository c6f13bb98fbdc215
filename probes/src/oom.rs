//! The kernel log's grammar of OOM kills.
