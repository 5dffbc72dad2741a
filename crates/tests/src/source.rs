//! Reading the project's own source, for the structure tests: files, code without comments and strings, functions.

use std::fs;
use std::path::{Path, PathBuf};

/// One source file.
#[derive(Debug)]
pub struct Source {
    /// Path from the workspace's root.
    pub path: String,
    /// The name of its crate's directory: `base`, `wire`, …
    pub krate: String,
    pub text: String,
    /// The text with comments and the contents of strings and characters blanked out, line by line the same.
    pub code: String,
}

/// A function and its length.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Line of its `fn`, from 1.
    pub line: usize,
    /// Lines from `fn` to the closing brace.
    pub lines: usize,
}

impl Source {
    pub fn new(path: &str, text: String) -> Source {
        let krate = path.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
        Source { path: path.to_owned(), krate: krate.to_owned(), code: blank(&text), text }
    }

    /// The file is all test code.
    pub fn is_test(&self) -> bool {
        let stem = self.path.strip_suffix(".rs").unwrap_or(&self.path);
        stem.ends_with("/tests")
            || self.path.contains("/tests/") && !self.path.starts_with("crates/tests/src/")
    }

    /// The code before the file's test module.
    pub fn code_without_tests(&self) -> &str {
        if self.is_test() {
            return "";
        }
        let marks = ["#[cfg(test)]\nmod ", "#[cfg(all(test"];
        let cut = marks.iter().filter_map(|mark| self.code.find(mark)).min();
        &self.code[..cut.unwrap_or(self.code.len())]
    }

    /// The file's name as a path of modules below `root`, without `mod.rs` and the ending: `flow/tcp/state`.
    pub fn module_below(&self, root: &str) -> Option<String> {
        let rest = self.path.strip_prefix(root)?.trim_start_matches('/').strip_suffix(".rs")?;
        Some(rest.strip_suffix("/mod").unwrap_or(rest).to_owned())
    }
}

/// Every `.rs` file of the crates, in order.
pub fn all(root: &Path) -> Vec<Source> {
    let mut sources: Vec<Source> = files(&root.join("crates"), "rs")
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let relative = path.strip_prefix(root).expect("below the root").display().to_string();
            Source::new(&relative, text)
        })
        .collect();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Every file below `dir` whose name ends in `.ending`; build output and hidden directories are passed over.
pub fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())).flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
    found
}

/// The functions of `code` (which [`Source::code`] gave), nested ones too.
pub fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let starts_word = code[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let name: String = code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if !starts_word || name.is_empty() {
            continue;
        }
        if let Some(end) = body_end(&code[at..]) {
            let line = code[..at].matches('\n').count() + 1;
            found.push(Function { name, line, lines: code[at..at + end].matches('\n').count() + 1 });
        }
    }
    found
}

/// Where the body that starts in `code` ends; `None` for a declaration without one.
fn body_end(code: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut brackets = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            ';' if depth == 0 && brackets == 0 => return None,
            '{' => depth += 1,
            '}' if depth <= 1 => return (depth == 1).then_some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Replaces comments and the contents of strings and character literals by spaces; line breaks stay.
pub fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let before = out.chars().next_back();
        let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let skipped = match first {
            '/' => comment_len(rest),
            '"' => Some(string_len(rest)),
            'r' | 'b' | 'c' if !in_word => raw_string_len(rest),
            '\'' => char_len(rest),
            _ => None,
        };
        let len = skipped.unwrap_or(first.len_utf8());
        let (piece, after) = rest.split_at(len);
        match skipped {
            // The quotes stay, so that what was a string is still one word of code.
            Some(_) => out.extend(piece.chars().map(|c| if c == '\n' || c == '"' { c } else { ' ' })),
            None => out.push_str(piece),
        }
        rest = after;
    }
    out
}

fn comment_len(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if !rest.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        let tail = &rest[at..];
        if tail.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if tail.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += tail.chars().next().map_or(1, char::len_utf8);
        }
    }
    Some(rest.len())
}

/// `rest` starts with a quote.
fn string_len(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// `r"…"`, `r#"…"#`, `br"…"`, `cr"…"`.
fn raw_string_len(rest: &str) -> Option<usize> {
    let letters = rest.len() - rest.trim_start_matches(['b', 'c', 'r']).len();
    if letters > 2 || !rest[..letters].contains('r') {
        return None;
    }
    let after = &rest[letters..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    if !after[hashes..].starts_with('"') {
        return None;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let start = letters + hashes + 1;
    Some(rest[start..].find(&close).map_or(rest.len(), |at| start + at + close.len()))
}

/// A character literal, as opposed to a lifetime.
fn char_len(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    match chars.next()? {
        (_, '\\') => {
            let (escaped, _) = chars.next()?;
            let past = rest[escaped..].chars().next()?.len_utf8() + escaped;
            rest[past..].find('\'').map(|at| past + at + 1)
        }
        _ => chars.next().filter(|(_, c)| *c == '\'').map(|(at, _)| at + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        let text = "let a = \"{ // not a comment\"; // unsafe {\nlet b = '{'; /* } /* } */ */ let c: &'static str = r#\"}\"{\"#;\n";
        let code = blank(text);
        assert_eq!(code.matches('\n').count(), text.matches('\n').count());
        assert!(!code.contains('{') && !code.contains('}') && !code.contains("unsafe"), "{code}");
        assert!(code.contains("let c: &'static str"), "{code}");
        assert_eq!(blank("b'\\'' x '\\u{7f}' y 'z'"), "b     x          y    ");
    }

    #[test]
    fn functions_are_measured() {
        let code = "trait A { fn none(&self) -> [u8; 4]; }\nfn one() { 1 }\nfn three(\n) {\n}\n";
        let found: Vec<_> = functions(code).into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("one".to_owned(), 2, 1), ("three".to_owned(), 3, 3)]);
    }

    #[test]
    fn tests_are_told_from_code() {
        let source = Source::new("crates/x/src/a.rs", "fn a() {}\n#[cfg(test)]\nmod tests {}\n".to_owned());
        assert_eq!((source.code_without_tests(), &source.krate[..]), ("fn a() {}\n", "x"));
        assert!(Source::new("crates/x/src/a/tests.rs", String::new()).is_test());
        assert!(Source::new("crates/x/tests/a.rs", String::new()).is_test());
        assert!(!Source::new("crates/tests/src/a.rs", String::new()).is_test());
        let module = Source::new("crates/x/src/flow/mod.rs", String::new()).module_below("crates/x/src");
        assert_eq!(module.as_deref(), Some("flow"));
    }
}
