//! Ratings that are made up: of what nobody tells, a few hidden numbers for each user and item.

use crate::options::Options;

/// Hidden numbers of each user and item.
const HIDDEN: u64 = 4;

/// What a user thinks of an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rating {
    pub(crate) user: usize,
    pub(crate) item: usize,
    pub(crate) value: f32,
}

/// Ratings of users and items drawn at random, without end.
#[derive(Clone, Debug)]
pub(crate) struct Ratings {
    users: usize,
    items: usize,
    state: u64,
}

impl Ratings {
    /// Draws others for each `seed`, all of the same hidden numbers.
    pub(crate) fn new(options: &Options, seed: u64) -> Self {
        Ratings { users: options.users, items: options.items, state: mixed(seed) }
    }

    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.state)
    }

    /// Small numbers around 0, to begin with.
    pub(crate) fn noise(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| 0.3 * unit(self.draw())).collect()
    }
}

impl Iterator for Ratings {
    type Item = Rating;

    fn next(&mut self) -> Option<Rating> {
        let user = (self.draw() % self.users as u64) as usize;
        let item = (self.draw() % self.items as u64) as usize;
        let hidden = |of: usize, kind: u64, at: u64| unit(mixed(kind << 48 ^ (of as u64) << 8 ^ at));
        let value = (0..HIDDEN).map(|at| hidden(user, 1, at) * hidden(item, 2, at)).sum();
        Some(Rating { user, item, value })
    }
}

/// A number from -1 to below 1.
fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// # Source
/// SplitMix64's mixer: Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators* (2014).
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
