//! Saying things to people.
