//! One pass over the box and its runs: what the kernel counts of each. On a thread of its own, so that neither a hung file
//! system nor a long walk keeps evidence from the loop.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

use lanewarden_probes::{Reading, Root, cgroup, host};

use super::patrol;
use crate::{
    clock::unix_ms,
    effect::Post,
    event::{Event, RunSample, Sampling},
    ids::RunId,
    sources::{Events, address_space},
};

/// A handle on the thread that measures.
#[derive(Debug, Clone)]
pub struct Sampler {
    jobs: SyncSender<Vec<Post>>,
}

impl Sampler {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, if no thread can be made.
    pub fn start(events: Events) -> std::io::Result<Self> {
        // One pass under way and one that waits are enough: a later pass sees more.
        let (jobs, inbox) = sync_channel(1);
        thread::Builder::new()
            .name("sampler".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || work(&inbox, &events))?;
        Ok(Self { jobs })
    }

    /// Measures the box and these runs; answers with an event.
    pub fn sample(&self, posts: Vec<Post>) {
        if self.jobs.try_send(posts).is_err() {
            tracing::debug!("the last pass over the runs is still under way");
        }
    }
}

fn work(inbox: &Receiver<Vec<Post>>, events: &Events) {
    let root = Root::live();
    let mut groups = Groups::default();
    while let Ok(posts) = inbox.recv() {
        let sampling = Sampling {
            taken_at_ms: unix_ms(),
            oom_kills: known(host::vmstat_oom_kills(&root)),
            runs: posts.iter().map(|post| groups.sample(&root, post)).collect(),
        };
        groups.keep(&posts);
        if events.blocking_send(Event::Sampled(Box::new(sampling))).is_err() {
            return;
        }
    }
}

/// Where the groups of runs are.
#[derive(Debug, Default)]
struct Groups {
    dirs: BTreeMap<RunId, PathBuf>,
}

impl Groups {
    fn sample(&mut self, root: &Root, post: &Post) -> RunSample {
        let dir = self.dir(root, post);
        let grouped = dir.and_then(|dir| known(cgroup::procs(dir)));
        // Without a group of its own the run is known by descent, session and cookie.
        let processes = grouped.unwrap_or_else(|| patrol::members(root, post));
        let mut tasks =
            dir.and_then(|dir| known(cgroup::threads(dir))).unwrap_or_else(|| processes.clone());
        if !tasks.contains(&post.pid) {
            tasks.push(post.pid);
        }
        RunSample {
            run: post.run.clone(),
            oom_kills: dir.and_then(|dir| known(cgroup::oom_kill_count(dir))),
            sharing: address_space::sharing(post.pid, &processes),
            tasks,
        }
    }

    fn dir(&mut self, root: &Root, post: &Post) -> Option<&Path> {
        let name = post.cgroup.as_deref()?;
        if !self.dirs.contains_key(&post.run) {
            let own = known(cgroup::hierarchies(root, None))?;
            self.dirs.insert(post.run.clone(), own.memory_group(name)?);
        }
        self.dirs.get(&post.run).map(PathBuf::as_path)
    }

    /// Forgets the runs that nobody asks about any more.
    fn keep(&mut self, posts: &[Post]) {
        self.dirs.retain(|run, _| posts.iter().any(|post| post.run == *run));
    }
}

fn known<T>(reading: Reading<T>) -> Option<T> {
    reading.ok().and_then(Result::ok)
}
