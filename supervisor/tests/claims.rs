//! Claims and issue locks as they are typed, against real repositories: the cases by which the predecessor is tested,
//! each under its number.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests start processes, watch the clock, and fail at the first surprise"
)]

mod claims_suite;
mod forge_support;

/// Cases of the predecessor's suites that have no test here, and why.
const NOT_HERE: &[(&str, &str)] = &[
    (
        "HB-23, HB-27, HB-35, HB-41, HB-44, HB-52b, HB-56",
        "dead-lanes: no test of the whole command by this number; the verdicts themselves are tested in probes",
    ),
    ("HB-33", "the pid that the warden stamps: tested with the warden"),
    (
        "HB-38, HB-39, HB-45..HB-50, HB-54, HB-55",
        "process lister and time zone: liveness asks the kernel, tested in probes",
    ),
    ("HB-43, HB-46, HB-67, HB-81", "texts of the predecessor's help and sources"),
    (
        "HB-51, HB-66",
        "FETCH_HEAD and private refs: readers use a repository of their own, tested in the claims room",
    ),
    ("HB-70", "a failing legacy listing alone: both namespaces come in one connection"),
    ("HB-78b", "a process that we may not signal needs a second user"),
    ("CL-22d", "every test of a refusal's reason also looks for commands in it"),
    ("CR-07", "a tip that imitates our claim: in the test of CL-03"),
    ("CR-08", "a free lock without branch is taken by nearly every test"),
    ("CR-18c", "a check of documents"),
];

#[test]
fn cases_that_are_left_out_have_a_reason() {
    assert!(NOT_HERE.iter().all(|(case, reason)| !case.is_empty() && reason.len() > 10));
}
