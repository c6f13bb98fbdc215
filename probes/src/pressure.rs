//! pressure
