//! Options that the library keeps for the program as it gave them.

/// Linux: SOCK_MIN_RCVBUF / 2.
const WINDOW_CLAMP_MIN: i32 = 1152;

#[derive(Clone, Copy, Debug)]
struct SetOption {
    level: i32,
    name: i32,
    len: u8,
    value: [u8; VALUE_MAX],
}

/// What was set, each option once.
#[derive(Clone, Debug, Default)]
pub struct SavedOptions(Vec<SetOption>);

impl SavedOptions {
    pub(crate) fn set(&mut self, level: i32, name: i32, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(VALUE_MAX)];
        let mut value = [0; VALUE_MAX];
        value[..bytes.len()].copy_from_slice(bytes);
        let saved = SetOption { level, name, len: bytes.len() as u8, value };
        let is_full = self.0.len() >= SAVED_MAX;
        match self.0.iter_mut().find(|known| (known.level, known.name) == (level, name)) {
            Some(known) => *known = saved,
            None if is_full => {}
            None => self.0.push(saved),
        }
    }

    pub(super) fn each(&self, mut f: impl FnMut(i32, i32, &[u8])) {
        self.0.iter().for_each(|saved| f(saved.level, saved.name, &saved.value[..usize::from(saved.len)]));
    }

    pub(super) fn forget(&mut self, level: i32, name: i32) {
        self.0.retain(|known| (known.level, known.name) != (level, name));
    }

    /// What TCP_WINDOW_CLAMP lets the peer be offered, where it is set; Linux takes no less than half of its smallest buffer.
    pub(super) fn window_clamp(&self) -> Option<u32> {
        let value = self.get(libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP)?.first_chunk()?;
        Some(i32::from_ne_bytes(*value).max(WINDOW_CLAMP_MIN) as u32)
    }

    pub(super) fn all(&self) -> Vec<(i32, i32, Vec<u8>)> {
        let one =
            |saved: &SetOption| (saved.level, saved.name, saved.value[..usize::from(saved.len)].to_vec());
        self.0.iter().map(one).collect()
    }

    pub(crate) fn get(&self, level: i32, name: i32) -> Option<&[u8]> {
        let saved = self.0.iter().find(|known| (known.level, known.name) == (level, name))?;
        Some(&saved.value[..usize::from(saved.len)])
    }
}

/// There are not as many options.
pub(crate) const SAVED_MAX: usize = 128;

/// Longer values are not asked for again.
pub(crate) const VALUE_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_each_option_is_kept() {
        let mut saved = SavedOptions::default();
        saved.set(1, 2, &[1, 0, 0, 0]);
        saved.set(1, 3, &[9; 40]);
        saved.set(1, 2, &[7]);
        assert_eq!(saved.get(1, 2), Some(&[7][..]));
        assert_eq!(saved.get(1, 3), Some(&[9; VALUE_MAX][..]));
        assert_eq!(saved.get(6, 2), None);
        (0..1000).for_each(|name| saved.set(1, name, &[1]));
        assert_eq!(saved.0.len(), SAVED_MAX);
    }
}
