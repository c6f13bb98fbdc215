//! Claims and issue locks as they are typed, against real repositories: the cases by which the predecessor is tested,
//! each under its number. Those without a test of their name stand below with their reason.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests start processes, watch the clock, and fail at the first surprise"
)]

mod claims_suite;
mod executable_support;
mod forge_support;

/// Every case of the predecessor's three suites, by family.
const CASES: [(&str, &str); 3] = [
    (
        "hb",
        "01 02 04 05a 05b 06 07 09a 09b 09c 10 11 13 14 15 16 17 19 20 21 22 23 25 26 27 28a 28b 29 31 32 33 34a 34b 35 \
         37a 37b 38 39 40 41 43 44 45 46 47 49 50a 50b 50c 50d 50e 50f 51 52 52b 54 55 56 57 58a 58b 58c 60 61 62 63 64a \
         64b 66 67 68 69 70 72a 72b 73a 73b 73c 74 75 76 78a 78b 79 80 81 82",
    ),
    (
        "cl",
        "01 02 03 04 05a 05b 07 08 09 10 11a 11b 13 14 15 16a 16b 16c 17 19 20a 20b 20c 20d 20e 20f 20g 20h 20i 22a 22b \
         22c 22d 22e 22f 22g 22h",
    ),
    (
        "cr",
        "01 02 03 04a 04b 04c 04d 04e 06 07 08 09 10a 10b 10c 10d 10e 10f 10g 12a 12b 12c 13a 13b 13c 13d 13e 13f 13g 14 \
         15 16 18a 18b 18c 19a 19b 19c 20a 20b",
    ),
];

/// Cases that have no test named after them here, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("hb_33", "the pid that the warden stamps: tested end to end with the warden"),
    (
        "hb_38_39_45_47_49_50_54_55",
        "process lister and time zone: liveness asks the kernel, tested in probes",
    ),
    ("hb_43_46_67_81", "texts of the predecessor's help and sources"),
    (
        "hb_51_66",
        "FETCH_HEAD and private refs: readers use a repository of their own, tested in the claims room",
    ),
    ("hb_70", "a failing legacy listing alone: both namespaces come in one connection"),
    ("hb_78b", "a process that we may not signal needs a second user"),
    ("cl_22d", "every test of a refusal's reason also looks for commands in it"),
    ("cr_08", "a free lock without branch is taken by nearly every test"),
    ("cr_18c", "a check of documents"),
];

/// The cases that stand at the beginning of a name: `cl_05_16a_words` is 05 and 16a of `cl`. A number without a letter
/// stands for all its letters.
fn named(name: &str) -> Vec<(&str, &str)> {
    let is_case =
        |part: &str| part.len() >= 2 && part.bytes().take(2).all(|byte| byte.is_ascii_digit());
    let mut family = "";
    let mut found = Vec::new();
    for part in name.split('_') {
        if CASES.iter().any(|(own, _)| *own == part) {
            family = part;
        } else if is_case(part) && !family.is_empty() {
            found.push((family, part));
        } else {
            break;
        }
    }
    found
}

#[test]
fn every_case_has_a_test_of_its_name_or_a_reason() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/claims_suite");
    let sources: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let tests = sources.iter().flat_map(|text| text.split("#[test]\nfn ").skip(1));
    let tests: Vec<_> = tests.flat_map(|text| named(text.split('(').next().unwrap())).collect();
    let excused: Vec<_> = NOT_HERE.iter().flat_map(|(cases, _)| named(cases)).collect();
    let covers = |by: &[(&str, &str)], family: &str, case: &str| {
        let number = case.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
        by.iter().any(|(own, named)| *own == family && (*named == case || *named == number))
    };
    let all = CASES
        .iter()
        .flat_map(|(family, cases)| cases.split_whitespace().map(move |case| (*family, case)));
    let missing: Vec<_> = all
        .filter(|(family, case)| !covers(&tests, family, case) && !covers(&excused, family, case))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    let idle: Vec<_> = excused.iter().filter(|excuse| tests.contains(excuse)).collect();
    assert!(idle.is_empty(), "tested, and yet excused: {idle:?}");
    assert!(NOT_HERE.iter().all(|(_, reason)| reason.len() > 10));
}
