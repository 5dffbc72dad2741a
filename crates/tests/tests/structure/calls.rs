//! Which file of a crate calls what another one has. Paths are followed as the compiler follows them. A method is found by its
//! receiver's type where that can be told from declarations (`self`, fields, parameters, what a function returns), else by its name
//! if one type alone of the crate has such a method. Calls through a trait go to nobody: that is what a trait is for.

use crate::graph::Graph;
use crate::imports::{krate_of, paths_in};
use crate::tree::{Krate, ModulePath};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Expr, FnArg, ImplItem, Item, Pat, ReturnType, Type};

/// Methods that types of other crates have as well: their name alone says nothing.
const COMMON: &str = "abs add all and and_then any append as_bytes as_mut as_ptr as_ref as_slice as_str at back begin borrow borrow_mut by_ref \
    bytes capacity chain chars checked_add checked_sub clear clone cloned cmp collect contains contains_key copied count dedup drain entry \
    enumerate eq extend fetch_add file_name fill filter filter_map find find_map first flat_map flatten flush fmt fold for_each front get \
    get_mut get_or_insert_with hash id index insert into into_iter is_empty is_err is_none is_ok is_some iter iter_mut join keys kind last \
    len len_mut load lock map map_err max min name ne new next nth ok or or_else parse path peek pop pop_back pop_front position product \
    push push_back push_front push_str read read_exact recv remove replace reserve resize retain rev rfind send set skip sort sort_by \
    sort_by_key spawn split split_at start starts_with step_by store sub sum swap take then to_owned to_string to_vec total trim truncate \
    unlock unwrap unwrap_or update values wait wake windows with with_capacity wrapping_add wrapping_sub write write_all zip";

/// A type of the crate: where, and what it is called.
type Key = (ModulePath, String);

pub fn graph(krate: &Krate) -> Graph {
    let index = Index::new(krate);
    let mut edges = Graph::new(krate.files.len());
    for (number, file) in krate.files.iter().enumerate() {
        let module = file.module.clone();
        let mut calls = Calls {
            krate,
            index: &index,
            file: number,
            module,
            own: None,
            names: Vec::new(),
            edges: &mut edges,
        };
        calls.visit_file(&file.ast);
    }
    edges
}

/// A function of the crate.
struct Function<'a> {
    file: usize,
    returns: Option<Typed<'a>>,
}

/// A type as it is written somewhere.
#[derive(Clone)]
struct Typed<'a> {
    kind: Kind<'a>,
    module: ModulePath,
    /// What `Self` is there.
    own: Option<Key>,
}

#[derive(Clone)]
enum Kind<'a> {
    Own(Key),
    Written(&'a Type),
}

#[derive(Default)]
struct Index<'a> {
    fields: BTreeMap<Key, BTreeMap<String, Typed<'a>>>,
    functions: BTreeMap<Key, Function<'a>>,
    methods: BTreeMap<(Key, String), Function<'a>>,
    /// The types that have a method of this name.
    owners: BTreeMap<String, BTreeSet<Key>>,
    /// Names of traits' methods.
    of_traits: BTreeSet<String>,
}

