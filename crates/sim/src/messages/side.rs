//! An end of a channel: what part of its program's memory it has, and what it has posted.
//!
//! | from | what lies there |
//! |---|---|
//! | 0 | descriptors, 512 bytes each: first those of sends, then those of receives |
//! | [`OUT`] | what sends are sent from, or reads read into, [`BUFFER`] each |
//! | [`IN`] | what receives receive into |
//! | [`WINDOW`] | what the peer may touch, in the middle of as much again that it may not |
//! | [`FOREIGN`] | registered with another tag |

use std::collections::VecDeque;
use toe_via::node::{Control, End, Node, Segment};

/// Sends that may be under way, and receives that may be posted.
pub const SENDS: u64 = 8;
pub const RECEIVES: u64 = 8;
pub const BUFFER: u64 = 40 << 10;
const DESCRIPTOR: u64 = 512;
pub const OUT: u64 = (SENDS + RECEIVES) * DESCRIPTOR;
pub const IN: u64 = OUT + SENDS * BUFFER;
pub const WINDOW: u64 = IN + RECEIVES * BUFFER;
/// Bytes of the window, and of what lies before and behind it.
pub const WINDOW_LEN: u64 = 4096;
pub const FOREIGN: u64 = WINDOW + 3 * WINDOW_LEN;
const FOREIGN_LEN: u64 = 1024;
pub const SIDE_LEN: u64 = FOREIGN + FOREIGN_LEN;
/// What nobody has written.
pub const UNTOUCHED: u8 = 0xa5;

/// What a send is to come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It succeeds, unless the channel ends before.
    Good,
    /// As `Good`, and these bytes are then in its buffer.
    Reads(Vec<u8>),
    /// It has this error, unless the channel ends before.
    Wrong(u32),
    /// The peer refuses it with this error, if its level lets it hear of that.
    Refused(u32),
}

/// A send that is posted.
#[derive(Clone, Debug)]
pub struct Posted {
    pub slot: u64,
    pub len: u32,
    pub wanted: Wanted,
}

/// See the module.
#[derive(Debug)]
pub struct Side {
    pub program: usize,
    /// Of the program's virtual interfaces.
    pub number: usize,
    pub base: u64,
    pub handle: u32,
    pub window: u32,
    pub foreign: u32,
    pub sends: VecDeque<Posted>,
    /// The slots of posted receives, and how long they are.
    pub receives: VecDeque<(u64, u32)>,
    free_sends: Vec<u64>,
    free_receives: Vec<u64>,
    /// Its program has died.
    pub is_dead: bool,
    /// It was posted and told so often: each once.
    pub posted: u64,
    pub reported: u64,
}

impl Side {
    /// Its memory begins at `base` in the program's.
    pub fn new(node: &mut Node, program: usize, base: u64, level: u64) -> Side {
        let [own, other] = [node.create_ptag(), node.create_ptag()];
        let number = node.add(level, own, (true, level > 0));
        let handle = node.register((base, WINDOW), own, (false, false));
        let window = node.register((base + WINDOW + WINDOW_LEN, WINDOW_LEN), own, (true, level > 0));
        let foreign = node.register((base + FOREIGN, FOREIGN_LEN), other, (true, true));
        node.write(base + WINDOW, &[UNTOUCHED; 3 * WINDOW_LEN as usize]);
        node.write(base + FOREIGN, &[UNTOUCHED; FOREIGN_LEN as usize]);
        Side {
            program,
            number,
            base,
            handle,
            window,
            foreign,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            free_sends: (0..SENDS).collect(),
            free_receives: (0..RECEIVES).collect(),
            is_dead: false,
            posted: 0,
            reported: 0,
        }
    }

    pub fn connect(&self, node: &mut Node, end: End) {
        node.connect(self.number, end);
    }

    pub fn send_slot(&mut self) -> Option<u64> {
        self.free_sends.pop()
    }

    pub fn receive_slot(&mut self) -> Option<u64> {
        self.free_receives.pop()
    }

    pub fn free(&mut self, slot: u64, of_receives: bool) {
        if of_receives { &mut self.free_receives } else { &mut self.free_sends }.push(slot);
    }

    /// Where the descriptor of a slot lies in the program's memory, and its buffer.
    pub fn places(&self, slot: u64, of_receives: bool) -> (u64, u64) {
        let (number, buffers) = if of_receives { (SENDS + slot, IN) } else { (slot, OUT) };
        (self.base + number * DESCRIPTOR, self.base + buffers + slot * BUFFER)
    }

    /// The same from where a descriptor lies: whose it is.
    pub fn slot_at(&self, at: u64) -> (u64, bool) {
        let number = (at - self.base) / DESCRIPTOR;
        if number < SENDS { (number, false) } else { (number - SENDS, true) }
    }

    /// Some of a buffer of its own.
    pub fn segment(&self, node: &Node, at: u64, length: u32) -> Segment {
        Segment { data: node.base() + at, handle: self.handle, length }
    }

    /// Posts a descriptor; of what it says of itself the number of segments and the length are right, unless `control` has others.
    pub fn post(
        &mut self,
        node: &mut Node,
        (slot, of_receives): (u64, bool),
        control: Control,
        segments: &[Segment],
    ) -> bool {
        let (at, _) = self.places(slot, of_receives);
        node.describe(at, control, segments);
        let address = node.base() + at;
        let is_posted = node.post(self.number, address, self.handle, of_receives);
        self.posted += u64::from(is_posted);
        is_posted
    }
}
