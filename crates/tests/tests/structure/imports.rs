//! Which file of a crate names what another one has: by `use`, by paths, also in macros' arguments.

use crate::graph::Graph;
use crate::tree::{Krate, ModulePath, uses};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

pub fn graph(krate: &Krate) -> Graph {
    let mut edges = Graph::new(krate.files.len());
    for (index, file) in krate.files.iter().enumerate() {
        Imports { krate, file: index, module: file.module.clone(), edges: &mut edges }.visit_file(&file.ast);
    }
    edges
}

struct Imports<'a> {
    krate: &'a Krate,
    file: usize,
    module: ModulePath,
    edges: &'a mut Graph,
}

impl Imports<'_> {
    fn names(&mut self, path: &[String], is_glob: bool) {
        let Some(found) = self.krate.lookup(&self.module, path) else { return };
        // Who names a module only names what is in it later.
        if (found.item.is_some() || is_glob)
            && let Some(file) = self.krate.file_of(&found.module)
        {
            self.edges.add(self.file, file);
        }
    }
}

impl<'ast> Visit<'ast> for Imports<'_> {
    fn visit_item_mod(&mut self, inner: &'ast syn::ItemMod) {
        self.module.push(inner.ident.to_string());
        visit::visit_item_mod(self, inner);
        self.module.pop();
    }

    /// What is only handed on is its user's.
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for used in uses(item).into_iter().filter(|used| used.is_private) {
            self.names(&used.path, used.is_glob());
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.names(&path.segments.iter().map(|s| s.ident.to_string()).collect::<Vec<_>>(), false);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invoked: &'ast syn::Macro) {
        paths_in(&invoked.tokens, &mut |path| self.names(path, false));
        visit::visit_macro(self, invoked);
    }
}

/// Each `a::b::c` among the tokens of a macro, and each name that stands alone.
pub fn paths_in(tokens: &TokenStream, each: &mut impl FnMut(&[String])) {
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    for token in tokens.clone() {
        match token {
            TokenTree::Ident(name) => {
                if colons != 2 && !path.is_empty() {
                    each(&std::mem::take(&mut path));
                }
                path.push(name.to_string());
                colons = 0;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            other => {
                if !path.is_empty() {
                    each(&std::mem::take(&mut path));
                }
                colons = 0;
                if let TokenTree::Group(group) = other {
                    paths_in(&group.stream(), each);
                }
            }
        }
    }
    if !path.is_empty() {
        each(&path);
    }
}

/// A crate `x` of these files.
pub fn krate_of(files: &[(&str, &str)]) -> Krate {
    let source = |(path, text): &(&str, &str)| {
        toe_tests::source::Source::new(&format!("crates/x/src/{path}"), (*text).to_owned())
    };
    Krate::new("x", &files.iter().map(source).collect::<Vec<_>>())
}

#[test]
fn names_lead_to_the_file_that_has_them() {
    let handed_on = [
        ("lib.rs", "mod a; mod b; pub use a::A;"),
        ("a.rs", "use crate::b; pub struct A; fn f() { b::g() }"),
        ("b.rs", "#[cfg(test)] use crate::a::f; pub fn g() {} #[cfg(test)] mod tests { use crate::a::A; }"),
    ];
    // To hand a name on is no use of it, and to be used in tests is none either.
    assert_eq!(graph(&krate_of(&handed_on)).longest_chain(), [1, 2]);
    let circle = [
        ("lib.rs", "mod a; mod b; pub use a::A;"),
        ("a.rs", "pub struct A; fn f() { assert!(super::b::g()) }"),
        ("b.rs", "use crate::A; pub fn g() -> bool { true }"),
    ];
    assert_eq!(graph(&krate_of(&circle)).largest_circle(), [1, 2]);
}
