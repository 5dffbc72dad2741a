//! What is counted of single items: structures, traits, statics, places that set TCP's state, calls of the engine, names.

use crate::tree::Krate;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Expr, ImplItem, Item, ItemStruct, Type, Visibility};

/// A structure, or a trait.
#[derive(Debug, Default)]
pub struct Shape {
    pub fields: Vec<String>,
    pub bools: Vec<String>,
    pub methods: Vec<String>,
    pub public_methods: BTreeSet<String>,
    /// Those of all methods that take `&self`.
    looking: BTreeSet<String>,
    pub is_trait: bool,
}

impl Shape {
    /// The method may change what it is called of.
    pub fn changes_by(&self, method: &str) -> bool {
        !self.looking.contains(method)
    }
}

/// Structures and traits of a crate by their paths: `engine::flow::record::Conn`.
pub fn shapes(krate: &Krate) -> BTreeMap<String, Shape> {
    let mut shapes = BTreeMap::new();
    // Methods are anywhere in the crate, whatever the order of its files.
    each_item(krate, &mut |module, item| match item {
        Item::Struct(item) => {
            drop(shapes.insert(krate.path_of(module, &item.ident.to_string()), shape_of(item)))
        }
        Item::Trait(item) => {
            let methods = item.items.iter().filter_map(|item| match item {
                syn::TraitItem::Fn(function) => Some(function.sig.ident.to_string()),
                _ => None,
            });
            let shape = Shape { methods: methods.collect(), is_trait: true, ..Shape::default() };
            shapes.insert(krate.path_of(module, &item.ident.to_string()), shape);
        }
        _ => {}
    });
    each_item(krate, &mut |module, item| {
        let Item::Impl(block) = item else { return };
        let Type::Path(of) = &*block.self_ty else { return };
        let path: Vec<String> = of.path.segments.iter().map(|s| s.ident.to_string()).collect();
        let found =
            krate.lookup(module, &path).and_then(|found| Some(krate.path_of(&found.module, &found.item?)));
        let Some(shape) = found.and_then(|path| shapes.get_mut(&path)) else { return };
        if block.trait_.is_some() {
            return;
        }
        for item in &block.items {
            let ImplItem::Fn(function) = item else { continue };
            let name = function.sig.ident.to_string();
            shape.public_methods.extend(matches!(function.vis, Visibility::Public(_)).then(|| name.clone()));
            let looks =
                function.sig.receiver().is_some_and(|me| me.reference.is_some() && me.mutability.is_none());
            shape.looking.extend(looks.then(|| name.clone()));
            shape.methods.push(name);
        }
    });
    shapes
}

/// What describes a format, of a report, of memory that is shared, of a command line, has as many fields as that has.
const FORMATS: [&str; 5] = ["Serialize", "Deserialize", "FromBytes", "Parser", "Args"];

fn is_format(item: &ItemStruct) -> bool {
    let mut is_format = false;
    for attribute in item.attrs.iter().filter(|attribute| attribute.path().is_ident("derive")) {
        let _ = attribute.parse_nested_meta(|meta| {
            let last = meta.path.segments.last();
            is_format |= last.is_some_and(|last| FORMATS.iter().any(|format| last.ident == format));
            Ok(())
        });
    }
    is_format
}

fn shape_of(item: &ItemStruct) -> Shape {
    if is_format(item) {
        return Shape::default();
    }
    let name = |(number, field): (usize, &syn::Field)| {
        field.ident.as_ref().map_or_else(|| number.to_string(), ToString::to_string)
    };
    let is_bool = |field: &syn::Field| matches!(&field.ty, Type::Path(ty) if ty.path.is_ident("bool"));
    let fields = || item.fields.iter().enumerate();
    let bools = fields().filter(|(_, field)| is_bool(field)).map(name).collect();
    Shape { fields: fields().map(name).collect(), bools, ..Shape::default() }
}

fn each_item<'a>(krate: &'a Krate, each: &mut impl FnMut(&[String], &'a Item)) {
    fn within<'a>(module: &[String], items: &'a [Item], each: &mut impl FnMut(&[String], &'a Item)) {
        for item in items {
            if let Item::Mod(inner) = item
                && let Some((_, items)) = &inner.content
            {
                within(&[module, &[inner.ident.to_string()]].concat(), items, each);
            }
            each(module, item);
        }
    }
    krate.files.iter().for_each(|file| within(&file.module, &file.ast.items, each));
}

/// Statics of a crate, of the process and of each thread: `crates/host/src/queue.rs NAME`.
#[derive(Debug, Default)]
pub struct Statics {
    pub of_process: Vec<String>,
    pub of_threads: Vec<String>,
    file: String,
}

pub fn statics(krate: &Krate) -> Statics {
    let mut statics = Statics::default();
    for file in &krate.files {
        statics.file = file.path.clone();
        statics.visit_file(&file.ast);
    }
    statics
}

