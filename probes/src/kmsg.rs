//! kmsg
