//! A storm of OOM kills. A program of its own, since the kernel then prints no headers for anybody on the box, and other
//! tests want theirs.

#![cfg(test)]

use lanewarden_tests::{
    Home, http,
    requires::{Need, has},
    until,
};

/// More than the ten headers that the kernel prints in five seconds (DEFAULT_RATELIMIT_BURST).
const STORM: usize = 17;

/// Kills by the kernel in lane `a`, named or not.
fn kills(home: &Home) -> Option<f64> {
    let page = home.metrics();
    let of = |kind: &str| {
        http::sample(&page, &format!("lanewarden_oom_kills_total{{lane=\"a\",kind=\"{kind}\"}}"))
    };
    Some(of("oom-memcg")? + of("oom-unnamed")?)
}

#[test]
fn what_the_kernel_tells_without_headers_is_counted_whole_and_blames_its_lane() {
    if !has(&[Need::MemoryCgroup, Need::Kmsg]) {
        return;
    }
    let mut home = Home::new("storm");
    let done = home.at("done");
    let limited = "restart = { delay = \"1h\", max_delay = \"1h\", breaker = 0 }\n\
                   limits = { memory_max = \"24M\" }";
    let mut words = ["child-eats", "64"].repeat(STORM);
    words.extend(["touch", &done, "sleep"]);
    home.lane_with("a", &words, limited);
    home.lane("bystander", &["sleep"]);
    home.start();
    until("the storm to be over", || {
        if home.path("done").exists() { Ok(()) } else { Err(home.log()) }
    });
    // By its record, or, where that does not tell, by the lane's counter.
    until("all kills to be counted", || match kills(&home) {
        Some(17.0) => Ok(()),
        other => Err(format!("{other:?}\n{}", home.log())),
    });
    let page = home.metrics();
    for kind in ["oom-memcg", "oom-unnamed", "oom-global"] {
        let series = format!("lanewarden_oom_kills_total{{lane=\"bystander\",kind=\"{kind}\"}}");
        assert_eq!(http::sample(&page, &series), Some(0.0), "{series}");
    }
    home.end();
}
