//! End to end, a module a chapter. Each test has a home of its own and runs beside all others.

#![cfg(test)]

mod adoption;
mod claims;
mod notices;
mod stops;
mod verdicts;
mod world;
