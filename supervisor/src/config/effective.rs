//! The configuration in force, written out in full in the form that is read, with what may be secret left out.

use std::fmt::Write as _;

use super::{
    Config, ForgeKind, Lane, Pulls,
    problem::{has_userinfo, looks_secret},
    units::{format_duration, format_size},
};

/// What stands for a value that is not shown.
const MASK: &str = "\"***\"";

/// The configuration as TOML, every default filled in. Values of `env`, and a topic that no token guards, are masked.
#[must_use]
pub fn effective(config: &Config) -> String {
    let mut out = Writer::default();
    out.comment(&format!("in force, from {}", config.path.to_string_lossy().escape_debug()));
    out.text("machine", config.machine.as_str());
    out.text("lane_root", &config.lane_root.to_string_lossy());
    out.text("state_dir", &config.state_dir.to_string_lossy());
    out.text("runtime_dir", &config.runtime_dir.to_string_lossy());
    remote(&mut out, config);
    out.table("[metrics]");
    match &config.metrics {
        Some(metrics) => out.text("listen", &metrics.listen.to_string()),
        None => out.text("listen", "off"),
    }
    match &config.ntfy {
        Some(ntfy) => {
            out.table("[ntfy]");
            out.text("server", &ntfy.server);
            match &ntfy.token_file {
                Some(file) => {
                    out.text("topic", &ntfy.topic);
                    out.text("token_file", &file.to_string_lossy());
                }
                // On an open server whoever knows the topic reads and writes it.
                None => out.line("topic", MASK),
            }
        }
        None => out.remark("no [ntfy]: nobody is paged"),
    }
    forge(&mut out, config);
    let admission = &config.admission;
    out.table("[admission]");
    out.line("load_max", &format!("{:?}", admission.load_max));
    out.text("disk_free_min", &format_size(admission.disk_free_min));
    out.text("memory_available_min", &format_size(admission.memory_available_min));
    match admission.memory_pressure_some_avg10_max {
        Some(max) => out.line("memory_pressure_some_avg10_max", &format!("{max:?}")),
        None => out.comment("memory_pressure_some_avg10_max: not asked"),
    }
    out.table("[compat]");
    out.line("shell", &config.compat.shell.to_string());
    for each in &config.lanes {
        lane(&mut out, each);
    }
    out.0
}

fn remote(out: &mut Writer, config: &Config) {
    let Some(remote) = &config.remote else {
        return out.remark("no [remote]: claims are off");
    };
    out.table("[remote]");
    out.text("url", &remote.url);
    out.text("refresh", &format_duration(remote.refresh));
    out.text("deadline", &format_duration(remote.deadline));
    // A credential's place is found anew at each start; both keys together are refused.
    let token_file = remote.token_file.as_ref().filter(|_| remote.credential.is_none());
    for (key, file) in [
        ("ssh_key_file", remote.ssh_key_file.as_ref()),
        ("known_hosts_file", remote.known_hosts_file.as_ref()),
        ("token_file", token_file),
    ] {
        if let Some(file) = file {
            out.text(key, &file.to_string_lossy());
        }
    }
    if let Some(credential) = &remote.credential {
        out.text("credential", credential);
    }
}

fn forge(out: &mut Writer, config: &Config) {
    let Some(forge) = &config.forge else {
        return out.remark("no [forge]: whether a pull request is open cannot be told");
    };
    out.table("[forge]");
    match &forge.pulls {
        Pulls::Github { api, repo, token_file, from_service_manager: _ } => {
            out.text("kind", ForgeKind::Github.as_str());
            out.text("api", api);
            out.text("repo", repo);
            if let Some(file) = token_file {
                out.text("token_file", &file.to_string_lossy());
            }
        }
        Pulls::Command(argv) => out.line("open_pr_command", &command(argv)),
    }
    out.text("deadline", &format_duration(forge.deadline));
}

