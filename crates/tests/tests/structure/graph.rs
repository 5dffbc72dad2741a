//! Circles and chains among files. An edge leads from who uses to who is used.

use std::collections::BTreeSet;

/// Who is used by each.
#[derive(Debug, Default)]
pub struct Graph {
    edges: Vec<BTreeSet<usize>>,
}

impl Graph {
    pub fn new(nodes: usize) -> Graph {
        Graph { edges: vec![BTreeSet::new(); nodes] }
    }

    pub fn add(&mut self, from: usize, to: usize) {
        if from != to {
            self.edges[from].insert(to);
        }
    }

    /// Those edges that begin and end inside. Who is outside stays, alone.
    pub fn restricted(&self, inside: impl Fn(&usize) -> bool) -> Graph {
        let within = |(node, edges): (usize, &BTreeSet<usize>)| {
            if inside(&node) {
                edges.iter().copied().filter(|used| inside(used)).collect()
            } else {
                BTreeSet::new()
            }
        };
        Graph { edges: self.edges.iter().enumerate().map(within).collect() }
    }

    /// The largest circle: its nodes reach one another. Empty where there is none.
    pub fn largest_circle(&self) -> Vec<usize> {
        let largest = self.components().into_iter().max_by_key(Vec::len).unwrap_or_default();
        if largest.len() > 1 { largest } else { Vec::new() }
    }

    /// Those of `nodes` that `node` uses.
    pub fn used_among(&self, node: usize, nodes: &[usize]) -> Vec<usize> {
        nodes.iter().copied().filter(|other| self.edges[node].contains(other)).collect()
    }

    /// How many nodes the longest chain of uses has. A circle counts with all of its nodes, so that an edge less never makes
    /// this number larger.
    pub fn longest_chain(&self) -> Vec<usize> {
        let components = self.components();
        let mut component_of = vec![0; self.edges.len()];
        for (number, nodes) in components.iter().enumerate() {
            nodes.iter().for_each(|node| component_of[*node] = number);
        }
        // Who is used stands before who uses it.
        let mut chains: Vec<Vec<usize>> = Vec::new();
        for (number, nodes) in components.iter().enumerate() {
            let used = nodes.iter().flat_map(|node| &self.edges[*node]).map(|node| component_of[*node]);
            let below = used.filter(|used| *used != number).max_by_key(|used| (chains[*used].len(), *used));
            let below = below.map(|used| chains[used].clone()).unwrap_or_default();
            chains.push(nodes.iter().copied().chain(below).collect());
        }
        chains.into_iter().max_by_key(Vec::len).unwrap_or_default()
    }

    /// Tarjan's strongly connected components, those first that others use.
    fn components(&self) -> Vec<Vec<usize>> {
        let mut search = Search::over(self);
        (0..self.edges.len()).for_each(|node| {
            if search.number[node].is_none() {
                search.visit(node);
            }
        });
        search.found
    }
}

struct Search<'a> {
    graph: &'a Graph,
    number: Vec<Option<usize>>,
    low: Vec<usize>,
    is_open: Vec<bool>,
    open: Vec<usize>,
    next: usize,
    found: Vec<Vec<usize>>,
}

impl<'a> Search<'a> {
    fn over(graph: &'a Graph) -> Search<'a> {
        let nodes = graph.edges.len();
        let (low, is_open) = (vec![0; nodes], vec![false; nodes]);
        Search {
            graph,
            number: vec![None; nodes],
            low,
            is_open,
            open: Vec::new(),
            next: 0,
            found: Vec::new(),
        }
    }

    fn visit(&mut self, node: usize) {
        self.number[node] = Some(self.next);
        self.low[node] = self.next;
        self.next += 1;
        self.open.push(node);
        self.is_open[node] = true;
        for &used in &self.graph.edges[node] {
            match self.number[used] {
                None => {
                    self.visit(used);
                    self.low[node] = self.low[node].min(self.low[used]);
                }
                Some(number) if self.is_open[used] => self.low[node] = self.low[node].min(number),
                Some(_) => {}
            }
        }
        if Some(self.low[node]) == self.number[node] {
            let start = self.open.iter().rposition(|open| *open == node).expect("it was opened");
            let mut nodes = self.open.split_off(start);
            nodes.iter().for_each(|node| self.is_open[*node] = false);
            nodes.sort_unstable();
            self.found.push(nodes);
        }
    }
}

fn graph(nodes: usize, edges: &[(usize, usize)]) -> Graph {
    let mut graph = Graph::new(nodes);
    edges.iter().for_each(|(from, to)| graph.add(*from, *to));
    graph
}

#[test]
fn circles_and_chains_are_found() {
    let chain = graph(4, &[(0, 1), (1, 2), (0, 3), (2, 2)]);
    assert_eq!((chain.largest_circle().len(), chain.longest_chain()), (0, vec![0, 1, 2]));
    let circle = graph(5, &[(0, 1), (1, 2), (2, 1), (2, 3), (4, 4)]);
    assert_eq!((circle.largest_circle(), circle.longest_chain().len()), (vec![1, 2], 4));
    let two = graph(5, &[(0, 1), (1, 0), (2, 3), (3, 4), (4, 2), (0, 2)]);
    assert_eq!((two.largest_circle(), two.longest_chain().len()), (vec![2, 3, 4], 5));
}