impl<'a> Index<'a> {
    fn new(krate: &'a Krate) -> Index<'a> {
        let mut index = Index::default();
        for (number, file) in krate.files.iter().enumerate() {
            index.add_items(krate, number, &file.module, &file.ast.items);
        }
        index
    }

    fn add_items(&mut self, krate: &'a Krate, file: usize, module: &ModulePath, items: &'a [Item]) {
        let at = |name: &syn::Ident| (module.clone(), name.to_string());
        for item in items {
            match item {
                Item::Struct(item) => {
                    let own = Some(at(&item.ident));
                    let typed =
                        |ty| Typed { kind: Kind::Written(ty), module: module.clone(), own: own.clone() };
                    let name = |number: usize, field: &syn::Field| {
                        field.ident.as_ref().map_or_else(|| number.to_string(), ToString::to_string)
                    };
                    let fields = item.fields.iter().enumerate();
                    let fields = fields.map(|(n, field)| (name(n, field), typed(&field.ty))).collect();
                    self.fields.insert(at(&item.ident), fields);
                }
                Item::Fn(item) => {
                    let returns = returned(&item.sig, module, None);
                    self.functions.insert(at(&item.sig.ident), Function { file, returns });
                }
                Item::Trait(item) => {
                    let methods = item.items.iter().filter_map(|item| match item {
                        syn::TraitItem::Fn(function) => Some(function.sig.ident.to_string()),
                        _ => None,
                    });
                    self.of_traits.extend(methods);
                }
                Item::Impl(block) => self.add_impl(krate, file, module, block),
                Item::Mod(inner) => {
                    if let Some((_, items)) = &inner.content {
                        let path: ModulePath =
                            module.iter().cloned().chain([inner.ident.to_string()]).collect();
                        self.add_items(krate, file, &path, items);
                    }
                }
                _ => {}
            }
        }
    }

    fn add_impl(&mut self, krate: &'a Krate, file: usize, module: &ModulePath, block: &'a syn::ItemImpl) {
        let typed = Typed { kind: Kind::Written(&block.self_ty), module: module.clone(), own: None };
        let Some(own) = typed.key(krate) else { return };
        for item in &block.items {
            let ImplItem::Fn(function) = item else { continue };
            let name = function.sig.ident.to_string();
            let returns = returned(&function.sig, module, Some(&own));
            if block.trait_.is_none() {
                self.owners.entry(name.clone()).or_default().insert(own.clone());
            } else {
                self.of_traits.insert(name.clone());
            }
            self.methods.insert((own.clone(), name), Function { file, returns });
        }
    }

    /// The one method of this name.
    fn only(&self, name: &str) -> Option<&Function<'a>> {
        let owners = self.owners.get(name).filter(|owners| owners.len() == 1)?;
        let is_common =
            self.of_traits.contains(name) || COMMON.split_whitespace().any(|common| common == name);
        if is_common { None } else { self.methods.get(&(owners.first()?.clone(), name.to_owned())) }
    }
}

fn returned<'a>(sig: &'a syn::Signature, module: &ModulePath, own: Option<&Key>) -> Option<Typed<'a>> {
    match &sig.output {
        ReturnType::Type(_, ty) => {
            Some(Typed { kind: Kind::Written(ty), module: module.clone(), own: own.cloned() })
        }
        ReturnType::Default => None,
    }
}

impl<'a> Typed<'a> {
    fn own(key: &Key) -> Typed<'a> {
        Typed { kind: Kind::Own(key.clone()), module: key.0.clone(), own: Some(key.clone()) }
    }

    fn with(&self, ty: &'a Type) -> Typed<'a> {
        Typed { kind: Kind::Written(ty), module: self.module.clone(), own: self.own.clone() }
    }

    /// Past references and pointers that a method call goes through.
    fn peeled(&self) -> Typed<'a> {
        match self.kind {
            Kind::Written(Type::Reference(inner)) => self.with(&inner.elem).peeled(),
            Kind::Written(Type::Paren(inner)) => self.with(&inner.elem).peeled(),
            _ => ["Box", "Rc", "Arc"]
                .iter()
                .find_map(|name| self.argument(name))
                .map_or_else(|| self.clone(), |inner| inner.peeled()),
        }
    }

    /// `T` of `Name<T, …>`.
    fn argument(&self, name: &str) -> Option<Typed<'a>> {
        let Kind::Written(Type::Path(path)) = self.kind else { return None };
        let last = path.path.segments.last().filter(|last| last.ident == name)?;
        let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
        arguments.args.iter().find_map(|argument| match argument {
            syn::GenericArgument::Type(ty) => Some(self.with(ty)),
            _ => None,
        })
    }

    /// What is in an `Option` or a `Result`.
    fn inside(&self) -> Option<Typed<'a>> {
        let outer = self.peeled();
        outer.argument("Option").or_else(|| outer.argument("Result"))
    }

    fn element(&self) -> Option<Typed<'a>> {
        let outer = self.peeled();
        match outer.kind {
            Kind::Written(Type::Array(array)) => Some(outer.with(&array.elem)),
            Kind::Written(Type::Slice(slice)) => Some(outer.with(&slice.elem)),
            _ => outer.argument("Vec"),
        }
    }

    /// The type of the crate that it is.
    fn key(&self, krate: &Krate) -> Option<Key> {
        let peeled = self.peeled();
        let ty = match &peeled.kind {
            Kind::Own(key) => return Some(key.clone()),
            Kind::Written(Type::Path(ty)) => ty,
            Kind::Written(_) => return None,
        };
        if ty.path.is_ident("Self") {
            return peeled.own.clone();
        }
        let path: Vec<String> = ty.path.segments.iter().map(|s| s.ident.to_string()).collect();
        let found = krate.lookup(&peeled.module, &path)?;
        found.item.filter(|_| found.rest.is_empty()).map(|item| (found.module, item))
    }
}