fn lane(out: &mut Writer, lane: &Lane) {
    out.table("[[lane]]");
    out.text("id", lane.id.as_str());
    out.text("dir", &lane.dir.to_string_lossy());
    out.text("mode", lane.mode.as_str());
    if !lane.command.is_empty() {
        out.line("command", &command(&lane.command));
    }
    out.text("deadline", &format_duration(lane.deadline));
    out.text("stop_grace", &format_duration(lane.stop_grace));
    let restart = &lane.restart;
    out.line(
        "restart",
        &format!(
            "{{ delay = \"{}\", max_delay = \"{}\", min_gap = \"{}\", idle_delay = \"{}\", breaker = {}, \
             breaker_window = \"{}\" }}",
            format_duration(restart.delay),
            format_duration(restart.max_delay),
            format_duration(restart.min_gap),
            format_duration(restart.idle_delay),
            restart.breaker,
            format_duration(restart.breaker_window),
        ),
    );
    let size = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), format_size);
    let pids = lane.limits.pids_max.map_or_else(|| "\"max\"".to_owned(), |max| max.to_string());
    let weight = lane
        .limits
        .cpu_weight
        .map_or_else(String::new, |weight| format!(", cpu_weight = {weight}"));
    out.line(
        "limits",
        &format!(
            "{{ memory_max = \"{}\", memory_high = \"{}\", pids_max = {pids}{weight} }}",
            size(lane.limits.memory_max),
            size(lane.limits.memory_high),
        ),
    );
    match &lane.watchdog {
        Some(watchdog) => out.line(
            "watchdog",
            &format!(
                "{{ prompt = {}, tail_lines = {}, scan = \"{}\", action = \"{}\" }}",
                list(&watchdog.prompt),
                watchdog.tail_lines,
                format_duration(watchdog.scan),
                watchdog.action.as_str(),
            ),
        ),
        None => out.line("watchdog", "{ action = \"off\" }"),
    }
    let budget = &lane.budget;
    out.line(
        "budget",
        &format!(
            "{{ runs = {}, issues = {}, hours = {} }}",
            budget.runs, budget.issues, budget.hours
        ),
    );
    let env: Vec<String> = lane.env.keys().map(|key| format!("{} = {MASK}", quoted(key))).collect();
    if !env.is_empty() {
        out.line("env", &format!("{{ {} }}", env.join(", ")));
    }
    out.line("oom_score_adj", &lane.oom_score_adj.to_string());
}

/// A command's words; the word that follows one such as `--token`, or is joined to it, is masked.
fn command(argv: &[String]) -> String {
    let mut mask_next = false;
    let words: Vec<String> = argv
        .iter()
        .enumerate()
        .map(|(index, word)| {
            let masked = std::mem::take(&mut mask_next);
            // The program's own name is none.
            let option = index > 0 && (looks_secret(word) || has_userinfo(word));
            mask_next = option && word.starts_with('-') && !word.contains('=');
            if masked || (option && !mask_next) { MASK.to_owned() } else { quoted(word) }
        })
        .collect();
    format!("[{}]", words.join(", "))
}

fn list(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", texts.join(", "))
}

/// A basic string of TOML in which whatever a terminal would obey is escaped.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\'' => out.push(c),
            _ if c.escape_debug().len() > 1 => out.push_str(&format!("\\U{:08x}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

#[derive(Default)]
struct Writer(String);

impl Writer {
    fn line(&mut self, key: &str, value: &str) {
        self.push(format_args!("{key} = {value}"));
    }

    fn text(&mut self, key: &str, value: &str) {
        self.line(key, &quoted(value));
    }

    fn table(&mut self, header: &str) {
        self.push(format_args!("\n{header}"));
    }

    fn comment(&mut self, text: &str) {
        self.push(format_args!("# {text}"));
    }

    /// A comment with a paragraph of its own.
    fn remark(&mut self, text: &str) {
        self.push(format_args!("\n# {text}"));
    }

    fn push(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing into memory cannot fail.
        writeln!(self.0, "{line}").ok();
    }
}
