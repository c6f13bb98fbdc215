//! A home of its own with the real binary in it. Ends whatever it started, by identity; keeps the directory of a test that
//! failed and says where it is.

use std::{
    cell::RefCell,
    fs::{self, File, OpenOptions},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    cgroup,
    command::{Follower, Output, background, run},
    config::{LanePlan, Plan},
    git, http, proc, until,
};

/// Milliseconds since the epoch.
#[must_use]
pub fn unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// A running warden.
#[derive(Debug, Clone)]
pub struct Warden {
    child: Rc<RefCell<Child>>,
    pid: u32,
}

impl Warden {
    /// Its pid.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        proc::signal(self.pid, signal);
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill9(&self) {
        self.signal(Signal::KILL);
        let status = self.child.borrow_mut().wait().unwrap();
        assert!(!status.success(), "{status}");
    }

    /// Sends SIGTERM and waits for its end.
    #[must_use]
    pub fn term(&self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Waits for its end.
    #[must_use]
    pub fn ended(&self) -> ExitStatus {
        until("the warden's end", || self.status().ok_or("it runs"))
    }

    /// How it ended, if it did.
    #[must_use]
    pub fn status(&self) -> Option<ExitStatus> {
        self.child.borrow_mut().try_wait().unwrap()
    }
}

/// A box of its own.
#[derive(Debug)]
pub struct Home {
    dir: PathBuf,
    /// The configuration that the next start writes.
    pub plan: Plan,
    wardens: RefCell<Vec<Warden>>,
}

impl Home {
    /// An empty box.
    ///
    /// # Panics
    /// If the temporary directory cannot be used.
    #[must_use]
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = tempfile::Builder::new().prefix("lw-test-").tempdir().unwrap().keep();
        let machine = format!("box-{name}-{}-{number}", std::process::id());
        let plan = Plan::new(&dir, &machine);
        fs::create_dir_all(&plan.lane_root).unwrap();
        Self { dir, plan, wardens: RefCell::default() }
    }

    /// The directory, or something below it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A path below the directory as text, for a worker's arguments.
    #[must_use]
    pub fn at(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A lane in a checkout of its own, whose worker is the fixture with these words.
    pub fn lane(&mut self, id: &str, words: &[&str]) {
        self.lane_with(id, words, "");
    }

    /// A lane with more lines of configuration.
    pub fn lane_with(&mut self, id: &str, words: &[&str], extra: &str) {
        let dir = self.plan.lane_root.join(id);
        git::checkout(&dir);
        let program = crate::worker_program().display().to_string();
        let command = std::iter::once(program).chain(words.iter().map(|word| (*word).to_owned()));
        let command = command.collect();
        self.plan.lanes.push(LanePlan { id: id.to_owned(), dir, command, extra: extra.to_owned() });
    }

    /// The configuration's path.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.path("config.toml")
    }

    /// Writes the configuration.
    pub fn configure(&self) {
        let cookie = self.dir.display().to_string();
        fs::write(self.config(), self.plan.toml((proc::COOKIE, &cookie))).unwrap();
    }