impl<'ast> Visit<'ast> for Statics {
    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.of_process.push(format!("{} {}", self.file, item.ident));
        visit::visit_item_static(self, item);
    }

    fn visit_macro(&mut self, invoked: &'ast syn::Macro) {
        let is_of_threads = invoked.path.segments.last().is_some_and(|last| last.ident == "thread_local");
        let mut names = Vec::new();
        statics_in(&invoked.tokens, &mut names);
        let names = names.into_iter().map(|name| format!("{} {name}", self.file));
        if is_of_threads { self.of_threads.extend(names) } else { self.of_process.extend(names) }
    }
}

/// What is declared as `static` among the tokens of a macro.
fn statics_in(tokens: &TokenStream, names: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let text = |at: usize| tokens.get(at).map(ToString::to_string).unwrap_or_default();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => statics_in(&group.stream(), names),
            // Not the lifetime.
            TokenTree::Ident(word)
                if word == "static" && at.checked_sub(1).is_none_or(|at| text(at) != "'") =>
            {
                let name = text(at + 1);
                // `ref` as lazy_static has it.
                names.push(if name == "mut" || name == "ref" { text(at + 2) } else { name });
            }
            _ => {}
        }
    }
}

/// Places that give a connection a state, or say who has it, past the table of that, which is in one of `tables`.
pub fn states_set(krate: &Krate, tables: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for file in krate.files.iter().filter(|file| !tables.contains(&file.path.as_str())) {
        let mut states = States { places: Vec::new() };
        states.visit_file(&file.ast);
        found.extend(states.places.into_iter().map(|place| format!("{} {place}", file.path)));
    }
    found
}

struct States {
    places: Vec<String>,
}

impl<'ast> Visit<'ast> for States {
    fn visit_expr_assign(&mut self, assigned: &'ast syn::ExprAssign) {
        let of_record = || match &*assigned.left {
            Expr::Field(field) => ends_in(&field.base, &["tcb"]),
            _ => false,
        };
        let is = |member: &str| {
            matches!(&*assigned.left, Expr::Field(field)
                if matches!(&field.member, syn::Member::Named(name) if name == member))
        };
        let by_table = matches!(&*assigned.right, Expr::MethodCall(call) if call.method == "after");
        if is("state") && !by_table && (of_record() || names_state(&assigned.right)) {
            self.places.push("assigns a state".to_owned());
        }
        if is("tenancy") && !by_table {
            self.places.push("assigns who has a connection".to_owned());
        }
        visit::visit_expr_assign(self, assigned);
    }

    fn visit_expr_struct(&mut self, made: &'ast syn::ExprStruct) {
        let is_record =
            made.path.segments.last().is_some_and(|last| last.ident == "Tcb" || last.ident == "Self");
        let is_state =
            |field: &syn::FieldValue| matches!(&field.member, syn::Member::Named(name) if name == "state");
        if is_record && made.fields.iter().any(|field| is_state(field) && names_state(&field.expr)) {
            self.places.push("makes a record in a state".to_owned());
        }
        visit::visit_expr_struct(self, made);
    }
}

/// `TcpState::Closed` and the like are part of `expr`.
fn names_state(expr: &Expr) -> bool {
    struct Named(bool);
    impl<'ast> Visit<'ast> for Named {
        fn visit_path(&mut self, path: &'ast syn::Path) {
            let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
            if let [.., of, name] = &segments[..] {
                self.0 |= of == "TcpState" && name.starts_with(char::is_uppercase);
            }
        }
    }
    let mut named = Named(false);
    named.visit_expr(expr);
    named.0
}

/// The last name of `self.engine`, `engine`, `node.engine()` is one of `names`.
fn ends_in(expr: &Expr, names: &[&str]) -> bool {
    let is_one = |name: &syn::Ident| names.iter().any(|known| name == known);
    match expr {
        Expr::Path(path) => path.path.segments.last().is_some_and(|last| is_one(&last.ident)),
        Expr::Field(field) => matches!(&field.member, syn::Member::Named(name) if is_one(name)),
        Expr::MethodCall(call) => is_one(&call.method),
        Expr::Reference(inner) => ends_in(&inner.expr, names),
        Expr::Paren(inner) => ends_in(&inner.expr, names),
        Expr::Unary(inner) => ends_in(&inner.expr, names),
        _ => false,
    }
}

