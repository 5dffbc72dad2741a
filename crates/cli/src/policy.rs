//! The policy of `toe run`: `[policy]` and `[profiles.NAME]` of `toe.toml`, understood and turned into what goes to the
//! program ([`toe_abi::policy`]). `toe start` checks them, too, so that a mistake is found when the file is taken into use.

use crate::Failure;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toe_abi::policy::{
    Action, BadPolicy, ENGINES_MAX, Engines, Policy, RULES_MAX, Rule, is_program_name, parse_list,
};
use toml::Spanned;

/// Where profiles are looked for unless --config says otherwise.
const DEFAULT_FILE: &str = "/etc/opentoe/toe.toml";

/// A policy with the engines that it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Names, by index; empty: those of the command line.
    pub engines: Vec<String>,
    pub policy: Policy,
}

/// The parts of `toe.toml` that are for programs; the others are the engine's.
#[derive(Debug, Default, Deserialize)]
struct File {
    policy: Option<FilePolicy>,
    #[serde(default)]
    profiles: BTreeMap<String, FilePolicy>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePolicy {
    #[serde(default)]
    engines: Vec<Spanned<Priority>>,
    balance: Option<Spanned<String>>,
    stack: Option<Spanned<String>>,
    #[serde(default)]
    rules: Vec<FileRule>,
}

/// Engines of one priority.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Priority {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRule {
    program: Option<Spanned<String>>,
    call: Option<Spanned<String>>,
    port: Option<Spanned<Ports>>,
    address: Option<Spanned<String>>,
    engines: Option<Spanned<Vec<String>>>,
    stack: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Ports {
    One(u16),
    List(String),
}

/// The policy that the command line asks for; `None`: it asks for none.
pub fn chosen(config: Option<&Path>, profile: Option<&str>) -> Result<Option<Chosen>, Failure> {
    if config.is_none() && profile.is_none() {
        return Ok(None);
    }
    let path = config.map_or_else(|| PathBuf::from(DEFAULT_FILE), Path::to_path_buf);
    let text = read(&path)?;
    let source = Source { path: &path, text: &text };
    let mut file = source.parse()?;
    let wanted = match profile {
        None => file.policy.unwrap_or_default(),
        Some(name) => match file.profiles.remove(name) {
            Some(found) => found,
            None => {
                let known: Vec<&str> = file.profiles.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let text = format!("{}: no [profiles.{name}]; it has {known}", path.display());
                return Err(Failure::new(text));
            }
        },
    };
    source.understand(wanted).map(Some)
}

/// Whether everything in the file that is for programs can be understood.
pub fn check(path: &Path) -> Result<(), Failure> {
    let Ok(text) = std::fs::read_to_string(path) else {
        // `toed` says what is wrong with the file.
        return Ok(());
    };
    let source = Source { path, text: &text };
    // What is no TOML at all is for `toed` to say, too.
    let Ok(file) = toml::from_str::<toml::Table>(&text) else { return Ok(()) };
    if !file.contains_key("policy") && !file.contains_key("profiles") {
        return Ok(());
    }
    let file = source.parse()?;
    for policy in file.policy.into_iter().chain(file.profiles.into_values()) {
        source.understand(policy)?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| {
        let hint = "give the path of a readable file with --config";
        Failure::new(format!("{}: cannot read it ({error}); {hint}", path.display()))
    })
}

/// The file, for the lines in errors.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn at(&self, offset: usize, what: impl std::fmt::Display) -> Failure {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        Failure::new(format!("{}:{line}: {what}", self.path.display()))
    }

    fn bad<T>(&self, given: &Spanned<T>, what: impl std::fmt::Display) -> Failure {
        self.at(given.span().start, what)
    }

    fn parse(&self) -> Result<File, Failure> {
        toml::from_str(self.text).map_err(|error| {
            let hint = "; see `toe run --help` for what can stand there";
            self.at(error.span().map_or(0, |span| span.start), format!("{}{hint}", error.message().trim()))
        })
    }

    /// What a word means.
    fn word<T: std::str::FromStr<Err = BadPolicy>>(
        &self,
        given: Option<&Spanned<String>>,
    ) -> Result<Option<T>, Failure> {
        given.map(|word| word.get_ref().parse().map_err(|error| self.bad(word, error))).transpose()
    }

    fn understand(&self, file: FilePolicy) -> Result<Chosen, Failure> {
        let mut chosen = Chosen::default();
        for given in &file.engines {
            let names = match given.get_ref() {
                Priority::One(name) => std::slice::from_ref(name),
                Priority::Several(names) => names,
            };
            if names.is_empty() {
                return Err(self.bad(given, "an empty list of engines; name one, or leave the list out"));
            }
            let mut priority = Engines::default();
            for name in names {
                if !toe_abi::discovery::is_valid_name(name) || chosen.engines.contains(name) {
                    return Err(
                        self.bad(given, format!("{name:?} is no engine's name, or stands here twice"))
                    );
                }
                if chosen.engines.len() == ENGINES_MAX {
                    return Err(self.bad(given, format!("a program can use {ENGINES_MAX} engines at most")));
                }
                priority = priority.with(chosen.engines.len());
                chosen.engines.push(name.clone());
            }
            chosen.policy.priorities.push(priority);
        }
        chosen.policy.balance = self.word(file.balance.as_ref())?.unwrap_or_default();
        chosen.policy.otherwise = self.word(file.stack.as_ref())?.unwrap_or_default();
        for rule in &file.rules {
            if chosen.policy.rules.len() == RULES_MAX {
                return Err(self.bad(&rule.stack, format!("a policy can have {RULES_MAX} rules at most")));
            }
            let understood = self.rule(rule, &chosen.engines)?;
            chosen.policy.rules.push(understood);
        }
        Ok(chosen)
    }

    fn rule(&self, file: &FileRule, engines: &[String]) -> Result<Rule, Failure> {
        let mut rule = Rule::new(self.word(Some(&file.stack))?.unwrap_or(Action::Offload));
        if let Some(program) = &file.program {
            let name = program.get_ref();
            if !is_program_name(name) {
                return Err(
                    self.bad(program, format!("{name:?} is no program's file name; leave out its directory"))
                );
            }
            rule.program = Some(name.clone());
        }
        rule.call = self.word(file.call.as_ref())?;
        if let Some(given) = &file.port {
            let list = match given.get_ref() {
                Ports::One(port) => port.to_string(),
                Ports::List(list) => list.clone(),
            };
            rule.ports = parse_list(&list).map_err(|error| self.bad(given, error))?;
        }
        if let Some(given) = &file.address {
            rule.networks = parse_list(given.get_ref()).map_err(|error| self.bad(given, error))?;
        }
        if let Some(given) = &file.engines {
            if given.get_ref().is_empty() {
                return Err(
                    self.bad(given, "an empty list of engines; for none of them write stack = \"kernel\"")
                );
            }
            let index = |name: &String| engines.iter().position(|known| known == name);
            rule.engines = Engines::default();
            for name in given.get_ref() {
                let Some(index) = index(name) else {
                    return Err(self.bad(given, format!("{name:?} is not in this policy's list `engines`")));
                };
                rule.engines = rule.engines.with(index);
            }
        }
        Ok(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
name = "web"
[[ports]]
port = "local"

[policy]
stack = "kernel"

[profiles.web]
engines = ["fast", ["left", "right"]]
balance = "least-loaded"
[[profiles.web.rules]]
program = "sshd"
stack = "kernel"
[[profiles.web.rules]]
call = "connect"
port = "25, 8000-8100"
address = "10.0.0.0/8"
engines = ["right"]
stack = "engine-only"
[[profiles.web.rules]]
port = 23
stack = "refuse"
"#;

    fn understand(text: &str, profile: Option<&str>) -> Result<Chosen, String> {
        let source = Source { path: Path::new("toe.toml"), text };
        let mut file = source.parse().map_err(|error| error.to_string())?;
        let policy = match profile {
            Some(name) => file.profiles.remove(name).expect("the profile"),
            None => file.policy.expect("a policy"),
        };
        source.understand(policy).map_err(|error| error.to_string())
    }

    #[test]
    fn profiles_and_the_policy_are_understood() {
        assert_eq!(understand(TEXT, None).expect("a policy").policy.to_string(), "balance=hash stack=kernel");
        let web = understand(TEXT, Some("web")).expect("a profile");
        assert_eq!(web.engines, ["fast", "left", "right"]);
        assert_eq!(
            web.policy.to_string(),
            "balance=least-loaded stack=offload engines=0,1+2;stack=kernel program=sshd;\
             stack=engine-only call=connect port=25,8000-8100 address=10.0.0.0/8 engines=2;\
             stack=refuse port=23"
        );
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, wanted) in [
            ("[policy]\nstack = \"fast\"", "toe.toml:2: \"fast\" is no stack; give offload"),
            (
                "[policy]\n[[policy.rules]]\nport = \"1-0\"\nstack = \"kernel\"",
                "toe.toml:3: \"1-0\" is no port",
            ),
            (
                "[policy]\nengines = [\"a\", \"a\"]",
                "toe.toml:2: \"a\" is no engine's name, or stands here twice",
            ),
            (
                "[policy]\n[[policy.rules]]\nstack = \"kernel\"\nengines = [\"b\"]",
                "toe.toml:4: \"b\" is not in",
            ),
            (
                "[policy]\n[[policy.rules]]\nprogram = \"/bin/sh\"\nstack = \"kernel\"",
                "leave out its directory",
            ),
            ("[policy]\nspeed = 1", "unknown field `speed`"),
            ("[policy]\nengines = [[], \"a\"]", "toe.toml:2: an empty list of engines"),
            ("[policy]\n[[policy.rules]]\nstack = \"kernel\"\nengines = []", "toe.toml:4: an empty list"),
            (
                "[policy]\n[[policy.rules]]\nprogram = \"a\\tb\"\nstack = \"kernel\"",
                "is no program's file name",
            ),
        ] {
            let error = understand(text, None).expect_err(text);
            assert!(error.contains(wanted), "{wanted} in {error}");
        }
    }
}
