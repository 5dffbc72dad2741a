//! What became of packets and peers.

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) counted: u64,
    pub(super) malformed: u64,
    pub(super) crowded: u64,
    pub(super) let_go: u64,
}

impl Counters {
    pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("tally_counted", self.counted),
            ("drop_tally_malformed", self.malformed),
            ("drop_tally_crowded", self.crowded),
            ("tally_let_go", self.let_go),
        ]
    }
}
