//! Real repositories for the tests of this room.
