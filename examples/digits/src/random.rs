//! Random numbers that are the same everywhere for the same seed.

/// SplitMix64: small, and good enough for initial weights and shuffling.
///
/// # Source
/// Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// Makes a generator for one purpose: streams of the same seed do not resemble each other.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Random { state: seed };
        random.state = random.next() ^ stream.wrapping_mul(0xd134_2543_de82_ef95);
        random
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `-limit` to `limit`.
    pub(crate) fn uniform(&mut self, limit: f32) -> f32 {
        // 24 bits are what an f32 holds, so every value is exact.
        let unit = (self.next() >> 40) as f32 / (1u64 << 24) as f32;
        (2.0 * unit - 1.0) * limit
    }

    /// Puts the items in random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            // The bias of the remainder is below 2^-50 for any data set that fits in memory.
            let other = (self.next() % (last as u64 + 1)) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_streams_differ() {
        let take = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.next(), random.next(), random.next()]
        };
        assert_eq!(take(7, 0), take(7, 0));
        assert_ne!(take(7, 0), take(7, 1));
        assert_ne!(take(7, 0), take(8, 0));
    }

    #[test]
    fn uniform_stays_within_its_limit_and_covers_it() {
        let mut random = Random::new(1, 0);
        let values: Vec<f32> = (0..1000).map(|_| random.uniform(0.5)).collect();
        assert!(values.iter().all(|value| value.abs() <= 0.5));
        assert!(values.iter().any(|value| *value > 0.45) && values.iter().any(|value| *value < -0.45));
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(3, 0).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<u32>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<u32>>());
    }
}