/// Methods that a crate calls of what it calls `engine`, and of its view.
pub fn calls_of_engine(krate: &Krate) -> BTreeSet<String> {
    struct Called(BTreeSet<String>);
    impl<'ast> Visit<'ast> for Called {
        fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
            if ends_in(&call.receiver, &["engine", "view"]) {
                self.0.insert(call.method.to_string());
            }
            visit::visit_expr_method_call(self, call);
        }

        fn visit_macro(&mut self, invoked: &'ast syn::Macro) {
            crate::calls::methods_in(&invoked.tokens, &mut |receiver, name| {
                if receiver == "engine" {
                    self.0.insert(name.to_owned());
                }
            });
        }
    }
    let mut called = Called(BTreeSet::new());
    krate.files.iter().for_each(|file| called.visit_file(&file.ast));
    called.0
}

/// What is told to the engine as a value.
const INPUTS: [&str; 1] = ["ControlEvent"];

/// Inputs of the engine's of which a crate makes some, each a variant: `ControlEvent::SocketGone`.
pub fn inputs_of_engine(krate: &Krate) -> BTreeSet<String> {
    struct Made(BTreeSet<String>);
    impl<'ast> Visit<'ast> for Made {
        fn visit_path(&mut self, path: &'ast syn::Path) {
            let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
            if let [.., of, name] = &segments[..]
                && INPUTS.contains(&of.as_str())
            {
                self.0.insert(format!("{of}::{name}"));
            }
            visit::visit_path(self, path);
        }
    }
    let mut made = Made(BTreeSet::new());
    krate.files.iter().for_each(|file| made.visit_file(&file.ast));
    made.0
}

/// A name that a crate gives: to an item, a field, a variant, a function.
#[derive(Clone, Debug)]
pub struct Name {
    pub file: String,
    pub name: String,
    pub is_type: bool,
}

pub fn names(krate: &Krate) -> Vec<Name> {
    let mut names = Names { file: String::new(), found: Vec::new() };
    for file in &krate.files {
        names.file = file.path.clone();
        names.visit_file(&file.ast);
    }
    names.found
}

struct Names {
    file: String,
    found: Vec<Name>,
}

impl Names {
    fn add(&mut self, name: &syn::Ident, is_type: bool) {
        self.found.push(Name { file: self.file.clone(), name: name.to_string(), is_type });
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Const(item) => self.add(&item.ident, false),
            Item::Enum(item) => self.add(&item.ident, true),
            Item::Mod(item) => self.add(&item.ident, false),
            Item::Static(item) => self.add(&item.ident, false),
            Item::Struct(item) => self.add(&item.ident, true),
            Item::Trait(item) => self.add(&item.ident, true),
            Item::Type(item) => self.add(&item.ident, true),
            Item::Union(item) => self.add(&item.ident, true),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_signature(&mut self, sig: &'ast syn::Signature) {
        self.add(&sig.ident, false);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        field.ident.iter().for_each(|name| self.add(name, false));
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.add(&variant.ident, false);
        visit::visit_variant(self, variant);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.add(&item.ident, false);
    }
}

/// The words of `FlowIndex`, `flow_index`, `FLOW_INDEX`.
pub fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || before == '_' || c.is_uppercase() && before.is_lowercase() {
            words.push(String::new());
        }
        if c != '_' {
            words.last_mut().expect("a word has begun").extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn names_are_cut_into_words() {
    assert_eq!(words("FlowIndex"), ["flow", "index"]);
    assert_eq!(words("keep_alive_"), ["keep", "alive"]);
    assert_eq!(words("MAX_LEN"), ["max", "len"]);
}

#[test]
fn shapes_and_statics_are_counted() {
    let krate = crate::imports::krate_of(&[
        (
            "a.rs",
            "pub struct A { b: bool, c: u8 } static S: &'static str = \"\"; #[cfg(test)] static T: u8 = 0;",
        ),
        ("b.rs", "impl crate::a::A { pub fn f() { static N: u8 = 0; } } thread_local! { static L: u8 = 0; }"),
    ]);
    let shape = &shapes(&krate)["x::a::A"];
    let counts = (shape.fields.len(), shape.bools.len(), shape.methods.len(), shape.public_methods.len());
    assert_eq!(counts, (2, 1, 1, 1));
    let statics = statics(&krate);
    assert_eq!((statics.of_process.len(), statics.of_threads.len()), (2, 1));
}

#[test]
fn states_past_the_table_are_found() {
    let krate = crate::imports::krate_of(&[
        ("state.rs", "fn table(tcb: &mut Tcb) { tcb.state = TcpState::Closed; }"),
        ("a.rs", "fn by_table(tcb: &mut Tcb) { tcb.state = tcb.state.after(TcpEvent::Fin); }"),
        (
            "b.rs",
            "fn f(flow: &mut Flow, n: TcpState) { flow.tcb.state = n; Tcb { state: TcpState::Closed } }",
        ),
    ]);
    let places = states_set(&krate, &["crates/x/src/state.rs"]);
    assert_eq!(places, ["crates/x/src/b.rs assigns a state", "crates/x/src/b.rs makes a record in a state"]);
}
