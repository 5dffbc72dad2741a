//! One crate as the compiler's own grammar sees it (`syn`): its modules without their tests, and what a path in them leads to.

use std::collections::{BTreeMap, BTreeSet};
use syn::{Attribute, File, Item, UseTree, Visibility};
use toe_tests::source::Source;

/// The names of modules from the crate's root.
pub type ModulePath = Vec<String>;

/// Aliases of aliases are followed so far.
const ALIASES_MAX: usize = 8;

/// One crate.
pub struct Krate {
    /// As paths begin with it in the crate's programs: `toe_daemon`.
    name: String,
    pub files: Vec<Parsed>,
    pub modules: BTreeMap<ModulePath, Module>,
}

/// One of its files, without test code.
pub struct Parsed {
    /// From the workspace's root.
    pub path: String,
    pub module: ModulePath,
    pub ast: File,
}

/// One module, in a file of its own or not.
#[derive(Debug, Default)]
pub struct Module {
    pub file: usize,
    items: BTreeSet<String>,
    /// What `use` brings in, as it is written there.
    uses: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub module: ModulePath,
    /// The item in that module; none if the path names the module itself.
    pub item: Option<String>,
    /// What follows the item: an associated function, a variant.
    pub rest: Vec<String>,
}

/// One name that a `use` brings in.
#[derive(Debug)]
pub struct Use {
    pub path: Vec<String>,
    /// None for `*`.
    name: Option<String>,
    pub is_private: bool,
}

impl Use {
    pub fn is_glob(&self) -> bool {
        self.name.is_none()
    }
}

impl Krate {
    /// `sources` may be of other crates, too. `folder` is the crate's: `engine`.
    pub fn new(folder: &str, sources: &[Source]) -> Krate {
        let root = format!("crates/{folder}/src");
        let mut files: Vec<Parsed> = Vec::new();
        for source in sources.iter().filter(|source| source.krate == folder && !source.is_test()) {
            let Some(module) = source.module_below(&root) else { continue };
            let module: ModulePath = module.split('/').map(str::to_owned).collect();
            let module = if ["lib", "main"].contains(&module[0].as_str()) { Vec::new() } else { module };
            let ast = syn::parse_file(&source.text).unwrap_or_else(|e| panic!("{}: {e}", source.path));
            files.push(Parsed { path: source.path.clone(), module, ast });
        }
        let mut tests = BTreeSet::new();
        files.iter_mut().for_each(|file| remove_tests(&mut file.ast.items, &file.module, &mut tests));
        files.retain(|file| !tests.iter().any(|test: &ModulePath| file.module.starts_with(test)));
        let mut krate = Krate { name: format!("toe_{folder}"), files, modules: BTreeMap::new() };
        for index in 0..krate.files.len() {
            let (module, items) = (krate.files[index].module.clone(), &krate.files[index].ast.items);
            add_module(&mut krate.modules, index, &module, items);
        }
        krate
    }

    /// What `path` leads to, written in `module`; none if that is another crate's, or a name of a function's own.
    pub fn lookup(&self, module: &[String], path: &[String]) -> Option<Found> {
        self.lookup_at(module, path, 0)
    }

    fn lookup_at(&self, module: &[String], path: &[String], depth: usize) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        if depth > ALIASES_MAX {
            return None;
        }
        match first.as_str() {
            "crate" => self.walk(&[], rest, depth),
            "self" => self.walk(module, rest, depth),
            "super" => self.walk(module, path, depth),
            name if name == self.name => self.walk(&[], rest, depth),
            name => {
                let here = self.modules.get(module)?;
                let knows = self.modules.contains_key(&join(module, name)) || here.items.contains(name);
                if knows { self.walk(module, path, depth) } else { self.imported(module, path, depth) }
            }
        }
    }

    /// By a `use` of `module`'s.
    fn imported(&self, module: &[String], path: &[String], depth: usize) -> Option<Found> {
        let here = self.modules.get(module)?;
        if let Some(target) = here.uses.get(&path[0]) {
            return self.lookup_at(module, &[target, &path[1..]].concat(), depth + 1);
        }
        here.globs.iter().find_map(|glob| {
            let found = self.lookup_at(module, &[glob, path].concat(), depth + 1)?;
            // A module that a `*` is of has this name, or the next one has.
            let has = |found: &Found| {
                found.item.as_ref().is_none_or(|item| self.modules[&found.module].items.contains(item))
            };
            has(&found).then_some(found)
        })
    }

    fn walk(&self, module: &[String], path: &[String], depth: usize) -> Option<Found> {
        let Some((first, rest)) = path.split_first() else {
            return Some(Found { module: module.to_vec(), item: None, rest: Vec::new() });
        };
        if first == "super" {
            return self.walk(&module[..module.len().checked_sub(1)?], rest, depth);
        }
        let child = join(module, first);
        if self.modules.contains_key(&child) {
            return self.walk(&child, rest, depth);
        }
        let here = self.modules.get(module)?;
        if !here.items.contains(first)
            && let Some(found) = self.imported(module, path, depth)
        {
            return Some(found);
        }
        // An item, or one that a macro makes.
        Some(Found { module: module.to_vec(), item: Some(first.clone()), rest: rest.to_vec() })
    }

    /// An item as one of another crate would call it, less the crate's `toe_`.
    pub fn path_of(&self, module: &[String], item: &str) -> String {
        let folder = self.name.trim_start_matches("toe_");
        [folder]
            .into_iter()
            .chain(module.iter().map(String::as_str))
            .chain([item])
            .collect::<Vec<_>>()
            .join("::")
    }

    pub fn file_of(&self, module: &[String]) -> Option<usize> {
        self.modules.get(module).map(|module| module.file)
    }
}