struct Calls<'e, 'a> {
    krate: &'a Krate,
    index: &'a Index<'a>,
    file: usize,
    module: ModulePath,
    /// What `Self` is.
    own: Option<Key>,
    /// What is known of local names, innermost last; none hides an outer one.
    names: Vec<(String, Option<Typed<'a>>)>,
    edges: &'e mut Graph,
}

impl<'a> Calls<'_, 'a> {
    /// A function of the crate that a path names.
    fn named(&self, path: &[String]) -> Option<&'a Function<'a>> {
        if path[0] == "Self" {
            let (own, name) = (self.own.clone()?, path.get(1)?.clone());
            return self.index.methods.get(&(own, name));
        }
        let found = self.krate.lookup(&self.module, path)?;
        let item = (found.module, found.item?);
        match found.rest.first() {
            Some(method) => self.index.methods.get(&(item, method.clone())),
            None => self.index.functions.get(&item),
        }
    }

    fn calls(&mut self, function: &Function<'_>) {
        self.edges.add(self.file, function.file);
    }

    fn method(&self, call: &'a syn::ExprMethodCall) -> Option<&'a Function<'a>> {
        let name = call.method.to_string();
        match self.type_of(&call.receiver) {
            Some(typed) => self.index.methods.get(&(typed.key(self.krate)?, name)),
            None => self.index.only(&name),
        }
    }

