//! Counters by name. A set of counters is an enum; the values are a plain array, so counting is one add.

/// Declares an enum of counters with a stable snake-case name for each, and its array of values.
#[macro_export]
macro_rules! counters {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $text:literal ),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        $vis enum $name { $( $(#[$vdoc])* $variant ),+ }

        impl $name {
            /// Every counter, in declaration order.
            pub const ALL: &'static [$name] = &[ $( $name::$variant ),+ ];

            /// The counter's name in reports.
            pub const fn name(self) -> &'static str {
                match self { $( $name::$variant => $text ),+ }
            }
        }
    };
}

/// The values of a counter enum with `N` variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterSet<const N: usize> {
    values: [u64; N],
}

impl<const N: usize> Default for CounterSet<N> {
    fn default() -> Self {
        CounterSet { values: [0; N] }
    }
}

impl<const N: usize> CounterSet<N> {
    pub fn add(&mut self, index: usize, n: u64) {
        self.values[index] = self.values[index].wrapping_add(n);
    }

    pub fn get(&self, index: usize) -> u64 {
        self.values[index]
    }
}