fn join(module: &[String], name: &str) -> ModulePath {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// Takes test code out of `items`; of modules in files of their own it says which.
fn remove_tests(items: &mut Vec<Item>, module: &[String], tests: &mut BTreeSet<ModulePath>) {
    items.retain_mut(|item| {
        let is_test = is_for_tests(attributes(item));
        match item {
            Item::Mod(inner) => {
                let path = join(module, &inner.ident.to_string());
                match &mut inner.content {
                    Some((_, items)) if !is_test => remove_tests(items, &path, tests),
                    None if is_test => {
                        tests.insert(path);
                    }
                    _ => {}
                }
            }
            Item::Impl(block) => block.items.retain(|item| match item {
                syn::ImplItem::Fn(function) => !is_for_tests(&function.attrs),
                _ => true,
            }),
            _ => {}
        }
        !is_test
    });
}

/// `#[test]`, `#[cfg(test)]`, `#[cfg(all(test, …))]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let mut is_test = attribute.path().is_ident("test");
        if attribute.path().is_ident("cfg") {
            // An error is a condition of another kind.
            let _ = attribute.parse_nested_meta(|meta| {
                is_test |= meta.path.is_ident("test");
                if meta.path.is_ident("all") {
                    return meta.parse_nested_meta(|inner| {
                        is_test |= inner.path.is_ident("test");
                        if inner.path.is_ident("not") { inner.parse_nested_meta(|_| Ok(())) } else { Ok(()) }
                    });
                }
                Ok(())
            });
        }
        is_test
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn add_module(modules: &mut BTreeMap<ModulePath, Module>, file: usize, path: &[String], items: &[Item]) {
    let mut module = modules.remove(path).unwrap_or_default();
    module.file = file;
    for item in items {
        let name = match item {
            Item::Const(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Fn(item) => &item.sig.ident,
            Item::Static(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Mod(inner) => {
                if let Some((_, items)) = &inner.content {
                    add_module(modules, file, &join(path, &inner.ident.to_string()), items);
                }
                continue;
            }
            Item::Use(item) => {
                for used in uses(item) {
                    match used.name {
                        Some(name) => drop(module.uses.insert(name, used.path)),
                        None => module.globs.push(used.path),
                    }
                }
                continue;
            }
            _ => continue,
        };
        module.items.insert(name.to_string());
    }
    modules.insert(path.to_vec(), module);
}

/// What a `use` brings in, name by name.
pub fn uses(item: &syn::ItemUse) -> Vec<Use> {
    let is_private = matches!(item.vis, Visibility::Inherited);
    let mut found = Vec::new();
    add_uses(&item.tree, &mut Vec::new(), is_private, &mut found);
    found
}

fn add_uses(tree: &UseTree, path: &mut Vec<String>, is_private: bool, found: &mut Vec<Use>) {
    let leaf = |path: &[String], last: Option<&syn::Ident>, name: Option<&syn::Ident>| {
        // `a::{self}` is `a`.
        let last = last.map(ToString::to_string).filter(|last| last != "self");
        let full: Vec<String> = path.iter().cloned().chain(last).collect();
        let name =
            name.map(ToString::to_string).filter(|name| name != "self").or_else(|| full.last().cloned());
        Use { path: full, name, is_private }
    };
    match tree {
        UseTree::Path(part) => {
            path.push(part.ident.to_string());
            add_uses(&part.tree, path, is_private, found);
            path.pop();
        }
        UseTree::Name(name) => found.push(leaf(path, Some(&name.ident), Some(&name.ident))),
        UseTree::Rename(name) => found.push(leaf(path, Some(&name.ident), Some(&name.rename))),
        UseTree::Glob(_) => found.push(Use { path: path.clone(), name: None, is_private }),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| add_uses(tree, path, is_private, found));
        }
    }
}
