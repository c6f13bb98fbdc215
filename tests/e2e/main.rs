//! End to end, a module a chapter. Each test has a home of its own and runs beside all others.

#![cfg(test)]

mod adoption;
mod bad_input;
mod claims;
mod commands;
mod dead_lanes;
mod demo;
mod http;
mod layers;
mod liveness;
mod notices;
mod observed;
mod oom;
mod stops;
mod store;
mod terminal;
mod verdicts;
mod world;
