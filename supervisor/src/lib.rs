//! The supervisor.
pub mod claims;
pub mod config;
pub mod ids;
pub mod keeper;
pub mod verdict;
