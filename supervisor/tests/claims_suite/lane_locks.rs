//! What the lane lock adds to the lines of an issue lock. Verdict and exit code are the same with and without it.

use std::fs;

use git2::{Repository, Signature, Time};

use super::{Said, Sleeper, World};

const BRANCH: &str = "refs/heads/issue-7-slug";

struct Lanes {
    world: World,
    root: String,
}

impl Lanes {
    fn new() -> Self {
        let world = World::new();
        let root = world.dir.path().join("lanes");
        fs::create_dir_all(root.join("lane-7")).unwrap();
        world.plant(BRANCH, "work");
        Self { root: root.to_str().unwrap().to_owned(), world }
    }

    fn run(&self, args: &[&str]) -> Said {
        self.world.run_with("box-a", args, &[("LANE_ROOT", &self.root)])
    }

    fn acquire(&self, holder: &Sleeper) {
        self.run(&["lane", "acquire", "7", "--pid", &holder.pid()]).is(0, &["ACQUIRED"]);
    }

    /// A claim for this process that the branch refuses.
    fn refused(&self, pid: &str, parts: &[&str]) -> Said {
        let said = self.run(&["issue", "claim", "7", "--pid", pid]);
        said.is(2, &["CLAIM: LOST issue=7 reason=", "detail=", "claim-ref=free"]).is(2, parts);
        for runnable in ["adopt", "--expect", "lanewarden ", "claim.sh", "$("] {
            assert!(!said.out.contains(runnable), "{said:?}");
        }
        assert_eq!(self.world.at("refs/claims/issue-7"), None);
        said
    }
}

#[test]
fn held_says_what_the_lane_lock_says() {
    let lanes = Lanes::new();
    let me = Sleeper::start(lanes.world.dir.path());
    let mut other = Sleeper::start(lanes.world.dir.path());
    lanes.world.remote.find_reference(BRANCH).unwrap().delete().unwrap();
    let claim = |state: &str| {
        let said = lanes.run(&["issue", "claim", "7", "--pid", &me.pid()]);
        said.is(0, &["CLAIM: HELD issue=7", &format!(" lane-lock={state}")]);
    };
    claim("free");
    fs::remove_dir(format!("{}/lane-7", lanes.root)).unwrap();
    claim("no-lane-dir");
    fs::create_dir(format!("{}/lane-7", lanes.root)).unwrap();
    lanes.acquire(&other);
    claim("occupied-alive");
    other.end();
    claim("reclaimable-DEAD-NO-PROCESS");
    lanes.run(&["lane", "reclaim", "7", "--pid", &me.pid()]).is(0, &["RECLAIMED"]);
    claim("self");
    // A lock that cannot be read decorates with that, and the lock is held all the same.
    let locks = format!("{}/.lane-locks", lanes.root);
    fs::remove_dir_all(&locks).unwrap();
    fs::write(&locks, "no directory").unwrap();
    claim("unmeasured(probe-exit-1)");
    let said = lanes.world.run_with(
        "box-a",
        &["issue", "claim", "7", "--pid", &me.pid()],
        &[("LANE_ROOT", "/no/such/root")],
    );
    said.is(0, &["lane-lock=unmeasured(not-probed) (re-entrant)"]);
    let said = lanes.world.run_with(
        "box-a",
        &["issue", "claim", "7", "--pid", &me.pid()],
        &[("LANE_ROOT", "relative")],
    );
    said.is(0, &["lane-lock=unmeasured(probe-exit-64)"]);
}

#[test]
fn cl_22a_without_evidence_a_branch_is_a_legacy_lock() {
    let lanes = Lanes::new();
    let me = Sleeper::start(lanes.world.dir.path());
    lanes.refused(&me.pid(), &["reason=legacy-branch-lock", "lane-evidence=none lane-lock=free ("]);
}

#[test]
fn cl_22b_22c_our_own_lane_lock_is_released_then_resumed() {
    let lanes = Lanes::new();
    let me = Sleeper::start(lanes.world.dir.path());
    lanes.acquire(&me);
    let said = lanes.refused(
        &me.pid(),
        &["reason=released-then-resumed", "lane-evidence=lane-lock-self lane-lock=self"],
    );
    said.is(2, &["Ask with verify", "the procedure for abandoned work does not apply"]);
}

#[test]
fn cl_22e_22h_a_live_peer_is_named_and_taking_over_is_forbidden() {
    let lanes = Lanes::new();
    let (me, peer) =
        (Sleeper::start(lanes.world.dir.path()), Sleeper::start(lanes.world.dir.path()));
    lanes.acquire(&peer);
    let said = lanes.refused(
        &me.pid(),
        &["reason=lane-occupied-by-live-peer", "lane-evidence=lane-lock-alive-local-peer"],
    );
    let lane = format!(
        "lane-lock=occupied-alive lane-dir={}/lane-7 lane-holder-pid={}",
        fs::canonicalize(&lanes.root).unwrap().display(),
        peer.pid()
    );
    said.is(2, &[&lane, "Taking it over and the procedure for abandoned work are both wrong"]);
}

#[test]
fn cl_22f_22g_a_checkout_is_evidence_only_on_the_issues_branch() {
    let lanes = Lanes::new();
    let me = Sleeper::start(lanes.world.dir.path());
    let lane = Repository::init(format!("{}/lane-7", lanes.root)).unwrap();
    let who = Signature::new("x", "x@example.invalid", &Time::new(1, 0)).unwrap();
    let tree = lane.find_tree(lane.treebuilder(None).unwrap().write().unwrap()).unwrap();
    lane.commit(Some("refs/heads/issue-7-slug"), &who, &who, "m", &tree, &[]).unwrap();
    for (branch, evidence) in [
        ("refs/heads/issue-7-slug", "lane-evidence=lane-worktree-branch:issue-7-slug "),
        ("refs/heads/issue-70-x", "lane-evidence=none "),
        ("refs/heads/main", "lane-evidence=none "),
    ] {
        lane.set_head(branch).unwrap();
        lanes.refused(&me.pid(), &["reason=legacy-branch-lock", evidence]);
    }
}
