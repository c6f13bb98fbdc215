//! The table `[forge]`: who knows which pull requests are open.

use std::{path::Path, time::Duration};

use super::{
    Env, Forge, ForgeKind, Problem, Pulls,
    document::{At, Document, Refusal, Section},
    resolve::secret_file,
    value,
};

pub(super) const KEYS: &[&str] =
    &["kind", "api", "repo", "token_file", "deadline", "open_pr_command"];
/// GitHub's own interface; a server of one's own has it below `/api/v3`.
const API: &str = "https://api.github.com";

pub(super) struct RawForge {
    line: Option<usize>,
    kind: Option<At<ForgeKind>>,
    kind_written: bool,
    api: Option<At<String>>,
    repo: Option<At<String>>,
    repo_written: bool,
    token_file: Option<At<String>>,
    deadline: Option<Duration>,
    command: Option<At<Vec<String>>>,
    command_written: bool,
}

pub(super) fn read(table: &Section<'_, '_>) -> RawForge {
    RawForge {
        line: table.line(),
        kind: table.read("kind", |v| value::member(v, &ForgeKind::ALL, ForgeKind::as_str)),
        kind_written: table.has("kind"),
        api: table.read("api", api),
        repo: table.read("repo", repo),
        repo_written: table.has("repo"),
        token_file: table.read("token_file", value::name),
        deadline: table.read("deadline", value::positive_duration).map(|at| at.value),
        command: table.read("open_pr_command", value::command),
        command_written: table.has("open_pr_command"),
    }
}

/// The interface's root. A token goes there, so it is https or this very host.
fn api(value: &toml::de::DeValue<'_>) -> value::Rule<String> {
    let url = value::server(value)?;
    let plain = url.strip_prefix("http://");
    let here = |rest: &str| {
        let authority = rest.split('/').next().unwrap_or_default();
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|host| {
            authority
                .strip_prefix(host)
                .is_some_and(|port| port.is_empty() || port.starts_with(':'))
        })
    };
    if plain.is_some_and(|rest| !here(rest)) {
        return Err(Refusal::new(
            "must be https, unless it is this host",
            "a token would go over the network for all to read",
        ));
    }
    Ok(url)
}

/// `owner/name` in the letters that GitHub allows, so that it is two components of a path and nothing else.
fn repo(value: &toml::de::DeValue<'_>) -> value::Rule<String> {
    let text = value::name(value)?;
    let good = |part: &str| {
        !matches!(part, "" | "." | "..")
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    match text.split_once('/') {
        Some((owner, name)) if good(owner) && good(name) => Ok(text),
        Some(_) | None => Err(Refusal::new(
            "must be owner/name in letters, digits, dot, dash and underscore",
            "write it such as \"octo-org/site\"",
        )),
    }
}

/// The table as meant; `None` if something is wrong with it, which is then reported.
pub(super) fn resolve(doc: &Document<'_>, raw: RawForge, path: &Path, env: &Env) -> Option<Forge> {
    let missing = |key: &str, remedy: &str| {
        doc.report(Problem {
            line: raw.line,
            key: key.to_owned(),
            value: None,
            rule: "is missing".to_owned(),
            remedy: remedy.to_owned(),
        });
    };
    let deadline = raw.deadline.unwrap_or(Duration::from_secs(20));
    match (raw.kind_written, raw.command_written) {
        (false, false) => {
            missing("forge.kind", "write kind = \"github\", or open_pr_command, or remove [forge]");
            None
        }
        (true, true) => {
            if let Some(command) = &raw.command {
                let rule = "excludes forge.kind";
                doc.refuse(&command.place, Refusal::new(rule, "keep one of the two"));
            }
            None
        }
        (false, true) => {
            let unused = [raw.api, raw.repo, raw.token_file];
            for at in unused.iter().flatten() {
                let rule = "is of no use to open_pr_command";
                doc.refuse(&at.place, Refusal::new(rule, "remove it, or write kind"));
            }
            Some(Forge { pulls: Pulls::Command(raw.command?.value), deadline })
        }
        (true, false) => {
            if !raw.repo_written {
                missing("forge.repo", "name the repository as owner/name");
            }
            let ForgeKind::Github = raw.kind?.value;
            let token = raw.token_file.map(|at| secret_file(&at.value, path, env));
            let guarded = env.credentials_dir();
            let from_service_manager =
                token.as_ref().zip(guarded).is_some_and(|(file, dir)| file.starts_with(dir));
            Some(Forge {
                pulls: Pulls::Github {
                    api: raw.api.map_or_else(|| API.to_owned(), |at| at.value),
                    repo: raw.repo?.value,
                    token_file: token,
                    from_service_manager,
                },
                deadline,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Env, effective};
    use super::*;

    fn parse(table: &str) -> Result<Config, String> {
        let text = format!("machine = \"box-a\"\n{table}");
        let env = Env::of([("HOME", "/root")]);
        Config::parse(&text, Path::new("/etc/lw/c.toml"), &env).map_err(|error| error.to_string())
    }

    #[test]
    fn a_repository_and_a_command_are_read_and_written_again() {
        for table in [
            "[forge]\nkind = \"github\"\nrepo = \"o/n.x\"\ntoken_file = \"t\"\n",
            "[forge]\nkind = \"github\"\nrepo = \"o/n\"\napi = \"http://127.0.0.1:1/x/\"\ndeadline = \"3s\"\n",
            "[forge]\nopen_pr_command = [\"has-pr\", \"--repo\", \"o/n\"]\n",
        ] {
            let config = parse(table).unwrap();
            let again = effective(&config);
            let env = Env::of([("HOME", "/root")]);
            let again = Config::parse(&again, Path::new("/etc/lw/c.toml"), &env).unwrap();
            assert_eq!(again.forge, config.forge);
        }
        let config = parse("[forge]\nkind = \"github\"\nrepo = \"o/n\"\n").unwrap();
        let forge = config.forge.unwrap();
        assert_eq!(forge.deadline, Duration::from_secs(20));
        assert!(matches!(forge.pulls, Pulls::Github { api, .. } if api == API));
    }

    #[test]
    fn what_would_ask_elsewhere_or_nobody_is_refused() {
        for (table, key) in [
            ("", "forge.kind"),
            ("kind = \"gitlab\"\nrepo = \"o/n\"", "forge.kind"),
            ("kind = \"github\"", "forge.repo"),
            ("kind = \"github\"\nrepo = \"o\"", "forge.repo"),
            ("kind = \"github\"\nrepo = \"o/../n\"", "forge.repo"),
            ("kind = \"github\"\nrepo = \"o/n?x\"", "forge.repo"),
            ("kind = \"github\"\nrepo = \"o/n\"\napi = \"http://example.org\"", "forge.api"),
            ("kind = \"github\"\nrepo = \"o/n\"\napi = \"http://localhost.evil\"", "forge.api"),
            (
                "kind = \"github\"\nrepo = \"o/n\"\nopen_pr_command = [\"x\"]",
                "forge.open_pr_command",
            ),
            ("open_pr_command = []", "forge.open_pr_command"),
            ("open_pr_command = [\"x\"]\nrepo = \"o/n\"", "forge.repo"),
            ("kind = \"github\"\nrepo = \"o/n\"\ntoken = \"x\"", "forge.token"),
        ] {
            let error = parse(&format!("[forge]\n{table}\n")).unwrap_err();
            assert!(error.contains(key), "{table}: {error}");
        }
    }
}
