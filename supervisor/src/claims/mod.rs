//! The claims room.