    fn type_of(&self, expr: &'a Expr) -> Option<Typed<'a>> {
        match expr {
            Expr::Path(path) => {
                let name = path.path.get_ident()?.to_string();
                if name == "self" {
                    return self.own.as_ref().map(Typed::own);
                }
                self.names.iter().rev().find(|(known, _)| *known == name)?.1.clone()
            }
            Expr::Field(field) => {
                let key = self.type_of(&field.base)?.key(self.krate)?;
                let name = match &field.member {
                    syn::Member::Named(name) => name.to_string(),
                    syn::Member::Unnamed(index) => index.index.to_string(),
                };
                self.index.fields.get(&key)?.get(&name).cloned()
            }
            Expr::MethodCall(call) => self.type_of_call(call),
            Expr::Call(call) => {
                let Expr::Path(path) = &*call.func else { return None };
                let path: Vec<String> = path.path.segments.iter().map(|s| s.ident.to_string()).collect();
                self.named(&path)?.returns.clone()
            }
            Expr::Struct(made) => {
                let path: Vec<String> = made.path.segments.iter().map(|s| s.ident.to_string()).collect();
                if path == ["Self"] {
                    return self.own.as_ref().map(Typed::own);
                }
                let found = self.krate.lookup(&self.module, &path)?;
                Some(Typed::own(&(found.module, found.item?)))
            }
            Expr::Index(index) => self.type_of(&index.expr)?.element(),
            Expr::Try(tried) => self.type_of(&tried.expr)?.inside(),
            Expr::Reference(inner) => self.type_of(&inner.expr),
            Expr::Unary(inner) => self.type_of(&inner.expr),
            Expr::Paren(inner) => self.type_of(&inner.expr),
            _ => None,
        }
    }

    fn type_of_call(&self, call: &'a syn::ExprMethodCall) -> Option<Typed<'a>> {
        let outer = self.type_of(&call.receiver);
        match (call.method.to_string().as_str(), outer) {
            ("as_ref" | "as_mut" | "take" | "as_deref" | "as_deref_mut", Some(outer))
                if outer.inside().is_some() =>
            {
                Some(outer)
            }
            ("unwrap" | "expect", Some(outer)) => outer.inside(),
            ("clone", Some(outer)) => Some(outer),
            _ => self.method(call)?.returns.clone(),
        }
    }

    /// The names of a pattern, of which `typed` is known.
    fn bind(&mut self, pattern: &'a Pat, typed: Option<Typed<'a>>) {
        match pattern {
            Pat::Ident(name) => self.names.push((name.ident.to_string(), typed)),
            Pat::Reference(inner) => self.bind(&inner.pat, typed),
            Pat::Paren(inner) => self.bind(&inner.pat, typed),
            Pat::Type(inner) => {
                let written = Kind::Written(&inner.ty);
                let typed = Typed { kind: written, module: self.module.clone(), own: self.own.clone() };
                self.bind(&inner.pat, Some(typed));
            }
            Pat::TupleStruct(inner) => {
                let inside = typed.as_ref().and_then(Typed::inside);
                let is_one = inner.elems.len() == 1;
                inner.elems.iter().for_each(|pat| self.bind(pat, inside.clone().filter(|_| is_one)));
            }
            Pat::Tuple(inner) => inner.elems.iter().for_each(|pat| self.bind(pat, None)),
            Pat::Struct(inner) => inner.fields.iter().for_each(|field| self.bind(&field.pat, None)),
            Pat::Slice(inner) => inner.elems.iter().for_each(|pat| self.bind(pat, None)),
            Pat::Or(inner) => inner.cases.iter().for_each(|pat| self.bind(pat, None)),
            _ => {}
        }
    }

    fn bind_arguments(&mut self, sig: &'a syn::Signature) {
        for argument in &sig.inputs {
            if let FnArg::Typed(argument) = argument {
                let written = Kind::Written(&argument.ty);
                let typed = Typed { kind: written, module: self.module.clone(), own: self.own.clone() };
                self.bind(&argument.pat, Some(typed));
            }
        }
    }

    fn within(&mut self, visit: impl FnOnce(&mut Self)) {
        let known = self.names.len();
        visit(self);
        self.names.truncate(known);
    }
}

impl<'a> Visit<'a> for Calls<'_, 'a> {
    fn visit_item_mod(&mut self, inner: &'a syn::ItemMod) {
        self.module.push(inner.ident.to_string());
        visit::visit_item_mod(self, inner);
        self.module.pop();
    }

    fn visit_item_impl(&mut self, block: &'a syn::ItemImpl) {
        let typed = Typed { kind: Kind::Written(&block.self_ty), module: self.module.clone(), own: None };
        let outer = std::mem::replace(&mut self.own, typed.key(self.krate));
        visit::visit_item_impl(self, block);
        self.own = outer;
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        self.within(|calls| {
            calls.bind_arguments(&function.sig);
            visit::visit_item_fn(calls, function);
        });
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        self.within(|calls| {
            calls.bind_arguments(&function.sig);
            visit::visit_impl_item_fn(calls, function);
        });
    }

    fn visit_block(&mut self, block: &'a syn::Block) {
        self.within(|calls| visit::visit_block(calls, block));
    }

    fn visit_expr_closure(&mut self, closure: &'a syn::ExprClosure) {
        self.within(|calls| {
            closure.inputs.iter().for_each(|input| calls.bind(input, None));
            visit::visit_expr_closure(calls, closure);
        });
    }

    fn visit_expr_for_loop(&mut self, each: &'a syn::ExprForLoop) {
        self.visit_expr(&each.expr);
        self.within(|calls| {
            calls.bind(&each.pat, None);
            calls.visit_block(&each.body);
        });
    }

    fn visit_expr_match(&mut self, matched: &'a syn::ExprMatch) {
        self.visit_expr(&matched.expr);
        let typed = self.type_of(&matched.expr);
        for arm in &matched.arms {
            self.within(|calls| {
                calls.bind(&arm.pat, typed.clone());
                visit::visit_arm(calls, arm);
            });
        }
    }

    /// Its names last as long as what it is a condition of.
    fn visit_expr_if(&mut self, branch: &'a syn::ExprIf) {
        self.within(|calls| visit::visit_expr_if(calls, branch));
    }

    fn visit_expr_while(&mut self, branch: &'a syn::ExprWhile) {
        self.within(|calls| visit::visit_expr_while(calls, branch));
    }

    fn visit_expr_let(&mut self, condition: &'a syn::ExprLet) {
        visit::visit_expr_let(self, condition);
        let typed = self.type_of(&condition.expr);
        self.bind(&condition.pat, typed);
    }

    fn visit_local(&mut self, local: &'a syn::Local) {
        visit::visit_local(self, local);
        let typed = local.init.as_ref().and_then(|init| self.type_of(&init.expr));
        self.bind(&local.pat, typed);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        if let Some(function) = self.method(call) {
            self.calls(function);
        }
        visit::visit_expr_method_call(self, call);
    }

    /// Also one that is handed on instead of called.
    fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
        let path: Vec<String> = path.path.segments.iter().map(|s| s.ident.to_string()).collect();
        let is_local = path.len() == 1 && self.names.iter().any(|(name, _)| *name == path[0]);
        if let Some(function) = self.named(&path).filter(|_| !is_local) {
            self.calls(function);
        }
    }

    fn visit_macro(&mut self, invoked: &'a syn::Macro) {
        let mut called = Vec::new();
        paths_in(&invoked.tokens, &mut |path| called.extend(self.named(path).map(|function| function.file)));
        methods_in(&invoked.tokens, &mut |receiver, name| {
            let own = self.own.clone().filter(|_| receiver == "self");
            let method = match own {
                Some(own) => self.index.methods.get(&(own, name.to_owned())),
                None => self.index.only(name),
            };
            called.extend(method.map(|function| function.file));
        });
        called.into_iter().for_each(|file| self.edges.add(self.file, file));
    }
}

/// Each `receiver.name(…)` among the tokens of a macro.
pub fn methods_in(tokens: &TokenStream, each: &mut impl FnMut(&str, &str)) {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        methods_in(&group.stream(), each);
        if at >= 2
            && let [TokenTree::Punct(dot), TokenTree::Ident(name)] = &tokens[at - 2..at]
            && dot.as_char() == '.'
        {
            let receiver = at.checked_sub(3).map(|at| tokens[at].to_string());
            each(&receiver.unwrap_or_default(), &name.to_string());
        }
    }
}

#[test]
fn calls_lead_to_the_file_of_the_function() {
    let a = "pub struct A { b: Option<B> } impl A { fn f(&mut self) { if let Some(b) = &mut self.b { b.len(); } } }";
    let one_way = [("a.rs", a), ("b.rs", "pub struct B; impl B { pub fn len(&self) {} }")];
    let one_way = one_way.map(|(path, text)| (path, format!("use crate::a::A; use crate::b::B; {text}")));
    let files = one_way.each_ref().map(|(path, text)| (*path, text.as_str()));
    // Both name each other, and only one calls.
    assert_eq!(crate::imports::graph(&krate_of(&files)).largest_circle().len(), 2);
    assert_eq!(graph(&krate_of(&files)).longest_chain(), [0, 1]);
    // One impl in two files.
    let circle = [
        ("a.rs", "pub struct A; impl A { fn f(&self) { self.rest() } pub fn begin_all(&self) {} }"),
        ("b.rs", "impl crate::a::A { pub fn rest(&self) {} fn g(x: impl Fn() -> Self) { x().begin_all() } }"),
    ];
    assert_eq!(graph(&krate_of(&circle)).largest_circle(), [0, 1]);
}