    /// The program with this home's configuration, ready for more arguments.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(crate::program());
        command.arg("--config").arg(self.config()).env(proc::COOKIE, &self.dir);
        command.env_remove("NO_COLOR").env_remove("LANEWARDEN_LOG").stdin(Stdio::null());
        command
    }

    /// Starts a warden and waits until it is ready.
    pub fn start(&self) -> Warden {
        self.configure();
        drop(fs::remove_file(self.http_address_file()));
        let warden = self.launch(&[]);
        until("the warden to be ready", || {
            if let Some(status) = warden.status() {
                panic!("the warden ended with {status}: {}", self.log());
            }
            let answer = self.http("/readyz")?;
            if answer.status == 200 && self.is_ours() { Ok(()) } else { Err(answer.body) }
        });
        warden
    }

    /// Starts a warden with more arguments, and waits for nothing.
    pub fn launch(&self, more: &[&str]) -> Warden {
        let mut command = self.command();
        command.arg("run").args(more);
        self.adopt(command)
    }

    /// Starts this command as a warden of the home, and waits for nothing.
    pub fn adopt(&self, mut command: Command) -> Warden {
        let log = self.open_log("warden.log");
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let warden = Warden { pid: child.id(), child: Rc::new(RefCell::new(child)) };
        self.wardens.borrow_mut().push(warden.clone());
        warden
    }

    fn open_log(&self, name: &str) -> File {
        OpenOptions::new().create(true).append(true).open(self.path(name)).unwrap()
    }

    /// What the wardens logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("warden.log")).unwrap_or_default()
    }

    /// Runs a command of the program to its end.
    ///
    /// # Panics
    /// If it does not end in time.
    #[must_use]
    pub fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command();
        command.args(args);
        run(command)
    }

    /// Starts a command that goes on, its standard output in a file.
    #[must_use]
    pub fn follow(&self, args: &[&str]) -> Follower {
        let mut command = self.command();
        command.args(args).stderr(self.open_log("follower.err"));
        background(command, &self.path("follower.out"))
    }

    fn http_address_file(&self) -> PathBuf {
        self.plan.runtime_dir.join("http-address")
    }

    /// Where the daemon serves HTTP.
    ///
    /// # Errors
    /// If it has not said so yet.
    pub fn http_address(&self) -> Result<SocketAddr, String> {
        let text = fs::read_to_string(self.http_address_file()).map_err(|e| e.to_string())?;
        text.trim().parse().map_err(|error| format!("{text:?}: {error}"))
    }

    /// GETs a path from the daemon.
    ///
    /// # Errors
    /// Whatever keeps an answer from coming.
    pub fn http(&self, path: &str) -> Result<http::Response, String> {
        http::get(self.http_address()?, path)
    }

    fn is_ours(&self) -> bool {
        self.view().is_ok_and(|view| view["machine"] == self.plan.machine.as_str())
    }

    /// The daemon's picture of the box.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn view(&self) -> Result<Value, String> {
        let answer = self.http("/api/v1/lanes")?;
        serde_json::from_str(&answer.body).map_err(|error| error.to_string())
    }

    /// The daemon's picture of a lane.
    ///
    /// # Errors
    /// If it does not answer, or has no such lane.
    pub fn lane_view(&self, id: &str) -> Result<Value, String> {
        let view = self.view()?;
        let lanes = view["lanes"].as_array().cloned().unwrap_or_default();
        lanes.into_iter().find(|lane| lane["id"] == id).ok_or_else(|| format!("no lane {id}"))
    }

    /// Waits until a lane looks so.
    pub fn until_lane(&self, id: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        until(&format!("lane {id}: {what}"), || {
            let lane = self.lane_view(id)?;
            if holds(&lane) { Ok(lane) } else { Err(lane.to_string()) }
        })
    }

    /// Waits for a lane's state.
    pub fn until_state(&self, id: &str, state: &str) -> Value {
        self.until_lane(id, state, |lane| lane["state"] == state)
    }

    /// Waits until a lane has a living worker; its pid.
    pub fn until_running(&self, id: &str) -> u32 {
        let lane = self
            .until_lane(id, "running", |lane| lane["state"] == "running" && lane["pid"].is_u64());
        u32::try_from(lane["pid"].as_u64().unwrap()).unwrap()
    }

    /// Waits until the newest judged run of a lane has this verdict; the lane.
    pub fn until_verdict(&self, id: &str, verdict: &str) -> Value {
        self.until_lane(id, verdict, |lane| lane["last"]["verdict"] == verdict)
    }

    /// The metrics page.
    ///
    /// # Panics
    /// If the daemon does not answer.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.http("/metrics").unwrap().body
    }

    /// Waits until a series has at least this value.
    pub fn until_metric(&self, series: &str, least: f64) {
        until(&format!("{series} >= {least}"), || {
            let value = http::sample(&self.http("/metrics")?.body, series);
            if value.is_some_and(|value| value >= least) {
                Ok(())
            } else {
                Err(format!("{value:?}"))
            }
        });
    }

    /// The past runs of a lane, newest first.
    #[must_use]
    pub fn history(&self, lane: &str) -> Vec<Value> {
        let output = self.run(&["history", lane, "--json", "--limit", "100"]);
        assert_eq!(output.code, 0, "{output:?}");
        output.json().as_array().cloned().unwrap_or_default()
    }

    /// Waits until a worker has written its pid into this file of the home.
    pub fn until_pid(&self, name: &str) -> u32 {
        let path = self.path(name);
        until(&format!("a pid in {name}"), || {
            fs::read_to_string(&path)
                .map_err(|error| error.to_string())?
                .parse()
                .map_err(|error| format!("{error}"))
        })
    }

    /// The running keepers of this home.
    #[must_use]
    pub fn keepers(&self) -> Vec<u32> {
        let all = proc::of_home(&self.dir).into_iter();
        all.filter(|pid| proc::command_line(*pid).contains(" keep --runtime-dir ")).collect()
    }

    /// The running workers of this home with this word in their command line.
    #[must_use]
    pub fn workers(&self, word: &str) -> Vec<u32> {
        let program = crate::worker_program().display().to_string();
        let all = proc::of_home(&self.dir).into_iter();
        all.filter(|pid| {
            let line = proc::command_line(*pid);
            line.starts_with(&program) && line.contains(word)
        })
        .collect()
    }

    /// Running git processes of this home.
    #[must_use]
    pub fn git_processes(&self) -> Vec<String> {
        let all = proc::of_home(&self.dir).into_iter().map(proc::command_line);
        all.filter(|line| line.starts_with("git ") || line.contains("/git")).collect()
    }

    /// Ends the warden as Ctrl-C does, and demands that nothing of the home is left.
    pub fn end(&self) {
        for warden in self.wardens.borrow().iter().filter(|warden| warden.status().is_none()) {
            warden.signal(Signal::INT);
            let status = warden.ended();
            assert!(status.success(), "{status}: {}", self.log());
        }
        until("nothing of the home to run", || {
            let left: Vec<String> = proc::of_home(&self.dir)
                .into_iter()
                .map(|pid| format!("{pid} {}", proc::command_line(pid)))
                .collect();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let mut groups: Vec<PathBuf> =
            self.keepers().into_iter().flat_map(cgroup::of_keeper).collect();
        for warden in self.wardens.borrow().iter().filter(|warden| warden.status().is_none()) {
            // Orderly first, so that the keeper takes its cgroups away.
            warden.signal(Signal::INT);
            for look in 0..1000 {
                if warden.status().is_some() {
                    break;
                }
                if look == 600 {
                    warden.signal(Signal::INT);
                }
                thread::park_timeout(Duration::from_millis(10));
            }
        }
        groups.extend(proc::of_home(&self.dir).into_iter().flat_map(cgroup::of_process));
        proc::end_all(&self.dir);
        groups.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
        cgroup::remove(&groups);
        if thread::panicking() {
            eprintln!("kept for a look: {}", self.dir.display());
        } else if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("{} cannot be removed: {error}", self.dir.display());
        }
    }
}
