//! Segments of no connection that wait until their neighbour is known.

use crate::work::Lone;
use std::collections::VecDeque;

/// So many of a port wait; the oldest give way (Linux's `unres_qlen` bounds them for each neighbour).
const WAITING_MAX: usize = 64;

/// A port's, with the neighbours' numbers.
#[derive(Debug, Default)]
pub struct WaitingSegments(VecDeque<(u16, Lone)>);

impl WaitingSegments {
    /// Returns whether an older one gave way.
    pub fn push(&mut self, neighbour: u16, lone: Lone) -> bool {
        let is_full = self.0.len() >= WAITING_MAX;
        if is_full {
            self.0.pop_front();
        }
        self.0.push_back((neighbour, lone));
        is_full
    }

    /// Takes those for a neighbour.
    pub fn take(&mut self, neighbour: u16) -> Vec<Lone> {
        let of = self.0.iter().filter(|(to, _)| *to == neighbour);
        let taken = of.map(|(_, lone)| *lone).collect();
        self.0.retain(|(to, _)| *to != neighbour);
        taken
    }
}
