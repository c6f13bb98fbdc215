//! The flow, tested by what it returns: events in, lists of effects out, nothing between.

mod admission;
mod adoption;
mod evidence;
mod machine;
mod observed;
mod orders;
mod patrol;
mod start;
mod verdicts;
mod world;
