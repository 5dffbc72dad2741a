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

        impl $crate::counter::Counted for $name {
            fn index(self) -> usize {
                self as usize
            }

            fn name(self) -> &'static str {
                $name::name(self)
            }
        }
    };
}

/// A counter of an enum that [`counters!`](crate::counters) has declared.
pub trait Counted: Copy {
    /// Where its value lies.
    fn index(self) -> usize;
    fn name(self) -> &'static str;

    /// Whether it counts what is dropped.
    #[inline]
    fn is_drop(self) -> bool {
        matches!(self.name().as_bytes(), [b'd', b'r', b'o', b'p', b'_', ..])
    }
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

/// The values of `C`, which has `N` variants, and the reason for which something was dropped last.
#[derive(Clone, Debug)]
pub struct CounterValues<C, const N: usize> {
    values: CounterSet<N>,
    last_drop: Option<C>,
}

impl<C, const N: usize> Default for CounterValues<C, N> {
    fn default() -> Self {
        CounterValues { values: CounterSet::default(), last_drop: None }
    }
}

impl<C: Counted, const N: usize> CounterValues<C, N> {
    #[inline]
    pub fn add(&mut self, counter: C) {
        self.add_many(counter, 1);
    }

    #[inline]
    pub fn add_many(&mut self, counter: C, count: u64) {
        self.values.add(counter.index(), count);
        if counter.is_drop() {
            self.last_drop = Some(counter);
        }
    }

    pub fn get(&self, counter: C) -> u64 {
        self.values.get(counter.index())
    }

    /// Why something was dropped since the last call.
    pub fn take_drop(&mut self) -> Option<C> {
        self.last_drop.take()
    }
}
